//! A serving runtime: every run sealed into a wave, fanned out per demanded instance.

mod lunch_poll;
mod serving_bench;
mod store_double;

use memory_wire::equality::value_equal;
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, Value, value};
use runner::entity_derivation::entity_for;
use runner::error::RunnerError;
use runner::link::Link;
use runner::pattern::{GraphBuilder, Pattern, PatternGraph, PatternIdentity, fields};
use runner::piece;
use runner::scheduler::ServedFailure;
use runner::seal::refusal;
use runner::transaction::{Acting, RunKind};

use lunch_poll::LunchPoll;
use serving_bench::{Bench, bench, who};
use store_double::StoreDouble;

const ALICE: &str = "did:key:z6MkAlice";
const BOB: &str = "did:key:z6MkBob";

struct Poll {
    bench: Bench,
    root: Link,
}

fn poll(demanders: &[ScopeIdentity]) -> Poll {
    let store = StoreDouble::default();
    let bench = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("poll")), Scope::Space);
    bench.start(&LunchPoll, &root);
    bench.quiesce();
    bench.demand(&LunchPoll, &root, demanders);
    bench.quiesce();
    bench.runtime.scheduler().clear_run_trace();
    Poll { bench, root }
}

impl Poll {
    fn link(&self, name: &str) -> Link {
        let links = piece::derived_links(&LunchPoll.graph(), &self.root);
        let found = links
            .internals
            .into_iter()
            .find(|(cause, _)| cause.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}")).1
    }

    fn id(&self, name: &str) -> EntityId {
        self.link(name).id
    }

    fn value(&self, name: &str, key: &ScopeKey) -> Value {
        self.bench.store.value(key, &self.id(name))
    }

    fn fire(&self, stream: &str, pair: &ScopeIdentity, id: &str, payload: Value) {
        self.bench.fire(&self.link(stream), pair, id, payload);
    }

    /// The runs since the trace was cleared, as `name@instance`.
    fn trace(&self) -> Vec<String> {
        let runs = self.bench.runtime.scheduler().run_trace();
        let text = |r: &runner::scheduler::RunRecord| {
            let name = r.action_id.split(':').nth(2).unwrap_or(&r.action_id).to_owned();
            match (&r.instance, &r.event_id) {
                (Some(key), _) => format!("{name}@{key}"),
                (None, Some(event)) => format!("{name}!{event}"),
                (None, None) => name,
            }
        };
        runs.iter().map(text).collect()
    }
}

fn user(pair: &ScopeIdentity) -> ScopeKey {
    ScopeKey::resolve(Scope::User, pair).expect("a user")
}

fn session(pair: &ScopeIdentity) -> ScopeKey {
    ScopeKey::resolve(Scope::Session, pair).expect("a session")
}

#[track_caller]
fn assert_value(got: &Value, expected: Value) {
    assert!(value_equal(got, &expected), "got {got:?}, expected {expected:?}");
}

/// RUN-543, 544: probe, narrow, and one run per demanded instance in one pass; sessions where they are needed.
#[test]
fn run_544_probe_narrows_and_every_instance_runs_in_one_pass() {
    let (a1, a2, b1) = (who(ALICE, "s1"), who(ALICE, "s2"), who(BOB, "s1"));
    let store = StoreDouble::default();
    let bench = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("poll")), Scope::Space);
    bench.start(&LunchPoll, &root);
    bench.quiesce();
    bench.runtime.scheduler().clear_run_trace();
    bench.demand(&LunchPoll, &root, &[b1.clone(), a2.clone(), a1.clone()]);
    let poll = Poll { bench, root };
    poll.bench.settle();
    let runs = poll.trace();
    let of = |name: &str| {
        runs.iter()
            .filter(|r| r.starts_with(name))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(of("tally"), ["tally@space"], "{runs:?}");
    assert_eq!(
        of("standing"),
        ["standing@space".to_owned(), format!("standing@{}", user(&b1))],
        "{runs:?}"
    );
    assert_eq!(
        of("preview"),
        [
            "preview@space".to_owned(),
            format!("preview@{}", session(&a2)),
            // Bob's instance first ran at `user`, as it was not yet known to be session-deep for him.
            format!("preview@{}", user(&b1)),
        ],
        "{runs:?}"
    );
    poll.bench.commit_wave().expect("a wave");
    assert_value(&poll.value("standing", &user(&a1)), value!("no vote"));
    assert_value(&poll.value("standing", &user(&b1)), value!("no vote"));
    for pair in [&a1, &a2, &b1] {
        assert_value(&poll.value("preview", &session(pair)), value!(""));
    }
}

