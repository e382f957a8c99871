//! What a start does before anything runs: orphan files go, markers that another program left half-set are completed, and
//! every context's state is told. Rules: NODE-31, NODE-32.

use super::{Programs, Rows};
use crate::blob::Swept;
use crate::error::StoreError;
use crate::id::ContextId;
use crate::key::{self, Fragment, GenericScope};
use crate::layer::{LayerExt, WriteLayer};
use crate::markers::{Markers, UpgradeState, upgrade_state};
use crate::value;

/// What a start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Files removed.
    pub swept: Swept,
    /// Contexts whose pin was completed or dropped, or whose state another program left half replaced.
    pub repaired: Vec<ContextId>,
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
        let handle = self.store.view();
        let mut rows = Rows::new();
        let mut known = Vec::new();
        for row in handle.scan_family::<key::ContextMeta>()? {
            let (key, meta) = row?;
            let markers = Markers::of(&self.store, key.context_id, &meta)?;
            let cut_off = handle.has(&replacement_under_way(key.context_id))?;
            known.push((
                key.context_id,
                repair(
                    &mut rows,
                    key.context_id,
                    markers,
                    cut_off,
                    &mut recovered.repaired,
                )?,
            ));
        }
        if !rows.0.is_empty() {
            self.store.clone().apply(&rows.0)?;
        }
        recovered.contexts = known
            .into_iter()
            .map(|(context, markers)| (context, upgrade_state(&markers)))
            .collect();
        Ok(recovered)
    }
}

/// The reference's note that a context's state is being replaced; at a start it means that the replacement was cut off.
pub(super) fn replacement_under_way(context_id: ContextId) -> key::Generic {
    key::Generic {
        scope: GenericScope::SYNC_IN_PROGRESS,
        fragment: Fragment::from(context_id),
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
