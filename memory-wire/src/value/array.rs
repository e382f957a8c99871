//! Arrays (WIRE-301): dense, or with holes kept as runs (WIRE-308, WIRE-314); shared until changed.

use std::sync::Arc;

use super::Value;

/// One run of an array: a value, or consecutive holes.
#[derive(Clone, Debug)]
pub enum Slot {
    /// An element (which may be `undefined`).
    Value(Value),
    /// `n ≥ 1` consecutive holes; neighbouring runs are always merged.
    Holes(u32),
}

/// An array. Dense in nearly every case; holes are kept as runs, so that a claim of four billion holes costs
/// one slot (WIRE-314).
#[derive(Clone, Debug)]
pub struct Array(ArrayRepr);

/// Invariant: `Sparse` holds at least one hole run, adjacent runs are merged, and the total length is in the first field.
#[derive(Clone, Debug)]
enum ArrayRepr {
    Dense(Arc<Vec<Value>>),
    Sparse(u32, Arc<Vec<Slot>>),
}

/// Longest array of the model.
pub const MAX_ARRAY_LEN: u64 = u32::MAX as u64;

impl Array {
    /// An empty array.
    pub fn new() -> Array {
        Array::from(Vec::new())
    }

    /// Builds an array from slots, merging neighbouring hole runs. `None` when the length passes 2³²−1.
    pub fn from_slots(slots: Vec<Slot>) -> Option<Array> {
        if slots.iter().all(|s| matches!(s, Slot::Value(_))) {
            let dense: Vec<Value> = slots
                .into_iter()
                .filter_map(|s| match s {
                    Slot::Value(v) => Some(v),
                    Slot::Holes(_) => None,
                })
                .collect();
            return (dense.len() as u64 <= MAX_ARRAY_LEN).then(|| Array::from(dense));
        }
        let mut merged: Vec<Slot> = Vec::with_capacity(slots.len());
        let mut length: u64 = 0;
        for slot in slots {
            length += match &slot {
                Slot::Value(_) => 1,
                Slot::Holes(n) => u64::from(*n),
            };
            if length > MAX_ARRAY_LEN {
                return None;
            }
            match (merged.last_mut(), slot) {
                (_, Slot::Holes(0)) => {}
                (Some(Slot::Holes(run)), Slot::Holes(n)) => *run += n,
                (_, slot) => merged.push(slot),
            }
        }
        Some(Array(ArrayRepr::Sparse(length as u32, Arc::new(merged))))
    }

    /// Length in slots, holes included.
    pub fn len(&self) -> usize {
        match &self.0 {
            ArrayRepr::Dense(items) => items.len(),
            ArrayRepr::Sparse(length, _) => *length as usize,
        }
    }

    /// True when the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, when the array has no holes.
    pub fn as_dense(&self) -> Option<&[Value]> {
        match &self.0 {
            ArrayRepr::Dense(items) => Some(items),
            ArrayRepr::Sparse(..) => None,
        }
    }

    /// The element at `index`; `None` for a hole and past the end.
    pub fn get(&self, index: usize) -> Option<&Value> {
        match &self.0 {
            ArrayRepr::Dense(items) => items.get(index),
            ArrayRepr::Sparse(_, slots) => {
                let mut at = 0usize;
                for slot in slots.iter() {
                    match slot {
                        Slot::Value(v) if at == index => return Some(v),
                        Slot::Value(_) => at += 1,
                        Slot::Holes(n) => at += *n as usize,
                    }
                    if at > index {
                        return None;
                    }
                }
                None
            }
        }
    }

