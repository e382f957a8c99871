//! The access list of a space (SRV-801…807, ENG-1200…1203): its document's shape, the capability a principal has by
//! it, and the predicates of the genesis rules. Pure; modes, sessions and service principals are the server's.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::ids::{Did, SpaceId};
use crate::message::Operation;
use crate::scope_key::Scope;
use crate::value::{Object, Value};
use crate::well_known::acl_document_id;

/// The key that stands for everyone, anonymous included.
pub const ANYONE: &str = "*";

/// What a principal may do in a space; ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Read documents.
    Read,
    /// And write them.
    Write,
    /// And change the access list.
    Owner,
}

impl Capability {
    /// The stored text.
    pub fn as_str(self) -> &'static str {
        match self {
            Capability::Read => "READ",
            Capability::Write => "WRITE",
            Capability::Owner => "OWNER",
        }
    }

    /// The capability spelled `text`.
    pub fn from_name(text: &str) -> Option<Capability> {
        [Capability::Read, Capability::Write, Capability::Owner]
            .into_iter()
            .find(|c| c.as_str() == text)
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a value is no enforceable access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The list is not a plain object.
    #[error("access list: expected an object of principals")]
    NotAnObject,
    /// A key is neither a DID nor `*`.
    #[error("access list: {0:?} is neither a DID nor \"*\"")]
    BadPrincipal(String),
    /// A value is no capability.
    #[error("access list: the capability of {0:?} is none of READ, WRITE, OWNER")]
    BadCapability(String),
    /// Nobody in particular owns the space.
    #[error("access list: no concrete principal is OWNER")]
    NoConcreteOwner,
}

/// A well-formed access list (`is_acl`): every key a DID or `*`, every value a capability. It may be empty; only
/// one with a concrete owner is enforceable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclDocument(BTreeMap<SmolStr, Capability>);

impl AclDocument {
    /// Reads what the document holds under `value`.
    pub fn parse(value: &Value) -> Result<AclDocument, AclError> {
        let entries = value.as_object().ok_or(AclError::NotAnObject)?;
        let mut list = BTreeMap::new();
        for (principal, capability) in entries.iter() {
            let bad = || AclError::BadPrincipal(principal.to_string());
            let name = principal
                .as_str()
                .filter(|name| *name == ANYONE || crate::did::is_acl_did(name))
                .ok_or_else(bad)?;
            let capability = capability
                .as_str()
                .and_then(Capability::from_name)
                .ok_or_else(|| AclError::BadCapability(name.to_owned()))?;
            list.insert(SmolStr::new(name), capability);
        }
        Ok(AclDocument(list))
    }

    /// [`AclDocument::parse`], and somebody in particular owns the space: the valid state of SRV-802, and the shape
    /// a new list must have (SRV-804 row 5).
    pub fn parse_enforceable(value: &Value) -> Result<AclDocument, AclError> {
        let list = AclDocument::parse(value)?;
        if list.has_concrete_owner() {
            Ok(list)
        } else {
            Err(AclError::NoConcreteOwner)
        }
    }

    /// The capability the list gives: the principal's own entry, even when it is lower than everyone's, else
    /// everyone's. `None` is the anonymous principal.
    pub fn capability_of(&self, principal: Option<&Did>) -> Option<Capability> {
        let own = principal.and_then(|principal| self.0.get(principal.as_str()));
        own.or_else(|| self.0.get(ANYONE)).copied()
    }

    /// True when some entry other than `*` is OWNER.
    pub fn has_concrete_owner(&self) -> bool {
        self.concrete_owners().next().is_some()
    }

