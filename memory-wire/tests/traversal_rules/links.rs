//! Documents, raw reads, links and hops (TRV §§2, 4).

use memory_wire::traverse::DeadEnd;
use memory_wire::{EntityId, Scope, Value, value};

use super::graph::{Graph, link, link_to, link_with, redirect};

#[test]
fn trv_201_a_link_target_is_a_raw_read_of_own_keys() {
    let at = |path: Value| {
        let content = value!({ "s": "text", "n": null, "list": [1, 2], "o": {} });
        let graph = Graph::of([
            ("a", value!({ "x": (link_to("b", value!({ "path": path }))) })),
            ("b", content),
        ]);
        let queried = graph.query(&["x"], value!(true));
        let tracked = queried.tracker.contains(&graph.key("b", Scope::Space));
        (
            tracked,
            graph.value(&["x"], value!({ "type": ["string", "number", "undefined"] })),
        )
    };
    let found = |tracked: bool, text: &str| (tracked, text.to_owned());
    assert_eq!(at(value!(["s"])), found(true, "\"text\""));
    assert_eq!(at(value!(["list", "1"])), found(true, "2"));
    assert_eq!(at(value!(["list", "length"])), found(true, "2"));
    assert_eq!(at(value!(["list", "01"])), found(true, "undefined"));
    assert_eq!(at(value!(["o", "gone"])), found(true, "undefined"));
    assert_eq!(at(value!(["o", "gone", "further"])), found(true, "undefined"));
    assert_eq!(at(value!(["n", "x"])), found(false, "undefined"));
    assert!(
        !at(value!(["s", "length"])).0,
        "a string's length is blocked in a link's path"
    );
}

#[test]
fn trv_202_only_a_lone_slash_with_link_inside_is_a_link() {
    let payload = value!({ "id": "of:b" });
    for (stored, is_link) in [
        (value!({ "/": { "link@1": (payload.clone()) } }), true),
        (value!({ "/": { "link@1": (payload.clone()), "note": 1 } }), true),
        (value!({ "/": { "link@1": (payload.clone()) }, "note": 1 }), false),
        (value!({ "/": "of:b" }), false),
        (value!({ "$alias": { "path": [], "cell": "result" } }), false),
    ] {
        let graph = Graph::of([("a", stored.clone()), ("b", value!(1))]);
        let reached = graph.query(&[], value!(true)).reached();
        assert_eq!(reached.contains(&"b".to_owned()), is_link, "{stored:?}");
    }
}

#[test]
fn trv_203_a_link_is_read_against_the_document_that_stores_it() {
    let mut graph = Graph::of([("a", value!({ "x": (link_to("b", value!({ "scope": "user" }))) }))]);
    // Within the user's instance: no scope and `inherit` stay there, no id is the same document.
    graph.put(
        "b",
        Scope::User,
        value!({
            "same": (link_with(value!({ "path": ["leaf"] }))),
            "here": (link("c")),
            "inherit": (link_to("d", value!({ "scope": "inherit" }))),
            "space": (link_to("e", value!({ "scope": "space", "space": "" }))),
            "leaf": 7
        }),
    );
    graph.put("c", Scope::User, value!(1));
    graph.put("d", Scope::User, value!(1));
    graph.put(
        "e",
        Scope::Space,
        value!({ "n": (link_to("f", value!({ "path": ["list", 0] }))) }),
    );
    graph.put("f", Scope::Space, value!({ "list": [(link("g"))] }));
    graph.put("g", Scope::Space, value!(1));
    let queried = graph.query(&[], value!(true));
    assert_eq!(
        queried.reached(),
        ["a", "b@user", "c@user", "d@user", "e", "f", "g"]
    );
    let same = value!({ "type": "object", "properties": { "same": { "type": "number" } } });
    assert_eq!(graph.value(&["x"], same), "{same:7}");
}

