//! From revisions to documents (ENG §3.10): reconstructing the state after any revision, and the snapshots that keep
//! that short. A snapshot and the replay it replaces always agree (INV-9).

use std::num::NonZeroU32;
use std::sync::Arc;

use memory_wire::ids::{BranchName, Seq};
use memory_wire::patch::{PatchError, PatchOp, apply_patches, parse_patches};
use memory_wire::scope_key::InstanceId;
use memory_wire::value::{Object, Value};
use rusqlite::{OptionalExtension, params};

use crate::column::{self, RevisionOp};
use crate::document_cache::{RevisionKey, State};
use crate::engine::Engine;
use crate::error::{EngineError, StoredDataError};
use crate::heads::{Head, HeadKey};
use crate::read::{FoundRevision, found, revision_key};
use crate::reader::Reader;

/// When snapshots are taken (ENG-380).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Patch revisions since the last base that call for a snapshot; `None` takes none.
    pub interval: Option<NonZeroU32>,
    /// Newest snapshots kept per instance; `None` keeps all.
    pub retention: Option<NonZeroU32>,
}

impl Default for SnapshotPolicy {
    /// Every 10 patches, the newest 2 kept.
    fn default() -> Self {
        SnapshotPolicy {
            interval: NonZeroU32::new(10),
            retention: NonZeroU32::new(2),
        }
    }
}

impl Reader {
    /// The document after a revision; `None` after a delete (ENG-382).
    pub(crate) fn state_after(&self, found: &FoundRevision) -> Result<State, EngineError> {
        if found.op == RevisionOp::Delete {
            return Ok(None);
        }
        if let Some(state) = self.remembered(&found.key) {
            return Ok(state);
        }
        Ok(self.weighed_state_after(found)?.0)
    }

    /// The same, with about the size of its text.
    pub(crate) fn weighed_state_after(&self, found: &FoundRevision) -> Result<(State, usize), EngineError> {
        self.state_by_snapshots(found, found.key.seq)
    }

    /// The same, by snapshots of `newest` and before only: one of a revision's own seq covers all operations of that seq,
    /// also those after the revision.
    fn state_by_snapshots(&self, found: &FoundRevision, newest: Seq) -> Result<(State, usize), EngineError> {
        if found.op == RevisionOp::Delete {
            return Ok((None, 0));
        }
        if let Some(known) = self.remembered_weighed(&found.key) {
            return Ok(known);
        }
        let (state, weight) = match found.op {
            RevisionOp::Patch => self.replay(&found.key, newest)?,
            RevisionOp::Set | RevisionOp::Delete => self.stored_document(&found.key)?,
        };
        let state = Some(state);
        self.remember(found.key.clone(), state.clone(), weight);
        Ok((state, weight))
    }

