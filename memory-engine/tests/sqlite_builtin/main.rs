//! Cell databases over a living store (ENG §14): commits that write to one land whole or not at all, reads see what
//! landed, and rows without a label are not written.

mod labels;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use memory_engine::sqlite_builtin::{
    CellDatabases, CellReaders, Column, QueryTarget, StatementBounds, cell_file,
};
use memory_engine::{
    Applied, ApplyCommit, Engine, EngineError, EngineOptions, ReadInstance, StoreLocation, dump,
};
use memory_wire::ids::{BranchName, Did, SessionId, SpaceId};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey};
use memory_wire::value;
use memory_wire::value::{Object, Value};
use support::NOW_MS;

const DB: &str = "of:db";

struct Store {
    _dir: tempfile::TempDir,
    engine: Engine,
    cells: CellDatabases,
    readers: CellReaders,
    space: SpaceId,
    local_seq: f64,
}

impl Store {
    fn new() -> Store {
        Store::bounded(StatementBounds::default())
    }

    fn bounded(bounds: StatementBounds) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(dir.path().join("store.sqlite"));
        let engine = Engine::open(location, EngineOptions::default()).unwrap();
        Store {
            _dir: dir,
            engine,
            cells: CellDatabases::bounded(bounds),
            readers: CellReaders::bounded(bounds),
            space: "did:key:zSpace".into(),
            local_seq: 0.0,
        }
    }

    fn commit(&mut self, operations: Vec<Value>) -> Result<Applied, EngineError> {
        self.local_seq += 1.0;
        let commit = value!({
            "localSeq": (self.local_seq), "reads": { "confirmed": [], "pending": [] }, "operations": operations
        });
        let commit = ClientCommit::from_value(&commit).unwrap();
        let (session, alice) = (SessionId::from("s1"), Did::from("did:key:alice"));
        let apply = ApplyCommit::authored(&session, Some(&alice), &commit, NOW_MS);
        self.engine
            .apply_commit_with_sqlite(&self.cells, &self.space, apply)
    }

    fn rows(&self, scope: Scope, sql: &str) -> Result<Vec<Value>, EngineError> {
        Ok(self.query(scope, sql)?.0)
    }

    fn query(&self, scope: Scope, sql: &str) -> Result<(Vec<Value>, Vec<Column>), EngineError> {
        let key = ScopeKey::resolve(scope, &ScopeIdentity::session("did:key:alice", "s1")).unwrap();
        let tables = Some(tables(None));
        let store = self.engine.location();
        let target = QueryTarget::of(store, self.cells.disk_sources(), &self.space, DB, &key, tables);
        let rows = self.readers.query(&target, sql, None)?;
        Ok((rows.rows, rows.columns))
    }
}

fn tables(rule: Option<Value>) -> Object {
    let mut schema = Object::from_entries(vec![(
        "properties".into(),
        value!({ "id": { "sqlType": "integer primary key" }, "who": { "sqlType": "text" }, "n": { "sqlType": "integer" } }),
    )]);
    if let Some(rule) = rule {
        schema.insert("rowLabel", rule);
    }
    Object::from_entries(vec![("notes".into(), schema.into())])
}

fn sqlite(sql: &str, params: Value) -> Value {
    operation(value!({ "id": DB, "tables": (tables(None)) }), sql, params)
}

fn operation(db: Value, sql: &str, params: Value) -> Value {
    value!({ "op": "sqlite", "db": db, "sql": sql, "params": params })
}

fn set(id: &str, content: Value) -> Value {
    value!({ "op": "set", "id": id, "value": { "value": content } })
}

const INSERT: &str = "INSERT INTO notes (who, n) VALUES (?, ?)";

