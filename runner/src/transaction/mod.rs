//! Transactions: what one run reads and writes, until it is committed, sealed or aborted (RUN-80…96).
//!
//! [`RunTx`] is a cheap handle; every clone is the same transaction. Reads are read-your-writes against a
//! snapshot taken at first touch under the transaction's one identity.

mod activity;
mod build;
mod commit;
mod diff;
mod mergeable;
mod native;
mod retry;
mod seal;
mod stamp;
pub(crate) mod tree;
mod work;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::message::Precondition;
use memory_wire::{Scope, ScopeIdentity, ScopeKey, SpaceId, Value};

pub use activity::ReactivityLog;
pub use mergeable::MergeableOp;
pub use native::{NativeCommit, NativeRead, SealOptions, SealedCommit, SealedVerdict};
pub use retry::edit_with_retry;
pub use seal::{OutboundAppend, SealDestination, SealSink};
pub use stamp::{Acting, RunKind, RunStamp, StreamEntryRef};
pub use work::{Read, ReadMeta};

use crate::address::Address;
use crate::error::{CommitError, RunnerError};
use crate::link::Link;
use crate::storage_manager::StorageManager;
use work::{SpaceWork, Work};

/// Names a transaction within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxId(pub u64);

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tx{}", self.0)
    }
}

/// The scheduler node that opened a transaction (RUN-512); compared, never interpreted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceAction(pub u64);

/// Where a transaction stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxStatus {
    /// Reads and writes are taken.
    Open,
    /// Handed to the store; the verdict may be outstanding.
    Committed,
    /// Handed to a seal destination.
    Sealed,
    /// Given up.
    Aborted,
}

impl TxStatus {
    fn name(self) -> &'static str {
        match self {
            TxStatus::Open => "open",
            TxStatus::Committed => "committed",
            TxStatus::Sealed => "sealed",
            TxStatus::Aborted => "aborted",
        }
    }
}

/// Something to do once a transaction is durable (RUN-95).
#[derive(Clone)]
pub struct PostCommitEffect {
    /// Kind, e.g. `navigateTo` or `fetchJson`.
    pub kind: &'static str,
    /// What the kind needs to know, for destinations that enact effects themselves.
    pub payload: Value,
    /// Enacts it in this process.
    pub enact: Rc<dyn Fn()>,
}

impl fmt::Debug for PostCommitEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostCommitEffect({})", self.kind)
    }
}

/// Runs once a transaction's fate or settlement is known.
pub type TxCallback = Box<dyn FnOnce(&RunTx, &Result<(), CommitError>)>;

/// A transaction handle; clones share it. See the module documentation.
#[derive(Clone)]
pub struct RunTx(Rc<TxState>);

struct TxState {
    id: TxId,
    storage: StorageManager,
    read_only: bool,
    status: Cell<TxStatus>,
    work: RefCell<Work>,
    identity: RefCell<Option<ScopeIdentity>>,
    ratchet: Cell<Scope>,
    stamp: RefCell<Option<RunStamp>>,
    source_action: Cell<Option<SourceAction>>,
    destination: RefCell<Option<Rc<dyn SealDestination>>>,
    authoritative: Cell<bool>,
    /// Read marks added to every read taken now (blind UI writes, machinery, dependency seeding).
    ambient_meta: Cell<ReadMeta>,
    next_event: Cell<u64>,
    uuid: RefCell<Option<String>>,
    event_time_ms: Cell<Option<i64>>,
    lazy: Cell<bool>,
    local_seqs: RefCell<Vec<(SpaceId, memory_wire::LocalSeq)>>,
    callbacks: RefCell<commit::Callbacks>,
    preconditions: RefCell<Vec<(SpaceId, Precondition)>>,
}

impl fmt::Debug for RunTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunTx({}, {})", self.0.id, self.status().name())
    }
}

impl RunTx {
    /// A transaction over `storage`. Runtimes open theirs through their own `edit()`, which attaches destination
    /// and stamp; this constructor is what they build on.
    pub fn open(storage: &StorageManager) -> RunTx {
        RunTx::with_mode(storage, false)
    }

    /// A transaction that takes no writes and commits as a no-op.
    pub fn open_read_only(storage: &StorageManager) -> RunTx {
        RunTx::with_mode(storage, true)
    }

