//! Values: the records of each family, field by field in the order of their layout, and how they are coded.
//!
//! Two framings exist: Identity (verbatim bytes) and Borsh. Where the seed and the reference implementation lay a
//! record out differently, we write the seed's and read both (NODE-12).

mod absorb;
mod application;
mod bytes;
mod context;
mod delta;
mod entity;
mod governance;
mod group;
mod group_key;
mod metadata;
mod namespace_identity;
mod nonce_window;

pub use absorb::{AbsorbCodec, AbsorbRecord, AbsorbShape, BufferedEntity, BufferedLeaf};
pub use application::{ApplicationMeta, ApplicationPreviousBlob, BlobMeta, Code, Service};
pub use bytes::{Bytes, Signature};
pub use context::{
    Alias, ContextActivatedBlob, ContextActivatedStateVersion, ContextAuthoredRemaining, ContextConfig,
    ContextExecutingBlob, ContextIdentity, ContextLeftMarker, ContextMeta, ContextMigrationFailed,
    ContextServiceName,
};
pub use delta::{
    Action, ContextDagDelta, DagDeltaCodec, GovernancePosition, ReadDagDelta, ReferenceDagDelta, delta_id,
};
pub use entity::{
    ChildInfo, EntityIndex, EntityMetadata, OpMask, SignatureData, StorageType, collection_id, map_entry_id,
};
pub use governance::{NamespaceEntry, SignedOp, SignedOpKind};
pub use group::{
    AutoFollow, GovernanceHead, GroupAccountKey, GroupCapabilities, GroupDeviceBinding, GroupMember,
    GroupMeta, GroupReentryBlock, GroupSubgroupVisibility, GroupUpgrade, MemberRole, NamespaceGovOp,
    NodeAccountRoot, NodeDeviceIdentity, NodeIdentity, UpgradeLadder, UpgradeRung, UpgradeStatus,
};
pub use group_key::{GroupKey, GroupKeyCodec, GroupKeyLayout, ReadGroupKey};
pub use metadata::MetadataRecord;
pub use namespace_identity::{NamespaceIdentity, NamespaceIdentityCodec, ReadNamespaceIdentity};
pub use nonce_window::NonceWindow;

use std::fmt::Debug;
use std::marker::PhantomData;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use crate::error::Malformed;
use crate::id::{AccountId, GroupId, PublicKey};

/// Which of two layouts a row was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Layout {
    /// The one that we write.
    Seed,
    /// The one that the reference implementation writes today; read, never written.
    Reference,
}

/// How the values of a family become bytes and come back.
pub trait Codec {
    /// What is written.
    type Value;
    /// What is read: the same type, or one that says in which layout the row was found.
    type Read: Debug + Serialize;

    /// Bytes of a value, in the one layout that we write. A limit that the value breaks is an error here, before
    /// anything is staged (NODE-4).
    fn encode(value: &Self::Value) -> Result<Vec<u8>, Malformed>;

    /// Reads the whole buffer; too few bytes or any left over is an error (NODE-7).
    fn decode(bytes: &[u8]) -> Result<Self::Read, Malformed>;

    /// The very bytes a row was read from.
    fn reencode(read: &Self::Read) -> Result<Vec<u8>, Malformed>;

    /// In which layout the row was found.
    fn layout(_read: &Self::Read) -> Layout {
        Layout::Seed
    }
}

/// Bytes as they are, possibly none.
pub enum Identity {}

impl Codec for Identity {
    type Value = Vec<u8>;
    type Read = Vec<u8>;

    fn encode(value: &Vec<u8>) -> Result<Vec<u8>, Malformed> {
        Ok(value.clone())
    }

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
        Ok(bytes.to_vec())
    }

    fn reencode(read: &Vec<u8>) -> Result<Vec<u8>, Malformed> {
        Ok(read.clone())
    }
}

/// Borsh of one record.
pub struct Borsh<V>(PhantomData<V>);

impl<V: Record> Codec for Borsh<V> {
    type Value = V;
    type Read = V;

    fn encode(value: &V) -> Result<Vec<u8>, Malformed> {
        value.check()?;
        Ok(borsh::to_vec(value)?)
    }

    fn decode(bytes: &[u8]) -> Result<V, Malformed> {
        Ok(borsh::from_slice(bytes)?)
    }

    fn reencode(read: &V) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(read)?)
    }
}

/// A value with a Borsh layout.
pub trait Record: BorshSerialize + BorshDeserialize + Debug + Serialize {
    /// Limits beyond what the layout itself expresses.
    fn check(&self) -> Result<(), Malformed> {
        Ok(())
    }
}

macro_rules! records {
    ($($record:ty),* $(,)?) => { $( impl Record for $record {} )* };
}

records! {
    (), u8, u64, GroupId, AccountId, PublicKey, Bytes,
    ContextMeta, ContextConfig, ContextIdentity, ContextAuthoredRemaining, ContextLeftMarker,
    ContextMigrationFailed, ContextExecutingBlob, ContextActivatedBlob, ContextActivatedStateVersion,
    ContextServiceName, Alias,
    ApplicationMeta, ApplicationPreviousBlob, BlobMeta,
    GroupMeta, GroupMember, GroupUpgrade, GroupCapabilities, GroupReentryBlock, GroupSubgroupVisibility,
    GovernanceHead, NamespaceGovOp, UpgradeLadder, GroupDeviceBinding, GroupAccountKey,
    NodeDeviceIdentity, NodeAccountRoot, NodeIdentity,
}
