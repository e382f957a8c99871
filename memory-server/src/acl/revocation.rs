//! Sessions that lose their space when its list changes (SRV-808, SRV-809): the only place where READ is judged
//! again, because the list is the only thing that changes it (SRV-810). Runs in the turn of the commit that changed the
//! list; the caller announces each loss, the writer's own after its verdict.

use std::sync::Arc;

use memory_engine::Reader;
use memory_wire::acl::Capability;
use memory_wire::message::{Revoked, RevokedReason, ServerMessage};
use memory_wire::{SessionId, SpaceId};

use super::cache::{AccessState, ListState};
use super::decision::capability_of;
use crate::acting_as;
use crate::config::AclMode;
use crate::connection::Connection;
use crate::dispatch::send;
use crate::registry::Slot;
use crate::server::Server;
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
    let owner = acting_as::owner_of(space.id(), &state.list);
    let mut registry = space.registry.lock();
    let lost: Vec<Slot> = registry
        .iter()
        .filter(|(_, session)| {
            let orphaned = session.acting_principal.is_some() && session.acting_principal != owner;
            orphaned || capability_of(config, space.id(), &state, session.reader()) < Some(Capability::Read)
        })
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
