//! Stores from earlier versions (ENG-128, 130…139). Runs on every open, each step guarded by its own detection, so
//! that a step interrupted anywhere is simply done again. Called by [`crate::open`] only.

use rusqlite::{Connection, OptionalExtension};

use crate::error::EngineError;
use crate::schema;

/// Tables of the retired observation scheduler (ENG-138), children before the tables they point at.
const OBSERVATION_TABLES: [&str; 7] = [
    "scheduler_observation_replay",
    "scheduler_read_index",
    "scheduler_write_index",
    "scheduler_action_state",
    "scheduler_action_snapshot",
    "scheduler_observation",
    "scheduler_context_floor",
];

/// Columns `commit` and `execution_outbox` gained over time (ENG-132…137), in the order they are added.
const ADDED_COLUMNS: [(&str, &str, &str); 11] = [
    ("commit", "class", "TEXT NOT NULL DEFAULT 'authored'"),
    ("commit", "holder", "TEXT"),
    ("commit", "annotations", "JSON"),
    ("commit", "consequence_of", "JSON"),
    ("commit", "derived_through", "INTEGER"),
    ("commit", "acting_principal", "TEXT"),
    ("commit", "acting_session", "TEXT"),
    ("commit", "capability_ref", "TEXT"),
    ("execution_outbox", "target_stream_link", "TEXT"),
    ("execution_outbox", "sessionless_space_scope", "INTEGER"),
    ("execution_outbox", "source_event", "TEXT"),
];

/// ENG-130: instances by scope. A head without its revision is dropped (the join finds none).
const SCOPED_INSTANCES: [&str; 17] = [
    "ALTER TABLE revision RENAME TO revision_before_scopes",
    "ALTER TABLE head RENAME TO head_before_scopes",
    "ALTER TABLE snapshot RENAME TO snapshot_before_scopes",
    "CREATE TABLE revision (branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, scope_key TEXT NOT NULL DEFAULT 'space', \
     seq INTEGER NOT NULL, op_index INTEGER NOT NULL, op TEXT NOT NULL, data JSON, commit_seq INTEGER NOT NULL, \
     PRIMARY KEY (branch, id, scope_key, seq, op_index), FOREIGN KEY (commit_seq) REFERENCES \"commit\"(seq))",
    CREATE_HEAD,
    "CREATE TABLE snapshot (branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, scope_key TEXT NOT NULL DEFAULT 'space', \
     seq INTEGER NOT NULL, value JSON NOT NULL, PRIMARY KEY (branch, id, scope_key, seq))",
    "INSERT INTO revision (branch, id, scope_key, seq, op_index, op, data, commit_seq) \
     SELECT branch, id, 'space', seq, op_index, op, data, commit_seq FROM revision_before_scopes",
    "INSERT INTO head (branch, id, scope_key, seq, op_index, op) \
     SELECT h.branch, h.id, 'space', h.seq, h.op_index, r.op FROM head_before_scopes h \
     JOIN revision_before_scopes r ON r.branch = h.branch AND r.id = h.id AND r.seq = h.seq AND r.op_index = h.op_index",
    "INSERT INTO snapshot (branch, id, scope_key, seq, value) \
     SELECT branch, id, 'space', seq, value FROM snapshot_before_scopes",
    "DROP TABLE revision_before_scopes",
    "DROP TABLE head_before_scopes",
    "DROP TABLE snapshot_before_scopes",
    "CREATE INDEX idx_revision_branch_id_seq ON revision (branch, id, scope_key, seq, op_index)",
    "CREATE INDEX idx_revision_commit ON revision (commit_seq)",
    "CREATE INDEX idx_revision_branch ON revision (branch, seq)",
    CREATE_HEAD_INDEX,
    "CREATE INDEX idx_snapshot_lookup ON snapshot (branch, id, scope_key, seq)",
];

/// ENG-131: the operation of a head. A head without its revision fails the open: corruption must surface, and it
/// surfaces as `NOT NULL constraint failed: head.op`.
const HEAD_OPERATION: [&str; 5] = [
    "ALTER TABLE head RENAME TO head_before_op",
    CREATE_HEAD,
    "INSERT INTO head (branch, id, scope_key, seq, op_index, op) \
     SELECT h.branch, h.id, h.scope_key, h.seq, h.op_index, (SELECT r.op FROM revision r WHERE r.branch = h.branch \
     AND r.id = h.id AND r.scope_key = h.scope_key AND r.seq = h.seq AND r.op_index = h.op_index) FROM head_before_op h",
    "DROP TABLE head_before_op",
    CREATE_HEAD_INDEX,
];

const CREATE_HEAD: &str = "CREATE TABLE head (branch TEXT NOT NULL, id TEXT NOT NULL, \
     scope_key TEXT NOT NULL DEFAULT 'space', seq INTEGER NOT NULL, op_index INTEGER NOT NULL, \
     op TEXT NOT NULL CHECK (op IN ('set', 'patch', 'delete')), PRIMARY KEY (branch, id, scope_key))";

