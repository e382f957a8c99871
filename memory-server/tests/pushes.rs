//! Ordering and delivery of pushes over real sockets (SRV §4, 5, 8.5): what no interleaving, lost frame or failing
//! neighbour may break.

mod support;

use std::collections::BTreeMap;

use memory_server::{AclMode, FlushTiming, ServerConfig, ServingPlane};
use serde_json::{Value as Json, json};
use support::{
    ANONYMOUS, Client, Injected, Received, Running, SPACE, frame, json, link, open, open_on, set, transact,
    transact_reading, watch, watch_roots,
};

fn manual() -> ServerConfig {
    Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config
}

fn timed() -> ServerConfig {
    let mut config = manual();
    config.flush = FlushTiming::Timed;
    config
}

async fn flush(running: &Running) {
    running.server.flush(None).await.expect("flushes");
}

/// Entries of a sync by id; deleted ones are null.
fn upserts(sync: &Json) -> BTreeMap<String, Json> {
    sync["upserts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|upsert| {
            (
                upsert["id"].as_str().expect("an id").to_owned(),
                upsert["doc"]["value"].clone(),
            )
        })
        .collect()
}

/// What a client knows, kept the way a client keeps it.
#[derive(Default)]
struct Replica {
    documents: BTreeMap<String, (u64, Json)>,
    to_seq: u64,
    marker: u64,
    verdicts: Vec<u64>,
}