    fn with_mode(storage: &StorageManager, read_only: bool) -> RunTx {
        RunTx(Rc::new(TxState {
            id: storage.next_tx_id(),
            storage: storage.clone(),
            read_only,
            status: Cell::new(TxStatus::Open),
            work: RefCell::default(),
            identity: RefCell::default(),
            ratchet: Cell::new(Scope::Space),
            stamp: RefCell::default(),
            source_action: Cell::new(None),
            destination: RefCell::default(),
            authoritative: Cell::new(false),
            ambient_meta: Cell::new(ReadMeta::RECURSIVE),
            next_event: Cell::new(0),
            uuid: RefCell::default(),
            event_time_ms: Cell::new(None),
            lazy: Cell::new(false),
            local_seqs: RefCell::default(),
            callbacks: RefCell::default(),
            preconditions: RefCell::default(),
        }))
    }

    /// Process-local name.
    pub fn id(&self) -> TxId {
        self.0.id
    }

    /// True when both handles are the same transaction.
    pub fn same(&self, other: &RunTx) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// The storage this transaction reads and commits through.
    pub fn storage(&self) -> &StorageManager {
        &self.0.storage
    }

    /// Where it stands.
    pub fn status(&self) -> TxStatus {
        self.0.status.get()
    }

    /// True while reads and writes are taken.
    pub fn is_open(&self) -> bool {
        self.status() == TxStatus::Open
    }

    /// True for transactions that take no writes.
    pub fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    /// A UUID of this transaction, minted at first use (RUN-550).
    pub fn uuid(&self) -> String {
        self.0
            .uuid
            .borrow_mut()
            .get_or_insert_with(|| self.0.storage.mint().uuid())
            .clone()
    }

    /// Counts the events sent by this transaction, from 0 (RUN-550).
    pub fn next_event_ordinal(&self) -> u64 {
        let n = self.0.next_event.get();
        self.0.next_event.set(n + 1);
        n
    }

    /// The frozen instant a handler sees (RUN-551), in milliseconds since 1970-01-01.
    pub fn event_time_ms(&self) -> Option<i64> {
        self.0.event_time_ms.get()
    }

    /// Freezes the instant.
    pub fn set_event_time_ms(&self, at: i64) {
        self.0.event_time_ms.set(Some(at));
    }

    // --- identity, stamp, destination ----------------------------------------------------------------------

    /// The identity scoped documents resolve with; `None` = the manager's own.
    pub fn scope_identity(&self) -> Option<ScopeIdentity> {
        self.0.identity.borrow().clone()
    }

    /// The identity in force: the transaction's, else the manager's own.
    pub fn effective_identity(&self) -> ScopeIdentity {
        self.scope_identity().unwrap_or_else(|| self.0.storage.identity())
    }

    /// RUN-81: set once, before any document was loaded; the same value again is fine.
    pub fn set_scope_identity(&self, identity: ScopeIdentity) -> Result<(), RunnerError> {
        let refused = |reason| RunnerError::ScopeIdentityFixed {
            tx: self.id().to_string(),
            reason,
        };
        let mut current = self.0.identity.borrow_mut();
        match &*current {
            Some(set) if *set == identity => Ok(()),
            Some(_) => Err(refused("is already set to another one")),
            None if self.0.work.borrow().touched() => {
                Err(refused("must be set before the first document is read"))
            }
            None => {
                *current = Some(identity);
                Ok(())
            }
        }
    }

    /// The run's stamp.
    pub fn stamp(&self) -> Option<RunStamp> {
        self.0.stamp.borrow().clone()
    }

    /// Stamps the run; also sets the scope identity the stamp names, so it must come before the first read
    /// (RUN-601).
    pub fn set_stamp(&self, stamp: RunStamp) -> Result<(), RunnerError> {
        if let Some(identity) = &stamp.scope_identity {
            self.set_scope_identity(identity.clone())?;
        }
        *self.0.stamp.borrow_mut() = Some(stamp);
        Ok(())
    }

    /// Changes the stamp in place (attribution is settled at seal, RUN-605). Nothing happens without one.
    pub fn update_stamp(&self, change: impl FnOnce(&mut RunStamp)) {
        if let Some(stamp) = self.0.stamp.borrow_mut().as_mut() {
            change(stamp);
        }
    }

