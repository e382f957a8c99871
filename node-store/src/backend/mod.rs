//! What a backend must do. Anyone may write one; the conformance suite in `tests/` says whether it is right.
//! Rules: NODE-5, NODE-20…25.

pub mod memory;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
pub mod sqlite;

use crate::column::{Column, ColumnSet};
use crate::cursor::RowCursor;
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::store::OwnedRow;
use crate::transaction::Transaction;

/// What survives what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every write survives a power cut once its call has returned.
    #[default]
    Full,
    /// Every write survives the death of the process; after a power cut, the last ones may be gone, whole batches each.
    /// [`Database::flush`] makes them durable.
    Process,
}

/// Reads of a backend, or of one moment of it.
pub trait ReadView: Send + Sync {
    /// Whether the key has a value.
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError>;

    /// The key's value.
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Walks a range in one direction; the cursor sees the moment it was made at. A read error is an error, never an
    /// early end.
    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError>;
}

/// An opened backend. Ranges that reach it are never empty or inverted.
pub trait Database: ReadView + 'static {
    /// The backend's name, for messages.
    fn name(&self) -> &'static str;

    /// The columns it has.
    fn columns(&self) -> ColumnSet;

    /// Column families found on disk that belong to no column: kept, reported, never touched.
    fn unknown_columns(&self) -> &[String] {
        &[]
    }

    /// Whether every write is refused with [`StoreError::ReadOnly`]. Another process may be writing then, so nothing beside
    /// the store may be changed either.
    fn is_read_only(&self) -> bool;

    /// What survives what.
    fn durability(&self) -> Durability;

    /// Gives a key a value.
    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes a key; an absent one is no error.
    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError>;

    /// All writes across all columns, or none; an unknown column refuses everything before anything is written.
    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError>;

    /// Makes everything written so far survive a power cut.
    fn flush(&self) -> Result<(), StoreError>;

    /// One moment of all columns.
    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError>;

    /// The last row of a range.
    fn last_in_range(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        let mut cursor = self.cursor(column, range, Direction::Descending)?;
        cursor.advance()?;
        Ok(cursor.row().map(|row| (row.key.to_vec(), row.value.to_vec())))
    }

    /// Removes a range, all of it or nothing.
    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        let mut removals = Transaction::new();
        let mut cursor = self.cursor(column, range, Direction::Ascending)?;
        while cursor.advance()? {
            if let Some(row) = cursor.row() {
                removals.delete(column, row.key);
            }
        }
        drop(cursor);
        self.apply(&removals)
    }

    /// Bytes of keys and values in a range, exact or estimated.
    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        let mut size = 0;
        let mut cursor = self.cursor(column, range, Direction::Ascending)?;
        while cursor.advance()? {
            size += cursor
                .row()
                .map_or(0, |row| (row.key.len() + row.value.len()) as u64);
        }
        Ok(size)
    }
}

impl<D: ReadView + ?Sized> ReadView for std::sync::Arc<D> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        (**self).has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).get(column, key)
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        (**self).cursor(column, range, direction)
    }
}

/// A shared backend is a backend: several wrappers may stand on one.
impl<D: Database + ?Sized> Database for std::sync::Arc<D> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn columns(&self) -> ColumnSet {
        (**self).columns()
    }

    fn unknown_columns(&self) -> &[String] {
        (**self).unknown_columns()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn durability(&self) -> Durability {
        (**self).durability()
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        (**self).put(column, key, value)
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        (**self).delete(column, key)
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        (**self).apply(transaction)
    }

    fn flush(&self) -> Result<(), StoreError> {
        (**self).flush()
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        (**self).snapshot()
    }

    fn last_in_range(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        (**self).last_in_range(column, range)
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        (**self).delete_range(column, range)
    }

    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        (**self).approximate_size(column, range)
    }
}
