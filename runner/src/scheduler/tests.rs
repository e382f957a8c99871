//! Which work runs, for whom, in what order: the scheduler against scripted changes and a store that never answers.

mod liveness;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use memory_wire::identity::Signer;
use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId, Value, value};

use super::node::{NodeId, NodeKind, NodeSpec, RunFailure, Timing};
use super::{Scheduler, Step};
use crate::address::Address;
use crate::ambient::{Clock, CountingMint, ManualClock};
use crate::error::CommitError;
use crate::link::Link;
use crate::promise::Promise;
use crate::replica::{Change, Notification, NotificationKind};
use crate::runtime::Posture;
use crate::scheduler::SendOptions;
use crate::seal::{PlainStamper, RunSupply};
use crate::storage_manager::{StorageManager, StorageOptions};
use crate::transaction::{OutboundAppend, PostCommitEffect, ReadMeta, RunTx, SealDestination};
use crate::transport::ChannelConnector;

const SPACE: &str = "did:key:z6MkSpace";

struct Bench {
    scheduler: Scheduler,
    clock: ManualClock,
}

fn bench(posture: Posture) -> Bench {
    let clock = ManualClock::at(1_000_000);
    // Peers are kept and never read: nothing is ever answered.
    let peers = RefCell::new(Vec::new());
    let connector = ChannelConnector::new(move |_, peer| peers.borrow_mut().push(peer));
    let storage = StorageManager::new(StorageOptions::new(
        Rc::new(Signer::from_passphrase("service")),
        Rc::new(connector),
        Rc::new(clock.clone()),
        Rc::new(CountingMint::default()),
        Arc::new(|| {}),
    ));
    Bench {
        scheduler: Scheduler::new(&storage, posture),
        clock,
    }
}

fn place(id: &str, scope: Scope) -> Address {
    Link::to_document(SpaceId::from(SPACE), EntityId::from(id), scope).address()
}

fn spec(name: &str, reads: &[&str], write: Option<&str>) -> NodeSpec {
    let inputs: Vec<Address> = reads.iter().map(|id| place(id, Scope::Space)).collect();
    let output = write.map(|id| place(id, Scope::Space));
    let (read, written) = (inputs.clone(), output.clone());
    let action = move |tx: &RunTx| {
        let mut sum = 0.0;
        for address in &read {
            sum += tx.read_value(address)?.as_f64().unwrap_or(0.0);
        }
        if let Some(address) = &written {
            tx.write(address, Some(Value::from(sum + 1.0)))?;
        }
        Ok(())
    };
    NodeSpec {
        action_id: name.into(),
        kind: if write.is_some() {
            NodeKind::Computation
        } else {
            NodeKind::Effect
        },
        action: Rc::new(action),
        writes: output.into_iter().collect(),
        declared_reads: inputs,
        materializes: Vec::new(),
        demand_roots: Vec::new(),
        space: SpaceId::from(SPACE),
        timing: Timing::default(),
    }
}

impl Bench {
    fn node(&self, name: &str, reads: &[&str], write: Option<&str>) -> NodeId {
        self.scheduler
            .register(spec(name, reads, write))
            .expect("registered")
    }

    /// A change from elsewhere, as a replica tells it.
    fn change(&self, id: &str, key: Option<ScopeKey>, before: Value, after: Value) {
        let scope = key.as_ref().map_or(Scope::Space, ScopeKey::scope);
        let mut address = place(id, scope);
        address.scope_key = key;
        let document = |v: Value| (!v.is_undefined()).then(|| value!({ "value": v }));
        self.scheduler.notified(&Notification {
            kind: NotificationKind::Integrate,
            space: SpaceId::from(SPACE),
            changes: vec![Change {
                address,
                before: document(before),
                after: document(after),
            }],
            source: None,
            reason: None,
        });
    }

    /// Steps until quiet; answers the names that ran, in order.
    fn runs(&self) -> Vec<String> {
        self.scheduler.clear_run_trace();
        while self.scheduler.step() == Step::Yielded {}
        self.trace()
    }

