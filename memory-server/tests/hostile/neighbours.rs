//! What one member of a space does to the others in it: its own bounds are its own, and so is the time it waits.

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::SinkExt;
use memory_server::Rate;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::rig::{Rig, victim};

/// Longest wait for something that must come; it only bounds a broken run.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("in time")
}

/// SRV-436: pushes wait for frames that are about to be handled, not for those that wait for their sender's rate.
#[tokio::test(flavor = "multi_thread")]
async fn srv_436_a_member_above_its_rate_holds_up_nobody_elses_pushes() {
    let burst = 16;
    let mut rig = Rig::with(|config| {
        config.limits.drain_wait_floor = PATIENCE;
        config.rates.queries = Rate {
            per_second: NonZeroU32::new(1),
            burst: NonZeroU32::new(burst).expect("some"),
        };
        config.rates.patience = PATIENCE * 60;
    })
    .await;
    let shared = rig.shared.clone();
    let mut hasty = rig.member().await;
    // Enough to wait for its rate for longer than anybody would wait for the server.
    for n in 0..burst + 120 {
        let exists = json!({
            "type": "entity-id.exists", "requestId": format!("e{n}"), "space": shared.as_str(), "sessionId": "m",
            "id": "of:note",
        });
        let frame = Message::Text(format!("fvj1:{exists}").into());
        hasty.socket.feed(frame).await.expect("open");
    }
    hasty.socket.flush().await.expect("open");
    for n in 0..burst {
        let answer = within(hasty.receive()).await.expect("open");
        assert_eq!(answer["requestId"], format!("e{n}"), "within its burst");
    }
    let operations = json!([{ "op": "patch", "id": "of:note", "patches": [
        { "op": "add", "path": "/value/n", "value": 1 }] }]);
    let answer = rig.victim.transact(&shared, "vs", 5_000, operations).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let waiting = &mut rig.victim;
    within(async {
        while !waiting
            .pushed
            .iter()
            .any(|message| message["effect"]["caughtUpLocalSeq"] == 5_000)
        {
            let message = waiting.receive().await.expect("open");
            waiting.pushed.push(message);
        }
    })
    .await;
    assert_eq!(waiting.signer.did(), victim().did());
    rig.unharmed(&[&hasty]).await;
}
