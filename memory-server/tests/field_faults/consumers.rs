//! Slow consumers and memory (F19…F24).

use memory_server::ServingPlane;
use serde_json::json;

use crate::support::peer::{Peer, Wire, commit, watching};
use crate::support::{Injected, Received, Running, SPACE, open_on, set};
use crate::{START, effects_since, opened, server, started_on, until_connections};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_a_message_above_the_limit_is_answered_by_a_close_with_a_reason_and_the_session_lives_on() {
    let mut injected = Injected::new("did:key:z6Mk-audience", START);
    injected.config.limits.max_inbound_message = 64 * 1024;
    let running = Running::production(injected.config).await;
    let mut client = running.client().await;
    let answer = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    let token = answer["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    client.request(&set("s", 1, "of:x", &json!("small"))).await;
    let whale = set("s", 2, "of:x", &json!("x".repeat(100 * 1024)));
    client.send(&whale).await;
    match client.recv_or_close().await {
        Received::Close(Some((code, reason))) => {
            assert_eq!(
                (code, reason.as_str()),
                (1009, "Memory websocket message too large")
            );
        }
        other => panic!("expected a close that says why, got {other:?}"),
    }
    running.until_connections(0).await;
    // The session is there, so is what it had committed; the commit that was too large is not half there.
    let mut again = running.client().await;
    let answer = open_on(&mut again, SPACE, "s", "did:key:a", Some(&token)).await;
    assert_eq!(answer["ok"]["resumed"], true, "{answer}");
    assert_eq!(answer["ok"]["serverSeq"], 1);
    let small = again.request(&set("s", 2, "of:x", &json!("cut down"))).await;
    assert_eq!(small["ok"]["seq"], 2, "its number is still free: {small}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_a_slow_reader_neither_delays_nor_starves_anybody_and_ends_up_with_what_is_true() {
    let (server, _) = server(|config| {
        config.limits.outbound_high_water = 2_000;
        config.limits.deferred_keys = 8;
    });
    let mut slow = opened(&server, Wire::AsSocket, "slow", "did:key:slow").await;
    let mut quick = opened(&server, Wire::AsSocket, "quick", "did:key:quick").await;
    let ids: Vec<String> = (0..20).map(|n| format!("of:{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    for (peer, session) in [(&mut slow, "slow"), (&mut quick, "quick")] {
        peer.request(watching("session.watch.set", session, "w", &ids))
            .await;
    }
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    for n in 0..60u64 {
        let write = commit(
            "w",
            n + 1,
            &[(ids[n as usize % 20], json!(format!("{n} {}", "y".repeat(200))))],
        );
        writer.request(write).await;
        let from = quick.heard.len();
        assert_eq!(
            effects_since(&server, &mut quick, "quick", from).await.len(),
            1,
            "commit {n}"
        );
    }
    assert!(
        server.work_stats().sessions_skipped > 0,
        "the slow one was skipped"
    );
    // It reads at last: a few frames, the last of which is the state, not sixty of the past.
    let from = slow.heard.len();
    slow.drain("slow").await;
    effects_since(&server, &mut slow, "slow", from).await;
    let frames = effects_since(&server, &mut slow, "slow", from).await;
    assert!(frames.len() < 20, "{} frames", frames.len());
    let mut told = crate::support::peer::Told::new("slow");
    told.read(&slow.asked, &slow.heard);
    for (n, id) in ids.iter().enumerate() {
        let name = ("space".to_owned(), (*id).to_owned(), String::new());
        let held = told.held[&name]
            .1
            .as_ref()
            .and_then(|value| value.as_str())
            .unwrap_or_default();
        assert!(held.starts_with(&format!("{} ", n + 40)), "{id}: {held:.5}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_sessions_that_come_and_go_leave_no_record_no_watch_and_no_tracked_document() {
    let (server, clock) = server(|_| ());
    let space = SPACE.into();
    for round in 0..3 {
        for n in 0..100 {
            let session = format!("s{round}-{n}");
            let mut peer = opened(&server, Wire::AsSocket, &session, "did:key:a").await;
            let own = format!("of:{round}-{n}");
            peer.request(watching("session.watch.set", &session, "w", &["of:x", &own]))
                .await;
            peer.request(commit(&session, 1, &[(&own, json!(n))])).await;
        }
        until_connections(&server, 0).await;
        assert_eq!(server.session_count(), 100, "within their lifetime");
        clock.advance(30_001);
        assert!(!server.has_live_sessions(&space, None));
        let left = server.demand_set_sizes(&space, None);
        assert_eq!(
            (server.session_count(), left.per_session.len(), left.union_keys),
            (0, 0, 0),
            "round {round}"
        );
        assert_eq!(server.connection_count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_neither_a_killed_client_nor_a_killed_server_leaves_an_orphan_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let space = SPACE.into();
    let first = started_on(directory.path());
    let mut peer = opened(&first, Wire::AsSocket, "s", "did:key:a").await;
    peer.request(watching("session.watch.set", "s", "w", &["of:x"]))
        .await;
    peer.request(commit("s", 1, &[("of:x", json!(1))])).await;
    assert_eq!(first.demanded_instances(&space, None).len(), 1);
    // The client dies without a word, and the server right after, with nothing shut down.
    drop(peer);
    until_connections(&first, 0).await;
    drop(first);
    let second = started_on(directory.path());
    let mut other = opened(&second, Wire::InProcess, "o", "did:key:b").await;
    assert_eq!(second.session_count(), 1, "only who is here");
    assert_eq!(second.demanded_instances(&space, None), []);
    other.request(commit("o", 1, &[("of:x", json!(2))])).await;
    second.idle().await.expect("settles");
    assert_eq!(
        second.work_stats().frames_sent,
        1,
        "the writer's marker: nobody else is told anything"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_one_document_of_twenty_thousand_watched_ones_costs_one_document() {
    // The debug build looks at fewer, for its own sake: the counters are the same.
    const MANY: usize = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    let (server, _) = server(|config| config.limits.max_inbound_message = 64 << 20);
    let mut writer = opened(&server, Wire::InProcess, "w", "did:key:w").await;
    let ids: Vec<String> = (0..MANY).map(|n| format!("of:{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let all: Vec<(&str, serde_json::Value)> = ids.iter().map(|id| (*id, json!("before"))).collect();
    for (n, some) in all.chunks(2_000).enumerate() {
        let landed = writer
            .request(commit("w", n as u64 + 1, some))
            .await
            .expect("connected");
        assert!(landed["ok"]["seq"].is_u64());
    }
    let mut reader = opened(&server, Wire::AsSocket, "r", "did:key:r").await;
    reader
        .request(watching("session.watch.set", "r", "w", &ids))
        .await;
    server.flush(None).await.expect("flushes");
    let before = server.work_stats();
    writer
        .request(commit("w", 100, &[(ids[MANY / 2], json!("after"))]))
        .await;
    let from = reader.heard.len();
    let frames = effects_since(&server, &mut reader, "r", from).await;
    assert_eq!(frames[0]["upserts"].as_array().map(Vec::len), Some(1));
    let after = server.work_stats();
    assert_eq!(
        after.encoded_documents - before.encoded_documents,
        1,
        "one document is encoded"
    );
    assert_eq!(
        after.evaluations - before.evaluations,
        2,
        "the reader, and the writer's marker"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f24_a_commit_that_fails_pins_nothing_and_the_next_ones_share_a_write() {
    let (server, _) = server(|_| ());
    let mut peer = opened(&server, Wire::AsSocket, "s", "did:key:a").await;
    peer.request(watching("session.watch.set", "s", "w", &["of:x"]))
        .await;
    let space = SPACE.into();
    // The store fails in the middle of a group: nothing of the group is there, and everybody in it hears so.
    let engine = server.engine(&space).expect("open");
    let broken = engine.write(|_| -> () { panic!("the disk is gone") }).await;
    assert!(broken.is_err());
    for n in 1..=50u64 {
        let verdict = peer
            .request(commit("s", n, &[("of:x", json!(n))]))
            .await
            .expect("connected");
        assert_eq!(verdict["ok"]["seq"], n);
    }
    let from = peer.heard.len();
    let frames = effects_since(&server, &mut peer, "s", from).await;
    assert_eq!(frames.len(), 1, "fifty saves are one frame");
    assert_eq!(frames[0]["caughtUpLocalSeq"], 50);
    assert_eq!(engine.backlog(), 0);
    let mut again = Peer::connect(&server, Wire::AsSocket).await;
    assert!(again.open("t", "did:key:a", None, 0).await.is_some());
}
