//! The scheduler: what runs, for whom, in what order, and when it is quiet (RUN-500…580).
//!
//! One scheduler per runtime, single-threaded. Storage tells it what changed; it decides what that invalidates,
//! runs demanded work in passes, and delivers events between them. Work happens only inside [`Scheduler::step`],
//! so that a host stays in charge of the thread.
//!
//! | room | holds |
//! | --- | --- |
//! | `node`, `graph`, `order` | nodes, their indices and liveness, and the order they run in |
//! | `trigger`, `fan_out`, `gates` | pure rules: what a change concerns, which instances run, when a node may |
//! | `settle`, `run` | the pass, and one run of one action |
//! | `events`, `dispatch`, `emission` | the event queue, its deliveries, and events sent by runs |
//! | `demand` | hooks of a serving host |
//! | `snapshot` | the graph as diagnostics see it |

mod demand;
mod dispatch;
mod emission;
pub(crate) mod events;
pub mod fan_out;
mod gates;
pub(crate) mod graph;
pub mod node;
mod order;
mod run;
mod settle;
mod snapshot;
#[cfg(test)]
mod tests;
pub mod trigger;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::{Rc, Weak};

use memory_wire::{EntityId, EventId, Scope, ScopeIdentity, ScopeKey, SpaceId};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

pub use emission::{ClientFire, SendOptions, caller_event_id};
pub use events::{
    EventDelivery, EventHandler, EventOutcome, OutcomeCallback, QueuedEvent, ServedFailure, ServedRecord,
    retry_delay_ms,
};
pub use node::{Action, NodeId, NodeKind, NodeSpec, RunFailure, Status, Timing};
pub(crate) use run::panic_text;
pub use snapshot::{GraphSnapshot, NodeSnapshot};

use crate::address::Path;
use crate::ambient::Clock;
use crate::error::RunnerError;
use crate::link::Link;
use crate::promise::Promise;
use crate::replica::{Notification, NotificationKind, NotificationSink};
use crate::runtime::Posture;
use crate::scheduler::events::EventQueue;
use crate::scheduler::graph::Graph;
use crate::scheduler::settle::Pass;
use crate::seal::{NoSupply, OwedInstances, PieceLoader, PlainStamper, RunStamper, RunSupply};
use crate::storage_manager::{NotificationSubscription, StorageManager};
use crate::transaction::{RunKind, RunTx, SealDestination, SourceAction};

/// Runs kept in the run trace (RUN-562).
const RUN_TRACE: usize = 2_000;

/// What one call of [`Scheduler::step`] ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The slice is used up and there is more to do: yield to the executor, then step again (RUN-536).
    Yielded,
    /// Nothing can run now. `wake_at` is the nearest instant at which a gate opens, in clock milliseconds.
    Quiet {
        /// When to step again unless something arrives earlier.
        wake_at: Option<i64>,
    },
}

/// One run, as the trace remembers it: which work ran, for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRecord {
    /// Durable id of the action or handler.
    pub action_id: SmolStr,
    /// Kind of run.
    pub kind: RunKind,
    /// Instance key of a fanned-out run, as stamped.
    pub instance: Option<ScopeKey>,
    /// Identity that scopes resolved with; `None` = the runtime's own.
    pub identity: Option<ScopeIdentity>,
    /// Event delivered, for handlers.
    pub event_id: Option<EventId>,
}

/// Receives errors of runs that have no other place to go (a throwing derivation, a withdrawn retry).
pub type ErrorObserver = Rc<dyn Fn(&str, &RunnerError)>;

/// The parts a host or runtime installs; see the traits.
struct Host {
    destination: Option<Rc<dyn SealDestination>>,
    stamper: Rc<dyn RunStamper>,
    supply: Rc<dyn RunSupply>,
    loader: Option<Rc<dyn PieceLoader>>,
    yield_observer: Option<Rc<dyn Fn()>>,
    owed: Option<Rc<dyn OwedInstances>>,
    client_fire: Option<Rc<dyn Fn(ClientFire)>>,
    errors: ErrorObserver,
}

struct Handler {
    code: Rc<dyn EventHandler>,
    serial: u64,
}

/// A stream by place: full link equality, lens and stamps aside (RUN-201, RUN-553).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StreamKey {
    space: SpaceId,
    id: EntityId,
    scope: Scope,
    path: Path,
}

impl StreamKey {
    fn of(stream: &Link) -> StreamKey {
        StreamKey {
            space: stream.space.clone(),
            id: stream.id.clone(),
            scope: stream.scope,
            path: stream.path.clone(),
        }
    }
}