#[test]
fn eng_1401_writes_land_with_the_commit_and_are_read_back() {
    let mut store = Store::new();
    assert_eq!(
        store.rows(Scope::Space, "SELECT * FROM notes").unwrap().len(),
        0,
        "no file yet"
    );
    let write = sqlite(INSERT, value!(["alice", 7]));
    store
        .commit(vec![
            set("of:a", value!(1)),
            write,
            sqlite(INSERT, value!(["bob", 1.5])),
        ])
        .unwrap();
    let (rows, columns) = store
        .query(
            Scope::Space,
            "SELECT who, n, n + 1 AS more FROM notes ORDER BY id",
        )
        .unwrap();
    let told = rows.iter().map(support::json).collect::<Vec<_>>();
    assert_eq!(
        told,
        [
            serde_json::json!({ "who": "alice", "n": 7, "more": 8 }),
            serde_json::json!({ "who": "bob", "n": 1.5, "more": 2.5 }),
        ]
    );
    let origin = |table: &str, column: &str| Some((table.to_owned(), column.to_owned()));
    assert_eq!(
        columns.iter().map(|c| c.origin.clone()).collect::<Vec<_>>(),
        [origin("notes", "who"), origin("notes", "n"), None]
    );
    // Detached again: the store's own reads and writes go on.
    store.commit(vec![set("of:b", value!(2))]).unwrap();
}

#[test]
fn eng_2_a_failing_statement_takes_the_whole_commit_along() {
    let mut store = Store::new();
    store.commit(vec![sqlite(INSERT, value!(["kept", 1]))]).unwrap();
    let failed = store.commit(vec![
        set("of:a", value!(1)),
        sqlite(INSERT, value!(["lost", 2])),
        sqlite("INSERT INTO notes (id, who) VALUES (?, ?)", value!([1, "taken"])),
    ]);
    assert!(matches!(failed, Err(EngineError::Sqlite(_))), "{failed:?}");
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        1
    );
    let a = store
        .engine
        .read(&"of:a".into(), ReadInstance::Space, &BranchName::default(), None)
        .unwrap();
    assert!(a.is_none());
    assert_eq!(store.engine.server_seq().unwrap().0, 1);
    store.commit(vec![sqlite(INSERT, value!(["after", 3]))]).unwrap();
}

#[test]
fn eng_1403_each_instance_has_a_file_of_its_own() {
    let mut store = Store::new();
    let mine = value!({ "id": DB, "scope": "user", "tables": (tables(None)) });
    store
        .commit(vec![operation(mine, INSERT, value!(["mine", 1]))])
        .unwrap();
    assert_eq!(store.rows(Scope::User, "SELECT who FROM notes").unwrap().len(), 1);
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        0
    );
}

#[test]
fn eng_1400_preparation_refuses_before_anything_is_attached() {
    let mut store = Store::new();
    let other = value!({ "id": "of:other" });
    let scoped = value!({ "id": DB, "scope": "session" });
    let many: Object = (0..257).map(|n| (format!("t{n}"), Value::Null)).collect();
    let long = format!("INSERT INTO notes (who) VALUES ('{}')", "x".repeat(100_000));
    for (operations, text) in [
        (
            vec![sqlite(INSERT, value!([])), operation(other, INSERT, value!([]))],
            "a commit may write to at most one sqlite database",
        ),
        (
            vec![sqlite(INSERT, value!([])), operation(scoped, INSERT, value!([]))],
            "conflicting scope for the same sqlite database in one commit",
        ),
        (
            vec![operation(
                value!({ "id": DB, "tables": many }),
                INSERT,
                value!([]),
            )],
            "sqlite db declares too many tables",
        ),
        (
            vec![sqlite(&long, value!([]))],
            "sqlite statement exceeds the maximum length",
        ),
    ] {
        let refused = store.commit(operations).unwrap_err();
        assert_eq!(
            (refused.name(), refused.to_string().as_str()),
            ("ProtocolError", text)
        );
    }
    store
        .cells
        .disk_sources()
        .register(&store.space, DB, "/somewhere".into())
        .unwrap();
    let refused = store.commit(vec![sqlite(INSERT, value!(["x", 1]))]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "injected on-disk SQLite sources are read-only in v1 (db.exec rejected)"
    );
}

