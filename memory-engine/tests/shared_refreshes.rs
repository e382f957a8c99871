//! Graphs that share an evaluation are refreshed by one walk, and each comes to what its own walk would have come to
//! (ENG-1060…1063).

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use memory_engine::query::{Changes, EvaluationCache, SharedRefresh, TrackedGraph};
use memory_engine::{ApplyCommit, Engine, EngineOptions};
use memory_wire::ids::{Did, SessionId};
use memory_wire::message::{ClientCommit, GraphQuery};
use memory_wire::scope_key::{InstanceId, ScopeIdentity, ScopeKey};
use memory_wire::value;
use memory_wire::value::Value;
use rustc_hash::FxHashSet;
use support::NOW_MS;

const SPACE: &str = "did:key:zSpace";

struct Store {
    engine: Engine,
    local_seq: u64,
    cache: EvaluationCache,
}

impl Store {
    fn new() -> Store {
        Store {
            engine: Engine::in_memory(EngineOptions::default()).unwrap(),
            local_seq: 0,
            cache: EvaluationCache::new(),
        }
    }

    /// Writes one document of the space, or of `who` alone.
    fn write(&mut self, who: Option<&str>, id: &str, content: Value) -> FxHashSet<InstanceId> {
        self.local_seq += 1;
        let scope = if who.is_some() { "user" } else { "space" };
        let commit = value!({
            "localSeq": (self.local_seq as f64), "reads": { "confirmed": [], "pending": [] },
            "operations": [{ "op": "set", "id": id, "scope": scope, "value": { "value": content } }]
        });
        let commit = ClientCommit::from_value(&commit).unwrap();
        let identity = identity(who.unwrap_or("alice"));
        let session = SessionId::from("s1");
        let principal = identity.principal.clone();
        self.engine
            .apply_commit(ApplyCommit::authored(
                &session,
                principal.as_ref(),
                &commit,
                NOW_MS,
            ))
            .unwrap();
        let key = match who {
            None => ScopeKey::space(),
            Some(_) => ScopeKey::resolve(memory_wire::scope_key::Scope::User, &identity).unwrap(),
        };
        FxHashSet::from_iter([InstanceId::new(id, key)])
    }

    fn track(&self, who: &str, query: &GraphQuery) -> TrackedGraph {
        self.cache
            .track(self.engine.reader(), &SPACE.into(), &identity(who), query)
            .unwrap()
    }
}

fn identity(name: &str) -> ScopeIdentity {
    ScopeIdentity {
        principal: Some(Did::from(format!("did:key:{name}"))),
        session_id: Some("s1".into()),
    }
}

fn link(id: &str, scope: Option<&str>) -> Value {
    match scope {
        None => value!({ "/": { "link@1": { "id": id, "path": [] } } }),
        Some(scope) => value!({ "/": { "link@1": { "id": id, "path": [], "scope": scope } } }),
    }
}

fn everything_of(id: &str) -> GraphQuery {
    GraphQuery::from_value(&value!({
        "roots": [{ "id": id, "selector": { "path": [], "schema": true } }]
    }))
    .unwrap()
}

fn told(changes: Option<&Changes>) -> (Vec<(String, String, u64)>, Vec<String>) {
    let changes = changes.expect("the graph was touched");
    let snapshots = changes.snapshots.iter();
    (
        snapshots
            .map(|s| (s.id.to_string(), s.scope_key.to_string(), s.seq.0))
            .collect(),
        changes.unreached.iter().map(|i| i.id.to_string()).collect(),
    )
}

fn tracked(graph: &TrackedGraph) -> BTreeSet<String> {
    graph
        .tracked_instances()
        .map(|i| format!("{} {}", i.id, i.scope_key))
        .collect()
}

#[test]
fn eng_1061_equal_graphs_take_one_walk_and_end_up_where_their_own_would() {
    let mut store = Store::new();
    for id in ["of:a", "of:b", "of:c"] {
        store.write(None, id, value!({ "n": 1 }));
    }
    store.write(
        None,
        "of:root",
        value!({ "x": (link("of:a", None)), "y": (link("of:b", None)) }),
    );
    let query = everything_of("of:root");
    let mut graphs: Vec<TrackedGraph> = (0..50).map(|n| store.track(&format!("p{n}"), &query)).collect();
    // Content, growth, loss, and growth again: each a commit, each one walk.
    let steps = [
        ("of:a", value!({ "n": 2 })),
        (
            "of:root",
            value!({ "x": (link("of:a", None)), "y": (link("of:b", None)), "z": (link("of:c", None)) }),
        ),
        ("of:root", value!({ "z": (link("of:c", None)) })),
        (
            "of:root",
            value!({ "z": (link("of:c", None)), "w": (link("of:a", None)) }),
        ),
    ];
    for (id, content) in steps {
        let mut alone = graphs[0].clone();
        let dirty = store.write(None, id, content);
        let expected = alone.refresh(store.engine.reader(), &dirty).unwrap();
        let mut pass = SharedRefresh::default();
        for graph in &mut graphs {
            let changes = pass.refresh(graph, store.engine.reader(), &dirty).unwrap();
            assert_eq!(told(changes.as_deref()), told(expected.as_ref()));
            assert_eq!(tracked(graph), tracked(&alone));
        }
        assert_eq!((pass.work().made, pass.work().shared), (1, 49), "writing {id}");
    }
}

