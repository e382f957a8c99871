//! Frames, sessions, verdicts and what is told of them (SRV §1–4, 8).

use crate::support::{
    Injected, Running, SPACE, frame, hello, open, open_on, open_with, set, transact, transact_reading, watch,
};
use crate::{effect, enforcing, flush, ids, manual};
use memory_server::{AclMode, ServingPlane};
use serde_json::{Value as Json, json};

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

/// SRV-315: a position only grows, and is where the next whole answer begins.
#[tokio::test(flavor = "multi_thread")]
async fn srv_315_a_position_never_goes_back() {
    let running = Running::standalone(manual()).await;
    let mut client = open(&running, "s", "did:key:a").await;
    for seen in [7, 3] {
        let ack = json!({
            "type": "session.ack", "requestId": "a", "space": SPACE, "sessionId": "s", "seenSeq": seen,
        });
        assert!(client.request(&frame(&ack)).await["ok"].is_object());
    }
    let answer = client.request(&watch("s", &["of:x"])).await;
    assert_eq!(answer["ok"]["sync"]["fromSeq"], 7, "{answer}");
}