#[test]
fn eng_1404_a_statement_for_a_database_that_nobody_attached_takes_the_commit_along() {
    let mut store = Store::new();
    store.local_seq += 1.0;
    let commit = value!({
        "localSeq": (store.local_seq), "reads": { "confirmed": [], "pending": [] },
        "operations": [(set("of:a", value!(1))), (sqlite(INSERT, value!(["x", 1])))]
    });
    let commit = ClientCommit::from_value(&commit).unwrap();
    let (session, alice) = (SessionId::from("s1"), Did::from("did:key:alice"));
    let apply = ApplyCommit::authored(&session, Some(&alice), &commit, NOW_MS);
    let refused = store.engine.apply_commit(apply).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "sqlite op for db of:db has no attachment (server must attach before applyCommit)"
    );
    assert_eq!(store.engine.server_seq().unwrap().0, 0);
    assert!(store.engine.read_space_value(&"of:a".into()).unwrap().is_none());
    // The same commit lands where the database is attached.
    let apply = ApplyCommit::authored(&session, Some(&alice), &commit, NOW_MS);
    let landed = store
        .engine
        .apply_commit_with_sqlite(&store.cells, &store.space, apply);
    assert_eq!(landed.unwrap().seq.0, 1);
}

#[test]
fn eng_1431_sources_are_kept_by_space_and_id_and_are_so_many() {
    let store = Store::new();
    let sources = store.cells.disk_sources();
    let path = |n: usize| std::path::PathBuf::from(format!("/data/{n}.sqlite"));
    for n in 0..4_096 {
        sources
            .register(&store.space, &format!("of:{n}"), path(n))
            .unwrap();
    }
    let full = sources
        .register(&store.space, "of:more", path(5_000))
        .unwrap_err();
    assert_eq!(
        full.to_string(),
        "disk-source registry is full (max 4096 sources)"
    );
    assert_eq!(sources.get(&store.space, "of:more"), None);
    // What is registered may be registered anew, and another space's is another's.
    sources.register(&store.space, "of:7", path(7_000)).unwrap();
    assert_eq!(sources.get(&store.space, "of:7"), Some(path(7_000)));
    assert_eq!(sources.get(&store.space, "of:8"), Some(path(8)));
    assert_eq!(sources.get(&"did:key:zOther".into(), "of:8"), None);
}

/// ENG-1430: what nobody has written to yet is empty; what nobody has declared is an error, and so is a statement that the
/// guard refuses, whether there is a file or not.
#[test]
fn eng_1430_what_was_declared_and_not_written_is_empty() {
    let mut store = Store::new();
    let empty =
        |store: &Store, sql: &str| assert!(store.rows(Scope::Space, sql).unwrap().is_empty(), "{sql}");
    let refused = |store: &Store, sql: &str| store.rows(Scope::Space, sql).unwrap_err().name();
    // No file.
    empty(&store, "SELECT * FROM notes");
    empty(&store, "SELECT * FROM elsewhere");
    assert_eq!(refused(&store, "SELECT * FROM main.notes"), "GuardError");
    // A file without the table.
    let other = value!({ "other": { "properties": { "n": { "sqlType": "integer" } } } });
    let db = value!({ "id": DB, "tables": other });
    store
        .commit(vec![operation(
            db,
            "INSERT INTO other (n) VALUES (1)",
            value!([]),
        )])
        .unwrap();
    empty(&store, "SELECT * FROM notes");
    empty(&store, "SELECT * FROM NOTES");
    assert_eq!(refused(&store, "SELECT * FROM elsewhere"), "Error");
    assert_eq!(store.rows(Scope::Space, "SELECT n FROM other").unwrap().len(), 1);
    // The table without rows is empty in its own right, and tells its columns.
    store
        .commit(vec![sqlite("DELETE FROM notes", value!([]))])
        .unwrap();
    let (rows, columns) = store.query(Scope::Space, "SELECT id, who FROM notes").unwrap();
    assert!(rows.is_empty());
    assert_eq!(columns.len(), 2);
}

