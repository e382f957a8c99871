//! Tracked graphs over a living store: a refresh reports what a fresh evaluation would, works on what changed alone,
//! and retracts what is reached no more (decision 31); evaluations are shared between the identities they serve.

mod chains;
mod failures;
mod refreshes;
mod retraction;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use memory_engine::query::{Changes, EvaluationCache, TrackedGraph};
use memory_engine::{ApplyCommit, Engine, EngineOptions};
use memory_wire::ids::{Did, SessionId};
use memory_wire::message::{ClientCommit, GraphQuery};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::value;
use memory_wire::value::{ErrorValue, Object, Special, Value};
use rustc_hash::FxHashSet;
use support::NOW_MS;

const SPACE: &str = "did:key:zSpace";

struct Store {
    engine: Engine,
    local_seq: u64,
}

impl Store {
    fn new() -> Store {
        Store {
            engine: Engine::in_memory(EngineOptions::default()).unwrap(),
            local_seq: 0,
        }
    }

    /// Commits documents (`None` deletes) for `did:key:<principal>` and returns the dirty instances.
    fn commit(&mut self, principal: &str, writes: &[(&str, Scope, Option<Value>)]) -> FxHashSet<InstanceId> {
        let operations: Vec<Value> = writes
            .iter()
            .map(|(id, scope, document)| match document {
                Some(document) => {
                    value!({ "op": "set", "id": (*id), "scope": (scope.as_str()), "value": (document.clone()) })
                }
                None => value!({ "op": "delete", "id": (*id), "scope": (scope.as_str()) }),
            })
            .collect();
        self.submit(principal, operations);
        let key = |scope: Scope| ScopeKey::resolve(scope, &identity(principal)).unwrap();
        writes
            .iter()
            .map(|(id, scope, _)| InstanceId::new(*id, key(*scope)))
            .collect()
    }

    fn submit(&mut self, principal: &str, operations: Vec<Value>) {
        self.local_seq += 1;
        let commit = value!({
            "localSeq": (self.local_seq as f64), "reads": { "confirmed": [], "pending": [] }, "operations": operations
        });
        let commit = ClientCommit::from_value(&commit).unwrap();
        let (session, did) = (SessionId::from("s1"), Did::from(format!("did:key:{principal}")));
        self.engine
            .apply_commit(ApplyCommit::authored(&session, Some(&did), &commit, NOW_MS))
            .unwrap();
    }

    fn write(&mut self, id: &str, content: Value) -> FxHashSet<InstanceId> {
        self.commit("alice", &[(id, Scope::Space, Some(value!({ "value": content })))])
    }

    fn track(&self, query: &GraphQuery) -> TrackedGraph {
        TrackedGraph::track(self.engine.reader(), &SPACE.into(), &identity("alice"), query).unwrap()
    }
}

fn identity(name: &str) -> ScopeIdentity {
    ScopeIdentity::session(format!("did:key:{name}"), "s1")
}

fn link(id: &str) -> Value {
    value!({ "/": { "link@1": { "id": id, "path": [] } } })
}

fn query(roots: &[(&str, Value)]) -> GraphQuery {
    let roots: Vec<Value> = roots
        .iter()
        .map(|(id, schema)| value!({ "id": (*id), "selector": { "path": [], "schema": (schema.clone()) } }))
        .collect();
    GraphQuery::from_value(&value!({ "roots": roots })).unwrap()
}

fn ids(instances: &[InstanceId]) -> Vec<&str> {
    instances.iter().map(|instance| instance.id.as_str()).collect()
}

fn reported(changes: &Changes) -> Vec<(String, u64)> {
    changes
        .snapshots
        .iter()
        .map(|s| (s.id.to_string(), s.seq.0))
        .collect()
}

