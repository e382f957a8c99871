//! The replica against a scripted wire: verdicts, markers, cascades, seals, loads and reconnects.

mod wire_double;

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::message::{ClientMessage, Watch};
use memory_wire::{EntityId, LocalSeq, Scope, ScopeIdentity, Seq, Value, value};
use runner::address::{Address, path};
use runner::error::{CommitError, CommitErrorName};
use runner::promise::Promise;
use runner::replica::{DocKey, Notification, NotificationKind, NotificationSink, Replica};
use runner::storage_manager::NotificationSubscription;
use runner::transaction::{MergeableOp, NativeCommit, ReadMeta, RunTx, SealOptions, SealedVerdict};
use wire_double::{Bench, SPACE, bench, bench_with, derived, keyed, server_flags, upsert};

type Outcome = Promise<Result<(), CommitError>>;

fn at(id: &str, segments: &[&str]) -> Address {
    let mut full = vec!["value"];
    full.extend(segments);
    Address::document(SPACE.into(), id.into(), Scope::Space).at(path(full))
}

/// Commits one write.
fn write(bench: &Bench, id: &str, segments: &[&str], value: impl Into<Value>) -> Outcome {
    let tx = RunTx::open(&bench.storage);
    tx.write(&at(id, segments), Some(value.into()))
        .expect("the write is taken");
    tx.commit()
}

/// Commits a write that depends on what it read.
fn bump(bench: &Bench, id: &str) -> Outcome {
    let tx = RunTx::open(&bench.storage);
    let n = tx
        .read_value(&at(id, &[]))
        .expect("readable")
        .as_f64()
        .unwrap_or(0.0);
    tx.write(&at(id, &[]), Some(Value::Number(n + 1.0)))
        .expect("the write is taken");
    tx.commit()
}

fn replica(bench: &Bench) -> Replica {
    bench.storage.replica(&bench.space())
}

fn shown(bench: &Bench, id: &str) -> Option<Value> {
    let document = replica(bench).get_document(&EntityId::from(id), Scope::Space, None)?;
    document.member("value").cloned()
}

#[track_caller]
fn assert_shown(bench: &Bench, id: &str, expected: Value) {
    let got = shown(bench, id).unwrap_or(Value::Undefined);
    assert!(
        value_equal(&got, &expected),
        "{id}: got {got:?}, expected {expected:?}"
    );
}

fn key(id: &str) -> DocKey {
    DocKey {
        instance: runner::replica::Instance::Key(memory_wire::ScopeKey::space()),
        id: id.into(),
    }
}

#[track_caller]
fn assert_settled(outcome: &Outcome, expected: Result<(), CommitErrorName>) {
    let got = outcome.peek().map(|r| r.map_err(|e| e.name));
    assert_eq!(got, Some(expected));
}

/// Remembers what it was told.
#[derive(Default)]
struct Log(RefCell<Vec<Notification>>);

impl NotificationSink for Log {
    fn notify(&self, notification: &Notification) {
        self.0.borrow_mut().push(notification.clone());
    }
}

fn listen(bench: &Bench) -> (Rc<Log>, NotificationSubscription) {
    let log = Rc::new(Log::default());
    let subscription = bench
        .storage
        .subscribe(Rc::clone(&log) as Rc<dyn NotificationSink>);
    (log, subscription)
}

impl Log {
    fn kinds(&self) -> Vec<NotificationKind> {
        self.0
            .borrow()
            .iter()
            .filter(|n| !n.changes.is_empty())
            .map(|n| n.kind)
            .collect()
    }
}

#[test]
fn run_30_a_commit_shows_at_once_and_stands_on_what_it_read() {
    let bench = bench();
    bench.load("of:a", 3, Some(value!(1)));
    let (log, _subscription) = listen(&bench);
    let outcome = bump(&bench, "of:a");
    assert_eq!(log.kinds(), [NotificationKind::Commit]);
    assert_shown(&bench, "of:a", value!(2));
    bench.settle();
    let (request, commit) = bench.server.take_commit();
    assert_eq!(commit.local_seq, LocalSeq(1));
    assert_eq!(commit.reads.confirmed.len(), 1);
    assert_eq!(commit.reads.confirmed[0].seq, Seq(3));
    assert!(commit.reads.pending.is_empty());
    bench.server.accept(&request, 4);
    bench.server.push(vec![], Some(1));
    bench.settle();
    assert_settled(&outcome, Ok(()));
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(4));
}

