//! Sending events: from runs of a serving runtime into their own wave, else into the in-process queue (RUN-550,
//! RUN-570…574). A client's fire from outside any run goes through the overlay.

use memory_wire::stream_entry::{FiredAt, SERVER_SESSION, StreamEntry, StreamLink};
use memory_wire::well_known::stream_sidecar_id;
use memory_wire::{EntityId, EventId, Scope, ScopeKey, SessionId, SpaceId, Value, hash, value};

use crate::address::{Address, path};
use crate::error::RunnerError;
use crate::link::Link;
use crate::runtime::Posture;
use crate::scheduler::Scheduler;
use crate::scheduler::events::{EventDelivery, OutcomeCallback, ServedRecord};
use crate::seal::{acting_at, stream_append};
use crate::transaction::{Acting, MergeableOp, OutboundAppend, Read, ReadMeta, RunKind, RunStamp, RunTx};

/// How an event is sent.
#[derive(Default)]
pub struct SendOptions {
    /// Id chosen by the caller, with the session that makes it unique (RUN-550).
    pub caller_id: Option<(String, SessionId)>,
    /// Told the outcome once.
    pub on_outcome: Option<OutcomeCallback>,
    /// The event comes from trusted renderer input (RUN-559).
    pub renderer_trusted: bool,
}

/// RUN-550: binds a caller's id to the stream and session it was used with.
pub fn caller_event_id(caller: &str, session: &SessionId, stream: &Link) -> EventId {
    let bound = value!({
        "caller": caller,
        "id": (stream.id.as_str()),
        "path": (path_value(stream)),
        "scope": (stream.scope.as_str()),
        "session": (session.as_str()),
        "space": (stream.space.as_str()),
    });
    EventId::from(format!("evt:caller:{}", hash::hash_string(&bound)))
}

impl Scheduler {
    /// Sends an event to a stream, which must be fully resolved. `tx` is the run that sends, if one does. Answers
    /// the event's id.
    pub fn send(
        &self,
        tx: Option<&RunTx>,
        stream: &Link,
        payload: Value,
        options: SendOptions,
    ) -> Result<EventId, RunnerError> {
        let event_id = self.event_id(tx, stream, &options);
        match (self.0.posture, tx, tx.and_then(RunTx::stamp)) {
            (Posture::Serving, Some(tx), Some(stamp)) => {
                self.emit_from_wave(tx, &stamp, stream, payload, event_id.clone(), options)?;
            }
            (Posture::Serving, _, _) => {
                // Nothing is fired as a client here: the service is nobody's session (RUN-570).
                return Err(RunnerError::InvalidValue {
                    operation: "send",
                    reason: format!(
                        "event to {} sent outside a stamped run of a serving runtime",
                        stream.id
                    ),
                });
            }
            (Posture::Client, None, _) => {
                let fire = self.0.host.borrow().client_fire.clone();
                match fire {
                    Some(fire) => fire(ClientFire {
                        event_id: event_id.clone(),
                        stream: stream.clone(),
                        payload,
                        options,
                    }),
                    None => {
                        return Err(RunnerError::InvalidValue {
                            operation: "send",
                            reason: "a client runtime without its overlay cannot fire events".to_owned(),
                        });
                    }
                }
            }
            (Posture::Standalone, _, _) | (Posture::Client, Some(_), _) => {
                self.queue_event(EventDelivery {
                    event_id: event_id.clone(),
                    caller_id: options.caller_id.is_some(),
                    stream: stream.clone(),
                    payload,
                    fired_at_ms: self.fire_instant(tx),
                    retries: true,
                    parent_event_id: tx.and_then(RunTx::stamp).and_then(|stamp| stamp.event_id),
                    origin: tx.cloned(),
                    served: None,
                    on_outcome: options.on_outcome,
                })?;
            }
        }
        Ok(event_id)
    }

    /// RUN-551: a root fire reads the clock once; inside a handler it inherits the frozen instant.
    pub(crate) fn fire_instant(&self, tx: Option<&RunTx>) -> i64 {
        tx.and_then(RunTx::event_time_ms)
            .unwrap_or_else(|| self.0.clock.now_ms())
    }

    fn event_id(&self, tx: Option<&RunTx>, stream: &Link, options: &SendOptions) -> EventId {
        match (&options.caller_id, tx) {
            (Some((caller, session)), _) => caller_event_id(caller, session, stream),
            (None, Some(tx)) => EventId::from(format!(
                "evt:{}:{}:{}",
                tx.uuid(),
                tx.next_event_ordinal(),
                stream.id
            )),
            (None, None) => EventId::from(format!("evt:{}:{}", self.0.storage.mint().uuid(), stream.id)),
        }
    }

