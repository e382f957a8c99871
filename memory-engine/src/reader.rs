//! One connection on a store, seen through the engine's reading functions. The writer's connection is one of these
//! ([`crate::Engine`] derefs to it); others are read-only and see one committed state at a time
//! (ENG-205, INV-10). The functions themselves live in the room of what they read.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory_wire::ids::{BranchName, Seq};
use rusqlite::Connection;

use crate::connection::StoreConnection;
use crate::document_cache::{Layer, Remainder, RevisionKey, State, StoreCache, StoreCounters, Uncommitted};
use crate::error::EngineError;
use crate::heads::{Era, Head, HeadKey};
use crate::open::{open_alone, open_reader};

/// Read access to one space's store.
#[derive(Debug)]
pub struct Reader {
    pub(crate) conn: StoreConnection,
    pub(crate) cache: Arc<StoreCache>,
    /// Highest seq that was durable when the open transaction began; `None` outside one, where every visible row is.
    durable: Cell<Option<Seq>>,
    uncommitted: RefCell<Uncommitted>,
    snapshot: Cell<Snapshot>,
    overtaken: Option<Overtaken>,
}

/// Which committed state the open read transaction sees.
#[derive(Clone, Copy, Debug)]
enum Snapshot {
    /// No read transaction is open.
    None,
    /// One that began in this era, and has not been asked yet how far it sees. → `At`
    Begun(Era),
    /// One that sees everything up to a seq.
    At(Seq, Era),
}

/// How a snapshot learns that it was asked to end (field fault F39).
#[derive(Debug)]
struct Overtaken {
    /// Raised by the writer.
    count: Arc<AtomicU64>,
    /// What it was when the open snapshot began; [`NO_SNAPSHOT`] outside one.
    begun: Arc<AtomicU64>,
}

const NO_SNAPSHOT: u64 = u64::MAX;

/// Steps of SQLite's machine between two looks at whether the read was asked to end.
const STEPS: i32 = 1_000;

impl Reader {
    pub(crate) fn new(conn: Connection, cache: Arc<StoreCache>) -> Reader {
        Reader {
            conn: StoreConnection::new(conn, cache.statements.clone()),
            cache,
            snapshot: Cell::new(Snapshot::None),
            durable: Cell::new(None),
            uncommitted: RefCell::default(),
            overtaken: None,
        }
    }

    /// Opens a reader of its own on a store file, without migrating it (for tools that must not write).
    ///
    /// # Errors
    /// SQLite's; an idle store with a dirty WAL may refuse a read-only open.
    pub fn open(path: &std::path::Path) -> Result<Reader, EngineError> {
        Ok(Reader::new(open_reader(path)?, StoreCache::new()))
    }

    /// Opens a store for one read on a disk too full to open it otherwise. Nobody else gets in meanwhile.
    pub(crate) fn open_alone(path: &std::path::Path) -> Result<Reader, EngineError> {
        Ok(Reader::new(open_alone(path)?, StoreCache::new()))
    }

    /// Runs `work` on one committed state of the store: whatever it reads, it reads as of one moment (INV-10).
    ///
    /// # Errors
    /// SQLite's, when the read transaction cannot be opened.
    pub fn snapshot<R>(&self, work: impl FnOnce(&Reader) -> R) -> Result<R, EngineError> {
        if !self.conn.is_autocommit() {
            // Inside a transaction everything already is one state.
            return Ok(work(self));
        }
        let era = self.cache.heads.era();
        self.conn.execute_batch("BEGIN DEFERRED")?;
        self.snapshot.set(Snapshot::Begun(era));
        let _end = EndRead(self);
        if let Some(Overtaken { count, begun }) = &self.overtaken {
            begun.store(count.load(Ordering::Acquire), Ordering::Release);
        }
        Ok(work(self))
    }

    /// From now on a snapshot during which `count` is raised fails with [`EngineError::ReadOvertaken`].
    pub(crate) fn obey(&mut self, count: Arc<AtomicU64>) -> Result<(), EngineError> {
        let begun = Arc::new(AtomicU64::new(NO_SNAPSHOT));
        let (raised, began) = (count.clone(), begun.clone());
        let asked_to_end = move || raised.load(Ordering::Acquire) > began.load(Ordering::Acquire);
        self.conn.get_mut().progress_handler(STEPS, Some(asked_to_end))?;
        self.overtaken = Some(Overtaken { count, begun });
        Ok(())
    }

    /// A remembered state (ENG-201).
    pub(crate) fn remembered(&self, key: &RevisionKey) -> Option<State> {
        if self.durable.get().is_some_and(|durable| key.seq > durable) {
            return self.uncommitted.borrow().get(key);
        }
        self.cache.document(key)
    }

    /// A remembered state with about the size of its text.
    pub(crate) fn remembered_weighed(&self, key: &RevisionKey) -> Option<(State, usize)> {
        if self.durable.get().is_some_and(|durable| key.seq > durable) {
            return self.uncommitted.borrow().weighed(key);
        }
        self.cache.weighed_document(key)
    }

    /// Remembers a state: at once if its revision is durable, else when the transaction commits (ENG-202).
    pub(crate) fn remember(&self, key: RevisionKey, state: State, weight: usize) {
        if self.is_durable(key.seq) {
            self.cache.remember_document(key, state, weight);
        } else {
            self.uncommitted.borrow_mut().insert(key, state, weight);
        }
    }

    /// Whether the rows of commit `seq` survive whatever becomes of the open transaction.
    pub(crate) fn is_durable(&self, seq: Seq) -> bool {
        self.durable.get().is_none_or(|durable| seq <= durable)
    }

