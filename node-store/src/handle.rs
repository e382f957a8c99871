//! Typed access to a layer: keys and values of a family instead of bytes. Rules: NODE-4, NODE-7.

use crate::error::{Hex, StoreError};
use crate::key::{Direction, Key, KeyRange};
use crate::layer::{ReadLayer, WriteLayer};
use crate::scan::Scan;
use crate::value::Codec;

/// What is read from a family's rows.
pub type Read<K> = <<K as Key>::Codec as Codec>::Read;
/// What is written to a family's rows.
pub type Value<K> = <<K as Key>::Codec as Codec>::Value;

/// Typed reads over any layer, typed writes over one that can be written.
#[derive(Clone, Debug)]
pub struct Handle<L> {
    layer: L,
}

impl<L> Handle<L> {
    pub(crate) fn new(layer: L) -> Self {
        Handle { layer }
    }

    /// The layer below.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// The layer below, to stage or commit.
    pub fn layer_mut(&mut self) -> &mut L {
        &mut self.layer
    }
}

impl<L: ReadLayer> Handle<L> {
    /// Whether the row is there, whatever its value.
    pub fn has<K: Key>(&self, key: &K) -> Result<bool, StoreError> {
        self.layer.has(K::COLUMN, &key.to_bytes())
    }

    /// The row's value. A value that does not decode is an error, never "absent" (NODE-7).
    pub fn get<K: Key>(&self, key: &K) -> Result<Option<Read<K>>, StoreError> {
        let bytes = key.to_bytes();
        match self.layer.get(K::COLUMN, &bytes)? {
            Some(value) => decode::<K>(&bytes, &value).map(Some),
            None => Ok(None),
        }
    }

    /// The rows of one owner, ascending: bounded by the family's prefix and the owner, so that a neighbouring family is
    /// never seen.
    pub fn scan<K: Key>(&self, owner: &K::Owner) -> Result<Scan<'_, K>, StoreError> {
        self.scan_range(&K::owner_range(owner), Direction::Ascending)
    }

    /// The rows of one owner, descending.
    pub fn scan_back<K: Key>(&self, owner: &K::Owner) -> Result<Scan<'_, K>, StoreError> {
        self.scan_range(&K::owner_range(owner), Direction::Descending)
    }

    /// All rows of a family, ascending.
    pub fn scan_family<K: Key>(&self) -> Result<Scan<'_, K>, StoreError> {
        self.scan_range(&K::family_range(), Direction::Ascending)
    }

    /// The rows of a family in a range of keys; the part of the range outside the family is left out.
    pub fn scan_range<K: Key>(
        &self,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Scan<'_, K>, StoreError> {
        let range = within(range, &K::family_range());
        Ok(Scan::new(self.layer.range(K::COLUMN, &range, direction)?))
    }
}

impl<L: WriteLayer> Handle<L> {
    /// Writes a row.
    pub fn put<K: Key>(&mut self, key: &K, value: &Value<K>) -> Result<(), StoreError> {
        let value = encode::<K>(value)?;
        self.layer.put(K::COLUMN, &key.to_bytes(), &value)
    }

    /// Removes a row.
    pub fn delete<K: Key>(&mut self, key: &K) -> Result<(), StoreError> {
        self.layer.delete(K::COLUMN, &key.to_bytes())
    }

    /// Hands everything staged to the layer below.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        self.layer.commit()
    }
}

fn within(range: &KeyRange, family: &KeyRange) -> KeyRange {
    let start = range.start().max(family.start());
    match (range.end(), family.end()) {
        (None, None) => KeyRange::from(start),
        (Some(end), None) | (None, Some(end)) => KeyRange::new(start, end),
        (Some(one), Some(other)) => KeyRange::new(start, one.min(other)),
    }
}

pub(crate) fn encode<K: Key>(value: &Value<K>) -> Result<Vec<u8>, StoreError> {
    K::Codec::encode(value).map_err(|cause| StoreError::UnencodableValue {
        family: K::NAME,
        cause,
    })
}

pub(crate) fn decode<K: Key>(key: &[u8], value: &[u8]) -> Result<Read<K>, StoreError> {
    K::Codec::decode(value).map_err(|cause| StoreError::UndecodableValue {
        column: K::COLUMN,
        family: K::NAME,
        key: Hex(key.to_vec()),
        length: value.len(),
        cause,
    })
}
