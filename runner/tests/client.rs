//! A client beside a serving runtime: echoes at once, keeps nothing of its own, and shows the server's value when it
//! is here (RUN-700…706).

mod lunch_poll;
mod serving_bench;
mod store_double;

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::message::Operation;
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, Seq, Value, value};
use runner::ambient::ManualClock;
use runner::cell::Subscription;
use runner::entity_derivation::entity_for;
use runner::link::Link;
use runner::pattern::Pattern;
use runner::piece;
use runner::runtime::{Posture, Runtime, RuntimeOptions, StructureLoad, WakeSignal};
use runner::scheduler::{EventOutcome, SendOptions, Step};

use lunch_poll::LunchPoll;
use serving_bench::{Bench, VirtualTime, bench};
use store_double::{StoreDouble, Write};

struct Client {
    runtime: Runtime,
    clock: ManualClock,
    me: ScopeIdentity,
}

struct Pair {
    server: Bench,
    client: Client,
    root: Link,
}

type Told = Rc<RefCell<Option<EventOutcome>>>;
type Shown = Rc<RefCell<Vec<Value>>>;

fn pair() -> Pair {
    let store = StoreDouble::default();
    let server = bench(&store);
    let root = Link::to_document(store.space(), entity_for(Value::from("poll")), Scope::Space);
    server.start(&LunchPoll, &root);
    server.quiesce();
    let clock = ManualClock::at(1_700_000_000_000);
    let storage = store.storage("alice", &clock, |options| options.server_execution = true);
    let me = storage.identity();
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Client,
        storage,
        signal: WakeSignal::new(),
        timer: Rc::new(VirtualTime(clock.clone())),
    });
    runtime.register_pattern(&LunchPoll);
    server.demand(&LunchPoll, &root, std::slice::from_ref(&me));
    server.quiesce();
    let client = Client { runtime, clock, me };
    let pair = Pair { server, client, root };
    let started = pair.client.runtime.ensure_piece_running(&pair.root);
    pair.client_settles();
    assert_eq!(started.peek().and_then(Result::ok), Some(StructureLoad::Started));
    pair.publish();
    pair.client_settles();
    pair
}

impl Pair {
    /// Lets the client and the store work; the serving runtime stands still.
    fn client_settles(&self) {
        use runner::ambient::Clock;
        loop {
            let step = self.client.runtime.step();
            let served = self.server.store.serve();
            match step {
                Step::Quiet { wake_at: Some(at) } if !served => {
                    self.client
                        .clock
                        .advance((at - self.client.clock.now_ms()).max(1));
                }
                Step::Quiet { wake_at: None } if !served => return,
                Step::Quiet { .. } | Step::Yielded => {}
            }
        }
    }

    /// The serving side catches up and says so: derived state, then the watermark.
    fn publish(&self) {
        self.server.quiesce();
        let seq = self.server.store.server_seq();
        let watermark = Operation::Set {
            id: EntityId::from(WATERMARK_DOCUMENT),
            scope: Scope::Space,
            value: value!({ "value": { "seq": (seq.0 + 1) } }),
        };
        self.server.store.apply_derived(vec![Write {
            key: ScopeKey::space(),
            operation: watermark,
        }]);
    }

    fn send(&self, stream: &str, event: Value) -> Told {
        let told = Told::default();
        let tell = Rc::clone(&told);
        let link = Link {
            path: vec![stream.into()],
            ..self.root.clone()
        };
        let options = SendOptions {
            on_outcome: Some(Box::new(move |o: &EventOutcome| {
                *tell.borrow_mut() = Some(o.clone())
            })),
            ..SendOptions::default()
        };
        self.client.runtime.send(&link, event, options).expect("sent");
        told
    }

    /// Every value a field shows, from now on.
    fn watch(&self, field: &str) -> (Shown, Subscription) {
        let shown = Shown::default();
        let seen = Rc::clone(&shown);
        let subscription = self
            .client
            .runtime
            .cell(self.root.clone())
            .key(field)
            .sink(move |view| {
                seen.borrow_mut()
                    .push(view.as_ref().map(|v| v.to_value()).unwrap_or(Value::Undefined));
                None
            });
        self.client_settles();
        (shown, subscription)
    }

    fn id(&self, name: &str) -> EntityId {
        let links = piece::derived_links(&LunchPoll.graph(), &self.root);
        let found = links
            .internals
            .into_iter()
            .find(|(cause, _)| cause.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}")).1.id
    }

    fn standing_layers(&self) -> usize {
        self.client
            .runtime
            .overlay()
            .expect("a client has one")
            .standing()
    }
}

fn last(shown: &Shown) -> Value {
    shown.borrow().last().cloned().unwrap_or(Value::Undefined)
}

#[track_caller]
fn assert_value(got: &Value, expected: Value) {
    assert!(value_equal(got, &expected), "got {got:?}, expected {expected:?}");
}

