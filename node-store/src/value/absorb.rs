//! Records that wait for code this node does not run yet. On disk: a u32 length, then the Borsh record. Facts: §4.4.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::{Bytes, Codec, Signature};
use crate::clock::HybridTimestamp;
use crate::error::Malformed;
use crate::id::{ApplicationId, BlobId, DeltaId, EntityId, KeyId, PublicKey};

/// A buffered delta, leaf or entity.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct AbsorbRecord {
    /// Its id.
    pub id: DeltaId,
    /// The deltas before it.
    pub parents: Vec<DeltaId>,
    /// When it was made.
    pub hlc: HybridTimestamp,
    /// Its payload as received.
    pub payload: Bytes,
    /// Nonce of the payload's encryption.
    #[serde(serialize_with = "super::bytes::as_hex")]
    pub nonce: [u8; 12],
    /// Its author.
    pub author_id: PublicKey,
    /// The peer that brought it.
    pub source_peer: Bytes,
    /// The key that opens the payload.
    pub key_id: KeyId,
    /// The governance heads its author had seen.
    pub governance_position: Option<Vec<DeltaId>>,
    /// The author's signature.
    pub delta_signature: Option<Signature>,
    /// How often it was tried again after governance moved.
    pub governance_drain_attempts: u8,
    /// The code that produced it.
    pub producing_app_key: Option<BlobId>,
    /// Set for a leaf.
    pub leaf: Option<BufferedLeaf>,
    /// Set for an entity.
    pub entity: Option<BufferedEntity>,
    /// The program it waits for, where none is installed.
    pub pending_application: Option<ApplicationId>,
}

/// A leaf of the state tree.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct BufferedLeaf {
    /// Its bytes.
    pub leaf_bytes: Bytes,
    /// The code whose layout it has.
    pub schema_app_key: BlobId,
}

/// An entity of the state tree.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct BufferedEntity {
    /// The entity.
    pub id: EntityId,
    /// Its entry row.
    pub entry: Bytes,
    /// Its index row.
    pub index: Bytes,
    /// The code whose layout it has.
    pub schema_app_key: BlobId,
}

/// Which of the three a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsorbShape<'r> {
    /// A delta.
    Delta,
    /// A leaf.
    Leaf(&'r BufferedLeaf),
    /// An entity.
    Entity(&'r BufferedEntity),
}

impl AbsorbRecord {
    /// Which of the three it is; both a leaf and an entity is neither.
    pub fn shape(&self) -> Result<AbsorbShape<'_>, Malformed> {
        match (&self.leaf, &self.entity) {
            (None, None) => Ok(AbsorbShape::Delta),
            (Some(leaf), None) => Ok(AbsorbShape::Leaf(leaf)),
            (None, Some(entity)) => Ok(AbsorbShape::Entity(entity)),
            (Some(_), Some(_)) => Err(Malformed::new("absorb record: both a leaf and an entity")),
        }
    }
}

/// Borsh behind a length.
pub enum AbsorbCodec {}

impl Codec for AbsorbCodec {
    type Value = AbsorbRecord;
    type Read = AbsorbRecord;

    fn encode(value: &AbsorbRecord) -> Result<Vec<u8>, Malformed> {
        value.shape()?;
        Self::reencode(value)
    }

    fn decode(bytes: &[u8]) -> Result<AbsorbRecord, Malformed> {
        let record: Vec<u8> = borsh::from_slice(bytes)?;
        Ok(borsh::from_slice(&record)?)
    }

    fn reencode(read: &AbsorbRecord) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(&borsh::to_vec(read)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_of_three_and_both_of_two_is_not_written() {
        let leaf = BufferedLeaf {
            leaf_bytes: Bytes::default(),
            schema_app_key: BlobId::ZERO,
        };
        let entity = BufferedEntity {
            id: EntityId::ZERO,
            entry: Bytes::default(),
            index: Bytes::default(),
            schema_app_key: BlobId::ZERO,
        };
        let record = |leaf: Option<BufferedLeaf>, entity: Option<BufferedEntity>| AbsorbRecord {
            id: DeltaId::ZERO,
            parents: vec![],
            hlc: HybridTimestamp::ZERO,
            payload: Bytes::default(),
            nonce: [0; 12],
            author_id: PublicKey::ZERO,
            source_peer: Bytes::default(),
            key_id: KeyId::ZERO,
            governance_position: None,
            delta_signature: None,
            governance_drain_attempts: 0,
            producing_app_key: None,
            leaf,
            entity,
            pending_application: None,
        };
        let (leaf, entity) = (Some(leaf), Some(entity));
        assert_eq!(record(None, None).shape().unwrap(), AbsorbShape::Delta);
        assert!(matches!(
            record(leaf.clone(), None).shape(),
            Ok(AbsorbShape::Leaf(_))
        ));
        assert!(matches!(
            record(None, entity.clone()).shape(),
            Ok(AbsorbShape::Entity(_))
        ));
        assert!(AbsorbCodec::encode(&record(leaf.clone(), None)).is_ok());
        assert!(AbsorbCodec::encode(&record(leaf, entity)).is_err());
    }
}
