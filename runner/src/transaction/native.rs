//! What a finished transaction hands to a replica or a seal destination (RUN-87, RUN-90, RUN-608), and the verdict
//! types of sealed commits (RUN-45, RUN-46).

use memory_wire::message::{ClientCommit, EventAppendDecl, Operation, Precondition};
use memory_wire::{EntityId, LocalSeq, Scope, ScopeIdentity, Seq, SpaceId};

use crate::address::Path;
use crate::error::CommitError;
use crate::promise::Promise;

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

/// Everything one space gets from one transaction.
#[derive(Clone, Debug, Default)]
pub struct NativeCommit {
    /// Writes in order, one per document.
    pub operations: Vec<Operation>,
    /// Read set, in journal order.
    pub reads: Vec<NativeRead>,
    /// Preconditions.
    pub preconditions: Vec<Precondition>,
    /// Declared appends.
    pub event_appends: Vec<EventAppendDecl>,
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
