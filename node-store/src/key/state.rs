//! How rows of shared state get their 32-byte keys. Facts: §2.2.

use crate::error::StoreError;
use crate::id::{EntityId, StateKey, sha256};

/// What a state row holds of an entity. The key is the hash of the kind's byte and the id, so rows of different kinds
/// never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRow {
    /// The entity's place in the tree: [`EntityIndex`](crate::value::EntityIndex).
    Index,
    /// The entity's data.
    Entry,
    /// How far the entity is synchronised.
    SyncState,
}

impl StateRow {
    /// The state key of this row of an entity.
    pub fn key(self, entity: EntityId) -> StateKey {
        let tag = match self {
            StateRow::Index => 0,
            StateRow::Entry => 1,
            StateRow::SyncState => 2,
        };
        StateKey::new(sha256(&[&[tag], entity.as_bytes()]))
    }
}

impl StateKey {
    /// Takes a guest's key, which must be exactly 32 bytes: no padding, no truncation, so that no two guest keys meet.
    pub fn from_guest(bytes: &[u8]) -> Result<Self, StoreError> {
        bytes
            .try_into()
            .map(StateKey::new)
            .map_err(|_| StoreError::StateKeyLength { length: bytes.len() })
    }
}