#[test]
fn run_32_an_accept_behind_unseen_foreign_writes_waits_for_the_marker() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "mine": 0, "theirs": 0 })));
    let outcome = write(&bench, "of:a", &["mine"], 1);
    let tx_log = Rc::new(RefCell::new(Vec::new()));
    bench.settle();
    let (request, _) = bench.server.take_commit();
    let seen = Rc::clone(&tx_log);
    replica(&bench).on_ack(move |n, seq| seen.borrow_mut().push((n, seq)));
    // Somebody else's seq 2 was applied first; ours is 3, and we have not seen theirs yet.
    bench.server.accept(&request, 3);
    bench.settle();
    assert!(
        !outcome.is_settled(),
        "promoting now would mint a confirmed document without theirs"
    );
    assert_eq!(*tx_log.borrow(), [(LocalSeq(1), Seq(3))]);
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(1));
    assert!(!replica(&bench).when_applied(LocalSeq(1)).is_settled());
    // Frame and marker are one: theirs arrives, then ours is promoted over it.
    bench.server.push(
        vec![upsert("of:a", 2, Some(value!({ "mine": 0, "theirs": 9 })))],
        Some(1),
    );
    bench.settle();
    assert_settled(&outcome, Ok(()));
    assert_shown(&bench, "of:a", value!({ "mine": 1, "theirs": 9 }));
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(3));
}

#[test]
fn run_35_37_a_rejection_takes_what_was_built_on_it_and_shows_the_confirmed_state() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(10)));
    let first = bump(&bench, "of:a");
    let second = bump(&bench, "of:a");
    let blind = write(&bench, "of:b", &[], 7);
    bench.settle();
    let (r1, _) = bench.server.take_commit();
    let (_r2, c2) = bench.server.take_commit();
    let (_r3, _) = bench.server.take_commit();
    assert_eq!(c2.reads.pending.len(), 1);
    assert_eq!(c2.reads.pending[0].local_seqs, [LocalSeq(1)]);
    assert_eq!(c2.reads.pending[0].basis_seq, Some(Seq(1)));
    assert_shown(&bench, "of:a", value!(12));

    let (log, _subscription) = listen(&bench);
    bench.server.reject(
        &r1,
        ErrorName::Conflict,
        "stale confirmed read: of:a at seq 1 conflicted with seq 2",
    );
    bench.settle();
    // Dead but standing: the repair has not arrived, and nothing may build on it.
    assert!(!first.is_settled());
    let refused = bump(&bench, "of:a");
    assert_settled(&refused, Err(CommitErrorName::Conflict));
    let gate = refused
        .peek()
        .and_then(Result::err)
        .and_then(|e| e.gate)
        .expect("a gate to wait at");
    assert!(!gate.is_settled());

    bench
        .server
        .push(vec![upsert("of:a", 2, Some(value!(50)))], Some(1));
    bench.settle();
    assert_settled(&first, Err(CommitErrorName::Conflict));
    assert_settled(&second, Err(CommitErrorName::Conflict));
    assert!(gate.is_settled());
    assert!(
        !blind.is_settled(),
        "a blind write survives the loss of an earlier layer"
    );
    assert_shown(&bench, "of:a", value!(50));
    assert_shown(&bench, "of:b", value!(7));
    assert!(log.kinds().contains(&NotificationKind::Revert));
    let conflicted = first.peek().and_then(Result::err).and_then(|e| e.entity);
    assert_eq!(conflicted, Some(EntityId::from("of:a")));
}

#[test]
fn run_35_the_repair_has_a_backstop() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let outcome = bump(&bench, "of:a");
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.reject(
        &request,
        ErrorName::Conflict,
        "pending dependency not resolved: 9",
    );
    bench.settle();
    assert!(!outcome.is_settled());
    bench.clock.advance(30_000);
    bench.settle();
    assert_settled(&outcome, Err(CommitErrorName::Conflict));
    assert_shown(&bench, "of:a", value!(1));
}

#[test]
fn i_17_a_late_accept_after_a_local_rejection_is_not_promoted() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let first = bump(&bench, "of:a");
    let second = bump(&bench, "of:a");
    bench.settle();
    let ((r1, _), (r2, _)) = (bench.server.take_commit(), bench.server.take_commit());
    bench.server.reject(&r1, ErrorName::PreconditionFailed, "gone");
    bench.server.accept(&r2, 5);
    bench.settle();
    assert_settled(&first, Err(CommitErrorName::PreconditionFailed));
    assert_settled(&second, Err(CommitErrorName::Conflict));
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(1));
    assert_shown(&bench, "of:a", value!(1));
}

/// A transaction and its native commit, ready to be sealed.
fn sealable(bench: &Bench, id: &str, segments: &[&str], value: impl Into<Value>) -> (RunTx, NativeCommit) {
    let tx = RunTx::open(&bench.storage);
    tx.read(&at(id, segments), ReadMeta::RECURSIVE).expect("readable");
    tx.write(&at(id, segments), Some(value.into()))
        .expect("the write is taken");
    let native = tx.native_commit(&bench.space());
    (tx, native)
}

#[test]
fn run_46_a_sealed_commit_is_confirmed_without_a_marker_as_derived() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let (tx, native) = sealable(&bench, "of:a", &[], 2);
    let verdict = Promise::new();
    let sealed = replica(&bench).seal_native(native, &tx, &verdict, SealOptions::default());
    assert_eq!(sealed.commit.reads.confirmed[0].seq, Seq(1));
    bench.settle();
    assert_eq!(bench.server.pending_requests(), 0, "a seal sends nothing");
    assert_shown(&bench, "of:a", value!(2));
    verdict.settle(Ok(SealedVerdict::Committed { seq: Seq(2) }));
    assert_settled(&sealed.settled, Ok(()));
    let view = replica(&bench).retirement_view(&key("of:a"));
    assert_eq!((view.confirmed_seq, view.layers.len()), (Seq(2), 0));
    assert_eq!(
        view.cover_class,
        Some(memory_wire::commit_meta::CommitClass::Derived)
    );
}

