//! Read checks (ENG §3.5, 3.6): a commit is refused when something it read has been written since. Steps 10 and 11.

use std::collections::BTreeMap;

use memory_wire::ids::{BranchName, LocalSeq, Seq};
use memory_wire::message::{ConfirmedRead, PendingRead};
use memory_wire::patch::{PatchOp, patches_conflict_with_read};
use memory_wire::pointer::DocPath;
use memory_wire::scope_key::InstanceId;
use rusqlite::params;
use smol_str::SmolStr;

use super::Admission;
use crate::column::{self, RevisionOp};
use crate::document_cache::RevisionKey;
use crate::error::EngineError;
use crate::read::revision_key;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// The accepted commits behind the layers of a commit's pending reads (ENG-334).
pub(super) type Layers = BTreeMap<LocalSeq, Seq>;

/// What of one instance was read, and since when it must not have been written.
struct ReadRange<'r> {
    instance: &'r InstanceId,
    branch: &'r BranchName,
    path: &'r DocPath,
    non_recursive: bool,
    /// Exclusive.
    since: Seq,
    /// Commits whose writes do not count: the reader looked through them.
    own: &'r [Seq],
}

impl Admission<'_, '_> {
    pub(super) fn check_confirmed_reads(&self) -> Result<(), EngineError> {
        for read in &self.apply.commit.reads.confirmed {
            let ConfirmedRead {
                id,
                scope,
                branch,
                path,
                seq,
                non_recursive,
            } = read;
            let branch = branch.as_ref().unwrap_or(self.branch());
            if branch != self.branch() {
                // A deleted branch is fine, one that never was is not.
                self.engine.branch(branch)?;
            }
            let conflict = self.engine.first_conflict(&ReadRange {
                instance: &self.own_instance(id, *scope)?,
                branch,
                path,
                non_recursive: *non_recursive,
                since: *seq,
                own: &[],
            })?;
            if let Some(conflict_seq) = conflict {
                return Err(EngineError::StaleConfirmedRead {
                    of: id.clone(),
                    seq: *seq,
                    conflict_seq,
                });
            }
        }
        Ok(())
    }

    pub(super) fn check_pending_reads(&self) -> Result<Layers, EngineError> {
        let mut layers = Layers::new();
        let mut server_seq = None;
        for read in &self.apply.commit.reads.pending {
            let PendingRead {
                id,
                scope,
                path,
                local_seqs,
                basis_seq,
                non_recursive,
            } = read;
            let mut own: Vec<(LocalSeq, Seq)> = Vec::with_capacity(local_seqs.len());
            for &local_seq in local_seqs {
                let seq = match layers.get(&local_seq) {
                    Some(&seq) => seq,
                    None => {
                        let seq = self
                            .committed_at(local_seq)?
                            .ok_or(EngineError::PendingDependency { local_seq })?;
                        layers.insert(local_seq, seq);
                        seq
                    }
                };
                own.push((local_seq, seq));
            }
            // Layers are named as a set; the highest localSeq speaks for it (ENG-336, 337).
            let &(via, via_seq) = own
                .iter()
                .max()
                .ok_or_else(|| Refusal::PendingReadWithoutLayer { id: id.clone() })?;
            let (since, own): (Seq, Vec<Seq>) = match *basis_seq {
                Some(basis) => {
                    let highest = match server_seq {
                        Some(seq) => seq,
                        None => *server_seq.insert(self.engine.server_seq()?),
                    };
                    if basis > highest {
                        return Err(Refusal::BasisAheadOfLog {
                            id: id.clone(),
                            basis: basis.0,
                        }
                        .into());
                    }
                    (basis, own.into_iter().map(|(_, seq)| seq).collect())
                }
                None => (via_seq, Vec::new()),
            };
            let conflict = self.engine.first_conflict(&ReadRange {
                instance: &self.own_instance(id, *scope)?,
                branch: self.branch(),
                path,
                non_recursive: *non_recursive,
                since,
                own: &own,
            })?;
            if let Some(conflict_seq) = conflict {
                return Err(EngineError::StalePendingRead {
                    of: id.clone(),
                    via,
                    conflict_seq,
                });
            }
        }
        Ok(layers)
    }
}

impl Reader {
    /// The seq of the write that a read conflicts with: the newest `set` or `delete` in range (tier 1, ENG-340), else the
    /// newest patch that overlaps it (tier 2, ENG-341). One streaming range scan, newest first; it ends at the first
    /// `set` or `delete`.
    fn first_conflict(&self, read: &ReadRange<'_>) -> Result<Option<Seq>, EngineError> {
        // Nearly every read is of something nobody has written since.
        if self.doc_head(read.instance, read.branch)? <= read.since {
            return Ok(None);
        }
        let mut statement = self.conn.prepare_cached(
            "SELECT seq, op_index, op, data FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq > ?4 \
             ORDER BY seq DESC, op_index DESC",
        )?;
        let mut rows = statement.query(params![
            read.branch.as_str(),
            read.instance.id.as_str(),
            read.instance.scope_key.as_str(),
            column::sql(read.since)
        ])?;
        let mut overlapping = None;
        while let Some(row) = rows.next()? {
            let seq = column::seq(row, 0)?;
            if read.own.contains(&seq) {
                continue;
            }
            match column::op(row, 2)? {
                RevisionOp::Set | RevisionOp::Delete => return Ok(Some(seq)),
                RevisionOp::Patch if overlapping.is_none() => {
                    let key = revision_key(read.instance, read.branch, seq, column::count(row, 1)?);
                    let patches = self.patches_of(key.clone(), column::text(row, 3)?)?;
                    if patches_conflict_with_read(&patches, read.path, read.non_recursive)
                        || (read.non_recursive && self.creates_member(&key, &patches, read.path)?)
                    {
                        overlapping = Some(seq);
                    }
                }
                RevisionOp::Patch => {}
            }
        }
        Ok(overlapping)
    }

    /// Whether a patch revision made a new member of what a shape read of `path` looked at, by writing further below than
    /// the footprint shows: a container made on the way, a key that a `replace` made, an untruthful `createsKey`. The
    /// footprint is the client's word for it (ENG-344); this looks at the state before, so that no read is accepted
    /// that did not see what is there (INV-1, INV-2).
    fn creates_member(
        &self,
        revision: &RevisionKey,
        patches: &[PatchOp],
        path: &[SmolStr],
    ) -> Result<bool, EngineError> {
        let members: Vec<&[SmolStr]> = patches
            .iter()
            .filter(|patch| patch.creates_keys())
            .filter_map(|patch| {
                patch
                    .path()
                    .get(..=path.len())
                    .filter(|member| member.starts_with(path))
            })
            .collect();
        if members.is_empty() {
            return Ok(false);
        }
        let before = self.state_before(revision)?;
        Ok(members.iter().any(|member| {
            before
                .as_ref()
                .and_then(|document| document.at_path(member))
                .is_none()
        }))
    }
}
