//! Typed keys: each family of rows is one struct whose declaration gives its layout, width, prefix and reach.
//!
//! Building, parsing and the partition prefix come from that one declaration (NODE-11). Anyone may use the
//! structs; the families themselves are a closed set.

mod absorb;
mod alias;
mod application;
mod context;
mod generic;
mod group;
mod part;
mod range;
mod sorted_index;
mod state;

pub use absorb::AbsorbBuffer;
pub use alias::{Alias, AliasName, AliasSubject};
pub use application::{ApplicationMeta, ApplicationPreviousBlob, BlobMeta};
pub use context::{
    ContextActivatedBlob, ContextActivatedStateVersion, ContextAuthoredRemaining, ContextConfig,
    ContextDagDelta, ContextExecutingBlob, ContextIdentity, ContextLeftMarker, ContextMeta,
    ContextMigrationFailed, ContextPrivateState, ContextResyncRequested, ContextState, ScopeUnifiedOp,
};
pub use generic::{Fragment, Generic, GenericScope};
pub use group::*;
pub use part::{KeyBuf, KeyPart};
pub use range::{Direction, KeyRange, successor};
pub use sorted_index::{SortedIndexKey, SortedIndexMetaKey};
pub use state::StateRow;

use crate::column::Column;
use crate::error::{Hex, Malformed, StoreError};
use crate::export::Reach;
use crate::value::Codec;

pub(crate) mod sealed {
    /// Keeps the set of families closed.
    pub trait Sealed {}
}

/// One component of a key: its name in the layout and its width in bytes.
pub type Component = (&'static str, usize);

/// A fixed-width key of one family.
pub trait Key:
    sealed::Sealed + Clone + Ord + std::fmt::Debug + serde::Serialize + Send + Sync + Sized + 'static
{
    /// The family's name.
    const NAME: &'static str;
    /// The column that holds it.
    const COLUMN: Column;
    /// The byte every key of the family begins with, where the column needs one.
    const PREFIX: Option<u8>;
    /// Width in bytes, prefix included.
    const LEN: usize;
    /// Component names and widths, in key order, without the prefix.
    const COMPONENTS: &'static [Component];
    /// The leading component: a scan over it returns everything of one context, group or scope.
    type Owner: KeyPart;
    /// Whether rows of the family leave the machine.
    type Reach: Reach;
    /// How values of the family are written and read.
    type Codec: Codec;

    /// The key's bytes.
    fn to_bytes(&self) -> KeyBuf;

    /// Reads a key; a wrong width, prefix or component is an error that shows the bytes.
    fn parse(bytes: &[u8]) -> Result<Self, StoreError>;

    /// Every key of the family and no other family's, as far as bytes can tell: all keys with its prefix.
    fn family_range() -> KeyRange {
        match Self::PREFIX {
            Some(prefix) => KeyRange::prefix(&[prefix]),
            None => KeyRange::all(),
        }
    }

    /// Every key of the family that belongs to one owner: prefix byte first, then the owner (NODE-7).
    fn owner_range(owner: &Self::Owner) -> KeyRange {
        let mut prefix = KeyBuf::new();
        if let Some(byte) = Self::PREFIX {
            prefix.push(&[byte]);
        }
        prefix.push_part(owner);
        KeyRange::prefix(prefix.as_slice())
    }
}

/// Whether the bytes have the width and prefix of the family `K`.
pub fn looks_like<K: Key>(bytes: &[u8]) -> bool {
    bytes.len() == K::LEN && K::PREFIX.is_none_or(|prefix| bytes.first() == Some(&prefix))
}

pub(crate) fn malformed<K: Key>(bytes: &[u8], cause: Malformed) -> StoreError {
    StoreError::MalformedKey {
        column: K::COLUMN,
        family: K::NAME,
        key: Hex(bytes.to_vec()),
        cause,
    }
}

pub(crate) fn check_shape<K: Key>(bytes: &[u8]) -> Result<(), StoreError> {
    if bytes.len() != K::LEN {
        let reason = format!("expected {} bytes", K::LEN);
        return Err(malformed::<K>(bytes, Malformed::new(reason)));
    }
    match K::PREFIX {
        Some(prefix) if bytes.first() != Some(&prefix) => Err(malformed::<K>(
            bytes,
            Malformed::new(format!("expected the prefix {prefix:#04x}")),
        )),
        _ => Ok(()),
    }
}

macro_rules! keys {
    ($(
        $(#[$doc:meta])*
        $name:ident in $column:ident $([$prefix:literal])?, $reach:ident, $codec:ty {
            $( $(#[$part_doc:meta])* $part:ident : $ty:ty ),* $(,)?
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        pub struct $name {
            $( #[doc = concat!("Key component `", stringify!($part), "`.")] $(#[$part_doc])* pub $part: $ty, )*
        }

        impl $crate::key::sealed::Sealed for $name {}

        impl $crate::key::Key for $name {
            const NAME: &'static str = stringify!($name);
            const COLUMN: $crate::column::Column = $crate::column::Column::$column;
            const PREFIX: Option<u8> = $crate::key::keys!(@prefix $($prefix)?);
            const LEN: usize =
                $crate::key::keys!(@prefix_len $($prefix)?) $( + <$ty as $crate::key::KeyPart>::LEN )*;
            const COMPONENTS: &'static [$crate::key::Component] =
                &[$( (stringify!($part), <$ty as $crate::key::KeyPart>::LEN) ),*];
            type Owner = $crate::key::keys!(@owner $($ty,)*);
            type Reach = $crate::export::$reach;
            type Codec = $codec;

            fn to_bytes(&self) -> $crate::key::KeyBuf {
                #[allow(unused_mut)]
                let mut bytes = $crate::key::KeyBuf::new();
                $( bytes.push(&[$prefix]); )?
                $( bytes.push_part(&self.$part); )*
                bytes
            }

            fn parse(bytes: &[u8]) -> Result<Self, $crate::error::StoreError> {
                $crate::key::check_shape::<Self>(bytes)?;
                let rest = &bytes[$crate::key::keys!(@prefix_len $($prefix)?)..];
                $(
                    let (part, rest) = rest.split_at(<$ty as $crate::key::KeyPart>::LEN);
                    let $part = <$ty as $crate::key::KeyPart>::read(part)
                        .map_err(|cause| $crate::key::malformed::<Self>(bytes, cause))?;
                )*
                debug_assert!(rest.is_empty(), "LEN is the sum of the component widths");
                Ok($name { $($part),* })
            }
        }
    )*};
    (@prefix) => { None };
    (@prefix $prefix:literal) => { Some($prefix) };
    (@prefix_len) => { 0 };
    (@prefix_len $prefix:literal) => { 1 };
    (@owner) => { () };
    (@owner $first:ty, $($rest:ty,)*) => { $first };
}
pub(crate) use keys;
