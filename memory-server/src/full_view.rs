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
        FullView::evaluate_within(reader, space, identity, queries, usize::MAX)
    }

    /// The same, when each query reads at most so many documents; otherwise [`EngineError::ReadsTooMuch`].
    ///
    /// [`EngineError::ReadsTooMuch`]: memory_engine::EngineError::ReadsTooMuch
    pub(crate) fn evaluate_within(
        reader: &Reader,
        space: &Space,
        identity: &ScopeIdentity,
        queries: &[(GraphKey, GraphQuery)],
        most: usize,
    ) -> Result<FullView, ServerError> {
        let mut graphs = BTreeMap::new();
        for (key, query) in queries {
            let graph = space
                .evaluations
                .track_within(reader, space.id(), identity, query, most)?;
            graphs.insert(key.clone(), graph);
        }
        Ok(FullView { graphs })
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
        most: usize,
    ) -> Result<(TrackedGraph, Vec<(InstanceKey, Snapshot)>), ServerError> {
        let keyed = |snapshots: Vec<Snapshot>| {
            snapshots
                .into_iter()
                .map(|snapshot| (InstanceKey::of(&snapshot), snapshot))
                .collect()
        };
        match standing {
            None => {
                let graph = space
                    .evaluations
                    .track_within(reader, space.id(), identity, query, most)?;
                let snapshots = graph.snapshots().collect();
                Ok((graph, keyed(snapshots)))
            }
            Some(standing) => {
                let mut graph = standing.clone();
                let reported = graph.extend_within(reader, query, most)?;
                Ok((graph, keyed(reported)))
            }
        }
    }
}
