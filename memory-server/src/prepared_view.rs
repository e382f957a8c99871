//! A watch list evaluated beside the space's turn (SRV-525, SRV-1203): the walk of a large list must not hold up the
//! space's commits. It follows the commits that land meanwhile, and within the turn takes in the last of them, so that
//! nothing falls between evaluation and installation.

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

/// Commits that may be taken in within the turn.
const MOST_IN_TURN: usize = 64;
/// Commits taken in at once beside it; where more have landed, evaluating anew is the better way.
const MOST_AT_ONCE: usize = 4_096;
/// How often it is brought nearer to the head before the turn is asked for.
const APPROACHES: usize = 4;

/// An evaluation as of `at`.
pub(crate) struct PreparedView {
    view: FullView,
    at: Seq,
    identity: ScopeIdentity,
    queries: Arc<[(GraphKey, GraphQuery)]>,
}

impl PreparedView {
    /// True when there is a place beside the turn: a store in memory has none.
    pub(crate) fn is_possible(space: &Space) -> bool {
        *space.engine().location() != StoreLocation::Memory
    }

    /// Evaluates beside the turn, so many at once in the process, the rest queue (SRV-1204).
    pub(crate) async fn prepare(
        server: &Server,
        space: &Arc<Space>,
        identity: ScopeIdentity,
        queries: Arc<[(GraphKey, GraphQuery)]>,
    ) -> Result<PreparedView, ServerError> {
        let _permit = server.full_evaluation_permit().await;
        let prepared = in_reader(space, move |space, reader| {
            PreparedView::evaluate(reader, space, identity, queries)
        })
        .await?;
        prepared.approach(space).await
    }

    /// As [`PreparedView::prepare`], from where an earlier one got to.
    pub(crate) async fn follow(
        self,
        server: &Server,
        space: &Arc<Space>,
    ) -> Result<PreparedView, ServerError> {
        let _permit = server.full_evaluation_permit().await;
        self.approach(space).await
    }

    fn evaluate(
        reader: &Reader,
        space: &Space,
        identity: ScopeIdentity,
        queries: Arc<[(GraphKey, GraphQuery)]>,
    ) -> Result<PreparedView, ServerError> {
        Ok(PreparedView {
            view: FullView::evaluate(reader, space, &identity, &queries)?,
            at: reader.server_seq()?,
            identity,
            queries,
        })
    }

    /// Takes in what has landed, again and again, until little has.
    async fn approach(mut self, space: &Arc<Space>) -> Result<PreparedView, ServerError> {
        for _ in 0..APPROACHES {
            let (prepared, is_near) =
                in_reader(space, move |space, reader| self.take_in(space, reader)).await?;
            self = prepared;
            if is_near {
                break;
            }
        }
        Ok(self)
    }

    /// One step; tells whether it was a short one.
    fn take_in(mut self, space: &Space, reader: &Reader) -> Result<(PreparedView, bool), ServerError> {
        let head = reader.server_seq()?;
        let Some((written, commits)) = self.written_since(reader, MOST_AT_ONCE)? else {
            let PreparedView {
                identity, queries, ..
            } = self;
            return Ok((PreparedView::evaluate(reader, space, identity, queries)?, false));
        };
        for graph in self.view.graphs.values_mut() {
            // Of nothing, too: what may be reached no more is found out here.
            graph.refresh(reader, &written)?;
        }
        self.at = head;
        Ok((self, commits <= MOST_IN_TURN))
    }

    /// What was written since, in how many commits; `None` when in more than `most`.
    fn written_since(
        &self,
        reader: &Reader,
        most: usize,
    ) -> Result<Option<(FxHashSet<InstanceId>, usize)>, EngineError> {
        let mut written = FxHashSet::default();
        let mut longest = 0;
        let branches: FxHashSet<_> = self.view.graphs.values().map(|graph| graph.branch()).collect();
        for branch in branches {
            let commits = reader.commits_since(self.at, branch, Some(most as u64 + 1))?;
            if commits.len() > most {
                return Ok(None);
            }
            longest = longest.max(commits.len());
            written.extend(commits.into_iter().flat_map(|commit| commit.writes));
        }
        Ok(Some((written, longest)))
    }

    /// The evaluation as of what `reader` sees. Costs what little was written since; where that is not little, or leaves
    /// open what is still reached, it has to go on beside the turn.
    pub(crate) fn bring_current(
        mut self,
        reader: &Reader,
    ) -> Result<Result<FullView, PreparedView>, ServerError> {
        let head = reader.server_seq()?;
        let Some((written, _)) = self.written_since(reader, MOST_IN_TURN)? else {
            return Ok(Err(self));
        };
        for graph in self.view.graphs.values_mut() {
            graph.refresh_keeping(reader, &written)?;
        }
        self.at = head;
        match self.view.graphs.values().any(|graph| graph.is_doubtful()) {
            true => Ok(Err(self)),
            false => Ok(Ok(self.view)),
        }
    }
}

/// Runs `work` beside the turn on one state of the store.
async fn in_reader<R: Send + 'static>(
    space: &Arc<Space>,
    work: impl FnOnce(&Space, &Reader) -> Result<R, ServerError> + Send + 'static,
) -> Result<R, ServerError> {
    let shared = Arc::clone(space);
    space.read(move |reader| Ok(work(&shared, reader))).await?
}
