//! Writing an admitted commit (ENG §3.7, steps 13 to 19): its row, its revisions and heads, the maintenance that
//! rides on it, and the states it results in.

use std::borrow::Cow;

use memory_wire::codec;
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::{Did, EventId, LocalSeq, Seq, SessionId};
use memory_wire::message::{AppliedRevision, Operation, RevisionContent};
use memory_wire::patch::PatchOp;
use memory_wire::scope_key::{InstanceId, Scope};
use memory_wire::value::{Object, Value};
use memory_wire::well_known::EFFECTS_DOCUMENT;
use rusqlite::params;
use rustc_hash::FxHashMap;

use super::conflicts::Layers;
use super::content_addressed::Elided;
use super::texts::{CommitTexts, Stored};
use super::{Admission, Applied, SqliteOperations};
use crate::column::{self, RevisionOp};
use crate::document_cache::State;
use crate::effects;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::{self, Stamps};
use crate::heads::{Head, HeadKey};
use crate::lease::Holder;
use crate::read::revision_key;
use crate::snapshot::Standing;

/// Identity of the placeholder rows an old store's commits must reference (ENG-128).
mod legacy {
    pub(super) const INVOCATION: &str = "memory-v2:legacy-empty-invocation";
    pub(super) const AUTHORIZATION: &str = "memory-v2:legacy-empty-authorization";
    pub(super) const ISSUER: &str = "did:key:memory-v2-legacy-placeholder";
    pub(super) const COMMAND: &str = "/memory/transact/legacy-placeholder";
}

/// What the steps before have found out about an admitted commit.
pub(super) struct Plan<'p> {
    /// Column `original`.
    pub(super) original: &'p str,
    pub(super) texts: &'p CommitTexts,
    pub(super) layers: &'p Layers,
    pub(super) elided: Elided,
    pub(super) stamps: &'p Stamps,
}

