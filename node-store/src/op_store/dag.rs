//! The causal order of a scope's operations: applied once all parents are, whatever order they come in. Rule: NODE-14.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::log::OpStore;
use super::op::Op;
use crate::clock::HybridTimestamp;
use crate::error::StoreError;
use crate::id::{OpId, ScopeId};
use crate::layer::ReadLayer;

/// What became of an operation that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was here before.
    Duplicate,
    /// It waits for parents that are not here; these are the ones that it names.
    Pending {
        /// Parents that are neither applied nor waiting.
        missing: Vec<OpId>,
    },
    /// It is applied, and with it the operations that waited for it, in causal order, itself first.
    Applied(Vec<OpId>),
}

/// The operations of one scope in causal order. It keeps them all in memory; the store keeps them for good.
#[derive(Clone, Debug)]
pub struct OpDag {
    scope: ScopeId,
    applied: BTreeMap<OpId, Op>,
    heads: BTreeSet<OpId>,
    pending: BTreeMap<OpId, Pending>,
    /// Who waits for an operation that is not applied.
    waiting: BTreeMap<OpId, BTreeSet<OpId>>,
}

#[derive(Clone, Debug)]
struct Pending {
    op: Op,
    unapplied_parents: usize,
}

impl OpDag {
    /// An empty DAG.
    pub fn new(scope: ScopeId) -> Self {
        OpDag {
            scope,
            applied: BTreeMap::new(),
            heads: BTreeSet::new(),
            pending: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// The DAG of everything stored for a scope.
    pub fn load<L: ReadLayer>(store: &OpStore<L>, scope: ScopeId) -> Result<Self, StoreError> {
        let mut dag = OpDag::new(scope);
        store.for_each(|op| dag.insert(op).map(drop))?;
        Ok(dag)
    }

    /// Takes an operation in. It is applied when all its parents are; what waited for it follows at once. A cycle can
    /// not be made of content hashes; one made of unverified ids waits for ever and disturbs nothing.
    pub fn insert(&mut self, op: Op) -> Result<Arrival, StoreError> {
        if op.scope != self.scope {
            return Err(StoreError::OpScope {
                id: op.id,
                found: op.scope,
                expected: self.scope,
            });
        }
        if self.applied.contains_key(&op.id) || self.pending.contains_key(&op.id) {
            return Ok(Arrival::Duplicate);
        }
        let unapplied: BTreeSet<OpId> = op
            .parents
            .iter()
            .copied()
            .filter(|parent| !self.applied.contains_key(parent))
            .collect();
        if unapplied.is_empty() {
            return Ok(Arrival::Applied(self.apply(op)));
        }
        for parent in &unapplied {
            self.waiting.entry(*parent).or_default().insert(op.id);
        }
        let missing = unapplied
            .iter()
            .copied()
            .filter(|parent| !self.pending.contains_key(parent))
            .collect();
        self.pending.insert(
            op.id,
            Pending {
                op,
                unapplied_parents: unapplied.len(),
            },
        );
        Ok(Arrival::Pending { missing })
    }

    /// A loop, not a recursion: a long chain that waited for its first link does not deepen the stack.
    fn apply(&mut self, first: Op) -> Vec<OpId> {
        let (mut applied, mut ready) = (Vec::new(), vec![first]);
        while let Some(op) = ready.pop() {
            let id = op.id;
            for parent in &op.parents {
                self.heads.remove(parent);
            }
            self.heads.insert(id);
            self.applied.insert(id, op);
            applied.push(id);
            for child in self.waiting.remove(&id).unwrap_or_default() {
                let std::collections::btree_map::Entry::Occupied(mut waiter) = self.pending.entry(child)
                else {
                    continue;
                };
                waiter.get_mut().unapplied_parents -= 1;
                if waiter.get().unapplied_parents == 0 {
                    ready.push(waiter.remove().op);
                }
            }
        }
        applied
    }

    /// Applied operations that no applied one has as a parent, ascending.
    pub fn heads(&self) -> impl Iterator<Item = OpId> + '_ {
        self.heads.iter().copied()
    }

    /// How many operations are applied.
    pub fn len(&self) -> usize {
        self.applied.len()
    }

    /// Whether nothing is applied.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty()
    }

    /// An applied operation.
    pub fn get(&self, id: &OpId) -> Option<&Op> {
        self.applied.get(id)
    }

