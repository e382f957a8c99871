//! Properties of the query walk on random document graphs: it equals a naive walk that remembers nothing, and
//! leaving out what was walked before (decision 24) changes nothing, in an evaluation and across refreshes.

mod long;
#[path = "traversal/naive.rs"]
mod naive;

use std::collections::{BTreeMap, BTreeSet};

use long::{for_each_seed, same_cases};
use memory_wire::traverse::{
    Ctx, DocKey, DocSource, MAX_OPEN_PLACES, Memo, Mode, Root, Schema, SchemaPool, Seen, Selector,
    SourceError, Tracker, visit,
};
use memory_wire::value::{Object, Value};
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId, value};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

const SPACE: &str = "did:key:z6MkSpace";
const DOCUMENTS: usize = 5;

pub(crate) type Documents = BTreeMap<DocKey, Value>;

struct Source<'d>(&'d Documents);

impl DocSource for Source<'_> {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        Ok(self.0.get(key).cloned())
    }
}

fn identity() -> ScopeIdentity {
    ScopeIdentity::session("did:key:alice", "s1")
}

fn id(n: usize) -> EntityId {
    EntityId::from(format!("of:{n}"))
}

fn key(n: usize, scope: Scope) -> DocKey {
    DocKey::new(
        SpaceId::from(SPACE),
        ScopeKey::resolve(scope, &identity()).unwrap(),
        id(n),
    )
}

fn member() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(value!(1)),
        Just(value!(1.5)),
        Just(value!("text")),
        Just(Value::Null),
        Just(value!(true))
    ]
}

/// Schemas without `allOf`: only there does a result decide what is reached, and a remembered result inside a
/// cycle may differ from an unremembered one.
fn schema() -> BoxedStrategy<Value> {
    schema_where(prop::strategy::Just(false).boxed())
}

/// Schemas with `allOf` as well, for graphs without cycles.
fn schema_with_all_of() -> BoxedStrategy<Value> {
    schema_where(prop::bool::weighted(0.3).boxed())
}

fn schema_where(all_of: BoxedStrategy<bool>) -> BoxedStrategy<Value> {
    let plain = prop_oneof![
        3 => Just(value!(true)),
        1 => Just(value!(false)),
        1 => Just(value!({ "type": "string" })),
        1 => Just(value!({ "type": ["number", "null"] })),
        1 => Just(value!({ "type": "object" })),
        1 => Just(value!({ "asCell": ["cell"] })),
        1 => Just(value!({ "type": "unknown" })),
        1 => Just(value!({ "title": "t" })),
    ];
    plain
        .prop_recursive(3, 12, 3, move |inner| {
            let properties = prop::collection::vec((member(), inner.clone()), 0..3);
            prop_oneof![
                (
                    properties,
                    prop::option::of(inner.clone()),
                    prop::option::of(member()),
                    0..4u8
                )
                    .prop_map(|(properties, additional, required, extra)| {
                        let mut object = Object::from_entries(vec![("type".into(), "object".into())]);
                        object.insert("properties", properties.into_iter().collect::<Object>());
                        if let Some(additional) = additional {
                            object.insert("additionalProperties", additional);
                        }
                        if let Some(required) = required {
                            object.insert("required", vec![Value::from(required)]);
                        }
                        match extra {
                            0 => object.insert("asCell", vec![Value::from("cell")]),
                            1 => object.insert("scope", "space"),
                            _ => None,
                        };
                        object.into()
                    }),
                inner
                    .clone()
                    .prop_map(|items| value!({ "type": "array", "items": items })),
                (prop::collection::vec(inner.clone(), 1..3), all_of.clone()).prop_map(|(options, all)| {
                    let keyword = if all { "allOf" } else { "anyOf" };
                    Value::Object([(keyword, options)].into_iter().collect())
                }),
                prop::collection::vec(inner, 1..3).prop_map(|options| value!({ "oneOf": options })),
            ]
        })
        .boxed()
}

/// Schemas of links: few, so that several links carry the same one.
fn link_schema(schema: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => Just(value!({ "type": "object", "properties": { "a": { "type": "object", "properties": { "a": true } } } })),
        1 => schema,
    ]
}

