//! Retiring a dead session (ENG-1601): its instances are deleted row by row, in bounded batches outside commits. A table
//! write of the engine plane: no commit, no seq, nothing pushed. Commit rows stay.

use memory_wire::scope_key::{Scope, ScopeKey};
use rusqlite::params;

use crate::column;
use crate::engine::Engine;
use crate::error::EngineError;

/// What one batch removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Rows of `head`.
    pub heads: u64,
    /// Rows of `revision`.
    pub revisions: u64,
    /// Rows of `snapshot`.
    pub snapshots: u64,
    /// Rows of `scheduler_basis`, as action or as entity instance.
    pub basis_rows: u64,
    /// Nothing of the session is left, or would be.
    pub done: bool,
}

impl Retired {
    fn total(&self) -> u64 {
        self.heads + self.revisions + self.snapshots + self.basis_rows
    }
}

impl Engine {
    /// Deletes at most `limit` rows of a session's instances, document by document, heads first: a stop in between leaves an
    /// absent instance, never a head without its revision. Call again until `done`; rerunning after a crash finishes
    /// the job. A dry run counts everything and deletes nothing.
    ///
    /// # Errors
    /// [`EngineError::NotASessionKey`] for any other kind of key.
    pub fn retire_session(
        &mut self,
        scope_key: &ScopeKey,
        limit: u64,
        dry_run: bool,
    ) -> Result<Retired, EngineError> {
        if scope_key.scope() != Scope::Session {
            return Err(EngineError::NotASessionKey(scope_key.to_string()));
        }
        if dry_run {
            return self.snapshot(|reader| {
                let count = |from: &str| {
                    let query = format!("SELECT COUNT(*) FROM {from}");
                    reader
                        .conn
                        .query_row(&query, [scope_key.as_str()], |row| Ok(column::count(row, 0)))?
                };
                Ok(Retired {
                    heads: count("head WHERE scope_key = ?1")?,
                    revisions: count("revision WHERE scope_key = ?1")?,
                    snapshots: count("snapshot WHERE scope_key = ?1")?,
                    basis_rows: count(
                        "scheduler_basis WHERE action_scope_key = ?1 OR entity_scope_key = ?1",
                    )?,
                    done: true,
                })
            })?;
        }
        self.transaction(|engine| engine.retire_batch(scope_key, limit))
    }

    fn retire_batch(&self, scope_key: &ScopeKey, limit: u64) -> Result<Retired, EngineError> {
        let mut retired = Retired::default();
        self.note_removal();
        // What an earlier batch began has lost its head.
        for table in ["head", "snapshot", "revision"] {
            for (branch, id) in self.documents_of(scope_key, table, limit - retired.total())? {
                let delete = |table: &str, left: u64| {
                    let query = format!(
                        "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} \
                         WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 LIMIT ?4)"
                    );
                    let removed = self.conn.prepare_cached(&query)?.execute(params![
                        branch,
                        id,
                        scope_key.as_str(),
                        as_limit(left)
                    ])?;
                    Ok::<u64, EngineError>(removed as u64)
                };
                retired.heads += delete("head", limit - retired.total())?;
                retired.snapshots += delete("snapshot", limit - retired.total())?;
                retired.revisions += delete("revision", limit - retired.total())?;
                if retired.total() >= limit {
                    return Ok(retired);
                }
            }
        }
        let left = as_limit(limit - retired.total());
        retired.basis_rows += self
            .conn
            .prepare_cached(
                "DELETE FROM scheduler_basis WHERE rowid IN (SELECT rowid FROM scheduler_basis \
                 WHERE action_scope_key = ?1 OR entity_scope_key = ?1 LIMIT ?2)",
            )?
            .execute(params![scope_key.as_str(), left])? as u64;
        retired.done = retired.total() < limit;
        Ok(retired)
    }

    /// At most `limit` documents that still have rows under the key in a table. No index tells, so this looks through it.
    fn documents_of(
        &self,
        scope_key: &ScopeKey,
        table: &str,
        limit: u64,
    ) -> Result<Vec<(String, String)>, EngineError> {
        let query = format!("SELECT DISTINCT branch, id FROM {table} WHERE scope_key = ?1 LIMIT ?2");
        let mut statement = self.conn.prepare_cached(&query)?;
        let found = statement.query_map(params![scope_key.as_str(), as_limit(limit)], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }
}

fn as_limit(rows: u64) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
