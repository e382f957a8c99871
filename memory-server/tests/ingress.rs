//! `server-ingress.jsonl`, kind `dispatch`: loosely typed bodies over a real socket (SRV-114…117). Where the reference
//! would close the socket, or pass what no client sends, ours answers with a typed error and stays usable.

mod support;

use serde_json::{Value as Json, json};
use support::{Client, Injected, Running, frame, normalised, vectors};

/// Lines whose answer differs from the recorded one on purpose: the error name that must come instead, and why.
const OURS: &[(&str, &str, &str)] = &[
    // SRV-116: the reference closes 1011; ours names the field.
    ("commit {}", "ProtocolError", "commit.operations"),
    ("operations string", "ProtocolError", "commit.operations"),
    ("operations [null]", "ProtocolError", "operation"),
    ("watch null element", "ProtocolError", "watches"),
    ("watch no query", "ProtocolError", "watch.query"),
    ("watch root null", "ProtocolError", "root"),
    ("graph root null", "ProtocolError", "root"),
    ("watch.add null", "ProtocolError", "watches"),
    // SRV-116: the name is the reference's, the text was a fault of its language.
    ("op without id", "TransactionError", "id"),
    ("unknown op", "TransactionError", "zap"),
    ("reads missing", "TransactionError", "reads"),
    ("localSeq missing", "TransactionError", "localSeq"),
    ("scope bogus", "TransactionError", "scope"),
    ("watch root no selector", "QueryError", "selector"),
    // SRV-117: the reference lets these through to the replay table.
    ("localSeq string", "ProtocolError", "localSeq"),
    ("localSeq 0", "ProtocolError", "localSeq"),
    ("localSeq -1", "ProtocolError", "localSeq"),
];

/// SRV-1: ids that hold `/` are ordinary ids.
const ACCEPTED: &[&str] = &["watch root id with slash"];

async fn open() -> (Running, Client) {
    let running = Running::standalone(Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config).await;
    let mut client = running.client().await;
    let hello = client
        .request(&frame(
            &json!({ "type": "hello", "protocol": "memory", "flags": {} }),
        ))
        .await;
    let open = json!({
        "type": "session.open", "requestId": "open", "space": "did:key:z6Mk-space", "session": { "sessionId": "s" },
        "invocation": {
            "aud": "did:key:z6Mk-audience", "iss": "did:key:z6Mk-alice",
            "challenge": hello["sessionOpen"]["challenge"]["value"],
        },
        "authorization": {},
    });
    let answer = client.request(&frame(&open)).await;
    assert_eq!(answer["ok"]["sessionId"], "s", "{answer}");
    (running, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispatch_vectors_over_a_socket() {
    let mut failures = Vec::new();
    let mut judged = 0;
    for line in vectors("server-ingress.jsonl")
        .iter()
        .filter(|line| line["kind"] == "dispatch")
    {
        let label = line["label"].as_str().expect("labelled");
        let (_running, mut client) = open().await;
        client.send(line["frame"].as_str().expect("a frame")).await;
        let answer = client.recv().await;
        judged += 1;
        failures.extend(
            judge(label, line, &normalised(&answer))
                .err()
                .map(|error| format!("{label}: {error}")),
        );
        // SRV-2: the connection and the session go on.
        let ack = json!({
            "type": "session.ack", "requestId": "after", "space": "did:key:z6Mk-space", "sessionId": "s", "seenSeq": 0,
        });
        let after = client.request(&frame(&ack)).await;
        assert_eq!(after["requestId"], "after", "{label}: {after}");
    }
    println!(
        "server-ingress dispatch: {judged} judged, {} failed",
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(judged, 28);
}

fn judge(label: &str, line: &Json, answer: &Json) -> Result<(), String> {
    if answer["requestId"] != "r" {
        return Err(format!("not the request's answer: {answer}"));
    }
    if let Some((_, name, field)) = OURS.iter().find(|(ours, _, _)| *ours == label) {
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        return if answer["error"]["name"] == *name && message.contains(field) {
            Ok(())
        } else {
            Err(format!("want {name} naming {field}, got {answer}"))
        };
    }
    if ACCEPTED.contains(&label) {
        return if answer["ok"].is_object() {
            Ok(())
        } else {
            Err(format!("want an answer, got {answer}"))
        };
    }
    let responses = line["responses"].as_array().expect("responses");
    let [expected] = responses.as_slice() else {
        return Err("a line without a recorded answer needs a row in OURS".into());
    };
    let expected = normalised(expected.as_str().expect("a frame"));
    if *answer == expected {
        Ok(())
    } else {
        Err(format!("got {answer}, want {expected}"))
    }
}
