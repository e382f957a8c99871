//! The serving loop over a real server, real stores and real runtimes (SS §20: T1, T6, T10, T14 and what a lost lease
//! leaves behind). Nothing here sleeps: tests wait on the watermark and look at stored rows and counters.

mod serving_bench;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memory_wire::value;
use runner::error::RunnerError;
use serving_bench::{Client, Counter, MovableClock, Place, Process, Row, Rows, place};
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
        alice.create(&counter, &place.root).await;
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
        let clock: Arc<std::sync::OnceLock<Arc<MovableClock>>> = Arc::default();
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
    async fn entries(&self, append: &Row) -> Vec<memory_wire::stream_entry::StreamEntry> {
        use memory_server::ServingPlane;
        let sidecar = memory_wire::EntityId::from(append.writes[0].split('@').next().expect("an id"));
        let engine = self.process.server.engine(&self.place.space).expect("a store");
        let stored = engine.read(move |reader| reader.read_space_value(&sidecar)).await;
        let stored = stored
            .and_then(|stored| stored)
            .expect("readable")
            .expect("a sidecar");
        let entries = stored
            .member("entries")
            .and_then(memory_wire::Value::as_array)
            .expect("entries")
            .clone();
        entries
            .elements()
            .filter_map(|(_, entry)| memory_wire::stream_entry::StreamEntry::from_value(entry))
            .collect()
    }
}
