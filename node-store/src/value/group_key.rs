//! Encryption keys of a group. Old rows lack one or both of the last fields. Facts: §4.3, §4.6.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::{Codec, Layout};
use crate::error::Malformed;
use crate::id::KeyId;
use crate::secret::Secret;

/// An encryption key of a group, as we write it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupKey {
    /// The key.
    pub group_key: Secret,
    /// Unix seconds.
    pub created_at: u64,
    /// Rises with every rotation.
    pub epoch: u64,
    /// Order of arrival among keys without an epoch.
    pub insertion_seq: u64,
}

impl GroupKey {
    /// The id the key is stored and advertised under.
    pub fn key_id(&self) -> KeyId {
        KeyId::of_scope_key(self.group_key.expose())
    }

    /// Orders keys: the greatest is the one in force. Arrival counts only among keys without an epoch.
    pub fn precedence(&self) -> (u64, u64, KeyId) {
        let arrival = if self.epoch == 0 { self.insertion_seq } else { 0 };
        (self.epoch, arrival, self.key_id())
    }
}

/// How many of the last two fields a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum GroupKeyLayout {
    /// Both; what we write.
    Full,
    /// No insertion order; read as 0.
    WithoutInsertion,
    /// Neither; both read as 0.
    WithoutEpoch,
}

/// A key row as found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadGroupKey {
    /// The key, absent fields 0.
    #[serde(flatten)]
    pub key: GroupKey,
    /// Which fields the row has.
    pub layout: GroupKeyLayout,
}

/// Writes full rows; reads a missing field as 0, but never a partial one.
pub enum GroupKeyCodec {}

const WITHOUT_EPOCH: usize = 40;
const WITHOUT_INSERTION: usize = 48;

impl Codec for GroupKeyCodec {
    type Value = GroupKey;
    type Read = ReadGroupKey;

    fn encode(value: &GroupKey) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(value)?)
    }

    fn decode(bytes: &[u8]) -> Result<ReadGroupKey, Malformed> {
        let layout = match bytes.len() {
            WITHOUT_EPOCH => GroupKeyLayout::WithoutEpoch,
            WITHOUT_INSERTION => GroupKeyLayout::WithoutInsertion,
            56 => GroupKeyLayout::Full,
            length => {
                return Err(Malformed::new(format!(
                    "{length} bytes; expected 56, or 48 or 40 of an old row"
                )));
            }
        };
        let mut full = zeroize::Zeroizing::new([0; 56]);
        full[..bytes.len()].copy_from_slice(bytes);
        Ok(ReadGroupKey {
            key: borsh::from_slice(full.as_slice())?,
            layout,
        })
    }

    fn reencode(read: &ReadGroupKey) -> Result<Vec<u8>, Malformed> {
        let mut bytes = borsh::to_vec(&read.key)?;
        match read.layout {
            GroupKeyLayout::Full => {}
            GroupKeyLayout::WithoutInsertion => bytes.truncate(WITHOUT_INSERTION),
            GroupKeyLayout::WithoutEpoch => bytes.truncate(WITHOUT_EPOCH),
        }
        Ok(bytes)
    }

    fn layout(read: &ReadGroupKey) -> Layout {
        match read.layout {
            GroupKeyLayout::Full => Layout::Seed,
            GroupKeyLayout::WithoutInsertion | GroupKeyLayout::WithoutEpoch => Layout::Reference,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_field_is_an_error_and_an_absent_one_is_zero() {
        let key = GroupKey {
            group_key: Secret::new([1; 32]),
            created_at: 2,
            epoch: 3,
            insertion_seq: 4,
        };
        let bytes = GroupKeyCodec::encode(&key).unwrap();
        for length in 0..=bytes.len() {
            let read = GroupKeyCodec::decode(&bytes[..length]);
            assert_eq!(read.is_ok(), matches!(length, 40 | 48 | 56), "{length} bytes");
            if let Ok(read) = read {
                assert_eq!(GroupKeyCodec::reencode(&read).unwrap(), &bytes[..length]);
                assert_eq!(read.key.epoch, if length >= 48 { 3 } else { 0 });
                assert_eq!(read.key.insertion_seq, if length == 56 { 4 } else { 0 });
            }
        }
    }
}
