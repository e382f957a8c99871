//! Copies of stores: backed up while they are written, dumped, restored, and checked (ENG-1500, 1501).

use std::path::Path;

use memory_engine::integrity::{self, Finding};
use memory_engine::{
    ActorOptions, Applied, ApplyCommit, Engine, EngineError, EngineHandle, EngineOptions, ReadInstance,
    Reader, StoreLocation, dump,
};
use memory_wire::ids::{BranchName, EntityId, LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::{Scope, value};

const NOW_MS: i64 = 1_800_000_000_000;

fn commit(n: u64) -> ClientCommit {
    let document = |name: &str| Operation::Set {
        id: name.into(),
        scope: Scope::Space,
        value: value!({ "value": (n as f64) }),
    };
    let operations = vec![
        document("of:one"),
        document("of:two"),
        document(&format!("of:{n}")),
    ];
    ClientCommit::build(
        LocalSeq(n),
        CommitParts {
            operations,
            ..CommitParts::default()
        },
    )
}

fn apply(engine: &mut Engine, n: u64) -> Result<Applied, EngineError> {
    engine.apply_commit(ApplyCommit::authored(&"s".into(), None, &commit(n), NOW_MS))
}

fn number(reader: &Reader, id: &str) -> Option<f64> {
    let document = reader
        .read(
            &EntityId::from(id),
            ReadInstance::Space,
            &BranchName::default(),
            None,
        )
        .unwrap();
    document.and_then(|document| document.member("value")?.as_f64())
}

fn store(path: &Path, commits: u64) -> Engine {
    let mut engine = Engine::open(StoreLocation::File(path.to_owned()), EngineOptions::default()).unwrap();
    for n in 1..=commits {
        apply(&mut engine, n).unwrap();
    }
    engine
}

/// A backup made while commits land is one committed state, passes every check, and becomes a store that takes new
/// commits where the old one stood.
#[test]
fn eng_1500_a_backup_under_load_is_one_committed_state_and_restores() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let location = StoreLocation::File(at("store.sqlite"));
    let handle = EngineHandle::new(location, EngineOptions::default(), ActorOptions::default());
    handle
        .write(|engine| apply(engine, 1).map(|done| done.seq))
        .wait()
        .unwrap()
        .unwrap();
    let writer = {
        let handle = handle.clone();
        std::thread::spawn(move || {
            for n in 2..=60 {
                handle
                    .write(move |engine| apply(engine, n).map(|done| done.seq))
                    .wait()
                    .unwrap()
                    .unwrap();
            }
        })
    };
    for round in 0..3 {
        let copy = at(&format!("copy-{round}.sqlite"));
        handle.back_up(copy.clone()).wait().unwrap().unwrap();
        let restored = at(&format!("restored-{round}.sqlite"));
        dump::restore(&copy, &restored).unwrap();
        let mut engine = Engine::open(StoreLocation::File(restored), EngineOptions::default()).unwrap();
        let Seq(seq) = engine.server_seq().unwrap();
        assert!(seq >= 1);
        // Each commit wrote three documents alike.
        for id in ["of:one", "of:two", &format!("of:{seq}")] {
            assert_eq!(number(&engine, id), Some(seq as f64), "{id}");
        }
        assert_eq!(number(&engine, &format!("of:{}", seq + 1)), None);
        assert!(apply(&mut engine, 1).unwrap().replayed);
        assert_eq!(apply(&mut engine, seq + 1).unwrap().seq, Seq(seq + 1));
        assert_eq!(integrity::check(engine.reader()).unwrap(), []);
    }
    writer.join().unwrap();
    assert_eq!(
        handle.read(|reader| number(reader, "of:one")).wait().unwrap(),
        Some(60.0)
    );
}

/// A dump of a served store is the same kind of file, and what is imported from it is the store.
#[test]
fn eng_1500_a_dump_is_imported_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let served = store(&at("store.sqlite"), 5);
    dump::dump(&at("store.sqlite"), &at("dump.sqlite")).unwrap();
    dump::restore(&at("dump.sqlite"), &at("other.sqlite")).unwrap();
    let other = Engine::open(StoreLocation::File(at("other.sqlite")), EngineOptions::default()).unwrap();
    assert_eq!(
        other.list_entity_ids().unwrap(),
        served.list_entity_ids().unwrap()
    );
    assert_eq!(other.server_seq().unwrap(), Seq(5));
}

