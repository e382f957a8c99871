//! What a store keeps for good, and in which form (ENG-1, 112, 116, 123…125, 1100): seen in the rows after random
//! schedules of sessions, streams, branches and a serving loop.

use std::num::NonZeroU32;
use std::path::Path;

use memory_engine::lease::LEASE_TTL_MS;
use memory_engine::{
    ApplyCommit, Engine, EngineOptions, Holder, LeaseHolder, SnapshotPolicy, StoreLocation, WaveCommit,
};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::is_scope_key;
use memory_wire::{Scope, value};
use rusqlite::Connection;

use crate::admission;
use crate::support::{dump, rows_of};

const OFTEN: SnapshotPolicy = SnapshotPolicy {
    interval: NonZeroU32::new(2),
    retention: NonZeroU32::new(1),
};

/// The rows that nothing ever changes, as they are now.
fn history(conn: &Connection) -> Vec<(&'static str, serde_json::Value)> {
    ["commit", "revision"]
        .into_iter()
        .flat_map(|table| rows_of(conn, table).into_iter().map(move |row| (table, row)))
        .collect()
}

/// ENG-116: whatever a store goes through, no `commit` and no `revision` row is changed or taken away.
#[test]
fn eng_116_commits_and_revisions_are_written_once_and_stay() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = admission::open(StoreLocation::File(path.clone()), OFTEN);
        let side = Connection::open(&path).unwrap();
        for (name, table) in [("commits", "\"commit\""), ("revisions", "revision")] {
            for what in ["UPDATE", "DELETE"] {
                side.execute_batch(&format!(
                    "CREATE TRIGGER {name}_{what} BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, 'kept'); END"
                ))
                .unwrap();
            }
        }
        // A replaced row is deleted without a trigger, so the rows are looked at as well.
        let mut kept = Vec::new();
        let (model, _) = admission::run(&mut engine, seed, 120, |_, _, seq| {
            if seq.is_multiple_of(10) {
                let now = history(&side);
                assert!(kept.iter().all(|row| now.contains(row)), "seed {seed}, seq {seq}");
                kept = now;
            }
        });
        assert!(model.accepted() > 30 && !kept.is_empty());
        let snapshots: i64 = side
            .query_row("SELECT COUNT(*) FROM snapshot", [], |row| row.get(0))
            .unwrap();
        assert!(snapshots > 0);
    }
}

/// ENG-112, 123, 124, 125, 1100: what the columns hold, whatever the schedule was.
#[test]
fn eng_123_to_125_every_row_has_the_form_the_page_says() {
    let mut derived = 0;
    for seed in 10..14 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let mut engine = admission::open(StoreLocation::File(path.clone()), OFTEN);
        admission::run(&mut engine, seed, 120, |_, _, _| {});
        drop(engine);
        let side = Connection::open(&path).unwrap();
        let count = |sql: &str| -> i64 { side.query_row(sql, [], |row| row.get(0)).unwrap() };
        let time = "GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]'";
        for (what, wrong) in [
            ("version", "SELECT user_version FROM pragma_user_version".to_owned()),
            ("application", "SELECT application_id FROM pragma_application_id".to_owned()),
            ("blobs", "SELECT COUNT(*) FROM blob_store".to_owned()),
            ("commit seq", "SELECT COUNT(*) FROM revision WHERE commit_seq <> seq".to_owned()),
            (
                "class",
                "SELECT COUNT(*) FROM \"commit\" WHERE class NOT IN ('authored', 'derived', 'system')".to_owned(),
            ),
            (
                "derived carriage elsewhere",
                "SELECT COUNT(*) FROM \"commit\" WHERE class <> 'derived' AND (holder IS NOT NULL OR annotations IS NOT \
                 NULL OR consequence_of IS NOT NULL OR derived_through IS NOT NULL)"
                    .to_owned(),
            ),
            ("derived without holder", "SELECT COUNT(*) FROM \"commit\" WHERE class = 'derived' AND holder IS NULL".to_owned()),
            (
                "carried actor without delegation",
                "SELECT COUNT(*) FROM \"commit\" WHERE acting_principal IS NOT NULL OR acting_session IS NOT NULL OR \
                 capability_ref IS NOT NULL"
                    .to_owned(),
            ),
            ("time of a commit", format!("SELECT COUNT(*) FROM \"commit\" WHERE NOT created_at {time}")),
            ("time of a branch", format!("SELECT COUNT(*) FROM branch WHERE NOT created_at {time} OR NOT deleted_at {time}")),
            ("data of a delete", "SELECT COUNT(*) FROM revision WHERE (op = 'delete') <> (data IS NULL)".to_owned()),
            ("text that is not ours", "SELECT COUNT(*) FROM revision WHERE data NOT LIKE 'fvj1:%'".to_owned()),
        ] {
            assert_eq!(count(&wrong), 0, "seed {seed}: {what}");
        }
        derived += count("SELECT COUNT(*) FROM \"commit\" WHERE class = 'derived'");
        for table in ["revision", "head", "snapshot"] {
            for row in rows_of(&side, table) {
                let key = row["scope_key"].as_str().unwrap();
                assert!(is_scope_key(key), "seed {seed}: {key} in {table}");
            }
        }
    }
    assert!(derived > 10);
}

