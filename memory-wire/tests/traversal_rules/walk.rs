//! The schema walk and the everything walk (TRV §§5, 6).

use memory_wire::{Scope, Value, value};

use super::graph::{Graph, link, link_to, link_with, redirect};

/// A document `a` with links to `b` … `e`, which are there.
fn star() -> Graph {
    let content = value!({ "b": (link("b")), "c": (link("c")), "d": (link("d")), "n": 1 });
    Graph::of([
        ("a", content),
        ("b", value!(1)),
        ("c", value!(1)),
        ("d", value!(1)),
    ])
}

fn only(name: &str) -> Value {
    let properties: memory_wire::Object = [(name, value!(true))].into_iter().collect();
    value!({ "type": "object", "properties": properties })
}

#[test]
fn trv_501_the_first_matching_step_decides() {
    let value = |content: Value, schema: Value| Graph::of([("a", content)]).value(&[], schema);
    // 1: an unresolvable reference fails, whatever stands beside it.
    assert_eq!(
        value(value!(1), value!({ "$ref": "#/$defs/none", "type": "number" })),
        "undefined"
    );
    // 2: the default of a union stands in for an undefined value.
    let absent = Graph::of([("a", value!({}))]);
    let union = value!({ "anyOf": [{ "type": "string" }], "default": "d" });
    assert_eq!(absent.value(&["x"], union), "\"d\"");
    // 7: false-like fails; 10: `unknown` selects a reference; 11: scalars by type.
    assert_eq!(
        value(value!(1), value!({ "not": true, "type": "number" })),
        "undefined"
    );
    assert_eq!(
        value(value!({ "n": 1 }), value!({ "type": "unknown" })),
        "<opaque a>"
    );
    assert_eq!(value(value!(1), value!({ "type": "integer" })), "1");
    assert_eq!(value(value!(1.5), value!({ "type": "integer" })), "undefined");
    // 8: an opaque handle does not follow the link under it.
    let graph = Graph::of([("a", value!({ "x": (link("b")) })), ("b", value!(1))]);
    let opaque = value!({ "type": "object", "properties": { "x": { "asCell": ["opaque"] } } });
    assert_eq!(graph.query(&[], opaque).reached(), ["a"]);
    // 15: a container special value fails under a schema.
    let error = memory_wire::codec::decode("fvj1:{\"/Error@1\":{\"message\":\"m\"}}").unwrap();
    assert_eq!(value(error, value!({ "type": "object" })), "undefined");
}

#[test]
fn trv_502_any_of_walks_every_option_that_may_match() {
    let union = |a: Value, b: Value| value!({ "anyOf": [a, b] });
    assert_eq!(
        star().query(&[], union(only("b"), only("c"))).reached(),
        ["a", "b", "c"]
    );
    // Skipped without walking: by type, and by a required name that is not stored.
    let skipped = |extra: Value| {
        let mut option = only("c").as_object().unwrap().clone();
        option.insert("required", extra);
        star().query(&[], union(only("b"), option.into())).reached()
    };
    assert_eq!(skipped(value!(["gone"])), ["a", "b"]);
    assert_eq!(skipped(value!(["n"])), ["a", "b", "c"]);
    assert_eq!(
        star()
            .query(&[], union(only("b"), value!({ "type": "unknown" })))
            .reached(),
        ["a", "b"]
    );
    // Keys beside the union hold for each option, which wins where both speak.
    let beside = value!({ "type": "object", "properties": { "b": true }, "anyOf": [{}, { "properties": { "c": true } }, false] });
    assert_eq!(star().query(&[], beside).reached(), ["a", "b", "c"]);
    assert!(!star().query(&[], value!({ "anyOf": [false] })).selects());
    assert!(!star().query(&[], value!({ "anyOf": [] })).selects());
}

#[test]
fn trv_503_one_of_walks_every_option_and_takes_exactly_one() {
    let union = |options: Value| star().query(&[], value!({ "oneOf": options }));
    let two = union(value!([(only("b")), (only("c"))]));
    assert_eq!(
        (two.selects(), two.reached()),
        (false, vec!["a".into(), "b".into(), "c".into()])
    );
    // No prefilter: an option whose required name is missing is walked and fails.
    let mut option = only("c").as_object().unwrap().clone();
    option.insert("required", value!(["gone"]));
    let one = union(value!([(only("b")), option]));
    assert_eq!(
        (one.selects(), one.reached()),
        (true, vec!["a".into(), "b".into(), "c".into()])
    );
    assert!(!union(value!([])).selects());
}

#[test]
fn trv_504_all_of_stops_at_the_first_failure() {
    let all = |members: Value| {
        let queried = star().query(&[], value!({ "allOf": members }));
        (queried.selects(), queried.reached())
    };
    let reached = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        all(value!([(only("b")), (only("c"))])),
        (true, reached(&["a", "b", "c"]))
    );
    assert_eq!(
        all(value!([(only("b")), { "type": "string" }, (only("c"))])),
        (false, reached(&["a", "b"]))
    );
    assert_eq!(all(value!([(only("b")), false])), (false, reached(&["a", "b"])));
    assert!(
        star()
            .query(&[], value!({ "allOf": [], "type": "object" }))
            .selects(),
        "an empty list is ignored"
    );
}

