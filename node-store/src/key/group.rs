//! The forty families of the `Group` column, told apart by their first byte.
//!
//! Families of one width look alike; a scan goes by prefix first and owner second, which [`Key`](super::Key) does for
//! every family alike (NODE-7, NODE-11). The bytes 0x25, 0x2B and 0x2C are retired and 0x4B is the next free one.
//! Facts: §3.

use super::keys;
use crate::id::{AccountId, ContextId, DeltaId, DeviceId, GroupId, InvitationNonce, KeyId, PublicKey};
use crate::value::{self, Borsh};

keys! {
    /// A group's settings and the code it wants run.
    GroupMeta in Group [0x20], Replicated, Borsh<value::GroupMeta> { group_id: GroupId }
    /// A member of a group.
    GroupMember in Group [0x21], PublicHalf, Borsh<value::GroupMember> {
        group_id: GroupId, account: AccountId,
    }
    /// A context of a group.
    GroupContextIndex in Group [0x22], Replicated, Borsh<()> { group_id: GroupId, context_id: ContextId }
    /// The group of a context.
    ContextGroupRef in Group [0x23], Replicated, Borsh<GroupId> { context_id: ContextId }
    /// An upgrade of a group under way or done.
    GroupUpgradeKey in Group [0x24], Replicated, Borsh<value::GroupUpgrade> { group_id: GroupId }
    /// What a member may do.
    GroupMemberCapability in Group [0x26], Replicated, Borsh<value::GroupCapabilities> {
        group_id: GroupId, account: AccountId,
    }
    /// A former member who may not come back unasked.
    GroupReentryBlock in Group [0x27], Replicated, Borsh<value::GroupReentryBlock> {
        group_id: GroupId, account: AccountId,
    }
    /// An invitation that was used.
    GroupConsumedInvitation in Group [0x28], Replicated, Borsh<()> {
        group_id: GroupId, account: AccountId, invitation_nonce: InvitationNonce,
    }
    /// What a new member may do.
    GroupDefaultCaps in Group [0x29], Replicated, Borsh<value::GroupCapabilities> { group_id: GroupId }
    /// Who may see a subgroup.
    GroupSubgroupVis in Group [0x2a], Replicated, Borsh<value::GroupSubgroupVisibility> { group_id: GroupId }
    /// Name and details of a member.
    GroupMemberMetadata in Group [0x2d], Replicated, Borsh<value::MetadataRecord> {
        group_id: GroupId, member: AccountId,
    }
    /// Name and details of a group.
    GroupMetadata in Group [0x2e], Replicated, Borsh<value::MetadataRecord> { group_id: GroupId }
    /// Name and details of a context.
    GroupContextMetadata in Group [0x2f], Replicated, Borsh<value::MetadataRecord> {
        group_id: GroupId, context_id: ContextId,
    }
    /// A signed group operation, in the order of the log.
    GroupOpLog in Group [0x30], Replicated, Borsh<value::Bytes> {
        group_id: GroupId,
        /// Position in the log, big-endian in the key.
        sequence: u64,
    }
    /// The end of a group's log.
    GroupOpHead in Group [0x31], Replicated, Borsh<value::GovernanceHead> { group_id: GroupId }
    /// The key under which a member takes part in a context.
    GroupMemberContext in Group [0x32], Replicated, Borsh<PublicKey> {
        group_id: GroupId, member: AccountId, context_id: ContextId,
    }
    /// What a member may do in a context, as bits.
    GroupContextMemberCap in Group [0x33], Replicated, Borsh<u8> {
        group_id: GroupId, context_id: ContextId, member: AccountId,
    }
    /// The parent of a group.
    GroupParentRef in Group [0x34], Replicated, Borsh<GroupId> { child_group_id: GroupId }
    /// A child of a group.
    GroupChildIndex in Group [0x35], Replicated, Borsh<()> {
        parent_group_id: GroupId, child_group_id: GroupId,
    }
    /// This node's keypair in a namespace.
    NamespaceIdentity in Group [0x36], Secret, value::NamespaceIdentityCodec { namespace_id: GroupId }
    /// Which service of its program a context runs.
    ContextServiceName in Group [0x37], Replicated, Borsh<value::ContextServiceName> { context_id: ContextId }
    /// A governance operation of a namespace.
    NamespaceGovOp in Group [0x38], Replicated, Borsh<value::NamespaceGovOp> {
        namespace_id: GroupId, delta_id: DeltaId,
    }
    /// The heads of a namespace's governance.
    NamespaceGovHead in Group [0x39], Replicated, Borsh<value::GovernanceHead> { namespace_id: GroupId }
    /// An encryption key of a group.
    GroupKeyEntry in Group [0x3a], Secret, value::GroupKeyCodec {
        group_id: GroupId,
        /// SHA-256 of the key.
        key_id: KeyId,
    }
    /// An account shut out of a group.
    GroupDeniedMember in Group [0x3b], Replicated, Borsh<()> { group_id: GroupId, account: AccountId }
    /// Which nonces of a signer were applied.
    GroupLocalGovNonceWindow in Group [0x3c], Replicated, Borsh<value::NonceWindow> {
        group_id: GroupId,
        /// The signing key.
        signer: PublicKey,
    }
    /// This node still has to remove what it holds of a namespace.
    PendingSelfPurge in Group [0x3d], NodeLocal, Borsh<()> { namespace_id: GroupId }
    /// The versions a group went through, oldest first.
    GroupUpgradeLadder in Group [0x3e], Replicated, Borsh<value::UpgradeLadder> { group_id: GroupId }
    /// Work list: rotate keys after a member left.
    GroupPendingKeyRotation in Group [0x3f], NodeLocal, Borsh<()> {
        group_id: GroupId,
        /// Who left.
        departed: AccountId,
    }
    /// An account shut out of every group of a namespace.
    GroupInheritedDeniedMember in Group [0x40], Replicated, Borsh<()> {
        /// The namespace's root group.
        group_id: GroupId,
        account: AccountId,
    }
    /// A device of an account, as a group knows it.
    GroupDeviceBinding in Group [0x41], Replicated, Borsh<value::GroupDeviceBinding> {
        group_id: GroupId, device_id: DeviceId,
    }
    /// A device that may act no longer.
    GroupRevokedDevice in Group [0x42], Replicated, Borsh<()> { group_id: GroupId, device_id: DeviceId }
    /// The root key of an account in force.
    GroupAccountKey in Group [0x43], Replicated, Borsh<value::GroupAccountKey> {
        group_id: GroupId, account_id: AccountId,
    }
    /// This node's device and its X25519 secret.
    NodeDeviceIdentity in Group [0x44], Secret, Borsh<value::NodeDeviceIdentity> {}
    /// The root secret of the account on this node.
    NodeAccountRoot in Group [0x45], Secret, Borsh<value::NodeAccountRoot> {}
    /// A member who vouches for an account.
    GroupAccountEndorser in Group [0x46], Replicated, Borsh<()> {
        group_id: GroupId, account_id: AccountId, member: AccountId,
    }
    /// Who invited this node into a namespace.
    NamespaceBootstrapInviter in Group [0x47], NodeLocal, Borsh<AccountId> { namespace_id: GroupId }
    /// This node's signing keypair.
    NodeIdentity in Group [0x48], Secret, Borsh<value::NodeIdentity> {}
    /// Work list: rotate keys after a device was revoked.
    GroupPendingDeviceRotation in Group [0x49], NodeLocal, Borsh<()> { group_id: GroupId, device: DeviceId }
    /// When all nodes seen had finished an upgrade, unix seconds.
    GroupFleetCompletion in Group [0x4a], NodeLocal, Borsh<u64> { group_id: GroupId }
}
