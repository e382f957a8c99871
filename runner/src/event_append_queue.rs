//! Events this client fired and the server has not taken yet (RUN-75…79; server execution on).
//!
//! One queue per replica over a store of the manager, so that a replaced replica hands over what it did not
//! discharge. One append is in flight per space; streams are paced independently. Nothing here survives the process.

use std::collections::VecDeque;

use memory_wire::message::{CommitParts, EventAppendDecl, Operation};
use memory_wire::patch::PatchOp;
use memory_wire::stream_entry::{StreamEntry, StreamLink};
use memory_wire::{EntityId, EventId, Scope, SpaceId, Value};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use crate::address::VALUE;
use crate::error::{CommitError, CommitErrorName};
use crate::promise::Promise;
use crate::replica::Replica;

/// First retry delay (RUN-79).
const RETRY_FIRST_MS: i64 = 250;
/// Longest retry delay.
const RETRY_LONGEST_MS: i64 = 10_000;

/// Token bucket per stream (RUN-77).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Tokens per second; not positive or not finite = unpaced.
    pub per_second: f64,
    /// Bucket size; below one = unpaced.
    pub burst: f64,
}

impl Default for Pacing {
    fn default() -> Self {
        Pacing {
            per_second: 20.0,
            burst: 20.0,
        }
    }
}

impl Pacing {
    fn is_valid(self) -> bool {
        self.per_second.is_finite() && self.per_second > 0.0 && self.burst.is_finite() && self.burst >= 1.0
    }
}

/// RUN-76, without the number the queue assigns.
#[derive(Clone, Debug)]
pub struct EventIntent {
    /// The stream.
    pub stream: StreamLink,
    /// The event.
    pub event_id: EventId,
    /// Its payload.
    pub payload: Option<Value>,
    /// Payload keys that the runtime put there (RUN-825).
    pub runtime_injected_event_keys: Option<Vec<SmolStr>>,
    /// The renderer vouches for it.
    pub renderer_trusted: bool,
}

/// How an append ended.
#[derive(Clone, Debug)]
pub enum AppendOutcome {
    /// Stored; `deduplicated` when the entry was there already.
    Delivered {
        /// An earlier attempt had arrived.
        deduplicated: bool,
    },
    /// Refused for good; the intent is dropped.
    Refused(CommitError),
    /// The runtime ended first; the intent stays in the store.
    NotDelivered,
}

#[derive(Clone, Debug)]
struct Queued {
    intent: EventIntent,
    sidecar: EntityId,
    client_seq: u64,
    attempts: u32,
    /// When the next attempt may go out.
    not_before_ms: i64,
    outcome: Promise<AppendOutcome>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at_ms: i64,
}

/// Undischarged intents of every space, shared by the replicas of a manager.
#[derive(Debug)]
pub(crate) struct EventAppendStore {
    pacing: Pacing,
    spaces: FxHashMap<SpaceId, VecDeque<Queued>>,
    next_client_seq: FxHashMap<SpaceId, u64>,
    buckets: FxHashMap<EntityId, Bucket>,
}

impl EventAppendStore {
    pub(crate) fn new(pacing: Pacing) -> EventAppendStore {
        if !pacing.is_valid() {
            tracing::warn!(?pacing, "event pacing is not usable; appends go out unpaced");
        }
        EventAppendStore {
            pacing,
            spaces: FxHashMap::default(),
            next_client_seq: FxHashMap::default(),
            buckets: FxHashMap::default(),
        }
    }

    fn add(&mut self, space: &SpaceId, intent: EventIntent, outcome: Promise<AppendOutcome>) {
        let next = self.next_client_seq.entry(space.clone()).or_insert(1);
        let client_seq = *next;
        *next += 1;
        let sidecar = intent.stream.sidecar_id();
        let queued = Queued {
            intent,
            sidecar,
            client_seq,
            attempts: 0,
            not_before_ms: 0,
            outcome,
        };
        self.spaces.entry(space.clone()).or_default().push_back(queued);
    }

