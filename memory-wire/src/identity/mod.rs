//! Keys and how they come to be (WIRE-209, WIRE-210): passphrases, derivation by name, phrases of 24 words, key
//! files. Key material is wiped when dropped and never printed. No randomness here: a new key is made from bytes
//! the caller drew.
//!
//! | from | the 32 bytes of the seed are |
//! | --- | --- |
//! | a passphrase | SHA-256 of its UTF-8 |
//! | a parent and a name | SHA-256 of the parent's signature over the name |
//! | 24 words | the phrase's entropy, without stretching |
//! | a named space | the name derived from the passphrase `common user` |
//! | raw bytes, a key file | themselves |

mod pem;

use std::fmt;

use bip39::{Language, Mnemonic};
use ed25519_dalek::{Signer as _, SigningKey};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::{Zeroize as _, Zeroizing};

use crate::did::did_from_public_key;
use crate::ids::Did;

/// An Ed25519 seed, wiped when dropped.
pub type Seed = Zeroizing<[u8; 32]>;

/// Why key material could not be read. Never holds any of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum IdentityError {
    /// Not a phrase of 24 English BIP-39 words with a correct checksum.
    #[error("key phrase: expected 24 English BIP-39 words with a valid checksum")]
    Mnemonic,
    /// The begin or end line is missing.
    #[error("key file: expected `-----BEGIN PRIVATE KEY-----` … `-----END PRIVATE KEY-----`")]
    PemEnvelope,
    /// The body is not a PKCS#8 Ed25519 key in base64, with or without the multibase prefix.
    #[error("key file: expected a base64 PKCS#8 Ed25519 private key")]
    PemBody,
}

/// A private key that signs, and the DID it signs as.
#[derive(Clone)]
pub struct Signer {
    key: SigningKey,
    did: Did,
}

impl Signer {
    /// The key of a 32-byte seed: freshly drawn randomness, a passkey's PRF output, or a raw key.
    pub fn from_seed(mut seed: [u8; 32]) -> Signer {
        let key = SigningKey::from_bytes(&seed);
        seed.zeroize();
        Signer {
            did: did_from_public_key(&key.verifying_key()),
            key,
        }
    }

    /// The key of a passphrase (WIRE-209): its seed is the SHA-256 of the text.
    pub fn from_passphrase(passphrase: &str) -> Signer {
        Signer::from_seed(Sha256::digest(passphrase.as_bytes()).into())
    }

    /// The child key of a name (WIRE-209): its seed is the SHA-256 of this key's signature over the name.
    pub fn derive(&self, name: &str) -> Signer {
        let signature = Zeroizing::new(self.sign(name.as_bytes()));
        Signer::from_seed(Sha256::digest(&signature[..]).into())
    }

    /// The key of a named space (WIRE-209), the same for everyone who knows the name.
    pub fn of_named_space(name: &str) -> Signer {
        Signer::from_passphrase("common user").derive(name)
    }

    /// The key of a phrase of 24 words, whose entropy is the seed; no key stretching.
    ///
    /// # Errors
    /// [`IdentityError::Mnemonic`] for another length, an unknown word or a wrong checksum.
    pub fn from_mnemonic(phrase: &str) -> Result<Signer, IdentityError> {
        let normalised: Zeroizing<String> =
            Zeroizing::new(phrase.split_whitespace().collect::<Vec<_>>().join(" "));
        let mnemonic = Mnemonic::parse_in_normalized(Language::English, &normalised)
            .map_err(|_| IdentityError::Mnemonic)?;
        let entropy = Zeroizing::new(mnemonic.to_entropy());
        let seed: [u8; 32] = entropy
            .as_slice()
            .try_into()
            .map_err(|_| IdentityError::Mnemonic)?;
        Ok(Signer::from_seed(seed))
    }

    /// The phrase of 24 words that [`Signer::from_mnemonic`] reads.
    pub fn to_mnemonic(&self) -> Zeroizing<String> {
        let phrase = Mnemonic::from_entropy_in(Language::English, self.key.as_bytes())
            .expect("32 bytes of entropy always have a phrase");
        Zeroizing::new(phrase.to_string())
    }

    /// The key in a key file (WIRE-210), with the reference's multibase body or an ordinary one.
    ///
    /// # Errors
    /// [`IdentityError::PemEnvelope`] or [`IdentityError::PemBody`].
    pub fn from_pem(text: &str) -> Result<Signer, IdentityError> {
        Ok(Signer::from_seed(*pem::read(text)?))
    }

    /// The key file that the reference reads (WIRE-210).
    pub fn to_pem(&self) -> Zeroizing<String> {
        pem::write(&self.seed())
    }

    /// The seed.
    pub fn seed(&self) -> Seed {
        Zeroizing::new(self.key.to_bytes())
    }

    /// The DID of the public key.
    pub fn did(&self) -> &Did {
        &self.did
    }

    /// The Ed25519 signature over `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("did", &self.did)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_did_and_no_key_material() {
        let signer = Signer::from_seed([0xAB; 32]);
        let shown = format!("{signer:?}");
        assert!(shown.contains(signer.did().as_str()));
        assert!(
            !shown.to_lowercase().contains("abab") && !shown.contains("171"),
            "{shown}"
        );
    }

    #[test]
    fn wire_209_every_form_gives_the_key_back() {
        let signer = Signer::from_passphrase("alice");
        assert_eq!(
            signer.did(),
            &Did::from("did:key:z6Mktqe4c7rH3PWoWEHUzKtvDHCtDUsVf9JkZRA7nZh9i2FD")
        );
        assert_eq!(Signer::from_pem(&signer.to_pem()).unwrap().did(), signer.did());
        assert_eq!(
            Signer::from_mnemonic(&signer.to_mnemonic()).unwrap().did(),
            signer.did()
        );
        assert_eq!(
            Signer::of_named_space("demo").did(),
            &Did::from("did:key:z6Mkevtpi4saGgBjBVP6k8nqvk8tZKa7a3VSSYEC3Aom5tyH")
        );
    }

    #[test]
    fn wire_209_only_whole_phrases_are_keys() {
        let twelve = "abandon ".repeat(11) + "about";
        assert_eq!(
            Signer::from_mnemonic(&twelve).unwrap_err(),
            IdentityError::Mnemonic
        );
        assert_eq!(Signer::from_mnemonic("").unwrap_err(), IdentityError::Mnemonic);
    }
}
