//! Changes of a space's list made for an actor by a served handler (SRV-812, SRV-813): the same rules as a session's
//! own change, with the actor as principal, and a capability reference that resolves to a durable event the actor fired.

use std::sync::Arc;

use memory_engine::{ApplyCommit, Engine, Reader};
use memory_wire::commit_meta::{CommitClass, Delegated};
use memory_wire::equality::value_equal;
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::well_known::{STREAM_SIDECAR_PREFIX, acl_document_id};
use memory_wire::{BranchName, EntityId, InstanceId, Object, Scope, Value, WireError};

use crate::acl::{self, AccessState, ListState};
use crate::error::ServerError;
use crate::server::Server;
use crate::serving_plane::{AdmittedCommit, ServedAclChange, ServedAclOutcome};
use crate::space::Space;
use crate::statistics::Verdict;

/// The reference of a change made as the consequence of an event.
const EVENT_CONSEQUENCE: &str = "event-consequence:";

/// What checking a change found.
enum Checked {
    Unchanged,
    Change(Box<ClientCommit>),
}

/// Whether the change may be made; commits nothing.
pub(crate) async fn check(server: &Arc<Server>, change: ServedAclChange) -> Result<(), ServerError> {
    let space = server.open_space(&change.space)?;
    let (server, turn_space) = (Arc::clone(server), Arc::clone(&space));
    space
        .in_turn(move |engine| check_change(&server, &turn_space, engine.reader(), &change).map(drop))
        .await?
}

/// Makes the change, within the space's turn.
pub(crate) async fn commit(
    server: &Arc<Server>,
    change: ServedAclChange,
) -> Result<ServedAclOutcome, ServerError> {
    let space = server.open_space(&change.space)?;
    let (server, turn_space) = (Arc::clone(server), Arc::clone(&space));
    space
        .in_turn(move |engine| commit_in_turn(&server, &turn_space, engine, &change))
        .await?
}

fn commit_in_turn(
    server: &Arc<Server>,
    space: &Arc<Space>,
    engine: &mut Engine,
    change: &ServedAclChange,
) -> Result<ServedAclOutcome, ServerError> {
    let commit = match check_change(server, space, engine.reader(), change)? {
        Checked::Unchanged => return Ok(ServedAclOutcome::Unchanged),
        Checked::Change(commit) => commit,
    };
    let delegated = Delegated {
        acting_principal: Some(change.actor.clone()),
        acting_session: None,
        capability_ref: change.capability_ref.clone(),
        sessionless_space_scope: false,
    };
    let now = server.config().clock.wall_ms();
    let apply = ApplyCommit {
        delegated: Some(&delegated),
        ..ApplyCommit::authored(&change.session_id, None, &commit, now)
    };
    let applied = engine.apply_commit(apply)?;
    space.note_head(applied.seq);
    space.access.forget();
    let key = InstanceId::space(acl_document_id(space.id()));
    space.mark(|batch| batch.mark_for_all(key.clone()));
    server
        .statistics()
        .count_commit(CommitClass::Authored, Verdict::of(&applied));
    server.notify_admitted(&AdmittedCommit {
        space: space.id().clone(),
        seq: applied.seq,
        class: CommitClass::Authored,
        holder: None,
        session_id: change.session_id.clone(),
        writes: vec![key],
        event_appends: Vec::new(),
        warm: false,
    });
    let revoked = acl::revoke_after_list_change(server, space, engine.reader());
    revoked.into_iter().for_each(acl::Revocation::announce);
    server.schedule_flush(space);
    Ok(ServedAclOutcome::Committed { seq: applied.seq })
}

fn check_change(
    server: &Server,
    space: &Space,
    reader: &Reader,
    change: &ServedAclChange,
) -> Result<Checked, ServerError> {
    let event = change
        .capability_ref
        .strip_prefix(EVENT_CONSEQUENCE)
        .unwrap_or_default();
    if event.is_empty() {
        return Err(WireError::protocol(format!(
            "served ACL change requires a capability reference event-consequence:<eventId>, got {:?}",
            change.capability_ref
        ))
        .into());
    }
    if !is_fired_by(reader, event, change.actor.as_str())? {
        return Err(WireError::protocol(format!(
            "served ACL change: {} names no durable event fired by {}",
            change.capability_ref, change.actor
        ))
        .into());
    }
    let list_id = acl_document_id(space.id());
    let list = acl::read_list(reader, &list_id)?;
    if list == ListState::Missing {
        return Err(WireError::authorization(format!(
            "served ACL change: space {} has no ACL document, and a served change never creates one",
            space.id()
        ))
        .into());
    }
    if reader
        .read_space_value(&list_id)?
        .is_some_and(|present| value_equal(&present, &change.list))
    {
        return Ok(Checked::Unchanged);
    }
    let mut document = Object::new();
    document.insert("value", change.list.clone());
    let commit = ClientCommit::build(
        change.local_seq,
        CommitParts {
            operations: vec![Operation::Set {
                id: list_id,
                scope: Scope::Space,
                value: Value::Object(document),
            }],
            ..CommitParts::default()
        },
    );
    let state = AccessState { list, empty: false };
    acl::check_served_commit(server, space.id(), &state, &change.actor, &commit)?;
    Ok(Checked::Change(Box::new(commit)))
}

/// True when some stream of the space holds an entry of this event whose `firedAt` names `actor`.
fn is_fired_by(reader: &Reader, event: &str, actor: &str) -> Result<bool, memory_engine::EngineError> {
    let mut after = EntityId::from(STREAM_SIDECAR_PREFIX);
    loop {
        let page = reader.entity_id_page(Some(&after), Some(256))?;
        for id in &page {
            if !id.as_str().starts_with(STREAM_SIDECAR_PREFIX) {
                return Ok(false);
            }
            let value = reader.read(
                id,
                memory_engine::ReadInstance::Space,
                &BranchName::default(),
                None,
            )?;
            if value.is_some_and(|document| holds_event(&document, event, actor)) {
                return Ok(true);
            }
        }
        match page.last() {
            Some(last) => after = last.clone(),
            None => return Ok(false),
        }
    }
}

fn holds_event(document: &Value, event: &str, actor: &str) -> bool {
    let Some(entries) = document.at_path(&["value", "entries"]).and_then(Value::as_array) else {
        return false;
    };
    entries.elements().any(|(_, entry)| {
        entry.member("eventId").and_then(Value::as_str) == Some(event)
            && entry.at_path(&["firedAt", "user"]).and_then(Value::as_str) == Some(actor)
    })
}
