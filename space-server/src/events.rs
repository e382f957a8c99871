//! Events of served streams (SS §11): draining pending entries into the scheduler, each at most once at a time, and
//! the notices by which an entry ends without its handler's consequences. Called by the loop; the callbacks of a
//! delivery only take notes here, and the loop acts on them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use memory_engine::events::PendingStreamEvents;
use memory_engine::{EngineError, EngineHandle};
use memory_wire::stream_entry::{SERVER_SESSION, StreamEntry};
use memory_wire::{BranchName, EntityId, EventId, Scope, ScopeIdentity, Seq, SpaceId, Value};
use runner::address::{Address, path};
use runner::error::RunnerError;
use runner::link::Link;
use runner::runtime::Runtime;
use runner::scheduler::{EventOutcome, ServedFailure};
use runner::serving_runtime::{ServedEvent, ServingRuntime};
use runner::transaction::{Acting, RunKind, RunStamp, StreamEntryRef};

use crate::in_flight::{EntryKey, InFlight};
use crate::settings::LoopSettings;
use crate::stamper::{entry_key, entry_place};
use crate::statistics::Statistics;
use crate::time::HostTime;
use crate::wakeup::Wakeup;

/// How an entry ends other than by its handler (SS-817, SS-819).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    /// Another entry of the same event has consequences already (SS-810).
    Duplicate,
    /// The handler failed: the error is the consequence.
    Error(String),
    /// Nothing can handle it.
    Dropped(String),
}

/// A notice to seal into the open wave.
#[derive(Clone, Debug)]
struct EventNotice {
    entry: StreamEntryRef,
    ending: Ending,
}

/// What deliveries leave behind for the loop; shared with their callbacks.
pub(crate) struct EventDesk {
    guards: Rc<RefCell<InFlight>>,
    notices: RefCell<Vec<EventNotice>>,
    /// Wall instant of the first deferral since the last scan (SS-818).
    deferred_at: Cell<Option<i64>>,
    /// Waves that came to nothing although they held the event (SS-721).
    refusals: RefCell<BTreeMap<EventId, u32>>,
    attempts: u32,
    time: HostTime,
    wakeup: Rc<Wakeup>,
}

impl EventDesk {
    pub(crate) fn new(
        guards: Rc<RefCell<InFlight>>,
        settings: &LoopSettings,
        time: HostTime,
        wakeup: Rc<Wakeup>,
    ) -> EventDesk {
        EventDesk {
            guards,
            notices: RefCell::default(),
            deferred_at: Cell::new(None),
            refusals: RefCell::default(),
            attempts: settings.event_deferrals,
            time,
            wakeup,
        }
    }

    /// A delivery failed for good or has to wait (SS-816, SS-817).
    fn failed(&self, entry: &StreamEntryRef, failure: ServedFailure) {
        match failure {
            ServedFailure::Error(message) => self.end(entry, Ending::Error(message)),
            ServedFailure::Dropped(reason) => self.end(entry, Ending::Dropped(reason)),
            ServedFailure::Deferred(message) => {
                let attempts = self.attempts;
                self.defer(entry, || {
                    Ending::Dropped(format!(
                        "no runnable handler after {attempts} deferred load attempts: {message}"
                    ))
                });
            }
        }
    }

    /// The delivery is over. One that neither sealed nor failed for good waits like a deferred one (SS-814): its entry
    /// is pending, and a seal that is always refused must not spin.
    fn over(&self, entry: &StreamEntryRef, outcome: &EventOutcome) {
        let unmarked = self.guards.borrow().stage(&entry_key(entry)) == Some(crate::in_flight::Stage::Queued);
        if let (EventOutcome::Failed(error), true) = (outcome, unmarked) {
            let message = error.message.clone();
            self.defer(entry, || {
                Ending::Error(format!("its consequences were refused: {message}"))
            });
        }
        self.guards.borrow_mut().release_unmarked(&entry_key(entry));
    }