    /// The concrete owners, lexicographically ascending (SRV-318 takes the first).
    pub fn concrete_owners(&self) -> impl Iterator<Item = Did> + '_ {
        self.0
            .iter()
            .filter(|(principal, capability)| *principal != ANYONE && **capability == Capability::Owner)
            .map(|(principal, _)| Did::from(principal.clone()))
    }

    /// The principal a delegated reader of the space acts for (SRV-318): the space itself when it is an owner, else
    /// the first concrete owner.
    pub fn acting_owner(&self, space: &Did) -> Option<Did> {
        if self.0.get(space.as_str()) == Some(&Capability::Owner) {
            return Some(space.clone());
        }
        self.concrete_owners().next()
    }

    /// Entries, ascending by principal.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Capability)> + '_ {
        self.0
            .iter()
            .map(|(principal, capability)| (principal.as_str(), *capability))
    }

    /// The list of a space that `owner` alone has anything to do with: what the first commit of a new space sets, signed by
    /// the space's own key (SRV-804).
    pub fn owned_by(owner: &Did) -> AclDocument {
        AclDocument(
            [(owner.as_smol().clone(), Capability::Owner)]
                .into_iter()
                .collect(),
        )
    }

    /// The operation that makes this the list of `space`.
    pub fn to_operation(&self, space: &SpaceId) -> Operation {
        Operation::Set {
            id: acl_document_id(space),
            scope: Scope::Space,
            value: crate::value!({ "value": (self.to_value()) }),
        }
    }

    /// A list of the given entries, for genesis.
    pub fn from_entries<'a>(
        entries: impl IntoIterator<Item = (&'a str, Capability)>,
    ) -> Result<AclDocument, AclError> {
        AclDocument::parse(&Value::Object(
            entries
                .into_iter()
                .map(|(principal, capability)| (principal, capability.as_str()))
                .collect::<Object>(),
        ))
    }

    /// The stored form.
    pub fn to_value(&self) -> Value {
        Value::Object(
            self.entries()
                .map(|(principal, capability)| (principal, capability.as_str()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn srv_802_shape_of_a_list() {
        assert!(AclDocument::parse(&value!({})).is_ok());
        assert_eq!(
            AclDocument::parse_enforceable(&value!({})),
            Err(AclError::NoConcreteOwner)
        );
        assert_eq!(
            AclDocument::parse_enforceable(&value!({ "*": "OWNER" })),
            Err(AclError::NoConcreteOwner)
        );
        assert!(AclDocument::parse_enforceable(&value!({ "did:key:zA": "OWNER" })).is_ok());
        for bad in ["did:key", "DID:key:zA", "did:key:a:b", "alice", ""] {
            let list: Object = [(bad, "READ")].into_iter().collect();
            assert_eq!(
                AclDocument::parse(&list.into()),
                Err(AclError::BadPrincipal(bad.to_owned())),
                "{bad}"
            );
        }
        let bad = value!({ "did:key:zA": "owner" });
        assert_eq!(
            AclDocument::parse(&bad),
            Err(AclError::BadCapability("did:key:zA".into()))
        );
        assert_eq!(AclDocument::parse(&value!([])), Err(AclError::NotAnObject));
    }

    #[test]
    fn srv_802_an_own_entry_wins_even_when_lower() {
        let list = AclDocument::parse(&value!({ "*": "WRITE", "did:key:zA": "READ", "did:key:zB": "OWNER" }))
            .unwrap();
        let of = |did: &str| list.capability_of(Some(&Did::from(did)));
        assert_eq!(of("did:key:zA"), Some(Capability::Read));
        assert_eq!(of("did:key:zB"), Some(Capability::Owner));
        assert_eq!(of("did:key:zC"), Some(Capability::Write));
        assert_eq!(list.capability_of(None), Some(Capability::Write));
        assert!(Capability::Read < Capability::Write && Capability::Write < Capability::Owner);
    }

    #[test]
    fn srv_318_a_delegated_reader_acts_for_the_first_owner() {
        let space = Did::from("did:key:zS");
        let list = |value| AclDocument::parse(&value).unwrap();
        let two = list(value!({ "did:key:zB": "OWNER", "did:key:zA": "OWNER" }));
        assert_eq!(two.acting_owner(&space), Some("did:key:zA".into()));
        let own = list(value!({ "did:key:zA": "OWNER", "did:key:zS": "OWNER" }));
        assert_eq!(own.acting_owner(&space), Some(space.clone()));
        assert_eq!(list(value!({ "*": "OWNER" })).acting_owner(&space), None);
    }
}
