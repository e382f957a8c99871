//! Rules that no transcript tells apart from their neighbours, each by a small exchange of its own (SRV §1, 3–5, 8).

use crate::support::{
    ANONYMOUS, Client, Injected, Running, SPACE, frame, hello, open, open_on, open_with, set, transact,
    transact_reading, watch, watch_roots,
};
use memory_server::{AclConfig, AclMode, ServerConfig, ServingPlane};
use serde_json::{Value as Json, json};

fn manual() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

fn enforcing() -> ServerConfig {
    let mut config = manual();
    config.acl = AclConfig {
        mode: AclMode::Enforce,
        ..AclConfig::default()
    };
    config
}

async fn flush(running: &Running) {
    running.server.flush(None).await.expect("flushes");
}

async fn effect(client: &mut Client) -> Json {
    let message = crate::support::json(&client.recv().await);
    assert_eq!(message["type"], "session/effect", "{message}");
    message["effect"].clone()
}

fn ids(sync: &Json) -> Vec<&str> {
    let mut ids: Vec<&str> = sync["upserts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|upsert| upsert["id"].as_str().expect("an id"))
        .collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_102_srv_115_frames_are_prefixed_text_and_unknown_fields_are_ignored() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let bare = client.request("{\"type\":\"session.ack\"}").await;
    assert_eq!(bare["error"]["name"], "InvalidMessageError");
    let odd = json!({
        "type": "session.ack", "requestId": "a", "space": SPACE, "sessionId": "s", "seenSeq": 0.5,
        "futureField": { "x": [1] }, "class": "derived",
    });
    assert!(client.request(&frame(&odd)).await["ok"].is_object());
}

/// An old client, which announces nothing, may use everything.
#[tokio::test(flavor = "multi_thread")]
async fn srv_203_no_flag_makes_a_request_illegal() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let with_precondition = json!({
        "type": "transact", "requestId": "t", "space": SPACE, "sessionId": "s",
        "commit": { "localSeq": 1, "reads": { "confirmed": [], "pending": [] },
                    "operations": [{ "op": "set", "id": "of:x", "value": { "value": 1 } }] },
    });
    assert!(client.request(&frame(&with_precondition)).await["ok"].is_object());
    for request in [
        json!({ "type": "entity-id.list" }),
        json!({ "type": "entity-id.list", "limit": 1, "after": "of:a" }),
        json!({ "type": "entity-id.exists", "id": "of:x" }),
    ] {
        let mut request = request;
        request["requestId"] = "r".into();
        request["space"] = SPACE.into();
        request["sessionId"] = "s".into();
        let answer = client.request(&frame(&request)).await;
        assert!(answer["ok"].is_object(), "{request}: {answer}");
    }
}

/// While nobody is attached nothing is evaluated; what is owed stays owed.
#[tokio::test(flavor = "multi_thread")]
async fn srv_313_srv_316_a_detached_session_costs_nothing_and_a_reconnect_may_replay_first() {
    let running = Running::production(manual()).await;
    let mut client = running.client().await;
    let opened = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    assert!(client.request(&watch("s", &["of:x"])).await["ok"].is_object());
    assert!(client.request(&set("s", 1, "of:x", &json!(1))).await["ok"].is_object());
    drop(client);
    running.until_connections(0).await;
    let mut other = open(&running, "o", "did:key:b").await;
    let before = running.server.work_stats().evaluations;
    assert!(other.request(&set("o", 1, "of:x", &json!(2))).await["ok"].is_object());
    flush(&running).await;
    assert_eq!(
        running.server.work_stats().evaluations,
        before + 1,
        "only the writer, who is owed its marker"
    );
    // Resume, replay what was not answered, only then the watches.
    let mut client = running.client().await;
    let resumed = open_on(&mut client, SPACE, "s", "did:key:a", Some(&token)).await;
    assert_eq!(resumed["ok"]["resumed"], true, "{resumed}");
    assert_eq!(
        resumed["ok"]["sync"]["caughtUpLocalSeq"], 1,
        "the marker stayed owed: {resumed}"
    );
    let replayed = client.request(&set("s", 1, "of:x", &json!(1))).await;
    assert_eq!(replayed["ok"]["replayed"], true);
    let watched = client.request(&watch("s", &["of:x"])).await;
    assert_eq!(
        watched["ok"]["sync"]["upserts"][0]["doc"]["value"], 2,
        "{watched}"
    );
}