    /// The runs, in order. For a dense array every run is one value.
    pub fn slots(&self) -> Slots<'_> {
        match &self.0 {
            ArrayRepr::Dense(items) => Slots::Dense(items.iter()),
            ArrayRepr::Sparse(_, slots) => Slots::Sparse(slots.iter()),
        }
    }

    /// The present elements with their indexes; holes are skipped.
    pub fn elements(&self) -> impl Iterator<Item = (usize, &Value)> + '_ {
        let mut at = 0usize;
        self.slots().filter_map(move |slot| match slot {
            SlotRef::Value(v) => {
                at += 1;
                Some((at - 1, v))
            }
            SlotRef::Holes(n) => {
                at += n as usize;
                None
            }
        })
    }

    /// Mutable access to a present element, un-sharing this array first. `None` for holes and past the end.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Value> {
        match &mut self.0 {
            ArrayRepr::Dense(items) => Arc::make_mut(items).get_mut(index),
            ArrayRepr::Sparse(_, slots) => {
                let mut at = 0usize;
                for slot in Arc::make_mut(slots).iter_mut() {
                    match slot {
                        Slot::Value(v) if at == index => return Some(v),
                        Slot::Value(_) => at += 1,
                        Slot::Holes(n) => at += *n as usize,
                    }
                    if at > index {
                        return None;
                    }
                }
                None
            }
        }
    }

    /// Mutable element list of a dense array, un-shared first; `None` when there are holes.
    pub fn as_dense_mut(&mut self) -> Option<&mut Vec<Value>> {
        match &mut self.0 {
            ArrayRepr::Dense(items) => Some(Arc::make_mut(items)),
            ArrayRepr::Sparse(..) => None,
        }
    }

    /// The runs as an owned list (for edits of arrays with holes; rebuild with [`Array::from_slots`]).
    pub fn to_slots(&self) -> Vec<Slot> {
        self.slots()
            .map(|slot| match slot {
                SlotRef::Value(v) => Slot::Value(v.clone()),
                SlotRef::Holes(n) => Slot::Holes(n),
            })
            .collect()
    }

    /// True when both handles share one allocation.
    pub fn ptr_eq(&self, other: &Array) -> bool {
        match (&self.0, &other.0) {
            (ArrayRepr::Dense(a), ArrayRepr::Dense(b)) => Arc::ptr_eq(a, b),
            (ArrayRepr::Sparse(_, a), ArrayRepr::Sparse(_, b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Default for Array {
    fn default() -> Self {
        Array::new()
    }
}

impl From<Vec<Value>> for Array {
    fn from(items: Vec<Value>) -> Self {
        Array(ArrayRepr::Dense(Arc::new(items)))
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(iter: I) -> Self {
        Array::from(iter.into_iter().collect::<Vec<_>>())
    }
}

/// A borrowed [`Slot`].
#[derive(Clone, Copy, Debug)]
pub enum SlotRef<'a> {
    /// An element.
    Value(&'a Value),
    /// Consecutive holes.
    Holes(u32),
}

/// Iterator over the runs of an array.
#[derive(Clone, Debug)]
pub enum Slots<'a> {
    /// Runs of a dense array.
    Dense(std::slice::Iter<'a, Value>),
    /// Runs of an array with holes.
    Sparse(std::slice::Iter<'a, Slot>),
}

impl<'a> Iterator for Slots<'a> {
    type Item = SlotRef<'a>;

    fn next(&mut self) -> Option<SlotRef<'a>> {
        match self {
            Slots::Dense(items) => items.next().map(SlotRef::Value),
            Slots::Sparse(slots) => slots.next().map(|slot| match slot {
                Slot::Value(v) => SlotRef::Value(v),
                Slot::Holes(n) => SlotRef::Holes(*n),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_308_hole_runs_merge() {
        let array = Array::from_slots(vec![Slot::Holes(2), Slot::Holes(3), Slot::Value(1.into())]).unwrap();
        assert_eq!(array.len(), 6);
        assert_eq!(array.slots().count(), 2);
        assert!(array.get(4).is_none());
        assert!(array.get(5).is_some());
        assert!(Array::from_slots(vec![Slot::Holes(u32::MAX), Slot::Holes(1)]).is_none());
    }
}
