//! All queries of a session evaluated at one moment: its watches by branch, and what is selected for its views. Made by
//! `evaluate`, `watch_requests` and `prepared_view`.

use std::collections::BTreeMap;

use memory_engine::Reader;
use memory_engine::query::{Snapshot, TrackedGraph};
use memory_wire::ScopeIdentity;
use memory_wire::message::GraphQuery;
use rustc_hash::FxHashSet;

use crate::delivery::InstanceKey;
use crate::error::ServerError;
use crate::session::GraphKey;
use crate::space::Space;

/// A whole watch list evaluated.
pub(crate) struct FullView {
    pub(crate) graphs: BTreeMap<GraphKey, TrackedGraph>,
}

impl FullView {
    /// Evaluates each query for `identity`, or takes an evaluation over that serves it as well (SRV-524).
    pub(crate) fn evaluate(
        reader: &Reader,
        space: &Space,
        identity: &ScopeIdentity,
        queries: &[(GraphKey, GraphQuery)],
    ) -> Result<FullView, ServerError> {
        let mut view = FullView {
            graphs: BTreeMap::new(),
        };
        view.add(reader, space, identity, queries)?;
        Ok(view)
    }

    /// Evaluates further queries.
    pub(crate) fn add(
        &mut self,
        reader: &Reader,
        space: &Space,
        identity: &ScopeIdentity,
        queries: &[(GraphKey, GraphQuery)],
    ) -> Result<(), ServerError> {
        for (key, query) in queries {
            let graph = space.evaluations.track(reader, space.id(), identity, query)?;
            self.graphs.insert(key.clone(), graph);
        }
        Ok(())
    }

    /// Every snapshot with the key it is held under, once.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (InstanceKey, Snapshot)> + '_ {
        let mut seen: FxHashSet<InstanceKey> = FxHashSet::default();
        // Within one graph nothing comes twice.
        let several = self.graphs.len() > 1;
        self.graphs
            .values()
            .flat_map(TrackedGraph::snapshots)
            .map(|snapshot| (InstanceKey::of(&snapshot), snapshot))
            .filter(move |(key, _)| !several || seen.insert(key.clone()))
    }

    /// A graph with `query` added, and what that brought; `standing` itself is not touched.
    #[allow(clippy::type_complexity, reason = "a graph and what extending it reported")]
    pub(crate) fn extended(
        reader: &Reader,
        space: &Space,
        identity: &ScopeIdentity,
        standing: Option<&TrackedGraph>,
        query: &GraphQuery,
    ) -> Result<(TrackedGraph, Vec<(InstanceKey, Snapshot)>), ServerError> {
        let keyed = |snapshots: Vec<Snapshot>| {
            snapshots
                .into_iter()
                .map(|snapshot| (InstanceKey::of(&snapshot), snapshot))
                .collect()
        };
        match standing {
            None => {
                let graph = space.evaluations.track(reader, space.id(), identity, query)?;
                let snapshots = graph.snapshots().collect();
                Ok((graph, keyed(snapshots)))
            }
            Some(standing) => {
                let mut graph = standing.clone();
                let reported = graph.extend(reader, query)?;
                Ok((graph, keyed(reported)))
            }
        }
    }
}
