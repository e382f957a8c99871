//! Opening a store (ENG-110…112): the pragmas in their order, the schema, the migrations. Private to the engine; what
//! it yields is a connection in the shape of [`crate::schema`].

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::EngineError;
use crate::store_file::{self, Draft, Found};
use crate::store_path::StoreLocation;
use crate::{migration, schema};

/// What an acknowledged commit survives (ENG-111). No effect on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Power loss: one sync per commit group.
    #[default]
    Full,
    /// The process being killed, but not necessarily power loss (the reference's setting).
    Normal,
}

/// How long a connection waits for another process's lock.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_millis(5_000);
/// Statements kept prepared per connection (ENG-207); more than there are distinct texts.
const PREPARED_STATEMENTS: usize = 128;

/// Pages of the log after which a commit moves them into the file: 64 MiB.
pub(crate) const LOG_PAGES: u32 = 2_000;

/// Opens the read-write connection of a store and brings the file up to date. Also says whether commits must reference
/// stored invocations (ENG-128). A file that is not a store is refused before anything is written.
pub(crate) fn open_writer(
    location: &StoreLocation,
    durability: Durability,
) -> Result<(Connection, bool), EngineError> {
    match location {
        StoreLocation::Memory => bring_up(Connection::open_in_memory()?, durability),
        StoreLocation::File(path) => {
            if store_file::look(path)? == Found::Nothing {
                create(path)?;
            }
            // Creation is for the databases that get attached: the store is there by now.
            let conn = Connection::open_with_flags(
                path,
                OpenFlags::SQLITE_OPEN_READ_WRITE
                    | OpenFlags::SQLITE_OPEN_CREATE
                    | OpenFlags::SQLITE_OPEN_NO_MUTEX,
            )
            .map_err(|error| store_file::refusal(path, error.into()))?;
            conn.busy_timeout(BUSY_TIMEOUT)?;
            store_file::check(&conn, path)?;
            bring_up(conn, durability).map_err(|error| store_file::refusal(path, error))
        }
    }
}

/// Makes a new store under another name and then gives it its own, so that a stop at any moment leaves a whole store or
/// none. A file without a page is therefore never ours, and is refused rather than taken for a new space.
fn create(path: &Path) -> Result<(), EngineError> {
    let draft = Draft::begin(path)?;
    match finish(&draft.path).and_then(|()| draft.publish(path)) {
        // Whoever else made it meanwhile made the same.
        Err(_) if path.exists() => Ok(()),
        made => made.map(|_| ()),
    }
}

/// Makes a whole store of what lies at `path`, and leaves it closed and without a log.
pub(crate) fn finish(path: &Path) -> Result<(), EngineError> {
    let conn = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    let (conn, _) = bring_up(conn, Durability::Full)?;
    // Closing does this too, but would not say if it failed, and a draft's log does not come along.
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    conn.close().map_err(|(_, error)| error.into())
}

/// The pragmas, the schema and the migrations (ENG-110).
fn bring_up(conn: Connection, durability: Durability) -> Result<(Connection, bool), EngineError> {
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // Effective only while the file is new, and only as the very first statement.
    conn.pragma_update(None, "page_size", 32_768)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Normal => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    conn.pragma_update(None, "cache_size", -64_000)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    map_file(&conn)?;
    conn.pragma_update(None, "foreign_keys", true)?;
    // Pages of a large space lie apart; the longer the log, the more often a page is written before it is moved.
    conn.pragma_update_and_check(None, "wal_autocheckpoint", LOG_PAGES, |_| Ok(()))?;
    keep_statements(&conn)?;

    conn.execute_batch(&format!("BEGIN IMMEDIATE;{}COMMIT;", schema::CREATE))
        .inspect_err(|_| {
            if let Err(error) = conn.execute_batch("ROLLBACK") {
                tracing::debug!(%error, "no transaction was left open by the failed schema step");
            }
        })?;
    migration::migrate(&conn)?;
    let legacy_refs = migration::legacy_refs_required(&conn)?;
    Ok((conn, legacy_refs))
}

/// Has pages read where the file is mapped into memory, up to 256 MiB of it.
pub(crate) fn map_file(conn: &Connection) -> rusqlite::Result<()> {
    // A store in memory answers this one with no row at all.
    conn.execute_batch("PRAGMA mmap_size = 268435456")
}

/// Prepares each statement once (ENG-207). Without the planner's stability guarantee SQLite plans a statement anew
/// whenever a parameter that it has looked at is bound again, which is every time.
fn keep_statements(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Opens a read-only connection on an existing store file (ENG-205). Runs no migration and writes nothing.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, EngineError> {
    let open = || {
        let conn = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.pragma_update(None, "cache_size", -16_000)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        map_file(&conn)?;
        keep_statements(&conn)?;
        Ok(conn)
    };
    open().map_err(|error: rusqlite::Error| store_file::refusal(path, error.into()))
}

/// Opens an existing store for one read, with nobody else in it: then nothing has to be written beside it, not even the
/// index that processes share of a log. For a disk so full that the store cannot be opened otherwise.
pub(crate) fn open_alone(path: &Path) -> Result<Connection, EngineError> {
    let open = || {
        // To hold everybody else off takes a file opened for writing.
        let conn = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        conn.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
        conn.pragma_update(None, "query_only", true)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        Ok(conn)
    };
    open().map_err(|error: rusqlite::Error| store_file::refusal(path, error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ENG-110, 111: the pragmas of a fresh store, as the vectors state them for the `normal` setting.
    #[test]
    fn eng_110_a_fresh_store_has_the_pragmas_the_vectors_say() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/vectors/engine-schema.jsonl"
        );
        let text = std::fs::read_to_string(path).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let want = line["expect"]["pragmas"].as_object().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(dir.path().join("store.sqlite"));
        let pragma = |conn: &Connection, name: &str| -> serde_json::Value {
            conn.pragma_query_value(None, name, |row| {
                Ok(match row.get_ref(0)? {
                    rusqlite::types::ValueRef::Integer(n) => n.into(),
                    other => other.as_str().unwrap().into(),
                })
            })
            .unwrap()
        };
        let (conn, _) = open_writer(&location, Durability::Normal).unwrap();
        assert_eq!(want.len(), 12);
        for (name, want) in want {
            assert_eq!(pragma(&conn, name), *want, "{name}");
        }
        let (conn, _) = open_writer(&location, Durability::Full).unwrap();
        assert_eq!(pragma(&conn, "synchronous"), 2);
    }
}