    fn trace(&self) -> Vec<String> {
        let text = |r: &super::RunRecord| match &r.instance {
            Some(key) => format!("{}@{key}", r.action_id),
            None => r.action_id.to_string(),
        };
        self.scheduler.run_trace().iter().map(text).collect()
    }

    fn next_wake(&self) -> Option<i64> {
        match self.scheduler.step() {
            Step::Quiet { wake_at } => wake_at.map(|at| at - self.clock.now_ms()),
            Step::Yielded => panic!("there is work left"),
        }
    }
}

/// RUN-520, 523, 532: only what somebody looks at runs, writers first, whatever the order of registration.
#[test]
fn run_533_writers_run_before_readers_and_undemanded_nodes_rest() {
    let bench = bench(Posture::Standalone);
    bench.node("sink", &["of:c"], None);
    bench.node("third", &["of:b"], Some("of:c"));
    bench.node("second", &["of:a"], Some("of:b"));
    bench.node("first", &["of:in"], Some("of:a"));
    bench.node("dormant", &["of:a"], Some("of:nobody-looks"));
    assert_eq!(bench.runs(), ["first", "second", "third", "sink"]);
    assert!(bench.runs().is_empty(), "a quiet graph stays quiet (I-3)");
    bench.change("of:in", None, value!(0.0), value!(5.0));
    assert_eq!(
        bench.runs(),
        ["first"],
        "the scripted change is not in the store, so the output is equal"
    );
    assert!(bench.scheduler.is_idle());
}

/// RUN-511: a change of something nobody read runs nobody.
#[test]
fn run_511_unread_changes_run_nothing() {
    let bench = bench(Posture::Standalone);
    bench.node("sink", &["of:a"], None);
    bench.runs();
    bench.change("of:other", None, value!(1.0), value!(2.0));
    bench.change("of:a", None, value!(2.0), value!(2.0));
    assert!(bench.runs().is_empty());
}

/// RUN-512: a node's own write of something it reads does not run it again.
#[test]
fn run_512_a_run_is_not_woken_by_its_own_change() {
    let bench = bench(Posture::Standalone);
    bench.node("counter", &["of:n"], Some("of:n"));
    bench.node("sink", &["of:n"], None);
    assert_eq!(bench.runs(), ["counter", "sink"]);
    assert!(bench.runs().is_empty());
}

/// Depth is not a cycle: a long chain settles, over several passes if need be, and nobody is made to wait for it.
#[test]
fn f35_a_deep_chain_settles_without_backoff() {
    let bench = bench(Posture::Standalone);
    let name = |n: usize| format!("of:{n}");
    for n in 0..50 {
        bench.node(&format!("n{n}"), &[&name(n)], Some(&name(n + 1)));
    }
    bench.node("sink", &[&name(50)], None);
    assert_eq!(bench.runs().len(), 51);
    let seed = RunTx::open(bench.scheduler.storage());
    seed.write(&place("of:0", Scope::Space), Some(value!(7.0)))
        .expect("written");
    drop(seed.commit());
    let runs = bench.runs();
    assert_eq!(runs.len(), 51, "each node once: {runs:?}");
    assert_eq!(bench.next_wake(), None, "nobody is backed off");
    assert!(bench.scheduler.is_idle());
}

/// A cycle that never settles is bounded in every pass, slowed down, and does not hold up anybody else.
#[test]
fn f35_a_cycle_is_backed_off_and_others_go_on() {
    let bench = bench(Posture::Standalone);
    bench.node("ping", &["of:b"], Some("of:a"));
    bench.node("pong", &["of:a"], Some("of:b"));
    bench.node("watch-cycle", &["of:a"], None);
    bench.node("other", &["of:in"], Some("of:out"));
    bench.node("watch-other", &["of:out"], None);
    let runs = bench.runs();
    let count = |name: &str| runs.iter().filter(|r| *r == name).count();
    assert!(count("ping") <= 10 && count("pong") <= 10, "{runs:?}");
    assert_eq!((count("other"), count("watch-other")), (1, 1), "{runs:?}");
    assert_eq!(bench.next_wake(), Some(250));
    assert!(
        !bench.scheduler.is_idle(),
        "unsettled work holds idle, for a while"
    );
    let mut waits = Vec::new();
    for _ in 0..6 {
        let wait = bench.next_wake().expect("the cycle goes on");
        waits.push(wait);
        bench.clock.advance(wait);
        bench.runs();
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 2000, 2000]);
    assert!(
        bench.scheduler.is_idle(),
        "a cycle does not hold idle for ever (RUN-560)"
    );
}

