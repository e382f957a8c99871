//! Queued events: their order, their backlog bound, and what becomes of failed deliveries (RUN-550…558). The queue
//! is data; [`super::dispatch`] delivers from it.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use memory_wire::{EventId, ScopeIdentity, Value};

use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::link::Link;
use crate::promise::Promise;
use crate::seal::PieceStart;
use crate::transaction::{Acting, RunTx, StreamEntryRef, TxId};

/// Queued events per stream before the off arm collapses or refuses.
pub(crate) const BACKLOG_CAP: usize = 256;
const RETRY_WINDOW_MS: i64 = 30_000;
const RETRY_MAX_MS: f64 = 1_000.0;
const RETRY_JITTER: f64 = 0.5;

/// The code behind a stream.
pub trait EventHandler {
    /// Durable id of the handler itself, never of one delivery (RUN-604).
    fn action_id(&self) -> &str;
    /// Piece roots the handler belongs to.
    fn demand_roots(&self) -> &[memory_wire::EntityId];
    /// Handles `event` in `tx`. An error aborts the transaction.
    fn run(&self, tx: &RunTx, event: &Value) -> Result<(), RunnerError>;
    /// Reads what `run` may read, in a read-only transaction (RUN-554).
    fn populate(&self, tx: &RunTx, event: &Value) -> Result<(), RunnerError>;
    /// Loads what the materialised argument reaches, as `who`; settles when it is here or failed (RUN-555).
    fn presync(&self, event: &Value, who: Option<&ScopeIdentity>) -> Promise<()>;
}

/// What became of an event, told exactly once.
#[derive(Clone, Debug)]
pub enum EventOutcome {
    /// Handled, and its transaction was accepted.
    Handled,
    /// Not handled: refused, dropped or failed, and why.
    Failed(CommitError),
}

/// Told an outcome, once.
pub type OutcomeCallback = Box<dyn FnOnce(&EventOutcome)>;

/// How a served delivery failed (RUN-557).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServedFailure {
    /// The handler failed: the error is the consequence.
    Error(String),
    /// There is no handler to run it.
    Dropped(String),
    /// The handler could not be reached yet; the durable entry stays pending.
    Deferred(String),
}

/// What the server knows about a served event.
#[derive(Clone)]
pub struct ServedRecord {
    /// Stamped actor.
    pub fired_at: Acting,
    /// Set for an in-process copy: the transaction that emitted it (RUN-572).
    pub lt1: Option<TxId>,
    /// Set for a drained event: the durable entry.
    pub stream_entry: Option<StreamEntryRef>,
    /// Told when the delivery fails for good or has to wait.
    pub on_failure: Option<Rc<dyn Fn(ServedFailure)>>,
}

impl fmt::Debug for ServedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedRecord")
            .field("fired_at", &self.fired_at)
            .field("lt1", &self.lt1)
            .field("stream_entry", &self.stream_entry)
            .finish_non_exhaustive()
    }
}

/// An event to deliver. Served events are never retried here: the wave is their retry cadence.
pub struct EventDelivery {
    /// Durable or minted id.
    pub event_id: EventId,
    /// Whether the sender chose the id; a minted one may collapse (RUN-552).
    pub caller_id: bool,
    /// The stream, fully resolved.
    pub stream: Link,
    /// Payload.
    pub payload: Value,
    /// Wall clock of the fire, or its handler's frozen instant (RUN-551), in milliseconds.
    pub fired_at_ms: i64,
    /// Whether a stale basis may be retried.
    pub retries: bool,
    /// The event whose handling sent this one.
    pub parent_event_id: Option<EventId>,
    /// Transaction whose failure this event dies with (RUN-558).
    pub origin: Option<RunTx>,
    /// Present for events that a serving runtime delivers.
    pub served: Option<ServedRecord>,
    /// Told the outcome.
    pub on_outcome: Option<OutcomeCallback>,
}

