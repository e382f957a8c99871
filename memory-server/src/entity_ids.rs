//! `entity-id.list` and `entity-id.exists` (SRV-515, SRV-516): the live space-scoped documents of the default branch.

use std::sync::Arc;

use memory_engine::{EngineError, Reader};
use memory_wire::error::ErrorName;
use memory_wire::message::{EntityIdExists, EntityIdExistsOk, EntityIdList, EntityIdListOk};
use memory_wire::{EntityId, Seq, WireError};

use crate::acl::{self, Capability, Standing};
use crate::dispatch::{Answer, Requester, revoked_in_flight};
use crate::server::Server;

/// One page, or the whole list when nothing asks for paging.
pub(crate) async fn list(
    server: &Arc<Server>,
    requester: &Requester,
    request: &EntityIdList,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Read).await?;
    let cap = server.config().limits.entity_id_page as u64;
    let paged = request.after.is_some() || request.limit.is_some() || request.expected_server_seq.is_some();
    let page = request.limit.map_or(cap, |limit| limit.min(cap));
    let after = request.after.clone();
    let (server_seq, mut ids): (Seq, Vec<EntityId>) = read(server, requester, move |reader| {
        // One more than asked for tells whether more follow.
        Ok((
            reader.server_seq()?,
            reader.entity_id_page(after.as_ref(), Some(page.saturating_add(1)))?,
        ))
    })
    .await?;
    if let Some(expected) = request.expected_server_seq
        && expected != server_seq
    {
        return Err(WireError::new(
            ErrorName::SnapshotChanged,
            format!("entity identifier snapshot changed from server sequence {expected} to {server_seq}"),
        ));
    }
    let more = ids.len() as u64 > page;
    if more && !paged {
        return Err(WireError::protocol(format!(
            "unpaginated entity identifier listing exceeds {cap} entries; use pagination"
        )));
    }
    ids.truncate(usize::try_from(page).unwrap_or(usize::MAX));
    let next_after = if more { ids.last().cloned() } else { None };
    Ok(Answer::Body(
        EntityIdListOk {
            server_seq,
            ids,
            next_after,
        }
        .to_value(),
    ))
}

/// Whether one id is in the same universe.
pub(crate) async fn exists(
    server: &Arc<Server>,
    requester: &Requester,
    request: &EntityIdExists,
) -> Result<Answer, WireError> {
    server.require_capability(requester, Capability::Read).await?;
    let id = request.id.clone();
    let (server_seq, exists) = read(server, requester, move |reader| {
        Ok((reader.server_seq()?, reader.entity_id_exists(&id)?))
    })
    .await?;
    Ok(Answer::Body(EntityIdExistsOk { server_seq, exists }.to_value()))
}

/// Reads one committed state for a session that is open before, in and after it.
async fn read<R: Send + 'static>(
    server: &Arc<Server>,
    requester: &Requester,
    work: impl FnOnce(&Reader) -> Result<R, EngineError> + Send + 'static,
) -> Result<R, WireError> {
    let space = &requester.open.space;
    let standing = {
        let registry = space.registry.lock();
        registry
            .current(&requester.header.session_id, requester.open.incarnation)
            .map(|(_, session)| Standing::of(session))
            .ok_or_else(|| WireError::session("Unknown session for space"))?
    };
    let (shared_server, shared_space) = (Arc::clone(server), Arc::clone(space));
    let read = space
        .read(move |reader| {
            if !acl::stands_in(&shared_server, &shared_space, reader, &standing)? {
                return Ok(Err(revoked_in_flight()));
            }
            work(reader).map(Ok)
        })
        .await
        .map_err(|error| error.to_query())?;
    server.require_current(requester)?;
    read
}
