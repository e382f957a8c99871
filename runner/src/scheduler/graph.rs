//! The graph: who reads what, who writes what, who is live, and what a change invalidates (RUN-503…522).
//!
//! Called by the scheduler's other rooms only. Every status and liveness flip goes through here, so that the
//! indices never disagree with the nodes.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::{EntityId, ScopeIdentity, Value};
use rustc_hash::FxHashMap;

use crate::address::Address;
use crate::keys::{EntityKey, EntityNameKey, entity_key, entity_name_key};
use crate::scheduler::fan_out::Dirt;
use crate::scheduler::gates::Gate;
use crate::scheduler::node::{Node, NodeId, NodeSpec, Status};
use crate::scheduler::trigger::{Depth, ReadLog, overlaps, triggers};

/// All nodes of one runtime with their indices.
pub(crate) struct Graph {
    /// In registration order.
    nodes: BTreeMap<NodeId, Node>,
    next: u64,
    /// The runtime's own identity, which unkeyed addresses resolve with.
    own: ScopeIdentity,
    /// Site 1: subscribed reads by instance.
    by_trigger: FxHashMap<EntityKey, BTreeSet<NodeId>>,
    readers: FxHashMap<EntityNameKey, BTreeSet<NodeId>>,
    writers: FxHashMap<EntityNameKey, BTreeSet<NodeId>>,
    /// Live nodes that are not clean: what a pass looks at. Dormant dirt is in no index (RUN-523).
    due: BTreeSet<NodeId>,
    by_demand_root: FxHashMap<EntityId, BTreeSet<NodeId>>,
    /// Host demand by name key, refcounted (RUN-522).
    demanded: FxHashMap<EntityNameKey, usize>,
}

impl Graph {
    pub(crate) fn new(own: ScopeIdentity) -> Graph {
        Graph {
            nodes: BTreeMap::new(),
            next: 0,
            own,
            by_trigger: FxHashMap::default(),
            readers: FxHashMap::default(),
            writers: FxHashMap::default(),
            due: BTreeSet::new(),
            by_demand_root: FxHashMap::default(),
            demanded: FxHashMap::default(),
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Live nodes that are not clean, in registration order.
    pub(crate) fn due(&self) -> impl Iterator<Item = &Node> {
        self.due.iter().filter_map(|id| self.nodes.get(id))
    }

    /// Nodes beneath any of these piece roots, in registration order.
    pub(crate) fn beneath(&self, roots: &[EntityId]) -> BTreeSet<NodeId> {
        roots
            .iter()
            .filter_map(|root| self.by_demand_root.get(root))
            .flatten()
            .copied()
            .collect()
    }

    /// Brings the index of due nodes in line with one node.
    fn note_due(&mut self, id: NodeId) {
        if self
            .nodes
            .get(&id)
            .is_some_and(|node| node.stale() && node.live())
        {
            self.due.insert(id);
        } else {
            self.due.remove(&id);
        }
    }

    /// O(1) index inserts: no run, no load (RUN-503). A node registered by a running one gets provisional demand.
    pub(crate) fn register(&mut self, spec: NodeSpec, parent: Option<NodeId>) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        let parent = parent.filter(|p| self.nodes.contains_key(p));
        for address in spec.writes.iter().chain(&spec.materializes) {
            self.writers
                .entry(entity_name_key(address))
                .or_default()
                .insert(id);
        }
        let demanded = spec
            .writes
            .iter()
            .any(|address| self.demanded.contains_key(&entity_name_key(address)));
        let node = Node {
            id,
            spec,
            parent,
            children: BTreeSet::new(),
            status: Status::NeverRan,
            reads: ReadLog::default(),
            triggers: FxHashMap::default(),
            causes: Vec::new(),
            writers: BTreeSet::new(),
            readers: BTreeSet::new(),
            live_refs: 0,
            provisional: parent.is_some(),
            demanded,
            gate: Gate::default(),
            runs_this_pass: 0,
            retries: 0,
            fan_out: None,
        };
        for root in &node.spec.demand_roots {
            self.by_demand_root.entry(root.clone()).or_default().insert(id);
        }
        self.nodes.insert(id, node);
        self.note_due(id);
        if let Some(parent) = parent.and_then(|p| self.nodes.get_mut(&p)) {
            parent.children.insert(id);
        }
        for reader in self.readers_of_surface(id) {
            self.connect(reader, id);
        }
        self.index_declared_reads(id);
        self.relink_writers(id);
        id
    }

    /// Takes a node out with its index entries and edges (RUN-504). It is handed back, because dropping its action
    /// may call back into the scheduler.
    pub(crate) fn unregister(&mut self, id: NodeId) -> Option<Node> {
        let node = self.nodes.get(&id)?;
        let (writers, readers) = (node.writers.clone(), node.readers.clone());
        for writer in writers {
            self.disconnect(id, writer);
        }
        for reader in readers {
            self.disconnect(reader, id);
        }
        let node = self.nodes.remove(&id)?;
        self.due.remove(&id);
        for root in &node.spec.demand_roots {
            remove_from(&mut self.by_demand_root, root, id);
        }
        for key in node.triggers.keys() {
            remove_from(&mut self.by_trigger, key, id);
        }
        for address in node.reads.iter().map(|(a, _)| a).chain(&node.spec.declared_reads) {
            remove_from(&mut self.readers, &entity_name_key(address), id);
        }
        for address in node.spec.writes.iter().chain(&node.spec.materializes) {
            remove_from(&mut self.writers, &entity_name_key(address), id);
        }
        if let Some(parent) = node.parent.and_then(|p| self.nodes.get_mut(&p)) {
            parent.children.remove(&id);
        }
        Some(node)
    }

    /// The single setter of a node's status (RUN-501).
    pub(crate) fn set_status(&mut self, id: NodeId, status: Status) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.status = status;
        self.note_due(id);
    }