    /// Operations that wait for a parent, ascending.
    pub fn pending(&self) -> impl Iterator<Item = OpId> + '_ {
        self.pending.keys().copied()
    }

    /// Applied operations in the one order that everybody computes alike: parents first, and among those that are ready
    /// the earliest time stamp, then the smallest id.
    pub fn in_order(&self) -> Vec<&Op> {
        let mut children: BTreeMap<OpId, Vec<&Op>> = BTreeMap::new();
        let mut open_parents: BTreeMap<OpId, usize> = BTreeMap::new();
        let mut ready: BinaryHeap<Reverse<(HybridTimestamp, OpId)>> = BinaryHeap::new();
        for op in self.applied.values() {
            let parents: BTreeSet<OpId> = op.parents.iter().copied().collect();
            if parents.is_empty() {
                ready.push(Reverse((op.hlc, op.id)));
            }
            open_parents.insert(op.id, parents.len());
            for parent in parents {
                children.entry(parent).or_default().push(op);
            }
        }
        let mut order = Vec::with_capacity(self.applied.len());
        while let Some(Reverse((_, id))) = ready.pop() {
            order.extend(self.applied.get(&id));
            for child in children.get(&id).into_iter().flatten() {
                if let Some(open) = open_parents.get_mut(&child.id) {
                    *open -= 1;
                    if *open == 0 {
                        ready.push(Reverse((child.hlc, child.id)));
                    }
                }
            }
        }
        order
    }

    /// Folds the applied operations in [that order](Self::in_order).
    pub fn fold<S>(&self, start: S, step: impl FnMut(S, &Op) -> S) -> S {
        self.in_order().into_iter().fold(start, step)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU128;

    use proptest::prelude::*;
    use proptest::sample::Index;
    use proptest::test_runner::RngSeed;

    use super::*;
    use crate::op_store::{Payload, UnsignedOp};
    use crate::value::Bytes;

    fn op(parents: Vec<OpId>, time: u64, byte: u8) -> Op {
        let key = ed25519_dalek::SigningKey::from_bytes(&[9; 32]);
        UnsignedOp {
            scope: ScopeId::new([1; 32]),
            parents,
            account: [2; 32].into(),
            device: [3; 32].into(),
            hlc: HybridTimestamp::new(time, NonZeroU128::MIN),
            payload: Payload::Put {
                entity: [4; 32].into(),
                value: Bytes(vec![byte]),
            },
            expected_scope_root: [5; 32].into(),
        }
        .sign(&key)
        .unwrap()
    }

    /// A DAG of up to 24 operations: each picks parents among those before it.
    fn dags() -> impl Strategy<Value = Vec<Op>> {
        prop::collection::vec((prop::collection::vec(any::<Index>(), 0..3), 0u64..4), 1..24).prop_map(
            |shape| {
                let mut ops: Vec<Op> = Vec::new();
                for (number, (parents, time)) in shape.into_iter().enumerate() {
                    let parents = match ops.len() {
                        0 => Vec::new(),
                        count => parents.iter().map(|index| ops[index.index(count)].id).collect(),
                    };
                    ops.push(op(parents, time, number as u8));
                }
                ops
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(14), failure_persistence: None, ..Default::default() })]

        #[test]
        fn node_14_any_order_of_arrival_gives_the_same_heads_and_fold(
            (ops, order) in dags().prop_flat_map(|ops| {
                let order: Vec<usize> = (0..ops.len()).chain(0..ops.len() / 2).collect();
                (Just(ops), Just(order).prop_shuffle())
            })
        ) {
            let scope = ScopeId::new([1; 32]);
            let mut expected = OpDag::new(scope);
            for op in &ops {
                prop_assert_eq!(expected.insert(op.clone()).unwrap(), Arrival::Applied(vec![op.id]));
            }
            let mut found = OpDag::new(scope);
            let mut applied = 0;
            for index in order {
                if let Arrival::Applied(ids) = found.insert(ops[index].clone()).unwrap() {
                    applied += ids.len();
                }
            }
            prop_assert_eq!(applied, ops.len());
            prop_assert!(found.heads().eq(expected.heads()));
            prop_assert_eq!(found.pending().count(), 0);
            let bytes = |dag: &OpDag| dag.fold(Vec::new(), |mut all, op| { all.push(op.id); all });
            prop_assert_eq!(bytes(&found), bytes(&expected));
            let ops_by_id: BTreeMap<OpId, &Op> = ops.iter().map(|op| (op.id, op)).collect();
            let order = bytes(&found);
            for (position, id) in order.iter().enumerate() {
                for parent in &ops_by_id[id].parents {
                    prop_assert!(order[..position].contains(parent), "a parent comes first");
                }
            }
        }
    }

    #[test]
    fn node_14_the_order_is_parents_first_then_time_then_id() {
        // Ids against the order of times, so that neither can stand in for the other.
        let template = op(vec![], 0, 0);
        let made = |id: u8, time: u64, parents: &[u8]| Op {
            id: OpId::new([id; 32]),
            parents: parents.iter().map(|parent| OpId::new([*parent; 32])).collect(),
            hlc: HybridTimestamp::new(time, NonZeroU128::MIN),
            ..template.clone()
        };
        let mut dag = OpDag::new(ScopeId::new([1; 32]));
        for op in [
            // Earlier than all, and still after what it was made on top of.
            made(1, 0, &[2]),
            made(2, 9, &[9]),
            made(3, 1, &[9]),
            made(5, 7, &[9]),
            made(4, 7, &[9]),
            made(9, 5, &[]),
            made(8, 4, &[]),
        ] {
            dag.insert(op).unwrap();
        }
        let order: Vec<u8> = dag.in_order().iter().map(|op| op.id.as_bytes()[0]).collect();
        assert_eq!(order, [8, 9, 3, 4, 5, 2, 1]);
    }

    #[test]
    fn node_14_only_parents_that_are_nowhere_are_missing() {
        let mut dag = OpDag::new(ScopeId::new([1; 32]));
        let (absent, other) = (op(vec![], 0, 0), op(vec![], 0, 1));
        let waiting = op(vec![absent.id], 1, 2);
        dag.insert(waiting.clone()).unwrap();
        let both = op(vec![waiting.id, other.id], 2, 3);
        assert_eq!(
            dag.insert(both.clone()).unwrap(),
            Arrival::Pending {
                missing: vec![other.id]
            }
        );
        dag.insert(other).unwrap();
        assert_eq!(
            dag.insert(absent.clone()).unwrap(),
            Arrival::Applied(vec![absent.id, waiting.id, both.id])
        );
    }

    #[test]
    fn node_14_a_chain_of_100000_that_waited_does_not_overflow_the_stack() {
        let scope = ScopeId::new([1; 32]);
        let mut dag = OpDag::new(scope);
        // Ids need no content here: only the shape is under test.
        let id = |n: u32| {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            OpId::new(bytes)
        };
        let template = op(vec![], 0, 0);
        let link = |n: u32| Op {
            id: id(n),
            parents: if n == 0 { vec![] } else { vec![id(n - 1)] },
            ..template.clone()
        };
        for n in (1..100_000).rev() {
            assert_eq!(
                dag.insert(link(n)).unwrap(),
                Arrival::Pending {
                    missing: vec![id(n - 1)]
                }
            );
        }
        let Arrival::Applied(all) = dag.insert(link(0)).unwrap() else {
            panic!("the first link applies")
        };
        assert_eq!(all.len(), 100_000);
        assert!(dag.heads().eq([id(99_999)]));
    }

    #[test]
    fn node_14_unverified_cycles_wait_and_disturb_nothing() {
        let mut dag = OpDag::new(ScopeId::new([1; 32]));
        let template = op(vec![], 0, 0);
        let (a, b) = (OpId::new([1; 32]), OpId::new([2; 32]));
        dag.insert(Op {
            id: a,
            parents: vec![b],
            ..template.clone()
        })
        .unwrap();
        dag.insert(Op {
            id: b,
            parents: vec![a],
            ..template.clone()
        })
        .unwrap();
        assert_eq!(dag.len(), 0);
        assert_eq!(dag.pending().count(), 2);
        assert_eq!(
            dag.insert(template.clone()).unwrap(),
            Arrival::Applied(vec![template.id])
        );
        let foreign = Op {
            scope: ScopeId::new([8; 32]),
            ..template
        };
        assert!(matches!(dag.insert(foreign), Err(StoreError::OpScope { .. })));
    }
}
