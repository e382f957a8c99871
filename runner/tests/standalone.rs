//! A whole runtime whose runs commit to the store: no host, no overlay.

mod lunch_poll;
mod store_double;

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, ready};
use memory_wire::equality::value_equal;
use memory_wire::error::{ErrorName, WireError};
use memory_wire::{ScopeKey, Value, value};
use runner::ambient::ManualClock;
use runner::entity_derivation::entity_for;
use runner::link::Link;
use runner::runtime::{Posture, Runtime, RuntimeOptions, Timer, WakeSignal};
use runner::scheduler::{EventOutcome, SendOptions, Step};
use runner::{pattern::Pattern, piece};

use lunch_poll::LunchPoll;
use store_double::StoreDouble;

/// Time that passes when somebody waits for it.
struct VirtualTime(ManualClock);

impl Timer for VirtualTime {
    fn sleep_until(&self, at_ms: i64) -> LocalBoxFuture<'static, ()> {
        use runner::ambient::Clock;
        self.0.advance((at_ms - self.0.now_ms()).max(0));
        Box::pin(ready(()))
    }
}

struct Bench {
    store: StoreDouble,
    clock: ManualClock,
    runtime: Runtime,
}

fn bench(store: &StoreDouble, name: &str) -> Bench {
    let clock = ManualClock::at(1_700_000_000_000);
    let storage = store.storage(name, &clock, |_| {});
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Standalone,
        storage,
        signal: WakeSignal::new(),
        timer: Rc::new(VirtualTime(clock.clone())),
    });
    Bench {
        store: store.clone(),
        clock,
        runtime,
    }
}

impl Bench {
    /// Runs both sides until neither moves.
    fn settle(&self) {
        loop {
            let step = self.runtime.step();
            let served = self.store.serve();
            match step {
                Step::Quiet { wake_at: Some(at) } if !served => {
                    use runner::ambient::Clock;
                    self.clock.advance((at - self.clock.now_ms()).max(1));
                }
                Step::Quiet { wake_at: None } if !served => return,
                Step::Quiet { .. } | Step::Yielded => {}
            }
        }
    }

    fn piece(&self) -> Link {
        Link::to_document(
            self.store.space(),
            entity_for(Value::from("poll")),
            memory_wire::Scope::Space,
        )
    }

    fn start(&self) -> Link {
        let root = self.piece();
        let tx = self.runtime.edit();
        self.runtime
            .run(&tx, &LunchPoll, value!({}), &root)
            .expect("the piece starts");
        assert!(matches!(tx.commit().peek(), None | Some(Ok(()))));
        root
    }

    fn send(&self, root: &Link, stream: &str, event: Value) -> Rc<RefCell<Option<EventOutcome>>> {
        let outcome = Rc::new(RefCell::new(None));
        let told = Rc::clone(&outcome);
        let link = Link {
            path: vec![stream.into()],
            ..root.clone()
        };
        let options = SendOptions {
            on_outcome: Some(Box::new(move |o: &EventOutcome| {
                *told.borrow_mut() = Some(o.clone())
            })),
            ..SendOptions::default()
        };
        self.runtime.send(&link, event, options).expect("sent");
        outcome
    }

    #[track_caller]
    fn assert_shows(&self, root: &Link, field: &str, expected: Value) {
        let shown = Rc::new(RefCell::new(Value::Undefined));
        let seen = Rc::clone(&shown);
        let cell = self.runtime.cell(root.clone()).key(field);
        let sink = cell.sink(move |view| {
            *seen.borrow_mut() = view.as_ref().map(|v| v.to_value()).unwrap_or(Value::Undefined);
            None
        });
        self.settle();
        drop(sink);
        let shown = shown.borrow().clone();
        assert!(
            value_equal(&shown, &expected),
            "{field}: got {shown:?}, expected {expected:?}"
        );
    }
}

