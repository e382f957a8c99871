//! Decentralised identifiers: the `did:key` form of an Ed25519 public key, which alone can be verified (WIRE-201),
//! and the looser predicate of ACL entries (WIRE-202).
//!
//! `did:key:` + `z` + base58btc of the bytes `ED 01` and the public key, 34 in all; nothing else parses.

use ed25519_dalek::VerifyingKey;
use thiserror::Error;

use crate::ids::Did;

/// The ACL entry that means anyone.
pub const ANYONE: &str = "*";

const DID: &str = "did:";
const DID_KEY: &str = "did:key:";
const BASE58BTC: char = 'z';
/// Multicodec of an Ed25519 public key, as a minimal varint.
const ED25519_CODE: [u8; 2] = [0xED, 0x01];
const DECODED_LENGTH: usize = ED25519_CODE.len() + 32;
/// More base58 characters than any 34 bytes need; longer input is not decoded, since that takes quadratic time.
const MAX_ENCODED_LENGTH: usize = 64;

/// Why a text is no verifiable DID. The beginnings of the messages are contractual (WIRE-201).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("Invalid DID \"{did}\", {problem}")]
pub struct DidError {
    /// The text.
    pub did: String,
    /// What is wrong with it.
    pub problem: DidProblem,
}

/// What is wrong with a DID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DidProblem {
    /// No `did:` at the start.
    #[error("must start with \"did:\"")]
    NoDid,
    /// A method other than `key`.
    #[error("only \"did:key:\" are supported right now")]
    OtherMethod,
    /// Not base58btc with its multibase prefix.
    #[error("expected base58btc text with the prefix z")]
    NotBase58,
    /// The multicodec is not Ed25519's, or its varint is not minimal.
    #[error("expected the key algorithm 0xed")]
    OtherAlgorithm,
    /// The decoded bytes are not 34.
    #[error("expected {DECODED_LENGTH} bytes")]
    WrongLength,
    /// The 32 bytes are no point of the curve, so that no signature can be valid.
    #[error("the key is no Ed25519 point")]
    NotAPoint,
}

/// The public key of a `did:key`.
///
/// # Errors
/// [`DidError`] with the text and the first thing wrong with it.
pub fn parse_did_key(did: &str) -> Result<VerifyingKey, DidError> {
    let fail = |problem| DidError {
        did: did.to_owned(),
        problem,
    };
    public_key(did).map_err(fail)
}

fn public_key(did: &str) -> Result<VerifyingKey, DidProblem> {
    if !did.starts_with(DID) {
        return Err(DidProblem::NoDid);
    }
    let key = did.strip_prefix(DID_KEY).ok_or(DidProblem::OtherMethod)?;
    let base58 = key.strip_prefix(BASE58BTC).ok_or(DidProblem::NotBase58)?;
    if base58.len() > MAX_ENCODED_LENGTH {
        return Err(DidProblem::WrongLength);
    }
    let bytes = bs58::decode(base58)
        .into_vec()
        .map_err(|_| DidProblem::NotBase58)?;
    let key = bytes
        .strip_prefix(&ED25519_CODE)
        .ok_or(DidProblem::OtherAlgorithm)?;
    let key: &[u8; 32] = key.try_into().map_err(|_| DidProblem::WrongLength)?;
    VerifyingKey::from_bytes(key).map_err(|_| DidProblem::NotAPoint)
}

/// The `did:key` of a public key.
pub fn did_from_public_key(key: &VerifyingKey) -> Did {
    let mut bytes = [0; DECODED_LENGTH];
    bytes[..ED25519_CODE.len()].copy_from_slice(&ED25519_CODE);
    bytes[ED25519_CODE.len()..].copy_from_slice(key.as_bytes());
    Did::from(format!(
        "{DID_KEY}{BASE58BTC}{}",
        bs58::encode(bytes).into_string()
    ))
}

/// True for what an ACL may name (WIRE-202): `did:`, a method, one more `:` and no third, at least seven UTF-16 code
/// units in all; or [`ANYONE`]. Says nothing about whether a signature of it could be verified.
pub fn is_acl_did(text: &str) -> bool {
    if text == ANYONE {
        return true;
    }
    let Some((_, specific)) = text.strip_prefix(DID).and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    !specific.contains(':') && text.encode_utf16().count() >= 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_202_acl_entries_are_looser() {
        for text in ["*", "did:a:b", "did:key:alice", "did::bc", "did:web:example.com"] {
            assert!(is_acl_did(text), "{text}");
        }
        for text in [
            "",
            "**",
            "did:",
            "did:a:",
            "did:abc",
            "did:a:b:c",
            "DID:a:b",
            "alice",
        ] {
            assert!(!is_acl_did(text), "{text}");
        }
    }

    #[test]
    fn wire_201_long_input_is_refused_without_decoding() {
        let long = format!("did:key:z{}", "2".repeat(1 << 20));
        assert_eq!(parse_did_key(&long).unwrap_err().problem, DidProblem::WrongLength);
    }
}
