//! Every way the engine refuses or fails (engine page §3.11): one enum, matched by variant, with the exact
//! texts and names that travel to clients. [`EngineError::to_wire`] is the only mapping to a wire error.

use memory_wire::codec::{DecodeError, EncodeError};
use memory_wire::error::{ErrorName, FailedPrecondition};
use memory_wire::ids::{BranchName, EntityId, LocalSeq, Seq};
use memory_wire::patch::PatchError;
use memory_wire::scope_key::{InstanceId, ScopeKeyError};
use memory_wire::{SpaceId, WireError};

use crate::refusal::Refusal;

/// What can go wrong in one space's store. `name()` is what clients branch on; the text is contractual too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A confirmed read is no longer current (ENG-330).
    #[error("stale confirmed read: {of} at seq {seq} conflicted with seq {conflict_seq}")]
    StaleConfirmedRead {
        /// The entity that was read.
        of: EntityId,
        /// The seq the reader had seen.
        seq: Seq,
        /// The commit that overwrote it.
        conflict_seq: Seq,
    },
    /// A read through the session's own pending commits is no longer current (ENG-337).
    #[error("stale pending read: {of} via localSeq {via} conflicted with seq {conflict_seq}")]
    StalePendingRead {
        /// The entity that was read.
        of: EntityId,
        /// The highest layer the read named.
        via: LocalSeq,
        /// The commit that overwrote it.
        conflict_seq: Seq,
    },
    /// A pending read names a layer that is not an accepted commit of this session (ENG-334).
    #[error("pending dependency not resolved: {local_seq}")]
    PendingDependency {
        /// The layer named.
        local_seq: LocalSeq,
    },
    /// The value under an `entity-value-hash` precondition is another one by now (ENG-322).
    #[error("entity-value-hash precondition target changed: {id}")]
    ValueHashChanged {
        /// The entity named.
        id: EntityId,
    },
    /// An `origin-committed` precondition names a commit this session never landed (ENG-320).
    #[error("origin commit not committed: localSeq {origin}")]
    OriginNotCommitted {
        /// The localSeq named.
        origin: LocalSeq,
    },
    /// The target of an `entity-absent` precondition exists (ENG-321).
    #[error("entity-absent precondition target already exists: {id}")]
    ReceiptExists {
        /// The entity named.
        id: EntityId,
    },
    /// A deterministic refusal (`ProtocolError`): repeating the request cannot help.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A scoped address without the identity it needs (ENG-160).
    #[error(transparent)]
    Scope(#[from] ScopeKeyError),
    /// The event is already in its stream, above the dedupe horizon (ENG-529). The append counts as delivered.
    #[error("event append {event_id} duplicates a stream entry above the dedupe horizon (events.md §4)")]
    EventAppendDuplicate {
        /// The event's id.
        event_id: String,
    },
    /// A row label refuses a folded SQLite write (ENG-1425).
    #[error("sqlite commit refused: {reason}")]
    RowLabelCommit {
        /// Why.
        reason: String,
    },
    /// Documents of a wave moved past its basis (ENG-611).
    #[error(
        "wave commit re-verification: doc head(s) advanced past the wave basis: {}",
        doc_texts(conflicted)
    )]
    WaveConflict {
        /// Every violated instance, in the order of the wave's operations.
        conflicted: Vec<InstanceId>,
    },
    /// Preconditions of a wave failed (ENG-613).
    #[error("wave commit precondition(s) failed at index(es) {}: {first}", joined(failed))]
    WavePrecondition {
        /// Indexes into the commit's preconditions.
        failed: Vec<usize>,
        /// The first failure.
        first: Box<EngineError>,
    },
    /// A query reaches a schema document that is missing or does not verify (ENG-1050, 1053).
    #[error("{message}")]
    SchemaClosure {
        /// The full text.
        message: String,
    },
    /// A query's walk could not be carried through (TRV-1501): the failure is of that request alone.
    #[error(transparent)]
    Traverse(memory_wire::traverse::TraverseError),
    /// A patch cannot be applied to the state it meets (ENG-355, 381).
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A SQL statement the builtin does not admit (ENG-1410).
    #[error("SQLite statement rejected: {reason}\n  in: {sql}")]
    Guard {
        /// Why.
        reason: String,
        /// The statement.
        sql: String,
    },
    /// A SQL statement that was ended because it used up what one request may.
    #[error("the SQLite statement {bound}")]
    SqliteExceeded {
        /// What it does too much of, as the end of a sentence.
        bound: &'static str,
    },
    /// The file of a SQLite database belongs to another database, whose file is called the same.
    #[error("the SQLite database cannot be used: its file is another database's")]
    SqliteOfAnother,
    /// A table declaration of the SQLite builtin that is out of bounds (ENG-1411); its wire name is the
    /// reference's `TypeError`.
    #[error("{message}")]
    TableDeclaration {
        /// The full text.
        message: String,
    },
    /// Neither operations nor preconditions (ENG-300 step 5).
    #[error("memory v2 commit requires at least one operation")]
    EmptyCommit,
    /// No branch of this name.
    #[error("unknown branch: {0}")]
    UnknownBranch(BranchName),
    /// The branch was deleted; it can be read and not written.
    #[error("branch is not active: {0}")]
    BranchNotActive(BranchName),
    /// A `set` whose value is not a plain object (ENG-350).
    #[error("memory v2 set operations require explicit document objects")]
    SetNeedsDocument,
    /// A read at a seq the branch does not have (ENG-901).
    #[error("seq {seq} is out of range for branch {branch}")]
    SeqOutOfRange {
        /// The seq asked for.
        seq: i64,
        /// The branch.
        branch: BranchName,
    },
    /// A space id that cannot name a store file (ENG-101).
    #[error("Invalid memory space identifier for store path: {0}")]
    InvalidSpaceId(SpaceId),
    /// A SQLite operation whose database the caller did not attach (ENG-1404).
    #[error("sqlite op for db {db} has no attachment (server must attach before applyCommit)")]
    SqliteUnattached {
        /// The database id.
        db: String,
    },
    /// A stored row that cannot be what the engine wrote (ENG-120, 383).
    #[error(transparent)]
    Stored(#[from] StoredDataError),
    /// A value that has no canonical text (WIRE-311).
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Retiring is for session keys only (ENG-1601).
    #[error("only session instances can be retired, not {0}")]
    NotASessionKey(String),
    /// A copy of a store that is not sound; no store was made of it.
    #[error("the copy {} is damaged: {}", path.display(), findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    DamagedCopy {
        /// The copy.
        path: std::path::PathBuf,
        /// What is wrong with it; never empty.
        findings: Vec<crate::integrity::Finding>,
    },
    /// What lies at a store's path cannot be served as a space's store. Nothing there was changed.
    #[error(transparent)]
    BadStore(Box<BadStore>),
    /// The file system has no room for what was to be written. Nothing of it was applied; reads go on, and so do writes
    /// once there is room.
    #[error("the space's store has no room to write: {0}")]
    StoreFull(String),
    /// The file system failed to read, write or sync. Nothing of the write was applied.
    #[error("the space's store could not be read or written: {0}")]
    StoreIo(String),
    /// A page of the store is not what SQLite wrote there.
    #[error("the space's store is damaged: {0}")]
    StoreDamaged(String),
    /// The store may not be written.
    #[error("the space's store is read-only: {0}")]
    StoreReadOnly(String),
    /// A read was ended because it held up the write-ahead log beyond its bound (field fault F39). Reading again, from the
    /// newest state, can help.
    #[error("the read was ended: it kept the space's write-ahead log from being emptied")]
    ReadOvertaken,
    /// An evaluation would read more documents than it was given.
    #[error("the query reads more than {0} documents")]
    ReadsTooMuch(usize),
    /// SQLite itself failed in any other way. The text is SQLite's own.
    #[error("{}", sqlite_text(.0))]
    Sqlite(#[source] rusqlite::Error),
    /// The file system failed while a store was being located or opened.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
        path: std::path::PathBuf,
        /// How it failed.
        source: std::io::Error,
    },
    /// The shared transaction of a commit group could not be made durable, so none of its members was
    /// (ENG-206).
    #[error("the commit group could not be made durable: {0}")]
    GroupLost(String),
    /// A closure run by the space's writer or a reader panicked; everything it wrote was rolled back.
    #[error("work on the space's store panicked: {0}")]
    Panicked(String),
    /// The handle was shut down before the work ran.
    #[error("the space's store is closed")]
    Closed,
}

