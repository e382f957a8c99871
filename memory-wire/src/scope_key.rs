//! Scope keys (WIRE-101…110): the name of one stored instance of a document, and the only place in the
//! workspace that spells or splits it. Pure functions of their arguments; there is no ambient identity.
//!
//! # Forms
//!
//! | scope | key | needs |
//! | --- | --- | --- |
//! | space | `space` | nothing |
//! | user | `user:` + enc(principal) | a principal |
//! | session | `session:` + enc(principal) + `:` + enc(session id) | both |
//!
//! `enc` percent-encodes UTF-8 bytes with upper-case hex and leaves `A–Z a–z 0–9 - _ . ! ~ * ' ( )` as they are
//! ([`encode_component`], WIRE-101), so that a key has no `:` or `/` but its own. An empty part counts as missing.
//! [`ScopeKey::resolve`] makes a key from an identity (WIRE-104); [`ScopeKey::parse`] accepts exactly what it makes
//! (WIRE-105): a second spelling would be a second row.
//!
//! ```
//! use memory_wire::{Scope, ScopeIdentity, ScopeKey};
//!
//! let alice = ScopeIdentity::session("did:key:zA", "tab 1");
//! assert_eq!(ScopeKey::resolve(Scope::Session, &alice)?.as_str(), "session:did%3Akey%3AzA:tab%201");
//! assert!(ScopeKey::parse("user:did:key:zA").is_err() && ScopeKey::parse("user:a%2fb").is_err());
//! # Ok::<(), memory_wire::scope_key::ScopeKeyError>(())
//! ```
//!
//! Who sees an instance (WIRE-107): everyone the `space` one, and an identity the `user:` and `session:` keys that it
//! resolves to itself. Everything else is absent for it. [`scope_of`], [`identity_of`] and [`principal_of_session_key`]
//! answer whatever they are asked (WIRE-106); a key that *arrives* has to be parsed first (WIRE-108).

use std::borrow::Borrow;
use std::fmt;

use smol_str::SmolStr;
use thiserror::Error;

use crate::ids::{Did, EntityId, SessionId};

const SPACE: &str = "space";
const USER_PREFIX: &str = "user:";
const SESSION_PREFIX: &str = "session:";

/// How many values a document has: one, one per user, or one per session (WIRE-102). Ordered broad to narrow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum Scope {
    /// One value for everyone. What an absent scope means.
    #[default]
    Space,
    /// One value per principal.
    User,
    /// One value per session of a principal.
    Session,
}

