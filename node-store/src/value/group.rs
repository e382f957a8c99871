//! Records of groups, members, devices and of this node itself. Facts: §3, §4.3.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::Bytes;
use crate::clock::HybridTimestamp;
use crate::id::{AccountId, ApplicationId, BlobId, DeltaId, DeviceId, PublicKey};
use crate::secret::Secret;

/// Settings of a group.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupMeta {
    /// The code the group wants every node to run; zero says nothing.
    pub app_key: BlobId,
    /// The program of that code.
    pub target_application_id: ApplicationId,
    /// Unix seconds.
    pub created_at: u64,
    /// Who administers it.
    pub admin_identity: AccountId,
    /// Who owns it.
    pub owner_identity: AccountId,
    /// How to migrate to that code.
    pub migration: Option<Bytes>,
    /// Whether invited members join at once.
    pub auto_join: bool,
}

/// What a member may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub enum MemberRole {
    /// May do everything.
    Admin,
    /// Reads and writes.
    Member,
    /// Reads.
    ReadOnly,
    /// Reads, from within an attested machine.
    ReadOnlyTee,
}

/// What a member's node follows by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct AutoFollow {
    /// New contexts.
    pub contexts: bool,
    /// New subgroups.
    pub subgroups: bool,
}

impl Default for AutoFollow {
    fn default() -> Self {
        AutoFollow {
            contexts: true,
            subgroups: false,
        }
    }
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupMember {
    /// The member's role.
    pub role: MemberRole,
    /// The private half of the member's key, where it is this node's own. Never exported.
    pub private_key: Option<Secret>,
    /// The key of the member's messages, where it is this node's own. Never exported.
    pub sender_key: Option<Secret>,
    /// What the member's node follows.
    pub auto_follow: AutoFollow,
}

/// An upgrade of a group.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupUpgrade {
    /// Package version before.
    pub from_version: String,
    /// Package version after.
    pub to_version: String,
    /// How to migrate.
    pub migration: Option<Bytes>,
    /// Unix seconds.
    pub initiated_at: u64,
    /// Who began it.
    pub initiated_by: PublicKey,
    /// How far it is.
    pub status: UpgradeStatus,
    /// Time stamp of the cascade that carried it to subgroups.
    pub cascade_hlc: Option<HybridTimestamp>,
    /// Position in that cascade.
    pub cascade_seq: Option<u64>,
    /// State version of the new code.
    pub to_state_version: u32,
}

/// How far an upgrade is.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub enum UpgradeStatus {
    /// Contexts counted.
    InProgress {
        /// All.
        total: u32,
        /// Done.
        completed: u32,
        /// Failed.
        failed: u32,
    },
    /// Nothing left to do.
    Completed {
        /// Unix seconds, where known.
        completed_at: Option<u64>,
    },
}

/// Capability bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupCapabilities {
    /// The bits.
    pub capabilities: u32,
}

/// Why a former member may not come back unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
#[serde(tag = "reason")]
pub enum GroupReentryBlock {
    /// Put out.
    Removed,
    /// Went away.
    Left,
}

/// Who may see a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
#[serde(tag = "mode_name")]
pub enum GroupSubgroupVisibility {
    /// Every member of the parent.
    Open,
    /// Its own members.
    Restricted,
}

/// The end of a governance log.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GovernanceHead {
    /// Highest position.
    pub sequence: u64,
    /// Operations that no other has as a parent.
    pub dag_heads: Vec<DeltaId>,
}

/// A row of a namespace's governance DAG; see [`NamespaceEntry`](super::NamespaceEntry).
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NamespaceGovOp {
    /// Borsh of the entry.
    pub skeleton_bytes: Bytes,
}

/// The versions a group went through, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct UpgradeLadder {
    /// One a version.
    pub rungs: Vec<UpgradeRung>,
}

/// One version of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct UpgradeRung {
    /// Its code.
    pub app_key: BlobId,
    /// Its program.
    pub application_id: ApplicationId,
}

impl UpgradeLadder {
    /// Where a version stands: its last occurrence.
    pub fn position(&self, app_key: &BlobId) -> Option<usize> {
        self.rungs.iter().rposition(|rung| rung.app_key == *app_key)
    }

    /// The version after the given one; none at the top or if the given one is not on the ladder.
    pub fn next_after(&self, app_key: &BlobId) -> Option<&UpgradeRung> {
        self.rungs.get(self.position(app_key)? + 1)
    }
}

/// A device of an account, as a group knows it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupDeviceBinding {
    /// The account.
    pub account: AccountId,
    /// Verifies the device's signatures.
    pub sign_pk: PublicKey,
    /// Encrypts to the device.
    pub kem_pk: PublicKey,
    /// Counts the device's certificates.
    pub device_epoch: u32,
    /// Counts the account's root keys.
    pub key_epoch: u32,
}

/// The root key of an account in force.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct GroupAccountKey {
    /// Counts the account's root keys.
    pub epoch: u32,
    /// The key.
    pub root_pk: PublicKey,
}

/// This node's device.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NodeDeviceIdentity {
    /// Root key of its account.
    pub account_root_pk: PublicKey,
    /// The device.
    pub device_id: DeviceId,
    /// Decrypts what is sent to the device.
    pub kem_secret: Secret,
}

/// The account on this node.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NodeAccountRoot {
    /// Signs for the account.
    pub root_secret: Secret,
}

/// This node's signing keypair.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NodeIdentity {
    /// The public half.
    pub public_key: PublicKey,
    /// The private half.
    pub private_key: Secret,
}
