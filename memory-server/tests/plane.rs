//! The serving loop's side and the rooms beside the socket: loopback, served list changes, demand, read ceilings, blobs (SRV
//! §1.5, 3.8, 8.7, 9, 13).

mod support;

use std::sync::{Arc, Mutex};

use memory_engine::StoreRoot;
use memory_server::{
    AclMode, AdmittedCommit, DelegatedAppend, DemandReason, FlushTiming, Observer, ServedAclChange,
    ServedAclOutcome, Server, ServerConfig, ServingPlane, Stores, loopback,
};
use memory_wire::well_known::stream_sidecar_id;
use memory_wire::{Did, EntityId, LocalSeq, Scope, SpaceId, value};
use serde_json::{Value as Json, json};
use support::{Injected, Running, SPACE, frame, hello, json, open, open_on, set, transact, watch};

const ACTOR: &str = "did:key:actor";

fn config() -> ServerConfig {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.server_execution = true;
    config
}

#[derive(Default)]
struct Notices(Mutex<Vec<AdmittedCommit>>);

impl Observer for Notices {
    fn commit_admitted(&self, notice: &AdmittedCommit) {
        self.0.lock().expect("not poisoned").push(notice.clone());
    }

    fn session_opened(&self, _: &SpaceId) {
        panic!("an observer's fault is its own (SRV-2)");
    }

