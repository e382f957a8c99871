//! The stamp of a run: who acts, for whom, and what kind of run it is (RUN-601).
//!
//! Set once per transaction by the scheduler before the first read; read by the seal destination.

use memory_wire::{Did, EventId, ScopeIdentity, ScopeKey, SessionId};

/// The three kinds of stamped runs; a fourth is a protocol change (RUN-603).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunKind {
    /// A reactive run.
    Derivation,
    /// An event dispatch.
    EventHandler,
    /// Piece start or setup, pattern swap, seeds, watermark and retirement writes.
    Bookkeeping,
}

/// The acting pair of a run: exactly what the event's `firedAt` or the demand says, never the service's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acting {
    /// Acting user.
    pub user: Option<Did>,
    /// Acting session.
    pub session: Option<SessionId>,
}

/// A durable stream entry that a handler run consumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntryRef {
    /// Sidecar document of the stream.
    pub sidecar_id: memory_wire::EntityId,
    /// Position in `entries` when it was drained (a hint).
    pub index: usize,
    /// Sequence number the store gave the entry.
    pub seq: memory_wire::Seq,
    /// The entry's event.
    pub event_id: EventId,
}

/// RUN-601.
#[derive(Clone, Debug)]
pub struct RunStamp {
    /// Durable, restart-stable action id (RUN-604).
    pub action_id: String,
    /// Kind of run.
    pub kind: RunKind,
    /// The event handled, for handlers.
    pub event_id: Option<EventId>,
    /// The event whose handling sent this one.
    pub parent_event_id: Option<EventId>,
    /// Who acts.
    pub acting: Option<Acting>,
    /// Identity that scoped reads and writes resolve with; `None` = the manager's own, an *empty* identity = nobody
    /// (RUN-548).
    pub scope_identity: Option<ScopeIdentity>,
    /// Instance key of a fanned-out node's run.
    pub action_scope_key: Option<ScopeKey>,
    /// RUN-606.
    pub capability_ref: Option<String>,
    /// The durable entry consumed.
    pub stream_entry: Option<StreamEntryRef>,
    /// This run handles an in-process copy of an event emitted in the same wave (RUN-572); the emitter's tx.
    pub lt1: Option<super::TxId>,
    /// The actor is settled at seal from the scope the run discovered (RUN-605).
    pub attribution_from_scope: bool,
    /// Broadest scope that an event sent by this run was attributed at, so far (RUN-547).
    pub emitted_scope: Option<memory_wire::Scope>,
    /// A delegated crossing carries the triggering run's carriage verbatim.
    pub delegated: bool,
}

impl RunStamp {
    /// A stamp with only an action and a kind.
    pub fn new(action_id: impl Into<String>, kind: RunKind) -> RunStamp {
        RunStamp {
            action_id: action_id.into(),
            kind,
            event_id: None,
            parent_event_id: None,
            acting: None,
            scope_identity: None,
            action_scope_key: None,
            capability_ref: None,
            stream_entry: None,
            lt1: None,
            attribution_from_scope: false,
            emitted_scope: None,
            delegated: false,
        }
    }
}