#[test]
fn run_46_withdrawn_reverts_and_cascades_superseded_does_neither() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let (log, _subscription) = listen(&bench);
    let speculative = SealOptions {
        speculative: true,
        identity: None,
    };
    let (below_tx, below) = sealable(&bench, "of:a", &[], 2);
    let below_verdict = Promise::new();
    let below = replica(&bench).seal_native(below, &below_tx, &below_verdict, speculative.clone());
    let (above_tx, above) = sealable(&bench, "of:a", &[], 3);
    let above_verdict = Promise::new();
    let above = replica(&bench).seal_native(above, &above_tx, &above_verdict, speculative);
    assert_eq!(
        above.commit.reads.pending[0].local_seqs,
        [below.local_seq],
        "a speculative seal may stand on others"
    );
    assert!(
        bench.storage.synced().is_settled(),
        "speculation holds no barrier"
    );

    let superseded = SealedVerdict::Withdrawn {
        message: "covered".into(),
        superseded: true,
    };
    below_verdict.settle(Ok(superseded));
    assert_settled(&below.settled, Ok(()));
    assert!(!above.settled.is_settled(), "no cascade");
    assert_shown(&bench, "of:a", value!(3));

    above_verdict.settle(Err("the judge went away".into()));
    assert_settled(&above.settled, Err(CommitErrorName::Conflict));
    assert_shown(&bench, "of:a", value!(1));
    assert_eq!(
        log.kinds(),
        [
            NotificationKind::Commit,
            NotificationKind::Commit,
            NotificationKind::Revert
        ]
    );
    let source = log.0.borrow()[0].source.clone().expect("the sealing transaction");
    assert!(source.same(&below_tx));
}

#[test]
fn run_46_superseding_tells_what_became_visible_with_the_sealing_source() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let (tx, native) = sealable(&bench, "of:a", &[], 2);
    let verdict = Promise::new();
    let options = SealOptions {
        speculative: true,
        identity: None,
    };
    let sealed = replica(&bench).seal_native(native, &tx, &verdict, options);
    bench
        .server
        .push(vec![derived(upsert("of:a", 2, Some(value!(5))))], None);
    bench.settle();
    assert_shown(&bench, "of:a", value!(2));
    let (log, _subscription) = listen(&bench);
    verdict.settle(Ok(SealedVerdict::Withdrawn {
        message: String::new(),
        superseded: true,
    }));
    assert_settled(&sealed.settled, Ok(()));
    assert_shown(&bench, "of:a", value!(5));
    assert_eq!(log.kinds(), [NotificationKind::Integrate]);
    assert!(
        log.0.borrow()[0]
            .source
            .as_ref()
            .is_some_and(|source| source.same(&tx))
    );
}

#[test]
fn run_36_a_commit_on_a_speculative_layer_is_never_sent() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let (tx, native) = sealable(&bench, "of:a", &[], 2);
    let verdict = Promise::new();
    let options = SealOptions {
        speculative: true,
        identity: None,
    };
    let _sealed = replica(&bench).seal_native(native, &tx, &verdict, options);
    let (log, _subscription) = listen(&bench);
    let refused = bump(&bench, "of:a");
    bench.settle();
    assert_settled(&refused, Err(CommitErrorName::SpeculativeBasis));
    assert_eq!(bench.server.pending_requests(), 0);
    assert!(log.kinds().is_empty(), "refused before the optimistic apply");
}

#[test]
fn run_48_a_sealed_run_writes_its_own_identitys_instances() {
    let bench = bench();
    let bob = ScopeIdentity::session("did:key:z6MkBob", "s-bob");
    let tx = RunTx::open(&bench.storage);
    tx.set_scope_identity(bob.clone()).expect("nothing was read yet");
    let slot = Address {
        scope: Scope::User,
        ..at("of:a", &[])
    };
    tx.write(&slot, Some(value!("bob's")))
        .expect("the write is taken");
    let (log, _subscription) = listen(&bench);
    let native = tx.native_commit(&bench.space());
    let verdict = Promise::new();
    let options = SealOptions {
        speculative: false,
        identity: Some(bob.clone()),
    };
    let sealed = replica(&bench).seal_native(native, &tx, &verdict, options);
    let id = EntityId::from("of:a");
    assert!(
        replica(&bench).get_document(&id, Scope::User, None).is_none(),
        "not the manager's own instance"
    );
    assert!(
        replica(&bench)
            .get_document(&id, Scope::User, Some(&bob))
            .is_some()
    );
    let change = log.0.borrow()[0].changes[0].address.clone();
    assert_eq!(
        change.scope_key.map(|k| k.to_string()).as_deref(),
        Some("user:did%3Akey%3Az6MkBob")
    );
    verdict.settle(Ok(SealedVerdict::Withdrawn {
        message: "no".into(),
        superseded: false,
    }));
    assert_settled(&sealed.settled, Err(CommitErrorName::Conflict));
    assert!(
        replica(&bench)
            .get_document(&id, Scope::User, Some(&bob))
            .is_none()
    );
}

