//! The one error of this crate. Every variant names the field, what came and what was expected.

use std::fmt;
use std::path::PathBuf;

use crate::column::Column;
use crate::id::{ApplicationId, BlobId, ContextId, OpId, ScopeId};

/// Why bytes are not the record they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) String);

impl Malformed {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Malformed(reason.into())
    }
}

impl From<std::io::Error> for Malformed {
    fn from(error: std::io::Error) -> Self {
        Malformed(error.to_string())
    }
}

/// Bytes shown as lower-case hex.
#[derive(Clone, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn names(columns: &[Column]) -> String {
    columns
        .iter()
        .map(|column| column.name())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A write or read names columns that the opened store does not have (NODE-5).
    #[error("the store has no column {}; nothing was written", names(columns))]
    UnknownColumns {
        /// Every column that is missing, in the order asked for.
        columns: Vec<Column>,
    },
    /// A row is there but its value is not a record of its family (NODE-7).
    #[error("{column}: the value ({length} bytes) at key {key} is no {family}: {cause}")]
    UndecodableValue {
        /// The row's column.
        column: Column,
        /// The family that the key belongs to.
        family: &'static str,
        /// The row's whole key.
        key: Hex,
        /// Length of the value found, bytes.
        length: usize,
        /// What the decoder met.
        cause: Malformed,
    },
    /// Bytes are not a key of the family.
    #[error("{column}: {key} ({} bytes) is no {family} key: {cause}", key.0.len())]
    MalformedKey {
        /// The column looked in.
        column: Column,
        /// The family expected.
        family: &'static str,
        /// The bytes found.
        key: Hex,
        /// What differs.
        cause: Malformed,
    },
    /// A row belongs to no family of its column.
    #[error("{column}: no family holds the key {key}")]
    UnknownRow {
        /// The row's column.
        column: Column,
        /// The row's whole key.
        key: Hex,
    },
    /// A value that its family does not allow; found before anything is written (NODE-4).
    #[error("{family}: the value cannot be written: {cause}")]
    UnencodableValue {
        /// The family of the row.
        family: &'static str,
        /// The limit that the value breaks.
        cause: Malformed,
    },
    /// Bytes that are no row of their own (an op, an action list, a bundle) do not decode.
    #[error("{what}: {cause}")]
    Malformed {
        /// The kind of record.
        what: &'static str,
        /// What the decoder met.
        cause: Malformed,
    },
    /// The backend could not do what was asked.
    #[error("{backend}: {operation}: {cause}")]
    Backend {
        /// Which backend.
        backend: &'static str,
        /// What was being done.
        operation: &'static str,
        /// The backend's own error.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The device or the configured size limit is full; nothing of the write was kept.
    #[error("{backend}: {operation}: no room left; nothing was written")]
    Full {
        /// Which backend.
        backend: &'static str,
        /// What was being done.
        operation: &'static str,
    },
    /// The store is opened for reading only.
    #[error("{operation}: the store is opened read-only")]
    ReadOnly {
        /// What was asked.
        operation: &'static str,
    },
    /// Another process has the store open for writing.
    #[error("{}: another process has this store open", path.display())]
    Locked {
        /// The store's path.
        path: PathBuf,
    },
    /// The file or directory is not a node store.
    #[error("{}: not a node store: {reason}", path.display())]
    NotAStore {
        /// The path opened.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// A cursor that has failed once is used again.
    #[error("{column}: this cursor failed before and has no position; open a new one")]
    CursorFailed {
        /// The column it walked.
        column: Column,
    },
    /// A file operation failed.
    #[error("{}: {operation}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// The operating system's answer.
        cause: std::io::Error,
    },
    /// The caller's stream of blob bytes failed.
    #[error("reading the blob's source: {0}")]
    BlobSource(std::io::Error),

    /// An alias of no characters.
    #[error("alias name: empty; expected 1 to 50 characters")]
    AliasEmpty,
    /// An alias longer than its field.
    #[error("alias name: {length} bytes; expected 1 to 50")]
    AliasTooLong {
        /// Bytes given.
        length: usize,
    },
    /// An alias with a character outside letters, digits, `.`, `_`, `-`.
    #[error(
        "alias name: character {character:?} at byte {at}; expected ASCII letters, digits, '.', '_' or '-'"
    )]
    AliasCharacter {
        /// The character found.
        character: char,
        /// Where, in bytes.
        at: usize,
    },
    /// A key alias must say in which context it holds; context and application aliases must not.
    #[error("alias: kind {kind} {expected} a scope")]
    AliasScope {
        /// Name of the alias kind.
        kind: &'static str,
        /// "needs" or "takes no".
        expected: &'static str,
    },
    /// A key of guest state that is not exactly 32 bytes.
    #[error("state key: {length} bytes; expected exactly 32")]
    StateKeyLength {
        /// Bytes given.
        length: usize,
    },
    /// A name that may not be part of a file path.
    #[error(
        "{field}: {found:?} is no path component (letters, digits, '-', '.', no dot at either end, no '..')"
    )]
    PathComponent {
        /// Which component.
        field: &'static str,
        /// What was given.
        found: String,
    },

    /// The id of an operation is not the hash of its content.
    #[error("op {found}: its content hashes to {expected}")]
    OpId {
        /// Id written in the op.
        found: OpId,
        /// Id computed from its content.
        expected: OpId,
    },
    /// The signature of an operation is not its device key's signature over its id.
    #[error("op {id}: the signature is not by its device key")]
    OpSignature {
        /// The op.
        id: OpId,
    },
    /// An operation of another scope.
    #[error("op {id}: it belongs to scope {found}, not {expected}")]
    OpScope {
        /// The op.
        id: OpId,
        /// Scope written in the op.
        found: ScopeId,
        /// Scope worked on.
        expected: ScopeId,
    },
    /// A credential's signature does not hold.
    #[error("{what}: the signature does not hold")]
    CredentialSignature {
        /// Certificate, handoff or governance op.
        what: &'static str,
    },

    /// A remote time stamp lies too far in the future.
    #[error(
        "hybrid clock: the stamp is {ahead_ms} ms ahead of wall time; at most {limit_ms} ms are accepted"
    )]
    ClockDrift {
        /// How far ahead, milliseconds.
        ahead_ms: u64,
        /// The bound, milliseconds.
        limit_ms: u64,
    },
    /// The clock has no later value.
    #[error("hybrid clock: no later time stamp exists")]
    ClockExhausted,

    /// A master key shorter than 32 bytes.
    #[error("at-rest master key: {length} bytes; expected at least 32")]
    MasterKeyTooShort {
        /// Bytes given.
        length: usize,
    },
    /// There is no key version after 255.
    #[error("at-rest key: version 255 is the last")]
    KeyVersionsExhausted,
    /// A stored value is not a ciphertext of this store.
    #[error("{column}: the encrypted value at key {key} {reason}")]
    Ciphertext {
        /// The row's column.
        column: Column,
        /// The row's key.
        key: Hex,
        /// Too short, or which key version did not open it.
        reason: String,
    },
    /// The operating system gave no random bytes.
    #[error("random bytes: {0}")]
    Randomness(String),

    /// No blob of that id.
    #[error("blob {id}: unknown")]
    UnknownBlob {
        /// The id asked for.
        id: BlobId,
    },
    /// A blob's bytes or structure are not what its metadata say.
    #[error("blob {id}: {reason}")]
    CorruptBlob {
        /// The blob or the part of it.
        id: BlobId,
        /// What was met.
        reason: String,
    },
    /// A reference count would leave its range.
    #[error("blob {id}: reference count {refs} cannot change by {change}")]
    BlobReferences {
        /// The blob.
        id: BlobId,
        /// Count stored.
        refs: u32,
        /// Change asked for.
        change: i64,
    },

    /// A context without a metadata row.
    #[error("context {0}: unknown")]
    UnknownContext(ContextId),
    /// A program that is not installed.
    #[error("application {0}: not installed")]
    UnknownApplication(ApplicationId),
    /// A program would replace one with a newer state version.
    #[error("application {application}: state version {offered} is older than {current}")]
    Downgrade {
        /// The program.
        application: ApplicationId,
        /// State version offered.
        offered: u32,
        /// State version in force.
        current: u32,
    },
    /// An activation that would move a context back to code it has left (NODE-35).
    #[error("context {context}: activation of {target} would go back behind {activated}")]
    ActivationBackwards {
        /// The context.
        context: ContextId,
        /// Code activated now.
        activated: BlobId,
        /// Code asked for.
        target: BlobId,
    },
    /// A rollback with nothing to go back to.
    #[error("application {0}: no earlier code is on record")]
    NoPreviousProgram(ApplicationId),
    /// A resync is not admitted.
    #[error("context {context}: resync refused: {reason}")]
    ResyncRefused {
        /// The context.
        context: ContextId,
        /// Why.
        reason: &'static str,
    },
    /// A row of one context in a replacement or migration of another.
    #[error("context {context}: {column} row {key} does not belong to it")]
    ForeignRow {
        /// The context worked on.
        context: ContextId,
        /// Column of the row.
        column: Column,
        /// The row's key.
        key: Hex,
    },
    /// A received state does not hash to the root it claims.
    #[error("context {context}: the received state hashes to {found}, not to the claimed {claimed}")]
    SnapshotRoot {
        /// The context.
        context: ContextId,
        /// Root of the received rows.
        found: crate::id::Hash,
        /// Root that came with them.
        claimed: crate::id::Hash,
    },
    /// A nonce that was seen, or one that lies too far ahead.
    #[error("nonce {nonce}: {reason}")]
    Nonce {
        /// The nonce offered.
        nonce: u64,
        /// Why it is refused.
        reason: &'static str,
    },
}

impl StoreError {
    pub(crate) fn backend(
        backend: &'static str,
        operation: &'static str,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError::Backend {
            backend,
            operation,
            cause: cause.into(),
        }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, operation: &'static str, cause: std::io::Error) -> Self {
        StoreError::File {
            path: path.into(),
            operation,
            cause,
        }
    }
}