#[test]
fn eng_1012_a_refresh_reads_what_changed_and_not_the_graph() {
    for schema in [
        value!(true),
        value!({ "type": "array", "items": { "type": "object" } }),
    ] {
        let mut store = Store::new();
        let members = 500;
        for n in 0..members {
            store.write(
                &format!("of:m{n}"),
                value!({ "n": (n as f64), "deeper": { "x": [1, 2, 3] } }),
            );
        }
        let list = |extra: usize| -> Value {
            (0..members + extra)
                .map(|n| link(&format!("of:m{n}")))
                .collect::<Vec<_>>()
                .into()
        };
        store.write("of:root", list(0));
        let mut graph = store.track(&query(&[("of:root", schema)]));
        assert_eq!(graph.work().documents, members as u64 + 1);
        assert_eq!(graph.tracked_instances().count(), members + 1);

        let before = graph.work();
        let dirty = store.write("of:m7", value!({ "n": 70 }));
        let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
        assert_eq!(reported(&changes), [("of:m7".to_owned(), members as u64 + 2)]);
        assert_eq!(graph.work().documents - before.documents, 1);

        // The list itself changes: the list and the new member are read, the other members are not.
        let before = graph.work();
        let mut dirty = store.write(&format!("of:m{members}"), value!({ "n": 0 }));
        dirty.extend(store.write("of:root", list(1)));
        let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
        assert_eq!(changes.snapshots.len(), 2);
        assert!(changes.unreached.is_empty());
        assert_eq!(graph.work().documents - before.documents, 2);
        assert_eq!(graph.work().evaluations, 1);
    }
}

#[test]
fn eng_1012_an_unrelated_commit_costs_nothing() {
    let mut store = Store::new();
    store.write("of:root", value!({ "a": 1 }));
    let mut graph = store.track(&query(&[("of:root", value!(true))]));
    let before = graph.work();
    let dirty = store.write("of:other", value!(1));
    assert!(graph.refresh(store.engine.reader(), &dirty).unwrap().is_none());
    assert_eq!(graph.work(), before);
}

#[test]
fn decision_31_what_a_removed_link_led_to_is_retracted() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:middle", value!({ "l": (link("of:leaf")) }));
    store.write("of:kept", value!({ "n": 1 }));
    store.write(
        "of:root",
        value!({ "a": (link("of:middle")), "b": (link("of:kept")) }),
    );
    let mut graph = store.track(&query(&[("of:root", value!(true))]));
    let dirty = store.write("of:root", value!({ "b": (link("of:kept")) }));
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(reported(&changes), [("of:root".to_owned(), 5)]);
    assert_eq!(ids(&changes.unreached), ["of:leaf", "of:middle"]);
    assert!(!graph.tracks(&InstanceId::space("of:leaf")));
    // Not pushed afterwards.
    let dirty = store.write("of:leaf", value!(2));
    assert!(graph.refresh(store.engine.reader(), &dirty).unwrap().is_none());
}

#[test]
fn decision_31_what_another_link_still_leads_to_stays() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write(
        "of:root",
        value!({ "a": (link("of:leaf")), "b": [(link("of:leaf"))] }),
    );
    let mut graph = store.track(&query(&[("of:root", value!(true))]));
    let dirty = store.write("of:root", value!({ "b": [(link("of:leaf"))] }));
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert!(changes.unreached.is_empty());
    assert!(graph.tracks(&InstanceId::space("of:leaf")));
}

#[test]
fn eng_1011_a_failed_extension_leaves_the_graph_as_it_was() {
    let mut store = Store::new();
    store.write("of:root", value!({ "a": 1 }));
    let mut graph = store.track(&query(&[("of:root", value!(true))]));
    let missing = query(&[("of:root", value!({ "$ref": "cid:fid1:AAAA" }))]);
    assert_eq!(
        graph.extend(store.engine.reader(), &missing).unwrap_err().name(),
        "SchemaClosureError"
    );
    assert_eq!(graph.tracked_instances().count(), 1);
    assert!(!graph.covers(&query(&[("of:other", value!(true))])).unwrap());
    assert!(
        graph
            .covers(&query(&[("of:root", value!({ "type": "string" }))]))
            .unwrap()
    );
}