    fn defer(&self, entry: &StreamEntryRef, last: impl FnOnce() -> Ending) {
        let key = entry_key(entry);
        let attempts = self.guards.borrow_mut().defer(&key);
        if attempts < self.attempts {
            self.note_deferral();
        } else {
            self.guards.borrow_mut().enter(key);
            self.end(entry, last());
        }
    }

    fn note_deferral(&self) {
        if self.deferred_at.get().is_none() {
            self.deferred_at.set(Some(self.time.wall_ms()));
        }
        self.wakeup.ring();
    }

    /// Decides an entry; its guard now waits for the wave that takes the notice.
    fn end(&self, entry: &StreamEntryRef, ending: Ending) {
        self.guards.borrow_mut().mark(&entry_key(entry));
        self.notices.borrow_mut().push(EventNotice {
            entry: entry.clone(),
            ending,
        });
        self.wakeup.ring();
    }

    /// Oldest entry that is known and not decided.
    pub(crate) fn lowest_open(&self) -> Option<Seq> {
        self.guards.borrow().lowest_open()
    }

    /// True when some entry waits for another attempt.
    pub(crate) fn has_deferred(&self) -> bool {
        self.guards.borrow().has_deferred()
    }

    /// True when notices wait to be sealed.
    pub(crate) fn has_notices(&self) -> bool {
        !self.notices.borrow().is_empty()
    }

    /// When deferred entries are looked at again at the latest.
    pub(crate) fn rescan_at(&self, settings: &LoopSettings) -> Option<i64> {
        let wait = i64::try_from(settings.event_rescan.as_millis()).unwrap_or(i64::MAX);
        self.deferred_at.get().map(|at| at.saturating_add(wait))
    }

    /// A wave with these events was refused as a whole, or their part of it was.
    pub(crate) fn note_refusals(&self, events: &[EventId]) {
        let mut failures = self.refusals.borrow_mut();
        for event in events {
            *failures.entry(event.clone()).or_insert(0) += 1;
        }
    }

    /// A wave decided about these events (SS-565).
    pub(crate) fn decided(&self, committed: &[EventId], requeued: &[EventId]) {
        let mut guards = self.guards.borrow_mut();
        guards.committed(committed);
        guards.requeued(requeued);
        let mut failures = self.refusals.borrow_mut();
        committed.iter().for_each(|event| {
            failures.remove(event);
        });
    }
}

/// The pending entries of one sidecar, with its stored log.
struct PendingStream {
    pending: PendingStreamEvents,
    stored: Value,
}

/// Drains one space's streams.
pub(crate) struct EventDrain {
    home: SpaceId,
    engine: EngineHandle,
    runtime: Runtime,
    pub(crate) desk: Rc<EventDesk>,
    statistics: Statistics,
    time: HostTime,
}

impl EventDrain {
    pub(crate) fn new(
        home: SpaceId,
        engine: EngineHandle,
        runtime: Runtime,
        desk: Rc<EventDesk>,
        statistics: Statistics,
        time: HostTime,
    ) -> EventDrain {
        EventDrain {
            home,
            engine,
            runtime,
            desk,
            statistics,
            time,
        }
    }

    /// SS-810, for every stream with pending entries, until `most` entries are queued to the scheduler. Answers how
    /// many were.
    pub(crate) async fn drain(&self, most: u64) -> Result<u64, EngineError> {
        self.desk.deferred_at.set(None);
        let mut queued = 0;
        for stream in self.pending_streams().await? {
            queued += self.drain_stream(&stream, most - queued).await;
        }
        self.statistics.update(|s| {
            s.events.processed += queued;
            s.events.coalesced_per_wave_max = s.events.coalesced_per_wave_max.max(queued);
        });
        Ok(queued)
    }

