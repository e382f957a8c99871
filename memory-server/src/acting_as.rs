//! Delegated read binding (SRV-317…320): a process's own session may read as the owner of a space, so that its reads
//! are attributed and end when ownership moves. It opens no write path.

use memory_engine::Reader;
use memory_wire::{Did, SpaceId, WireError};

use crate::acl::ListState;
use crate::server::Server;
use crate::space::Space;

/// The only value `actingAs` may have.
const SPACE_OWNER: &str = "space-owner";

/// The principal whose READ answers for the session, if the open asks for one and the space has an owner.
pub(crate) fn resolve(
    server: &Server,
    space: &Space,
    reader: &Reader,
    principal: Option<&Did>,
    acting_as: Option<&str>,
) -> Result<Option<Did>, WireError> {
    let acl = &server.config().acl;
    let Some(acting_as) = acting_as else {
        return Ok(None);
    };
    if !acl.mode.is_active() {
        return Ok(None);
    }
    if acting_as != SPACE_OWNER {
        return Err(WireError::protocol(format!(
            "unknown session.open actingAs value \"{acting_as}\""
        )));
    }
    if !principal.is_some_and(|principal| acl.delegating_principals.contains(principal)) {
        server.statistics().count_denied();
        return Err(WireError::authorization(format!(
            "Principal {} may not open a session acting as the owner of {}: not a delegating principal (memory ACL \
             delegatingDids; OW31)",
            principal.map_or("<anonymous>", Did::as_str),
            space.id()
        )));
    }
    if principal.is_some_and(|principal| acl.service_principals.contains(principal)) {
        // Its own grant covers it already.
        return Ok(None);
    }
    let state = space
        .access
        .state_by(space, reader)
        .map_err(|error| error.to_wire(space.server_seq()))?;
    Ok(owner_of(space.id(), &state.list))
}

/// The owner a delegated session acts for (SRV-318).
pub(crate) fn owner_of(space: &SpaceId, list: &ListState) -> Option<Did> {
    match list {
        ListState::Valid(list) => list.acting_owner(&space.as_did()),
        ListState::Missing | ListState::Invalid => None,
    }
}
