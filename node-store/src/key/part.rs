//! Components of keys and the buffer that a key is built in without allocating. Rule: NODE-11.

use std::ops::Deref;

use crate::error::Malformed;
use crate::id::*;

/// A fixed-width component of a key.
pub trait KeyPart: Sized {
    /// Width in bytes.
    const LEN: usize;
    /// Writes exactly `LEN` bytes.
    fn write(&self, out: &mut [u8]);
    /// Reads exactly `LEN` bytes.
    fn read(bytes: &[u8]) -> Result<Self, Malformed>;
}

/// The owner of a family that has one row at most.
impl KeyPart for () {
    const LEN: usize = 0;
    fn write(&self, _out: &mut [u8]) {}
    fn read(_bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// Numbers in keys are big-endian, so that byte order is numeric order (NODE-13).
impl KeyPart for u64 {
    const LEN: usize = 8;
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_be_bytes());
    }
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        array(bytes).map(u64::from_be_bytes)
    }
}

macro_rules! id_parts {
    ($($id:ident)*) => {$(
        impl KeyPart for $id {
            const LEN: usize = 32;
            fn write(&self, out: &mut [u8]) {
                out.copy_from_slice(self.as_bytes());
            }
            fn read(bytes: &[u8]) -> Result<Self, Malformed> {
                array(bytes).map($id::new)
            }
        }
    )*};
}

id_parts! {
    ContextId ApplicationId BlobId GroupId AccountId DeviceId PublicKey ScopeId OpId DeltaId StateKey
    CollectionId KeyId InvitationNonce
}

pub(crate) fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Malformed> {
    bytes
        .try_into()
        .map_err(|_| Malformed::new(format!("{} bytes; expected {N}", bytes.len())))
}

/// A key being built: as wide as the widest family, on the stack.
#[derive(Clone, Copy)]
pub struct KeyBuf {
    bytes: [u8; KeyBuf::CAPACITY],
    len: usize,
}

impl KeyBuf {
    /// Width of the widest fixed-width key: a prefix and three ids.
    pub const CAPACITY: usize = 97;

    pub(crate) const fn new() -> Self {
        KeyBuf {
            bytes: [0; KeyBuf::CAPACITY],
            len: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn push_part<P: KeyPart>(&mut self, part: &P) {
        part.write(&mut self.bytes[self.len..self.len + P::LEN]);
        self.len += P::LEN;
    }

    /// The key's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Deref for KeyBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for KeyBuf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