    /// The document that a revision built on: what the instance was after the one before it on the same branch.
    pub(crate) fn state_before(&self, key: &RevisionKey) -> Result<State, EngineError> {
        let instance = InstanceId {
            id: key.id.clone(),
            scope_key: key.scope_key.clone(),
        };
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 \
             AND seq <= ?4 AND (seq, op_index) < (?4, ?5) ORDER BY seq DESC, op_index DESC LIMIT 1",
        )?;
        let address = params![
            key.branch.as_str(),
            key.id.as_str(),
            key.scope_key.as_str(),
            column::sql(key.seq),
            key.op_index as i64
        ];
        let found = statement
            .query_row(address, |row| Ok(found(&instance, &key.branch, row)))
            .optional()?
            .transpose()?;
        let Some(found) = found else { return Ok(None) };
        let newest = if found.key.seq == key.seq {
            Seq(key.seq.0.saturating_sub(1))
        } else {
            found.key.seq
        };
        Ok(self.state_by_snapshots(&found, newest)?.0)
    }

    /// The document stored by a `set` revision.
    fn stored_document(&self, key: &RevisionKey) -> Result<(Value, usize), EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT data FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq = ?4 AND op_index = ?5",
        )?;
        let address = params![
            key.branch.as_str(),
            key.id.as_str(),
            key.scope_key.as_str(),
            column::sql(key.seq),
            key.op_index as i64
        ];
        let read = statement
            .query_row(address, |row| Ok(column::text(row, 0).and_then(document)))
            .optional()?;
        read.unwrap_or_else(|| {
            Err(StoredDataError::MissingRevision {
                id: key.id.clone(),
                seq: key.seq,
                op_index: key.op_index,
            }
            .into())
        })
    }

    /// Walks back from a patch to the nearest state known (a remembered one, a snapshot, a `set`, or nothing), then applies
    /// the patches on the way forward again. Takes no snapshot newer than `snapshots`. Weight is that of the base's and the
    /// patches' texts.
    fn replay(&self, target: &RevisionKey, snapshots: Seq) -> Result<(Value, usize), EngineError> {
        let instance = InstanceId {
            id: target.id.clone(),
            scope_key: target.scope_key.clone(),
        };
        let branch = &target.branch;
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op, data FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 \
             AND (seq, op_index) <= (?4, ?5) AND seq <= ?4 ORDER BY seq DESC, op_index DESC",
        )?;
        let mut rows = statement.query(params![
            branch.as_str(),
            target.id.as_str(),
            target.scope_key.as_str(),
            column::sql(target.seq),
            target.op_index as i64
        ])?;
        let mut snapshot: Option<Option<Seq>> = None;
        let mut patches: Vec<Arc<[PatchOp]>> = Vec::new();
        let mut weight = 0;
        let mut base = Value::Object(Object::new());
        while let Some(row) = rows.next()? {
            let key = revision_key(&instance, branch, column::seq(row, 0)?, column::count(row, 1)?);
            // `None` remembered is a delete: what follows builds on nothing.
            if let Some((state, text)) = self.remembered_weighed(&key) {
                base = state.unwrap_or(base);
                weight += text;
                break;
            }
            let newest = match snapshot {
                Some(newest) => newest,
                None => *snapshot.insert(self.newest_snapshot(&instance, branch, snapshots)?),
            };
            // A snapshot covers every operation of its seq.
            if let Some(seq) = newest.filter(|&seq| key.seq <= seq) {
                let (value, text) = self.snapshot_document(&instance, branch, seq)?;
                base = value;
                weight += text;
                break;
            }
            match column::op(row, 2)? {
                RevisionOp::Patch => {
                    let data = column::text(row, 3)?;
                    weight += data.len();
                    patches.push(self.patches_of(key, data)?);
                }
                RevisionOp::Set => {
                    let (value, text) = document(column::text(row, 3)?)?;
                    base = value;
                    weight += text;
                    break;
                }
                RevisionOp::Delete => break,
            }
        }
        for patches in patches.iter().rev() {
            base = apply_patches(&base, patches)?;
        }
        Ok((base, weight))
    }

    /// The parsed patches of a `patch` revision.
    pub(crate) fn patches_of(&self, key: RevisionKey, data: &str) -> Result<Arc<[PatchOp]>, EngineError> {
        if let Some(known) = self.cache.patches(&key) {
            return Ok(known);
        }
        let stored = column::decode(data)?;
        if stored.as_array().is_none() {
            return Err(StoredDataError::PatchesShape.into());
        }
        let patches: Arc<[PatchOp]> = parse_patches(&stored)?.into();
        if self.is_durable(key.seq) {
            self.cache.remember_patches(key, patches.clone(), data.len());
        }
        Ok(patches)
    }

    fn newest_snapshot(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        at: Seq,
    ) -> Result<Option<Seq>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT MAX(seq) FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq <= ?4",
        )?;
        let address = params![
            branch.as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
            column::sql(at)
        ];
        statement.query_row(address, |row| Ok(column::optional_seq(row, 0)))?
    }

    fn snapshot_document(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        seq: Seq,
    ) -> Result<(Value, usize), EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT value FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq = ?4",
        )?;
        let address = params![
            branch.as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
            column::sql(seq)
        ];
        statement.query_row(address, |row| Ok(column::text(row, 0).and_then(document)))?
    }
}

/// Where an instance stands while a commit is worked out: as it was before, then after each of its operations.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// The document; an error when a patch could not be applied, until something replaces the whole.
    pub(crate) state: Result<State, PatchError>,
    /// About the size of its text.
    pub(crate) weight: usize,
    /// The last operation on it.
    pub(crate) op_index: usize,
    last: RevisionOp,
    /// Patch revisions since its base (ENG-380), if they were counted. Those of the base's own seq do not count.
    gathered: Option<u32>,
    /// This commit replaced the whole, and so is its base.
    replaced: bool,
}

impl Standing {
    /// After a `set` or a `delete`.
    pub(crate) fn replaced(state: State, weight: usize, op_index: usize) -> Standing {
        Standing {
            last: if state.is_some() {
                RevisionOp::Set
            } else {
                RevisionOp::Delete
            },
            state: Ok(state),
            weight,
            op_index,
            gathered: Some(0),
            replaced: true,
        }
    }

    /// After a further patch revision.
    pub(crate) fn patched(&mut self, patches: &[PatchOp], weight: usize, op_index: usize) {
        if let Ok(base) = &self.state {
            let nothing = Value::Object(Object::new());
            self.state = apply_patches(base.as_ref().unwrap_or(&nothing), patches).map(Some);
        }
        self.weight += weight;
        self.op_index = op_index;
        self.last = RevisionOp::Patch;
        if !self.replaced {
            self.gathered = self.gathered.map(|gathered| gathered + 1);
        }
    }

