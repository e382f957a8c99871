//! The runtime: storage, scheduler, patterns and pieces behind one handle (RUN-1, RUN-2, §11).
//!
//! Single-threaded and `!Send`. Work happens only while [`Runtime::step`], [`Runtime::idle`] or
//! [`Runtime::drive`] runs, so that the embedder stays in charge of the thread; I/O wakes it through the
//! [`WakeSignal`].

mod pacing;
mod waiting;

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

use memory_wire::{EntityId, EventId, Scope, SpaceId, Value};

use crate::address::Path;
use crate::cell::{Cell, CellHost, SinkFn, Subscription};
use crate::entity_derivation::entity_for;
use crate::error::RunnerError;
use crate::link::Link;
use crate::link_resolution::{LastNode, resolve};
use crate::overlay::Overlay;
use crate::pattern::{Pattern, PatternGraph, PatternIdentity, PatternRegistry, PieceLinks};
use crate::piece::{self, RunningPiece};
use crate::promise::Promise;
use crate::scheduler::{NodeKind, NodeSpec, Scheduler, SendOptions, Timing};
use crate::schema_read::View;
use crate::seal::{PieceLoader, PieceStart};
use crate::storage_manager::StorageManager;
use crate::transaction::{ReadMeta, RunKind, RunStamp, RunTx};

pub use waiting::{ExecutorTimer, Timer, WakeSignal};

/// What a runtime is for; immutable (RUN-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posture {
    /// Server execution is off: runs commit to the store.
    Standalone,
    /// Server execution is on and somebody else derives: runs are echoes in the overlay.
    Client,
    /// Holder of the lease: runs are sealed into waves.
    Serving,
}

/// How asking for a piece's graph ended (SS-1105).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StructureLoad {
    /// Its graph is registered.
    Started,
    /// The document and its parents name no pattern; the ids were answered by the store.
    NoPattern {
        /// Documents whose change may make it a piece.
        observed: Vec<EntityId>,
    },
    /// Not yet: something is still loading, or the pattern is not known here.
    Deferred(String),
}

/// A started piece.
#[derive(Clone, Debug)]
pub struct PieceHandle {
    /// Its root document.
    pub result: Link,
    /// Its pattern.
    pub identity: PatternIdentity,
}

/// What a runtime is made of.
pub struct RuntimeOptions {
    /// Posture.
    pub posture: Posture,
    /// Storage; its `wake` should be [`WakeSignal::wake`] of `signal`.
    pub storage: StorageManager,
    /// Raised by transports.
    pub signal: WakeSignal,
    /// Sleeps; [`ExecutorTimer`] outside tests.
    pub timer: Rc<dyn Timer>,
}

struct Inner {
    posture: Posture,
    storage: StorageManager,
    scheduler: Scheduler,
    signal: WakeSignal,
    timer: Rc<dyn Timer>,
    patterns: RefCell<PatternRegistry>,
    pieces: RefCell<Vec<RunningPiece>>,
    pulls: RefCell<Vec<PendingPull>>,
    overlay: Option<Overlay>,
}

struct PendingPull {
    cell: Cell,
    done: Promise<Result<View, RunnerError>>,
    _demand: Subscription,
}