impl fmt::Debug for EventDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventDelivery")
            .field("event_id", &self.event_id)
            .field("stream", &self.stream.id)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

impl EventDelivery {
    /// The identity the handler's scoped documents resolve with; `None` = the runtime's own (not served).
    pub fn actor(&self) -> Option<ScopeIdentity> {
        self.served
            .as_ref()
            .map(|served| crate::seal::identity_of(&served.fired_at))
    }
}

/// What the head event is waiting for.
#[derive(Debug)]
pub(crate) enum Park {
    /// Nothing: it can be looked at.
    Ready,
    /// Its piece is being started.
    Loading(Promise<Result<PieceStart, RunnerError>>),
    /// Loads its closure needs.
    Loads(Promise<Result<(), RunnerError>>),
    /// Upstream nodes are running this pass.
    Upstream,
    /// Every stale upstream node waits for its gate; the first opens at this instant. Looked at in any pass.
    Gated(i64),
    /// Inputs are being synced; then it runs without another preflight.
    Presync(Promise<()>),
    /// A retry is due at this instant.
    Until(i64),
}

/// A queued event with its place.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) event: EventDelivery,
    pub(crate) park: Park,
    /// Failed attempts, and the instant of the first.
    pub(crate) attempts: u32,
    pub(crate) first_failure_ms: Option<i64>,
    /// The piece loader was asked and answered that the piece runs.
    pub(crate) loader_succeeded: bool,
    /// Preflights since it was queued or last failed.
    pub(crate) preflights: u32,
}

impl Queued {
    pub(crate) fn new(event: EventDelivery) -> Queued {
        Queued {
            event,
            park: Park::Ready,
            attempts: 0,
            first_failure_ms: None,
            loader_succeeded: false,
            preflights: 0,
        }
    }
}

/// What a host sees of a queued event when it purges (RUN-580).
#[derive(Debug)]
pub struct QueuedEvent<'a> {
    /// Its id.
    pub event_id: &'a EventId,
    /// Its stream.
    pub stream: &'a Link,
    /// The served record, if it is a served one.
    pub served: Option<&'a ServedRecord>,
}

/// One FIFO per runtime; places are enqueue sequence numbers, so that a retry returns to its own (RUN-552).
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    slots: BTreeMap<u64, Queued>,
    next: u64,
}

/// How an event was taken in.
pub(crate) enum Enqueued {
    /// It has its own slot.
    Queued,
    /// It replaced the payload of an undelivered earlier one; that one's callback is handed back.
    Collapsed(Option<OutcomeCallback>),
    /// The backlog is full.
    Refused(Box<EventDelivery>),
}

impl EventQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Queued)> {
        self.slots.iter().map(|(slot, queued)| (*slot, queued))
    }

    pub(crate) fn head(&self) -> Option<u64> {
        self.slots.keys().next().copied()
    }

    pub(crate) fn get(&self, slot: u64) -> Option<&Queued> {
        self.slots.get(&slot)
    }

    pub(crate) fn get_mut(&mut self, slot: u64) -> Option<&mut Queued> {
        self.slots.get_mut(&slot)
    }

    pub(crate) fn take(&mut self, slot: u64) -> Option<Queued> {
        self.slots.remove(&slot)
    }

    /// Puts a failed delivery back into its own place.
    pub(crate) fn put_back(&mut self, slot: u64, queued: Queued) {
        self.slots.insert(slot, queued);
    }

    /// Takes an event in. With `collapse` (off arm) a full backlog collapses last-wins into a minted-id entry of
    /// the same origin, or refuses; without it nothing is ever merged, because a merge would destroy a durable id.
    pub(crate) fn push(&mut self, event: EventDelivery, collapse: bool) -> Enqueued {
        if collapse
            && self
                .slots
                .values()
                .filter(|q| q.event.stream.same_place(&event.stream))
                .count()
                >= BACKLOG_CAP
        {
            let origin = event.origin.as_ref().map(RunTx::id);
            let target = self.slots.values_mut().rev().find(|q| {
                q.event.stream.same_place(&event.stream)
                    && !q.event.caller_id
                    && q.event.origin.as_ref().map(RunTx::id) == origin
            });
            return match target {
                Some(earlier) if !event.caller_id => {
                    let superseded = earlier.event.on_outcome.take();
                    earlier.event = event;
                    Enqueued::Collapsed(superseded)
                }
                Some(_) | None => Enqueued::Refused(Box::new(event)),
            };
        }
        self.slots.insert(self.next, Queued::new(event));
        self.next += 1;
        Enqueued::Queued
    }

    /// Removes every queued event that matches; they were never dispatched.
    pub(crate) fn remove_where(&mut self, matches: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let slots: Vec<u64> = self
            .iter()
            .filter(|(_, q)| matches(q))
            .map(|(slot, _)| slot)
            .collect();
        slots
            .into_iter()
            .filter_map(|slot| self.slots.remove(&slot))
            .collect()
    }
}

