//! Names of any shape, documents encoded once, and what the statistics say of it (SRV-1, SRV-1202, SRV-1205).

use memory_server::{ServerConfig, ServingPlane};
use serde_json::{Value as Json, json};

use crate::support::{Injected, Running, SPACE, frame, json, open, set, transact, watch};

fn config() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

/// Ids that would run into each other if keys were joined by a separator.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1_ids_of_any_characters_are_kept_apart() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let ids = [
        "of:a",
        "of:a/b",
        "of:a/b/c",
        "of:a\u{0}b",
        "of:user:x/of:a",
        "of:/",
        "of:a ",
    ];
    let mut watcher = open(&running, "w", "did:key:b").await;
    let all = watcher.request(&watch("w", &ids)).await;
    assert_eq!(
        all["ok"]["sync"]["upserts"].as_array().map(Vec::len),
        Some(ids.len())
    );
    for (n, id) in ids.iter().enumerate() {
        let n = n as u64 + 1;
        let verdict = client.request(&set("s", n, id, &json!(n))).await;
        assert!(verdict["ok"].is_object(), "{id:?}: {verdict}");
        running.server.flush(None).await.expect("flushes");
        let pushed = json(&watcher.recv().await);
        let told: Vec<(&str, u64)> = pushed["effect"]["upserts"]
            .as_array()
            .expect("a sync")
            .iter()
            .map(|upsert| {
                let value = upsert["doc"]["value"].as_u64().expect("a number");
                (upsert["id"].as_str().expect("an id"), value)
            })
            .collect();
        assert_eq!(told, [(*id, n)]);
        assert_eq!(json(&client.recv().await)["effect"]["caughtUpLocalSeq"], n);
    }
}

/// However many watch a document, its new revision becomes text once.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1202_a_revision_is_encoded_once_for_all_its_watchers() {
    const WATCHERS: usize = 20;
    let running = Running::production(config()).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut watchers = Vec::new();
    for n in 0..WATCHERS {
        let session = format!("s{n}");
        let mut client = open(&running, &session, "did:key:r").await;
        client.request(&watch(&session, &["of:x"])).await;
        watchers.push(client);
    }
    let before = running.server.work_stats().encoded_documents;
    assert!(writer.request(&set("w", 1, "of:x", &json!("shared"))).await["ok"].is_object());
    running.server.flush(None).await.expect("flushes");
    for client in &mut watchers {
        let pushed = json(&client.recv().await);
        assert_eq!(pushed["effect"]["upserts"][0]["doc"]["value"], "shared");
    }
    assert_eq!(running.server.work_stats().encoded_documents - before, 1);
}

/// The statistics name the spaces of the sessions that track most, largest first, and nobody's session.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1205_the_largest_sessions_are_shown() {
    let running = Running::production(config()).await;
    let mut clients = Vec::new();
    for (session, count) in [("small", 1), ("large", 5), ("middle", 3)] {
        let ids: Vec<String> = (0..count).map(|n| format!("of:{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let mut client = open(&running, session, "did:key:a").await;
        assert!(client.request(&watch(session, &ids)).await["ok"].is_object());
        clients.push(client);
    }
    let (status, text) = running.get("/api/health/stats").await;
    assert_eq!(status, 200, "{text}");
    let stats: Json = serde_json::from_str(&text).expect("JSON");
    let shown = &stats["memory"]["largestSessions"];
    let row = |tracked: u64| json!({ "space": SPACE, "tracked": tracked });
    assert_eq!(*shown, json!([row(5), row(3), row(1)]));
}

/// SRV-811: whoever asks, a commit of the serving side leaves the access list alone; a client cannot even say that its
/// commit is one.
#[tokio::test(flavor = "multi_thread")]
async fn srv_811_a_clients_word_makes_no_commit_a_derived_one() {
    let running = Running::production(config()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let mut claim = json(&transact(
        "s",
        1,
        &json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { "did:key:a": "OWNER" } } }]),
    ));
    claim["commit"]["class"] = "derived".into();
    claim["commit"]["holder"] = "did:key:z6Mk-audience#process".into();
    // Access lists are off: the commit is judged as what it is, an authored one.
    let verdict = client.request(&frame(&claim)).await;
    assert_eq!(verdict["ok"]["seq"], 1, "{verdict}");
    let root = json!([{ "id": format!("of:{SPACE}"), "selector": { "path": [], "schema": false } }]);
    let query = json!({
        "type": "graph.query", "requestId": "q", "space": SPACE, "sessionId": "s", "query": { "roots": root },
    });
    let answer = client.request(&frame(&query)).await;
    assert_eq!(
        answer["ok"]["entities"][0]["document"]["value"]["did:key:a"],
        "OWNER"
    );
}