/// The whole of it: handlers act as who fired, derivations run for who looks, and nobody gets anybody else's.
#[test]
fn lunch_poll_serves_everybody_their_own() {
    let (alice, bob) = (who(ALICE, "s1"), who(BOB, "s1"));
    let poll = poll(&[alice.clone(), bob.clone()]);
    poll.fire("addOption", &alice, "e1", value!({ "title": "Pizza" }));
    poll.fire("addOption", &bob, "e2", value!({ "title": "Ramen" }));
    poll.fire("vote", &alice, "e3", value!({ "option": "Ramen" }));
    poll.fire("vote", &bob, "e4", value!({ "option": "Pizza" }));
    poll.fire("type", &bob, "e5", value!({ "text": "su" }));
    poll.bench.quiesce();
    assert!(
        poll.bench.host.failures().is_empty(),
        "{:?}",
        poll.bench.host.failures()
    );
    let space = ScopeKey::space();
    assert_value(
        &poll.value("tally", &space),
        value!([{ "option": "Pizza", "votes": 1.0 }, { "option": "Ramen", "votes": 1.0 }]),
    );
    assert_value(&poll.value("myVote", &user(&alice)), value!("Ramen"));
    assert_value(&poll.value("myVote", &user(&bob)), value!("Pizza"));
    assert_value(&poll.value("standing", &user(&alice)), value!("Ramen has 1"));
    assert_value(&poll.value("standing", &user(&bob)), value!("Pizza has 1"));
    assert_value(&poll.value("preview", &session(&bob)), value!("SU"));
    assert_value(&poll.value("preview", &session(&alice)), value!(""));
    // Nothing of anybody's is under the service's own identity, and nothing else is scoped.
    let service = poll.bench.runtime.storage().identity();
    for (key, id) in poll.bench.store.instances() {
        let key = ScopeKey::parse(&key).expect("canonical");
        assert!(
            key == space || key.applicable_to(&alice) || key.applicable_to(&bob),
            "{key} of {id}"
        );
        assert!(key == space || !key.applicable_to(&service), "{key} of {id}");
    }
}

/// RUN-545: a change of one user's document runs that user's instance alone.
#[test]
fn run_545_a_users_change_runs_that_users_instance_alone() {
    let (alice, bob) = (who(ALICE, "s1"), who(BOB, "s1"));
    let poll = poll(&[alice.clone(), bob.clone()]);
    poll.fire("type", &bob, "e1", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench.settle();
    assert_eq!(
        poll.trace(),
        ["type!e1".to_owned(), format!("preview@{}", session(&bob))]
    );
}

/// RUN-605: a derivation is recorded for whom it discovered to depend on, a handler for who fired.
#[test]
fn run_605_attribution_follows_the_discovered_scope() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    poll.fire("addOption", &alice, "e0", value!({ "title": "Pizza" }));
    poll.fire("vote", &alice, "e1", value!({ "option": "Pizza" }));
    poll.fire("type", &alice, "e2", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench.settle();
    let actors = poll.bench.host.actors();
    let of = |name: &str| {
        actors
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .unwrap_or_else(|| panic!("no {name} in {actors:?}"))
            .1
            .clone()
    };
    let user = Acting {
        user: alice.principal.clone(),
        session: None,
    };
    let pair = Acting {
        user: alice.principal.clone(),
        session: alice.session_id.clone(),
    };
    assert_eq!(of("tally"), Acting::default());
    assert_eq!(of("standing"), user);
    assert_eq!(of("preview"), pair);
    assert_eq!(of("vote"), pair);
}

/// RUN-557: the error is the consequence; nothing else of the run remains.
#[test]
fn run_557_a_refusing_handler_reports_its_error() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    poll.fire("addOption", &alice, "e1", value!({ "title": "" }));
    poll.bench.drain();
    poll.bench.settle();
    let failures = poll.bench.host.failures();
    assert_eq!(failures.len(), 1);
    assert_eq!(
        failures[0].1,
        ServedFailure::Error("an option needs a title".to_owned())
    );
    assert!(
        poll.bench.host.wave().is_empty(),
        "not even the mark: that is the host's notice to write"
    );
}