#[test]
fn lunch_poll_runs_alone() {
    let store = StoreDouble::default();
    let bench = bench(&store, "alice");
    let root = bench.start();
    bench.settle();
    for title in ["Pizza", "Ramen"] {
        bench.send(&root, "addOption", value!({ "title": title }));
    }
    let vote = bench.send(&root, "vote", value!({ "option": "Ramen" }));
    bench.send(&root, "type", value!({ "text": "su" }));
    bench.settle();
    assert!(
        matches!(*vote.borrow(), Some(EventOutcome::Handled)),
        "{:?}",
        vote.borrow()
    );
    bench.assert_shows(
        &root,
        "tally",
        value!([{ "option": "Pizza", "votes": 0.0 }, { "option": "Ramen", "votes": 1.0 }]),
    );
    bench.assert_shows(&root, "standing", value!("Ramen has 1"));
    bench.assert_shows(&root, "preview", value!("SU"));
    // It is all in the store: the shared tally once, what is mine under my key.
    let links = piece::derived_links(&LunchPoll.graph(), &root);
    let id = |name: &str| {
        let found = links
            .internals
            .iter()
            .find(|(cause, _)| cause.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}")).1.id.clone()
    };
    let me = bench.runtime.storage().identity();
    let user = ScopeKey::resolve(memory_wire::Scope::User, &me).expect("signed in");
    let session = ScopeKey::resolve(memory_wire::Scope::Session, &me).expect("signed in");
    assert_eq!(store.value(&user, &id("myVote")).as_str(), Some("Ramen"));
    assert_eq!(store.value(&user, &id("standing")).as_str(), Some("Ramen has 1"));
    assert_eq!(store.value(&session, &id("draft")).as_str(), Some("su"));
    assert_eq!(store.value(&session, &id("preview")).as_str(), Some("SU"));
}

#[test]
fn a_refused_event_leaves_nothing_and_says_why() {
    let store = StoreDouble::default();
    let bench = bench(&store, "alice");
    let root = bench.start();
    bench.settle();
    let before = store.server_seq();
    let outcome = bench.send(&root, "addOption", value!({ "title": "  " }));
    bench.settle();
    match &*outcome.borrow() {
        Some(EventOutcome::Failed(error)) => assert_eq!(error.message, "an option needs a title"),
        other => panic!("{other:?}"),
    };
    assert_eq!(store.server_seq(), before);
}

/// RUN-556: a stale basis is tried again until it stands.
#[test]
fn run_556_a_conflicted_event_is_retried_and_counts_once() {
    let store = StoreDouble::default();
    let bench = bench(&store, "alice");
    let root = bench.start();
    bench.settle();
    bench.send(&root, "addOption", value!({ "title": "Pizza" }));
    bench.settle();
    store.refuse_next(WireError::new(
        ErrorName::Conflict,
        "pending dependency not resolved: 1",
    ));
    let outcome = bench.send(&root, "vote", value!({ "option": "Pizza" }));
    bench.settle();
    assert!(
        matches!(*outcome.borrow(), Some(EventOutcome::Handled)),
        "{:?}",
        outcome.borrow()
    );
    bench.assert_shows(&root, "tally", value!([{ "option": "Pizza", "votes": 1.0 }]));
}

/// RUN-824: a piece that another runtime set up is started from what the store holds.
#[test]
fn run_828_a_second_runtime_resumes_the_piece() {
    let store = StoreDouble::default();
    let alice = bench(&store, "alice");
    let root = alice.start();
    alice.settle();
    alice.send(&root, "addOption", value!({ "title": "Pizza" }));
    alice.settle();
    alice.runtime.dispose();

    let bob = bench(&store, "bob");
    bob.runtime.register_pattern(&LunchPoll);
    let started = bob.runtime.ensure_piece_running(&root);
    bob.settle();
    assert_eq!(
        started.peek().and_then(Result::ok),
        Some(runner::runtime::StructureLoad::Started)
    );
    bob.send(&root, "vote", value!({ "option": "Pizza" }));
    bob.settle();
    bob.assert_shows(&root, "standing", value!("Pizza has 1"));
}

