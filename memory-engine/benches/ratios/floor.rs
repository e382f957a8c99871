//! The floor: SQLite with the schema and pragmas of a store and nothing above it. Rows are taken from a store that the
//! engine wrote and written again as they are.

use std::path::Path;

use memory_engine::{Durability, Engine, EngineOptions, StoreLocation};
use rusqlite::config::DbConfig;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params_from_iter};

/// A bare connection on a store of its own.
pub(crate) struct Floor {
    conn: Connection,
}

/// The rows of one commit.
pub(crate) struct Rows {
    commit: Vec<Sql>,
    revisions: Vec<Vec<Sql>>,
    snapshots: Vec<Vec<Sql>>,
}

const COMMIT: &str = "SELECT seq, branch, session_id, local_seq, invocation_ref, authorization_ref, original, resolution, \
                      class, holder, annotations, consequence_of, derived_through, acting_principal, acting_session, \
                      capability_ref FROM \"commit\" WHERE seq = ?1";
const REVISIONS: &str =
    "SELECT branch, id, scope_key, seq, op_index, op, data, commit_seq FROM revision WHERE commit_seq = ?1";
const SNAPSHOTS: &str = "SELECT branch, id, scope_key, seq, value FROM snapshot WHERE seq = ?1";

const ADD_COMMIT: &str = "INSERT INTO \"commit\" (seq, branch, session_id, local_seq, invocation_ref, authorization_ref, \
                          original, resolution, class, holder, annotations, consequence_of, derived_through, \
                          acting_principal, acting_session, capability_ref) \
                          VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
const ADD_REVISION: &str = "INSERT INTO revision (branch, id, scope_key, seq, op_index, op, data, commit_seq) \
                            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const MOVE_HEAD: &str = "INSERT INTO head (branch, id, scope_key, seq, op_index, op) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                         ON CONFLICT (branch, id, scope_key) DO UPDATE SET seq = excluded.seq, \
                         op_index = excluded.op_index, op = excluded.op";
const ADD_SNAPSHOT: &str =
    "INSERT INTO snapshot (branch, id, scope_key, seq, value) VALUES (?1, ?2, ?3, ?4, ?5)";
const PRUNE_SNAPSHOTS: &str = "DELETE FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq < \
                               (SELECT seq FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 \
                               ORDER BY seq DESC LIMIT 1 OFFSET 1)";
const MOVE_BRANCH: &str = "UPDATE branch SET head_seq = MAX(head_seq, ?2) WHERE name = ?1";

fn select(conn: &Connection, query: &str, seq: i64) -> Vec<Vec<Sql>> {
    let mut statement = conn.prepare_cached(query).expect("a table of the schema");
    let width = statement.column_count();
    let rows = statement
        .query_map([seq], |row| (0..width).map(|at| row.get(at)).collect())
        .expect("a row");
    rows.map(|row| row.expect("a row")).collect()
}

impl Rows {
    /// The rows of commit `seq`.
    pub(crate) fn of(conn: &Connection, seq: u64) -> Rows {
        let seq = seq as i64;
        Rows {
            commit: select(conn, COMMIT, seq).remove(0),
            revisions: select(conn, REVISIONS, seq),
            snapshots: select(conn, SNAPSHOTS, seq),
        }
    }
}

impl Floor {
    /// A store that the engine made, opened without it.
    pub(crate) fn open(path: &Path, durability: Durability) -> Floor {
        let options = EngineOptions {
            durability,
            ..EngineOptions::default()
        };
        drop(Engine::open(StoreLocation::File(path.to_owned()), options).expect("a new store"));
        Floor::open_existing(path, durability)
    }

    pub(crate) fn open_existing(path: &Path, durability: Durability) -> Floor {
        let conn = Connection::open(path).expect("the store");
        let synchronous = match durability {
            Durability::Full => "FULL",
            Durability::Normal => "NORMAL",
        };
        conn.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA busy_timeout = 5000; \
             PRAGMA cache_size = -64000; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 268435456; \
             PRAGMA foreign_keys = ON; PRAGMA wal_autocheckpoint = 2000"
        ))
        .expect("the pragmas of a store");
        conn.set_prepared_statement_cache_capacity(128);
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
            .expect("statements that stay as they are planned");
        Floor { conn }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.conn
    }

    /// Writes some commits in one transaction.
    pub(crate) fn write(&self, commits: &[Rows]) {
        self.statement("BEGIN IMMEDIATE", &[]);
        for rows in commits {
            self.statement(ADD_COMMIT, &rows.commit);
            for revision in &rows.revisions {
                self.statement(ADD_REVISION, revision);
                self.statement(MOVE_HEAD, &revision[..6]);
            }
            for snapshot in &rows.snapshots {
                self.statement(ADD_SNAPSHOT, snapshot);
                self.statement(PRUNE_SNAPSHOTS, &snapshot[..3]);
            }
        }
        if let Some([seq, branch, ..]) = commits.last().map(|rows| &rows.commit[..]) {
            self.statement(MOVE_BRANCH, [branch, seq]);
        }
        self.statement("COMMIT", &[]);
    }

    fn statement<'r>(&self, text: &str, values: impl IntoIterator<Item = &'r Sql>) {
        let mut statement = self.conn.prepare_cached(text).expect("a statement on the schema");
        statement
            .execute(params_from_iter(values))
            .expect("a row that a store holds");
    }
}
