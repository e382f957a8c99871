//! Taking an in-place installation back before any context has activated it. Rule: NODE-35 (activation never moves back).

use super::{Programs, Rows, archive_key, owned_blobs};
use crate::blob::ReferenceChange;
use crate::column::Column;
use crate::error::StoreError;
use crate::id::{ApplicationId, BlobId, ContextId};
use crate::key::{self, KeyRange};
use crate::layer::LayerExt;
use crate::markers::{Markers, group_of};
use crate::value;

impl Programs {
    /// Makes the replaced code the program's code again, in one batch: its whole row, no note, no pins to it, no failures
    /// of the attempt, and no group that wants the code taken back. Refused once a context has activated that code, or runs
    /// it and has written state with it, because its state has moved.
    pub fn rollback(&self, application_id: ApplicationId) -> Result<BlobId, StoreError> {
        let _one = self.steps.lock();
        let current = self
            .get(application_id)?
            .ok_or(StoreError::UnknownApplication(application_id))?;
        let previous = self
            .previous_of(application_id)?
            .ok_or(StoreError::NoPreviousProgram(application_id))?;
        let restored = self
            .superseded(application_id, previous)?
            .ok_or(StoreError::NoPreviousProgram(application_id))?;
        let mut rows = Rows::new();
        for (context_id, markers) in self.contexts_of(application_id)? {
            if markers.activated == Some(current.bytecode)
                || self.works_on(context_id, &markers, current.bytecode)?
            {
                return Err(StoreError::ActivationBackwards {
                    context: context_id,
                    activated: current.bytecode,
                    target: previous,
                });
            }
            if markers.executing == Some(previous) {
                rows.delete(&key::ContextExecutingBlob { context_id });
            }
            if markers.failed.is_some() {
                rows.delete(&key::ContextMigrationFailed { context_id });
            }
            if let Some(group_id) = group_of(&self.store, context_id)?
                && let Some(group) = self.store.view().get(&key::GroupMeta { group_id })?
                && group.app_key == current.bytecode
            {
                rows.put(
                    &key::GroupMeta { group_id },
                    &value::GroupMeta {
                        app_key: previous,
                        ..group
                    },
                )?;
            }
        }
        rows.put(&key::ApplicationMeta { application_id }, &restored)?;
        rows.delete(&key::ApplicationPreviousBlob { application_id });
        rows.delete(&archive_key(application_id, previous));
        // The archived row's owners become the row's; the taken-back code loses its own.
        let change = owned_blobs(&current)
            .into_iter()
            .fold(ReferenceChange::new(), ReferenceChange::releasing);
        self.blobs.settle(change.with(&rows.0))?;
        tracing::info!(application = %application_id, code = %previous, "program rolled back");
        Ok(previous)
    }

    /// Whether a context runs the code and has state. One that was made after the installation is not pinned to anything, and
    /// nobody may have noted an activation yet.
    fn works_on(&self, context_id: ContextId, markers: &Markers, code: BlobId) -> Result<bool, StoreError> {
        if markers.serving() != Some(code) {
            return Ok(false);
        }
        let own = KeyRange::prefix(context_id.as_bytes());
        for column in [Column::State, Column::PrivateState] {
            if !self.store.scan(column, &own, Some(1))?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
