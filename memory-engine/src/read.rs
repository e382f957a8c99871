//! Reading documents (ENG §9): the current or an earlier state of one instance, through the parents of a branch.

use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::value::Value;
use rusqlite::{OptionalExtension, params};

use crate::branch::BranchState;
use crate::column::{self, RevisionOp};
use crate::document_cache::{RevisionKey, StoreCache};
use crate::error::EngineError;
use crate::heads::{Head, HeadKey};
use crate::reader::Reader;

/// Which instance of an entity a read is about.
#[derive(Clone, Copy, Debug)]
pub enum ReadInstance<'a> {
    /// The one for everybody.
    Space,
    /// The reader's own instance of a scope.
    Own(Scope, &'a ScopeIdentity),
    /// An instance named by its key, whoever asks (ENG-900).
    Named(&'a ScopeKey),
}

impl ReadInstance<'_> {
    /// The instance's key.
    ///
    /// # Errors
    /// The scope needs an identity that is missing (ENG-160).
    pub fn key(&self) -> Result<ScopeKey, EngineError> {
        match self {
            ReadInstance::Space => Ok(ScopeKey::space()),
            ReadInstance::Own(scope, identity) => Ok(ScopeKey::resolve(*scope, identity)?),
            ReadInstance::Named(key) => Ok((*key).clone()),
        }
    }
}

/// One instance at one revision.
#[derive(Clone, Debug)]
pub struct EntityState {
    /// The entity.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// Its instance.
    pub scope_key: ScopeKey,
    /// The branch the row was found on.
    pub branch: BranchName,
    /// Seq of the revision.
    pub seq: Seq,
    /// Its operation index.
    pub op_index: u64,
    /// What the revision did.
    pub op: RevisionOp,
    /// The document root; `None` when the revision is a tombstone.
    pub document: Option<Value>,
}

impl StoreCache {
    /// See [`Reader::hot_state`].
    pub(crate) fn hot_state(&self, instance: &InstanceId, branch: &BranchName) -> Option<EntityState> {
        let head = self.heads.newest(&HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        })?;
        let key = revision_key(instance, branch, head.seq, head.op_index);
        let document = match head.op {
            RevisionOp::Delete => None,
            RevisionOp::Set | RevisionOp::Patch => self.document(&key)?,
        };
        self.count_hot_read();
        Some(EntityState::of(FoundRevision { key, op: head.op }, document))
    }
}

impl EntityState {
    fn of(found: FoundRevision, document: Option<Value>) -> EntityState {
        let FoundRevision { key, op } = found;
        EntityState {
            scope: key.scope_key.scope(),
            id: key.id,
            scope_key: key.scope_key,
            branch: key.branch,
            seq: key.seq,
            op_index: key.op_index,
            op,
            document,
        }
    }
}

/// A revision found, not yet decoded.
#[derive(Clone, Debug)]
pub(crate) struct FoundRevision {
    pub(crate) key: RevisionKey,
    pub(crate) op: RevisionOp,
}

impl Reader {
    /// The state of an instance on `branch`, at `at` or at the branch's head. `None` when it was never written there.
    ///
    /// # Errors
    /// [`EngineError::Scope`], [`EngineError::UnknownBranch`], [`EngineError::SeqOutOfRange`] (ENG-901).
    pub fn read_state(
        &self,
        id: &EntityId,
        instance: ReadInstance<'_>,
        branch: &BranchName,
        at: Option<Seq>,
    ) -> Result<Option<EntityState>, EngineError> {
        let instance = InstanceId {
            id: id.clone(),
            scope_key: instance.key()?,
        };
        if let Some(at) = at {
            self.check_seq_in_range(branch, column::sql(at))?;
        }
        let Some(found) = self.find_revision(&instance, branch, at)? else {
            return Ok(None);
        };
        let document = self.state_after(&found)?;
        Ok(Some(EntityState::of(found, document)))
    }

    /// The newest state of an instance, if it is remembered: as of this process's last commit, and of the last look at
    /// other processes' ([`crate::Engine::foreign_commits`]). Asks SQLite for nothing, and does not look at the parents of
    /// a branch.
    pub fn hot_state(&self, instance: &InstanceId, branch: &BranchName) -> Option<EntityState> {
        self.cache.hot_state(instance, branch)
    }

    /// The document alone: `None` when never written or deleted.
    ///
    /// # Errors
    /// As [`Reader::read_state`].
    pub fn read(
        &self,
        id: &EntityId,
        instance: ReadInstance<'_>,
        branch: &BranchName,
        at: Option<Seq>,
    ) -> Result<Option<Value>, EngineError> {
        Ok(self
            .read_state(id, instance, branch, at)?
            .and_then(|state| state.document))
    }