/// RUN-813: a piece whose stored pattern changes runs the new graph over the documents it has.
#[test]
fn run_813_a_stored_pattern_swap_replaces_the_graph() {
    use runner::pattern::{GraphBuilder, PatternGraph, PatternIdentity, fields};
    struct Greeting(&'static str);
    impl Pattern for Greeting {
        fn identity(&self) -> PatternIdentity {
            PatternIdentity::native("runner-tests", "greeting", self.0)
        }
        fn graph(&self) -> PatternGraph {
            let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
            let name = g.state("name", value!({ "type": "string", "default": "Ada" }));
            let word = self.0;
            let hello = g.derive(
                "hello",
                fields([("name", (&name).into())]),
                value!(true),
                move |_, arg| Ok(Value::from(format!("{word} {}", arg.text("name")?))),
            );
            let set = g.handler(
                "set",
                fields([("name", (&name).into())]),
                value!(true),
                |_, state, event| state.cell("name")?.set(event.clone()),
            );
            g.result(
                value!({ "type": "object" }),
                fields([("hello", (&hello).into()), ("set", (&set).into())]),
            )
        }
    }
    let store = StoreDouble::default();
    let alice = bench(&store, "alice");
    let root = alice.piece();
    let tx = alice.runtime.edit();
    alice
        .runtime
        .run(&tx, &Greeting("hello"), value!({}), &root)
        .expect("the piece starts");
    drop(tx.commit());
    alice.send(&root, "set", value!("Grace"));
    alice.assert_shows(&root, "hello", value!("hello Grace"));
    alice.runtime.register_pattern(&Greeting("good evening"));
    // Somebody else sets the piece up for the newer version.
    let bob = bench(&store, "bob");
    bob.runtime.register_pattern(&Greeting("hello"));
    let found = bob.runtime.ensure_piece_running(&root);
    bob.settle();
    assert!(found.is_settled());
    let tx = bob.runtime.edit();
    bob.runtime
        .run(&tx, &Greeting("good evening"), value!({}), &root)
        .expect("swapped");
    drop(tx.commit());
    bob.settle();
    alice.settle();
    alice.assert_shows(&root, "hello", value!("good evening Grace"));
    let hello = alice.runtime.scheduler().graph_snapshot();
    let derivations = hello
        .nodes
        .iter()
        .filter(|n| n.action_id.contains(":hello:"))
        .count();
    assert_eq!(derivations, 1, "one graph: {:?}", hello.nodes);
}

/// The embedder's way: one task drives, I/O wakes it, and `settled` returns when everything is durable.
#[tokio::test(flavor = "current_thread")]
async fn settled_waits_for_the_store() {
    let store = StoreDouble::default();
    let clock = ManualClock::at(1_700_000_000_000);
    let signal = WakeSignal::new();
    let wake = signal.wake();
    let storage = store.storage("alice", &clock, move |options| options.wake = wake);
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Standalone,
        storage,
        signal,
        timer: Rc::new(VirtualTime(clock.clone())),
    });
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async move {
            let peer = store.clone();
            let serving = tokio::task::spawn_local(async move {
                loop {
                    peer.serve();
                    tokio::task::yield_now().await;
                }
            });
            let root = Link::to_document(
                store.space(),
                entity_for(Value::from("poll")),
                memory_wire::Scope::Space,
            );
            let tx = runtime.edit();
            runtime
                .run(&tx, &LunchPoll, value!({}), &root)
                .expect("the piece starts");
            drop(tx.commit());
            let stream = Link {
                path: vec!["addOption".into()],
                ..root.clone()
            };
            runtime
                .send(&stream, value!({ "title": "Pizza" }), SendOptions::default())
                .expect("sent");
            let shown = runtime.cell(root.clone()).key("tally").pull();
            let shown = runtime.wait_on(shown).await.expect("readable").to_value();
            assert!(
                value_equal(&shown, &value!([{ "option": "Pizza", "votes": 0.0 }])),
                "{shown:?}"
            );
            runtime.settled().await;
            let links = piece::derived_links(&LunchPoll.graph(), &root);
            let options = links
                .internals
                .iter()
                .find(|(c, _)| c.as_str() == Some("options"))
                .expect("a state");
            assert!(value_equal(
                &store.value(&ScopeKey::space(), &options.1.id),
                &value!(["Pizza"])
            ));
            runtime.dispose();
            assert!(runtime.is_idle());
            serving.abort();
        })
        .await;
}

