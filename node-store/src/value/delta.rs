//! Causal deltas and the actions inside them. The seed and the reference differ in one field. Facts: §4.1, §4.9, §12.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::entity::{ChildInfo, EntityMetadata};
use super::{Bytes, Codec, Layout, Signature};
use crate::clock::HybridTimestamp;
use crate::error::Malformed;
use crate::id::{DeltaId, EntityId, Hash, PublicKey, sha256};

/// A causal delta, as we write it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextDagDelta {
    /// The delta's id.
    pub delta_id: DeltaId,
    /// The deltas it was made on top of.
    pub parents: Vec<DeltaId>,
    /// Borsh of its actions ([`Action::decode_list`]).
    pub actions: Bytes,
    /// When it was made.
    pub hlc: HybridTimestamp,
    /// Whether it has been applied here.
    pub applied: bool,
    /// Root of the state after it.
    pub expected_root_hash: Hash,
    /// Events it emitted, as JSON text.
    pub events: Option<Bytes>,
    /// Its author.
    pub author_id: Option<PublicKey>,
    /// Borsh of the governance heads its author had seen ([`GovernancePosition::decode`]).
    pub governance_position_blob: Option<Bytes>,
    /// The author's signature.
    pub delta_signature: Option<Signature>,
}

/// A causal delta, as the reference implementation writes it: in the place of the expected root it has an optional
/// one, set only for rows that stand for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ReferenceDagDelta {
    /// The delta's id.
    pub delta_id: DeltaId,
    /// The deltas it was made on top of.
    pub parents: Vec<DeltaId>,
    /// Borsh of its actions.
    pub actions: Bytes,
    /// When it was made.
    pub hlc: HybridTimestamp,
    /// Whether it has been applied here.
    pub applied: bool,
    /// Root of the snapshot that the row stands for.
    pub checkpoint_root_hash: Option<Hash>,
    /// Events it emitted, as JSON text.
    pub events: Option<Bytes>,
    /// Its author.
    pub author_id: Option<PublicKey>,
    /// Borsh of the governance heads its author had seen.
    pub governance_position_blob: Option<Bytes>,
    /// The author's signature.
    pub delta_signature: Option<Signature>,
}

/// A delta row as found. A row that fits both layouts is the seed's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ReadDagDelta {
    /// In the layout that we write.
    Seed(ContextDagDelta),
    /// In the reference's layout.
    Reference(ReferenceDagDelta),
}

impl ReadDagDelta {
    /// The delta's parents, whichever layout it came in.
    pub fn parents(&self) -> &[DeltaId] {
        match self {
            ReadDagDelta::Seed(delta) => &delta.parents,
            ReadDagDelta::Reference(delta) => &delta.parents,
        }
    }

    /// Whether it has been applied here.
    pub fn is_applied(&self) -> bool {
        match self {
            ReadDagDelta::Seed(delta) => delta.applied,
            ReadDagDelta::Reference(delta) => delta.applied,
        }
    }

    /// The delta's actions, decoded.
    pub fn actions(&self) -> Result<Vec<Action>, Malformed> {
        match self {
            ReadDagDelta::Seed(delta) => Action::decode_list(&delta.actions),
            ReadDagDelta::Reference(delta) => Action::decode_list(&delta.actions),
        }
    }
}

/// Writes the seed's layout and reads both, strictly.
pub enum DagDeltaCodec {}

impl Codec for DagDeltaCodec {
    type Value = ContextDagDelta;
    type Read = ReadDagDelta;

    fn encode(value: &ContextDagDelta) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(value)?)
    }

    fn decode(bytes: &[u8]) -> Result<ReadDagDelta, Malformed> {
        match borsh::from_slice(bytes) {
            Ok(delta) => Ok(ReadDagDelta::Seed(delta)),
            Err(seed) => match borsh::from_slice(bytes) {
                Ok(delta) => Ok(ReadDagDelta::Reference(delta)),
                Err(reference) => Err(Malformed::new(format!(
                    "{seed}; as the reference writes it: {reference}"
                ))),
            },
        }
    }

    fn reencode(read: &ReadDagDelta) -> Result<Vec<u8>, Malformed> {
        Ok(match read {
            ReadDagDelta::Seed(delta) => borsh::to_vec(delta)?,
            ReadDagDelta::Reference(delta) => borsh::to_vec(delta)?,
        })
    }

    fn layout(read: &ReadDagDelta) -> Layout {
        match read {
            ReadDagDelta::Seed(_) => Layout::Seed,
            ReadDagDelta::Reference(_) => Layout::Reference,
        }
    }
}