    /// The node that opened this transaction.
    pub fn source_action(&self) -> Option<SourceAction> {
        self.0.source_action.get()
    }

    /// Names the node that opened this transaction (RUN-540).
    pub fn set_source_action(&self, action: SourceAction) {
        self.0.source_action.set(Some(action));
    }

    /// Attaches a seal destination (RUN-600).
    pub fn set_destination(&self, destination: Rc<dyn SealDestination>) {
        *self.0.destination.borrow_mut() = Some(destination);
    }

    /// The attached destination.
    pub fn destination(&self) -> Option<Rc<dyn SealDestination>> {
        self.0.destination.borrow().clone()
    }

    /// True while cells read in this transaction materialise lazily (RUN-227, RUN-540).
    pub fn lazy_reads(&self) -> bool {
        self.0.lazy.get()
    }

    /// Switches lazy materialisation; answers what it was.
    pub fn set_lazy_reads(&self, lazy: bool) -> bool {
        self.0.lazy.replace(lazy)
    }

    /// RUN-91: no elision, whole documents, no mergeable operations.
    pub fn mark_authoritative_writes(&self) {
        self.0.authoritative.set(true);
    }

    pub(crate) fn is_authoritative(&self) -> bool {
        self.0.authoritative.get()
    }

    /// Runs `f` with `meta`'s marks added to every read it takes.
    pub fn with_read_marks<R>(&self, meta: ReadMeta, f: impl FnOnce() -> R) -> R {
        let before = self.0.ambient_meta.get();
        self.0.ambient_meta.set(merged(before, meta));
        let result = f();
        self.0.ambient_meta.set(before);
        result
    }

    // --- scope ratchet (RUN-94) ------------------------------------------------------------------------------

    /// Narrowest scope read so far.
    pub fn narrowest_read_scope(&self) -> Scope {
        self.0.ratchet.get()
    }

    /// Narrows the ratchet; never widens.
    pub fn narrow_read_scope(&self, scope: Scope) {
        self.0.ratchet.set(self.0.ratchet.get().max(scope));
    }

    /// Starts the ratchet anew. No resolution is remembered across it: every one records its reads.
    pub fn reset_narrowest_read_scope(&self) {
        self.0.ratchet.set(Scope::Space);
    }

    // --- reads -------------------------------------------------------------------------------------------------

    /// RUN-82: the value at `address` as this transaction sees it. Narrows the ratchet, logs the read, marks the
    /// document validated. A document the replica lacks under a foreign identity is asked for (RUN-83).
    pub fn read(&self, address: &Address, meta: ReadMeta) -> Result<Read, RunnerError> {
        let meta = merged(self.0.ambient_meta.get(), meta);
        self.read_marked(address, meta)
    }

    /// The value at `address`, or `undefined`.
    pub fn read_value(&self, address: &Address) -> Result<Value, RunnerError> {
        Ok(self.read(address, ReadMeta::RECURSIVE)?.or_undefined())
    }

    /// Records a read without loading anything (TRV-1221).
    pub fn note_read(&self, address: &Address, meta: ReadMeta) {
        self.narrow_read_scope(address.scope);
        let meta = merged(self.0.ambient_meta.get(), meta);
        let mut work = self.0.work.borrow_mut();
        work.log(address, meta);
        let name = (address.scope, address.id.clone());
        if let Some(doc) = work
            .spaces
            .get_mut(&address.space)
            .and_then(|s| s.docs.get_mut(&name))
        {
            doc.validated |= !meta.ignore_for_commit;
        }
    }

    /// The document root without recording anything: the schema walk notes by itself what it depends on.
    pub(crate) fn peek_document(&self, address: &Address) -> Result<Option<Value>, RunnerError> {
        self.require_open("read")?;
        let identity = self.0.identity.borrow().clone();
        self.0
            .storage
            .check_foreign_scoped(&address.space, &address.id, address.scope, identity.as_ref())?;
        let mut work = self.0.work.borrow_mut();
        let doc = self
            .space_work(&mut work, &address.space)
            .doc(&(address.scope, address.id.clone()), identity.as_ref());
        Ok(doc.working.clone())
    }