/// RUN-574: an actor without a session cannot reach a session's documents; the service is never put in its place.
#[test]
fn run_574_a_sessionless_actor_fails_at_session_scope() {
    let nobody = ScopeIdentity::user(ALICE);
    let poll = poll(&[who(ALICE, "s1")]);
    poll.fire("type", &nobody, "e1", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench.settle();
    let failures = poll.bench.host.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    let ServedFailure::Error(text) = &failures[0].1 else {
        panic!("{failures:?}")
    };
    assert!(text.contains("session id"), "{text}");
}

/// RUN-548: what nobody with an identity demands runs as nobody; reaching for a scope, it is withdrawn, and runs once
/// somebody arrives.
#[test]
fn run_548_undemanded_narrowing_is_withdrawn_until_somebody_comes() {
    let poll = poll(&[]);
    poll.fire("addOption", &who(ALICE, "s1"), "e1", value!({ "title": "Pizza" }));
    // The actor of a queued event is a demander for as long as it is queued.
    poll.bench.quiesce();
    let none = Value::Undefined;
    assert_value(&poll.value("standing", &ScopeKey::space()), none.clone());
    assert_value(&poll.value("standing", &user(&who(BOB, "s1"))), none);
    poll.bench.demand(&LunchPoll, &poll.root, &[who(BOB, "s1")]);
    poll.bench.quiesce();
    assert_value(&poll.value("standing", &user(&who(BOB, "s1"))), value!("no vote"));
    let service = poll.bench.runtime.storage().identity();
    assert!(poll.bench.store.instances().iter().all(|(key, _)| {
        let key = ScopeKey::parse(key).expect("canonical");
        key == ScopeKey::space() || !key.applicable_to(&service)
    }));
}

/// RUN-546: an arriving session gets its instances; those that are current do not run again.
#[test]
fn run_546_arrival_runs_only_what_is_not_current() {
    let (alice, bob) = (who(ALICE, "s1"), who(BOB, "s1"));
    let poll = poll(std::slice::from_ref(&alice));
    poll.bench.demand(&LunchPoll, &poll.root, &[alice, bob.clone()]);
    poll.bench.settle();
    let mut runs = poll.trace();
    runs.sort();
    assert_eq!(
        runs,
        [
            format!("preview@{}", user(&bob)),
            format!("standing@{}", user(&bob))
        ]
    );
}

/// RUN-544: a refused seal re-arms exactly that instance.
#[test]
fn run_544_a_refused_seal_runs_that_instance_again() {
    let (alice, bob) = (who(ALICE, "s1"), who(BOB, "s1"));
    let poll = poll(&[alice.clone(), bob.clone()]);
    poll.fire("type", &bob, "e1", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench
        .host
        .refuse_next_seal(RunKind::Derivation, refusal::WAVE_CLOSED);
    poll.bench.settle();
    let again = format!("preview@{}", session(&bob));
    assert_eq!(poll.trace(), ["type!e1".to_owned(), again.clone(), again]);
    poll.bench.quiesce();
    assert_value(&poll.value("preview", &session(&bob)), value!("X"));
}

/// A withdrawn wave takes its layers along: what was visible before is visible again.
#[test]
fn an_abandoned_wave_leaves_nothing_behind() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    poll.fire("type", &alice, "e1", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench.settle();
    assert!(poll.bench.host.wave().iter().any(|(name, _)| name == "type"));
    let seq = poll.bench.store.server_seq();
    poll.bench.abandon_wave();
    assert_eq!(poll.bench.store.server_seq(), seq);
    let replica = poll.bench.runtime.storage().replica(&poll.bench.store.space());
    let draft = replica.get_document(&poll.id("draft"), Scope::Session, Some(&alice));
    assert!(draft.is_none_or(|d| d.member("value").is_none()));
}

/// One run per event and per derivation seals under its own stamp.
#[test]
fn run_602_kinds_of_stamps() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    poll.fire("type", &alice, "e1", value!({ "text": "x" }));
    poll.bench.drain();
    poll.bench.settle();
    let kinds: Vec<(RunKind, bool)> = poll
        .bench
        .runtime
        .scheduler()
        .run_trace()
        .iter()
        .map(|r| (r.kind, r.event_id.is_some()))
        .collect();
    assert_eq!(
        kinds,
        [(RunKind::EventHandler, true), (RunKind::Derivation, false)]
    );
}

/// RUN-553: an event for a piece that does not run here starts it from what the store holds, and is then handled.
#[test]
fn run_553_an_event_starts_its_piece() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    poll.bench.runtime.stop(&poll.root);
    assert!(!poll.bench.runtime.is_running(&poll.root));
    poll.fire("addOption", &alice, "e1", value!({ "title": "Pizza" }));
    poll.bench.quiesce();
    assert!(poll.bench.runtime.is_running(&poll.root));
    assert_value(&poll.value("options", &ScopeKey::space()), value!(["Pizza"]));
}

