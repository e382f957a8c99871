//! Reading a cell database (ENG-1430): one guarded SELECT on a pooled read-only connection. A database or a declared
//! table that nobody has written to yet is empty, not an error.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memory_wire::ids::SpaceId;
use memory_wire::scope_key::ScopeKey;
use memory_wire::value::{Object, Value};
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};

use super::bounds::{Meter, Room, StatementBounds};
use super::confinement::{self, Confinement};
use super::disk_source::DiskSources;
use super::seal::Seal;
use super::{cell_file, guard, sql_value};
use crate::error::EngineError;
use crate::store_path::StoreLocation;

/// Connections kept open (SRV-520).
const POOLED: usize = 32;
/// How long a read waits for a writer.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5_000);

/// What is read.
#[derive(Clone, Debug)]
pub struct QueryTarget {
    /// The database's file.
    pub path: PathBuf,
    /// The declared tables.
    pub tables: Option<Object>,
    /// Whose the file must be; anybody's where an operator registered it.
    seal: Option<Seal>,
}

impl QueryTarget {
    /// The file behind a database: a registered source, else the instance's own.
    pub fn of(
        store: &StoreLocation,
        sources: &DiskSources,
        space: &SpaceId,
        db: &str,
        scope_key: &ScopeKey,
        tables: Option<Object>,
    ) -> QueryTarget {
        match sources.get(space, db) {
            Some(path) => QueryTarget {
                path,
                tables,
                seal: None,
            },
            None => QueryTarget {
                path: cell_file::path(store, space, db, scope_key),
                tables,
                seal: Some(Seal::of(space, db, scope_key)),
            },
        }
    }
}

/// A column of a result and where its values come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name in the rows.
    pub name: String,
    /// Table and column; `None` for an expression. A labelled read whose columns have no origin must fail closed.
    pub origin: Option<(String, String)>,
}

/// The rows of a query.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// One object per row.
    pub rows: Vec<Value>,
    /// The result's columns; empty when the database or table does not exist yet.
    pub columns: Vec<Column>,
}

/// A pool of read-only connections; the least recently used are closed first.
#[derive(Debug, Default)]
pub struct CellReaders {
    idle: Mutex<Vec<(PathBuf, Pooled)>>,
    bounds: StatementBounds,
}

/// A connection of the pool, whose statements read the database's tables and nothing about it.
#[derive(Debug)]
struct Pooled {
    conn: Connection,
    confinement: Confinement,
    meter: Meter,
}

impl CellReaders {
    /// An empty pool with the usual bounds.
    pub fn new() -> CellReaders {
        CellReaders::default()
    }

    /// An empty pool whose reads are bounded like this.
    pub fn bounded(bounds: StatementBounds) -> CellReaders {
        CellReaders {
            bounds,
            ..CellReaders::default()
        }
    }

    /// Runs one SELECT.
    ///
    /// # Errors
    /// [`EngineError::Guard`] before anything is opened; SQLite's.
    pub fn query(
        &self,
        target: &QueryTarget,
        sql: &str,
        params: Option<&Value>,
    ) -> Result<Rows, EngineError> {
        guard::check_read_only(sql)?;
        if !target.path.exists() {
            return Ok(Rows::default());
        }
        let pooled = self.take(&target.path)?;
        let StatementBounds {
            read_steps,
            read_time,
            answer_bytes,
            value_bytes,
            ..
        } = self.bounds;
        pooled.meter.grant(read_steps, read_time);
        if let Some(seal) = target.seal {
            seal.check(&pooled.conn, "main")?;
        }
        let confined = pooled.confinement.confine();
        let answered = pooled.meter.run(&pooled.conn, value_bytes, || {
            read(&pooled.conn, sql, params, Room(answer_bytes))
        });
        drop(confined);
        let answered = answered.map_err(|error| confinement::refusal(error, sql));
        self.give_back(target.path.clone(), pooled);
        match answered {
            Err(EngineError::Sqlite(error)) if missing_declared_table(&error, target) => Ok(Rows::default()),
            answered => answered,
        }
    }

    fn take(&self, path: &Path) -> Result<Pooled, EngineError> {
        let mut idle = self.idle.lock();
        if let Some(at) = idle.iter().position(|(known, _)| known == path) {
            return Ok(idle.remove(at).1);
        }
        drop(idle);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        let confinement = Confinement::begin(&mut conn, "main".to_owned())?;
        let meter = Meter::install(&conn)?;
        meter.watch(&mut conn)?;
        Ok(Pooled {
            conn,
            confinement,
            meter,
        })
    }

    fn give_back(&self, path: PathBuf, pooled: Pooled) {
        let mut idle = self.idle.lock();
        idle.push((path, pooled));
        if idle.len() > POOLED {
            idle.remove(0);
        }
    }
}

fn read(conn: &Connection, sql: &str, params: Option<&Value>, mut room: Room) -> Result<Rows, EngineError> {
    let mut statement = conn.prepare(sql)?;
    let columns: Vec<Column> = statement
        .columns_with_metadata()
        .map(|column| Column {
            name: column.name().to_owned(),
            origin: column
                .table_name()
                .zip(column.origin_name())
                .map(|(table, name)| (table.to_owned(), name.to_owned())),
        })
        .collect();
    sql_value::bind(&mut statement, params)?;
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let mut object = Object::new();
        for (index, column) in columns.iter().enumerate() {
            let value = sql_value::read(row.get_ref(index)?);
            room.take(&column.name, &value)?;
            object.insert(column.name.as_str(), value);
        }
        found.push(object.into());
    }
    Ok(Rows { rows: found, columns })
}

/// The failure is that a declared table was not created yet.
fn missing_declared_table(error: &rusqlite::Error, target: &QueryTarget) -> bool {
    let text = error.to_string();
    let Some((_, rest)) = text.split_once("no such table: ") else {
        return false;
    };
    let name = rest.split([' ', '\n']).next().unwrap_or(rest);
    let tables = target.tables.iter().flat_map(|tables| tables.iter());
    tables
        .into_iter()
        .any(|(declared, _)| declared.to_string().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_520_so_many_connections_stay_open_and_the_least_recently_used_goes_first() {
        let directory = tempfile::tempdir().unwrap();
        let target = |n: usize| QueryTarget {
            path: directory.path().join(format!("{n}.sqlite")),
            tables: None,
            seal: None,
        };
        for n in 0..=POOLED {
            let conn = Connection::open(target(n).path).unwrap();
            conn.execute_batch(&format!("CREATE TABLE t (n); INSERT INTO t VALUES ({n})"))
                .unwrap();
        }
        let readers = CellReaders::new();
        let ask = |n: usize| {
            let answer = readers.query(&target(n), "SELECT n FROM t", None).unwrap();
            assert_eq!(answer.rows[0].member("n").and_then(Value::as_u64), Some(n as u64));
        };
        for n in 0..POOLED {
            ask(n);
        }
        // The first is used again, so the second is the one that makes room.
        ask(0);
        ask(POOLED);
        let idle = readers.idle.lock();
        assert_eq!(idle.len(), POOLED);
        let open = |n: usize| idle.iter().any(|(path, _)| *path == target(n).path);
        assert!(open(0) && open(POOLED) && !open(1));
    }
}