/// A value that is not equal to itself in arithmetic is still no change.
#[test]
fn f35_nan_settles() {
    let bench = bench(Posture::Standalone);
    let output = place("of:nan", Scope::Space);
    let mut nan = spec("nan", &["of:in"], Some("of:nan"));
    nan.action = Rc::new(move |tx: &RunTx| {
        tx.read_value(&place("of:in", Scope::Space))?;
        Ok(tx.write(&output, Some(Value::Number(f64::NAN)))?)
    });
    bench.scheduler.register(nan).expect("registered");
    bench.node("sink", &["of:nan"], None);
    assert_eq!(bench.runs(), ["nan", "sink"]);
    bench.change("of:in", None, value!(1.0), value!(2.0));
    assert_eq!(bench.runs(), ["nan"]);
}

/// RUN-536: serving, work is cut after a slice between actions, and the observer is called first.
#[test]
fn run_536_serving_yields_between_actions() {
    let bench = bench(Posture::Serving);
    for n in 0..3 {
        let clock = bench.clock.clone();
        let mut slow = spec(&format!("slow{n}"), &[], None);
        slow.action = Rc::new(move |_: &RunTx| {
            clock.advance(20);
            Ok(())
        });
        bench.scheduler.register(slow).expect("registered");
    }
    let renewed = Rc::new(Cell::new(0));
    let renew = Rc::clone(&renewed);
    bench
        .scheduler
        .serving_yield_observer(Some(Rc::new(move || renew.set(renew.get() + 1))));
    let mut yields = 0;
    while bench.scheduler.step() == Step::Yielded {
        yields += 1;
        assert_eq!(renewed.get(), yields);
    }
    assert_eq!((yields, bench.trace().len()), (3, 3));
}

/// RUN-1102: a panic is the run's error; the runtime goes on.
#[test]
fn run_1102_a_panicking_action_fails_alone() {
    let bench = bench(Posture::Standalone);
    let mut bad = spec("bad", &["of:in"], None);
    bad.action = Rc::new(|_: &RunTx| -> Result<(), RunFailure> { panic!("boom") });
    bench.scheduler.register(bad).expect("registered");
    bench.node("good", &["of:in"], None);
    let told = Rc::new(RefCell::new(Vec::new()));
    let tell = Rc::clone(&told);
    bench.scheduler.set_error_observer(Rc::new(move |action, error| {
        tell.borrow_mut().push(format!("{action}: {error}"));
    }));
    assert_eq!(bench.runs(), ["bad", "good"]);
    assert_eq!(*told.borrow(), ["bad: bad panicked: boom"]);
}

/// RUN-522: host demand makes writers run; withdrawn demand lets them rest.
#[test]
fn run_522_demand_by_entity_name_is_counted() {
    let bench = bench(Posture::Serving);
    bench.node("derived", &["of:in"], Some("of:out"));
    assert!(bench.runs().is_empty());
    let (space, id) = (SpaceId::from(SPACE), EntityId::from("of:out"));
    bench.scheduler.enter_demanded_entity(&space, &id, Scope::Space);
    bench.scheduler.enter_demanded_entity(&space, &id, Scope::Space);
    assert_eq!(bench.runs(), ["derived"]);
    bench.scheduler.leave_demanded_entity(&space, &id, Scope::Space);
    bench.change("of:in", None, value!(1.0), value!(2.0));
    assert_eq!(bench.runs(), ["derived"], "one demand is left");
    bench.scheduler.leave_demanded_entity(&space, &id, Scope::Space);
    bench.change("of:in", None, value!(2.0), value!(3.0));
    assert!(bench.runs().is_empty());
    assert!(bench.scheduler.is_idle(), "dormant dirt costs nothing (RUN-523)");
}

/// Takes every seal and remembers it, or refuses it as told.
#[derive(Default)]
struct Wave {
    space: Option<SpaceId>,
    sealed: RefCell<Vec<String>>,
    staged: RefCell<Vec<OutboundAppend>>,
}

