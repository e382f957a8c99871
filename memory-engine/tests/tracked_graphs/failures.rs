//! Refreshes that fail (ENG-1016): the next one evaluates everything, and nothing that the failed one took in is lost.

use super::*;

/// A document that names a schema document by a link that became what it is by its parts: admission looks for links in
/// what is written (ENG-362), so the schema document need not be there. Then nothing that reaches it can be delivered
/// whole (ENG-1050).
fn name_a_missing_schema(store: &mut Store, id: &str, cid: &str) -> FxHashSet<InstanceId> {
    let named = value!({ "/": { "link@1": { "id": "of:none", "path": [], "schema": true } } });
    store.write(id, value!({ "b": named }));
    let part = value!({ "op": "replace", "path": "/value/b/~1/link@1/schema", "value": { "$ref": cid } });
    store.submit(
        "alice",
        vec![value!({ "op": "patch", "id": id, "patches": [part] })],
    );
    FxHashSet::from_iter([InstanceId::space(id)])
}

fn schema_document() -> (String, Value) {
    let schema = value!({ "type": "string" });
    (format!("cid:{}", memory_wire::hash::tagged_hash(&schema)), schema)
}

/// The next refresh, of nothing that is tracked, makes good what was missed.
fn made_good(store: &Store, query: &GraphQuery, graph: &mut TrackedGraph) -> Changes {
    let evaluations = graph.work().evaluations;
    let nothing = FxHashSet::default();
    let changes = graph.refresh(store.engine.reader(), &nothing).unwrap().unwrap();
    assert_eq!(graph.work().evaluations, evaluations + 1);
    let held = |graph: &TrackedGraph| graph.snapshots().map(|s| (s.id, s.seq)).collect::<Vec<_>>();
    assert_eq!(held(graph), held(&store.track(query)));
    assert!(graph.refresh(store.engine.reader(), &nothing).unwrap().is_none());
    changes
}

#[test]
fn eng_1016_what_a_refresh_that_failed_took_in_is_told_by_the_next() {
    let mut store = Store::new();
    let (cid, schema) = schema_document();
    store.write("of:leaf", value!(1));
    store.write("of:root", value!({ "a": (link("of:leaf")) }));
    let query = query(&[("of:root", value!(true))]);
    let mut graph = store.track(&query);
    let dirty = name_a_missing_schema(&mut store, "of:root", &cid);
    let failed = graph.refresh(store.engine.reader(), &dirty).unwrap_err();
    assert_eq!(failed.name(), "SchemaClosureError");
    store.write(&cid, schema);
    let changes = made_good(&store, &query, &mut graph);
    assert_eq!(reported(&changes), [(cid, 5), ("of:root".to_owned(), 4)]);
    assert_eq!(ids(&changes.unreached), ["of:leaf"]);
}

#[test]
fn eng_1016_what_was_taken_in_before_a_whole_evaluation_failed_is_told_by_the_next() {
    let mut store = Store::new();
    let (cid, schema) = schema_document();
    store.write("of:leaf", value!(1));
    store.write("of:other", value!(2));
    store.write("of:side", value!(3));
    let root = |to: &str| value!({ "a": (link(to)), "side": (link("of:side")) });
    store.write("of:root", root("of:leaf"));
    let query = query(&[("of:root", value!(true))]);
    let mut graph = store.track(&query);
    // The root's own refresh succeeds. It leaves a document behind, so that everything is evaluated, and only that meets
    // what the side has become.
    name_a_missing_schema(&mut store, "of:side", &cid);
    let dirty = store.write("of:root", root("of:other"));
    for _ in 0..2 {
        let failed = graph.refresh(store.engine.reader(), &dirty).unwrap_err();
        assert_eq!(failed.name(), "SchemaClosureError");
    }
    // What was reached in between, and is no longer, was never told of.
    let dirty = store.write("of:root", value!({ "side": (link("of:side")) }));
    assert!(graph.refresh(store.engine.reader(), &dirty).is_err());
    store.write(&cid, schema);
    let changes = made_good(&store, &query, &mut graph);
    let told: Vec<String> = reported(&changes).into_iter().map(|(id, _)| id).collect();
    assert_eq!(told, [cid.as_str(), "of:root", "of:side"]);
    assert_eq!(ids(&changes.unreached), ["of:leaf"]);
}
