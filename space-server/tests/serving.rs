//! The serving loop over a real server, real stores and real runtimes (SS §20: T1, T6, T10, T14 and what a lost lease
//! leaves behind). Nothing here sleeps: tests wait on the watermark and look at stored rows and counters.

mod serving_bench;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use memory_engine::StoreRoot;
use memory_wire::stream_entry::StreamEntry;
use memory_wire::{EntityId, Scope, Value, value, well_known};
use runner::error::RunnerError;
use runner::link::Link;
use serving_bench::{Client, Counter, MovableClock, Place, Process, Row, Rows, place, place_in};
use tokio::task::LocalSet;

/// A process with the counter made by Alice, watched by her, and at rest.
struct Setup {
    data: tempfile::TempDir,
    clock: Arc<MovableClock>,
    counter: Counter,
    place: Place,
    process: Process,
    alice: Client,
    rows: Rows,
    head: u64,
}

impl Setup {
    async fn new(counter: Counter) -> Setup {
        let data = tempfile::tempdir().expect("a directory");
        let clock = Arc::new(MovableClock::default());
        let process = Process::start(data.path(), &clock, &counter);
        let place = place(&counter);
        let alice = process.client("alice");
        alice.create(&counter, &place.root, value!({})).await;
        alice.watch(&place.root);
        let rows = Rows::open(data.path(), &place.space);
        let head = place.rest(&alice, &rows).await;
        Setup {
            data,
            clock,
            counter,
            place,
            process,
            alice,
            rows,
            head,
        }
    }

    async fn fire(&self, by: f64) -> String {
        self.alice
            .fire(&self.place.link("add"), value!({ "by": by }))
            .await
            .as_str()
            .to_owned()
    }

    async fn rest(&self) -> u64 {
        self.place.rest(&self.alice, &self.rows).await
    }

    /// The commits since the setup came to rest.
    fn news(&self) -> Vec<Row> {
        self.rows.since(self.head)
    }
}

fn on_threads<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(LocalSet::new().run_until(test()));
}

fn classes(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.class.as_str()).collect()
}

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

impl Setup {
    async fn value(&self, name: &str) -> Option<f64> {
        let cell = self.alice.runtime.cell(self.place.link(name));
        let value = self.alice.runtime.wait_on(cell.pull()).await.expect("readable");
        value.to_value().as_f64()
    }
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

/// T10: an event that nobody served is delivered after a restart, without any client: boot discovery finds it.
#[test]
fn t10_a_pending_event_is_served_after_a_restart_without_a_client() {
    on_threads(|| async {
        let Setup {
            data,
            clock,
            counter,
            place,
            process,
            alice,
            rows,
            head,
        } = Setup::new(Counter::default()).await;
        process.host.close().await;
        assert_eq!(process.counters().active_spaces, 0);
        assert_eq!(process.counters().lease.held, 0);
        let event = alice.fire(&place.link("add"), value!({ "by": 1 })).await;
        assert_eq!(rows.head(), head + 1, "admitted, and nobody derives");
        alice.leave();
        process.server.shut_down().await;
        drop(process);

        let process = Process::start(data.path(), &clock, &counter);
        let bystander = process.bystander();
        bystander.watermark(&place.space, move |w| w > head + 1).await;
        let rows = rows.since(head);
        assert_eq!(classes(&rows), ["authored", "derived", "derived"], "{rows:#?}");
        assert_eq!(rows[1].consequence_of, [event.as_str()]);
        assert_eq!(counter.runs(), 1);
        process.stop().await;
    });
}

/// A wave whose tenure ends before its commit step lands nothing; a fresh activation delivers its event once.
#[test]
fn ss_206_a_lease_lost_in_the_middle_of_a_wave_aborts_it() {
    on_threads(|| async {
        let clock: Arc<OnceLock<Arc<MovableClock>>> = Arc::default();
        let (slept, sleeper) = (Arc::new(AtomicBool::new(false)), Arc::clone(&clock));
        let once = Arc::clone(&slept);
        let setup = Setup::new(Counter::with(move || {
            // The host is suspended for longer than its lease lives, while the handler runs.
            if !once.swap(true, Ordering::SeqCst) {
                sleeper.get().expect("a clock").advance(16_000);
            }
            Ok(())
        }))
        .await;
        clock
            .set(Arc::clone(&setup.clock))
            .unwrap_or_else(|_| panic!("set once"));
        let event = setup.fire(1.0).await;
        setup.rest().await;
        let rows = setup.news();
        let named: Vec<&Row> = rows
            .iter()
            .filter(|row| row.consequence_of.contains(&event))
            .collect();
        assert_eq!(named.len(), 1, "{rows:#?}");
        assert_eq!(setup.counter.runs(), 2, "the aborted run and its repetition");
        assert_eq!(
            setup.value("count").await,
            Some(1.0),
            "its first run left nothing behind"
        );
        let counters = setup.process.counters();
        assert_eq!((counters.active_spaces, counters.lease.held), (1, 1));
        setup.process.stop().await;
    });
}

/// T14 in small: the error is the consequence, and the stream moves on (SS-817).
#[test]
fn ss_817_an_error_is_the_consequence_and_does_not_wedge_the_stream() {
    on_threads(|| async {
        let broken = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&broken);
        let setup = Setup::new(Counter::with(move || match flag.swap(false, Ordering::SeqCst) {
            true => Err(RunnerError::Refused {
                reason: "not today".to_owned(),
            }),
            false => Ok(()),
        }))
        .await;
        let refused = setup.fire(1.0).await;
        setup.rest().await;
        let accepted = setup.fire(2.0).await;
        setup.rest().await;
        let rows = setup.news();
        assert_eq!(
            classes(&rows),
            ["authored", "derived", "derived", "authored", "derived", "derived"],
            "{rows:#?}"
        );
        assert_eq!(rows[1].consequence_of, [refused.as_str()]);
        assert_eq!(rows[4].consequence_of, [accepted.as_str()]);
        assert_eq!(setup.value("count").await, Some(2.0));
        let entries = setup.entries(&rows[0]).await;
        let of = |event: &str| {
            entries
                .iter()
                .find(|entry| entry.event_id.as_str() == event)
                .expect("an entry")
        };
        assert_eq!(of(&refused).error.as_deref(), Some("not today"));
        assert!(of(&refused).consequenced && of(&accepted).consequenced);
        assert_eq!(of(&accepted).error, None);
        setup.process.stop().await;
    });
}