impl Replica {
    fn apply(&mut self, sync: &Json) {
        let to_seq = sync["toSeq"].as_u64().expect("a seq");
        assert!(
            to_seq >= self.to_seq,
            "a frame went back: {} after {}",
            to_seq,
            self.to_seq
        );
        self.to_seq = to_seq;
        for upsert in sync["upserts"].as_array().into_iter().flatten() {
            let id = upsert["id"].as_str().expect("an id").to_owned();
            let seq = upsert["seq"].as_u64().expect("a seq");
            assert!(seq <= to_seq, "an entry from beyond its frame: {upsert}");
            if let Some((known, _)) = self.documents.get(&id) {
                assert!(seq >= *known, "{id} went back from {known} to {seq}");
            }
            self.documents.insert(id, (seq, upsert["doc"]["value"].clone()));
        }
        for remove in sync["removes"].as_array().into_iter().flatten() {
            self.documents.remove(remove["id"].as_str().expect("an id"));
        }
        if let Some(marker) = sync["caughtUpLocalSeq"].as_u64() {
            // SRV-408 b: a marker only for commits whose verdict has been seen.
            let newest = self.verdicts.iter().copied().max().unwrap_or(0);
            assert!(marker <= newest, "marker {marker} before its verdict ({newest})");
            assert!(marker > self.marker, "marker {marker} again");
            self.marker = marker;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn srv_408_verdicts_markers_and_frames_keep_their_order_under_load() {
    let running = Running::production(timed()).await;
    let ids: Vec<String> = (0..4).map(|n| format!("of:{n}")).collect();
    let mut clients = Vec::new();
    for n in 0..8u64 {
        let session = format!("s{n}");
        let mut client = open(&running, &session, &format!("did:key:p{n}")).await;
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let sync = client.request(&watch(&session, &ids)).await;
        let mut replica = Replica::default();
        replica.apply(&sync["ok"]["sync"]);
        clients.push((session, client, replica));
    }
    const COMMITS: u64 = 40;
    let tasks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(n, (session, mut client, mut replica))| {
            tokio::spawn(async move {
                for local_seq in 1..=COMMITS {
                    let id = format!("of:{}", (local_seq + n as u64) % 4);
                    client
                        .send(&set(&session, local_seq, &id, &json!([session, local_seq])))
                        .await;
                }
                while replica.marker < COMMITS {
                    let message = json(&client.recv().await);
                    match message["type"].as_str() {
                        Some("response") => {
                            let local_seq: u64 = message["requestId"].as_str().expect("an id")[1..]
                                .parse()
                                .expect("a number");
                            assert!(message["ok"].is_object(), "{message}");
                            assert_eq!(local_seq, replica.verdicts.len() as u64 + 1, "verdicts in order");
                            replica.verdicts.push(local_seq);
                            // The writer knows its own head; an older frame may not contradict it any more.
                            let revision = &message["ok"]["revisions"][0];
                            replica.documents.insert(
                                revision["id"].as_str().expect("an id").to_owned(),
                                (
                                    revision["seq"].as_u64().expect("a seq"),
                                    revision["document"]["value"].clone(),
                                ),
                            );
                        }
                        Some("session/effect") => replica.apply(&message["effect"]),
                        other => panic!("unexpected {other:?}"),
                    }
                }
                (client, replica)
            })
        })
        .collect();
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.expect("every client catches up"));
    }
    running.server.idle().await.expect("settles");
    // Everybody converges on the store.
    let mut reader = open(&running, "reader", "did:key:reader").await;
    let truth = reader
        .request(&watch("reader", &["of:0", "of:1", "of:2", "of:3"]))
        .await;
    let truth = upserts(&truth["ok"]["sync"]);
    for (mut client, mut replica) in ended {
        client.send("probe").await;
        loop {
            let message = json(&client.recv().await);
            match message["type"].as_str() {
                Some("session/effect") => replica.apply(&message["effect"]),
                _ => break,
            }
        }
        let known: BTreeMap<String, Json> = replica
            .documents
            .into_iter()
            .map(|(id, (_, value))| (id, value))
            .collect();
        assert_eq!(known, truth);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_31_documents_no_longer_reached_are_retracted_in_the_same_frame() {
    let running = Running::production(manual()).await;
    let mut reader = open(&running, "r", "did:key:reader").await;
    let mut writer = open(&running, "w", "did:key:writer").await;
    let operations = json!([
        { "op": "set", "id": "of:p", "value": { "value": { "child": link("of:c1") } } },
        { "op": "set", "id": "of:c1", "value": { "value": "one" } },
        { "op": "set", "id": "of:c2", "value": { "value": "two" } },
    ]);
    assert_eq!(
        writer.request(&transact("w", 1, &operations)).await["ok"]["seq"],
        1
    );
    let roots = json!([{ "id": "of:p", "selector": { "path": [], "schema": true } }]);
    let sync = reader
        .request(&watch_roots("r", "session.watch.set", "w", &roots))
        .await;
    assert_eq!(upserts(&sync["ok"]["sync"]).len(), 2, "{sync}");
    flush(&running).await;
    writer.recv().await;
    let moved = json!([{ "op": "set", "id": "of:p", "value": { "value": { "child": link("of:c2") } } }]);
    writer.request(&transact("w", 2, &moved)).await;
    flush(&running).await;
    let effect = json(&reader.recv().await);
    let sync = &effect["effect"];
    assert_eq!(
        sync["removes"],
        json!([{ "branch": "", "id": "of:c1", "scope": "space" }]),
        "{effect}"
    );
    assert_eq!(
        upserts(sync).keys().collect::<Vec<_>>(),
        ["of:c2", "of:p"],
        "{effect}"
    );
    // And it is not pushed afterwards.
    writer.recv().await;
    writer.request(&set("w", 3, "of:c1", &json!("unheard"))).await;
    flush(&running).await;
    reader.send("probe").await;
    assert_eq!(json(&reader.recv().await)["requestId"], "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_one_session_that_cannot_be_evaluated_holds_up_nobody() {
    let running = Running::production(manual()).await;
    let mut broken = open(&running, "broken", ANONYMOUS).await;
    let mut sound = open(&running, "sound", "did:key:b").await;
    let mut writer = open(&running, "w", "did:key:writer").await;
    let roots = json!([{ "id": "of:x", "selector": { "path": [], "schema": true } }]);
    assert!(
        broken
            .request(&watch_roots("broken", "session.watch.set", "w", &roots))
            .await["ok"]
            .is_object()
    );
    assert!(sound.request(&watch("sound", &["of:x"])).await["ok"].is_object());
    // A link that only a principal can resolve: for the anonymous session the whole evaluation fails.
    let scoped = json!({ "/quote": { "/": { "link@1": { "id": "of:mine", "path": [], "space": SPACE, "scope": "user" } } } });
    writer.request(&set("w", 1, "of:x", &scoped)).await;
    flush(&running).await;
    assert_eq!(upserts(&json(&sound.recv().await)["effect"]).len(), 1);
    writer.recv().await;
    broken.send("probe").await;
    assert_eq!(
        json(&broken.recv().await)["requestId"],
        "invalid",
        "its frame is skipped, the session lives"
    );
    // Once it can be evaluated again, everything comes, from state.
    writer.request(&set("w", 2, "of:x", &json!("plain"))).await;
    flush(&running).await;
    assert_eq!(upserts(&json(&broken.recv().await)["effect"])["of:x"], "plain");
}

#[tokio::test(flavor = "multi_thread")]
async fn f7_f16_a_resume_delivers_what_a_dead_socket_swallowed() {
    let running = Running::production(manual()).await;
    let mut reader = running.client().await;
    let opened = open_on(&mut reader, SPACE, "r", "did:key:reader", None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    assert!(reader.request(&watch("r", &["of:x", "of:gone"])).await["ok"].is_object());
    let mut writer = open(&running, "w", "did:key:writer").await;
    writer.request(&set("w", 1, "of:gone", &json!("here"))).await;
    flush(&running).await;
    writer.recv().await;
    assert_eq!(upserts(&json(&reader.recv().await)["effect"])["of:gone"], "here");
    let ack =
        json!({ "type": "session.ack", "requestId": "a", "space": SPACE, "sessionId": "r", "seenSeq": 1 });
    assert!(reader.request(&frame(&ack)).await["ok"].is_object());
    // Written, but the peer never says it has them: the socket goes dead.
    let operations = json!([
        { "op": "set", "id": "of:x", "value": { "value": "swallowed" } },
        { "op": "delete", "id": "of:gone" },
    ]);
    writer.request(&transact("w", 2, &operations)).await;
    flush(&running).await;
    // The client notices first and comes back on another socket while the old one still looks alive.
    let mut again = running.client().await;
    let resumed = open_on(&mut again, SPACE, "r", "did:key:reader", Some(&token)).await;
    let sync = &resumed["ok"]["sync"];
    assert_eq!(resumed["ok"]["resumed"], true, "{resumed}");
    assert_eq!(
        upserts(sync),
        BTreeMap::from([
            ("of:gone".into(), Json::Null),
            ("of:x".into(), json!("swallowed"))
        ])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_314_what_the_peer_acknowledged_is_not_sent_again() {
    let running = Running::production(manual()).await;
    let mut reader = running.client().await;
    let opened = open_on(&mut reader, SPACE, "r", "did:key:reader", None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    let mut writer = open(&running, "w", "did:key:writer").await;
    writer.request(&set("w", 1, "of:x", &json!(1))).await;
    flush(&running).await;
    reader.recv().await;
    let ack =
        json!({ "type": "session.ack", "requestId": "a", "space": SPACE, "sessionId": "r", "seenSeq": 1 });
    assert!(reader.request(&frame(&ack)).await["ok"].is_object());
    drop(reader);
    running.until_connections(1).await;
    let mut again = running.client().await;
    let resumed = open_on(&mut again, SPACE, "r", "did:key:reader", Some(&token)).await;
    assert_eq!(resumed["ok"]["resumed"], true);
    assert!(resumed["ok"].get("sync").is_none(), "{resumed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_a_watch_list_changed_while_away_is_adopted_whole() {
    let running = Running::production(manual()).await;
    let mut client = running.client().await;
    let opened = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    assert!(client.request(&watch("s", &["of:1"])).await["ok"].is_object());
    drop(client);
    running.until_connections(0).await;
    let mut again = running.client().await;
    assert_eq!(
        open_on(&mut again, SPACE, "s", "did:key:a", Some(&token)).await["ok"]["resumed"],
        true
    );
    let sync = again.request(&watch("s", &["of:2", "of:3"])).await;
    assert_eq!(
        upserts(&sync["ok"]["sync"]).keys().collect::<Vec<_>>(),
        ["of:2", "of:3"]
    );
    assert_eq!(
        sync["ok"]["sync"]["removes"],
        json!([{ "branch": "", "id": "of:1", "scope": "space" }])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn f12_f13_overlapping_watches_and_leaving_peers_cost_nobody_a_push() {
    let running = Running::production(manual()).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut one = open(&running, "one", "did:key:one").await;
    let mut two = open(&running, "two", "did:key:two").await;
    let mine = json!([
        { "id": "of:d", "scope": "user", "selector": { "path": [], "schema": false } },
        { "id": "of:d", "selector": { "path": [], "schema": false } },
    ]);
    for (session, client) in [("one", &mut one), ("two", &mut two)] {
        assert!(
            client
                .request(&watch_roots(session, "session.watch.set", "w", &mine))
                .await["ok"]
                .is_object()
        );
    }
    let again = json!([{ "id": "of:d", "selector": { "path": ["x"], "schema": true } }]);
    assert!(
        two.request(&watch_roots("two", "session.watch.add", "again", &again))
            .await["ok"]
            .is_object()
    );
    drop(one);
    running.until_connections(2).await;
    let mut other = open(&running, "two-b", "did:key:two").await;
    let own = json!([{ "op": "set", "id": "of:d", "scope": "user", "value": { "value": "mine" } }]);
    other.request(&transact("two-b", 1, &own)).await;
    writer.request(&set("w", 1, "of:d", &json!("ours"))).await;
    flush(&running).await;
    let effect = json(&two.recv().await);
    let scopes: Vec<&str> = effect["effect"]["upserts"]
        .as_array()
        .expect("entries")
        .iter()
        .filter_map(|u| u["scope"].as_str())
        .collect();
    assert_eq!(scopes, ["space", "user"], "{effect}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f14_a_commit_beside_a_watch_add_is_in_its_answer_or_in_a_frame() {
    let running = Running::production(timed()).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut reader = open(&running, "r", "did:key:r").await;
    let writing = tokio::spawn(async move {
        for n in 1..=60u64 {
            writer
                .send(&set("w", n, &format!("of:{}", n % 30), &json!(n)))
                .await;
        }
        let mut verdicts = 0;
        while verdicts < 60 {
            verdicts += u32::from(json(&writer.recv().await)["type"] == "response");
        }
    });
    let mut replica = Replica::default();
    for n in 0..30 {
        let roots = json!([{ "id": format!("of:{n}"), "selector": { "path": [], "schema": false } }]);
        reader
            .send(&watch_roots("r", "session.watch.add", &format!("w{n}"), &roots))
            .await;
        loop {
            let message = json(&reader.recv().await);
            if message["type"] == "response" {
                replica.apply(&message["ok"]["sync"]);
                break;
            }
            replica.apply(&message["effect"]);
        }
    }
    writing.await.expect("all verdicts");
    running.server.idle().await.expect("settles");
    reader.send("probe").await;
    loop {
        let message = json(&reader.recv().await);
        match message["type"].as_str() {
            Some("session/effect") => replica.apply(&message["effect"]),
            _ => break,
        }
    }
    for n in 0..30u64 {
        let newest = if n == 0 { 60 } else { n + 30 };
        assert_eq!(replica.documents[&format!("of:{n}")].1, json!(newest), "of:{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f11_losing_access_ends_the_session_before_anything_else_is_told() {
    let mut config = manual();
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut owner = running.client().await;
    // The space's own key writes the list.
    assert!(open_on(&mut owner, SPACE, "own", SPACE, None).await["ok"].is_object());
    let list =
        |entries: Json| json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": entries } }]);
    let genesis = list(json!({ SPACE: "OWNER", "did:key:u2": "READ" }));
    assert_eq!(owner.request(&transact("own", 1, &genesis)).await["ok"]["seq"], 1);
    let secret = set("own", 2, "of:secret", &json!("s"));
    owner.request(&secret).await;
    let mut member = running.client().await;
    assert!(open_on(&mut member, SPACE, "m", "did:key:u2", None).await["ok"].is_object());
    assert!(member.request(&watch("m", &["of:secret"])).await["ok"].is_object());
    owner
        .request(&transact("own", 3, &list(json!({ SPACE: "OWNER" }))))
        .await;
    owner
        .request(&transact(
            "own",
            4,
            &json!([{ "op": "delete", "id": "of:secret" }]),
        ))
        .await;
    flush(&running).await;
    let told = json(&member.recv().await);
    assert_eq!(
        told,
        json!({ "type": "session/revoked", "space": SPACE, "sessionId": "m", "reason": "unauthorized" })
    );
    let query = json!({
        "type": "graph.query", "requestId": "q", "space": SPACE, "sessionId": "m",
        "query": { "roots": [{ "id": "of:secret", "selector": { "path": [], "schema": false } }] },
    });
    assert_eq!(
        member.request(&frame(&query)).await["error"]["name"],
        "SessionError"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_812_a_member_may_leave_without_being_an_owner_and_hears_its_verdict_first() {
    let mut config = manual();
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut owner = running.client().await;
    assert!(open_on(&mut owner, SPACE, "own", SPACE, None).await["ok"].is_object());
    let list =
        |entries: Json| json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": entries } }]);
    let genesis = list(json!({ SPACE: "OWNER", "did:key:m": "WRITE", "did:key:n": "READ" }));
    owner.request(&transact("own", 1, &genesis)).await;
    let mut member = running.client().await;
    assert!(open_on(&mut member, SPACE, "m", "did:key:m", None).await["ok"].is_object());
    let greedy = list(json!({ SPACE: "OWNER" }));
    assert_eq!(
        member.request(&transact("m", 1, &greedy)).await["error"]["name"],
        "AuthorizationError"
    );
    let leaving = list(json!({ SPACE: "OWNER", "did:key:n": "READ" }));
    assert_eq!(member.request(&transact("m", 2, &leaving)).await["ok"]["seq"], 2);
    assert_eq!(json(&member.recv().await)["reason"], "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_417_a_conflict_is_repaired_and_marked() {
    let running = Running::production(manual()).await;
    let mut a = open(&running, "a", "did:key:a").await;
    let mut b = open(&running, "b", "did:key:b").await;
    assert!(a.request(&watch("a", &["of:x"])).await["ok"].is_object());
    b.request(&set("b", 1, "of:x", &json!("theirs"))).await;
    let stale = json!([{ "id": "of:x", "path": ["value"], "seq": 0 }]);
    let write = json!([{ "op": "set", "id": "of:x", "value": { "value": "mine" } }]);
    let refused = a.request(&transact_reading("a", 1, &write, &stale)).await;
    assert_eq!(refused["error"]["name"], "ConflictError");
    assert_eq!(refused["error"]["retryAfterSeq"], 1);
    flush(&running).await;
    let repair = json(&a.recv().await);
    assert_eq!(repair["effect"]["caughtUpLocalSeq"], 1);
    assert_eq!(upserts(&repair["effect"])["of:x"], "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1201_f23_a_commit_costs_only_the_sessions_that_track_what_it_touched() {
    let running = Running::production(manual()).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut clients: Vec<Client> = Vec::new();
    for n in 0..50 {
        let session = format!("s{n}");
        let mut client = open(&running, &session, &format!("did:key:p{n}")).await;
        assert!(
            client
                .request(&watch(&session, &[&format!("of:{n}"), "of:all"]))
                .await["ok"]
                .is_object()
        );
        clients.push(client);
    }
    let before = running.server.work_stats();
    writer.request(&set("w", 1, "of:7", &json!(1))).await;
    flush(&running).await;
    let one = running.server.work_stats();
    assert_eq!(
        one.evaluations - before.evaluations,
        2,
        "the session that watches it, and the writer's marker"
    );
    writer.recv().await;
    writer
        .request(&set("w", 2, "of:all", &json!("x".repeat(1000))))
        .await;
    flush(&running).await;
    let all = running.server.work_stats();
    assert_eq!(all.evaluations - one.evaluations, 51);
    assert_eq!(
        all.encoded_documents - one.encoded_documents,
        1,
        "one text for all recipients (SRV-119)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_423_frames_of_a_space_go_to_its_own_session() {
    let running = Running::production(manual()).await;
    let mut client = running.client().await;
    let first = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    let challenge = first["ok"]["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("a challenge")
        .to_owned();
    let other = "did:key:z6Mk-other";
    assert!(
        support::open_with(&mut client, &challenge, other, "s", "did:key:a", None).await["ok"].is_object()
    );
    assert!(client.request(&watch("s", &["of:x"])).await["ok"].is_object());
    let elsewhere = set("s", 1, "of:x", &json!(1)).replace(SPACE, other);
    assert_eq!(client.request(&elsewhere).await["ok"]["seq"], 1);
    flush(&running).await;
    let effect = json(&client.recv().await);
    assert_eq!(effect["space"], other);
    assert_eq!(
        effect["effect"]["upserts"],
        json!([]),
        "only the marker of the space it wrote in"
    );
    client.send("probe").await;
    match client.recv_or_close().await {
        Received::Text(text) => assert_eq!(json(&text)["requestId"], "invalid"),
        other => panic!("{other:?}"),
    }
}