impl Scope {
    /// The wire name.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Space => "space",
            Scope::User => "user",
            Scope::Session => "session",
        }
    }

    /// The scope of a wire name; names are exact.
    pub fn from_name(name: &str) -> Option<Scope> {
        match name {
            "space" => Some(Scope::Space),
            "user" => Some(Scope::User),
            "session" => Some(Scope::Session),
            _ => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whose instance is meant. An empty string counts as missing, as everywhere in this module.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ScopeIdentity {
    /// The acting principal.
    pub principal: Option<Did>,
    /// The acting session.
    pub session_id: Option<SessionId>,
}

impl ScopeIdentity {
    /// The identity of a session of a principal.
    pub fn session(principal: impl Into<Did>, session_id: impl Into<SessionId>) -> ScopeIdentity {
        ScopeIdentity {
            principal: Some(principal.into()),
            session_id: Some(session_id.into()),
        }
    }

    /// The identity of a principal outside any session.
    pub fn user(principal: impl Into<Did>) -> ScopeIdentity {
        ScopeIdentity {
            principal: Some(principal.into()),
            session_id: None,
        }
    }

    fn principal_text(&self) -> Option<&str> {
        self.principal.as_ref().map(Did::as_str).filter(|p| !p.is_empty())
    }

    fn session_text(&self) -> Option<&str> {
        self.session_id
            .as_ref()
            .map(SessionId::as_str)
            .filter(|s| !s.is_empty())
    }
}

/// Why a scope key could not be made. The first three texts are contractual (WIRE-104); all are answered as
/// `ProtocolError`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ScopeKeyError {
    /// User scope without a principal.
    #[error("user scoped memory operations require a principal")]
    UserWithoutPrincipal,
    /// Session scope without a principal.
    #[error("session scoped memory operations require a principal")]
    SessionWithoutPrincipal,
    /// Session scope without a session id.
    #[error("session scoped memory operations require a session id")]
    SessionWithoutSessionId,
    /// The text is not in the constructor's image (WIRE-105).
    #[error("not a canonical scope key: {0:?}")]
    NotCanonical(String),
}

/// The key of one stored instance (WIRE-103). Made by [`ScopeKey::resolve`] or [`ScopeKey::parse`] only; clones in
/// O(1).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeKey(SmolStr);

impl ScopeKey {
    /// The key of the instance that everyone shares.
    pub fn space() -> ScopeKey {
        ScopeKey(SmolStr::new_static(SPACE))
    }

    /// The key of `identity`'s instance in `scope` (WIRE-104). The space scope resolves with any identity.
    ///
    /// # Errors
    /// Names the part of the identity that the scope needs and that is missing or empty.
    pub fn resolve(scope: Scope, identity: &ScopeIdentity) -> Result<ScopeKey, ScopeKeyError> {
        match scope {
            Scope::Space => Ok(ScopeKey::space()),
            Scope::User => {
                let principal = identity
                    .principal_text()
                    .ok_or(ScopeKeyError::UserWithoutPrincipal)?;
                let mut key = String::with_capacity(USER_PREFIX.len() + principal.len() + 8);
                key.push_str(USER_PREFIX);
                push_component(&mut key, principal);
                Ok(ScopeKey(key.into()))
            }
            Scope::Session => {
                let principal = identity
                    .principal_text()
                    .ok_or(ScopeKeyError::SessionWithoutPrincipal)?;
                let session = identity
                    .session_text()
                    .ok_or(ScopeKeyError::SessionWithoutSessionId)?;
                Ok(ScopeKey(session_form(principal, session).into()))
            }
        }
    }

    /// Checks a text that arrived from outside (WIRE-105): exactly the constructor's image is accepted.
    ///
    /// # Errors
    /// [`ScopeKeyError::NotCanonical`] with the text.
    pub fn parse(text: &str) -> Result<ScopeKey, ScopeKeyError> {
        if is_scope_key(text) {
            Ok(ScopeKey(SmolStr::new(text)))
        } else {
            Err(ScopeKeyError::NotCanonical(text.to_owned()))
        }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key's text as a cheaply cloned string.
    pub fn as_smol(&self) -> &SmolStr {
        &self.0
    }

    /// The scope this key belongs to.
    pub fn scope(&self) -> Scope {
        scope_of(&self.0)
    }

    /// The identity the key was made of; empty for the space key.
    pub fn identity(&self) -> ScopeIdentity {
        identity_of(&self.0).unwrap_or_default()
    }

    /// True when a subscriber of this identity may see the instance (WIRE-107). Allocates nothing.
    pub fn applicable_to(&self, identity: &ScopeIdentity) -> bool {
        scope_key_applicable_to(&self.0, identity)
    }
}

impl Default for ScopeKey {
    /// The space key: what an absent scope means.
    fn default() -> Self {
        ScopeKey::space()
    }
}

impl Borrow<str> for ScopeKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for ScopeKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeKey({:?})", self.0.as_str())
    }
}

impl std::str::FromStr for ScopeKey {
    type Err = ScopeKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ScopeKey::parse(text)
    }
}

/// The three keys of one identity, resolved once: a session's hot path hands out clones of these and allocates
/// nothing more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopeKeys {
    identity: ScopeIdentity,
    user: Result<ScopeKey, ScopeKeyError>,
    session: Result<ScopeKey, ScopeKeyError>,
}

impl ScopeKeys {
    /// Resolves all scopes of `identity`.
    pub fn of(identity: ScopeIdentity) -> ScopeKeys {
        ScopeKeys {
            user: ScopeKey::resolve(Scope::User, &identity),
            session: ScopeKey::resolve(Scope::Session, &identity),
            identity,
        }
    }

    /// Whose keys these are.
    pub fn identity(&self) -> &ScopeIdentity {
        &self.identity
    }

    /// [`ScopeKey::resolve`] from the stored answers.
    ///
    /// # Errors
    /// As [`ScopeKey::resolve`].
    pub fn resolve(&self, scope: Scope) -> Result<ScopeKey, ScopeKeyError> {
        match scope {
            Scope::Space => Ok(ScopeKey::space()),
            Scope::User => self.user.clone(),
            Scope::Session => self.session.clone(),
        }
    }

