//! Watch lists that read much (SRV-503, SRV-525, SRV-1203): evaluated beside the turn, so that commits go on meanwhile, and
//! installed without missing any of them.

use std::sync::mpsc;

use memory_engine::StoreRoot;
use memory_server::{ServingPlane, Stores};
use memory_wire::SpaceId;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::support::{Client, Injected, Running, SPACE, frame, json, link, open, set, watch_roots};

/// A server with its store in a file, where a request that reads more than two documents is large.
async fn running(directory: &TempDir) -> Running {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    config.limits.documents_in_turn = 2;
    Running::production(config).await
}

/// Keeps every reader of the space busy until what is returned is dropped: nothing is evaluated beside the turn meanwhile.
async fn hold_readers(running: &Running) -> Vec<mpsc::Sender<()>> {
    let engine = running.server.engine(&SpaceId::from(SPACE)).expect("a store");
    let mut busy = Vec::new();
    for _ in 0..memory_engine::ActorOptions::default().max_readers {
        let (begin, begun) = tokio::sync::oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        tokio::spawn(engine.read(move |_| {
            begin.send(()).expect("somebody waits");
            assert!(released.recv().is_err());
        }));
        begun.await.expect("reads");
        busy.push(release);
    }
    busy
}

async fn evaluated(running: &Running, place: &str) -> u64 {
    let (_, text) = running.get("/metrics").await;
    let series = format!("memory_watch_requests_total{{place=\"{place}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(series.as_str()));
    line.expect("the counter").parse().expect("a number")
}

fn roots(ids: &[&str]) -> Json {
    let root = |id: &&str| json!({ "id": id, "selector": { "path": [], "schema": true } });
    ids.iter().map(root).collect()
}

/// Commits and takes the verdict.
async fn commit(writer: &mut Client, local_seq: u64, id: &str, value: &Json) {
    let answer = writer.request(&set("w", local_seq, id, value)).await;
    assert!(answer["ok"].is_object(), "{answer}");
}

/// The ids an answer tells, with their values, and those it takes back.
fn told(answer: &Json) -> (Vec<(String, Json)>, Vec<String>) {
    let sync = &answer["ok"]["sync"];
    let id = |entry: &Json| entry["id"].as_str().expect("an id").to_owned();
    let entries = |name: &str| sync[name].as_array().cloned().unwrap_or_default();
    (
        entries("upserts")
            .iter()
            .map(|entry| (id(entry), entry["doc"]["value"].clone()))
            .collect(),
        entries("removes").iter().map(id).collect(),
    )
}

/// Commits that land while a list is being evaluated neither wait for it nor are missed by it, be they few or many, and
/// whether they bring something into reach or take it out.
#[tokio::test(flavor = "multi_thread")]
async fn srv_503_srv_1203_an_addition_that_reads_much_holds_up_no_commit() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = running(&directory).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut n = 0;
    let mut next = || {
        n += 1;
        n
    };
    for id in ["of:a", "of:b", "of:c", "of:far", "of:near"] {
        commit(&mut writer, next(), id, &json!(0)).await;
    }
    commit(&mut writer, next(), "of:list", &json!([link("of:far")])).await;
    let mut reader = open(&running, "r", "did:key:r").await;
    let first = watch_roots("r", "session.watch.add", "first", &roots(&["of:list"]));
    let (held, _) = told(&reader.request(&first).await);
    assert_eq!(held.len(), 2, "the list and what it leads to: {held:?}");
    assert_eq!(evaluated(&running, "turn").await, 1);

    let busy = hold_readers(&running).await;
    let large = watch_roots(
        "r",
        "session.watch.add",
        "large",
        &roots(&["of:a", "of:b", "of:c"]),
    );
    reader.send(&large).await;
    // Far more than are taken in within the turn; the last of them turns the list to another document.
    for value in 1..=200 {
        commit(&mut writer, next(), "of:b", &json!(value)).await;
    }
    commit(&mut writer, next(), "of:list", &json!([link("of:near")])).await;
    // A request that reads little is answered meanwhile, in the turn.
    let mut other = open(&running, "o", "did:key:o").await;
    let little = watch_roots("o", "session.watch.add", "little", &roots(&["of:a"]));
    assert_eq!(told(&other.request(&little).await).0.len(), 1);
    assert_eq!(evaluated(&running, "beside").await, 0, "it has not been answered");
    drop(busy);
    let answer = json(&reader.recv().await);
    let (mut upserts, removes) = told(&answer);
    upserts.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [
        ("of:a", json!(0)),
        ("of:b", json!(200)),
        ("of:c", json!(0)),
        ("of:list", json!([link("of:near")])),
        ("of:near", json!(0)),
    ];
    assert_eq!(
        upserts,
        expected.map(|(id, value)| (id.to_owned(), value)),
        "{answer}"
    );
    assert_eq!(removes, ["of:far"], "{answer}");
    assert_eq!(evaluated(&running, "beside").await, 1);
    assert_eq!(evaluated(&running, "turn_at_last").await, 0);

    // What it tracks is pushed from now on, once.
    commit(&mut writer, next(), "of:near", &json!("new")).await;
    commit(&mut writer, next(), "of:far", &json!("unseen")).await;
    running.server.flush(None).await.expect("flushes");
    let effect = json(&reader.recv().await);
    let pushed: Vec<&Json> = effect["effect"]["upserts"]
        .as_array()
        .expect("a frame")
        .iter()
        .collect();
    assert_eq!(pushed.len(), 1, "{effect}");
    assert_eq!(pushed[0]["id"], "of:near", "{effect}");
}

/// A request that cannot be answered is refused from beside the turn as it is from within, and leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn srv_503_a_large_list_that_fails_installs_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = running(&directory).await;
    let mut reader = open(&running, "r", "did:key:r").await;
    for kind in ["session.watch.add", "session.watch.set"] {
        let branch = json!([{ "id": "w", "kind": "graph", "query": {
            "branch": "nowhere", "roots": roots(&["of:a", "of:b", "of:c"]) } }]);
        let request = json!({
            "type": kind, "requestId": "w", "space": SPACE, "sessionId": "r", "watches": branch,
        });
        let answer = reader.request(&frame(&request)).await;
        assert_eq!(answer["error"]["name"], "QueryError", "{answer}");
    }
    // The id is free: the same watch on another branch is no replacement.
    let large = watch_roots("r", "session.watch.add", "w", &roots(&["of:a", "of:b", "of:c"]));
    let answer = reader.request(&large).await;
    assert_eq!(told(&answer).0.len(), 3, "{answer}");
}