/// A session's commit and a wave, with the lease taken at `now_ms`.
fn a_day_at(path: &Path, now_ms: i64) -> serde_json::Value {
    let options = EngineOptions {
        serving: true,
        ..EngineOptions::default()
    };
    let mut engine = Engine::open(StoreLocation::File(path.to_owned()), options).unwrap();
    let set = |local_seq, id: &str| {
        let parts = CommitParts {
            operations: vec![Operation::Set {
                id: id.into(),
                scope: Scope::Space,
                value: value!({ "value": 1 }),
            }],
            ..CommitParts::default()
        };
        ClientCommit::build(LocalSeq(local_seq), parts)
    };
    let commit = set(1, "of:a");
    engine
        .apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, now_ms))
        .unwrap();
    let mut lease = LeaseHolder::new("did:key:zS".into(), Holder::from("did:key:zSvc#1"), LEASE_TTL_MS);
    let clocks = memory_engine::lease::Clocks {
        wall_ms: now_ms,
        monotonic_ms: 0,
    };
    assert!(lease.acquire(&mut engine, clocks).unwrap());
    let wave = WaveCommit::new(&lease, set(1, "of:b"), Seq(1));
    engine.apply_wave(&wave, now_ms, None).unwrap();
    // Its last millisecond is the last at which the lease serves.
    let late = WaveCommit::new(&lease, set(2, "of:c"), Seq(2));
    assert!(engine.apply_wave(&late, now_ms + LEASE_TTL_MS, None).is_err());
    engine.apply_wave(&late, now_ms + LEASE_TTL_MS - 1, None).unwrap();
    let mut rows = dump(path);
    for lease in rows["execution_lease"].as_array_mut().unwrap() {
        lease["expires_at"] = (lease["expires_at"].as_i64().unwrap() - now_ms).into();
    }
    rows
}

/// ENG-1: the time is what the caller says, and decides about leases and nothing else.
#[test]
fn eng_1_the_time_is_an_argument_that_only_leases_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let days: Vec<serde_json::Value> = [0, 1_800_000_000_000, 9_000_000_000_000]
        .into_iter()
        .map(|now_ms| a_day_at(&dir.path().join(format!("{now_ms}.sqlite")), now_ms))
        .collect();
    assert_eq!(days[0]["execution_lease"][0]["expires_at"], LEASE_TTL_MS);
    assert!(days.iter().all(|day| *day == days[0]));
}

/// ENG-400, 911: what a client writes beside the fields of a commit is kept with it and means nothing.
#[test]
fn eng_400_carriage_inside_a_client_commit_is_payload() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.sqlite");
    let options = EngineOptions {
        serving: true,
        ..EngineOptions::default()
    };
    let mut engine = Engine::open(StoreLocation::File(path.clone()), options).unwrap();
    let commit = value!({
        "localSeq": 1,
        "reads": { "confirmed": [], "pending": [] },
        "operations": [{ "op": "set", "id": "of:a", "scope": "user", "value": { "value": 1 } }],
        "class": "system",
        "holder": "did:key:zSvc#1",
        "annotations": [{ "op": 0, "scopeKey": "user:did%3Akey%3AzMallory" }],
        "consequenceOf": ["e1"],
        "derivedThrough": 7,
        "actingPrincipal": "did:key:zMallory",
        "actingSession": "stolen",
        "capabilityRef": "event-consequence:e1",
        "merge": { "sourceBranch": "f", "sourceSeq": 3 }
    });
    let parsed = ClientCommit::from_value(&commit).unwrap();
    let applied = engine
        .apply_commit(ApplyCommit::authored(
            &"s".into(),
            Some(&"did:key:zA".into()),
            &parsed,
            0,
        ))
        .unwrap();
    assert_eq!(applied.revisions[0].scope_key.as_str(), "user:did%3Akey%3AzA");
    assert_eq!(
        engine.commit_class_of_seq(Seq(1)).unwrap(),
        Some(CommitClass::Authored)
    );
    drop(engine);
    let row = &dump(&path)["commit"][0];
    assert_eq!(row["class"], "authored");
    for column in [
        "holder",
        "annotations",
        "consequence_of",
        "derived_through",
        "acting_principal",
        "acting_session",
        "capability_ref",
    ] {
        assert!(row[column].is_null(), "{column}");
    }
    assert_eq!(row["original"], memory_wire::codec::encode(&commit).unwrap());
}
