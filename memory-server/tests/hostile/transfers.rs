//! Uploads and answers over HTTP that never come to an end (SRV-121, SRV-122). Anybody may begin one.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Rig, http};

/// Longest wait for something that must come; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

fn blob_responses(status: u16) -> String {
    format!("memory_http_responses_total{{route=\"/{{space}}/blobs\",status=\"{status}\"}}")
}

/// Whoever sends an upload drop by drop is cut off; what all uploads under way hold together is bounded, and those that
/// find no room wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn srv_121_uploads_that_never_end_are_cut_off_and_hold_little() {
    let mut rig = Rig::with(|config| {
        config.limits.outbound_stall = Duration::from_millis(300);
        config.limits.outbound_min_rate = 1 << 30;
        config.limits.upload_bytes = 1_000_000;
    })
    .await;
    let shared = rig.shared.to_string();
    let begin = format!("POST /{shared}/blobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("{:x}\r\n{}\r\n", 100_000, "z".repeat(100_000));
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(rig.address).await.expect("listens");
        // Some of it is not read for want of room: this must not wait for that.
        let text = format!("{begin}{chunk}");
        slow.push(tokio::spawn(async move {
            let _ = stream.write_all(text.as_bytes()).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        }));
    }
    for stream in slow {
        let answer = within(stream).await.expect("ran");
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert_eq!(rig.counters().await[&blob_responses(408)], 40);
    // A body larger than all the room there is finds it when it is alone.
    let body = format!(
        "fvj1:{{\"body\":{{\"/Bytes@1\":\"{}\"}},\"type\":\"x\"}}",
        "AAAA".repeat(500_000)
    );
    let upload = format!(
        "POST /{shared}/blobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // A busy machine may take longer over it than those who never end are given.
    within(async {
        while !http(rig.address, &upload).await.starts_with("HTTP/1.1 201") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.unharmed(&[]).await;
}

/// Whoever asks for something and does not read it is given up.
#[tokio::test(flavor = "multi_thread")]
async fn srv_122_answers_nobody_reads_are_given_up() {
    let mut rig = Rig::with(|config| {
        config.limits.outbound_stall = Duration::from_millis(300);
        config.limits.max_connections = 30;
    })
    .await;
    let shared = rig.shared.clone();
    let mut member = rig.member().await;
    let bytes = "AAAA".repeat(3_000_000);
    let operations = json!([{ "op": "set", "id": "cid:fid1:large", "value": { "value": {
        "type": "image/png", "body": { "/Bytes@1": bytes } } } }]);
    let answer = member.transact(&shared, "m", 1, operations).await;
    assert!(answer["ok"].is_object(), "{answer}");
    // More of them, one after the other, than there are places: each is given up.
    let request = format!("GET /{shared}/blobs/large.png HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut deaf = Vec::new();
    for n in 0..60 {
        within(async {
            loop {
                let mut stream = TcpStream::connect(rig.address).await.expect("listens");
                let _ = stream.write_all(request.as_bytes()).await;
                // The first byte of the answer says that there was a place.
                if matches!(stream.peek(&mut [0]).await, Ok(1)) {
                    deaf.push(stream);
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(deaf.len(), n + 1);
    }
    drop(deaf);
    rig.unharmed(&[&member]).await;
}
