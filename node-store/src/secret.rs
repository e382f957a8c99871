//! Key material inside values: wiped when dropped, never printed, never serialised for display.
//!
//! A value that holds one is either withheld from export or exported without it (NODE-10, NODE-34).

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Serialize, Serializer};
use zeroize::Zeroize;

/// Thirty-two secret bytes.
#[derive(Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Takes the bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Secret(bytes)
    }

    /// The bytes, for the one use that needs them.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("[secret]")
    }
}
