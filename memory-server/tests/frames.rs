//! The four transcripts of `wire-frames.jsonl` (kind `frame`): opens with real signatures, commits, resumes and server
//! execution, replayed over real sockets.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_server::{ServingPlane, SignedSessionOpen};
use serde_json::Value as Json;
use support::{Client, Counting, Injected, Running, normalised, vectors};

/// 32 bytes rising by 7 from a start that rises by 31.
fn rising_challenge(n: u64) -> String {
    (0..32)
        .map(|i| format!("{:02x}", (31 * n + 7 * i) % 256))
        .collect()
}

/// Transcripts whose connections were all made before the first frame; in the others each was made with its first.
const CONNECTED_FIRST: &[&str] = &["commits"];

const AUDIENCE: &str = "did:key:z6MkvdgR5HbDqVvPcxewMHdAMC6yoB3uUAVBioskPoRxqeq3";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frame_transcripts_replay_over_sockets() {
    let mut transcripts: Vec<(String, Vec<Json>)> = Vec::new();
    for line in vectors("wire-frames.jsonl")
        .into_iter()
        .filter(|line| line["kind"] == "frame")
    {
        let name = line["transcript"].as_str().expect("named").to_owned();
        match transcripts.last_mut() {
            Some((last, lines)) if *last == name => lines.push(line),
            _ => transcripts.push((name, vec![line])),
        }
    }
    let mut failures = Vec::new();
    let mut frames = 0;
    // The recording process counted on from one transcript to the next.
    let (mut uuids, mut challenges) = (0, 0);
    for (name, lines) in transcripts {
        frames += lines.len();
        let (from_uuids, from_challenges) = starts(&lines, CONNECTED_FIRST.contains(&name.as_str()));
        (uuids, challenges) = (from_uuids.unwrap_or(uuids), from_challenges.unwrap_or(challenges));
        let label = name.clone();
        match tokio::spawn(async move { replay(&label, &lines, uuids, challenges).await }).await {
            Ok(()) => {}
            Err(error) => {
                let panic = error.into_panic();
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .unwrap_or_else(|| "a panic".into());
                failures.push(format!("== {name}: {text}"));
            }
        }
    }
    println!(
        "wire-frames frame: {frames} frames in 4 transcripts, {} transcripts failed",
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(frames, 176);
}

/// Where the counters stood when the transcript was recorded: read off its first challenge and its first fresh session
/// id, which was drawn after the server's own id and one id per connection.
fn starts(lines: &[Json], connected_first: bool) -> (Option<u64>, Option<u64>) {
    let answers = || {
        lines
            .iter()
            .filter(|line| line["dir"] == "s2c")
            .map(|line| support::json(line["text"].as_str().expect("a frame")))
    };
    let challenge = answers().find_map(|answer| {
        answer["sessionOpen"]["challenge"]["value"]
            .as_str()
            .map(str::to_owned)
    });
    let challenges = challenge.and_then(|hex| (0..256).find(|n| rising_challenge(n + 1) == hex));
    let mut connections: BTreeSet<&str> = BTreeSet::new();
    if connected_first {
        connections.extend(
            lines
                .iter()
                .map(|line| line["connection"].as_str().expect("named")),
        );
    }
    for line in lines {
        connections.insert(line["connection"].as_str().expect("named"));
        if line["dir"] == "s2c" {
            let answer = support::json(line["text"].as_str().expect("a frame"));
            if let Some(id) = answer["ok"]["sessionId"]
                .as_str()
                .filter(|_| answer["ok"]["sessionToken"].is_string())
                && let Some(tail) = id.strip_prefix("00000000-0000-4000-8000-")
                && let Ok(tail) = u64::from_str_radix(tail, 16)
            {
                return (Some(tail - 2 - connections.len() as u64), challenges);
            }
        }
    }
    (None, challenges)
}

async fn replay(name: &str, lines: &[Json], uuids: u64, challenges: u64) {
    let Injected { mut config, .. } = Injected::new(AUDIENCE, 1_800_000_000_000);
    config.identifiers = Counting::from(uuids, challenges, rising_challenge);
    config.authenticator = Arc::new(SignedSessionOpen);
    config.server_execution = name == "server-execution-on";
    let running = Running::standalone(config).await;
    let mut clients: BTreeMap<String, Client> = BTreeMap::new();
    if CONNECTED_FIRST.contains(&name) {
        for line in lines {
            let connection = line["connection"].as_str().expect("named");
            if !clients.contains_key(connection) {
                clients.insert(connection.to_owned(), running.client().await);
            }
        }
    }
    for (index, line) in lines.iter().enumerate() {
        let connection = line["connection"].as_str().expect("named");
        let text = line["text"].as_str().expect("a frame");
        let label = format!(
            "{name} frame {index} {connection} {}",
            text.chars().take(200).collect::<String>()
        );
        if !clients.contains_key(connection) {
            clients.insert(connection.to_owned(), running.client().await);
        }
        let client = clients.get_mut(connection).expect("just put there");
        match line["dir"].as_str() {
            Some("c2s") => {
                // Recorded with a timer and a client that waits it out before every request.
                running
                    .server
                    .flush(None)
                    .await
                    .unwrap_or_else(|error| panic!("{label}: {error}"));
                client.send(text).await;
            }
            Some("s2c") => {
                if support::json(text)["type"] == "session/effect" {
                    running
                        .server
                        .flush(None)
                        .await
                        .unwrap_or_else(|error| panic!("{label}: {error}"));
                }
                let got = client.recv().await;
                let (got, expected) = (normalised(&got), normalised(text));
                assert!(got == expected, "{label}\n   got {got}\n  want {expected}");
            }
            other => panic!("{label}: unknown direction {other:?}"),
        }
    }
}
