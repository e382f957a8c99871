//! One runtime's storage: identity, replicas by space, loads, barriers, notifications (RUN-10, RUN-11, RUN-60…66).
//!
//! Everything runs on the thread that calls [`StorageManager::pump`]; transports wake that thread through the
//! [`Wake`] given at construction. A manager may outlive its runtime.

mod loads;
mod pending_loads;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use indexmap::IndexMap;
use memory_wire::identity::Signer;
use memory_wire::traverse::SchemaPool;
use memory_wire::{Did, EntityId, Scope, ScopeIdentity, ScopeKey, SessionId, SpaceId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ambient::{Clock, Mint};
use crate::error::{CommitError, RunnerError};
use crate::event_append_queue::{EventAppendStore, Pacing};
use crate::keys::PullKickKey;
use crate::promise::Promise;
use crate::replica::{Notification, NotificationSink, Replica};
use crate::transaction::TxId;
use crate::transport::{Connector, Wake};
use pending_loads::PendingLoads;

/// What a manager is made of.
pub struct StorageOptions {
    /// Signs session opens; its DID is the principal.
    pub signer: Rc<Signer>,
    /// Makes connections.
    pub connector: Rc<dyn Connector>,
    /// Wall clock.
    pub clock: Rc<dyn Clock>,
    /// Fresh identifiers.
    pub mint: Rc<dyn Mint>,
    /// Wakes the pumping thread, from any thread.
    pub wake: Wake,
    /// RUN-10: kept across reloads by the embedder; minted otherwise.
    pub session_id: Option<SessionId>,
    /// First local sequence number; an embedder that keeps the session id across reloads continues its count.
    pub first_local_seq: u64,
    /// RUN-59: the one space whose scoped instances a serving manager may read.
    pub serving_home_space: Option<SpaceId>,
    /// SS-5: whose reads the sessions make, as the server resolves it; a serving host says `space-owner`.
    pub acting_as: Option<String>,
    /// RUN-30 step 1: off = only `entity-value-hash` preconditions are kept.
    pub commit_preconditions: bool,
    /// RUN-53: server execution is on for the deployment.
    pub server_execution: bool,
    /// RUN-77.
    pub event_pacing: Pacing,
}

impl StorageOptions {
    /// Options with the usual settings: nothing served, preconditions kept, server execution off.
    pub fn new(
        signer: Rc<Signer>,
        connector: Rc<dyn Connector>,
        clock: Rc<dyn Clock>,
        mint: Rc<dyn Mint>,
        wake: Wake,
    ) -> StorageOptions {
        StorageOptions {
            signer,
            connector,
            clock,
            mint,
            wake,
            session_id: None,
            first_local_seq: 1,
            serving_home_space: None,
            acting_as: None,
            commit_preconditions: true,
            server_execution: false,
            event_pacing: Pacing::default(),
        }
    }
}

type Task = Box<dyn FnOnce()>;

/// A handle to a runtime's storage; clones share it.
#[derive(Clone)]
pub struct StorageManager(Rc<ManagerState>);

pub(crate) struct ManagerState {
    options: StorageOptions,
    principal: Did,
    session_id: RefCell<SessionId>,
    closed: Cell<bool>,
    replicas: RefCell<IndexMap<SpaceId, Replica>>,
    subscribers: RefCell<Vec<(u64, Rc<dyn NotificationSink>)>>,
    next_subscriber: Cell<u64>,
    next_tx: Cell<u64>,
    tasks: RefCell<VecDeque<Task>>,
    timers: RefCell<Vec<(i64, u64, Task)>>,
    next_timer: Cell<u64>,
    loads: RefCell<PendingLoads>,
    kicked: RefCell<FxHashSet<PullKickKey>>,
    settle_pool: RefCell<Vec<Promise<()>>>,
    commits: RefCell<Vec<Promise<Result<(), CommitError>>>>,
    authorization_errors: RefCell<FxHashMap<SpaceId, String>>,
    reported: RefCell<FxHashSet<(SpaceId, String, String)>>,
    appends: RefCell<EventAppendStore>,
    schemas: RefCell<SchemaPool>,
}

/// Ends a subscription when dropped.
pub struct NotificationSubscription {
    manager: Weak<ManagerState>,
    id: u64,
}

impl Drop for NotificationSubscription {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.upgrade() {
            manager.subscribers.borrow_mut().retain(|(id, _)| *id != self.id);
        }
    }
}

