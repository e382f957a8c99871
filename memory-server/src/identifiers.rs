//! Fresh identifiers: challenges, session ids, session tokens, connection ids (SRV-301, SRV-306). Injected, so
//! that recorded exchanges can be replayed letter by letter.

use std::fmt::Write as _;

/// Source of identifiers nobody can guess.
pub trait Identifiers: Send + Sync + 'static {
    /// 32 unpredictable bytes, as 64 lower-case hexadecimal digits.
    fn challenge(&self) -> String;
    /// A random (version 4) UUID in its usual lower-case text.
    fn uuid(&self) -> String;
}

/// The operating system's randomness.
#[derive(Debug, Default)]
pub struct RandomIdentifiers;

impl Identifiers for RandomIdentifiers {
    fn challenge(&self) -> String {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes)
            .expect("the operating system supplies randomness; without it no session is safe");
        hex(&bytes)
    }

    fn uuid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_301_challenges_are_64_hex_digits_and_differ() {
        let (a, b) = (RandomIdentifiers.challenge(), RandomIdentifiers.challenge());
        assert_eq!(a.len(), 64);
        assert!(
            a.bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        );
        assert_ne!(a, b);
    }
}