#[test]
fn run_52_keyed_frames_go_to_the_instance_they_name() {
    let bench = bench();
    bench.load("of:a", 1, None);
    let (log, _subscription) = listen(&bench);
    bench.server.push(
        vec![keyed(
            upsert("of:a", 2, Some(value!("b"))),
            "user:did%3Akey%3Az6MkBob",
        )],
        None,
    );
    bench.settle();
    let id = EntityId::from("of:a");
    let bob = ScopeIdentity::user("did:key:z6MkBob");
    assert!(replica(&bench).get_document(&id, Scope::User, None).is_none());
    assert!(
        replica(&bench)
            .get_document(&id, Scope::User, Some(&bob))
            .is_some()
    );
    let address = log.0.borrow()[0].changes[0].address.clone();
    assert_eq!(
        address.scope_key.map(|k| k.to_string()).as_deref(),
        Some("user:did%3Akey%3Az6MkBob")
    );
}

#[test]
fn run_51_an_overtaken_upsert_is_ignored() {
    let bench = bench();
    bench.load("of:a", 5, Some(value!(5)));
    bench.server.push(vec![upsert("of:a", 4, Some(value!(4)))], None);
    bench.settle();
    assert_shown(&bench, "of:a", value!(5));
}

#[test]
fn run_53_hidden_foreign_novelty_clamps_the_floor_and_clears_on_promotion() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "x": 0, "y": 0 })));
    let flips = Rc::new(RefCell::new(0));
    let counter = Rc::clone(&flips);
    replica(&bench).on_shadow_flip(move || *counter.borrow_mut() += 1);
    let outcome = write(&bench, "of:a", &["x"], 1);
    bench.settle();
    let (request, _) = bench.server.take_commit();
    assert_eq!(replica(&bench).unapplied_foreign_seq_floor(), None);
    bench
        .server
        .push(vec![upsert("of:a", 2, Some(value!({ "x": 0, "y": 2 })))], None);
    bench.settle();
    assert_eq!(replica(&bench).unapplied_foreign_seq_floor(), Some(Seq(2)));
    bench.server.accept(&request, 3);
    bench.server.push(vec![], Some(1));
    bench.settle();
    assert_settled(&outcome, Ok(()));
    assert_eq!(replica(&bench).unapplied_foreign_seq_floor(), None);
    assert_eq!(*flips.borrow(), 1);
    assert_shown(&bench, "of:a", value!({ "x": 1, "y": 2 }));
}

#[test]
fn run_53_an_echo_of_the_own_commit_is_no_novelty() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "x": 0 })));
    let _outcome = write(&bench, "of:a", &["x"], 1);
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 2);
    bench
        .server
        .push(vec![upsert("of:a", 2, Some(value!({ "x": 1 })))], None);
    bench.settle();
    assert_eq!(replica(&bench).unapplied_foreign_seq_floor(), None);
}

#[test]
fn run_55_a_covered_load_waits_for_the_covering_one_and_sends_nothing() {
    let bench = bench();
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    let everything = runner::replica::Selector::new(path(["value"]), Some(Value::Bool(true)));
    let first = bench.storage.load(&document, everything, None);
    bench.settle();
    let second = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    bench.settle();
    let request = bench.server.take("session.watch.add");
    assert_eq!(bench.server.pending_requests(), 0);
    assert!(!second.is_settled(), "resolved means the data is here");
    bench
        .server
        .answer_watch(&request, vec![upsert("of:a", 1, Some(value!(1)))]);
    bench.settle();
    assert!(matches!(
        (first.peek(), second.peek()),
        (Some(Ok(())), Some(Ok(())))
    ));
}

#[test]
fn run_56_one_bad_watch_fails_alone() {
    let bench = bench();
    let load = |id: &str| {
        let document = Address::document(SPACE.into(), id.into(), Scope::Space);
        bench
            .storage
            .load(&document, runner::replica::Selector::rejecting(), None)
    };
    let (bad, good) = (load("of:bad"), load("of:good"));
    bench.settle();
    let both = bench.server.take("session.watch.add");
    bench.server.reject(&both, ErrorName::Query, "no such thing");
    bench.settle();
    let one = bench.server.take("session.watch.add");
    bench.server.reject(&one, ErrorName::Query, "no such thing");
    bench.settle();
    assert!(matches!(bad.peek(), Some(Err(_))));
    assert!(!good.is_settled());
    let other = bench.server.take("session.watch.add");
    bench
        .server
        .answer_watch(&other, vec![upsert("of:good", 1, Some(value!(1)))]);
    bench.settle();
    assert!(matches!(good.peek(), Some(Ok(()))));
    assert!(!replica(&bench).knows(&EntityId::from("of:bad"), Scope::Space, None));
}

