//! Saying in a commit what only the server may say (SRV-3, SRV-412, ENG-500…530): who fired an event, whose instance is
//! written, of what class a commit is, for whom and because of what. What the protocol has a field for is refused when
//! it lies; what it has no field for is ignored like any unknown field, and changes nothing.

use memory_wire::well_known::stream_sidecar_id;
use memory_wire::{EntityId, Scope};
use serde_json::{Value as Json, json};

use crate::rig::{Rig, error_series, judge, mallory, metric_label, victim};

const PROTOCOL: &str = "ProtocolError";

fn sidecar() -> String {
    stream_sidecar_id(&EntityId::from("of:poll"), &["votes"], Scope::Space).to_string()
}

/// A commit that appends one entry; `bend` changes it.
fn append(event: &str, bend: impl FnOnce(&mut Json)) -> Json {
    let mut commit = json!({
        "reads": { "confirmed": [], "pending": [] },
        "operations": [{ "op": "patch", "id": sidecar(), "patches": [
            { "op": "append", "path": "/value/entries", "values": [
                { "eventId": event, "stream": { "id": "of:poll", "path": ["votes"] }, "payload": { "n": 1 } }] }] }],
        "eventAppends": [{ "id": sidecar(), "eventId": event }],
    });
    bend(&mut commit);
    commit
}

