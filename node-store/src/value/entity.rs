//! The entity tree inside shared state: index rows, children, metadata. Facts: §4.8.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::Signature;
use crate::error::Malformed;
use crate::id::{AccountId, CollectionId, EntityId, Hash, PublicKey, sha256};

/// The index row of an entity: where it stands in the tree and what it hashes to.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct EntityIndex {
    /// The entity.
    pub id: EntityId,
    /// Its parent; the root has none.
    pub parent_id: Option<EntityId>,
    /// Its children, where it is a collection.
    pub children: Option<Vec<ChildInfo>>,
    /// Hash of its own data and all below it.
    pub full_hash: Hash,
    /// Hash of its own data.
    pub own_hash: Hash,
    /// Its metadata.
    pub metadata: EntityMetadata,
    /// When it was deleted.
    pub deleted_at: Option<u64>,
    /// Children that are gone.
    pub deleted_children: Vec<EntityId>,
}

impl EntityIndex {
    /// Reads a whole row.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(borsh::from_slice(bytes)?)
    }

    /// Writes a row; one child entry an id at most.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        self.compute_full_hash()?;
        Ok(borsh::to_vec(self)?)
    }

    /// What `full_hash` must be: over the own hash and the children's, ordered by child id alone.
    pub fn compute_full_hash(&self) -> Result<Hash, Malformed> {
        let mut children: Vec<&ChildInfo> = self.children.iter().flatten().collect();
        children.sort_unstable_by_key(|child| child.id);
        if let Some(pair) = children.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(Malformed::new(format!(
                "entity {}: child {} twice",
                self.id, pair[0].id
            )));
        }
        let mut content = Vec::with_capacity(32 * (1 + children.len()));
        content.extend_from_slice(self.own_hash.as_bytes());
        for child in children {
            content.extend_from_slice(child.merkle_hash.as_bytes());
        }
        Ok(Hash::new(sha256(&[&content])))
    }
}

/// A child as its parent knows it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ChildInfo {
    /// The child.
    pub id: EntityId,
    /// Its full hash.
    pub merkle_hash: Hash,
    /// Its metadata.
    pub metadata: EntityMetadata,
}

/// What is known of an entity beside its data.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct EntityMetadata {
    /// When it was made.
    pub created_at: u64,
    /// When it last changed.
    pub updated_at: u64,
    /// Who may change it.
    pub storage_type: StorageType,
    /// How concurrent changes merge, by the reference's tag and its fields.
    pub crdt_type: Option<CrdtType>,
    /// The field of its parent that it fills.
    pub field_name: Option<String>,
    /// Version of its layout.
    pub schema_version: Option<u32>,
}

/// How concurrent changes of an entity merge. Only the tag is stored here; merging is the program's matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct CrdtType(pub u8);

/// Who may change an entity.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub enum StorageType {
    /// Every member.
    Public,
    /// Its owner.
    User {
        /// The owner.
        owner: AccountId,
        /// The owner's signature.
        signature: Option<SignatureData>,
    },
    /// Nobody.
    Frozen,
    /// A named set of writers.
    Shared {
        /// What each writer may do.
        writers: BTreeMap<AccountId, OpMask>,
        /// A writer's signature.
        signature: Option<SignatureData>,
    },
    /// The writers of another entity.
    SharedMember {
        /// That entity.
        anchor: EntityId,
        /// A writer's signature.
        signature: Option<SignatureData>,
    },
}

impl StorageType {
    /// The same with the 64 signature bytes zeroed, which is what ids are computed over.
    #[must_use]
    pub fn without_signature(&self) -> StorageType {
        let mut copy = self.clone();
        match &mut copy {
            StorageType::Public | StorageType::Frozen => {}
            StorageType::User { signature, .. }
            | StorageType::Shared { signature, .. }
            | StorageType::SharedMember { signature, .. } => {
                if let Some(data) = signature {
                    data.signature = Signature::ZERO;
                }
            }
        }
        copy
    }
}

/// A signature over an entity.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct SignatureData {
    /// The signature.
    pub signature: Signature,
    /// Strictly rising a signer.
    pub nonce: u64,
    /// The signing key, where it is not the owner's own.
    pub signer: Option<PublicKey>,
}

/// What a writer may do: bits 1 (write), 2 (delete), 4 (administer). Any other bit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, Serialize)]
pub struct OpMask(u8);

impl OpMask {
    /// May change data.
    pub const WRITE: OpMask = OpMask(1);
    /// May delete.
    pub const DELETE: OpMask = OpMask(2);
    /// May change the set of writers.
    pub const ADMIN: OpMask = OpMask(4);

    /// Checks the bits.
    pub fn new(bits: u8) -> Result<Self, Malformed> {
        if bits & !7 == 0 {
            Ok(OpMask(bits))
        } else {
            Err(Malformed::new(format!(
                "writer mask {bits:#04x}; only the bits 1, 2 and 4 have a meaning"
            )))
        }
    }

    /// The bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether every bit of `other` is set.
    pub const fn allows(self, other: OpMask) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BorshDeserialize for OpMask {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Self> {
        OpMask::new(u8::deserialize_reader(reader)?)
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
    }
}

/// The id of a map's entry.
pub fn map_entry_id(parent: EntityId, key: &[u8]) -> EntityId {
    EntityId::new(sha256(&[parent.as_bytes(), b"__calimero_entry__", key]))
}

/// The id of a named collection, at the top or below a parent.
pub fn collection_id(parent: Option<EntityId>, field: &str) -> CollectionId {
    let parent: &[u8] = parent.as_ref().map_or(&[], |parent| parent.as_bytes());
    CollectionId::new(sha256(&[parent, b"__calimero_collection__", field.as_bytes()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_hash_sorts_by_child_id_and_refuses_a_child_twice() {
        let metadata = EntityMetadata {
            created_at: 9,
            updated_at: 9,
            storage_type: StorageType::Public,
            crdt_type: None,
            field_name: None,
            schema_version: None,
        };
        let child = |id: u8, created_at: u64| ChildInfo {
            id: [id; 32].into(),
            merkle_hash: [id + 100; 32].into(),
            metadata: EntityMetadata {
                created_at,
                ..metadata.clone()
            },
        };
        let index = |children: Vec<ChildInfo>| EntityIndex {
            id: [1; 32].into(),
            parent_id: None,
            children: Some(children),
            full_hash: Hash::ZERO,
            own_hash: [5; 32].into(),
            metadata: metadata.clone(),
            deleted_at: None,
            deleted_children: vec![],
        };
        let by_time = index(vec![child(2, 1), child(1, 2)]).compute_full_hash().unwrap();
        let by_id = index(vec![child(1, 2), child(2, 1)]).compute_full_hash().unwrap();
        assert_eq!(by_time, by_id);
        assert_eq!(by_id, Hash::new(sha256(&[&[5; 32], &[101; 32], &[102; 32]])));
        assert!(index(vec![child(1, 1), child(1, 2)]).encode().is_err());
    }
}
