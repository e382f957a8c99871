//! Rows that no other column describes: a 16-byte scope and a 32-byte fragment. Facts: §2.4.

use std::fmt;

use serde::{Serialize, Serializer};

use super::part::array;
use super::{KeyPart, keys};
use crate::error::Malformed;
use crate::id::{BlobId, ContextId};
use crate::value::Identity;

/// The purpose of a generic row, 16 bytes, shorter names padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenericScope([u8; 16]);

impl GenericScope {
    /// The DID of a space, under its context id, so that a context can be named again.
    pub const SPACE_DID: GenericScope = GenericScope(*b"spacewave-did\0\0\0");
    /// The at-rest key version in force.
    pub const KEY_VERSION: GenericScope = GenericScope(*b"at-rest-version\0");
    /// The whole application row of code that an in-place installation replaced, under that code's blob id.
    pub const SUPERSEDED_PROGRAM: GenericScope = GenericScope(*b"superseded-code\0");
    /// Cached identities of peers.
    pub const PEER_IDENTITIES: GenericScope = GenericScope(*b"calimero-idpeers");
    /// Cached addresses of peers.
    pub const PEER_ADDRESSES: GenericScope = GenericScope(*b"calimero-peercch");
    /// The server's TLS certificate *and its private key*.
    pub const TLS_CERTIFICATE: GenericScope = GenericScope(*b"ssl_certs:server");
    /// A full-state replacement is under way; a row found at start-up means that it was cut off.
    pub const SYNC_IN_PROGRESS: GenericScope = GenericScope(*b"sync-in-progres\0");
    /// Event-stream sessions.
    pub const EVENT_SESSIONS: GenericScope = GenericScope(*b"sse-sessions\0\0\0\0");

    /// Scopes whose rows may leave the machine; every other one stays (NODE-34). What a later version, an older one or another
    /// program keeps under a name of its own may be bookkeeping of this machine or a key.
    pub const LEAVE: &'static [GenericScope] = &[GenericScope::SPACE_DID];

    /// A scope of one's own.
    pub const fn new(bytes: [u8; 16]) -> Self {
        GenericScope(bytes)
    }

    /// Whether the values hold keys, which are not shown.
    pub fn holds_keys(self) -> bool {
        self == GenericScope::TLS_CERTIFICATE
    }

    /// Whether rows of the scope stay on this machine.
    pub fn is_node_local(self) -> bool {
        !GenericScope::LEAVE.contains(&self)
    }
}

impl fmt::Debug for GenericScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.escape_ascii().to_string())
    }
}

impl Serialize for GenericScope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&crate::error::Hex(self.0.to_vec()))
    }
}

impl KeyPart for GenericScope {
    const LEN: usize = 16;
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        array(bytes).map(GenericScope)
    }
}

/// Which row of a scope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment([u8; 32]);

impl Fragment {
    /// The only row of a scope.
    pub const ONLY: Fragment = Fragment([0; 32]);

    /// A fragment of one's own.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Fragment(bytes)
    }

    /// The row of an event-stream session: its number, big-endian, then zeros.
    pub fn of_session(number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Fragment(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<ContextId> for Fragment {
    fn from(context: ContextId) -> Self {
        Fragment(*context.as_bytes())
    }
}

impl From<BlobId> for Fragment {
    fn from(blob: BlobId) -> Self {
        Fragment(*blob.as_bytes())
    }
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&crate::error::Hex(self.0.to_vec()), f)
    }
}

impl Serialize for Fragment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&crate::error::Hex(self.0.to_vec()))
    }
}

impl KeyPart for Fragment {
    const LEN: usize = 32;
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        array(bytes).map(Fragment)
    }
}

keys! {
    /// A row of a named purpose; the value is verbatim.
    Generic in Generic, ByScope, Identity {
        /// The purpose.
        scope: GenericScope,
        /// Which row of it.
        fragment: Fragment,
    }
}
