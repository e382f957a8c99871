//! `wire-scope-key.jsonl`, whole (WIRE-101…109).

mod typed_value;

use memory_wire::scope_key::{
    InstanceId, Scope, ScopeIdentity, ScopeKey, can_resolve_scope_key, decode_component, encode_component,
    identity_of, is_scope_key, principal_of_session_key, scope_key_applicable_to, scope_of,
};
use serde_json::{Value as Json, json};
use typed_value::{js_string, run_file, same};

fn identity(json: &Json) -> ScopeIdentity {
    ScopeIdentity {
        principal: json["principal"].as_str().map(Into::into),
        session_id: json["sessionId"].as_str().map(Into::into),
    }
}

fn scope(json: &Json) -> Scope {
    json.as_str()
        .map_or(Scope::default(), |name| Scope::from_name(name).unwrap())
}

#[test]
fn wire_scope_key_file() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/vectors/wire-scope-key.jsonl"
    );
    let identities: Vec<ScopeIdentity> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap())
        .find(|line| line["kind"] == "inspect-identities")
        .map(|line| {
            line["identities"]
                .as_array()
                .unwrap()
                .iter()
                .map(identity)
                .collect()
        })
        .expect("the file lists the identities that `inspect` lines are asked with");
    assert!(!identities.is_empty());
    run_file("wire-scope-key.jsonl", |line| match line["kind"].as_str() {
        Some("component") => component(line),
        Some("component-ascii-unescaped") => ascii_unescaped(line),
        Some("resolve") => resolve(line),
        Some("inspect") => inspect(line, &identities),
        Some("inspect-identities") => Ok(()),
        Some("dirtyKey") => dirty_key(line),
        other => Err(format!("unknown kind {other:?}")),
    });
}

/// A text with an unpaired surrogate is no `str`, so it cannot even be asked about (WIRE-101).
fn component(line: &Json) -> Result<(), String> {
    let text = js_string(&line["text"]);
    let encoded = text.as_str().map(encode_component);
    if let (Some(text), Some(encoded)) = (text.as_str(), &encoded) {
        same("decoded again", decode_component(encoded).as_deref(), Some(text))?;
    }
    same("encoded", encoded.as_deref(), line["encoded"].as_str())
}

fn ascii_unescaped(line: &Json) -> Result<(), String> {
    let mut plain: Vec<char> = (0u8..=0x7F)
        .map(char::from)
        .filter(|c| encode_component(&c.to_string()) == c.to_string())
        .collect();
    let mut expected: Vec<char> = line["chars"].as_str().unwrap().chars().collect();
    plain.sort_unstable();
    expected.sort_unstable();
    same("unescaped", plain, expected)
}

fn resolve(line: &Json) -> Result<(), String> {
    let (scope, identity) = (scope(&line["scope"]), identity(&line["identity"]));
    same(
        "canResolve",
        can_resolve_scope_key(scope, &identity),
        line["canResolve"].as_bool().unwrap(),
    )?;
    let resolved = ScopeKey::resolve(scope, &identity);
    if let Ok(key) = &resolved {
        same("parsed again", ScopeKey::parse(key.as_str()).as_ref(), Ok(key))?;
        same("scope", key.scope(), scope)?;
    }
    let (key, message) = match &resolved {
        Ok(key) => (Some(key.as_str()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    same("scopeKey", key, line["scopeKey"].as_str())?;
    same("message", message.as_deref(), line["error"]["message"].as_str())
}

/// A key with an unpaired surrogate is no `str`: it fails the check where it arrives, and is never inspected.
fn inspect(line: &Json, identities: &[ScopeIdentity]) -> Result<(), String> {
    let valid = line["isScopeKey"].as_bool().unwrap();
    let Some(key) = js_string(&line["key"]).as_str().map(str::to_owned) else {
        return same("isScopeKey", false, valid);
    };
    let key = key.as_str();
    same("isScopeKey", is_scope_key(key), valid)?;
    same("parse", ScopeKey::parse(key).is_ok(), valid)?;
    same(
        "scopeOf",
        scope_of(key).as_str(),
        line["scopeOf"].as_str().unwrap(),
    )?;
    let identity = identity_of(key).map_or(Json::Null, |identity| {
        let mut json =
            json!({ "principal": identity.principal.expect("a user or session key has one").as_str() });
        if let Some(session) = identity.session_id {
            json["sessionId"] = session.as_str().into();
        }
        json
    });
    same("identityOf", &identity, &line["identityOf"])?;
    let principal = principal_of_session_key(key);
    same(
        "principalOfSessionKey",
        principal.as_ref().map(|p| p.as_str()),
        line["principalOfSessionKey"].as_str(),
    )?;
    let applicable: Vec<bool> = identities
        .iter()
        .map(|identity| scope_key_applicable_to(key, identity))
        .collect();
    let expected: Vec<bool> = line["applicableTo"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b.as_bool().unwrap())
        .collect();
    same("applicableTo", applicable, expected)
}

fn dirty_key(line: &Json) -> Result<(), String> {
    let scope_key = line["scopeKey"]
        .as_str()
        .map_or(Ok(ScopeKey::space()), ScopeKey::parse)
        .unwrap();
    let instance = InstanceId::new(line["id"].as_str().unwrap(), scope_key);
    same(
        "key",
        instance.dirty_key_text().as_str(),
        line["key"].as_str().unwrap(),
    )
}
