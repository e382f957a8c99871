//! What one process remembers of a store's rows (ENG-201…204): decoded documents, parsed patches, commit classes and
//! verified schemas. Shared by the writer and the readers of a space. Sound because revisions never change, and
//! because nothing enters it that is not durable: rows of an open transaction wait in [`Uncommitted`].

use std::hash::Hash;
use std::sync::Arc;

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::patch::PatchOp;
use memory_wire::{ScopeKey, Value};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// One revision: the address of everything remembered here.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RevisionKey {
    pub(crate) branch: BranchName,
    pub(crate) id: EntityId,
    pub(crate) scope_key: ScopeKey,
    pub(crate) seq: Seq,
    pub(crate) op_index: u64,
}

/// A document after a revision; `None` after a delete.
pub(crate) type State = Option<Value>;

/// A verified schema document: the schema documents it references in turn (ENG-363).
pub(crate) type SchemaReferences = Arc<[EntityId]>;

/// Approximate bytes of decoded documents kept, measured by stored text.
const DOCUMENT_BUDGET: usize = 32 << 20;
/// The same for parsed patches.
const PATCH_BUDGET: usize = 4 << 20;
/// ENG-203.
const CLASS_ENTRIES: usize = 65_536;
/// ENG-204.
const SCHEMA_ENTRIES: usize = 4_096;

/// What is remembered of one store.
#[derive(Debug)]
pub(crate) struct StoreCache {
    documents: Mutex<Generations<RevisionKey, State>>,
    patches: Mutex<Generations<RevisionKey, Arc<[PatchOp]>>>,
    classes: Mutex<FxHashMap<Seq, CommitClass>>,
    schemas: Mutex<FxHashMap<EntityId, (Seq, SchemaReferences)>>,
}

impl StoreCache {
    pub(crate) fn new() -> Arc<StoreCache> {
        Arc::new(StoreCache {
            documents: Mutex::new(Generations::new(DOCUMENT_BUDGET)),
            patches: Mutex::new(Generations::new(PATCH_BUDGET)),
            classes: Mutex::default(),
            schemas: Mutex::default(),
        })
    }

    pub(crate) fn document(&self, key: &RevisionKey) -> Option<State> {
        self.documents.lock().get(key)
    }

    pub(crate) fn remember_document(&self, key: RevisionKey, state: State, weight: usize) {
        self.documents.lock().insert(key, state, weight);
    }

    pub(crate) fn patches(&self, key: &RevisionKey) -> Option<Arc<[PatchOp]>> {
        self.patches.lock().get(key)
    }

    pub(crate) fn remember_patches(&self, key: RevisionKey, patches: Arc<[PatchOp]>, weight: usize) {
        self.patches.lock().insert(key, patches, weight);
    }

    pub(crate) fn class(&self, seq: Seq) -> Option<CommitClass> {
        self.classes.lock().get(&seq).copied()
    }

    pub(crate) fn remember_class(&self, seq: Seq, class: CommitClass) {
        let mut classes = self.classes.lock();
        if classes.len() >= CLASS_ENTRIES {
            classes.clear();
        }
        classes.insert(seq, class);
    }

    /// The references of the schema document `id`, if the copy stored at `seq` is known to verify.
    pub(crate) fn verified_schema(&self, id: &EntityId, seq: Seq) -> Option<SchemaReferences> {
        self.schemas
            .lock()
            .get(id)
            .filter(|(at, _)| *at == seq)
            .map(|(_, references)| references.clone())
    }

    pub(crate) fn remember_schema(&self, id: EntityId, seq: Seq, references: SchemaReferences) {
        let mut schemas = self.schemas.lock();
        if schemas.len() >= SCHEMA_ENTRIES {
            schemas.clear();
        }
        schemas.insert(id, (seq, references));
    }
}

/// States read or written inside an open transaction, one layer for it and one for each savepoint (ENG-202): a rolled
/// back savepoint takes its layer along, so that a retry which reuses its (seq, op_index) never meets it.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    layers: Vec<FxHashMap<RevisionKey, (State, usize)>>,
}

