//! What watches and queries answer (SRV §5, 6).

use crate::support::{ANONYMOUS, Running, SPACE, frame, open, open_on, set, transact, watch, watch_roots};
use crate::{effect, flush, ids, manual};
use serde_json::{Value as Json, json};

#[tokio::test(flavor = "multi_thread")]
async fn srv_507_srv_508_srv_509_entries_of_absent_deleted_and_removed_documents() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    assert!(client.request(&set("s", 1, "of:b", &json!(1))).await["ok"].is_object());
    let delete = json!([{ "op": "delete", "id": "of:b" }]);
    assert!(client.request(&transact("s", 2, &delete)).await["ok"].is_object());
    let watched = client.request(&watch("s", &["of:b", "of:a"])).await;
    let upserts = &watched["ok"]["sync"]["upserts"];
    assert_eq!(
        upserts[0],
        json!({ "branch": "", "id": "of:a", "scope": "space", "seq": 0, "deleted": true })
    );
    assert_eq!(
        upserts[1],
        json!({ "branch": "", "id": "of:b", "scope": "space", "seq": 2, "deleted": true })
    );
    // The first write of what was absent is pushed.
    let mut other = open(&running, "o", "did:key:b").await;
    assert!(other.request(&set("o", 1, "of:a", &json!(1))).await["ok"].is_object());
    flush(&running).await;
    loop {
        let sync = effect(&mut client).await;
        if ids(&sync) == ["of:a"] {
            break;
        }
    }
    let replaced = client.request(&watch("s", &["of:a"])).await;
    assert_eq!(
        replaced["ok"]["sync"]["removes"],
        json!([{ "branch": "", "id": "of:b", "scope": "space" }])
    );
}

/// Documents behind meta links come whole; a schema that is not here fails the request and names itself.
#[tokio::test(flavor = "multi_thread")]
async fn srv_511_srv_512_meta_documents_come_whole_and_missing_schemas_are_named() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let meta = json!({ "/": { "link@1": { "id": "of:process", "path": [], "space": SPACE } } });
    let operations = json!([
        { "op": "set", "id": "of:process", "value": { "value": { "a": 1, "b": { "c": 2 } } } },
        { "op": "set", "id": "of:root", "value": { "value": { "shown": 1 }, "result": { "/quote": meta } } },
    ]);
    let verdict = client.request(&transact("s", 1, &operations)).await;
    assert!(verdict["ok"].is_object(), "{verdict}");
    let roots = json!([{ "id": "of:root", "selector": { "path": [], "schema": { "type": "object", "properties": {} } } }]);
    let watched = client
        .request(&watch_roots("s", "session.watch.set", "w", &roots))
        .await;
    let sync = &watched["ok"]["sync"];
    assert!(sync.is_object(), "{watched}");
    if ids(sync).contains(&"of:process") {
        let process = sync["upserts"]
            .as_array()
            .and_then(|upserts| upserts.iter().find(|upsert| upsert["id"] == "of:process"))
            .expect("there");
        assert_eq!(process["doc"]["value"], json!({ "a": 1, "b": { "c": 2 } }));
    }
    let missing = "cid:fid1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let roots = json!([{ "id": "of:root", "selector": { "path": [], "schema": { "$ref": missing } } }]);
    let answer = client
        .request(&watch_roots("s", "session.watch.set", "w", &roots))
        .await;
    assert_eq!(answer["error"]["name"], "QueryError", "{answer}");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.starts_with(&format!(
            "Selector references schema document {missing}, which is not stored in this space."
        )),
        "{message}"
    );
}