/// Which answers make a client reconnect, end the session, or go on (the table of SRV-324).
#[tokio::test(flavor = "multi_thread")]
async fn srv_324_srv_805_permanent_refusals_are_never_named_as_transient_ones() {
    let injected = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000);
    let clock = injected.clock.clone();
    let mut config = injected.config;
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut owner = running.client().await;
    let opened = open_on(&mut owner, SPACE, "own", SPACE, None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    let list =
        json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { "did:key:o": "OWNER" } } }]);
    assert!(owner.request(&transact("own", 1, &list)).await["ok"].is_object());
    // Permanent: no access.
    let mut stranger = running.client().await;
    let denied = open_on(&mut stranger, SPACE, "x", "did:key:x", None).await;
    assert_eq!(denied["error"]["name"], "AuthorizationError");
    assert!(denied["error"]["retriable"].is_null(), "{denied}");
    // Permanent: another's session.
    let mut thief = running.client().await;
    let bound = open_on(&mut thief, SPACE, "own", "did:key:o", Some(&token)).await;
    assert_eq!(bound["error"]["name"], "AuthorizationError");
    assert!(bound["error"]["retriable"].is_null(), "{bound}");
    // The end of that session: an old token.
    let mut old = running.client().await;
    let stale = open_on(&mut old, SPACE, "own", SPACE, Some("old")).await;
    assert_eq!(stale["error"]["name"], "SessionRevokedError");
    // Worth a fresh connection: the challenge ran out.
    let mut slow = running.client().await;
    let greeted = slow.request(&hello()).await;
    let challenge = greeted["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("hex")
        .to_owned();
    clock.advance(301_000);
    let expired = open_with(&mut slow, &challenge, SPACE, "late", "did:key:o", None).await;
    assert_eq!(expired["error"]["name"], "AuthorizationError");
    assert_eq!(expired["error"]["retriable"], true, "{expired}");
    // Requests too: a shortfall is not retriable.
    let mut reader = running.client().await;
    let opened = open_on(&mut reader, SPACE, "o", "did:key:o", None).await;
    assert!(opened["ok"].is_object(), "{opened}");
    let without = json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value":
        { "did:key:o": "READ", "did:key:p": "OWNER" } } }]);
    assert!(reader.request(&transact("o", 1, &without)).await["ok"].is_object());
    let refused = reader.request(&set("o", 2, "of:x", &json!(1))).await;
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    assert!(refused["error"]["retriable"].is_null());
}