impl Admission<'_, '_> {
    /// Steps 13 to 19. Everything that can refuse the commit is worked out before the first row is written, so that a
    /// refused member of a group leaves nothing that would have to be undone (ENG-206).
    pub(super) fn write(
        &self,
        plan: Plan<'_>,
        mut sqlite: Option<&mut dyn SqliteOperations>,
    ) -> Result<Applied, EngineError> {
        let Plan { original, layers, .. } = plan;
        let commit = self.apply.commit;
        let seq = self.engine.server_seq()?.next();
        self.engine.note_commit(seq, self.branch());
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
            } else if !plan.elided.contains(&index)
                && let Some(instance) = self.target(index, operation)?
            {
                let change = self.change(index, operation, &instance, seq, &plan)?;
                self.revise(&mut written, instance, seq, index, change)?;
            }
        }
        self.check_depths(&written)?;
        self.check_reserved_references(original, &written)?;
        if self.apply.class == CommitClass::Derived {
            self.advance_stream_watermarks(&mut written, seq)?;
        }
        let settled = written.settle()?;
        self.insert_commit(seq, original, layers)?;
        for row in &settled.rows {
            self.insert_revision(seq, row)?;
        }
        for (instance, outcome) in &settled.instances {
            self.move_head(instance, seq, outcome)?;
        }
        for (instance, outcome) in &settled.instances {
            self.engine
                .take_snapshot_when_due(instance, self.branch(), seq, &outcome.standing)?;
        }
        Ok(Applied {
            seq,
            branch: self.branch().clone(),
            revisions: settled.rows.into_iter().map(|row| row.revision).collect(),
            replayed: false,
            elided_op_indexes: Some(plan.elided.into_iter().collect::<Vec<_>>())
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
        let inserted = self
            .engine
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
        self.engine.note_changes(inserted);
        self.engine
            .cache
            .sessions
            .advance(&self.session_key, apply.commit.local_seq);
        Ok(())
    }

    /// What an operation does to its instance, stamped.
    fn change<'p>(
        &self,
        index: usize,
        operation: &Operation,
        instance: &InstanceId,
        seq: Seq,
        plan: &Plan<'p>,
    ) -> Result<Change<'p>, EngineError> {
        let issues_effects = self.apply.class == CommitClass::Derived && instance.id == EFFECTS_DOCUMENT;
        match operation {
            Operation::Set { value, .. } => {
                if value.as_object().is_none() {
                    return Err(EngineError::SetNeedsDocument);
                }
                let stamped = match plan.stamps.of(index) {
                    Some(stamps) => Some(events::stamp_document(value, stamps, seq)),
                    None if issues_effects => effects::stamp_document(value, seq),
                    None => None,
                };
                Ok(Change::Set(plan.stored(index, stamped, value)))
            }
            Operation::Patch { patches, .. } => {
                let stamped: Option<Vec<PatchOp>> = match plan.stamps.of(index) {
                    Some(stamps) => Some(events::stamp_patches(patches, stamps, seq)?),
                    // A state that cannot be had leaves the intents undeduplicated, not unstamped (ENG-551).
                    None if issues_effects => {
                        let stored = self.engine.current(instance, self.branch()).ok().flatten();
                        effects::stamp_patches(patches, seq, stored.as_ref())
                    }
                    None => None,
                };
                Ok(Change::Patch(plan.stored(index, stamped, patches)))
            }
            Operation::Delete { .. } | Operation::Sqlite { .. } => Ok(Change::Delete),
        }
    }

    /// Works out what one operation leaves behind. From here on the instance reads as it will be stored.
    fn revise<'p>(
        &self,
        written: &mut Written<'p>,
        instance: InstanceId,
        seq: Seq,
        op_index: usize,
        change: Change<'p>,
    ) -> Result<(), EngineError> {
        let branch = self.branch();
        let key = HeadKey {
            branch: branch.clone(),
            instance: instance.clone(),
        };
        if !written.instances.contains_key(&instance) {
            // What is replaced need not be known.
            let standing = match change {
                Change::Patch(_) => self.engine.standing(&instance, branch)?,
                Change::Set(_) | Change::Delete => Standing::replaced(None, 0, op_index),
            };
            let stored = self.engine.remembered_head(&key)?.map(|head| head.op);
            written.order.push(instance.clone());
            written
                .instances
                .insert(instance.clone(), Outcome { standing, stored });
        }
        let Some(Outcome { standing, .. }) = written.instances.get_mut(&instance) else {
            return Ok(());
        };
        let (op, content, data) = match change {
            Change::Set(stored) => {
                let data = stored.encode()?;
                let document = stored.content;
                *standing = Standing::replaced(Some(document.clone()), data.len(), op_index);
                (RevisionOp::Set, RevisionContent::Set { document }, Some(data))
            }
            Change::Patch(stored) => {
                let (list, data) = stored.encode()?;
                standing.patched(&stored.content, data.len(), op_index);
                (
                    RevisionOp::Patch,
                    RevisionContent::Patch { patches: list },
                    Some(data),
                )
            }
            Change::Delete => {
                *standing = Standing::replaced(None, 0, op_index);
                (RevisionOp::Delete, RevisionContent::Delete, None)
            }
        };
        // Later steps of this commit, and later members of its group, read it from here.
        let head = Head {
            seq,
            op_index: op_index as u64,
            op,
            patches: None,
        };
        self.engine.note_head(key, head);
        if let Ok(state) = &standing.state {
            let key = revision_key(&instance, branch, seq, op_index as u64);
            self.engine.remember(key, state.clone(), standing.weight);
        }
        written.rows.push(Row {
            data,
            op,
            revision: AppliedRevision {
                id: instance.id,
                scope: Some(instance.scope_key.scope()).filter(|scope| *scope != Scope::Space),
                scope_key: instance.scope_key,
                branch: branch.clone(),
                seq,
                op_index,
                commit_seq: seq,
                content,
            },
        });
        Ok(())
    }

    /// Stores one revision (ENG-351).
    fn insert_revision(&self, seq: Seq, row: &Row<'_>) -> Result<(), EngineError> {
        let Row { revision, op, data } = row;
        let changed = self
            .engine
            .conn
            .prepare_cached(
                "INSERT INTO revision (branch, id, scope_key, seq, op_index, op, data, commit_seq) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?4)",
            )?
            .execute(params![
                self.branch().as_str(),
                revision.id.as_str(),
                revision.scope_key.as_str(),
                column::sql(seq),
                revision.op_index as i64,
                op.as_str(),
                data.as_deref()
            ])?;
        self.engine.note_changes(changed);
        Ok(())
    }

    /// Moves an instance's head to its last revision of this commit (ENG-351).
    fn move_head(&self, instance: &InstanceId, seq: Seq, outcome: &Outcome) -> Result<(), EngineError> {
        let Outcome { standing, stored } = outcome;
        let write = |sql| -> Result<usize, EngineError> {
            let changed = self.engine.conn.prepare_cached(sql)?.execute(params![
                self.branch().as_str(),
                instance.id.as_str(),
                instance.scope_key.as_str(),
                column::sql(seq),
                standing.op_index as i64,
                standing.op().as_str()
            ])?;
            self.engine.note_changes(changed);
            Ok(changed)
        };
        // A head that is there and whose operation stays is in no index that would change.
        let moved = *stored == Some(standing.op())
            && write(
                "UPDATE head SET seq = ?4, op_index = ?5 WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND op = ?6",
            )? > 0;
        if !moved {
            write(
                "INSERT INTO head (branch, id, scope_key, seq, op_index, op) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                 ON CONFLICT (branch, id, scope_key) DO UPDATE SET seq = excluded.seq, op_index = excluded.op_index, \
                 op = excluded.op",
            )?;
        }
        Ok(())
    }

    /// Step 17 (ENG-540, 541): the watermark of every stream this derived commit touched, as a revision of its own.
    fn advance_stream_watermarks(&self, written: &mut Written<'_>, seq: Seq) -> Result<(), EngineError> {
        for instance in written.order.clone() {
            if !memory_wire::well_known::is_stream_sidecar(&instance.id) {
                continue;
            }
            let document = written.state(&instance)?;
            let Some(advance) = document.as_ref().and_then(events::watermark_advance) else {
                continue;
            };
            let op_index = written
                .rows
                .iter()
                .map(|row| row.revision.op_index + 1)
                .max()
                .unwrap_or(0);
            self.revise(
                written,
                instance,
                seq,
                op_index,
                Change::Patch(Stored {
                    content: vec![advance],
                    text: None,
                }),
            )?;
        }
        Ok(())
    }
}

