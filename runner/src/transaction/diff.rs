//! Patches between the base and the working document, along written paths only (RUN-87).
//!
//! The footprint matters as much as the effect: what was not written must not be touched, and an array index
//! never ends an `add`, `remove` or `move`, because the conflict matcher is leaf-only and would miss shifted
//! siblings.

use std::collections::BTreeMap;

use memory_wire::equality::value_equal;
use memory_wire::patch::{PatchAction, PatchOp};
use memory_wire::{Array, Value};
use smol_str::SmolStr;

use super::mergeable::Settled;
use super::tree::{self, LENGTH};
use crate::address::Path;

/// Written paths as a tree; a written node absorbs everything below it.
#[derive(Default)]
struct Written {
    here: bool,
    below: BTreeMap<SmolStr, Written>,
}

impl Written {
    fn of(paths: &[Path]) -> Written {
        let mut root = Written::default();
        for path in paths {
            let mut node = &mut root;
            for segment in path {
                node = node.below.entry(segment.clone()).or_default();
            }
            node.here = true;
        }
        root
    }
}

/// The patches that turn `base` into `working` at the written paths, after the settled mergeable operations.
pub(crate) fn patches(base: &Value, working: &Value, written: &[Path], settled: &[Settled]) -> Vec<PatchOp> {
    let mut ops = Vec::new();
    let mut walk = Walk {
        settled,
        ops: &mut ops,
    };
    walk.node(Some(base), Some(working), &Written::of(written), &mut Path::new());
    let mut all: Vec<PatchOp> = settled.iter().flat_map(|s| s.ops.iter().cloned()).collect();
    all.append(&mut ops);
    all
}

struct Walk<'a> {
    settled: &'a [Settled],
    ops: &'a mut Vec<PatchOp>,
}

impl Walk<'_> {
    fn node(&mut self, base: Option<&Value>, working: Option<&Value>, written: &Written, at: &mut Path) {
        let compare_below = match self.settled.iter().find(|s| s.path == *at) {
            Some(Settled {
                compare_below: None, ..
            }) => return,
            Some(Settled { compare_below, .. }) => *compare_below,
            None => None,
        };
        match (base, working) {
            (Some(Value::Array(b)), Some(Value::Array(w))) => self.array(b, w, written, at, compare_below),
            // The tail carried by the operation is all there is.
            (None, Some(_)) if compare_below == Some(0) => {}
            (Some(b), Some(w)) if written.here || !is_container_pair(b, w) => {
                if !value_equal(b, w) {
                    self.ops.push(PatchOp::replace(at.clone(), w.clone()));
                }
            }
            (Some(b), Some(w)) => {
                for (segment, below) in &written.below {
                    let (b, w) = (tree::child(b, segment), tree::child(w, segment));
                    at.push(segment.clone());
                    self.node(b.as_ref(), w.as_ref(), below, at);
                    at.pop();
                }
            }
            (None, Some(w)) if !self.has_settled_below(at) => {
                self.ops.push(PatchOp::add(at.clone(), w.clone()))
            }
            (None, Some(w)) => {
                // An operation below creates the way by itself; only what it does not carry is left to say.
                for (segment, below) in &written.below {
                    let w = tree::child(w, segment);
                    at.push(segment.clone());
                    self.node(None, w.as_ref(), below, at);
                    at.pop();
                }
            }
            (Some(_), None) => self.ops.push(PatchOp::remove(at.clone())),
            (None, None) => {}
        }
    }

    fn has_settled_below(&self, at: &Path) -> bool {
        self.settled
            .iter()
            .any(|s| crate::address::is_prefix(at, &s.path))
    }

    fn array(
        &mut self,
        base: &Array,
        working: &Array,
        written: &Written,
        at: &mut Path,
        tail_start: Option<usize>,
    ) {
        let common = base.len().min(working.len());
        if !same_layout(base, working, common) || !dense_from(working, common) {
            if !value_equal(&Value::Array(base.clone()), &Value::Array(working.clone())) {
                self.ops
                    .push(PatchOp::replace(at.clone(), Value::Array(working.clone())));
            }
            return;
        }
        if written.here {
            for i in 0..common {
                if let (Some(b), Some(w)) = (base.get(i), working.get(i))
                    && !value_equal(b, w)
                {
                    at.push(segment_of(i));
                    self.ops.push(PatchOp::replace(at.clone(), w.clone()));
                    at.pop();
                }
            }
        } else {
            for (segment, below) in &written.below {
                let Some(i) = tree::index(segment).filter(|i| *i < common && segment != LENGTH) else {
                    continue;
                };
                at.push(segment.clone());
                self.node(base.get(i), working.get(i), below, at);
                at.pop();
            }
        }
        // One splice at the tail says growth and shrinkage; a recorded tail was said already.
        if base.len() != working.len() && tail_start.is_none() {
            let add: Vec<Value> = (common..working.len())
                .filter_map(|i| working.get(i).cloned())
                .collect();
            self.ops.push(PatchOp::from_action(PatchAction::Splice {
                path: at.clone(),
                index: common as f64,
                remove: (base.len() - common) as f64,
                add,
            }));
        }
    }
}

