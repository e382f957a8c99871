//! Replay (ENG §3.3): a commit that was admitted before is answered from the store, before anything else is
//! looked at. Step 2.

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{AppliedRevision, Operation, RevisionContent};
use rusqlite::{OptionalExtension, params};

use super::{Admission, Applied};
use crate::column::{self, RevisionOp};
use crate::error::EngineError;
use crate::lease::Holder;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// The commit stored under a (session key, localSeq).
struct StoredCommit {
    seq: Seq,
    branch: BranchName,
    original: String,
    class: CommitClass,
    holder: Option<Holder>,
}

impl Admission<'_, '_> {
    /// The stored answer, if this commit has one.
    pub(super) fn replay(&self, original: &str) -> Result<Option<Applied>, EngineError> {
        let commit = self.apply.commit;
        let Some(stored) = self.stored_commit()? else {
            return Ok(None);
        };
        let session = self.apply.session_id.clone();
        if stored.original != original {
            return Err(Refusal::ReplayMismatch {
                session,
                local_seq: commit.local_seq,
            }
            .into());
        }
        let holder = self
            .apply
            .holder
            .filter(|_| self.apply.class == CommitClass::Derived);
        if stored.class != self.apply.class || stored.holder.as_ref() != holder {
            return Err(Refusal::ReplayClassMismatch {
                session,
                local_seq: commit.local_seq,
            }
            .into());
        }
        let revisions = self.engine.stored_revisions(stored.seq)?;
        let kept: rustc_hash::FxHashSet<usize> = revisions.iter().map(|revision| revision.op_index).collect();
        let elided: Vec<usize> = (0..commit.operations.len())
            .filter(|&index| !matches!(commit.operations[index], Operation::Sqlite { .. }))
            .filter(|index| !kept.contains(index))
            .collect();
        Ok(Some(Applied {
            seq: stored.seq,
            branch: stored.branch,
            revisions,
            replayed: true,
            elided_op_indexes: Some(elided).filter(|elided| !elided.is_empty()),
        }))
    }

    /// Whether this (session key, localSeq) is taken (ENG-610 step 1a).
    pub(crate) fn is_stored(&self) -> Result<bool, EngineError> {
        Ok(self.stored_commit()?.is_some())
    }

    /// Whether this session has stored nothing at this localSeq or above, as it is with all but replays.
    fn is_new(&self) -> Result<bool, EngineError> {
        let (sessions, local_seq) = (&self.engine.cache.sessions, self.apply.commit.local_seq);
        if let Some(is_new) = sessions.is_new(&self.session_key, local_seq) {
            return Ok(is_new);
        }
        let mut statement = self
            .engine
            .conn
            .prepare_cached("SELECT MAX(local_seq) FROM \"commit\" WHERE session_id = ?1")?;
        let highest = statement.query_row([&self.session_key], |row| row.get::<_, Option<i64>>(0))?;
        let highest = highest
            .and_then(|highest| u64::try_from(highest).ok())
            .map(LocalSeq);
        sessions.learn(&self.session_key, highest);
        Ok(highest.is_none_or(|highest| local_seq > highest))
    }

    fn stored_commit(&self) -> Result<Option<StoredCommit>, EngineError> {
        if self.is_new()? {
            return Ok(None);
        }
        let mut statement = self.engine.conn.prepare_cached(
            "SELECT seq, branch, original, class, holder FROM \"commit\" WHERE session_id = ?1 AND local_seq = ?2",
        )?;
        let key = params![self.session_key, self.apply.commit.local_seq.0 as i64];
        let read = |row: &rusqlite::Row<'_>| {
            Ok(StoredCommit {
                seq: column::seq(row, 0)?,
                branch: column::text(row, 1)?.into(),
                original: column::text(row, 2)?.to_owned(),
                class: column::class(row, 3)?,
                holder: column::optional_text(row, 4)?.map(Holder::from),
            })
        };
        statement
            .query_row(key, |row| Ok(read(row)))
            .optional()?
            .transpose()
    }
}

impl Reader {
    /// What a commit stored, in operation order, synthetic revisions included.
    fn stored_revisions(&self, seq: Seq) -> Result<Vec<AppliedRevision>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT branch, id, scope_key, op_index, op, data FROM revision WHERE commit_seq = ?1 ORDER BY op_index",
        )?;
        let mut rows = statement.query([column::sql(seq)])?;
        let mut revisions = Vec::new();
        while let Some(row) = rows.next()? {
            let scope_key = column::scope_key(row, 2)?;
            revisions.push(AppliedRevision {
                branch: column::text(row, 0)?.into(),
                id: column::text(row, 1)?.into(),
                scope: Some(scope_key.scope()),
                scope_key,
                seq,
                op_index: column::count(row, 3)? as usize,
                commit_seq: seq,
                content: match column::op(row, 4)? {
                    RevisionOp::Set => RevisionContent::Set {
                        document: column::decode(column::text(row, 5)?)?,
                    },
                    RevisionOp::Patch => RevisionContent::Patch {
                        patches: column::decode(column::text(row, 5)?)?,
                    },
                    RevisionOp::Delete => RevisionContent::Delete,
                },
            });
        }
        Ok(revisions)
    }
}
