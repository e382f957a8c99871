//! What this process holds of one space: confirmed documents, pending layers, watches, commits in flight
//! (RUN-12, RUN-20…66).
//!
//! Transactions read from it and commit into it; frames and verdicts come back through `Replica::pump`. State is
//! changed inside one borrow and everyone is told after it ended, so that a subscriber may call back in.

mod commit;
mod differential;
mod frames;
mod lifecycle;
mod notification;
mod record;
mod settle;
mod shadow;
mod watches;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use memory_wire::commit_meta::CommitClass;
use memory_wire::message::ClientCommit;
use memory_wire::{EntityId, LocalSeq, Scope, ScopeIdentity, ScopeKey, Seq, SpaceId, Value};
use rustc_hash::FxHashMap;

pub use differential::changed_paths;
pub use notification::{Change, Notification, NotificationKind, NotificationSink};
pub use record::{DocKey, Instance};
pub use watches::{Selector, watch_id};

use crate::address::{Address, Path};
use crate::connection::Connection;
use crate::error::CommitError;
use crate::event_append_queue::EventAppendQueue;
use crate::promise::Promise;
use crate::storage_manager::{StorageManager, WeakManager};
use crate::transaction::RunTx;
use crate::transport::Connector;
use differential::Differential;
use record::Record;
use watches::Watches;

/// Accept verdicts remembered (RUN-32).
const ACKS_KEPT: usize = 4096;

/// Visible documents before a change.
type Snapshot = Vec<(Touched, Option<Value>)>;

type CommitOutcome = Result<(), CommitError>;

/// A handle to a space's replica; clones share it.
#[derive(Clone)]
pub struct Replica(Rc<ReplicaState>);

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replica({})", self.0.space)
    }
}

struct ReplicaState {
    space: SpaceId,
    storage: WeakManager,
    own_identity: ScopeIdentity,
    core: RefCell<Core>,
    connection: RefCell<Connection>,
    observers: RefCell<Observers>,
    appends: RefCell<EventAppendQueue>,
    /// False once a reroute or close replaced it (RUN-66).
    current: Cell<bool>,
    /// A commit, seal or append was issued on this route.
    stateful: Cell<bool>,
}

type AckObserver = Rc<dyn Fn(LocalSeq, Seq)>;
type ArrivalObserver = Rc<dyn Fn(&[DocKey])>;

#[derive(Default)]
struct Observers {
    ack: Vec<AckObserver>,
    arrival: Vec<ArrivalObserver>,
    shadow_flip: Vec<Rc<dyn Fn()>>,
}

/// A document touched by a commit, and whether its changes name the instance.
#[derive(Clone, Debug)]
struct Touched {
    key: DocKey,
    scope_key: Option<ScopeKey>,
}

/// How far a pushed commit got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Never left.
    Queued,
    /// Sent on the present line; an answer will come.
    Sent,
    /// Sent on a line that broke: the server may or may not have it.
    Unanswered,
}

#[derive(Debug)]
enum Route {
    /// Sent to the server.
    Pushed { commit: ClientCommit, sending: Sending },
    /// Sealed; only its verdict settles it.
    Sealed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Accepted at this seq; waits for the marker (RUN-32).
    Parked(Seq),
    /// Rejected; the layer still stands (RUN-35).
    Dead,
}

/// A commit whose layers are pending.
#[derive(Debug)]
struct InFlight {
    touched: Vec<Touched>,
    depends_on: Vec<LocalSeq>,
    source: Option<RunTx>,
    route: Route,
    stage: Stage,
    settled: Promise<CommitOutcome>,
    applied: Promise<()>,
}

struct Core {
    records: FxHashMap<DocKey, Record>,
    next_local_seq: u64,
    in_flight: BTreeMap<LocalSeq, InFlight>,
    acked: BTreeMap<LocalSeq, Seq>,
    /// Newest catch-up marker applied.
    caught_up: LocalSeq,
    speculative: BTreeSet<LocalSeq>,
    /// RUN-35: rejected commits whose layers still stand, with the gate that opens when they are gone.
    dead: BTreeMap<LocalSeq, Promise<()>>,
    /// Rejections waiting for their marker.
    gates: BTreeMap<LocalSeq, Promise<()>>,
    markers: bool,
    stacks: bool,
    watches: Watches,
}

/// What the overlay's sweep needs to know about a document (RUN-704).
#[derive(Clone, Debug, Default)]
pub struct RetirementView {
    /// Confirmed seq, 0 for never seen.
    pub confirmed_seq: Seq,
    /// Class that the confirmed value was covered by.
    pub cover_class: Option<CommitClass>,
    /// True when there is a confirmed document.
    pub has_value: bool,
    /// Pending layers, lowest first.
    pub layers: Vec<LayerView>,
}

