//! Bad input: two hundred mutated frames, each answered with a named error or a clean close. The server stays up, the
//! neighbour notices nothing, and nothing is half-applied.

use futures_util::{SinkExt, StreamExt};
use memory_wire::codec;
use memory_wire::flags::Flags;
use memory_wire::message::{ClientMessage, Hello, ServerMessage, parse_server_message};
use memory_wire::{Object, Value, value};
use tests::Client;
use tests::client::PATIENCE;
use tokio_tungstenite::tungstenite::Message;

use crate::admission::Fixture;

/// What a mutated frame is allowed to lead to.
#[derive(Debug)]
enum Outcome {
    /// A response with an error of this name.
    Error(String),
    /// The server closed with this code.
    Closed(Option<u16>),
    /// A success: the mutation left a legal message.
    Accepted,
}

/// Deterministic pseudo-random numbers (a 64-bit linear congruence): a failing case is found again by its number.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

fn legal_commit(local: u64) -> Value {
    value!({
        "localSeq": (local),
        "reads": { "confirmed": [{ "id": "of:hostile", "path": ["value"], "seq": 0 }], "pending": [] },
        "operations": [
            { "op": "set", "id": "of:hostile", "value": { "value": { "half": true } } },
            { "op": "patch", "id": "of:hostile-2", "patches": [{ "op": "add", "path": "/value", "value": 1 }] }
        ]
    })
}

fn message(kind: &str, space: &str, session: &str, body: &[(&str, Value)]) -> Value {
    let mut entries = vec![
        ("type".into(), Value::from(kind)),
        ("requestId".into(), Value::from("hostile")),
        ("space".into(), Value::from(space)),
        ("sessionId".into(), Value::from(session)),
    ];
    entries.extend(body.iter().map(|(k, v)| ((*k).into(), v.clone())));
    Value::Object(Object::from_entries(entries))
}

/// Replaces, drops or retypes one member somewhere in `value`.
fn mutate(value: &Value, dice: &mut Dice) -> Value {
    let junk = |dice: &mut Dice| match dice.below(9) {
        0 => Value::Null,
        1 => Value::from(-1.5),
        2 => Value::from("\u{0}\u{202e}junk"),
        3 => Value::from(Vec::new()),
        4 => Value::Object(Object::new()),
        5 => Value::Number(f64::NAN),
        6 => Value::from("x".repeat(5_000)),
        7 => Value::Bool(true),
        _ => (0..200).fold(Value::Null, |inner, _| Value::from(vec![inner])),
    };
    match value {
        Value::Object(object) if !object.is_empty() => {
            let mut object = object.clone();
            let key = object.entries()[dice.below(object.len())].0.to_string();
            match dice.below(4) {
                0 => {
                    object.remove(&key);
                }
                1 => {
                    let junk = junk(dice);
                    object.insert(key.as_str(), junk);
                }
                _ => {
                    let inner = mutate(object.get(&key).unwrap_or(&Value::Null), dice);
                    object.insert(key.as_str(), inner);
                }
            }
            Value::Object(object)
        }
        Value::Array(array) if !array.is_empty() => {
            let mut items: Vec<Value> = array.elements().map(|(_, v)| v.clone()).collect();
            let at = dice.below(items.len());
            items[at] = mutate(&items[at], dice);
            Value::from(items)
        }
        _ => junk(dice),
    }
}

