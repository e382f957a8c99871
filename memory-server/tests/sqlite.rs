//! Databases beside the store over a real socket (SRV §5.6–5.8).

mod support;

use memory_engine::StoreRoot;
use memory_server::{AclMode, ServerConfig, Stores};
use serde_json::{Value as Json, json};
use support::{Client, Injected, Running, SPACE, frame, open, open_on, transact};

fn config(directory: &std::path::Path) -> ServerConfig {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.stores = Stores::Files(StoreRoot::configured(directory).expect("usable"));
    config
}

fn db(id: &str) -> Json {
    json!({ "id": id, "tables": { "notes": { "type": "object", "properties": { "id": { "type": "number" }, "text": { "type": "string" } } } } })
}

async fn query(client: &mut Client, session: &str, db: &Json, sql: &str) -> Json {
    let query = json!({ "type": "sqlite.query", "requestId": "q", "space": SPACE, "sessionId": session, "db": db, "sql": sql });
    client.request(&frame(&query)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_523_a_statement_rides_its_commit_and_stands_or_falls_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::production(config(directory.path())).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let insert = |text: &str| json!({ "op": "sqlite", "db": db("of:db"), "sql": "INSERT INTO notes (id, text) VALUES (?, ?)", "params": [1, text] });
    let together = json!([insert("kept"), { "op": "set", "id": "of:x", "value": { "value": 1 } }]);
    let verdict = client.request(&transact("s", 1, &together)).await;
    assert_eq!(
        verdict["ok"]["revisions"].as_array().map(Vec::len),
        Some(1),
        "a statement has no revision: {verdict}"
    );
    let refused = json!([insert("lost"), { "op": "sqlite", "db": db("of:db"), "sql": "DROP TABLE notes" }]);
    assert!(client.request(&transact("s", 2, &refused)).await["error"].is_object());
    let rows = query(&mut client, "s", &db("of:db"), "SELECT text FROM notes").await;
    assert_eq!(rows["ok"]["rows"], json!([{ "text": "kept" }]), "{rows}");
    let two = json!([insert("one"), { "op": "sqlite", "db": db("of:other"), "sql": "DELETE FROM notes" }]);
    let answer = client.request(&transact("s", 3, &two)).await;
    assert_eq!(
        answer["error"]["message"],
        "a commit may write to at most one sqlite database"
    );
    assert_eq!(answer["error"]["name"], "ProtocolError");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_517_reads_are_guarded_and_own_instances_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::production(config(directory.path())).await;
    let mut alice = open(&running, "a", "did:key:a").await;
    let mut mine = db("of:db");
    mine["scope"] = "user".into();
    let insert =
        json!([{ "op": "sqlite", "db": mine, "sql": "INSERT INTO notes (id, text) VALUES (1, 'hers')" }]);
    assert!(alice.request(&transact("a", 1, &insert)).await["ok"].is_object());
    let select = "SELECT text FROM notes";
    assert_eq!(
        query(&mut alice, "a", &mine, select).await["ok"]["rows"],
        json!([{ "text": "hers" }])
    );
    let mut bob = open(&running, "b", "did:key:b").await;
    assert_eq!(query(&mut bob, "b", &mine, select).await["ok"]["rows"], json!([]));
    for sql in [
        "DELETE FROM notes",
        "SELECT 1; SELECT 2",
        "SELECT * FROM commit",
        "PRAGMA table_list",
    ] {
        let answer = query(&mut alice, "a", &mine, sql).await;
        assert_eq!(answer["error"]["name"], "GuardError", "{sql}: {answer}");
    }
    let broken = query(&mut alice, "a", &mine, "SELECT nothing FROM notes").await;
    assert_eq!(broken["error"]["name"], "SqliteError", "{broken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_518_a_labelled_answer_names_the_origin_of_every_column_or_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let running = Running::production(config(directory.path())).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let mut labelled = db("of:db");
    labelled["tables"]["notes"]["properties"]["text"]["ifc"] = json!({ "confidentiality": ["secret"] });
    let insert =
        json!([{ "op": "sqlite", "db": labelled, "sql": "INSERT INTO notes (id, text) VALUES (1, 'x')" }]);
    assert!(client.request(&transact("s", 1, &insert)).await["ok"].is_object());
    let traced = query(&mut client, "s", &labelled, "SELECT text AS t FROM notes").await;
    assert_eq!(
        traced["ok"]["columns"],
        json!([{ "name": "t", "table": "notes", "column": "text" }]),
        "{traced}"
    );
    let untraced = query(&mut client, "s", &labelled, "SELECT upper(text) AS t FROM notes").await;
    assert_eq!(untraced["error"]["name"], "SqliteError", "{untraced}");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_521_a_disk_source_is_judged_after_its_links_are_resolved() {
    let stores = tempfile::tempdir().expect("a directory");
    let outside = tempfile::tempdir().expect("a directory");
    let mut config = config(stores.path());
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut owner = running.client().await;
    assert!(open_on(&mut owner, SPACE, "own", SPACE, None).await["ok"].is_object());
    let genesis =
        json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { SPACE: "OWNER" } } }]);
    assert!(owner.request(&transact("own", 1, &genesis)).await["ok"].is_object());
    let store = StoreRoot::configured(stores.path())
        .expect("usable")
        .store_path(&SPACE.into())
        .expect("a path");
    assert!(store.exists());
    let link = outside.path().join("innocent.sqlite");
    std::os::unix::fs::symlink(&store, &link).expect("linked");
    let plain = outside.path().join("plain.sqlite");
    std::fs::write(&plain, b"").expect("written");
    let register = |path: &std::path::Path| {
        frame(&json!({
            "type": "sqlite.register-disk-source", "requestId": "r", "space": SPACE, "sessionId": "own",
            "id": "of:disk", "path": path,
        }))
    };
    let jailed = owner.request(&register(&link)).await;
    assert_eq!(
        jailed["error"]["name"], "ProtocolError",
        "a link into the stores: {jailed}"
    );
    let registered = owner.request(&register(&plain)).await;
    assert_eq!(registered["ok"], json!({ "registered": true }), "{registered}");
    let write = json!([{ "op": "sqlite", "db": db("of:disk"), "sql": "DELETE FROM notes" }]);
    let answer = owner.request(&transact("own", 2, &write)).await;
    assert_eq!(
        answer["error"]["message"],
        "injected on-disk SQLite sources are read-only in v1 (db.exec rejected)"
    );
}