    async fn pending_streams(&self) -> Result<Vec<PendingStream>, EngineError> {
        self.engine
            .read(|reader| {
                let mut streams = Vec::new();
                for pending in reader.select_pending_stream_events(&BranchName::default())? {
                    if let Some(stored) = reader.read_space_value(&pending.id)? {
                        streams.push(PendingStream { pending, stored });
                    }
                }
                Ok(streams)
            })
            .await?
    }

    async fn drain_stream(&self, stream: &PendingStream, most: u64) -> u64 {
        if most == 0 {
            return 0;
        }
        let sidecar = &stream.pending.id;
        let address = Address::document(self.home.clone(), sidecar.clone(), Scope::Space);
        let synced = self
            .runtime
            .storage()
            .sync_instance(&address, &self.runtime.storage().identity());
        let synced = self.runtime.wait_on(synced).await;
        let mut entries: Vec<StreamEntry> = stream
            .pending
            .entries
            .iter()
            .filter_map(StreamEntry::from_value)
            .filter(|e| e.seq.is_some())
            .collect();
        entries.sort_by_key(|entry| entry.seq);
        let mut queued = 0;
        for entry in entries {
            if queued == most {
                break;
            }
            let Some(reference) = locate(&stream.stored, sidecar, &entry) else {
                continue;
            };
            if let Err(error) = &synced {
                self.defer_view(&reference, &format!("its stream does not load: {error}"));
                continue;
            }
            queued += u64::from(self.take_up(stream, entry, reference).await);
        }
        queued
    }

    /// One entry, in the order of SS-810; true when it was queued.
    async fn take_up(&self, stream: &PendingStream, entry: StreamEntry, reference: StreamEntryRef) -> bool {
        let key = entry_key(&reference);
        let in_flight = self.desk.guards.borrow().stage(&key).is_some();
        // Marks are addressed by index: a view that lags would leave the real entry pending for ever.
        if !in_flight && self.viewed_event(&reference).as_ref() != Some(&reference.event_id) {
            self.defer_view(&reference, "the serving replica does not show its entry yet");
            return false;
        }
        if is_delivered_elsewhere(&stream.stored, &key) {
            if self.desk.guards.borrow_mut().enter(key) {
                self.statistics.update(|s| s.events.skipped_idempotent += 1);
                self.desk.end(&reference, Ending::Duplicate);
            }
            return false;
        }
        if self.gave_up(&reference) {
            return false;
        }
        if in_flight {
            self.statistics.update(|s| s.events.drain_in_flight_skips += 1);
            return false;
        }
        let acting = acting(&entry);
        let link = Link {
            path: entry.stream.path.clone(),
            ..Link::to_document(self.home.clone(), entry.stream.id.clone(), entry.stream.scope)
        };
        let identity = ScopeIdentity {
            principal: acting.user.clone(),
            session_id: acting.session.clone(),
        };
        // A stream whose document does not load is found out by the dispatch.
        let loaded = self.runtime.storage().sync_link(&link, Some(&identity));
        self.runtime.wait_on(loaded).await;
        if !self.desk.guards.borrow_mut().enter(key) {
            return false;
        }
        self.queue(entry, link, acting, reference)
    }

    fn queue(&self, entry: StreamEntry, stream: Link, acting: Acting, reference: StreamEntryRef) -> bool {
        let (failed, over) = (Rc::clone(&self.desk), Rc::clone(&self.desk));
        let (failed_entry, over_entry) = (reference.clone(), reference.clone());
        let queued = self.runtime.queue_event(ServedEvent {
            event_id: entry.event_id,
            stream,
            payload: entry.payload.unwrap_or(Value::Undefined),
            fired_at: acting,
            now_ms: self.time.wall_ms(),
            stream_entry: reference.clone(),
            on_failure: Rc::new(move |failure| failed.failed(&failed_entry, failure)),
            on_outcome: Some(Box::new(move |outcome| over.over(&over_entry, outcome))),
        });
        match queued {
            Ok(()) => true,
            Err(error) => {
                self.desk.end(&reference, Ending::Error(error.to_string()));
                false
            }
        }
    }