    /// The oldest entry among the streams that hold a token, or when to look again. An entry that waits for its
    /// retry holds back its own stream only.
    fn next(&mut self, space: &SpaceId, now_ms: i64) -> Next {
        let Some(queue) = self.spaces.get(space) else {
            return Next::Nothing;
        };
        let mut blocked: Vec<&EntityId> = Vec::new();
        let mut wait: Option<i64> = None;
        let mut chosen = None;
        for (at, entry) in queue.iter().enumerate() {
            if blocked.contains(&&entry.sidecar) {
                continue;
            }
            let ready_ms = if entry.attempts > 0 {
                entry.not_before_ms
            } else {
                token_ready_ms(self.pacing, self.buckets.get(&entry.sidecar), now_ms)
            };
            if ready_ms <= now_ms {
                chosen = Some(at);
                break;
            }
            wait = Some(wait.map_or(ready_ms, |w: i64| w.min(ready_ms)));
            blocked.push(&entry.sidecar);
        }
        match chosen {
            Some(at) => {
                let entry = queue[at].clone();
                if entry.attempts == 0 {
                    self.take_token(&entry.sidecar, now_ms);
                }
                Next::Send(Box::new(entry))
            }
            None => wait.map_or(Next::Nothing, Next::At),
        }
    }

    fn take_token(&mut self, stream: &EntityId, now_ms: i64) {
        if !self.pacing.is_valid() {
            return;
        }
        let full = Bucket {
            tokens: self.pacing.burst,
            at_ms: now_ms,
        };
        let bucket = self.buckets.entry(stream.clone()).or_insert(full);
        let level = refilled(self.pacing, *bucket, now_ms);
        *bucket = Bucket {
            tokens: (level - 1.0).max(0.0),
            at_ms: now_ms,
        };
    }

    fn find(&mut self, space: &SpaceId, client_seq: u64) -> Option<&mut Queued> {
        self.spaces
            .get_mut(space)?
            .iter_mut()
            .find(|q| q.client_seq == client_seq)
    }

    fn remove(&mut self, space: &SpaceId, client_seq: u64) -> Option<Queued> {
        let queue = self.spaces.get_mut(space)?;
        let at = queue.iter().position(|q| q.client_seq == client_seq)?;
        queue.remove(at)
    }

    fn outstanding(&self, space: &SpaceId) -> Vec<Promise<AppendOutcome>> {
        self.spaces
            .get(space)
            .into_iter()
            .flatten()
            .map(|q| q.outcome.clone())
            .collect()
    }
}

enum Next {
    Send(Box<Queued>),
    /// Nothing before this instant.
    At(i64),
    Nothing,
}

fn refilled(pacing: Pacing, bucket: Bucket, now_ms: i64) -> f64 {
    let elapsed = (now_ms - bucket.at_ms).max(0) as f64 / 1000.0;
    (bucket.tokens + elapsed * pacing.per_second).min(pacing.burst)
}

fn token_ready_ms(pacing: Pacing, bucket: Option<&Bucket>, now_ms: i64) -> i64 {
    let Some(bucket) = bucket.filter(|_| pacing.is_valid()) else {
        return now_ms;
    };
    let level = refilled(pacing, *bucket, now_ms);
    if level >= 1.0 {
        now_ms
    } else {
        now_ms + ((1.0 - level) / pacing.per_second * 1000.0).ceil() as i64
    }
}

/// A replica's end of the queue.
#[derive(Debug)]
pub(crate) struct EventAppendQueue {
    space: SpaceId,
    in_flight: bool,
    /// A wake is set for this instant.
    wake_at_ms: Option<i64>,
    closed: bool,
}

impl EventAppendQueue {
    pub(crate) fn new(space: SpaceId) -> EventAppendQueue {
        EventAppendQueue {
            space,
            in_flight: false,
            wake_at_ms: None,
            closed: false,
        }
    }
}

impl Replica {
    /// Queues an event for its stream's sidecar; the promise tells how the append ended.
    pub fn append_event(&self, intent: EventIntent) -> Promise<AppendOutcome> {
        let outcome = Promise::new();
        match self.storage() {
            Some(storage) => {
                storage
                    .appends()
                    .borrow_mut()
                    .add(self.space(), intent, outcome.clone());
                self.kick_appends();
            }
            None => {
                outcome.settle(AppendOutcome::NotDelivered);
            }
        }
        outcome
    }

