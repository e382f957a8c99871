//! What hostile schemas cost (TRV-1501…1503): each of these took exponential or quadratic time or memory, or native
//! stack, somewhere on the way to this test. There are no clocks here: the old cost would not end within a day, and
//! peaks are counted by the allocator.

use std::collections::BTreeMap;

use allocation_counter::measure;
use memory_wire::traverse::{
    Addr, Ctx, DocKey, DocSource, LazyRead, Link, MAX_OPEN_PLACES, Memo, Mode, Node, Outcome, ReadRequest,
    Root, Schema, SchemaPool, Seen, Selector, SourceError, Tracker, TraverseError, combine, narrow, read,
    read_lazily, visit,
};
use memory_wire::{EntityId, Object, Scope, ScopeIdentity, SpaceId, Value, value};

const SPACE: &str = "did:key:space";

struct Documents(BTreeMap<EntityId, Value>);

impl DocSource for Documents {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        Ok(self.0.get(&key.instance.id).cloned())
    }
}

fn documents<const N: usize>(all: [(&str, Value); N]) -> Documents {
    Documents(
        all.into_iter()
            .map(|(id, content)| (id.into(), value!({ "value": content })))
            .collect(),
    )
}

/// Visits `of:0` in a query.
fn query(source: &mut Documents, path: &[&str], schema: &Value) -> Result<Outcome<()>, TraverseError> {
    let identity = ScopeIdentity::default();
    let (mut tracker, mut memo) = (Tracker::new(), Memo::new());
    let (mut schemas, mut seen) = (SchemaPool::new(), Seen::new());
    let mut ctx = Ctx {
        mode: Mode::Query,
        identity: &identity,
        tracker: &mut tracker,
        memo: &mut memo,
        schemas: &mut schemas,
        seen: &mut seen,
        max_open: MAX_OPEN_PLACES,
        skip_walked: true,
    };
    let root = Root {
        space: SPACE.into(),
        id: "of:0".into(),
        scope: Scope::Space,
        explicit: None,
        document: source.0.get("of:0").cloned(),
    };
    let path: Vec<_> = path.iter().map(|segment| (*segment).into()).collect();
    visit(
        source,
        &mut ctx,
        &root,
        &Selector::from_root(&path, Some(Schema::of(schema))),
    )
}

fn link_to_zero(schema: &Value) -> Link {
    let at = Addr {
        space: SpaceId::from(SPACE),
        id: "of:0".into(),
        scope: Scope::Space,
        path: vec!["value".into()],
    };
    Link {
        at,
        schema: Some(Schema::of(schema)),
    }
}

/// Names with schemas, as an object.
fn named(prefix: &str, count: usize, schema: impl Fn(usize) -> Value) -> Object {
    (0..count)
        .map(|n| (format!("{prefix}{n:06}"), schema(n)))
        .collect()
}

#[test]
fn trv_1502_narrowing_by_a_long_path_does_not_try_every_way() {
    // Two definitions that each offer the other and themselves: 2^60 ways down a path of 60.
    let either = |a: &str, b: &str| value!({ "type": "object", "properties": { "a": { "anyOf": [{ "$ref": a }, { "$ref": b }] } } });
    let (x, y) = ("#/$defs/X", "#/$defs/Y");
    let schema = value!({ "$ref": x, "$defs": { "X": (either(x, y)), "Y": (either(y, x)) } });
    let path = ["a"; 60];
    let long: Vec<_> = path.iter().map(|segment| (*segment).into()).collect();
    let _narrowed = narrow(&mut SchemaPool::new(), &Schema::of(&schema), &long);
    let link = value!({ "/": { "link@1": { "id": "of:1", "path": [], "schema": schema } } });
    let mut source = documents([("of:0", link), ("of:1", value!({ "a": 1 }))]);
    assert!(query(&mut source, &path, &value!(true)).is_ok());
}