    fn demand_changed(&self, _: &SpaceId, _: DemandReason, _: Option<&Did>) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1301_a_loopback_connection_speaks_the_same_frames() {
    let running = Running::production(config()).await;
    let (sender, mut receiver) = loopback::connect(&running.server).expect("open").split();
    sender.send(hello()).await.expect("open");
    let answer = json(&receiver.recv().await.expect("hello.ok"));
    let open = json!({
        "type": "session.open", "requestId": "o", "space": SPACE, "session": { "sessionId": "svc" },
        "invocation": {
            "aud": "did:key:z6Mk-audience", "iss": "did:key:service",
            "challenge": answer["sessionOpen"]["challenge"]["value"],
        },
        "authorization": {},
    });
    sender.send(frame(&open)).await.expect("open");
    assert_eq!(
        json(&receiver.recv().await.expect("opened"))["ok"]["sessionId"],
        "svc"
    );
    sender.send(watch("svc", &["of:x"])).await.expect("open");
    assert!(json(&receiver.recv().await.expect("watching"))["ok"].is_object());
    let mut client = support::open(&running, "c", "did:key:c").await;
    client.request(&set("c", 1, "of:x", &json!(1))).await;
    running.server.idle().await.expect("settles");
    assert_eq!(
        json(&receiver.recv().await.expect("pushed"))["effect"]["upserts"][0]["doc"]["value"],
        1
    );
    // SRV-906: the service's own sessions are no demand of others.
    let service = Did::from("did:key:service");
    let space = SpaceId::from(SPACE);
    assert!(
        running
            .server
            .demanded_instances(&space, Some(&service))
            .iter()
            .all(|row| row.identity.principal.as_ref() != Some(&service))
    );
    drop(client);
    drop(receiver);
    running.until_connections(0).await;
    assert!(sender.send(hello()).await.is_err(), "the connection is closed");
}

/// A space with a list and an event fired by the actor.
async fn served_space() -> (Running, Arc<Notices>) {
    let mut config = config();
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let notices = Arc::new(Notices::default());
    running.server.set_observer(Some(notices.clone()));
    let mut owner = running.client().await;
    assert!(open_on(&mut owner, SPACE, "own", SPACE, None).await["ok"].is_object());
    let list = json!({ SPACE: "OWNER", ACTOR: "WRITE", "did:key:reader": "READ" });
    let genesis = json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": list } }]);
    assert_eq!(owner.request(&transact("own", 1, &genesis)).await["ok"]["seq"], 1);
    let link = value!({ "id": "of:piece", "path": ["leave"] });
    running
        .server
        .commit_delegated_append(DelegatedAppend {
            target_space: SPACE.into(),
            target_stream: stream_sidecar_id(&EntityId::from("of:piece"), &["leave"], Scope::Space),
            target_stream_link: Some(link),
            event_id: "ev".into(),
            payload: value!({}),
            acting_principal: Some(ACTOR.into()),
            acting_session: None,
            sessionless_space_scope: false,
            capability_ref: "stream-append:x".into(),
            session_id: "svc".into(),
            local_seq: LocalSeq(1),
        })
        .await
        .expect("appended");
    (running, notices)
}

fn list(entries: &[(&'static str, &'static str)]) -> memory_wire::Value {
    memory_wire::Value::Object(entries.iter().copied().collect())
}

fn change(list: memory_wire::Value, actor: &str, capability: &str, local_seq: u64) -> ServedAclChange {
    ServedAclChange {
        space: SPACE.into(),
        list,
        actor: actor.into(),
        capability_ref: capability.into(),
        session_id: "svc".into(),
        local_seq: LocalSeq(local_seq),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_813_a_served_list_change_is_judged_as_its_actors() {
    let (running, notices) = served_space().await;
    let plane: &dyn ServingPlane = &*running.server;
    let name = |error: memory_server::ServerError| error.to_wire(memory_wire::Seq(0)).name.as_str();
    let without_actor = || list(&[(SPACE, "OWNER"), ("did:key:reader", "READ")]);
    let without_reader = || list(&[(SPACE, "OWNER"), (ACTOR, "WRITE")]);
    let mut reader = open(&running, "reader", "did:key:reader").await;

    let unknown = plane
        .check_served_acl_change(change(without_actor(), ACTOR, "event-consequence:other", 2))
        .await;
    assert_eq!(unknown.map_err(name), Err("ProtocolError"), "no such event");
    let forged = plane
        .check_served_acl_change(change(
            without_reader(),
            "did:key:reader",
            "event-consequence:ev",
            2,
        ))
        .await;
    assert_eq!(
        forged.map_err(name),
        Err("ProtocolError"),
        "the event was fired by somebody else"
    );
    let vague = plane
        .check_served_acl_change(change(without_actor(), ACTOR, "demanded-run:x", 2))
        .await;
    assert_eq!(
        vague.map_err(name),
        Err("ProtocolError"),
        "not the consequence of an event"
    );
    let greedy = plane
        .check_served_acl_change(change(without_reader(), ACTOR, "event-consequence:ev", 2))
        .await;
    assert_eq!(
        greedy.map_err(name),
        Err("AuthorizationError"),
        "the actor is no owner"
    );
    let same = list(&[(SPACE, "OWNER"), (ACTOR, "WRITE"), ("did:key:reader", "READ")]);
    let unchanged = plane
        .commit_served_acl_change(change(same, ACTOR, "event-consequence:ev", 2))
        .await;
    assert_eq!(unchanged.map_err(name), Ok(ServedAclOutcome::Unchanged));

    let mut member = open(&running, "actor", ACTOR).await;
    let left = plane
        .commit_served_acl_change(change(without_actor(), ACTOR, "event-consequence:ev", 3))
        .await;
    let Ok(ServedAclOutcome::Committed { seq }) = left else {
        panic!("leaving needs no OWNER: {left:?}")
    };
    assert_eq!(json(&member.recv().await)["reason"], "unauthorized");
    let last = notices
        .0
        .lock()
        .expect("not poisoned")
        .last()
        .cloned()
        .expect("noticed");
    assert_eq!((last.seq, last.class.as_str()), (seq, "authored"));
    let ack = json!({ "type": "session.ack", "requestId": "a", "space": SPACE, "sessionId": "reader", "seenSeq": 0 });
    assert!(
        reader.request(&frame(&ack)).await["ok"].is_object(),
        "others stay"
    );
}

/// SRV-412, SRV-902: every accept is told, what was elided and what had been accepted before included: a replay may be the
/// first sign of life after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn srv_902_replays_and_elided_commits_are_noticed_again_with_their_seq() {
    let running = Running::production(config()).await;
    let notices = Arc::new(Notices::default());
    running.server.set_observer(Some(notices.clone()));
    let mut client = open(&running, "s", "did:key:a").await;
    for (local_seq, replayed) in [(1, false), (1, true), (2, false)] {
        // A content-addressed document that is there is not written again.
        let answer = client
            .request(&set("s", local_seq, "cid:fid1:x", &json!(1)))
            .await;
        assert_eq!(answer["ok"]["replayed"] == true, replayed, "{answer}");
    }
    let told: Vec<(u64, usize)> = notices
        .0
        .lock()
        .expect("not poisoned")
        .iter()
        .map(|notice| (notice.seq.0, notice.writes.len()))
        .collect();
    assert_eq!(
        told,
        [(1, 1), (1, 1), (2, 0)],
        "seq, and instances really written"
    );
}

/// §8.2: what a missing list means changes with the first commit of a space, whoever makes it.
#[tokio::test(flavor = "multi_thread")]
async fn srv_907_an_append_that_is_the_first_commit_of_a_space_ends_its_being_empty() {
    let mut config = config();
    config.acl.mode = AclMode::Enforce;
    let running = Running::production(config).await;
    let mut client = open(&running, "s", "did:key:a").await;
    let refused = client.request(&set("s", 1, "of:x", &json!(1))).await;
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    let appended = running
        .server
        .commit_delegated_append(DelegatedAppend {
            target_space: SPACE.into(),
            target_stream: stream_sidecar_id(&EntityId::from("of:piece"), &["leave"], Scope::Space),
            target_stream_link: Some(value!({ "id": "of:piece", "path": ["leave"] })),
            event_id: "ev".into(),
            payload: value!({}),
            acting_principal: Some(ACTOR.into()),
            acting_session: None,
            sessionless_space_scope: false,
            capability_ref: "stream-append:x".into(),
            session_id: "svc".into(),
            local_seq: LocalSeq(1),
        })
        .await;
    assert!(appended.is_ok(), "{appended:?}");
    let accepted = client.request(&set("s", 2, "of:x", &json!(1))).await;
    assert_eq!(accepted["ok"]["seq"], 2, "{accepted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_813_a_served_change_never_makes_the_first_list() {
    let running = Running::production(config()).await;
    let refused = running
        .server
        .commit_served_acl_change(change(
            list(&[(ACTOR, "OWNER")]),
            ACTOR,
            "event-consequence:ev",
            1,
        ))
        .await;
    assert!(refused.is_err(), "no event, and no list");
}

/// What the serving loop is told of demand.
#[derive(Default)]
struct Demands(Mutex<Vec<(DemandReason, Option<Did>)>>);

impl Observer for Demands {
    fn commit_admitted(&self, _: &AdmittedCommit) {}

    fn session_opened(&self, _: &SpaceId) {}

    fn demand_changed(&self, _: &SpaceId, reason: DemandReason, principal: Option<&Did>) {
        let mut told = self.0.lock().expect("not poisoned");
        told.push((reason, principal.cloned()));
    }
}

/// SRV-431, SRV-506: demand grows by a changed watch list, and by what a commit makes a watch reach.
#[tokio::test(flavor = "multi_thread")]
async fn srv_431_growth_by_a_push_is_told_and_only_growth() {
    let running = Running::production(config()).await;
    let demands = Arc::new(Demands::default());
    running.server.set_observer(Some(demands.clone()));
    let mut reader = open(&running, "r", "did:key:r").await;
    let roots = json!([{ "id": "of:x", "selector": { "path": [], "schema": true } }]);
    let watched = reader
        .request(&support::watch_roots("r", "session.watch.set", "w", &roots))
        .await;
    assert!(watched["ok"].is_object(), "{watched}");
    let mut writer = open(&running, "w", "did:key:w").await;
    let link = support::link("of:y");
    let writes = [
        ("of:y", json!(1)),
        ("of:x", json!(1)),
        ("of:x", json!({ "to": link })),
        ("of:x", json!({ "to": link, "n": 2 })),
    ];
    for (n, (id, value)) in (1..).zip(writes) {
        assert!(writer.request(&set("w", n, id, &value)).await["ok"].is_object());
        running.server.flush(None).await.expect("flushes");
        assert_eq!(json(&writer.recv().await)["effect"]["caughtUpLocalSeq"], n);
    }
    let reader = Some(Did::from("did:key:r"));
    assert_eq!(
        *demands.0.lock().expect("not poisoned"),
        [
            (DemandReason::Watch, reader.clone()),
            (DemandReason::PushGrowth, reader)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_305_an_open_that_fails_creates_no_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    config.authenticator = Arc::new(memory_server::SignedSessionOpen);
    let running = Running::production(config).await;
    let mut client = running.client().await;
    let refused = open_on(&mut client, SPACE, "s", "did:key:a", None).await;
    assert_eq!(refused["error"]["name"], "AuthorizationError");
    assert_eq!(std::fs::read_dir(directory.path()).expect("listable").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_124_a_space_name_that_is_no_path_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    let running = Running::production(config).await;
    let mut client = running.client().await;
    let refused = open_on(&mut client, "did:key:a/../b", "s", "did:key:a", None).await;
    assert_eq!(refused["error"]["name"], "ProtocolError");
    assert_eq!(
        refused["error"]["message"], "Invalid memory space identifier for store path: did:key:a/../b",
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_322_a_ceiling_is_recorded_and_a_resume_without_one_drops_it() {
    let running = Running::production(config()).await;
    let ceiling = json!({ "maxConfidentiality": ["public"], "onExceed": "skip" });
    let open = |challenge: &Json, token: Option<&Json>, ceiling: Option<&Json>| {
        let mut session = json!({ "sessionId": "s" });
        if let Some(token) = token {
            session["sessionToken"] = token.clone();
        }
        if let Some(ceiling) = ceiling {
            session["readCeiling"] = ceiling.clone();
        }
        frame(&json!({
            "type": "session.open", "requestId": "o", "space": SPACE, "session": session,
            "invocation": { "aud": "did:key:z6Mk-audience", "iss": "did:key:a", "challenge": challenge },
            "authorization": {},
        }))
    };
    let mut client = running.client().await;
    let greeted = client.request(&hello()).await;
    assert_eq!(greeted["flags"]["sessionReadCeiling"], true);
    let opened = client
        .request(&open(
            &greeted["sessionOpen"]["challenge"]["value"],
            None,
            Some(&ceiling),
        ))
        .await;
    let space = SpaceId::from(SPACE);
    let recorded = running
        .server
        .session_read_ceiling(&space, &"s".into())
        .expect("recorded");
    assert_eq!(recorded.max_confidentiality().len(), 1);
    let challenge = &opened["ok"]["sessionOpen"]["challenge"]["value"];
    let again = client
        .request(&open(challenge, Some(&opened["ok"]["sessionToken"]), None))
        .await;
    assert_eq!(again["ok"]["resumed"], true, "{again}");
    assert!(running.server.session_read_ceiling(&space, &"s".into()).is_none());
    // SRV-321: a malformed bound is no message at all.
    client
        .send(&open(challenge, None, Some(&json!({ "maxConfidentiality": [] }))))
        .await;
    assert_eq!(json(&client.recv().await)["error"]["name"], "InvalidMessageError");
}

/// Blocking HTTP beside the test's runtime.
async fn http<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_121_srv_122_blobs_go_in_and_come_out() {
    let mut config = config();
    config.limits.max_blob = 1000;
    let running = Running::production(config).await;
    let base = format!("http://{}/did:key:z6Mk-space/blobs", running.address);
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let post = |url: String, body: String| {
        let agent = agent.clone();
        http(move || {
            let mut answer = agent.post(&url).send(body.as_str()).expect("answered");
            let text = answer.body_mut().read_to_string().expect("text");
            (answer.status().as_u16(), text)
        })
    };
    let png = r#"fvj1:{"body":{"/Bytes@1":"iVBORw"},"type":"image/png"}"#;
    for _ in 0..2 {
        let (status, body) = post(format!("{base}/shot.PNG"), png.into()).await;
        assert_eq!(status, 201, "{body}");
        let body: Json = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["id"], "fid1:sD92egETmvCXYfBOygLjn8oGrN1B4T1xSiOSQd5VQyc");
        assert_eq!(
            body["url"],
            "blobs/sD92egETmvCXYfBOygLjn8oGrN1B4T1xSiOSQd5VQyc.PNG"
        );
    }
    assert_eq!(
        post(base.clone(), "nonsense".into()).await,
        (400, "Invalid blob payload".into())
    );
    assert_eq!(
        post(base.clone(), "x".repeat(1001)).await,
        (413, "Blob payload too large".into())
    );
    let not_a_did = format!("http://{}/garbage/blobs", running.address);
    assert_eq!(
        post(not_a_did, png.into()).await,
        (400, "Invalid space DID".into())
    );

    let get = |name: &str| {
        let (agent, url) = (agent.clone(), format!("{base}/{name}"));
        http(move || {
            let mut answer = agent.get(&url).call().expect("answered");
            let header = |name: &str| {
                answer
                    .headers()
                    .get(name)
                    .map(|value| value.to_str().expect("text").to_owned())
            };
            let (kind, cache) = (header("content-type"), header("cache-control"));
            let body = answer.body_mut().read_to_vec().expect("bytes");
            (answer.status().as_u16(), kind, cache, body)
        })
    };
    let (status, kind, cache, body) = get("sD92egETmvCXYfBOygLjn8oGrN1B4T1xSiOSQd5VQyc.png").await;
    assert_eq!((status, body.as_slice()), (200, [137, 80, 78, 71].as_slice()));
    assert_eq!(kind.as_deref(), Some("image/png"));
    assert_eq!(cache.as_deref(), Some("public, max-age=31536000, immutable"));
    assert_eq!(
        get("fid1:sD92egETmvCXYfBOygLjn8oGrN1B4T1xSiOSQd5VQyc").await.0,
        200,
        "the tag is optional"
    );
    assert_eq!(get("AAAA.png").await.0, 404);
    assert_eq!(get(".png").await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1101_health_stats_and_meta() {
    let mut config = config();
    config.git_sha = Some("abc".into());
    let running = Running::production(config).await;
    let server: Arc<Server> = running.server.clone();
    server.set_serving_loop_report(Some(Arc::new(|| json!({ "activeSpaces": 1 }))));
    let mut client = open(&running, "s", "did:key:a").await;
    client.request(&set("s", 1, "of:x", &json!(1))).await;
    server.idle().await.expect("settles");
    let get = async |path: &str| {
        let (status, text) = running.get(path).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str::<Json>(&text).expect("JSON")
    };
    let health = get("/_health").await;
    assert_eq!(
        (&health["status"], &health["gitSha"]),
        (&json!("OK"), &json!("abc"))
    );
    let meta = get("/api/meta").await;
    for (key, value) in [
        ("did", json!("did:key:z6Mk-audience")),
        ("gitSha", json!("abc")),
        ("shellServerExecutionDefine", json!(true)),
    ] {
        assert_eq!(meta[key], value, "{meta}");
    }
    let stats = get("/api/health/stats").await;
    for timing in [
        "memory/frame/queue",
        "memory/frame/handle",
        "memory/flush/refresh",
    ] {
        assert!(
            stats["timingStats"]["memory"][timing]["count"].as_u64() >= Some(1),
            "{timing}: {stats}"
        );
    }
    assert_eq!(stats["servingLoop"]["push"]["mixedFlushes"], 0);
    assert_eq!(stats["memory"]["sessions"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn srv_525_a_list_evaluated_beside_the_turn_misses_no_commit() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = config();
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    config.durability = memory_engine::Durability::Normal;
    config.flush = FlushTiming::Timed;
    config.limits.documents_in_turn = 0;
    let running = Running::production(config).await;
    let mut writer = open(&running, "w", "did:key:w").await;
    let mut reader = open(&running, "r", "did:key:r").await;
    let ids: Vec<String> = (0..20).map(|n| format!("of:{n}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let writing = tokio::spawn(async move {
        for n in 1..=200u64 {
            writer
                .send(&set("w", n, &format!("of:{}", n % 20), &json!(n)))
                .await;
        }
        let mut verdicts = 0;
        while verdicts < 200 {
            verdicts += u32::from(json(&writer.recv().await)["type"] == "response");
        }
    });
    let mut known = std::collections::BTreeMap::new();
    let take = |sync: &Json, known: &mut std::collections::BTreeMap<String, Json>| {
        for upsert in sync["upserts"].as_array().into_iter().flatten() {
            known.insert(
                upsert["id"].as_str().expect("an id").to_owned(),
                upsert["doc"]["value"].clone(),
            );
        }
    };
    for _ in 0..20 {
        reader.send(&watch("r", &ids)).await;
        loop {
            let message = json(&reader.recv().await);
            if message["type"] == "response" {
                take(&message["ok"]["sync"], &mut known);
                break;
            }
            take(&message["effect"], &mut known);
        }
    }
    writing.await.expect("all verdicts");
    running.server.idle().await.expect("settles");
    reader.send("probe").await;
    loop {
        let message = json(&reader.recv().await);
        if message["type"] == "response" {
            break;
        }
        take(&message["effect"], &mut known);
    }
    for n in 181..=200u64 {
        assert_eq!(known[&format!("of:{}", n % 20)], json!(n), "of:{}", n % 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_123_dumps_exist_where_enabled_and_are_whole_stores() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |dumps| {
        let mut config = config();
        config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
        config.dumps = dumps;
        config
    };
    let running = Running::production(with(true)).await;
    let mut client = open(&running, "s", "did:key:a").await;
    client.request(&set("s", 1, "of:x", &json!("kept"))).await;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let get = |running: &Running, path: &str| {
        let (agent, url) = (
            agent.clone(),
            format!("http://{}/api/storage/memory/dump{path}", running.address),
        );
        http(move || {
            let mut answer = agent.get(&url).call().expect("answered");
            (
                answer.status().as_u16(),
                answer.body_mut().read_to_vec().expect("bytes"),
            )
        })
    };
    let (status, body) = get(&running, "").await;
    let listed: Json = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(
        (status, &listed["spaces"][0]["space"]),
        (200, &json!(SPACE)),
        "{listed}"
    );
    let (status, copy) = get(&running, &format!("/{SPACE}")).await;
    assert_eq!(status, 200);
    assert!(copy.starts_with(b"SQLite format 3"), "a database file");
    let other = tempfile::tempdir().expect("a directory");
    let path = StoreRoot::configured(other.path())
        .expect("usable")
        .store_path(&SPACE.into())
        .expect("a path");
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(&path, copy).expect("written");
    let mut restored = config();
    restored.stores = Stores::Files(StoreRoot::configured(other.path()).expect("usable"));
    let restored = Running::production(restored).await;
    let mut reader = open(&restored, "r", "did:key:r").await;
    let sync = reader.request(&watch("r", &["of:x"])).await;
    assert_eq!(sync["ok"]["sync"]["upserts"][0]["doc"]["value"], "kept");
    assert_eq!(get(&running, "/did:key:unknown").await.0, 404);
    let closed = Running::production(with(false)).await;
    assert_eq!(get(&closed, "").await.0, 404);
    assert_eq!(get(&closed, &format!("/{SPACE}")).await.0, 404);
}
