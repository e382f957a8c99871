//! Reads: values, handles, defaults, positions, dependencies and lazy views (TRV §12).

use memory_wire::traverse::{
    Dep, LazyError, LazyRead, Link, Node, ReadRequest, SchemaPool, TraverseError, read, read_lazily,
};
use memory_wire::{Value, value};

use super::graph::{Graph, link, link_to, link_with, place_text, redirect, schema, show_lazy};

fn members(of: Value) -> Value {
    value!({ "type": "object", "properties": of })
}

#[test]
fn trv_1201_the_steps_into_a_read() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": (redirect("b")), "self": (link_with(value!({ "path": ["self"] }))), "text": "four" }),
        ),
        ("b", value!({ "n": 1 })),
    ]);
    // 1: absent, booleans and `{}` are no schema; an unresolvable reference selects nothing and loads nothing.
    for none in [None, Some(value!(true)), Some(value!(false)), Some(value!({}))] {
        assert_eq!(graph.read_with(&["x"], none, false).value.unwrap(), "<live b>");
    }
    assert_eq!(
        graph.value(&["x"], value!({ "$ref": "#/$defs/none" })),
        "undefined"
    );
    // 2: opaque at the given link, nothing read.
    let opaque = graph.read(&["x"], value!({ "asCell": ["opaque"] }));
    assert_eq!(opaque.value.unwrap(), "<opaque a/x>");
    assert!(opaque.notes.loads.is_empty() && opaque.notes.deps.is_empty());
    // 3: a loop at the address itself raises.
    let looped = graph.read(&["self"], value!({ "type": "number" }));
    assert!(
        matches!(looped.value, Err(TraverseError::LinkCycle(_))),
        "{:?}",
        looped.value
    );
    // 5 and 7: nothing but a handle is left; the handle is at the redirect's target.
    assert_eq!(graph.value(&["x"], value!({ "asCell": ["cell"] })), "<cell b>");
    // 8: a string's length is computed here.
    assert_eq!(
        graph.value(&["text", "length"], value!({ "type": "number" })),
        "4"
    );
    assert_eq!(
        graph.value(&["x"], members(value!({ "n": { "type": "number" } }))),
        "{n:1}"
    );
}

#[test]
fn trv_1210_failure_and_absence_are_both_undefined() {
    let graph = Graph::of([("a", value!({ "n": "text" }))]);
    assert_eq!(graph.value(&["n"], value!({ "type": "number" })), "undefined");
    assert_eq!(graph.value(&["gone"], value!({ "type": "number" })), "undefined");
    assert_eq!(
        Graph::of([]).value(&[], value!({ "type": "number" })),
        "undefined"
    );
}

#[test]
fn trv_1211_below_true_a_read_is_a_live_view() {
    let graph = Graph::of([
        ("a", value!({ "x": (link("b")), "y": 1 })),
        ("b", value!({ "n": 1 })),
    ]);
    assert_eq!(
        graph.value(&[], members(value!({ "x": true, "y": true }))),
        "{x:<live a/x>,y:<live a/y>}"
    );
}

#[test]
fn trv_1212_a_handle_names_the_links_target_once() {
    let graph = Graph::of([
        (
            "a",
            value!({ "over": (link("b")), "inline": 7, "redirected": (redirect("b")) }),
        ),
        ("b", link("c")),
        ("c", value!(1)),
    ]);
    let cell = || value!({ "asCell": ["cell"] });
    let stream = || value!({ "asCell": [{ "kind": "stream" }] });
    assert_eq!(
        graph.value(
            &[],
            members(
                value!({ "over": (cell()), "inline": (stream()), "redirected": (cell()), "gone": (cell()) })
            )
        ),
        "{inline:<stream a/inline>,over:<cell b>,redirected:<cell c>}"
    );
    // The remaining entries stay in the handle's schema.
    let nested = value!({ "asCell": ["cell", "stream"], "type": "number" });
    let start = Link {
        at: graph.place("a", &["inline"]),
        schema: Some(schema(nested)),
    };
    let request = ReadRequest::new(&start, &graph.identity);
    let reading = read(&mut graph.source(), &mut SchemaPool::new(), &request).unwrap();
    let Node::Handle(handle) = reading.tree.node(reading.root) else {
        panic!()
    };
    let rest = handle.link.schema.as_ref().unwrap();
    assert_eq!(
        rest.keyword("asCell")
            .and_then(Value::as_array)
            .map(|entries| entries.len()),
        Some(1)
    );
}

