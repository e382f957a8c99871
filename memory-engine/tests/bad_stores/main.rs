//! What is not a store is refused by name (the path, what was found, what was expected) and left exactly as it was: no
//! byte changed, no log beside it. What only looks bad (a link, a stale log) is served.

mod places;

use std::fs;
use std::path::{Path, PathBuf};

use memory_engine::{
    ActorOptions, ApplyCommit, BadStore, Engine, EngineError, EngineHandle, EngineOptions, ReadInstance,
    StoreLocation,
};
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::scope_key::Scope;
use memory_wire::value::Value;
use memory_wire::{WireError, value};
use rusqlite::Connection;

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    /// A place where nothing is.
    fn empty() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("did:key:zSpace.sqlite");
        Place { _dir: dir, path }
    }

    /// A store with a few documents, large and small, and nothing in its log.
    fn store() -> Place {
        let place = Place::empty();
        let mut engine = open(&place.path).unwrap();
        for n in 1..=20 {
            write(&mut engine, n).unwrap();
        }
        drop(engine);
        assert!(!place.beside("-wal").exists());
        place
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        PathBuf::from(format!("{}{suffix}", self.path.display()))
    }

    /// Everything in the directory: names, contents, and what kind of thing each is.
    fn everything(&self) -> Vec<(String, String, Vec<u8>)> {
        let mut found: Vec<_> = fs::read_dir(self.path.parent().unwrap())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let kind = fs::symlink_metadata(entry.path()).unwrap().file_type();
                let content = if kind.is_file() {
                    fs::read(entry.path()).unwrap()
                } else {
                    Vec::new()
                };
                (
                    entry.file_name().into_string().unwrap(),
                    format!("{kind:?}"),
                    content,
                )
            })
            .collect();
        found.sort();
        found
    }
}

fn open(path: &Path) -> Result<Engine, EngineError> {
    Engine::open(StoreLocation::File(path.to_owned()), EngineOptions::default())
}

fn write(engine: &mut Engine, local_seq: u64) -> Result<Seq, EngineError> {
    let long = "x".repeat(if local_seq.is_multiple_of(10) { 70_000 } else { 500 });
    let set = |id: String, value: Value| Operation::Set {
        id: id.as_str().into(),
        scope: Scope::Space,
        value: value!({ "value": value }),
    };
    let parts = CommitParts {
        operations: vec![
            set(format!("of:{local_seq}"), value!(local_seq)),
            set("of:long".into(), value!(long)),
        ],
        ..CommitParts::default()
    };
    let commit = ClientCommit::build(LocalSeq(local_seq), parts);
    engine
        .apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, 0))
        .map(|applied| applied.seq)
}

/// Opens the store twice, by itself and as the actor does, and expects the same refusal each time, naming the path, and
/// everything as it was.
#[track_caller]
fn refused(place: &Place, found: &str) {
    let before = place.everything();
    let told = |error: EngineError| match error {
        EngineError::BadStore(bad) => bad,
        other => panic!("{found}: {other:?}"),
    };
    let bad = told(open(&place.path).expect_err(found));
    let BadStore {
        path,
        found: what,
        expected,
    } = &*bad;
    assert!(
        what.contains(found),
        "found {what:?}, expected to hear of {found:?}"
    );
    assert_eq!(*path, place.path);
    assert!(!expected.is_empty());
    let text = EngineError::BadStore(bad).to_string();
    assert!(text.starts_with(&place.path.display().to_string()), "{text}");
    let handle = EngineHandle::new(
        StoreLocation::File(place.path.clone()),
        EngineOptions::default(),
        ActorOptions::default(),
    );
    told(handle.write(|engine| write(engine, 99)).wait().expect_err(found));
    told(handle.read(|reader| reader.server_seq()).wait().expect_err(found));
    handle.close().wait().unwrap();
    assert!(place.everything() == before, "{found}: something was changed");
}

#[track_caller]
fn serves(place: &Place, commits: u64) {
    let mut engine = open(&place.path).unwrap();
    assert_eq!(engine.server_seq().unwrap(), Seq(commits));
    for n in 1..=commits {
        let value = engine
            .read_space_value(&format!("of:{n}").as_str().into())
            .unwrap();
        assert_eq!(value.as_ref().and_then(Value::as_u64), Some(n));
    }
    assert_eq!(write(&mut engine, commits + 1).unwrap(), Seq(commits + 1));
}

#[test]
fn a_truncated_store_is_refused_at_every_length() {
    let place = Place::store();
    let whole = fs::read(&place.path).unwrap();
    let page = 32_768;
    assert!(whole.len() > 5 * page);
    let mut lengths = vec![
        1,
        15,
        16,
        17,
        99,
        100,
        101,
        511,
        512,
        513,
        1_023,
        4_096,
        whole.len() - 1,
    ];
    for pages in 1..whole.len() / page {
        lengths.extend([
            pages * page - 1,
            pages * page,
            pages * page + 1,
            pages * page + page / 2,
        ]);
    }
    for length in lengths {
        fs::write(&place.path, &whole[..length]).unwrap();
        let found = match length {
            0..512 => "too short for a database",
            _ => "",
        };
        refused(&place, found);
    }
    fs::write(&place.path, &whole).unwrap();
    serves(&place, 20);
}

