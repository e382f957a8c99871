//! Fan-out in one runtime shows everybody what a runtime of their own would show them, and what is right (I-13, I-14):
//! random graphs whose reads follow values, random events, one serving runtime for all against one per pair, and both
//! against plain arithmetic.

mod serving_bench;
mod store_double;

use memory_wire::equality::value_equal;
use memory_wire::{Scope, ScopeIdentity, ScopeKey, Value, value};
use proptest::prelude::*;
use runner::entity_derivation::entity_for;
use runner::link::Link;
use runner::pattern::{GraphBuilder, Pattern, PatternGraph, PatternIdentity, Place, Template, fields};
use runner::piece;

use serving_bench::{Bench, bench, who};
use store_double::StoreDouble;

/// State that events set: two shared, one per user, one per session.
const STATES: [(&str, Scope); 4] = [
    ("a", Scope::Space),
    ("b", Scope::Space),
    ("mine", Scope::User),
    ("here", Scope::Session),
];
/// Derivations of a graph.
const DERIVED: [&str; 3] = ["first", "second", "third"];

/// What one derivation does: adds `left`, and adds `right` only while `left` is odd.
#[derive(Clone, Copy, Debug)]
struct Step {
    left: usize,
    right: usize,
}

#[derive(Clone, Debug)]
struct Steps([Step; 3]);

impl Pattern for Steps {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("runner-tests", &format!("{:?}", self.0), "1")
    }

    fn graph(&self) -> PatternGraph {
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
        let number = || value!({ "type": "number", "default": 0 });
        let mut places: Vec<Place> = STATES
            .iter()
            .map(|(name, scope)| g.scoped_state(name, *scope, number()))
            .collect();
        for (name, place) in STATES.map(|(name, _)| name).into_iter().zip(places.clone()) {
            g.handler(
                &format!("set-{name}"),
                fields([("target", (&place).into())]),
                value!({ "type": "object" }),
                |_, state, event| {
                    state
                        .cell("target")?
                        .set(event.member("to").cloned().unwrap_or(Value::Undefined))
                },
            );
        }
        for (at, name) in DERIVED.iter().enumerate() {
            let pick = |n: usize| Template::from(&places[n % (STATES.len() + at)]);
            let inputs = fields([("left", pick(self.0[at].left)), ("right", pick(self.0[at].right))]);
            let derived = g.derive(name, inputs, value!(true), |_, arg| {
                let number = |name: &str| arg.value(name).map(|v| v.as_f64().unwrap_or(0.0));
                let left = number("left")?;
                let right = if left % 2.0 == 1.0 { number("right")? } else { 0.0 };
                Ok(Value::from(left + right))
            });
            places.push(derived);
        }
        let shown = DERIVED
            .iter()
            .zip(&places[STATES.len()..])
            .map(|(name, place)| (*name, Template::from(place)));
        g.result(value!({ "type": "object" }), Template::object(shown))
    }
}

#[derive(Clone, Debug)]
struct Event {
    pair: usize,
    state: usize,
    to: u8,
}

fn pairs() -> [ScopeIdentity; 4] {
    [
        who("did:key:a", "s1"),
        who("did:key:a", "s2"),
        who("did:key:b", "s1"),
        who("did:key:c", "s9"),
    ]
}

struct World {
    bench: Bench,
    pattern: Steps,
    root: Link,
}

fn world(pattern: &Steps, demanders: &[ScopeIdentity]) -> World {
    let store = StoreDouble::default();
    let bench = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("steps")), Scope::Space);
    bench.start(pattern, &root);
    bench.quiesce();
    bench.demand(pattern, &root, demanders);
    bench.quiesce();
    World {
        bench,
        pattern: pattern.clone(),
        root,
    }
}

impl World {
    fn fire(&self, number: usize, event: &Event) {
        let links = piece::derived_links(&self.pattern.graph(), &self.root);
        let name = format!("set-{}", STATES[event.state].0);
        let stream = links
            .internals
            .iter()
            .find(|(cause, _)| cause.as_str() == Some(&name))
            .expect("a stream");
        let payload = value!({ "to": (f64::from(event.to)) });
        self.bench
            .fire(&stream.1, &pairs()[event.pair], &format!("e{number}"), payload);
    }

