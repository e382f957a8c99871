//! Effects owed to a session (WIRE-206, ENG-550): the entries of its effects document. Written by handlers at the
//! serving side, carried out and acknowledged by the client whose session instance holds them.

use crate::ids::{EntityId, Seq, SpaceId};
use crate::pointer::{DocPath, path_from_value, path_to_value};
use crate::scope_key::Scope;
use crate::value;
use crate::value::{Object, Value};

/// The one kind of effect there is.
const NAVIGATE: &str = "navigate";

/// Where a client is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectTarget {
    /// The space; absent is the one the intent stands in.
    pub space: Option<SpaceId>,
    /// The document.
    pub id: EntityId,
    /// Where in its value.
    pub path: DocPath,
    /// The document's scope; absent is space.
    pub scope: Scope,
}

/// An effect that a session's client is to carry out once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectIntent {
    /// [`crate::well_known::effect_nonce`]: the same for every run of the same cause.
    pub nonce: String,
    /// Where to navigate.
    pub target: EffectTarget,
    /// Seq of the commit that brought it; absent until the engine writes it.
    pub issued_in: Option<Seq>,
}

impl EffectIntent {
    /// Reads an entry; `None` for anything that is no navigation with a target.
    pub fn from_value(value: &Value) -> Option<EffectIntent> {
        if value.member("kind")?.as_str()? != NAVIGATE {
            return None;
        }
        let target = value.member("args")?.member("target")?;
        Some(EffectIntent {
            nonce: value.member("nonce")?.as_str()?.to_owned(),
            target: EffectTarget {
                space: match target.member("space") {
                    None => None,
                    Some(space) => Some(space.as_str()?.into()),
                },
                id: target.member("id")?.as_str()?.into(),
                path: path_from_value(target.member("path")?)?,
                scope: match target.member("scope") {
                    None => Scope::Space,
                    Some(name) => Scope::from_name(name.as_str()?)?,
                },
            },
            issued_in: match value.member("issuedIn") {
                None | Some(Value::Null) => None,
                Some(seq) => Some(Seq::from_value(seq)?),
            },
        })
    }

    /// The stored form; `issuedIn` is null until the engine writes it.
    pub fn to_value(&self) -> Value {
        let mut target = Object::new();
        if let Some(space) = &self.target.space {
            target.insert("space", space);
        }
        target.insert("id", &self.target.id);
        target.insert("path", path_to_value(&self.target.path));
        if self.target.scope != Scope::Space {
            target.insert("scope", self.target.scope.as_str());
        }
        value!({
            "nonce": (self.nonce.as_str()),
            "kind": NAVIGATE,
            "args": { "target": target },
            "issuedIn": (self.issued_in.map_or(Value::Null, Value::from))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode;

    #[test]
    fn wire_206_intents_read_back() {
        let mut intent = EffectIntent {
            nonce: crate::well_known::effect_nonce(&"e1".into(), "space/of:x"),
            target: EffectTarget {
                space: None,
                id: "of:fid1:x".into(),
                path: vec!["a".into()],
                scope: Scope::User,
            },
            issued_in: None,
        };
        let text = encode(&intent.to_value()).unwrap();
        assert!(
            text.contains("\"issuedIn\":null") && !text.contains("\"space\""),
            "{text}"
        );
        assert_eq!(EffectIntent::from_value(&intent.to_value()), Some(intent.clone()));
        intent.issued_in = Some(Seq(7));
        intent.target.space = Some("did:key:zS".into());
        assert_eq!(EffectIntent::from_value(&intent.to_value()), Some(intent));
        for other in [
            value!({ "nonce": "n", "kind": "print", "args": { "target": { "id": "of:x", "path": [] } } }),
            value!({ "nonce": "n", "kind": "navigate", "args": {} }),
            value!({ "kind": "navigate", "args": { "target": { "id": "of:x", "path": [] } } }),
            value!({ "nonce": "n", "kind": "navigate", "args": { "target": { "id": "of:x", "path": [], "scope": "all" } } }),
        ] {
            assert_eq!(EffectIntent::from_value(&other), None);
        }
    }
}
