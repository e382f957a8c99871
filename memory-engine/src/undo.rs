//! Taking one member's commits out of a group again (ENG-206, field fault F39). A member is worked out before it writes,
//! so a refused one has written nothing; what is left are panics of its caller after it wrote. For those the rows are
//! removed by name. That costs a group without such an accident nothing, where a savepoint costs it a copy of every page
//! a member touches.

use memory_wire::ids::{BranchName, Seq};
use rusqlite::params;

use crate::column;
use crate::document_cache::Layer;
use crate::engine::Engine;
use crate::error::EngineError;

/// What the writes of commits were, as far as heads and states do not tell.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// Commits written, with their branches.
    pub(crate) commits: Vec<(Seq, BranchName)>,
    /// Rows changed by all that.
    pub(crate) changes: u64,
}

impl Undo {
    pub(crate) fn absorb(&mut self, later: Undo) {
        self.commits.extend(later.commits);
        self.changes += later.changes;
    }
}

impl Engine {
    /// Removes what a member wrote. `changes` is how many rows it changed; if commits do not account for all of them,
    /// nothing can be said about the rest. Returns whether the group is as it was.
    pub(crate) fn undo(&self, member: &Layer, changes: u64) -> bool {
        if member.undo.changes != changes || member.removed {
            return false;
        }
        match self.remove(member) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a member could not be taken out of its group");
                false
            }
        }
    }

    fn remove(&self, member: &Layer) -> Result<(), EngineError> {
        for (seq, _) in &member.undo.commits {
            for table in [
                "DELETE FROM snapshot WHERE seq = ?1",
                "DELETE FROM revision WHERE commit_seq = ?1",
                "DELETE FROM \"commit\" WHERE seq = ?1",
            ] {
                self.conn.prepare_cached(table)?.execute([column::sql(*seq)])?;
            }
        }
        for key in member.heads.keys() {
            let address = params![
                key.branch.as_str(),
                key.instance.id.as_str(),
                key.instance.scope_key.as_str()
            ];
            self.conn
                .prepare_cached("DELETE FROM head WHERE branch = ?1 AND id = ?2 AND scope_key = ?3")?
                .execute(address)?;
            self.conn
                .prepare_cached(
                    "INSERT INTO head (branch, id, scope_key, seq, op_index, op) \
                     SELECT branch, id, scope_key, seq, op_index, op FROM revision \
                     WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 ORDER BY seq DESC, op_index DESC LIMIT 1",
                )?
                .execute(address)?;
        }
        Ok(())
    }
}
