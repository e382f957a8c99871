//! A node of the graph: what it does, what it reads and writes, and where it stands (RUN-500…504). Nodes are
//! data; `graph` indexes them and `run` runs them.

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use memory_wire::{EntityId, SpaceId};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use crate::address::{Address, Path};
use crate::error::RunnerError;
use crate::keys::EntityKey;
use crate::scheduler::fan_out::FanOut;
use crate::scheduler::gates::Gate;
use crate::scheduler::trigger::{Depth, ReadLog};
use crate::transaction::RunTx;

/// Registration ordinal of a node; never reused, and the last word on order (RUN-533).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// What a node is for (RUN-500). Event handlers are not nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Demand-driven and idempotent; writes one output document.
    Computation,
    /// A demand root: sinks, pulls, eager built-ins. Once an effect, always an effect.
    Effect,
}

/// How a run ended without an ordinary result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunFailure {
    /// The run must leave nothing behind and is not an error: it waits for an input to arrive (RUN-59, RUN-548).
    /// Its reads are kept, so that arrival re-runs it.
    #[error("run withdrawn: {0}")]
    Withdrawn(String),
    /// The run failed in a way its action could not turn into an output.
    #[error(transparent)]
    Failed(#[from] RunnerError),
}

/// The code of a node. Runs synchronously, never awaits (RUN-1101).
pub trait Action {
    /// Runs once in `tx`, which is stamped and carries the run's identity.
    fn run(&self, tx: &RunTx) -> Result<(), RunFailure>;
}

impl<F: Fn(&RunTx) -> Result<(), RunFailure>> Action for F {
    fn run(&self, tx: &RunTx) -> Result<(), RunFailure> {
        self(tx)
    }
}

/// What registration fixes for good (RUN-502).
#[derive(Clone)]
pub struct NodeSpec {
    /// Durable id (RUN-604).
    pub action_id: SmolStr,
    /// Kind.
    pub kind: NodeKind,
    /// The code.
    pub action: Rc<dyn Action>,
    /// Write surface, by scope name; runs never widen it.
    pub writes: Vec<Address>,
    /// Reads known before the first run; they only order.
    pub declared_reads: Vec<Address>,
    /// Envelopes of wider side-writers: standing demand, run before readers that need them.
    pub materializes: Vec<Address>,
    /// Piece root plus every ancestor piece root that instantiated it (RUN-542).
    pub demand_roots: Vec<EntityId>,
    /// Home space of the node.
    pub space: SpaceId,
    /// Debounce and throttle.
    pub timing: Timing,
}

/// Requested gates of a node, in milliseconds (RUN-535).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Wait after each invalidation.
    pub debounce: Option<i64>,
    /// Least distance between runs.
    pub throttle: Option<i64>,
    /// Debounce the first run as well.
    pub debounce_first: bool,
    /// Never debounce, not even automatically (pulls).
    pub no_debounce: bool,
}

/// Where a node stands. Transitions: `NeverRan → Clean` by a run, `Clean ↔ Invalid` by changes and runs; only
/// the graph makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Registered, not run yet.
    NeverRan,
    /// Its last run saw the present values.
    Clean,
    /// Something it read changed.
    Invalid,
}

/// A registered node.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) spec: NodeSpec,
    /// The node whose run registered this one.
    pub(crate) parent: Option<NodeId>,
    pub(crate) children: BTreeSet<NodeId>,
    pub(crate) status: Status,
    /// Subscribed reads: of the last run, or the union over instances.
    pub(crate) reads: ReadLog,
    /// The same, by trigger key.
    pub(crate) triggers: FxHashMap<EntityKey, Vec<(Path, Depth)>>,
    /// Changes since the last run (RUN-513).
    pub(crate) causes: Vec<Address>,
    /// Nodes that write what this one reads.
    pub(crate) writers: BTreeSet<NodeId>,
    /// Nodes that read what this one writes.
    pub(crate) readers: BTreeSet<NodeId>,
    /// Live direct readers (RUN-520).
    pub(crate) live_refs: usize,
    /// Demanded by its registration during a run, or for one pass by an event's preflight.
    pub(crate) provisional: bool,
    /// Some entity it writes is demanded by the host (RUN-522).
    pub(crate) demanded: bool,
    /// Waiting for its space to sync before the first run (RUN-828).
    pub(crate) gate: Gate,
    /// Runs in the pass under way (RUN-534).
    pub(crate) runs_this_pass: u32,
    /// Failed commits in a row (RUN-544, I-18).
    pub(crate) retries: u32,
    /// Present once somebody with a principal demanded it (RUN-542).
    pub(crate) fan_out: Option<FanOut>,
}

impl Node {
    /// RUN-520.
    pub(crate) fn live(&self) -> bool {
        self.is_root() || self.live_refs > 0
    }

    /// Demanded by itself, without readers.
    pub(crate) fn is_root(&self) -> bool {
        self.spec.kind == NodeKind::Effect
            || !self.spec.materializes.is_empty()
            || self.provisional
            || self.demanded
    }

    /// Needs a run, whether or not anybody asks for one.
    pub(crate) fn stale(&self) -> bool {
        match self.status {
            Status::NeverRan | Status::Invalid => true,
            Status::Clean => false,
        }
    }

    /// Materializers run only when nothing else can (RUN-532).
    pub(crate) fn is_materializer(&self) -> bool {
        !self.spec.materializes.is_empty()
    }
}
