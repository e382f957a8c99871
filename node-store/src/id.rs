//! The 32-byte identifiers that keys and values are made of, each a type of its own.

use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::error::Malformed;

macro_rules! ids {
    ($( $(#[$doc:meta])* $name:ident )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Thirty-two zero bytes: "none" where a field is not optional.
            pub const ZERO: $name = $name([0; 32]);

            /// Takes the bytes as they are.
            pub const fn new(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }

            /// The bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Whether all bytes are zero.
            pub fn is_zero(&self) -> bool {
                self.0 == [0; 32]
            }

            /// Reads 64 hex digits.
            pub fn from_hex(text: &str) -> Result<Self, Malformed> {
                parse_hex(stringify!($name), text).map($name)
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

ids! {
    /// A context, which is a space: SHA-256 of the space's DID.
    ContextId
    /// A program: SHA-256 of its version-stable manifest.
    ApplicationId
    /// A content-addressed binary: a chunk, a blob's root, or a program's code.
    BlobId
    /// A group; a namespace is the root of its groups and uses the same ids.
    GroupId
    /// An account holder.
    AccountId
    /// A device of an account.
    DeviceId
    /// An Ed25519 or X25519 public key.
    PublicKey
    /// A scope of the op store.
    ScopeId
    /// An operation of the op store: the hash of its content.
    OpId
    /// A causal delta or a governance op.
    DeltaId
    /// A row of shared or private state.
    StateKey
    /// An entity of the storage model.
    EntityId
    /// A sorted collection.
    CollectionId
    /// A scope's encryption key, by hash.
    KeyId
    /// The nonce of an invitation, used once.
    InvitationNonce
    /// A SHA-256 digest that names no record.
    Hash
}

impl ContextId {
    /// The context of a space.
    pub fn of_space(did: &str) -> Self {
        ContextId(sha256(&[did.as_bytes()]))
    }
}

impl ApplicationId {
    /// The program of a manifest. The manifest must not change between versions of one program, so that a newer
    /// version is installed in place.
    pub fn of_manifest(manifest: &[u8]) -> Self {
        ApplicationId(sha256(&[manifest]))
    }
}

impl From<ContextId> for ScopeId {
    /// A space's operations are kept under its context id.
    fn from(context: ContextId) -> Self {
        ScopeId(context.0)
    }
}

impl From<GroupId> for ScopeId {
    /// A namespace's operations are kept under its own id.
    fn from(namespace: GroupId) -> Self {
        ScopeId(namespace.0)
    }
}

impl From<ContextId> for EntityId {
    /// The root entity of a context carries the context's id.
    fn from(context: ContextId) -> Self {
        EntityId(context.0)
    }
}

impl KeyId {
    /// The id under which a scope's 32-byte encryption key is stored and advertised (NODE-13).
    pub fn of_scope_key(scope_key: &[u8; 32]) -> Self {
        KeyId(sha256(&[scope_key]))
    }
}

fn parse_hex(what: &str, text: &str) -> Result<[u8; 32], Malformed> {
    let refuse = || Malformed::new(format!("{what}: {text:?}; expected 64 hex digits"));
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return Err(refuse());
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16).ok_or_else(refuse);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(bytes)
}

/// SHA-256 over parts, one after the other with nothing between.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

/// SHA-256 over a domain and parts, each behind its length, so that no two lists of parts read the same.
pub fn domain_hash(domain: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update((domain.len() as u64).to_le_bytes());
    hasher.update(domain);
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}
