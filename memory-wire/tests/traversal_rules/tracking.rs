//! Tracking, coverage and the memo (TRV §3).

use memory_wire::traverse::{
    Ctx, DocKey, MAX_OPEN_PLACES, Memo, Mode, Root, Schema, SchemaPool, Seen, Selector, Tracker,
    TraverseError, narrow, visit,
};
use memory_wire::{Scope, ScopeIdentity, ScopeKey, Value, value};

use super::graph::{Graph, SPACE, alice, link, link_to, path, schema};

#[test]
fn trv_1_identity_does_nothing_but_resolve_scopes() {
    let mut graph = Graph::of([("a", value!({ "x": (link("b")) })), ("b", value!(1))]);
    let one = graph.query(&[], value!(true));
    graph.identity = ScopeIdentity::default();
    let other = graph.query(&[], value!(true));
    assert_eq!(one.reached(), other.reached());
}

#[test]
fn trv_2_failure_takes_no_side_effect_back() {
    let graph = Graph::of([("a", value!({ "x": (link("b")), "y": 1 })), ("b", value!(1))]);
    let failing = value!({ "type": "object", "properties": { "x": true, "y": { "type": "string" } }, "required": ["y"] });
    let queried = graph.query(&[], failing);
    assert!(!queried.selects() && queried.outcome.is_ok());
    assert_eq!(queried.reached(), ["a", "b"]);
}

#[test]
fn trv_301_keys_are_space_scope_key_and_id() {
    let key = DocKey::new(
        "did:key:s".into(),
        ScopeKey::resolve(Scope::User, &alice()).unwrap(),
        "of:a/b".into(),
    );
    assert_eq!(key.to_string(), "did:key:s/user:did%3Akey%3Aalice/of:a/b");
    // The key is its parts: an id with a slash is no other key.
    let other = DocKey::new("did:key:s".into(), ScopeKey::space(), "of:a/b".into());
    assert_ne!(key, other);
    let mut tracker = Tracker::new();
    assert!(tracker.add(&key, Selector::everything()));
    assert!(
        !tracker.add(&key, Selector::rejecting()),
        "a multimap: the second selector is beside the first"
    );
    assert_eq!(tracker.selectors(&key).count(), 2);
}

#[test]
fn trv_302_what_is_tracked_even_absent_and_what_only_present() {
    // A root and a metadata target are; a link's target is not.
    let mut graph = Graph::of([]);
    graph.put_root(
        "a",
        Scope::Space,
        value!({ "value": (link("gone")), "argument": (link("meta")) }),
    );
    let queried = graph.query(&[], value!(true));
    assert_eq!(queried.reached(), ["a", "meta"]);
    assert_eq!(queried.selectors(&graph.key("meta", Scope::Space)), [" false"]);
    assert_eq!(Graph::of([]).query(&[], value!(true)).reached(), ["a"]);
    // A present target whose path ends nowhere is; one whose path a leaf bars is not.
    let at = |path: Value| {
        let graph = Graph::of([
            ("a", link_to("b", value!({ "path": path }))),
            ("b", value!({ "n": 1 })),
        ]);
        graph.query(&[], value!(true)).reached()
    };
    assert_eq!(at(value!(["gone"])), ["a", "b"]);
    assert_eq!(at(value!(["n", "x"])), ["a"]);
}

#[test]
fn trv_303_covered_is_equal_or_below_a_true_like_one() {
    let key = Graph::of([]).key("a", Scope::Space);
    let covered = |tracked: Selector, asked: Selector| {
        let mut tracker = Tracker::new();
        tracker.add(&key, tracked);
        tracker.covers(&key, &asked)
    };
    let at = |segments: &[&str], of: Value| Selector::new(path(segments), Some(schema(of)));
    let number = || value!({ "type": "number" });
    assert!(covered(at(&["value"], number()), at(&["value"], number())));
    assert!(covered(
        at(&["value"], value!({ "default": 1 })),
        at(&["value", "x"], number())
    ));
    assert!(!covered(
        at(&["value", "x"], value!(true)),
        at(&["value"], number())
    ));
    assert!(
        !covered(at(&["val"], value!(true)), at(&["value"], number())),
        "segment by segment"
    );
    assert!(!covered(
        at(&["value"], value!({ "type": ["number", "string"] })),
        at(&["value"], number())
    ));
    // An absent schema is asked as `false` and, tracked, equals nothing.
    let absent = || Selector::new(path(&["value"]), None);
    assert!(covered(at(&["value"], value!(false)), absent()));
    assert!(!covered(absent(), absent()));
}

