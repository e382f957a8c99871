//! What holds a document in a graph (decision 31): entries that lead to each other do not hold each other, and what
//! something else still leads to is not looked for anew.

use super::*;

fn narrow() -> Value {
    value!({ "type": "object", "properties": { "a": true, "b": { "type": "object" } } })
}

/// Refreshes after `writes`, compares with a fresh evaluation and returns what was retracted.
fn retracted(
    store: &mut Store,
    query: &GraphQuery,
    graph: &mut TrackedGraph,
    writes: &[(&str, Value)],
) -> Vec<String> {
    let mut dirty = FxHashSet::default();
    for (id, content) in writes {
        dirty.extend(store.write(id, content.clone()));
    }
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    let keys = |graph: &TrackedGraph| graph.tracked_instances().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(graph), keys(&store.track(query)));
    ids(&changes.unreached).into_iter().map(str::to_owned).collect()
}

#[test]
fn decision_31_a_document_that_leads_to_itself_does_not_hold_itself() {
    let mut store = Store::new();
    store.write("of:1", value!(1));
    store.write("of:0", value!({ "a": (link("of:0")) }));
    let query = query(&[("of:0", narrow())]);
    let mut graph = store.track(&query);
    let list = value!([(link("of:1")), (link("of:0"))]);
    assert!(retracted(&mut store, &query, &mut graph, &[("of:0", list)]).is_empty());
    assert!(!graph.tracks(&InstanceId::space("of:1")));
}

#[test]
fn decision_31_documents_that_lead_to_each_other_do_not_hold_each_other() {
    let mut store = Store::new();
    store.write("of:b", value!([(link("of:a"))]));
    store.write("of:a", value!({ "a": (link("of:b")) }));
    let query = query(&[("of:a", narrow())]);
    let mut graph = store.track(&query);
    assert!(graph.tracks(&InstanceId::space("of:b")));
    // The root fails; only what was reached through it once still leads to the other document.
    let list = value!([(link("of:b"))]);
    assert_eq!(
        retracted(&mut store, &query, &mut graph, &[("of:a", list)]),
        ["of:b"]
    );
}

#[test]
fn decision_31_what_lies_behind_an_elements_link_leaves_with_the_element() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:b", value!({ "x": (link("of:leaf")) }));
    let schema = value!({ "type": "object", "properties": {} });
    let with = value!({ "/": { "link@1": { "id": "of:b", "path": [], "schema": schema } } });
    store.write("of:a", value!([(with.clone())]));
    let query = query(&[("of:a", value!(true))]);
    let mut graph = store.track(&query);
    assert!(graph.tracks(&InstanceId::space("of:leaf")));
    // An element's link is followed whatever its schema says, a member's is not.
    let member = value!({ "m": with });
    assert_eq!(
        retracted(&mut store, &query, &mut graph, &[("of:a", member)]),
        ["of:leaf"]
    );
}

#[test]
fn decision_31_a_shared_graph_retracts_as_well() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    let scoped = value!({ "/": { "link@1": { "id": "of:mine", "path": [], "scope": "user" } } });
    let root = value!({ "value": { "a": (link("of:leaf")) }, "argument": scoped });
    store.commit("alice", &[("of:root", Scope::Space, Some(root))]);
    let (cache, query) = (EvaluationCache::new(), query(&[("of:root", value!(true))]));
    shared(&cache, &store, &identity("alice"), &query);
    let mut bobs = shared(&cache, &store, &identity("bob"), &query);
    assert_eq!(cache.counts(), (1, 1));
    let dirty = store.write("of:root", value!({}));
    let changes = bobs.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(ids(&changes.unreached), ["of:leaf", "of:mine"]);
}

#[test]
fn decision_31_an_instance_named_outright_retracts_as_well() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    let user = |content: Value| [("of:root", Scope::User, Some(value!({ "value": content })))];
    let leads = value!({ "a": { "/": { "link@1": { "id": "of:leaf", "path": [], "scope": "space" } } } });
    store.commit("bob", &user(leads));
    let key = ScopeKey::resolve(Scope::User, &identity("bob")).unwrap();
    let query = GraphQuery::from_value(&value!({ "roots": [{
        "id": "of:root", "scope": "user", "entityScopeKey": (key.as_str()), "selector": { "path": [], "schema": true }
    }] }))
    .unwrap();
    let mut graph = store.track(&query);
    assert!(graph.tracks(&InstanceId::space("of:leaf")));
    let dirty = store.commit("bob", &user(value!({})));
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(ids(&changes.unreached), ["of:leaf"]);
}