fn entry(commit: &mut Json) -> &mut Json {
    commit
        .pointer_mut("/operations/0/patches/0/values/0")
        .expect("an entry")
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_003_an_event_is_stamped_by_the_server_alone() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    let (mallory, victim) = (mallory().did().to_string(), victim().did().to_string());
    let fired = |value: Json| append("forged", |commit| entry(commit)["firedAt"] = value);
    let with = |key: &str, value: Json| append("forged", |commit| entry(commit)[key] = value);
    let over =
        |operations: Json| json!({ "reads": { "confirmed": [], "pending": [] }, "operations": operations });
    let disagrees = "disagrees with the authenticated envelope";
    let attempts: Vec<(&str, Json, &str)> = vec![
        ("fired by the victim", fired(json!({ "user": victim })), disagrees),
        (
            "fired in the victim's session",
            fired(json!({ "user": mallory, "session": "vs" })),
            disagrees,
        ),
        (
            "fired by both",
            fired(json!({ "user": victim, "session": "m" })),
            disagrees,
        ),
        ("fired by nobody", fired(json!({ "user": null })), disagrees),
        (
            "fired by the server",
            fired(json!({ "user": mallory, "session": "server" })),
            disagrees,
        ),
        ("fired as text", fired(json!(victim)), ""),
        (
            "its own seq",
            with("seq", json!(1)),
            "pre-supplies the stream seq",
        ),
        (
            "consequenced already",
            with("consequenced", json!(true)),
            "pre-supplies processing fields",
        ),
        ("an outcome", with("error", json!("no")), ""),
        (
            "trusted by the renderer, perhaps",
            with("rendererTrusted", json!("yes")),
            "malformed rendererTrusted",
        ),
        (
            "injected keys",
            with("runtimeInjectedEventKeys", json!({ "0": "k" })),
            "malformed runtimeInjected",
        ),
        (
            "for another stream",
            with("stream", json!({ "id": "of:other", "path": ["votes"] })),
            "does not derive",
        ),
        ("for no stream", with("stream", Json::Null), "no stream link"),
        (
            "undeclared",
            append("forged", |commit| commit["eventAppends"] = json!([])),
            "undeclared event append",
        ),
        (
            "declared and not appended",
            append(
                "forged",
                |commit| commit["eventAppends"] = json!([{ "id": sidecar(), "eventId": "forged" }, { "id": sidecar(), "eventId": "ghost" }]),
            ),
            "without a matching appended entry",
        ),
        (
            "declared on the access list",
            append("forged", |commit| {
                commit["eventAppends"] = json!([{ "id": format!("of:{shared}"), "eventId": "forged" }])
            }),
            "targets a non-stream doc",
        ),
        (
            "an advanced watermark",
            over(json!([{ "op": "patch", "id": sidecar(), "patches": [
                { "op": "replace", "path": "/value/eventWatermark", "value": 1_000_000 }] }])),
            "server-written",
        ),
        (
            "a rewritten entry",
            over(json!([{ "op": "patch", "id": sidecar(), "patches": [
                { "op": "replace", "path": "/value/entries/0/firedAt", "value": { "user": victim } }] }])),
            "server-written",
        ),
        (
            "another log",
            over(
                json!([{ "op": "set", "id": sidecar(), "value": { "value": { "entries": [
                { "eventId": "x", "firedAt": { "user": victim } }] } } }]),
            ),
            "",
        ),
        (
            "no log",
            over(json!([{ "op": "delete", "id": sidecar() }])),
            "authored deletion of stream doc",
        ),
    ];
    // An honest event first, so that there is a log.
    let mut honest = append("honest", |_| ());
    honest["localSeq"] = json!(1);
    let answer = peer.commit(&shared, "m", honest).await;
    assert!(answer["ok"]["seq"].is_number(), "{answer}");
    let mut failures = Vec::new();
    println!("{} attempts", attempts.len());
    for (n, (label, mut commit, message)) in attempts.into_iter().enumerate() {
        commit["localSeq"] = json!(n + 2);
        let series = error_series(metric_label(PROTOCOL));
        let before = rig.counters().await[&series];
        let answer = peer.commit(&shared, "m", commit).await;
        failures.extend(judge(label, &answer, PROTOCOL, message).err());
        if rig.counters().await[&series] != before + 1 {
            failures.push(format!("{label}: {series} did not rise"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let log = peer.document(&shared, "m", &sidecar(), "space").await;
    let entries = log["entries"].as_array().expect("a log");
    assert_eq!(entries.len(), 1, "only the honest event: {log}");
    assert_eq!(entries[0]["firedAt"], json!({ "user": mallory, "session": "m" }));
    rig.unharmed(&[&peer]).await;
}

/// Fields that only the admission path has (SRV-3): a client that sends them is not heard.
#[tokio::test(flavor = "multi_thread")]
async fn srv_003_class_holder_scope_key_and_attribution_are_not_the_clients_to_say() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    let victim_did = victim().did().to_string();
    let victims_key = format!("user:{}", memory_wire::scope_key::encode_component(&victim_did));
    let claims: Vec<(&str, Json, Json)> = vec![
        ("class", json!({ "class": "derived" }), json!({})),
        (
            "system class",
            json!({ "class": "system", "commitClass": "system" }),
            json!({}),
        ),
        (
            "holder",
            json!({ "holder": format!("{victim_did}#process"), "leaseHolder": victim_did }),
            json!({}),
        ),
        (
            "principal",
            json!({ "principal": victim_did, "sessionId": "vs", "iss": victim_did }),
            json!({}),
        ),
        (
            "acting",
            json!({ "actingAs": "space-owner", "actingPrincipal": victim_did, "actingUser": victim_did }),
            json!({}),
        ),
        (
            "annotations",
            json!({ "annotations": [{ "op": 0, "scopeKey": victims_key, "actingUser": victim_did }] }),
            json!({}),
        ),
        (
            "delegated carriage",
            json!({ "delegated": { "actingPrincipal": victim_did, "capabilityRef": "event-consequence:e" },
                    "capabilityRef": "event-consequence:e", "derivedThrough": 99 }),
            json!({}),
        ),
        (
            "consequenceOf",
            json!({ "consequenceOf": ["honest"], "consequences": ["honest"] }),
            json!({}),
        ),
        (
            "basis and outbox",
            json!({ "basis": [{ "id": "of:note" }], "outbox": [{ "kind": "x" }] }),
            json!({}),
        ),
        (
            "scope key of the victim",
            json!({}),
            json!({ "scopeKey": victims_key }),
        ),
        (
            "entity scope key",
            json!({}),
            json!({ "entityScopeKey": victims_key }),
        ),
        (
            "attribution of the operation",
            json!({}),
            json!({ "actingUser": victim_did, "principal": victim_did }),
        ),
    ];
    println!("{} claims", claims.len());
    for (n, (label, on_commit, on_operation)) in claims.into_iter().enumerate() {
        let mut operation =
            json!({ "op": "set", "id": "of:note", "scope": "user", "value": { "value": { "n": n } } });
        merge(&mut operation, on_operation);
        let mut commit = json!({
            "localSeq": n + 1, "reads": { "confirmed": [], "pending": [] }, "operations": [operation],
        });
        merge(&mut commit, on_commit);
        let answer = peer.commit(&shared, "m", commit).await;
        if answer["ok"].is_null() {
            // Refusing is as good as not listening, as long as it is named and counted.
            assert_eq!(answer["error"]["name"], PROTOCOL, "{label}: {answer}");
            continue;
        }
        let revision = &answer["ok"]["revisions"][0];
        assert_eq!(
            revision["scopeKey"],
            format!(
                "user:{}",
                memory_wire::scope_key::encode_component(mallory().did().as_str())
            ),
            "{label}: written as oneself"
        );
        let seen = peer.document(&shared, "m", "of:note", "user").await;
        assert_eq!(seen["n"], n, "{label}");
    }
    // In the store every commit of the member is an authored one of its own session.
    let engine = memory_server::ServingPlane::engine(&*rig.server, &shared).expect("open");
    let classes = engine
        .turn(|engine| {
            let reader = engine.reader();
            reader
                .commits_since(memory_wire::Seq(0), &memory_wire::BranchName::default(), None)
                .map(|commits| {
                    commits
                        .iter()
                        .map(|commit| (commit.class.as_str(), commit.session_key.clone()))
                        .collect::<Vec<_>>()
                })
        })
        .await
        .expect("turns")
        .expect("readable");
    for (class, session) in &classes {
        assert_eq!(*class, "authored");
        assert!(
            !session.contains(&victim_did) || session.ends_with(":vs"),
            "a commit in the victim's name: {session}"
        );
    }
    // The engine handle pins the space; the victim's own instance is what it was.
    rig.unharmed(&[&peer]).await;
}

/// The victim's session named in a request is not the attacker's to use, with or without its token.
#[tokio::test(flavor = "multi_thread")]
async fn srv_401_another_connections_session_is_not_open_here() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let (shared, private) = (rig.shared.clone(), rig.private.clone());
    let token = rig.victim.tokens["vs"].clone();
    let series = error_series("session");
    let before = rig.counters().await[&series];
    let mut asked = 0;
    for (space, session) in [(&shared, "vs"), (&private, "vp"), (&private, "m")] {
        for kind in [
            json!({ "type": "transact", "commit": { "localSeq": 9, "reads": { "confirmed": [], "pending": [] },
                "operations": [{ "op": "set", "id": "of:note", "value": { "value": 0 } }] } }),
            json!({ "type": "graph.query", "query": { "roots": [] } }),
            json!({ "type": "entity-id.list" }),
            json!({ "type": "entity-id.exists", "id": format!("of:{}", "diary") }),
            json!({ "type": "session.watch.set", "watches": [] }),
            json!({ "type": "session.watch.add", "watches": [] }),
            json!({ "type": "session.ack", "seenSeq": 1_000_000 }),
            json!({ "type": "sqlite.query", "sql": "SELECT 1", "db": { "id": "of:db", "tables": {} } }),
            json!({ "type": "sqlite.register-disk-source", "id": "of:db", "path": "/etc/passwd" }),
        ] {
            let mut message = json!({
                "requestId": "x", "space": space.as_str(), "sessionId": session, "sessionToken": token,
            });
            merge(&mut message, kind);
            let label = message["type"].to_string();
            let answer = peer.request(message).await;
            judge(
                &label,
                &answer,
                "SessionError",
                "Session is not open on this connection",
            )
            .expect("refused");
            asked += 1;
        }
    }
    assert_eq!(rig.counters().await[&series], before + asked);
    println!("{asked} attempts");
    rig.unharmed(&[&peer]).await;
}

/// What a member may not do with databases (SRV-517, SRV-521, SRV-522).
#[tokio::test(flavor = "multi_thread")]
async fn srv_517_databases_stay_where_they_are() {
    let mut rig = Rig::start().await;
    let mut peer = rig.member().await;
    let shared = rig.shared.clone();
    let own = rig.around.path().join("srv").join("data");
    let db = json!({ "id": "of:db", "tables": { "t": { "type": "object", "properties": { "a": { "type": "string" } } } } });
    // There is a database, so that statements run or are refused and are not answered by its absence.
    let made =
        json!([{ "op": "sqlite", "db": db, "sql": "INSERT INTO t (a) VALUES ('mine')", "params": [] }]);
    let answer = peer.transact(&shared, "m", 1, made).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let query = |sql: &str| {
        json!({ "type": "sqlite.query", "requestId": "s", "space": shared.as_str(), "sessionId": "m",
                "sql": sql, "db": db })
    };
    let statements = [
        "ATTACH DATABASE '/etc/passwd' AS x",
        "DETACH DATABASE main",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM main.revision",
        "SELECT * FROM revision",
        "SELECT * FROM \"commit\"",
        "SELECT * FROM execution_lease",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT writefile('/tmp/x', 'y')",
        "INSERT INTO t VALUES ('x')",
        "DROP TABLE t",
        "SELECT 1; SELECT 2",
        "VACUUM INTO '/tmp/copy.sqlite'",
        "WITH x AS (SELECT 1) DELETE FROM t",
    ];
    let mut failures = Vec::new();
    for sql in statements {
        let answer = peer.request(query(sql)).await;
        let name = answer["error"]["name"].as_str().unwrap_or_default();
        if name != "GuardError" && name != "SqliteError" {
            failures.push(format!("{sql}: {answer}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    for path in [
        "/etc/passwd".to_owned(),
        "../../etc/passwd".to_owned(),
        own.display().to_string(),
    ] {
        let answer = peer
            .request(
                json!({ "type": "sqlite.register-disk-source", "requestId": "d", "space": shared.as_str(),
                             "sessionId": "m", "id": "of:db", "path": path }),
            )
            .await;
        judge(&path, &answer, "AuthorizationError", "lacks OWNER").expect("a member is no owner");
    }
    rig.unharmed(&[&peer]).await;
}

fn merge(target: &mut Json, source: Json) {
    if let (Json::Object(target), Json::Object(source)) = (target, source) {
        target.extend(source);
    }
}
