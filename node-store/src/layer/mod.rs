//! Layers: reading and writing rows without knowing what stands below. Rules: NODE-1, NODE-2, NODE-6.

mod merge;
mod read_only;
mod temporal;

pub use read_only::ReadOnly;
pub use temporal::Temporal;

use crate::column::Column;
use crate::cursor::Cursor;
use crate::error::StoreError;
use crate::handle::Handle;
use crate::key::{Direction, KeyRange};
use crate::transaction::Transaction;

/// Anything that rows can be read from or written to. The base of the other traits; it promises nothing itself.
pub trait Layer {}

/// A layer that can be read. Keys and values are raw here; [`Handle`] gives them types.
pub trait ReadLayer: Layer {
    /// Whether the key has a value. An empty value is one.
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError>;

    /// The key's value.
    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Walks the rows of a column that lie in a range.
    fn range(&self, column: Column, range: &KeyRange, direction: Direction)
    -> Result<Cursor<'_>, StoreError>;

    /// Walks a whole column in ascending order.
    fn iter(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
        self.range(column, &KeyRange::all(), Direction::Ascending)
    }

    /// Walks a whole column as it is at this moment, whatever is written afterwards (NODE-6).
    fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError>;
}

/// A layer that can be written.
pub trait WriteLayer: ReadLayer {
    /// Gives a key a value.
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes a key; an absent one is no error.
    fn delete(&mut self, column: Column, key: &[u8]) -> Result<(), StoreError>;

    /// All writes of the transaction, across columns, or none of them (NODE-5).
    fn apply(&mut self, transaction: &Transaction) -> Result<(), StoreError>;

    /// Hands everything staged to the layer below, in one `apply`. A layer that stages nothing does nothing.
    fn commit(&mut self) -> Result<(), StoreError>;
}

/// Ways to wrap a layer.
pub trait LayerExt: Layer + Sized {
    /// Typed reads.
    fn view(&self) -> Handle<&Self>
    where
        Self: ReadLayer,
    {
        Handle::new(self)
    }

    /// Typed reads and writes.
    fn handle(&mut self) -> Handle<&mut Self>
    where
        Self: WriteLayer,
    {
        Handle::new(self)
    }

    /// A staging layer over this one: nothing reaches it before `commit`.
    fn temporal(&mut self) -> Temporal<'_, Self>
    where
        Self: WriteLayer,
    {
        Temporal::new(self)
    }

    /// A view that cannot write.
    fn read_only(&self) -> ReadOnly<'_, Self>
    where
        Self: ReadLayer,
    {
        ReadOnly::new(self)
    }
}

impl<L: Layer + Sized> LayerExt for L {}

impl<L: Layer + ?Sized> Layer for &L {}
impl<L: Layer + ?Sized> Layer for &mut L {}

macro_rules! forward_reads {
    () => {
        fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
            (**self).has(column, key)
        }

        fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            (**self).get(column, key)
        }

        fn range(
            &self,
            column: Column,
            range: &KeyRange,
            direction: Direction,
        ) -> Result<Cursor<'_>, StoreError> {
            (**self).range(column, range, direction)
        }

        fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
            (**self).iter_snapshot(column)
        }
    };
}

impl<L: ReadLayer + ?Sized> ReadLayer for &L {
    forward_reads!();
}

impl<L: ReadLayer + ?Sized> ReadLayer for &mut L {
    forward_reads!();
}

impl<L: WriteLayer + ?Sized> WriteLayer for &mut L {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        (**self).put(column, key, value)
    }

    fn delete(&mut self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        (**self).delete(column, key)
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        (**self).apply(transaction)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        (**self).commit()
    }
}
