//! Writing an admitted commit (ENG §3.7, steps 13 to 19): its row, its revisions and heads, the maintenance that
//! rides on it, and the states it results in.

use memory_wire::codec;
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::{Did, EventId, LocalSeq, Seq, SessionId};
use memory_wire::message::{AppliedRevision, Operation, RevisionContent};
use memory_wire::patch::{PatchOp, patches_to_value};
use memory_wire::scope_key::{InstanceId, Scope};
use memory_wire::value::{Object, Value};
use memory_wire::well_known::EFFECTS_DOCUMENT;
use rusqlite::params;

use super::conflicts::Layers;
use super::content_addressed::Elided;
use super::{Admission, Applied, SqliteOperations};
use crate::column::{self, RevisionOp};
use crate::effects;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::{self, Stamps};
use crate::heads::{Head, HeadKey};
use crate::lease::Holder;
use crate::read::revision_key;

/// Identity of the placeholder rows an old store's commits must reference (ENG-128).
mod legacy {
    pub(super) const INVOCATION: &str = "memory-v2:legacy-empty-invocation";
    pub(super) const AUTHORIZATION: &str = "memory-v2:legacy-empty-authorization";
    pub(super) const ISSUER: &str = "did:key:memory-v2-legacy-placeholder";
    pub(super) const COMMAND: &str = "/memory/transact/legacy-placeholder";
}

impl Admission<'_, '_> {
    /// Steps 13 to 19.
    pub(super) fn write(
        &self,
        original: &str,
        layers: &Layers,
        elided: Elided,
        stamps: &Stamps,
        mut sqlite: Option<&mut dyn SqliteOperations>,
    ) -> Result<Applied, EngineError> {
        let commit = self.apply.commit;
        let seq = self.engine.server_seq()?.next();
        self.insert_commit(seq, original, layers)?;
        self.engine.note_commit(seq);
        let mut written = Written::default();
        for (index, operation) in commit.operations.iter().enumerate() {
            if let Operation::Sqlite { db, sql, params } = operation {
                match &mut sqlite {
                    Some(sqlite) => sqlite.execute(&self.engine.conn, index, db, sql, params.as_ref())?,
                    None => {
                        return Err(EngineError::SqliteUnattached {
                            db: db.id.to_string(),
                        });
                    }
                }
            } else if !elided.contains(&index)
                && let Some(instance) = self.target(index, operation)?
            {
                let content = self.content(index, operation, &instance, seq, stamps)?;
                self.write_revision(&mut written, instance, seq, index, content)?;
            }
        }
        self.check_depths()?;
        self.check_reserved_references(original, &written.instances)?;
        if self.apply.class == CommitClass::Derived {
            self.advance_stream_watermarks(&mut written, seq)?;
        }
        self.engine
            .conn
            .prepare_cached("UPDATE branch SET head_seq = MAX(head_seq, ?2) WHERE name = ?1")?
            .execute(params![self.branch().as_str(), column::sql(seq)])?;
        for instance in &written.instances {
            self.engine.settle_instance(instance, self.branch())?;
        }
        Ok(Applied {
            seq,
            branch: self.branch().clone(),
            revisions: written.revisions,
            replayed: false,
            elided_op_indexes: Some(elided.into_iter().collect::<Vec<_>>())
                .filter(|elided| !elided.is_empty()),
        })
    }