#[test]
fn trv_505_other_combinators_stay_in_the_rest() {
    let both = value!({ "anyOf": [{ "title": "t" }], "oneOf": [(only("b"))] });
    assert_eq!(star().query(&[], both).reached(), ["a", "b"]);
    // … unless the option overrides them.
    let overridden = value!({ "anyOf": [{ "oneOf": [(only("c"))] }], "oneOf": [(only("b"))] });
    assert_eq!(star().query(&[], overridden).reached(), ["a", "c"]);
}

#[test]
fn trv_507_a_link_is_walked_at_its_end_and_named_where_redirects_led() {
    let graph = Graph::of([
        ("a", value!({ "x": (redirect("b")) })),
        ("b", value!({ "/": { "link@1": { "id": "of:c", "path": [] } } })),
        ("c", value!({ "n": 1 })),
    ]);
    let reader = value!({ "type": "object", "properties": { "x": { "type": "object", "properties": { "n": { "type": "number" } } } } });
    assert_eq!(graph.value(&[], reader), "{x:{n:1}}");
    let cell = value!({ "type": "object", "properties": { "x": { "asCell": ["cell"] } } });
    assert_eq!(graph.value(&[], cell), "{x:<cell c>}");
    // To an undefined value: success where the schema admits that.
    let gone = Graph::of([("a", value!({ "x": (link("gone")) }))]);
    let required = |of: Value| value!({ "type": "object", "properties": { "x": of }, "required": ["x"] });
    assert!(
        gone.query(&[], required(value!({ "type": "undefined" })))
            .selects()
    );
    assert!(!gone.query(&[], required(value!({ "type": "string" }))).selects());
}

#[test]
fn trv_508_every_element_is_visited_and_failures_stand_in() {
    let graph = Graph::of([
        ("a", value!([1, (link("b")), (link("c"))])),
        ("b", value!("s")),
        ("c", value!("t")),
    ]);
    let items = |of: Value| value!({ "type": "array", "items": of });
    let queried = graph.query(&[], items(value!({ "type": "string" })));
    assert!(
        !queried.selects(),
        "1 is no string, and neither undefined nor null stands in"
    );
    assert_eq!(
        queried.reached(),
        ["a", "b", "c"],
        "the others are walked all the same"
    );
    assert_eq!(
        graph.value(&[], items(value!({ "type": ["string", "undefined"] }))),
        "[undefined,\"s\",\"t\"]"
    );
    assert_eq!(
        graph.value(&[], items(value!({ "type": ["string", "null"] }))),
        "[null,\"s\",\"t\"]"
    );
    // A link is tracked also where elements are excluded.
    assert_eq!(
        graph
            .query(&[], value!({ "type": "array", "items": false }))
            .reached(),
        ["a", "b", "c"]
    );
    // Without `type`, elements are excluded.
    assert!(!graph.query(&[], value!({ "items": true })).selects());
    // Tuple slots first, then items.
    let tuple =
        value!({ "type": "array", "prefixItems": [{ "type": "number" }], "items": { "type": "string" } });
    assert_eq!(graph.value(&[], tuple), "[1,\"s\",\"t\"]");
}

#[test]
fn trv_508_an_inline_element_is_a_document_of_its_own() {
    let inner = link_with(value!({ "path": ["name"] }));
    let graph = Graph::of([("a", value!([{ "name": "in", "same": inner }]))]);
    let element = value!({ "type": "object", "properties": { "same": { "type": "string" } } });
    assert_eq!(
        graph.value(&[], value!({ "type": "array", "items": element })),
        "[{same:\"in\"}]"
    );
    // Not so under a handle: that names the slot.
    let cell = value!({ "type": "array", "items": { "asCell": ["cell"] } });
    assert_eq!(graph.value(&[], cell), "[<cell a/0>]");
}

#[test]
fn trv_508_holes_are_kept() {
    let holes = memory_wire::codec::decode("fvj1:[1,{\"/hole\":2},2]").unwrap();
    let graph = Graph::of([("a", holes)]);
    assert_eq!(
        graph.value(&[], value!({ "type": "array", "items": { "type": "number" } })),
        "[1,_,_,2]"
    );
}