#[test]
fn eng_1011_an_extension_reports_what_was_read_before_without_being_reached() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    // A leaf stands in the way of the link's path: read, and not reached (ENG-1025).
    let barred = value!({ "/": { "link@1": { "id": "of:leaf", "path": ["a", "b"] } } });
    store.write("of:one", value!({ "x": barred }));
    store.write("of:two", value!({ "x": (link("of:leaf")) }));
    let mut graph = store.track(&query(&[("of:one", value!(true))]));
    let extended = graph
        .extend(store.engine.reader(), &query(&[("of:two", value!(true))]))
        .unwrap();
    let extended: Vec<&str> = extended.iter().map(|snapshot| snapshot.id.as_str()).collect();
    assert_eq!(extended, ["of:leaf", "of:two"]);
}

#[test]
fn eng_1012_a_refresh_reports_a_schema_document_that_metadata_names_by_hash() {
    let mut store = Store::new();
    let schema = value!({ "type": "string" });
    let hash = memory_wire::hash::tagged_hash(&schema);
    store.write(&format!("cid:{hash}"), schema);
    store.write("of:root", value!(1));
    let mut graph = store.track(&query(&[("of:root", value!(true))]));
    let root = value!({ "value": 2, "cfc": { "schemaHash": (hash.as_str()) } });
    let dirty = store.commit("alice", &[("of:root", Scope::Space, Some(root))]);
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(
        reported(&changes),
        [(format!("cid:{hash}"), 1), ("of:root".to_owned(), 3)]
    );
}

#[test]
fn eng_1012_what_comes_to_be_behind_an_elements_link_is_found_by_a_refresh() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:next", value!({}));
    let schema = value!({ "type": "object", "properties": {} });
    let with = |id: &str, path: Value| value!({ "/": { "link@1": { "id": id, "path": path, "schema": (schema.clone()) } } });
    // An element's link is followed whatever its schema says (TRV-603), and all of these lead nowhere yet.
    let onwards = value!({ "/": { "link@1": { "id": "of:next", "path": ["x"] } } });
    let narrowed = with("of:next", value!(["y"]));
    for (id, content) in [
        ("of:plain", value!({})),
        ("of:redirect", value!({})),
        ("of:chain", onwards),
        ("of:narrowed", narrowed),
    ] {
        store.write(id, content);
    }
    let list = value!([
        (with("of:plain", value!(["x"]))),
        (with("of:chain", value!([]))),
        (link("of:narrowed")),
        { "/": { "link@1": { "id": "of:redirect", "path": ["x"], "schema": (schema.clone()), "overwrite": "redirect" } } }
    ]);
    store.write("of:root", list);
    let query = query(&[("of:root", value!(true))]);
    let leads = value!({ "z": (link("of:leaf")) });
    for (id, content) in [
        ("of:plain", value!({ "x": (leads.clone()) })),
        ("of:redirect", value!({ "x": (leads.clone()) })),
        ("of:chain", leads.clone()),
        ("of:next", value!({ "x": (leads.clone()) })),
        ("of:next", value!({ "y": (leads.clone()) })),
    ] {
        let before: Value = match id {
            "of:chain" => value!({ "/": { "link@1": { "id": "of:next", "path": ["x"] } } }),
            _ => value!({}),
        };
        let mut graph = store.track(&query);
        assert!(!graph.tracks(&InstanceId::space("of:leaf")), "{id}");
        let dirty = store.write(id, content);
        graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
        assert!(graph.tracks(&InstanceId::space("of:leaf")), "{id}");
        store.write(id, before);
    }
}

#[test]
fn eng_1012_a_path_through_links_is_gone_again_beside_a_wider_selector() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:end", value!({ "x": { "leaf": (link("of:leaf")) } }));
    store.write("of:way", value!({}));
    let schema = value!({ "type": "object", "properties": { "a": true } });
    let narrowed = value!({ "/": { "link@1": { "id": "of:end", "path": [], "schema": schema } } });
    let through = value!({ "/": { "link@1": { "id": "of:way", "path": ["a", "b"] } } });
    store.write("of:root", value!({ "b": narrowed, "a": through }));
    let query = query(&[("of:way", value!(true)), ("of:root", value!(true))]);
    let mut graph = store.track(&query);
    assert!(!graph.tracks(&InstanceId::space("of:leaf")));
    // Its path leads on through the root, whose own link counts with its schema and as part of a path without.
    let dirty = store.write("of:way", value!({ "a": (link("of:root")) }));
    graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert!(store.track(&query).tracks(&InstanceId::space("of:leaf")));
    assert!(graph.tracks(&InstanceId::space("of:leaf")));
}