#[test]
fn an_empty_file_is_no_new_space() {
    let place = Place::empty();
    fs::write(&place.path, b"").unwrap();
    refused(&place, "an empty file");
    // Not even beside a log, which SQLite would take for stale and delete.
    fs::write(place.beside("-wal"), [7; 100_000]).unwrap();
    refused(&place, "an empty file");
}

#[test]
fn another_format_is_refused() {
    let older = b"SQLite format 2\0".repeat(40);
    for content in [&[0; 40_000][..], &[0xFF; 100_000], &older] {
        let place = Place::empty();
        fs::write(&place.path, content).unwrap();
        refused(&place, "file is not a database");
    }
    let place = Place::empty();
    fs::write(&place.path, b"hello").unwrap();
    refused(&place, "a file of 5 bytes, too short for a database");
    // One wrong byte anywhere in the magic.
    let place = Place::store();
    let whole = fs::read(&place.path).unwrap();
    for at in 0..16 {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x20;
        fs::write(&place.path, &wrong).unwrap();
        refused(&place, "file is not a database");
    }
}

/// Every field of the header is set to something wrong, or at least other: the store is refused and untouched, or serves
/// what it held. Never a panic, never another content.
#[test]
fn a_changed_header_is_refused_or_harmless() {
    let place = Place::store();
    let whole = fs::read(&place.path).unwrap();
    for at in 0..100 {
        for byte in [0x00, 0x01, 0x7F, 0xFF] {
            if whole[at] == byte {
                continue;
            }
            let mut wrong = whole.clone();
            wrong[at] = byte;
            fs::write(&place.path, &wrong).unwrap();
            match open(&place.path) {
                Ok(mut engine) => match engine.server_seq() {
                    Ok(seq) => {
                        assert_eq!(seq, Seq(20), "byte {at} = {byte}");
                        for n in 1..=20 {
                            let value = engine.read_space_value(&format!("of:{n}").as_str().into());
                            let number = value.as_ref().map(|value| value.as_ref().and_then(Value::as_u64));
                            assert!(
                                number.is_err() || number.is_ok_and(|number| number == Some(n)),
                                "byte {at}"
                            );
                        }
                        let _ = write(&mut engine, 21);
                    }
                    Err(error) => assert!(
                        matches!(error, EngineError::StoreDamaged(_)),
                        "byte {at}: {error:?}"
                    ),
                },
                Err(error) => {
                    assert!(
                        matches!(error, EngineError::BadStore(_)),
                        "byte {at} = {byte}: {error:?}"
                    );
                    assert!(
                        fs::read(&place.path).unwrap() == wrong,
                        "byte {at} = {byte}: changed"
                    );
                    assert!(
                        !place.beside("-wal").exists(),
                        "byte {at} = {byte}: a log was left"
                    );
                }
            }
            for suffix in ["-wal", "-shm"] {
                let _ = fs::remove_file(place.beside(suffix));
            }
        }
    }
}

#[test]
fn a_newer_schema_version_is_refused() {
    let changes = [
        ("PRAGMA user_version = 1", "newer version (user_version 1)"),
        (
            "PRAGMA user_version = 2147483647",
            "newer version (user_version 2147483647)",
        ),
        (
            "PRAGMA application_id = 77",
            "another application (application_id 77)",
        ),
    ];
    for (change, found) in changes {
        let place = Place::store();
        Connection::open(&place.path)
            .unwrap()
            .execute_batch(change)
            .unwrap();
        refused(&place, found);
    }
    // A column that our rows could not fill; one with a default is welcome (ENG-140).
    let place = Place::store();
    let side = Connection::open(&place.path).unwrap();
    side.execute_batch(
        "ALTER TABLE revision ADD COLUMN tenant TEXT NOT NULL DEFAULT 'x'; ALTER TABLE head ADD COLUMN note TEXT;
         CREATE TABLE theirs (a INTEGER NOT NULL); CREATE INDEX theirs_a ON theirs (a);",
    )
    .unwrap();
    drop(side);
    serves(&place, 20);
    let side = Connection::open(&place.path).unwrap();
    side.execute_batch(
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_master SET sql = replace(sql, 'DEFAULT ''x''', '') WHERE name = 'revision';",
    )
    .unwrap();
    drop(side);
    refused(
        &place,
        "newer version (column revision.tenant needs a value we do not know)",
    );
}

/// The refusal of a newer store leaves its log alone: nothing is moved into the file.
#[test]
fn a_refused_store_keeps_what_is_in_its_log() {
    let place = Place::store();
    let keeper = Connection::open(&place.path).unwrap();
    keeper
        .set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .unwrap();
    keeper.execute_batch("PRAGMA user_version = 9").unwrap();
    drop(keeper);
    let before = (
        fs::read(&place.path).unwrap(),
        fs::read(place.beside("-wal")).unwrap(),
    );
    assert!(!before.1.is_empty());
    assert!(
        matches!(open(&place.path), Err(EngineError::BadStore(bad)) if bad.found.contains("user_version 9"))
    );
    assert!(
        before
            == (
                fs::read(&place.path).unwrap(),
                fs::read(place.beside("-wal")).unwrap()
            )
    );
}

