//! Edits of arrays that may have holes. Dense arrays are edited in place; an array with holes is rebuilt from its
//! runs, so an edit costs its runs and never its length. Used by patch application only.

use crate::codec::MAX_HOLES;
use crate::value::{Array, Slot, Value};

/// The edit would leave more holes than WIRE-314 allows.
#[derive(Debug)]
pub(super) struct TooManyHoles;

/// Replaces `remove` slots from `at` by `add`. The caller has checked `at <= len` and `at + remove <= len`.
pub(super) fn splice(
    array: &mut Array,
    at: usize,
    remove: usize,
    add: Vec<Value>,
) -> Result<(), TooManyHoles> {
    if let Some(items) = array.as_dense_mut() {
        items.splice(at..at + remove, add);
        return Ok(());
    }
    splice_slots(array, at, remove, add.into_iter().map(Slot::Value))
}

/// Inserts one value before `at <= len`.
pub(super) fn insert(array: &mut Array, at: usize, value: Value) -> Result<(), TooManyHoles> {
    if let Some(items) = array.as_dense_mut() {
        items.insert(at, value);
        return Ok(());
    }
    splice_slots(array, at, 0, [Slot::Value(value)])
}

/// Removes the slot at `at < len`.
pub(super) fn remove(array: &mut Array, at: usize) -> Result<(), TooManyHoles> {
    if let Some(items) = array.as_dense_mut() {
        items.remove(at);
        return Ok(());
    }
    splice_slots(array, at, 1, [])
}

/// Pushes values.
pub(super) fn extend(array: &mut Array, values: Vec<Value>) -> Result<(), TooManyHoles> {
    if let Some(items) = array.as_dense_mut() {
        items.extend(values);
        return Ok(());
    }
    let end = array.len();
    splice_slots(array, end, 0, values.into_iter().map(Slot::Value))
}

/// Assigns at an index that holds nothing yet: a hole, or anywhere past the end, leaving holes before it.
pub(super) fn assign(array: &mut Array, at: usize, value: Value) -> Result<(), TooManyHoles> {
    let len = array.len();
    if at < len {
        return splice_slots(array, at, 1, [Slot::Value(value)]);
    }
    if at == len {
        return insert(array, len, value);
    }
    // An index is at most 2³²−2, so the gap fits.
    splice_slots(
        array,
        len,
        0,
        [Slot::Holes((at - len) as u32), Slot::Value(value)],
    )
}

fn splice_slots(
    array: &mut Array,
    at: usize,
    remove: usize,
    add: impl IntoIterator<Item = Slot>,
) -> Result<(), TooManyHoles> {
    let mut tail = Vec::new();
    let mut head = Vec::new();
    let mut position = 0usize;
    for slot in array.to_slots() {
        let width = match &slot {
            Slot::Value(_) => 1,
            Slot::Holes(n) => *n as usize,
        };
        // A run may straddle either cut; what lies before `at` stays, what lies from `at + remove` on stays.
        let before = at.saturating_sub(position).min(width);
        let after = (position + width).saturating_sub(at + remove).min(width);
        match slot {
            Slot::Value(value) if before == 1 => head.push(Slot::Value(value)),
            Slot::Value(value) if after == 1 => tail.push(Slot::Value(value)),
            Slot::Value(_) => {}
            Slot::Holes(_) => {
                head.push(Slot::Holes(before as u32));
                tail.push(Slot::Holes(after as u32));
            }
        }
        position += width;
    }
    head.extend(add);
    head.extend(tail);
    let holes: u64 = head
        .iter()
        .map(|slot| {
            if let Slot::Holes(n) = slot {
                u64::from(*n)
            } else {
                0
            }
        })
        .sum();
    if holes > MAX_HOLES {
        return Err(TooManyHoles);
    }
    head.retain(|slot| !matches!(slot, Slot::Holes(0)));
    // With the holes bounded, only 2³²−1 real elements could pass the length limit.
    *array = Array::from_slots(head).ok_or(TooManyHoles)?;
    Ok(())
}