/// RUN-903: the output is the chosen branch's link; branches are not read to choose.
#[test]
fn run_903_choice_builtins_hand_on_links() {
    use runner::builtins::Builtin;
    use runner::pattern::{GraphBuilder, PatternGraph, PatternIdentity, fields};
    struct Chooser;
    impl Pattern for Chooser {
        fn identity(&self) -> PatternIdentity {
            PatternIdentity::native("runner-tests", "chooser", "1")
        }
        fn graph(&self) -> PatternGraph {
            let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
            let open = g.state("open", value!({ "type": "boolean", "default": true }));
            let yes = g.state("yes", value!({ "type": "string", "default": "Y" }));
            let no = g.state("no", value!({ "type": "string", "default": "N" }));
            let inputs = fields([
                ("condition", (&open).into()),
                ("ifTrue", (&yes).into()),
                ("ifFalse", (&no).into()),
            ]);
            let which = g.builtin("which", Builtin::IfElse, inputs, value!(true));
            let either = fields([("condition", (&no).into()), ("fallback", (&yes).into())]);
            let either = g.builtin("either", Builtin::Unless, either, value!(true));
            let both = fields([("condition", (&open).into()), ("value", (&yes).into())]);
            let both = g.builtin("both", Builtin::When, both, value!(true));
            let set = g.handler(
                "set",
                fields([("open", (&open).into())]),
                value!(true),
                |_, state, event| state.cell("open")?.set(event.clone()),
            );
            g.result(
                value!({ "type": "object" }),
                fields([
                    ("which", (&which).into()),
                    ("either", (&either).into()),
                    ("both", (&both).into()),
                    ("set", (&set).into()),
                ]),
            )
        }
    }
    let store = StoreDouble::default();
    let bench = bench(&store, "alice");
    let root = bench.piece();
    let tx = bench.runtime.edit();
    bench
        .runtime
        .run(&tx, &Chooser, value!({}), &root)
        .expect("the piece starts");
    drop(tx.commit());
    bench.settle();
    bench.assert_shows(&root, "which", value!("Y"));
    bench.assert_shows(&root, "either", value!("N"));
    bench.assert_shows(&root, "both", value!("Y"));
    bench.send(&root, "set", value!(false));
    bench.assert_shows(&root, "which", value!("N"));
    bench.assert_shows(&root, "both", value!(false));
}

/// RUN-540: while a required input is absent the body is not called and the output is `undefined`; its arrival runs it.
#[test]
fn run_540_an_unavailable_argument_keeps_the_body_from_running() {
    use runner::pattern::{GraphBuilder, PatternGraph, PatternIdentity, fields};
    struct Careful;
    impl Pattern for Careful {
        fn identity(&self) -> PatternIdentity {
            PatternIdentity::native("runner-tests", "careful", "1")
        }
        fn graph(&self) -> PatternGraph {
            let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
            let name = g.state("name", value!({ "type": "string" }));
            let hello = g.derive(
                "hello",
                fields([("name", (&name).into())]),
                value!(true),
                |_, arg| {
                    let name = arg.text("name")?;
                    assert!(!name.is_empty(), "called without its argument");
                    Ok(Value::from(format!("hello {name}")))
                },
            );
            g.require(&["name"]);
            let set = g.handler(
                "set",
                fields([("name", (&name).into())]),
                value!(true),
                |_, state, event| state.cell("name")?.set(event.clone()),
            );
            g.result(
                value!({ "type": "object" }),
                fields([("hello", (&hello).into()), ("set", (&set).into())]),
            )
        }
    }
    let store = StoreDouble::default();
    let bench = bench(&store, "alice");
    let root = bench.piece();
    let tx = bench.runtime.edit();
    bench
        .runtime
        .run(&tx, &Careful, value!({}), &root)
        .expect("the piece starts");
    drop(tx.commit());
    let told = Rc::new(RefCell::new(0));
    let tell = Rc::clone(&told);
    bench
        .runtime
        .scheduler()
        .set_error_observer(Rc::new(move |_, _| *tell.borrow_mut() += 1));
    bench.assert_shows(&root, "hello", Value::Undefined);
    bench.send(&root, "set", value!("Ada"));
    bench.assert_shows(&root, "hello", value!("hello Ada"));
    assert_eq!(*told.borrow(), 0, "an absent argument is no error");
}