struct State {
    graph: Graph,
    handlers: FxHashMap<StreamKey, Handler>,
    next_handler: u64,
    queue: EventQueue,
    pass: Option<Pass>,
    /// An execution tick is queued: the next step starts a pass (RUN-531).
    tick: bool,
    /// The node whose action runs now; nodes registered meanwhile are its children.
    running: Option<NodeId>,
    /// True while an action or handler body is on the stack.
    executing: bool,
    /// Piece starts and other background work `idle()` waits for.
    background: usize,
    /// Passes this episode that ended with convergence backoff (RUN-560).
    held_passes: u32,
    trace: VecDeque<RunRecord>,
    disposed: bool,
}

struct Shared {
    storage: StorageManager,
    posture: Posture,
    clock: Rc<dyn Clock>,
    state: RefCell<State>,
    host: RefCell<Host>,
    bell: RefCell<Promise<()>>,
    subscription: RefCell<Option<NotificationSubscription>>,
}

/// Handle to the scheduler of one runtime; clones share it.
#[derive(Clone)]
pub struct Scheduler(Rc<Shared>);

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.borrow();
        f.debug_struct("Scheduler")
            .field("posture", &self.0.posture)
            .field("nodes", &state.graph.nodes().count())
            .field("queued_events", &state.queue.iter().count())
            .finish_non_exhaustive()
    }
}

/// Subscribes a scheduler to storage without keeping it alive.
struct Listener(Weak<Shared>);

impl NotificationSink for Listener {
    fn notify(&self, notification: &Notification) {
        if let Some(shared) = self.0.upgrade() {
            Scheduler(shared).notified(notification);
        }
    }
}

impl Scheduler {
    /// A scheduler over `storage`, subscribed to its notifications.
    pub fn new(storage: &StorageManager, posture: Posture) -> Scheduler {
        let scheduler = Scheduler(Rc::new(Shared {
            storage: storage.clone(),
            posture,
            clock: Rc::clone(storage.clock()),
            subscription: RefCell::new(None),
            state: RefCell::new(State {
                graph: Graph::new(storage.identity()),
                handlers: FxHashMap::default(),
                next_handler: 0,
                queue: EventQueue::default(),
                pass: None,
                tick: false,
                running: None,
                executing: false,
                background: 0,
                held_passes: 0,
                trace: VecDeque::new(),
                disposed: false,
            }),
            host: RefCell::new(Host {
                destination: None,
                stamper: Rc::new(PlainStamper),
                supply: Rc::new(NoSupply),
                loader: None,
                yield_observer: None,
                owed: None,
                client_fire: None,
                errors: Rc::new(|action, error| tracing::warn!(action, %error, "run failed")),
            }),
            bell: RefCell::new(Promise::new()),
        }));
        let listening = storage.subscribe(Rc::new(Listener(Rc::downgrade(&scheduler.0))));
        *scheduler.0.subscription.borrow_mut() = Some(listening);
        scheduler
    }

    // --- installation --------------------------------------------------------------------------------------

    /// Installs where runs seal to, who stamps them and who demands them, all or none (SS-400 step 12).
    pub fn install_seal_destination(
        &self,
        destination: Rc<dyn SealDestination>,
        stamper: Rc<dyn RunStamper>,
        supply: Rc<dyn RunSupply>,
    ) {
        let mut host = self.0.host.borrow_mut();
        host.destination = Some(destination);
        host.stamper = stamper;
        host.supply = supply;
    }

    /// Installs a destination without a host: the client's overlay.
    pub(crate) fn divert_to(&self, destination: Rc<dyn SealDestination>) {
        self.0.host.borrow_mut().destination = Some(destination);
    }

    /// Takes the destination away again; transactions opened from now on commit to the store.
    pub fn clear_seal_destination(&self) {
        let mut host = self.0.host.borrow_mut();
        host.destination = None;
        host.stamper = Rc::new(PlainStamper);
        host.supply = Rc::new(NoSupply);
    }

    /// Who starts pieces for events without a handler.
    pub fn set_piece_loader(&self, loader: Rc<dyn PieceLoader>) {
        self.0.host.borrow_mut().loader = Some(loader);
    }

    /// Who knows which absent instances the loop owes (RUN-59).
    pub fn set_owed_instances(&self, owed: Rc<dyn OwedInstances>) {
        self.0.host.borrow_mut().owed = Some(owed);
    }

    pub(crate) fn owed_instances(&self) -> Option<Rc<dyn OwedInstances>> {
        self.0.host.borrow().owed.clone()
    }

    /// What fires a client's events (RUN-701).
    pub(crate) fn set_client_fire(&self, fire: Rc<dyn Fn(ClientFire)>) {
        self.0.host.borrow_mut().client_fire = Some(fire);
    }

