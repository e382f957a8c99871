//! Whom a pass visits, in which order, and what each of them tracks of what is dirty (SRV §4.7, SRV-423, SRV-701). Part of
//! [`crate::flush`].

use std::rc::Rc;

use memory_wire::InstanceId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dirty::DirtyBatch;
use crate::registry::{Registry, Slot};
use crate::session::Attachment;

/// Dirty instances that a session tracks; sessions that track the same share them.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) keys: FxHashSet<InstanceId>,
    derived: bool,
}

/// A session to evaluate.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) slot: Slot,
    order: (u64, u64),
    pub(crate) touched: Rc<Touched>,
}

/// The sessions of one pass: those tracking derived content first (SRV-701), each group in connection order, then open
/// order (§4.7).
#[derive(Debug, Default)]
pub(crate) struct Visits {
    pub(crate) prioritized: Vec<Visit>,
    pub(crate) followers: Vec<Visit>,
    /// Sessions looked at, those that turned out to be away included.
    pub(crate) considered: usize,
}

impl Visits {
    /// Costs O(dirty keys + sessions tracking them + sessions owed something) (SRV-423).
    pub(crate) fn select(registry: &Registry, dirty: &DirtyBatch) -> Visits {
        let mut sets = Sets::default();
        let mut touched: FxHashMap<Slot, usize> = FxHashMap::default();
        for (number, key) in dirty.keys().enumerate() {
            for slot in registry.tracking(key) {
                let set = touched.entry(slot).or_default();
                *set = sets.with(*set, number, key);
            }
        }
        for slot in registry.owed() {
            touched.entry(slot).or_default();
        }
        let mut visits = Visits {
            considered: touched.len(),
            ..Visits::default()
        };
        for (slot, touched) in touched {
            let Some(Attachment::Attached { connection, order }) =
                registry.get(slot).map(|session| &session.attachment)
            else {
                continue;
            };
            // A connection that is ending hears nothing more; its sessions are told everything when they resume.
            if connection.outbound.is_closing() {
                continue;
            }
            let visit = Visit {
                slot,
                order: (connection.order, *order),
                touched: sets.get(touched, dirty),
            };
            if visit.touched.derived {
                visits.prioritized.push(visit)
            } else {
                visits.followers.push(visit)
            }
        }
        visits.prioritized.sort_by_key(|visit| visit.order);
        visits.followers.sort_by_key(|visit| visit.order);
        visits
    }

    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Visit> {
        self.prioritized.iter().chain(&self.followers)
    }

    pub(crate) fn len(&self) -> usize {
        self.prioritized.len() + self.followers.len()
    }
}

/// Sets of dirty keys by number, each made of another one and a key; 0 is the empty one.
#[derive(Default)]
struct Sets<'a> {
    nodes: Vec<Node<'a>>,
    /// By the set and the number of the key added to it.
    grown: FxHashMap<(usize, usize), usize>,
    empty: Rc<Touched>,
}

struct Node<'a> {
    rest: usize,
    key: &'a InstanceId,
    made: Option<Rc<Touched>>,
}

impl<'a> Sets<'a> {
    /// The set of what `set` holds and one more key. Keys are added in the order of their numbers, so that equal sets are
    /// one.
    fn with(&mut self, set: usize, number: usize, key: &'a InstanceId) -> usize {
        *self.grown.entry((set, number)).or_insert_with(|| {
            self.nodes.push(Node {
                rest: set,
                key,
                made: None,
            });
            self.nodes.len()
        })
    }

    fn get(&mut self, set: usize, dirty: &DirtyBatch) -> Rc<Touched> {
        let node = |set: usize| set.checked_sub(1).map(|index| &self.nodes[index]);
        let Some(wanted) = node(set) else {
            return Rc::clone(&self.empty);
        };
        if let Some(made) = &wanted.made {
            return Rc::clone(made);
        }
        let keys: FxHashSet<InstanceId> = std::iter::successors(Some(wanted), |last| node(last.rest))
            .map(|node| node.key.clone())
            .collect();
        let derived = keys.iter().any(|key| dirty.is_derived(key));
        let made = Rc::new(Touched { keys, derived });
        self.nodes[set - 1].made = Some(Rc::clone(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_that_track_the_same_share_one_set() {
        let keys = ["of:a", "of:b", "of:c"].map(InstanceId::space);
        let mut dirty = DirtyBatch::default();
        dirty.mark_derived(keys[2].clone());
        let mut sets = Sets::default();
        let mut of = |numbers: &[usize]| {
            let set = numbers
                .iter()
                .fold(0, |set, number| sets.with(set, *number, &keys[*number]));
            sets.get(set, &dirty)
        };
        for numbers in [&[][..], &[0], &[1], &[0, 1], &[0, 2], &[0, 1, 2]] {
            let touched = of(numbers);
            let expected: FxHashSet<InstanceId> =
                numbers.iter().map(|number| keys[*number].clone()).collect();
            assert_eq!(touched.keys, expected);
            assert_eq!(touched.derived, numbers.contains(&2), "{numbers:?}");
            assert!(Rc::ptr_eq(&touched, &of(numbers)), "{numbers:?}");
        }
    }
}
