//! The derived order of sorted collections, written through the same layer as the state it is derived from, so that both
//! land together or neither does. Facts: §2.3.

use crate::column::Column;
use crate::cursor::Cursor;
use crate::error::{Hex, Malformed, StoreError};
use crate::id::{CollectionId, ContextId, EntityId, Hash};
use crate::key::{Direction, SortedIndexKey, SortedIndexMetaKey};
use crate::layer::{ReadLayer, WriteLayer};

/// The index rows of one collection in a layer.
#[derive(Debug)]
pub struct SortedIndex<L> {
    layer: L,
    owner: SortedIndexMetaKey,
}

impl<L: ReadLayer> SortedIndex<L> {
    /// The index of a collection.
    pub fn new(layer: L, context_id: ContextId, collection_id: CollectionId) -> Self {
        SortedIndex {
            layer,
            owner: SortedIndexMetaKey {
                context_id,
                collection_id,
            },
        }
    }

    /// Whether the index rows are those of the collection as it is now. If not, they must be rebuilt before use.
    pub fn is_valid_for(&self, full_hash: &Hash) -> Result<bool, StoreError> {
        let stamp = self.layer.get(Column::SortedIndexMeta, &self.owner.to_bytes())?;
        Ok(stamp.is_some_and(|stamp| stamp == full_hash.as_bytes()))
    }

    /// Entries between two order keys, each with whether it is included, in either direction.
    pub fn entries(
        &self,
        lower: Option<(&[u8], bool)>,
        upper: Option<(&[u8], bool)>,
        direction: Direction,
    ) -> Result<IndexEntries<'_>, StoreError> {
        let range = self.owner.rows(lower, upper);
        Ok(IndexEntries {
            rows: self.layer.range(Column::SortedIndex, &range, direction)?,
        })
    }
}

impl<L: WriteLayer> SortedIndex<L> {
    fn key(&self, order_key: &[u8]) -> Vec<u8> {
        let SortedIndexMetaKey {
            context_id,
            collection_id,
        } = self.owner;
        SortedIndexKey {
            context_id,
            collection_id,
            order_key: order_key.to_vec(),
        }
        .to_bytes()
    }

    /// Adds or moves an entry.
    pub fn insert(&mut self, order_key: &[u8], entry: EntityId) -> Result<(), StoreError> {
        let key = self.key(order_key);
        self.layer.put(Column::SortedIndex, &key, entry.as_bytes())
    }

    /// Removes an entry.
    pub fn remove(&mut self, order_key: &[u8]) -> Result<(), StoreError> {
        let key = self.key(order_key);
        self.layer.delete(Column::SortedIndex, &key)
    }

    /// States that the rows are those of the collection with this hash.
    pub fn stamp(&mut self, full_hash: &Hash) -> Result<(), StoreError> {
        let key = self.owner.to_bytes();
        self.layer
            .put(Column::SortedIndexMeta, &key, full_hash.as_bytes())
    }

    /// States nothing any more: the next reader rebuilds.
    pub fn invalidate(&mut self) -> Result<(), StoreError> {
        let key = self.owner.to_bytes();
        self.layer.delete(Column::SortedIndexMeta, &key)
    }
}

/// Entries of a sorted collection, in order.
pub struct IndexEntries<'i> {
    rows: Cursor<'i>,
}

impl Iterator for IndexEntries<'_> {
    type Item = Result<(Vec<u8>, EntityId), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.rows.next() {
            Ok(None) => None,
            Err(StoreError::CursorFailed { .. }) => None,
            Err(error) => Some(Err(error)),
            Ok(Some(row)) => {
                let entry = <[u8; 32]>::try_from(row.value).map_err(|_| StoreError::UndecodableValue {
                    column: Column::SortedIndex,
                    family: "SortedIndex",
                    key: Hex(row.key.to_vec()),
                    length: row.value.len(),
                    cause: Malformed::new("expected 32 bytes"),
                });
                Some(
                    SortedIndexKey::parse(row.key).and_then(|key| Ok((key.order_key, EntityId::new(entry?)))),
                )
            }
        }
    }
}
