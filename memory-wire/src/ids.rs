//! Names of things (WIRE-201…208): string newtypes that keep a session id from being passed as an entity id,
//! and the few helpers that look inside an entity id. To storage every id is an opaque, non-normalised string;
//! no constructor here changes its text.

use std::borrow::Borrow;
use std::fmt;

use smol_str::SmolStr;
use thiserror::Error;

use crate::codec::{self, DecodeError, EncodeError, base64};
use crate::value::Value;

/// The protocol's name in `hello` and in a signed session open (WIRE-208).
pub const MEMORY_PROTOCOL: &str = "memory";

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(SmolStr);

        impl $name {
            /// Wraps the text as it is.
            pub fn new(text: impl Into<SmolStr>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The text as a cheaply cloned string.
            pub fn as_smol(&self) -> &SmolStr {
                &self.0
            }

            /// True when the text is empty, which identity checks count as missing (WIRE-104).
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(SmolStr::new(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(SmolStr::from(text))
            }
        }

        impl From<SmolStr> for $name {
            fn from(text: SmolStr) -> Self {
                Self(text)
            }
        }

        impl From<&$name> for Value {
            fn from(id: &$name) -> Self {
                Value::String(id.0.clone().into())
            }
        }

        impl From<$name> for Value {
            fn from(id: $name) -> Self {
                Value::String(id.0.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! shown_in_debug {
    ($($name:ident),*) => {
        $(impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.0.as_str())
            }
        })*
    };
}

shown_in_debug!(Did, SpaceId, SessionId, EntityId, BranchName, EventId, RequestId);

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(…)")
    }
}

string_id! {
    /// A decentralised identifier: the principal of a session, the audience of a server, the issuer of a signature.
    /// Not checked here; [`crate::did`] parses it.
    Did
}
string_id! {
    /// A space: the DID of the key that signed its genesis ACL commit (WIRE-202).
    SpaceId
}
string_id! {
    /// An opaque session id, chosen by the client or minted by the server. Client-global across spaces.
    SessionId
}
string_id! {
    /// The opaque secret that lets a client resume its session: a credential, so `Debug` does not show it.
    SessionToken
}
string_id! {
    /// A document's id, scheme included (WIRE-203). The scheme is part of the identity.
    EntityId
}
string_id! {
    /// A branch of a space; the main branch is the empty string.
    BranchName
}
string_id! {
    /// An event's id, chosen by its emitter.
    EventId
}
string_id! {
    /// A request id of the socket protocol, chosen by the client.
    RequestId
}

impl SpaceId {
    /// The space id read as the DID it is.
    pub fn as_did(&self) -> Did {
        Did(self.0.clone())
    }
}

impl From<Did> for SpaceId {
    fn from(did: Did) -> Self {
        SpaceId(did.0)
    }
}