#[test]
fn trv_304_a_covered_link_is_not_followed_again_but_a_plain_one_under_true_is() {
    let shared = value!({ "type": "object", "properties": { "n": { "type": "number" } } });
    let both = value!({ "type": "object", "properties": { "x": (shared.clone()), "y": shared } });
    let graph = Graph::of([
        ("a", value!({ "x": (link("b")), "y": (link("b")) })),
        ("b", value!({ "n": 1 })),
    ]);
    let loads = |schema: Value| {
        let mut notes = graph.query(&[], schema).notes;
        notes.loads.retain(|key| key.ends_with("of:b"));
        notes.loads.len()
    };
    assert_eq!(loads(both), 1);
}

#[test]
fn trv_305_a_skip_is_success_with_null_in_a_cells_walking_read() {
    let graph = Graph::of([
        ("a", value!([(link("b")), (link("b"))])),
        ("b", value!({ "n": 1 })),
    ]);
    let items = value!({ "type": "array", "items": { "type": "object", "properties": { "n": { "type": "number" } } } });
    let walking = graph.read_with(&[], Some(items.clone()), true);
    assert_eq!(walking.value.unwrap(), "[{n:1},null]");
    assert_eq!(graph.value(&[], items), "[{n:1},{n:1}]");
}

#[test]
fn trv_306_coverage_is_of_the_links_own_effective_instance() {
    // The user's instance is not covered by what is tracked of everyone's.
    let mut graph = Graph::of([
        (
            "a",
            value!({ "x": (link("b")), "y": (link_to("b", value!({ "scope": "user" }))) }),
        ),
        ("b", value!({ "n": (link("c")) })),
        ("c", value!(1)),
    ]);
    graph.put(
        "b",
        Scope::User,
        value!({ "n": (link_to("d", value!({ "scope": "space" }))) }),
    );
    graph.put("d", Scope::Space, value!(1));
    let queried = graph.query(
        &[],
        value!({ "type": "object", "additionalProperties": { "type": "object" } }),
    );
    assert_eq!(queried.reached(), ["a", "b", "b@user", "c", "d"]);
}

#[test]
fn trv_307_the_rejecting_selector_covers_only_itself() {
    // `b` is tracked as metadata before a link asks for what is in it.
    let mut graph = Graph::of([("b", value!({ "x": (link("c")) })), ("c", value!(1))]);
    graph.put_root("m", Scope::Space, value!({ "value": 1, "argument": (link("b")) }));
    graph.put("a", Scope::Space, value!({ "y": (link("b")) }));
    let roots = [("m", Selector::everything()), ("a", Selector::everything())];
    let queried = graph.query_roots(&roots);
    assert_eq!(queried.reached(), ["a", "b", "c", "m"]);
    let key = graph.key("b", Scope::Space);
    let mut tracker = Tracker::new();
    tracker.add(&key, Selector::rejecting());
    assert!(tracker.covers(&key, &Selector::rejecting()));
    assert!(!tracker.covers(&key, &Selector::from_root(&[], None)));
    assert!(!tracker.covers(&key, &Selector::everything()));
}

