//! Recorded exchanges of `server-transcripts.jsonl`, replayed over real sockets: every answer and every frame, letter by
//! letter but for what the protocol leaves open. Where the page deliberately differs, the step says by which rule.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use memory_engine::lease::LeaseTable;
use memory_engine::{EngineHandle, Holder, LeaseHolder, WaveCommit};
use memory_server::{
    AclConfig, AclMode, AdmittedCommit, Appended, Authority, DelegatedAppend, DemandReason, Observer,
    ServingPlane,
};
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::{Did, LocalSeq, Scope, Seq, SpaceId, codec};
use serde_json::{Value as Json, json};
use support::{Client, Faults, Injected, ManualClock, Received, Running, frame, normalised, vectors};

/// Which rules each transcript holds the server to.
const PINS: &[(&str, &str)] = &[
    ("handshake", "SRV-110, SRV-111, SRV-112, SRV-201, SRV-202"),
    ("session-open-auth", "SRV-301…304"),
    ("session-resume", "SRV-306…313, SRV-323, SRV-401"),
    (
        "verdict-then-frame",
        "SRV-405…413, SRV-418…420, SRV-424…429, SRV-435, SRV-438",
    ),
    ("conflict-repair", "SRV-417"),
    (
        "watches",
        "SRV-501…509, SRV-513; documents no longer reached are retracted by decision 31, not as SRV-510 says",
    ),
    ("entity-ids", "SRV-515, SRV-516"),
    ("acl-enforce", "SRV-801…809, SRV-403, SRV-1103"),
    ("acl-observe", "SRV-803, SRV-804, SRV-1103"),
    ("scoped-push", "SRV-601…603, SRV-610"),
    ("lease-holder-reads", "SRV-604…609"),
    ("lost-send", "SRV-430, SRV-432…434, SRV-439"),
    ("push-priority", "SRV-701, SRV-702, SRV-903"),
    ("cid-elision", "SRV-411"),
    ("schema-table", "SRV-118"),
    ("cover-class", "SRV-610"),
    ("delegated-append", "SRV-902, SRV-907, SRV-908, SRV-910"),
    ("demand-rows", "SRV-431, SRV-904…906"),
    ("foreign-write-authority", "SRV-816"),
    ("foreign-scoped-read-refusal", "SRV-611, SRV-612"),
    ("direct-write", "SRV-814, SRV-815"),
];