macro_rules! sequence_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub u64);

        impl $name {
            /// The number of `value` when it is a non-negative integer ≤ 2⁵³−1 (WIRE-002).
            pub fn from_value(value: &Value) -> Option<Self> {
                value.as_u64().map(Self)
            }
        }

        impl From<$name> for Value {
            /// Invariant: sequence numbers never pass 2⁵³−1, so the double is exact.
            fn from(n: $name) -> Self {
                Value::from(n.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

sequence_number! {
    /// A commit's sequence number in its space; 0 is "before the first commit".
    Seq
}
sequence_number! {
    /// A commit's number within its session, chosen by the client: positive, never used twice, and ascending in the order
    /// of sending, because a catch-up marker names the largest one it covers (WIRE-731, 754).
    LocalSeq
}

impl Seq {
    /// The number after this one.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl LocalSeq {
    /// The number after this one.
    pub fn next(self) -> LocalSeq {
        LocalSeq(self.0 + 1)
    }
}

/// What kind of document an id names, read from its scheme (WIRE-203). The classification never rewrites the id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntityScheme {
    /// `of:` — an ordinary entity.
    Of,
    /// `computed:` — an entity that the runtime can derive again.
    Computed,
    /// `cid:` — a content-addressed, immutable document of the space scope.
    Cid,
    /// `data:` — a value written into the id itself; never stored.
    Data,
    /// Anything else; storage keeps it as it is.
    Other,
}

impl EntityId {
    /// The kind of document this id names.
    pub fn scheme(&self) -> EntityScheme {
        match self.0.split_once(':').map(|(scheme, _)| scheme) {
            Some("of") => EntityScheme::Of,
            Some("computed") => EntityScheme::Computed,
            Some("cid") => EntityScheme::Cid,
            Some("data") => EntityScheme::Data,
            Some(_) | None => EntityScheme::Other,
        }
    }

    /// True for an inline `data:` id, which never appears in reads, commits or roots.
    pub fn is_inline(&self) -> bool {
        self.scheme() == EntityScheme::Data
    }

    /// True for a content-addressed `cid:` id.
    pub fn is_content_addressed(&self) -> bool {
        self.scheme() == EntityScheme::Cid
    }

    /// Turns a name into an entity id (WIRE-205): a name without `:` gets the scheme `of:`; one with a scheme must
    /// have an entity scheme or be inline data.
    ///
    /// # Errors
    /// [`EntityIdError::Scheme`] for any other scheme.
    pub fn mint(name: &str) -> Result<EntityId, EntityIdError> {
        if !name.contains(':') {
            return Ok(EntityId(smol_str::format_smolstr!("of:{name}")));
        }
        let id = EntityId::from(name);
        match id.scheme() {
            EntityScheme::Of | EntityScheme::Computed | EntityScheme::Data => Ok(id),
            EntityScheme::Cid | EntityScheme::Other => Err(EntityIdError::Scheme(name.to_owned())),
        }
    }

    /// Writes a value into an inline id (WIRE-203).
    ///
    /// # Errors
    /// [`EncodeError`] when the value has no encoding.
    pub fn inline(value: &Value) -> Result<EntityId, EncodeError> {
        let text = codec::encode(value)?;
        Ok(EntityId::from(format!(
            "{DATA_HEADER},{}",
            base64::encode(text.as_bytes())
        )))
    }

    /// Reads the value of an inline id (WIRE-204). The payload ends at the first `?` or `#`.
    ///
    /// # Errors
    /// [`EntityIdError`] when the header is not exactly the media type, or the payload is not base64url of an
    /// encoded value.
    pub fn inline_value(&self) -> Result<Value, EntityIdError> {
        let payload = self
            .0
            .strip_prefix(DATA_HEADER)
            .and_then(|rest| rest.strip_prefix(','))
            .ok_or_else(|| EntityIdError::Header(self.as_str().chars().take(64).collect()))?;
        let end = payload.find(['?', '#']).unwrap_or(payload.len());
        let bytes = base64::decode(&payload.as_bytes()[..end]).ok_or(EntityIdError::Payload)?;
        let text = String::from_utf8(bytes).map_err(|_| EntityIdError::Payload)?;
        Ok(codec::decode(&text)?)
    }
}

/// Everything before the comma of an inline id: no parameters, case-sensitive (WIRE-204).
const DATA_HEADER: &str = "data:application/vnd.common-fabric.data";

/// Why a text is not usable as an entity id, or an inline id holds no value.
#[derive(Debug, Error)]
pub enum EntityIdError {
    /// The scheme is none of the entity schemes.
    #[error("entity id {0:?}: expected no scheme, `of:`, `computed:` or `data:`")]
    Scheme(String),
    /// The inline id starts with something else than the one media type.
    #[error("inline entity id {0:?}…: expected it to start with `{DATA_HEADER},`")]
    Header(String),
    /// The payload is not base64url of UTF-8.
    #[error("inline entity id: the payload is not base64url of UTF-8 text")]
    Payload,
    /// The payload is not an encoded value.
    #[error("inline entity id: {0}")]
    Value(#[from] DecodeError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn wire_203_schemes_are_read_and_never_rewritten() {
        for (text, scheme) in [
            ("of:fid1:x", EntityScheme::Of),
            ("computed:fid1:x", EntityScheme::Computed),
            ("cid:fid1:x", EntityScheme::Cid),
            ("data:application/json,x", EntityScheme::Data),
            ("OF:fid1:x", EntityScheme::Other),
            ("plain", EntityScheme::Other),
        ] {
            let id = EntityId::from(text);
            assert_eq!((id.scheme(), id.as_str()), (scheme, text));
        }
    }

    #[test]
    fn wire_204_inline_ids_hold_their_value() {
        let id = EntityId::inline(&value!({ "a": 1 })).unwrap();
        assert_eq!(id, "data:application/vnd.common-fabric.data,ZnZqMTp7ImEiOjF9");
        assert!(id.inline_value().unwrap().member("a").is_some());
        assert!(
            EntityId::from("data:application/json,eyJhIjoxfQ")
                .inline_value()
                .is_err()
        );
    }

    #[test]
    fn wire_205_minting_accepts_entity_schemes_only() {
        assert_eq!(EntityId::mint("fid1x").unwrap(), "of:fid1x");
        assert_eq!(EntityId::mint("computed:fid1:x").unwrap(), "computed:fid1:x");
        assert!(matches!(EntityId::mint("http:x"), Err(EntityIdError::Scheme(_))));
    }
}