    /// Replaces a node's subscription, touching only the index entries that differ (RUN-541).
    pub(crate) fn subscribe(&mut self, id: NodeId, log: ReadLog) {
        let mut by_key: FxHashMap<EntityKey, Vec<(crate::address::Path, Depth)>> = FxHashMap::default();
        for (address, depth) in log.iter() {
            by_key
                .entry(self.trigger_key(address))
                .or_default()
                .push((address.path.clone(), depth));
        }
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.reads == log {
            return;
        }
        let old_keys = std::mem::replace(&mut node.triggers, by_key);
        let old_reads = std::mem::replace(&mut node.reads, log);
        let names: BTreeSet<EntityNameKey> = self.nodes[&id]
            .reads
            .iter()
            .map(|(a, _)| entity_name_key(a))
            .collect();
        for key in old_keys.keys() {
            if !self.nodes[&id].triggers.contains_key(key) {
                remove_from(&mut self.by_trigger, key, id);
            }
        }
        for key in self.nodes[&id].triggers.keys() {
            if !old_keys.contains_key(key) {
                self.by_trigger.entry(key.clone()).or_default().insert(id);
            }
        }
        let old_names: BTreeSet<EntityNameKey> = old_reads.iter().map(|(a, _)| entity_name_key(a)).collect();
        let declared: BTreeSet<EntityNameKey> = self.nodes[&id]
            .spec
            .declared_reads
            .iter()
            .map(entity_name_key)
            .collect();
        for name in old_names
            .difference(&names)
            .filter(|name| !declared.contains(*name))
        {
            remove_from(&mut self.readers, name, id);
        }
        for name in names.difference(&old_names) {
            self.readers.entry(name.clone()).or_default().insert(id);
        }
        self.relink_writers(id);
    }

    /// Adds reads to a node's subscription without taking any away; costs what is added.
    pub(crate) fn extend_subscription(&mut self, id: NodeId, log: &ReadLog) {
        let mut fresh_names = false;
        for (address, depth) in log.iter() {
            let key = self.trigger_key(address);
            let Some(node) = self.nodes.get_mut(&id) else {
                return;
            };
            let reads = node.triggers.entry(key.clone()).or_default();
            if reads
                .iter()
                .any(|(path, known)| *path == address.path && *known == depth)
            {
                continue;
            }
            reads.push((address.path.clone(), depth));
            match depth {
                Depth::Recursive => node.reads.recursive.push(address.clone()),
                Depth::Shallow => node.reads.shallow.push(address.clone()),
            }
            self.by_trigger.entry(key).or_default().insert(id);
            fresh_names |= self
                .readers
                .entry(entity_name_key(address))
                .or_default()
                .insert(id);
            // A known document read at a new place may meet another writer's surface.
            fresh_names |= self.writers.contains_key(&entity_name_key(address));
        }
        if fresh_names {
            self.relink_writers(id);
        }
    }

    /// One change of a document: marks the nodes whose reads it concerns (RUN-510, 511) and answers them. No
    /// transitive marking. `source` is the node whose own run made the change (RUN-512).
    pub(crate) fn changed(
        &mut self,
        address: &Address,
        before: Option<&Value>,
        after: Option<&Value>,
        source: Option<NodeId>,
    ) -> Vec<NodeId> {
        let key = self.trigger_key(address);
        let Some(readers) = self.by_trigger.get(&key) else {
            return Vec::new();
        };
        let concerned: Vec<NodeId> = readers
            .iter()
            .filter(|id| Some(**id) != source)
            .filter(|id| {
                self.nodes[*id].triggers.get(&key).is_some_and(|reads| {
                    reads
                        .iter()
                        .any(|(path, depth)| triggers(path, *depth, &address.path, before, after))
                })
            })
            .copied()
            .collect();
        for &id in &concerned {
            self.invalidate(id, address.clone());
        }
        concerned
    }

