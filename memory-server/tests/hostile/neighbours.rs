//! What one member of a space does to the others in it: its own bounds are its own, and so is the time it waits.

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::SinkExt;
use memory_server::Rate;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::rig::{Rig, judge, victim};

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

/// Statements that never end take neither the server's threads nor the space's turn.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1203_endless_statements_end_and_hold_up_nobody() {
    let mut rig = Rig::with(|config| {
        config.limits.sqlite_read_steps = 1_000_000;
        config.limits.sqlite_write_steps = 1_000_000;
        config.limits.concurrent_sqlite_reads = 1;
    })
    .await;
    let shared = rig.shared.clone();
    let mut member = rig.member().await;
    let db = json!({ "id": "of:db", "tables": { "t": { "properties": { "n": { "sqlType": "integer" } } } } });
    let write = |sql: &str| json!([{ "op": "sqlite", "db": db, "sql": sql, "params": [] }]);
    let answer = member
        .transact(&shared, "m", 1, write("INSERT INTO t (n) VALUES (1)"))
        .await;
    assert!(answer["ok"].is_object(), "{answer}");
    const FOR_EVER: &str = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)";
    let insert = format!("INSERT INTO t (n) {FOR_EVER} SELECT n FROM c");
    let answer = within(member.transact(&shared, "m", 2, write(&insert))).await;
    judge("a write", &answer, "TransactionError", "takes too many steps").expect("refused");
    let queries = 20;
    for n in 0..queries {
        let query = json!({
            "type": "sqlite.query", "requestId": format!("q{n}"), "space": shared.as_str(), "sessionId": "m",
            "db": db, "sql": format!("{FOR_EVER} SELECT count(*) FROM c"),
        });
        member.send(&format!("fvj1:{query}")).await;
    }
    // The others go on meanwhile.
    rig.unharmed(&[&member]).await;
    let mut answered = 0;
    while answered < queries {
        let answer = within(member.receive()).await.expect("open");
        if answer["type"] == "response" {
            judge("a read", &answer, "SqliteError", "takes too many steps").expect("refused");
            answered += 1;
        }
    }
    rig.unharmed(&[&member]).await;
}
