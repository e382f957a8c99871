//! Entries of a stream's sidecar document (WIRE-207, ENG-501): the event itself, who fired it, and what became of
//! it. Shape only; who may write which field is admission's business (ENG-510…531).

use smol_str::SmolStr;

use crate::ids::{Did, EntityId, EventId, Seq, SessionId, SpaceId};
use crate::link::read_path;
use crate::pointer::{DocPath, path_from_value, path_to_value};
use crate::scope_key::Scope;
use crate::value::{Object, SlotRef, Value};

/// The `session` of a chain without an acting session.
pub const SERVER_SESSION: &str = "server";

/// Most delivery failures an entry keeps; older ones are counted only (WIRE-207).
pub const MAX_DELIVERY_FAILURES: usize = 32;

/// Fields only the serving side writes; an authored append that brings one is refused (ENG-512.5).
pub const PROCESSING_FIELDS: [&str; 6] = [
    "consequenced",
    "error",
    "status",
    "reason",
    "deliveryFailures",
    "deliveryFailuresDropped",
];

/// The stream an entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamLink {
    /// The document that holds the stream.
    pub id: EntityId,
    /// Where in its value.
    pub path: DocPath,
    /// Its scope; absent is space.
    pub scope: Scope,
}

/// Who fired an event. Written by admission, never taken from the client on trust.
#[derive(Clone, Debug)]
pub struct FiredAt {
    /// The principal; absent for a chain without an actor.
    pub user: Option<Did>,
    /// The session, or [`SERVER_SESSION`].
    pub session: SessionId,
    /// The client's own order, kept as supplied.
    pub client_seq: Option<Value>,
}

/// One delivery that failed downstream of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// The event that was to be delivered.
    pub event_id: EventId,
    /// Where to.
    pub target_space: SpaceId,
    /// Why not.
    pub reason: String,
}

/// One entry of a stream.
#[derive(Clone, Debug)]
pub struct StreamEntry {
    /// Chosen by the emitter; never empty.
    pub event_id: EventId,
    /// The stream, which derives the sidecar's id.
    pub stream: StreamLink,
    /// What the event says.
    pub payload: Option<Value>,
    /// Who fired it; on every stored entry.
    pub fired_at: Option<FiredAt>,
    /// Seq of the commit that appended it; on every entry an admission stamped.
    pub seq: Option<Seq>,
    /// Keys of the payload that a runtime put there.
    pub runtime_injected_event_keys: Option<Vec<SmolStr>>,
    /// The renderer vouches for the event.
    pub renderer_trusted: bool,
    /// Its consequences are committed.
    pub consequenced: bool,
    /// What went wrong in its handler.
    pub error: Option<String>,
    /// It was dropped instead of handled.
    pub dropped: bool,
    /// Why it was dropped.
    pub reason: Option<String>,
    /// The newest failures downstream, at most [`MAX_DELIVERY_FAILURES`].
    pub delivery_failures: Vec<DeliveryFailure>,
    /// How many older failures were pushed out.
    pub delivery_failures_dropped: u64,
}

impl StreamLink {
    /// Reads `{ id, path, scope? }`; numeric segments are read as their text.
    pub fn from_value(value: &Value) -> Option<StreamLink> {
        Some(StreamLink {
            id: EntityId::from(value.member("id")?.as_str()?),
            path: read_path(value.member("path")?)?,
            scope: match value.member("scope") {
                None => Scope::Space,
                Some(name) => Scope::from_name(name.as_str()?)?,
            },
        })
    }

    /// The stored form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        object.insert("path", path_to_value(&self.path));
        if self.scope != Scope::Space {
            object.insert("scope", self.scope.as_str());
        }
        object.into()
    }

    /// The id of the stream's sidecar document.
    pub fn sidecar_id(&self) -> EntityId {
        crate::well_known::stream_sidecar_id(&self.id, &self.path, self.scope)
    }
}

impl FiredAt {
    /// Reads `{ user?, session, clientSeq? }`; `None` without a non-empty session.
    pub fn from_value(value: &Value) -> Option<FiredAt> {
        Some(FiredAt {
            user: match value.member("user") {
                None => None,
                Some(user) => Some(Did::from(user.as_str()?)),
            },
            session: value
                .member("session")?
                .as_str()
                .filter(|session| !session.is_empty())?
                .into(),
            client_seq: value.member("clientSeq").cloned(),
        })
    }

    /// The stored form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        if let Some(user) = &self.user {
            object.insert("user", user);
        }
        object.insert("session", &self.session);
        if let Some(client_seq) = &self.client_seq {
            object.insert("clientSeq", client_seq.clone());
        }
        object.into()
    }
}

impl DeliveryFailure {
    /// Reads `{ eventId, targetSpace, reason }`.
    pub fn from_value(value: &Value) -> Option<DeliveryFailure> {
        Some(DeliveryFailure {
            event_id: value.member("eventId")?.as_str()?.into(),
            target_space: value.member("targetSpace")?.as_str()?.into(),
            reason: value.member("reason")?.as_str()?.to_owned(),
        })
    }

    /// The stored form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("eventId", &self.event_id);
        object.insert("targetSpace", &self.target_space);
        object.insert("reason", self.reason.as_str());
        object.into()
    }
}

impl StreamEntry {
    /// A fresh event, as its emitter appends it.
    pub fn new(event_id: EventId, stream: StreamLink, payload: Option<Value>) -> StreamEntry {
        StreamEntry {
            event_id,
            stream,
            payload,
            fired_at: None,
            seq: None,
            runtime_injected_event_keys: None,
            renderer_trusted: false,
            consequenced: false,
            error: None,
            dropped: false,
            reason: None,
            delivery_failures: Vec::new(),
            delivery_failures_dropped: 0,
        }
    }

