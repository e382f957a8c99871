//! Byte strings inside records, shown as hex.

use std::fmt;
use std::ops::Deref;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Serialize, Serializer};

use crate::error::Hex;

/// A byte string of any length; in Borsh, behind its u32 length.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, BorshSerialize, BorshDeserialize)]
pub struct Bytes(pub Vec<u8>);

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes(bytes)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Bytes(bytes.to_vec())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Hex(self.0.clone()))
    }
}

/// An Ed25519 signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, BorshSerialize, BorshDeserialize)]
pub struct Signature(pub [u8; 64]);

impl Signature {
    /// Where nothing was signed.
    pub const ZERO: Signature = Signature([0; 64]);

    /// Whether `key` signed `message`. Strict: a key of small order or a signature that is not in its one canonical
    /// form does not verify.
    pub fn verifies(&self, key: &crate::id::PublicKey, message: &[u8]) -> bool {
        ed25519_dalek::VerifyingKey::from_bytes(key.as_bytes())
            .and_then(|key| key.verify_strict(message, &ed25519_dalek::Signature::from_bytes(&self.0)))
            .is_ok()
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Signature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Hex(self.0.to_vec()))
    }
}

/// Shows a fixed-width byte field as hex.
pub(crate) fn as_hex<S: Serializer, const N: usize>(
    bytes: &[u8; N],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Hex(bytes.to_vec()))
}
