//! When a change of a document concerns a read of it (RUN-511, 541), and the compacted read logs that the
//! scheduler subscribes by. Pure functions over paths and values; the index that uses them is
//! `graph`.

use memory_wire::equality::value_equal;
use memory_wire::value::Special;
use memory_wire::{Scope, ScopeKey, Value};
use smol_str::SmolStr;

use crate::address::{Address, is_prefix};
use crate::transaction::ReactivityLog;

/// The compacted reads of one run, or of a union of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadLog {
    /// Reads of whole subtrees; none lies below another of the same instance.
    pub recursive: Vec<Address>,
    /// Reads of one container's shape or of one leaf.
    pub shallow: Vec<Address>,
}

impl ReadLog {
    /// Compacts what a transaction recorded (RUN-541).
    pub fn of(log: &ReactivityLog) -> ReadLog {
        ReadLog {
            recursive: compact_recursive(log.reads.clone()),
            shallow: compact_shallow(log.shallow_reads.clone()),
        }
    }

    /// The reads of all of `logs`, compacted once.
    pub fn union<'a>(logs: impl IntoIterator<Item = &'a ReadLog>) -> ReadLog {
        let mut union = ReadLog::default();
        for log in logs {
            union.recursive.extend(log.recursive.iter().cloned());
            union.shallow.extend(log.shallow.iter().cloned());
        }
        ReadLog {
            recursive: compact_recursive(union.recursive),
            shallow: compact_shallow(union.shallow),
        }
    }

    /// Every read with whether it is recursive.
    pub fn iter(&self) -> impl Iterator<Item = (&Address, Depth)> {
        let recursive = self.recursive.iter().map(|a| (a, Depth::Recursive));
        recursive.chain(self.shallow.iter().map(|a| (a, Depth::Shallow)))
    }

    /// True when nothing was read.
    pub fn is_empty(&self) -> bool {
        self.recursive.is_empty() && self.shallow.is_empty()
    }
}

/// How far below its path a read looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Depth {
    /// The whole subtree.
    Recursive,
    /// One container's kind, keys and length, or one leaf.
    Shallow,
}

/// Do a read at `read` and a write at `write` of the same document touch (RUN-533)?
pub fn overlaps(read: &[SmolStr], write: &[SmolStr], depth: Depth) -> bool {
    if !crate::address::overlaps(read, write) {
        return false;
    }
    match depth {
        Depth::Recursive => true,
        Depth::Shallow => write.len() <= read.len() + 1,
    }
}

/// RUN-511: does a change at `changed`, from document `before` to document `after`, concern a read at `read`?
/// `None` is an absent document.
pub fn triggers(
    read: &[SmolStr],
    depth: Depth,
    changed: &[SmolStr],
    before: Option<&Value>,
    after: Option<&Value>,
) -> bool {
    if !overlaps(read, changed, depth) {
        return false;
    }
    match (reach(before, read), reach(after, read)) {
        (Reach::Found(a), Reach::Found(b)) => match depth {
            Depth::Recursive => !value_equal(&a, &b),
            Depth::Shallow => shape_differs(&a, &b),
        },
        (Reach::Found(_), Reach::Lost(_)) | (Reach::Lost(_), Reach::Found(_)) => true,
        (Reach::Lost(a), Reach::Lost(b)) => a != b,
    }
}

/// What a path leads to in a document.
enum Reach {
    Found(Value),
    /// Nothing; the number of containers passed, 0 for an absent document.
    Lost(usize),
}

fn reach(document: Option<&Value>, path: &[SmolStr]) -> Reach {
    let Some(root) = document else {
        return Reach::Lost(0);
    };
    let mut at = root.clone();
    for (passed, segment) in path.iter().enumerate() {
        let next = match &at {
            Value::Object(object) => object.get(segment).cloned(),
            Value::Array(array) if segment == "length" => Some(Value::Number(array.len() as f64)),
            Value::Array(array) => memory_wire::value::index_rank(segment.as_bytes())
                .and_then(|index| array.get(index as usize).cloned()),
            _ => return Reach::Lost(passed),
        };
        match next {
            Some(value) => at = value,
            None => return Reach::Lost(passed + 1),
        }
    }
    Reach::Found(at)
}

/// The difference a shallow read notices.
fn shape_differs(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) if !is_link(a) && !is_link(b) => {
            x.len() != y.len() || x.iter().zip(y.iter()).any(|((k, _), (l, _))| k != l)
        }
        (Value::Array(x), Value::Array(y)) => x.len() != y.len(),
        _ => !value_equal(a, b),
    }
}

/// A link is a leaf to a shallow read: what counts is where it points.
fn is_link(value: &Value) -> bool {
    match value {
        Value::Object(object) => object.len() == 1 && object.contains_key("/"),
        Value::Special(special) => matches!(**special, Special::Link(_)),
        _ => false,
    }
}

/// RUN-541 for recursive reads: drops what an ancestor of the same instance covers. Sorted.
pub fn compact_recursive(mut reads: Vec<Address>) -> Vec<Address> {
    reads.sort_by(read_order);
    let mut kept: Vec<Address> = Vec::with_capacity(reads.len());
    for read in reads {
        // In sorted order an ancestor comes before its descendants, with only its other descendants between.
        let covered = kept
            .last()
            .is_some_and(|top| same_instance(top, &read) && is_prefix(&top.path, &read.path));
        if !covered {
            kept.push(read);
        }
    }
    kept
}

/// RUN-541 for shallow reads: drops exact repetitions only. Sorted.
pub fn compact_shallow(mut reads: Vec<Address>) -> Vec<Address> {
    reads.sort_by(read_order);
    reads.dedup_by(|a, b| same_instance(a, b) && a.path == b.path);
    reads
}

/// Instance identity of an address: its explicit key, else its scope name (RUN-404).
fn instance_of(address: &Address) -> (Option<&ScopeKey>, Scope) {
    match &address.scope_key {
        Some(key) => (Some(key), Scope::Space),
        None => (None, address.scope),
    }
}

fn same_instance(a: &Address, b: &Address) -> bool {
    a.space == b.space && a.id == b.id && instance_of(a) == instance_of(b)
}

fn read_order(a: &Address, b: &Address) -> std::cmp::Ordering {
    (&a.space, &a.id, instance_of(a))
        .cmp(&(&b.space, &b.id, instance_of(b)))
        .then_with(|| a.path.cmp(&b.path))
}