#[test]
fn run_57_62_a_foreign_instance_is_named_the_own_one_is_not() {
    let bench = bench();
    let slot = Address::document(SPACE.into(), "of:a".into(), Scope::User);
    let bob = ScopeIdentity::user("did:key:z6MkBob");
    let own = bench.storage.identity();
    let _theirs = bench.storage.sync_instance(&slot, &bob);
    let _mine = bench.storage.sync_instance(&slot, &own);
    bench.settle();
    let request = bench.server.take("session.watch.add");
    let ClientMessage::WatchAdd(add) = &request.message else {
        panic!("{:?}", request.message)
    };
    let watches = Watch::list_from_values(&add.watches).expect("well-formed watches");
    let keys: Vec<_> = watches
        .iter()
        .map(|w| w.query.roots[0].entity_scope_key.as_ref().map(|k| k.to_string()))
        .collect();
    assert_eq!(keys, [Some("user:did%3Akey%3Az6MkBob".to_owned()), None]);
}

#[test]
fn run_59_a_serving_manager_refuses_foreign_scoped_reads_and_registers_no_load() {
    let bench = bench_with(server_flags(), |o| {
        o.serving_home_space = Some("did:key:z6MkHome".into())
    });
    let bob = ScopeIdentity::user("did:key:z6MkBob");
    let scoped = Address::document(SPACE.into(), "of:a".into(), Scope::User);
    let refused = bench.storage.sync_instance(&scoped, &bob);
    let message = refused
        .peek()
        .and_then(Result::err)
        .expect("refused at once")
        .to_string();
    assert!(
        message.starts_with("foreign scoped read refused on the serving path"),
        "{message}"
    );
    assert!(bench.storage.pending_load_addresses().is_empty());
    let tx = RunTx::open(&bench.storage);
    assert!(tx.read(&scoped, ReadMeta::RECURSIVE).is_err());
    let plain = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    assert!(tx.read(&plain, ReadMeta::RECURSIVE).is_ok());
}

#[test]
fn run_61_a_kick_is_reserved_once_and_handed_back_only_by_its_own_failure() {
    let bench = bench();
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    bench.storage.kick(&document, None);
    bench.storage.kick(&document, None);
    bench.settle();
    let request = bench.server.take("session.watch.add");
    assert_eq!(bench.server.pending_requests(), 0);
    bench.server.reject(&request, ErrorName::Query, "no");
    bench.settle();
    bench.storage.kick(&document, None);
    bench.settle();
    bench.server.take("session.watch.add");
}

#[test]
fn run_65_a_resumed_session_gets_unanswered_commits_again_in_local_order() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let outcomes = [write(&bench, "of:b", &[], 1), write(&bench, "of:c", &[], 2)];
    bench.settle();
    let sent: Vec<_> = (0..2).map(|_| bench.server.take_commit().1).collect();
    bench.server.hang_up();
    bench.settle();
    let third = write(&bench, "of:d", &[], 3);
    bench.settle();
    assert_eq!(bench.server.connections(), 1, "the back-off has not passed");
    bench.clock.advance(25);
    bench.settle();
    assert_eq!(bench.server.connections(), 2);
    let reopened = bench.server.opens().pop().expect("a second open");
    assert!(reopened.session.session_token.is_some() && reopened.session.seen_seq == Some(1.0));
    for (n, original) in sent.iter().enumerate() {
        let (request, again) = bench.server.take_commit();
        assert!(
            value_equal(&again.value, &original.value),
            "a resend is the very same commit"
        );
        bench.server.accept(&request, 10 + n as u64);
    }
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 12);
    bench.server.push(vec![], Some(3));
    bench.settle();
    for outcome in outcomes.iter().chain([&third]) {
        assert_settled(outcome, Ok(()));
    }
}

#[test]
fn run_65_a_replaced_session_applies_parked_accepts_and_rejects_the_unknown() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let parked = bump(&bench, "of:a");
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 2);
    bench.settle();
    assert!(!parked.is_settled());
    let unknown = write(&bench, "of:b", &[], 1);
    bench.settle();
    bench.server.take_commit();
    bench.server.set_resume(false);
    bench.server.hang_up();
    bench.settle();
    let unsent = write(&bench, "of:c", &[], 1);
    bench.clock.advance(25);
    bench.settle();
    assert_settled(&parked, Ok(()));
    assert_settled(&unknown, Err(CommitErrorName::Session));
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(2));
    // The watch set goes out whole, and what was never sent goes out now.
    let mut kinds = vec![
        bench.server.take("").message.type_name(),
        bench.server.take("").message.type_name(),
    ];
    kinds.sort_unstable();
    assert_eq!(kinds, ["session.watch.set", "transact"]);
    assert!(!unsent.is_settled());
}

#[test]
fn wire_781_back_off_doubles_and_a_refused_open_fails_what_waits() {
    let bench = bench();
    bench
        .server
        .refuse_next_open(ErrorName::Authorization, "Principal lacks READ");
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    let load = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    bench.settle();
    assert!(matches!(load.peek(), Some(Err(_))));
    assert_eq!(
        bench.storage.authorization_error(&bench.space()).as_deref(),
        Some("Principal lacks READ")
    );
    // Asking again tries again, after the back-off, and a success clears the standing error.
    let again = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    bench.settle();
    assert!(!again.is_settled());
    bench.clock.advance(25);
    bench.settle();
    let request = bench.server.take("session.watch.");
    bench.server.answer_watch(&request, vec![upsert("of:a", 1, None)]);
    bench.settle();
    assert!(matches!(again.peek(), Some(Ok(()))));
    assert_eq!(bench.storage.authorization_error(&bench.space()), None);
}