/// RUN-553, SS-833: a stream of no piece is a drop, not a wait.
#[test]
fn run_553_an_event_nobody_can_handle_is_dropped() {
    let alice = who(ALICE, "s1");
    let poll = poll(std::slice::from_ref(&alice));
    let nowhere = Link::to_document(
        poll.bench.store.space(),
        EntityId::from("of:nowhere"),
        Scope::Space,
    );
    poll.bench.fire(&nowhere, &alice, "e1", value!({}));
    poll.bench.drain();
    poll.bench.settle();
    let failures = poll.bench.host.failures();
    assert!(
        matches!(&failures[..], [(_, ServedFailure::Dropped(_))]),
        "{failures:?}"
    );
}

/// RUN-553, SS-816: a piece whose program is not known here is waited for.
#[test]
fn run_553_an_event_of_an_unknown_program_is_deferred() {
    let alice = who(ALICE, "s1");
    let store = StoreDouble::default();
    let first = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("poll")), Scope::Space);
    first.start(&LunchPoll, &root);
    first.quiesce();
    first.runtime.dispose();
    let bench = bench(&store);
    let poll = Poll { bench, root };
    poll.fire("addOption", &alice, "e1", value!({ "title": "Pizza" }));
    poll.bench.drain();
    poll.bench.settle();
    let failures = poll.bench.host.failures();
    assert!(
        matches!(&failures[..], [(_, ServedFailure::Deferred(_))]),
        "{failures:?}"
    );
}

/// A second server takes over from what the first one stored, and computes what is demanded.
#[test]
fn a_fresh_runtime_goes_on_where_another_stopped() {
    let (alice, bob) = (who(ALICE, "s1"), who(BOB, "s1"));
    let first = poll(&[alice.clone(), bob.clone()]);
    first.fire("addOption", &alice, "e1", value!({ "title": "Pizza" }));
    first.fire("vote", &bob, "e2", value!({ "option": "Pizza" }));
    first.bench.quiesce();
    first.bench.runtime.dispose();
    let bench = bench(&first.bench.store);
    bench.runtime.register_pattern(&LunchPoll);
    let started = bench.runtime.ensure_piece_running(&first.root);
    bench.settle();
    assert!(matches!(
        started.peek(),
        Some(Ok(runner::runtime::StructureLoad::Started))
    ));
    bench.demand(&LunchPoll, &first.root, &[alice.clone(), bob.clone()]);
    let second = Poll {
        bench,
        root: first.root.clone(),
    };
    second.fire("vote", &alice, "e3", value!({ "option": "Pizza" }));
    second.bench.quiesce();
    assert_value(&second.value("standing", &user(&alice)), value!("Pizza has 2"));
    assert_value(&second.value("standing", &user(&bob)), value!("Pizza has 2"));
}