/// What a commit says of its database is judged before anything is attached.
#[tokio::test(flavor = "multi_thread")]
async fn srv_519_srv_522_database_operations_are_judged_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = manual();
    config.stores =
        memory_server::Stores::Files(memory_engine::StoreRoot::configured(directory.path()).expect("usable"));
    let running = Running::production(config).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let db = |id: &str| json!({ "id": id, "tables": {} });
    let made = json!([{ "op": "sqlite", "db": { "id": "of:db", "tables": { "t": { "type": "object", "properties": {
        "a": { "type": "string" } } } } }, "sql": "INSERT INTO t (a) VALUES ('x')", "params": [] }]);
    assert!(client.request(&transact("s", 1_000, &made)).await["ok"].is_object());
    let mut files: Vec<String> = std::fs::read_dir(directory.path().join("engine-v3/engine-v3"))
        .expect("the stores")
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with("cell-") && name.ends_with(".sqlite"))
        .collect();
    files.sort();
    assert_eq!(files, ["cell-3460bc4012-ad0a657c5.sqlite"], "SRV-519");
    let many: serde_json::Map<String, Json> = (0..257).map(|n| (format!("t{n}"), json!({}))).collect();
    let op = |db: Json, sql: &str| json!({ "op": "sqlite", "db": db, "sql": sql, "params": [] });
    let mut odd_scope = db("of:db");
    odd_scope["scope"] = "galaxy".into();
    let mut user = db("of:db");
    user["scope"] = "user".into();
    let cases = [
        (
            json!([op(db("of:db"), &"x".repeat(100_001))]),
            "sqlite statement exceeds the maximum length",
        ),
        (
            json!([op(json!({ "id": "of:db", "tables": many }), "DELETE FROM t")]),
            "sqlite db declares too many tables",
        ),
        (
            json!([op(odd_scope, "DELETE FROM t")]),
            "sqlite op declares an invalid scope",
        ),
        (
            json!([op(db("of:db"), "DELETE FROM t"), op(user, "DELETE FROM t")]),
            "conflicting scope for the same sqlite database in one commit",
        ),
        (
            json!([
                op(db("of:db"), "DELETE FROM t"),
                op(db("of:other"), "DELETE FROM t")
            ]),
            "a commit may write to at most one sqlite database",
        ),
    ];
    for (n, (operations, message)) in cases.into_iter().enumerate() {
        let answer = client.request(&transact("s", n as u64 + 1, &operations)).await;
        assert_eq!(answer["error"]["name"], "ProtocolError", "{message}: {answer}");
        assert_eq!(answer["error"]["message"], message);
    }
}

/// Own instances come, resolved by name; foreign ones are absent.
#[tokio::test(flavor = "multi_thread")]
async fn srv_602_srv_603_marks_are_instances_and_frames_carry_names() {
    let running = Running::production(manual()).await;
    let (mut a, mut b) = (
        open(&running, "a", "did:key:a").await,
        open(&running, "b", "did:key:b").await,
    );
    let roots = json!([{ "id": "of:x", "scope": "user", "selector": { "path": [], "schema": true } }]);
    for (client, session) in [(&mut a, "a"), (&mut b, "b")] {
        let watched = client
            .request(&watch_roots(session, "session.watch.set", "w", &roots))
            .await;
        assert!(watched["ok"].is_object());
    }
    let before = running.server.work_stats().evaluations;
    let patch = json!([{ "op": "set", "id": "of:x", "scope": "user", "value": { "value": "a's" } }]);
    assert!(a.request(&transact("a", 1, &patch)).await["ok"].is_object());
    flush(&running).await;
    assert_eq!(
        running.server.work_stats().evaluations,
        before + 1,
        "b is not even evaluated"
    );
    // A second session of the same person has the same instance.
    let mut second = open(&running, "a2", "did:key:a").await;
    let watched = second
        .request(&watch_roots("a2", "session.watch.set", "w", &roots))
        .await;
    let upsert = &watched["ok"]["sync"]["upserts"][0];
    assert_eq!(upsert["doc"]["value"], "a's");
    assert_eq!(upsert["scope"], "user");
    assert!(upsert["scopeKey"].is_null(), "{upsert}");
    let anonymous = open_on(&mut running.client().await, SPACE, "n", ANONYMOUS, None).await;
    assert!(anonymous["ok"].is_object(), "{anonymous}");
}

