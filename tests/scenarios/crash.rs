//! kill −9 at the two places that matter: between an event and its consequence, and between a consequence and its
//! push. After a restart every acknowledged commit is there and every event has exactly one consequence.

use std::sync::Arc;

use memory_wire::identity::Signer;
use memory_wire::{Scope, Seq};
use tests::Client;
use tests::poll::{Poll, votes_in};
use tests::process::Launch;

use crate::poll::Demo;
use crate::store::{Store, sql};

/// A demo server whose lease a successor may take soon: what is tested is the hand-over, not its patience.
fn launch(data: &std::path::Path) -> Launch {
    Launch::demo(data).env("SERVER_EXECUTION_LEASE_TTL_MS", "2000")
}

/// What clients were told is durable.
#[derive(Default)]
struct Acknowledged {
    commits: Vec<Seq>,
    events: Vec<String>,
}

/// Kills a loaded demo server `rounds` times and checks the promise after each restart.
async fn kill_rounds(rounds: usize, wait_for_consequence: bool) {
    let data = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    let mut space = None;
    for round in 0..rounds {
        let server = launch(data.path()).start().unwrap();
        let poll = Poll::of(&server).unwrap();
        let signer = Arc::new(Signer::from_passphrase(&format!("voter {round}")));
        let mut client = Client::connect(&server.socket_url()).await.unwrap();
        let mut session = client.open(&poll.space, &signer).await.unwrap();
        client.watch(&session, poll.roots()).await.unwrap();
        // Everything acknowledged before is there, and was handled exactly once by the time it is settled.
        if let Some(last) = acknowledged.commits.last() {
            client.settled(&session, *last).await.unwrap();
        }
        check(&Store::open(data.path(), &poll.space), &acknowledged);

        for n in 0..3 {
            let event = poll.add_option(&format!("Option {round}.{n}"));
            let id = event.id.to_string();
            let applied = client
                .transact(&mut session, event.commit)
                .await
                .unwrap()
                .expect("admitted");
            acknowledged.commits.push(applied.seq);
            acknowledged.events.push(id);
            if wait_for_consequence && n == 0 {
                client.settled(&session, applied.seq).await.unwrap();
            }
        }
        // The last events are acknowledged, and nobody knows how far their consequences are.
        server.kill().unwrap();
        space = Some(poll.space.clone());
    }
    let server = launch(data.path()).start().unwrap();
    let poll = Poll::of(&server).unwrap();
    let mut client = Client::connect(&server.socket_url()).await.unwrap();
    let session = client
        .open(&poll.space, &Arc::new(Signer::from_passphrase("auditor")))
        .await
        .unwrap();
    client.watch(&session, poll.roots()).await.unwrap();
    client
        .settled(&session, *acknowledged.commits.last().unwrap())
        .await
        .unwrap();
    let store = Store::open(data.path(), space.as_ref().unwrap());
    check(&store, &acknowledged);
    for event in &acknowledged.events {
        assert_eq!(store.consequences_of(event).len(), 1, "event {event}");
    }
    for round in 0..rounds {
        for n in 0..3 {
            let title = format!("Option {round}.{n}");
            let tally = client
                .mirror(&session)
                .value(&poll.doc("tally"), Scope::Space)
                .cloned();
            assert_eq!(
                votes_in(tally.as_ref(), &title),
                Some(0.0),
                "{title} is in the derived tally once"
            );
        }
    }
    assert_eq!(store.integrity(), "ok");
    server.stop("TERM").unwrap();
}

fn check(store: &Store, acknowledged: &Acknowledged) {
    let commits = store.commits();
    for seq in &acknowledged.commits {
        assert!(
            commits
                .iter()
                .any(|c| c.seq == sql(*seq) && c.class == "authored"),
            "acknowledged commit {seq} is lost"
        );
    }
    for event in &acknowledged.events {
        assert!(
            store.consequences_of(event).len() <= 1,
            "event {event} has two consequences"
        );
    }
}

#[tokio::test]
async fn killed_between_event_and_consequence() {
    kill_rounds(4, false).await;
}

#[tokio::test]
async fn killed_between_consequence_and_push() {
    kill_rounds(4, true).await;
}

#[tokio::test]
async fn a_pending_event_is_handled_at_the_next_start_with_nobody_connected() {
    let demo = Demo::start_with(launch);
    let (mut a, mut sa) = demo.person("alice").await;
    let event = demo.poll.add_option("Left behind");
    let (id, commit) = (event.id.to_string(), event.commit);
    let applied = a.transact(&mut sa, commit).await.unwrap().expect("admitted");
    let Demo { data, server, poll } = demo;
    server.kill().unwrap();
    // Nobody opens a session: the boot scan alone must bring the space up (SS-109). Its watermark is the sign.
    let server = launch(data.path()).start().unwrap();
    let store = Store::open(data.path(), &poll.space);
    let mut polls = 0u32;
    while store.consequences_of(&id).is_empty() {
        // Each look is a round trip to the server, so this neither spins nor sleeps.
        server.get("/api/health/stats").unwrap();
        polls += 1;
        assert!(
            polls < 20_000,
            "the event of commit {} was never handled",
            applied.seq
        );
    }
    assert_eq!(store.consequences_of(&id).len(), 1);
    server.stop("TERM").unwrap();
}