#[test]
fn eng_1410_guarded_statements_never_reach_the_store() {
    let mut store = Store::new();
    for sql in [
        "DELETE FROM \"commit\"",
        "DELETE FROM main.notes",
        "SELECT 1",
        "DROP TABLE notes",
        "INSERT INTO head (id) VALUES ('x')",
    ] {
        let refused = store.commit(vec![sqlite(sql, value!([]))]).unwrap_err();
        assert_eq!(refused.name(), "GuardError", "{sql}");
    }
    assert_eq!(
        store.rows(Scope::Space, "DELETE FROM notes").unwrap_err().name(),
        "GuardError"
    );
    assert_eq!(store.engine.server_seq().unwrap().0, 0);
}

/// SQLite takes a string where a name is expected, so what reads as a literal may name a table of the store.
#[test]
fn eng_1410_a_table_of_the_store_named_by_a_string_is_out_of_reach() {
    let mut store = Store::new();
    store
        .commit(vec![
            set("of:secret", value!("kept")),
            sqlite(INSERT, value!(["alice", 1])),
        ])
        .unwrap();
    let StoreLocation::File(path) = store.engine.location().clone() else {
        panic!("a file")
    };
    let before = support::dump(&path);
    for sql in [
        "DELETE FROM 'snapshot'",
        "DELETE FROM 'revision'",
        "UPDATE 'revision' SET data = 'fvj1:{\"value\":0}'",
        "INSERT INTO 'branch' (name) VALUES ('b')",
        "INSERT INTO notes (who) SELECT data FROM 'revision'",
        "INSERT INTO notes (n) SELECT count(*) FROM 'revision'",
        "INSERT INTO notes (who) SELECT r.data FROM notes, 'revision' AS r",
        "UPDATE notes SET who = (SELECT data FROM ('revision'))",
        "DELETE FROM notes WHERE EXISTS (SELECT 1 FROM 'revision')",
        "INSERT INTO notes (who) SELECT sql FROM 'sqlite_master'",
        "INSERT INTO notes (who) SELECT file FROM 'pragma_database_list'",
        "INSERT INTO notes (who) SELECT name FROM dbstat",
        "DELETE FROM 'main'.'revision'",
    ] {
        let refused = store.commit(vec![sqlite(sql, value!([]))]).unwrap_err();
        assert_eq!(refused.name(), "GuardError", "{sql}: {refused}");
        assert!(refused.to_string().ends_with(sql), "{refused}");
    }
    assert_eq!(support::dump(&path), before);
    for sql in [
        "SELECT sql FROM 'sqlite_master'",
        "SELECT file FROM 'pragma_database_list'",
        "SELECT * FROM 'pragma_user_version'",
    ] {
        let refused = store.rows(Scope::Space, sql).unwrap_err();
        assert_eq!(refused.name(), "GuardError", "{sql}: {refused}");
    }
    // A string that is one, a function that makes a table of its argument, and everything else SQLite can do with the
    // database's own tables.
    for sql in [
        "INSERT INTO notes (who) VALUES ('revision')",
        "INSERT INTO 'notes' (who, n) SELECT key, value FROM json_each('{\"x\": 3}')",
        "INSERT INTO notes (n) SELECT count(*) FROM notes",
        "WITH RECURSIVE few (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM few WHERE n < 3) INSERT INTO notes (n) SELECT n FROM few",
        "UPDATE notes SET n = (SELECT max(n) FROM notes AS other) WHERE who = 'revision'",
        "DELETE FROM notes WHERE who IN (SELECT who FROM notes GROUP BY who HAVING count(*) > 9)",
    ] {
        store.commit(vec![sqlite(sql, value!([]))]).unwrap();
    }
    assert_eq!(store.rows(Scope::Space, "SELECT * FROM notes").unwrap().len(), 7);
}

