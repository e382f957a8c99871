//! What a commit demands (WIRE-741) and declares (WIRE-911) beside its operations.

use super::field::{describe, entity_id, expected, insert_scope, scope_named};
use crate::error::WireError;
use crate::ids::{EntityId, EventId, LocalSeq};
use crate::scope_key::Scope;
use crate::value::{Object, Value};

/// A condition of a commit beside its reads (WIRE-741).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// An earlier commit of this session is stored.
    OriginCommitted {
        /// That commit.
        origin_local_seq: LocalSeq,
    },
    /// No set or delete of the document was ever stored.
    EntityAbsent {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
    },
    /// The document's value hashes to this.
    EntityValueHash {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
        /// [`crate::hash::precondition_value_hash`] of the value; `None` for no value.
        value_hash: Option<String>,
    },
}

/// The declaration of one event append (WIRE-911).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventAppendDecl {
    /// The stream's sidecar document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// The appended event.
    pub event_id: EventId,
}

impl Precondition {
    /// Reads one precondition; the texts are those of ENG-324.
    pub(super) fn from_value(index: usize, value: &Value) -> Result<Precondition, WireError> {
        let place = |field: &str| format!("commit.preconditions[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(
                "malformed commit precondition: not an object",
            ));
        }
        match value.member("kind").and_then(Value::as_str) {
            Some("origin-committed") => Ok(Precondition::OriginCommitted {
                origin_local_seq: value
                    .member("originLocalSeq")
                    .and_then(LocalSeq::from_value)
                    .ok_or_else(|| {
                        WireError::protocol(
                            "malformed origin-committed precondition: originLocalSeq must be an integer",
                        )
                    })?,
            }),
            Some("entity-absent") => Ok(Precondition::EntityAbsent {
                id: entity_id(&place(".id"), value)?,
                scope: scope_named(&place(".scope"), value)?,
            }),
            Some("entity-value-hash") => Ok(Precondition::EntityValueHash {
                value_hash: match value.member("valueHash") {
                    Some(Value::Null) => None,
                    Some(Value::String(hash)) => Some(hash.to_string()),
                    Some(_) | None => {
                        return Err(WireError::protocol(
                            "malformed entity-value-hash precondition: valueHash must be a string or null",
                        ));
                    }
                },
                id: entity_id(&place(".id"), value)?,
                scope: scope_named(&place(".scope"), value)?,
            }),
            Some(_) | None => {
                let kind = match value.member("kind") {
                    Some(Value::String(kind)) => kind.to_string(),
                    other => describe(other),
                };
                Err(WireError::protocol(format!(
                    "unsupported commit precondition: {kind}"
                )))
            }
        }
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        match self {
            Precondition::OriginCommitted { origin_local_seq } => {
                object.insert("kind", "origin-committed");
                object.insert("originLocalSeq", *origin_local_seq);
            }
            Precondition::EntityAbsent { id, scope } => {
                object.insert("kind", "entity-absent");
                object.insert("id", id);
                insert_scope(&mut object, *scope);
            }
            Precondition::EntityValueHash {
                id,
                scope,
                value_hash,
            } => {
                object.insert("kind", "entity-value-hash");
                object.insert("id", id);
                insert_scope(&mut object, *scope);
                object.insert(
                    "valueHash",
                    value_hash.as_deref().map_or(Value::Null, Value::from),
                );
            }
        }
        object.into()
    }
}

impl EventAppendDecl {
    pub(super) fn from_value(index: usize, value: &Value) -> Result<EventAppendDecl, WireError> {
        let place = |field: &str| format!("commit.eventAppends[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        // Unlike an operation's, a declaration's mistakes are never answered as retryable: an append that is
        // refused so is retried for ever (WIRE-766).
        let deterministic = |error: WireError| WireError::protocol(error.message);
        let event_id = value.member("eventId");
        Ok(EventAppendDecl {
            id: entity_id(&place(".id"), value).map_err(deterministic)?,
            scope: scope_named(&place(".scope"), value).map_err(deterministic)?,
            event_id: event_id
                .and_then(Value::as_str)
                .map(EventId::from)
                .ok_or_else(|| WireError::protocol(expected(&place(".eventId"), "a string", event_id)))?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        object.insert("eventId", &self.event_id);
        object.into()
    }
}
