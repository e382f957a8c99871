//! The crate's errors, and the normalised commit errors every classifier keys on (RUN-39).

use std::fmt;

use memory_wire::{EntityId, Seq, SpaceId};

use crate::promise::Promise;

/// What can go wrong outside a commit's verdict.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunnerError {
    /// A commit was refused; see the name.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The transaction is already committed, sealed or aborted.
    #[error("transaction {tx} is {state}; {action} needs an open one")]
    TransactionClosed {
        /// Which.
        tx: String,
        /// `committed`, `sealed` or `aborted`.
        state: &'static str,
        /// What was tried.
        action: &'static str,
    },
    /// RUN-84: a second space was written without saying so first.
    #[error(
        "StorageTransactionWriteIsolationError: transaction writes {open} and may not also write {requested}"
    )]
    WriteIsolation {
        /// Space already claimed.
        open: SpaceId,
        /// Space asked for.
        requested: SpaceId,
    },
    /// RUN-221.
    #[error("ReadOnlyAddressError: {id} carries its content and cannot be written")]
    ReadOnlyAddress {
        /// The inline id, shortened.
        id: String,
    },
    /// RUN-81: the identity of a transaction is set once, before the first document.
    #[error("scope identity of transaction {tx} {reason}")]
    ScopeIdentityFixed {
        /// Which.
        tx: String,
        /// What stood in the way.
        reason: &'static str,
    },
    /// A scope cannot be resolved with the identity at hand (RUN-574).
    #[error("{0}")]
    UnresolvableScope(String),
    /// RUN-211.
    #[error("link cycle at {at}: {reason}")]
    LinkCycle {
        /// Place where the walk gave up.
        at: String,
        /// How the walk came round.
        reason: String,
    },
    /// RUN-216.
    #[error("UnresolvedInput: {at} leads to a document that is not here yet")]
    UnresolvedInput {
        /// The place.
        at: String,
    },
    /// RUN-227, TRV-1230: a required property cannot be produced.
    #[error("SchemaMismatchError: {at}: {reason}")]
    SchemaMismatch {
        /// The place.
        at: String,
        /// Why.
        reason: String,
    },
    /// A write or read through a path that a leaf blocks, or an index that is none.
    #[error("{at}: {reason}")]
    BadPath {
        /// The place.
        at: String,
        /// Why.
        reason: String,
    },
    /// RUN-59.
    #[error("foreign scoped read refused on the serving path: {scope} instance of {id} in {space}")]
    ForeignScopedRead {
        /// Foreign space.
        space: SpaceId,
        /// Document.
        id: EntityId,
        /// Scope name.
        scope: &'static str,
    },
    /// A load failed; the message is the server's.
    #[error("load in {space} failed: {name}: {message}")]
    Load {
        /// Space.
        space: SpaceId,
        /// Wire error name.
        name: String,
        /// Its message.
        message: String,
    },
    /// The manager or transport is closed.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// A value that the operation cannot take.
    #[error("{operation}: {reason}")]
    InvalidValue {
        /// Operation.
        operation: &'static str,
        /// What came and what was expected.
        reason: String,
    },
    /// A body refuses what it was asked, in words for the person who asked. For a handler this is the event's
    /// consequence (SS-817).
    #[error("{reason}")]
    Refused {
        /// Why, as a sentence.
        reason: String,
    },
    /// RUN-1102: a body panicked; the run fails, the runtime goes on.
    #[error("{action} panicked: {message}")]
    Panicked {
        /// Action or handler.
        action: String,
        /// Panic message.
        message: String,
    },
    /// The walk over a schema failed as a whole.
    #[error("read failed: {0}")]
    Traverse(String),
}

/// RUN-39: names of commit errors. Unknown names become [`CommitErrorName::Transaction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitErrorName {
    /// `ConflictError`: stale basis.
    Conflict,
    /// `PreconditionFailedError`: permanent.
    PreconditionFailed,
    /// `RowLabelCommitError`: terminal.
    RowLabel,
    /// `ProtocolError`.
    Protocol,
    /// `AuthorizationError`.
    Authorization,
    /// `SessionError`.
    Session,
    /// `InvalidMessageError`.
    InvalidMessage,
    /// `ConnectionError`.
    Connection,
    /// `StorageTransactionInconsistent`: a document changed under the transaction.
    Inconsistent,
    /// `StorageTransactionAborted`: our own abort.
    Aborted,
    /// `EventAppendDuplicateError`: the append is already delivered.
    EventAppendDuplicate,
    /// `SpeculativeBasisError`: built on a layer that only this process knows.
    SpeculativeBasis,
    /// `CommitConvergenceError`: retried until the window closed.
    Convergence,
    /// `TransactionError`: everything else.
    Transaction,
}

