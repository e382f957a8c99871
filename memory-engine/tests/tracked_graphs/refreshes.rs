//! Any data, any changes: a refreshed graph is a fresh one, and what was reported and retracted on the way adds up to
//! it. A long run (`cargo xtask long engine-tracked-graphs`): each seed is a block of cases.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use memory_wire::value::Object;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};

use super::support::json;
use super::*;

const NAME: &str = "engine-tracked-graphs";
const DOCUMENTS: usize = 6;
/// Seeds of an ordinary test run.
const SMOKE: u64 = 8;
const CASES_A_SEED: u32 = 25;

/// Which kinds of data a case has. Fewer at a time meet more often.
#[derive(Clone, Copy, Debug)]
struct Dialect {
    paths: bool,
    link_schemas: bool,
    redirects: bool,
    metadata: bool,
    deletes: bool,
    scopes: bool,
}

#[derive(Clone)]
struct Case {
    /// The documents at first, by scope; absent ones only where documents are deleted.
    initial: Vec<Write>,
    root: (usize, Value),
    steps: Vec<Step>,
}

#[derive(Clone)]
struct Write {
    document: usize,
    scope: Scope,
    content: Option<Value>,
}

#[derive(Clone)]
enum Step {
    Commit(Vec<Write>),
    /// Bob writes to an instance of his own, which is none of the graph's.
    Elsewhere(usize),
    Extend(usize, Value),
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "of:{} under {}", self.root.0, json(&self.root.1))?;
        writeln!(f, "at first {:?}", self.initial)?;
        self.steps
            .iter()
            .try_for_each(|step| writeln!(f, "then {step:?}"))
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = self
            .content
            .as_ref()
            .map_or("deleted".to_owned(), |content| json(content).to_string());
        write!(f, "of:{}@{} {content}", self.document, self.scope.as_str())
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Commit(writes) => write!(f, "{writes:?}"),
            Step::Elsewhere(n) => write!(f, "bob writes of:{n}"),
            Step::Extend(n, schema) => write!(f, "of:{n} under {} as well", json(schema)),
        }
    }
}

fn dialect() -> impl Strategy<Value = Dialect> {
    any::<[bool; 6]>().prop_map(
        |[paths, link_schemas, redirects, metadata, deletes, scopes]| Dialect {
            paths,
            link_schemas,
            redirects: redirects && !link_schemas,
            metadata,
            deletes,
            scopes,
        },
    )
}

/// Sometimes, with a probability that may be none or all.
fn maybe<S: Strategy>(often: f64, strategy: S) -> impl Strategy<Value = Option<S::Value>> {
    (prop::bool::weighted(often), strategy).prop_map(|(on, value)| on.then_some(value))
}

fn id(n: usize) -> String {
    format!("of:{n}")
}

fn member() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn any_link(dialect: Dialect) -> impl Strategy<Value = Value> {
    let path = prop_oneof![
        3 => Just(value!([])),
        1 => Just(value!(["a"])),
        1 => Just(value!(["0"])),
        1 => Just(value!(["a", "b"])),
    ];
    let some = |on: bool, often: f64| prop::bool::weighted(if on { often } else { 0.0 });
    (
        0..DOCUMENTS,
        path,
        link_schema(),
        some(dialect.paths, 0.7),
        some(dialect.link_schemas, 0.5),
        some(dialect.redirects, 0.3),
        some(dialect.scopes, 0.3),
        some(dialect.paths, 0.1),
    )
        .prop_map(|(n, path, schema, with_path, with_schema, redirect, user, own)| {
            let mut payload = Object::default();
            if !own {
                payload.insert("id", Value::from(id(n)));
            }
            payload.insert("path", if with_path { path } else { value!([]) });
            if with_schema {
                payload.insert("schema", schema);
            }
            if redirect {
                payload.insert("overwrite", Value::from("redirect"));
            }
            if user {
                payload.insert("scope", Value::from("user"));
            }
            value!({ "/": { "link@1": payload } })
        })
}