#[test]
fn trv_509_objects_members_defaults_then_required() {
    let graph = Graph::of([("a", value!({ "x": 1, "y": "s", "z": 3 }))]);
    let object = |more: Value| {
        let base = value!({ "type": "object", "properties": { "x": { "type": "number" }, "y": { "type": "number" } } });
        let mut object = base.as_object().unwrap().clone();
        for (key, value) in more.as_object().unwrap().iter() {
            object.insert(key.clone(), value.clone());
        }
        object.into()
    };
    assert_eq!(
        graph.value(&[], object(value!({}))),
        "{x:1}",
        "the failed member and the undeclared one are left out"
    );
    assert_eq!(
        graph.value(&[], object(value!({ "required": ["y"] }))),
        "undefined"
    );
    // An undeclared name counts for a query and not for a read (§13).
    let undeclared = || object(value!({ "required": ["z"] }));
    assert!(graph.query(&[], undeclared()).selects());
    assert_eq!(graph.value(&[], undeclared()), "undefined");
    // A default stands in for a failed member, and for `required`.
    let with_default = value!({ "type": "object", "properties": { "y": { "type": "number", "default": 5 } }, "required": ["y"] });
    assert_eq!(graph.value(&[], with_default), "{y:5}");
    assert!(
        graph.query(&[], object(value!({ "required": "y" }))).selects(),
        "a required that is no list is ignored"
    );
}

#[test]
fn trv_510_special_values_offer_their_accessors() {
    let graph = Graph::of([("a", Value::Bytes(vec![1, 2].into()))]);
    let required = |name: &str| value!({ "type": "object", "required": [name] });
    assert!(graph.query(&[], required("length")).selects());
    assert!(graph.query(&[], required("FabricBytes")).selects());
    assert!(!graph.query(&[], required("source")).selects());
}

#[test]
fn trv_511_a_container_under_construction_is_itself() {
    let graph = Graph::of([("a", value!({ "next": (link("a")), "n": 1 }))]);
    let recursive = value!({
        "$ref": "#/$defs/N",
        "$defs": { "N": { "type": "object", "properties": { "n": { "type": "number" }, "next": { "$ref": "#/$defs/N" } } } }
    });
    let shown = graph.value(&[], recursive);
    assert!(shown.starts_with("{n:1,next:{n:1,next:{n:1,next:{n:1"), "{shown}");
}

#[test]
fn trv_601_the_everything_walk_visits_every_member_and_element() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": [[(link("b"))], { "y": (link("c")) }], "z": (link("d")) }),
        ),
        ("b", value!(1)),
        ("c", value!(1)),
        ("d", value!({ "e": (link("e")) })),
        ("e", value!([(link("a"))])),
    ]);
    assert_eq!(
        graph.query(&[], value!(true)).reached(),
        ["a", "b", "c", "d", "e"]
    );
}

#[test]
fn trv_602_a_members_link_with_a_schema_is_walked_under_it() {
    let narrow = value!({ "type": "object", "properties": { "c": true } });
    let content = value!({ "c": (link("c")), "d": (link("d")) });
    let graph = |slot: Value| {
        Graph::of([
            ("a", slot),
            ("b", content.clone()),
            ("c", value!(1)),
            ("d", value!(1)),
        ])
    };
    let with_schema = link_to("b", value!({ "schema": (narrow.clone()) }));
    assert_eq!(
        graph(value!({ "x": (with_schema.clone()) }))
            .query(&[], value!(true))
            .reached(),
        ["a", "b", "c"]
    );
    assert_eq!(
        graph(value!({ "x": (link("b")) }))
            .query(&[], value!(true))
            .reached(),
        ["a", "b", "c", "d"]
    );
}

#[test]
fn trv_603_an_elements_link_is_walked_whatever_its_schema() {
    let narrow = value!({ "type": "object", "properties": { "c": true } });
    let graph = Graph::of([
        (
            "a",
            value!([(link_to("b", value!({ "schema": (narrow.clone()) })))]),
        ),
        ("b", value!({ "c": (link("c")), "d": (link("d")) })),
        ("c", value!(1)),
        ("d", value!(1)),
    ]);
    let queried = graph.query(&[], value!(true));
    assert_eq!(queried.reached(), ["a", "b", "c", "d"]);
    let tracked = queried.selectors(&graph.key("b", Scope::Space));
    assert_eq!(
        tracked,
        [format!("/value {}", super::graph::text(&narrow))],
        "tracked with the schema combined"
    );
}

#[test]
fn trv_604_no_inline_documents_in_the_everything_walk() {
    // The id-less link in the element names the document.
    let graph = Graph::of([
        (
            "a",
            value!({ "list": [{ "same": (link_with(value!({ "path": ["far"] }))) }], "far": (link("b")) }),
        ),
        ("b", value!(1)),
    ]);
    let behind = value!({ "type": "object", "properties": { "list": true } });
    assert_eq!(graph.query(&[], behind).reached(), ["a", "b"]);
    // Under a schema it names the element, which has no such member.
    let element = value!({ "type": "object", "properties": { "same": { "type": "number" } } });
    let list = value!({ "type": "array", "items": element });
    let schema = value!({ "type": "object", "properties": { "list": list } });
    assert_eq!(graph.query(&[], schema).reached(), ["a"]);
}
