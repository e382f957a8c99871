//! What one process remembers of a store's rows (ENG-201…204): decoded documents, parsed patches, commit classes and
//! verified schemas. Shared by the writer and the readers of a space. Sound because revisions never change, and
//! because nothing enters it that is not durable: rows of an open transaction wait in [`Uncommitted`].

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::patch::PatchOp;
use memory_wire::{ScopeKey, Value};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::heads::{Head, HeadKey, Heads};
use crate::sessions::Sessions;
use crate::undo::Undo;

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

/// How a bounded cache is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Questions answered.
    pub hits: u64,
    /// Questions that had to be answered from the store.
    pub misses: u64,
    /// Entries held now.
    pub entries: u64,
    /// Their approximate size in bytes; never above the cache's bound.
    pub bytes: u64,
}

/// What a store's handle has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounters {
    /// Statements run, by the writer and by all readers.
    pub statements: u64,
    /// Write transactions committed.
    pub transactions: u64,
    /// Reads answered without SQLite.
    pub hot_reads: u64,
    /// Decoded documents.
    pub documents: CacheCounters,
    /// Parsed patches.
    pub patches: CacheCounters,
    /// Newest revisions of instances.
    pub heads: CacheCounters,
}

/// What is remembered of one store.
#[derive(Debug)]
pub(crate) struct StoreCache {
    pub(crate) heads: Heads,
    pub(crate) sessions: Sessions,
    pub(crate) statements: Arc<AtomicU64>,
    transactions: AtomicU64,
    hot_reads: AtomicU64,
    documents: Mutex<Generations<RevisionKey, State>>,
    patches: Mutex<Generations<RevisionKey, Arc<[PatchOp]>>>,
    classes: Mutex<FxHashMap<Seq, CommitClass>>,
    schemas: Mutex<FxHashMap<EntityId, (Seq, SchemaReferences)>>,
}

impl StoreCache {
    pub(crate) fn new() -> Arc<StoreCache> {
        Arc::new(StoreCache {
            heads: Heads::new(),
            sessions: Sessions::default(),
            statements: Arc::default(),
            transactions: AtomicU64::new(0),
            hot_reads: AtomicU64::new(0),
            documents: Mutex::new(Generations::new(DOCUMENT_BUDGET)),
            patches: Mutex::new(Generations::new(PATCH_BUDGET)),
            classes: Mutex::default(),
            schemas: Mutex::default(),
        })
    }

    pub(crate) fn count_transaction(&self) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_hot_read(&self) {
        self.hot_reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounters {
            statements: of(&self.statements),
            transactions: of(&self.transactions),
            hot_reads: of(&self.hot_reads),
            documents: self.documents.lock().counters(),
            patches: self.patches.lock().counters(),
            heads: self.heads.counters(),
        }
    }

    /// Gives back what is remembered of a store that rests at `seq`: it stays open, so what others write will be noticed.
    pub(crate) fn give_back(&self, seq: Seq) {
        self.forget_all();
        self.heads.forget(Some(seq));
    }

    /// Gives back what is remembered: the store is closed, and may be written by others before it is opened again.
    pub(crate) fn forget_all(&self) {
        self.heads.forget(None);
        self.sessions.forget();
        self.documents.lock().clear();
        self.patches.lock().clear();
        self.classes.lock().clear();
        self.schemas.lock().clear();
    }

    pub(crate) fn document(&self, key: &RevisionKey) -> Option<State> {
        self.documents.lock().get(key)
    }

    /// A document with about the size of its text.
    pub(crate) fn weighed_document(&self, key: &RevisionKey) -> Option<(State, usize)> {
        self.documents.lock().weighed(key)
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

/// What was read or written inside an open transaction, one layer for it and one for each write in it (ENG-202): one that
/// is taken back takes its layer along, so that a retry which reuses its (seq, op_index) never meets it.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    layers: Vec<Layer>,
}

/// What one transaction, or one write in it, did so far.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(crate) states: FxHashMap<RevisionKey, (State, usize)>,
    pub(crate) heads: FxHashMap<HeadKey, Head>,
    /// The newest commit written.
    pub(crate) seq: Option<Seq>,
    /// Heads were removed without a commit.
    pub(crate) removed: bool,
    /// Instances that snapshots were taken of.
    pub(crate) snapshots: FxHashSet<HeadKey>,
    /// How to take it back.
    pub(crate) undo: Undo,
}

