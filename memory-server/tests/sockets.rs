//! The transport over real sockets (SRV §1, 7.2, 14): first-frame stage, closes, keep-alive, size limits, slow
//! consumers, drain, and that no connection's fault reaches another.

mod support;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use memory_server::{FlushTiming, ServerConfig, ServingPlane};
use serde_json::json;
use support::{Client, Injected, Received, Running, SPACE, frame, hello, open, open_on, set, watch};
use tokio_tungstenite::tungstenite::Message;

fn config() -> ServerConfig {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.flush = FlushTiming::Timed;
    config
}

async fn expect_close(client: &mut Client, code: u16, reason: &str) {
    loop {
        match client.recv_or_close().await {
            Received::Close(Some(close)) => return assert_eq!(close, (code, reason.to_owned())),
            Received::Text(_) => {}
            other => panic!("expected close {code}, got {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_103_a_first_frame_that_is_no_message_closes_1002() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    client.send("{}").await;
    expect_close(&mut client, 1002, "Memory websocket expects memory protocol").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_103_a_binary_first_frame_closes_1011() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    client
        .socket
        .send(Message::Binary(vec![1].into()))
        .await
        .expect("open");
    expect_close(&mut client, 1011, "Memory websocket setup failure").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_103_the_first_frame_may_be_any_message() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    let ack =
        json!({ "type": "session.ack", "requestId": "x", "space": SPACE, "sessionId": "s", "seenSeq": 1 });
    let answer = client.request(&frame(&ack)).await;
    assert_eq!(answer["error"]["message"], "memory hello is required first");
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    // SRV-111: after the first frame a broken one is answered.
    client.send("nonsense").await;
    assert_eq!(
        support::json(&client.recv().await)["error"]["name"],
        "InvalidMessageError"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_104_a_later_binary_frame_closes_1003() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    client
        .socket
        .send(Message::Binary(vec![1].into()))
        .await
        .expect("open");
    expect_close(&mut client, 1003, "Memory websocket expects text frames").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_109_a_standalone_host_has_no_first_frame_stage() {
    let running = Running::standalone(config()).await;
    let mut client = Client::connect(running.address, "/anything").await;
    client.send("{").await;
    assert_eq!(
        support::json(&client.recv().await)["error"]["name"],
        "InvalidMessageError"
    );
    client
        .socket
        .send(Message::Binary(vec![1].into()))
        .await
        .expect("open");
    expect_close(&mut client, 1003, "memory websocket expects text frames").await;
    assert_eq!(
        running.get("/anything").await,
        (200, "memory websocket endpoint".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_101_a_plain_request_to_the_socket_route_is_refused() {
    let running = Running::production(config()).await;
    let (status, _) = running.get(&format!("/api/storage/memory?space={SPACE}")).await;
    assert_eq!(status, 426);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_105_a_silent_peer_is_pinged_then_closed_1001() {
    let mut config = config();
    config.limits.keep_alive = Duration::from_millis(20);
    let running = Running::production(config).await;
    let mut client = running.client().await;
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    // A raw peer that reads pings and does not answer them: the library answers while it is polled, so poll only
    // once the server has given up.
    running.until_connections(0).await;
    expect_close(&mut client, 1001, "No response from ping frame.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_105_a_peer_that_answers_pings_stays() {
    let mut config = config();
    config.limits.keep_alive = Duration::from_millis(500);
    let running = Running::production(config).await;
    let mut client = running.client().await;
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    let mut pings = 0;
    while pings < 2 {
        match client.socket.next().await {
            Some(Ok(Message::Ping(_))) => pings += 1,
            other => panic!("expected a ping, got {other:?}"),
        }
    }
    assert_eq!(running.server.connection_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_106_a_message_above_the_limit_closes_1009() {
    let mut config = config();
    config.limits.max_inbound_message = 1000;
    let running = Running::production(config).await;
    let mut client = running.client().await;
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    client.send(&"x".repeat(1001)).await;
    expect_close(&mut client, 1009, "Memory websocket message too large").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_116_f19_a_large_message_within_the_limit_is_handled() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:alice").await;
    let answer = client
        .request(&set("s", 1, "of:big", &json!("x".repeat(3_000_000))))
        .await;
    assert_eq!(answer["ok"]["seq"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_113_f20_frames_received_before_a_close_are_executed() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:alice").await;
    for local_seq in 1..=100 {
        client.send(&set("s", local_seq, "of:x", &json!(local_seq))).await;
    }
    client.socket.close(None).await.expect("open");
    running.until_connections(0).await;
    let mut other = open(&running, "o", "did:key:alice").await;
    let list = json!({ "type": "entity-id.list", "requestId": "l", "space": SPACE, "sessionId": "o" });
    assert_eq!(other.request(&frame(&list)).await["ok"]["serverSeq"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn f3_f4_a_replayed_commit_is_answered_from_the_record() {
    let running = Running::production(config()).await;
    let mut client = running.client().await;
    let opened = open_on(&mut client, SPACE, "s", "did:key:alice", None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    client.send(&set("s", 1, "of:x", &json!(1))).await;
    // The verdict may be lost with the socket.
    drop(client);
    running.until_connections(0).await;
    let mut again = running.client().await;
    let resumed = open_on(&mut again, SPACE, "s", "did:key:alice", Some(&token)).await;
    assert_eq!(resumed["ok"]["resumed"], true, "{resumed}");
    let verdict = again.request(&set("s", 1, "of:x", &json!(1))).await;
    assert_eq!(verdict["ok"]["seq"], 1, "{verdict}");
    let other = again.request(&set("s", 1, "of:x", &json!(2))).await;
    assert_eq!(other["error"]["name"], "ProtocolError", "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_706_a_reader_that_stalls_is_closed_and_delays_nobody() {
    let mut config = config();
    config.limits.outbound_high_water = 64 * 1024;
    config.limits.outbound_cap = 256 * 1024;
    let running = Running::production(config).await;
    let mut stalled = open(&running, "slow", "did:key:alice").await;
    let mut writer = open(&running, "w", "did:key:bob").await;
    // Answers always enqueue: a peer that asks and does not read overruns its own queue.
    let payload = "x".repeat(20_000);
    writer.send(&set("w", 1, "of:x", &json!(payload))).await;
    assert_eq!(support::json(&writer.recv().await)["ok"]["seq"], 1);
    let query = frame(&json!({
        "type": "graph.query", "requestId": "q", "space": SPACE, "sessionId": "slow",
        "query": { "roots": [{ "id": "of:x", "selector": { "path": [], "schema": false } }] },
    }));
    let flood = tokio::spawn(async move {
        // Until the server hangs up.
        while stalled
            .socket
            .send(Message::Text(query.as_str().into()))
            .await
            .is_ok()
        {}
    });
    while running.server.work_stats().connections_overrun == 0 {
        tokio::task::yield_now().await;
    }
    flood.abort();
    let answer = writer.request(&set("w", 2, "of:y", &json!(1))).await;
    assert!(
        answer["ok"]["seq"] == 2 || answer["type"] == "session/effect",
        "{answer}"
    );
    running.until_connections(1).await;
    assert_eq!(
        running.server.session_count(),
        2,
        "the stalled session survives its connection"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_705_a_slow_consumer_gets_one_frame_computed_from_state() {
    let mut config = config();
    config.flush = FlushTiming::Manual;
    config.limits.outbound_high_water = 16 * 1024;
    let running = Running::production(config).await;
    let mut slow = open(&running, "slow", "did:key:alice").await;
    assert!(slow.request(&watch("slow", &["of:x", "of:y"])).await["ok"].is_object());
    let server = running.server.clone();
    // Written by the server itself, so that the only queue that fills is the slow reader's.
    let write = async |id: &str, value: memory_wire::Value| {
        server
            .write_document(&SPACE.into(), &id.into(), value)
            .await
            .expect("written");
        server.flush(None).await.expect("flushes");
    };
    // Large frames until the socket's own buffers are full and the queue stands above high-water, then many more commits
    // while it does not read. If it was only the writer that lagged behind, the same again.
    let skipped = || server.work_stats().sessions_skipped;
    let (mut round, mut last) = (0u64, 0u64);
    let missed = loop {
        let before = skipped();
        while skipped() == before {
            round += 1;
            write(
                "of:x",
                memory_wire::Value::from(format!("{round}:{}", "x".repeat(200_000))),
            )
            .await;
        }
        let (before, first) = (skipped(), last + 1);
        last += 5;
        for n in first..=last {
            write("of:y", memory_wire::Value::from(n)).await;
        }
        if skipped() == before + 5 {
            break first..=last;
        }
    };
    // It reads again: what it missed comes as one frame with the newest state, and no frame goes back in time.
    let mut to_seq = 0;
    let newest = loop {
        server.flush(None).await.expect("flushes");
        let effect = tokio::select! {
            frame = slow.recv() => support::json(&frame),
            // Once its queue has drained, the space is due again; here flushes are by hand.
            () = tokio::task::yield_now() => continue,
        };
        let reached = effect["effect"]["toSeq"].as_u64().expect("a seq");
        assert!(reached >= to_seq, "{reached} after {to_seq}");
        to_seq = reached;
        let upserts = effect["effect"]["upserts"].as_array().into_iter().flatten();
        let y = upserts.into_iter().find(|upsert| upsert["id"] == "of:y");
        if let Some(y) = y.and_then(|y| y["doc"]["value"].as_u64())
            && missed.contains(&y)
        {
            break y;
        }
    };
    assert_eq!(newest, *missed.end(), "one coalesced frame, not a backlog");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1401_a_drain_answers_what_runs_and_closes_1001() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:alice").await;
    client.send(&set("s", 1, "of:x", &json!(1))).await;
    let first = support::json(&client.recv().await);
    assert_eq!(first["ok"]["seq"], 1);
    let server = running.server.clone();
    let ending = tokio::spawn(async move { server.shut_down().await });
    expect_close(&mut client, 1001, "Memory server is going away").await;
    // The library answers the closing handshake while it is polled.
    while !matches!(client.socket.next().await, None | Some(Err(_))) {}
    ending.await.expect("the drain ends");
    let refused =
        tokio_tungstenite::connect_async(format!("ws://{}/api/storage/memory", running.address)).await;
    assert!(refused.is_err(), "no new connections");
}

/// What was answered before a drain is sent before the close, also to a peer that has not read yet.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1401_a_drain_sends_what_is_queued_before_it_closes() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:alice").await;
    let large = "x".repeat(1_000_000);
    let answer = client.request(&set("s", 1, "of:x", &json!(large))).await;
    assert!(answer["ok"].is_object());
    let questions = 30;
    for n in 0..questions {
        let query = json!({
            "type": "graph.query", "requestId": format!("q{n}"), "space": support::SPACE, "sessionId": "s",
            "query": { "roots": [{ "id": "of:x", "selector": { "path": [], "schema": false } }] },
        });
        client.send(&support::frame(&query)).await;
    }
    // All are answered, and most of the answers wait for a peer that does not read.
    let waiting = || async {
        let (_, stats) = running.get("/api/health/stats").await;
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        stats["timingStats"]["memory"]["memory/frame/handle"]["count"].as_u64()
    };
    while waiting().await < Some(questions + 3) {}
    let server = running.server.clone();
    let ending = tokio::spawn(async move { server.shut_down().await });
    let mut answered = 0;
    let close = loop {
        match client.recv_or_close().await {
            Received::Text(text) => answered += u64::from(text.contains("\"requestId\":\"q")),
            other => break other,
        }
    };
    assert_eq!(answered, questions, "{close:?}");
    assert!(matches!(&close, Received::Close(Some((1001, _)))), "{close:?}");
    drop(client);
    ending.await.expect("the drain ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_4_f21_nothing_is_left_of_sessions_that_expired() {
    let injected = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000);
    let clock = injected.clock.clone();
    let running = Running::production(injected.config).await;
    for round in 0..50 {
        let session = format!("s{round}");
        let mut client = open(&running, &session, "did:key:alice").await;
        assert!(
            client
                .request(&watch(&session, &["of:x", &format!("of:{round}")]))
                .await["ok"]
                .is_object()
        );
    }
    running.until_connections(0).await;
    assert_eq!(running.server.session_count(), 50);
    let space = SPACE.into();
    assert_eq!(running.server.demanded_instances(&space, None).len(), 100);
    clock.advance(30_000);
    assert!(!running.server.has_live_sessions(&space, None));
    assert_eq!(running.server.session_count(), 0);
    assert_eq!(running.server.demand_set_sizes(&space, None).union_keys, 0);
}
