//! Wanting more than one's share: sessions and uploads without end, and frames that are none. Each is refused by its own
//! name and counted, and those who ask for little are served.

use std::num::NonZeroU32;
use std::time::Duration;

use memory_server::Rate;
use memory_wire::SpaceId;
use memory_wire::value;
use serde_json::Value as Json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Peer, Rig, http, judge, mallory};

/// Longest wait for something that must come; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

const SESSIONS_REFUSED: &str = "memory_limit_refusals_total{limit=\"sessions\"}";

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

fn refuses_another(refused: Result<Json, Json>) {
    let error = refused.expect_err("one too many");
    let answer = serde_json::json!({ "error": error });
    judge("one too many", &answer, "AuthorizationError", "may have no more").expect("refused");
    assert_eq!(answer["error"]["retriable"], true, "{answer}");
}

/// Opens sessions of the member until there are `count`, on one connection.
async fn open_many(rig: &Rig, space: &SpaceId, count: usize) -> Peer {
    let mut peer = rig.peer(mallory()).await;
    for n in 0..count {
        peer.open(space, &format!("many-{n}"))
            .await
            .expect("within its share");
    }
    peer
}

/// SRV-308, SRV-324: what one principal may have in a space is bounded, sessions that wait for their resume included; a
/// resume is no further session, and another principal, or another space, is none of it.
#[tokio::test(flavor = "multi_thread")]
async fn srv_308_sessions_of_one_principal_are_bounded() {
    let share = 5;
    let mut rig = Rig::with(|config| config.limits.sessions_per_principal = share).await;
    let shared = rig.shared.clone();
    let mut greedy = open_many(&rig, &shared, share).await;
    let before = rig.counters().await[SESSIONS_REFUSED];
    refuses_another(greedy.open(&shared, "more").await);
    // Nor over another connection, and whatever the session is called.
    let mut again = rig.peer(mallory()).await;
    let nameless = again.honest(&shared, value!({}));
    let answer = again.ask(&nameless.frame()).await;
    refuses_another(Err(answer["error"].clone()));
    assert_eq!(rig.counters().await[SESSIONS_REFUSED], before + 2);
    // Without their connection they are kept, and count.
    let tokens = greedy.tokens.clone();
    drop(greedy);
    within(async {
        while rig.server.connection_count() > 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut back = rig.peer(mallory()).await;
    refuses_another(back.open(&shared, "more").await);
    // Who has them may have them again.
    let mut back = rig.peer(mallory()).await;
    let resume = value!({ "sessionId": "many-0", "sessionToken": (tokens["many-0"].as_str()) });
    let answer = back.ask(&back.honest(&shared, resume).frame()).await;
    assert_eq!(answer["ok"]["resumed"], true, "{answer}");
    // Those that nobody came back for make room, and their end is counted.
    rig.clock.advance(31_000);
    let mut later = rig.peer(mallory()).await;
    later.open(&shared, "later").await.expect("there is room");
    within(async {
        while rig.counters().await["memory_session_ends_total{cause=\"expired\"}"] < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    rig.unharmed(&[&again, &back, &later]).await;
}

fn rate_limited(outcome: &str) -> String {
    format!("memory_rate_limited_total{{kind=\"upload\",outcome=\"{outcome}\"}}")
}

/// SRV-121: nobody signs an upload, so one address has a rate; above it nothing of the body is read.
#[tokio::test(flavor = "multi_thread")]
async fn srv_121_uploads_have_a_rate() {
    let mut rig = Rig::with(|config| {
        config.rates.uploads = Rate {
            per_second: NonZeroU32::new(1),
            burst: NonZeroU32::new(3).expect("some"),
        };
    })
    .await;
    let shared = rig.shared.to_string();
    let body = r#"fvj1:{"body":{"/Bytes@1":"aGk"},"type":"text/plain"}"#;
    let upload = format!(
        "POST /{shared}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..3 {
        let answer = http(rig.address, &upload).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
    // Announced, and never sent: the refusal does not wait for it.
    let unsent = format!("POST /{shared}/blobs/a.png HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n");
    let refusal = within(async {
        loop {
            // Slower than the rate, each of these has its token, and then waits for its body.
            let sent = tokio::time::timeout(Duration::from_millis(500), http(rig.address, &unsent)).await;
            if let Ok(answer) = sent {
                break answer.to_lowercase();
            }
        }
    })
    .await;
    assert!(refusal.starts_with("http/1.1 429"), "{refusal}");
    assert!(refusal.contains("retry-after: 1\r\n"), "{refusal}");
    assert!(refusal.contains("connection: close\r\n"), "{refusal}");
    let counters = rig.counters().await;
    assert!(counters[&rate_limited("refused")] >= 1);
    assert_eq!(counters[&rate_limited("paced")], 0);
    let of_route = "memory_http_responses_total{route=\"/{space}/blobs/{name}\",status=\"429\"}";
    assert_eq!(counters[of_route], counters[&rate_limited("refused")]);
    // What it has a session for it goes on with.
    let member = rig.member().await;
    rig.unharmed(&[&member]).await;
}

/// Sends bytes on an upgraded socket and returns the close code that comes back, if one does.
async fn close_for(rig: &Rig, frames: &[&[u8]]) -> Option<u16> {
    let mut stream = TcpStream::connect(rig.address).await.expect("listens");
    let handshake = "GET /api/storage/memory HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(handshake.as_bytes()).await.expect("written");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("a head"));
    }
    for frame in frames {
        stream.write_all(frame).await.expect("written");
    }
    let mut rest = Vec::new();
    let _ = within(stream.read_to_end(&mut rest)).await;
    match rest.as_slice() {
        [0x88, _, high, low, ..] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

/// SRV-104: what is no frame ends its own socket, is told why, and is counted by what is wrong with it.
#[tokio::test(flavor = "multi_thread")]
async fn srv_104_broken_frames_are_counted_by_their_fault() {
    let mut rig = Rig::start().await;
    const MASK: [u8; 4] = [0; 4];
    let masked = |head: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("short") | 0x80;
        [&[head, length], &MASK[..], payload].concat()
    };
    let long_ping = [&[0x89, 0xfe, 0, 200], &MASK[..], &[b'x'; 200]].concat();
    let cases: [(&str, Vec<Vec<u8>>, &str, u16); 10] = [
        ("not masked", vec![b"\x81\x01x".to_vec()], "bad_frame", 1002),
        ("a reserved opcode", vec![masked(0x83, b"x")], "bad_frame", 1002),
        (
            "a reserved control opcode",
            vec![masked(0x8b, b"x")],
            "bad_frame",
            1002,
        ),
        ("reserved bits", vec![masked(0xc1, b"x")], "bad_frame", 1002),
        (
            "goes on with nothing",
            vec![masked(0x80, b"x")],
            "bad_frame",
            1002,
        ),
        (
            "a text within a text",
            vec![masked(0x01, b"x"), masked(0x81, b"x")],
            "bad_frame",
            1002,
        ),
        ("a ping in parts", vec![masked(0x09, b"x")], "bad_frame", 1002),
        ("a ping too long", vec![long_ping], "bad_frame", 1002),
        ("no UTF-8", vec![masked(0x81, b"\xff\xfe")], "invalid_text", 1007),
        (
            "no UTF-8, in parts",
            vec![masked(0x01, b"\xe2"), masked(0x80, b"\x28")],
            "invalid_text",
            1007,
        ),
    ];
    for (label, frames, reason, code) in &cases {
        let series = format!("memory_socket_closes_total{{reason=\"{reason}\"}}");
        let before = rig.counters().await[&series];
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert_eq!(close_for(&rig, &frames).await, Some(*code), "{label}");
        assert_eq!(rig.counters().await[&series], before + 1, "{label}");
    }
    // A socket that merely ends is no fault of anybody's.
    let before = rig.counters().await;
    drop(rig.peer(mallory()).await);
    within(async {
        while rig.server.connection_count() > 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for (series, value) in rig.counters().await {
        if series.starts_with("memory_socket_closes_total") {
            assert_eq!(value, before[&series], "{series}");
        }
    }
    rig.unharmed(&[]).await;
}