/// A piece whose handler sends on: what is asked for is counted by another handler.
struct Relay;

impl Pattern for Relay {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("runner-tests", "relay", "1")
    }

    fn graph(&self) -> PatternGraph {
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
        let seen = g.state("seen", value!({ "type": "number", "default": 0 }));
        let by = g.scoped_state("by", Scope::User, value!({ "type": "number", "default": 0 }));
        let count = g.handler(
            "count",
            fields([("seen", (&seen).into()), ("by", (&by).into())]),
            value!({ "type": "object" }),
            |_, state, _| {
                state.cell("seen")?.increment(1.0)?;
                state.cell("by")?.increment(1.0)
            },
        );
        let ask = g.handler(
            "ask",
            fields([("next", (&count).into())]),
            value!({ "type": "object" }),
            |cx, state, event| {
                cx.send(&state.cell("next")?, event.clone())?;
                match event.member("fail") {
                    Some(_) => Err(RunnerError::Refused {
                        reason: "asked to fail".to_owned(),
                    }),
                    None => Ok(()),
                }
            },
        );
        g.result(
            value!({ "type": "object" }),
            fields([("count", (&count).into()), ("ask", (&ask).into())]),
        )
    }
}

/// RUN-571, RUN-572: an emitted event is an entry of the emitter's own transaction, inherits its actor, and its copy is
/// handled in the same wave; what a failing handler sent dies with it.
#[test]
fn run_572_an_emission_is_handled_in_its_own_wave_as_the_same_actor() {
    let alice = who(ALICE, "s1");
    let store = StoreDouble::default();
    let bench = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("relay")), Scope::Space);
    bench.start(&Relay, &root);
    bench.quiesce();
    let links = piece::derived_links(&Relay.graph(), &root);
    let link = |name: &str| {
        links
            .internals
            .iter()
            .find(|(c, _)| c.as_str() == Some(name))
            .expect("an internal")
            .1
            .clone()
    };
    bench.fire(&link("ask"), &alice, "e1", value!({}));
    bench.drain();
    bench.settle();
    let names: Vec<String> = bench.host.wave().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["ask", "count"], "one wave");
    bench.commit_wave();
    assert_value(&store.value(&ScopeKey::space(), &link("seen").id), value!(1.0));
    assert_value(&store.value(&user(&alice), &link("by").id), value!(1.0));
    // The durable entry names the actor, and its mark is the host's to write (SS-734).
    let entries: Vec<Value> = store
        .pending_entries()
        .into_iter()
        .map(|(_, _, entry)| entry)
        .collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(
        entries[0].at_path(&["firedAt", "user"]).and_then(Value::as_str),
        Some(ALICE)
    );
    assert_eq!(
        entries[0]
            .at_path(&["firedAt", "session"])
            .and_then(Value::as_str),
        Some("s1")
    );

    bench.fire(&link("ask"), &alice, "e2", value!({ "fail": true }));
    bench.runtime.scheduler().clear_run_trace();
    bench.drain();
    bench.settle();
    let runs: Vec<String> = bench
        .runtime
        .scheduler()
        .run_trace()
        .iter()
        .filter_map(|r| r.event_id.as_ref())
        .map(|e| e.to_string())
        .collect();
    assert!(runs.contains(&"e2".to_owned()), "{runs:?}");
    bench.commit_wave();
    let pending: Vec<Value> = store
        .pending_entries()
        .iter()
        .filter_map(|(_, _, e)| e.member("eventId").cloned())
        .collect();
    // The unmarked copy was drained, as SS-824 says; of e2 there is its own entry and nothing that it sent.
    assert_value(&Value::from(pending), value!(["e2"]));
}
