//! Which places chains of links came by on their way to the tracked entries. A link is not followed a second time within
//! one chain (TRV-403.4), so what a chain reaches behind an entry depends on how it came there; a refresh begins in the
//! middle, at the entry, and looks here where the chain may have been before.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::source::DocKey;
use super::tracker::Order;
use crate::js_string::JsString;

/// Where a link points to: a document and a place in it. Links with one target lead on alike.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Target {
    pub(super) key: DocKey,
    pub(super) path: Arc<[JsString]>,
}

impl Target {
    pub(super) fn new(key: DocKey, path: &[JsString]) -> Target {
        Target {
            key,
            path: path.into(),
        }
    }
}

/// One step of a chain, to an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    /// What the followed link names; the entry's own path goes on with what the chain still had to walk.
    target: Target,
    /// The entry that the chain came through last. `None`: the step was the chain's first.
    before: Option<Order>,
}

/// The steps to all entries that a chain came through or ended at.
#[derive(Clone, Default, Debug)]
pub(super) struct Chains {
    steps: FxHashMap<Order, Vec<Step>>,
}

impl Chains {
    /// Records a step to an entry.
    pub(super) fn note(&mut self, entry: Order, target: Target, before: Option<Order>) {
        let step = Step { target, before };
        let steps = self.steps.entry(entry).or_default();
        if !steps.contains(&step) {
            steps.push(step);
        }
    }

    /// All places that a chain may have come by before it left an entry.
    pub(super) fn before(&self, entry: Order) -> FxHashSet<Target> {
        let mut targets = FxHashSet::default();
        let (mut open, mut seen) = (vec![entry], FxHashSet::from_iter([entry]));
        while let Some(entry) = open.pop() {
            for step in self.steps.get(&entry).into_iter().flatten() {
                targets.insert(step.target.clone());
                open.extend(step.before.filter(|before| seen.insert(*before)));
            }
        }
        targets
    }

    /// The same with every document's key replaced.
    pub(super) fn rekeyed(&self, mut key: impl FnMut(&DocKey) -> DocKey) -> Chains {
        let mut chains = self.clone();
        for step in chains.steps.values_mut().flatten() {
            step.target.key = key(&step.target.key);
        }
        chains
    }
}