#[test]
fn run_38_without_stacks_a_commit_waits_for_the_layers_it_cannot_name() {
    let bench = bench_with(
        Flags {
            pending_read_stacks: false,
            ..server_flags()
        },
        |_| {},
    );
    bench.load("of:a", 1, Some(value!(1)));
    let _outcomes = [bump(&bench, "of:a"), bump(&bench, "of:a"), bump(&bench, "of:a")];
    bench.settle();
    let (r1, _) = bench.server.take_commit();
    let (_r2, c2) = bench.server.take_commit();
    assert_eq!(
        (&c2.reads.pending[0].local_seqs[..], c2.reads.pending[0].basis_seq),
        (&[LocalSeq(1)][..], None)
    );
    assert_eq!(
        bench.server.pending_requests(),
        0,
        "the third stands on two layers"
    );
    bench.server.accept(&r1, 2);
    bench.server.push(vec![], Some(1));
    bench.settle();
    let (_r3, c3) = bench.server.take_commit();
    assert_eq!(c3.reads.pending[0].local_seqs, [LocalSeq(2)]);
}

#[test]
fn run_65_reset_rejects_locally_and_leaves_nothing_pending() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let outcome = bump(&bench, "of:a");
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 2);
    bench.settle();
    let waiting = write(&bench, "of:b", &[], 1);
    let (log, _subscription) = listen(&bench);
    replica(&bench).reset();
    assert_settled(&outcome, Ok(()));
    assert_settled(&waiting, Err(CommitErrorName::Conflict));
    assert!(shown(&bench, "of:a").is_none());
    assert_eq!(
        log.0.borrow().last().map(|n| n.kind),
        Some(NotificationKind::Reset)
    );
    assert!(bench.storage.synced().is_settled());
}

#[test]
fn i_19_closing_settles_everything() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let outcome = bump(&bench, "of:a");
    let document = Address::document(SPACE.into(), "of:z".into(), Scope::Space);
    let load = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    let before = bench.storage.session_id();
    bench.storage.close();
    assert_settled(&outcome, Err(CommitErrorName::Connection));
    assert!(matches!(load.peek(), Some(Err(_))));
    assert_ne!(
        bench.storage.session_id(),
        before,
        "RUN-10: close invalidates the session id"
    );
}

#[test]
fn run_70_one_failing_subscriber_does_not_stop_the_others() {
    struct Panics;
    impl NotificationSink for Panics {
        fn notify(&self, _: &Notification) {
            panic!("a subscriber's own fault");
        }
    }
    let bench = bench();
    let _first = bench.storage.subscribe(Rc::new(Panics));
    let (log, _second) = listen(&bench);
    let _outcome = write(&bench, "of:a", &[], 1);
    assert_eq!(log.kinds(), [NotificationKind::Commit]);
}

#[test]
fn run_90_a_mergeable_append_reads_nothing_that_conflicts() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "items": [1] })));
    let tx = RunTx::open(&bench.storage);
    let items = at("of:a", &["items"]);
    let mechanics = ReadMeta {
        mergeable_op: true,
        ..ReadMeta::RECURSIVE
    };
    tx.read(&items, mechanics).expect("readable");
    tx.merging(&items, MergeableOp::Append, || {
        tx.write(&at("of:a", &["items", "1"]), Some(2.into()))
    })
    .expect("the write is taken");
    let _outcome = tx.commit();
    bench.settle();
    let (_, commit) = bench.server.take_commit();
    assert!(
        commit.reads.confirmed.is_empty() && commit.reads.pending.is_empty(),
        "{:?}",
        commit.reads
    );
    let patch = commit
        .value
        .member("operations")
        .and_then(Value::as_array)
        .and_then(|ops| ops.get(0))
        .cloned();
    let expected = value!({ "op": "patch", "id": "of:a", "patches": [
        { "op": "append", "path": "/value/items", "values": [2] }
    ]});
    assert!(value_equal(&patch.expect("one operation"), &expected));
}

#[test]
fn run_86_a_document_that_moved_under_the_transaction_fails_it() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let tx = RunTx::open(&bench.storage);
    tx.read_value(&at("of:a", &[])).expect("readable");
    tx.write(&at("of:b", &[]), Some(1.into()))
        .expect("the write is taken");
    bench.server.push(vec![upsert("of:a", 2, Some(value!(2)))], None);
    bench.settle();
    assert_settled(&tx.commit(), Err(CommitErrorName::Inconsistent));
    assert_eq!(
        tx.reactivity_log().reads.len(),
        1,
        "the journal stays, so that the run can resubscribe"
    );
}