/// The governance heads that an author had seen: at most 32, none twice.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GovernancePosition {
    /// The heads.
    pub governance_dag_heads: Vec<DeltaId>,
}

impl GovernancePosition {
    /// Most heads in one position.
    pub const MAX_HEADS: usize = 32;

    /// Reads a position and checks its two limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let position: GovernancePosition = borsh::from_slice(bytes)?;
        position.check()?;
        Ok(position)
    }

    /// Writes a position after checking its limits.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        self.check()?;
        Ok(borsh::to_vec(self)?)
    }

    fn check(&self) -> Result<(), Malformed> {
        let heads = &self.governance_dag_heads;
        if heads.len() > Self::MAX_HEADS {
            return Err(Malformed::new(format!(
                "governance position: {} heads; at most 32",
                heads.len()
            )));
        }
        let mut sorted = heads.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Malformed::new(format!(
                "governance position: head {} twice",
                pair[0]
            ))),
            None => Ok(()),
        }
    }
}

/// One change of the entity tree. Tag 1 is retired and refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    /// A new entity.
    Add {
        /// The entity.
        id: EntityId,
        /// Its data.
        data: Bytes,
        /// The way from the root to it.
        ancestors: Vec<ChildInfo>,
        /// Its metadata.
        metadata: EntityMetadata,
    },
    /// An entity goes; a trace of it stays.
    DeleteRef {
        /// The entity.
        id: EntityId,
        /// When, nanoseconds or whatever unit its author's clock has.
        deleted_at: u64,
        /// Its metadata.
        metadata: EntityMetadata,
    },
    /// New data of an entity.
    Update {
        /// The entity.
        id: EntityId,
        /// Its data.
        data: Bytes,
        /// The way from the root to it.
        ancestors: Vec<ChildInfo>,
        /// Its metadata.
        metadata: EntityMetadata,
    },
}

impl BorshSerialize for Action {
    fn serialize<W: std::io::Write>(&self, writer: &mut W) -> std::io::Result<()> {
        match self {
            Action::Add {
                id,
                data,
                ancestors,
                metadata,
            } => BorshSerialize::serialize(&(0u8, id, data, ancestors, metadata), writer),
            Action::DeleteRef {
                id,
                deleted_at,
                metadata,
            } => BorshSerialize::serialize(&(2u8, id, deleted_at, metadata), writer),
            Action::Update {
                id,
                data,
                ancestors,
                metadata,
            } => BorshSerialize::serialize(&(3u8, id, data, ancestors, metadata), writer),
        }
    }
}

impl BorshDeserialize for Action {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Self> {
        match u8::deserialize_reader(reader)? {
            0 => {
                let (id, data, ancestors, metadata) = BorshDeserialize::deserialize_reader(reader)?;
                Ok(Action::Add {
                    id,
                    data,
                    ancestors,
                    metadata,
                })
            }
            2 => {
                let (id, deleted_at, metadata) = BorshDeserialize::deserialize_reader(reader)?;
                Ok(Action::DeleteRef {
                    id,
                    deleted_at,
                    metadata,
                })
            }
            3 => {
                let (id, data, ancestors, metadata) = BorshDeserialize::deserialize_reader(reader)?;
                Ok(Action::Update {
                    id,
                    data,
                    ancestors,
                    metadata,
                })
            }
            tag => Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                format!("action tag {tag}; expected 0 (add), 2 (delete) or 3 (update)"),
            )),
        }
    }
}

impl Action {
    /// Reads the action list of a delta.
    pub fn decode_list(bytes: &[u8]) -> Result<Vec<Action>, Malformed> {
        Ok(borsh::from_slice(bytes)?)
    }

    /// Writes the action list of a delta.
    pub fn encode_list(actions: &[Action]) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(actions)?)
    }
}

