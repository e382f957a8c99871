//! Event appends made by the server for an actor (SRV-907): the outbox of another space delivers here. At most one entry
//! per event above the stream's horizon, whoever delivers it and however often.

use std::sync::Arc;

use memory_engine::{ApplyCommit, Engine, EngineError};
use memory_wire::commit_meta::{CommitClass, Delegated};
use memory_wire::ids::EventId;
use memory_wire::message::{ClientCommit, CommitParts, EventAppendDecl, Operation};
use memory_wire::patch::PatchOp;
use memory_wire::pointer::path_from_value;
use memory_wire::well_known::stream_sidecar_id;
use memory_wire::{EntityId, InstanceId, Scope, Value, WireError, value};

use crate::dirty::{OpKind, Origin};
use crate::error::ServerError;
use crate::server::Server;
use crate::serving_plane::{AdmittedCommit, Appended, DelegatedAppend, EventAppendNotice};
use crate::space::Space;
use crate::statistics::Verdict;

/// Delivers one append, within the target space's turn.
pub(crate) async fn append(server: &Arc<Server>, request: DelegatedAppend) -> Result<Appended, ServerError> {
    let space = server.open_space(&request.target_space)?;
    let (server, turn_space) = (Arc::clone(server), Arc::clone(&space));
    space
        .in_turn(move |engine| deliver(&server, &turn_space, engine, &request))
        .await?
}

fn deliver(
    server: &Arc<Server>,
    space: &Arc<Space>,
    engine: &mut Engine,
    request: &DelegatedAppend,
) -> Result<Appended, ServerError> {
    let stored = engine.reader().read_space_value(&request.target_stream)?;
    if is_above_horizon(stored.as_ref(), &request.event_id) {
        return Ok(Appended::Deduped);
    }
    let commit = append_commit(request, checked_link(request)?)?;
    let delegated = Delegated {
        acting_principal: request.acting_principal.clone(),
        acting_session: request.acting_session.clone(),
        capability_ref: request.capability_ref.clone(),
        sessionless_space_scope: request.sessionless_space_scope,
    };
    let now = server.config().clock.wall_ms();
    let apply = ApplyCommit {
        delegated: Some(&delegated),
        ..ApplyCommit::authored(&request.session_id, None, &commit, now)
    };
    let applied = match engine.apply_commit(apply) {
        Ok(applied) => applied,
        // Found inside the transaction: another delivery was faster.
        Err(EngineError::EventAppendDuplicate { .. }) => return Ok(Appended::Deduped),
        Err(error) => return Err(error.into()),
    };
    let known = space.note_head(applied.seq);
    if known.0 == 0 {
        // The first commit of a space changes what a missing list means (§8.2).
        space.access.forget();
    }
    let stream = InstanceId::space(request.target_stream.clone());
    let origin = Origin {
        session: request.session_id.clone(),
        seq: applied.seq,
        kind: OpKind::Patch,
    };
    space.mark(|batch| batch.mark(stream.clone(), origin));
    server
        .statistics()
        .count_commit(CommitClass::Authored, Verdict::of(&applied));
    server.notify_admitted(&AdmittedCommit {
        space: space.id().clone(),
        seq: applied.seq,
        class: CommitClass::Authored,
        holder: None,
        session_id: request.session_id.clone(),
        writes: vec![stream.clone()],
        event_appends: vec![EventAppendNotice {
            stream,
            event_id: request.event_id.clone(),
        }],
        warm: false,
    });
    server.schedule_flush(space);
    Ok(Appended::Fresh { seq: applied.seq })
}

/// True when the stream holds an entry of this event that counts: above the watermark, or, without a seq, not yet
/// consequenced.
fn is_above_horizon(sidecar: Option<&Value>, event: &EventId) -> bool {
    let Some(sidecar) = sidecar else { return false };
    let watermark = sidecar
        .member("eventWatermark")
        .and_then(Value::as_f64)
        .unwrap_or(0.0);
    let Some(entries) = sidecar.member("entries").and_then(Value::as_array) else {
        return false;
    };
    entries.elements().any(|(_, entry)| {
        entry.member("eventId").and_then(Value::as_str) == Some(event.as_str())
            && match entry.member("seq").and_then(Value::as_f64) {
                Some(seq) => seq > watermark,
                None => entry.member("consequenced").and_then(Value::as_bool) != Some(true),
            }
    })
}

/// The stream an entry of this append names: the link given, which must derive the sidecar it is appended to.
fn checked_link(request: &DelegatedAppend) -> Result<Value, WireError> {
    let Some(link) = &request.target_stream_link else {
        return Err(WireError::protocol(format!(
            "delegated append {} carries no target stream link — a legacy (stage-G era) outbox row cannot name the \
             stream its entry stands for; refused, never fabricated (events.md §1)",
            request.event_id
        )));
    };
    let derived = link.member("id").and_then(Value::as_str).and_then(|id| {
        let path = path_from_value(link.member("path")?)?;
        let scope = match link.member("scope") {
            None => Scope::Space,
            Some(scope) => Scope::from_name(scope.as_str()?)?,
        };
        Some(stream_sidecar_id(&EntityId::from(id), &path, scope))
    });
    if derived.as_ref() != Some(&request.target_stream) {
        return Err(WireError::protocol(format!(
            "delegated append {} carries a stream link that does not derive its target sidecar \"{}\" (events.md §1's \
             one derivation)",
            request.event_id, request.target_stream
        )));
    }
    Ok(link.clone())
}

/// One `append` patch with its declaration. The engine stamps `seq` and checks `firedAt` against the carriage.
fn append_commit(request: &DelegatedAppend, link: Value) -> Result<ClientCommit, WireError> {
    let session = request
        .acting_session
        .as_ref()
        .map_or("server", |session| session.as_str());
    let fired_at = match &request.acting_principal {
        Some(user) => value!({ "user": (user.as_str()), "session": session }),
        None => value!({ "session": session }),
    };
    let entry = value!({
        "eventId": (request.event_id.as_str()),
        "stream": link,
        "payload": (request.payload.clone()),
        "firedAt": fired_at
    });
    let patch = value!({ "op": "append", "path": "/value/entries", "values": [entry] });
    let patch = PatchOp::from_value(&patch).map_err(|error| {
        WireError::protocol(format!("the append of {} is no patch: {error}", request.event_id))
    })?;
    Ok(ClientCommit::build(
        request.local_seq,
        CommitParts {
            operations: vec![Operation::Patch {
                id: request.target_stream.clone(),
                scope: Scope::Space,
                patches: vec![patch],
            }],
            event_appends: vec![EventAppendDecl {
                id: request.target_stream.clone(),
                scope: Scope::Space,
                event_id: request.event_id.clone(),
            }],
            ..CommitParts::default()
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_907_the_horizon() {
        let sidecar = value!({
            "eventWatermark": 4,
            "entries": [
                { "eventId": "below", "seq": 4 },
                { "eventId": "above", "seq": 5 },
                { "eventId": "unstamped" },
                { "eventId": "done", "consequenced": true }
            ]
        });
        for (event, expected) in [
            ("below", false),
            ("above", true),
            ("unstamped", true),
            ("done", false),
            ("unknown", false),
        ] {
            assert_eq!(
                is_above_horizon(Some(&sidecar), &EventId::from(event)),
                expected,
                "{event}"
            );
        }
        assert!(!is_above_horizon(None, &EventId::from("above")));
    }
}