/// What an operation does to its instance.
enum Change<'p> {
    Set(Stored<'p, Value>),
    Patch(Stored<'p, Vec<PatchOp>>),
    Delete,
}

impl<'p> Plan<'p> {
    /// What an operation stores: what it was stamped to, else what it brought, whose text may be there.
    fn stored<T: Clone>(&self, index: usize, stamped: Option<T>, brought: &T) -> Stored<'p, T> {
        let text = match stamped {
            Some(_) => None,
            None => self.texts.data(index),
        };
        Stored {
            content: stamped.unwrap_or_else(|| brought.clone()),
            text,
        }
    }
}

/// A revision to store.
struct Row<'p> {
    revision: AppliedRevision,
    op: RevisionOp,
    /// Column `data`.
    data: Option<Cow<'p, str>>,
}

/// What a commit will have written.
#[derive(Default)]
pub(super) struct Written<'p> {
    /// Each instance once, in the order first written.
    order: Vec<InstanceId>,
    instances: FxHashMap<InstanceId, Outcome>,
    rows: Vec<Row<'p>>,
}

/// What becomes of one instance.
struct Outcome {
    standing: Standing,
    /// The operation of its head row before this commit, if that is known.
    stored: Option<RevisionOp>,
}

/// A commit with nothing left to refuse.
struct Settled<'p> {
    rows: Vec<Row<'p>>,
    instances: Vec<(InstanceId, Outcome)>,
}

impl<'p> Written<'p> {
    /// The instances written, in the order first written.
    pub(super) fn instances(&self) -> &[InstanceId] {
        &self.order
    }

    /// What an instance will be.
    pub(super) fn state(&self, instance: &InstanceId) -> Result<State, EngineError> {
        match self
            .instances
            .get(instance)
            .map(|outcome| &outcome.standing.state)
        {
            Some(Ok(state)) => Ok(state.clone()),
            Some(Err(error)) => Err(error.clone().into()),
            None => Ok(None),
        }
    }

    /// The patch validity check (ENG-381): every instance's last state has to be had; what lies before it has not.
    fn settle(mut self) -> Result<Settled<'p>, EngineError> {
        let mut instances = Vec::with_capacity(self.order.len());
        for instance in self.order {
            let Some(outcome) = self.instances.remove(&instance) else {
                continue;
            };
            if let Err(error) = &outcome.standing.state {
                return Err(error.clone().into());
            }
            instances.push((instance, outcome));
        }
        Ok(Settled {
            rows: self.rows,
            instances,
        })
    }
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