#[test]
fn trv_204_inline_documents_are_absent_in_a_query_and_decoded_in_a_read() {
    let id = EntityId::inline(&value!({ "n": (link("b")), "m": 5 })).unwrap();
    let graph = Graph::of([
        ("a", link_with(value!({ "id": (id.as_str()) }))),
        ("b", value!(1)),
    ]);
    assert_eq!(graph.query(&[], value!(true)).reached(), ["a"]);
    let reader =
        value!({ "type": "object", "properties": { "m": { "type": "number" }, "n": { "type": "number" } } });
    let read = graph.read(&[], reader);
    assert_eq!(read.value.unwrap(), "{m:5,n:1}");
    assert!(
        read.notes
            .deps
            .iter()
            .all(|(place, _)| !place.starts_with("data:"))
    );
}

#[test]
fn trv_401_a_path_walk_follows_links_on_the_way_and_at_its_end() {
    let graph = Graph::of([
        ("a", value!({ "x": (link("b")) })),
        ("b", value!({ "y": (link("c")) })),
        ("c", value!(3)),
    ]);
    assert_eq!(graph.query(&["x", "y"], value!(true)).reached(), ["a", "b", "c"]);
    assert_eq!(graph.query(&["x", "nothing"], value!(true)).reached(), ["a", "b"]);
    assert_eq!(graph.value(&["x", "y"], value!({ "type": "number" })), "3");
}

#[test]
fn trv_402_a_segment_is_a_length_an_index_or_an_own_key() {
    let content = value!({ "list": ["a", "b", "c"], "text": "ab😀", "length": "own" });
    let graph = Graph::of([("a", content)]);
    let number = || value!({ "type": ["number", "string"] });
    assert_eq!(graph.value(&["list", "length"], number()), "3");
    assert_eq!(graph.value(&["text", "length"], number()), "4");
    assert_eq!(graph.value(&["length"], number()), "\"own\"");
    assert_eq!(graph.value(&["list", "2"], number()), "\"c\"");
    for stray in ["3", "02", "-1", "x"] {
        assert_eq!(graph.value(&["list", stray], number()), "undefined", "{stray}");
    }
    assert_eq!(graph.value(&["toString"], number()), "undefined");
}

#[test]
fn trv_403_a_missing_target_path_backs_up_to_a_link_above_it() {
    let graph = Graph::of([
        (
            "a",
            value!({ "x": (link_to("b", value!({ "path": ["deep", "er"] }))) }),
        ),
        ("b", value!({ "deep": (link("c")) })),
        ("c", value!({ "er": 9 })),
    ]);
    assert_eq!(graph.value(&["x"], value!({ "type": "number" })), "9");
    assert_eq!(graph.query(&["x"], value!(true)).reached(), ["a", "b", "c"]);
}

#[test]
fn trv_403_a_link_that_is_being_followed_is_a_dead_end() {
    let graph = Graph::of([(
        "a",
        value!({ "x": (link_with(value!({ "path": ["y"] }))), "y": (link_with(value!({ "path": ["x"] }))) }),
    )]);
    let queried = graph.query(&["x"], value!(true));
    assert!(queried.outcome.is_ok());
    assert_eq!(queried.reached(), ["a"]);
}

#[test]
fn trv_404_a_dead_end_is_failure_or_default() {
    let graph = Graph::of([("a", value!({ "x": (link("gone")) }))]);
    let member = |of: Value| graph.value(&[], value!({ "type": "object", "properties": { "x": of } }));
    assert_eq!(member(value!({ "type": "number" })), "{}");
    assert_eq!(member(value!({ "type": "number", "default": 4 })), "{x:4}");
    assert_eq!(
        member(value!({ "type": ["number", "undefined"] })),
        "{x:undefined}"
    );
    let required =
        value!({ "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"] });
    assert_eq!(graph.value(&[], required), "undefined");
}

#[test]
fn trv_405_the_schema_travels_with_the_rest_of_the_path() {
    // Whatever the way, the reached node is tracked at its own path with what the root asked for at the end.
    let number = || value!({ "type": "number" });
    for (content, reached) in [
        (value!({ "x": { "y": 1 } }), "a"),
        (value!({ "x": (link("b")) }), "b"),
    ] {
        let graph = Graph::of([("a", content), ("b", value!({ "y": 1 }))]);
        let queried = graph.query(&["x", "y"], number());
        let path = if reached == "a" { "/value/x/y" } else { "/value/y" };
        let tracked = queried.selectors(&graph.key(reached, Scope::Space));
        assert!(
            tracked.contains(&format!("{path} {{\"type\":\"number\"}}")),
            "{tracked:?}"
        );
    }
}