    /// Where errors of bodies go.
    pub(crate) fn error_observer(&self) -> ErrorObserver {
        let shared = Rc::downgrade(&self.0);
        Rc::new(move |action, error| {
            if let Some(scheduler) = shared.upgrade().map(Scheduler) {
                scheduler.report(action, error);
            }
        })
    }

    /// True after [`Scheduler::dispose`].
    pub fn is_disposed(&self) -> bool {
        self.0.state.borrow().disposed
    }

    /// Where errors of runs go; the default logs them.
    pub fn set_error_observer(&self, observer: ErrorObserver) {
        self.0.host.borrow_mut().errors = observer;
    }

    /// The posture.
    pub fn posture(&self) -> Posture {
        self.0.posture
    }

    /// The storage it runs over.
    pub fn storage(&self) -> &StorageManager {
        &self.0.storage
    }

    /// The clock it judges by.
    pub fn clock(&self) -> &Rc<dyn Clock> {
        &self.0.clock
    }

    /// Opens a transaction that goes where this runtime's transactions go (RUN-2, RUN-600).
    pub fn edit(&self) -> RunTx {
        let tx = RunTx::open(&self.0.storage);
        if let Some(destination) = &self.0.host.borrow().destination {
            tx.set_destination(Rc::clone(destination));
        }
        tx
    }

    /// The installed destination.
    pub fn destination(&self) -> Option<Rc<dyn SealDestination>> {
        self.0.host.borrow().destination.clone()
    }

    /// The installed stamper.
    pub fn stamper(&self) -> Rc<dyn RunStamper> {
        Rc::clone(&self.0.host.borrow().stamper)
    }

    // --- nodes and handlers -----------------------------------------------------------------------------------

    /// Registers a node (RUN-503). Registered while an action runs, it becomes that action's child and is run
    /// in the same pass.
    pub fn register(&self, spec: NodeSpec) -> Result<NodeId, RunnerError> {
        if self.0.posture == Posture::Serving
            && spec.action_id.starts_with("anon-")
            && !spec.writes.is_empty()
        {
            return Err(RunnerError::InvalidValue {
                operation: "register",
                reason: format!("action {} writes and has no durable id (RUN-604)", spec.action_id),
            });
        }
        let (id, live) = {
            let mut state = self.0.state.borrow_mut();
            let parent = state.running;
            let id = state.graph.register(spec, parent);
            (id, state.graph.node(id).is_some_and(|node| node.live()))
        };
        if live {
            self.queue_execution();
        }
        Ok(id)
    }

    /// Holds a node's first run until `synced` settles or two seconds passed (RUN-828).
    pub fn hold_first_run(&self, id: NodeId, synced: Promise<()>) {
        if synced.is_settled() {
            return;
        }
        let until = self.0.clock.now_ms() + gates::INITIAL_SYNC_HOLD_MS;
        if let Some(node) = self.0.state.borrow_mut().graph.node_mut(id) {
            node.gate.hold(until);
        }
        let shared = Rc::downgrade(&self.0);
        synced.then(move |()| {
            let Some(scheduler) = shared.upgrade().map(Scheduler) else {
                return;
            };
            if let Some(node) = scheduler.0.state.borrow_mut().graph.node_mut(id) {
                node.gate.release_hold();
            }
            scheduler.queue_execution();
        });
    }

    /// Drops a node and, with it, the nodes its runs registered (RUN-504).
    pub fn unregister(&self, id: NodeId) {
        let mut doomed = vec![id];
        let mut removed = Vec::new();
        while let Some(id) = doomed.pop() {
            if let Some(node) = self.0.state.borrow_mut().graph.unregister(id) {
                doomed.extend(node.children.iter().copied());
                removed.push(node);
            }
        }
    }

    /// Registers the handler of a stream; at most one per stream, a second replaces the first (RUN-553).
    pub fn register_handler(&self, stream: Link, code: Rc<dyn EventHandler>) -> HandlerId {
        let key = StreamKey::of(&stream);
        let (serial, replaced) = {
            let mut state = self.0.state.borrow_mut();
            let serial = state.next_handler;
            state.next_handler += 1;
            (
                serial,
                state.handlers.insert(key.clone(), Handler { code, serial }),
            )
        };
        if replaced.is_some() {
            tracing::warn!(stream = %stream.id, "a second handler replaces the first of this stream");
        }
        self.queue_execution();
        HandlerId { stream: key, serial }
    }

