//! The serving loop when something goes wrong: restarts, races, lost leases, failing handlers, refusing stores (SS §20:
//! T9, T10, T14). Nothing here sleeps: tests wait on the watermark and look at stored rows and counters.

mod serving_bench;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use memory_engine::StoreRoot;
use memory_wire::{Scope, Value, value};
use runner::error::RunnerError;
use runner::link::Link;
use serving_bench::{Counter, MovableClock, Process, Row, Setup, classes, on_threads, place};

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