impl std::fmt::Debug for StorageManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StorageManager({})", self.0.principal)
    }
}

impl StorageManager {
    /// A manager that connects to nothing until something is read or written.
    pub fn new(options: StorageOptions) -> StorageManager {
        let principal = options.signer.did().clone();
        let session_id = options
            .session_id
            .clone()
            .unwrap_or_else(|| SessionId::from(options.mint.uuid()));
        StorageManager(Rc::new(ManagerState {
            appends: RefCell::new(EventAppendStore::new(options.event_pacing)),
            options,
            principal,
            session_id: RefCell::new(session_id),
            closed: Cell::new(false),
            replicas: RefCell::default(),
            subscribers: RefCell::default(),
            next_subscriber: Cell::new(0),
            next_tx: Cell::new(1),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            loads: RefCell::default(),
            kicked: RefCell::default(),
            settle_pool: RefCell::default(),
            commits: RefCell::default(),
            authorization_errors: RefCell::default(),
            reported: RefCell::default(),
            schemas: RefCell::new(SchemaPool::new()),
        }))
    }

    // --- identity ------------------------------------------------------------------------------------------------

    /// RUN-11: the authenticated pair; stable for the manager's live span.
    pub fn identity(&self) -> ScopeIdentity {
        ScopeIdentity {
            principal: Some(self.0.principal.clone()),
            session_id: Some(self.session_id()),
        }
    }

    /// The signer's DID.
    pub fn principal(&self) -> &Did {
        &self.0.principal
    }

    /// RUN-10: one session id for every space.
    pub fn session_id(&self) -> SessionId {
        self.0.session_id.borrow().clone()
    }

    /// RUN-62: the instance to name on the wire: `None` unless `identity` resolves `scope` to another instance
    /// than the manager's own.
    pub fn foreign_instance(&self, scope: Scope, identity: Option<&ScopeIdentity>) -> Option<ScopeKey> {
        if scope == Scope::Space {
            return None;
        }
        let theirs = ScopeKey::resolve(scope, identity?).ok()?;
        match ScopeKey::resolve(scope, &self.identity()) {
            Ok(own) if own == theirs => None,
            Ok(_) | Err(_) => Some(theirs),
        }
    }

