//! `entity-id.list` and `entity-id.exists` (SRV-515, SRV-516): the live space-scoped documents of the default branch.

use std::sync::Arc;

use memory_engine::EngineError;
use memory_wire::error::ErrorName;
use memory_wire::message::{EntityIdExists, EntityIdExistsOk, EntityIdList, EntityIdListOk};
use memory_wire::{EntityId, Seq, WireError};

use crate::acl::Capability;
use crate::dispatch::{Answer, Requester};
use crate::server::Server;

/// One page, or the whole list when nothing asks for paging.
pub(crate) async fn list(
    server: &Arc<Server>,
    requester: &Requester,
    request: &EntityIdList,
) -> Result<Answer, WireError> {
    let space = &requester.open.space;
    server.require_capability(requester, Capability::Read).await?;
    let cap = server.config().limits.entity_id_page as u64;
    let paged = request.after.is_some() || request.limit.is_some() || request.expected_server_seq.is_some();
    let page = request.limit.map_or(cap, |limit| limit.min(cap));
    let after = request.after.clone();
    let (server_seq, mut ids): (Seq, Vec<EntityId>) = space
        .read(move |reader| {
            // One more than asked for tells whether more follow.
            Ok((
                reader.server_seq()?,
                reader.entity_id_page(after.as_ref(), Some(page + 1))?,
            ))
        })
        .await
        .map_err(|error| error.to_query())?;
    server.require_current(requester)?;
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
    let space = &requester.open.space;
    server.require_capability(requester, Capability::Read).await?;
    let id = request.id.clone();
    let (server_seq, exists) = space
        .read(move |reader| Ok::<_, EngineError>((reader.server_seq()?, reader.entity_id_exists(&id)?)))
        .await
        .map_err(|error| error.to_query())?;
    server.require_current(requester)?;
    Ok(Answer::Body(EntityIdExistsOk { server_seq, exists }.to_value()))
}