#[test]
fn trv_406_the_selector_at_a_target_is_re_rooted() {
    let re_rooted = |slot_schema: Option<Value>, at: &[&str], target: Value, schema: Value| {
        let mut payload = value!({ "path": target }).as_object().unwrap().clone();
        if let Some(own) = slot_schema {
            payload.insert("schema", own);
        }
        let graph = Graph::of([
            ("a", value!({ "x": (link_to("b", payload.into())) })),
            ("b", value!({ "p": { "y": 1 } })),
        ]);
        graph.query(at, schema).selectors(&graph.key("b", Scope::Space))
    };
    let number = || value!({ "type": "number" });
    let t = "{\"type\":\"number\"}";
    // The example of the page: what is left of the path goes on behind the target's.
    assert_eq!(
        re_rooted(None, &["x", "y"], value!([]), number())[0],
        format!("/value/y {t}")
    );
    assert_eq!(
        re_rooted(None, &["x", "y"], value!(["p"]), number())[0],
        format!("/value/p/y {t}")
    );
    // A link's schema is narrowed by the rest, and combined; where it says nothing it does not contribute.
    let own = value!({ "type": "object", "properties": { "y": { "type": "integer" } } });
    assert_eq!(
        re_rooted(Some(own), &["x", "y"], value!(["p"]), number())[0],
        "/value/p/y {\"type\":\"integer\"}"
    );
    assert_eq!(
        re_rooted(
            Some(value!({ "type": "string" })),
            &["x", "y"],
            value!(["p"]),
            number()
        )[0],
        format!("/value/p/y {t}")
    );
    // It describes the target and is not narrowed by the link's own path.
    assert_eq!(
        re_rooted(
            Some(value!({ "type": "integer" })),
            &["x"],
            value!(["p", "y"]),
            number()
        )[0],
        "/value/p/y {\"type\":\"integer\"}"
    );
}

#[test]
fn trv_1601_what_is_malformed_is_a_dead_link_or_false() {
    for payload in [
        Value::Null,
        value!({ "id": "of:b", "path": "x" }),
        value!({ "id": "of:b", "path": [null] }),
        value!({ "id": 1 }),
        value!({ "id": "of:b", "space": 1 }),
        value!({ "id": "of:b", "scope": "team" }),
    ] {
        let graph = Graph::of([
            (
                "a",
                value!({ "bad": (link_with(payload.clone())), "good": (link("c")) }),
            ),
            ("b", value!(1)),
            ("c", value!(1)),
        ]);
        let queried = graph.query(&[], value!(true));
        assert_eq!(queried.reached(), ["a", "c"], "{payload:?}");
        assert_eq!(
            queried.notes.dead_ends.first(),
            Some(&DeadEnd::MalformedLink),
            "{payload:?}"
        );
    }
    let graph = Graph::of([
        ("a", link_to("b", value!({ "schema": "text" }))),
        ("b", value!({ "x": (link("c")) })),
        ("c", value!(1)),
    ]);
    let queried = graph.query(&[], value!({ "type": "object" }));
    assert_eq!(queried.reached(), ["a", "b"]);
    assert_eq!(queried.selectors(&graph.key("b", Scope::Space)), ["/value false"]);
}

#[test]
fn trv_1702_a_place_is_a_document_and_a_path_never_content() {
    // Two equal links in two places are two places: both are followed, and neither is a cycle of the other.
    let graph = Graph::of([
        ("a", value!({ "x": (redirect("b")), "y": (redirect("b")) })),
        ("b", value!({ "n": 1 })),
    ]);
    let member = value!({ "type": "object", "properties": { "n": { "type": "number" } } });
    let both = value!({ "type": "object", "properties": { "x": (member.clone()), "y": member } });
    assert_eq!(graph.value(&[], both), "{x:{n:1},y:{n:1}}");
}