/// The verdict of a commit that ends its own session is its verdict, and comes first (SRV-404, SRV-809).
#[tokio::test(flavor = "multi_thread")]
async fn srv_404_a_verdict_is_never_replaced() {
    let running = Running::production(enforcing()).await;
    let mut client = running.client().await;
    open_on(&mut client, SPACE, "s", SPACE, None).await;
    let list = json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value":
        { "did:key:a": "OWNER", "did:key:b": "OWNER" } } }]);
    assert!(client.request(&transact("s", 1, &list)).await["ok"].is_object());
    let mut leaving = open(&running, "a", "did:key:a").await;
    let without =
        json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { "did:key:b": "OWNER" } } }]);
    let verdict = leaving.request(&transact("a", 1, &without)).await;
    assert!(verdict["ok"]["seq"].is_number(), "{verdict}");
    assert_eq!(
        crate::support::json(&leaving.recv().await)["type"],
        "session/revoked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_414_srv_415_a_verdict_and_its_replay() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let operations = json!([
        { "op": "set", "id": "of:x", "value": { "value": 1 } },
        { "op": "set", "id": "of:mine", "scope": "user", "value": { "value": 2 } },
    ]);
    let confirmed = json!([{ "id": "of:x", "path": ["value"], "seq": 0 }]);
    let request = transact_reading("s", 1, &operations, &confirmed);
    let first = client.request(&request).await;
    let revisions = &first["ok"]["revisions"];
    assert!(revisions[0]["scope"].is_null(), "space is left out: {first}");
    assert_eq!(revisions[0]["scopeKey"], "space");
    assert_eq!(revisions[1]["scope"], "user");
    assert_eq!(revisions[1]["scopeKey"], "user:did%3Akey%3Aa");
    // The read it was admitted on is stale now; the replay is answered from the record all the same.
    let replay = client.request(&request).await;
    assert_eq!(replay["ok"]["replayed"], true, "{replay}");
    assert_eq!(replay["ok"]["seq"], first["ok"]["seq"]);
    assert_eq!(
        replay["ok"]["revisions"][0]["scope"], "space",
        "a replay always says it: {replay}"
    );
    let other = client.request(&set("s", 1, "of:x", &json!(9))).await;
    assert_eq!(other["error"]["name"], "ProtocolError");
    assert_eq!(
        other["error"]["message"],
        "commit replay mismatch for session s localSeq 1"
    );
}

/// The subclass wins: a client takes it as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn srv_416_a_duplicate_event_has_its_own_name() {
    let mut config = manual();
    config.server_execution = true;
    let running = Running::production(config).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let sidecar = memory_wire::well_known::stream_sidecar_id(
        &memory_wire::EntityId::from("of:poll"),
        &["votes"],
        memory_wire::Scope::Space,
    );
    let append = |n: u64| {
        frame(&json!({
            "type": "transact", "requestId": "t", "space": SPACE, "sessionId": "s",
            "commit": {
                "localSeq": n, "reads": { "confirmed": [], "pending": [] },
                "operations": [{ "op": "patch", "id": sidecar.as_str(), "patches": [
                    { "op": "append", "path": "/value/entries", "values": [
                        { "eventId": "e1", "stream": { "id": "of:poll", "path": ["votes"] }, "payload": 1 }] }] }],
                "eventAppends": [{ "id": sidecar.as_str(), "eventId": "e1" }],
            },
        }))
    };
    assert!(client.request(&append(1)).await["ok"].is_object());
    let again = client.request(&append(2)).await;
    assert_eq!(again["error"]["name"], "EventAppendDuplicateError", "{again}");
}

/// Responses to watch requests carry no marker and use up no obligation; a sync that was answered counts as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn srv_428_srv_430_srv_505_answers_are_deliveries_without_markers() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    assert!(client.request(&set("s", 1, "of:x", &json!(1))).await["ok"].is_object());
    let watched = client.request(&watch("s", &["of:x"])).await;
    assert!(watched["ok"]["sync"]["caughtUpLocalSeq"].is_null(), "{watched}");
    assert_eq!(ids(&watched["ok"]["sync"]), ["of:x"]);
    flush(&running).await;
    let marker = effect(&mut client).await;
    assert_eq!(marker["caughtUpLocalSeq"], 1, "still owed: {marker}");
    assert!(ids(&marker).is_empty(), "held since the answer: {marker}");
    assert!(marker["fromSeq"].as_u64() <= marker["toSeq"].as_u64());
}

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

