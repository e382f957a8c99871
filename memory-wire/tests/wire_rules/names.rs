//! Names and where keys may stand (WIRE §§1, 2).

use memory_wire::ids::MEMORY_PROTOCOL;
use memory_wire::message::{AppliedCommit, ClientCommit, EntitySnapshot, Root, Upsert};
use memory_wire::scope_key::{identity_of, principal_of_session_key, scope_of};
use memory_wire::{Scope, Value, value};

#[test]
fn wire_102_scope_names_are_exact_and_absent_is_space() {
    for scope in [Scope::Space, Scope::User, Scope::Session] {
        assert_eq!(Scope::from_name(scope.as_str()), Some(scope));
    }
    for stray in ["Space", "", "inherit", "any", "sessions", " user"] {
        assert_eq!(Scope::from_name(stray), None, "{stray:?}");
    }
    assert_eq!(Scope::default(), Scope::Space);
    assert!(
        Scope::Space < Scope::User && Scope::User < Scope::Session,
        "broad before narrow"
    );
}

#[test]
fn wire_106_inspectors_answer_whatever_they_are_asked() {
    assert_eq!(scope_of("session:"), Scope::Session);
    assert_eq!(scope_of("user:"), Scope::User);
    for space in ["space", "", "User:a", "anything"] {
        assert_eq!(scope_of(space), Scope::Space, "{space:?}");
    }
    let identity = |key: &str| {
        identity_of(key).map(|of| {
            (
                of.principal.unwrap().to_string(),
                of.session_id.map(|s| s.to_string()),
            )
        })
    };
    assert_eq!(identity("session:a:b"), Some(("a".into(), Some("b".into()))));
    assert_eq!(
        identity("session::"),
        Some((String::new(), Some(String::new()))),
        "parts may be empty"
    );
    assert_eq!(identity("user:a%3Ab"), Some(("a:b".into(), None)));
    for none in [
        "session:a",
        "session:a:b:c",
        "session:%:b",
        "user:",
        "user:%2",
        "space",
    ] {
        assert_eq!(identity(none), None, "{none}");
    }
    assert_eq!(
        principal_of_session_key("session:a:%").map(|p| p.to_string()),
        Some("a".into()),
        "the third part is not decoded"
    );
    assert!(
        principal_of_session_key("user:a").is_none() && principal_of_session_key("session:%:b").is_none()
    );
}

#[test]
fn wire_108_keys_cross_the_wire_in_named_places_only_and_canonical() {
    let canonical = "user:did%3Akey%3AzA";
    let root = |key: &str| {
        Root::from_value(&value!({ "id": "of:x", "entityScopeKey": key, "selector": { "path": [] } })).is_ok()
    };
    let upsert = |key: &str| {
        Upsert::from_value(&value!({ "branch": "", "id": "of:x", "scope": "user", "scopeKey": key, "seq": 1, "deleted": true })).is_ok()
    };
    let snapshot = |key: &str| {
        EntitySnapshot::from_value(&value!({ "branch": "", "id": "of:x", "scope": "user", "scopeKey": key, "seq": 1, "document": null })).is_ok()
    };
    let revision = |key: &str| {
        AppliedCommit::from_value(&value!({ "seq": 1, "branch": "", "revisions": [{
        "id": "of:x", "scopeKey": key, "branch": "", "seq": 1, "opIndex": 0, "commitSeq": 1, "op": "delete"
    }] }))
        .is_ok()
    };
    for (place, reads) in [
        ("root", root as fn(&str) -> bool),
        ("upsert", upsert),
        ("snapshot", snapshot),
        ("revision", revision),
    ] {
        assert!(reads(canonical), "{place}");
        for bad in ["user:did:key:zA", "user:", "nobody", "user:%61"] {
            assert!(!reads(bad), "{place} {bad}");
        }
    }
    // A commit names scopes: a key in it is a field like any other that nobody reads.
    let commit = value!({
        "localSeq": 1, "reads": { "confirmed": [], "pending": [] },
        "operations": [{ "op": "delete", "id": "of:x", "scope": "user", "scopeKey": "user:somebody", "entityScopeKey": "x" }]
    });
    let read = ClientCommit::from_value(&commit).unwrap();
    let (id, scope) = read.operations[0].target().unwrap();
    assert_eq!((id.as_str(), scope), ("of:x", Scope::User));
    let with_key = value!({
        "localSeq": 1, "reads": { "confirmed": [], "pending": [] },
        "operations": [{ "op": "delete", "id": "of:x", "scope": "user:did%3Akey%3AzA" }]
    });
    assert!(ClientCommit::from_value(&with_key).is_err());
}

#[test]
fn wire_208_the_protocol_is_called_memory() {
    assert_eq!(MEMORY_PROTOCOL, "memory");
    let hello =
        memory_wire::message::ClientMessage::Hello(memory_wire::message::Hello::new(Default::default()));
    assert_eq!(
        hello.to_value().member("protocol").and_then(Value::as_str),
        Some("memory")
    );
}
