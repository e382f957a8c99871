//! Branches (ENG-904, 910, 911): named lines of history. Creating or deleting one is a table write, never a commit.

use memory_wire::ids::{BranchName, Seq};
use rusqlite::{OptionalExtension, Row, params};

use crate::column;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::reader::Reader;

/// Whether a branch takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchStatus {
    /// Reads and writes. → `Deleted`
    Active,
    /// Reads only, for ever.
    Deleted,
}

impl BranchStatus {
    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            BranchStatus::Active => "active",
            BranchStatus::Deleted => "deleted",
        }
    }
}

/// One branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchState {
    /// Its name; the default branch is `""`.
    pub name: BranchName,
    /// The branch it was forked from.
    pub parent: Option<BranchName>,
    /// The seq it was forked at.
    pub fork_seq: Option<Seq>,
    /// Lowest seq it can be read at.
    pub created_seq: Seq,
    /// Highest seq it can be read at: its newest commit, or the fork.
    pub head_seq: Seq,
    /// Whether it takes writes.
    pub status: BranchStatus,
}

const COLUMNS: &str = "name, parent_branch, fork_seq, created_seq, head_seq, status";

fn state(row: &Row<'_>) -> Result<BranchState, EngineError> {
    Ok(BranchState {
        name: column::text(row, 0)?.into(),
        parent: column::optional_text(row, 1)?.map(BranchName::from),
        fork_seq: column::optional_seq(row, 2)?,
        created_seq: column::seq(row, 3)?,
        head_seq: column::seq(row, 4)?,
        status: if column::text(row, 5)? == "active" {
            BranchStatus::Active
        } else {
            BranchStatus::Deleted
        },
    })
}

impl Reader {
    /// The branch, or `None` when there never was one of this name.
    ///
    /// # Errors
    /// SQLite's.
    pub fn find_branch(&self, name: &BranchName) -> Result<Option<BranchState>, EngineError> {
        let mut statement = self
            .conn
            .prepare_cached(&format!("SELECT {COLUMNS} FROM branch WHERE name = ?1"))?;
        let found = statement
            .query_row([name.as_str()], |row| Ok(state(row)))
            .optional()?
            .transpose()?;
        Ok(found.map(|stored| self.as_of_now(stored)))
    }

    /// A branch as the open transaction's commits leave it.
    fn as_of_now(&self, stored: BranchState) -> BranchState {
        match self.uncommitted_head_seq(&stored.name) {
            Some(seq) => BranchState {
                head_seq: stored.head_seq.max(seq),
                ..stored
            },
            None => stored,
        }
    }

    /// The branch.
    ///
    /// # Errors
    /// [`EngineError::UnknownBranch`].
    pub fn branch(&self, name: &BranchName) -> Result<BranchState, EngineError> {
        self.find_branch(name)?
            .ok_or_else(|| EngineError::UnknownBranch(name.clone()))
    }

    /// All branches, by name; deleted ones included.
    ///
    /// # Errors
    /// SQLite's.
    pub fn list_branches(&self) -> Result<Vec<BranchState>, EngineError> {
        let mut statement = self
            .conn
            .prepare_cached(&format!("SELECT {COLUMNS} FROM branch ORDER BY name"))?;
        let mut rows = statement.query([])?;
        let mut branches = Vec::new();
        while let Some(row) = rows.next()? {
            branches.push(self.as_of_now(state(row)?));
        }
        Ok(branches)
    }

    /// The branch's newest seq, 0 when there is no such branch (ENG-904).
    ///
    /// # Errors
    /// SQLite's.
    pub fn head_seq(&self, branch: &BranchName) -> Result<Seq, EngineError> {
        Ok(self.find_branch(branch)?.map(|b| b.head_seq).unwrap_or_default())
    }

    /// The highest commit seq of the store, over all branches; 0 when it is empty (ENG-904).
    ///
    /// # Errors
    /// SQLite's.
    pub fn server_seq(&self) -> Result<Seq, EngineError> {
        if let Some(known) = self.known_server_seq() {
            return Ok(known);
        }
        let mut statement = self
            .conn
            .prepare_cached("SELECT COALESCE(MAX(seq), 0) FROM \"commit\"")?;
        statement.query_row([], |row| Ok(column::seq(row, 0)))?
    }

    /// Whether `seq` can be read on `branch`: 0 on the default branch, else from its creation to its head (ENG-901).
    /// Takes the number as claimed, so that a negative one is answered like any other.
    ///
    /// # Errors
    /// [`EngineError::UnknownBranch`], [`EngineError::SeqOutOfRange`].
    pub fn check_seq_in_range(&self, branch: &BranchName, seq: i64) -> Result<Seq, EngineError> {
        let state = self.branch(branch)?;
        let floor = if branch.is_empty() {
            Seq(0)
        } else {
            state.created_seq
        };
        match u64::try_from(seq).map(Seq) {
            Ok(seq) if floor <= seq && seq <= state.head_seq => Ok(seq),
            Ok(_) | Err(_) => Err(EngineError::SeqOutOfRange {
                seq,
                branch: branch.clone(),
            }),
        }
    }
}

impl Engine {
    /// Step 18, once for all commits of the open transaction: their branches stand at the newest of them.
    pub(crate) fn move_branches(&self, head_seqs: &[(BranchName, Seq)]) -> Result<(), EngineError> {
        for (branch, seq) in head_seqs {
            self.conn
                .prepare_cached("UPDATE branch SET head_seq = MAX(head_seq, ?2) WHERE name = ?1")?
                .execute(params![branch.as_str(), column::sql(*seq)])?;
        }
        Ok(())
    }

    /// Forks `parent` at `fork_seq` (by default its head). The default branch and an existing name, even a deleted one,
    /// are answered as they are, unchanged (ENG-910).
    ///
    /// # Errors
    /// [`EngineError::UnknownBranch`] for the parent.
    pub fn create_branch(
        &mut self,
        name: &BranchName,
        parent: &BranchName,
        fork_seq: Option<Seq>,
    ) -> Result<BranchState, EngineError> {
        self.transaction(|engine| {
            if let Some(existing) = engine.find_branch(name)? {
                return Ok(existing);
            }
            let parent = engine.branch(parent)?;
            let fork = fork_seq.unwrap_or(parent.head_seq);
            engine.conn.execute(
                "INSERT INTO branch (name, parent_branch, fork_seq, created_seq, head_seq, status) \
                 VALUES (?1, ?2, ?3, ?3, ?3, 'active')",
                params![name.as_str(), parent.name.as_str(), column::sql(fork)],
            )?;
            engine.branch(name)
        })
    }

    /// Closes a branch to writes; reads keep working. The default branch cannot be deleted: nothing happens (ENG-910).
    ///
    /// # Errors
    /// [`EngineError::UnknownBranch`].
    pub fn delete_branch(&mut self, name: &BranchName) -> Result<(), EngineError> {
        if name.is_empty() {
            return Ok(());
        }
        self.transaction(|engine| {
            engine.branch(name)?;
            engine.conn.execute(
                "UPDATE branch SET status = 'deleted', deleted_at = datetime('now') WHERE name = ?1",
                [name.as_str()],
            )?;
            Ok(())
        })
    }
}
