//! What the server records beside a commit (WIRE-901…906): class, write annotations, delegated carriage. The
//! list is closed, no client message has a field for any of it, and only [`CommitClass`] is ever spoken on the
//! wire (as `coverClass`). Built by admission paths, stored by the engine.

use crate::ids::{Did, SessionId};
use crate::scope_key::ScopeKey;
use crate::value::{Object, Value};

/// Who produced a commit (WIRE-901): decided by the admission path, never by anything a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommitClass {
    /// By a client, or by the server on behalf of a carried actor.
    Authored,
    /// By a wave, under the execution lease.
    Derived,
    /// By the server itself.
    System,
}

impl CommitClass {
    /// The stored and wire text.
    pub fn as_str(self) -> &'static str {
        match self {
            CommitClass::Authored => "authored",
            CommitClass::Derived => "derived",
            CommitClass::System => "system",
        }
    }

    /// The class spelled `text`; the set is closed.
    pub fn from_name(text: &str) -> Option<CommitClass> {
        [CommitClass::Authored, CommitClass::Derived, CommitClass::System]
            .into_iter()
            .find(|c| c.as_str() == text)
    }
}

/// One operation's addressing and attribution in a derived commit (WIRE-902). `scope_key` *addresses* a scoped
/// operation; the acting pair only *attributes* the run and is read by no check (WIRE-904, ENG-421).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAnnotation {
    /// Index of the operation in the commit.
    pub op: usize,
    /// The instance written; present exactly on scoped operations (ENG-420).
    pub scope_key: Option<ScopeKey>,
    /// Principal the run acted for.
    pub acting_user: Option<Did>,
    /// Session the run acted for.
    pub acting_session: Option<SessionId>,
}

impl WriteAnnotation {
    /// The stored form `{ op, scopeKey?, actingUser?, actingSession? }`.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("op", self.op as u64);
        if let Some(key) = &self.scope_key {
            object.insert("scopeKey", key.as_str());
        }
        if let Some(user) = &self.acting_user {
            object.insert("actingUser", user.as_str());
        }
        if let Some(session) = &self.acting_session {
            object.insert("actingSession", session.as_str());
        }
        Value::Object(object)
    }
}

/// The actor carried by a server-produced authored commit (WIRE-902, ENG-430…435). Absent and empty mean the
/// same, so builders leave out what is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// Principal acted for; absent only for a declared sessionless space-scope emission.
    pub acting_principal: Option<Did>,
    /// Session acted for.
    pub acting_session: Option<SessionId>,
    /// What grants the delegation; see [`CapabilityRef`].
    pub capability_ref: String,
    /// Declares a chain without any actor.
    pub sessionless_space_scope: bool,
}

/// The vocabulary of `capabilityRef` (WIRE-902, ENG-431).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapabilityRef {
    /// Granted by an append to the named stream.
    StreamAppend(String),
    /// Granted as a consequence of the named event.
    EventConsequence(String),
    /// Granted by demand for the named run.
    DemandedRun(String),
}

impl CapabilityRef {
    /// The reference spelled `text`, or `None` outside the vocabulary.
    pub fn parse(text: &str) -> Option<CapabilityRef> {
        let (kind, what) = text.split_once(':')?;
        match kind {
            "stream-append" => Some(CapabilityRef::StreamAppend(what.to_owned())),
            "event-consequence" => Some(CapabilityRef::EventConsequence(what.to_owned())),
            "demanded-run" => Some(CapabilityRef::DemandedRun(what.to_owned())),
            _ => None,
        }
    }
}

impl std::fmt::Display for CapabilityRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CapabilityRef::StreamAppend(what) => write!(f, "stream-append:{what}"),
            CapabilityRef::EventConsequence(what) => write!(f, "event-consequence:{what}"),
            CapabilityRef::DemandedRun(what) => write!(f, "demanded-run:{what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_901_the_class_set_is_closed() {
        for class in [CommitClass::Authored, CommitClass::Derived, CommitClass::System] {
            assert_eq!(CommitClass::from_name(class.as_str()), Some(class));
        }
        assert_eq!(CommitClass::from_name("Derived"), None);
    }

    #[test]
    fn wire_902_capability_references_round_trip() {
        for text in ["stream-append:of:x", "event-consequence:e:1", "demanded-run:r"] {
            assert_eq!(
                CapabilityRef::parse(text).map(|r| r.to_string()).as_deref(),
                Some(text)
            );
        }
        assert_eq!(CapabilityRef::parse("root:x"), None);
    }
}