    /// Events of this space whose append has no outcome yet.
    pub fn outstanding_events(&self) -> Vec<EventId> {
        let Some(storage) = self.storage() else {
            return Vec::new();
        };
        let store = storage.appends().borrow();
        store
            .spaces
            .get(self.space())
            .into_iter()
            .flatten()
            .map(|q| q.intent.event_id.clone())
            .collect()
    }

    /// Sends the next append if none is in flight.
    pub(crate) fn kick_appends(&self) {
        let Some(storage) = self.storage() else { return };
        let now_ms = storage.clock().now_ms();
        {
            let queue = self.append_queue().borrow();
            if queue.in_flight || queue.closed {
                return;
            }
        }
        let next = storage.appends().borrow_mut().next(self.space(), now_ms);
        match next {
            Next::Nothing => {}
            Next::At(at_ms) => {
                let mut queue = self.append_queue().borrow_mut();
                if queue.wake_at_ms.is_none_or(|set| set > at_ms || set <= now_ms) {
                    queue.wake_at_ms = Some(at_ms);
                    drop(queue);
                    let replica = self.clone();
                    storage.after_ms(at_ms - now_ms, move || {
                        replica.append_queue().borrow_mut().wake_at_ms = None;
                        replica.kick_appends();
                    });
                }
            }
            Next::Send(entry) => self.send_append(*entry),
        }
    }

    /// RUN-78.
    fn send_append(&self, queued: Queued) {
        self.append_queue().borrow_mut().in_flight = true;
        let local_seq = self.allocate();
        let id = queued.sidecar.clone();
        let append = PatchOp::append(
            vec![VALUE, SmolStr::new_static("entries")],
            vec![entry_value(&queued)],
            false,
        );
        let commit = memory_wire::message::ClientCommit::build(
            local_seq,
            CommitParts {
                operations: vec![Operation::Patch {
                    id: id.clone(),
                    scope: Scope::Space,
                    patches: vec![append],
                }],
                event_appends: vec![EventAppendDecl {
                    id,
                    scope: Scope::Space,
                    event_id: queued.intent.event_id.clone(),
                }],
                ..CommitParts::default()
            },
        );
        let replica = self.clone();
        self.push_bare(commit)
            .then(move |result| replica.append_answered(queued.client_seq, result.clone()));
    }

    /// RUN-79.
    fn append_answered(&self, client_seq: u64, result: Result<(), CommitError>) {
        let Some(storage) = self.storage() else { return };
        let settled = {
            let mut queue = self.append_queue().borrow_mut();
            queue.in_flight = false;
            if queue.closed {
                return;
            }
            let space = queue.space.clone();
            let mut store = storage.appends().borrow_mut();
            match append_verdict(result) {
                Verdict::Done(outcome) => store.remove(&space, client_seq).map(|q| (q.outcome, outcome)),
                Verdict::Again => {
                    if let Some(entry) = store.find(&space, client_seq) {
                        entry.attempts += 1;
                        entry.not_before_ms = storage.clock().now_ms() + retry_delay_ms(entry.attempts);
                    }
                    None
                }
            }
        };
        if let Some((promise, outcome)) = settled {
            promise.settle(outcome);
        }
        self.kick_appends();
    }

    /// Settles every outstanding promise as not delivered; the intents stay in the store.
    pub(crate) fn close_appends(&self) {
        self.append_queue().borrow_mut().closed = true;
        let Some(storage) = self.storage() else { return };
        let outstanding = storage.appends().borrow().outstanding(self.space());
        for promise in outstanding {
            promise.settle(AppendOutcome::NotDelivered);
        }
    }
}

enum Verdict {
    Done(AppendOutcome),
    Again,
}