#[test]
fn eng_1015_a_clone_and_its_original_go_on_by_themselves() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:other", value!(2));
    store.write("of:root", value!({ "a": (link("of:leaf")) }));
    let mut original = store.track(&query(&[("of:root", value!(true))]));
    let before: Vec<_> = original.snapshots().map(|s| (s.id, s.seq)).collect();
    let mut clone = original.clone();
    let other = query(&[("of:other", value!(true))]);
    clone.extend(store.engine.reader(), &other).unwrap();
    let dirty = store.write("of:root", value!({ "b": (link("of:other")) }));
    clone.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert!(!clone.tracks(&InstanceId::space("of:leaf")));
    // The original has been told nothing, and learns the same by itself.
    let untouched: Vec<_> = original.snapshots().map(|s| (s.id, s.seq)).collect();
    assert_eq!(untouched, before);
    assert!(!original.covers(&other).unwrap() && clone.covers(&other).unwrap());
    let changes = original.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(ids(&changes.unreached), ["of:leaf"]);
    let held = |graph: &TrackedGraph| graph.tracked_instances().cloned().collect::<BTreeSet<_>>();
    assert_eq!(held(&original), held(&clone));
}

#[test]
fn eng_1038_an_error_object_under_a_schema_leads_nowhere_and_fails_nothing() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:hidden", value!(2));
    let error = Value::Special(std::sync::Arc::new(Special::Error(ErrorValue {
        kind: "Error".into(),
        name: "Error".into(),
        message: "it broke".into(),
        stack: Value::Undefined,
        cause: link("of:hidden"),
        extras: Object::from_iter([("also", link("of:hidden"))]),
    })));
    store.write("of:root", value!({ "broken": error, "sound": (link("of:leaf")) }));
    for schema in [
        value!(true),
        value!({ "type": "object", "additionalProperties": { "type": ["object", "number"] } }),
    ] {
        let graph = store.track(&query(&[("of:root", schema)]));
        assert!(graph.tracks(&InstanceId::space("of:leaf")));
        assert!(!graph.tracks(&InstanceId::space("of:hidden")));
    }
}

#[test]
fn eng_1050_schema_documents_of_delivered_documents_come_along_and_leave_again() {
    let mut store = Store::new();
    let schema = value!({ "type": "object", "properties": { "a": { "type": "string" } } });
    let id = format!("cid:{}", memory_wire::hash::tagged_hash(&schema));
    store.write(&id, schema);
    store.write("of:leaf", value!(1));
    let with =
        value!({ "/": { "link@1": { "id": "of:leaf", "path": [], "schema": { "$ref": (id.as_str()) } } } });
    store.write("of:root", value!({ "x": with }));
    // Nothing below the root is selected, and its links' schemas are delivered all the same.
    let mut graph = store.track(&query(&[("of:root", value!(false))]));
    let tracked: BTreeSet<String> = graph.tracked_instances().map(|i| i.id.to_string()).collect();
    assert_eq!(tracked, BTreeSet::from([id.clone(), "of:root".to_owned()]));
    let dirty = store.write("of:root", value!({ "x": 1 }));
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(ids(&changes.unreached), [id.as_str()]);
}

fn shared(cache: &EvaluationCache, store: &Store, who: &ScopeIdentity, query: &GraphQuery) -> TrackedGraph {
    cache
        .track(store.engine.reader(), &SPACE.into(), who, query)
        .unwrap()
}