#[test]
fn trv_1501_a_union_that_names_itself_ends_in_a_lazy_read() {
    let union = |keyword: &str| {
        let option = value!({ "$ref": "#/$defs/A" });
        let union: Object = [(keyword, value!([option]))].into_iter().collect();
        value!({ "$ref": "#/$defs/A", "$defs": { "A": union } })
    };
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let mut source = documents([("of:0", value!({ "a": 1 }))]);
        let (link, identity) = (link_to_zero(&union(keyword)), ScopeIdentity::default());
        let request = ReadRequest::new(&link, &identity);
        let entry = read_lazily(&mut source, &mut SchemaPool::new(), &request).unwrap();
        assert!(
            matches!(entry, LazyRead::Leaf(Value::Undefined) | LazyRead::View(_)),
            "{keyword}: {entry:?}"
        );
    }
}

#[test]
fn trv_1503_options_times_keywords_is_bounded_memory() {
    let mut schema = named("x-", 5_000, |n| value!(n as f64));
    schema.insert(
        "anyOf",
        (0..5_000)
            .map(|n| value!({ "minimum": (n as f64) }))
            .collect::<Vec<_>>(),
    );
    let schema = Value::Object(schema);
    let mut source = documents([("of:0", value!({ "a": 1 }))]);
    let peak = measure(|| drop(query(&mut source, &[], &schema))).bytes_max;
    println!("5,000 options over 5,000 keywords: peak {peak} bytes");
    assert!(peak < 200 << 20, "{peak}");
}

#[test]
fn trv_1503_what_one_walk_derives_is_bounded_in_all() {
    // Each of the unions is within the bound of one step.
    let union = || {
        let mut schema = named("x-", 1_000, |n| value!(n as f64));
        let options: Vec<Value> = (0..1_000).map(|n| value!({ "minimum": (n as f64) })).collect();
        schema.insert("anyOf", options);
        schema
    };
    let properties = named("p", 4, |n| {
        let mut schema = union();
        schema.insert("n", n as f64);
        schema.into()
    });
    let schema = value!({ "type": "object", "properties": properties });
    let mut source = documents([("of:0", named("p", 4, |_| value!({})).into())]);
    let mut outcome = None;
    let peak = measure(|| outcome = Some(query(&mut source, &[], &schema))).bytes_max;
    println!("four unions of 1,000 options over 1,000 keywords: peak {peak} bytes");
    assert!(
        matches!(outcome, Some(Err(TraverseError::TooCostly))),
        "{outcome:?}"
    );
    assert!(peak < 200 << 20, "{peak}");
}

#[test]
fn trv_1503_selectors_of_a_long_path_are_bounded_memory() {
    // Every segment is a link to the document's own root: the n-th tracks a selector of what is left of the path.
    let names: Vec<String> = (0..4_000).map(|n| format!("k{n:06}")).collect();
    let own_root = value!({ "/": { "link@1": { "path": [] } } });
    let content: Object = names
        .iter()
        .map(|name| (name.as_str(), own_root.clone()))
        .collect();
    let mut source = documents([("of:0", content.into())]);
    let path: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut outcome = None;
    let peak = measure(|| outcome = Some(query(&mut source, &path, &value!(true)))).bytes_max;
    println!("a path of 4,000 links: peak {peak} bytes");
    assert!(
        matches!(outcome, Some(Err(TraverseError::TooCostly))),
        "{outcome:?}"
    );
    assert!(peak < 200 << 20, "{peak}");
    assert!(query(&mut source, &path[..1_000], &value!(true)).is_ok());
}

/// Definitions of which each offers the next two twice over: 2^50 ways to the leaf, and no cycle.
fn doubling(leaf: Value) -> Object {
    let offer = |n: usize| value!({ "anyOf": [{ "$ref": (format!("#/$defs/A{}", n + 1)) }, { "$ref": (format!("#/$defs/B{}", n + 1)) }] });
    let mut definitions: Object = (0..50)
        .flat_map(|n| ["A", "B"].map(|name| (format!("{name}{n}"), offer(n))))
        .collect();
    definitions.insert("A50", leaf.clone());
    definitions.insert("B50", leaf);
    definitions
}