impl Uncommitted {
    pub(crate) fn push(&mut self) {
        self.layers.push(FxHashMap::default());
    }

    /// Drops the innermost layer: its savepoint or transaction was rolled back.
    pub(crate) fn discard(&mut self) {
        self.layers.pop();
    }

    /// Merges the innermost layer into the one below: its savepoint was released.
    pub(crate) fn release(&mut self) {
        if let Some(top) = self.layers.pop() {
            match self.layers.last_mut() {
                Some(below) => below.extend(top),
                None => self.layers.push(top),
            }
        }
    }

    /// Takes everything out: the transaction committed.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (RevisionKey, State, usize)> + use<> {
        std::mem::take(&mut self.layers)
            .into_iter()
            .flatten()
            .map(|(key, (state, weight))| (key, state, weight))
    }

    pub(crate) fn get(&self, key: &RevisionKey) -> Option<State> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.get(key))
            .map(|(state, _)| state.clone())
    }

    pub(crate) fn insert(&mut self, key: RevisionKey, state: State, weight: usize) {
        if let Some(layer) = self.layers.last_mut() {
            layer.insert(key, (state, weight));
        }
    }
}

/// A map bounded by weight. Two generations: when the young one is full it becomes the old one, and what was only in the
/// old one is forgotten; a hit in the old one moves the entry up.
#[derive(Debug)]
struct Generations<K, V> {
    young: FxHashMap<K, (V, usize)>,
    old: FxHashMap<K, (V, usize)>,
    young_weight: usize,
    budget: usize,
}

/// What an entry costs beside its text.
const ENTRY_OVERHEAD: usize = 256;

impl<K: Eq + Hash + Clone, V: Clone> Generations<K, V> {
    fn new(budget: usize) -> Self {
        Generations {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            young_weight: 0,
            budget,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, (value, weight)) = self.old.remove_entry(key)?;
        self.insert(key, value.clone(), weight);
        Some(value)
    }

    fn insert(&mut self, key: K, value: V, weight: usize) {
        let cost = weight + ENTRY_OVERHEAD;
        if self.young_weight + cost > self.budget / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += cost;
        if let Some((_, replaced)) = self.young.insert(key, (value, weight)) {
            self.young_weight -= replaced + ENTRY_OVERHEAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seq: u64) -> RevisionKey {
        RevisionKey {
            branch: BranchName::default(),
            id: "of:x".into(),
            scope_key: ScopeKey::space(),
            seq: Seq(seq),
            op_index: 0,
        }
    }

    #[test]
    fn eng_201_the_cache_stays_within_its_budget_and_keeps_what_is_used() {
        let mut cache = Generations::new(10 * (ENTRY_OVERHEAD + 10));
        cache.insert(0, "hot", 10);
        for n in 1..1_000 {
            cache.insert(n, "cold", 10);
            assert_eq!(cache.get(&0), Some("hot"), "after {n}");
            assert!(cache.young.len() + cache.old.len() <= 11);
        }
        assert_eq!(cache.get(&1), None);
    }

    #[test]
    fn eng_202_a_rolled_back_layer_leaves_nothing_behind() {
        let mut uncommitted = Uncommitted::default();
        uncommitted.push();
        uncommitted.insert(key(1), None, 0);
        uncommitted.push();
        uncommitted.insert(key(2), None, 0);
        assert!(uncommitted.get(&key(1)).is_some() && uncommitted.get(&key(2)).is_some());
        uncommitted.discard();
        assert!(uncommitted.get(&key(2)).is_none());
        uncommitted.push();
        uncommitted.insert(key(2), Some(Value::Null), 0);
        uncommitted.release();
        let mut kept: Vec<_> = uncommitted.take().map(|(key, ..)| key.seq).collect();
        kept.sort();
        assert_eq!(kept, [Seq(1), Seq(2)]);
        assert!(uncommitted.get(&key(1)).is_none());
    }
}