/// How spaces come to be: signed by their own key, with whatever list.
#[tokio::test(flavor = "multi_thread")]
async fn srv_807_genesis_as_clients_do_it() {
    let running = Running::production(enforcing()).await;
    for (space, list) in [
        ("did:key:zNamed", json!({ "did:key:u": "OWNER", "*": "WRITE" })),
        ("did:key:zHome", json!({ "did:key:zHome": "OWNER" })),
        (
            "did:key:zMinted",
            json!({ "did:key:actor": "OWNER", "did:key:friend": "READ" }),
        ),
    ] {
        let mut client = running.client().await;
        let opened = open_on(&mut client, space, "s", space, None).await;
        assert!(opened["ok"].is_object(), "{opened}");
        let id = format!("of:{space}");
        let probe = json!({ "type": "graph.query", "requestId": "q", "space": space, "sessionId": "s",
            "query": { "roots": [{ "id": id, "selector": { "path": [], "schema": true } }] } });
        let probed = client.request(&frame(&probe)).await;
        assert_eq!(probed["ok"]["entities"][0]["seq"], 0, "{probed}");
        assert_eq!(probed["ok"]["entities"][0]["document"], Json::Null);
        let genesis = json!({ "type": "transact", "requestId": "t", "space": space, "sessionId": "s",
            "commit": { "localSeq": 1, "reads": { "confirmed": [], "pending": [] },
                        "operations": [{ "op": "set", "id": id, "value": { "value": list } }] } });
        let verdict = client.request(&frame(&genesis)).await;
        assert!(verdict["ok"]["seq"].is_number(), "{verdict}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_440_a_flush_of_nothing_succeeds_and_leaves_nothing_dirty() {
    let running = Running::production(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    assert!(client.request(&watch("s", &["of:x"])).await["ok"].is_object());
    assert!(client.request(&set("s", 1, "of:x", &json!(1))).await["ok"].is_object());
    running
        .server
        .flush(Some(&[SPACE.into()]))
        .await
        .expect("flushes");
    let pushed = effect(&mut client).await;
    assert_eq!(pushed["caughtUpLocalSeq"], 1);
    let before = running.server.work_stats().evaluations;
    running.server.flush(None).await.expect("nothing to do");
    assert_eq!(running.server.work_stats().evaluations, before);
}

/// A loopback session that acts as the owner reads as the owner and writes as itself.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1303_srv_319_a_delegated_binding_reads_and_opens_no_write_path() {
    let mut config = enforcing();
    config.server_execution = true;
    let process = memory_wire::Did::from("did:key:process");
    config.acl.delegating_principals = AclConfig::delegating(&process, true);
    let running = Running::production(config).await;
    let mut founder = running.client().await;
    open_on(&mut founder, SPACE, "f", SPACE, None).await;
    let list =
        json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { "did:key:o": "OWNER" } } }]);
    assert!(founder.request(&transact("f", 1, &list)).await["ok"].is_object());
    let mut client = running.client().await;
    let greeted = client.request(&hello()).await;
    let challenge = greeted["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("hex")
        .to_owned();
    let open = json!({
        "type": "session.open", "requestId": "o", "space": SPACE,
        "session": { "sessionId": "p", "actingAs": "space-owner" },
        "invocation": { "aud": "did:key:z6Mk-audience", "challenge": challenge, "iss": process.as_str() },
        "authorization": {},
    });
    let opened = client.request(&frame(&open)).await;
    assert!(opened["ok"].is_object(), "reads as the owner: {opened}");
    let refused = client.request(&set("p", 1, "of:x", &json!(1))).await;
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    assert!(
        refused["error"]["message"]
            .as_str()
            .expect("text")
            .contains("did:key:process lacks WRITE"),
        "{refused}"
    );
}

/// Whether handlers run here shows in `hello.ok` by nothing but the views flag.
#[tokio::test(flavor = "multi_thread")]
async fn srv_204_server_execution_is_no_flag_of_its_own() {
    let mut flags = Vec::new();
    for execution in [false, true] {
        let mut config = manual();
        config.server_execution = execution;
        let running = Running::production(config).await;
        let greeted = running.client().await.request(&hello()).await;
        let mut seen = greeted["flags"].as_object().expect("flags").clone();
        assert_eq!(seen.remove("viewScopedReplicationV1"), Some(json!(execution)));
        flags.push(seen);
    }
    assert_eq!(flags[0], flags[1]);
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
    let url = format!("http://{}/api/health/stats", running.address);
    let text = tokio::task::spawn_blocking(move || {
        ureq::get(&url)
            .call()
            .expect("answered")
            .body_mut()
            .read_to_string()
            .expect("text")
    })
    .await
    .expect("ran");
    let stats: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!(stats["cidMismatches"], 1);
}
