//! The replica against a scripted wire: verdicts, markers, cascades, seals, shadows, transactions and appends.

mod wire_double;

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::{EntityId, LocalSeq, Scope, ScopeIdentity, Seq, Value, value};
use runner::address::{Address, path};
use runner::error::CommitErrorName;
use runner::promise::Promise;
use runner::replica::{Notification, NotificationKind, NotificationSink};
use runner::transaction::{MergeableOp, NativeCommit, ReadMeta, RunTx, SealOptions, SealedVerdict};
use wire_double::acts::{assert_settled, assert_shown, at, bump, key, listen, replica, write};
use wire_double::{Bench, bench, bench_with, derived, keyed, server_flags, upsert};

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
    bench.server.reject(&r1, ErrorName::RowLabelCommit, "gone");
    bench.server.accept(&r2, 5);
    bench.settle();
    assert_settled(&first, Err(CommitErrorName::RowLabel));
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