    /// Drops a handler registration, unless a later one replaced it.
    pub fn unregister_handler(&self, id: HandlerId) {
        let mut state = self.0.state.borrow_mut();
        let present = state
            .handlers
            .get(&id.stream)
            .is_some_and(|handler| handler.serial == id.serial);
        let removed = if present {
            state.handlers.remove(&id.stream)
        } else {
            None
        };
        drop(state);
        drop(removed);
    }

    fn handler_of(&self, stream: &Link) -> Option<Rc<dyn EventHandler>> {
        let state = self.0.state.borrow();
        state
            .handlers
            .get(&StreamKey::of(stream))
            .map(|handler| Rc::clone(&handler.code))
    }

    // --- change -> invalid -----------------------------------------------------------------------------------

    /// RUN-510: the one channel by which storage reaches the graph.
    fn notified(&self, notification: &Notification) {
        let source = match notification.kind {
            // RUN-512: only these two suppress the run that made the change.
            NotificationKind::Commit | NotificationKind::Integrate => notification
                .source
                .as_ref()
                .and_then(RunTx::source_action)
                .map(|SourceAction(ordinal)| NodeId(ordinal)),
            NotificationKind::Revert
            | NotificationKind::Load
            | NotificationKind::Pull
            | NotificationKind::Reset => None,
        };
        let now = self.0.clock.now_ms();
        let mut work = false;
        {
            let mut state = self.0.state.borrow_mut();
            for change in &notification.changes {
                let (before, after) = (change.before.as_ref(), change.after.as_ref());
                for id in state.graph.changed(&change.address, before, after, source) {
                    if let Some(node) = state.graph.node_mut(id) {
                        node.gate.invalidated(node.spec.kind, &node.spec.timing, now);
                        work |= node.live();
                    }
                }
            }
            work |= !state.queue.is_empty();
        }
        if work {
            self.queue_execution();
        }
    }

    // --- pacing ------------------------------------------------------------------------------------------------

    /// Asks for a pass; calls coalesce (RUN-531).
    pub fn queue_execution(&self) {
        self.0.state.borrow_mut().tick = true;
        self.ring();
    }

    /// Wakes whoever waits for something to do.
    pub(crate) fn ring(&self) {
        let rung = self.0.bell.replace(Promise::new());
        rung.settle(());
    }

    /// Settles at the next wake-up: work queued, a load settled, a commit verdict.
    pub fn bell(&self) -> Promise<()> {
        self.0.bell.borrow().clone()
    }

    /// Counts background work that `idle()` waits for, until `done` settles.
    pub fn track_background<T: Clone + 'static>(&self, done: &Promise<T>) {
        if done.is_settled() {
            return;
        }
        self.0.state.borrow_mut().background += 1;
        let shared = Rc::downgrade(&self.0);
        done.then(move |_| {
            if let Some(scheduler) = shared.upgrade().map(Scheduler) {
                scheduler.0.state.borrow_mut().background -= 1;
                scheduler.ring();
            }
        });
    }

    /// Stops for good: nothing runs any more, queued events are told so.
    pub fn dispose(&self) {
        // Actions and handlers hold the runtime they belong to; they are dropped when nothing is borrowed.
        let (dropped, graph, handlers) = {
            let mut state = self.0.state.borrow_mut();
            state.disposed = true;
            state.pass = None;
            state.tick = false;
            let graph = std::mem::replace(&mut state.graph, Graph::new(self.0.storage.identity()));
            (
                state.queue.remove_where(|_| true),
                graph,
                std::mem::take(&mut state.handlers),
            )
        };
        drop((graph, handlers));
        *self.0.subscription.borrow_mut() = None;
        for queued in dropped {
            self.finish_event(
                queued,
                Err(crate::error::CommitError::aborted("runtime disposed")),
            );
        }
        self.ring();
    }

    // --- traces --------------------------------------------------------------------------------------------------

    /// The runs so far, oldest first, at most the last 2 000.
    pub fn run_trace(&self) -> Vec<RunRecord> {
        self.0.state.borrow().trace.iter().cloned().collect()
    }

    /// Empties the run trace.
    pub fn clear_run_trace(&self) {
        self.0.state.borrow_mut().trace.clear();
    }

    fn record_run(&self, record: RunRecord) {
        let mut state = self.0.state.borrow_mut();
        if state.trace.len() == RUN_TRACE {
            state.trace.pop_front();
        }
        state.trace.push_back(record);
    }

    fn report(&self, action: &str, error: &RunnerError) {
        let observer = Rc::clone(&self.0.host.borrow().errors);
        observer(action, error);
    }
}

/// A handler registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerId {
    stream: StreamKey,
    serial: u64,
}