    /// RUN-59: refuses a scoped read of a space other than the served one.
    pub fn check_foreign_scoped(
        &self,
        space: &SpaceId,
        id: &EntityId,
        scope: Scope,
        _identity: Option<&ScopeIdentity>,
    ) -> Result<(), RunnerError> {
        match &self.0.options.serving_home_space {
            Some(home) if home != space && scope != Scope::Space => Err(RunnerError::ForeignScopedRead {
                space: space.clone(),
                id: id.clone(),
                scope: scope.as_str(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn options(&self) -> &StorageOptions {
        &self.0.options
    }

    /// The clock of the embedder.
    pub fn clock(&self) -> &Rc<dyn Clock> {
        &self.0.options.clock
    }

    /// The identifier source of the embedder.
    pub fn mint(&self) -> &Rc<dyn Mint> {
        &self.0.options.mint
    }

    pub(crate) fn next_tx_id(&self) -> TxId {
        let n = self.0.next_tx.get();
        self.0.next_tx.set(n + 1);
        TxId(n)
    }

    pub(crate) fn appends(&self) -> &RefCell<EventAppendStore> {
        &self.0.appends
    }

    /// Uses the runtime's interned schemas. Not re-entrant: the walk never calls back into cells.
    pub(crate) fn with_schemas<R>(&self, f: impl FnOnce(&mut SchemaPool) -> R) -> R {
        f(&mut self.0.schemas.borrow_mut())
    }

    pub(crate) fn downgrade(&self) -> WeakManager {
        WeakManager(Rc::downgrade(&self.0))
    }

    // --- replicas ------------------------------------------------------------------------------------------------

    /// The replica of a space, opened on first use (nothing is sent before the first load or commit).
    pub fn replica(&self, space: &SpaceId) -> Replica {
        if let Some(replica) = self.0.replicas.borrow().get(space) {
            return replica.clone();
        }
        let replica = Replica::new(self, space.clone(), Rc::clone(&self.0.options.connector));
        self.0
            .replicas
            .borrow_mut()
            .insert(space.clone(), replica.clone());
        replica
    }

    /// Replicas opened so far, in order.
    pub fn replicas(&self) -> Vec<Replica> {
        self.0.replicas.borrow().values().cloned().collect()
    }

    /// RUN-66: sends a space over another route. Only while nothing stateful was issued on the old one; reads in
    /// progress go over to the new replica, and transactions that read the old one fail validation.
    pub fn reroute(&self, space: &SpaceId, connector: Rc<dyn Connector>) -> Result<(), RunnerError> {
        let replaced = self.0.replicas.borrow().get(space).cloned();
        if let Some(old) = &replaced
            && old.has_stateful_operations()
        {
            return Err(RunnerError::InvalidValue {
                operation: "reroute",
                reason: format!("{space} was already written over its present route"),
            });
        }
        let fresh = Replica::new(self, space.clone(), connector);
        self.0.replicas.borrow_mut().insert(space.clone(), fresh.clone());
        if let Some(old) = replaced {
            old.hand_over(&fresh);
        }
        Ok(())
    }

    // --- the pump ------------------------------------------------------------------------------------------------

    /// Handles everything that is ready: deferred work, due timers, inbound frames, outbound batches. Answers
    /// whether anything was done.
    pub fn pump(&self) -> bool {
        let mut worked = false;
        // One turn at a time until nothing is ready; frames keep their order because only this loop reads them.
        while self.turn() {
            worked = true;
        }
        worked
    }

    fn turn(&self) -> bool {
        let mut worked = self.run_tasks();
        worked |= self.run_due_timers();
        for replica in self.replicas() {
            worked |= replica.pump();
        }
        worked | self.run_tasks()
    }

    fn run_tasks(&self) -> bool {
        let mut worked = false;
        loop {
            let Some(task) = self.0.tasks.borrow_mut().pop_front() else {
                return worked;
            };
            task();
            worked = true;
        }
    }

    fn run_due_timers(&self) -> bool {
        let now = self.0.options.clock.now_ms();
        let due = {
            let mut timers = self.0.timers.borrow_mut();
            timers.sort_by_key(|(at, n, _)| (*at, *n));
            let count = timers.iter().take_while(|(at, _, _)| *at <= now).count();
            timers.drain(..count).collect::<Vec<_>>()
        };
        let worked = !due.is_empty();
        for (_, _, task) in due {
            task();
        }
        worked
    }

    /// When [`StorageManager::pump`] has to be called even if no frame arrives, in milliseconds since 1970-01-01.
    pub fn next_deadline_ms(&self) -> Option<i64> {
        let timers = self.0.timers.borrow().iter().map(|(at, _, _)| *at).min();
        let connections = self.replicas().iter().filter_map(Replica::next_deadline_ms).min();
        timers.into_iter().chain(connections).min()
    }

    /// Runs `task` in the next turn of the pump, after what is queued already (a microtask).
    pub fn defer(&self, task: impl FnOnce() + 'static) {
        self.0.tasks.borrow_mut().push_back(Box::new(task));
    }

    /// Runs `task` when the clock has moved `ms` milliseconds.
    pub fn after_ms(&self, ms: i64, task: impl FnOnce() + 'static) {
        let at = self.0.options.clock.now_ms().saturating_add(ms);
        let n = self.0.next_timer.get();
        self.0.next_timer.set(n + 1);
        self.0.timers.borrow_mut().push((at, n, Box::new(task)));
    }

    /// Pumps and polls `future` until it is ready or nothing more can happen; `None` then. For tests and simple
    /// embedders whose peer lives on this thread.
    pub fn run_ready<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = Box::pin(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let worked = self.pump();
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Some(output);
            }
            if !worked {
                return None;
            }
        }
    }

    // --- notifications -------------------------------------------------------------------------------------------

    /// Subscribes until the answer is dropped.
    pub fn subscribe(&self, sink: Rc<dyn NotificationSink>) -> NotificationSubscription {
        let id = self.0.next_subscriber.get();
        self.0.next_subscriber.set(id + 1);
        self.0.subscribers.borrow_mut().push((id, sink));
        NotificationSubscription {
            manager: Rc::downgrade(&self.0),
            id,
        }
    }

    /// True when a notification would reach anybody.
    pub fn has_subscribers(&self) -> bool {
        !self.0.subscribers.borrow().is_empty()
    }

    /// RUN-70: subscribers run now, on this thread; one that panics does not stop the others.
    pub(crate) fn notify(&self, notification: &Notification) {
        let subscribers = self.0.subscribers.borrow().clone();
        for (_, sink) in subscribers {
            if catch_unwind(AssertUnwindSafe(|| sink.notify(notification))).is_err() {
                tracing::error!(space = %notification.space, kind = ?notification.kind, "notification subscriber panicked");
            }
        }
    }

    // --- barriers ------------------------------------------------------------------------------------------------

    /// RUN-64: all pulls and all durable commits, accept applications included, and tracked work.
    pub fn synced(&self) -> Promise<()> {
        let pulls = self.input_synced();
        let commits = self.pending_commits_settled();
        let tracked = Promise::all(std::mem::take(&mut *self.0.settle_pool.borrow_mut()));
        Promise::all([pulls, commits, tracked])
    }

    /// Pulls only: the serving loop must not wait for commits it has not issued yet.
    pub fn input_synced(&self) -> Promise<()> {
        Promise::all(self.replicas().iter().map(Replica::pulls_settled))
    }

    /// The durability barrier; a commit is in it before `commit()` returns.
    pub fn pending_commits_settled(&self) -> Promise<()> {
        let mut commits = self.0.commits.borrow_mut();
        commits.retain(|p| !p.is_settled());
        Promise::all(commits.clone())
    }

    pub(crate) fn track_commit(&self, commit: Promise<Result<(), CommitError>>) {
        let mut commits = self.0.commits.borrow_mut();
        commits.retain(|p| !p.is_settled());
        commits.push(commit);
    }

    /// Adds work that [`StorageManager::synced`] and `Cell::pull` wait for.
    pub fn track_until_settled(&self, work: Promise<()>) {
        let mut pool = self.0.settle_pool.borrow_mut();
        pool.retain(|p| !p.is_settled());
        pool.push(work);
    }

    /// Tracked work that is not settled yet.
    pub fn tracked(&self) -> Vec<Promise<()>> {
        let mut pool = self.0.settle_pool.borrow_mut();
        pool.retain(|p| !p.is_settled());
        pool.clone()
    }

    // --- end -----------------------------------------------------------------------------------------------------

    /// Ends every connection, settles what is outstanding, and invalidates the session id (RUN-10).
    pub fn close(&self) {
        if self.0.closed.replace(true) {
            return;
        }
        for replica in self.replicas() {
            replica.close();
        }
        self.0.replicas.borrow_mut().clear();
        *self.0.session_id.borrow_mut() = SessionId::from(self.0.options.mint.uuid());
        self.run_tasks();
    }

    /// True after [`StorageManager::close`].
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Makes a closed manager usable again, under the fresh session id.
    pub fn reopen(&self) {
        self.0.closed.set(false);
    }
}

/// A handle that does not keep the manager alive.
#[derive(Clone)]
pub(crate) struct WeakManager(Weak<ManagerState>);

impl WeakManager {
    pub(crate) fn upgrade(&self) -> Option<StorageManager> {
        self.0.upgrade().map(StorageManager)
    }
}
