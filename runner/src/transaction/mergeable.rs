//! Mergeable operations recorded beside their local effect, so that concurrent writers do not conflict (RUN-88).

use memory_wire::equality::value_equal;
use memory_wire::patch::PatchOp;
use memory_wire::{Array, Value};
use smol_str::SmolStr;

use super::tree;
use crate::address::{Path, is_prefix};

/// What a writer says a write means.
#[derive(Clone, Debug)]
pub enum MergeableOp {
    /// The write pushes at the tail of an array; the payload is the tail found at commit.
    Append,
    /// The write pushes, at the tail, elements that were not there.
    AddUnique,
    /// The write adds to a number.
    Increment {
        /// By how much.
        by: f64,
    },
    /// The write removes every element equal to one of these.
    RemoveByValue {
        /// What was removed.
        values: Vec<Value>,
    },
}

#[derive(Clone, Debug)]
enum Intent {
    Append {
        tail_start: usize,
    },
    AddUnique {
        tail_start: usize,
    },
    Increment {
        by: f64,
    },
    RemoveByValue {
        values: Vec<Value>,
    },
    /// Falls back to the diff.
    Poisoned,
}

#[derive(Clone, Debug)]
struct Entry {
    path: Path,
    intent: Intent,
    /// The recorded local write is running: it may reshape this path without poisoning it.
    open: bool,
}

/// The intents of one document, one per path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intents(Vec<Entry>);

impl Intents {
    /// Starts a recorded operation at `path`, whose array had `tail_start` elements before it.
    pub(crate) fn begin(&mut self, path: &[SmolStr], op: MergeableOp, tail_start: usize) {
        let fresh = match op {
            MergeableOp::Append => Intent::Append { tail_start },
            MergeableOp::AddUnique => Intent::AddUnique { tail_start },
            MergeableOp::Increment { by } => Intent::Increment { by },
            MergeableOp::RemoveByValue { values } => Intent::RemoveByValue { values },
        };
        let Some(entry) = self.0.iter_mut().find(|e| e.path == path) else {
            self.0.push(Entry {
                path: path.to_vec(),
                intent: fresh,
                open: true,
            });
            return;
        };
        entry.open = true;
        match (&mut entry.intent, fresh) {
            // The tail goes on growing from where it first began.
            (Intent::Append { .. }, Intent::Append { .. })
            | (Intent::AddUnique { .. }, Intent::AddUnique { .. }) => {}
            (Intent::Increment { by }, Intent::Increment { by: more }) => *by += more,
            (Intent::RemoveByValue { values }, Intent::RemoveByValue { values: more }) => values.extend(more),
            (Intent::Poisoned, _) => {}
            // A second kind at one path cannot be said by one operation.
            (intent, _) => *intent = Intent::Poisoned,
        }
    }

    /// Ends the recorded operation; a failed local write poisons the path.
    pub(crate) fn end(&mut self, path: &[SmolStr], wrote: bool) {
        if let Some(entry) = self.0.iter_mut().find(|e| e.path == path) {
            entry.open = false;
            if !wrote {
                entry.intent = Intent::Poisoned;
            }
        }
    }

    /// A write happened at `path`: it poisons every closed intent at or below it.
    pub(crate) fn reshaped(&mut self, path: &[SmolStr]) {
        for entry in self.0.iter_mut().filter(|e| !e.open && is_prefix(path, &e.path)) {
            entry.intent = Intent::Poisoned;
        }
    }

    /// Decides which intents still hold between `base` and `working`. The survivors are independent of each other.
    pub(crate) fn settle(&self, base: Option<&Value>, working: Option<&Value>) -> Vec<Settled> {
        let mut settled: Vec<Settled> = Vec::new();
        for entry in &self.0 {
            let before = base.and_then(|root| tree::get(root, &entry.path));
            let after = working.and_then(|root| tree::get(root, &entry.path));
            if let Some(op) = settle_one(entry, before.as_ref(), after.as_ref()) {
                settled.push(op);
            }
        }
        // An intent inside another one's payload is part of that payload.
        let covered = |at: &Path| {
            settled
                .iter()
                .any(|s| s.path.len() < at.len() && is_prefix(&s.path, at) && s.covers(&at[s.path.len()]))
        };
        let keep: Vec<bool> = settled.iter().map(|s| !covered(&s.path)).collect();
        settled
            .into_iter()
            .zip(keep)
            .filter_map(|(s, keep)| keep.then_some(s))
            .collect()
    }
}

/// An intent that holds, with its operations.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) path: Path,
    pub(crate) ops: Vec<PatchOp>,
    /// Elements before this index are still compared one by one; `None` = the operations say everything.
    pub(crate) compare_below: Option<usize>,
}

impl Settled {
    /// True when the operations' payload includes the child `segment`.
    fn covers(&self, segment: &str) -> bool {
        match self.compare_below {
            None => true,
            Some(tail_start) => tree::index(segment).is_some_and(|i| i >= tail_start),
        }
    }
}

