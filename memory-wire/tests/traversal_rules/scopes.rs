//! Scopes and spaces of links (TRV §§10, 14).

use memory_wire::traverse::{DeadEnd, DocKey, SchemaPool, ScopeCap, TraverseError, handle_cap, hop_cap};
use memory_wire::{Scope, ScopeIdentity, ScopeKey, Value, value};

use super::graph::{Graph, link_to, link_with, schema};

/// `a.x` links to the user's instance of `b`.
fn scoped() -> Graph {
    let mut graph = Graph::of([("a", value!({ "x": (link_to("b", value!({ "scope": "user" }))) }))]);
    graph.put("b", Scope::User, value!({ "n": 1 }));
    graph
}

fn under(cap: Value) -> Value {
    value!({ "type": "object", "properties": { "x": cap } })
}

#[test]
fn trv_1001_a_cap_is_the_first_entrys_or_the_schemas_own() {
    let cap = |of: Value| hop_cap(&mut SchemaPool::new(), &schema(of));
    assert_eq!(
        cap(value!({ "asCell": [{ "kind": "cell", "scope": "user" }], "scope": "space" })),
        Some(ScopeCap::At(Scope::User))
    );
    assert_eq!(
        cap(value!({ "asCell": ["cell"], "scope": "space" })),
        Some(ScopeCap::At(Scope::Space))
    );
    assert_eq!(cap(value!({ "scope": "any" })), Some(ScopeCap::Any));
    for none in [
        value!({ "scope": "inherit" }),
        value!({ "scope": "team" }),
        value!({}),
        value!({ "anyOf": [{ "scope": "space" }] }),
        value!({ "$ref": "#/$defs/A", "$defs": { "A": { "scope": "space" } } }),
    ] {
        assert_eq!(cap(none.clone()), None, "{none:?}");
    }
    assert_eq!(
        scoped()
            .query(&[], under(value!({ "type": "object", "scope": "user" })))
            .reached(),
        ["a", "b@user"]
    );
    assert_eq!(
        scoped()
            .query(&[], under(value!({ "type": "object", "scope": "space" })))
            .reached(),
        ["a"]
    );
}

#[test]
fn trv_1002_a_cap_never_changes_a_scope() {
    let wide = value!({ "type": "object", "scope": "session" });
    assert_eq!(scoped().query(&[], under(wide)).reached(), ["a", "b@user"]);
    let handle = value!({ "asCell": [{ "kind": "cell", "scope": "session" }] });
    assert_eq!(scoped().value(&[], under(handle)), "{x:<cell b@user>}");
}

#[test]
fn trv_1003_a_handle_over_a_link_too_narrow_leads_nowhere() {
    assert_eq!(
        handle_cap(&schema(value!({ "asCell": ["cell"], "scope": "space" }))),
        None,
        "no fallback to `scope`"
    );
    let options = value!({ "anyOf": [{ "asCell": [{ "kind": "cell", "scope": "session" }] }, { "oneOf": [{ "asCell": [{ "kind": "cell", "scope": "space" }] }] }] });
    assert_eq!(
        handle_cap(&schema(options)),
        Some(ScopeCap::At(Scope::Space)),
        "the narrowest of the options"
    );
    let capped = value!({ "asCell": [{ "kind": "cell", "scope": "space" }] });
    let mut required = under(capped).as_object().unwrap().clone();
    required.insert("required", value!(["x"]));
    let read = scoped().read(&[], required.into());
    assert_eq!(read.value.unwrap(), "{x:<cell data:*@user>}");
    assert!(matches!(read.notes.dead_ends[..], [DeadEnd::Blocked { .. }]));
}

#[test]
fn trv_1004_a_blocked_hop_is_a_dead_end_with_a_warning() {
    let queried = scoped().query(&[], under(value!({ "type": "object", "scope": "space" })));
    assert!(queried.selects());
    let blocked = DeadEnd::Blocked {
        scope: Scope::User,
        cap: ScopeCap::At(Scope::Space),
    };
    assert_eq!(queried.notes.dead_ends, [blocked]);
}

#[test]
fn trv_1005_a_scope_is_resolved_before_the_cap_is_looked_at_in_a_schema_walk() {
    let mut graph = scoped();
    graph.identity = ScopeIdentity::default();
    graph
        .documents
        .retain(|key, _| key.instance.scope_key == ScopeKey::space());
    let capped = || value!({ "type": "object", "scope": "space" });
    let walk = graph.query(&[], under(capped()));
    assert!(
        matches!(walk.outcome, Err(TraverseError::Scope(_))),
        "{:?}",
        walk.outcome
    );
    // The selector path looks at the cap first.
    assert!(graph.query(&["x"], capped()).outcome.is_ok());
    assert!(graph.query(&["x"], value!({ "type": "object" })).outcome.is_err());
}

#[test]
fn trv_1401_a_foreign_link_is_walked_with_that_spaces_keys() {
    let mut graph = Graph::of([
        ("a", link_with(value!({ "id": "of:b", "space": "did:key:far" }))),
        ("b", value!("home")),
    ]);
    let queried = graph.query(&[], value!(true));
    assert_eq!(
        queried.reached(),
        ["a"],
        "the document of the same id at home is another one"
    );
    let far = DocKey::new("did:key:far".into(), ScopeKey::space(), "of:b".into());
    graph
        .documents
        .insert(far, value!({ "value": (link_with(value!({ "id": "of:c" }))) }));
    let far = DocKey::new("did:key:far".into(), ScopeKey::space(), "of:c".into());
    graph.documents.insert(far, value!({ "value": "far" }));
    assert_eq!(
        graph.query(&[], value!(true)).reached(),
        ["a", "did:key:far b", "did:key:far c"]
    );
    assert_eq!(graph.value(&[], value!({ "type": "string" })), "\"far\"");
}