const CREATE_HEAD_INDEX: &str = "CREATE INDEX idx_head_branch ON head (branch)";

/// Brings an opened store to the shape of [`crate::schema`]. Takes the write lock only when there is something to do.
///
/// # Errors
/// SQLite's, with the interrupted step rolled back.
pub(crate) fn migrate(conn: &Connection) -> Result<(), EngineError> {
    migrate_watched(conn, &mut |_| Ok(()))
}

/// [`migrate`] with a watcher that sees every statement before it runs and may stop there, as a crash would.
fn migrate_watched(conn: &Connection, before: Watcher<'_>) -> Result<(), EngineError> {
    let unscoped = || Ok(column(conn, "revision", "scope_key")?.is_none());
    step(conn, before, &unscoped, &SCOPED_INSTANCES)?;
    let without_op = || {
        Ok(!matches!(
            column(conn, "head", "op")?,
            Some(Column { default: None, .. })
        ))
    };
    step(conn, before, &without_op, &HEAD_OPERATION)?;
    let without_live_ids = || Ok(!exists(conn, "index", "idx_head_live_entity_ids")?);
    step(conn, before, &without_live_ids, &[schema::CREATE_LIVE_IDS])?;
    for (table, name, declaration) in ADDED_COLUMNS {
        let lacks_it = || Ok(column(conn, table, name)?.is_none());
        let add = format!("ALTER TABLE \"{table}\" ADD COLUMN {name} {declaration}");
        step(conn, before, &lacks_it, &[&add])?;
    }
    let observed = || {
        for table in OBSERVATION_TABLES {
            if exists(conn, "table", table)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let drops = OBSERVATION_TABLES.map(|table| format!("DROP TABLE IF EXISTS {table}"));
    step(conn, before, &observed, &drops.each_ref().map(String::as_str))
}

/// ENG-128: whether this store's commits must reference stored invocations.
pub(crate) fn legacy_refs_required(conn: &Connection) -> Result<bool, EngineError> {
    let required = |name| Ok::<bool, EngineError>(column(conn, "commit", name)?.is_some_and(|c| c.not_null));
    Ok(required("invocation_ref")? || required("authorization_ref")?)
}

type Watcher<'w> = &'w mut dyn FnMut(&str) -> Result<(), EngineError>;

/// Runs the statements of one migration in one immediate transaction, if it is due. Asked again under the lock: another
/// process that opens the store as well may have done it while this one waited.
fn step(
    conn: &Connection,
    before: Watcher<'_>,
    is_due: &dyn Fn() -> Result<bool, EngineError>,
    statements: &[&str],
) -> Result<(), EngineError> {
    if !is_due()? {
        return Ok(());
    }
    before("BEGIN IMMEDIATE")?;
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let mut run = || {
        if is_due()? {
            for statement in statements {
                before(statement)?;
                conn.execute_batch(statement)?;
            }
        }
        before("COMMIT")?;
        conn.execute_batch("COMMIT")?;
        Ok(())
    };
    run().inspect_err(|_| {
        if let Err(error) = conn.execute_batch("ROLLBACK") {
            tracing::warn!(%error, "a failed migration step could not be rolled back");
        }
    })
}

struct Column {
    not_null: bool,
    default: Option<String>,
}

fn column(conn: &Connection, table: &str, name: &str) -> Result<Option<Column>, EngineError> {
    Ok(conn
        .query_row(
            "SELECT \"notnull\", dflt_value FROM pragma_table_info(?1) WHERE name = ?2",
            (table, name),
            |row| {
                // A default that reads `NULL` is no default.
                let default: Option<String> = row.get(1)?;
                Ok(Column {
                    not_null: row.get(0)?,
                    default: default.filter(|d| !d.eq_ignore_ascii_case("null")),
                })
            },
        )
        .optional()?)
}

fn exists(conn: &Connection, kind: &str, name: &str) -> Result<bool, EngineError> {
    Ok(conn
        .query_row(
            "SELECT 1 FROM sqlite_master WHERE type = ?1 AND name = ?2",
            (kind, name),
            |_| Ok(()),
        )
        .optional()?
        .is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store as the oldest version left it, with one commit and one head whose revision is gone.
    const PRE_SCOPE: &str = r#"
        CREATE TABLE "commit" (seq INTEGER NOT NULL PRIMARY KEY, branch TEXT NOT NULL DEFAULT '', session_id TEXT NOT NULL,
          local_seq INTEGER NOT NULL, invocation_ref TEXT, authorization_ref TEXT, original JSON NOT NULL,
          resolution JSON NOT NULL, created_at TEXT NOT NULL DEFAULT (datetime('now')));
        CREATE TABLE revision (branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, seq INTEGER NOT NULL,
          op_index INTEGER NOT NULL, op TEXT NOT NULL, data JSON, commit_seq INTEGER NOT NULL,
          PRIMARY KEY (branch, id, seq, op_index));
        CREATE INDEX idx_revision_branch_id_seq ON revision (branch, id, seq, op_index);
        CREATE INDEX idx_revision_commit ON revision (commit_seq);
        CREATE INDEX idx_revision_branch ON revision (branch, seq);
        CREATE TABLE head (branch TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, op_index INTEGER NOT NULL,
          PRIMARY KEY (branch, id));
        CREATE INDEX idx_head_branch ON head (branch);
        CREATE TABLE snapshot (branch TEXT NOT NULL DEFAULT '', id TEXT NOT NULL, seq INTEGER NOT NULL, value JSON NOT NULL,
          PRIMARY KEY (branch, id, seq));
        CREATE INDEX idx_snapshot_lookup ON snapshot (branch, id, seq);
        CREATE TABLE scheduler_observation (observation_id INTEGER PRIMARY KEY);
        CREATE TABLE scheduler_read_index (o INTEGER REFERENCES scheduler_observation(observation_id));
        INSERT INTO scheduler_observation VALUES (1);
        INSERT INTO scheduler_read_index VALUES (1);
        INSERT INTO "commit" (seq, session_id, local_seq, original, resolution) VALUES (1, 's', 1, 'fvj1:{}', 'fvj1:{}');
        INSERT INTO revision VALUES ('', 'of:a', 1, 0, 'patch', 'fvj1:[]', 1);
        INSERT INTO head VALUES ('', 'of:a', 1, 0), ('', 'of:lost', 1, 5);
    "#;

    fn shape(conn: &Connection) -> Vec<String> {
        let mut statement = conn
            .prepare("SELECT type || ' ' || name FROM sqlite_master ORDER BY 1")
            .unwrap();
        statement
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap()
    }

    /// ENG-139: interrupting the migrations before any statement leaves a store that the next open completes.
    #[test]
    fn eng_139_a_crash_between_any_two_statements_is_made_good_by_the_next_open() {
        let reference = Connection::open_in_memory().unwrap();
        reference.execute_batch(PRE_SCOPE).unwrap();
        reference.execute_batch(schema::CREATE).unwrap();
        let mut statements = 0;
        migrate_watched(&reference, &mut |_| {
            statements += 1;
            Ok(())
        })
        .unwrap();
        assert!(statements > 30, "the fixture exercises every migration");

        for crash_at in 0..statements {
            let conn = Connection::open_in_memory().unwrap();
            conn.execute_batch(PRE_SCOPE).unwrap();
            conn.execute_batch(schema::CREATE).unwrap();
            let mut seen = 0;
            let stopped = migrate_watched(&conn, &mut |_| {
                seen += 1;
                if seen > crash_at {
                    Err(EngineError::Closed)
                } else {
                    Ok(())
                }
            });
            assert!(
                matches!(stopped, Err(EngineError::Closed)),
                "crash before statement {crash_at}"
            );
            assert!(conn.is_autocommit());
            conn.execute_batch(schema::CREATE).unwrap();
            migrate(&conn).unwrap();
            assert_eq!(
                shape(&conn),
                shape(&reference),
                "after a crash before statement {crash_at}"
            );
            let heads: Vec<(String, String)> = conn
                .prepare("SELECT id, op FROM head")
                .unwrap()
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            assert_eq!(heads, [("of:a".to_owned(), "patch".to_owned())]);
        }
    }

    /// ENG-143: two processes may open a store at once that either would migrate. Who comes second finds it done, and what
    /// the first has written since untouched.
    #[test]
    fn eng_139_a_migration_that_another_process_has_made_meanwhile_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let [first, second] = [(); 2].map(|()| Connection::open(&path).unwrap());
        first.execute_batch(PRE_SCOPE).unwrap();
        first.execute_batch(schema::CREATE).unwrap();
        let written = "INSERT INTO revision VALUES ('', 'of:a', 'user:alice', 1, 1, 'set', 'fvj1:{}', 1);
             INSERT INTO head VALUES ('', 'of:a', 'user:alice', 1, 1, 'set');";
        let mut waited = 0;
        migrate_watched(&second, &mut |statement| {
            if statement == "BEGIN IMMEDIATE" {
                if waited == 0 {
                    migrate(&first)?;
                    first.execute_batch(written)?;
                }
                waited += 1;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(waited, 1, "everything was done by then");
        let mut statement = second
            .prepare("SELECT id || ' ' || scope_key || ' ' || op FROM head ORDER BY 1")
            .unwrap();
        let heads: Vec<String> = statement
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(heads, ["of:a space patch", "of:a user:alice set"]);
    }
}