    /// What the last operation was.
    pub(crate) fn op(&self) -> RevisionOp {
        self.last
    }
}

impl Engine {
    /// Where an instance stands before a commit, on the commit's branch alone (ENG-903).
    pub(crate) fn standing(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
    ) -> Result<Standing, EngineError> {
        let Some(head) = self.head(instance, branch)? else {
            return Ok(Standing {
                replaced: false,
                ..Standing::replaced(None, 0, 0)
            });
        };
        let (state, weight) = self.weighed_state_after(&head)?;
        let key = HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        };
        Ok(Standing {
            gathered: self.remembered_head(&key)?.and_then(|head| head.patches),
            replaced: false,
            ..Standing::replaced(state, weight, 0)
        })
    }

    /// Step 19 for one instance, which the commit at `seq` left standing so: takes a snapshot when enough patches have
    /// gathered.
    pub(crate) fn take_snapshot_when_due(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        seq: Seq,
        standing: &Standing,
    ) -> Result<(), EngineError> {
        let mut gathered = standing.gathered;
        if let (Ok(Some(document)), RevisionOp::Patch) = (&standing.state, standing.last)
            && let SnapshotPolicy {
                interval: Some(interval),
                ..
            } = self.options().snapshots
        {
            let patches = match gathered {
                Some(patches) => patches,
                None => *gathered.insert(self.patches_since_base(instance, branch, seq)?),
            };
            if patches >= interval.get() {
                let weight = self.take_snapshot(instance, branch, seq, document)?;
                gathered = Some(0);
                // A document that is patched for ever would else weigh as much as all it went through.
                let key = revision_key(instance, branch, seq, standing.op_index as u64);
                self.remember(key, Some(document.clone()), weight);
            }
        }
        let key = HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        };
        let head = Head {
            seq,
            op_index: standing.op_index as u64,
            op: standing.last,
            patches: gathered,
        };
        self.note_head(key, head);
        Ok(())
    }

    /// Returns the length of the document's text.
    fn take_snapshot(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        at: Seq,
        document: &Value,
    ) -> Result<usize, EngineError> {
        let value = memory_wire::codec::encode(document)?;
        let weight = value.len();
        let address = (branch.as_str(), instance.id.as_str(), instance.scope_key.as_str());
        let inserted = self
            .conn
            .prepare_cached(
                "INSERT OR REPLACE INTO snapshot (branch, id, scope_key, seq, value) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![address.0, address.1, address.2, column::sql(at), value])?;
        self.note_changes(inserted);
        self.note_snapshot(HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        });
        Ok(weight)
    }

    /// ENG-380, once for all commits of the open transaction: of each instance the newest snapshots stay.
    pub(crate) fn prune_snapshots(&self, of: &[HeadKey]) -> Result<(), EngineError> {
        let Some(retention) = self.options().snapshots.retention else {
            return Ok(());
        };
        for HeadKey { branch, instance } in of {
            // Nothing is less than the last one kept when there are not so many.
            self.conn
                .prepare_cached(
                    "DELETE FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq < \
                     (SELECT seq FROM snapshot WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 \
                     ORDER BY seq DESC LIMIT 1 OFFSET ?4)",
                )?
                .execute(params![
                    branch.as_str(),
                    instance.id.as_str(),
                    instance.scope_key.as_str(),
                    retention.get() - 1
                ])?;
        }
        Ok(())
    }

    /// Patch revisions of the instance after the seq of its latest `set`, `delete` or snapshot, up to `at`.
    fn patches_since_base(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
        at: Seq,
    ) -> Result<u32, EngineError> {
        let snapshot = self.newest_snapshot(instance, branch, at)?.unwrap_or_default();
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq > ?4 AND seq <= ?5 \
             ORDER BY seq DESC, op_index DESC",
        )?;
        let mut rows = statement.query(params![
            branch.as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
            column::sql(snapshot),
            column::sql(at)
        ])?;
        // Patches of the base's own seq do not count, on whichever side of it they are.
        let mut patches: Vec<Seq> = Vec::new();
        while let Some(row) = rows.next()? {
            let seq = column::seq(row, 0)?;
            match column::op(row, 1)? {
                RevisionOp::Patch => patches.push(seq),
                RevisionOp::Set | RevisionOp::Delete => {
                    patches.retain(|&patch| patch > seq);
                    break;
                }
            }
        }
        Ok(u32::try_from(patches.len()).unwrap_or(u32::MAX))
    }
}

/// Decodes the text of a stored document; also says how long it was.
fn document(stored: &str) -> Result<(Value, usize), EngineError> {
    let value = column::decode(stored)?;
    match value {
        Value::Object(_) => Ok((value, stored.len())),
        _ => Err(StoredDataError::DocumentRoot.into()),
    }
}