/// Unknown errors retry on purpose: dedupe makes a resend safe, dropping loses user intent.
fn append_verdict(result: Result<(), CommitError>) -> Verdict {
    match result {
        Ok(()) => Verdict::Done(AppendOutcome::Delivered { deduplicated: false }),
        Err(error) => match error.name {
            CommitErrorName::EventAppendDuplicate => {
                Verdict::Done(AppendOutcome::Delivered { deduplicated: true })
            }
            CommitErrorName::Protocol | CommitErrorName::RowLabel | CommitErrorName::PreconditionFailed => {
                Verdict::Done(AppendOutcome::Refused(error))
            }
            CommitErrorName::Conflict
            | CommitErrorName::Authorization
            | CommitErrorName::Session
            | CommitErrorName::InvalidMessage
            | CommitErrorName::Connection
            | CommitErrorName::Inconsistent
            | CommitErrorName::Aborted
            | CommitErrorName::SpeculativeBasis
            | CommitErrorName::Convergence
            | CommitErrorName::Transaction => Verdict::Again,
        },
    }
}

/// `min(250·2^(n-1), 10 000)` ms.
fn retry_delay_ms(attempts: u32) -> i64 {
    (RETRY_FIRST_MS << attempts.saturating_sub(1).min(16)).min(RETRY_LONGEST_MS)
}

/// The client never sends `user` or `session` (I-7): only its own count.
fn entry_value(queued: &Queued) -> Value {
    let intent = &queued.intent;
    let mut entry = StreamEntry::new(
        intent.event_id.clone(),
        intent.stream.clone(),
        intent.payload.clone(),
    );
    entry.runtime_injected_event_keys = intent.runtime_injected_event_keys.clone();
    entry.renderer_trusted = intent.renderer_trusted;
    let mut value = entry.to_value();
    if let Value::Object(object) = &mut value {
        let fired_at: memory_wire::Object = [("clientSeq", Value::from(queued.client_seq))]
            .into_iter()
            .collect();
        object.insert("firedAt", fired_at);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent(stream: &str, event: &str) -> EventIntent {
        let stream = StreamLink {
            id: EntityId::from(stream),
            path: Vec::new(),
            scope: Scope::Space,
        };
        EventIntent {
            stream,
            event_id: EventId::from(event),
            payload: None,
            runtime_injected_event_keys: None,
            renderer_trusted: false,
        }
    }

    fn event(next: Next) -> Option<String> {
        match next {
            Next::Send(q) => Some(q.intent.event_id.to_string()),
            Next::At(_) | Next::Nothing => None,
        }
    }

    #[test]
    fn run_77_streams_are_paced_independently_and_keep_their_order() {
        let mut store = EventAppendStore::new(Pacing {
            per_second: 10.0,
            burst: 1.0,
        });
        let space = SpaceId::from("did:key:s");
        for (stream, id) in [("of:a", "a1"), ("of:a", "a2"), ("of:b", "b1")] {
            store.add(&space, intent(stream, id), Promise::new());
        }
        assert_eq!(event(store.next(&space, 0)).as_deref(), Some("a1"));
        store.remove(&space, 1);
        // Stream a has no token; b goes first, and a2 when a token came back.
        assert_eq!(event(store.next(&space, 0)).as_deref(), Some("b1"));
        store.remove(&space, 3);
        assert!(matches!(store.next(&space, 0), Next::At(100)));
        assert_eq!(event(store.next(&space, 100)).as_deref(), Some("a2"));
    }

    #[test]
    fn run_79_delays_double_up_to_ten_seconds() {
        assert_eq!(
            [1, 2, 3, 6, 7, 40].map(retry_delay_ms),
            [250, 500, 1000, 8000, 10_000, 10_000]
        );
    }

    #[test]
    fn i_7_a_client_entry_names_nobody() {
        let queued = Queued {
            intent: intent("of:a", "e"),
            sidecar: EntityId::from("of:x"),
            client_seq: 7,
            attempts: 0,
            not_before_ms: 0,
            outcome: Promise::new(),
        };
        let value = entry_value(&queued);
        let fired_at = value.member("firedAt").unwrap();
        assert_eq!(fired_at.member("clientSeq").and_then(Value::as_u64), Some(7));
        assert!(fired_at.member("user").is_none() && fired_at.member("session").is_none());
    }
}