impl SealDestination for Wave {
    fn space(&self) -> Option<&SpaceId> {
        self.space.as_ref()
    }
    fn accepts(&self, _: &RunTx) -> bool {
        true
    }
    fn seal(&self, tx: &RunTx) -> Promise<Result<(), CommitError>> {
        let name = tx.stamp().map(|s| s.action_id).unwrap_or_default();
        self.sealed.borrow_mut().push(name);
        Promise::ready(Ok(()))
    }
    fn stage_outbound_append(&self, _: &RunTx, row: OutboundAppend) -> Result<(), CommitError> {
        self.staged.borrow_mut().push(row);
        Ok(())
    }
    fn defer_sealed_effects(&self, _: &RunTx, _: &[PostCommitEffect]) -> bool {
        false
    }
}

/// The pairs, and how often they were asked for.
struct Demanders(RefCell<Vec<ScopeIdentity>>, Cell<usize>);

impl RunSupply for Demanders {
    fn demanders(&self, _: &[EntityId]) -> Vec<ScopeIdentity> {
        self.1.set(self.1.get() + 1);
        self.0.borrow().clone()
    }
}

fn serving(demanders: &[ScopeIdentity]) -> (Bench, Rc<Wave>, Rc<Demanders>) {
    let bench = bench(Posture::Serving);
    let wave = Rc::new(Wave {
        space: Some(SpaceId::from(SPACE)),
        ..Wave::default()
    });
    let supply = Rc::new(Demanders(RefCell::new(demanders.to_vec()), Cell::new(0)));
    let destination: Rc<dyn SealDestination> = Rc::clone(&wave) as _;
    bench
        .scheduler
        .install_seal_destination(destination, Rc::new(PlainStamper), Rc::clone(&supply) as _);
    (bench, wave, supply)
}

/// A node that reads `id` at `scope`, demanded by the host.
fn scoped_reader(bench: &Bench, name: &str, id: &str, scope: Scope) -> NodeId {
    let (input, output) = (place(id, scope), format!("computed:{name}"));
    let mut reader = spec(name, &[], Some(&output));
    reader.action = Rc::new(move |tx: &RunTx| {
        tx.read(&input, ReadMeta::RECURSIVE)?;
        Ok(())
    });
    let registered = bench.scheduler.register(reader).expect("registered");
    bench
        .scheduler
        .enter_demanded_entity(&SpaceId::from(SPACE), &EntityId::from(output), Scope::Space);
    registered
}

fn pair(principal: &str, session: &str) -> ScopeIdentity {
    ScopeIdentity::session(principal, session)
}

/// RUN-543…545 in run order: probe under the smallest pair, then the others by principal; a user's change runs one.
#[test]
fn run_543_which_instances_run_and_in_what_order() {
    let (alice, bob) = (pair("did:key:a", "s1"), pair("did:key:b", "s1"));
    let (bench, _, supply) = serving(&[bob.clone(), alice.clone()]);
    scoped_reader(&bench, "mine", "of:mine", Scope::User);
    let users = [&alice, &bob].map(|p| ScopeKey::resolve(Scope::User, p).expect("a user"));
    assert_eq!(
        bench.runs(),
        ["mine@space".to_owned(), format!("mine@{}", users[1])]
    );
    bench.change("of:mine", Some(users[1].clone()), value!(1.0), value!(2.0));
    assert_eq!(bench.runs(), [format!("mine@{}", users[1])]);
    bench.change("of:mine", Some(users[0].clone()), value!(1.0), value!(2.0));
    assert_eq!(bench.runs(), [format!("mine@{}", users[0])]);
    // Bob leaves: his instance is forgotten with its reads (I-15), and comes back when he does.
    *supply.0.borrow_mut() = vec![alice.clone()];
    bench.change("of:mine", Some(users[0].clone()), value!(2.0), value!(3.0));
    assert_eq!(bench.runs(), [format!("mine@{}", users[0])]);
    bench.change("of:mine", Some(users[1].clone()), value!(2.0), value!(3.0));
    assert!(
        bench.runs().is_empty(),
        "nobody subscribes to Bob's document any more"
    );
    *supply.0.borrow_mut() = vec![alice, bob];
    bench.scheduler.invalidate_for_demand_roots(&[]);
    assert!(bench.runs().is_empty());
    bench
        .scheduler
        .rearm_not_current_for_demander(&place("computed:mine", Scope::Space), &pair("did:key:b", "s1"));
    assert_eq!(bench.runs(), [format!("mine@{}", users[1])]);
}