impl CommitErrorName {
    /// The text classifiers key on.
    pub fn as_str(self) -> &'static str {
        match self {
            CommitErrorName::Conflict => "ConflictError",
            CommitErrorName::PreconditionFailed => "PreconditionFailedError",
            CommitErrorName::RowLabel => "RowLabelCommitError",
            CommitErrorName::Protocol => "ProtocolError",
            CommitErrorName::Authorization => "AuthorizationError",
            CommitErrorName::Session => "SessionError",
            CommitErrorName::InvalidMessage => "InvalidMessageError",
            CommitErrorName::Connection => "ConnectionError",
            CommitErrorName::Inconsistent => "StorageTransactionInconsistent",
            CommitErrorName::Aborted => "StorageTransactionAborted",
            CommitErrorName::EventAppendDuplicate => "EventAppendDuplicateError",
            CommitErrorName::SpeculativeBasis => "SpeculativeBasisError",
            CommitErrorName::Convergence => "CommitConvergenceError",
            CommitErrorName::Transaction => "TransactionError",
        }
    }

    /// The name a wire error carries after normalisation.
    pub fn from_text(name: &str) -> CommitErrorName {
        match name {
            "ConflictError" => CommitErrorName::Conflict,
            "PreconditionFailedError" => CommitErrorName::PreconditionFailed,
            "RowLabelCommitError" => CommitErrorName::RowLabel,
            "ProtocolError" => CommitErrorName::Protocol,
            "AuthorizationError" => CommitErrorName::Authorization,
            "SessionError" | "SessionRevokedError" => CommitErrorName::Session,
            "InvalidMessageError" => CommitErrorName::InvalidMessage,
            "ConnectionError" => CommitErrorName::Connection,
            "StorageTransactionInconsistent" => CommitErrorName::Inconsistent,
            "StorageTransactionAborted" => CommitErrorName::Aborted,
            "EventAppendDuplicateError" => CommitErrorName::EventAppendDuplicate,
            "SpeculativeBasisError" => CommitErrorName::SpeculativeBasis,
            "CommitConvergenceError" => CommitErrorName::Convergence,
            _ => CommitErrorName::Transaction,
        }
    }
}

/// Why a commit did not stand.
#[derive(Clone, Debug)]
pub struct CommitError {
    /// Normalised name.
    pub name: CommitErrorName,
    /// Message, contractual for two conflict texts (WIRE-766).
    pub message: String,
    /// Conflicted document, parsed from the message; `None` = unknown (`of:unknown` must not be pulled).
    pub entity: Option<EntityId>,
    /// Failed precondition, for `PreconditionFailedError`.
    pub precondition: Option<String>,
    /// Head of the space at the refusal.
    pub retry_after_seq: Option<Seq>,
    /// `AuthorizationError` only: a fresh connection may succeed.
    pub retriable: bool,
    /// `readyToRetry`: settles when a retry would see what it collided with.
    pub gate: Option<Promise<()>>,
}

impl CommitError {
    /// An error with only name and message.
    pub fn new(name: CommitErrorName, message: impl Into<String>) -> CommitError {
        CommitError {
            name,
            message: message.into(),
            entity: None,
            precondition: None,
            retry_after_seq: None,
            retriable: false,
            gate: None,
        }
    }

    /// A conflict made locally, ready to be retried at once (RUN-37).
    pub fn local_conflict(message: impl Into<String>) -> CommitError {
        CommitError {
            gate: Some(Promise::ready(())),
            ..CommitError::new(CommitErrorName::Conflict, message)
        }
    }

    /// Our own abort.
    pub fn aborted(reason: impl Into<String>) -> CommitError {
        CommitError::new(CommitErrorName::Aborted, reason)
    }

    /// RUN-39: classifies by name, then by the two contractual message texts.
    pub fn normalised(name: &str, message: String) -> CommitError {
        let mut error = CommitError::new(CommitErrorName::from_text(name), message);
        if error.name == CommitErrorName::Transaction
            && (error.message.contains("stale confirmed read")
                || error.message.contains("pending dependency"))
        {
            error.name = CommitErrorName::Conflict;
        }
        if error.name == CommitErrorName::Conflict {
            error.entity = conflicted_entity(&error.message);
        }
        error
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name.as_str(), self.message)
    }
}

impl std::error::Error for CommitError {}

/// The id in `stale confirmed read: <id> at seq`; ids hold no space (WIRE-766).
fn conflicted_entity(message: &str) -> Option<EntityId> {
    let rest = message.split_once("stale confirmed read: ")?.1;
    let (id, tail) = rest.split_once(' ')?;
    (tail.starts_with("at seq") && !id.is_empty()).then(|| EntityId::from(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_39_two_texts_mean_conflict() {
        let e = CommitError::normalised(
            "Weird",
            "stale confirmed read: of:a at seq 3 conflicted with seq 9".into(),
        );
        assert_eq!(e.name, CommitErrorName::Conflict);
        assert_eq!(e.entity, Some(EntityId::from("of:a")));
        let e = CommitError::normalised("TransactionError", "pending dependency not resolved: 4".into());
        assert_eq!((e.name, e.entity), (CommitErrorName::Conflict, None));
        let e = CommitError::normalised("Weird", "boom".into());
        assert_eq!(e.name, CommitErrorName::Transaction);
    }
}