    /// Step 14.
    fn insert_commit(&self, seq: Seq, original: &str, layers: &Layers) -> Result<(), EngineError> {
        let apply = self.apply;
        let (invocation_ref, authorization_ref) = if self.engine.legacy_refs_required() {
            self.engine.ensure_legacy_placeholders()?;
            (Some(legacy::INVOCATION), Some(legacy::AUTHORIZATION))
        } else {
            (None, None)
        };
        let derived = apply.class == CommitClass::Derived;
        let annotations = apply
            .annotations
            .filter(|list| derived && !list.is_empty())
            .map(|list| {
                codec::encode(&Value::from(
                    list.iter().map(WriteAnnotation::to_value).collect::<Vec<_>>(),
                ))
            });
        let consequence_of = apply
            .consequence_of
            .filter(|list| derived && !list.is_empty())
            .map(|list| {
                codec::encode(&Value::from(
                    list.iter()
                        .map(|event: &EventId| Value::from(event))
                        .collect::<Vec<_>>(),
                ))
            });
        let delegated = apply.delegated;
        self.engine
            .conn
            .prepare_cached(
                "INSERT INTO \"commit\" (seq, branch, session_id, local_seq, invocation_ref, authorization_ref, original, \
                 resolution, class, holder, annotations, consequence_of, derived_through, acting_principal, \
                 acting_session, capability_ref) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
            )?
            .execute(params![
                column::sql(seq),
                self.branch().as_str(),
                self.session_key,
                apply.commit.local_seq.0 as i64,
                invocation_ref,
                authorization_ref,
                original,
                resolution(seq, layers)?,
                apply.class.as_str(),
                apply.holder.filter(|_| derived).map(Holder::as_str),
                annotations.transpose()?,
                consequence_of.transpose()?,
                apply.derived_through.filter(|_| derived).map(column::sql),
                // An empty actor is an absent one (ENG-435).
                delegated.and_then(|d| d.acting_principal.as_ref()).map(Did::as_str).filter(|p| !p.is_empty()),
                delegated.and_then(|d| d.acting_session.as_ref()).map(SessionId::as_str).filter(|s| !s.is_empty()),
                delegated.map(|d| d.capability_ref.as_str()),
            ])?;
        Ok(())
    }

    /// What an operation stores, stamped.
    fn content(
        &self,
        index: usize,
        operation: &Operation,
        instance: &InstanceId,
        seq: Seq,
        stamps: &Stamps,
    ) -> Result<RevisionContent, EngineError> {
        let issues_effects = self.apply.class == CommitClass::Derived && instance.id == EFFECTS_DOCUMENT;
        match operation {
            Operation::Set { value, .. } => {
                if value.as_object().is_none() {
                    return Err(EngineError::SetNeedsDocument);
                }
                let document = match stamps.of(index) {
                    Some(stamps) => events::stamp_document(value, stamps, seq),
                    None if issues_effects => {
                        effects::stamp_document(value, seq).unwrap_or_else(|| value.clone())
                    }
                    None => value.clone(),
                };
                Ok(RevisionContent::Set { document })
            }
            Operation::Patch { patches, .. } => {
                let stamped: Option<Vec<PatchOp>> = match stamps.of(index) {
                    Some(stamps) => Some(events::stamp_patches(patches, stamps, seq)?),
                    // A state that cannot be had leaves the intents undeduplicated, not unstamped (ENG-551).
                    None if issues_effects => {
                        let stored = self.engine.current(instance, self.branch()).ok().flatten();
                        effects::stamp_patches(patches, seq, stored.as_ref())
                    }
                    None => None,
                };
                Ok(RevisionContent::Patch {
                    patches: patches_to_value(stamped.as_deref().unwrap_or(patches)),
                })
            }
            Operation::Delete { .. } | Operation::Sqlite { .. } => Ok(RevisionContent::Delete),
        }
    }