/// RUN-544: with many sessions, who demands is asked once a round, not once an instance.
#[test]
fn run_544_many_sessions_take_a_handful_of_rounds() {
    let many: Vec<ScopeIdentity> = (0..200)
        .map(|n| pair(&format!("did:key:{}", n / 2), &format!("s{n}")))
        .collect();
    let (bench, _, supply) = serving(&many);
    scoped_reader(&bench, "here", "of:here", Scope::Session);
    let runs = bench.runs();
    // The probe, a first run of every other principal at `user`, and then the sessions that are left.
    assert_eq!(runs.iter().filter(|r| r.contains("@session:")).count(), 100);
    assert_eq!(runs.len(), 200);
    // After the probe, after the first runs, and to find that nothing is left.
    assert_eq!(supply.1.get(), 4);
    let session = ScopeKey::resolve(Scope::Session, &many[7]).expect("a session");
    supply.1.set(0);
    bench.change("of:here", Some(session.clone()), value!(1.0), value!(2.0));
    assert_eq!(bench.runs(), [format!("here@{session}")]);
    assert_eq!(supply.1.get(), 2);
}

/// RUN-547: an event attributed to everybody's user by a run that then turns out to be a session's is refused; the
/// instance runs again knowing its scope, and only that event goes out.
#[test]
fn run_547_an_early_emission_is_refused_and_sent_at_the_learned_scope() {
    let alice = pair("did:key:a", "s1");
    let (bench, wave, _) = serving(std::slice::from_ref(&alice));
    let stream = Link::to_document(SpaceId::from(SPACE), EntityId::from("of:stream"), Scope::Space);
    let secret = place("of:draft", Scope::Session);
    let mut emitter = spec("emitter", &[], Some("computed:emitter"));
    let (scheduler, target) = (bench.scheduler.clone(), stream.clone());
    emitter.action = Rc::new(move |tx: &RunTx| {
        scheduler.send(Some(tx), &target, value!(1.0), SendOptions::default())?;
        tx.read(&secret, ReadMeta::RECURSIVE)?;
        Ok(())
    });
    bench.scheduler.register(emitter).expect("registered");
    bench.scheduler.enter_demanded_entity(
        &SpaceId::from(SPACE),
        &EntityId::from("computed:emitter"),
        Scope::Space,
    );
    let session = ScopeKey::resolve(Scope::Session, &alice).expect("a session");
    let reported = Rc::new(RefCell::new(Vec::new()));
    let queued = Rc::clone(&reported);
    let runs = bench.runs();
    assert_eq!(runs, ["emitter@space".to_owned(), format!("emitter@{session}")]);
    assert_eq!(
        *wave.sealed.borrow(),
        ["emitter"],
        "the under-attributed run never sealed"
    );
    bench.scheduler.purge_queued_events(
        &move |event| {
            queued.borrow_mut().push(event.served.map(|s| s.fired_at.clone()));
            false
        },
        "looking",
    );
    let copies = reported.borrow().clone();
    // Its piece was asked for and nobody has it; whoever is still queued acts as the pair.
    assert!(
        copies
            .iter()
            .all(|acting| acting.as_ref().is_some_and(|a| a.session == alice.session_id)),
        "{copies:?}"
    );
}