fn link(schema: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let path = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(member(), 1..3)];
    let scope = prop_oneof![6 => Just(None), 1 => Just(Some("user")), 1 => Just(Some("space"))];
    let redirect = prop::bool::weighted(0.3);
    (
        prop::option::weighted(0.9, 0..DOCUMENTS + 1),
        path,
        prop::option::weighted(0.4, link_schema(schema)),
        redirect,
        scope,
    )
        .prop_map(|(target, path, schema, redirect, scope)| {
            let mut payload = Object::new();
            if let Some(target) = target {
                payload.insert("id", id(target));
            }
            payload.insert("path", path.into_iter().map(Value::from).collect::<Vec<_>>());
            if let Some(schema) = schema {
                payload.insert("schema", schema);
            }
            if redirect {
                payload.insert("overwrite", "redirect");
            }
            if let Some(scope) = scope {
                payload.insert("scope", scope);
            }
            value!({ "/": { "link@1": payload } })
        })
        .boxed()
}

fn content(link: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    prop_oneof![2 => leaf(), 3 => link].prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            3 => prop::collection::vec((member(), inner.clone()), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            2 => prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

fn document(link: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    (content(link.clone()), prop::option::weighted(0.2, link)).prop_map(|(content, argument)| {
        let mut root = Object::from_entries(vec![("value".into(), content)]);
        if let Some(argument) = argument {
            root.insert("argument", argument);
        }
        root.into()
    })
}

fn documents(link: BoxedStrategy<Value>) -> impl Strategy<Value = Documents> {
    let scope = prop_oneof![4 => Just(Scope::Space), 1 => Just(Scope::User)];
    prop::collection::vec(((0..DOCUMENTS, scope), document(link)), 1..DOCUMENTS + 3).prop_map(|all| {
        all.into_iter()
            .map(|((n, scope), document)| (key(n, scope), document))
            .collect()
    })
}

fn roots(schema: BoxedStrategy<Value>) -> impl Strategy<Value = Vec<(usize, Selector)>> {
    let schema = prop_oneof![1 => Just(value!(true)), 1 => schema];
    let selector = (prop::collection::vec(member(), 0..2), schema).prop_map(|(path, schema)| {
        Selector::from_root(
            &path.into_iter().map(Into::into).collect::<Vec<_>>(),
            Some(Schema::of(&schema)),
        )
    });
    prop::collection::vec((0..DOCUMENTS, selector), 1..3)
}

/// What happens to a document between two evaluations.
#[derive(Clone, Debug)]
enum Change {
    /// A member is added beside what is there.
    Touched,
    Replaced(Value),
    Deleted,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![4 => Just(Change::Touched), 3 => document(link(schema())).prop_map(Change::Replaced), 1 => Just(Change::Deleted)]
}

fn touched(document: Option<&Value>) -> Value {
    let mut root = document.and_then(Value::as_object).cloned().unwrap_or_default();
    match root.get_mut("value") {
        Some(Value::Object(content)) if !content.contains_key("/") => drop(content.insert("touched", 1)),
        Some(_) => {}
        None => drop(root.insert("value", 1)),
    }
    root.into()
}

/// What is tracked, as comparable text.
type Tracked = BTreeMap<String, BTreeSet<String>>;

fn tracked(tracker: &Tracker) -> Tracked {
    let selectors = |key: &DocKey| tracker.selectors(key).map(naive::selector_text).collect();
    tracker
        .keys()
        .map(|key| (key.to_string(), selectors(key)))
        .collect()
}

/// What `all` tracks and `by` neither tracks nor covers.
fn uncovered(all: &Tracker, by: &Tracker) -> Vec<String> {
    let of_key = |key: &DocKey| {
        let selectors = all.selectors(key).filter(|selector| !by.covers(key, selector));
        selectors
            .map(|selector| format!("{key} {}", naive::selector_text(selector)))
            .collect::<Vec<_>>()
    };
    all.keys().flat_map(of_key).collect()
}

/// Visits roots in one evaluation and returns the link targets that were absent.
fn evaluate(
    documents: &Documents,
    tracker: &mut Tracker,
    roots: &[(DocKey, Selector)],
    skip_walked: bool,
) -> BTreeSet<DocKey> {
    let identity = identity();
    let (mut memo, mut schemas, mut seen) = (Memo::new(), SchemaPool::new(), Seen::new());
    let mut ctx = Ctx {
        mode: Mode::Query,
        identity: &identity,
        tracker,
        memo: &mut memo,
        schemas: &mut schemas,
        seen: &mut seen,
        max_open: MAX_OPEN_PLACES,
        skip_walked,
    };
    let mut source = Source(documents);
    for (key, selector) in roots {
        let root = Root {
            space: key.space.clone(),
            id: key.instance.id.clone(),
            scope: key.instance.scope_key.scope(),
            explicit: None,
            document: documents.get(key).cloned(),
        };
        let _ =
            visit(&mut source, &mut ctx, &root, selector).expect("every scope resolves and nothing is deep");
    }
    seen.absent().cloned().collect()
}

fn space_roots(roots: Vec<(usize, Selector)>) -> Vec<(DocKey, Selector)> {
    roots
        .into_iter()
        .map(|(n, selector)| (key(n, Scope::Space), selector))
        .collect()
}

/// ENG-1012: a dirty document's selectors are removed and visited again; what a link named while it was absent makes the
/// next walk skip nothing. With and without skipping, the same is known after each change.
fn refreshes_agree(
    mut documents: Documents,
    roots: &[(DocKey, Selector)],
    changes: Vec<(DocKey, Change)>,
) -> Result<(), TestCaseError> {
    let (mut skipping, mut plain) = (Tracker::new(), Tracker::new());
    let mut awaited = evaluate(&documents, &mut skipping, roots, true);
    evaluate(&documents, &mut plain, roots, false);
    for (key, change) in changes {
        match change {
            Change::Touched => documents.insert(key.clone(), touched(documents.get(&key))),
            Change::Replaced(document) => documents.insert(key.clone(), document),
            Change::Deleted => documents.remove(&key),
        };
        if awaited.contains(&key) {
            skipping.forget_walked();
        }
        for (tracker, skip) in [(&mut skipping, true), (&mut plain, false)] {
            let dirty = tracker.take_out([&key]);
            awaited.extend(evaluate(&documents, tracker, &dirty, skip));
            tracker.settle();
        }
        // A removed selector that another one covers may come back on the longer way round alone.
        prop_assert_eq!(uncovered(&plain, &skipping), Vec::<String>::new());
        prop_assert_eq!(uncovered(&skipping, &plain), Vec::<String>::new());
    }
    Ok(())
}

#[test]
fn trv_310_the_walk_equals_a_naive_one() {
    let input = (documents(link(schema())), roots(schema()));
    for_each_seed("traversal-naive", 400, &input, |(documents, roots)| {
        equals_the_naive_walk(&documents, &space_roots(roots))
    });
}

/// Every link names a later document, if one that is never there.
fn without_cycles(documents: Documents) -> Documents {
    let place = |key: &DocKey| key.instance.id.as_str()["of:".len()..].parse().unwrap();
    documents
        .into_iter()
        .map(|(key, document)| {
            let at: usize = place(&key);
            (key, linking_beyond(&document, at))
        })
        .collect()
}

fn linking_beyond(value: &Value, at: usize) -> Value {
    match value {
        Value::Object(object) => match object.get("link@1").and_then(Value::as_object) {
            Some(payload) => {
                let mut payload = payload.clone();
                let named = payload
                    .get("id")
                    .and_then(Value::as_str)
                    .map(|id| id["of:".len()..].parse().unwrap());
                let named: usize = named.unwrap_or(at);
                payload.insert("id", id(if named > at { named } else { at + 1 }));
                value!({ "link@1": payload })
            }
            None => Value::Object(
                object
                    .iter()
                    .map(|(key, member)| (key.clone(), linking_beyond(member, at)))
                    .collect(),
            ),
        },
        Value::Array(array) => array
            .elements()
            .map(|(_, element)| linking_beyond(element, at))
            .collect::<Vec<_>>()
            .into(),
        leaf => leaf.clone(),
    }
}

#[test]
fn trv_504_the_walk_equals_a_naive_one_under_all_of() {
    let input = (documents(link(schema_with_all_of())), roots(schema_with_all_of()));
    for_each_seed("traversal-all-of", 400, &input, |(documents, roots)| {
        equals_the_naive_walk(&without_cycles(documents), &space_roots(roots))
    });
}

fn equals_the_naive_walk(documents: &Documents, roots: &[(DocKey, Selector)]) -> TestCaseResult {
    let mut tracker = Tracker::new();
    evaluate(documents, &mut tracker, roots, true);
    let naive = naive::evaluate(documents, &identity(), roots);
    prop_assert_eq!(tracked(&tracker), tracked(&naive));
    Ok(())
}

#[test]
fn decision_24_skipping_changes_nothing_across_refreshes() {
    let input = (
        documents(link(schema())),
        roots(schema()),
        prop::collection::vec((0..DOCUMENTS + 1, change()), 1..6),
    );
    for_each_seed(
        "traversal-refreshes",
        1_000,
        &input,
        |(documents, roots, changes)| {
            let changes = changes
                .into_iter()
                .map(|(n, change)| (key(n, Scope::Space), change))
                .collect();
            refreshes_agree(documents, &space_roots(roots), changes)
        },
    );
}

proptest! {
    #![proptest_config(same_cases(400))]

    #[test]
    fn decision_24_skipping_changes_nothing(documents in documents(link(schema())), roots in roots(schema())) {
        let roots = space_roots(roots);
        let (mut skipping, mut plain) = (Tracker::new(), Tracker::new());
        evaluate(&documents, &mut skipping, &roots, true);
        evaluate(&documents, &mut plain, &roots, false);
        prop_assert_eq!(tracked(&skipping), tracked(&plain));
    }
}

/// A case of the property above that random documents meet once in a hundred thousand: documents, roots and changes as
/// text, `of:` ids as numbers.
fn agrees_on(documents: &[(usize, &str)], roots: &[(usize, &str)], changes: &[(usize, &str)]) {
    let read = |text: &str| memory_wire::codec::decode(&format!("fvj1:{text}")).unwrap();
    let document = |text: &str| value!({ "value": (read(text)) });
    let documents = documents
        .iter()
        .map(|(n, text)| (key(*n, Scope::Space), document(text)))
        .collect();
    let roots: Vec<(DocKey, Selector)> = roots
        .iter()
        .map(|(n, schema)| {
            (
                key(*n, Scope::Space),
                Selector::from_root(&[], Some(Schema::of(&read(schema)))),
            )
        })
        .collect();
    let changes = changes
        .iter()
        .map(|(n, text)| (key(*n, Scope::Space), Change::Replaced(document(text))))
        .collect();
    refreshes_agree(documents, &roots, changes).unwrap();
}

const A_OF_OBJECTS: &str =
    r#"{"type":"object","properties":{"a":{"type":"object","properties":{"a":true}}}}"#;

#[test]
fn decision_24_a_link_whose_path_was_barred_is_walked_once_it_is_not() {
    agrees_on(
        &[
            (
                2,
                r#"{"a":{"a":{"/quote":{"/":{"link@1":{"id":"of:3","path":["a"]}}}}}}"#,
            ),
            (3, "1"),
        ],
        &[(3, r#"{"oneOf":[true]}"#), (2, "true")],
        &[(3, r#"{"a":{"/quote":{"/":{"link@1":{"id":"of:2","path":[]}}}}}"#)],
    );
}

#[test]
fn decision_24_what_is_behind_an_elements_link_is_walked_again_whatever_its_schema() {
    let with_schema =
        format!(r#"[{{"/quote":{{"/":{{"link@1":{{"id":"of:1","path":[],"schema":{A_OF_OBJECTS}}}}}}}}}]"#);
    let to_four = r#"[{"/quote":{"/":{"link@1":{"id":"of:4","path":[]}}}}]"#;
    agrees_on(
        &[(0, to_four), (1, "{}"), (4, &with_schema)],
        &[(0, r#"{"anyOf":[true]}"#)],
        &[
            (1, r#"{"a":{"/quote":{"/":{"link@1":{"id":"of:0","path":[]}}}}}"#),
            (0, to_four),
        ],
    );
}

#[test]
fn decision_24_a_redirect_and_a_plain_link_to_a_link_are_two_ways() {
    let link = |overwrite: &str| {
        format!(
            r#"{{"/quote":{{"/":{{"link@1":{{"id":"of:2",{overwrite}"path":[],"schema":{A_OF_OBJECTS}}}}}}}}}"#
        )
    };
    let both = format!("[{},[{}]]", link(""), link(r#""overwrite":"redirect","#));
    let itself = r#"{"/quote":{"/":{"link@1":{"path":[],"schema":{"asCell":["cell"],"properties":{},"required":["a"],"type":"object"}}}}}"#;
    agrees_on(
        &[(4, &both), (2, itself)],
        &[(3, "true")],
        &[(3, r#"[{"/quote":{"/":{"link@1":{"id":"of:4","path":[]}}}}]"#)],
    );
}