/// Transcripts not replayed, with the reason. Empty: all of them are.
const NOT_COVERED: &[(&str, &str)] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transcripts_replay_over_sockets() {
    let mut failures = Vec::new();
    let mut replayed = 0;
    for transcript in vectors("server-transcripts.jsonl") {
        let name = transcript["name"].as_str().expect("named").to_owned();
        assert!(
            PINS.iter().any(|(pinned, _)| *pinned == name),
            "what does {name} pin?"
        );
        if NOT_COVERED.iter().any(|(uncovered, _)| *uncovered == name) {
            continue;
        }
        // On a task of its own, so that one failure does not hide the others.
        match tokio::spawn(async move { replay(&transcript).await }).await {
            Ok(()) => replayed += 1,
            Err(error) => {
                let panic = error.into_panic();
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_else(|| "a panic".into());
                failures.push(format!("== {name}: {text}"));
            }
        }
    }
    println!(
        "server-transcripts: {replayed} replayed, {} failed, {} not covered",
        failures.len(),
        NOT_COVERED.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(replayed + NOT_COVERED.len(), PINS.len());
}

/// Notices in the shape of the recorded log.
#[derive(Default)]
struct Log(Mutex<Vec<Json>>);

impl Observer for Log {
    fn commit_admitted(&self, notice: &AdmittedCommit) {
        let instance = |instance: &memory_wire::InstanceId| json!({ "id": instance.id.as_str(), "scopeKey": instance.scope_key.as_str() });
        let mut entry = json!({
            "space": notice.space.as_str(),
            "seq": notice.seq.0,
            "class": notice.class.as_str(),
            "sessionId": notice.session_id.as_str(),
            "writes": notice.writes.iter().map(instance).collect::<Vec<_>>(),
        });
        if !notice.event_appends.is_empty() {
            entry["eventAppends"] = notice
                .event_appends
                .iter()
                .map(|append| {
                    let mut entry = instance(&append.stream);
                    entry["eventId"] = append.event_id.as_str().into();
                    entry
                })
                .collect();
        }
        self.0.lock().expect("not poisoned").push(entry);
    }

    fn session_opened(&self, space: &SpaceId) {
        self.0
            .lock()
            .expect("not poisoned")
            .push(json!({ "sessionOpened": space.as_str() }));
    }

    fn demand_changed(&self, space: &SpaceId, reason: DemandReason, principal: Option<&Did>) {
        let reason = match reason {
            DemandReason::Watch => "watch",
            DemandReason::PushGrowth => "push-growth",
        };
        let mut notice = vec![json!(space.as_str()), json!(reason)];
        notice.extend(principal.map(|principal| json!(principal.as_str())));
        self.0
            .lock()
            .expect("not poisoned")
            .push(json!({ "demandChanged": notice }));
    }
}

struct Stage {
    running: Running,
    clock: Arc<ManualClock>,
    faults: Arc<Faults>,
    log: Arc<Log>,
    clients: BTreeMap<String, Client>,
    /// Session ids opened on each connection, and who by, for the steps that name connections.
    sessions: BTreeMap<String, Vec<(String, String, String)>>,
    /// Connections whose next effect was made to fail, with the frame they must get all the same.
    lost: BTreeSet<String>,
    /// Resume tokens brought by resumes of this test's own.
    tokens: BTreeMap<String, String>,
}

async fn replay(transcript: &Json) {
    let acl = &transcript["acl"];
    let start = transcript["clockStartMs"].as_i64().expect("a time");
    let Injected {
        mut config,
        clock,
        faults,
        ..
    } = Injected::new("did:key:z6Mk-audience", start);
    config.server_execution = transcript["serverExecution"].as_bool().expect("a switch");
    let dids = |key: &str| -> BTreeSet<Did> {
        acl[key]
            .as_array()
            .into_iter()
            .flatten()
            .map(|did| Did::from(did.as_str().expect("a DID")))
            .collect()
    };
    config.acl = AclConfig {
        mode: acl["mode"]
            .as_str()
            .expect("a mode")
            .parse::<AclMode>()
            .expect("a known mode"),
        service_principals: dids("serviceDids"),
        delegating_principals: dids("delegatingDids"),
    };
    let running = Running::standalone(config).await;
    let log = Arc::new(Log::default());
    running.server.set_observer(Some(log.clone()));
    let mut stage = Stage {
        running,
        clock,
        faults,
        log,
        clients: BTreeMap::new(),
        sessions: BTreeMap::new(),
        lost: BTreeSet::new(),
        tokens: BTreeMap::new(),
    };
    for (index, step) in transcript["steps"].as_array().expect("steps").iter().enumerate() {
        let label = format!(
            "step {index} {}",
            &step.to_string().chars().take(300).collect::<String>()
        );
        if let Some(conn) = step["send"].as_str() {
            stage.send(conn, step["frame"].as_str().expect("a frame")).await;
        } else if let Some(conn) = step["recv"].as_str() {
            stage
                .expect(conn, step["frame"].as_str().expect("a frame"), &label)
                .await;
        } else {
            stage.act(step, &label).await;
        }
    }
    stage.expect_silence().await;
}

impl Stage {
    async fn send(&mut self, conn: &str, frame: &str) {
        if let Some(opened) = frame
            .strip_prefix("fvj1:")
            .and_then(|body| serde_json::from_str::<Json>(body).ok())
            && opened["type"] == "session.open"
            && let Some(session) = opened["session"]["sessionId"].as_str()
        {
            let space = opened["space"].as_str().unwrap_or_default().to_owned();
            let issuer = opened["invocation"]["iss"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            self.sessions
                .entry(conn.to_owned())
                .or_default()
                .push((space, session.to_owned(), issuer));
        }
        self.clients
            .get_mut(conn)
            .unwrap_or_else(|| panic!("no connection {conn}"))
            .send(frame)
            .await;
    }

    async fn expect(&mut self, conn: &str, expected: &str, label: &str) {
        if self.lost.remove(conn) {
            return self.expect_after_loss(conn, expected, label).await;
        }
        let client = self
            .clients
            .get_mut(conn)
            .unwrap_or_else(|| panic!("no connection {conn}"));
        let got = match client.recv_or_close().await {
            Received::Text(text) => text,
            other => panic!("{label}: {other:?}"),
        };
        assert_canonical(&got);
        pretty_compare(&normalised(&got), &normalised(expected), label);
    }

    /// SRV-434 (ours): a failed send closes the connection instead of being tried again on it, and the session resumes
    /// elsewhere. What the recorded server sent again — the same documents and the same marker — must then be in the
    /// answer to the resume.
    async fn expect_after_loss(&mut self, conn: &str, expected: &str, label: &str) {
        let client = self.clients.get_mut(conn).expect("connected");
        match client.recv_or_close().await {
            Received::Close(_) | Received::Broken(_) => {}
            Received::Text(text) => panic!("{label}: a frame after a failed send: {text}"),
        }
        self.clients.remove(conn);
        let left = self.clients.len();
        self.running.until_connections(left).await;
        let effect = normalised(expected);
        let (space, session, issuer) = self.sessions[conn].last().expect("opened").clone();
        let mut client = self.running.client().await;
        let hello = client
            .request(&frame(
                &json!({ "type": "hello", "protocol": "memory", "flags": {} }),
            ))
            .await;
        // The recorded token, until a resume brings a new one.
        let token = self
            .tokens
            .get(&session)
            .map_or("00000000-0000-4000-8000-000000000003", String::as_str);
        let open = json!({
            "type": "session.open", "requestId": "resume", "space": space,
            "session": { "sessionId": session, "sessionToken": token },
            "invocation": {
                "aud": "did:key:z6Mk-audience", "iss": issuer,
                "challenge": hello["sessionOpen"]["challenge"]["value"],
            },
            "authorization": {},
        });
        let answer = client.request(&frame(&open)).await;
        let ok = &answer["ok"];
        assert_eq!(ok["resumed"], true, "{label}: {answer}");
        let token = ok["sessionToken"].as_str().expect("a token").to_owned();
        assert_eq!(
            ok["sync"]["upserts"], effect["effect"]["upserts"],
            "{label}: {answer}"
        );
        let marker = &ok["sync"]["caughtUpLocalSeq"];
        assert_eq!(marker, &effect["effect"]["caughtUpLocalSeq"], "{label}: {answer}");
        assert_eq!(
            ok["caughtUpLocalSeq"].as_u64().map(|seq| seq + 1),
            marker.as_u64(),
            "{label}: {answer}"
        );
        self.tokens.insert(session, token);
        self.clients.insert(conn.to_owned(), client);
    }

    async fn act(&mut self, step: &Json, label: &str) {
        let text = |key: &str| step[key].as_str();
        let server = self.running.server.clone();
        let plane: &dyn ServingPlane = &*server;
        let space = text("space").map(SpaceId::from);
        match text("do").unwrap_or_else(|| panic!("{label}: not a step")) {
            "connect" => {
                let client = self.running.client().await;
                self.clients
                    .insert(text("conn").expect("a name").to_owned(), client);
            }
            "close" => {
                drop(self.clients.remove(text("conn").expect("a name")));
                self.running.until_connections(self.clients.len()).await;
            }
            "flush" => {
                self.faults.take_sent();
                plane
                    .flush(None)
                    .await
                    .unwrap_or_else(|error| panic!("{label}: {error}"));
            }
            "advance-clock-ms" => self.clock.advance(step["ms"].as_i64().expect("a duration")),
            "stats" => {
                if let Some(expected) = step.get("aclStats") {
                    assert_eq!(&json!(server.acl_stats()), expected, "{label}");
                }
                if let Some(expected) = step.get("push") {
                    assert_eq!(&json!(plane.push_priority_stats()), expected, "{label}");
                }
            }
            "acquire-lease" => {
                let ttl = step["ttlMs"].as_i64().unwrap_or(15_000);
                self.acquire(&space.expect("a space"), ttl).await;
            }
            "lease-expired" => {
                let space = SpaceId::from("did:key:z6Mk-space");
                let now = memory_server::Clock::wall_ms(&*self.clock);
                let engine = plane.engine(&space).expect("open");
                let live = tokio::task::spawn_blocking(move || {
                    let mut engine = engine;
                    engine.live_holder(&space, now)
                });
                assert_eq!(live.await.expect("runs").expect("readable"), None, "{label}");
            }
            "noteLeaseReacquired" => {
                plane.note_lease_reacquired(
                    &space.expect("a space"),
                    &Did::from(text("principal").expect("who")),
                );
            }
            "fail-next-send" => {
                let conn = text("conn").expect("a name").to_owned();
                let (_, session, _) = self.sessions[&conn].last().expect("opened").clone();
                self.faults.fail_next_send_to(&session);
                self.lost.insert(conn);
            }
            "send-order" => {
                let sent = self.faults.take_sent();
                let order: Vec<&str> = step["order"]
                    .as_array()
                    .expect("names")
                    .iter()
                    .filter_map(Json::as_str)
                    .collect();
                let by_conn: Vec<&str> = sent
                    .iter()
                    .map(|session| {
                        self.sessions
                            .iter()
                            .find(|(_, opened)| opened.iter().any(|(_, id, _)| id == session))
                            .map_or("?", |(conn, _)| conn.as_str())
                    })
                    .collect();
                assert_eq!(by_conn, order, "{label}");
            }
            "derived-commit" => self.derived_commit(step, label).await,
            "commitDelegatedAppend" => {
                let result = plane.commit_delegated_append(delegated(&step["args"])).await;
                let got = match result {
                    Ok(Appended::Fresh { seq }) => json!({ "result": { "seq": seq.0, "deduped": false } }),
                    Ok(Appended::Deduped) => json!({ "result": { "deduped": true } }),
                    Err(error) => json!({ "error": wire(&error) }),
                };
                pretty_compare(&got, &outcome(step), label);
            }
            "writeDocument" => {
                let value = codec::decode(&format!("fvj1:{}", step["value"])).expect("a value");
                let id = text("id").expect("an id").into();
                match server
                    .write_document(&SpaceId::from("did:key:z6Mk-space"), &id, value)
                    .await
                {
                    Ok(applied) => {
                        assert_eq!(json!(applied.seq.0), step["seq"], "{label}");
                        assert_eq!(json!(applied.revisions.len()), step["revisions"], "{label}");
                        assert_eq!(json!(applied.elided_op_indexes), step["elided"], "{label}");
                    }
                    Err(error) => assert_eq!(wire(&error), step["error"], "{label}"),
                }
            }
            "foreignWriteAuthorityFor" => {
                let principal = text("principal").map(Did::from);
                let asked = server.clone();
                let space = space.expect("a space");
                let authority = tokio::task::spawn_blocking(move || {
                    asked.foreign_write_authority(&space, principal.as_ref())
                });
                let got = match authority
                    .await
                    .expect("runs")
                    .unwrap_or_else(|error| panic!("{label}: {error}"))
                {
                    Authority::Granted { via } => json!({ "granted": true, "via": via.as_str() }),
                    Authority::Refused { reason } => json!({ "granted": false, "reason": reason }),
                };
                assert_eq!(got, step["result"], "{label}");
            }
            "demandedInstancesForSpace" => self.demanded(step, label),
            "demandSetSizesForSpace" => self.demand_sizes(step, label),
            "liveness" => {
                let space = SpaceId::from("did:key:z6Mk-space");
                let alice = Did::from("did:key:z6Mk-alice");
                let live = |exclude: Option<&Did>| plane.has_live_sessions(&space, exclude);
                let got = json!({
                    "any": live(None),
                    "exclAlice": live(Some(&alice)),
                    "pair": plane.has_live_session_for(&space, &alice, &"sa".into()),
                    "wrongPair": plane.has_live_session_for(&space, &Did::from("did:key:z6Mk-other"), &"sa".into()),
                });
                for key in ["any", "exclAlice", "pair", "wrongPair"] {
                    assert_eq!(got[key], step[key], "{label} {key}");
                }
            }
            "observer-log" => {
                let expected = step["notices"].as_array().expect("notices");
                let wants_others = expected.iter().any(|notice| notice.get("class").is_none());
                let got: Vec<Json> = self
                    .log
                    .0
                    .lock()
                    .expect("not poisoned")
                    .iter()
                    .filter(|notice| wants_others || notice.get("class").is_some())
                    .cloned()
                    .collect();
                pretty_compare(&json!(got), &json!(expected), label);
            }
            other => panic!("{label}: unknown step {other}"),
        }
    }

    fn service_holder(&self) -> Holder {
        Holder::new(
            &Did::from("did:key:z6Mk-service"),
            &self.running.server.config().process_instance,
        )
    }

    async fn acquire(&self, space: &SpaceId, ttl_ms: i64) {
        let engine = self.running.server.engine(space).expect("open");
        let (space, holder, now) = (
            space.clone(),
            self.service_holder(),
            memory_server::Clock::wall_ms(&*self.clock),
        );
        let acquired = tokio::task::spawn_blocking(move || {
            let mut engine: EngineHandle = engine;
            engine.acquire(&space, &holder, now, ttl_ms)
        });
        assert!(
            acquired.await.expect("runs").expect("writable"),
            "the lease is free"
        );
    }

    /// A wave of one write, landed the way a serving loop lands it.
    async fn derived_commit(&self, step: &Json, label: &str) {
        let space = SpaceId::from("did:key:z6Mk-space");
        let engine = self.running.server.engine(&space).expect("open");
        let mut lease = LeaseHolder::new(space.clone(), self.service_holder(), 15_000);
        let now = memory_server::Clock::wall_ms(&*self.clock);
        let clocks = memory_engine::lease::Clocks {
            wall_ms: now,
            monotonic_ms: now,
        };
        let mut table = engine.clone();
        let lease = tokio::task::spawn_blocking(move || {
            assert!(lease.acquire(&mut table, clocks).expect("writable"));
            lease
        })
        .await
        .expect("runs");
        let operations = step["writes"]
            .as_array()
            .expect("writes")
            .iter()
            .map(|write| Operation::Set {
                id: write["id"].as_str().expect("an id").into(),
                scope: Scope::Space,
                value: memory_wire::value!({ "value": 42 }),
            })
            .collect();
        let commit = ClientCommit::build(
            LocalSeq(1),
            CommitParts {
                operations,
                ..CommitParts::default()
            },
        );
        let wave = WaveCommit::new(&lease, commit, Seq(1));
        let server = self.running.server.clone();
        let (told, done) = tokio::sync::oneshot::channel();
        engine.write_then(
            move |engine| engine.apply_wave(&wave, now, None),
            move |_, landed| {
                let applied = landed.expect("durable").expect("admitted");
                server.note_executor_commit(AdmittedCommit {
                    space,
                    seq: applied.seq,
                    class: CommitClass::Derived,
                    holder: Some(lease.holder().clone()),
                    session_id: lease.holder().session_id(),
                    writes: applied
                        .revisions
                        .iter()
                        .map(|r| memory_wire::InstanceId::new(r.id.clone(), r.scope_key.clone()))
                        .collect(),
                    event_appends: Vec::new(),
                    warm: false,
                });
                let _ = told.send(applied.seq);
            },
        );
        assert_eq!(json!(done.await.expect("published").0), step["seq"], "{label}");
    }

    fn demanded(&self, step: &Json, label: &str) {
        let exclude = step["excludePrincipal"].as_str().map(Did::from);
        let space = SpaceId::from("did:key:z6Mk-space");
        let mut got: Vec<Json> = self
            .running
            .server
            .demanded_instances(&space, exclude.as_ref())
            .into_iter()
            .map(|row| {
                let mut identity =
                    json!({ "sessionId": row.identity.session_id.expect("a session").as_str() });
                if let Some(principal) = row.identity.principal {
                    identity["principal"] = principal.as_str().into();
                }
                json!({
                    "id": row.id.as_str(), "scope": row.scope.as_str(), "scopeKey": row.scope_key.as_str(),
                    "identity": identity, "root": row.root,
                })
            })
            .collect();
        let mut expected: Vec<Json> = step["rows"].as_array().expect("rows").clone();
        let key = |row: &Json| row.to_string();
        got.sort_by_key(key);
        expected.sort_by_key(key);
        pretty_compare(&json!(got), &json!(expected), label);
    }

    fn demand_sizes(&self, step: &Json, label: &str) {
        let exclude = step["excludePrincipal"].as_str().map(Did::from);
        let space = SpaceId::from("did:key:z6Mk-space");
        let sizes = self.running.server.demand_set_sizes(&space, exclude.as_ref());
        let per_session: Vec<Json> = sizes
            .per_session
            .into_iter()
            .map(|session| {
                let mut row = json!({
                    "sessionId": session.session_id.as_str(), "tracked": session.tracked, "watches": session.watches,
                });
                if let Some(principal) = session.principal {
                    row["principal"] = principal.as_str().into();
                }
                row
            })
            .collect();
        let got = json!({ "perSession": per_session, "unionKeys": sizes.union_keys });
        pretty_compare(&got, &step["sizes"], label);
    }

    /// Nothing was sent beyond what the transcript lists: the next thing each socket says is the answer to a probe.
    async fn expect_silence(&mut self) {
        for (conn, client) in &mut self.clients {
            client.send("probe").await;
            let got = client.recv().await;
            assert_eq!(
                normalised(&got)["error"]["name"],
                "InvalidMessageError",
                "{conn} had more to say: {got}"
            );
        }
    }
}

fn delegated(args: &Json) -> DelegatedAppend {
    let text = |key: &str| args[key].as_str();
    let value = |key: &str| {
        args.get(key)
            .map(|value| codec::decode(&format!("fvj1:{value}")).expect("a value"))
    };
    DelegatedAppend {
        target_space: text("targetSpace").expect("a space").into(),
        target_stream: text("targetStream").expect("a stream").into(),
        target_stream_link: value("targetStreamLink"),
        event_id: text("eventId").expect("an event").into(),
        payload: value("payload").expect("a payload"),
        acting_principal: text("actingPrincipal").map(Did::from),
        acting_session: text("actingSession").map(Into::into),
        sessionless_space_scope: args["sessionlessSpaceScope"].as_bool().unwrap_or(false),
        capability_ref: text("capabilityRef").unwrap_or_default().to_owned(),
        session_id: text("sessionId").expect("a session").into(),
        local_seq: LocalSeq(args["localSeq"].as_u64().expect("a number")),
    }
}

/// The recorded outcome of a plane call.
fn outcome(step: &Json) -> Json {
    match step.get("error") {
        Some(error) => json!({ "error": error }),
        None => json!({ "result": step["result"] }),
    }
}

fn wire(error: &memory_server::ServerError) -> Json {
    let error = error.to_wire(Seq(0));
    json!({ "name": error.name.as_str(), "message": error.message })
}

/// A frame is canonical text: encoding what it decodes to gives it back.
fn assert_canonical(frame: &str) {
    let value = codec::decode(frame).unwrap_or_else(|error| panic!("{error}: {frame}"));
    assert_eq!(codec::encode(&value).expect("encodable"), frame, "not canonical");
}

fn pretty_compare(got: &Json, expected: &Json, label: &str) {
    assert!(got == expected, "{label}\n   got {got}\n  want {expected}");
}