fn settle_one(entry: &Entry, before: Option<&Value>, after: Option<&Value>) -> Option<Settled> {
    let path = entry.path.clone();
    let creates_key = before.is_none();
    match &entry.intent {
        Intent::Poisoned => None,
        Intent::Append { tail_start } | Intent::AddUnique { tail_start } => {
            let values = dense_tail(before, after?, *tail_start)?;
            let op = match entry.intent {
                Intent::AddUnique { .. } => PatchOp::add_unique(path.clone(), values, creates_key),
                _ => PatchOp::append(path.clone(), values, creates_key),
            };
            Some(Settled {
                path,
                ops: vec![op],
                compare_below: Some(*tail_start),
            })
        }
        Intent::Increment { by } => {
            let was = match before {
                None | Some(Value::Undefined) => 0.0,
                Some(value) => value.as_f64()?,
            };
            // The operation must reproduce what was written locally.
            let is = after?.as_f64()?;
            if !by.is_finite() || *by == 0.0 || (was + by).to_bits() != is.to_bits() {
                return None;
            }
            Some(Settled {
                path: path.clone(),
                ops: vec![PatchOp::increment(path, *by, creates_key)],
                compare_below: None,
            })
        }
        Intent::RemoveByValue { values } => {
            let (before, after) = (before?.as_array()?, after?);
            let left: Array = Array::from_slots(
                before
                    .to_slots()
                    .into_iter()
                    .filter(|slot| match slot {
                        memory_wire::value::Slot::Value(v) => !values.iter().any(|gone| value_equal(v, gone)),
                        memory_wire::value::Slot::Holes(_) => true,
                    })
                    .collect(),
            )?;
            if !value_equal(&Value::Array(left), after) {
                return None;
            }
            let ops = values
                .iter()
                .map(|v| PatchOp::remove_by_value(path.clone(), v.clone()))
                .collect();
            Some(Settled {
                path,
                ops,
                compare_below: None,
            })
        }
    }
}

/// The elements from `tail_start` on, when the recorded tail still sits right after the base: same hole layout
/// before it, no holes in it, not empty.
fn dense_tail(before: Option<&Value>, after: &Value, tail_start: usize) -> Option<Vec<Value>> {
    let after = after.as_array()?;
    let base_len = match before {
        None => 0,
        Some(value) => {
            let array = value.as_array()?;
            let same_layout = (0..array.len()).all(|i| array.get(i).is_some() == after.get(i).is_some());
            if (array.as_dense().is_none() || after.as_dense().is_none()) && !same_layout {
                return None;
            }
            array.len()
        }
    };
    if base_len != tail_start || after.len() <= tail_start {
        return None;
    }
    (tail_start..after.len()).map(|i| after.get(i).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::path;
    use memory_wire::value;

    fn settle(intents: &Intents, base: &Value, working: &Value) -> Vec<Value> {
        let settled = intents.settle(Some(base), Some(working));
        settled
            .iter()
            .flat_map(|s| s.ops.iter().map(|op| op.source().clone()))
            .collect()
    }

    #[test]
    fn run_88_appends_carry_the_tail_only() {
        let mut intents = Intents::default();
        let at = path(["value", "items"]);
        intents.begin(&at, MergeableOp::Append, 1);
        intents.end(&at, true);
        let (base, working) = (
            value!({ "value": { "items": [1] } }),
            value!({ "value": { "items": [1, 2, 3] } }),
        );
        let ops = settle(&intents, &base, &working);
        assert_eq!(ops.len(), 1);
        assert!(value_equal(ops[0].member("values").unwrap(), &value!([2, 3])));
        assert!(ops[0].member("createsKey").is_none());
        // The base moved on below the recorded tail.
        assert!(settle(&intents, &value!({ "value": { "items": [1, 9] } }), &working).is_empty());
        // Nothing there yet.
        let fresh = intents.settle(Some(&value!({ "value": {} })), Some(&working));
        assert!(fresh.is_empty(), "tail start 1 does not fit an absent base");
    }

    #[test]
    fn run_88_a_second_kind_or_a_reshaping_write_poisons() {
        let at = path(["value", "n"]);
        let mut intents = Intents::default();
        intents.begin(&at, MergeableOp::Increment { by: 1.0 }, 0);
        intents.end(&at, true);
        let (base, working) = (value!({ "value": { "n": 1 } }), value!({ "value": { "n": 2 } }));
        assert_eq!(settle(&intents, &base, &working).len(), 1);
        let mut reshaped = intents.clone();
        reshaped.reshaped(&path(["value"]));
        assert!(settle(&reshaped, &base, &working).is_empty());
        intents.begin(&at, MergeableOp::Append, 0);
        intents.end(&at, true);
        assert!(settle(&intents, &base, &working).is_empty());
    }

    #[test]
    fn run_88_removals_must_reproduce_the_array() {
        let at = path(["value"]);
        let mut intents = Intents::default();
        intents.begin(
            &at,
            MergeableOp::RemoveByValue {
                values: vec![2.into()],
            },
            3,
        );
        intents.end(&at, true);
        let base = value!({ "value": [1, 2, 2, 3] });
        assert_eq!(settle(&intents, &base, &value!({ "value": [1, 3] })).len(), 1);
        assert!(settle(&intents, &base, &value!({ "value": [1] })).is_empty());
    }
}
