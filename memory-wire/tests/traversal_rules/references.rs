//! References between schemas (TRV §9).

use memory_wire::traverse::{SchemaPool, Selector, resolve_ref};
use memory_wire::{Scope, Value, value};

use super::graph::{Graph, link, link_to, schema, text};

fn resolved(of: Value) -> Option<String> {
    resolve_ref(&mut SchemaPool::new(), &schema(of)).map(|found| text(found.value()))
}

fn local(reference: &str) -> Option<String> {
    resolved(
        value!({ "$ref": reference, "$defs": { "A": { "type": "null" }, "a/b": { "type": "string" }, "n": 1 } }),
    )
}

#[test]
fn trv_901_the_forms_of_references() {
    assert!(local("#/$defs/A").unwrap().contains("\"null\""));
    assert!(local("#/$defs/a~1b").unwrap().contains("\"string\""));
    for never in [
        "#",
        "#/definitions/A",
        "#/$defs/A/items",
        "#A",
        "#/$defs/%41",
        "#/$defs/none",
        "#/$defs/n",
        "https://example.org/s.json",
        "cid:fid1:absent",
    ] {
        assert_eq!(local(never), None, "{never}");
    }
    for compiled in [
        "https://commonfabric.org/schemas/vdom.json",
        "https://commonfabric.org/schemas/vnode.json",
    ] {
        assert!(local(compiled).is_some(), "{compiled}");
    }
}

#[test]
fn trv_902_the_site_wins_over_its_target() {
    let definitions = || value!({ "A": { "type": "string", "title": "target" }, "T": true, "F": false, "B": { "$ref": "#/$defs/A", "title": "between" } });
    let site = |name: &str, title: Option<&str>| {
        let mut site = value!({ "$ref": (format!("#/$defs/{name}")) })
            .as_object()
            .unwrap()
            .clone();
        site.insert("$defs", definitions());
        if let Some(title) = title {
            site.insert("title", title);
        }
        let found = resolve_ref(&mut SchemaPool::new(), &schema(site.into())).unwrap();
        let mut object = found.value().as_object().unwrap().clone();
        object.remove("$defs");
        text(&object.into())
    };
    assert_eq!(
        site("A", Some("site")),
        "{\"title\":\"site\",\"type\":\"string\"}"
    );
    assert_eq!(site("B", None), "{\"title\":\"between\",\"type\":\"string\"}");
    assert_eq!(
        site("B", Some("site")),
        "{\"title\":\"site\",\"type\":\"string\"}"
    );
    assert_eq!(site("T", Some("site")), "{\"title\":\"site\"}");
    assert_eq!(site("F", Some("site")), "{\"not\":true,\"title\":\"site\"}");
}

#[test]
fn trv_903_definitions_of_two_scopes_are_kept_apart() {
    let of = value!({
        "$ref": "#/$defs/Inner",
        "items": { "$ref": "#/$defs/Own" },
        "$defs": {
            "Own": { "type": "number" },
            "Inner": { "properties": { "x": { "$ref": "#/$defs/Own" } }, "$defs": { "Own": { "type": "string" } } }
        }
    });
    let found = resolve_ref(&mut SchemaPool::new(), &schema(of)).unwrap();
    let definition = |reference: &Value| {
        let name = reference
            .member("$ref")
            .and_then(Value::as_str)
            .unwrap()
            .strip_prefix("#/$defs/")
            .unwrap()
            .to_owned();
        let found = found.value().at_path(&["$defs", name.as_str()]).cloned();
        (name, text(&found.unwrap()))
    };
    let target = definition(found.value().at_path(&["properties", "x"]).unwrap());
    assert_eq!(target, ("Own".into(), "{\"type\":\"string\"}".into()));
    let (name, site) = definition(found.value().at_path(&["items"]).unwrap());
    assert!(name.starts_with("__cfc_ref_site_"), "{name}");
    assert_eq!(site, "{\"type\":\"number\"}");
}

/// `b` behind a link whose schema is a stored document.
fn behind(tamper: impl FnOnce(&mut Graph, &str)) -> Graph {
    let mut graph = Graph::of([
        ("b", value!({ "x": (link("c")), "y": (link("d")) })),
        ("c", value!(1)),
        ("d", value!(1)),
    ]);
    let id = graph.put_schema(&value!({ "type": "object", "properties": { "x": true } }));
    graph.put(
        "a",
        Scope::Space,
        link_to("b", value!({ "schema": { "$ref": (id.as_str()) } })),
    );
    tamper(&mut graph, &id);
    graph
}