#[test]
fn eng_1061_an_evaluation_without_scopes_serves_everybody_until_the_next_commit() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:root", value!({ "a": (link("of:leaf")) }));
    let (cache, query) = (EvaluationCache::new(), query(&[("of:root", value!(true))]));
    shared(&cache, &store, &identity("alice"), &query);
    let mut bobs = shared(&cache, &store, &identity("bob"), &query);
    shared(&cache, &store, &ScopeIdentity::default(), &query);
    assert_eq!(cache.counts(), (2, 1));
    // Each gets state of its own.
    let dirty = store.write("of:leaf", value!(2));
    assert_eq!(
        reported(&bobs.refresh(store.engine.reader(), &dirty).unwrap().unwrap()),
        [("of:leaf".to_owned(), 3)]
    );
    let fresh = shared(&cache, &store, &identity("alice"), &query);
    assert_eq!(cache.counts(), (2, 2));
    assert!(fresh.snapshots().any(|s| s.seq.0 == 3));
}

#[test]
fn eng_1061_scoped_instances_are_shared_only_while_absent_for_both() {
    let mut store = Store::new();
    let scoped = value!({ "/": { "link@1": { "id": "of:mine", "path": [], "scope": "user" } } });
    let root = value!({ "value": { "a": 1 }, "argument": scoped });
    store.commit("alice", &[("of:root", Scope::Space, Some(root))]);
    let (cache, query) = (EvaluationCache::new(), query(&[("of:root", value!(true))]));
    let keys = |graph: &TrackedGraph| {
        graph
            .tracked_instances()
            .map(|i| i.scope_key.to_string())
            .collect::<BTreeSet<_>>()
    };
    let alices = shared(&cache, &store, &identity("alice"), &query);
    assert_eq!(
        keys(&alices),
        BTreeSet::from(["space".to_owned(), "user:did%3Akey%3Aalice".to_owned()])
    );
    let bobs = shared(&cache, &store, &identity("bob"), &query);
    assert_eq!(
        keys(&bobs),
        BTreeSet::from(["space".to_owned(), "user:did%3Akey%3Abob".to_owned()])
    );
    assert_eq!(cache.counts(), (1, 1));
    // An identity that cannot resolve the scope gets its own error, not another's answer.
    let anonymous = cache.track(
        store.engine.reader(),
        &SPACE.into(),
        &ScopeIdentity::default(),
        &query,
    );
    assert_eq!(
        anonymous.unwrap_err().to_string(),
        "user scoped memory operations require a principal"
    );

    store.commit(
        "bob",
        &[("of:mine", Scope::User, Some(value!({ "value": "bob's" })))],
    );
    shared(&cache, &store, &identity("alice"), &query);
    let bobs = shared(&cache, &store, &identity("bob"), &query);
    assert_eq!(cache.counts().0, 1);
    assert!(bobs.snapshots().any(|s| {
        s.document
            .as_ref()
            .and_then(|d| d.member("value"))
            .and_then(Value::as_str)
            == Some("bob's")
    }));
    let carols = shared(&cache, &store, &identity("carol"), &query);
    assert!(
        carols
            .snapshots()
            .all(|s| s.scope_key == ScopeKey::space() || s.document.is_none())
    );
}

#[test]
fn eng_1061_an_absent_scoped_root_is_each_identitys_own() {
    let store = Store::new();
    let cache = EvaluationCache::new();
    let query = GraphQuery::from_value(&value!({
        "roots": [{ "id": "of:mine", "scope": "user", "selector": { "path": [], "schema": true } }]
    }))
    .unwrap();
    for who in ["alice", "bob"] {
        let graph = shared(&cache, &store, &identity(who), &query);
        let own = ScopeKey::resolve(Scope::User, &identity(who)).unwrap();
        assert_eq!(
            graph.tracked_instances().collect::<Vec<_>>(),
            [&InstanceId::new("of:mine", own)]
        );
    }
    assert_eq!(cache.counts(), (1, 1));
    let anonymous = cache.track(
        store.engine.reader(),
        &SPACE.into(),
        &ScopeIdentity::default(),
        &query,
    );
    assert!(anonymous.is_err());
}

#[test]
fn eng_1028_documents_of_other_spaces_are_absent() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    let foreign = value!({ "/": { "link@1": { "id": "of:leaf", "path": [], "space": "did:key:zOther" } } });
    store.write("of:root", value!({ "a": foreign }));
    let graph = store.track(&query(&[("of:root", value!(true))]));
    assert_eq!(graph.tracked_instances().count(), 1);
    assert!(graph.tracker().keys().all(|key| key.space == SPACE));
}