fn content(dialect: Dialect) -> impl Strategy<Value = Value> {
    // Nothing stands in the way of a link's path: what is tracked for a link stays when it is barred afterwards, as a
    // deleted document does, while a fresh evaluation does not meet it (ENG-1025, 1026).
    let scalar = if dialect.paths { value!({}) } else { value!(1) };
    let leaf = prop_oneof![
        1 => Just(scalar),
        3 => any_link(dialect),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec((member(), inner.clone()), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Object>())),
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

fn document(dialect: Dialect) -> impl Strategy<Value = Value> {
    let field = prop_oneof![
        Just("result"),
        Just("argument"),
        Just("pattern"),
        Just("cfc"),
        Just("source")
    ];
    let often = if dialect.metadata { 0.5 } else { 0.0 };
    let named = maybe(often, (field, 0..DOCUMENTS));
    let internal = maybe(often / 2.0, 0..DOCUMENTS);
    (content(dialect), named, internal).prop_map(|(content, named, internal)| {
        let mut root = Object::default();
        root.insert("value", content);
        if let Some((field, n)) = named {
            root.insert(field, link(&id(n)));
        }
        if let Some(n) = internal {
            root.insert("internal", value!([{ "link": (link(&id(n))) }]));
        }
        root.into()
    })
}

fn write(dialect: Dialect) -> impl Strategy<Value = Write> {
    let kept = if dialect.deletes { 0.8 } else { 1.0 };
    (
        0..DOCUMENTS,
        prop::bool::weighted(if dialect.scopes { 0.3 } else { 0.0 }),
        maybe(kept, document(dialect)),
    )
        .prop_map(|(document, user, content)| Write {
            document,
            scope: if user { Scope::User } else { Scope::Space },
            content,
        })
}

/// Where links have schemas, roots have none: what a schema combined with a link's selects need not be within what the
/// link's alone does (TRV §8, row 12), so that there the order of the walk decides what is covered (TRV-303).
fn root_schema(dialect: Dialect) -> BoxedStrategy<Value> {
    match dialect.link_schemas {
        true => Just(value!(true)).boxed(),
        false => schema().boxed(),
    }
}

/// Schemas without `allOf`: only there does one document decide what another one leads to, and a refresh does not
/// walk the other one again (ENG-1012).
fn schema() -> impl Strategy<Value = Value> {
    let node = value!({
        "type": ["object", "array", "number"],
        "additionalProperties": { "$ref": "#/$defs/N" },
        "items": { "$ref": "#/$defs/N" }
    });
    let objects = value!({ "type": "object", "additionalProperties": { "$ref": "#/$defs/N" } });
    let recursive = |node: Value| value!({ "$ref": "#/$defs/N", "$defs": { "N": node } });
    prop_oneof![
        4 => Just(value!(true)),
        2 => Just(recursive(objects)),
        2 => Just(recursive(node)),
        3 => Just(value!({ "type": "object", "properties": { "a": true, "b": { "type": "object" } } })),
        1 => Just(value!({ "type": "array", "items": { "type": ["object", "array"] } })),
        1 => Just(value!({ "type": "object", "properties": { "a": { "asCell": ["cell"], "type": "object" } } })),
        2 => Just(value!({ "anyOf": [
            { "type": "array", "items": true },
            { "type": "object", "properties": { "a": { "type": "array", "items": true } }, "required": ["a"] },
            { "type": "object", "properties": { "b": true } }
        ] })),
        1 => Just(value!({ "oneOf": [{ "type": "object", "required": ["c"] }, { "type": "array", "items": true }] })),
    ]
}

/// Schemas of links, which combine with each other without loss: where an element's link combines to `false`, a refresh
/// follows one link more (ENG-1020) than the walk did on the way there (TRV-508).
fn link_schema() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(value!({ "type": "object", "properties": { "a": true } })),
        1 => Just(value!({ "type": "object" })),
        1 => Just(value!({ "type": "array", "items": true })),
        1 => Just(value!(true)),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    dialect().prop_flat_map(|dialect| {
        let first = move |scope: Scope, present: f64| {
            let contents = prop::collection::vec(maybe(present, document(dialect)), DOCUMENTS);
            contents.prop_map(move |contents| {
                let writes = contents.into_iter().enumerate().map(|(document, content)| Write {
                    document,
                    scope,
                    content,
                });
                writes.filter(|write| write.content.is_some()).collect::<Vec<_>>()
            })
        };
        let root = || (0..DOCUMENTS, root_schema(dialect));
        let step = prop_oneof![
            12 => prop::collection::vec(write(dialect), 1..3).prop_map(Step::Commit),
            1 => (0..DOCUMENTS).prop_map(Step::Elsewhere),
            1 => root().prop_map(|(n, schema)| Step::Extend(n, schema)),
        ];
        (
            first(Scope::Space, if dialect.deletes { 0.7 } else { 1.0 }),
            first(Scope::User, if dialect.scopes { 0.5 } else { 0.0 }),
            root(),
            prop::collection::vec(step, 2..9),
        )
            .prop_map(|(mut initial, scoped, root, steps)| {
                initial.extend(scoped);
                Case { initial, root, steps }
            })
    })
}

/// What a graph or a client holds: instances with the seq they were last written at and whether they are there.
type Held = BTreeMap<InstanceId, (u64, bool)>;

fn entry(snapshot: &memory_engine::query::Snapshot) -> (InstanceId, (u64, bool)) {
    let instance = InstanceId::new(snapshot.id.clone(), snapshot.scope_key.clone());
    (instance, (snapshot.seq.0, snapshot.document.is_some()))
}

fn held(graph: &TrackedGraph) -> Held {
    graph.snapshots().map(|snapshot| entry(&snapshot)).collect()
}

/// What is there. A document that was deleted stays in a graph until something else changes, while a fresh evaluation
/// does not meet it (ENG-1026).
fn present(held: &Held) -> Held {
    let there = held.iter().filter(|(_, (_, present))| *present);
    there
        .map(|(instance, state)| (instance.clone(), *state))
        .collect()
}

/// One store for many cases, each with documents of its own.
struct World {
    store: Store,
    cases: u64,
    refreshes: u64,
    evaluations: u64,
}

impl World {
    fn id(&self, n: usize) -> String {
        format!("of:{}-{n}", self.cases)
    }