#[test]
fn a_database_of_something_else_is_refused() {
    let place = Place::empty();
    Connection::open(&place.path)
        .unwrap()
        .execute_batch("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
        .unwrap();
    refused(&place, "something else (its tables: moz_places)");
}

/// ENG-140: a valid database without any table is what a process leaves that was stopped while creating a store in place.
#[test]
fn a_database_without_tables_becomes_a_store() {
    let place = Place::empty();
    Connection::open(&place.path)
        .unwrap()
        .pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))
        .unwrap();
    assert!(fs::metadata(&place.path).unwrap().len() > 0);
    serves(&place, 0);
}

/// Each page in turn is overwritten. What depends on it is refused by name, what does not is served; nothing is made up,
/// and a commit that fails leaves the file's other pages as they were.
#[test]
fn a_corrupt_page_of_any_kind_is_named_and_never_read_as_something_else() {
    let place = Place::store();
    // Enough rows for an index of more than a page, and a free page, too.
    let many = (0..600).map(|n| Operation::Set {
        id: format!("of:many{n:0>80}").as_str().into(),
        scope: Scope::Space,
        value: value!({}),
    });
    let parts = CommitParts {
        operations: many.collect(),
        ..CommitParts::default()
    };
    let commit = ClientCommit::build(LocalSeq(1), parts);
    let session = "many".into();
    let apply = ApplyCommit::authored(&session, None, &commit, 0);
    open(&place.path).unwrap().apply_commit(apply).unwrap();
    let side = Connection::open(&place.path).unwrap();
    side.execute_batch("CREATE TABLE t (a BLOB); INSERT INTO t VALUES (zeroblob(300000)); DROP TABLE t; PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    drop(side);
    let whole = fs::read(&place.path).unwrap();
    let page = 32_768;
    let mut kinds = std::collections::BTreeMap::<u8, u32>::new();
    let (mut refusals, mut failures, mut served) = (0, 0, 0);
    for number in 0..whole.len() / page {
        let kind = whole[number * page + if number == 0 { 100 } else { 0 }];
        *kinds.entry(kind).or_default() += 1;
        for fill in [0x00, 0xAA, 0x0D] {
            let mut wrong = whole.clone();
            // The header of the file stays: its loss is another test's.
            let start = number * page + if number == 0 { 100 } else { 0 };
            wrong[start..(number + 1) * page].fill(fill);
            fs::write(&place.path, &wrong).unwrap();
            let named = |error: &EngineError| {
                // Rows that end up looking empty are found by what should refer to each other.
                matches!(
                    error,
                    EngineError::StoreDamaged(_) | EngineError::Stored(_) | EngineError::Sqlite(_)
                )
            };
            match open(&place.path) {
                Err(error) => {
                    assert!(
                        matches!(error, EngineError::BadStore(_)) || named(&error),
                        "page {number}: {error:?}"
                    );
                    assert!(
                        fs::read(&place.path).unwrap() == wrong,
                        "page {number}, {fill}: changed by a refusal"
                    );
                    assert!(
                        !place.beside("-wal").exists(),
                        "page {number}, {fill}: a log was left"
                    );
                    refusals += 1;
                }
                Ok(mut engine) => {
                    let mut whole_read = true;
                    for n in 1..=20 {
                        let state = engine.read_state(
                            &format!("of:{n}").as_str().into(),
                            ReadInstance::Space,
                            &"".into(),
                            None,
                        );
                        match state {
                            Ok(Some(state)) => {
                                let document = state.document.unwrap();
                                assert_eq!(
                                    document.member("value").and_then(Value::as_u64),
                                    Some(n),
                                    "page {number}"
                                );
                            }
                            Ok(None) => {
                                panic!("page {number}, {fill}: of:{n} looks as if it had never been written")
                            }
                            Err(error) => {
                                assert!(named(&error), "page {number}, {fill}: {error:?}");
                                whole_read = false;
                            }
                        }
                    }
                    match write(&mut engine, 21) {
                        Ok(_) => {}
                        Err(error) => {
                            assert!(named(&error), "page {number}, {fill}: {error:?}");
                            whole_read = false;
                        }
                    }
                    if whole_read {
                        served += 1;
                    } else {
                        failures += 1;
                    }
                }
            }
            for suffix in ["-wal", "-shm"] {
                let _ = fs::remove_file(place.beside(suffix));
            }
        }
    }
    println!(
        "page kinds {kinds:?}: {refusals} refused at opening, {failures} failed by name, {served} did not matter"
    );
    // Leaves of tables and indexes, interiors, overflow and free pages.
    for kind in [0x0D, 0x05, 0x0A, 0x02, 0x00] {
        assert!(kinds.contains_key(&kind), "no page of kind {kind}");
    }
    assert!(refusals > 0 && failures > 0 && served > 0);
}
