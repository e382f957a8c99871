//! A watch list evaluated beside the space's turn (SRV-525, SRV-1203): the walk of a large list must not hold up the
//! space's commits. Within the turn it is brought up to date with whatever landed meanwhile, so that nothing falls
//! between evaluation and installation.

use std::sync::Arc;

use memory_engine::{EngineError, Reader, StoreLocation};
use memory_wire::message::GraphQuery;
use memory_wire::{InstanceId, ScopeIdentity, Seq};
use rustc_hash::FxHashSet;

use crate::error::ServerError;
use crate::full_view::FullView;
use crate::server::Server;
use crate::session::GraphKey;
use crate::space::Space;

/// Commits that may have landed meanwhile before evaluating anew is the better way.
const MOST_COMMITS_BEHIND: u64 = 256;

/// An evaluation as of `at`.
pub(crate) struct PreparedView {
    view: FullView,
    at: Seq,
}

impl PreparedView {
    /// Evaluates beside the turn, so many at once in the process, the rest queue (SRV-1204). `None` when there is no
    /// such place or the evaluation fails: the turn then does it itself and answers for it.
    pub(crate) async fn prepare(
        server: &Server,
        space: &Arc<Space>,
        identity: ScopeIdentity,
        queries: Vec<(GraphKey, GraphQuery)>,
    ) -> Option<PreparedView> {
        if *space.engine().location() == StoreLocation::Memory || queries.is_empty() {
            return None;
        }
        let _permit = server.full_evaluation_permit().await;
        let shared = Arc::clone(space);
        let prepared = space
            .read(move |reader| {
                let view = FullView::evaluate(reader, &shared, &identity, &queries);
                let at = reader.server_seq()?;
                Ok::<_, EngineError>(view.ok().map(|view| PreparedView { view, at }))
            })
            .await;
        prepared.ok().flatten()
    }

    /// The evaluation as of `head`, which `reader` sees.
    pub(crate) fn bring_current(self, reader: &Reader, head: Seq) -> Option<FullView> {
        let PreparedView { mut view, at } = self;
        if at == head {
            return Some(view);
        }
        match catch_up(&mut view, reader, at) {
            Ok(Caught::Up) => Some(view),
            Ok(Caught::TooFarBehind) => None,
            Err(error) => {
                tracing::debug!(%error, "a prepared evaluation is done over");
                None
            }
        }
    }
}

/// How bringing an evaluation up to date ended.
enum Caught {
    Up,
    TooFarBehind,
}

fn catch_up(view: &mut FullView, reader: &Reader, at: Seq) -> Result<Caught, ServerError> {
    for graph in view.graphs.values_mut() {
        let commits = reader.commits_since(at, graph.branch(), Some(MOST_COMMITS_BEHIND))?;
        if commits.len() as u64 == MOST_COMMITS_BEHIND {
            return Ok(Caught::TooFarBehind);
        }
        let written: FxHashSet<InstanceId> = commits.into_iter().flat_map(|commit| commit.writes).collect();
        if !written.is_empty() {
            graph.refresh(reader, &written)?;
        }
    }
    Ok(Caught::Up)
}
