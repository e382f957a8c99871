//! Reconnect, lost and duplicated writes (F2…F8).

use std::sync::Arc;

use memory_server::{FaultPoints, SendRefused, ServingPlane};
use memory_wire::{SessionId, SpaceId};
use serde_json::json;

use crate::support::peer::{Peer, Told, Wire, commit, watching};
use crate::{Gate, effects_since, opened, removes, server, started_on, stored, until_connections, upserts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_query_set_edited_while_away_is_adopted_whole_and_then_told_in_differences() {
    let (server, _) = server(|_| ());
    let mut client = opened(&server, Wire::AsSocket, "a", "did:key:a").await;
    client
        .request(watching("session.watch.set", "a", "w1", &["of:1"]))
        .await;
    let mut told = Told::new("a");
    told.read(&client.asked, &client.heard);
    drop(client);
    until_connections(&server, 0).await;
    for round in 0..3 {
        let mut again = Peer::connect(&server, Wire::AsSocket).await;
        let answer = again
            .open("a", "did:key:a", told.token.as_deref(), told.position)
            .await
            .expect("connected");
        assert_eq!(answer["ok"]["resumed"], true, "round {round}: {answer}");
        let mut list = watching("session.watch.set", "a", "w2", &["of:2"]);
        list["watches"].as_array_mut().expect("a list").extend(
            watching("session.watch.set", "a", "w3", &["of:3"])["watches"]
                .as_array()
                .expect("a list")
                .clone(),
        );
        let full = again.request(list).await.expect("connected");
        let ids: Vec<String> = upserts(&full["ok"]["sync"])
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        assert_eq!(ids, ["of:2", "of:3"], "round {round}");
        assert_eq!(
            removes(&full["ok"]["sync"]),
            if round == 0 { vec!["of:1"] } else { vec![] }
        );
        let from = again.heard.len();
        let mut writer = opened(&server, Wire::InProcess, &format!("w{round}"), "did:key:w").await;
        writer
            .request(commit(
                &format!("w{round}"),
                1,
                &[("of:2", json!(round)), ("of:1", json!(round))],
            ))
            .await;
        let frames = effects_since(&server, &mut again, "a", from).await;
        assert_eq!(frames.len(), 1, "round {round}");
        assert_eq!(
            upserts(&frames[0]),
            [("of:2".to_owned(), json!(round))],
            "only what it asks for"
        );
        told = Told::new("a");
        told.read(&again.asked, &again.heard);
        drop((again, writer));
        until_connections(&server, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_two_tabs_with_the_same_numbers_neither_skip_nor_reorder_nor_double_a_write() {
    let (server, _) = server(|_| ());
    let mut one = opened(&server, Wire::AsSocket, "tab1", "did:key:a").await;
    let mut two = opened(&server, Wire::AsSocket, "tab2", "did:key:a").await;
    let mut seqs = Vec::new();
    for local in [5u64, 6] {
        for (peer, session) in [(&mut one, "tab1"), (&mut two, "tab2")] {
            let write = commit(
                session,
                local,
                &[(&format!("of:{session}-{local}"), json!(local))],
            );
            let first = peer.request(write.clone()).await.expect("connected");
            let second = peer.request(write).await.expect("connected");
            assert_eq!(
                second["ok"]["replayed"], true,
                "the retry is answered from the record"
            );
            assert_eq!(first["ok"]["seq"], second["ok"]["seq"]);
            seqs.push(first["ok"]["seq"].as_u64().expect("accepted"));
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4], "each once, in order");
    let reused = commit("tab1", 5, &[("of:other", json!("different"))]);
    let answer = one.request(reused).await.expect("connected");
    assert_eq!(answer["error"]["name"], "ProtocolError", "{answer}");
    assert_eq!(
        stored(&mut one, "tab1", "of:other").await["seq"],
        0,
        "nothing of it landed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_f5_a_result_that_never_arrived_is_still_there_for_its_author_and_applied_once() {
    let (server, clock) = server(|_| ());
    let mut author = opened(&server, Wire::AsSocket, "a", "did:key:a").await;
    let mut reader = opened(&server, Wire::AsSocket, "b", "did:key:b").await;
    reader
        .request(watching("session.watch.set", "b", "w", &["of:x"]))
        .await;
    let write = commit("a", 7, &[("of:x", json!("mine"))]);
    author.ask(write.clone()).await.expect("handled");
    let mut told = Told::new("a");
    told.read(&author.asked, &author.heard);
    drop(author);
    // Somebody else has it before its author knows.
    let from = reader.heard.len();
    let seen = effects_since(&server, &mut reader, "b", from).await;
    assert_eq!(upserts(&seen[0]), [("of:x".to_owned(), json!("mine"))]);
    until_connections(&server, 1).await;
    let mut again = Peer::connect(&server, Wire::AsSocket).await;
    let token = told.token.clone().expect("opened");
    again.open("a", "did:key:a", Some(&token), told.position).await;
    let verdict = again.request(write.clone()).await.expect("connected");
    assert_eq!(verdict["ok"]["seq"], 1, "{verdict}");
    drop(again);
    until_connections(&server, 1).await;
    // The session's record has expired; the store has not forgotten.
    clock.advance(40_000);
    let mut later = Peer::connect(&server, Wire::AsSocket).await;
    let answer = later
        .open("a", "did:key:a", Some(&token), 0)
        .await
        .expect("connected");
    assert!(answer["ok"].get("resumed").is_none(), "{answer}");
    let verdict = later.request(write).await.expect("connected");
    assert_eq!(verdict["ok"]["seq"], 1, "{verdict}");
    let next = later
        .request(commit("a", 8, &[("of:y", json!(1))]))
        .await
        .expect("connected");
    assert_eq!(next["ok"]["seq"], 2, "one commit, one seq");
    // Nobody may ask for it under another's name.
    let mut thief = Peer::connect(&server, Wire::AsSocket).await;
    let answer = thief.open("a", "did:key:b", None, 0).await.expect("connected");
    assert_eq!(answer["error"]["name"], "AuthorizationError", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_writes_made_while_the_server_was_down_land_once_in_order_after_it_comes_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = started_on(directory.path());
    let mut client = opened(&first, Wire::AsSocket, "a", "did:key:a").await;
    client
        .request(watching("session.watch.set", "a", "w", &["of:1", "of:2", "of:3"]))
        .await;
    client.request(commit("a", 1, &[("of:1", json!("before"))])).await;
    let mut told = Told::new("a");
    told.read(&client.asked, &client.heard);
    drop(client);
    first.shut_down().await;
    drop(first);
    // An empty registry: the token says nothing to it, the numbers do.
    let second = started_on(directory.path());
    let mut client = Peer::connect(&second, Wire::AsSocket).await;
    let answer = client
        .open("a", "did:key:a", told.token.as_deref(), told.position)
        .await
        .expect("connected");
    assert!(answer["ok"].get("resumed").is_none(), "{answer}");
    let mut seqs = Vec::new();
    for local in 1..=4u64 {
        let write = match local {
            1 => commit("a", 1, &[("of:1", json!("before"))]),
            n => commit("a", n, &[("of:2", json!(n)), ("of:3", json!(n * 10))]),
        };
        let verdict = client.request(write).await.expect("connected");
        seqs.push(
            verdict["ok"]["seq"]
                .as_u64()
                .unwrap_or_else(|| panic!("{verdict}")),
        );
    }
    assert_eq!(seqs, [1, 2, 3, 4]);
    let full = client
        .request(watching("session.watch.set", "a", "w", &["of:1", "of:2", "of:3"]))
        .await;
    assert_eq!(
        upserts(&full.expect("connected")["ok"]["sync"]),
        [
            ("of:1".to_owned(), json!("before")),
            ("of:2".to_owned(), json!(4)),
            ("of:3".to_owned(), json!(40))
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_write_made_while_a_half_dead_socket_swallowed_frames_arrives_at_the_resume() {
    let (server, _) = server(|_| ());
    let mut reader = opened(&server, Wire::AsSocket, "r", "did:key:r").await;
    reader
        .request(watching("session.watch.set", "r", "w", &["of:x"]))
        .await;
    let mut told = Told::new("r");
    told.read(&reader.asked, &reader.heard);
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    writer
        .request(commit("w", 1, &[("of:x", json!("swallowed"))]))
        .await;
    // It leaves the server and never arrives: nobody answers the server's pings any more.
    let swallowed = effects_since(&server, &mut reader, "r", 0).await;
    assert_eq!(swallowed.len(), 1);
    let mut again = Peer::connect(&server, Wire::AsSocket).await;
    let answer = again
        .open("r", "did:key:r", told.token.as_deref(), told.position)
        .await
        .expect("connected");
    assert_eq!(
        upserts(&answer["ok"]["sync"]),
        [("of:x".to_owned(), json!("swallowed"))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_herd_that_comes_back_after_a_restart_is_let_in_and_evaluated_once_each() {
    const HERD: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let first = started_on(directory.path());
    let mut writer = opened(&first, Wire::InProcess, "w", "did:key:w").await;
    writer.request(commit("w", 1, &[("of:x", json!(1))])).await;
    drop(writer);
    first.shut_down().await;
    drop(first);
    let server = started_on(directory.path());
    let coming: Vec<_> = (0..HERD)
        .map(|n| {
            let server = std::sync::Arc::clone(&server);
            tokio::spawn(async move {
                let session = format!("s{n}");
                let mut peer = Peer::connect(&server, Wire::AsSocket).await;
                let answer = peer
                    .open(&session, "did:key:r", Some("a token of the old process"), 1)
                    .await;
                assert_eq!(answer.expect("connected")["ok"]["sessionId"], session.as_str());
                let full = peer
                    .request(watching("session.watch.set", &session, "w", &["of:x"]))
                    .await;
                assert_eq!(
                    upserts(&full.expect("connected")["ok"]["sync"]),
                    [("of:x".to_owned(), json!(1))]
                );
                (session, peer)
            })
        })
        .collect();
    let mut herd = Vec::new();
    for one in coming {
        herd.push(one.await.expect("comes back"));
    }
    assert_eq!(server.session_count(), HERD);
    let before = server.work_stats();
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    writer.request(commit("w", 2, &[("of:x", json!(2))])).await;
    for (session, peer) in &mut herd {
        let from = peer.heard.len();
        let frames = effects_since(&server, peer, session, from).await;
        assert_eq!(frames.len(), 1, "{session}");
    }
    let after = server.work_stats();
    assert_eq!(
        after.frames_sent - before.frames_sent,
        HERD as u64 + 1,
        "the herd, and the writer's marker"
    );
    assert_eq!(
        after.evaluations - before.evaluations,
        HERD as u64 + 1,
        "no watch twice for one session"
    );
}

/// Holds up the turn at the frame of one session.
struct HeldUp(&'static str, Arc<Gate>);

impl FaultPoints for HeldUp {
    fn before_effect(&self, _: &SpaceId, session: &SessionId) -> Result<(), SendRefused> {
        if session.as_str() == self.0 {
            self.1.pass();
        }
        Ok(())
    }
}

/// On one thread, so that what is sent here is queued there before the next step: the resume stands before the end of the
/// old connection in the turn's queue.
#[tokio::test]
async fn f7_a_resume_that_overtakes_the_end_of_the_old_connection_tells_what_that_one_never_delivered() {
    let (gate, mut keeper) = Gate::new();
    let (server, _) = server(|config| config.faults = Arc::new(HeldUp("held", gate)));
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    let mut client = opened(&server, Wire::AsSocket, "a", "did:key:a").await;
    client
        .request(watching("session.watch.set", "a", "w", &["of:1"]))
        .await;
    let mut told = Told::new("a");
    told.read(&client.asked, &client.heard);
    writer
        .request(commit("w", 1, &[("of:1", json!("never heard"))]))
        .await;
    // Queued for the client, which reads no more.
    server.flush(None).await.expect("flushes");
    let mut held = opened(&server, Wire::InProcess, "held", "did:key:h").await;
    held.request(watching("session.watch.set", "held", "w", &["of:2"]))
        .await;
    writer.request(commit("w", 2, &[("of:2", json!(true))])).await;
    let flushing = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.flush(None).await }
    });
    keeper.somebody_waits().await;
    let mut again = Peer::connect(&server, Wire::AsSocket).await;
    let resuming = tokio::spawn({
        let (token, position) = (told.token.clone(), told.position);
        async move {
            let answer = again.open("a", "did:key:a", token.as_deref(), position).await;
            (again, answer)
        }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    drop(client);
    while server.connection_count() > 3 {
        tokio::task::yield_now().await;
    }
    assert!(!resuming.is_finished(), "the turn is held up");
    drop(keeper);
    flushing.await.expect("runs").expect("flushes");
    let (_again, answer) = resuming.await.expect("runs");
    let answer = answer.expect("connected");
    assert_eq!(answer["ok"]["resumed"], true, "{answer}");
    assert_eq!(
        upserts(&answer["ok"]["sync"]),
        [("of:1".to_owned(), json!("never heard"))],
        "{answer}"
    );
}