    fn viewed_event(&self, entry: &StreamEntryRef) -> Option<EventId> {
        let replica = self.runtime.storage().replica(&self.home);
        let document = replica.get_document(&entry.sidecar_id, Scope::Space, None)?;
        event_at(document.member("value")?, entry.index)
    }

    fn defer_view(&self, entry: &StreamEntryRef, why: &str) {
        let key = entry_key(entry);
        if self.desk.guards.borrow_mut().enter(key) {
            self.desk.failed(entry, ServedFailure::Deferred(why.to_owned()));
        }
    }

    /// SS-721: an event whose consequences keep being refused ends as an error.
    fn gave_up(&self, entry: &StreamEntryRef) -> bool {
        let failures = self
            .desk
            .refusals
            .borrow()
            .get(&entry.event_id)
            .copied()
            .unwrap_or(0);
        if failures < self.desk.attempts || !self.desk.guards.borrow_mut().enter(entry_key(entry)) {
            return false;
        }
        let text = format!("its consequences were refused in {failures} waves");
        self.desk.end(entry, Ending::Error(text));
        true
    }

    /// Seals the notices that wait, each in a transaction of its own (SS-819). One whose seal fails frees its entry
    /// for the next scan.
    pub(crate) fn seal_notices(&self) {
        for notice in self.desk.notices.take() {
            if let Err(error) = self.seal_notice(&notice) {
                tracing::warn!(event = %notice.entry.event_id, %error, "event notice did not seal");
                let event = notice.entry.event_id.clone();
                self.desk
                    .guards
                    .borrow_mut()
                    .requeued(std::slice::from_ref(&event));
                self.desk.note_deferral();
            }
        }
    }

    fn seal_notice(&self, notice: &EventNotice) -> Result<(), RunnerError> {
        let EventNotice { entry, ending } = notice;
        let tx = self.runtime.edit();
        let action = format!("server-execution/event-consequence:{}", entry.event_id);
        let mut stamp = RunStamp::new(action, RunKind::EventHandler);
        stamp.event_id = Some(entry.event_id.clone());
        tx.set_stamp(stamp)?;
        let place = entry_place(&self.home, entry);
        let fields: Vec<(&str, Value)> = match ending {
            Ending::Duplicate => Vec::new(),
            Ending::Error(message) => vec![("error", message.as_str().into())],
            Ending::Dropped(reason) => vec![("status", "dropped".into()), ("reason", reason.as_str().into())],
        };
        for (field, value) in fields.into_iter().chain([("consequenced", true.into())]) {
            let at = [place.path.as_slice(), path([field]).as_slice()].concat();
            if let Err(error) = tx.write(&place.at(at), Some(value)) {
                tx.abort(error.to_string());
                return Err(error);
            }
        }
        match tx.commit().peek() {
            Some(sealed) => Ok(sealed?),
            // Seals answer at once; one that does not has gone somewhere else than into a wave.
            None => Err(RunnerError::Closed("wave destination")),
        }
    }

    /// Removes the in-process copies still queued when the flush deadline expires (SS-821); their entries are drained
    /// later.
    pub(crate) fn purge_copies(&self) {
        let is_copy = |queued: &runner::scheduler::QueuedEvent<'_>| {
            queued.served.is_some_and(|served| served.lt1.is_some())
        };
        let purged = self
            .runtime
            .purge_queued_events(&is_copy, "the flush deadline expired");
        self.statistics
            .update(|s| s.events.lt1_leftovers_purged += purged as u64);
    }
}

/// The stamped actor; a session of `"server"` is none (RUN-574).
fn acting(entry: &StreamEntry) -> Acting {
    let Some(fired_at) = &entry.fired_at else {
        return Acting::default();
    };
    Acting {
        user: fired_at.user.clone(),
        session: Some(fired_at.session.clone()).filter(|session| session.as_str() != SERVER_SESSION),
    }
}