/// Something at a store's path that is not a store we can serve.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}: found {found}, expected {expected}", path.display())]
pub struct BadStore {
    /// Where.
    pub path: std::path::PathBuf,
    /// What is there.
    pub found: String,
    /// What was expected there.
    pub expected: &'static str,
}

/// A stored text that is not what the columns of §1.4 hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredDataError {
    /// The text lacks the mark of encoded text (ENG-120).
    #[error("Not a JSON-encoded `FabricValue` string: {0}")]
    NotEncoded(String),
    /// The text does not decode (ENG-120).
    #[error(transparent)]
    Text(#[from] DecodeError),
    /// A document row holds something other than a plain object.
    #[error("memory v2 stored documents must be plain object roots")]
    DocumentRoot,
    /// A patch row holds something other than an array.
    #[error("memory v2 stored patches must be arrays")]
    PatchesShape,
    /// `revision.op` or `head.op` outside its three words.
    #[error("unexpected stored revision op: {0}")]
    Op(String),
    /// `commit.class` outside its three words (ENG-123).
    #[error("unexpected stored commit class: {0}")]
    Class(String),
    /// A scope key column that is not canonical (ENG-125).
    #[error("unexpected stored scope key: {0}")]
    ScopeKey(String),
    /// A plain JSON column of the outbox that does not parse (ENG-121).
    #[error("unexpected stored JSON in {column}: {detail}")]
    PlainJson {
        /// Column name.
        column: &'static str,
        /// The parser's words.
        detail: String,
    },
    /// A head without the revision it points at.
    #[error("head of {id} names revision {seq}/{op_index}, which is not stored")]
    MissingRevision {
        /// The entity.
        id: EntityId,
        /// The seq of the head.
        seq: Seq,
        /// Its operation index.
        op_index: u64,
    },
}