/// What to do with a failed delivery (RUN-556).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Disposition {
    /// Final.
    Drop,
    /// Try again after this many milliseconds.
    Retry(f64),
    /// The retry window closed.
    GaveUp,
}

/// RUN-556: classifies a failed delivery. `attempt` counts from 1; `fraction` is jitter in `[0, 1)`.
pub(crate) fn disposition(
    error: &CommitError,
    retries: bool,
    attempt: u32,
    since_first_failure_ms: i64,
    fraction: f64,
) -> Disposition {
    let stale_basis = match error.name {
        CommitErrorName::Conflict | CommitErrorName::Inconsistent => true,
        CommitErrorName::PreconditionFailed
        | CommitErrorName::RowLabel
        | CommitErrorName::Protocol
        | CommitErrorName::Authorization
        | CommitErrorName::Session
        | CommitErrorName::InvalidMessage
        | CommitErrorName::Connection
        | CommitErrorName::Aborted
        | CommitErrorName::EventAppendDuplicate
        | CommitErrorName::SpeculativeBasis
        | CommitErrorName::Convergence
        | CommitErrorName::Transaction => false,
    };
    if !retries || !stale_basis {
        return Disposition::Drop;
    }
    if since_first_failure_ms >= RETRY_WINDOW_MS {
        return Disposition::GaveUp;
    }
    let delay = retry_delay_ms(attempt);
    Disposition::Retry(delay - delay * RETRY_JITTER * fraction)
}

/// Undiminished retry delay of the n-th attempt, in milliseconds.
pub fn retry_delay_ms(attempt: u32) -> f64 {
    let doublings = i32::try_from(attempt.saturating_sub(1).min(64)).unwrap_or(64);
    (25.0 / 32.0 * 2f64.powi(doublings)).min(RETRY_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_556_permanent_errors_are_not_retried() {
        for (name, expected) in [
            (CommitErrorName::PreconditionFailed, Disposition::Drop),
            (CommitErrorName::RowLabel, Disposition::Drop),
            (CommitErrorName::SpeculativeBasis, Disposition::Drop),
            (CommitErrorName::Authorization, Disposition::Drop),
            (CommitErrorName::Conflict, Disposition::Retry(25.0)),
            (CommitErrorName::Inconsistent, Disposition::Retry(25.0)),
        ] {
            assert_eq!(
                disposition(&CommitError::new(name, "x"), true, 6, 10, 0.0),
                expected,
                "{name:?}"
            );
            assert_eq!(
                disposition(&CommitError::new(name, "x"), false, 6, 10, 0.0),
                Disposition::Drop
            );
        }
        let conflict = CommitError::new(CommitErrorName::Conflict, "x");
        assert_eq!(disposition(&conflict, true, 6, 30_000, 0.0), Disposition::GaveUp);
        assert_eq!(disposition(&conflict, true, 6, 0, 0.5), Disposition::Retry(18.75));
    }
}
