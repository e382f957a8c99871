//! What accounts and devices prove themselves with. Facts: §5.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use crate::clock::first_half;
use crate::error::{Malformed, StoreError};
use crate::id::{AccountId, DeviceId, PublicKey, domain_hash};
use crate::value::Signature;

/// The beginning of an account; its hash is the account's id for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct AccountGenesis {
    /// Always 2.
    pub version: u8,
    /// The account's first root key.
    pub root_sign_pk: PublicKey,
}

impl AccountGenesis {
    /// A beginning with the given root key.
    pub fn new(root_sign_pk: PublicKey) -> Self {
        AccountGenesis {
            version: 2,
            root_sign_pk,
        }
    }

    /// The account.
    pub fn account_id(&self) -> AccountId {
        let mut bytes = [0; 33];
        bytes[0] = self.version;
        bytes[1..].copy_from_slice(self.root_sign_pk.as_bytes());
        AccountId::new(domain_hash("calimero.account.genesis.v1", &[&bytes]))
    }
}

impl DeviceId {
    /// A device of an account, told apart by a 16-byte nonce.
    pub fn of_account(account: &AccountId, nonce: &[u8; 16]) -> DeviceId {
        DeviceId::new(domain_hash("calimero.device.id.v1", &[account.as_bytes(), nonce]))
    }

    /// The id under which the device's clock stamps: half of the id, which is a hash already.
    pub fn clock_seed(&self) -> [u8; 16] {
        first_half(self.as_bytes())
    }
}

/// An account's root key names its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct RootHandoff {
    /// The account.
    pub account: AccountId,
    /// Counts root keys; the one that signs.
    pub from_epoch: u32,
    /// The next one.
    pub new_root_sign_pk: PublicKey,
    /// By the root key of `from_epoch`, over [`payload`](Self::payload).
    pub signature: Signature,
}

impl RootHandoff {
    /// What is signed.
    pub fn payload(&self) -> [u8; 32] {
        let epoch = self.from_epoch.to_le_bytes();
        let parts: [&[u8]; 3] = [self.account.as_bytes(), &epoch, self.new_root_sign_pk.as_bytes()];
        domain_hash("calimero.account.handoff.v1", &parts)
    }

    /// Refuses unless the given root key signed.
    pub fn verify(&self, root: &PublicKey) -> Result<(), StoreError> {
        signed("account handoff", &self.signature, root, &self.payload())
    }
}

/// A root key vouches for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct DeviceCertificate {
    /// The account.
    pub account: AccountId,
    /// The device.
    pub device: DeviceId,
    /// Verifies the device's signatures.
    pub sign_pk: PublicKey,
    /// Encrypts to the device.
    pub kem_pk: PublicKey,
    /// Which root key signs.
    pub key_epoch: u32,
    /// Counts the device's certificates.
    pub device_epoch: u32,
    /// By that root key, over [`payload`](Self::payload).
    pub signature: Signature,
}

impl DeviceCertificate {
    /// What is signed.
    pub fn payload(&self) -> [u8; 32] {
        let (key_epoch, device_epoch) = (self.key_epoch.to_le_bytes(), self.device_epoch.to_le_bytes());
        let parts: [&[u8]; 6] = [
            self.account.as_bytes(),
            self.device.as_bytes(),
            self.sign_pk.as_bytes(),
            self.kem_pk.as_bytes(),
            &key_epoch,
            &device_epoch,
        ];
        domain_hash("calimero.device.cert.v1", &parts)
    }

    /// Refuses unless the given root key signed.
    pub fn verify(&self, root: &PublicKey) -> Result<(), StoreError> {
        signed("device certificate", &self.signature, root, &self.payload())
    }

