//! A view that cannot write, by type. Rule: NODE-1.

use super::{Layer, ReadLayer};
use crate::column::Column;
use crate::cursor::Cursor;
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};

/// Reads of the layer below, and nothing else.
///
/// ```
/// use node_store::{Column, LayerExt, ReadLayer, Store};
///
/// let store = Store::memory();
/// assert_eq!(store.read_only().get(Column::Meta, b"key").unwrap(), None);
/// ```
///
/// It has no write side to call:
///
/// ```compile_fail,E0599
/// use node_store::{Column, LayerExt, Store, WriteLayer};
///
/// let store = Store::memory();
/// store.read_only().put(Column::Meta, b"key", b"value").unwrap();
/// ```
///
/// nor through the typed handle:
///
/// ```compile_fail,E0599
/// use node_store::{LayerExt, Store, id::ContextId, key, value};
///
/// let store = Store::memory();
/// let key = key::ContextResyncRequested { context_id: ContextId::ZERO };
/// store.read_only().handle().put(&key, &()).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly<'l, L> {
    inner: &'l L,
}

impl<'l, L: ReadLayer> ReadOnly<'l, L> {
    pub(crate) fn new(inner: &'l L) -> Self {
        ReadOnly { inner }
    }
}

impl<L> Layer for ReadOnly<'_, L> {}

impl<L: ReadLayer> ReadLayer for ReadOnly<'_, L> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(column, key)
    }

    fn range(
        &self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Cursor<'_>, StoreError> {
        self.inner.range(column, range, direction)
    }

    fn iter_snapshot(&self, column: Column) -> Result<Cursor<'_>, StoreError> {
        self.inner.iter_snapshot(column)
    }
}