    /// True when the instance is one of this identity's (WIRE-107).
    pub fn covers(&self, key: &ScopeKey) -> bool {
        match key.scope() {
            Scope::Space => true,
            Scope::User => self.user.as_ref() == Ok(key),
            Scope::Session => self.session.as_ref() == Ok(key),
        }
    }
}

/// One stored instance of a document: the dirty key of schedulers, trackers and caches (WIRE-109). A struct of its
/// parts, so that an id holding a separator is harmless.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceId {
    /// The document.
    pub id: EntityId,
    /// Which of its instances.
    pub scope_key: ScopeKey,
}

impl InstanceId {
    /// The instance of `id` under `scope_key`.
    pub fn new(id: impl Into<EntityId>, scope_key: ScopeKey) -> InstanceId {
        InstanceId {
            id: id.into(),
            scope_key,
        }
    }

    /// The instance that everyone shares.
    pub fn space(id: impl Into<EntityId>) -> InstanceId {
        InstanceId::new(id, ScopeKey::space())
    }

    /// The joined text, for vectors, logs and diagnostics only.
    pub fn dirty_key_text(&self) -> String {
        format!("{}\0{}", self.scope_key, self.id)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope_key, self.id)
    }
}

/// True exactly for the texts that [`ScopeKey::resolve`] can produce (WIRE-105). Never fails.
pub fn is_scope_key(text: &str) -> bool {
    if let Some(rest) = text.strip_prefix(USER_PREFIX) {
        is_canonical_segment(rest)
    } else if let Some(rest) = text.strip_prefix(SESSION_PREFIX) {
        // A second `:` would have to be inside a segment, where it is never canonical.
        rest.split_once(':')
            .is_some_and(|(p, s)| is_canonical_segment(p) && is_canonical_segment(s))
    } else {
        text == SPACE
    }
}

/// The scope a text claims by its prefix (WIRE-106); anything without a known prefix is space.
pub fn scope_of(key: &str) -> Scope {
    if key.starts_with(SESSION_PREFIX) {
        Scope::Session
    } else if key.starts_with(USER_PREFIX) {
        Scope::User
    } else {
        Scope::Space
    }
}

/// The identity spelled in a user or session key (WIRE-106), as far as it decodes; `None` for space and garbage.
pub fn identity_of(key: &str) -> Option<ScopeIdentity> {
    match scope_of(key) {
        Scope::Space => None,
        Scope::User => {
            let rest = key.strip_prefix(USER_PREFIX).filter(|rest| !rest.is_empty())?;
            Some(ScopeIdentity {
                principal: Some(decode_component(rest)?.into()),
                session_id: None,
            })
        }
        Scope::Session => {
            let (principal, session) = session_parts(key)?;
            Some(ScopeIdentity {
                principal: Some(decode_component(principal)?.into()),
                session_id: Some(decode_component(session)?.into()),
            })
        }
    }
}

/// The principal of a session key (WIRE-106); the session part is not decoded.
pub fn principal_of_session_key(key: &str) -> Option<Did> {
    let (principal, _) = session_parts(key)?;
    decode_component(principal).map(Did::from)
}

/// The two components of a text of exactly three parts with the session prefix.
fn session_parts(key: &str) -> Option<(&str, &str)> {
    let (principal, session) = key.strip_prefix(SESSION_PREFIX)?.split_once(':')?;
    (!session.contains(':')).then_some((principal, session))
}

/// The delivery filter (WIRE-107): `space` and unprefixed garbage apply to everyone, otherwise only the identity's
/// own key does. Allocates nothing.
pub fn scope_key_applicable_to(key: &str, identity: &ScopeIdentity) -> bool {
    match scope_of(key) {
        Scope::Space => true,
        Scope::User => match (key.strip_prefix(USER_PREFIX), identity.principal_text()) {
            (Some(rest), Some(principal)) => encodes(rest, principal),
            _ => false,
        },
        Scope::Session => match (
            session_parts(key),
            identity.principal_text(),
            identity.session_text(),
        ) {
            (Some((p, s)), Some(principal), Some(session)) => encodes(p, principal) && encodes(s, session),
            _ => false,
        },
    }
}

