//! The graph as diagnostics see it (RUN-561). Looking changes nothing: the scheduler decides the same with or without.

use std::collections::BTreeSet;

use crate::keys::format_address;
use crate::scheduler::Scheduler;
use crate::scheduler::node::{NodeId, NodeKind, Status};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// Ordinal.
    pub id: NodeId,
    /// Durable id.
    pub action_id: String,
    /// Kind.
    pub kind: NodeKind,
    /// Where it stands.
    pub status: Status,
    /// Does anybody look?
    pub live: bool,
    /// When a closed gate opens, in clock milliseconds.
    pub eligible_at: Option<i64>,
    /// Subscribed reads, one text per instance and path (site 9).
    pub reads: Vec<String>,
    /// Write surface.
    pub writes: Vec<String>,
    /// Instances with a finished run, and whether each is current.
    pub instances: Vec<(String, bool)>,
}

/// The graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSnapshot {
    /// Nodes in registration order.
    pub nodes: Vec<NodeSnapshot>,
    /// Writer and reader of each edge.
    pub edges: Vec<(NodeId, NodeId)>,
    /// Addresses that are read and that no node writes.
    pub inputs: Vec<String>,
}

impl Scheduler {
    /// Renders the graph.
    pub fn graph_snapshot(&self) -> GraphSnapshot {
        let own = self.0.storage.identity();
        let state = self.0.state.borrow();
        let mut snapshot = GraphSnapshot::default();
        let mut inputs: BTreeSet<String> = BTreeSet::new();
        for node in state.graph.nodes() {
            let text = |address| format_address(address, &own);
            inputs.extend(
                node.reads
                    .iter()
                    .map(|(read, _)| read)
                    .filter(|read| state.graph.writers_of(read).is_empty())
                    .map(text),
            );
            snapshot
                .edges
                .extend(node.readers.iter().map(|reader| (node.id, *reader)));
            snapshot.nodes.push(NodeSnapshot {
                id: node.id,
                action_id: node.spec.action_id.to_string(),
                kind: node.spec.kind,
                status: node.status,
                live: node.live(),
                eligible_at: node.gate.eligible_at(),
                reads: node.reads.iter().map(|(read, _)| text(read)).collect(),
                writes: node.spec.writes.iter().map(text).collect(),
                instances: node
                    .fan_out
                    .iter()
                    .flat_map(|fan_out| {
                        fan_out
                            .instances()
                            .map(|(key, _)| (key.to_string(), fan_out.is_clean(key)))
                    })
                    .collect(),
            });
        }
        snapshot.inputs = inputs.into_iter().collect();
        snapshot
    }
}
