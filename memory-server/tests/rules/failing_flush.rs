//! A pass over a store that cannot be read (SRV-422, SRV-440): it gives back what it took, whoever asked hears of it, and
//! a pass of the timer is tried again.

use std::path::{Path, PathBuf};

use memory_engine::StoreRoot;
use memory_server::{AdmittedCommit, FlushTiming, ServerConfig, ServingPlane, Stores};
use memory_wire::commit_meta::CommitClass;
use memory_wire::{EntityId, InstanceId, Seq};
use serde_json::json;

use crate::support::{Client, Injected, Running, SPACE, open, set, watch};

/// A server on files, and where it keeps the space.
fn on_files(directory: &Path, timing: FlushTiming) -> (ServerConfig, PathBuf) {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    let root = StoreRoot::direct(directory).expect("a directory");
    let store = root.store_path(&SPACE.into()).expect("a path");
    config.stores = Stores::Files(root);
    config.flush = timing;
    (config, store)
}

/// Takes from the store what every pass asks first, or puts it back.
fn alter(store: &Path, rename: &str) {
    let connection = rusqlite::Connection::open(store).expect("opens");
    connection.execute_batch(rename).expect("renamed");
}

fn break_it(store: &Path) {
    alter(store, "ALTER TABLE \"commit\" RENAME TO mislaid");
}

fn mend_it(store: &Path) {
    alter(store, "ALTER TABLE mislaid RENAME TO \"commit\"");
}

async fn watching(running: &Running) -> Client {
    let mut reader = open(running, "r", "did:key:r").await;
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    reader
}

async fn told(reader: &mut Client) -> serde_json::Value {
    let message = crate::support::json(&reader.recv().await);
    assert_eq!(message["type"], "session/effect", "{message}");
    message["effect"]["upserts"][0]["doc"]["value"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_440_srv_422_a_failed_flush_says_so_and_the_next_one_tells_what_it_had_taken() {
    let directory = tempfile::tempdir().expect("a directory");
    let (config, store) = on_files(directory.path(), FlushTiming::Manual);
    let running = Running::production(config).await;
    let mut reader = watching(&running).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    assert!(writer.request(&set("w", 1, "of:x", &json!("kept"))).await["ok"].is_object());
    break_it(&store);
    let before = running.server.work_stats().evaluations;
    for _ in 0..2 {
        let failed = running.server.flush(None).await.expect_err("the store is broken");
        assert!(failed.to_string().contains("no such table"), "{failed}");
    }
    assert_eq!(
        running.server.work_stats().evaluations,
        before,
        "nobody was evaluated"
    );
    mend_it(&store);
    running.server.flush(None).await.expect("flushes");
    assert_eq!(told(&mut reader).await, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_440_a_failed_pass_of_the_timer_is_counted_and_tried_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut config, store) = on_files(directory.path(), FlushTiming::Timed);
    config.limits.drain_wait_floor = std::time::Duration::from_millis(1);
    let running = Running::production(config).await;
    let mut reader = watching(&running).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    assert!(writer.request(&set("w", 1, "of:other", &json!(1))).await["ok"].is_object());
    running.server.idle().await.expect("settles");
    break_it(&store);
    running.server.note_executor_commit(AdmittedCommit {
        space: SPACE.into(),
        seq: Seq(1),
        class: CommitClass::Derived,
        holder: None,
        session_id: "loop".into(),
        writes: vec![InstanceId::space(EntityId::from("of:x"))],
        event_appends: Vec::new(),
        warm: false,
    });
    let failures = async || {
        let (_, text) = running.get("/metrics").await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("memory_flush_failures_total "));
        line.and_then(|count| count.parse::<f64>().ok()).expect("counted")
    };
    while failures().await < 2.0 {
        tokio::task::yield_now().await;
    }
    mend_it(&store);
    let mut other = open(&running, "o", "did:key:o").await;
    assert!(other.request(&set("o", 1, "of:x", &json!("told"))).await["ok"].is_object());
    // By the task that failed: no other is started while it stands.
    assert_eq!(told(&mut reader).await, "told");
}