/// One pending layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerView {
    /// Its number.
    pub local_seq: LocalSeq,
    /// Accept verdict, if there was one.
    pub acked: Option<Seq>,
    /// Process-local only.
    pub speculative: bool,
    /// It replaces the whole document.
    pub whole: bool,
}

impl Replica {
    pub(crate) fn new(storage: &StorageManager, space: SpaceId, connector: Rc<dyn Connector>) -> Replica {
        let options = storage.options();
        let connection = Connection::new(
            space.clone(),
            storage.session_id(),
            Rc::clone(&options.signer),
            connector,
            options.wake.clone(),
        )
        .acting_as(options.acting_as.clone());
        Replica(Rc::new(ReplicaState {
            appends: RefCell::new(EventAppendQueue::new(space.clone())),
            space,
            storage: storage.downgrade(),
            own_identity: storage.identity(),
            core: RefCell::new(Core {
                records: FxHashMap::default(),
                next_local_seq: options.first_local_seq.max(1),
                in_flight: BTreeMap::new(),
                acked: BTreeMap::new(),
                caught_up: LocalSeq(0),
                speculative: BTreeSet::new(),
                dead: BTreeMap::new(),
                gates: BTreeMap::new(),
                markers: true,
                stacks: true,
                watches: Watches::default(),
            }),
            connection: RefCell::new(connection),
            observers: RefCell::default(),
            current: Cell::new(true),
            stateful: Cell::new(false),
        }))
    }

    /// The space.
    pub fn space(&self) -> &SpaceId {
        &self.0.space
    }

    /// False once it was replaced; transactions that read it fail validation then (RUN-86).
    pub fn is_current(&self) -> bool {
        self.0.current.get()
    }

    pub(crate) fn has_stateful_operations(&self) -> bool {
        self.0.stateful.get()
    }

    pub(crate) fn storage(&self) -> Option<StorageManager> {
        self.0.storage.upgrade()
    }

    pub(crate) fn append_queue(&self) -> &RefCell<EventAppendQueue> {
        &self.0.appends
    }

    fn now_ms(&self) -> i64 {
        self.storage().map_or(0, |s| s.clock().now_ms())
    }

    // --- documents -----------------------------------------------------------------------------------------------

    /// RUN-20: the key of a document for a reader; `identity` absent = own.
    pub fn doc_key(&self, id: &EntityId, scope: Scope, identity: Option<&ScopeIdentity>) -> DocKey {
        let identity = identity.unwrap_or(&self.0.own_identity);
        let instance = match ScopeKey::resolve(scope, identity) {
            Ok(key) => Instance::Key(key),
            Err(_) => Instance::Unresolved(scope),
        };
        DocKey {
            instance,
            id: id.clone(),
        }
    }

    /// RUN-24: the visible document.
    pub fn get_document(
        &self,
        id: &EntityId,
        scope: Scope,
        identity: Option<&ScopeIdentity>,
    ) -> Option<Value> {
        self.visible(&self.doc_key(id, scope, identity))
    }

    /// The visible document under a key.
    pub fn visible(&self, key: &DocKey) -> Option<Value> {
        self.0
            .core
            .borrow()
            .records
            .get(key)
            .and_then(|record| record.visible(key))
    }

    /// RUN-24: without speculative layers.
    pub fn get_non_speculative_document(
        &self,
        id: &EntityId,
        scope: Scope,
        identity: Option<&ScopeIdentity>,
    ) -> Option<Value> {
        let key = self.doc_key(id, scope, identity);
        self.0
            .core
            .borrow()
            .records
            .get(&key)
            .and_then(|record| record.non_speculative(&key))
    }

    /// True when absence would be knowledge: the server told about the document, or it is written here.
    pub fn knows(&self, id: &EntityId, scope: Scope, identity: Option<&ScopeIdentity>) -> bool {
        let key = self.doc_key(id, scope, identity);
        let core = self.0.core.borrow();
        core.records
            .get(&key)
            .is_some_and(|r| r.known || !r.layers().is_empty())
            || core.watches.has_loaded(&key)
    }

    /// Confirmed seq of a document, 0 for never seen.
    pub fn confirmed_seq(&self, key: &DocKey) -> Seq {
        self.0
            .core
            .borrow()
            .records
            .get(key)
            .map_or(Seq(0), |r| r.confirmed().seq)
    }

