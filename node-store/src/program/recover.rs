//! What a start does before anything runs: orphan files go, markers that another program left half-set are completed, and
//! every context's state is told. Rules: NODE-31, NODE-32.

use std::collections::BTreeSet;

use super::{Programs, Rows, archive_key};
use crate::blob::{ReferenceChange, Swept};
use crate::column::Column;
use crate::context::replacement_under_way;
use crate::error::StoreError;
use crate::id::ContextId;
use crate::key::{self, Direction, GenericScope, Key, KeyRange, looks_like};
use crate::layer::{LayerExt, ReadLayer};
use crate::markers::{Markers, UpgradeState, upgrade_state};
use crate::value;

/// What a start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Files removed.
    pub swept: Swept,
    /// Contexts whose pin was completed or dropped, or whose state another program left half replaced.
    pub repaired: Vec<ContextId>,
    /// Contexts of which a row does not decode, and what was met: nothing of theirs is touched, and the others start all the
    /// same.
    pub unreadable: Vec<(ContextId, String)>,
    /// Superseded code that nobody names any more, such as that of a context which was removed.
    pub forgotten: usize,
    /// Where every context stands. `Pending` ones are to be upgraded; `Failed` ones go on with their old code.
    pub contexts: Vec<(ContextId, UpgradeState)>,
}

impl Programs {
    /// Recovers after any stop, clean or not. Doing it again changes nothing.
    pub fn recover(&self) -> Result<Recovered, StoreError> {
        let _one = self.steps.lock();
        let mut recovered = Recovered {
            swept: self.blobs.sweep()?,
            ..Recovered::default()
        };
        let mut rows = Rows::new();
        let mut known = Vec::new();
        let mut contexts = self
            .store
            .range(Column::Meta, &KeyRange::all(), Direction::Ascending)?;
        while let Some(row) = contexts.next()? {
            if !looks_like::<key::ContextMeta>(row.key) {
                continue;
            }
            let context_id = key::ContextMeta::parse(row.key)?.context_id;
            match self.facts(context_id) {
                Ok((markers, cut_off)) => {
                    let repaired = &mut recovered.repaired;
                    known.push((
                        context_id,
                        repair(&mut rows, context_id, markers, cut_off, repaired)?,
                    ));
                }
                Err(error @ StoreError::UndecodableValue { .. }) => {
                    tracing::error!(context = %context_id, %error, "a context is left as it is");
                    recovered.unreadable.push((context_id, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        drop(contexts);
        let mut change = ReferenceChange::new();
        // What a context that cannot be read names is not known.
        if recovered.unreadable.is_empty() {
            (recovered.forgotten, change) = self.forget_orphaned(&mut rows, change)?;
        }
        if !rows.0.is_empty() {
            self.blobs.settle(change.with(&rows.0))?;
        }
        recovered.contexts = known
            .into_iter()
            .map(|(context, markers)| (context, upgrade_state(&markers)))
            .collect();
        Ok(recovered)
    }

    fn facts(&self, context_id: ContextId) -> Result<(Markers, bool), StoreError> {
        let cut_off = self.store.view().has(&replacement_under_way(context_id))?;
        Ok((Markers::read(&self.store, context_id)?, cut_off))
    }

    /// Stages the end of archived rows that no program's note and no context's pin names.
    fn forget_orphaned(
        &self,
        rows: &mut Rows,
        mut change: ReferenceChange,
    ) -> Result<(usize, ReferenceChange), StoreError> {
        let handle = self.store.view();
        let mut named = BTreeSet::new();
        for row in handle.scan_family::<key::ApplicationPreviousBlob>()? {
            let (key, note) = row?;
            named.insert(archive_key(key.application_id, note.bytecode));
        }
        for row in handle.scan_family::<key::ContextMeta>()? {
            let (key::ContextMeta { context_id }, meta) = row?;
            if let Some(pin) = handle.get(&key::ContextExecutingBlob { context_id })? {
                named.insert(archive_key(meta.application, pin.blob));
            }
        }
        let mut forgotten = 0;
        let mut archive = handle.scan::<key::Generic>(&GenericScope::SUPERSEDED_PROGRAM)?;
        while let Some((key, _)) = archive.next_raw()? {
            if !named.contains(&key) {
                change = self.forget(rows, change, &key)?;
                forgotten += 1;
            }
        }
        Ok((forgotten, change))
    }
}

/// Our own batches never leave the states mended here; the reference implementation does: it no longer uses the pin, and
/// it replaces a state row by row, with a note that the replacement is under way.
fn repair(
    rows: &mut Rows,
    context_id: ContextId,
    mut markers: Markers,
    cut_off: bool,
    repaired: &mut Vec<ContextId>,
) -> Result<Markers, StoreError> {
    if cut_off && !markers.resync_requested {
        rows.put(&key::ContextResyncRequested { context_id }, &())?;
        markers.resync_requested = true;
        repaired.push(context_id);
        return Ok(markers);
    }
    let key = key::ContextExecutingBlob { context_id };
    match (markers.activated, markers.executing) {
        // State is of the activated code, and the row names other code: without a pin that other code would run.
        (Some(activated), None) if markers.installed.is_some_and(|row| row != activated) => {
            rows.put(&key, &value::ContextExecutingBlob { blob: activated })?;
            markers.executing = Some(activated);
            repaired.push(context_id);
        }
        // State is of the code that the row names: a pin to other code is left over.
        (Some(activated), Some(pinned)) if markers.installed == Some(activated) && pinned != activated => {
            rows.delete(&key);
            markers.executing = None;
            repaired.push(context_id);
        }
        _ => {}
    }
    Ok(markers)
}
