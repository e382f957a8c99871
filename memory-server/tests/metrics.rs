//! `GET /metrics`, `/api/health/ready` and `/api/health/stats` of a server at work: every row is there, and the figures
//! are those of what happened.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_engine::StoreRoot;
use memory_server::{LogCounts, MetricKind, ServingPlane, Stores, metrics_table};
use serde_json::{Value as Json, json};
use support::{Injected, Running, frame, hello, open, set, transact_reading, watch};

fn series(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("name and value");
            (
                name.to_owned(),
                value.parse().unwrap_or_else(|_| panic!("a number: {line}")),
            )
        })
        .collect()
}

struct Scene {
    running: Running,
    injected_clock: Arc<support::ManualClock>,
    _directory: tempfile::TempDir,
}

async fn scene(execution: bool) -> Scene {
    let directory = tempfile::tempdir().expect("a directory");
    let Injected {
        mut config, clock, ..
    } = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000);
    config.stores = Stores::Files(StoreRoot::configured(directory.path()).expect("usable"));
    config.server_execution = execution;
    config.log_counts = Some(LogCounts::default());
    config.git_sha = Some("abc".into());
    Scene {
        running: Running::production(config).await,
        injected_clock: clock,
        _directory: directory,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_scraped_and_says_what_happened() {
    let scene = scene(true).await;
    let running = &scene.running;
    running.server.set_serving_loop_report(Some(Arc::new(block)));
    let mut writer = open(running, "w", "did:key:a").await;
    let mut reader = open(running, "r", "did:key:b").await;
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    for n in 1..=3u64 {
        let verdict = writer.request(&set("w", n, "of:x", &json!({ "n": n }))).await;
        assert!(verdict["ok"].is_object(), "{verdict}");
    }
    let replayed = writer.request(&set("w", 3, "of:x", &json!({ "n": 3 }))).await;
    assert_eq!(replayed["ok"]["replayed"], true, "{replayed}");
    let stale = json!([{ "id": "of:x", "path": ["value"], "seq": 1 }]);
    let operations = json!([{ "op": "set", "id": "of:x", "value": { "value": 0 } }]);
    let conflict = writer
        .request(&transact_reading("w", 4, &operations, &stale))
        .await;
    assert_eq!(conflict["error"]["name"], "ConflictError", "{conflict}");
    let nonsense = writer.request("fvj1:{\"type\":\"nonsense\"}").await;
    assert_eq!(nonsense["error"]["name"], "InvalidMessageError");
    memory_server::ServingPlane::flush(&*running.server, None)
        .await
        .expect("flushed");
    assert_eq!(support::json(&reader.recv().await)["type"], "session/effect");

    let (status, text) = running.get("/metrics").await;
    assert_eq!(status, 200);
    let found = series(&text);
    for row in metrics_table() {
        let is_mine = |name: &str| {
            let base = name.split('{').next().unwrap_or(name);
            base == row.name
                || (row.kind == MetricKind::Histogram && base.strip_suffix("_count") == Some(row.name))
        };
        // What has a label from an open set appears when it happens.
        let by_event = ["memory_http_responses_total"].contains(&row.name);
        assert!(
            by_event || found.keys().any(|name| is_mine(name)),
            "{} is not scraped",
            row.name
        );
        assert!(
            text.contains(&format!("# HELP {} ", row.name)) || by_event,
            "{}",
            row.name
        );
        assert!(
            text.contains(&format!("# TYPE {} {}", row.name, row.kind)) || by_event,
            "{}",
            row.name
        );
    }
    let expected = [
        (
            "memory_commits_total{class=\"authored\",verdict=\"accepted\"}",
            3.0,
        ),
        (
            "memory_commits_total{class=\"authored\",verdict=\"replayed\"}",
            1.0,
        ),
        (
            "memory_commits_total{class=\"authored\",verdict=\"conflict\"}",
            1.0,
        ),
        ("memory_errors_total{name=\"conflict\"}", 1.0),
        ("memory_errors_total{name=\"invalid_message\"}", 1.0),
        ("memory_errors_total{name=\"protocol\"}", 0.0),
        ("memory_session_opens_total{outcome=\"fresh\"}", 2.0),
        ("memory_sessions{state=\"attached\"}", 2.0),
        ("memory_connections", 2.0),
        ("memory_spaces", 1.0),
        ("memory_watches", 1.0),
        ("memory_tracked_documents", 1.0),
        ("memory_dirty_spaces", 0.0),
        ("memory_upgrades_total{outcome=\"accepted\"}", 2.0),
        ("memory_build_info{version=\"0.1.0\",revision=\"abc\"}", 1.0),
        ("memory_start_time_seconds", 1_760_000_000.0),
        ("serving_loop_waves_total", 7.0),
        ("serving_loop_leases_held", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }
    for name in [
        "memory_wal_bytes",
        "memory_store_bytes",
        "memory_sent_bytes_total",
        "memory_received_bytes_total",
    ] {
        assert!(found[name] > 0.0, "{name}");
    }
    assert!(found["memory_push_delay_seconds_count"] >= 1.0);
    assert!(
        found["memory_effects_total"] >= 2.0,
        "the reader's frame and the writer's markers"
    );

    // The same in the statistics.
    let (status, text) = running.get("/api/health/stats").await;
    assert_eq!(status, 200);
    let stats: Json = serde_json::from_str(&text).expect("JSON");
    assert_eq!(stats["memory"]["errors"]["ConflictError"], 1);
    assert_eq!(stats["memory"]["watches"], 1);
    assert_eq!(stats["memory"]["trackedDocuments"], 1);
    assert_eq!(stats["memory"]["sessions"], 2);
    assert!(stats["memory"]["walBytes"].as_u64() > Some(0));
    assert!(stats["logCounts"]["total"].is_number());
    assert_eq!(stats["servingLoop"]["waves"], 7);
    assert!(stats["servingLoop"]["push"]["mixedFlushes"].is_number());
    assert!(stats["timingStats"]["memory"]["memory/flush/refresh"]["count"].as_u64() >= Some(1));
    for session in stats["memory"]["largestSessions"].as_array().expect("sessions") {
        assert!(
            session["session"].is_null(),
            "a session's id is its own: {session}"
        );
    }
    let (_, text) = running.get("/metrics").await;
    assert_eq!(
        series(&text)["memory_http_responses_total{route=\"/api/health/stats\",status=\"200\"}"],
        1.0
    );
}

/// Field fault F36: the serving loop stops without an error; readiness fails while somebody watches, and only then.
#[tokio::test(flavor = "multi_thread")]
async fn f36_readiness_fails_while_derived_state_lags_behind_somebody_who_watches() {
    let scene = scene(true).await;
    let running = &scene.running;
    let ready = async || {
        let (status, text) = running.get("/api/health/ready").await;
        let body: Json = serde_json::from_str(&text).expect("JSON");
        (status, body)
    };
    let mut writer = open(running, "w", "did:key:a").await;
    for n in 1..=100u64 {
        assert!(writer.request(&set("w", n, "of:x", &json!(n))).await["ok"].is_object());
    }
    // Nobody hears of commits any more, and nothing fails.
    running.server.set_observer(None);
    scene.injected_clock.advance(60_000);
    assert_eq!(ready().await.0, 200, "nobody watches");
    let mut reader = open(running, "r", "did:key:b").await;
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    let (status, body) = ready().await;
    assert_eq!((status, &body["status"]), (503, &json!("LAGGING")), "{body}");
    assert_eq!(body["servingLagMs"], 60_000);
    let (_, text) = running.get("/metrics").await;
    assert_eq!(series(&text)["memory_serving_lag_seconds"], 60.0);
    // The watermark goes from 9 to 10 and from 99 to 100: as text it would go back.
    let space: memory_wire::SpaceId = support::SPACE.into();
    let watermark = memory_wire::EntityId::from(memory_wire::well_known::WATERMARK_DOCUMENT);
    for seq in [9u64, 10, 99, 100] {
        let value = memory_wire::value!({ "seq": seq });
        running
            .server
            .write_document(&space, &watermark, value)
            .await
            .expect("written");
        let (status, body) = ready().await;
        let lag = if seq == 100 { 0 } else { 60_000 };
        assert_eq!(body["servingLagMs"], lag, "watermark {seq}");
        assert_eq!(status, if seq == 100 { 200 } else { 503 });
    }
    assert_eq!(running.get("/_health").await.0, 200, "alive all the time");
}

/// With server execution off nothing is derived, so nothing lags.
#[tokio::test(flavor = "multi_thread")]
async fn f36_without_server_execution_there_is_no_lag() {
    let scene = scene(false).await;
    let running = &scene.running;
    let mut client = open(running, "w", "did:key:a").await;
    assert!(client.request(&watch("w", &["of:x"])).await["ok"].is_object());
    assert!(client.request(&set("w", 1, "of:x", &json!(1))).await["ok"].is_object());
    scene.injected_clock.advance(600_000);
    assert_eq!(running.get("/api/health/ready").await.0, 200);
}

/// A counter a session caused before it said hello is there too.
#[tokio::test(flavor = "multi_thread")]
async fn errors_before_hello_are_counted() {
    let scene = scene(false).await;
    let mut client = scene.running.client().await;
    let early = client
        .request(&frame(
            &json!({ "type": "session.ack", "requestId": "a", "space": "s", "sessionId": "x", "seenSeq": 1 }),
        ))
        .await;
    assert_eq!(early["error"]["name"], "ProtocolError");
    assert_eq!(client.request(&hello()).await["type"], "hello.ok");
    let (_, text) = scene.running.get("/metrics").await;
    assert_eq!(series(&text)["memory_errors_total{name=\"protocol\"}"], 1.0);
}

/// A serving loop's report with every key the table points at.
fn block() -> Json {
    json!({
        "activeSpaces": 1, "waves": 7, "wavesBudgetExhausted": 0, "supersededWrites": 0, "authoredSeen": 3,
        "effectAcks": 0, "derivedCommits": 7, "watermarkLag": 2, "watermarkClamped": 0, "unstampedSealRefusals": 0,
        "structureLoadFailures": 0, "structureLoadStuck": 0, "reactivationBackoffs": 0, "parkDisposeTimeouts": 0,
        "foreignWriteRefusals": 0,
        "demand": { "demandedRows": 4, "demandedInstances": 3, "demandPasses": 9 },
        "events": { "appended": 1, "processed": 1, "skippedIdempotent": 0 },
        "memo": { "hits": 0, "misses": 0, "inflight": 0 },
        "outbox": { "queued": 0, "completed": 0, "failed": 0, "budgetDeferrals": 0 },
        "lease": { "held": 1, "lost": 0 },
    })
}