/// The hundred and then some frames that no mutation would find.
fn crafted(space: &str, session: &str) -> Vec<String> {
    let mut frames: Vec<String> = [
        "",
        " ",
        "{}",
        "fvj1:",
        "fvj1:{",
        "fvj1:[]",
        "fvj1:null",
        "fvj1:\"text\"",
        "fvj1:1e999",
        "fvj1:{\"type\":\"hello\"}",
        "fvj1:{\"type\":\"nonsense\",\"requestId\":\"x\",\"space\":\"s\",\"sessionId\":\"y\"}",
        "FVJ1:{}",
        "fvj2:{}",
        " fvj1:{}",
        "fvj1:{\"type\":\"session.close\"}",
        "fvj1:{\"/Undefined@1\":null}",
        "fvj1:{\"/Map@1\":[]}",
        "fvj1:{\"type\":[{\"/hole\":4294967295}]}",
        "fvj1:{\"__proto__\":{}}",
        "fvj1:{\"type\":\"transact\",\"/x\":1}",
        "fvj1:{\"type\":\"\\ud800\"}",
    ]
    .map(String::from)
    .to_vec();
    for depth in [1_000, 3_000, 100_000] {
        frames.push(format!("fvj1:{}{}", "[".repeat(depth), "]".repeat(depth)));
        frames.push(format!("fvj1:{}", "{\"a\":".repeat(depth)));
    }
    for count in [2, 1_000, 100_000] {
        let holes = vec!["{\"/hole\":900000}"; count].join(",");
        frames.push(format!("fvj1:{{\"type\":\"session.ack\",\"x\":[{holes}]}}"));
    }
    let valid = codec::encode(&message(
        "transact",
        space,
        session,
        &[("commit", legal_commit(1))],
    ))
    .unwrap();
    for cut in [1, 5, 6, 20, valid.len() / 2, valid.len() - 1] {
        frames.push(valid[..cut].to_owned());
    }
    let body =
        |kind: &str, body: &[(&str, Value)]| codec::encode(&message(kind, space, session, body)).unwrap();
    frames.push(body("transact", &[("commit", value!({}))]));
    frames.push(body(
        "transact",
        &[("commit", value!({ "localSeq": 1, "operations": [null] }))],
    ));
    frames.push(body(
        "transact",
        &[(
            "commit",
            value!({ "localSeq": "1", "reads": { "confirmed": [], "pending": [] }, "operations": [] }),
        )],
    ));
    frames.push(body("session.watch.set", &[("watches", value!([null]))]));
    frames.push(body(
        "session.watch.set",
        &[("watches", value!([{ "id": "w", "kind": "graph" }]))],
    ));
    frames.push(body("graph.query", &[("query", value!({ "roots": [null] }))]));
    frames.push(body(
        "graph.query",
        &[("query", value!({ "roots": [{ "id": "of:x" }] }))],
    ));
    frames.push(body(
        "graph.query",
        &[("query", value!({ "roots": [], "branch": "no such branch" }))],
    ));
    frames.push(body("entity-id.list", &[("limit", Value::from(-1))]));
    frames.push(body("entity-id.exists", &[("id", Value::Null)]));
    frames.push(body("session.ack", &[("seenSeq", Value::from("soon"))]));
    frames.push(body(
        "session.open",
        &[("session", value!({})), ("invocation", Value::Null)],
    ));
    frames.push(
        codec::encode(&message(
            "transact",
            space,
            "not my session",
            &[("commit", legal_commit(1))],
        ))
        .unwrap(),
    );
    frames.push(
        codec::encode(&message(
            "transact",
            "../../etc/passwd",
            session,
            &[("commit", legal_commit(1))],
        ))
        .unwrap(),
    );
    frames
}

/// Sends one frame on a fresh connection that is signed in, and reports what came of it.
async fn try_frame(fixture: &Fixture, frame: &str) -> Outcome {
    let (client, session) = fixture.client("mallory").await;
    let mut client = client;
    // Frames speak of the session by the id the caller put in; rewrite it to this connection's.
    let frame = frame.replace("SESSION", session.id.as_str());
    if client.send_text(frame).await.is_err() {
        return Outcome::Closed(None);
    }
    // A request that must be answered, so that a frame without an answer is noticed.
    let probe = client.mint_request();
    let ack = message(
        "session.ack",
        session.space.as_str(),
        session.id.as_str(),
        &[("seenSeq", Value::from(0))],
    );
    let mut ack = ack;
    if let Value::Object(object) = &mut ack {
        object.insert("requestId", probe.as_str());
    }
    let alive = client.send_text(codec::encode(&ack).unwrap()).await.is_ok();
    let mut answer = None;
    loop {
        match tokio::time::timeout(PATIENCE, client.next())
            .await
            .expect("an answer or a close")
        {
            Ok(ServerMessage::Response(response)) if response.request_id == probe => {
                assert!(alive);
                return answer.expect("every frame is answered before the next one");
            }
            Ok(ServerMessage::Response(response)) => {
                answer = Some(match response.result {
                    Ok(_) => Outcome::Accepted,
                    Err(error) => Outcome::Error(error.name.as_str().to_owned()),
                });
            }
            Ok(ServerMessage::Effect(_) | ServerMessage::Revoked(_) | ServerMessage::HelloOk(_)) => {}
            Err(_) => return Outcome::Closed(client.closed().await.ok().flatten()),
        }
    }
}