/// True when [`ScopeKey::resolve`] would succeed.
pub fn can_resolve_scope_key(scope: Scope, identity: &ScopeIdentity) -> bool {
    match scope {
        Scope::Space => true,
        Scope::User => identity.principal_text().is_some(),
        Scope::Session => identity.principal_text().is_some() && identity.session_text().is_some(),
    }
}

/// The session column of a stored commit (WIRE-110): the session form when there is a principal, else the bare
/// session id (derived commits, whose session id is the lease holder).
pub fn session_key(principal: Option<&Did>, session: &SessionId) -> String {
    match principal.map(Did::as_str).filter(|p| !p.is_empty()) {
        Some(principal) => session_form(principal, session.as_str()),
        None => session.as_str().to_owned(),
    }
}

fn session_form(principal: &str, session: &str) -> String {
    let mut key = String::with_capacity(SESSION_PREFIX.len() + principal.len() + session.len() + 16);
    key.push_str(SESSION_PREFIX);
    push_component(&mut key, principal);
    key.push(':');
    push_component(&mut key, session);
    key
}

/// The 71 bytes that stand for themselves in a component (WIRE-101).
const fn is_unescaped(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'_' | b'.' | b'!' | b'~' | b'*' | b'\'' | b'(' | b')'
        )
}

const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";

fn push_component(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if is_unescaped(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(UPPER_HEX[usize::from(byte >> 4)]));
            out.push(char::from(UPPER_HEX[usize::from(byte & 15)]));
        }
    }
}

/// The component encoding of WIRE-101. A text with an unpaired surrogate has none, and is no `str`.
pub fn encode_component(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    push_component(&mut out, text);
    out
}

/// Decodes percent escapes strictly: two hex digits of either case after each `%`, and the bytes must be
/// well-formed UTF-8. `None` otherwise. Unescaped text passes through.
pub fn decode_component(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let (high, low) = (hex_digit(*tail.first()?)?, hex_digit(*tail.get(1)?)?);
            bytes.push(high << 4 | low);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// True for a non-empty segment with `encode(decode(segment)) == segment`.
fn is_canonical_segment(segment: &str) -> bool {
    if segment.is_empty() {
        return false;
    }
    if segment.bytes().all(is_unescaped) {
        return true;
    }
    decode_component(segment).is_some_and(|text| encodes(segment, &text))
}

/// `encode_component(text) == segment`, without building the encoding.
fn encodes(segment: &str, text: &str) -> bool {
    let mut rest = segment.as_bytes();
    for byte in text.bytes() {
        let matched: &[u8] = if is_unescaped(byte) {
            &[byte]
        } else {
            &[
                b'%',
                UPPER_HEX[usize::from(byte >> 4)],
                UPPER_HEX[usize::from(byte & 15)],
            ]
        };
        match rest.strip_prefix(matched) {
            Some(tail) => rest = tail,
            None => return false,
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_103_the_three_forms() {
        let alice = ScopeIdentity::session("did:key:z6Mk", "s 1");
        assert_eq!(ScopeKey::resolve(Scope::Space, &alice).unwrap().as_str(), "space");
        assert_eq!(
            ScopeKey::resolve(Scope::User, &alice).unwrap().as_str(),
            "user:did%3Akey%3Az6Mk"
        );
        assert_eq!(
            ScopeKey::resolve(Scope::Session, &alice).unwrap().as_str(),
            "session:did%3Akey%3Az6Mk:s%201"
        );
    }

    #[test]
    fn wire_107_resolved_once_and_asked_often_agree() {
        let alice = ScopeKeys::of(ScopeIdentity::session("a/lice", "s:1"));
        let bob = ScopeIdentity::session("bob", "s:1");
        for scope in [Scope::Space, Scope::User, Scope::Session] {
            let key = alice.resolve(scope).unwrap();
            assert_eq!(key, ScopeKey::resolve(scope, alice.identity()).unwrap());
            assert!(alice.covers(&key) && key.applicable_to(alice.identity()));
            assert_eq!(key.applicable_to(&bob), scope == Scope::Space);
            assert_eq!(ScopeKeys::of(bob.clone()).covers(&key), scope == Scope::Space);
        }
    }

    #[test]
    fn wire_110_session_column() {
        let session = SessionId::from("did:key:z#7");
        assert_eq!(session_key(None, &session), "did:key:z#7");
        assert_eq!(
            session_key(Some(&Did::from("p")), &session),
            "session:p:did%3Akey%3Az%237"
        );
    }
}