/// Nothing that is there is written over, by any of the three.
#[test]
fn eng_1500_what_exists_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let engine = store(&at("store.sqlite"), 2);
    dump::dump(&at("store.sqlite"), &at("dump.sqlite")).unwrap();
    std::fs::write(at("taken"), "something").unwrap();
    let refused = [
        dump::dump(&at("store.sqlite"), &at("taken")),
        engine.reader().back_up(&at("taken")),
        dump::restore(&at("dump.sqlite"), &at("taken")),
        dump::restore(&at("dump.sqlite"), &at("store.sqlite")),
    ];
    for outcome in refused {
        assert!(matches!(&outcome, Err(EngineError::Io { .. })), "{outcome:?}");
    }
    assert_eq!(std::fs::read(at("taken")).unwrap(), b"something");
    assert_eq!(number(&engine, "of:one"), Some(2.0));
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        left.iter().all(|name| !name.to_string_lossy().contains("-new-")),
        "{left:?}"
    );
}

/// A copy that is damaged, or of something else, becomes no store, and says why.
#[test]
fn eng_1500_a_damaged_copy_becomes_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    drop(store(&at("store.sqlite"), 3));
    let spoiled = |name: &str, sql: &str| {
        dump::dump(&at("store.sqlite"), &at(name)).unwrap();
        rusqlite::Connection::open(at(name))
            .unwrap()
            .execute_batch(sql)
            .unwrap();
        dump::restore(&at(name), &at("made.sqlite"))
    };
    for (sql, rule) in [
        ("DELETE FROM head WHERE id = 'of:one'", "without a head"),
        ("UPDATE head SET seq = 2 WHERE id = 'of:one'", "not its newest"),
        (
            "UPDATE head SET op = 'patch' WHERE id = 'of:one'",
            "without its revision",
        ),
        ("UPDATE revision SET commit_seq = 1 WHERE seq = 3", "commit_seq"),
        ("UPDATE branch SET head_seq = 1", "stands before"),
        (
            "UPDATE revision SET branch = 'gone' WHERE id = 'of:3'; UPDATE head SET branch = 'gone' WHERE id = 'of:3'",
            "is not there",
        ),
        ("UPDATE revision SET data = '{}' WHERE id = 'of:3'", "canonical"),
        (
            "PRAGMA foreign_keys = OFF; DELETE FROM \"commit\" WHERE seq = 2",
            "table commit",
        ),
    ] {
        let name = format!("{rule}.sqlite");
        match spoiled(&name, sql) {
            Err(EngineError::DamagedCopy { findings, .. }) => {
                assert!(
                    findings.iter().any(|finding| finding.to_string().contains(rule)),
                    "{rule}: {findings:?}"
                );
                assert!(
                    !findings
                        .iter()
                        .any(|finding| matches!(finding, Finding::Sqlite(_)))
                );
            }
            other => panic!("{rule}: {other:?}"),
        }
    }
    std::fs::write(at("text"), "not a database, but long enough to be one".repeat(99)).unwrap();
    rusqlite::Connection::open(at("foreign"))
        .unwrap()
        .execute_batch("CREATE TABLE t (x)")
        .unwrap();
    for name in ["text", "foreign"] {
        let outcome = dump::restore(&at(name), &at("made.sqlite"));
        assert!(
            matches!(outcome, Err(EngineError::BadStore(_))),
            "{name}: {outcome:?}"
        );
    }
    assert!(!at("made.sqlite").exists());
}

/// Stores of the reference implementation are sound by the same rules, old ones once they are migrated.
#[test]
fn eng_140_the_references_stores_pass_every_check_and_restore() {
    let stores = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/stores");
    for name in ["authored.sqlite", "served.sqlite", "legacy.sqlite"] {
        let dir = tempfile::tempdir().unwrap();
        let (copy, restored) = (dir.path().join(name), dir.path().join("restored.sqlite"));
        std::fs::copy(Path::new(stores).join(name), &copy).unwrap();
        dump::restore(&copy, &restored).unwrap_or_else(|error| panic!("{name}: {error}"));
        let engine = Engine::open(StoreLocation::File(restored), EngineOptions::default()).unwrap();
        assert!(engine.server_seq().unwrap() > Seq(0), "{name}");
        assert_eq!(integrity::check(engine.reader()).unwrap(), [], "{name}");
    }
}
