//! The table of all families: which rows a column may hold, how to decode them, whether they leave. Rules: NODE-10,
//! NODE-11, NODE-34. Built from the key declarations; nothing is said twice.

use crate::column::Column;
use crate::error::{Hex, StoreError};
use crate::export::{ExportRule, ReachKind, exported};
use crate::handle::decode;
use crate::key::{self, Component, Key};
use crate::value::{Codec, Layout};

/// How wide a family's keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyWidth {
    /// Exactly this many bytes.
    Exactly(usize),
    /// At least this many bytes.
    AtLeast(usize),
}

impl KeyWidth {
    fn fits(self, length: usize) -> bool {
        match self {
            KeyWidth::Exactly(width) => length == width,
            KeyWidth::AtLeast(width) => length >= width,
        }
    }
}

/// A row with its components and fields by name.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedRow {
    /// The family's name.
    pub family: &'static str,
    /// The key's components.
    pub key: serde_json::Value,
    /// The value's fields; secrets appear as `[secret]`.
    pub value: serde_json::Value,
    /// In which layout the value was found.
    pub layout: Layout,
}

type Recode = fn(&[u8], &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError>;
type Describe = fn(&[u8], &[u8]) -> Result<DescribedRow, StoreError>;
pub(crate) type Exported = fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, StoreError>;
pub(crate) type TakenIn = fn(&[u8], &[u8], &[u8]) -> Result<Vec<u8>, StoreError>;

/// How rows of a family leave one store and come into another.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    /// What of a row leaves.
    pub(crate) export: Exported,
    /// What a row that comes in makes of the one that is there: key, value, value here.
    pub(crate) take_in: TakenIn,
}

/// A family of rows.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its column.
    pub column: Column,
    /// The byte its keys begin with.
    pub prefix: Option<u8>,
    /// The width of its keys.
    pub width: KeyWidth,
    /// The components of its keys, without the prefix.
    pub components: &'static [Component],
    /// Whether its rows leave the machine.
    pub reach: ReachKind,
    recode: Recode,
    describe: Describe,
    /// Absent for families that never leave, so that there is nothing to call.
    pub(crate) exchange: Option<Exchange>,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.name)
            .field("column", &self.column)
            .field("prefix", &self.prefix)
            .field("reach", &self.reach)
            .finish_non_exhaustive()
    }
}

impl Family {
    /// All families, in column order, then by prefix.
    pub fn all() -> &'static [Family] {
        FAMILIES
    }

    /// The family that a row belongs to, by column, prefix and width.
    pub fn of(column: Column, key: &[u8]) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| {
            family.column == column
                && family.width.fits(key.len())
                && family.prefix.is_none_or(|prefix| key.first() == Some(&prefix))
        })
    }

    /// The family of a row, or an error that shows the key.
    pub fn require(column: Column, key: &[u8]) -> Result<&'static Family, StoreError> {
        Family::of(column, key).ok_or_else(|| StoreError::UnknownRow {
            column,
            key: Hex(key.to_vec()),
        })
    }

    /// Decodes a row and builds it again: the same bytes, if the row is sound.
    pub fn recode(&self, key: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        (self.recode)(key, value)
    }

    /// Decodes a row into named components and fields.
    pub fn describe(&self, key: &[u8], value: &[u8]) -> Result<DescribedRow, StoreError> {
        (self.describe)(key, value)
    }
}

/// Decodes any row of any column for display.
pub fn describe(column: Column, key: &[u8], value: &[u8]) -> Result<DescribedRow, StoreError> {
    Family::require(column, key)?.describe(key, value)
}

fn recode<K: Key>(key: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let parsed = K::parse(key)?;
    let read = decode::<K>(key, value)?;
    let value = K::Codec::reencode(&read).map_err(|cause| StoreError::UnencodableValue {
        family: K::NAME,
        cause,
    })?;
    Ok((parsed.to_bytes().to_vec(), value))
}

fn describe_as<K: Key>(key: &[u8], value: &[u8]) -> Result<DescribedRow, StoreError> {
    let parsed = K::parse(key)?;
    let read = decode::<K>(key, value)?;
    let value = if holds_keys(K::COLUMN, key) {
        json(&"[secret]")?
    } else {
        json(&read)?
    };
    Ok(DescribedRow {
        family: K::NAME,
        key: json(&parsed)?,
        value,
        layout: K::Codec::layout(&read),
    })
}

/// Whether a value that is shown verbatim is one that must not be shown.
fn holds_keys(column: Column, key: &[u8]) -> bool {
    column == Column::Generic && key::Generic::parse(key).is_ok_and(|key| key.scope.holds_keys())
}