    /// Refuses unless the certificate leads back to the account's beginning: the genesis is the account's, each handoff
    /// is signed by the key before it and counts on by one, and the key of `key_epoch` signed the certificate.
    pub fn verify_chain(&self, genesis: &AccountGenesis, chain: &[RootHandoff]) -> Result<(), StoreError> {
        let refuse = |reason: String| StoreError::Malformed {
            what: "device certificate chain",
            cause: Malformed::new(reason),
        };
        if genesis.account_id() != self.account {
            return Err(refuse(format!(
                "the genesis is of account {}",
                genesis.account_id()
            )));
        }
        let mut roots = vec![genesis.root_sign_pk];
        for (epoch, handoff) in chain.iter().enumerate() {
            if handoff.account != self.account || handoff.from_epoch as usize != epoch {
                let found = (handoff.account, handoff.from_epoch);
                return Err(refuse(format!(
                    "handoff {epoch} is of account {} and epoch {}",
                    found.0, found.1
                )));
            }
            handoff.verify(&roots[epoch])?;
            roots.push(handoff.new_root_sign_pk);
        }
        let root = roots.get(self.key_epoch as usize).ok_or_else(|| {
            refuse(format!(
                "key epoch {}; the chain ends at {}",
                self.key_epoch,
                roots.len() - 1
            ))
        })?;
        self.verify(root)
    }
}

fn signed(
    what: &'static str,
    signature: &Signature,
    root: &PublicKey,
    payload: &[u8; 32],
) -> Result<(), StoreError> {
    if signature.verifies(root, payload) {
        Ok(())
    } else {
        Err(StoreError::CredentialSignature { what })
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    fn root(epoch: u8) -> SigningKey {
        SigningKey::from_bytes(&[epoch + 1; 32])
    }

    fn public(key: &SigningKey) -> PublicKey {
        PublicKey::new(key.verifying_key().to_bytes())
    }

    fn handoff(account: AccountId, from_epoch: u32, signer: &SigningKey, next: &SigningKey) -> RootHandoff {
        let mut handoff = RootHandoff {
            account,
            from_epoch,
            new_root_sign_pk: public(next),
            signature: Signature::ZERO,
        };
        handoff.signature = Signature(signer.sign(&handoff.payload()).to_bytes());
        handoff
    }

    fn certificate(account: AccountId, key_epoch: u32, signer: &SigningKey) -> DeviceCertificate {
        let mut certificate = DeviceCertificate {
            account,
            device: DeviceId::of_account(&account, &[1; 16]),
            sign_pk: PublicKey::new([2; 32]),
            kem_pk: PublicKey::new([3; 32]),
            key_epoch,
            device_epoch: 0,
            signature: Signature::ZERO,
        };
        certificate.signature = Signature(signer.sign(&certificate.payload()).to_bytes());
        certificate
    }

    #[test]
    fn node_14_a_certificate_leads_back_to_its_account_link_by_link() {
        let genesis = AccountGenesis::new(public(&root(0)));
        let account = genesis.account_id();
        let link = |epoch: u8| handoff(account, epoch.into(), &root(epoch), &root(epoch + 1));
        let chain = [link(0), link(1)];
        for epoch in 0..3u8 {
            let sound = certificate(account, epoch.into(), &root(epoch));
            sound.verify_chain(&genesis, &chain).unwrap();
            let forged = certificate(account, epoch.into(), &root(7));
            assert!(forged.verify_chain(&genesis, &chain).is_err());
        }
        let last = certificate(account, 2, &root(2));
        assert!(
            last.verify_chain(&genesis, &chain[..1]).is_err(),
            "the key is not in the chain"
        );
        assert!(
            last.verify_chain(&genesis, &[link(1), link(0)]).is_err(),
            "out of order"
        );
        let forged = [link(0), handoff(account, 1, &root(7), &root(2))];
        assert!(
            last.verify_chain(&genesis, &forged).is_err(),
            "not signed by the key before it"
        );
        // Signed by the right key, and counted wrongly or for another account.
        let miscounted = [link(0), handoff(account, 0, &root(1), &root(2))];
        assert!(last.verify_chain(&genesis, &miscounted).is_err());
        let other = AccountGenesis::new(public(&root(9)));
        let strangers = [link(0), handoff(other.account_id(), 1, &root(1), &root(2))];
        assert!(last.verify_chain(&genesis, &strangers).is_err());
        // The account's own key for somebody else's account, and another beginning of the same key.
        let claimed = certificate(other.account_id(), 0, &root(0));
        assert!(claimed.verify_chain(&genesis, &[]).is_err());
        let older = AccountGenesis {
            version: 1,
            ..genesis
        };
        assert_ne!(older.account_id(), account);
        assert!(
            certificate(account, 0, &root(0))
                .verify_chain(&older, &[])
                .is_err()
        );
    }
}