    /// RUN-570…573.
    fn emit_from_wave(
        &self,
        tx: &RunTx,
        stamp: &RunStamp,
        stream: &Link,
        payload: Value,
        event_id: EventId,
        options: SendOptions,
    ) -> Result<(), RunnerError> {
        let acting = emission_actor(tx, stamp);
        let destination = tx.destination().ok_or_else(|| RunnerError::InvalidValue {
            operation: "send",
            reason: format!("run {} has no wave to emit into", stamp.action_id),
        })?;
        let home = destination
            .space()
            .cloned()
            .ok_or_else(|| RunnerError::InvalidValue {
                operation: "send",
                reason: "the seal destination names no home space (RUN-610)".to_owned(),
            })?;
        let sidecar = stream_sidecar_id(&stream.id, &stream.path, stream.scope);
        if stream.space != home {
            let sessionless_space_scope = acting.user.is_none() && acting.session.is_none();
            let row = OutboundAppend {
                target_space: stream.space.clone(),
                target_stream: sidecar.clone(),
                target_stream_link: stream.clone(),
                event_id,
                payload,
                acting_principal: acting.user,
                acting_session: acting.session,
                sessionless_space_scope,
                capability_ref: stream_append(&sidecar),
                source_event: stamp
                    .stream_entry
                    .as_ref()
                    .map(|e| (e.sidecar_id.clone(), e.event_id.clone())),
            };
            return Ok(destination.stage_outbound_append(tx, row)?);
        }
        let entry = stream_entry(stream, &event_id, &payload, &acting, options.renderer_trusted);
        append_entry(tx, &home, &sidecar, entry.to_value())?;
        self.queue_event(EventDelivery {
            event_id,
            caller_id: options.caller_id.is_some(),
            stream: stream.clone(),
            payload,
            fired_at_ms: self.fire_instant(Some(tx)),
            retries: false,
            parent_event_id: stamp.event_id.clone(),
            origin: Some(tx.clone()),
            served: Some(ServedRecord {
                fired_at: acting,
                lt1: Some(tx.id()),
                stream_entry: None,
                on_failure: None,
            }),
            on_outcome: options.on_outcome,
        })
    }
}

/// What a client's overlay needs to fire an event (RUN-701).
pub struct ClientFire {
    /// Minted or bound id.
    pub event_id: EventId,
    /// The stream.
    pub stream: Link,
    /// Payload.
    pub payload: Value,
    /// As given by the sender.
    pub options: SendOptions,
}

/// RUN-570: whom an emission is attributed to; remembers on the stamp how broadly (RUN-547).
fn emission_actor(tx: &RunTx, stamp: &RunStamp) -> Acting {
    match stamp.kind {
        RunKind::EventHandler => stamp.acting.clone().unwrap_or_default(),
        RunKind::Derivation if stamp.attribution_from_scope => {
            let stamped = stamp
                .action_scope_key
                .as_ref()
                .map_or(Scope::Space, ScopeKey::scope);
            let scope = tx.narrowest_read_scope().max(stamped);
            tx.update_stamp(|stamp| {
                stamp.emitted_scope = Some(stamp.emitted_scope.map_or(scope, |earlier| earlier.min(scope)));
            });
            acting_at(&tx.effective_identity(), scope)
        }
        RunKind::Derivation | RunKind::Bookkeeping => Acting::default(),
    }
}

/// The entry as its emitter appends it; the store adds `seq` (RUN-571).
fn stream_entry(
    stream: &Link,
    event_id: &EventId,
    payload: &Value,
    acting: &Acting,
    trusted: bool,
) -> StreamEntry {
    let target = StreamLink {
        id: stream.id.clone(),
        path: stream.path.clone(),
        scope: stream.scope,
    };
    let payload = (!payload.is_undefined()).then(|| payload.clone());
    let mut entry = StreamEntry::new(event_id.clone(), target, payload);
    entry.fired_at = Some(FiredAt {
        user: acting.user.clone(),
        session: acting
            .session
            .clone()
            .unwrap_or_else(|| SessionId::from(SERVER_SESSION)),
        client_seq: None,
    });
    entry.renderer_trusted = trusted;
    entry
}

/// RUN-571: a raw mergeable append of one entry. The tail read is mechanics: were it a scheduling or commit read,
/// every neighbour's append would re-run and re-emit the sender.
fn append_entry(tx: &RunTx, home: &SpaceId, sidecar: &EntityId, entry: Value) -> Result<(), RunnerError> {
    let address =
        Address::document(home.clone(), sidecar.clone(), Scope::Space).at(path(["value", "entries"]));
    let marks = ReadMeta {
        mergeable_op: true,
        exclude_from_conflict: true,
        ..ReadMeta::UNTRACKED
    };
    let mut entries: Vec<Value> = match tx.read(&address, marks)? {
        Read::Found(Value::Array(entries)) => entries.elements().map(|(_, entry)| entry.clone()).collect(),
        Read::Found(_) | Read::NoDocument | Read::NoPath { .. } => Vec::new(),
    };
    entries.push(entry);
    tx.merging(&address, MergeableOp::Append, || {
        tx.write(&address, Some(Value::from(entries)))
    })
}

fn path_value(stream: &Link) -> Value {
    Value::from(
        stream
            .path
            .iter()
            .map(|segment| Value::from(segment.as_str()))
            .collect::<Vec<_>>(),
    )
}