#[test]
fn eng_1061_equal_graphs_that_came_at_different_seqs_share_from_their_first_common_refresh_on() {
    let mut store = Store::new();
    store.write(None, "of:a", value!(0));
    store.write(None, "of:root", value!({ "a": (link("of:a", None)) }));
    let query = everything_of("of:root");
    let mut graphs = Vec::new();
    for n in 0..5 {
        // Each comes after a commit that the ones before have taken in.
        let dirty = store.write(None, "of:a", value!(n));
        for graph in &mut graphs {
            TrackedGraph::refresh(graph, store.engine.reader(), &dirty).unwrap();
        }
        graphs.push(store.track(&format!("p{n}"), &query));
    }
    // Another query of the same root is not equal, and a graph that lags is not either.
    let other = GraphQuery::from_value(&value!({
        "roots": [{ "id": "of:root", "selector": { "path": [], "schema": false } }]
    }))
    .unwrap();
    let mut shallow = store.track("other", &other);
    for (round, expected) in [(0, (5, 0)), (1, (1, 4)), (2, (1, 4))] {
        let dirty = store.write(None, "of:a", value!({ "round": (f64::from(round)) }));
        let mut pass = SharedRefresh::default();
        for graph in &mut graphs {
            let changes = pass.refresh(graph, store.engine.reader(), &dirty).unwrap();
            assert_eq!(changes.expect("touched").snapshots.len(), 1);
        }
        assert!(
            pass.refresh(&mut shallow, store.engine.reader(), &dirty)
                .unwrap()
                .is_none()
        );
        assert_eq!((pass.work().made, pass.work().shared), expected, "round {round}");
    }
    assert_eq!(tracked(&shallow).len(), 1);
}

#[test]
fn eng_1061_what_meets_somebodys_own_instance_is_walked_for_each() {
    let mut store = Store::new();
    store.write(Some("alice"), "of:mine", value!("alice's"));
    store.write(Some("bob"), "of:mine", value!("bob's"));
    store.write(None, "of:root", value!({ "n": 1 }));
    let query = everything_of("of:root");
    let mut alices = store.track("alice", &query);
    let mut bobs = store.track("bob", &query);
    // Nothing scoped is met before, but after.
    let dirty = store.write(
        None,
        "of:root",
        value!({ "mine": (link("of:mine", Some("user"))) }),
    );
    let mut pass = SharedRefresh::default();
    let for_alice = pass.refresh(&mut alices, store.engine.reader(), &dirty).unwrap();
    let for_bob = pass.refresh(&mut bobs, store.engine.reader(), &dirty).unwrap();
    assert_eq!((pass.work().made, pass.work().shared), (2, 0));
    let content = |changes: &Option<Arc<Changes>>| -> Vec<String> {
        changes
            .iter()
            .flat_map(|changes| &changes.snapshots)
            .filter(|s| s.id.as_str() == "of:mine")
            .filter_map(|s| Some(s.document.as_ref()?.member("value")?.as_str()?.to_owned()))
            .collect()
    };
    assert_eq!(content(&for_alice), ["alice's"]);
    assert_eq!(content(&for_bob), ["bob's"]);
    assert!(tracked(&alices).is_disjoint(&BTreeSet::from(["of:mine user:did%3Akey%3Abob".to_owned()])));
    // And stays so while it is met.
    let dirty = store.write(
        None,
        "of:root",
        value!({ "mine": (link("of:mine", Some("user"))), "n": 2 }),
    );
    let mut pass = SharedRefresh::default();
    pass.refresh(&mut alices, store.engine.reader(), &dirty).unwrap();
    pass.refresh(&mut bobs, store.engine.reader(), &dirty).unwrap();
    assert_eq!((pass.work().made, pass.work().shared), (2, 0));
}

#[test]
fn eng_1061_a_refresh_serves_only_who_was_told_as_much() {
    let mut store = Store::new();
    store.write(None, "of:a", value!(1));
    store.write(None, "of:root", value!({ "a": (link("of:a", None)) }));
    let query = everything_of("of:root");
    let (mut first, mut behind) = (store.track("alice", &query), store.track("bob", &query));
    let one = store.write(None, "of:a", value!(2));
    let two = store.write(None, "of:root", value!({ "a": (link("of:a", None)), "n": 1 }));
    let both: FxHashSet<InstanceId> = one.union(&two).cloned().collect();
    let mut pass = SharedRefresh::default();
    let to_first = pass.refresh(&mut first, store.engine.reader(), &two).unwrap();
    let to_behind = pass.refresh(&mut behind, store.engine.reader(), &both).unwrap();
    assert_eq!((pass.work().made, pass.work().shared), (2, 0));
    assert_eq!(to_first.expect("touched").snapshots.len(), 1);
    assert_eq!(to_behind.expect("touched").snapshots.len(), 2);
}