impl EngineError {
    /// The error class clients and the serving loop branch on.
    pub fn name(&self) -> &'static str {
        use EngineError::*;
        match self {
            StaleConfirmedRead { .. }
            | StalePendingRead { .. }
            | PendingDependency { .. }
            | ValueHashChanged { .. } => "ConflictError",
            OriginNotCommitted { .. } | ReceiptExists { .. } => "PreconditionFailedError",
            Refused(_) | Scope(_) | SqliteUnattached { .. } => "ProtocolError",
            EventAppendDuplicate { .. } => "EventAppendDuplicateError",
            RowLabelCommit { .. } => "RowLabelCommitError",
            WaveConflict { .. } => "WaveCommitConflictError",
            WavePrecondition { .. } => "WavePreconditionError",
            SchemaClosure { .. } => "SchemaClosureError",
            Patch(error) => error.class_name(),
            Guard { .. } => "GuardError",
            TableDeclaration { .. } => "TypeError",
            EmptyCommit
            | UnknownBranch(_)
            | BranchNotActive(_)
            | SetNeedsDocument
            | SeqOutOfRange { .. }
            | InvalidSpaceId(_)
            | Stored(_)
            | Encode(_)
            | Traverse(_)
            | NotASessionKey(_)
            | BadStore(_)
            | StoreFull(_)
            | StoreIo(_)
            | StoreDamaged(_)
            | StoreReadOnly(_)
            | ReadOvertaken
            | ReadsTooMuch(_)
            | DamagedCopy { .. }
            | SqliteExceeded { .. }
            | SqliteOfAnother
            | Sqlite(_)
            | Io { .. }
            | GroupLost(_)
            | Panicked(_)
            | Closed => "Error",
        }
    }

    /// True for the errors a client answers by re-reading and trying again (`ConflictError`).
    pub fn is_conflict(&self) -> bool {
        self.name() == "ConflictError"
    }

    /// The `precondition` field of a `PreconditionFailedError`.
    pub fn precondition(&self) -> Option<FailedPrecondition> {
        match self {
            EngineError::OriginNotCommitted { .. } => Some(FailedPrecondition::OriginCommitted),
            EngineError::ReceiptExists { .. } => Some(FailedPrecondition::ReceiptExists),
            _ => None,
        }
    }

    /// The error's text for a client: where a server keeps its files, which SQLite says too, is nothing to it.
    pub fn told(&self) -> String {
        match self {
            EngineError::BadStore(bad) => format!(
                "the space's store cannot be opened: found {}, expected {}",
                bad.found, bad.expected
            ),
            EngineError::Io { source, .. } => format!("the space's store cannot be reached: {source}"),
            EngineError::StoreFull(_) => "the space's store has no room to write".to_owned(),
            EngineError::StoreIo(_) => "the space's store could not be read or written".to_owned(),
            EngineError::StoreDamaged(_) => "the space's store is damaged".to_owned(),
            EngineError::StoreReadOnly(_) => "the space's store is read-only".to_owned(),
            EngineError::DamagedCopy { .. } => "the copy of the space's store is damaged".to_owned(),
            told => told.to_string(),
        }
    }

    /// The error as `transact` answers it (§3.11, right column). `retry_after_seq` is the space's highest seq; it
    /// is attached to conflicts only.
    pub fn to_wire(&self, retry_after_seq: Seq) -> WireError {
        let name = match self.name() {
            "SchemaClosureError" => ErrorName::Query,
            // The guard's own name is for SQL requests; a commit that trips it fails like any other (§3.11).
            "GuardError" => ErrorName::Transaction,
            listed => ErrorName::from_name(listed).unwrap_or(ErrorName::Transaction),
        };
        let mut error = WireError::new(name, self.told());
        if self.is_conflict() {
            error.retry_after_seq = Some(retry_after_seq.0);
        }
        error.precondition = self.precondition();
        error
    }
}