#[test]
fn decision_31_what_was_kept_is_retracted_by_the_next_refresh_that_may() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:root", value!({ "a": (link("of:leaf")) }));
    let query = query(&[("of:root", value!(true))]);
    let mut graph = store.track(&query);
    let dirty = store.write("of:root", value!({ "a": 1 }));
    graph.refresh_keeping(store.engine.reader(), &dirty).unwrap();
    assert!(graph.tracks(&InstanceId::space("of:leaf")));
    let dirty = store.write("of:root", value!({ "a": 2 }));
    let changes = graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    assert_eq!(ids(&changes.unreached), ["of:leaf"]);
}

/// A document with a link to itself, to its parent and to its children, as pages and lists have them.
fn family(store: &mut Store, children: usize) {
    let child = |n: usize| value!({ "n": (n as f64), "self": (link(&format!("of:c{n}"))), "parent": (link("of:list")) });
    for n in 0..children {
        store.write(&format!("of:c{n}"), child(n));
    }
    store.write("of:list", list(children, "first"));
    store.write(
        "of:root",
        value!({ "list": (link("of:list")), "root": (link("of:root")) }),
    );
}

fn list(children: usize, title: &str) -> Value {
    let items: Vec<Value> = (0..children).map(|n| link(&format!("of:c{n}"))).collect();
    value!({ "title": title, "items": items, "self": (link("of:list")), "root": (link("of:root")) })
}

fn recursive() -> Value {
    value!({
        "$ref": "#/$defs/N",
        "$defs": { "N": {
            "type": ["object", "array", "string", "number"],
            "additionalProperties": { "$ref": "#/$defs/N" },
            "items": { "$ref": "#/$defs/N" }
        } }
    })
}

#[test]
fn eng_1012_links_back_to_parents_and_to_themselves_cost_no_evaluation() {
    for schema in [value!(true), recursive()] {
        let mut store = Store::new();
        family(&mut store, 40);
        let query = query(&[("of:root", schema)]);
        let mut graph = store.track(&query);
        assert_eq!(graph.tracked_instances().count(), 42);
        let leaf = value!({ "n": 70, "self": (link("of:c7")), "parent": (link("of:list")) });
        let root = value!({ "list": (link("of:list")), "root": (link("of:root")), "extra": (link("of:c3")) });
        for (id, content) in [
            ("of:c7", leaf),
            ("of:list", list(40, "second")),
            ("of:root", root),
            // A child that names its parent no more: the parent has other reasons to be there.
            ("of:c9", value!({ "n": 9 })),
        ] {
            assert!(
                retracted(&mut store, &query, &mut graph, &[(id, content)]).is_empty(),
                "{id}"
            );
        }
        assert_eq!(graph.work().evaluations, 1);
        // The list lets a child go that the root leads to as well.
        let fewer = value!({ "items": [(link("of:c3"))] });
        assert_eq!(
            retracted(&mut store, &query, &mut graph, &[("of:list", fewer)]).len(),
            39
        );
        assert_eq!(graph.work().evaluations, 2);
    }
}

#[test]
fn eng_1012_what_something_earlier_still_leads_to_costs_no_evaluation() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:b", value!({ "leaf": (link("of:leaf")) }));
    store.write("of:a", value!({ "leaf": (link("of:leaf")) }));
    let both = value!({ "leaf": (link("of:leaf")), "a": (link("of:a")), "b": (link("of:b")) });
    store.write("of:root", both);
    let query = query(&[("of:root", value!(true))]);
    let mut graph = store.track(&query);
    for id in ["of:a", "of:b"] {
        assert!(retracted(&mut store, &query, &mut graph, &[(id, value!({}))]).is_empty());
    }
    assert_eq!(graph.work().evaluations, 1);
}