impl Setup {
    /// The entries of the stream that `append` appended to, as stored.
    async fn entries(&self, append: &Row) -> Vec<StreamEntry> {
        self.entries_of(EntityId::from(append.writes[0].split('@').next().expect("an id")))
            .await
    }

    async fn entries_of(&self, sidecar: EntityId) -> Vec<StreamEntry> {
        use memory_server::ServingPlane;
        let engine = self.process.server.engine(&self.place.space).expect("a store");
        let stored = engine.read(move |reader| reader.read_space_value(&sidecar)).await;
        let stored = stored
            .and_then(|stored| stored)
            .expect("readable")
            .expect("a sidecar");
        let entries = stored
            .member("entries")
            .and_then(Value::as_array)
            .expect("entries")
            .clone();
        entries
            .elements()
            .filter_map(|(_, entry)| StreamEntry::from_value(entry))
            .collect()
    }
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

/// T9: a write that lands under a handler takes its whole event back to the stream; it runs again over the newer
/// state and lands once.
#[test]
fn t9_a_write_under_a_handler_requeues_its_event() {
    on_threads(|| async {
        let race: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>> = Arc::default();
        let racing = Arc::clone(&race);
        let setup = Setup::new(Counter::with(move || {
            if let Some(race) = racing.get() {
                race();
            }
            Ok(())
        }))
        .await;
        let (server, executor) = (
            Arc::clone(&setup.process.server),
            tokio::runtime::Handle::current(),
        );
        let (space, count) = (setup.place.space.clone(), setup.place.link("count").id);
        let raced = AtomicBool::new(false);
        let write = move || {
            if raced.swap(true, Ordering::SeqCst) {
                return;
            }
            let (server, executor, space, count) =
                (server.clone(), executor.clone(), space.clone(), count.clone());
            let written = std::thread::spawn(move || {
                executor
                    .block_on(server.write_document(&space, &count, Value::from(100.0)))
                    .expect("written")
            });
            written.join().expect("written");
        };
        race.set(Box::new(write)).unwrap_or_else(|_| panic!("set once"));
        let event = setup.fire(1.0).await;
        setup.rest().await;
        let rows = setup.news();
        // The wave that lost its only event promised nothing either: the watermark waits for the event (SS-586).
        assert_eq!(
            classes(&rows),
            ["authored", "system", "derived", "derived"],
            "{rows:#?}"
        );
        let named: Vec<&Row> = rows
            .iter()
            .filter(|row| row.consequence_of.contains(&event))
            .collect();
        assert_eq!(named.len(), 1, "{rows:#?}");
        assert_eq!(setup.counter.runs(), 2);
        assert_eq!(
            setup.value("count").await,
            Some(101.0),
            "the second run stands on the write it lost to"
        );
        assert_eq!(setup.value("doubled").await, Some(202.0));
        setup.process.stop().await;
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
        assert_eq!(classes(&rows.since(head)), ["authored", "derived", "derived"]);
        assert_eq!(counter.runs(), 1);
        assert_eq!(process.counters().active_spaces, 1);
        process.stop().await;
    });
}

/// What can never land ends as an error, and nothing else suffers: the store's refusal of one event's consequences
/// takes neither the stream nor the loop down.
#[test]
fn a_refused_wave_is_taken_apart_until_the_culprit_is_known() {
    on_threads(|| async {
        let setup = Setup::new(Counter::default()).await;
        let culprit = setup
            .alice
            .fire(&setup.place.link("add"), value!({ "by": 1, "poison": true }))
            .await;
        let innocent = setup.fire(2.0).await;
        setup.rest().await;
        let rows = setup.news();
        let named = |event: &str| {
            rows.iter()
                .filter(|row| row.consequence_of.iter().any(|e| e == event))
                .count()
        };
        assert_eq!((named(culprit.as_str()), named(&innocent)), (1, 1), "{rows:#?}");
        assert_eq!(setup.value("count").await, Some(2.0));
        let entries = setup.entries(&rows[0]).await;
        let error = entries
            .iter()
            .find(|entry| entry.event_id == culprit)
            .and_then(|entry| entry.error.clone());
        assert!(
            error.is_some_and(|error| error.contains("refused")),
            "{entries:?}"
        );
        assert!(entries.iter().all(|entry| entry.consequenced));
        assert_eq!(
            setup.process.counters().active_spaces,
            1,
            "the same tenure went on"
        );
        setup.process.stop().await;
    });
}

/// SS-817, SS-833: an event that nothing can ever handle ends as dropped.
#[test]
fn ss_833_an_event_without_a_piece_is_dropped_with_a_notice() {
    on_threads(|| async {
        let setup = Setup::new(Counter::default()).await;
        let nowhere = Link::to_document(setup.place.space.clone(), "of:nowhere".into(), Scope::Space);
        let event = setup.alice.fire(&nowhere, value!({ "by": 1 })).await;
        setup.rest().await;
        let rows = setup.news();
        let entries = setup.entries(&rows[0]).await;
        assert_eq!(entries.len(), 1);
        assert!(entries[0].dropped && entries[0].consequenced, "{entries:?}");
        assert!(entries[0].reason.is_some());
        let named: Vec<&Row> = rows
            .iter()
            .filter(|row| row.consequence_of == [event.as_str()])
            .collect();
        assert_eq!(named.len(), 1, "{rows:#?}");
        setup.process.stop().await;
    });
}

/// SS-105: a space whose activation failed is tried again, later.
#[test]
fn ss_105_a_failed_activation_is_followed_by_a_backoff() {
    on_threads(|| async {
        let counter = Counter::default();
        let data = tempfile::tempdir().expect("a directory");
        let place = place(&counter);
        // Something that is no store lies where the store should be.
        let path = StoreRoot::configured(data.path())
            .and_then(|root| root.store_path(&place.space))
            .expect("a path");
        std::fs::create_dir_all(&path).expect("made");
        let process = Process::start(data.path(), &Arc::new(MovableClock::default()), &counter);
        assert!(!process.host.warm(&place.space).await.expect("open"));
        assert_eq!(process.counters().reactivation_backoffs, 0);
        assert!(!process.host.warm(&place.space).await.expect("open"));
        assert_eq!(process.counters().reactivation_backoffs, 1);
        std::fs::remove_dir(&path).expect("removed");
        assert!(
            process.host.warm(&place.space).await.expect("open"),
            "served once the store opens"
        );
        process.stop().await;
    });
}
