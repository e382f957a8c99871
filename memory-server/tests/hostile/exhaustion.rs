//! Using the server up (SRV-103…106, SRV-704…707): too much at once, too slowly, too deep, too often, never finished. The
//! victim works on, and what was taken is given back.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use memory_wire::value;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::rig::{Rig, error_series, http, judge, mallory, stranger};

fn closes(reason: &str) -> String {
    format!("memory_socket_closes_total{{reason=\"{reason}\"}}")
}

/// Longest wait for something that must come; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_106_a_huge_frame_closes_its_own_socket() {
    let mut rig = Rig::with(|config| config.limits.max_inbound_message = 100_000).await;
    let mut peer = rig.member().await;
    let series = closes("message_too_large");
    let before = rig.counters().await[&series];
    let frame = format!(
        "fvj1:{{\"type\":\"session.ack\",\"junk\":\"{}\"}}",
        "x".repeat(200_000)
    );
    // The server may close before it has all been written.
    let _ = peer.socket.send(Message::Text(frame.into())).await;
    within(peer.closed()).await;
    assert_eq!(rig.counters().await[&series], before + 1);
    // In fragments it is as large.
    let mut peer = rig.peer(mallory()).await;
    let half = "x".repeat(60_000);
    for (n, opcode) in [(0u8, 1u8), (1, 0)] {
        let frame = tokio_tungstenite::tungstenite::protocol::frame::Frame::message(
            half.clone(),
            tokio_tungstenite::tungstenite::protocol::frame::coding::OpCode::Data(if opcode == 1 {
                tokio_tungstenite::tungstenite::protocol::frame::coding::Data::Text
            } else {
                tokio_tungstenite::tungstenite::protocol::frame::coding::Data::Continue
            }),
            n == 1,
        );
        let _ = peer.socket.send(Message::Frame(frame)).await;
    }
    within(peer.closed()).await;
    assert_eq!(rig.counters().await[&series], before + 2);
    rig.unharmed(&[&peer]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_111_deep_and_wide_frames_are_no_messages() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.to_string();
    let series = error_series("invalid_message");
    let before = rig.counters().await[&series];
    let head = format!(
        "fvj1:{{\"type\":\"session.ack\",\"requestId\":\"a\",\"space\":\"{shared}\",\"sessionId\":\"m\",\"x\":"
    );
    let holes = vec!["{\"/hole\":900000}"; 50_000].join(",");
    let deep = [
        format!("{head}{}{}}}", "[".repeat(200_000), "]".repeat(200_000)),
        format!("{head}{}1{}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000)),
        format!("{head}[{holes}]}}"),
        format!("fvj1:{}", "[".repeat(500_000)),
        format!("fvj1:{}", "{\"a\":".repeat(100_000)),
        format!("{head}1{}", "0".repeat(200_000)),
    ];
    let count = deep.len() as u64;
    for frame in deep {
        let answer = within(peer.ask(&frame)).await;
        judge(&frame[..60], &answer, "InvalidMessageError", "Unable to parse").expect("refused");
    }
    assert_eq!(rig.counters().await[&series], before + count);
    // Values and patches may be no deeper than what can be stored and sent on.
    let nest = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [500, 900, 5_000] {
        let commit = format!(
            "fvj1:{{\"type\":\"transact\",\"requestId\":\"t\",\"space\":\"{shared}\",\"sessionId\":\"m\",\"commit\":\
             {{\"localSeq\":{depth},\"reads\":{{\"confirmed\":[],\"pending\":[]}},\"operations\":[{{\"op\":\"set\",\
             \"id\":\"of:deep\",\"value\":{{\"value\":{}}}}}]}}}}",
            nest(depth)
        );
        peer.send(&commit).await;
        loop {
            let told = within(peer.receive_text()).await.expect("an answer");
            if told.contains("\"type\":\"response\"") {
                break;
            }
            // The marker of an accepted one before it.
            let effect = told.contains("\"type\":\"session/effect\"");
            assert!(effect, "depth {depth}: {}", &told[..told.len().min(200)]);
        }
    }
    rig.unharmed(&[&peer]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_103_floods_before_the_first_answer_are_bounded() {
    let mut rig = Rig::start().await;
    let series = closes("negotiation_buffer");
    let before = rig.counters().await[&series];
    // A socket that has not even said hello and sends far more than it may.
    let (mut socket, _) =
        tokio_tungstenite::connect_async(format!("ws://{}/api/storage/memory", rig.address))
            .await
            .expect("upgraded");
    let big = format!(
        "fvj1:{{\"type\":\"hello\",\"protocol\":\"memory\",\"flags\":{{}},\"x\":\"{}\"}}",
        "y".repeat(900_000)
    );
    for _ in 0..40 {
        if socket.send(Message::Text(big.clone().into())).await.is_err() {
            break;
        }
    }
    // Either the bound was met, or every frame was answered as fast as it came; it never grows.
    let mut answers = 0;
    let ended = loop {
        match within(socket.next()).await {
            Some(Ok(Message::Text(_))) => answers += 1,
            Some(Ok(Message::Close(_)) | Err(_)) | None => break true,
            Some(Ok(_)) => {}
        }
        if answers == 40 {
            break false;
        }
    };
    let after = rig.counters().await[&series];
    assert!(
        (ended && after == before + 1) || answers == 40,
        "{answers} answers, {before} to {after}"
    );
    rig.unharmed(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_401_floods_of_requests_are_answered_one_by_one() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    // One request id for everything: each request has its answer, none is mixed up or swallowed.
    for n in 0..500 {
        let frame = if n % 2 == 0 {
            json!({ "type": "session.ack", "requestId": "same", "space": shared.as_str(), "sessionId": "m", "seenSeq": n })
        } else {
            json!({ "type": "entity-id.exists", "requestId": "same", "space": shared.as_str(), "sessionId": "m", "id": "of:note" })
        };
        peer.send(&format!("fvj1:{frame}")).await;
    }
    for n in 0..500 {
        let answer = within(peer.receive()).await.expect("an answer each");
        assert_eq!(answer["requestId"], "same");
        assert_eq!(answer["ok"]["exists"].is_boolean(), n % 2 == 1, "{n}: {answer}");
    }
    // Watches without end.
    let roots: Vec<_> = (0..2_000)
        .map(|n| json!({ "id": format!("of:{n}"), "selector": { "path": [], "schema": true } }))
        .collect();
    let watches: Vec<_> = (0..20_000)
        .map(|n| {
            json!({ "id": format!("w{n}"), "kind": "graph", "query": { "roots": [
            { "id": format!("of:{n}"), "selector": { "path": [], "schema": true } }] } })
        })
        .collect();
    for (label, watches) in [
        (
            "one of many roots",
            json!([{ "id": "w", "kind": "graph", "query": { "roots": roots } }]),
        ),
        ("many", json!(watches)),
    ] {
        let answer = within(peer.request(json!({
            "type": "session.watch.set", "requestId": "w", "space": shared.as_str(), "sessionId": "m",
            "watches": watches,
        })))
        .await;
        if label == "many" {
            assert!(
                answer["error"]["message"]
                    .as_str()
                    .unwrap_or_default()
                    .contains("watches"),
                "{label}: {}",
                &answer.to_string()[..answer.to_string().len().min(300)]
            );
        } else {
            assert!(answer["ok"].is_object(), "{label}");
        }
    }
    rig.unharmed(&[&peer]).await;
}

/// Whoever sends a request drop by drop is cut off, and counted; so is whoever sends none, or nonsense.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handshake_is_cut_off() {
    let mut rig = Rig::with(|config| {
        config.limits.request_head = Duration::from_millis(200);
        config.limits.hello_deadline = Duration::from_millis(200);
    })
    .await;
    let series = "memory_turned_away_total{reason=\"no_request\"}";
    let before = rig.counters().await[series];
    let mut slow = TcpStream::connect(rig.address).await.expect("listens");
    slow.write_all(b"GET /api/storage/memory HTTP/1.1\r\nHost: x\r\nX-Drop: 1")
        .await
        .expect("written");
    let mut rest = Vec::new();
    within(slow.read_to_end(&mut rest))
        .await
        .expect("ended by the server");
    let mut garbage = TcpStream::connect(rig.address).await.expect("listens");
    garbage
        .write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        .await
        .expect("written");
    let mut rest = Vec::new();
    within(garbage.read_to_end(&mut rest))
        .await
        .expect("ended by the server");
    assert!(rig.counters().await[series] >= before + 2);
    // A socket that never says hello, although it answers pings.
    let closed = closes("no_hello");
    let was = rig.counters().await[&closed];
    let (mut silent, _) =
        tokio_tungstenite::connect_async(format!("ws://{}/api/storage/memory", rig.address))
            .await
            .expect("upgraded");
    let code = loop {
        match within(silent.next()).await {
            Some(Ok(Message::Close(frame))) => break frame.map(|frame| u16::from(frame.code)),
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code, Some(1002));
    assert_eq!(rig.counters().await[&closed], was + 1);
    rig.unharmed(&[]).await;
}

/// Sockets that open no session make place for those that do.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_opens_nothing_keeps_nobody_out() {
    let mut rig = Rig::with(|config| config.limits.unopened_sockets = 50).await;
    let series = closes("unused");
    let before = rig.counters().await[&series];
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(rig.peer(stranger()).await);
    }
    let mut member = rig.peer(mallory()).await;
    member.open(&rig.shared, "m").await.expect("there is a place");
    for waiting in &mut crowd[..240] {
        assert_eq!(within(waiting.closed()).await, Some(1013));
    }
    assert!(rig.counters().await[&series] >= before + 240);
    drop(crowd);
    // The victim's, the member's and the scrape's are left.
    within(async {
        while rig.server.connection_count() > 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.unharmed(&[&member]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_turned_away() {
    let mut rig = Rig::with(|config| config.limits.max_connections = 20).await;
    let mut idle = Vec::new();
    for _ in 0..18 {
        idle.push(TcpStream::connect(rig.address).await.expect("listens"));
    }
    // The victim has a place already; somebody finds none.
    let mut turned_away = 0;
    for _ in 0..10 {
        let mut stream = TcpStream::connect(rig.address).await.expect("listens");
        let mut byte = [0];
        match tokio::time::timeout(Duration::from_millis(300), stream.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => turned_away += 1,
            Ok(Ok(_)) | Err(_) => idle.push(stream),
        }
    }
    assert!(turned_away > 0);
    drop(idle);
    within(async {
        loop {
            let text = http(
                rig.address,
                "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            .await;
            if text.contains("memory_turned_away_total{reason=\"full\"} ") {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(rig.counters().await["memory_turned_away_total{reason=\"full\"}"] >= turned_away);
    rig.unharmed(&[]).await;
}

/// Whoever has opened no session can make the server hold neither a large message nor a pile of answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_may_send_and_leave_unread_only_little() {
    let mut rig = Rig::with(|config| {
        config.limits.unopened_bytes = 200_000;
        config.limits.negotiation_buffer = 20_000;
    })
    .await;
    let series = closes("negotiation_buffer");
    let before = rig.counters().await[&series];
    let mut guest = rig.peer(stranger()).await;
    let frame = format!(
        "fvj1:{{\"type\":\"session.ack\",\"junk\":\"{}\"}}",
        "x".repeat(5_000_000)
    );
    let _ = guest.socket.send(Message::Text(frame.into())).await;
    within(guest.closed()).await;
    assert_eq!(rig.counters().await[&series], before + 1);
    // Little frames whose answers nobody reads: the bytes in run out before the answers fill anything.
    let mut guest = rig.peer(stranger()).await;
    for _ in 0..200_000 {
        if guest.socket.feed(Message::Text("?".into())).await.is_err() {
            break;
        }
    }
    let _ = guest.socket.flush().await;
    within(async {
        while rig.server.connection_count() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A member may send as much as the protocol allows.
    let mut member = rig.member().await;
    let operations = json!([{ "op": "set", "id": "of:large", "value": { "value": "x".repeat(5_000_000) } }]);
    let shared = rig.shared.clone();
    let answer = member.transact(&shared, "m", 1, operations).await;
    assert!(answer["ok"].is_object());
    rig.unharmed(&[&member]).await;
}

/// No compression is agreed to, so none can explode.
#[tokio::test(flavor = "multi_thread")]
async fn srv_101_compression_is_not_spoken() {
    let mut rig = Rig::start().await;
    let handshake = |extra: &str| {
        format!(
            "GET /api/storage/memory HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{extra}\r\n"
        )
    };
    let mut stream = TcpStream::connect(rig.address).await.expect("listens");
    stream
        .write_all(
            handshake("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n").as_bytes(),
        )
        .await
        .expect("written");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("a head"));
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(!head.contains("sec-websocket-extensions"), "{head}");
    // A compressed frame nobody agreed to (RSV1): the socket ends, without an answer.
    stream
        .write_all(&[0xc1, 0x85, 0, 0, 0, 0, 1, 2, 3, 4, 5])
        .await
        .expect("written");
    let mut rest = Vec::new();
    let _ = within(stream.read_to_end(&mut rest)).await;
    assert!(
        !rest.windows(5).any(|bytes| bytes == b"fvj1:"),
        "answered {rest:?}"
    );
    // A compressed upload is not unpacked either.
    let private = rig.private.to_string();
    let answer = http(
        rig.address,
        &format!(
            "POST /{private}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: gzip\r\n\
             Content-Length: 10\r\n\r\n\x1f\u{8b}bombbomb"
        ),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    // More than a blob may be, announced, and streamed without announcement.
    let answer = http(
        rig.address,
        &format!("POST /{private}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"),
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let chunk = format!("{:x}\r\n{}\r\n", 1_000_000, "z".repeat(1_000_000));
    let streamed = format!(
        "POST /{private}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        chunk.repeat(12)
    );
    let mut stream = TcpStream::connect(rig.address).await.expect("listens");
    // Refused before everything was read: the rest may not be writable.
    let _ = stream.write_all(streamed.as_bytes()).await;
    let series = "memory_http_responses_total{route=\"/{space}/blobs\",status=\"413\"}";
    within(async {
        while rig.counters().await.get(series).copied().unwrap_or(0) < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.unharmed(&[]).await;
}

/// A peer without a session in a space cannot hold up its pushes by sending frames that name it.
#[tokio::test(flavor = "multi_thread")]
async fn srv_436_strangers_frames_do_not_delay_a_spaces_pushes() {
    let mut rig = Rig::with(|config| config.limits.drain_wait_floor = PATIENCE).await;
    let shared = rig.shared.clone();
    let mut noisy = rig.peer(stranger()).await;
    let frame = format!(
        "fvj1:{}",
        json!({ "type": "session.ack", "requestId": "a", "space": shared.as_str(), "sessionId": "vs", "seenSeq": 1 })
    );
    // Frames in flight all the time, whose answers nobody reads at first.
    let noise = tokio::spawn(async move {
        for _ in 0..20_000 {
            if noisy
                .socket
                .feed(Message::Text(frame.clone().into()))
                .await
                .is_err()
            {
                break;
            }
        }
        let _ = noisy.socket.flush().await;
        noisy
    });
    let operations = json!([{ "op": "patch", "id": "of:note", "patches": [
        { "op": "add", "path": "/value/n", "value": 1 }] }]);
    let answer = rig.victim.transact(&shared, "vs", 5_000, operations).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let victim = &mut rig.victim;
    within(async {
        while !victim
            .pushed
            .iter()
            .any(|message| message["effect"]["caughtUpLocalSeq"] == 5_000)
        {
            let message = victim.receive().await.expect("open");
            victim.pushed.push(message);
        }
    })
    .await;
    noise.abort();
    rig.unharmed(&[]).await;
}

/// Opens that are never finished, half-open sockets and sessions without end leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn srv_004_unfinished_business_is_cleared_away() {
    let mut rig = Rig::start().await;
    let shared = rig.shared.clone();
    let sessions = rig.server.session_count();
    let mut half_open = Vec::new();
    for n in 0..100 {
        let mut peer = rig.peer(mallory()).await;
        if n % 2 == 0 {
            // Sent and not waited for; the socket is then dropped without a close.
            let open = peer
                .honest(&shared, value!({ "sessionId": (format!("s{n}").as_str()) }))
                .frame();
            peer.send(&open).await;
        }
        half_open.push(peer);
    }
    drop(half_open);
    within(async {
        while rig.server.connection_count() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    memory_server::ServingPlane::idle(&*rig.server)
        .await
        .expect("settles");
    assert!(rig.server.session_count() <= sessions + 50);
    // A session lives on for its time, then goes.
    rig.clock.advance(31_000);
    within(async {
        while rig.server.session_count() > sessions {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(rig.counters().await["memory_session_ends_total{cause=\"expired\"}"] >= 1);
    rig.unharmed(&[]).await;
}
