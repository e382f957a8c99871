//! Liveness kept edge by edge against liveness built anew, over random edits of random graphs (RUN-521, I-20).

use memory_wire::{Scope, ScopeIdentity};
use proptest::prelude::*;

use super::{place, spec};
use crate::scheduler::graph::Graph;
use crate::scheduler::node::{NodeId, NodeKind};
use crate::scheduler::trigger::ReadLog;

#[derive(Clone, Debug)]
enum Edit {
    Register { reads: Vec<u8>, write: u8, effect: bool },
    Unregister(u8),
    Subscribe(u8, Vec<u8>),
    Provisional(u8, bool),
    Enter(u8),
    Leave(u8),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let ids = || proptest::collection::vec(0u8..6, 0..3);
    let edit = prop_oneof![
        4 => (ids(), 0u8..6, any::<bool>()).prop_map(|(reads, write, effect)| Edit::Register { reads, write, effect }),
        1 => (0u8..12).prop_map(Edit::Unregister),
        4 => (0u8..12, ids()).prop_map(|(n, reads)| Edit::Subscribe(n, reads)),
        2 => (0u8..12, any::<bool>()).prop_map(|(n, on)| Edit::Provisional(n, on)),
        1 => (0u8..6).prop_map(Edit::Enter),
        1 => (0u8..6).prop_map(Edit::Leave),
    ];
    proptest::collection::vec(edit, 1..40)
}

proptest! {
    /// I-20: liveness kept edge by edge equals liveness built anew, cycles and all.
    #[test]
    fn run_521_incremental_liveness_equals_a_rebuild(edits in edits()) {
        let mut graph = Graph::new(ScopeIdentity::default());
        let id = |n: u8| format!("of:{n}");
        let log = |reads: &[u8]| ReadLog {
            recursive: crate::scheduler::trigger::compact_recursive(reads.iter().map(|n| place(&id(*n), Scope::Space)).collect()),
            shallow: Vec::new(),
        };
        let name = |n: u8| crate::keys::entity_name_key(&place(&id(n), Scope::Space));
        for edit in edits {
            match edit {
                Edit::Register { reads, write, effect } => {
                    let names: Vec<String> = reads.iter().map(|n| id(*n)).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    let mut node = spec("n", &names, Some(&id(write)));
                    if effect {
                        node.kind = NodeKind::Effect;
                    }
                    graph.register(node, None);
                }
                Edit::Unregister(n) => {
                    graph.unregister(NodeId(n.into()));
                }
                Edit::Subscribe(n, reads) => graph.subscribe(NodeId(n.into()), log(&reads)),
                Edit::Provisional(n, on) => {
                    graph.set_root(NodeId(n.into()), |node| node.provisional = on);
                }
                Edit::Enter(n) => {
                    graph.enter_demanded(name(n));
                }
                Edit::Leave(n) => graph.leave_demanded(&name(n)),
            }
            let kept: std::collections::BTreeMap<NodeId, (bool, usize)> =
                graph.nodes().map(|node| (node.id, (node.live(), node.live_refs))).collect();
            prop_assert_eq!(kept, graph.rebuilt_liveness());
            let due: Vec<NodeId> = graph.due().map(|node| node.id).collect();
            let wanted: Vec<NodeId> =
                graph.nodes().filter(|node| node.live() && node.stale()).map(|node| node.id).collect();
            prop_assert_eq!(due, wanted);
        }
    }
}
