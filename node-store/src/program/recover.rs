//! What a start does before anything runs: orphan files go, markers that another program left half-set are completed, and
//! every context's state is told. Rules: NODE-31, NODE-32.

use super::{Programs, Rows};
use crate::blob::Swept;
use crate::error::StoreError;
use crate::id::ContextId;
use crate::key;
use crate::layer::{LayerExt, WriteLayer};
use crate::markers::{Markers, UpgradeState, upgrade_state};
use crate::value;

/// What a start found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Files removed.
    pub swept: Swept,
    /// Contexts whose pin was completed or dropped.
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
            known.push((
                key.context_id,
                repair(&mut rows, key.context_id, markers, &mut recovered.repaired)?,
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

/// Our own batches never leave these two states; the reference implementation, which no longer uses the pin, does.
fn repair(
    rows: &mut Rows,
    context_id: ContextId,
    mut markers: Markers,
    repaired: &mut Vec<ContextId>,
) -> Result<Markers, StoreError> {
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