/// What the commits of a transaction leave to be done before it ends, once for all of them.
#[derive(Debug, Default)]
pub(crate) struct Remainder {
    /// Branches with their newest commit.
    pub(crate) head_seqs: Vec<(BranchName, Seq)>,
    /// Instances that may have more snapshots than are kept.
    pub(crate) snapshots: Vec<HeadKey>,
}

impl Layer {
    fn absorb(&mut self, above: Layer) {
        self.states.extend(above.states);
        self.heads.extend(above.heads);
        self.seq = above.seq.or(self.seq);
        self.removed |= above.removed;
        self.snapshots.extend(above.snapshots);
        self.undo.absorb(above.undo);
    }
}

impl Uncommitted {
    pub(crate) fn push(&mut self) {
        self.layers.push(Layer::default());
    }

    /// Drops the innermost layer: its savepoint or transaction was rolled back, or is about to be.
    pub(crate) fn discard(&mut self) -> Layer {
        self.layers.pop().unwrap_or_default()
    }

    /// Merges the innermost layer into the one below: its savepoint was released.
    pub(crate) fn release(&mut self) {
        if let Some(top) = self.layers.pop() {
            match self.layers.last_mut() {
                Some(below) => below.absorb(top),
                None => self.layers.push(top),
            }
        }
    }

    /// Takes everything out: the transaction ended.
    pub(crate) fn take(&mut self) -> Layer {
        let mut whole = Layer::default();
        std::mem::take(&mut self.layers)
            .into_iter()
            .for_each(|layer| whole.absorb(layer));
        whole
    }

    pub(crate) fn get(&self, key: &RevisionKey) -> Option<State> {
        self.weighed(key).map(|(state, _)| state)
    }

    pub(crate) fn weighed(&self, key: &RevisionKey) -> Option<(State, usize)> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.states.get(key))
            .cloned()
    }

    pub(crate) fn insert(&mut self, key: RevisionKey, state: State, weight: usize) {
        if let Some(layer) = self.layers.last_mut() {
            layer.states.insert(key, (state, weight));
        }
    }

    pub(crate) fn head(&self, key: &HeadKey) -> Option<Head> {
        self.layers
            .iter()
            .rev()
            .find_map(|layer| layer.heads.get(key))
            .copied()
    }

    /// Whether heads were removed in this transaction, so that what was known of them before does not hold.
    pub(crate) fn removed(&self) -> bool {
        self.layers.iter().any(|layer| layer.removed)
    }

    /// The newest commit of this transaction.
    pub(crate) fn seq(&self) -> Option<Seq> {
        self.layers.iter().rev().find_map(|layer| layer.seq)
    }

    /// The newest commit of this transaction on `branch`.
    pub(crate) fn head_seq(&self, branch: &BranchName) -> Option<Seq> {
        self.commits_newest_first()
            .find(|(_, of)| of == branch)
            .map(|&(seq, _)| seq)
    }

    fn commits_newest_first(&self) -> impl Iterator<Item = &(Seq, BranchName)> {
        self.layers
            .iter()
            .rev()
            .flat_map(|layer| layer.undo.commits.iter().rev())
    }

    pub(crate) fn remainder(&self) -> Remainder {
        let mut remainder = Remainder::default();
        for (seq, branch) in self.commits_newest_first() {
            if remainder.head_seqs.iter().all(|(of, _)| of != branch) {
                remainder.head_seqs.push((branch.clone(), *seq));
            }
        }
        let snapshots = self.layers.iter().flat_map(|layer| &layer.snapshots);
        remainder.snapshots = snapshots.cloned().collect();
        remainder
    }

    /// The innermost layer; there is one while a transaction is open.
    pub(crate) fn top(&mut self) -> Option<&mut Layer> {
        self.layers.last_mut()
    }
}

