//! Sessions that lose their space when its list changes (SRV-808, SRV-809): the only place where READ is judged
//! again, because the list is the only thing that changes it (SRV-810). Runs in the turn of the commit that changed the
//! list; the caller announces each loss, the writer's own after its verdict. A read beside the turn asks the same of the
//! state that it reads.

use std::sync::Arc;

use memory_engine::{EngineError, Reader};
use memory_wire::acl::Capability;
use memory_wire::message::{Revoked, RevokedReason, ServerMessage};
use memory_wire::{Did, SessionId, SpaceId};

use super::cache::{AccessState, ListState};
use super::decision::capability_of;
use crate::acting_as;
use crate::config::{AclConfig, AclMode};
use crate::connection::Connection;
use crate::dispatch::send;
use crate::registry::Slot;
use crate::server::Server;
use crate::session::Session;
use crate::space::Space;
use crate::statistics::SessionEnd;

/// A session that has been removed and has yet to be told.
pub(crate) struct Revocation {
    pub(crate) slot: Slot,
    space: SpaceId,
    session: SessionId,
    connection: Option<Arc<Connection>>,
}

impl Revocation {
    /// Tells the session's connection, if it has one (SRV-808).
    pub(crate) fn announce(self) {
        if let Some(connection) = self.connection {
            send(
                &connection,
                ServerMessage::Revoked(Revoked {
                    space: self.space,
                    session_id: self.session,
                    reason: RevokedReason::Unauthorized,
                }),
            );
        }
    }
}

/// Whose READ keeps a session open.
pub(crate) struct Standing {
    principal: Option<Did>,
    acting_principal: Option<Did>,
}

impl Standing {
    pub(crate) fn of(session: &Session) -> Standing {
        Standing {
            principal: session.principal.clone(),
            acting_principal: session.acting_principal.clone(),
        }
    }
}

/// Which sessions a list lets stay open (SRV-808).
struct Judgement<'a> {
    config: &'a AclConfig,
    space: &'a SpaceId,
    state: &'a AccessState,
    owner: Option<Did>,
}

impl<'a> Judgement<'a> {
    fn by(server: &'a Server, space: &'a Space, state: &'a AccessState) -> Judgement<'a> {
        Judgement {
            config: &server.config().acl,
            space: space.id(),
            state,
            owner: acting_as::owner_of(space.id(), &state.list),
        }
    }

    fn keeps(&self, standing: &Standing) -> bool {
        let acting = standing.acting_principal.as_ref();
        let orphaned = acting.is_some() && acting != self.owner.as_ref();
        let reader = acting.or(standing.principal.as_ref());
        !orphaned && capability_of(self.config, self.space, self.state, reader) >= Some(Capability::Read)
    }
}

/// Whether the list that `reader` sees lets a session stay open. For a read beside the turn, on the state it reads: there
/// the commit that ends the session, and others after it, may be durable before the session is removed (SRV-406).
pub(crate) fn stands_in(
    server: &Server,
    space: &Space,
    reader: &Reader,
    standing: &Standing,
) -> Result<bool, EngineError> {
    if server.config().acl.mode != AclMode::Enforce {
        return Ok(true);
    }
    let state = AccessState::read(space.id(), reader)?;
    Ok(Judgement::by(server, space, &state).keeps(standing))
}

/// Removes every session of the space that the present list no longer admits.
pub(crate) fn revoke_after_list_change(server: &Server, space: &Space, reader: &Reader) -> Vec<Revocation> {
    let config = &server.config().acl;
    if config.mode != AclMode::Enforce {
        return Vec::new();
    }
    let state = match space.access.state_by(space, reader) {
        Ok(state) => state,
        Err(error) => {
            // Fails closed: without the list nobody but the space itself and service principals is known to have access.
            tracing::error!(space = %space.id(), %error, "access list cannot be read after it changed");
            Arc::new(AccessState {
                list: ListState::Invalid,
                empty: false,
            })
        }
    };
    let judgement = Judgement::by(server, space, &state);
    let mut registry = space.registry.lock();
    let lost: Vec<Slot> = registry
        .iter()
        .filter(|(_, session)| !judgement.keeps(&Standing::of(session)))
        .map(|(slot, _)| slot)
        .collect();
    let mut revoked: Vec<(u64, Revocation)> = lost
        .into_iter()
        .filter_map(|slot| registry.remove(slot).map(|session| (slot, session)))
        .map(|(slot, session)| {
            let connection = session.connection().cloned();
            if let Some(connection) = &connection {
                connection.forget(space.id(), &session.id, session.incarnation);
            }
            tracing::info!(space = %space.id(), session = %session.id, "session revoked");
            let order = connection
                .as_ref()
                .map_or(u64::MAX, |connection| connection.order);
            (
                order,
                Revocation {
                    slot,
                    space: space.id().clone(),
                    session: session.id,
                    connection,
                },
            )
        })
        .collect();
    server.statistics().count_ends(SessionEnd::Revoked, revoked.len());
    revoked.sort_by_key(|(order, revocation)| (*order, revocation.slot));
    revoked.into_iter().map(|(_, revocation)| revocation).collect()
}
