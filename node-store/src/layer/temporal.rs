//! Staging: writes wait in a shadow and are read back from it; the layer below sees them all at once or never.
//! Rule: NODE-2.

use super::merge::MergeCursor;
use super::{Layer, ReadLayer, WriteLayer};
use crate::column::Column;
use crate::cursor::Cursor;
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::transaction::{Op, Transaction};

/// A staging layer over `L`. Dropped without [`commit`](WriteLayer::commit), it leaves no trace. Layers nest.
#[derive(Debug)]
pub struct Temporal<'l, L> {
    inner: &'l mut L,
    shadow: Transaction,
}

impl<'l, L: WriteLayer> Temporal<'l, L> {
    pub(crate) fn new(inner: &'l mut L) -> Self {
        Temporal {
            inner,
            shadow: Transaction::new(),
        }
    }

    /// Whether nothing is staged. True again after a commit that succeeded.
    pub fn is_empty(&self) -> bool {
        self.shadow.is_empty()
    }

    /// What is staged.
    pub fn staged(&self) -> &Transaction {
        &self.shadow
    }
}

impl<L> Layer for Temporal<'_, L> {}

impl<L: WriteLayer> ReadLayer for Temporal<'_, L> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        match self.shadow.get(column, key) {
            Some(Op::Put(_)) => Ok(true),
            Some(Op::Delete) => Ok(false),
            None => self.inner.has(column, key),
        }
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.shadow.get(column, key) {
            Some(Op::Put(value)) => Ok(Some(value.clone())),
            Some(Op::Delete) => Ok(None),
            None => self.inner.get(column, key),
        }
    }

    fn range(
        &self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Cursor<'_>, StoreError> {
        let inner = self.inner.range(column, range, direction)?;
        Ok(MergeCursor::over(inner, &self.shadow, range.clone(), direction))
    }

    fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
        let inner = self.inner.iter_snapshot(column)?;
        Ok(MergeCursor::over(
            inner,
            &self.shadow,
            KeyRange::all(),
            Direction::Ascending,
        ))
    }
}

impl<L: WriteLayer> WriteLayer for Temporal<'_, L> {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.shadow.put(column, key, value);
        Ok(())
    }

    fn delete(&mut self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.shadow.delete(column, key);
        Ok(())
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        self.shadow.merge(transaction);
        Ok(())
    }

    /// One `apply` below. The shadow is empty after it; if it fails, everything is still staged.
    fn commit(&mut self) -> Result<(), StoreError> {
        self.inner.apply(&self.shadow)?;
        self.shadow = Transaction::new();
        Ok(())
    }
}