    fn read_marked(&self, address: &Address, meta: ReadMeta) -> Result<Read, RunnerError> {
        self.require_open("read")?;
        self.check_instance(address)?;
        self.narrow_read_scope(address.scope);
        let identity = self.0.identity.borrow().clone();
        self.0
            .storage
            .check_foreign_scoped(&address.space, &address.id, address.scope, identity.as_ref())?;
        let (answer, kick) = {
            let mut work = self.0.work.borrow_mut();
            work.log(address, meta);
            let space = self.space_work(&mut work, &address.space);
            let doc = space.doc(&(address.scope, address.id.clone()), identity.as_ref());
            doc.validated |= !meta.ignore_for_commit;
            let (answer, absent) = (doc.read(&address.path), doc.base.is_none());
            let unknown = absent && !space.replica.knows(&address.id, address.scope, identity.as_ref());
            (answer, unknown)
        };
        if kick {
            self.0.storage.kick(address, identity.as_ref());
        }
        Ok(answer)
    }

    /// One transaction serves one identity: an explicit instance must be the one that identity resolves.
    fn check_instance(&self, address: &Address) -> Result<(), RunnerError> {
        let Some(key) = &address.scope_key else {
            return Ok(());
        };
        let resolved = ScopeKey::resolve(address.scope, &self.effective_identity());
        match resolved {
            Ok(own) if own == *key => Ok(()),
            Ok(_) | Err(_) => Err(RunnerError::UnresolvableScope(format!(
                "transaction {} does not serve instance {key} of {}",
                self.id(),
                address.id
            ))),
        }
    }