#[test]
fn run_84_a_second_space_needs_saying_so() {
    let bench = bench();
    let tx = RunTx::open(&bench.storage);
    tx.write(&at("of:a", &[]), Some(1.into()))
        .expect("the first space is free");
    let other =
        Address::document("did:key:z6MkOther".into(), "of:a".into(), Scope::Space).at(path(["value"]));
    let refused = tx.write(&other, Some(1.into())).expect_err("a second space");
    assert!(
        refused
            .to_string()
            .starts_with("StorageTransactionWriteIsolationError"),
        "{refused}"
    );
    tx.enable_multi_space_writes(None);
    tx.write(&other, Some(1.into())).expect("allowed now");
}

#[test]
fn run_95_verdict_callbacks_run_before_commit_callbacks_each_once() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let order = Rc::new(RefCell::new(Vec::new()));
    let tx = RunTx::open(&bench.storage);
    tx.write(&at("of:a", &[]), Some(2.into()))
        .expect("the write is taken");
    let (verdicts, commits) = (Rc::clone(&order), Rc::clone(&order));
    tx.on_commit(move |_, outcome| commits.borrow_mut().push(("commit", outcome.is_ok())));
    tx.on_verdict(move |_, outcome| verdicts.borrow_mut().push(("verdict", outcome.is_ok())));
    let _outcome = tx.commit();
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 2);
    bench.settle();
    assert_eq!(
        *order.borrow(),
        [("verdict", true)],
        "settlement waits for coverage"
    );
    bench.server.push(vec![], Some(1));
    bench.settle();
    assert_eq!(*order.borrow(), [("verdict", true), ("commit", true)]);
}

#[test]
fn run_78_79_events_go_out_one_at_a_time_and_are_retried_in_place() {
    use memory_wire::stream_entry::StreamLink;
    use runner::event_append_queue::{AppendOutcome, EventIntent};
    let bench = bench_with(server_flags(), |o| o.server_execution = true);
    let fire = |event: &str| {
        replica(&bench).append_event(EventIntent {
            stream: StreamLink {
                id: "of:s".into(),
                path: Vec::new(),
                scope: Scope::Space,
            },
            event_id: event.into(),
            payload: Some(value!({ "n": 1 })),
            runtime_injected_event_keys: None,
            renderer_trusted: false,
        })
    };
    let (first, second, third) = (fire("e1"), fire("e2"), fire("e3"));
    bench.settle();
    let (request, commit) = bench.server.take_commit();
    assert_eq!(commit.event_appends[0].event_id.as_str(), "e1");
    assert!(commit.reads.confirmed.is_empty());
    assert_eq!(bench.server.pending_requests(), 0, "one append in flight");
    bench
        .server
        .reject(&request, ErrorName::Transaction, "disk on fire");
    bench.settle();
    assert_eq!(bench.server.pending_requests(), 0);
    bench.clock.advance(250);
    bench.settle();
    let (request, again) = bench.server.take_commit();
    assert_eq!(
        again.event_appends[0].event_id.as_str(),
        "e1",
        "order within a stream is kept"
    );
    assert_ne!(
        again.local_seq, commit.local_seq,
        "every attempt has its own number"
    );
    bench.server.reject(
        &request,
        ErrorName::EventAppendDuplicate,
        "event append e1 duplicates",
    );
    bench.settle();
    assert!(matches!(
        first.peek(),
        Some(AppendOutcome::Delivered { deduplicated: true })
    ));
    let (request, _) = bench.server.take_commit();
    bench.server.reject(&request, ErrorName::Protocol, "never");
    bench.settle();
    assert!(matches!(second.peek(), Some(AppendOutcome::Refused(_))));
    let (request, _) = bench.server.take_commit();
    bench.server.accept(&request, 5);
    bench.settle();
    assert!(matches!(
        third.peek(),
        Some(AppendOutcome::Delivered { deduplicated: false })
    ));
}

#[test]
fn run_96_an_edit_is_repeated_over_what_it_collided_with() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let (storage, address) = (bench.storage.clone(), at("of:a", &[]));
    let opens = bench.storage.clone();
    let outcome = runner::transaction::edit_with_retry(
        &storage,
        move || RunTx::open(&opens),
        move |tx| {
            let n = tx.read_value(&address)?.as_f64().unwrap_or(0.0);
            tx.write(&address, Some(Value::Number(n + 1.0)))
        },
    );
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.reject(
        &request,
        ErrorName::Conflict,
        "stale confirmed read: of:a at seq 1 conflicted with seq 2",
    );
    bench
        .server
        .push(vec![upsert("of:a", 2, Some(value!(40)))], Some(1));
    bench.settle();
    let (request, commit) = bench.server.take_commit();
    assert_eq!(commit.reads.confirmed[0].seq, Seq(2));
    bench.server.accept(&request, 3);
    bench.server.push(vec![], Some(2));
    bench.settle();
    assert_settled(&outcome, Ok(()));
    assert_shown(&bench, "of:a", value!(41));
}