fn is_container_pair(a: &Value, b: &Value) -> bool {
    matches!((a, b), (Value::Object(_), Value::Object(_)))
}

fn same_layout(a: &Array, b: &Array, common: usize) -> bool {
    if a.as_dense().is_some() && b.as_dense().is_some() {
        return true;
    }
    (0..common).all(|i| a.get(i).is_some() == b.get(i).is_some())
}

fn dense_from(array: &Array, from: usize) -> bool {
    array.as_dense().is_some() || (from..array.len()).all(|i| array.get(i).is_some())
}

fn segment_of(index: usize) -> SmolStr {
    smol_str::format_smolstr!("{index}")
}

/// RUN-87: an operation that would shift array elements under the conflict matcher's feet.
pub(crate) fn shifts_an_array(op: &PatchOp, base: &Value) -> bool {
    let ends_in_array = |path: &Path| {
        path.split_last()
            .is_some_and(|(_, parent)| matches!(tree::get(base, parent), Some(Value::Array(_))))
    };
    match op.action() {
        PatchAction::Add { path, .. } | PatchAction::Remove { path } => ends_in_array(path),
        PatchAction::Move { from, path } => ends_in_array(from) || ends_in_array(path),
        PatchAction::Replace { .. }
        | PatchAction::Splice { .. }
        | PatchAction::Append { .. }
        | PatchAction::AddUnique { .. }
        | PatchAction::RemoveByValue { .. }
        | PatchAction::Increment { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::path;
    use memory_wire::patch::apply_patches;
    use memory_wire::value;

    fn check(base: Value, working: Value, written: &[&[&str]], expected_kinds: &[&str]) {
        let written: Vec<Path> = written.iter().map(|p| path(p.iter())).collect();
        let ops = patches(&base, &working, &written, &[]);
        assert_eq!(
            ops.iter().map(PatchOp::kind).collect::<Vec<_>>(),
            expected_kinds,
            "{ops:?}"
        );
        assert!(ops.iter().all(|op| !shifts_an_array(op, &base)));
        assert!(
            value_equal(&apply_patches(&base, &ops).unwrap(), &working),
            "{ops:?}"
        );
    }

    #[test]
    fn run_87_presence_decides_add_remove_replace() {
        check(
            value!({ "value": {} }),
            value!({ "value": { "a": { "b": 1 } } }),
            &[&["value", "a", "b"]],
            &["add"],
        );
        check(
            value!({ "value": { "a": 1 } }),
            value!({ "value": {} }),
            &[&["value", "a"]],
            &["remove"],
        );
        check(
            value!({ "value": { "a": 1 } }),
            value!({ "value": { "a": 2 } }),
            &[&["value", "a"]],
            &["replace"],
        );
        check(
            value!({ "value": 1 }),
            value!({ "value": { "a": 2 } }),
            &[&["value"], &["value", "a"]],
            &["replace"],
        );
    }

    #[test]
    fn run_87_arrays_compare_by_index_with_one_tail_splice() {
        let (base, grown) = (
            value!({ "value": [1, 2, 3] }),
            value!({ "value": [1, 9, 3, 4, 5] }),
        );
        check(base.clone(), grown.clone(), &[&["value"]], &["replace", "splice"]);
        check(
            base.clone(),
            grown,
            &[&["value", "1"], &["value", "3"], &["value", "4"]],
            &["replace", "splice"],
        );
        check(
            base.clone(),
            value!({ "value": [1] }),
            &[&["value", "length"]],
            &["splice"],
        );
        check(base.clone(), value!({ "value": [1] }), &[&["value"]], &["splice"]);
        check(
            value!({ "value": [{ "a": 1 }] }),
            value!({ "value": [{ "a": 2 }] }),
            &[&["value", "0", "a"]],
            &["replace"],
        );
    }

    #[test]
    fn run_87_holes_replace_the_whole_array() {
        let base = value!({ "value": [1, 2, 3] });
        let mut holed = base.clone();
        tree::put(&mut holed, &path(["value", "1"]), None).unwrap();
        check(base, holed, &[&["value", "1"]], &["replace"]);
    }
}