    fn space_work<'a>(&self, work: &'a mut Work, space: &SpaceId) -> &'a mut SpaceWork {
        work.spaces
            .entry(space.clone())
            .or_insert_with(|| SpaceWork::new(self.0.storage.replica(space)))
    }

    // --- writes --------------------------------------------------------------------------------------------------

    /// RUN-84: puts `value` at `address` (`None` removes it). A value that is already there is elided unless the
    /// transaction is authoritative.
    pub fn write(&self, address: &Address, value: Option<Value>) -> Result<(), RunnerError> {
        self.require_open("write")?;
        if self.0.read_only {
            return Err(RunnerError::TransactionClosed {
                tx: self.id().to_string(),
                state: "read-only",
                action: "write",
            });
        }
        if address.id.as_str().starts_with("data:") {
            return Err(RunnerError::ReadOnlyAddress {
                id: address.id.as_str().chars().take(64).collect(),
            });
        }
        self.check_instance(address)?;
        let identity = self.0.identity.borrow().clone();
        if address.scope != Scope::Space {
            // A write names its row: an identity that has none is the run's error (RUN-574).
            ScopeKey::resolve(address.scope, &self.effective_identity())
                .map_err(|e| RunnerError::UnresolvableScope(e.to_string()))?;
        }
        let mut work = self.0.work.borrow_mut();
        self.claim(&mut work, &address.space)?;
        let name = (address.scope, address.id.clone());
        let authoritative = self.is_authoritative();
        let doc = self
            .space_work(&mut work, &address.space)
            .doc(&name, identity.as_ref());
        let same = match (doc.read(&address.path), &value) {
            (Read::Found(current), Some(new)) => value_equal(&current, new),
            (Read::Found(_), None) => false,
            (Read::NoDocument | Read::NoPath { .. }, new) => new.is_none(),
        };
        if same && !authoritative {
            work.attempted
                .push((address.space.clone(), name, address.path.clone()));
            return Ok(());
        }
        doc.intents.reshaped(&address.path);
        let written = doc.write(&address.path, value);
        written.map_err(|depth| RunnerError::BadPath {
            at: format!("{}/{}", address.id, address.path.join("/")),
            reason: format!("segment {depth} is blocked by a leaf or is no index"),
        })
    }

    /// RUN-84: claims a space for writing.
    fn claim(&self, work: &mut Work, space: &SpaceId) -> Result<(), RunnerError> {
        if work.multi_space.is_none()
            && let Some((open, _)) = work.spaces.iter().find(|(s, w)| w.written && *s != space)
        {
            return Err(RunnerError::WriteIsolation {
                open: open.clone(),
                requested: space.clone(),
            });
        }
        self.space_work(work, space).written = true;
        Ok(())
    }

    /// Allows writes to several spaces; the last given order wins and only sequences (RUN-84, RUN-85).
    pub fn enable_multi_space_writes(&self, order: Option<Vec<SpaceId>>) {
        let mut work = self.0.work.borrow_mut();
        work.multi_space = Some(order.or_else(|| work.multi_space.take()).unwrap_or_default());
    }

    /// RUN-88: records a mergeable operation whose effect was (or is about to be) written locally. Call it
    /// *before* the local write of the same path, inside [`RunTx::merging`].
    pub fn merging(
        &self,
        address: &Address,
        op: MergeableOp,
        local_write: impl FnOnce() -> Result<(), RunnerError>,
    ) -> Result<(), RunnerError> {
        self.require_open("write")?;
        let name = (address.scope, address.id.clone());
        if !self.is_authoritative() {
            let identity = self.scope_identity();
            let mut work = self.0.work.borrow_mut();
            self.claim(&mut work, &address.space)?;
            let doc = self
                .space_work(&mut work, &address.space)
                .doc(&name, identity.as_ref());
            let tail_start = match doc.read(&address.path) {
                Read::Found(Value::Array(array)) => array.len(),
                Read::Found(_) | Read::NoDocument | Read::NoPath { .. } => 0,
            };
            doc.intents.begin(&address.path, op, tail_start);
        }
        let result = local_write();
        let mut work = self.0.work.borrow_mut();
        if let Some(doc) = work
            .spaces
            .get_mut(&address.space)
            .and_then(|s| s.docs.get_mut(&name))
        {
            doc.intents.end(&address.path, result.is_ok());
        }
        result
    }

    /// RUN-89: the document must not exist yet. Never attached where server execution is on.
    pub fn mark_create_only(&self, link: &Link) {
        let identity = self.scope_identity();
        let mut work = self.0.work.borrow_mut();
        self.space_work(&mut work, &link.space)
            .doc(&(link.scope, link.id.clone()), identity.as_ref())
            .create_only = true;
    }

    /// Adds a precondition to the commit of `space`.
    pub fn add_precondition(&self, space: &SpaceId, precondition: Precondition) {
        self.0
            .preconditions
            .borrow_mut()
            .push((space.clone(), precondition));
    }

    fn require_open(&self, action: &'static str) -> Result<(), RunnerError> {
        match self.status() {
            TxStatus::Open => Ok(()),
            state => Err(RunnerError::TransactionClosed {
                tx: self.id().to_string(),
                state: state.name(),
                action,
            }),
        }
    }

    /// RUN-93: what was read and written so far.
    pub fn reactivity_log(&self) -> ReactivityLog {
        build::reactivity_log(&self.0.work.borrow(), self.scope_identity().as_ref())
    }

    /// Spaces written so far, in commit order.
    pub fn written_spaces(&self) -> Vec<SpaceId> {
        self.0.work.borrow().written_spaces()
    }

    /// The local sequence number this transaction's commit got in `space` (RUN-30 step 2).
    pub fn local_seq(&self, space: &SpaceId) -> Option<memory_wire::LocalSeq> {
        self.0
            .local_seqs
            .borrow()
            .iter()
            .find(|(s, _)| s == space)
            .map(|(_, n)| *n)
    }

    pub(crate) fn set_local_seq(&self, space: &SpaceId, local_seq: memory_wire::LocalSeq) {
        self.0.local_seqs.borrow_mut().push((space.clone(), local_seq));
    }
}

fn merged(a: ReadMeta, b: ReadMeta) -> ReadMeta {
    ReadMeta {
        non_recursive: a.non_recursive | b.non_recursive,
        ignore_for_commit: a.ignore_for_commit | b.ignore_for_commit,
        ignore_for_scheduling: a.ignore_for_scheduling | b.ignore_for_scheduling,
        exclude_from_conflict: a.exclude_from_conflict | b.exclude_from_conflict,
        mergeable_op: a.mergeable_op | b.mergeable_op,
        attempted_write: a.attempted_write | b.attempted_write,
        non_speculative: a.non_speculative | b.non_speculative,
        link_probe: a.link_probe | b.link_probe,
        machinery: a.machinery | b.machinery,
    }
}