#[test]
fn run_96_terminal_errors_and_failing_bodies_are_not_repeated() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let opens = bench.storage.clone();
    let address = at("of:a", &[]);
    let outcome = runner::transaction::edit_with_retry(
        &bench.storage.clone(),
        move || RunTx::open(&opens),
        move |tx| tx.write(&address, Some(2.into())),
    );
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.reject(&request, ErrorName::RowLabelCommit, "no");
    bench.settle();
    assert_settled(&outcome, Err(CommitErrorName::RowLabel));
    let opens = bench.storage.clone();
    let failing = runner::transaction::edit_with_retry(
        &bench.storage.clone(),
        move || RunTx::open(&opens),
        |_| Err(runner::error::RunnerError::Closed("the body's own reason")),
    );
    assert_settled(&failing, Err(CommitErrorName::Aborted));
    bench.settle();
    assert_eq!(bench.server.pending_requests(), 0);
}

#[test]
fn run_66_a_route_may_change_only_before_anything_was_written_over_it() {
    let bench = bench();
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    let load = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    let reader = RunTx::open(&bench.storage);
    reader.read_value(&at("of:a", &[])).expect("readable");
    let route = bench.server.connector();
    bench
        .storage
        .reroute(&bench.space(), route)
        .expect("nothing was written");
    bench.settle();
    let request = bench.server.take("session.watch.");
    bench
        .server
        .answer_watch(&request, vec![upsert("of:a", 1, Some(value!(1)))]);
    bench.settle();
    assert!(
        matches!(load.peek(), Some(Ok(()))),
        "reads in progress go over to the replacement"
    );
    reader
        .write(&at("of:b", &[]), Some(1.into()))
        .expect("the write is taken");
    assert_settled(&reader.commit(), Err(CommitErrorName::Inconsistent));
    let _outcome = write(&bench, "of:c", &[], 1);
    assert!(
        bench
            .storage
            .reroute(&bench.space(), bench.server.connector())
            .is_err()
    );
}

#[test]
fn run_50_a_frame_with_an_unsatisfied_schema_reference_is_refused_whole() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let link =
        value!({ "/": { "link@1": { "id": "of:b", "path": [], "schema": "schema-ref@2:fid1:nothing" } } });
    bench.server.push(
        vec![upsert("of:x", 2, Some(value!(2))), upsert("of:a", 2, Some(link))],
        None,
    );
    bench.settle();
    assert_shown(&bench, "of:a", value!(1));
    assert!(shown(&bench, "of:x").is_none());
    bench.clock.advance(25);
    bench.settle();
    assert_eq!(
        bench.server.connections(),
        2,
        "what it carried comes again on a fresh line"
    );
}

#[test]
fn run_56_a_load_under_way_when_the_line_breaks_is_asked_again() {
    let bench = bench();
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    let load = bench
        .storage
        .load(&document, runner::replica::Selector::rejecting(), None);
    bench.settle();
    bench.server.take("session.watch.add");
    bench.server.hang_up();
    bench.settle();
    bench.clock.advance(25);
    bench.settle();
    let request = bench.server.take("session.watch.");
    bench
        .server
        .answer_watch(&request, vec![upsert("of:a", 1, Some(value!(1)))]);
    bench.settle();
    assert!(matches!(load.peek(), Some(Ok(()))));
    assert_shown(&bench, "of:a", value!(1));
}

#[test]
fn run_51_a_retraction_is_no_deletion_but_forgetting() {
    let bench = bench();
    bench.load("of:a", 3, Some(value!(1)));
    bench.server.retract("of:a");
    bench.settle();
    assert!(shown(&bench, "of:a").is_none());
    assert_eq!(replica(&bench).confirmed_seq(&key("of:a")), Seq(0));
    // A stale one for something unknown is ignored.
    bench.server.retract("of:never");
    bench.settle();
}

#[test]
fn wire_763_a_session_the_server_forgot_is_opened_again() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!(1)));
    let outcome = write(&bench, "of:b", &[], 1);
    bench.settle();
    let (request, _) = bench.server.take_commit();
    bench.server.set_resume(false);
    bench.server.reject(&request, ErrorName::Session, "Unknown or replaced session for space");
    bench.settle();
    assert_settled(&outcome, Err(CommitErrorName::Session));
    bench.clock.advance(25);
    bench.settle();
    assert_eq!(bench.server.opens().len(), 2);
    let request = bench.server.take("session.watch.set");
    bench.server.answer_watch(&request, vec![upsert("of:a", 4, Some(value!(4)))]);
    bench.settle();
    assert_shown(&bench, "of:a", value!(4));
}

#[test]
fn run_62_an_explicit_instance_that_is_the_own_one_is_not_named() {
    let bench = bench();
    let own = memory_wire::ScopeKey::resolve(Scope::User, &bench.storage.identity()).expect("resolvable");
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::User);
    let named = Address { scope_key: Some(own), ..document };
    let _load = bench.storage.load(&named, runner::replica::Selector::rejecting(), None);
    bench.settle();
    let request = bench.server.take("session.watch.add");
    let ClientMessage::WatchAdd(add) = &request.message else { panic!("{request:?}") };
    let watches = Watch::list_from_values(&add.watches).expect("well-formed watches");
    assert_eq!(watches[0].query.roots[0].entity_scope_key, None);
}
