//! One operation: its content, its id and its signature. Facts: §5.

use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_dalek::Signer;
use serde::Serialize;

use super::payload::Payload;
use crate::clock::HybridTimestamp;
use crate::error::{Malformed, StoreError};
use crate::id::{AccountId, DeviceId, Hash, OpId, PublicKey, ScopeId, sha256};
use crate::value::Signature;

/// Who made an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct Authorship {
    /// The account.
    pub account: AccountId,
    /// The device.
    pub device: DeviceId,
    /// Verifies the signature.
    pub device_key: PublicKey,
}

/// An operation, as stored: exactly the Borsh of these fields, without a frame.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct Op {
    /// Hash of the content. An operation mirrored from governance keeps its source's id instead and does not verify.
    pub id: OpId,
    /// The scope.
    pub scope: ScopeId,
    /// The operations it was made on top of, in its author's order; only the hash sorts them.
    pub parents: Vec<OpId>,
    /// Who made it.
    pub authorship: Authorship,
    /// When.
    pub hlc: HybridTimestamp,
    /// What it does.
    pub payload: Payload,
    /// Root of the scope that its author saw after it. Not part of the id.
    pub expected_scope_root: Hash,
    /// By the device key, over the id.
    pub signature: Signature,
}

/// The content of an operation before it has an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsignedOp {
    /// The scope.
    pub scope: ScopeId,
    /// The operations it is made on top of.
    pub parents: Vec<OpId>,
    /// The author's account.
    pub account: AccountId,
    /// The author's device.
    pub device: DeviceId,
    /// When.
    pub hlc: HybridTimestamp,
    /// What it does.
    pub payload: Payload,
    /// Root of the scope after it.
    pub expected_scope_root: Hash,
}

impl UnsignedOp {
    /// Computes the id and signs it with the device's key.
    pub fn sign(self, key: &ed25519_dalek::SigningKey) -> Result<Op, StoreError> {
        let authorship = Authorship {
            account: self.account,
            device: self.device,
            device_key: PublicKey::new(key.verifying_key().to_bytes()),
        };
        let mut op = Op {
            id: OpId::ZERO,
            scope: self.scope,
            parents: self.parents,
            authorship,
            hlc: self.hlc,
            payload: self.payload,
            expected_scope_root: self.expected_scope_root,
            signature: Signature::ZERO,
        };
        op.id = op.content_id()?;
        op.signature = Signature(key.sign(op.id.as_bytes()).to_bytes());
        Ok(op)
    }
}

impl Op {
    /// Reads a whole operation. An unknown payload tag, too few bytes or any left over is an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        borsh::from_slice(bytes).map_err(|error| StoreError::Malformed {
            what: "op",
            cause: error.into(),
        })
    }

    /// The operation's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StoreError> {
        borsh::to_vec(self).map_err(|error| StoreError::Malformed {
            what: "op",
            cause: Malformed::from(error),
        })
    }

    /// The hash of the content: scope, number of parents, parents ascending, authorship, time stamp, payload.
    pub fn content_id(&self) -> Result<OpId, StoreError> {
        let mut parents = self.parents.clone();
        parents.sort_unstable();
        let mut content = Vec::with_capacity(256 + 32 * parents.len());
        content.extend_from_slice(self.scope.as_bytes());
        content.extend_from_slice(&(parents.len() as u64).to_le_bytes());
        for parent in &parents {
            content.extend_from_slice(parent.as_bytes());
        }
        content.extend_from_slice(self.authorship.account.as_bytes());
        content.extend_from_slice(self.authorship.device.as_bytes());
        content.extend_from_slice(self.authorship.device_key.as_bytes());
        content.extend_from_slice(&self.hlc.to_bytes());
        borsh::to_writer(&mut content, &self.payload).map_err(|error| StoreError::Malformed {
            what: "op payload",
            cause: error.into(),
        })?;
        Ok(OpId::new(sha256(&[&content])))
    }

    /// Refuses unless the id is the content's and the device key signed it.
    pub fn verify(&self) -> Result<(), StoreError> {
        let expected = self.content_id()?;
        if expected != self.id {
            return Err(StoreError::OpId {
                found: self.id,
                expected,
            });
        }
        if self
            .signature
            .verifies(&self.authorship.device_key, self.id.as_bytes())
        {
            Ok(())
        } else {
            Err(StoreError::OpSignature { id: self.id })
        }
    }
}

/// The root of a scope: over its entities, its access rules and its groups.
pub fn scope_root(entities_root: &Hash, acl_hash: &Hash, groups_root: &Hash) -> Hash {
    Hash::new(sha256(&[
        entities_root.as_bytes(),
        acl_hash.as_bytes(),
        groups_root.as_bytes(),
    ]))
}
