//! The order in which the nodes of one iteration run (RUN-533): writers before readers, then parents before
//! children, then registration order; cycles are broken at the node that waits for least.

use std::collections::{BTreeMap, BTreeSet};

use crate::scheduler::graph::Graph;
use crate::scheduler::node::NodeId;

/// Sorts `set` for running. Total: every member appears exactly once, cycles or not.
pub(crate) fn sorted(graph: &Graph, set: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let mut waits_for: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    let mut releases: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for &id in set {
        let Some(node) = graph.node(id) else { continue };
        let mut before: BTreeSet<NodeId> = node.writers.intersection(set).copied().collect();
        // Parentage orders only where data does not: a child that feeds its parent runs first.
        if let Some(parent) = node.parent.filter(|p| set.contains(p))
            && !node.readers.contains(&parent)
        {
            before.insert(parent);
        }
        for &writer in &before {
            releases.entry(writer).or_default().push(id);
        }
        waits_for.insert(id, before);
    }
    let mut ready: BTreeSet<NodeId> = waits_for
        .iter()
        .filter(|(_, before)| before.is_empty())
        .map(|(id, _)| *id)
        .collect();
    let mut placed: BTreeSet<NodeId> = BTreeSet::new();
    let mut order = Vec::with_capacity(waits_for.len());
    while !waits_for.is_empty() {
        let next = match ready.pop_first() {
            Some(id) => id,
            None => break_cycle(graph, &waits_for, &placed),
        };
        if waits_for.remove(&next).is_none() {
            continue;
        }
        placed.insert(next);
        order.push(next);
        for reader in releases.remove(&next).unwrap_or_default() {
            if let Some(before) = waits_for.get_mut(&reader) {
                before.remove(&next);
                if before.is_empty() {
                    ready.insert(reader);
                }
            }
        }
    }
    order
}

/// In a cycle: a node whose parent is placed, then the one that waits for fewest, then the eldest.
fn break_cycle(
    graph: &Graph,
    waits_for: &BTreeMap<NodeId, BTreeSet<NodeId>>,
    placed: &BTreeSet<NodeId>,
) -> NodeId {
    let rank = |id: &NodeId, before: &BTreeSet<NodeId>| {
        let parent_placed = graph
            .node(*id)
            .and_then(|n| n.parent)
            .is_some_and(|p| placed.contains(&p));
        (!parent_placed, before.len(), *id)
    };
    waits_for
        .iter()
        .map(|(id, before)| rank(id, before))
        .min()
        .map(|(_, _, id)| id)
        .expect("called only while some node is unplaced")
}
