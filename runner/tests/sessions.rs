//! Loads, watches and sessions against a scripted wire: what is asked for, and what a line's end leaves behind.

mod wire_double;

use memory_wire::equality::value_equal;
use memory_wire::error::ErrorName;
use memory_wire::message::{ClientMessage, Watch};
use memory_wire::{EntityId, Scope, ScopeIdentity, Seq, Value, value};
use runner::address::{Address, path};
use runner::error::CommitErrorName;
use runner::replica::NotificationKind;
use runner::transaction::{ReadMeta, RunTx};
use wire_double::acts::{assert_settled, assert_shown, at, bump, key, listen, replica, shown, write};
use wire_double::{SPACE, bench, bench_with, server_flags, upsert};

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
    bench.server.reject(
        &request,
        ErrorName::Session,
        "Unknown or replaced session for space",
    );
    bench.settle();
    assert_settled(&outcome, Err(CommitErrorName::Session));
    bench.clock.advance(25);
    bench.settle();
    assert_eq!(bench.server.opens().len(), 2);
    let request = bench.server.take("session.watch.set");
    bench
        .server
        .answer_watch(&request, vec![upsert("of:a", 4, Some(value!(4)))]);
    bench.settle();
    assert_shown(&bench, "of:a", value!(4));
}

#[test]
fn run_62_an_explicit_instance_that_is_the_own_one_is_not_named() {
    let bench = bench();
    let own = memory_wire::ScopeKey::resolve(Scope::User, &bench.storage.identity()).expect("resolvable");
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::User);
    let named = Address {
        scope_key: Some(own),
        ..document
    };
    let _load = bench
        .storage
        .load(&named, runner::replica::Selector::rejecting(), None);
    bench.settle();
    let request = bench.server.take("session.watch.add");
    let ClientMessage::WatchAdd(add) = &request.message else {
        panic!("{request:?}")
    };
    let watches = Watch::list_from_values(&add.watches).expect("well-formed watches");
    assert_eq!(watches[0].query.roots[0].entity_scope_key, None);
}