fn entries(sidecar: &Value) -> impl Iterator<Item = (usize, &Value)> {
    let entries = sidecar.member("entries").and_then(Value::as_array);
    entries.into_iter().flat_map(|entries| entries.elements())
}

fn event_of(entry: &Value) -> Option<&str> {
    entry.member("eventId").and_then(Value::as_str)
}

fn event_at(sidecar: &Value, index: usize) -> Option<EventId> {
    entries(sidecar)
        .find(|(at, _)| *at == index)
        .and_then(|(_, entry)| event_of(entry))
        .map(EventId::from)
}

/// Where the stored log holds this entry.
fn locate(stored: &Value, sidecar: &EntityId, entry: &StreamEntry) -> Option<StreamEntryRef> {
    let seq = entry.seq?;
    let index = entries(stored)
        .find(|(_, stored)| {
            event_of(stored) == Some(entry.event_id.as_str())
                && stored.member("seq").and_then(Seq::from_value) == Some(seq)
        })
        .map(|(index, _)| index)?;
    Some(StreamEntryRef {
        sidecar_id: sidecar.clone(),
        index,
        seq,
        event_id: entry.event_id.clone(),
    })
}

/// True when another entry of the same event is consequenced. One without a seq is legacy and does not count.
fn is_delivered_elsewhere(stored: &Value, key: &EntryKey) -> bool {
    entries(stored).any(|(_, entry)| {
        event_of(entry) == Some(key.event.as_str())
            && entry.member("consequenced").and_then(Value::as_bool) == Some(true)
            && entry
                .member("seq")
                .and_then(Seq::from_value)
                .is_some_and(|seq| seq != key.seq)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::value;

    fn stored() -> Value {
        value!({
            "entries": [
                { "eventId": "e1", "seq": 3, "consequenced": true },
                { "eventId": "e2", "seq": 4 },
                { "eventId": "e1", "seq": 9 },
                { "eventId": "e2", "consequenced": true }
            ]
        })
    }

    fn key(event: &str, seq: u64) -> EntryKey {
        EntryKey {
            event: event.into(),
            seq: Seq(seq),
        }
    }

    #[test]
    fn ss_810_a_second_entry_of_a_delivered_event_is_a_duplicate() {
        assert!(is_delivered_elsewhere(&stored(), &key("e1", 9)));
        assert!(!is_delivered_elsewhere(&stored(), &key("e1", 3)), "not of itself");
        assert!(
            !is_delivered_elsewhere(&stored(), &key("e2", 4)),
            "a twin without seq is legacy"
        );
    }

    #[test]
    fn ss_810_entries_are_found_by_event_and_seq() {
        let entry = StreamEntry {
            seq: Some(Seq(9)),
            ..StreamEntry::new(
                "e1".into(),
                memory_wire::stream_entry::StreamLink {
                    id: "of:s".into(),
                    path: Vec::new(),
                    scope: Scope::Space,
                },
                None,
            )
        };
        assert_eq!(
            locate(&stored(), &"of:x".into(), &entry).map(|found| found.index),
            Some(2)
        );
        let absent = StreamEntry {
            seq: Some(Seq(8)),
            ..entry
        };
        assert!(locate(&stored(), &"of:x".into(), &absent).is_none());
    }

    #[test]
    fn run_574_the_server_is_no_session() {
        let fired = |session: &str| StreamEntry {
            fired_at: Some(memory_wire::stream_entry::FiredAt {
                user: Some("did:key:zU".into()),
                session: session.into(),
                client_seq: None,
            }),
            ..StreamEntry::new(
                "e".into(),
                memory_wire::stream_entry::StreamLink {
                    id: "of:s".into(),
                    path: Vec::new(),
                    scope: Scope::Space,
                },
                None,
            )
        };
        assert_eq!(acting(&fired("server")).session, None);
        assert_eq!(acting(&fired("s1")).session, Some("s1".into()));
    }
}