    /// What `pair` sees of a derivation: the stored value, through the redirects that its identity resolves.
    fn shown(&self, name: &str, pair: &ScopeIdentity) -> Value {
        let links = piece::derived_links(&self.pattern.graph(), &self.root);
        let mut at = links
            .internals
            .iter()
            .find(|(c, _)| c.as_str() == Some(name))
            .expect("derived")
            .1
            .clone();
        for _ in 0..3 {
            let key = ScopeKey::resolve(at.scope, pair).expect("pairs are whole");
            let stored = self.bench.store.value(&key, &at.id);
            match Link::parse(&stored, &at) {
                Some(next) => at = next,
                None => return stored,
            }
        }
        panic!("{name}: more than two hops")
    }
}

/// The same without any machinery: what `pair` should see after `script`.
fn expected(pattern: &Steps, script: &[Event], pair: &ScopeIdentity) -> Vec<f64> {
    let mine = |event: &Event| {
        let (_, scope) = STATES[event.state];
        ScopeKey::resolve(scope, &pairs()[event.pair]) == ScopeKey::resolve(scope, pair)
    };
    let latest = |state: usize| {
        script
            .iter()
            .rev()
            .find(|e| e.state == state && mine(e))
            .map_or(0.0, |e| f64::from(e.to))
    };
    let mut values: Vec<f64> = (0..STATES.len()).map(latest).collect();
    for step in pattern.0 {
        let (left, right) = (
            values[step.left % values.len()],
            values[step.right % values.len()],
        );
        values.push(if left % 2.0 == 1.0 { left + right } else { left });
    }
    values.split_off(STATES.len())
}

fn steps() -> impl Strategy<Value = Steps> {
    // Scoped inputs come often: narrowing, ragged splits and changes at both depths are what this is about.
    let input = || prop_oneof![1 => 0usize..2, 2 => Just(2usize), 2 => Just(3usize), 2 => 4usize..7];
    let step = (input(), input()).prop_map(|(left, right)| Step { left, right });
    proptest::array::uniform3(step).prop_map(Steps)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let state = prop_oneof![1 => 0usize..2, 2 => Just(2usize), 2 => Just(3usize)];
    let to = prop_oneof![3 => Just(1u8), 3 => Just(3u8), 1 => Just(0u8), 1 => Just(2u8)];
    let event = (0usize..4, state, to).prop_map(|(pair, state, to)| Event { pair, state, to });
    proptest::collection::vec(event, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_runtime_for_all_shows_what_one_for_each_shows(pattern in steps(), script in events(), cut in 0usize..3) {
        let all = world(&pattern, &pairs());
        let each: Vec<World> = pairs().iter().map(|p| world(&pattern, std::slice::from_ref(p))).collect();
        for (number, event) in script.iter().enumerate() {
            all.fire(number, event);
            each.iter().for_each(|w| w.fire(number, event));
            // Sometimes several events share a wave, sometimes each has its own.
            if number % (cut + 1) == 0 {
                all.bench.quiesce();
                each.iter().for_each(|w| w.bench.quiesce());
            }
        }
        all.bench.quiesce();
        each.iter().for_each(|w| w.bench.quiesce());
        for (pair, own) in pairs().iter().zip(&each) {
            for (name, right) in DERIVED.iter().zip(expected(&pattern, &script, pair)) {
                let (here, there) = (all.shown(name, pair), own.shown(name, pair));
                prop_assert!(value_equal(&here, &there), "{name} for {pair:?}: together {here:?}, alone {there:?}");
                prop_assert!(value_equal(&here, &Value::from(right)), "{name} for {pair:?}: {here:?}, not {right}");
            }
        }
        // Nobody's instance exists but those of the pairs.
        for (key, id) in all.bench.store.instances() {
            let key = ScopeKey::parse(&key).expect("canonical");
            prop_assert!(pairs().iter().any(|p| key.applicable_to(p)), "{key} of {id}");
        }
    }
}