/// A handle to a runtime; clones share it.
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("posture", &self.0.posture)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// A runtime over `options.storage`. A client gets its overlay here; a serving one has no destination until
    /// its host installs one.
    pub fn new(options: RuntimeOptions) -> Runtime {
        let scheduler = Scheduler::new(&options.storage, options.posture);
        let overlay = match options.posture {
            Posture::Client => Some(Overlay::install(&scheduler)),
            Posture::Standalone | Posture::Serving => None,
        };
        let runtime = Runtime(Rc::new(Inner {
            posture: options.posture,
            storage: options.storage,
            scheduler,
            signal: options.signal,
            timer: options.timer,
            patterns: RefCell::default(),
            pieces: RefCell::default(),
            pulls: RefCell::default(),
            overlay,
        }));
        runtime
            .0
            .scheduler
            .set_piece_loader(Rc::new(StoredPieces(Rc::downgrade(&runtime.0))));
        runtime
    }

    /// Its posture.
    pub fn posture(&self) -> Posture {
        self.0.posture
    }

    /// Its storage.
    pub fn storage(&self) -> &StorageManager {
        &self.0.storage
    }

    /// Its scheduler, with the hooks of a serving host.
    pub fn scheduler(&self) -> &Scheduler {
        &self.0.scheduler
    }

    /// The client's overlay.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.0.overlay.as_ref()
    }

    /// What its cells call back into.
    pub fn cell_host(&self) -> Rc<dyn CellHost> {
        Rc::new(self.clone())
    }

    // --- transactions and cells ------------------------------------------------------------------------------

    /// Opens a transaction that goes where this runtime's transactions go (RUN-2).
    pub fn edit(&self) -> RunTx {
        self.0.scheduler.edit()
    }

    /// Opens a transaction for piece setup and other housekeeping, stamped so that it may seal into a wave
    /// (RUN-602).
    pub fn bookkeeping(&self, action_id: &str) -> Result<RunTx, RunnerError> {
        let tx = self.edit();
        self.0
            .scheduler
            .stamper()
            .stamp(&tx, RunStamp::new(action_id, RunKind::Bookkeeping))?;
        Ok(tx)
    }

    /// Opens a read-only transaction.
    pub fn read_tx(&self) -> RunTx {
        RunTx::open_read_only(&self.0.storage)
    }

    /// A cell at a place.
    pub fn cell(&self, link: Link) -> Cell {
        Cell::new(self.cell_host(), link)
    }

    /// The cell that `cause` names in `space` (RUN-800).
    pub fn cell_for(&self, space: &SpaceId, cause: Value, schema: Option<Value>) -> Cell {
        let link = Link::to_document(space.clone(), entity_for(cause), Scope::Space);
        self.cell(link.with_schema(schema))
    }

    /// Sends an event to the stream at `stream`, following links to it.
    pub fn send(&self, stream: &Link, event: Value, options: SendOptions) -> Result<EventId, RunnerError> {
        self.send_in(None, stream, event, options)
    }

    fn send_in(
        &self,
        tx: Option<&RunTx>,
        stream: &Link,
        event: Value,
        options: SendOptions,
    ) -> Result<EventId, RunnerError> {
        let probe = match tx {
            Some(tx) => tx.clone(),
            None => self.read_tx(),
        };
        // Finding the stream is mechanics, not a dependency of the sender.
        let found =
            probe.with_read_marks(ReadMeta::UNTRACKED, || resolve(&probe, stream, LastNode::Value))?;
        let stream = Link {
            schema: None,
            redirect: false,
            ..found.link
        };
        self.0.scheduler.send(tx, &stream, event, options)
    }

    // --- patterns and pieces -----------------------------------------------------------------------------------

    /// Makes a pattern known, so that its pieces can be started from what they store.
    pub fn register_pattern(&self, pattern: &dyn Pattern) -> PatternIdentity {
        self.0.patterns.borrow_mut().add(pattern)
    }

    /// Sets a piece up at `result` in `tx` and starts its graph (RUN-824). A transaction that does not stand takes
    /// the graph away again.
    pub fn run(
        &self,
        tx: &RunTx,
        pattern: &dyn Pattern,
        argument: Value,
        result: &Link,
    ) -> Result<PieceHandle, RunnerError> {
        let identity = self.register_pattern(pattern);
        let graph = self.graph(&identity)?;
        let links = piece::setup(tx, &identity, &graph, Some(argument), result)?;
        let handle = self.start_graph(&identity, &graph, &links, &[], &Promise::ready(()))?;
        let (runtime, root) = (self.clone(), result.clone());
        tx.on_commit(move |_, outcome| {
            if outcome.is_err() {
                runtime.stop(&root);
            }
        });
        Ok(handle)
    }

    /// Starts the graph of a piece that is set up already; its documents are loaded first, and first runs wait
    /// for them at most two seconds (RUN-828).
    pub fn start(&self, identity: &PatternIdentity, result: &Link) -> Result<PieceHandle, RunnerError> {
        let graph = self.graph(identity)?;
        let links = piece::derived_links(&graph, result);
        let loaded = piece::load_documents(&self.0.storage, &links);
        self.start_graph(identity, &graph, &links, &[], &loaded)
    }

    /// Stops a piece: its graph goes, its data stays.
    pub fn stop(&self, result: &Link) {
        let stopped: Vec<RunningPiece> = {
            let mut pieces = self.0.pieces.borrow_mut();
            let (stop, keep) = pieces
                .drain(..)
                .partition(|piece| piece.result.same_place(result));
            *pieces = keep;
            stop
        };
        stopped.into_iter().for_each(|piece| piece.stop(self));
    }

    /// True when the piece's graph is registered.
    pub fn is_running(&self, result: &Link) -> bool {
        self.0
            .pieces
            .borrow()
            .iter()
            .any(|piece| piece.result.same_place(result))
    }

    fn graph(&self, identity: &PatternIdentity) -> Result<Rc<PatternGraph>, RunnerError> {
        self.0
            .patterns
            .borrow()
            .get(identity)
            .ok_or_else(|| RunnerError::InvalidValue {
                operation: "start piece",
                reason: format!("pattern {} is not registered here", identity.identity),
            })
    }

    fn start_graph(
        &self,
        identity: &PatternIdentity,
        graph: &PatternGraph,
        links: &PieceLinks,
        ancestors: &[EntityId],
        loaded: &Promise<()>,
    ) -> Result<PieceHandle, RunnerError> {
        let result = &links.result;
        let running = self
            .0
            .pieces
            .borrow()
            .iter()
            .any(|p| p.result.same_place(result) && p.identity == *identity);
        if !running {
            // Another pattern on the same root is a swap: the old graph goes (RUN-813).
            self.stop(result);
            let piece = piece::start(self, identity, graph, links, ancestors, loaded)?;
            self.0.pieces.borrow_mut().push(piece);
        }
        Ok(PieceHandle {
            result: result.clone(),
            identity: identity.clone(),
        })
    }

    /// Starts the piece that a document belongs to, from what the store holds (SS-1105): loads the document,
    /// follows `result` links, and starts the pattern found there.
    pub fn ensure_piece_running(&self, document: &Link) -> Promise<Result<StructureLoad, RunnerError>> {
        let answer = Promise::new();
        self.look_for_piece(document.clone(), 0, answer.clone());
        answer
    }

    fn look_for_piece(
        &self,
        document: Link,
        round: usize,
        answer: Promise<Result<StructureLoad, RunnerError>>,
    ) {
        /// Rounds of loading what the search met unloaded: one per document on the way, and one to confirm.
        const ROUNDS: usize = 12;
        let tx = self.read_tx();
        let found = piece::find_piece(&tx, &document);
        tx.abort("looked");
        let outcome = match found {
            Err(error) => Err(error),
            Ok(piece::PieceOf::Cyclic) => Ok(StructureLoad::NoPattern {
                observed: vec![document.id.clone()],
            }),
            Ok(piece::PieceOf::Found { root, identity }) => self.start_stored(&root, &identity),
            Ok(piece::PieceOf::Absent { unloaded }) if unloaded.is_empty() => Ok(StructureLoad::NoPattern {
                observed: vec![document.id.clone()],
            }),
            Ok(piece::PieceOf::Absent { .. }) if round == ROUNDS => Ok(StructureLoad::Deferred(format!(
                "documents of {} do not load",
                document.id
            ))),
            Ok(piece::PieceOf::Absent { unloaded }) => {
                let loads = unloaded.iter().map(|link| {
                    let whole = Link {
                        path: Path::new(),
                        schema: Some(Value::Bool(false)),
                        ..link.clone()
                    };
                    self.0.storage.load_link(&whole, None)
                });
                let loads: Vec<_> = loads.collect();
                let (runtime, outcomes) = (self.clone(), loads.clone());
                Promise::all(loads).then(move |()| {
                    match outcomes.iter().find_map(|load| load.peek().and_then(Result::err)) {
                        Some(error) => {
                            answer.settle(Err(error));
                        }
                        None => runtime.look_for_piece(document, round + 1, answer),
                    }
                });
                return;
            }
        };
        answer.settle(outcome);
    }

    /// Asks for a piece to be started anew, outside the run that noticed (RUN-813).
    pub(crate) fn swap_request(&self) -> Rc<dyn Fn(&Link)> {
        let inner = Rc::downgrade(&self.0);
        Rc::new(move |root: &Link| {
            let Some(runtime) = inner.upgrade().map(Runtime) else {
                return;
            };
            let (storage, root) = (runtime.0.storage.clone(), root.clone());
            storage.defer(move || {
                let started = runtime.ensure_piece_running(&root);
                runtime.0.scheduler.track_background(&started);
            });
        })
    }

    fn start_stored(&self, root: &Link, stored: &Value) -> Result<StructureLoad, RunnerError> {
        let known = self.0.patterns.borrow().stored(stored);
        match known {
            None => Ok(StructureLoad::Deferred(format!(
                "the pattern of {} is not known here",
                root.id
            ))),
            Some(identity) => self.start(&identity, root).map(|_| StructureLoad::Started),
        }
    }

    /// Ends the runtime: nothing runs any more. Storage stays open.
    pub fn dispose(&self) {
        self.0.pieces.borrow_mut().clear();
        self.0.scheduler.dispose();
        if let Some(overlay) = &self.0.overlay {
            overlay.dispose();
        }
        for pull in std::mem::take(&mut *self.0.pulls.borrow_mut()) {
            pull.done.settle(Err(RunnerError::Closed("runtime")));
        }
    }
}

