//! The serving loop over a real server, real stores and real runtimes (SS §20: T1, T3, T4, T6, T13). Nothing here
//! sleeps: tests wait on the watermark and look at stored rows and counters.

mod serving_bench;

use std::sync::Arc;

use memory_wire::{EntityId, Scope, Value, value, well_known};
use serving_bench::{
    Client, Counter, MovableClock, Process, Row, Rows, Setup, classes, on_threads, place, place_in,
};

/// T1: one authored commit, one derived commit that names the event, carries the watermark and marks the entry, one
/// advance, and silence.
#[test]
fn t1_a_click_is_one_derived_commit_one_advance_and_silence() {
    on_threads(|| async {
        let setup = Setup::new(Counter::default()).await;
        let first = setup.fire(2.0).await;
        setup.rest().await;
        let rows = setup.news();
        assert_eq!(classes(&rows), ["authored", "derived", "derived"], "{rows:#?}");
        let (authored, derived, advance) = (&rows[0], &rows[1], &rows[2]);
        assert!(
            authored.session.contains(setup.alice.session().as_str()),
            "{authored:?}"
        );
        assert_eq!(derived.consequence_of, [first.as_str()]);
        assert_eq!(derived.derived_through, Some(authored.seq));
        assert_eq!(
            derived.holder.as_deref(),
            Some(derived.session.as_str()),
            "filed under its holder"
        );
        let sidecar = authored.writes[0].clone();
        assert!(
            derived.writes.contains(&sidecar),
            "the mark rides along: {derived:?}"
        );
        assert_eq!(advance.consequence_of, Vec::<String>::new());
        assert_eq!(advance.derived_through, Some(derived.seq));
        assert_eq!(advance.writes, ["of:server-execution-watermark@space"]);
        for attributed in derived.annotations.as_array().into_iter().flatten() {
            assert_eq!(attributed["actingUser"], setup.alice.did.as_str(), "{attributed}");
        }

        // Had anything more been committed, it would lie between the two clicks.
        let second = setup.fire(3.0).await;
        setup.rest().await;
        let rows = setup.news();
        assert_eq!(
            classes(&rows),
            ["authored", "derived", "derived", "authored", "derived", "derived"]
        );
        assert_eq!(rows[4].consequence_of, [second.as_str()]);

        let counters = setup.process.counters();
        assert_eq!(setup.counter.runs(), 2);
        assert_eq!((counters.events.appended, counters.events.processed), (2, 2));
        assert_eq!(counters.unstamped_seal_refusals, 0);
        assert_eq!(counters.undemanded_narrowing_runs, 0);
        assert_eq!(counters.superseded_writes, 0);
        assert_eq!(counters.active_spaces, 1);
        assert_eq!(setup.value("count").await, Some(5.0));
        assert_eq!(setup.value("doubled").await, Some(10.0));
        setup.process.stop().await;
    });
}

/// T6: another user's demand computes that user's instance and nothing else.
#[test]
fn t6_an_arriving_user_gets_an_instance_of_their_own() {
    on_threads(|| async {
        let setup = Setup::new(Counter::default()).await;
        setup.fire(2.0).await;
        let before = setup.rest().await;
        let share = setup.place.link("share").id;
        let of = |client: &Client| {
            format!(
                "{share}@user:{}",
                memory_wire::scope_key::encode_component(client.did.as_str())
            )
        };
        let written: Vec<String> = setup
            .rows
            .since(0)
            .into_iter()
            .flat_map(|row| row.writes)
            .collect();
        assert!(written.contains(&of(&setup.alice)), "{written:?}");

        let bob = setup.process.client("bob");
        assert!(!written.contains(&of(&bob)));
        bob.watch(&setup.place.root);
        let arrivals = setup.rows.head();
        let shared = bob.runtime.cell(setup.place.link("share"));
        bob.runtime.wait_on(shared.sync()).await;
        setup.place.reaches(&bob, &setup.rows, arrivals).await;
        let rows = setup.rows.since(before);
        let written: Vec<&String> = rows.iter().flat_map(|row| &row.writes).collect();
        assert!(written.contains(&&of(&bob)), "{rows:#?}");
        assert!(
            !written.contains(&&of(&setup.alice)),
            "nothing of Alice's runs again: {rows:#?}"
        );
        assert_eq!(classes(&rows), ["derived", "derived"], "{rows:#?}");
        assert!(setup.process.counters().demand_arrivals >= 2);
        setup.process.stop().await;
    });
}

/// T3: an event sent by a handler is handled in the same wave; one derived commit names both, and the entry lands
/// already marked, with the actor of its parent.
#[test]
fn t3_a_cascade_lands_in_one_wave() {
    on_threads(|| async {
        let setup = Setup::new(Counter::default()).await;
        let parent = setup
            .alice
            .fire(&setup.place.link("add"), value!({ "by": 3, "tell": true }))
            .await;
        setup.rest().await;
        let rows = setup.news();
        assert_eq!(classes(&rows), ["authored", "derived", "derived"], "{rows:#?}");
        let derived = &rows[1];
        assert_eq!(derived.consequence_of.len(), 2, "{derived:?}");
        assert_eq!(derived.consequence_of[0], parent.as_str());
        let stream = setup.place.link("tell");
        let sidecar = well_known::stream_sidecar_id(&stream.id, &stream.path, Scope::Space);
        let entries = setup.entries_of(sidecar).await;
        assert_eq!(entries.len(), 1);
        let entry = &entries[0];
        assert_eq!(entry.event_id.as_str(), derived.consequence_of[1]);
        assert_eq!(entry.seq.map(|seq| seq.0), Some(derived.seq));
        assert!(entry.consequenced);
        let fired_at = entry.fired_at.as_ref().expect("stamped");
        assert_eq!(fired_at.user.as_ref(), Some(&setup.alice.did));
        assert_eq!(fired_at.session, setup.alice.session());
        assert!(
            fired_at.client_seq.is_none(),
            "the server makes no client numbers"
        );
        assert_eq!(setup.value("told").await, Some(3.0));
        setup.process.stop().await;
    });
}

