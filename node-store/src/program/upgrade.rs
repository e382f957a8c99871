//! Upgrading a context: check, apply in one batch, report only what is durable. Rules: NODE-31, NODE-35.

use super::migration::{ContextRows, Migration, MigrationError};
use super::{Programs, Rows};
use crate::blob::ReferenceChange;
use crate::error::StoreError;
use crate::id::{BlobId, ContextId};
use crate::key;
use crate::layer::{LayerExt, WriteLayer};
use crate::markers::{Markers, UpgradeState, application_of, group_of, upgrade_state};
use crate::transaction::Transaction;
use crate::value::{self, ContextMeta, ContextMigrationFailed};

/// How an upgrade ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeOutcome {
    /// There was nothing to do, or nothing that can be done here; this is where the context stands.
    Unchanged(UpgradeState),
    /// The new code is activated and durable: the running graph may be swapped now.
    Activated {
        /// The code.
        code: BlobId,
    },
    /// The attempt failed and is on record; the old code goes on.
    Failed {
        /// Which step.
        kind: ContextMigrationFailed,
        /// What the migration said.
        reason: String,
    },
}

impl Programs {
    /// Brings a context to the code it should run. State, activation marker and cleared failure land in one batch; the
    /// outcome says `Activated` only after that batch is durable. An earlier failure is tried again.
    pub fn upgrade(
        &self,
        context_id: ContextId,
        migration: &mut dyn Migration,
    ) -> Result<UpgradeOutcome, StoreError> {
        let _one = self.steps.lock();
        let markers = self.markers(context_id)?;
        let state = upgrade_state(&markers);
        let (serving, target) = match state {
            UpgradeState::Pending { serving, target, .. } | UpgradeState::Failed { serving, target, .. } => {
                (serving, target)
            }
            UpgradeState::AwaitingCode { .. }
            | UpgradeState::AwaitingResync { .. }
            | UpgradeState::NotInstalled { .. }
            | UpgradeState::UpToDate { .. } => return Ok(UpgradeOutcome::Unchanged(state)),
        };
        if markers.installed != Some(target) {
            return Ok(UpgradeOutcome::Unchanged(state));
        }
        self.require_forward(context_id, &markers, target)?;
        if serving == target {
            self.activate(context_id, Transaction::new(), target, &markers)?;
            return self.activated(context_id, target);
        }
        let fail = |kind: ContextMigrationFailed, reason: String| {
            self.record_failure(context_id, &markers, serving, kind)?;
            tracing::warn!(context = %context_id, ?kind, "upgrade failed; the old code goes on");
            Ok(UpgradeOutcome::Failed { kind, reason })
        };
        if !migration.leads(serving, target) {
            return fail(
                ContextMigrationFailed::NoMigrationPath,
                format!("no migration from {serving} to {target}"),
            );
        }
        // The check: what is staged here is thrown away.
        match migration
            .compile(target)
            .and_then(|()| self.migrated(context_id, migration, serving, target).map(drop))
        {
            Ok(()) => {}
            Err(MigrationError::Refused(reason)) => {
                return fail(ContextMigrationFailed::CheckAborted, reason);
            }
            Err(MigrationError::Store(error)) => return Err(error),
        }
        let rows = match self.migrated(context_id, migration, serving, target) {
            Ok(rows) => rows,
            Err(MigrationError::Refused(reason)) => return fail(ContextMigrationFailed::ApplyFailed, reason),
            Err(MigrationError::Store(error)) => return Err(error),
        };
        match self.activate(context_id, rows, target, &markers) {
            Ok(()) => self.activated(context_id, target),
            Err(error) => {
                // Nothing of the batch is there. The note is worth trying for; without it the next start drives again.
                if let Err(second) =
                    self.record_failure(context_id, &markers, serving, ContextMigrationFailed::ApplyFailed)
                {
                    tracing::warn!(context = %context_id, error = %second, "a failed upgrade could not be noted");
                }
                Err(error)
            }
        }
    }

