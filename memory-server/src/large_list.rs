//! A watch request whose list reads much, between its two looks in the turn: what is evaluated beside the turn, and for
//! which state of the session, so that the second look can tell whether it is still what was asked for (SRV-525, SRV-1203).
//! Used by `watch_requests` alone.

use std::sync::Arc;

use memory_engine::EngineError;
use memory_wire::ScopeIdentity;
use memory_wire::message::GraphQuery;

use crate::error::ServerError;
use crate::prepared_view::PreparedView;
use crate::server::Server;
use crate::session::GraphKey;
use crate::space::Space;
use crate::views::Views;
use crate::watches::WatchSet;

/// What the session asks for at the moment: a list is evaluated for just this.
pub(crate) struct Standing {
    pub(crate) watches: Arc<WatchSet>,
    pub(crate) views: Views,
    pub(crate) identity: ScopeIdentity,
}

impl Standing {
    pub(crate) fn is(&self, other: &Standing) -> bool {
        Arc::ptr_eq(&self.watches, &other.watches)
            && self.views.are(&other.views)
            && self.identity == other.identity
    }
}

/// A list to be evaluated beside the turn.
pub(crate) struct Large {
    pub(crate) standing: Standing,
    pub(crate) queries: Vec<(GraphKey, GraphQuery)>,
    /// How far an earlier round got.
    pub(crate) so_far: Option<PreparedView>,
}

/// A list that was evaluated beside the turn.
pub(crate) struct Prepared {
    pub(crate) standing: Standing,
    pub(crate) view: Result<PreparedView, ServerError>,
}

impl Large {
    pub(crate) async fn evaluate(self, server: &Server, space: &Arc<Space>) -> Option<Prepared> {
        let view = match self.so_far {
            Some(view) => view.follow(server, space).await,
            None => {
                let identity = self.standing.identity.clone();
                PreparedView::prepare(server, space, identity, self.queries.into()).await
            }
        };
        // It was in the way of others; another round may not be.
        let overtaken = matches!(view, Err(ServerError::Engine(EngineError::ReadOvertaken)));
        (!overtaken).then_some(Prepared {
            standing: self.standing,
            view,
        })
    }
}