    /// Reads a stored entry; `None` when a field that identifies it is missing or malformed. Malformed outcome
    /// fields read as absent: a log is scanned whole, and one odd entry must not hide the rest.
    pub fn from_value(value: &Value) -> Option<StreamEntry> {
        let text = |key| value.member(key).and_then(Value::as_str).map(str::to_owned);
        let is_true = |key| value.member(key).and_then(Value::as_bool) == Some(true);
        Some(StreamEntry {
            event_id: value
                .member("eventId")?
                .as_str()
                .filter(|id| !id.is_empty())?
                .into(),
            stream: StreamLink::from_value(value.member("stream")?)?,
            payload: value.member("payload").cloned(),
            fired_at: value.member("firedAt").and_then(FiredAt::from_value),
            seq: value.member("seq").and_then(Seq::from_value),
            runtime_injected_event_keys: value.member("runtimeInjectedEventKeys").and_then(path_from_value),
            renderer_trusted: is_true("rendererTrusted"),
            consequenced: is_true("consequenced"),
            error: text("error"),
            dropped: text("status").as_deref() == Some("dropped"),
            reason: text("reason"),
            delivery_failures: match value.member("deliveryFailures") {
                Some(Value::Array(failures)) => failures
                    .slots()
                    .filter_map(|slot| match slot {
                        SlotRef::Value(failure) => DeliveryFailure::from_value(failure),
                        SlotRef::Holes(_) => None,
                    })
                    .collect(),
                Some(_) | None => Vec::new(),
            },
            delivery_failures_dropped: value
                .member("deliveryFailuresDropped")
                .and_then(Value::as_u64)
                .unwrap_or(0),
        })
    }

    /// Adds a delivery failure, pushing out the oldest when the list is full.
    pub fn record_delivery_failure(&mut self, failure: DeliveryFailure) {
        self.delivery_failures.push(failure);
        let surplus = self.delivery_failures.len().saturating_sub(MAX_DELIVERY_FAILURES);
        self.delivery_failures.drain(..surplus);
        self.delivery_failures_dropped += surplus as u64;
    }

    /// The stored form, absent and default fields left out.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("eventId", &self.event_id);
        object.insert("stream", self.stream.to_value());
        if let Some(payload) = &self.payload {
            object.insert("payload", payload.clone());
        }
        if let Some(fired_at) = &self.fired_at {
            object.insert("firedAt", fired_at.to_value());
        }
        if let Some(seq) = self.seq {
            object.insert("seq", seq);
        }
        if let Some(keys) = &self.runtime_injected_event_keys {
            object.insert("runtimeInjectedEventKeys", path_to_value(keys));
        }
        for (key, set) in [
            ("rendererTrusted", self.renderer_trusted),
            ("consequenced", self.consequenced),
        ] {
            if set {
                object.insert(key, true);
            }
        }
        if let Some(error) = &self.error {
            object.insert("error", error.as_str());
        }
        if self.dropped {
            object.insert("status", "dropped");
        }
        if let Some(reason) = &self.reason {
            object.insert("reason", reason.as_str());
        }
        if !self.delivery_failures.is_empty() {
            let failures: Vec<Value> = self
                .delivery_failures
                .iter()
                .map(DeliveryFailure::to_value)
                .collect();
            object.insert("deliveryFailures", failures);
        }
        if self.delivery_failures_dropped > 0 {
            object.insert("deliveryFailuresDropped", self.delivery_failures_dropped);
        }
        object.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec, value};

    fn entry() -> StreamEntry {
        let stream = StreamLink {
            id: "of:s".into(),
            path: vec!["a".into()],
            scope: Scope::User,
        };
        StreamEntry::new("e1".into(), stream, Some(value!({ "x": 1 })))
    }

    #[test]
    fn wire_207_delivery_failures_keep_the_newest_32() {
        let mut entry = entry();
        for n in 0..40 {
            entry.record_delivery_failure(DeliveryFailure {
                event_id: format!("e{n}").into(),
                target_space: "did:key:zT".into(),
                reason: "gone".into(),
            });
        }
        assert_eq!(entry.delivery_failures.len(), MAX_DELIVERY_FAILURES);
        assert_eq!(entry.delivery_failures[0].event_id.as_str(), "e8");
        assert_eq!(entry.delivery_failures_dropped, 8);
    }

    #[test]
    fn wire_207_entries_survive_a_round_trip() {
        let mut entry = entry();
        entry.fired_at = Some(FiredAt {
            user: None,
            session: SERVER_SESSION.into(),
            client_seq: None,
        });
        entry.seq = Some(Seq(7));
        entry.dropped = true;
        entry.runtime_injected_event_keys = Some(vec!["k".into()]);
        let text = codec::encode(&entry.to_value()).unwrap();
        let again = StreamEntry::from_value(&codec::decode(&text).unwrap()).unwrap();
        assert_eq!(codec::encode(&again.to_value()).unwrap(), text);
        let numbered = StreamLink::from_value(&value!({ "id": "of:s", "path": ["a", 0] })).unwrap();
        assert_eq!(numbered.path, ["a", "0"]);
        assert!(
            StreamEntry::from_value(&value!({ "eventId": "", "stream": { "id": "of:s", "path": [] } }))
                .is_none()
        );
    }
}