    /// Runs the migration over a staged view and gives what it staged.
    fn migrated(
        &self,
        context_id: ContextId,
        migration: &mut dyn Migration,
        from: BlobId,
        to: BlobId,
    ) -> Result<Transaction, MigrationError> {
        let mut store = self.store.clone();
        let meta: ContextMeta = store
            .view()
            .get(&key::ContextMeta { context_id })?
            .ok_or(StoreError::UnknownContext(context_id))?;
        let mut staged = store.temporal();
        migration.migrate(from, to, &mut ContextRows::new(&mut staged, context_id, meta))?;
        Ok(staged.staged().clone())
    }

    /// One batch: what was migrated, the new activation, no failure, no pin.
    fn activate(
        &self,
        context_id: ContextId,
        migrated: Transaction,
        target: BlobId,
        markers: &Markers,
    ) -> Result<(), StoreError> {
        let application_id = application_of(&self.store, context_id)?;
        let program = self
            .get(application_id)?
            .ok_or(StoreError::UnknownApplication(application_id))?;
        let mut rows = Rows(migrated);
        rows.put(
            &key::ContextActivatedBlob { context_id },
            &value::ContextActivatedBlob { blob: target },
        )?;
        let version = value::ContextActivatedStateVersion {
            state_version: program.state_version,
        };
        rows.put(&key::ContextActivatedStateVersion { context_id }, &version)?;
        rows.delete(&key::ContextMigrationFailed { context_id });
        rows.delete(&key::ContextExecutingBlob { context_id });
        let before = markers.executing.into_iter().collect();
        let after = self.named_besides(application_id, context_id)?;
        let change =
            self.forget_unnamed(&mut rows, ReferenceChange::new(), application_id, before, &after)?;
        self.blobs.settle(change.with(&rows.0))
    }

    /// Waits until an activation survives a power cut; nobody is told of it before.
    fn activated(&self, context_id: ContextId, code: BlobId) -> Result<UpgradeOutcome, StoreError> {
        self.store.flush()?;
        tracing::info!(context = %context_id, %code, "code activated");
        Ok(UpgradeOutcome::Activated { code })
    }

    /// One batch: the failure, and a pin to the old code unless there is one or none is needed.
    fn record_failure(
        &self,
        context_id: ContextId,
        markers: &Markers,
        serving: BlobId,
        kind: ContextMigrationFailed,
    ) -> Result<(), StoreError> {
        let mut rows = Rows::new();
        rows.put(&key::ContextMigrationFailed { context_id }, &kind)?;
        if markers.executing.is_none() && markers.installed != Some(serving) {
            rows.put(
                &key::ContextExecutingBlob { context_id },
                &value::ContextExecutingBlob { blob: serving },
            )?;
        }
        self.store.clone().apply(&rows.0)
    }

    /// The activation marker only ever moves forward: up the group's ladder, and never to an older state version.
    fn require_forward(
        &self,
        context_id: ContextId,
        markers: &Markers,
        target: BlobId,
    ) -> Result<(), StoreError> {
        let application_id = application_of(&self.store, context_id)?;
        let program = self
            .get(application_id)?
            .ok_or(StoreError::UnknownApplication(application_id))?;
        if let Some(current) = markers
            .activated_state_version
            .filter(|current| program.state_version < *current)
        {
            let offered = program.state_version;
            return Err(StoreError::Downgrade {
                application: application_id,
                offered,
                current,
            });
        }
        let (Some(activated), Some(group_id)) = (markers.activated, group_of(&self.store, context_id)?)
        else {
            return Ok(());
        };
        let ladder = self
            .store
            .view()
            .get(&key::GroupUpgradeLadder { group_id })?
            .unwrap_or_default();
        match (ladder.position(&activated), ladder.position(&target)) {
            (Some(now), Some(next)) if next < now => Err(StoreError::ActivationBackwards {
                context: context_id,
                activated,
                target,
            }),
            _ => Ok(()),
        }
    }
}