#[test]
fn sqlite_parameters_bind_by_position_and_by_name() {
    let mut store = Store::new();
    store
        .commit(vec![sqlite(
            "INSERT INTO notes (who, n) VALUES (:who, $n)",
            value!({ "who": "named", "n": true }),
        )])
        .unwrap();
    let rows = store.rows(Scope::Space, "SELECT who, n FROM notes").unwrap();
    assert_eq!(
        support::json(&rows[0]),
        serde_json::json!({ "who": "named", "n": 1 })
    );
    let refused = store.commit(vec![sqlite(INSERT, value!([[1], 2]))]).unwrap_err();
    assert!(refused.to_string().contains("got an array"), "{refused}");
}

#[test]
fn eng_1500_a_dump_is_a_store_of_its_own() {
    let mut store = Store::new();
    store.commit(vec![set("of:a", value!("kept"))]).unwrap();
    let StoreLocation::File(path) = store.engine.location().clone() else {
        panic!("a file")
    };
    let copy = path.with_file_name("copy.sqlite");
    dump::dump(&path, &copy).unwrap();
    assert!(
        dump::dump(&path, &copy).is_err(),
        "an existing file is never overwritten"
    );
    let copied = Engine::open(StoreLocation::File(copy), EngineOptions::default()).unwrap();
    let a = copied
        .read(&"of:a".into(), ReadInstance::Space, &BranchName::default(), None)
        .unwrap()
        .unwrap();
    assert_eq!(a.member("value").and_then(Value::as_str), Some("kept"));
    store.commit(vec![set("of:a", value!("on"))]).unwrap();
}

/// Where each step goes through megabytes, steps say little: time ends what goes on.
#[test]
fn srv_1203_statements_end_when_their_time_is_over() {
    let mut store = Store::bounded(StatementBounds {
        read_time: Duration::ZERO,
        write_time: Duration::ZERO,
        ..StatementBounds::default()
    });
    store.commit(vec![sqlite(INSERT, value!(["kept", 1]))]).unwrap();
    const LONG: &str =
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 100000) SELECT max(n) FROM c";
    let failed = store.rows(Scope::Space, LONG).unwrap_err();
    assert_eq!(failed.to_string(), "the SQLite statement takes too long");
    let write = format!("UPDATE notes SET n = ({LONG})");
    let failed = store.commit(vec![sqlite(&write, value!([]))]).unwrap_err();
    assert_eq!(failed.to_string(), "the SQLite statement takes too long");
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        1
    );
}

/// Statements that would never end, or answer more than there is room for, end with the bound they met; the store and the
/// database go on.
#[test]
fn srv_1203_statements_end_at_their_bounds() {
    let mut store = Store::bounded(StatementBounds {
        read_steps: 1_000_000,
        write_steps: 1_000_000,
        answer_bytes: 100_000,
        value_bytes: 1_000_000,
        ..StatementBounds::default()
    });
    store.commit(vec![sqlite(INSERT, value!(["kept", 1]))]).unwrap();
    const FOR_EVER: &str = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)";
    // One call of a function, which SQLite's own would finish in a minute.
    const PRODUCT: &str = "(hex(zeroblob(400000)) LIKE '%' || hex(zeroblob(20000)) || '1')";
    let told = |failed: EngineError| {
        assert!(matches!(failed, EngineError::SqliteExceeded { .. }), "{failed:?}");
        failed.to_string()
    };
    for _ in 0..2 {
        for read in [
            format!("{FOR_EVER} SELECT max(n) FROM c"),
            format!("SELECT {PRODUCT} FROM notes"),
        ] {
            let endless = store.rows(Scope::Space, &read);
            assert_eq!(
                told(endless.unwrap_err()),
                "the SQLite statement takes too many steps"
            );
        }
        let much = store.rows(
            Scope::Space,
            "SELECT hex(zeroblob(30000)) a, hex(zeroblob(30000)) b FROM notes",
        );
        assert_eq!(
            told(much.unwrap_err()),
            "the SQLite statement answers too much at once"
        );
        let long = store.rows(Scope::Space, "SELECT length(zeroblob(1000001)) FROM notes");
        assert!(matches!(long, Err(EngineError::Sqlite(_))), "{long:?}");
        let rows = store.rows(Scope::Space, "SELECT who FROM notes").unwrap();
        assert_eq!(rows.len(), 1, "the next one has all of its own");
    }
    for write in [
        format!("INSERT INTO notes (n) {FOR_EVER} SELECT n FROM c"),
        format!("UPDATE notes SET n = ({FOR_EVER} SELECT max(n) FROM c)"),
        format!("UPDATE notes SET n = {PRODUCT}"),
    ] {
        let failed = store.commit(vec![set("of:a", value!(1)), sqlite(&write, value!([]))]);
        assert_eq!(
            told(failed.unwrap_err()),
            "the SQLite statement takes too many steps"
        );
    }
    // All writes of a commit together have so many steps; the next commit has them again.
    let some = format!("INSERT INTO notes (n) {FOR_EVER} SELECT n FROM c LIMIT 9000");
    for _ in 0..8 {
        store.commit(vec![sqlite(&some, value!([]))]).unwrap();
    }
    let failed = store.commit(vec![sqlite(&some, value!([])); 8]);
    assert_eq!(
        told(failed.unwrap_err()),
        "the SQLite statement takes too many steps"
    );
    let kept = store
        .rows(Scope::Space, "SELECT count(*) AS n FROM notes")
        .unwrap();
    assert_eq!(support::json(&kept[0])["n"], 1 + 8 * 9000);
    // What the store itself keeps is not bounded by what a statement may work out.
    let long = value!("x".repeat(2_000_000).as_str());
    store.commit(vec![set("of:long", long)]).unwrap();
}

