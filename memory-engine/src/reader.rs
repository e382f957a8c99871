//! One connection on a store, seen through the engine's reading functions. The writer's connection is one of these
//! ([`crate::Engine`] derefs to it); others are read-only and see one committed state at a time
//! (ENG-205, INV-10). The functions themselves live in the room of what they read.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use memory_wire::ids::Seq;
use rusqlite::Connection;

use crate::document_cache::{RevisionKey, State, StoreCache, Uncommitted};
use crate::error::EngineError;
use crate::open::open_reader;

/// Read access to one space's store.
#[derive(Debug)]
pub struct Reader {
    pub(crate) conn: Connection,
    pub(crate) cache: Arc<StoreCache>,
    /// Highest seq that was durable when the open transaction began; `None` outside one, where every visible row is.
    durable: Cell<Option<Seq>>,
    uncommitted: RefCell<Uncommitted>,
}

impl Reader {
    pub(crate) fn new(conn: Connection, cache: Arc<StoreCache>) -> Reader {
        Reader {
            conn,
            cache,
            durable: Cell::new(None),
            uncommitted: RefCell::default(),
        }
    }

    /// Opens a reader of its own on a store file, without migrating it (for tools that must not write).
    ///
    /// # Errors
    /// SQLite's; an idle store with a dirty WAL may refuse a read-only open.
    pub fn open(path: &std::path::Path) -> Result<Reader, EngineError> {
        Ok(Reader::new(open_reader(path)?, StoreCache::new()))
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
        self.conn.execute_batch("BEGIN DEFERRED")?;
        let _end = EndRead(&self.conn);
        Ok(work(self))
    }

    /// A remembered state (ENG-201).
    pub(crate) fn remembered(&self, key: &RevisionKey) -> Option<State> {
        if self.durable.get().is_some_and(|durable| key.seq > durable) {
            return self.uncommitted.borrow().get(key);
        }
        self.cache.document(key)
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

    pub(crate) fn enter_savepoint(&self) {
        self.uncommitted.borrow_mut().push();
    }

    pub(crate) fn leave_savepoint(&self, kept: bool) {
        let mut uncommitted = self.uncommitted.borrow_mut();
        if kept {
            uncommitted.release()
        } else {
            uncommitted.discard()
        }
    }

    pub(crate) fn leave_transaction(&self, kept: bool) {
        self.durable.set(None);
        let states = self.uncommitted.borrow_mut().take();
        if kept {
            states.for_each(|(key, state, weight)| self.cache.remember_document(key, state, weight));
        }
    }
}

/// Ends a read transaction however its work ends.
struct EndRead<'c>(&'c Connection);

impl Drop for EndRead<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.execute_batch("COMMIT") {
            tracing::warn!(%error, "a read transaction could not be ended");
        }
    }
}