#[test]
fn trv_1213_matches_of_a_union_merge() {
    let graph = Graph::of([
        ("a", value!({ "x": 1, "y": 2, "h": (link("b")) })),
        ("b", value!({ "n": 1 })),
    ]);
    let x = || members(value!({ "x": { "type": "number" } }));
    let y = || members(value!({ "y": { "type": "number" } }));
    assert_eq!(graph.value(&[], value!({ "anyOf": [(x()), (y())] })), "{x:1,y:2}");
    assert_eq!(graph.value(&[], value!({ "allOf": [(x()), (y())] })), "{x:1,y:2}");
    assert_eq!(
        graph.value(
            &["x"],
            value!({ "anyOf": [{ "type": "integer" }, { "type": "number" }] })
        ),
        "1"
    );
    assert_eq!(
        graph.value(&["x"], value!({ "anyOf": [{ "type": "string" }] })),
        "undefined"
    );
    // An opaque reference never replaces another answer; a handle among the matches is the answer.
    let either = value!({ "anyOf": [{ "type": "object", "properties": { "n": { "type": "number" } } }, { "asCell": ["cell"] }] });
    assert_eq!(graph.value(&[], members(value!({ "h": either }))), "{h:<cell b>}");
}

#[test]
fn trv_1214_the_handle_option_that_a_known_value_matches() {
    let graph = Graph::of([("a", value!({ "kind": "b", "n": 1 }))]);
    let option = |kind: &str, entry: &str| value!({ "type": "object", "properties": { "kind": { "const": kind } }, "asCell": [entry] });
    let union = |a: Value, b: Value| value!({ "anyOf": [a, b, { "type": "null" }] });
    assert_eq!(
        graph.value(&[], union(option("a", "cell"), option("b", "stream"))),
        "<stream a>"
    );
    let listed =
        value!({ "type": "object", "properties": { "kind": { "enum": ["x", "b"] } }, "asCell": ["cell"] });
    assert_eq!(graph.value(&[], union(option("a", "stream"), listed)), "<cell a>");
    assert_eq!(
        graph.value(&["n"], union(option("x", "cell"), option("y", "stream"))),
        "undefined"
    );
    // Where every option is a handle no branch is chosen: inline it reads undefined.
    let all = value!({ "anyOf": [{ "asCell": ["cell"] }, { "asCell": ["stream"] }] });
    assert_eq!(graph.value(&[], members(value!({ "n": all }))), "{n:undefined}");
}

#[test]
fn trv_1215_defaults_stand_in_and_are_shaped_by_their_schema() {
    let graph = Graph::of([("a", value!({ "wrong": "text", "null": null }))]);
    let number = |default: Value| value!({ "type": "number", "default": default });
    assert_eq!(
        graph.value(
            &[],
            members(value!({ "gone": (number(value!(4))), "wrong": (number(value!(5))) }))
        ),
        "{gone:4,wrong:5}"
    );
    assert_eq!(
        graph.value(&[], members(value!({ "null": { "type": "null", "default": 1 } }))),
        "{null:null}",
        "a stored null is a value"
    );
    assert_eq!(
        graph.value(&[], members(value!({ "gone": (number(Value::Null)) }))),
        "{gone:undefined}"
    );
    assert_eq!(
        Graph::of([]).value(&[], value!({ "type": ["number", "null"], "default": null })),
        "null"
    );
    let shaped = value!({
        "type": "object",
        "properties": { "a": (number(value!(1))), "list": { "type": "array" }, "cell": { "asCell": ["cell"], "type": "number" } },
        "required": ["list"],
        "default": { "stray": 1 }
    });
    assert_eq!(
        graph.value(&[], members(value!({ "gone": shaped }))),
        "{gone:{a:1,cell:<cell a/gone/cell>,list:[]}}"
    );
    let closed = value!({ "type": "array", "items": false, "default": [1] });
    assert!(matches!(
        graph.read(&[], members(value!({ "gone": closed }))).value,
        Err(TraverseError::Default(_))
    ));
    // An element takes an element default only when it is absent.
    let list = Graph::of([("a", value!([(link("gone")), "text"]))]);
    let items = value!({ "type": "array", "items": { "type": ["number", "undefined"], "default": 9 } });
    assert_eq!(list.value(&[], items), "[9,undefined]");
}