/// T4: an event sent into another space leaves as an outbox row, is admitted there for its actor, and is handled by
/// that space's own loop.
#[test]
fn t4_an_event_crosses_into_another_space() {
    on_threads(|| async {
        let counter = Counter::default();
        let target = place_in("the other space", &counter);
        let data = tempfile::tempdir().expect("a directory");
        let process = Process::start(data.path(), &Arc::new(MovableClock::default()), &counter);
        let alice = process.client("alice");
        alice.create(&counter, &target.root, value!({})).await;
        let home = place(&counter);
        let peer = target.link("add").to_value(None);
        alice.create(&counter, &home.root, value!({ "peer": peer })).await;
        for place in [&target, &home] {
            alice.watch(&place.root);
        }
        let (there, here) = (
            Rows::open(data.path(), &target.space),
            Rows::open(data.path(), &home.space),
        );
        let before = (target.rest(&alice, &there).await, home.rest(&alice, &here).await);

        alice
            .fire(&home.link("add"), value!({ "by": 4, "pass": true }))
            .await;
        home.reaches(&alice, &here, before.1).await;
        target.reaches(&alice, &there, before.0).await;
        assert_eq!(classes(&here.since(before.1)), ["authored", "derived", "derived"]);
        let rows = there.since(before.0);
        assert_eq!(classes(&rows), ["authored", "derived", "derived"], "{rows:#?}");
        let [user, session, capability] = there.carriage(rows[0].seq);
        assert_eq!(user.as_deref(), Some(alice.did.as_str()));
        assert_eq!(session.as_deref(), Some(alice.session().as_str()));
        assert!(capability.is_some_and(|capability| capability.starts_with("stream-append:")));
        assert_eq!(rows[1].consequence_of.len(), 1);
        assert_eq!(here.undelivered(), 0);
        let cell = alice.runtime.cell(target.link("count"));
        let count = alice
            .runtime
            .wait_on(cell.pull())
            .await
            .expect("readable")
            .to_value()
            .as_f64();
        assert_eq!(count, Some(4.0));
        process.stop().await;
    });
}

/// SS-101: a system commit, and an authored one without events or anybody there, wake nothing.
#[test]
fn ss_101_a_space_nobody_needs_stays_parked() {
    on_threads(|| async {
        let counter = Counter::default();
        let data = tempfile::tempdir().expect("a directory");
        let process = Process::start(data.path(), &Arc::new(MovableClock::default()), &counter);
        let (quiet, wanted) = (place(&counter), place_in("the other space", &counter));
        let note = EntityId::from("of:note");
        process
            .server
            .write_document(&quiet.space, &note, Value::from("system"))
            .await
            .expect("written");
        // The service's own session is nobody (SS-100), so its authored commit finds the space empty.
        process
            .bystander()
            .create(&counter, &quiet.root, value!({}))
            .await;
        // Notices are handled in order: once this one is answered, those before it have been.
        assert!(process.host.warm(&wanted.space).await.expect("open"));
        let counters = process.counters();
        assert_eq!((counters.active_spaces, counters.lease.held), (1, 1));
        assert_eq!(
            classes(&Rows::open(data.path(), &quiet.space).since(0)),
            ["system", "authored"]
        );
        process.stop().await;
    });
}

/// SS-502, SS-103: an idle space without clients parks and gives its lease back; the next event is served as ever.
#[test]
fn t13_an_idle_space_parks_and_is_served_again() {
    on_threads(|| async {
        let Setup {
            clock,
            counter,
            place,
            process,
            data: _data,
            alice,
            rows,
            ..
        } = Setup::new(Counter::default()).await;
        alice.leave();
        loop {
            // Longer than a detached session lives, from whenever the server noticed that she left.
            clock.advance(31_000);
            process.idle.end();
            tokio::select! {
                biased;
                () = process.statistics.until(|s| s.active_spaces == 0) => break,
                () = process.idle.begins() => {}
            }
        }
        assert_eq!(process.counters().lease.held, 0);
        let head = rows.head();

        let bob = process.client("bob");
        bob.fire(&place.link("add"), value!({ "by": 1 })).await;
        place.reaches(&bob, &rows, head).await;
        // A new tenure may first cover the last advance of the old one, depending on what came first.
        let said: Vec<Row> = rows
            .since(head)
            .into_iter()
            .filter(|row| !row.is_advance())
            .collect();
        assert_eq!(classes(&said), ["authored", "derived"], "{said:#?}");
        assert_eq!(counter.runs(), 1);
        assert_eq!(process.counters().active_spaces, 1);
        process.stop().await;
    });
}
