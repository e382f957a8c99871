//! Key files (WIRE-210): PKCS#8 v1 of an Ed25519 seed in a PEM envelope whose body is *multibase* base64 – padded
//! base64 with a leading `M` – as the reference writes it. An ordinary PEM body is read too.

use data_encoding::BASE64;
use zeroize::Zeroizing;

use super::{IdentityError, Seed};

const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const MULTIBASE_BASE64PAD: char = 'M';
/// PKCS#8 v1 around the 32 bytes of an Ed25519 seed.
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2E, 2, 1, 0, 0x30, 5, 6, 3, 0x2B, 0x65, 0x70, 4, 0x22, 4, 0x20,
];
const PKCS8_LENGTH: usize = PKCS8_PREFIX.len() + 32;

/// The key file of a seed, without a newline at its end.
pub(super) fn write(seed: &Seed) -> Zeroizing<String> {
    let mut key = Zeroizing::new([0; PKCS8_LENGTH]);
    key[..PKCS8_PREFIX.len()].copy_from_slice(&PKCS8_PREFIX);
    key[PKCS8_PREFIX.len()..].copy_from_slice(&seed[..]);
    let body = Zeroizing::new(BASE64.encode(&key[..]));
    Zeroizing::new(format!("{BEGIN}\n{MULTIBASE_BASE64PAD}{}\n{END}", body.as_str()))
}

/// The seed in a key file, whichever of the two bodies it has.
pub(super) fn read(text: &str) -> Result<Seed, IdentityError> {
    let body = text
        .trim()
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END))
        .ok_or(IdentityError::PemEnvelope)?;
    let body: Zeroizing<String> = Zeroizing::new(body.chars().filter(|c| !c.is_ascii_whitespace()).collect());
    let multibase = body.strip_prefix(MULTIBASE_BASE64PAD);
    [multibase, Some(body.as_str())]
        .into_iter()
        .flatten()
        .find_map(pkcs8_seed)
        .ok_or(IdentityError::PemBody)
}

fn pkcs8_seed(base64: &str) -> Option<Seed> {
    let key = Zeroizing::new(BASE64.decode(base64.as_bytes()).ok()?);
    let seed: [u8; 32] = key.strip_prefix(&PKCS8_PREFIX)?.try_into().ok()?;
    Some(Zeroizing::new(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_210_both_bodies_are_read() {
        let seed = Zeroizing::new([7; 32]);
        let ours = write(&seed);
        let ordinary = ours.replace("\nM", "\n").replace("CIEI", "CIEI\n") + "\n";
        assert!(ours.contains("\nMMC4CAQAw") && !ours.ends_with('\n'));
        assert_eq!(read(&ours).unwrap(), seed);
        assert_eq!(read(&ordinary).unwrap(), seed);
        assert!(matches!(read("MC4CAQAw"), Err(IdentityError::PemEnvelope)));
        assert!(matches!(
            read(&ours.replace("MMC4", "MMC5")),
            Err(IdentityError::PemBody)
        ));
    }
}
