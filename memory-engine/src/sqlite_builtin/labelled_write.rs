//! Writes to databases that declare row labels (ENG-1425): a row for which no label can be given is not written.
//! Unconditional, whatever the client claims to have checked.

use memory_wire::message::SqliteDb;
use memory_wire::value::{Object, Value};
use rusqlite::{Connection, params_from_iter};

use super::commit::run;
use super::row_label::{self, RowContext};
use super::sql_value;
use super::table::{columns, quoted};
use super::write_target::write_target;
use crate::error::EngineError;

/// Rows one statement may write under a rule.
const MAX_ROWS: usize = 10_000;
/// Rows read back at a time.
const CHUNK: usize = 400;
/// What the row's id is called while it is returned.
const ROWID: &str = "__cf_rowid";

fn refused(reason: impl Into<String>) -> EngineError {
    EngineError::RowLabelCommit {
        reason: reason.into(),
    }
}

/// Runs a guarded write.
pub(super) fn execute(
    conn: &Connection,
    alias: &str,
    db: &SqliteDb,
    sql: &str,
    params: Option<&Value>,
    context: &RowContext,
) -> Result<(), EngineError> {
    let empty = Object::new();
    let tables = db.tables.as_ref().unwrap_or(&empty);
    if tables
        .iter()
        .all(|(_, schema)| schema.member("rowLabel").is_none())
    {
        return run(conn, sql, params);
    }
    let target = write_target(sql);
    let Some(name) = &target.table else {
        return Err(refused("the statement's target table cannot be determined"));
    };
    let declared = tables
        .iter()
        .find(|(table, _)| table.to_string().eq_ignore_ascii_case(name));
    let Some((_, schema)) = declared else {
        return Err(refused(format!("table \"{name}\" is not declared")));
    };
    let Some(rule) = schema.member("rowLabel") else {
        return run(conn, sql, params);
    };
    if target.deletes {
        return run(conn, sql, params);
    }
    if !target.plain {
        return Err(refused("the statement's shape is not recognised"));
    }
    let columns: Vec<String> = columns(schema).into_iter().map(|(name, _)| name).collect();
    if let Some(reason) = row_label::invalid(rule, &columns) {
        return Err(refused(format!(
            "the rule of table \"{name}\" is invalid: {reason}"
        )));
    }
    if target.returning {
        return Err(refused(
            "a RETURNING clause is not allowed on a table with a rule",
        ));
    }
    let shadowed = |alias: &str| columns.iter().any(|column| column.eq_ignore_ascii_case(alias));
    if shadowed(ROWID) {
        return Err(refused(format!("table \"{name}\" has a column {ROWID}")));
    }
    let rowid = ["rowid", "_rowid_", "oid"]
        .into_iter()
        .find(|alias| !shadowed(alias));
    let Some(rowid) = rowid else {
        return Err(refused(format!(
            "every name of the row id of table \"{name}\" is taken by a column"
        )));
    };
    let written = run_returning(conn, sql, params, rowid)?;
    let table = format!("{}.{}", quoted(alias), quoted(name));
    for ids in written.chunks(CHUNK) {
        for row in read_back(conn, &table, rowid, ids)? {
            if let Err(reason) = row_label::evaluate(rule, &row, context) {
                return Err(refused(format!(
                    "a row of table \"{name}\" has no label: {reason}"
                )));
            }
        }
    }
    Ok(())
}

/// Runs the write to its end and returns the ids of the rows it wrote.
fn run_returning(
    conn: &Connection,
    sql: &str,
    params: Option<&Value>,
    rowid: &str,
) -> Result<Vec<i64>, EngineError> {
    // A comment at the end would swallow the suffix, hence the line break.
    let bare = sql.trim_end().trim_end_matches(';');
    let mut statement = conn.prepare(&format!("{bare}\nRETURNING {rowid} AS {ROWID}"))?;
    sql_value::bind(&mut statement, params)?;
    let mut ids = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        if ids.len() >= MAX_ROWS {
            return Err(refused(format!(
                "a statement may write at most {MAX_ROWS} rows of a table with a rule"
            )));
        }
        ids.push(row.get::<_, i64>(0)?);
    }
    drop(rows);
    drop(statement);
    if conn.changes() != ids.len() as u64 {
        return Err(refused(format!(
            "{} rows were changed and {} returned",
            conn.changes(),
            ids.len()
        )));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn read_back(conn: &Connection, table: &str, rowid: &str, ids: &[i64]) -> Result<Vec<Object>, EngineError> {
    let marks = vec!["?"; ids.len()].join(",");
    let mut statement = conn.prepare(&format!("SELECT * FROM {table} WHERE {rowid} IN ({marks})"))?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query(params_from_iter(ids))?;
    let mut found = Vec::with_capacity(ids.len());
    while let Some(row) = rows.next()? {
        let mut object = Object::new();
        for (index, name) in names.iter().enumerate() {
            object.insert(name.as_str(), sql_value::read(row.get_ref(index)?));
        }
        found.push(object);
    }
    if found.len() != ids.len() {
        return Err(refused("a written row could not be read back"));
    }
    Ok(found)
}
