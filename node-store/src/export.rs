//! What may leave the machine, by type. There is no other way out of a store. Rules: NODE-10, NODE-34.

use crate::column::Column;
use crate::error::{Hex, StoreError};
use crate::family::Family;
use crate::handle::{Read, Value, encode};
use crate::key::{self, Key};
use crate::layer::ReadLayer;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::value;

/// Whether rows of a family leave, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachKind {
    /// They leave as they are.
    Replicated,
    /// They leave without the private halves inside their values.
    PublicHalf,
    /// Some scopes leave and some stay.
    ByScope,
    /// They stay.
    NodeLocal,
    /// They stay, and hold keys.
    Secret,
}

/// Whether rows of a family leave, as a type.
pub trait Reach {
    /// The same as data.
    const KIND: ReachKind;
}

macro_rules! reaches {
    ($( $(#[$doc:meta])* $name:ident )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub enum $name {}

        impl Reach for $name {
            const KIND: ReachKind = ReachKind::$name;
        }
    )*};
}

reaches! {
    /// Rows leave as they are.
    Replicated
    /// Rows leave without the private halves inside their values.
    PublicHalf
    /// Some scopes leave and some stay.
    ByScope
    /// Rows stay.
    NodeLocal
    /// Rows stay, and hold keys.
    Secret
}

/// What of a row leaves. Deliberately not implemented for [`NodeLocal`] and [`Secret`].
pub trait ExportRule<K: Key>: Reach {
    /// The value to send, or none if the row stays.
    fn outgoing(key: &K, value: Read<K>) -> Option<Read<K>>;

    /// What a row that comes in makes of the one that is here. What never leaves never comes in either, so it is kept.
    fn over(value: Read<K>, _here: Read<K>) -> Read<K> {
        value
    }
}

impl<K: Key> ExportRule<K> for Replicated {
    fn outgoing(_key: &K, value: Read<K>) -> Option<Read<K>> {
        Some(value)
    }
}

impl ExportRule<key::ContextIdentity> for PublicHalf {
    fn outgoing(
        _key: &key::ContextIdentity,
        _value: value::ContextIdentity,
    ) -> Option<value::ContextIdentity> {
        Some(value::ContextIdentity { private_key: None })
    }

    fn over(_value: value::ContextIdentity, here: value::ContextIdentity) -> value::ContextIdentity {
        here
    }
}

impl ExportRule<key::GroupMember> for PublicHalf {
    fn outgoing(_key: &key::GroupMember, value: value::GroupMember) -> Option<value::GroupMember> {
        Some(value::GroupMember {
            private_key: None,
            sender_key: None,
            ..value
        })
    }

    fn over(value: value::GroupMember, here: value::GroupMember) -> value::GroupMember {
        value::GroupMember {
            private_key: here.private_key,
            sender_key: here.sender_key,
            ..value
        }
    }
}

impl ExportRule<key::Generic> for ByScope {
    fn outgoing(key: &key::Generic, value: Vec<u8>) -> Option<Vec<u8>> {
        (!key.scope.is_node_local()).then_some(value)
    }
}

pub(crate) fn exported<K: Key>(key: &K, value: Read<K>) -> Option<Read<K>>
where
    K::Reach: ExportRule<K>,
{
    <K::Reach as ExportRule<K>>::outgoing(key, value)
}

/// A row on its way to another machine. It can be made of replicated families only:
///
/// ```
/// use node_store::{ExportRow, id::ContextId, key, value};
///
/// let key = key::ContextConfig { context_id: ContextId::ZERO };
/// let value = value::ContextConfig { application_revision: 1, members_revision: 1 };
/// assert!(ExportRow::of(&key, value).unwrap().is_some());
/// ```
///
/// A marker of this node is no such row:
///
/// ```compile_fail,E0277
/// use node_store::{ExportRow, id::ContextId, key};
///
/// let key = key::ContextResyncRequested { context_id: ContextId::ZERO };
/// ExportRow::of(&key, ());
/// ```
///
/// nor is a key of this node:
///
/// ```compile_fail,E0277
/// use node_store::{ExportRow, key, value};
///
/// let identity = value::NodeIdentity { public_key: [1; 32].into(), private_key: node_store::Secret::new([2; 32]) };
/// ExportRow::of(&key::NodeIdentity {}, identity);
/// ```
///
/// and no type can hold both:
///
/// ```compile_fail,E0277
/// use node_store::{export::ExportRule, key, Key};
///
/// struct Outgoing<K: Key>(K) where K::Reach: ExportRule<K>;
/// type Mixed = (Outgoing<key::ContextMeta>, Outgoing<key::ContextExecutingBlob>);
/// fn send(_: Mixed) {}
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRow {
    column: Column,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl ExportRow {
    /// The outgoing form of a row; none if its scope stays on this machine.
    pub fn of<K: Key>(key: &K, value: Value<K>) -> Result<Option<ExportRow>, StoreError>
    where
        K::Reach: ExportRule<K>,
    {
        let value = encode::<K>(&value)?;
        let bytes = key.to_bytes();
        let Some(exchange) = Family::require(K::COLUMN, &bytes)?.exchange else {
            return Ok(None);
        };
        let value = (exchange.export)(&bytes, &value)?;
        Ok(value.map(|value| ExportRow {
            column: K::COLUMN,
            key: bytes.to_vec(),
            value,
        }))
    }

    /// A row that came from another machine: refused unless its family is one that leaves, and stripped of anything
    /// private before it is believed.
    pub fn incoming(column: Column, key: &[u8], value: &[u8]) -> Result<ExportRow, StoreError> {
        let family = Family::require(column, key)?;
        let row = match family.exchange {
            Some(exchange) => (exchange.export)(key, value)?,
            None => None,
        };
        match row {
            Some(value) => Ok(ExportRow {
                column,
                key: key.to_vec(),
                value,
            }),
            None => Err(StoreError::UnknownRow {
                column,
                key: Hex(key.to_vec()),
            }),
        }
    }

    /// The row's column.
    pub fn column(&self) -> Column {
        self.column
    }

    /// The row's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The row's value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Stages the row for import over what the layer holds: private halves that are kept there stay. False, with nothing
    /// staged, for a blob's row: it counts the other machine's owners and files, and a blob comes in with its bytes
    /// ([`BlobStore::put`](crate::BlobStore::put)).
    pub fn stage<L: ReadLayer>(&self, layer: &L, transaction: &mut Transaction) -> Result<bool, StoreError> {
        if self.column == Column::Blobs {
            return Ok(false);
        }
        let exchange = Family::require(self.column, &self.key)?.exchange;
        let value = match (layer.get(self.column, &self.key)?, exchange) {
            (Some(here), Some(exchange)) => (exchange.take_in)(&self.key, &self.value, &here)?,
            _ => self.value.clone(),
        };
        transaction.put(self.column, self.key.clone(), value);
        Ok(true)
    }
}

impl Store {
    /// Gives every row that may leave, of one moment, in column and key order; node-local rows, markers and keys are not
    /// among them. Rows of no known family stay. The receiver's error ends the walk.
    pub fn export_replicated(
        &self,
        mut receive: impl FnMut(ExportRow) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let moment = self.snapshot()?;
        for column in self.columns().iter() {
            if !Family::all()
                .iter()
                .any(|family| family.column == column && family.exchange.is_some())
            {
                continue;
            }
            let mut rows = moment.iter(column)?;
            while let Some(row) = rows.next()? {
                let Some(exchange) = Family::of(column, row.key).and_then(|family| family.exchange) else {
                    continue;
                };
                if let Some(value) = (exchange.export)(row.key, row.value)? {
                    receive(ExportRow {
                        column,
                        key: row.key.to_vec(),
                        value,
                    })?;
                }
            }
        }
        Ok(())
    }
}