/// Starts pieces from what the store holds of them.
struct StoredPieces(Weak<Inner>);

impl PieceLoader for StoredPieces {
    fn start_for(&self, stream: &Link) -> Promise<Result<PieceStart, RunnerError>> {
        let Some(runtime) = self.0.upgrade().map(Runtime) else {
            return Promise::ready(Err(RunnerError::Closed("runtime")));
        };
        let document = Link {
            path: Path::new(),
            ..stream.clone()
        };
        runtime
            .ensure_piece_running(&document)
            .map(|started| match started {
                Ok(StructureLoad::Started) => Ok(PieceStart::Running),
                Ok(StructureLoad::NoPattern { .. }) => Ok(PieceStart::NoPiece),
                Ok(StructureLoad::Deferred(why)) => Ok(PieceStart::NotYet(why.clone())),
                Err(error) => Err(error.clone()),
            })
    }
}

impl CellHost for Runtime {
    fn storage(&self) -> &StorageManager {
        &self.0.storage
    }

    fn read_tx(&self) -> RunTx {
        Runtime::read_tx(self)
    }

    fn edit(&self) -> RunTx {
        Runtime::edit(self)
    }

    fn sink(&self, cell: &Cell, f: SinkFn) -> Subscription {
        self.observe(cell, f, Timing::default())
    }

