//! Knobs with values nobody means (SRV §14): refused by name at start, or a server that still answers.

use std::sync::Arc;
use std::time::Duration;

use memory_server::knobs::{KNOBS, Knob, KnobError, Knobs, Said};
use memory_server::{FlushTiming, Server, ServerConfig};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::manual;
use crate::support::{Client, Received, SPACE, hello, open_with, set};

/// Longest wait for an answer; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

/// The least and the most of what a unit can be written as, and beyond.
const VALUES: [&str; 8] = [
    "0",
    "4294967295",
    "18446744073709551615",
    "99999999999999999999",
    "1000000h",
    "5124095576030h",
    "1048576GiB",
    "17179869183GiB",
];

fn resolve(knob: &Knob, text: &str) -> Result<Knobs, KnobError> {
    let said = Said {
        file: None,
        flags: vec![(knob.key, text)],
    };
    Knobs::default()
        .resolve(&said, &|_| None)
        .map(|resolved| resolved.knobs)
}

/// A server with these bounds takes a write, or says with a close why it does not.
async fn serves(knobs: Knobs) -> Result<(), String> {
    let config = ServerConfig {
        limits: knobs.limits,
        rates: knobs.rates,
        flush: FlushTiming::Timed,
        ..manual()
    };
    let server = Server::new(config).expect("inside a runtime");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (end, ended) = oneshot::channel::<()>();
    let serving = tokio::spawn({
        let (server, router) = (Arc::clone(&server), server.router());
        async move {
            let ending = async {
                let _ = ended.await;
            };
            server.serve(listener, router, ending).await
        }
    });
    let mut client = Client::connect(address, "/api/storage/memory").await;
    let exchange = async {
        let Some(greeted) = ask(&mut client, &hello()).await? else {
            return Ok(());
        };
        let challenge = greeted["sessionOpen"]["challenge"]["value"]
            .as_str()
            .ok_or("no challenge")?;
        let opened = open_with(&mut client, challenge, SPACE, "s", "did:key:a", None).await;
        if !opened["ok"].is_object() {
            return Err(format!("{opened}"));
        }
        match ask(&mut client, &set("s", 1, "of:x", &json!(1))).await? {
            Some(answer) if !answer["ok"].is_object() => Err(format!("{answer}")),
            Some(_) | None => Ok(()),
        }
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .unwrap_or_else(|_| Err("no answer".into()))?;
    drop(client);
    end.send(()).map_err(|()| "it no longer serves")?;
    server.shut_down().await;
    serving
        .await
        .expect("does not panic")
        .map_err(|error| error.to_string())
}

/// The answer, or nothing when the server closed the connection with a reason.
async fn ask(client: &mut Client, request: &str) -> Result<Option<serde_json::Value>, String> {
    client.send(request).await;
    match client.recv_or_close().await {
        Received::Text(text) => Ok(Some(crate::support::json(&text))),
        Received::Close(Some(_)) => Ok(None),
        other => Err(format!("{other:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absurd_bound_is_refused_by_name_or_served() {
    let bounds = KNOBS
        .iter()
        .filter(|knob| knob.key.starts_with("limits.") || knob.key.starts_with("rates."));
    let (mut refused, mut served) = (0, 0);
    for knob in bounds {
        for text in VALUES {
            match resolve(knob, text) {
                Err(KnobError::Value { name, found, .. }) => {
                    assert_eq!((name, found.as_str()), (format!("--{}", knob.flag()), text));
                    refused += 1;
                }
                Err(other) => panic!("{} = {text}: {other}", knob.key),
                Ok(knobs) => {
                    if let Err(error) = serves(knobs).await {
                        panic!("{} = {text}: {error}", knob.key);
                    }
                    served += 1;
                }
            }
        }
    }
    assert!(refused > 50 && served > 50, "{refused} refused, {served} served");
}

/// What cannot work at all, or would be done without end.
#[test]
fn a_bound_of_nothing_is_refused_where_nothing_would_work() {
    let expected = [
        "limits.challenge_ttl",
        "limits.commits_per_turn",
        "limits.concurrent_full_evaluations",
        "limits.concurrent_sqlite_reads",
        "limits.entity_id_page",
        "limits.foreign_commit_poll",
        "limits.hello_deadline",
        "limits.inbound_pending_bytes",
        "limits.inbound_pending_frames",
        "limits.keep_alive",
        "limits.max_connections",
        "limits.max_inbound_message",
        "limits.negotiation_buffer",
        "limits.outbound_cap",
        "limits.outbound_high_water",
        "limits.outbound_min_rate",
        "limits.outbound_stall",
        "limits.read_buffer",
        "limits.request_head",
        "limits.sessions_per_principal",
        "limits.sweep_interval",
        "limits.unopened_bytes",
        "limits.unopened_sockets",
        "limits.upload_bytes",
    ];
    let mut refused: Vec<&str> = KNOBS
        .iter()
        .filter(|knob| knob.key.starts_with("limits.") && resolve(knob, "0").is_err())
        .map(|knob| knob.key)
        .collect();
    refused.sort_unstable();
    assert_eq!(refused, expected);
}