impl EngineError {
    /// The same failure for another member of the group it undid.
    pub(crate) fn for_neighbour(&self) -> EngineError {
        match self {
            EngineError::StoreFull(text) => EngineError::StoreFull(text.clone()),
            EngineError::StoreIo(text) => EngineError::StoreIo(text.clone()),
            EngineError::StoreDamaged(text) => EngineError::StoreDamaged(text.clone()),
            EngineError::StoreReadOnly(text) => EngineError::StoreReadOnly(text.clone()),
            EngineError::GroupLost(text) => EngineError::GroupLost(text.clone()),
            EngineError::BadStore(bad) => EngineError::BadStore(Box::new(BadStore {
                path: bad.path.clone(),
                found: bad.found.clone(),
                expected: bad.expected,
            })),
            other => EngineError::GroupLost(other.told()),
        }
    }
}

/// Failures of the disk under SQLite get names of their own; the rest stays SQLite's.
impl From<rusqlite::Error> for EngineError {
    fn from(error: rusqlite::Error) -> EngineError {
        use rusqlite::ErrorCode::*;
        let Some(failure) = error.sqlite_error() else {
            return EngineError::Sqlite(error);
        };
        let text = || {
            let detail = rusqlite::ffi::code_to_str(failure.extended_code);
            format!("{} ({detail})", sqlite_text(&error))
        };
        match failure.code {
            DiskFull => EngineError::StoreFull(sqlite_text(&error)),
            SystemIoFailure if failure.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => {
                EngineError::StoreFull("the index of its log cannot grow".to_owned())
            }
            SystemIoFailure | CannotOpen | FileLockingProtocolFailed => EngineError::StoreIo(text()),
            DatabaseCorrupt | NotADatabase => EngineError::StoreDamaged(sqlite_text(&error)),
            ReadOnly | PermissionDenied => EngineError::StoreReadOnly(sqlite_text(&error)),
            OperationInterrupted => EngineError::ReadOvertaken,
            _ => EngineError::Sqlite(error),
        }
    }
}

/// The key text of an instance in wave errors (ENG-611).
pub(crate) fn doc_text(doc: &InstanceId) -> String {
    format!("{} {}", doc.id, doc.scope_key.as_str())
}

fn doc_texts(docs: &[InstanceId]) -> String {
    docs.iter().map(doc_text).collect::<Vec<_>>().join(", ")
}

fn joined(indexes: &[usize]) -> String {
    indexes
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// SQLite's own sentence, without the binding's decoration: clients and vectors know it in this form.
fn sqlite_text(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    }
}
