//! The store: a shared, cheaply cloned handle on one opened backend, and the layer that every stack rests on.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Database, ReadView, memory::MemoryBackend, sqlite::SqliteBackend};
use crate::batch::StoreBatch;
use crate::column::{Column, ColumnSet};
use crate::cursor::{Cursor, EmptyCursor};
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::layer::{Layer, ReadLayer, WriteLayer};
use crate::transaction::Transaction;

/// A key and its value, owned.
pub type OwnedRow = (Vec<u8>, Vec<u8>);

/// An opened store. Clones share it.
#[derive(Clone)]
pub struct Store {
    database: Arc<dyn Database>,
}

impl Store {
    /// Over any backend.
    pub fn new(database: impl Database) -> Self {
        Store {
            database: Arc::new(database),
        }
    }

    /// A SQLite file with default options; created, with all its columns, if absent (NODE-25).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteBackend::open(path, &Default::default()).map(Store::new)
    }

    /// Any store on disk, for reading only, also while a node runs on it: a SQLite file or, with the feature `rocksdb`, a
    /// RocksDB directory.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        if path.is_dir() {
            #[cfg(feature = "rocksdb")]
            return crate::backend::rocksdb::RocksBackend::open_read_only(path).map(Store::new);
            #[cfg(not(feature = "rocksdb"))]
            return Err(StoreError::NotAStore {
                path: path.to_owned(),
                reason: "a directory; this program is built without RocksDB".into(),
            });
        }
        SqliteBackend::open_read_only(path).map(Store::new)
    }

    /// A store in memory, gone with its last clone.
    pub fn memory() -> Self {
        Store::new(MemoryBackend::new())
    }

    /// The backend, for what only a backend can say.
    pub fn database(&self) -> &dyn Database {
        self.database.as_ref()
    }

    /// The columns that this opened store has.
    pub fn columns(&self) -> ColumnSet {
        self.database.columns()
    }

    /// Whether it was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.database.is_read_only()
    }

    /// Stages typed rows that are written together.
    pub fn batch(&self) -> StoreBatch<Store> {
        StoreBatch::over(self.clone())
    }

    /// A point-in-time view over all columns.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, StoreError> {
        Ok(Snapshot {
            view: self.database.snapshot()?,
        })
    }

    /// The first rows of a range, at most `max` of them; a `max` of 0 does not touch the backend.
    pub fn scan(
        &self,
        column: Column,
        range: &KeyRange,
        max: Option<usize>,
    ) -> Result<Vec<OwnedRow>, StoreError> {
        let mut rows = Vec::new();
        if max == Some(0) || range.is_empty() {
            return Ok(rows);
        }
        let mut cursor = self.range(column, range, Direction::Ascending)?;
        while max.is_none_or(|max| rows.len() < max) {
            match cursor.next()? {
                Some(row) => rows.push((row.key.to_vec(), row.value.to_vec())),
                None => break,
            }
        }
        Ok(rows)
    }

    /// The last row of a range.
    pub fn last(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        if range.is_empty() {
            Ok(None)
        } else {
            self.database.last_in_range(column, range)
        }
    }

    /// Removes a range, all of it or nothing. An empty or inverted range never reaches the backend.
    pub fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        if range.is_empty() {
            return self.columns().require([column]);
        }
        self.database.delete_range(column, range)
    }

    /// Bytes of keys and values in a range; an estimate where the backend only knows one.
    pub fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        if range.is_empty() {
            Ok(0)
        } else {
            self.database.approximate_size(column, range)
        }
    }

    /// Whether the backend answers: one point read.
    pub fn ping(&self) -> Result<(), StoreError> {
        self.database.has(Column::Meta, b"").map(drop)
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.database.flush()
    }

    /// Applies a transaction through a shared reference: the store itself has no state that a write changes.
    pub fn write(&self, transaction: &Transaction) -> Result<(), StoreError> {
        if transaction.is_empty() {
            return Ok(());
        }
        self.database.apply(transaction)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.database.name())
            .finish()
    }
}

impl Layer for Store {}

impl ReadLayer for Store {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.database.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.database.get(column, key)
    }

    fn range(
        &self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Cursor<'_>, StoreError> {
        if range.is_empty() {
            self.columns().require([column])?;
            return Ok(Cursor::new(column, Box::new(EmptyCursor)));
        }
        Ok(Cursor::new(
            column,
            self.database.cursor(column, range, direction)?,
        ))
    }

    /// The same as `iter`: every backend's cursor sees the moment it was made at.
    fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
        self.iter(column)
    }
}

impl WriteLayer for Store {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.database.put(column, key, value)
    }

    fn delete(&mut self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.database.delete(column, key)
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        self.write(transaction)
    }

    /// Writes go straight through, so there is nothing to do.
    fn commit(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// All columns at one point in time.
pub struct Snapshot<'s> {
    view: Box<dyn ReadView + 's>,
}

impl Layer for Snapshot<'_> {}

impl ReadLayer for Snapshot<'_> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.view.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.view.get(column, key)
    }

    fn range(
        &self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Cursor<'_>, StoreError> {
        if range.is_empty() {
            return Ok(Cursor::new(column, Box::new(EmptyCursor)));
        }
        Ok(Cursor::new(column, self.view.cursor(column, range, direction)?))
    }

    fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
        self.iter(column)
    }
}