#[test]
fn trv_1502_unions_of_unions_do_not_try_every_way() {
    let text = || doubling(value!({ "type": "string" }));
    let absent = value!({ "/": { "link@1": { "id": "of:absent", "path": [] } } });
    for (schema, content) in [
        (value!({ "$ref": "#/$defs/A0", "$defs": (text()) }), value!(1)),
        (
            value!({ "type": "array", "items": { "$ref": "#/$defs/A0" }, "$defs": (text()) }),
            value!([1, 2]),
        ),
        (
            value!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/A0" } }, "$defs": (text()) }),
            value!({ "a": absent }),
        ),
    ] {
        let mut source = documents([("of:0", content)]);
        assert!(query(&mut source, &[], &schema).is_ok());
        let (link, identity) = (link_to_zero(&schema), ScopeIdentity::default());
        let request = ReadRequest::new(&link, &identity);
        assert!(read(&mut source, &mut SchemaPool::new(), &request).is_ok());
        assert!(read_lazily(&mut source, &mut SchemaPool::new(), &request).is_ok());
    }
    // Choosing the handle option looks at the value, `const` included.
    let one = doubling(value!({ "const": 1 }));
    let schema = value!({ "anyOf": [{ "asCell": ["cell"], "$ref": "#/$defs/A0" }, { "type": "number" }], "$defs": one });
    let mut source = documents([("of:0", value!(2))]);
    let (link, identity) = (link_to_zero(&schema), ScopeIdentity::default());
    assert!(
        read(
            &mut source,
            &mut SchemaPool::new(),
            &ReadRequest::new(&link, &identity)
        )
        .is_ok()
    );
}

#[test]
fn trv_1502_long_lists_cost_their_length() {
    let size = 40_000;
    let names: Vec<Value> = (0..size).map(|n| format!("k{n:06}").into()).collect();
    let wide = |extra: &str| value!({ "type": "object", "required": (names.clone()), "title": extra });
    let content: Value = named("k", size, |n| value!(n as f64)).into();
    // Names that every one of two schemas requires, and whose values fail.
    let combined = combine(
        &mut SchemaPool::new(),
        Some(&Schema::of(&wide("a"))),
        Some(&Schema::of(&wide("b"))),
    );
    assert_eq!(
        combined
            .unwrap()
            .keyword("required")
            .and_then(Value::as_array)
            .unwrap()
            .len(),
        size
    );
    let failing = value!({ "type": "object", "required": (names.clone()), "additionalProperties": { "type": "string" } });
    let mut source = documents([("of:0", content)]);
    assert!(query(&mut source, &[], &failing).unwrap().is_err());
    // A read builds as many members, under a schema that keeps them, and fills in as many defaults.
    let defaults = named("z", size, |_| value!({ "type": "number", "default": 1 }));
    let reader =
        value!({ "type": "object", "properties": defaults, "additionalProperties": { "type": "number" } });
    let (link, identity) = (link_to_zero(&reader), ScopeIdentity::default());
    let reading = read(
        &mut source,
        &mut SchemaPool::new(),
        &ReadRequest::new(&link, &identity),
    )
    .unwrap();
    let Node::Object { members, .. } = reading.tree.node(reading.root) else {
        panic!("{:?}", reading.tree.node(reading.root));
    };
    assert_eq!(members.len(), 2 * size);
}

#[test]
fn trv_1502_many_options_and_atoms_are_told_apart_in_linear_time() {
    let size = 40_000;
    let options: Vec<Value> = (0..size)
        .map(|n| value!({ "type": "object", "properties": { "a": { "type": "string", "n": (n as f64) } } }))
        .collect();
    let union = Schema::of(&value!({ "anyOf": options }));
    let narrowed = narrow(&mut SchemaPool::new(), &union, &["a".into()]);
    assert_eq!(
        narrowed.keyword("anyOf").and_then(Value::as_array).unwrap().len(),
        size
    );
    let atoms: Vec<Value> = (0..size).map(|n| format!("atom {n}").into()).collect();
    let labelled = Schema::of(&value!({
        "type": "object",
        "ifc": { "confidentiality": (atoms.clone()) },
        "properties": { "a": { "type": "string", "ifc": { "confidentiality": atoms } } }
    }));
    let narrowed = narrow(&mut SchemaPool::new(), &labelled, &["a".into()]);
    let kept = narrowed
        .keyword("ifc")
        .and_then(|ifc| ifc.member("confidentiality"))
        .and_then(Value::as_array);
    assert_eq!(kept.unwrap().len(), size);
}