/// Adding tells what is new and removes nothing, also as the first request; what is covered is not walked again.
#[tokio::test(flavor = "multi_thread")]
async fn srv_503_srv_504_adding_a_watch_tells_what_is_new() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    for (n, id) in ["of:x", "of:y"].iter().enumerate() {
        assert!(client.request(&set("s", n as u64 + 1, id, &json!(n))).await["ok"].is_object());
    }
    let root = |id: &str| json!([{ "id": id, "selector": { "path": [], "schema": false } }]);
    let first = client
        .request(&watch_roots("s", "session.watch.add", "one", &root("of:x")))
        .await;
    assert_eq!(ids(&first["ok"]["sync"]), ["of:x"]);
    assert_eq!(first["ok"]["sync"]["removes"], json!([]));
    let second = client
        .request(&watch_roots("s", "session.watch.add", "two", &root("of:y")))
        .await;
    assert_eq!(ids(&second["ok"]["sync"]), ["of:y"], "{second}");
    let covered = client
        .request(&watch_roots("s", "session.watch.add", "three", &root("of:y")))
        .await;
    assert!(ids(&covered["ok"]["sync"]).is_empty(), "{covered}");
    // A failing addition installs nothing.
    let roots = json!([{ "id": "of:z", "selector": { "path": [], "schema": { "$ref": "cid:fid1:none" } } }]);
    let failed = client
        .request(&watch_roots("s", "session.watch.add", "four", &roots))
        .await;
    assert_eq!(failed["error"]["name"], "QueryError", "{failed}");
    let mut other = open(&running, "o", "did:key:b").await;
    assert!(other.request(&set("o", 1, "of:z", &json!(1))).await["ok"].is_object());
    flush(&running).await;
    let marker = effect(&mut client).await;
    assert!(!ids(&marker).contains(&"of:z"), "{marker}");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_513_srv_514_one_off_queries() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    assert!(client.request(&set("s", 1, "of:b", &json!(1))).await["ok"].is_object());
    assert!(client.request(&set("s", 2, "of:a", &json!(2))).await["ok"].is_object());
    let query = |query: Json| {
        frame(
            &json!({ "type": "graph.query", "requestId": "q", "space": SPACE, "sessionId": "s", "query": query }),
        )
    };
    let root = |id: &str| json!({ "id": id, "selector": { "path": [], "schema": true } });
    let answer = client
        .request(&query(
            json!({ "roots": [root("of:b"), root("of:none"), root("of:a"), root("of:b")] }),
        ))
        .await;
    let entities = answer["ok"]["entities"].as_array().expect("entities");
    let seen: Vec<(&str, u64)> = entities
        .iter()
        .map(|entity| {
            (
                entity["id"].as_str().expect("an id"),
                entity["seq"].as_u64().expect("a seq"),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [("of:a", 2), ("of:b", 1), ("of:none", 0)],
        "sorted, once each: {answer}"
    );
    assert_eq!(entities[2]["document"], Json::Null);
    assert!(entities[0]["scope"].is_null(), "space is left out");
    let live = client
        .request(&query(json!({ "roots": [root("of:a")], "subscribe": true })))
        .await;
    assert_eq!(live["error"]["name"], "ProtocolError");
    assert_eq!(
        live["error"]["message"],
        "live graph.query subscriptions were removed; use session.watch.set"
    );
    let early = client
        .request(&query(json!({ "roots": [root("of:a")], "atSeq": 1 })))
        .await;
    assert_eq!(early["ok"]["entities"][0]["seq"], 0, "as it was: {early}");
    let late = client
        .request(&query(json!({ "roots": [root("of:a")], "atSeq": 99 })))
        .await;
    assert_eq!(late["error"]["name"], "QueryError");
    assert_eq!(
        late["error"]["message"], "seq 99 is out of range for branch ",
        "{late}"
    );
}

/// Scoped reads and writes of nobody in particular: the same words, as a query's failure and as a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn srv_526_scoped_requests_of_an_anonymous_session() {
    let running = Running::production(manual()).await;
    let mut client = running.client().await;
    let opened = open_on(&mut client, SPACE, "n", ANONYMOUS, None).await;
    assert!(opened["ok"].is_object(), "{opened}");
    for scope in ["user", "session"] {
        let text = format!("{scope} scoped memory operations require a principal");
        let roots = json!([{ "id": "of:x", "scope": scope, "selector": { "path": [], "schema": true } }]);
        let read = client
            .request(&watch_roots("n", "session.watch.set", "w", &roots))
            .await;
        assert_eq!(
            (&read["error"]["name"], &read["error"]["message"]),
            (&json!("QueryError"), &json!(text))
        );
        let write = json!([{ "op": "set", "id": "of:x", "scope": scope, "value": { "value": 1 } }]);
        let written = client.request(&transact("n", 1, &write)).await;
        assert_eq!(
            (&written["error"]["name"], &written["error"]["message"]),
            (&json!("ProtocolError"), &json!(text))
        );
    }
}

/// Content that does not hash to its id is stored, counted and shown (decision 3).
#[tokio::test(flavor = "multi_thread")]
async fn srv_1105_a_content_id_that_does_not_match_is_counted() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let content = memory_wire::value!({ "type": "object" });
    let right = format!("cid:{}", memory_wire::hash::tagged_hash(&content));
    let sound = set("s", 1, &right, &json!({ "type": "object" }));
    assert!(client.request(&sound).await["ok"].is_object());
    let wrong = set(
        "s",
        2,
        "cid:fid1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        &json!({ "type": "object" }),
    );
    assert!(client.request(&wrong).await["ok"].is_object());
    let (_, text) = running.get("/api/health/stats").await;
    let stats: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!(stats["cidMismatches"], 1);
}