    /// Marks one node invalid because of `cause` (RUN-513, RUN-545).
    pub(crate) fn invalidate(&mut self, id: NodeId, cause: Address) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if let Some(fan_out) = &mut node.fan_out {
            fan_out.dirty(&Dirt::of_change(cause.scope_key.as_ref()));
        }
        // RUN-405: two principals' changes of one document are two causes.
        if !node.causes.contains(&cause) {
            node.causes.push(cause);
        }
        if node.status == Status::Clean {
            self.set_status(id, Status::Invalid);
        }
    }

    /// Makes a node run again without dirtying its instances: only those not clean run (RUN-546).
    pub(crate) fn reconsider(&mut self, id: NodeId) {
        if self
            .nodes
            .get(&id)
            .is_some_and(|node| node.status == Status::Clean)
        {
            self.set_status(id, Status::Invalid);
        }
    }

    // --- writers and readers -----------------------------------------------------------------------------

    /// Nodes whose write surface or envelope holds this document, by scope name.
    pub(crate) fn writers_of(&self, address: &Address) -> BTreeSet<NodeId> {
        self.writers
            .get(&entity_name_key(address))
            .cloned()
            .unwrap_or_default()
    }

    /// Nodes that write what `log` reads, the direct ones only.
    pub(crate) fn writers_of_log(&self, log: &ReadLog) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        for (read, depth) in log.iter() {
            for id in self.writers.get(&entity_name_key(read)).into_iter().flatten() {
                if self.nodes[id]
                    .spec
                    .writes
                    .iter()
                    .chain(&self.nodes[id].spec.materializes)
                    .any(|write| write.same_document(read) && overlaps(&read.path, &write.path, depth))
                {
                    found.insert(*id);
                }
            }
        }
        found
    }

    fn index_declared_reads(&mut self, id: NodeId) {
        let names: Vec<EntityNameKey> = self.nodes[&id]
            .spec
            .declared_reads
            .iter()
            .map(entity_name_key)
            .collect();
        for name in names {
            self.readers.entry(name).or_default().insert(id);
        }
    }

    fn readers_of_surface(&self, writer: NodeId) -> BTreeSet<NodeId> {
        let surface = &self.nodes[&writer].spec;
        let mut found = BTreeSet::new();
        for write in surface.writes.iter().chain(&surface.materializes) {
            for id in self.readers.get(&entity_name_key(write)).into_iter().flatten() {
                if *id != writer && self.reads_overlap(&self.nodes[id], write) {
                    found.insert(*id);
                }
            }
        }
        found
    }

    fn reads_overlap(&self, reader: &Node, write: &Address) -> bool {
        let declared = reader.spec.declared_reads.iter().map(|a| (a, Depth::Recursive));
        reader
            .reads
            .iter()
            .chain(declared)
            .any(|(read, depth)| read.same_document(write) && overlaps(&read.path, &write.path, depth))
    }

    /// Brings the edges from `reader` to its writers in line with its reads.
    fn relink_writers(&mut self, reader: NodeId) {
        let node = &self.nodes[&reader];
        let declared = ReadLog {
            recursive: node.spec.declared_reads.clone(),
            shallow: Vec::new(),
        };
        let mut wanted = self.writers_of_log(&node.reads);
        wanted.extend(self.writers_of_log(&declared));
        wanted.remove(&reader);
        let present = node.writers.clone();
        for writer in wanted.difference(&present) {
            self.connect(reader, *writer);
        }
        for writer in present.difference(&wanted) {
            self.disconnect(reader, *writer);
        }
    }

    fn connect(&mut self, reader: NodeId, writer: NodeId) {
        if !self
            .nodes
            .get_mut(&reader)
            .is_some_and(|node| node.writers.insert(writer))
        {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&writer) {
            node.readers.insert(reader);
        }
        if self.nodes[&reader].live() {
            self.grant(writer);
        }
    }

    fn disconnect(&mut self, reader: NodeId, writer: NodeId) {
        if !self
            .nodes
            .get_mut(&reader)
            .is_some_and(|node| node.writers.remove(&writer))
        {
            return;
        }
        let reader_live = self.nodes[&reader].live();
        if let Some(node) = self.nodes.get_mut(&writer) {
            node.readers.remove(&reader);
        }
        if reader_live {
            self.reseed(BTreeSet::from([writer]));
        }
    }

    // --- liveness ----------------------------------------------------------------------------------------

    /// Gives `writer` one live reader; recurses only when that wakes it (RUN-521).
    fn grant(&mut self, writer: NodeId) {
        let mut waiting = vec![writer];
        while let Some(id) = waiting.pop() {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            let was_live = node.live();
            node.live_refs += 1;
            if !was_live {
                waiting.extend(node.writers.iter().copied());
                self.note_due(id);
            }
        }
    }

    /// Recounts the region upstream of `start` after it lost support: a plain decrement could not tell a
    /// supported node from a rootless cycle (RUN-521).
    fn reseed(&mut self, start: BTreeSet<NodeId>) {
        let mut region = BTreeSet::new();
        let mut waiting: Vec<NodeId> = start.into_iter().collect();
        while let Some(id) = waiting.pop() {
            if region.insert(id) {
                waiting.extend(self.nodes[&id].writers.iter().copied());
            }
        }
        for id in &region {
            if let Some(node) = self.nodes.get_mut(id) {
                node.live_refs = 0;
            }
        }
        // Support from outside first; then every node of the region that is live by now passes its own on.
        let mut grants: Vec<NodeId> = Vec::new();
        for id in &region {
            let outside = |reader: &&NodeId| !region.contains(*reader) && self.nodes[*reader].live();
            grants.extend(self.nodes[id].readers.iter().filter(outside).map(|_| *id));
        }
        for id in &region {
            if self.nodes[id].is_root() {
                grants.extend(self.nodes[id].writers.iter().copied());
            }
        }
        for id in grants {
            self.grant(id);
        }
        for id in region {
            self.note_due(id);
        }
    }

    /// Changes what makes a node a root, with the liveness bracket of RUN-522. Answers whether it came alive.
    pub(crate) fn set_root(&mut self, id: NodeId, flip: impl FnOnce(&mut Node)) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        let was_live = node.live();
        flip(node);
        let is_live = node.live();
        let writers = node.writers.clone();
        match (was_live, is_live) {
            (false, true) => {
                for writer in writers {
                    self.grant(writer);
                }
            }
            (true, false) => self.reseed(writers),
            (true, true) => self.reseed(BTreeSet::from([id])),
            (false, false) => {}
        }
        self.note_due(id);
        !was_live && self.nodes[&id].live()
    }

    /// Counts one host demand of an entity name; answers writers that came alive (RUN-522).
    pub(crate) fn enter_demanded(&mut self, name: EntityNameKey) -> Vec<NodeId> {
        let count = self.demanded.entry(name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            return Vec::new();
        }
        let writers = self.writers.get(&name).cloned().unwrap_or_default();
        writers
            .into_iter()
            .filter(|id| self.set_root(*id, |node| node.demanded = true))
            .collect()
    }

    /// Takes one host demand back.
    pub(crate) fn leave_demanded(&mut self, name: &EntityNameKey) {
        match self.demanded.get_mut(name) {
            None => return,
            Some(count) if *count > 1 => {
                *count -= 1;
                return;
            }
            Some(_) => {
                self.demanded.remove(name);
            }
        }
        for id in self.writers.get(name).cloned().unwrap_or_default() {
            let still = self.nodes[&id]
                .spec
                .writes
                .iter()
                .any(|w| self.demanded.contains_key(&entity_name_key(w)));
            if !still {
                self.set_root(id, |node| node.demanded = false);
            }
        }
    }

    /// The liveness that a full rebuild would give: the check behind I-20, used by tests alone.
    #[cfg(test)]
    pub(crate) fn rebuilt_liveness(&self) -> BTreeMap<NodeId, (bool, usize)> {
        let mut live: BTreeSet<NodeId> = BTreeSet::new();
        let mut waiting: Vec<NodeId> = self
            .nodes
            .values()
            .filter(|n| n.is_root())
            .map(|n| n.id)
            .collect();
        while let Some(id) = waiting.pop() {
            if live.insert(id) {
                waiting.extend(self.nodes[&id].writers.iter().copied());
            }
        }
        let refs = |node: &Node| node.readers.iter().filter(|r| live.contains(r)).count();
        self.nodes
            .values()
            .map(|node| (node.id, (live.contains(&node.id), refs(node))))
            .collect()
    }

    fn trigger_key(&self, address: &Address) -> EntityKey {
        entity_key(address, &self.own)
    }
}

fn remove_from<K: Eq + std::hash::Hash>(index: &mut FxHashMap<K, BTreeSet<NodeId>>, key: &K, id: NodeId) {
    if let Some(set) = index.get_mut(key) {
        set.remove(&id);
        if set.is_empty() {
            index.remove(key);
        }
    }
}
