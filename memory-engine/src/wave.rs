//! Wave commits (ENG §6): what the serving loop derived, landed in one transaction with its basis rows and its
//! outbox rows. A [`WaveCommit`] can only be made with a [`LeaseHolder`]; there is no way to one from a client
//! message.

use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::{EventId, Seq, SpaceId};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::{InstanceId, Scope, ScopeKey};

use crate::admission::{Admission, Applied, ApplyCommit, SqliteOperations};
use crate::basis::BasisInstance;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::lease::{Holder, LeaseHolder};
use crate::outbox::OutboxAppend;
use crate::refusal::Refusal;

/// One wave, ready to land.
#[derive(Clone, Debug)]
pub struct WaveCommit {
    holder: Holder,
    space: SpaceId,
    /// The writes; its reads are empty, since the per-document check below is the only one (ENG-617).
    pub commit: ClientCommit,
    /// The seq the wave read everything at.
    pub basis_seq: Seq,
    /// Documents the wave was rebased on, with the head it was rebased to.
    pub rebased_heads: Vec<(InstanceId, Seq)>,
    /// Addressing and attribution of the writes.
    pub annotations: Vec<WriteAnnotation>,
    /// Events the wave consumed.
    pub consequence_of: Vec<EventId>,
    /// Watermark the wave carries.
    pub derived_through: Option<Seq>,
    /// What the runs of the wave read.
    pub basis_instances: Vec<BasisInstance>,
    /// Appends to other spaces' streams.
    pub outbox: Vec<OutboxAppend>,
}

impl WaveCommit {
    /// A wave of the lease's holder, filed under the holder's own session (ENG-412). The caller has checked that the work
    /// was sealed under the current tenure (ENG-704); the engine checks the lease row again.
    pub fn new(lease: &LeaseHolder, commit: ClientCommit, basis_seq: Seq) -> WaveCommit {
        WaveCommit {
            holder: lease.holder().clone(),
            space: lease.space().clone(),
            commit,
            basis_seq,
            rebased_heads: Vec::new(),
            annotations: Vec::new(),
            consequence_of: Vec::new(),
            derived_through: None,
            basis_instances: Vec::new(),
            outbox: Vec::new(),
        }
    }

    /// Who lands it.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Where.
    pub fn space(&self) -> &SpaceId {
        &self.space
    }

    /// The scope keys addressed by operation index.
    pub(crate) fn annotated_key(&self, op: usize) -> Option<&ScopeKey> {
        self.annotations
            .iter()
            .find(|annotation| annotation.op == op)
            .and_then(|a| a.scope_key.as_ref())
    }
}

impl Engine {
    /// Lands a wave (ENG-610): lease and envelope, access list, per-document check, preconditions, admission, basis rows,
    /// outbox rows; all or nothing.
    ///
    /// # Errors
    /// [`EngineError::WaveConflict`] naming every document that moved, [`EngineError::WavePrecondition`] naming every
    /// precondition that failed, or what admission refuses.
    pub fn apply_wave(
        &mut self,
        wave: &WaveCommit,
        now_ms: i64,
        sqlite: Option<&mut dyn SqliteOperations>,
    ) -> Result<Applied, EngineError> {
        self.transaction(|engine| engine.land(wave, now_ms, sqlite))
    }

    fn land(
        &self,
        wave: &WaveCommit,
        now_ms: i64,
        sqlite: Option<&mut dyn SqliteOperations>,
    ) -> Result<Applied, EngineError> {
        let session_id = wave.holder.session_id();
        let apply = ApplyCommit {
            space: Some(&wave.space),
            class: CommitClass::Derived,
            holder: Some(&wave.holder),
            annotations: Some(&wave.annotations),
            consequence_of: Some(&wave.consequence_of),
            derived_through: wave.derived_through,
            allow_empty_operations: !wave.outbox.is_empty(),
            ..ApplyCommit::authored(&session_id, None, &wave.commit, now_ms)
        };
        let admission = Admission::new(self, &apply);
        // A producer without the lease learns that, and not of a conflict; a replay needs no lease.
        if !admission.is_stored()? {
            if !self.options().serving {
                return Err(Refusal::DerivedWhileOff.into());
            }
            admission.check_lease()?;
        }
        admission.check_acl_untouched()?;
        self.check_heads(wave)?;
        check_preconditions(&admission)?;
        let applied = self.admit(&apply, sqlite)?;
        self.record_basis(&applied.branch, applied.seq, &wave.basis_instances)?;
        if !applied.replayed {
            self.insert_outbox(&applied.branch, applied.seq, &wave.outbox)?;
        }
        Ok(applied)
    }

    /// ENG-611: every document written must stand where the wave read it, or where the wave was rebased to.
    fn check_heads(&self, wave: &WaveCommit) -> Result<(), EngineError> {
        let mut checked = rustc_hash::FxHashSet::default();
        let mut conflicted = Vec::new();
        for (op, operation) in wave.commit.operations.iter().enumerate() {
            let Some((id, scope)) = operation.target() else {
                continue;
            };
            let scope_key = match (scope, wave.annotated_key(op)) {
                // Whatever the annotation says: admission's refusal of it stays the visible error.
                (Scope::Space, _) => ScopeKey::space(),
                (Scope::User | Scope::Session, Some(key)) => key.clone(),
                // Admission refuses the unaddressed write by itself.
                (Scope::User | Scope::Session, None) => continue,
            };
            let instance = InstanceId {
                id: id.clone(),
                scope_key,
            };
            if !checked.insert(instance.clone()) {
                continue;
            }
            let head = self.doc_head(&instance, &wave.commit.branch)?;
            let stands = match wave
                .rebased_heads
                .iter()
                .find(|(rebased, _)| *rebased == instance)
            {
                Some((_, rebased)) => head == *rebased,
                None => head <= wave.basis_seq,
            };
            if !stands {
                conflicted.push(instance);
            }
        }
        if conflicted.is_empty() {
            Ok(())
        } else {
            Err(EngineError::WaveConflict { conflicted })
        }
    }
}

/// ENG-613: all failed preconditions at once; any other error at once.
fn check_preconditions(admission: &Admission<'_, '_>) -> Result<(), EngineError> {
    let mut failed = Vec::new();
    let mut first = None;
    for (index, precondition) in admission.apply.commit.preconditions.iter().enumerate() {
        match admission.check_precondition(precondition) {
            Ok(()) => {}
            Err(error) if error.precondition().is_some() => {
                failed.push(index);
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match first {
        Some(first) => Err(EngineError::WavePrecondition {
            failed,
            first: Box::new(first),
        }),
        None => Ok(()),
    }
}