/// RUN-571, RUN-573: the wave's home space decides, not the sender's cell.
#[test]
fn run_573_an_event_for_another_space_is_staged() {
    let alice = pair("did:key:a", "s1");
    let (bench, wave, _) = serving(std::slice::from_ref(&alice));
    let away = Link::to_document(
        SpaceId::from("did:key:z6MkAway"),
        EntityId::from("of:stream"),
        Scope::Space,
    );
    let mut emitter = spec("emitter", &["of:in"], Some("computed:emitter"));
    let scheduler = bench.scheduler.clone();
    emitter.action = Rc::new(move |tx: &RunTx| {
        scheduler.send(Some(tx), &away, value!({ "n": 1.0 }), SendOptions::default())?;
        Ok(())
    });
    bench.scheduler.register(emitter).expect("registered");
    bench.scheduler.enter_demanded_entity(
        &SpaceId::from(SPACE),
        &EntityId::from("computed:emitter"),
        Scope::Space,
    );
    bench.runs();
    let staged = wave.staged.borrow();
    assert_eq!(staged.len(), 1);
    // It read nothing scoped, so it acts as nobody, and says so.
    assert!(staged[0].acting_principal.is_none() && staged[0].sessionless_space_scope);
    assert!(
        staged[0]
            .capability_ref
            .starts_with("stream-append:of:stream-events:")
    );
    assert!(staged[0].source_event.is_none());
}

/// RUN-570: outside a stamped run a serving runtime fires nothing.
#[test]
fn run_570_a_serving_runtime_is_nobodys_client() {
    let (bench, _, _) = serving(&[]);
    let stream = Link::to_document(SpaceId::from(SPACE), EntityId::from("of:stream"), Scope::Space);
    assert!(
        bench
            .scheduler
            .send(None, &stream, value!(1.0), SendOptions::default())
            .is_err()
    );
}

/// RUN-604: what writes on a server has a durable name.
#[test]
fn run_604_an_anonymous_writer_is_refused_when_serving() {
    assert!(
        bench(Posture::Serving)
            .scheduler
            .register(spec("anon-1", &[], Some("of:a")))
            .is_err()
    );
    assert!(
        bench(Posture::Serving)
            .scheduler
            .register(spec("anon-1", &["of:a"], None))
            .is_ok()
    );
    assert!(
        bench(Posture::Standalone)
            .scheduler
            .register(spec("anon-1", &[], Some("of:a")))
            .is_ok()
    );
}

/// RUN-503: a node that a run registers belongs to it, runs in the same pass, and goes with it.
#[test]
fn run_503_children_run_in_the_pass_that_made_them() {
    let bench = bench(Posture::Standalone);
    let mut maker = spec("maker", &["of:in"], None);
    let (scheduler, made) = (bench.scheduler.clone(), Cell::new(false));
    maker.action = Rc::new(move |_: &RunTx| {
        if !made.replace(true) {
            scheduler
                .register(spec("child", &["of:in"], Some("of:made")))
                .expect("registered");
        }
        Ok(())
    });
    let maker = bench.scheduler.register(maker).expect("registered");
    assert_eq!(bench.runs(), ["maker", "child"]);
    bench.scheduler.unregister(maker);
    bench.change("of:in", None, value!(1.0), value!(2.0));
    assert!(bench.runs().is_empty());
}

/// RUN-561: two instances render as two, and looking decides nothing.
#[test]
fn run_561_the_snapshot_shows_instances_and_edges() {
    let (alice, bob) = (pair("did:key:a", "s1"), pair("did:key:b", "s1"));
    let (bench, _, _) = serving(&[alice, bob]);
    let reader = scoped_reader(&bench, "mine", "of:mine", Scope::User);
    let sink = bench.node("sink", &["computed:mine"], None);
    bench.runs();
    let snapshot = bench.scheduler.graph_snapshot();
    assert_eq!(snapshot.edges, [(reader, sink)]);
    let mine = &snapshot.nodes[0];
    assert_eq!(
        mine.reads,
        [
            "did:key:z6MkSpace/of:mine/user:did%3Akey%3Aa/value",
            "did:key:z6MkSpace/of:mine/user:did%3Akey%3Ab/value"
        ]
    );
    assert_eq!(mine.writes, ["did:key:z6MkSpace/computed:mine/space/value"]);
    assert!(mine.live && mine.instances.iter().all(|(_, current)| *current) && mine.instances.len() == 2);
    assert_eq!(snapshot.inputs, mine.reads);
    assert_eq!(bench.scheduler.graph_snapshot(), snapshot);
    assert!(bench.runs().is_empty());
}