/// ENG-1403: names of files are hashes of 32 bits, which anybody can make meet. What one instance keeps there is not
/// another's, to read or to write.
#[test]
fn eng_1403_a_database_whose_file_is_called_the_same_is_not_read_and_not_written() {
    let mut store = Store::new();
    store.commit(vec![sqlite(INSERT, value!(["mine", 1]))]).unwrap();
    // Any two texts of one length whose hashes meet will do.
    let mut seen = std::collections::HashMap::new();
    let (one, other) = (0u32..)
        .find_map(|n| {
            let space = format!("did:key:z{n:08x}");
            let met = seen.insert(cell_file::token(&space), space.clone())?;
            Some((SpaceId::from(met.as_str()), SpaceId::from(space.as_str())))
        })
        .unwrap();
    store.space = one.clone();
    store.commit(vec![sqlite(INSERT, value!(["secret", 2]))]).unwrap();
    store.space = other;
    let read = store.rows(Scope::Space, "SELECT who FROM notes");
    assert!(matches!(read, Err(EngineError::SqliteOfAnother)), "{read:?}");
    let written = store.commit(vec![
        set("of:a", value!(1)),
        sqlite(INSERT, value!(["forged", 3])),
    ]);
    assert!(
        matches!(written, Err(EngineError::SqliteOfAnother)),
        "{written:?}"
    );
    // The store goes on, and so does whose file it is.
    store.commit(vec![set("of:a", value!(2))]).unwrap();
    store.space = one;
    let rows = store.rows(Scope::Space, "SELECT who FROM notes").unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(support::json(&rows[0])["who"], "secret");
}

/// A file that another implementation made says nothing of whose it is: it is read, and is its first writer's.
#[test]
fn eng_1403_a_file_that_does_not_say_whose_it_is_is_read_and_taken() {
    let mut store = Store::new();
    let path = cell_file::path(store.engine.location(), &store.space, DB, &ScopeKey::space());
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(
        "CREATE TABLE notes (id integer primary key, who text, n integer); INSERT INTO notes (who) VALUES ('old')",
    )
    .unwrap();
    drop(conn);
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        1
    );
    store.commit(vec![sqlite(INSERT, value!(["new", 1]))]).unwrap();
    assert_eq!(
        store.rows(Scope::Space, "SELECT who FROM notes").unwrap().len(),
        2
    );
}