/// A map bounded by weight. Two generations: when the young one is full it becomes the old one, and what was only in the
/// old one is forgotten; a hit in the old one moves the entry up. What is heavier than half the bound takes the place of
/// others, and what is heavier than all of it is not kept.
#[derive(Debug)]
pub(crate) struct Generations<K, V> {
    young: FxHashMap<K, (V, usize)>,
    old: FxHashMap<K, (V, usize)>,
    young_weight: usize,
    old_weight: usize,
    budget: usize,
    hits: u64,
    misses: u64,
}

/// What an entry costs beside its text.
const ENTRY_OVERHEAD: usize = 256;

impl<K: Eq + Hash + Clone, V: Clone> Generations<K, V> {
    pub(crate) fn new(budget: usize) -> Self {
        Generations {
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            young_weight: 0,
            old_weight: 0,
            budget,
            hits: 0,
            misses: 0,
        }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        self.weighed(key).map(|(value, _)| value)
    }

    fn weighed(&mut self, key: &K) -> Option<(V, usize)> {
        if let Some(known) = self.young.get(key) {
            self.hits += 1;
            return Some(known.clone());
        }
        let Some((key, (value, weight))) = self.old.remove_entry(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        self.old_weight -= weight + ENTRY_OVERHEAD;
        self.insert(key, value.clone(), weight);
        Some((value, weight))
    }

    /// Gives everything back; the counts stay.
    pub(crate) fn clear(&mut self) {
        self.young = FxHashMap::default();
        self.old = FxHashMap::default();
        (self.young_weight, self.old_weight) = (0, 0);
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        CacheCounters {
            hits: self.hits,
            misses: self.misses,
            entries: (self.young.len() + self.old.len()) as u64,
            bytes: (self.young_weight + self.old_weight) as u64,
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: V, weight: usize) {
        let cost = weight + ENTRY_OVERHEAD;
        if cost > self.budget {
            return;
        }
        if self.young_weight + cost > self.budget / 2 {
            self.old = std::mem::take(&mut self.young);
            self.old_weight = std::mem::take(&mut self.young_weight);
        }
        self.young_weight += cost;
        // An older copy must not come back when the younger is gone.
        if let Some((_, replaced)) = self.old.remove(&key) {
            self.old_weight -= replaced + ENTRY_OVERHEAD;
        }
        if let Some((_, replaced)) = self.young.insert(key, (value, weight)) {
            self.young_weight -= replaced + ENTRY_OVERHEAD;
        }
        if self.old_weight + self.young_weight > self.budget {
            self.old = FxHashMap::default();
            self.old_weight = 0;
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
    fn eng_201_the_cache_stays_within_its_budget_whatever_an_entry_weighs() {
        let budget = 100 * ENTRY_OVERHEAD;
        let mut cache = Generations::new(budget);
        for n in 0..2_000usize {
            // From nothing to more than all of it.
            let weight = (n * 7_919) % (budget + budget / 4);
            cache.insert(n % 37, n, weight);
            let counters = cache.counters();
            assert!(counters.bytes <= budget as u64, "{counters:?} after {n}");
            let kept = cache.get(&(n % 37));
            if weight + ENTRY_OVERHEAD <= budget {
                assert_eq!(kept, Some(n));
            }
            let weights = [&cache.young, &cache.old].map(|generation| {
                let weights = generation.values().map(|(_, weight)| weight + ENTRY_OVERHEAD);
                weights.sum::<usize>()
            });
            assert_eq!(weights, [cache.young_weight, cache.old_weight], "after {n}");
        }
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
        let mut kept: Vec<_> = uncommitted.take().states.into_keys().map(|key| key.seq).collect();
        kept.sort();
        assert_eq!(kept, [Seq(1), Seq(2)]);
        assert!(uncommitted.get(&key(1)).is_none());
    }
}