fn json(fields: &impl serde::Serialize) -> Result<serde_json::Value, StoreError> {
    serde_json::to_value(fields).map_err(|error| StoreError::Malformed {
        what: "row for display",
        cause: crate::error::Malformed::new(error.to_string()),
    })
}

fn export_as<K: Key>(key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, StoreError>
where
    K::Reach: ExportRule<K>,
{
    let parsed = K::parse(key)?;
    let read = decode::<K>(key, value)?;
    match exported(&parsed, read) {
        Some(value) => encode_exported::<K>(value).map(Some),
        None => Ok(None),
    }
}

fn encode_exported<K: Key>(read: crate::handle::Read<K>) -> Result<Vec<u8>, StoreError> {
    K::Codec::reencode(&read).map_err(|cause| StoreError::UnencodableValue {
        family: K::NAME,
        cause,
    })
}

fn take_in_as<K: Key>(key: &[u8], value: &[u8], here: &[u8]) -> Result<Vec<u8>, StoreError>
where
    K::Reach: ExportRule<K>,
{
    let (value, here) = (decode::<K>(key, value)?, decode::<K>(key, here)?);
    encode_exported::<K>(<K::Reach as ExportRule<K>>::over(value, here))
}

const fn exchange<K: Key>() -> Option<Exchange>
where
    K::Reach: ExportRule<K>,
{
    Some(Exchange {
        export: export_as::<K>,
        take_in: take_in_as::<K>,
    })
}

const fn family<K: Key>(exchange: Option<Exchange>) -> Family {
    Family {
        name: K::NAME,
        column: K::COLUMN,
        prefix: K::PREFIX,
        width: KeyWidth::Exactly(K::LEN),
        components: K::COMPONENTS,
        reach: <K::Reach as crate::export::Reach>::KIND,
        recode: recode::<K>,
        describe: describe_as::<K>,
        exchange,
    }
}

fn recode_index(key: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let parsed = key::SortedIndexKey::parse(key)?;
    check_id(Column::SortedIndex, "SortedIndex", key, value)?;
    Ok((parsed.to_bytes(), value.to_vec()))
}

fn describe_index(key: &[u8], value: &[u8]) -> Result<DescribedRow, StoreError> {
    let parsed = key::SortedIndexKey::parse(key)?;
    check_id(Column::SortedIndex, "SortedIndex", key, value)?;
    Ok(DescribedRow {
        family: "SortedIndex",
        key: serde_json::json!({
            "context_id": parsed.context_id, "collection_id": parsed.collection_id,
            "order_key": Hex(parsed.order_key).to_string(),
        }),
        value: serde_json::json!({ "entry_id": Hex(value.to_vec()).to_string() }),
        layout: Layout::Seed,
    })
}

fn recode_index_meta(key: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let parsed = key::SortedIndexMetaKey::parse(key)?;
    check_id(Column::SortedIndexMeta, "SortedIndexMeta", key, value)?;
    Ok((parsed.to_bytes().to_vec(), value.to_vec()))
}

fn describe_index_meta(key: &[u8], value: &[u8]) -> Result<DescribedRow, StoreError> {
    let parsed = key::SortedIndexMetaKey::parse(key)?;
    check_id(Column::SortedIndexMeta, "SortedIndexMeta", key, value)?;
    Ok(DescribedRow {
        family: "SortedIndexMeta",
        key: serde_json::json!({ "context_id": parsed.context_id, "collection_id": parsed.collection_id }),
        value: serde_json::json!({ "full_hash": Hex(value.to_vec()).to_string() }),
        layout: Layout::Seed,
    })
}

fn check_id(column: Column, family: &'static str, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
    if value.len() == 32 {
        return Ok(());
    }
    let cause = crate::error::Malformed::new("expected 32 bytes");
    Err(StoreError::UndecodableValue {
        column,
        family,
        key: Hex(key.to_vec()),
        length: value.len(),
        cause,
    })
}

macro_rules! families {
    ($( $key:ident $leaves:ident ),* $(,)?) => {
        &[ $( families!(@one $key $leaves) ),* ]
    };
    (@one $key:ident leaves) => { family::<key::$key>(exchange::<key::$key>()) };
    (@one $key:ident stays) => { family::<key::$key>(None) };
    (@one SortedIndex raw) => {
        Family {
            name: "SortedIndex",
            column: Column::SortedIndex,
            prefix: None,
            width: KeyWidth::AtLeast(64),
            components: &[("context_id", 32), ("collection_id", 32)],
            reach: ReachKind::NodeLocal,
            recode: recode_index,
            describe: describe_index,
            exchange: None,
        }
    };
    (@one SortedIndexMeta raw) => {
        Family {
            name: "SortedIndexMeta",
            column: Column::SortedIndexMeta,
            prefix: None,
            width: KeyWidth::Exactly(64),
            components: &[("context_id", 32), ("collection_id", 32)],
            reach: ReachKind::NodeLocal,
            recode: recode_index_meta,
            describe: describe_index_meta,
            exchange: None,
        }
    };
}

/// `leaves` compiles only for families whose reach has an export rule; `stays` for one that has is caught by a test.
static FAMILIES: &[Family] = families! {
    ContextMeta leaves, ContextConfig leaves, ContextIdentity leaves, ContextState leaves, ContextPrivateState stays,
    ContextDagDelta leaves, BlobMeta leaves, ApplicationMeta leaves, Alias leaves, Generic leaves,
    GroupMeta leaves, GroupMember leaves, GroupContextIndex leaves, ContextGroupRef leaves, GroupUpgradeKey leaves,
    GroupMemberCapability leaves, GroupReentryBlock leaves, GroupConsumedInvitation leaves, GroupDefaultCaps leaves,
    GroupSubgroupVis leaves, GroupMemberMetadata leaves, GroupMetadata leaves, GroupContextMetadata leaves,
    GroupOpLog leaves, GroupOpHead leaves, GroupMemberContext leaves, GroupContextMemberCap leaves,
    GroupParentRef leaves, GroupChildIndex leaves, NamespaceIdentity stays, ContextServiceName leaves,
    NamespaceGovOp leaves, NamespaceGovHead leaves, GroupKeyEntry stays, GroupDeniedMember leaves,
    GroupLocalGovNonceWindow leaves, PendingSelfPurge stays, GroupUpgradeLadder leaves, GroupPendingKeyRotation stays,
    GroupInheritedDeniedMember leaves, GroupDeviceBinding leaves, GroupRevokedDevice leaves, GroupAccountKey leaves,
    NodeDeviceIdentity stays, NodeAccountRoot stays, GroupAccountEndorser leaves, NamespaceBootstrapInviter stays,
    NodeIdentity stays, GroupPendingDeviceRotation stays, GroupFleetCompletion stays,
    ContextAuthoredRemaining stays, ContextLeftMarker stays, SortedIndex raw, SortedIndexMeta raw, AbsorbBuffer stays,
    ContextMigrationFailed stays, ContextExecutingBlob stays, ContextActivatedBlob stays,
    ContextActivatedStateVersion stays, ApplicationPreviousBlob stays, ContextResyncRequested stays,
    ScopeUnifiedOp leaves,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::column::Replication;

    #[test]
    fn node_10_reach_of_families_agrees_with_their_columns_and_with_what_can_be_exported() {
        assert_eq!(FAMILIES.len(), 62);
        for family in FAMILIES {
            let leaves = matches!(
                family.reach,
                ReachKind::Replicated | ReachKind::PublicHalf | ReachKind::ByScope
            );
            assert_eq!(family.exchange.is_some(), leaves, "{family:?}");
            match family.column.replication() {
                Replication::Replicated => assert!(leaves, "{family:?}"),
                Replication::NodeLocal => assert!(!leaves, "{family:?}"),
                Replication::Mixed => {}
            }
        }
        let columns: BTreeSet<Column> = FAMILIES.iter().map(|family| family.column).collect();
        assert_eq!(columns.len(), Column::COUNT, "every column has a family");
    }

    #[test]
    fn node_11_forty_group_families_with_the_widths_of_the_layout() {
        let group: Vec<&Family> = FAMILIES
            .iter()
            .filter(|family| family.column == Column::Group)
            .collect();
        let prefixes: Vec<u8> = group.iter().filter_map(|family| family.prefix).collect();
        let expected: Vec<u8> = (0x20..=0x4a)
            .filter(|prefix| ![0x25, 0x2b, 0x2c].contains(prefix))
            .collect();
        assert_eq!(prefixes, expected);
        let count = |width| {
            group
                .iter()
                .filter(|family| family.width == KeyWidth::Exactly(width))
                .count()
        };
        assert_eq!([1, 33, 41, 65, 97].map(count), [3, 15, 1, 17, 4]);
        for family in FAMILIES {
            let parts: usize = family.components.iter().map(|(_, width)| width).sum();
            let (KeyWidth::Exactly(width) | KeyWidth::AtLeast(width)) = family.width;
            assert_eq!(parts + usize::from(family.prefix.is_some()), width, "{family:?}");
        }
    }
}