#[test]
fn trv_311_an_empty_memo_tracks_again_what_was_removed() {
    let graph = Graph::of([
        ("a", value!({ "x": (link("b")) })),
        ("b", value!({ "y": (link("c")) })),
        ("c", value!(1)),
    ]);
    let (mut tracker, mut memo) = (Tracker::new(), Memo::new());
    let walk = |tracker: &mut Tracker, memo: &mut Memo<()>| {
        let (mut schemas, mut seen) = (SchemaPool::new(), Seen::new());
        let identity = alice();
        let mut ctx = Ctx {
            mode: Mode::Query,
            identity: &identity,
            tracker,
            memo,
            schemas: &mut schemas,
            seen: &mut seen,
            max_open: MAX_OPEN_PLACES,
            skip_walked: false,
        };
        let root = Root {
            space: SPACE.into(),
            id: "of:a".into(),
            scope: Scope::Space,
            explicit: None,
            document: graph.documents.get(&graph.key("a", Scope::Space)).cloned(),
        };
        let open = schema(value!({ "type": "object" }));
        visit(
            &mut graph.source(),
            &mut ctx,
            &root,
            &Selector::from_root(&[], Some(open)),
        )
        .unwrap()
        .unwrap();
    };
    walk(&mut tracker, &mut memo);
    assert_eq!(tracker.len(), 3);
    tracker.take_out([&graph.key("a", Scope::Space), &graph.key("c", Scope::Space)]);
    assert_eq!(tracker.len(), 1);
    walk(&mut tracker, &mut Memo::new());
    assert!(tracker.contains(&graph.key("a", Scope::Space)));
}

#[test]
fn trv_312_a_memo_is_bound_to_its_first_identity() {
    let mut memo: Memo<()> = Memo::new();
    memo.bind(&ScopeIdentity::user("did:key:alice")).unwrap();
    memo.bind(&ScopeIdentity::user("did:key:alice")).unwrap();
    for other in [
        alice(),
        ScopeIdentity::default(),
        ScopeIdentity::session("did:key:alice", ""),
    ] {
        assert!(
            matches!(memo.bind(&other), Err(TraverseError::Identity)),
            "{other:?}"
        );
    }
}

#[test]
fn trv_313_nothing_is_remembered_that_missed_a_schema_document() {
    // One pool, two queries: the document arrives in between.
    let number = value!({ "type": "object", "properties": { "x": true } });
    let mut graph = Graph::of([("b", value!({ "x": (link("c")) })), ("c", value!(1))]);
    let id = graph.put_schema(&number);
    graph.put(
        "a",
        Scope::Space,
        link_to("b", value!({ "schema": { "$ref": (id.as_str()) } })),
    );
    let schema_document = graph.key(&id, Scope::Space);
    let content = graph.documents.remove(&schema_document).unwrap();
    let mut pool = SchemaPool::new();
    let mut reached = |graph: &Graph| {
        let (mut tracker, mut memo, mut seen) = (Tracker::new(), Memo::new(), Seen::new());
        let identity = alice();
        let mut ctx = Ctx {
            mode: Mode::Query,
            identity: &identity,
            tracker: &mut tracker,
            memo: &mut memo,
            schemas: &mut pool,
            seen: &mut seen,
            max_open: MAX_OPEN_PLACES,
            skip_walked: true,
        };
        let root = Root {
            space: SPACE.into(),
            id: "of:a".into(),
            scope: Scope::Space,
            explicit: None,
            document: graph.documents.get(&graph.key("a", Scope::Space)).cloned(),
        };
        let _outcome = visit(&mut graph.source(), &mut ctx, &root, &Selector::everything()).unwrap();
        tracker.contains(&graph.key("c", Scope::Space))
    };
    assert!(!reached(&graph));
    graph.documents.insert(schema_document, content);
    assert!(reached(&graph));
}

#[test]
fn trv_1503_results_of_a_pool_stay_right_when_it_forgets() {
    let mut pool = SchemaPool::new();
    let of = |n: usize| {
        Schema::of(
            &value!({ "type": "object", "properties": { "a": { "type": "string", "n": (n as f64) } } }),
        )
    };
    let first = narrow(&mut pool, &of(0), &path(&["a"]));
    for n in 0..25_000 {
        narrow(&mut pool, &of(n), &path(&["a"]));
    }
    assert_eq!(narrow(&mut pool, &of(0), &path(&["a"])), first);
}
