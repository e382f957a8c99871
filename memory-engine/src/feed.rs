//! The feed of accepted commits (ENG-203, 556): who wrote what in which commit, ids and keys only.

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::scope_key::InstanceId;
use rusqlite::{OptionalExtension, params};

use crate::column;
use crate::error::EngineError;
use crate::lease::Holder;
use crate::reader::Reader;

/// One accepted commit, without payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedRecord {
    /// Its seq.
    pub seq: Seq,
    /// Its branch.
    pub branch: BranchName,
    /// Its class.
    pub class: CommitClass,
    /// Who held the lease, for a derived commit.
    pub holder: Option<Holder>,
    /// The session key it is filed under (ENG-161).
    pub session_key: String,
    /// The instances it wrote, each once, in operation order.
    pub writes: Vec<InstanceId>,
}

impl Reader {
    /// The commits of `branch` after `from`, ascending, at most `limit` of them.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn commits_since(
        &self,
        from: Seq,
        branch: &BranchName,
        limit: Option<u64>,
    ) -> Result<Vec<FeedRecord>, EngineError> {
        self.feed(from, Some(branch), limit)
    }

    /// The commits of every branch after `from`.
    pub(crate) fn all_commits_since(&self, from: Seq) -> Result<Vec<FeedRecord>, EngineError> {
        self.feed(from, None, None)
    }

    fn feed(
        &self,
        from: Seq,
        branch: Option<&BranchName>,
        limit: Option<u64>,
    ) -> Result<Vec<FeedRecord>, EngineError> {
        let mut commits = self.conn.prepare_cached(
            "SELECT seq, branch, class, holder, session_id FROM \"commit\" WHERE seq > ?1 AND (?2 IS NULL OR branch = ?2) \
             ORDER BY seq LIMIT ?3",
        )?;
        let mut revisions = self
            .conn
            .prepare_cached("SELECT id, scope_key FROM revision WHERE commit_seq = ?1 ORDER BY op_index")?;
        let limit = limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        let mut rows = commits.query(params![column::sql(from), branch.map(BranchName::as_str), limit])?;
        let mut feed = Vec::new();
        while let Some(row) = rows.next()? {
            let seq = column::seq(row, 0)?;
            let mut writes: Vec<InstanceId> = Vec::new();
            let mut seen = rustc_hash::FxHashSet::default();
            let mut written = revisions.query([column::sql(seq)])?;
            while let Some(row) = written.next()? {
                let instance = InstanceId::new(column::text(row, 0)?, column::scope_key(row, 1)?);
                if seen.insert(instance.clone()) {
                    writes.push(instance);
                }
            }
            feed.push(FeedRecord {
                seq,
                branch: column::text(row, 1)?.into(),
                class: column::class(row, 2)?,
                holder: column::optional_text(row, 3)?.map(Holder::from),
                session_key: column::text(row, 4)?.to_owned(),
                writes,
            });
        }
        Ok(feed)
    }

    /// The seq under which the commit `local_seq` of a session key (ENG-161) was accepted; `None` when it never was.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn committed_at(&self, session_key: &str, local_seq: LocalSeq) -> Result<Option<Seq>, EngineError> {
        let mut statement = self
            .conn
            .prepare_cached("SELECT seq FROM \"commit\" WHERE session_id = ?1 AND local_seq = ?2")?;
        let key = params![session_key, i64::try_from(local_seq.0).unwrap_or(i64::MAX)];
        statement
            .query_row(key, |row| Ok(column::seq(row, 0)))
            .optional()?
            .transpose()
    }

    /// The class of the commit at `seq`, on whichever branch; `None` for 0 and unknown seqs.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn commit_class_of_seq(&self, seq: Seq) -> Result<Option<CommitClass>, EngineError> {
        if seq == Seq(0) {
            return Ok(None);
        }
        if let Some(known) = self.cache.class(seq).filter(|_| self.is_durable(seq)) {
            return Ok(Some(known));
        }
        let mut statement = self
            .conn
            .prepare_cached("SELECT class FROM \"commit\" WHERE seq = ?1")?;
        let class = statement
            .query_row([column::sql(seq)], |row| Ok(column::class(row, 0)))
            .optional()?
            .transpose()?;
        if let Some(class) = class.filter(|_| self.is_durable(seq)) {
            self.cache.remember_class(seq, class);
        }
        Ok(class)
    }
}
