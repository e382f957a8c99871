//! The query driver and what queries and reads share (TRV §§11, 13, 17).

use memory_wire::traverse::{Failure, Selector};
use memory_wire::{Scope, Value, value};

use super::graph::{Graph, link, link_to, link_with, path, schema};

#[test]
fn trv_1101_a_covered_root_is_not_visited_again() {
    let graph = Graph::of([("a", value!({ "x": (link("b")) })), ("b", value!({ "n": 1 }))]);
    let below = Selector::from_root(&path(&["x"]), Some(schema(value!({ "type": "object" }))));
    let queried = graph.query_roots(&[("a", Selector::everything()), ("a", below.clone())]);
    assert_eq!(queried.selectors(&graph.key("a", Scope::Space)), ["/value true"]);
    // The other way round nothing is covered, and the reached node is tracked with the schema that holds there.
    let queried = graph.query_roots(&[("a", below), ("a", Selector::everything())]);
    assert_eq!(
        queried.selectors(&graph.key("a", Scope::Space)),
        ["/value true", "/value/x {\"type\":\"object\"}"]
    );
    assert_eq!(
        queried.selectors(&graph.key("b", Scope::Space)),
        ["/value true", "/value {\"type\":\"object\"}"]
    );
}

#[test]
fn trv_1102_under_false_the_documents_on_the_path_are_tracked() {
    let graph = Graph::of([
        ("a", value!({ "x": (link("b")), "z": (link("z")) })),
        ("b", value!({ "y": (link("c")) })),
        ("c", value!({ "n": (link("d")) })),
        ("d", value!(1)),
        ("z", value!(1)),
    ]);
    let queried = graph.query(&["x", "y"], value!(false));
    assert_eq!(queried.reached(), ["a", "b", "c"]);
    assert_eq!(
        queried.selectors(&graph.key("b", Scope::Space)),
        ["/value/y false"]
    );
}

#[test]
fn trv_1110_metadata_is_followed_breadth_first_under_no_schema() {
    let mut graph = Graph::of([("x", value!(1))]);
    let with = |fields: Value| {
        let mut root = fields.as_object().unwrap().clone();
        root.insert("value", 1);
        Value::from(root)
    };
    let id = graph.put_schema(&value!({ "type": "null" }));
    let hash = id.strip_prefix("cid:").unwrap().to_owned();
    graph.put_root(
        "a",
        Scope::Space,
        with(value!({
            "result": (link_to("b", value!({ "path": ["ignored"] }))), "cfc": { "schemaHash": hash },
            "internal": [{ "link": (link("c")) }, (link("x")), 1], "source": (link("x")), "slug": (link("x"))
        })),
    );
    graph.put_root(
        "b",
        Scope::Space,
        with(value!({ "pattern": (link_to("u", value!({ "scope": "user" }))), "argument": (link("a")) })),
    );
    graph.put_root("c", Scope::Space, with(value!({ "cfc": (link("e")) })));
    let queried = graph.query(&[], value!(false));
    let mut expected: Vec<String> = ["a", "b", "c", "e", "u@user"].map(str::to_owned).to_vec();
    expected.push(id.clone());
    expected.sort();
    assert_eq!(queried.reached(), expected);
    assert_eq!(queried.selectors(&graph.key("b", Scope::Space)), [" false"]);
    // A schema document's own metadata is not followed.
    graph.documents.insert(
        graph.key(&id, Scope::Space),
        with(value!({ "result": (link("x")) })),
    );
    assert_eq!(graph.query(&[], value!(false)).reached(), expected);
}

#[test]
fn trv_1120_a_query_delivers_whole_documents() {
    // What the schema leaves out of a document does not leave the tracker: there is one key, and it is the document's.
    let graph = Graph::of([("a", value!({ "x": 1, "y": (link("b")) })), ("b", value!(1))]);
    let queried = graph.query(&[], value!({ "type": "object", "properties": { "x": true } }));
    assert_eq!(queried.reached(), ["a"]);
    assert!(
        queried.notes.loads.is_empty(),
        "the driver was handed the root: {:?}",
        queried.notes.loads
    );
}

#[test]
fn trv_1301_what_a_read_depends_on_a_query_tracks() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": (link("b")), "list": [(link("c")), (link("d"))] }),
        ),
        ("b", value!({ "y": (link("e")) })),
        ("c", value!({ "n": 1 })),
        ("d", value!("no object")),
        ("e", value!(5)),
    ]);
    let item = value!({ "type": ["object", "null"], "properties": { "n": { "type": "number" } } });
    let reader = value!({ "type": "object", "properties": {
        "x": { "type": "object", "properties": { "y": { "type": "number" } } },
        "list": { "type": "array", "items": item }
    } });
    let reached = graph.query(&[], reader.clone()).reached();
    for (place, _) in graph.read(&[], reader).notes.deps {
        let document = place.split('/').next().unwrap().to_owned();
        assert!(reached.contains(&document), "{place} of {reached:?}");
    }
}

#[test]
fn trv_1303_missing_targets_are_reported_and_nothing_else() {
    let mut graph = Graph::of([(
        "a",
        value!({
            "gone": (link_to("b", value!({ "path": ["p"] }))),
            "blocked": (link_to("c", value!({ "path": ["n", "x"] }))),
            "capped": (link_to("u", value!({ "scope": "user" }))),
            "bad": (link_with(Value::Null)),
            "same": (link_with(value!({ "path": ["same"] })))
        }),
    )]);
    graph.put("c", Scope::Space, value!({ "n": 1 }));
    let number = || value!({ "type": "number" });
    let reader = value!({ "type": "object", "properties": {
        "gone": { "type": "object", "properties": { "q": (number()) } },
        "blocked": (number()), "capped": { "type": "number", "scope": "space" }, "bad": (number()), "same": (number())
    } });
    assert_eq!(graph.read(&[], reader).notes.missing, ["b/p from did:key:home"]);
}

#[test]
fn trv_1701_outcomes_name_the_failing_check() {
    let failure = |content: Value, of: Value| {
        Graph::of([("a", content)])
            .query(&[], of)
            .outcome
            .unwrap()
            .unwrap_err()
    };
    assert_eq!(failure(value!(1), value!({ "type": "string" })), Failure::Type);
    assert_eq!(failure(value!(1), value!({ "not": true })), Failure::FalseSchema);
    assert_eq!(failure(value!(1), value!({ "anyOf": [false] })), Failure::NoAnyOf);
    assert_eq!(
        failure(value!(1), value!({ "oneOf": [true, true] })),
        Failure::ManyOneOf
    );
    assert_eq!(failure(value!(1), value!({ "$ref": "#" })), Failure::SchemaRef);
    assert_eq!(
        failure(value!({}), value!({ "type": "object", "required": ["x"] })),
        Failure::Object
    );
    assert_eq!(
        failure(
            value!([1]),
            value!({ "type": "array", "items": { "type": "string" } })
        ),
        Failure::Array
    );
    assert_eq!(Failure::ManyOneOf.as_str(), "MULTIPLE_MATCHING_ONE_OF");
}