    fn pull(&self, cell: &Cell) -> Promise<Result<View, RunnerError>> {
        let done = Promise::new();
        let demand = self.observe(
            cell,
            Box::new(|_| None),
            Timing {
                no_debounce: true,
                ..Timing::default()
            },
        );
        self.0.pulls.borrow_mut().push(PendingPull {
            cell: cell.clone(),
            done: done.clone(),
            _demand: demand,
        });
        self.0.scheduler.queue_execution();
        done
    }

    fn send(&self, stream: &Cell, tx: Option<&RunTx>, event: Value) -> Result<EventId, RunnerError> {
        self.send_in(tx, stream.link(), event, SendOptions::default())
    }
}

impl Runtime {
    /// Registers an effect that reads `cell` and calls `f`; the previous call's cleanup runs first.
    fn observe(&self, cell: &Cell, f: SinkFn, timing: Timing) -> Subscription {
        let cell = cell.without_tx();
        let space = cell.link().space.clone();
        let address = cell.link().address();
        let state = RefCell::new((f, None::<crate::cell::Cleanup>));
        let action = move |tx: &RunTx| {
            let value = cell.with_tx(tx).get();
            let mut state = state.borrow_mut();
            let (f, cleanup) = &mut *state;
            if let Some(cleanup) = cleanup.take() {
                cleanup();
            }
            *cleanup = f(&value);
            Ok(())
        };
        let registered = self.0.scheduler.register(NodeSpec {
            action_id: "anon-sink".into(),
            kind: NodeKind::Effect,
            action: Rc::new(action),
            writes: Vec::new(),
            declared_reads: vec![address],
            materializes: Vec::new(),
            demand_roots: Vec::new(),
            space,
            timing,
        });
        let scheduler = self.0.scheduler.clone();
        match registered {
            Ok(id) => Subscription::new(move || scheduler.unregister(id)),
            // Only writing nodes are refused, and a sink declares no writes.
            Err(error) => {
                tracing::error!(%error, "sink refused");
                Subscription::new(|| {})
            }
        }
    }
}
