//! `server-session-open-auth.jsonl`: opens with real signatures, judged over a real socket (SRV §3.2).

mod support;

use std::sync::Arc;

use memory_server::{Identifiers, ServerConfig, SignedSessionOpen};
use serde_json::{Value as Json, json};
use support::{Injected, Running, frame, vectors};

/// Issues one given challenge.
struct Fixed(String);

impl Identifiers for Fixed {
    fn challenge(&self) -> String {
        self.0.clone()
    }

    fn uuid(&self) -> String {
        "00000000-0000-4000-8000-000000000001".into()
    }
}

/// A server about to judge one line: its challenge is issued at connect, so the clock starts where its life begins.
fn config(line: &Json) -> (ServerConfig, Arc<support::ManualClock>) {
    let audience = line["serverAudience"].as_str().expect("a DID");
    let Injected {
        mut config, clock, ..
    } = Injected::new(audience, issued_at(line) * 1000);
    config.authenticator = Arc::new(SignedSessionOpen);
    config.identifiers = Arc::new(Fixed(
        line["challenge"]["value"].as_str().expect("hex").to_owned(),
    ));
    (config, clock)
}

fn issued_at(line: &Json) -> i64 {
    line["challenge"]["expiresAt"].as_i64().expect("a time") - 300
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn srv_304_signed_opens_over_a_socket() {
    let mut failures = Vec::new();
    let mut judged = 0;
    for line in vectors("server-session-open-auth.jsonl") {
        let label = line["label"].as_str().expect("labelled").to_owned();
        let (config, clock) = config(&line);
        let running = Running::standalone(config).await;
        let mut client = running.client().await;
        let hello = client
            .request(&frame(
                &json!({ "type": "hello", "protocol": "memory", "flags": {} }),
            ))
            .await;
        assert_eq!(hello["sessionOpen"]["challenge"], line["challenge"], "{label}");
        clock.advance((line["nowSeconds"].as_i64().expect("a time") - issued_at(&line)) * 1000);
        let answer = client.request(line["frame"].as_str().expect("a frame")).await;
        let result = &line["result"];
        let outcome = match result.get("ok") {
            Some(_) if answer["ok"]["sessionId"].is_string() => Ok(()),
            Some(_) => Err(format!("expected an open, got {answer}")),
            None => compare_error(&answer, &line),
        };
        judged += 1;
        failures.extend(outcome.err().map(|error| format!("{label}: {error}")));
    }
    println!(
        "server-session-open-auth: {judged} judged, {} failed",
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(judged, 28);
}

/// Name as the wire renames it (SRV-307), message and retriable mark.
fn compare_error(answer: &Json, line: &Json) -> Result<(), String> {
    let expected = &line["result"]["error"];
    let got = &answer["error"];
    let retriable = |error: &Json| error["retriable"].as_bool().unwrap_or(false);
    // The reason after an unusable DID is the parser's own words.
    let text = |error: &Json| {
        let message = error["message"].as_str().unwrap_or_default();
        message
            .split_once("\", ")
            .filter(|_| message.starts_with("Invalid DID "))
            .map_or(message, |(did, _)| did)
            .to_owned()
    };
    let same = got["name"] == line["wireErrorName"]
        && text(got) == text(expected)
        && retriable(got) == retriable(expected);
    if same {
        Ok(())
    } else {
        Err(format!("got {got}, want {} {expected}", line["wireErrorName"]))
    }
}