#[test]
fn an_echo_shows_at_once_and_the_server_decides() {
    let pair = pair();
    let (tally, _keep_tally) = pair.watch("tally");
    let (preview, _keep_preview) = pair.watch("preview");
    let told = pair.send("addOption", value!({ "title": "Pizza" }));
    pair.send("type", value!({ "text": "su" }));
    pair.client_settles();
    // The serving side has not moved: this is the echo.
    assert_value(&last(&tally), value!([{ "option": "Pizza", "votes": 0.0 }]));
    assert_value(&last(&preview), value!("SU"));
    assert!(
        told.borrow().is_none(),
        "the caller is told the consequence, never the echo"
    );
    assert!(pair.standing_layers() > 0);
    let tally_of_everybody = pair.server.store.value(&ScopeKey::space(), &pair.id("options"));
    assert_value(&tally_of_everybody, value!([]));

    pair.publish();
    pair.client_settles();
    assert!(
        matches!(*told.borrow(), Some(EventOutcome::Handled)),
        "{:?}",
        told.borrow()
    );
    assert_value(&last(&tally), value!([{ "option": "Pizza", "votes": 0.0 }]));
    assert_value(&last(&preview), value!("SU"));
    assert_eq!(pair.standing_layers(), 0, "every layer is covered");
    // I-10: from the echo on, what was there never went away in between.
    let flickers = tally
        .borrow()
        .iter()
        .skip_while(|v| !value_equal(v, &last(&tally)))
        .any(|v| !value_equal(v, &last(&tally)));
    assert!(!flickers, "{:?}", tally.borrow());
}

/// RUN-701, RUN-703: a refusal reaches the caller in the handler's words, and the echo goes.
#[test]
fn run_703_a_refused_event_takes_its_echo_along() {
    let pair = pair();
    let (options, _keep) = pair.watch("options");
    let told = pair.send("addOption", value!({ "title": "" }));
    pair.client_settles();
    // The echo itself refused; nothing shows, and still nobody is told before the server spoke.
    assert!(told.borrow().is_none());
    pair.server.settle();
    pair.server.drain();
    pair.server.settle();
    let failures = pair.server.host.failures();
    assert_eq!(failures.len(), 1);
    // The host's notice: the error is the consequence.
    let (sidecar, index, _) = pair.server.store.pending_entries().remove(0);
    let patches = memory_wire::patch::parse_patches(&value!([
        { "op": "add", "path": (format!("/value/entries/{index}/consequenced")), "value": true },
        { "op": "add", "path": (format!("/value/entries/{index}/error")), "value": "an option needs a title" },
    ]))
    .expect("well-formed");
    let operation = Operation::Patch {
        id: sidecar,
        scope: Scope::Space,
        patches,
    };
    pair.server.store.apply_derived(vec![Write {
        key: ScopeKey::space(),
        operation,
    }]);
    pair.client_settles();
    match &*told.borrow() {
        Some(EventOutcome::Failed(error)) => assert_eq!(error.message, "an option needs a title"),
        other => panic!("{other:?}"),
    };
    assert_value(&last(&options), value!([]));
    assert_eq!(pair.standing_layers(), 0);
}

/// I-7, RUN-2: a client sends event appends and nothing that it computed.
#[test]
fn a_client_commits_nothing_it_computed() {
    let pair = pair();
    let before: Vec<(String, EntityId)> = pair.server.store.instances();
    let seq = pair.server.store.server_seq();
    let (_shown, _keep) = pair.watch("standing");
    pair.send("vote", value!({ "option": "Pizza" }));
    pair.client_settles();
    assert_eq!(pair.server.store.server_seq(), Seq(seq.0 + 1), "one append");
    let new: Vec<_> = pair
        .server
        .store
        .instances()
        .into_iter()
        .filter(|i| !before.contains(i))
        .collect();
    assert!(
        new.iter()
            .all(|(_, id)| id.as_str().starts_with("of:stream-events:")),
        "{new:?}"
    );
    let user = ScopeKey::resolve(Scope::User, &pair.client.me).expect("signed in");
    assert_value(
        &pair.server.store.value(&user, &pair.id("myVote")),
        Value::Undefined,
    );
}

/// RUN-706: a divergent echo gives way to what the server says.
#[test]
fn run_706_divergence_is_silent() {
    let pair = pair();
    let (options, _keep) = pair.watch("options");
    // Somebody else's option is stored first, and the client does not know yet.
    let bob = ScopeIdentity::session("did:key:z6MkBob", "s1");
    let links = piece::derived_links(&LunchPoll.graph(), &pair.root);
    let add = links
        .internals
        .iter()
        .find(|(c, _)| c.as_str() == Some("addOption"))
        .expect("a stream")
        .1
        .clone();
    pair.server
        .fire(&add, &bob, "bob-1", value!({ "title": "Ramen" }));
    pair.send("addOption", value!({ "title": "Pizza" }));
    pair.client_settles();
    assert_value(&last(&options), value!(["Pizza"]));
    pair.publish();
    pair.client_settles();
    assert_value(&last(&options), value!(["Ramen", "Pizza"]));
    assert_eq!(pair.standing_layers(), 0);
}
