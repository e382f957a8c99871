//! Key texts: where an identity becomes part of a key (RUN-400…405).
//!
//! Sites 1, 4, 7, 8 and 9 of the key vocabulary and the name-keyed boundary. Scope keys come from
//! `memory_wire::scope_key` alone; nothing here formats one.

use memory_wire::{EntityId, Scope, ScopeIdentity, SpaceId};
use smol_str::SmolStr;

use crate::address::Address;
use crate::replica::Instance;

/// Instance of an address for an identity; the scope name stands in when nobody's identity resolves it (RUN-20).
pub fn instance_of(address: &Address, identity: &ScopeIdentity) -> Instance {
    match address.instance(identity) {
        Some(key) => Instance::Key(key),
        None => Instance::Unresolved(address.scope),
    }
}

/// Sites 1, 4 and 7: one instance of one document of one space, as a struct of its parts; the text form of the
/// vectors is [`EntityKey::text`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityKey {
    /// Space.
    pub space: SpaceId,
    /// Instance.
    pub instance: Instance,
    /// Document.
    pub id: EntityId,
}

impl EntityKey {
    /// `{space}/{scope key}/{id}`.
    pub fn text(&self) -> String {
        format!("{}/{}/{}", self.space, self.instance.as_str(), self.id)
    }
}

/// Sites 1 and 7.
pub fn entity_key(address: &Address, identity: &ScopeIdentity) -> EntityKey {
    EntityKey {
        space: address.space.clone(),
        instance: instance_of(address, identity),
        id: address.id.clone(),
    }
}

/// Site 4: the memo of documents whose default was found present.
pub fn seed_memo_key(address: &Address, identity: &ScopeIdentity) -> EntityKey {
    entity_key(address, identity)
}

/// Name-keyed: a node's declared write surface, which stands for every instance it may write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityNameKey {
    /// Space.
    pub space: SpaceId,
    /// Scope name.
    pub scope: Scope,
    /// Document.
    pub id: EntityId,
}

impl EntityNameKey {
    /// `{space}/{scope name}/{id}`.
    pub fn text(&self) -> String {
        format!("{}/{}/{}", self.space, self.scope.as_str(), self.id)
    }
}

/// See [`EntityNameKey`].
pub fn entity_name_key(address: &Address) -> EntityNameKey {
    EntityNameKey {
        space: address.space.clone(),
        scope: address.scope,
        id: address.id.clone(),
    }
}

/// RUN-61: a reserved pull kick.
pub type PullKickKey = EntityKey;

/// Text of a pull kick: `space NUL scope key NUL id`.
pub fn pull_kick_text(key: &PullKickKey) -> String {
    format!("{}\0{}\0{}", key.space, key.instance.as_str(), key.id)
}

/// Site 8: `/{scope key}/{id}/{JSON(path)}`, without the space.
pub fn address_string(address: &Address, identity: &ScopeIdentity) -> String {
    let mut text = format!("/{}/{}/", instance_of(address, identity).as_str(), address.id);
    push_json_path(&mut text, &address.path);
    text
}

/// Site 9: `{space}/{id}/{scope key}/{path}`, diagnostics only.
pub fn format_address(address: &Address, identity: &ScopeIdentity) -> String {
    let instance = instance_of(address, identity);
    let mut text = format!("{}/{}/{}", address.space, address.id, instance.as_str());
    for segment in &address.path {
        text.push('/');
        text.push_str(segment);
    }
    text
}

/// RUN-401: the compact JSON array of segment strings.
pub fn push_json_path(out: &mut String, path: &[SmolStr]) {
    out.push('[');
    for (i, segment) in path.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        push_json_string(out, segment);
    }
    out.push(']');
}

/// A JSON string literal as ECMAScript writes it.
pub fn push_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::path;

    fn address(scope: Scope) -> Address {
        Address {
            space: SpaceId::from("did:key:s"),
            id: EntityId::from("of:a"),
            scope,
            scope_key: None,
            path: path(["value", "a\"b"]),
        }
    }

    #[test]
    fn run_402_one_identity_partitions_as_names_do() {
        let own = ScopeIdentity::session("did:key:alice", "s1");
        for a in [Scope::Space, Scope::User, Scope::Session] {
            for b in [Scope::Space, Scope::User, Scope::Session] {
                let (a, b) = (address(a), address(b));
                let same = entity_key(&a, &own) == entity_key(&b, &own);
                assert_eq!(same, entity_name_key(&a) == entity_name_key(&b));
                assert_eq!(same, address_string(&a, &own) == address_string(&b, &own));
                assert_eq!(same, format_address(&a, &own) == format_address(&b, &own));
            }
        }
    }

    #[test]
    fn run_403_two_principals_are_two_keys() {
        let (alice, bob) = (
            ScopeIdentity::session("did:key:a", "s"),
            ScopeIdentity::session("did:key:b", "s"),
        );
        for scope in [Scope::User, Scope::Session] {
            let a = address(scope);
            assert_ne!(entity_key(&a, &alice), entity_key(&a, &bob));
            assert_ne!(seed_memo_key(&a, &alice), seed_memo_key(&a, &bob));
            assert_ne!(address_string(&a, &alice), address_string(&a, &bob));
            assert_ne!(format_address(&a, &alice), format_address(&a, &bob));
        }
        let a = address(Scope::Space);
        assert_eq!(entity_key(&a, &alice), entity_key(&a, &bob));
    }

    #[test]
    fn run_401_json_path_is_compact_and_escaped() {
        assert!(
            address_string(&address(Scope::Space), &ScopeIdentity::default())
                .ends_with("[\"value\",\"a\\\"b\"]")
        );
    }
}
