//! Installing a program: code into blobs, then one batch for counts, row, pins and the note of what was replaced.
//! Rules: NODE-30, NODE-31, NODE-35.

use std::collections::BTreeSet;
use std::io::Read;

use super::{Programs, Rows, archive_key, owned_blobs};
use crate::blob::ReferenceChange;
use crate::error::StoreError;
use crate::id::{ApplicationId, BlobId, ContextId};
use crate::key;
use crate::layer::LayerExt;
use crate::value::{self, ApplicationMeta, Bytes, Service};

/// A program as delivered. The id does not change between versions, so that a newer one is installed in place.
pub struct Bundle<'c> {
    /// The program.
    pub application_id: ApplicationId,
    /// Package name.
    pub package: String,
    /// Package version.
    pub version: String,
    /// Where it came from.
    pub source: String,
    /// Who signed it.
    pub signer_id: String,
    /// The installer's own note.
    pub metadata: Vec<u8>,
    /// Version of the state layout that the code works on.
    pub state_version: u32,
    /// The code.
    pub code: Box<dyn Read + 'c>,
    /// Services' code, where the program has several.
    pub services: Vec<ServiceCode<'c>>,
}

/// One service of a program as delivered.
pub struct ServiceCode<'c> {
    /// Its name.
    pub name: String,
    /// Its code.
    pub code: Box<dyn Read + 'c>,
}

/// What an installation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallOutcome {
    /// The code now named by the program's row.
    pub code: BlobId,
    /// The code that was replaced, if any.
    pub replaced: Option<BlobId>,
    /// Contexts that go on running the replaced code until they are upgraded.
    pub pinned: Vec<ContextId>,
}

impl Programs {
    /// Installs a program, or a newer version of one in place. In one batch: the blobs' counts, the program's row, what it
    /// replaced, and a pin for every context that ran the replaced code, so that none runs new code on old state. An older
    /// state version than the installed one is refused.
    pub fn install(&self, bundle: Bundle<'_>) -> Result<InstallOutcome, StoreError> {
        let application_id = bundle.application_id;
        let _one = self.steps.lock();
        let staged = self.blobs.stage(bundle.code)?;
        let (code, size) = (staged.id(), staged.size());
        let mut stages = vec![staged];
        let mut services = Vec::with_capacity(bundle.services.len());
        for service in bundle.services {
            let staged = self.blobs.stage(service.code)?;
            services.push(Service {
                name: service.name,
                bytecode: staged.id(),
                compiled: BlobId::ZERO,
            });
            stages.push(staged);
        }
        let meta = ApplicationMeta {
            bytecode: code,
            size,
            source: bundle.source,
            metadata: Bytes(bundle.metadata),
            compiled: BlobId::ZERO,
            package: bundle.package,
            version: bundle.version,
            signer_id: bundle.signer_id,
            services,
            state_version: bundle.state_version,
        };

        let (mut rows, mut change) = (Rows::new(), ReferenceChange::new());
        // One owner a distinct blob: the row. Identical parts of a bundle are one blob and stay staged once.
        let mut wanted = owned_blobs(&meta);
        for staged in stages {
            if wanted.remove(&staged.id()) {
                change = change.adding(staged);
            }
        }
        let mut outcome = InstallOutcome {
            code,
            replaced: None,
            pinned: Vec::new(),
        };
        if let Some(old) = self.get(application_id)? {
            if meta.state_version < old.state_version {
                return Err(StoreError::Downgrade {
                    application: application_id,
                    offered: meta.state_version,
                    current: old.state_version,
                });
            }
            if old.bytecode == code {
                for blob in owned_blobs(&old) {
                    change = change.releasing(blob);
                }
            } else {
                outcome.replaced = Some(old.bytecode);
                change = self.replace(&mut rows, change, application_id, &old, code, &mut outcome.pinned)?;
            }
        }
        rows.put(&key::ApplicationMeta { application_id }, &meta)?;
        self.blobs.settle(change.with(&rows.0))?;
        tracing::info!(application = %application_id, code = %code, pinned = outcome.pinned.len(), "program installed");
        Ok(outcome)
    }

    /// Rows of an in-place replacement: the note of what was replaced first, then the pins.
    fn replace(
        &self,
        rows: &mut Rows,
        mut change: ReferenceChange,
        application_id: ApplicationId,
        old: &ApplicationMeta,
        code: BlobId,
        pinned: &mut Vec<ContextId>,
    ) -> Result<ReferenceChange, StoreError> {
        let note = value::ApplicationPreviousBlob {
            bytecode: old.bytecode,
        };
        rows.put(&key::ApplicationPreviousBlob { application_id }, &note)?;
        rows.archive(application_id, old)?;
        let mut before: BTreeSet<BlobId> = self.previous_of(application_id)?.into_iter().collect();
        let mut after = BTreeSet::from([code, old.bytecode]);
        for (context_id, markers) in self.contexts_of(application_id)? {
            before.extend(markers.executing);
            let key = key::ContextExecutingBlob { context_id };
            match markers.executing {
                // Its state is of this code already.
                _ if markers.activated == Some(code) => rows.delete(&key),
                Some(kept) => drop(after.insert(kept)),
                None => {
                    rows.put(&key, &value::ContextExecutingBlob { blob: old.bytecode })?;
                    pinned.push(context_id);
                }
            }
        }
        // Code that came back is named by the row again; its archived owner goes.
        change = self.forget(rows, change, &archive_key(application_id, code))?;
        self.forget_unnamed(rows, change, application_id, before, &after)
    }

    pub(super) fn previous_of(&self, application_id: ApplicationId) -> Result<Option<BlobId>, StoreError> {
        let row = self
            .store
            .view()
            .get(&key::ApplicationPreviousBlob { application_id })?;
        Ok(row.map(|row| row.bytecode))
    }

    /// Drops superseded code that was named and is no longer.
    pub(super) fn forget_unnamed(
        &self,
        rows: &mut Rows,
        mut change: ReferenceChange,
        application_id: ApplicationId,
        before: BTreeSet<BlobId>,
        after: &BTreeSet<BlobId>,
    ) -> Result<ReferenceChange, StoreError> {
        for code in before.difference(after) {
            change = self.forget(rows, change, &archive_key(application_id, *code))?;
        }
        Ok(change)
    }

    /// What names code of a program besides the pin of one context: its row, its note, the other contexts' pins.
    pub(super) fn named_besides(
        &self,
        application_id: ApplicationId,
        context_id: ContextId,
    ) -> Result<BTreeSet<BlobId>, StoreError> {
        let mut named: BTreeSet<BlobId> = self.previous_of(application_id)?.into_iter().collect();
        named.extend(self.get(application_id)?.map(|row| row.bytecode));
        // Of every program: more is read than asked for rather than that another context's damage ends this one's step.
        for row in self.store.view().scan_family::<key::ContextExecutingBlob>()? {
            let (other, pin) = row?;
            if other.context_id != context_id {
                named.insert(pin.blob);
            }
        }
        Ok(named)
    }

    /// Drops the archived row of superseded code, and its owners with it.
    pub(super) fn forget(
        &self,
        rows: &mut Rows,
        mut change: ReferenceChange,
        archived: &key::Generic,
    ) -> Result<ReferenceChange, StoreError> {
        if let Some(meta) = super::archived(&self.store, archived)? {
            rows.delete(archived);
            for blob in owned_blobs(&meta) {
                change = change.releasing(blob);
            }
        }
        Ok(change)
    }
}

impl std::fmt::Debug for Bundle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bundle")
            .field("application_id", &self.application_id)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