    /// The same value with the ids of this case.
    fn own(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => match text.as_str().and_then(|text| text.strip_prefix("of:")) {
                Some(n) => Value::from(format!("of:{}-{n}", self.cases)),
                None => value.clone(),
            },
            Value::Array(array) => array
                .elements()
                .map(|(_, element)| self.own(element))
                .collect::<Vec<_>>()
                .into(),
            Value::Object(object) => {
                let members = object.iter().map(|(key, member)| (key.clone(), self.own(member)));
                Value::Object(members.collect::<Object>())
            }
            other => other.clone(),
        }
    }

    fn commit(&mut self, writes: &[Write]) -> FxHashSet<InstanceId> {
        if writes.is_empty() {
            return FxHashSet::default();
        }
        let ids: Vec<String> = writes.iter().map(|write| self.id(write.document)).collect();
        let contents = writes
            .iter()
            .map(|write| write.content.as_ref().map(|content| self.own(content)));
        let writes: Vec<(&str, Scope, Option<Value>)> = ids
            .iter()
            .zip(writes)
            .zip(contents)
            .map(|((id, write), content)| (id.as_str(), write.scope, content))
            .collect();
        self.store.commit("alice", &writes)
    }

    fn asked(&self, roots: &[(usize, Value)]) -> GraphQuery {
        let ids: Vec<String> = roots.iter().map(|(n, _)| self.id(*n)).collect();
        let schemas = roots.iter().map(|(_, schema)| schema.clone());
        query(&ids.iter().map(String::as_str).zip(schemas).collect::<Vec<_>>())
    }

    fn track(&self, roots: &[(usize, Value)]) -> TrackedGraph {
        self.store.track(&self.asked(roots))
    }
}

fn refreshes_equal_fresh(case: Case, world: &mut World) -> TestCaseResult {
    world.cases += 1;
    world.commit(&case.initial);
    let mut roots = vec![case.root];
    let mut graph = world.track(&roots);
    let mut client = held(&graph);
    for step in case.steps {
        let mut learns_all = true;
        match step {
            Step::Commit(writes) => {
                let dirty = world.commit(&writes);
                learns_all = !dirty.iter().any(|instance| graph.awaits(instance));
                let before = graph.work();
                if let Some(changes) = graph.refresh(world.store.engine.reader(), &dirty).unwrap() {
                    client.extend(changes.snapshots.iter().map(entry));
                    for instance in &changes.unreached {
                        prop_assert!(client.remove(instance).is_some(), "{:?} was not held", instance);
                    }
                    world.refreshes += 1;
                    world.evaluations += graph.work().evaluations - before.evaluations;
                }
            }
            Step::Elsewhere(n) => {
                let content = Some(value!({ "value": (n as f64) }));
                let id = world.id(n);
                let dirty = world.store.commit("bob", &[(id.as_str(), Scope::User, content)]);
                prop_assert!(
                    graph
                        .refresh(world.store.engine.reader(), &dirty)
                        .unwrap()
                        .is_none()
                );
            }
            Step::Extend(n, schema) => {
                let root = (n, schema);
                let extended = graph
                    .extend(
                        world.store.engine.reader(),
                        &world.asked(std::slice::from_ref(&root)),
                    )
                    .unwrap();
                client.extend(extended.iter().map(entry));
                roots.push(root);
            }
        }
        let fresh = world.track(&roots);
        let (now, expected) = (present(&held(&graph)), present(&held(&fresh)));
        prop_assert_eq!(&client, &held(&graph));
        if learns_all {
            prop_assert_eq!(&now, &expected);
        } else {
            for (instance, state) in &now {
                prop_assert_eq!(expected.get(instance), Some(state), "{:?}", instance);
            }
            graph = fresh;
            client = held(&graph);
        }
    }
    Ok(())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}"))
    })
}

#[test]
fn a_refreshed_graph_equals_a_fresh_one() {
    let from = setting("LONG_FROM", 0);
    let known = include_str!("../corpus/engine-tracked-graphs.seeds")
        .lines()
        .map(str::trim);
    let known = known
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.parse().expect("a seed is a number"));
    let strategy = case();
    let (mut cases, mut refreshes, mut evaluations) = (0, 0, 0);
    for seed in known.chain(from..from + setting("LONG_COUNT", SMOKE)) {
        let config = Config {
            cases: CASES_A_SEED,
            failure_persistence: None,
            max_shrink_iters: 20_000,
            rng_seed: RngSeed::Fixed(seed),
            ..Config::default()
        };
        let world = RefCell::new(World {
            store: Store::new(),
            cases: 0,
            refreshes: 0,
            evaluations: 0,
        });
        let check = |case| refreshes_equal_fresh(case, &mut world.borrow_mut());
        if let Err(failure) = TestRunner::new(config).run(&strategy, check) {
            panic!("{NAME}: seed {seed}: {failure}");
        }
        let world = world.into_inner();
        cases += world.cases;
        refreshes += world.refreshes;
        evaluations += world.evaluations;
    }
    println!("{NAME}: {cases} cases, {refreshes} refreshes, {evaluations} of them by a whole evaluation");
}
