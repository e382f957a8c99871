//! Depth and cost of the walk (TRV-1501, 1502), in counted document loads and without clocks.

use std::collections::BTreeMap;

use memory_wire::traverse::{
    Ctx, DocKey, DocSource, MAX_OPEN_PLACES, Memo, Mode, Outcome, Root, Schema, SchemaPool, Seen, Selector,
    SourceError, Tracker, TraverseError, visit,
};
use memory_wire::{EntityId, Object, Scope, ScopeIdentity, ScopeKey, SpaceId, Value, value};

#[derive(Default)]
struct Counting {
    documents: BTreeMap<EntityId, Value>,
    loads: usize,
}

impl DocSource for Counting {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        self.loads += 1;
        Ok(self.documents.get(&key.instance.id).cloned())
    }
}

fn link(to: usize) -> Value {
    value!({ "/": { "link@1": { "id": (format!("of:{to}")), "path": [] } } })
}

fn graph(size: usize, targets: impl Fn(usize) -> Vec<usize>) -> Counting {
    let document = |n: usize| {
        let links: Object = targets(n)
            .into_iter()
            .map(|to| (format!("to{to}"), link(to)))
            .collect();
        value!({ "value": links })
    };
    let documents = (0..size)
        .map(|n| (EntityId::from(format!("of:{n}")), document(n)))
        .collect();
    Counting { documents, loads: 0 }
}

fn walk(
    source: &mut Counting,
    schema: Value,
    max_open: usize,
) -> Result<(Outcome<()>, Tracker), TraverseError> {
    let identity = ScopeIdentity::default();
    let (mut tracker, mut memo, mut schemas, mut seen) =
        (Tracker::new(), Memo::new(), SchemaPool::new(), Seen::new());
    let mut ctx = Ctx {
        mode: Mode::Query,
        identity: &identity,
        tracker: &mut tracker,
        memo: &mut memo,
        schemas: &mut schemas,
        seen: &mut seen,
        max_open,
        skip_walked: true,
    };
    let space = SpaceId::from("did:key:space");
    let id = EntityId::from("of:0");
    let document = source
        .load(&DocKey::new(space.clone(), ScopeKey::space(), id.clone()))
        .unwrap();
    let root = Root {
        space,
        id,
        scope: Scope::Space,
        explicit: None,
        document,
    };
    let outcome = visit(
        source,
        &mut ctx,
        &root,
        &Selector::from_root(&[], Some(Schema::of(&schema))),
    )?;
    Ok((outcome, tracker))
}

/// Every object, and every document behind a link, whatever its name.
fn recursive() -> Value {
    value!({
        "$ref": "#/$defs/N",
        "$defs": { "N": { "type": "object", "additionalProperties": { "$ref": "#/$defs/N" } } }
    })
}

#[test]
fn trv_1501_long_chains_need_no_native_stack() {
    let length = 20_000;
    for schema in [value!(true), recursive()] {
        let mut source = graph(length, |n| if n + 1 < length { vec![n + 1] } else { Vec::new() });
        let (outcome, tracker) = walk(&mut source, schema, MAX_OPEN_PLACES).unwrap();
        assert!(outcome.is_ok());
        assert_eq!(tracker.len(), length);
    }
}

#[test]
fn trv_1501_the_bound_is_an_error_of_the_walk() {
    let mut source = graph(200, |n| vec![n + 1]);
    let refused = walk(&mut source, recursive(), 100);
    assert!(
        matches!(refused, Err(TraverseError::TooDeep { limit: 100 })),
        "{refused:?}"
    );
}

#[test]
fn trv_1502_a_diamond_costs_its_levels() {
    // Two documents per level, each linking to both of the next level: 2^40 paths.
    let levels = 40;
    for schema in [value!(true), recursive()] {
        let mut source = graph(2 * levels, |n| {
            let next = (n / 2 + 1) * 2;
            if next < 2 * levels {
                vec![next, next + 1]
            } else {
                Vec::new()
            }
        });
        let (outcome, _) = walk(&mut source, schema, MAX_OPEN_PLACES).unwrap();
        assert!(outcome.is_ok());
        assert!(source.loads <= 2 * levels * 8, "{} loads", source.loads);
    }
}

#[test]
fn trv_1502_a_complete_graph_costs_its_edges() {
    let size = 40;
    for schema in [value!(true), recursive()] {
        let mut source = graph(size, |n| (0..size).filter(|to| *to != n).collect());
        let (outcome, _) = walk(&mut source, schema, MAX_OPEN_PLACES).unwrap();
        assert!(outcome.is_ok());
        assert!(source.loads <= size * size * 4, "{} loads", source.loads);
    }
}

#[test]
fn trv_1601_a_union_that_only_names_itself_selects_nothing() {
    let mut source = graph(1, |_| vec![0]);
    let schema = value!({ "$ref": "#/$defs/A", "$defs": { "A": { "anyOf": [{ "$ref": "#/$defs/A" }, { "$ref": "#/$defs/A" }] } } });
    let (outcome, _) = walk(&mut source, schema, MAX_OPEN_PLACES).unwrap();
    assert!(outcome.is_err());
}
