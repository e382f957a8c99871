//! Signed governance operations as they stand in the group log and in a namespace's DAG. What an operation does is
//! opaque here: the store keeps, identifies and verifies it. Facts: §4.3.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::{Bytes, NamespaceGovOp, Signature};
use crate::error::{Malformed, StoreError};
use crate::id::{DeltaId, GroupId, PublicKey, sha256};

/// Whose operations: the two kinds sign in different domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SignedOpKind {
    /// Of one group (`GroupOpLog`).
    Group,
    /// Of a namespace (`NamespaceGovOp`).
    Namespace,
}

impl SignedOpKind {
    const fn domain(self) -> &'static [u8] {
        match self {
            SignedOpKind::Group => b"calimero.group.v1",
            SignedOpKind::Namespace => b"calimero.namespace.v1",
        }
    }

    const fn version(self) -> u8 {
        match self {
            SignedOpKind::Group => 10,
            SignedOpKind::Namespace => 7,
        }
    }

    const fn what(self) -> &'static str {
        match self {
            SignedOpKind::Group => "signed group op",
            SignedOpKind::Namespace => "signed namespace op",
        }
    }
}

/// A signed operation. Layout: version, owner, parents, signer, nonce, the operation's own bytes, signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SignedOp {
    /// Whose operation.
    pub kind: SignedOpKind,
    /// Schema version: 10 for groups, 7 for namespaces.
    pub version: u8,
    /// The group or namespace.
    pub owner: GroupId,
    /// Content hashes of the operations before it.
    pub parent_op_hashes: Vec<DeltaId>,
    /// Who signed.
    pub signer: PublicKey,
    /// Counts a signer's operations.
    pub nonce: u64,
    /// Borsh of the operation itself.
    pub op: Bytes,
    /// Over the domain and all fields before it.
    pub signature: Signature,
}

#[derive(BorshSerialize, BorshDeserialize)]
struct Head {
    version: u8,
    owner: GroupId,
    parent_op_hashes: Vec<DeltaId>,
    signer: PublicKey,
    nonce: u64,
}

impl SignedOp {
    /// Reads a whole operation of the current schema version.
    pub fn decode(kind: SignedOpKind, bytes: &[u8]) -> Result<Self, StoreError> {
        let refuse = |cause: Malformed| StoreError::Malformed {
            what: kind.what(),
            cause,
        };
        let mut rest = bytes;
        let head = Head::deserialize(&mut rest).map_err(|error| refuse(error.into()))?;
        if head.version != kind.version() {
            let reason = format!("schema version {}; expected {}", head.version, kind.version());
            return Err(refuse(Malformed::new(reason)));
        }
        let Some((op, signature)) = rest.split_last_chunk::<64>() else {
            return Err(refuse(Malformed::new("too short for a signature")));
        };
        if op.is_empty() {
            return Err(refuse(Malformed::new("no operation")));
        }
        Ok(SignedOp {
            kind,
            version: head.version,
            owner: head.owner,
            parent_op_hashes: head.parent_op_hashes,
            signer: head.signer,
            nonce: head.nonce,
            op: Bytes(op.to_vec()),
            signature: Signature(*signature),
        })
    }

    /// The operation's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut bytes = self.unsigned()?;
        bytes.extend_from_slice(&self.signature.0);
        Ok(bytes)
    }

    fn unsigned(&self) -> Result<Vec<u8>, Malformed> {
        let mut bytes = borsh::to_vec(&Head {
            version: self.version,
            owner: self.owner,
            parent_op_hashes: self.parent_op_hashes.clone(),
            signer: self.signer,
            nonce: self.nonce,
        })?;
        bytes.extend_from_slice(&self.op);
        Ok(bytes)
    }

    /// The hash by which later operations name this one.
    pub fn content_hash(&self) -> Result<DeltaId, Malformed> {
        Ok(DeltaId::new(sha256(&[self.kind.domain(), &self.unsigned()?])))
    }

    /// Refuses unless the signer signed this very content.
    pub fn verify(&self) -> Result<(), StoreError> {
        let what = self.kind.what();
        let unsigned = self
            .unsigned()
            .map_err(|cause| StoreError::Malformed { what, cause })?;
        let signed = [self.kind.domain(), &unsigned].concat();
        if self.signature.verifies(&self.signer, &signed) {
            Ok(())
        } else {
            Err(StoreError::CredentialSignature { what })
        }
    }
}

/// What a namespace's DAG row holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum NamespaceEntry {
    /// An operation this node can read.
    Signed(SignedOp),
    /// The outline of one that it cannot.
    Opaque {
        /// The operation.
        delta_id: DeltaId,
        /// The operations before it.
        parent_op_hashes: Vec<DeltaId>,
        /// The group that can read it.
        group_id: GroupId,
        /// Who signed it.
        signer: PublicKey,
    },
}

impl NamespaceEntry {
    /// Reads a row: an entry with its tag, or the bare operation that older rows hold.
    pub fn decode(row: &NamespaceGovOp) -> Result<Self, StoreError> {
        let bytes: &[u8] = &row.skeleton_bytes;
        match bytes.split_first() {
            Some((0, signed)) => {
                SignedOp::decode(SignedOpKind::Namespace, signed).map(NamespaceEntry::Signed)
            }
            Some((1, outline)) => {
                let (delta_id, parent_op_hashes, group_id, signer) =
                    borsh::from_slice(outline).map_err(|error| StoreError::Malformed {
                        what: "namespace op outline",
                        cause: error.into(),
                    })?;
                Ok(NamespaceEntry::Opaque {
                    delta_id,
                    parent_op_hashes,
                    group_id,
                    signer,
                })
            }
            _ => SignedOp::decode(SignedOpKind::Namespace, bytes).map(NamespaceEntry::Signed),
        }
    }
}