    /// RUN-704.
    pub fn retirement_view(&self, key: &DocKey) -> RetirementView {
        let core = self.0.core.borrow();
        let Some(record) = core.records.get(key) else {
            return RetirementView::default();
        };
        let layer = |l: &record::Layer| LayerView {
            local_seq: l.local_seq,
            acked: core.acked.get(&l.local_seq).copied(),
            speculative: l.speculative,
            whole: !matches!(l.op, record::LayerOp::Patch(_)),
        };
        RetirementView {
            confirmed_seq: record.confirmed().seq,
            cover_class: record.confirmed().cover_class,
            has_value: record.confirmed().document.is_some(),
            layers: record.layers().iter().map(layer).collect(),
        }
    }

    /// Accept verdict of a local commit, while remembered.
    pub fn acked_seq(&self, local_seq: LocalSeq) -> Option<Seq> {
        self.0.core.borrow().acked.get(&local_seq).copied()
    }

    /// True while the layer is process-local only.
    pub fn is_speculative(&self, local_seq: LocalSeq) -> bool {
        self.0.core.borrow().speculative.contains(&local_seq)
    }

    /// RUN-49: settles at once unless that accept is parked.
    pub fn when_applied(&self, local_seq: LocalSeq) -> Promise<()> {
        match self.0.core.borrow().in_flight.get(&local_seq) {
            Some(entry) if matches!(entry.stage, Stage::Parked(_)) => entry.applied.clone(),
            Some(_) | None => Promise::ready(()),
        }
    }

    // --- observers -----------------------------------------------------------------------------------------------

    /// Called with every accept verdict (RUN-32).
    pub fn on_ack(&self, f: impl Fn(LocalSeq, Seq) + 'static) {
        self.0.observers.borrow_mut().ack.push(Rc::new(f));
    }

    /// Called after a frame moved documents, with their keys (RUN-50).
    pub fn on_arrival(&self, f: impl Fn(&[DocKey]) + 'static) {
        self.0.observers.borrow_mut().arrival.push(Rc::new(f));
    }

    /// Called when a shadow cleared (RUN-53).
    pub fn on_shadow_flip(&self, f: impl Fn() + 'static) {
        self.0.observers.borrow_mut().shadow_flip.push(Rc::new(f));
    }

    fn observe_ack(&self, local_seq: LocalSeq, seq: Seq) {
        let observers = self.0.observers.borrow().ack.clone();
        observers.iter().for_each(|f| f(local_seq, seq));
    }

    // --- telling -------------------------------------------------------------------------------------------------

    fn address_of(&self, touched: &Touched) -> Address {
        Address {
            space: self.0.space.clone(),
            id: touched.key.id.clone(),
            scope: touched.key.instance.scope(),
            scope_key: touched.scope_key.clone(),
            path: Path::new(),
        }
    }

    /// Visible documents before a change, to be diffed by [`Replica::changes_since`].
    fn snapshot(&self, core: &Core, touched: impl IntoIterator<Item = Touched>) -> Snapshot {
        touched
            .into_iter()
            .map(|t| {
                let before = core.records.get(&t.key).and_then(|r| r.visible(&t.key));
                (t, before)
            })
            .collect()
    }

    fn changes_since(&self, core: &Core, before: &[(Touched, Option<Value>)]) -> Vec<Change> {
        let mut differential = Differential::default();
        for (touched, was) in before {
            let is = core
                .records
                .get(&touched.key)
                .and_then(|r| r.visible(&touched.key));
            differential.add(
                &self.address_of(touched),
                was.as_ref(),
                is.as_ref(),
                &self.0.own_identity,
            );
        }
        differential.into_changes()
    }

    fn notify(
        &self,
        kind: NotificationKind,
        changes: Vec<Change>,
        source: Option<RunTx>,
        reason: Option<String>,
    ) {
        let always = matches!(
            kind,
            NotificationKind::Pull | NotificationKind::Reset | NotificationKind::Commit
        );
        if changes.is_empty() && !always {
            return;
        }
        if let Some(storage) = self.storage() {
            storage.notify(&Notification {
                kind,
                space: self.0.space.clone(),
                changes,
                source,
                reason,
            });
        }
    }

    // --- the pump ------------------------------------------------------------------------------------------------

    /// Handles what arrived and sends what is ready; answers whether anything was done.
    pub(crate) fn pump(&self) -> bool {
        let mut worked = false;
        loop {
            let event = self.0.connection.borrow_mut().poll(self.now_ms());
            let Some(event) = event else { break };
            self.handle(event);
            worked = true;
        }
        worked |= self.flush_commits();
        worked |= self.flush_watches();
        worked
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        self.0.connection.borrow().next_deadline_ms()
    }

    fn want_open(&self) {
        let now = self.now_ms();
        self.0.connection.borrow_mut().want_open(now);
    }
}