#[test]
fn trv_904_a_schema_document_counts_only_verified_and_in_the_referrers_space() {
    let reached = |graph: &Graph| graph.query(&[], value!(true)).reached();
    let good = behind(|_, _| {});
    assert!(reached(&good).contains(&"c".to_owned()) && !reached(&good).contains(&"d".to_owned()));
    let forged = behind(|graph, id| {
        drop(
            graph
                .documents
                .insert(graph.key(id, Scope::Space), value!({ "value": true })),
        )
    });
    assert!(!reached(&forged).contains(&"c".to_owned()));
    let elsewhere = behind(|graph, id| {
        let mut key = graph.key(id, Scope::Space);
        let content = graph.documents.remove(&key).unwrap();
        key.space = "did:key:other".into();
        graph.documents.insert(key, content);
    });
    assert!(!reached(&elsewhere).contains(&"c".to_owned()));
    let private = behind(|graph, id| {
        let content = graph.documents.remove(&graph.key(id, Scope::Space)).unwrap();
        graph.documents.insert(graph.key(id, Scope::User), content);
    });
    assert!(!reached(&private).contains(&"c".to_owned()));
}

#[test]
fn trv_905_a_closure_is_complete_or_the_link_selects_nothing() {
    let mut graph = Graph::of([("b", value!({ "x": (link("c")) })), ("c", value!(1))]);
    let inner = value!({ "type": "object", "properties": { "x": true } });
    let inner_id = graph.put_schema(&inner);
    let outer_id = graph.put_schema(&value!({ "anyOf": [{ "$ref": (inner_id.as_str()) }] }));
    graph.put(
        "a",
        Scope::Space,
        link_to("b", value!({ "schema": { "$ref": (outer_id.as_str()) } })),
    );
    let whole = graph.query(&[], value!(true));
    assert!(whole.reached().contains(&"c".to_owned()));
    for id in [&inner_id, &outer_id] {
        assert_eq!(whole.selectors(&graph.key(id, Scope::Space)), [" false"]);
    }
    let inner_key = graph.key(&inner_id, Scope::Space);
    graph.documents.remove(&inner_key);
    let part = graph.query(&[], value!(true));
    assert!(!part.reached().contains(&"c".to_owned()));
    assert_eq!(
        part.selectors(&graph.key("b", Scope::Space)),
        ["/value false"],
        "the target is tracked all the same"
    );
    assert!(part.tracker.contains(&inner_key), "and so is the absent document");
    // An unusable selector fails after tracking its root.
    let selector = Selector::from_root(&[], Some(schema(value!({ "$ref": (outer_id.as_str()) }))));
    let root = graph.query_roots(&[("b", selector)]);
    assert!(root.outcome.is_ok() && !root.selects());
    assert!(root.reached().contains(&"b".to_owned()) && !root.reached().contains(&"c".to_owned()));
}

#[test]
fn trv_905_each_document_of_a_closure_is_read_once_per_walk() {
    let mut graph = Graph::of([("b", value!({ "x": 1 }))]);
    let id = graph.put_schema(&value!({ "type": "object", "properties": { "x": true } }));
    let slot = || link_to("b", value!({ "schema": { "$ref": (id.as_str()) } }));
    graph.put(
        "a",
        Scope::Space,
        value!({ "p": (slot()), "q": (slot()), "r": [(slot())] }),
    );
    let loads = graph.query(&[], value!(true)).notes.loads;
    assert_eq!(
        loads.iter().filter(|key| key.contains("cid:")).count(),
        1,
        "{loads:?}"
    );
    // In a read it is an ordinary dependency, and its absence is reported.
    graph
        .documents
        .retain(|key, _| !key.instance.id.as_str().starts_with("cid:"));
    let members = value!({ "type": "object", "properties": { "p": { "type": "object" } } });
    let read = graph.read(&[], members);
    assert!(
        read.notes.missing.iter().any(|missing| missing.starts_with(&id)),
        "{:?}",
        read.notes.missing
    );
    assert!(read.notes.deps.iter().any(|(place, _)| place.starts_with(&id)));
}