    /// The `value` field of the space instance of `id` on the default branch.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn read_space_value(&self, id: &EntityId) -> Result<Option<Value>, EngineError> {
        let document = self.read(id, ReadInstance::Space, &BranchName::default(), None)?;
        Ok(document.as_ref().and_then(|d| d.member("value")).cloned())
    }

    /// Seq of the instance's newest revision on `branch` itself, 0 when it has none (ENG-620).
    ///
    /// # Errors
    /// SQLite's.
    pub fn doc_head(&self, instance: &InstanceId, branch: &BranchName) -> Result<Seq, EngineError> {
        Ok(self
            .head(instance, branch)?
            .map(|found| found.key.seq)
            .unwrap_or_default())
    }

    /// The paths written to the instance on `branch` after `since`, in order: the root for a `set` or `delete`, each patch's
    /// `path` otherwise (ENG-620).
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn write_paths_since(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        since: Seq,
    ) -> Result<Vec<memory_wire::pointer::DocPath>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op, data FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq > ?4 \
             ORDER BY seq, op_index",
        )?;
        let mut rows = statement.query(params![
            branch.as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
            column::sql(since)
        ])?;
        let mut paths = Vec::new();
        while let Some(row) = rows.next()? {
            match column::op(row, 2)? {
                RevisionOp::Set | RevisionOp::Delete => paths.push(Vec::new()),
                RevisionOp::Patch => {
                    let key = revision_key(instance, branch, column::seq(row, 0)?, column::count(row, 1)?);
                    let patches = self.patches_of(key, column::text(row, 3)?)?;
                    paths.extend(patches.iter().map(|patch| patch.path().clone()));
                }
            }
        }
        Ok(paths)
    }

    /// The instance's newest revision on `branch` itself.
    pub(crate) fn head(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
    ) -> Result<Option<FoundRevision>, EngineError> {
        let key = HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        };
        if let Some(Head {
            seq, op_index, op, ..
        }) = self.remembered_head(&key)?
        {
            let key = revision_key(instance, branch, seq, op_index);
            return Ok(Some(FoundRevision { key, op }));
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op FROM head WHERE branch = ?1 AND id = ?2 AND scope_key = ?3",
        )?;
        let address = params![branch.as_str(), instance.id.as_str(), instance.scope_key.as_str()];
        let found = statement
            .query_row(address, |row| Ok(found(instance, branch, row)))
            .optional()?
            .transpose()?;
        if let Some(FoundRevision { key: at, op }) = &found {
            let (seq, op_index, op) = (at.seq, at.op_index, *op);
            let patches = None;
            self.learn_head(
                key,
                Head {
                    seq,
                    op_index,
                    op,
                    patches,
                },
            )?;
        }
        Ok(found)
    }

    /// The current document of an instance on `branch` and its parents; `None` when never written or deleted.
    pub(crate) fn current(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
    ) -> Result<Option<Value>, EngineError> {
        match self.find_revision(instance, branch, None)? {
            Some(found) => self.state_after(&found),
            None => Ok(None),
        }
    }

    /// The newest revision at or before `at` (by default the head), looked for on the branch and then on its parents, each
    /// no later than the fork (ENG-902).
    pub(crate) fn find_revision(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        at: Option<Seq>,
    ) -> Result<Option<FoundRevision>, EngineError> {
        let mut branch = branch.clone();
        let mut at = at;
        loop {
            let here = match at {
                None => self.head(instance, &branch)?,
                Some(at) => self.newest_up_to(instance, &branch, at)?,
            };
            if here.is_some() {
                return Ok(here);
            }
            if branch.is_empty() {
                return Ok(None);
            }
            let BranchState { parent, fork_seq, .. } = self.branch(&branch)?;
            let Some(parent) = parent else { return Ok(None) };
            let fork = fork_seq.unwrap_or_default();
            at = Some(at.map_or(fork, |at| at.min(fork)));
            branch = parent;
        }
    }

    fn newest_up_to(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        at: Seq,
    ) -> Result<Option<FoundRevision>, EngineError> {
        // Most reads of the past are of documents that have not changed since.
        if let Some(head) = self.head(instance, branch)?.filter(|head| head.key.seq <= at) {
            return Ok(Some(head));
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq <= ?4 \
             ORDER BY seq DESC, op_index DESC LIMIT 1",
        )?;
        let address = params![
            branch.as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
            column::sql(at)
        ];
        statement
            .query_row(address, |row| Ok(found(instance, branch, row)))
            .optional()?
            .transpose()
    }
}

pub(crate) fn found(
    instance: &InstanceId,
    branch: &BranchName,
    row: &rusqlite::Row<'_>,
) -> Result<FoundRevision, EngineError> {
    Ok(FoundRevision {
        key: revision_key(instance, branch, column::seq(row, 0)?, column::count(row, 1)?),
        op: column::op(row, 2)?,
    })
}

pub(crate) fn revision_key(
    instance: &InstanceId,
    branch: &BranchName,
    seq: Seq,
    op_index: u64,
) -> RevisionKey {
    RevisionKey {
        branch: branch.clone(),
        id: instance.id.clone(),
        scope_key: instance.scope_key.clone(),
        seq,
        op_index,
    }
}