#[tokio::test]
async fn two_hundred_mutated_frames() {
    let fixture = Fixture::start().await;
    let space = fixture.space.as_str().to_owned();
    // The neighbour watches from before the first frame to after the last.
    let (mut neighbour, mut ns) = fixture.client("neighbour").await;
    let watched = memory_wire::EntityId::from("of:neighbour");
    neighbour
        .watch(
            &ns,
            vec![crate::admission::everything(&watched, memory_wire::Scope::Space)],
        )
        .await
        .unwrap();

    let mut frames = crafted(&space, "SESSION");
    let mut dice = Dice(20_261_130);
    let templates = [
        message("transact", &space, "SESSION", &[("commit", legal_commit(1))]),
        message(
            "session.watch.set",
            &space,
            "SESSION",
            &[(
                "watches",
                value!([{ "id": "w", "kind": "query", "query": { "roots": [{ "id": "of:hostile", "selector": { "path": [], "schema": true } }] } }]),
            )],
        ),
        message(
            "graph.query",
            &space,
            "SESSION",
            &[(
                "query",
                value!({ "roots": [{ "id": "of:hostile", "scope": "user", "selector": { "path": ["a"] } }] }),
            )],
        ),
        message(
            "session.open",
            &space,
            "SESSION",
            &[
                ("session", value!({ "sessionId": "mine" })),
                (
                    "invocation",
                    value!({ "iss": "did:key:z6Mk", "cmd": "session.open", "sub": (space.as_str()), "aud": "x", "challenge": "y" }),
                ),
                ("authorization", value!({ "signature": "none" })),
            ],
        ),
    ];
    while frames.len() < 200 {
        let mutated = mutate(&templates[frames.len() % templates.len()], &mut dice);
        let text = codec::encode(&mutated).unwrap();
        // Now and then the text itself is damaged, not its content.
        let text = if dice.below(5) == 0 {
            text.replacen([':', ',', '}'][dice.below(3)], "", 1)
        } else {
            text
        };
        frames.push(text);
    }
    let (mut errors, mut closes, mut accepted) = (0, 0, 0);
    for (number, frame) in frames.iter().enumerate() {
        match try_frame(&fixture, frame).await {
            Outcome::Error(name) => {
                assert!(
                    name.ends_with("Error") || name == "UnsupportedProtocol",
                    "frame {number}: {name}"
                );
                errors += 1;
            }
            Outcome::Closed(code) => {
                assert!(
                    matches!(code, Some(1002 | 1003 | 1009)),
                    "frame {number} ended in close {code:?}: {}",
                    frame.chars().take(200).collect::<String>()
                );
                closes += 1;
            }
            Outcome::Accepted => accepted += 1,
        }
    }
    assert_eq!(errors + closes + accepted, 200);
    assert!(
        errors > 100,
        "{errors} errors, {closes} closes, {accepted} accepted"
    );

    // Nothing is half-applied: the two operations of the template land together or not at all.
    let (mut auditor, session) = fixture.client("auditor").await;
    let roots = ["of:hostile", "of:hostile-2"]
        .map(|id| crate::admission::everything(&id.into(), memory_wire::Scope::Space))
        .to_vec();
    auditor.watch(&session, roots).await.unwrap();
    let store = crate::store::Store::open(fixture.data.path(), &fixture.space);
    for commit in store.commits().iter().filter(|c| c.seq > 1) {
        let revisions = store.revisions_of(commit.seq);
        assert!(!revisions.is_empty(), "commit {} holds nothing", commit.seq);
    }
    // The neighbour is as it was, and works.
    assert_eq!(
        neighbour.received.len(),
        3,
        "hello, open and watch: nothing else ever came"
    );
    let set = crate::admission::set(watched.clone(), value!({ "value": { "n": 7 } }));
    neighbour
        .transact(&mut ns, set)
        .await
        .unwrap()
        .expect("the server serves on");
    fixture.server.stop("TERM").unwrap();
}

#[tokio::test]
async fn wrong_order_and_wrong_kinds_of_frames() {
    let fixture = Fixture::start().await;
    let url = fixture.server.socket_url();
    // A first frame that is no message ends the connection with the code for it.
    let mut socket = Client::connect_raw(&url).await.unwrap();
    socket.send(Message::text("not a message")).await.unwrap();
    assert_eq!(close_code(&mut socket).await, Some(1002));
    // A binary first frame, and a binary frame later.
    let mut socket = Client::connect_raw(&url).await.unwrap();
    socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(close_code(&mut socket).await, Some(1011));
    let mut socket = Client::connect_raw(&url).await.unwrap();
    socket
        .send(Message::text(
            ClientMessage::Hello(Hello::new(Flags::default()))
                .encode()
                .unwrap(),
        ))
        .await
        .unwrap();
    socket.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    assert_eq!(close_code(&mut socket).await, Some(1003));
    // Requests before hello, and hello twice.
    let mut socket = Client::connect_raw(&url).await.unwrap();
    let ack = message(
        "session.ack",
        fixture.space.as_str(),
        "s",
        &[("seenSeq", Value::from(0))],
    );
    socket
        .send(Message::text(codec::encode(&ack).unwrap()))
        .await
        .unwrap();
    assert_eq!(error_of(&mut socket).await, "memory hello is required first");
    for _ in 0..2 {
        socket
            .send(Message::text(
                ClientMessage::Hello(Hello::new(Flags::default()))
                    .encode()
                    .unwrap(),
            ))
            .await
            .unwrap();
    }
    assert_eq!(error_of(&mut socket).await, "hello may only be sent once");
}

type Raw = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn close_code(socket: &mut Raw) -> Option<u16> {
    loop {
        match tokio::time::timeout(PATIENCE, socket.next())
            .await
            .expect("a close")
        {
            Some(Ok(Message::Close(frame))) => return frame.map(|f| f.code.into()),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}

/// The message of the next error response; other frames are passed over.
async fn error_of(socket: &mut Raw) -> String {
    loop {
        match tokio::time::timeout(PATIENCE, socket.next())
            .await
            .expect("a response")
        {
            Some(Ok(Message::Text(text))) => {
                if let Ok(ServerMessage::Response(response)) = parse_server_message(&text)
                    && let Err(error) = response.result
                {
                    return error.message;
                }
            }
            other => assert!(matches!(other, Some(Ok(_))), "{other:?}"),
        }
    }
}
