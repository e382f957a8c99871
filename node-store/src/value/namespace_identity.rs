//! The row at prefix 0x36. The seed keeps a keypair there; the reference moved it to 0x48 and leaves a marker of one
//! byte. We write the keypair and read both. Facts: §12.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::{Codec, Layout};
use crate::error::Malformed;
use crate::id::PublicKey;
use crate::secret::Secret;

/// This node's keypair in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NamespaceIdentity {
    /// The public half.
    pub public_key: PublicKey,
    /// The private half.
    pub private_key: Secret,
}

/// The row as found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ReadNamespaceIdentity {
    /// A keypair, as we write it.
    Seed(NamespaceIdentity),
    /// "This node takes part"; the keypair is the node's own.
    Reference {
        /// Always 0 so far; kept as found.
        reserved: u8,
    },
}

/// Writes the keypair and reads both, strictly.
pub enum NamespaceIdentityCodec {}

impl Codec for NamespaceIdentityCodec {
    type Value = NamespaceIdentity;
    type Read = ReadNamespaceIdentity;

    fn encode(value: &NamespaceIdentity) -> Result<Vec<u8>, Malformed> {
        Ok(borsh::to_vec(value)?)
    }

    fn decode(bytes: &[u8]) -> Result<ReadNamespaceIdentity, Malformed> {
        match *bytes {
            [reserved] => Ok(ReadNamespaceIdentity::Reference { reserved }),
            _ => Ok(ReadNamespaceIdentity::Seed(borsh::from_slice(bytes)?)),
        }
    }

    fn reencode(read: &ReadNamespaceIdentity) -> Result<Vec<u8>, Malformed> {
        match read {
            ReadNamespaceIdentity::Seed(keypair) => Self::encode(keypair),
            ReadNamespaceIdentity::Reference { reserved } => Ok(vec![*reserved]),
        }
    }

    fn layout(read: &ReadNamespaceIdentity) -> Layout {
        match read {
            ReadNamespaceIdentity::Seed(_) => Layout::Seed,
            ReadNamespaceIdentity::Reference { .. } => Layout::Reference,
        }
    }
}
