//! What a finished transaction hands to a replica or a seal destination (RUN-87, RUN-90, RUN-608), and the verdict
//! types of sealed commits (RUN-45, RUN-46).

use memory_wire::message::ClientCommit;
use memory_wire::patch::PatchOp;
use memory_wire::{EntityId, EventId, LocalSeq, Scope, ScopeIdentity, Seq, SpaceId, Value};

use crate::address::Path;
use crate::error::CommitError;
use crate::promise::Promise;

/// One document's write.
#[derive(Clone, Debug)]
pub enum NativeOp {
    /// The whole document.
    Set {
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: Scope,
        /// Root object.
        document: Value,
    },
    /// Patches against the document the commit's reads describe.
    Patch {
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: Scope,
        /// Operations in order.
        patches: Vec<PatchOp>,
    },
    /// The document goes away.
    Delete {
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: Scope,
    },
}

impl NativeOp {
    /// The document written.
    pub fn id(&self) -> &EntityId {
        match self {
            NativeOp::Set { id, .. } | NativeOp::Patch { id, .. } | NativeOp::Delete { id, .. } => id,
        }
    }

    /// Its scope name.
    pub fn scope(&self) -> Scope {
        match self {
            NativeOp::Set { scope, .. } | NativeOp::Patch { scope, .. } | NativeOp::Delete { scope, .. } => *scope,
        }
    }
}

/// One logged read, before the replica decides what it stands on (RUN-90).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRead {
    /// Document.
    pub id: EntityId,
    /// Scope name.
    pub scope: Scope,
    /// Document-rooted path.
    pub path: Path,
    /// A shape-only read.
    pub non_recursive: bool,
    /// Base on the stack without speculative layers (RUN-92).
    pub non_speculative: bool,
}

/// RUN-89.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// An earlier commit of this session must be stored.
    OriginCommitted {
        /// Its local sequence number.
        origin: LocalSeq,
    },
    /// The document must not exist.
    EntityAbsent {
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: Scope,
    },
    /// The document's `value` must hash to this; `None` = absent.
    EntityValueHash {
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: Scope,
        /// WIRE-405 text.
        value_hash: Option<String>,
    },
}

/// A declared stream append (RUN-78).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventAppend {
    /// Sidecar document.
    pub id: EntityId,
    /// Event.
    pub event_id: EventId,
}

/// Everything one space gets from one transaction.
#[derive(Clone, Debug, Default)]
pub struct NativeCommit {
    /// Writes in order, one per document.
    pub operations: Vec<NativeOp>,
    /// Read set, in journal order.
    pub reads: Vec<NativeRead>,
    /// Preconditions.
    pub preconditions: Vec<Precondition>,
    /// Declared appends.
    pub event_appends: Vec<EventAppend>,
}

impl NativeCommit {
    /// True when nothing would be sent for it (RUN-30 step 1).
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.preconditions.is_empty()
    }
}

/// The fate of a sealed commit (RUN-46).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealedVerdict {
    /// Applied in the co-hosted store at this seq; never parked.
    Committed {
        /// Sequence number.
        seq: Seq,
    },
    /// It will not be applied.
    Withdrawn {
        /// Why.
        message: String,
        /// Its effect is covered elsewhere: success-shaped, no cascade.
        superseded: bool,
    },
}

/// How to seal (RUN-47, RUN-48).
#[derive(Clone, Debug, Default)]
pub struct SealOptions {
    /// Process-local only: joins neither `synced()` nor the push order, and no commit may be based on it.
    pub speculative: bool,
    /// Identity that selects the instances; `None` = the manager's own.
    pub identity: Option<ScopeIdentity>,
}

/// Result of sealing into a replica (RUN-45).
#[derive(Clone, Debug)]
pub struct SealedCommit {
    /// Space it belongs to.
    pub space: SpaceId,
    /// The layer's number.
    pub local_seq: LocalSeq,
    /// The commit as it would have been sent; `commit.reads` is what wave and overlay compute basis and floors from.
    pub commit: ClientCommit,
    /// Settles when the layer is confirmed or gone.
    pub settled: Promise<Result<(), CommitError>>,
}