    /// Stores one revision and moves the head to it (ENG-351).
    fn write_revision(
        &self,
        written: &mut Written,
        instance: InstanceId,
        seq: Seq,
        op_index: usize,
        content: RevisionContent,
    ) -> Result<(), EngineError> {
        let (op, data) = match &content {
            RevisionContent::Set { document } => (RevisionOp::Set, Some(codec::encode(document)?)),
            RevisionContent::Patch { patches } => (RevisionOp::Patch, Some(codec::encode(patches)?)),
            RevisionContent::Delete => (RevisionOp::Delete, None),
        };
        let branch = self.branch();
        let address = (branch.as_str(), instance.id.as_str(), instance.scope_key.as_str());
        self.engine
            .conn
            .prepare_cached(
                "INSERT INTO revision (branch, id, scope_key, seq, op_index, op, data, commit_seq) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?4)",
            )?
            .execute(params![
                address.0,
                address.1,
                address.2,
                column::sql(seq),
                op_index as i64,
                op.as_str(),
                data
            ])?;
        self.engine
            .conn
            .prepare_cached(
                "INSERT INTO head (branch, id, scope_key, seq, op_index, op) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                 ON CONFLICT (branch, id, scope_key) DO UPDATE SET seq = excluded.seq, op_index = excluded.op_index, \
                 op = excluded.op",
            )?
            .execute(params![address.0, address.1, address.2, column::sql(seq), op_index as i64, op.as_str()])?;
        let head_key = HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        };
        let head = Head {
            seq,
            op_index: op_index as u64,
            op,
        };
        self.engine.note_head(head_key, head);
        if let (RevisionContent::Set { document }, Some(data)) = (&content, &data) {
            let key = revision_key(&instance, branch, seq, op_index as u64);
            self.engine.remember(key, Some(document.clone()), data.len());
        }
        written.revisions.push(AppliedRevision {
            id: instance.id.clone(),
            scope: Some(instance.scope_key.scope()).filter(|scope| *scope != Scope::Space),
            scope_key: instance.scope_key.clone(),
            branch: branch.clone(),
            seq,
            op_index,
            commit_seq: seq,
            content,
        });
        if written.seen.insert(instance.clone()) {
            written.instances.push(instance);
        }
        Ok(())
    }

    /// Step 17 (ENG-540, 541): the watermark of every stream this derived commit touched, as a revision of its own.
    fn advance_stream_watermarks(&self, written: &mut Written, seq: Seq) -> Result<(), EngineError> {
        for instance in written.instances.clone() {
            if !memory_wire::well_known::is_stream_sidecar(&instance.id) {
                continue;
            }
            let document = self.engine.current(&instance, self.branch())?;
            let Some(advance) = document.as_ref().and_then(events::watermark_advance) else {
                continue;
            };
            let op_index = written
                .revisions
                .iter()
                .map(|revision| revision.op_index + 1)
                .max()
                .unwrap_or(0);
            let patches = patches_to_value(&[advance]);
            self.write_revision(
                written,
                instance,
                seq,
                op_index,
                RevisionContent::Patch { patches },
            )?;
        }
        Ok(())
    }
}

/// What a commit has written so far.
#[derive(Default)]
struct Written {
    /// Each instance once, in the order first written.
    instances: Vec<InstanceId>,
    seen: rustc_hash::FxHashSet<InstanceId>,
    revisions: Vec<AppliedRevision>,
}

/// Column `resolution` (ENG-122).
fn resolution(seq: Seq, layers: &Layers) -> Result<String, EngineError> {
    let mut object = Object::new();
    if !layers.is_empty() {
        let pair = |(local_seq, seq): (&LocalSeq, &Seq)| memory_wire::value!({ "localSeq": (*local_seq), "seq": (*seq) });
        object.insert(
            "resolvedPendingReads",
            layers.iter().map(pair).collect::<Vec<_>>(),
        );
    }
    object.insert("seq", seq);
    Ok(codec::encode(&object.into())?)
}

impl Engine {
    /// The side rows an old store's commits must point at (ENG-128).
    fn ensure_legacy_placeholders(&self) -> Result<(), EngineError> {
        let invocation = memory_wire::value!({
            "aud": null, "cmd": (legacy::COMMAND), "iss": (legacy::ISSUER), "sub": (legacy::ISSUER)
        });
        self.conn
            .prepare_cached(
                "INSERT OR IGNORE INTO invocation (ref, iss, aud, cmd, sub, invocation) VALUES (?1, ?2, NULL, ?3, ?2, ?4)",
            )?
            .execute(params![legacy::INVOCATION, legacy::ISSUER, legacy::COMMAND, codec::encode(&invocation)?])?;
        self.conn
            .prepare_cached("INSERT OR IGNORE INTO authorization (ref, authorization) VALUES (?1, ?2)")?
            .execute(params![
                legacy::AUTHORIZATION,
                codec::encode(&Object::new().into())?
            ])?;
        Ok(())
    }
}
