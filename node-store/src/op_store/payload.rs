//! What operations do. Tags are append-only for ever: a tag that is not listed does not decode. Facts: §5.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::credential::{AccountGenesis, DeviceCertificate, RootHandoff};
use crate::id::{AccountId, DeviceId, EntityId, GroupId, ScopeId};
use crate::value::Bytes;

/// What an operation does. The order of the variants is their tag.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "operations are decoded one at a time and soon dropped"
)]
pub enum Payload {
    /// 0: an entity has this value.
    Put {
        /// The entity.
        entity: EntityId,
        /// Its value.
        value: Bytes,
    },
    /// 1: an entity is gone.
    Delete {
        /// The entity.
        entity: EntityId,
    },
    /// 2: who may write an entity.
    SetWriters {
        /// The entity.
        object: EntityId,
        /// What each may do, as bits.
        writers: BTreeMap<AccountId, u8>,
    },
    /// 3: a member comes.
    MemberAdded {
        /// The group.
        group: GroupId,
        /// The member.
        member: AccountId,
        /// The member's role.
        role: u8,
    },
    /// 4: a member goes.
    MemberRemoved {
        /// The group.
        group: GroupId,
        /// The member.
        member: AccountId,
    },
    /// 5: another administrator.
    AdminChanged {
        /// The administrator.
        new_admin: AccountId,
    },
    /// 6: another policy.
    PolicyUpdated {
        /// The policy.
        policy_bytes: Bytes,
    },
    /// 7: a new subgroup.
    SubgroupCreated {
        /// The subgroup.
        child: ScopeId,
        /// Its parent.
        parent: ScopeId,
        /// Whether only its members see it.
        restricted: bool,
        /// Its administrator.
        admin: AccountId,
    },
    /// 8: a subgroup moves.
    SubgroupReparented {
        /// The subgroup.
        child: ScopeId,
        /// Its new parent.
        new_parent: ScopeId,
    },
    /// 9: a subgroup is gone.
    SubgroupDeleted {
        /// The subgroup.
        scope: ScopeId,
    },
    /// 10: who sees a subgroup.
    SubgroupVisibilitySet {
        /// The subgroup.
        scope: ScopeId,
        /// Whether only its members see it.
        restricted: bool,
    },
    /// 11: what a new member may do.
    DefaultCapabilitiesSet {
        /// The group.
        group: GroupId,
        /// The bits.
        capabilities: u32,
    },
    /// 12: what a member may do.
    MemberCapabilitySet {
        /// The group.
        group: GroupId,
        /// The member.
        member: AccountId,
        /// The bits.
        capabilities: u32,
    },
    /// 13: nothing.
    Noop,
    /// 14: an account gets a device.
    DeviceLinked {
        /// The account's beginning.
        genesis: AccountGenesis,
        /// Its root keys since.
        chain: Vec<RootHandoff>,
        /// The device's certificate.
        cert: DeviceCertificate,
    },
    /// 15: a device may act no longer.
    DeviceRevoked {
        /// The account.
        account: AccountId,
        /// The device.
        device: DeviceId,
    },
    /// 16: an account changes its root key.
    AccountKeysRotated {
        /// The change.
        handoff: RootHandoff,
    },
    /// 17: a member comes with a device.
    MemberJoinedWithDevice {
        /// The group.
        group: GroupId,
        /// The member.
        member: AccountId,
        /// The member's role.
        role: u8,
        /// The account's beginning.
        genesis: AccountGenesis,
        /// Its root keys since.
        chain: Vec<RootHandoff>,
        /// The device's certificate.
        cert: DeviceCertificate,
    },
    /// 18: something that only a group's members can read.
    Opaque {
        /// The group.
        group: GroupId,
    },
}
