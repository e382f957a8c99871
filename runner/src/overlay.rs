//! The client's speculation overlay (RUN-700…706): runs of a client echo what the server will derive, in layers
//! that only this process knows, and go away when the authoritative value is here.
//!
//! Installed by the runtime on the client posture. Process memory only: no entry is ever sent, and no commit may be
//! built on one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use indexmap::IndexMap;
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::{ClientCommit, Operation};
use memory_wire::stream_entry::{StreamEntry, StreamLink};
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{EntityId, EventId, LocalSeq, Scope, Seq, SpaceId, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::{Address, path};
use crate::error::{CommitError, RunnerError};
use crate::event_append_queue::{AppendOutcome, EventIntent};
use crate::promise::Promise;
use crate::replica::{DocKey, Notification, NotificationSink, Replica, Selector};
use crate::scheduler::{ClientFire, EventDelivery, EventOutcome, OutcomeCallback, Scheduler};
use crate::seal::refusal;
use crate::storage_manager::{NotificationSubscription, StorageManager};
use crate::transaction::{
    NativeCommit, NativeRead, OutboundAppend, PostCommitEffect, RunKind, RunTx, SealDestination, SealOptions,
    SealSink, SealedVerdict,
};

/// How far cascade ancestry is followed (RUN-703).
const MAX_ANCESTRY: usize = 64;

/// One speculative layer.
struct Entry {
    space: SpaceId,
    local_seq: LocalSeq,
    verdict: Promise<Result<SealedVerdict, String>>,
    /// Highest seq its reads stood on.
    floor: Seq,
    /// Own durable commits its reads looked through.
    origins: Vec<LocalSeq>,
    /// Documents it read through pending layers.
    pending_reads: Vec<DocKey>,
    /// Documents it wrote, and whether as a whole.
    written: Vec<(DocKey, bool)>,
    action_id: String,
    event_id: Option<EventId>,
}

/// A fired event whose authoritative consequence is not here yet.
struct Intent {
    space: SpaceId,
    sidecar: EntityId,
    on_outcome: Option<OutcomeCallback>,
}

struct State {
    storage: StorageManager,
    scheduler: Scheduler,
    entries: RefCell<Vec<Entry>>,
    intents: RefCell<IndexMap<EventId, Intent>>,
    /// Events that are over: a late echo of one, or of a descendant, is dropped at its seal.
    jobless: RefCell<FxHashSet<EventId>>,
    /// Event → the event whose echo sent it.
    parents: RefCell<FxHashMap<EventId, EventId>>,
    watched: RefCell<FxHashSet<SpaceId>>,
    sweep_queued: Cell<bool>,
    subscription: RefCell<Option<NotificationSubscription>>,
}

/// Handle to the overlay; clones share it.
#[derive(Clone)]
pub struct Overlay(Rc<State>);

struct Listener(Weak<State>);

impl NotificationSink for Listener {
    fn notify(&self, notification: &Notification) {
        let Some(overlay) = self.0.upgrade().map(Overlay) else {
            return;
        };
        let mut sweep = false;
        for change in &notification.changes {
            if change.address.id.as_str() == WATERMARK_DOCUMENT {
                sweep = true;
            }
            if memory_wire::well_known::is_stream_sidecar(&change.address.id) {
                overlay.look_at_sidecar(notification.space.clone(), change.address.id.clone());
            }
        }
        if sweep {
            overlay.queue_sweep();
        }
    }
}

impl Overlay {
    /// Makes `scheduler` divert its runs here and fire its events through here.
    pub(crate) fn install(scheduler: &Scheduler) -> Overlay {
        let storage = scheduler.storage().clone();
        let overlay = Overlay(Rc::new(State {
            storage: storage.clone(),
            scheduler: scheduler.clone(),
            entries: RefCell::default(),
            intents: RefCell::default(),
            jobless: RefCell::default(),
            parents: RefCell::default(),
            watched: RefCell::default(),
            sweep_queued: Cell::new(false),
            subscription: RefCell::default(),
        }));
        let listening = storage.subscribe(Rc::new(Listener(Rc::downgrade(&overlay.0))));
        *overlay.0.subscription.borrow_mut() = Some(listening);
        scheduler.divert_to(Rc::new(overlay.clone()));
        let fire = Rc::downgrade(&overlay.0);
        scheduler.set_client_fire(Rc::new(move |fired| match fire.upgrade().map(Overlay) {
            Some(overlay) => overlay.fire(fired),
            None => tracing::debug!(event_id = %fired.event_id, "fired into a disposed runtime"),
        }));
        overlay
    }

    /// Layers that stand, for tests and diagnostics.
    pub fn standing(&self) -> usize {
        self.0.entries.borrow().len()
    }

    /// Events whose consequence is outstanding.
    pub fn outstanding_intents(&self) -> Vec<EventId> {
        self.0.intents.borrow().keys().cloned().collect()
    }

    /// Lets every layer and intent go.
    pub(crate) fn dispose(&self) {
        *self.0.subscription.borrow_mut() = None;
        for entry in self.0.entries.take() {
            entry.verdict.settle(Ok(superseded("runtime disposed")));
        }
        for (_, intent) in self.0.intents.take() {
            tell(
                intent.on_outcome,
                EventOutcome::Failed(CommitError::aborted("runtime disposed")),
            );
        }
    }

    // --- fire (RUN-701) ---------------------------------------------------------------------------------------

    fn fire(&self, fired: ClientFire) {
        let ClientFire {
            event_id,
            stream,
            payload,
            options,
        } = fired;
        let target = StreamLink {
            id: stream.id.clone(),
            path: stream.path.clone(),
            scope: stream.scope,
        };
        let sidecar = target.sidecar_id();
        let intent = Intent {
            space: stream.space.clone(),
            sidecar: sidecar.clone(),
            on_outcome: options.on_outcome,
        };
        self.0.intents.borrow_mut().insert(event_id.clone(), intent);
        self.watch(&stream.space);
        // The sidecar stays watched while an intent of it is outstanding.
        let at = Address::document(stream.space.clone(), sidecar, Scope::Space);
        drop(self.0.storage.load(&at, Selector::rejecting(), None));
        let appended = self.0.storage.replica(&stream.space).append_event(EventIntent {
            stream: target,
            event_id: event_id.clone(),
            payload: (!payload.is_undefined()).then(|| payload.clone()),
            runtime_injected_event_keys: None,
            renderer_trusted: options.renderer_trusted,
        });
        let (overlay, appending) = (Rc::downgrade(&self.0), event_id.clone());
        appended.then(move |outcome| {
            let Some(overlay) = overlay.upgrade().map(Overlay) else {
                return;
            };
            match outcome {
                AppendOutcome::Delivered { .. } => {}
                AppendOutcome::Refused(error) => {
                    overlay.end_intent(&appending, EventOutcome::Failed(error.clone()))
                }
                AppendOutcome::NotDelivered => {
                    let error = CommitError::aborted("the event was not delivered before the runtime ended");
                    overlay.end_intent(&appending, EventOutcome::Failed(error));
                }
            }
        });
        let echo = EventDelivery {
            event_id: event_id.clone(),
            caller_id: true,
            stream,
            payload,
            fired_at_ms: self.0.storage.clock().now_ms(),
            retries: true,
            parent_event_id: None,
            origin: None,
            served: None,
            // The caller is told the authoritative outcome, never the echo's.
            on_outcome: None,
        };
        if let Err(error) = self.0.scheduler.queue_event(echo) {
            tracing::debug!(%event_id, %error, "no local echo");
        }
    }

    /// The intent is over: its echo and the echoes of its cascade go, its caller is told (RUN-703).
    fn end_intent(&self, event_id: &EventId, outcome: EventOutcome) {
        let Some(intent) = self.0.intents.borrow_mut().shift_remove(event_id) else {
            return;
        };
        self.0.jobless.borrow_mut().insert(event_id.clone());
        let over: Vec<Entry> = {
            let mut entries = self.0.entries.borrow_mut();
            let (over, standing) = entries
                .drain(..)
                .partition(|entry| entry.event_id.as_ref().is_some_and(|id| self.is_jobless(id)));
            *entries = standing;
            over
        };
        for entry in over {
            entry
                .verdict
                .settle(Ok(superseded("the event's consequence is here")));
        }
        tell(intent.on_outcome, outcome);
        self.queue_sweep();
    }

    /// Is this event, or one it descends from, over?
    fn is_jobless(&self, event_id: &EventId) -> bool {
        let (jobless, parents) = (self.0.jobless.borrow(), self.0.parents.borrow());
        let mut at = event_id;
        for _ in 0..MAX_ANCESTRY {
            if jobless.contains(at) {
                return true;
            }
            match parents.get(at) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    }

    /// RUN-703: a sidecar changed; its outstanding entries are looked up in the raw document, later.
    fn look_at_sidecar(&self, space: SpaceId, sidecar: EntityId) {
        let concerned = self
            .0
            .intents
            .borrow()
            .values()
            .any(|i| i.space == space && i.sidecar == sidecar);
        if !concerned {
            return;
        }
        let overlay = Rc::downgrade(&self.0);
        self.0.storage.defer(move || {
            if let Some(overlay) = overlay.upgrade().map(Overlay) {
                overlay.retire_consequenced(&space, &sidecar);
            }
        });
    }

    fn retire_consequenced(&self, space: &SpaceId, sidecar: &EntityId) {
        let document = self
            .0
            .storage
            .replica(space)
            .get_document(sidecar, Scope::Space, None);
        let entries = document
            .as_ref()
            .and_then(|d| d.at_path(&path(["value", "entries"])));
        let Some(Value::Array(entries)) = entries else {
            return;
        };
        // From the tail: outstanding events are the newest.
        let stored: Vec<StreamEntry> = entries
            .elements()
            .filter_map(|(_, e)| StreamEntry::from_value(e))
            .collect();
        let outstanding: Vec<EventId> = {
            let intents = self.0.intents.borrow();
            intents
                .iter()
                .filter(|(_, i)| i.space == *space && i.sidecar == *sidecar)
                .map(|(id, _)| id.clone())
                .collect()
        };
        for event_id in outstanding {
            let Some(entry) = stored.iter().rev().find(|entry| entry.event_id == event_id) else {
                continue;
            };
            let failed = |text: &Option<String>, otherwise: &str| {
                EventOutcome::Failed(CommitError::aborted(
                    text.clone().unwrap_or_else(|| otherwise.to_owned()),
                ))
            };
            if entry.dropped {
                self.end_intent(&event_id, failed(&entry.reason, "dropped"));
            } else if entry.consequenced {
                let outcome = match &entry.error {
                    Some(_) => failed(&entry.error, "failed"),
                    None => EventOutcome::Handled,
                };
                self.end_intent(&event_id, outcome);
            }
        }
    }

    // --- retirement by coverage (RUN-704) -----------------------------------------------------------------------

    /// Keeps what retirement needs of a space here: its watermark, verdicts and arrivals.
    fn watch(&self, space: &SpaceId) {
        if !self.0.watched.borrow_mut().insert(space.clone()) {
            return;
        }
        let watermark = Address::document(space.clone(), EntityId::from(WATERMARK_DOCUMENT), Scope::Space);
        drop(self.0.storage.load(&watermark, Selector::rejecting(), None));
        let replica = self.0.storage.replica(space);
        let overlay = Rc::downgrade(&self.0);
        let sweep = move || {
            if let Some(overlay) = overlay.upgrade().map(Overlay) {
                overlay.queue_sweep();
            }
        };
        replica.on_arrival({
            let sweep = sweep.clone();
            move |_| sweep()
        });
        replica.on_ack(move |_, _| sweep());
    }

    fn queue_sweep(&self) {
        if self.0.sweep_queued.replace(true) {
            return;
        }
        let overlay = Rc::downgrade(&self.0);
        self.0.storage.defer(move || {
            if let Some(overlay) = overlay.upgrade().map(Overlay) {
                overlay.0.sweep_queued.set(false);
                overlay.sweep();
            }
        });
    }

    fn sweep(&self) {
        // Retiring one layer may uncover the next.
        loop {
            let at = self
                .0
                .entries
                .borrow()
                .iter()
                .position(|entry| self.covered(entry));
            let Some(at) = at else { return };
            let entry = self.0.entries.borrow_mut().remove(at);
            entry.verdict.settle(Ok(superseded("covered")));
        }
    }

    fn covered(&self, entry: &Entry) -> bool {
        let replica = self.0.storage.replica(&entry.space);
        let mut floor = entry.floor;
        for origin in &entry.origins {
            match replica.acked_seq(*origin) {
                Some(seq) => floor = floor.max(seq),
                None => return false,
            }
        }
        let unsettled_below = |key: &DocKey| {
            let below = |l: &&crate::replica::LayerView| l.local_seq < entry.local_seq && l.acked.is_none();
            replica
                .retirement_view(key)
                .layers
                .iter()
                .any(|layer| below(&layer))
        };
        if entry.pending_reads.iter().any(unsettled_below) || watermark(&replica) < floor {
            return false;
        }
        entry.written.iter().all(|(key, _)| {
            let view = replica.retirement_view(key);
            let derived = matches!(view.cover_class, Some(CommitClass::Derived));
            view.has_value && (view.confirmed_seq > floor || (view.confirmed_seq == floor && derived))
        })
    }

    // --- seals --------------------------------------------------------------------------------------------------

    fn take(&self, tx: &RunTx) -> Result<(), CommitError> {
        let Some(stamp) = tx.stamp() else { return Ok(()) };
        if stamp.kind == RunKind::EventHandler {
            let Some(event_id) = &stamp.event_id else {
                return Err(CommitError::aborted(refusal::NO_EVENT_ID));
            };
            if let Some(parent) = &stamp.parent_event_id {
                self.0
                    .parents
                    .borrow_mut()
                    .insert(event_id.clone(), parent.clone());
            }
            if self.is_jobless(event_id) {
                // A late echo of something that is over: it never becomes visible.
                return Ok(());
            }
        }
        let mut collected = Collected::default();
        tx.seal_into(&mut collected).map_err(|error| match error {
            RunnerError::Commit(error) => error,
            other => CommitError::aborted(other.to_string()),
        })?;
        for (space, native) in collected.written {
            if native.operations.is_empty() {
                continue;
            }
            self.watch(&space);
            let replica = self.0.storage.replica(&space);
            let written: Vec<(DocKey, bool)> = native
                .operations
                .iter()
                .filter_map(|op| {
                    let (id, scope) = op.target()?;
                    Some((
                        replica.doc_key(id, scope, None),
                        !matches!(op, Operation::Patch { .. }),
                    ))
                })
                .collect();
            let verdict = Promise::new();
            let options = SealOptions {
                speculative: true,
                identity: None,
            };
            let sealed = replica.seal_native(native, tx, &verdict, options);
            let (floor, origins, pending_reads) = basis_of(&replica, &sealed.commit);
            let entry = Entry {
                space,
                local_seq: sealed.local_seq,
                verdict,
                floor,
                origins,
                pending_reads,
                written,
                action_id: stamp.action_id.clone(),
                event_id: stamp.event_id.clone(),
            };
            self.supersede_older(&entry);
            let local_seq = entry.local_seq;
            self.0.entries.borrow_mut().push(entry);
            let overlay = Rc::downgrade(&self.0);
            sealed.settled.then(move |_| {
                if let Some(overlay) = overlay.upgrade().map(Overlay) {
                    // A reset or a cascade ends a layer without a verdict of ours.
                    overlay
                        .0
                        .entries
                        .borrow_mut()
                        .retain(|entry| entry.local_seq != local_seq);
                    overlay.queue_sweep();
                }
            });
            self.queue_sweep();
        }
        Ok(())
    }

    /// RUN-705: a re-run that replaces whole documents makes its predecessor invisible.
    fn supersede_older(&self, newer: &Entry) {
        if newer.event_id.is_some() {
            return;
        }
        let whole: BTreeSet<&DocKey> = newer
            .written
            .iter()
            .filter(|(_, whole)| *whole)
            .map(|(key, _)| key)
            .collect();
        let older: Vec<Entry> = {
            let mut entries = self.0.entries.borrow_mut();
            let (older, standing) = entries.drain(..).partition(|entry| {
                entry.space == newer.space
                    && entry.event_id.is_none()
                    && entry.action_id == newer.action_id
                    && entry.written.iter().all(|(key, _)| whole.contains(key))
            });
            *entries = standing;
            older
        };
        for entry in older {
            entry.verdict.settle(Ok(superseded("re-run")));
        }
    }
}

impl SealDestination for Overlay {
    fn space(&self) -> Option<&SpaceId> {
        None
    }

    fn accepts(&self, tx: &RunTx) -> bool {
        match tx.stamp().map(|stamp| stamp.kind) {
            Some(RunKind::Derivation | RunKind::EventHandler) => true,
            Some(RunKind::Bookkeeping) | None => false,
        }
    }

    fn seal(&self, tx: &RunTx) -> Promise<Result<(), CommitError>> {
        Promise::ready(self.take(tx))
    }

    fn stage_outbound_append(&self, _tx: &RunTx, row: OutboundAppend) -> Result<(), CommitError> {
        Err(CommitError::aborted(format!(
            "event {} cannot be staged on the overlay",
            row.event_id
        )))
    }

    fn defer_sealed_effects(&self, _tx: &RunTx, _effects: &[PostCommitEffect]) -> bool {
        // Owned and dropped: a speculative run performs no egress (RUN-709).
        true
    }
}

#[derive(Default)]
struct Collected {
    written: Vec<(SpaceId, NativeCommit)>,
}

impl SealSink for Collected {
    fn written(&mut self, space: &SpaceId, native: NativeCommit) {
        self.written.push((space.clone(), native));
    }

    fn read_only(&mut self, _space: &SpaceId, _reads: Vec<NativeRead>) {}
}

/// What an entry stands on: the highest seq, own durable commits, and documents read through layers.
fn basis_of(replica: &Replica, commit: &ClientCommit) -> (Seq, Vec<LocalSeq>, Vec<DocKey>) {
    let mut floor = Seq(0);
    let mut origins: Vec<LocalSeq> = Vec::new();
    let mut keys: Vec<DocKey> = Vec::new();
    for read in &commit.reads.confirmed {
        floor = floor.max(read.seq);
    }
    for read in &commit.reads.pending {
        floor = floor.max(read.basis_seq.unwrap_or_default());
        origins.extend(
            read.local_seqs
                .iter()
                .filter(|n| !replica.is_speculative(**n) && !origins.contains(n))
                .copied()
                .collect::<Vec<_>>(),
        );
        let key = replica.doc_key(&read.id, read.scope, None);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    (floor, origins, keys)
}

/// `W`: derived state is current through this seq.
fn watermark(replica: &Replica) -> Seq {
    replica
        .get_document(&EntityId::from(WATERMARK_DOCUMENT), Scope::Space, None)
        .as_ref()
        .and_then(|document| document.at_path(&path(["value", "seq"])))
        .and_then(Seq::from_value)
        .unwrap_or_default()
}

fn superseded(message: &str) -> SealedVerdict {
    SealedVerdict::Withdrawn {
        message: message.to_owned(),
        superseded: true,
    }
}

fn tell(on_outcome: Option<OutcomeCallback>, outcome: EventOutcome) {
    if let Some(tell) = on_outcome {
        tell(&outcome);
    }
}
