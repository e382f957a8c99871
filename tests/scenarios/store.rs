//! Questions to a store file on disk, asked through SQLite beside the running server.

use std::path::{Path, PathBuf};

use memory_wire::{Seq, SpaceId};
use rusqlite::{Connection, OpenFlags};

/// A read-only look at one space's store.
pub(crate) struct Store(Connection);

/// One row of the commit table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommitRow {
    pub(crate) seq: i64,
    pub(crate) class: String,
    pub(crate) session: String,
    pub(crate) holder: Option<String>,
    pub(crate) consequence_of: Vec<String>,
    pub(crate) derived_through: Option<i64>,
}

/// A seq as SQLite holds it.
pub(crate) fn sql(seq: Seq) -> i64 {
    i64::try_from(seq.0).expect("a seq below 2^53")
}

impl Store {
    /// The file of `space` below a data directory (ENG-104: the doubled segment is how deployments look).
    pub(crate) fn path(data: &Path, space: &SpaceId) -> PathBuf {
        data.join("engine-v3")
            .join("engine-v3")
            .join(format!("{space}.sqlite"))
    }

    pub(crate) fn open(data: &Path, space: &SpaceId) -> Store {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        Store(Connection::open_with_flags(Store::path(data, space), flags).expect("the store file"))
    }

    /// Every commit, by seq.
    pub(crate) fn commits(&self) -> Vec<CommitRow> {
        let mut statement = self
            .0
            .prepare(
                "SELECT seq, class, session_id, holder, consequence_of, derived_through FROM \"commit\" ORDER BY seq",
            )
            .expect("the commit table");
        let rows = statement
            .query_map([], |row| {
                let consequences: Option<String> = row.get(4)?;
                Ok(CommitRow {
                    seq: row.get(0)?,
                    class: row.get(1)?,
                    session: row.get(2)?,
                    holder: row.get(3)?,
                    consequence_of: consequences
                        .map(|text| {
                            serde_json::from_str(text.trim_start_matches("fvj1:")).expect("a list of events")
                        })
                        .unwrap_or_default(),
                    derived_through: row.get(5)?,
                })
            })
            .expect("rows");
        rows.map(|row| row.expect("a commit row")).collect()
    }

    /// Commits that name `event` as what they are the consequence of.
    pub(crate) fn consequences_of(&self, event: &str) -> Vec<CommitRow> {
        self.commits()
            .into_iter()
            .filter(|row| row.consequence_of.iter().any(|e| e == event))
            .collect()
    }

    /// Scope keys under which `id` has a head.
    pub(crate) fn instances(&self, id: &str) -> Vec<String> {
        let mut statement = self
            .0
            .prepare("SELECT scope_key FROM head WHERE id = ?1 ORDER BY scope_key")
            .expect("the head table");
        let rows = statement.query_map([id], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a scope key")).collect()
    }

    /// Documents that commit `seq` wrote, in order.
    pub(crate) fn revisions_of(&self, seq: i64) -> Vec<String> {
        let mut statement = self
            .0
            .prepare("SELECT id FROM revision WHERE seq = ?1 ORDER BY op_index")
            .expect("the revision table");
        let rows = statement.query_map([seq], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("an id")).collect()
    }

    /// SQLite's own verdict on the file.
    pub(crate) fn integrity(&self) -> String {
        self.0
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("an answer")
    }
}