    pub(crate) fn enter_transaction(&self, durable: Seq) {
        self.durable.set(Some(durable));
        self.uncommitted.borrow_mut().push();
    }

    /// Begins the bookkeeping of one write in a transaction.
    pub(crate) fn enter_member(&self) {
        self.uncommitted.borrow_mut().push();
    }

    /// The write stays.
    pub(crate) fn keep_member(&self) {
        self.uncommitted.borrow_mut().release();
    }

    /// The write goes; what it was.
    pub(crate) fn discard_member(&self) -> Layer {
        self.uncommitted.borrow_mut().discard()
    }

    /// Ends the bookkeeping of a transaction; `committed` is the store's seq if it was kept.
    pub(crate) fn leave_transaction(&self, committed: Option<Seq>) {
        self.durable.set(None);
        let done = self.uncommitted.borrow_mut().take();
        let Some(seq) = committed else { return };
        self.cache.count_transaction();
        for (key, (state, weight)) in done.states {
            self.cache.remember_document(key, state, weight);
        }
        if done.removed {
            // Which of the heads were written after that is not known.
            self.cache.heads.forget(Some(seq));
        } else {
            self.cache.heads.advance(seq, done.heads);
        }
    }

    /// The newest commit as the open transaction sees it, if that is known without asking.
    pub(crate) fn known_server_seq(&self) -> Option<Seq> {
        if let Some(durable) = self.durable.get() {
            return Some(self.uncommitted.borrow().seq().unwrap_or(durable));
        }
        match self.snapshot.get() {
            Snapshot::At(seq, _) => Some(seq),
            Snapshot::None | Snapshot::Begun(_) => None,
        }
    }

    /// Notes that the open transaction is about to write commit `seq`.
    pub(crate) fn note_commit(&self, seq: Seq, branch: &BranchName) {
        if let Some(layer) = self.uncommitted.borrow_mut().top() {
            layer.seq = Some(seq);
            layer.undo.commits.push((seq, branch.clone()));
        }
    }

    /// Notes that a commit changed `rows` rows.
    pub(crate) fn note_changes(&self, rows: usize) {
        if let Some(layer) = self.uncommitted.borrow_mut().top() {
            layer.undo.changes += rows as u64;
        }
    }

    /// Notes that a commit took a snapshot of an instance, of which older ones may have to go.
    pub(crate) fn note_snapshot(&self, key: HeadKey) {
        if let Some(layer) = self.uncommitted.borrow_mut().top() {
            layer.snapshots.insert(key);
        }
    }

    /// Where the open transaction's commits leave `branch`, if it has any on it. Its row says so only in the end.
    pub(crate) fn uncommitted_head_seq(&self, branch: &BranchName) -> Option<Seq> {
        self.durable.get()?;
        self.uncommitted.borrow().head_seq(branch)
    }

    /// What the open transaction's commits leave to be done once for all of them.
    pub(crate) fn remainder(&self) -> Remainder {
        self.uncommitted.borrow().remainder()
    }

    /// Notes the newest revision of an instance that the open transaction wrote.
    pub(crate) fn note_head(&self, key: HeadKey, head: Head) {
        if let Some(layer) = self.uncommitted.borrow_mut().top() {
            layer.heads.insert(key, head);
        }
    }

    /// Notes that the open transaction removed heads.
    pub(crate) fn note_removal(&self) {
        if let Some(layer) = self.uncommitted.borrow_mut().top() {
            layer.removed = true;
        }
    }

    /// An instance's newest revision as the open transaction sees it, if it is remembered.
    pub(crate) fn remembered_head(&self, key: &HeadKey) -> Result<Option<Head>, EngineError> {
        if let Some(durable) = self.durable.get() {
            let uncommitted = self.uncommitted.borrow();
            if uncommitted.removed() {
                return Ok(None);
            }
            return Ok(uncommitted
                .head(key)
                .or_else(|| self.cache.heads.at(key, durable)));
        }
        Ok(self.sees()?.and_then(|(seq, _)| self.cache.heads.at(key, seq)))
    }

    /// Remembers an instance's newest revision, which was just read.
    pub(crate) fn learn_head(&self, key: HeadKey, head: Head) -> Result<(), EngineError> {
        // What a write transaction reads it will soon write, or has.
        if self.durable.get().is_none()
            && let Some((seq, era)) = self.sees()?
        {
            self.cache.heads.learn(key, head, seq, era);
        }
        Ok(())
    }

    /// How far the open read transaction sees.
    fn sees(&self) -> Result<Option<(Seq, Era)>, EngineError> {
        match self.snapshot.get() {
            Snapshot::None => Ok(None),
            Snapshot::At(seq, era) => Ok(Some((seq, era))),
            Snapshot::Begun(era) => {
                let seq = self.server_seq()?;
                self.snapshot.set(Snapshot::At(seq, era));
                Ok(Some((seq, era)))
            }
        }
    }

    /// What the store's handle has done and remembers.
    pub fn counters(&self) -> StoreCounters {
        self.cache.counters()
    }
}

/// Ends a read transaction however its work ends.
struct EndRead<'r>(&'r Reader);

impl Drop for EndRead<'_> {
    fn drop(&mut self) {
        self.0.snapshot.set(Snapshot::None);
        // Ending is the one thing that a read that was asked to end may still do.
        if let Some(Overtaken { begun, .. }) = &self.0.overtaken {
            begun.store(NO_SNAPSHOT, Ordering::Release);
        }
        if let Err(error) = self.0.conn.execute_batch("COMMIT") {
            tracing::warn!(%error, "a read transaction could not be ended");
            if let Err(error) = self.0.conn.execute_batch("ROLLBACK") {
                tracing::debug!(%error, "no read transaction was left");
            }
        }
    }
}
