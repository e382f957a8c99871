//! Raw keys of the ordered index. Their width varies: byte order of `order_key` is the collection's order.
//! Facts: §2.3.

use super::KeyRange;
use super::part::array;
use crate::column::Column;
use crate::error::{Hex, Malformed, StoreError};
use crate::id::{CollectionId, ContextId};

/// An entry of a sorted collection: `context_id ‖ collection_id ‖ order_key`; the value is the entry's 32-byte id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedIndexKey {
    /// The context.
    pub context_id: ContextId,
    /// The collection.
    pub collection_id: CollectionId,
    /// The caller's own key bytes, unhashed.
    pub order_key: Vec<u8>,
}

/// Which state of a collection its index rows hold: `context_id ‖ collection_id`; the value is its full hash then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SortedIndexMetaKey {
    /// The context.
    pub context_id: ContextId,
    /// The collection.
    pub collection_id: CollectionId,
}

impl SortedIndexMetaKey {
    /// Width in bytes.
    pub const LEN: usize = 64;

    /// The key's bytes, which are also the prefix of the collection's index rows.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(self.context_id.as_bytes());
        bytes[32..].copy_from_slice(self.collection_id.as_bytes());
        bytes
    }

    /// Reads exactly 64 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, StoreError> {
        split(bytes, Column::SortedIndexMeta, "SortedIndexMeta").and_then(|(key, rest)| match rest {
            [] => Ok(key),
            _ => Err(refuse(
                bytes,
                Column::SortedIndexMeta,
                "SortedIndexMeta",
                "expected 64 bytes",
            )),
        })
    }

    /// The index rows of the collection whose order keys lie between the bounds. Each bound is a key and whether it is
    /// included; absent means open.
    pub fn rows(&self, lower: Option<(&[u8], bool)>, upper: Option<(&[u8], bool)>) -> KeyRange {
        let prefix = self.to_bytes();
        let all = KeyRange::prefix(&prefix);
        // The key right after `k` in byte order is `k` with one zero byte: that is how a half-open range leaves out its
        // start or takes in its end.
        let bound = |key: &[u8], after: bool| {
            let mut bytes = [prefix.as_slice(), key].concat();
            if after {
                bytes.push(0);
            }
            bytes
        };
        let start = lower.map_or_else(|| prefix.to_vec(), |(key, included)| bound(key, !included));
        match (upper, all.end()) {
            (Some((key, included)), _) => KeyRange::new(start, bound(key, included)),
            (None, Some(end)) => KeyRange::new(start, end),
            (None, None) => KeyRange::from(start),
        }
    }
}

impl SortedIndexKey {
    /// The key's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let owner = SortedIndexMetaKey {
            context_id: self.context_id,
            collection_id: self.collection_id,
        };
        [owner.to_bytes().as_slice(), &self.order_key].concat()
    }

    /// Reads at least 64 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, StoreError> {
        let (owner, rest) = split(bytes, Column::SortedIndex, "SortedIndex")?;
        Ok(SortedIndexKey {
            context_id: owner.context_id,
            collection_id: owner.collection_id,
            order_key: rest.to_vec(),
        })
    }
}

fn refuse(bytes: &[u8], column: Column, family: &'static str, reason: &str) -> StoreError {
    StoreError::MalformedKey {
        column,
        family,
        key: Hex(bytes.to_vec()),
        cause: Malformed::new(reason),
    }
}

fn split<'k>(
    bytes: &'k [u8],
    column: Column,
    family: &'static str,
) -> Result<(SortedIndexMetaKey, &'k [u8]), StoreError> {
    let Some((owner, rest)) = bytes.split_at_checked(SortedIndexMetaKey::LEN) else {
        return Err(refuse(bytes, column, family, "expected at least 64 bytes"));
    };
    let id = |part: &[u8]| array(part).map_err(|cause| refuse(bytes, column, family, &cause.0));
    let key = SortedIndexMetaKey {
        context_id: ContextId::new(id(&owner[..32])?),
        collection_id: CollectionId::new(id(&owner[32..])?),
    };
    Ok((key, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_become_half_open_byte_ranges() {
        let owner = SortedIndexMetaKey {
            context_id: [1; 32].into(),
            collection_id: [0xff; 32].into(),
        };
        let row = |order_key: &[u8]| {
            let (context_id, collection_id) = (owner.context_id, owner.collection_id);
            SortedIndexKey {
                context_id,
                collection_id,
                order_key: order_key.to_vec(),
            }
            .to_bytes()
        };
        let range = owner.rows(Some((b"b", false)), Some((b"d", true)));
        assert!(!range.contains(&row(b"b")));
        assert!(range.contains(&row(b"b\0")));
        assert!(range.contains(&row(b"d")));
        assert!(!range.contains(&row(b"d\0")));
        let open = owner.rows(Some((b"b", true)), None);
        assert!(open.contains(&row(b"b")));
        assert!(open.contains(&row(&[0xff; 9])));
        assert!(!owner.rows(None, Some((b"b", false))).contains(&row(b"b")));
        assert_eq!(SortedIndexKey::parse(&row(b"xyz")).unwrap().order_key, b"xyz");
        assert!(SortedIndexKey::parse(&[0; 63]).is_err());
        assert!(SortedIndexMetaKey::parse(&[0; 65]).is_err());
    }
}