/// The id of a delta: a hash over its parents in the given order and its actions. Signatures inside the metadata and
/// the time stamp of the delta are no part of it.
pub fn delta_id(parents: &[DeltaId], actions: &[Action]) -> Result<DeltaId, Malformed> {
    let mut content = Vec::new();
    for parent in parents {
        content.extend_from_slice(parent.as_bytes());
    }
    for action in actions {
        match action {
            Action::Add {
                id,
                data,
                ancestors,
                metadata,
            }
            | Action::Update {
                id,
                data,
                ancestors,
                metadata,
            } => {
                let word: &[u8] = if matches!(action, Action::Add { .. }) {
                    b"add"
                } else {
                    b"update"
                };
                content.extend_from_slice(word);
                content.extend_from_slice(id.as_bytes());
                content.extend_from_slice(data);
                content.extend(borsh::to_vec(ancestors)?);
                content.extend_from_slice(&metadata.updated_at.to_le_bytes());
                content.extend(borsh::to_vec(&metadata.storage_type.without_signature())?);
            }
            Action::DeleteRef {
                id,
                deleted_at,
                metadata,
            } => {
                content.extend_from_slice(b"delete");
                content.extend_from_slice(id.as_bytes());
                content.extend_from_slice(&deleted_at.to_le_bytes());
                content.extend(borsh::to_vec(&metadata.storage_type.without_signature())?);
            }
        }
    }
    Ok(DeltaId::new(sha256(&[&content])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta() -> ContextDagDelta {
        ContextDagDelta {
            delta_id: [1; 32].into(),
            parents: vec![[2; 32].into()],
            actions: Bytes::default(),
            hlc: HybridTimestamp::ZERO,
            applied: true,
            expected_root_hash: [3; 32].into(),
            events: None,
            author_id: Some([4; 32].into()),
            governance_position_blob: None,
            delta_signature: None,
        }
    }

    #[test]
    fn node_12_both_layouts_are_read_and_told_apart_and_the_seed_wins() {
        let bytes = DagDeltaCodec::encode(&delta()).unwrap();
        let read = DagDeltaCodec::decode(&bytes).unwrap();
        assert_eq!(read, ReadDagDelta::Seed(delta()));
        assert_eq!(DagDeltaCodec::layout(&read), Layout::Seed);

        let d = delta();
        let reference = ReferenceDagDelta {
            delta_id: d.delta_id,
            parents: d.parents,
            actions: d.actions,
            hlc: d.hlc,
            applied: d.applied,
            checkpoint_root_hash: None,
            events: None,
            author_id: d.author_id,
            governance_position_blob: None,
            delta_signature: None,
        };
        let bytes = borsh::to_vec(&reference).unwrap();
        let read = DagDeltaCodec::decode(&bytes).unwrap();
        assert_eq!(DagDeltaCodec::layout(&read), Layout::Reference);
        assert_eq!(DagDeltaCodec::reencode(&read).unwrap(), bytes);

        // A reference row that can be read either way is the seed's: no checkpoint, 27 zero bytes of events and nothing
        // else are as many bytes as a zero root and four fields that are absent.
        let either = ReferenceDagDelta {
            events: Some(Bytes(vec![0; 27])),
            author_id: None,
            ..reference
        };
        let bytes = borsh::to_vec(&either).unwrap();
        assert_eq!(borsh::from_slice::<ReferenceDagDelta>(&bytes).unwrap(), either);
        let read = DagDeltaCodec::decode(&bytes).unwrap();
        assert_eq!(DagDeltaCodec::layout(&read), Layout::Seed);
        assert_eq!(DagDeltaCodec::reencode(&read).unwrap(), bytes);
    }

    #[test]
    fn node_7_truncation_and_trailing_bytes_are_errors() {
        let bytes = DagDeltaCodec::encode(&delta()).unwrap();
        for length in 0..bytes.len() {
            assert!(DagDeltaCodec::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(DagDeltaCodec::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn governance_positions_hold_at_most_32_distinct_heads() {
        let heads = |n: u8| GovernancePosition {
            governance_dag_heads: (0..n).map(|i| [i; 32].into()).collect(),
        };
        assert!(heads(32).encode().is_ok());
        assert!(heads(33).encode().is_err());
        let twice = GovernancePosition {
            governance_dag_heads: vec![[1; 32].into(), [1; 32].into()],
        };
        assert!(twice.encode().is_err());
        assert!(GovernancePosition::decode(&borsh::to_vec(&twice).unwrap()).is_err());
    }
}