#[test]
fn trv_1220_positions_are_what_a_value_names_when_written_back() {
    let graph = Graph::of([
        (
            "a",
            value!({ "inline": { "n": 1 }, "plain": (link("b")), "redirected": (redirect("b")), "list": [(link("b")), { "n": 2 }] }),
        ),
        ("b", value!({ "n": 3 })),
    ]);
    let object = || members(value!({ "n": { "type": "number" } }));
    let reader = members(
        value!({ "inline": (object()), "plain": (object()), "redirected": (object()), "list": { "type": "array", "items": (object()) } }),
    );
    let start = Link {
        at: graph.place("a", &[]),
        schema: Some(schema(reader)),
    };
    let request = ReadRequest::new(&start, &graph.identity);
    let reading = read(&mut graph.source(), &mut SchemaPool::new(), &request).unwrap();
    let tree = &reading.tree;
    let Node::Object { members, .. } = tree.node(reading.root) else {
        panic!()
    };
    let position = |name: &str| {
        let (_, member) = members.iter().find(|(known, _)| *known == name).unwrap();
        match tree.node(*member) {
            Node::Object { at, .. } | Node::Array { at, .. } => place_text(at),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        ["inline", "plain", "redirected", "list"].map(position),
        ["a/inline", "a/plain", "b", "a/list"]
    );
    let (_, list) = members.iter().find(|(known, _)| *known == "list").unwrap();
    let Node::Array { elements, .. } = tree.node(*list) else {
        panic!()
    };
    let elements = elements.iter().map(|element| match tree.node(element.unwrap()) {
        Node::Object { at, .. } => place_text(at),
        other => panic!("{other:?}"),
    });
    assert_eq!(elements.collect::<Vec<_>>(), ["b", "data:*"]);
}

#[test]
fn trv_1221_dependencies_of_a_read() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": (link("b")), "other": (link("c")), "h": (link("d")) }),
        ),
        ("b", value!({ "n": 1 })),
    ]);
    let reader = members(
        value!({ "x": (members(value!({ "n": { "type": "number" } }))), "gone": { "type": "number" } }),
    );
    let deps = graph.read(&[], reader).notes.deps;
    let has = |place: &str, how: Dep| deps.contains(&(place.to_owned(), how));
    assert!(has("a", Dep::Shallow) && has("a/x", Dep::Deep), "{deps:?}");
    assert!(has("b", Dep::Shallow) && has("b/n", Dep::Shallow), "{deps:?}");
    assert!(
        deps.iter()
            .all(|(place, _)| !place.starts_with("c") && !place.starts_with("a/other/")),
        "{deps:?}"
    );
    // A live view depends on all below it.
    let live = graph.read(&[], members(value!({ "x": true }))).notes.deps;
    assert!(live.contains(&("a/x".to_owned(), Dep::Deep)));
}

#[test]
fn trv_1230_a_lazy_view_looks_at_what_is_touched() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": (link("b")), "wrong": "text", "cell": 1, "left": 2 }),
        ),
        ("b", value!({ "n": 1 })),
    ]);
    let view = |of: Value| {
        let start = Link {
            at: graph.place("a", &[]),
            schema: Some(schema(of)),
        };
        let mut source = graph.source();
        let entry = read_lazily(
            &mut source,
            &mut SchemaPool::new(),
            &ReadRequest::new(&start, &graph.identity),
        )
        .unwrap();
        (entry, source)
    };
    let number = || value!({ "type": "number" });
    let reader = value!({
        "type": "object", "required": ["wrong"],
        "properties": { "x": (members(value!({ "n": (number()) }))), "wrong": (number()), "cell": { "asCell": ["cell"] }, "left": false, "d": { "type": "number", "default": 3 } }
    });
    let (LazyRead::View(entry), mut source) = view(reader) else {
        panic!()
    };
    assert!(
        !source.notes.deps.iter().any(|(place, _)| place.starts_with('b')),
        "nothing is touched yet"
    );
    let mut pool = SchemaPool::new();
    let names: Vec<String> = entry.keys(&mut pool).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["cell", "wrong", "x", "d"]);
    let mut touch = |name: &str| entry.get(&mut source, &mut pool, &graph.identity, &name.into());
    assert_eq!(
        show_lazy(&touch("x").unwrap().unwrap()),
        "<view b>",
        "a linked member is named by its target"
    );
    assert_eq!(show_lazy(&touch("cell").unwrap().unwrap()), "<cell a/cell>");
    assert_eq!(show_lazy(&touch("d").unwrap().unwrap()), "3");
    assert!(touch("left").unwrap().is_none(), "a declared false is left out");
    assert!(
        matches!(touch("wrong"), Err(LazyError::Mismatch { .. })),
        "a required mismatch shows when touched"
    );
    // A mismatch at the entry is undefined.
    let (entry, _) = view(value!({ "type": "array" }));
    assert_eq!(show_lazy(&entry), "undefined");
    // An absent required target says so.
    let gone = Graph::of([("a", value!({ "x": (link_to("gone", value!({}))) }))]);
    let start = Link {
        at: gone.place("a", &[]),
        schema: Some(schema(
            value!({ "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"] }),
        )),
    };
    let mut source = gone.source();
    let LazyRead::View(entry) = read_lazily(
        &mut source,
        &mut SchemaPool::new(),
        &ReadRequest::new(&start, &gone.identity),
    )
    .unwrap() else {
        panic!()
    };
    let touched = entry.get(&mut source, &mut SchemaPool::new(), &gone.identity, &"x".into());
    assert!(
        matches!(touched, Err(LazyError::UnresolvedInput { .. })),
        "{touched:?}"
    );
}
