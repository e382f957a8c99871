//! Chains of links, links to links: none is followed twice within one chain (TRV-403.4), so a refresh that begins in the
//! middle of a chain has to know where the chain was before, or ask for a whole evaluation.

use super::*;

fn link_to(id: &str, path: Value) -> Value {
    value!({ "/": { "link@1": { "id": id, "path": path } } })
}

/// Writes one document, refreshes and compares with a fresh evaluation. Tells how many whole evaluations that took.
fn refreshed(store: &mut Store, query: &GraphQuery, id: &str, content: Value) -> (TrackedGraph, u64) {
    let mut graph = store.track(query);
    let dirty = store.write(id, content);
    let before = graph.work().evaluations;
    graph.refresh(store.engine.reader(), &dirty).unwrap().unwrap();
    let keys = |graph: &TrackedGraph| graph.tracked_instances().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&graph), keys(&store.track(query)));
    let evaluations = graph.work().evaluations - before;
    (graph, evaluations)
}

#[test]
fn eng_1012_a_chain_that_comes_round_in_a_circle_ends_where_a_fresh_one_does() {
    let mut store = Store::new();
    store.write("of:leaf", value!({}));
    store.write("of:way", link("of:knot"));
    store.write("of:knot", value!({}));
    store.write("of:root", value!({ "a": (link_to("of:way", value!(["a"]))) }));
    // The chain from the root goes `way`, `knot`, and back to the link in `way`, where it ends. One that began at `knot`
    // would follow that link and find the leaf.
    let knot = value!({ "a": (link("of:way")), "b": (link("of:leaf")) });
    let query = query(&[("of:root", value!(true))]);
    let (graph, evaluations) = refreshed(&mut store, &query, "of:knot", knot);
    assert!(!graph.tracks(&InstanceId::space("of:leaf")));
    assert_eq!(evaluations, 1);
}

#[test]
fn eng_1012_a_chain_that_comes_by_a_link_again_without_its_beginning_ends_there_too() {
    let mut store = Store::new();
    store.write("of:leaf", value!({}));
    store.write("of:way", link("of:fork"));
    store.write(
        "of:fork",
        value!({ "a": (link("of:knot")), "c": (link("of:leaf")) }),
    );
    store.write("of:knot", value!({}));
    store.write("of:root", value!({ "x": (link_to("of:way", value!(["a"]))) }));
    // The second time the link in `way` would lead to the fork's other member: it never comes back to `knot`.
    let query = query(&[(
        "of:root",
        value!({ "type": "object", "properties": { "x": true } }),
    )]);
    for knot in [link_to("of:way", value!(["c"])), value!({ "n": 1 })] {
        let (graph, _) = refreshed(&mut store, &query, "of:knot", knot);
        assert!(!graph.tracks(&InstanceId::space("of:leaf")));
    }
}

#[test]
fn eng_1012_a_chain_within_a_document_or_on_to_others_costs_no_evaluation() {
    let mut store = Store::new();
    store.write("of:leaf", value!(1));
    store.write("of:other", value!(2));
    store.write(
        "of:next",
        value!({ "z": (link("of:leaf")), "parent": (link("of:root")) }),
    );
    let alias = |to: &str, n: f64| value!({ "shown": (link_to("of:cell", value!(["own"]))), "own": (link(to)), "n": n });
    store.write("of:cell", alias("of:next", 0.0));
    store.write(
        "of:root",
        value!({ "x": (link_to("of:cell", value!(["shown"]))) }),
    );
    for schema in [
        value!(true),
        value!({ "type": "object", "properties": { "x": { "type": "object", "properties": { "z": true } } } }),
    ] {
        let query = query(&[("of:root", schema)]);
        let (graph, evaluations) = refreshed(&mut store, &query, "of:cell", alias("of:next", 1.0));
        assert!(graph.tracks(&InstanceId::space("of:leaf")));
        assert_eq!(evaluations, 0);
    }
}
