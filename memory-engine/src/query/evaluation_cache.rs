//! Sharing whole evaluations between sessions (ENG §10.7). Sound only because an evaluation is recipient-blind:
//! identity resolves scope instances and does nothing else (ENG-1062). A filter by recipient inside an evaluation
//! must bypass this cache.

use memory_wire::hash::{Digest, hash_value};
use memory_wire::ids::{BranchName, EntityId, Seq, SpaceId};
use memory_wire::message::{GraphQuery, Root};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::value::Value;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use super::tracked_graph::TrackedGraph;
use crate::error::EngineError;
use crate::reader::Reader;

/// Evaluations of one space's queries, valid for one seq: any commit rotates them (ENG-1060). Shared by all sessions
/// of the space and by all its readers.
#[derive(Debug)]
pub struct EvaluationCache {
    generation: Mutex<Generation>,
    /// What all that is remembered may weigh.
    room: usize,
}

impl Default for EvaluationCache {
    fn default() -> EvaluationCache {
        EvaluationCache {
            generation: Mutex::default(),
            room: WEIGHT,
        }
    }
}

#[derive(Debug, Default)]
struct Generation {
    seq: Seq,
    entries: FxHashMap<QueryKey, Vec<Entry>>,
    /// What those hold: roots and documents.
    weight: usize,
    hits: u64,
    misses: u64,
}

/// What makes two queries the same evaluation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct QueryKey {
    branch: BranchName,
    roots: Vec<RootKey>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct RootKey {
    id: EntityId,
    scope: Scope,
    path: Vec<SmolStr>,
    schema: Digest,
}

#[derive(Debug)]
struct Entry {
    graph: TrackedGraph,
    sharing: Sharing,
}

/// Whom an evaluation may serve (ENG-1061).
#[derive(Debug)]
enum Sharing {
    /// It met nothing scoped: everybody.
    Pure,
    /// Everything scoped that it met was never written: whoever can resolve that and whose own is not written either.
    AbsentResidue {
        narrowest: Scope,
        instances: Vec<(EntityId, Scope)>,
    },
    /// Whoever evaluated it.
    Own,
}

/// Identities one query is remembered for.
const ENTRIES_PER_QUERY: usize = 64;
/// Queries remembered.
const QUERIES: usize = 1_024;
/// Roots and documents of all that is remembered. Where nobody writes, evaluations stay; whoever asks for ever new lists
/// must not have all of them kept.
const WEIGHT: usize = 65_536;

impl EvaluationCache {
    /// An empty cache.
    pub fn new() -> EvaluationCache {
        EvaluationCache::default()
    }

    /// [`TrackedGraph::track`], or the state of an earlier evaluation that serves this identity as well (ENG-1063).
    /// Queries that name instances outright are evaluated and not remembered.
    ///
    /// # Errors
    /// As [`TrackedGraph::track`].
    pub fn track(
        &self,
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
    ) -> Result<TrackedGraph, EngineError> {
        self.track_within(reader, space, identity, query, usize::MAX)
    }

    /// As [`EvaluationCache::track`], when that reads at most so many documents; an earlier evaluation reads none.
    ///
    /// # Errors
    /// As [`TrackedGraph::track_within`].
    pub fn track_within(
        &self,
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
        most: usize,
    ) -> Result<TrackedGraph, EngineError> {
        if query.roots.iter().any(|root| root.entity_scope_key.is_some()) {
            return TrackedGraph::track_within(reader, space, identity, query, most);
        }
        // Seq and evaluation must be of one state, or a commit in between would be missed.
        reader.snapshot(|reader| {
            let seq = reader.server_seq()?;
            let key = QueryKey {
                branch: query.branch.clone(),
                roots: query.roots.iter().map(root_key).collect(),
            };
            if let Some(shared) = self.find(reader, seq, &key, identity)? {
                return Ok(shared);
            }
            let graph = TrackedGraph::track_within(reader, space, identity, query, most)?;
            self.remember(seq, key, &graph);
            Ok(graph)
        })?
    }

    /// How often an evaluation was shared, and how often not.
    pub fn counts(&self) -> (u64, u64) {
        let generation = self.generation.lock();
        (generation.hits, generation.misses)
    }

    fn find(
        &self,
        reader: &Reader,
        seq: Seq,
        key: &QueryKey,
        identity: &ScopeIdentity,
    ) -> Result<Option<TrackedGraph>, EngineError> {
        let mut generation = self.generation.lock();
        let entries = if generation.seq == seq {
            generation.entries.get(key)
        } else {
            None
        };
        let mut shared = None;
        for entry in entries.into_iter().flatten() {
            if serves(reader, entry, &key.branch, identity)? {
                shared = Some(entry.graph.for_identity(identity)?);
                break;
            }
        }
        match shared {
            Some(_) => generation.hits += 1,
            None => generation.misses += 1,
        }
        Ok(shared)
    }

    fn remember(&self, seq: Seq, key: QueryKey, graph: &TrackedGraph) {
        let mut generation = self.generation.lock();
        if generation.seq > seq {
            // An older reader finished late.
            return;
        }
        let weight = 1 + key.roots.len() + graph.tracked_instances().count();
        if weight > self.room {
            return;
        }
        let is_full = generation.entries.len() >= QUERIES || generation.weight + weight > self.room;
        if generation.seq < seq || is_full {
            generation.seq = seq;
            generation.entries.clear();
            generation.weight = 0;
        }
        let entries = generation.entries.entry(key).or_default();
        if entries.len() < ENTRIES_PER_QUERY {
            entries.push(Entry {
                sharing: sharing(graph),
                graph: graph.clone(),
            });
            generation.weight += weight;
        }
    }
}

fn root_key(root: &Root) -> RootKey {
    // A missing schema is `false` (ENG-1002).
    let schema = root
        .selector
        .schema
        .as_ref()
        .map_or_else(|| hash_value(&Value::Bool(false)), hash_value);
    RootKey {
        id: root.id.clone(),
        scope: root.scope,
        path: root.selector.path.to_vec(),
        schema,
    }
}

fn sharing(graph: &TrackedGraph) -> Sharing {
    match graph.narrowest() {
        Scope::Space => Sharing::Pure,
        narrowest if graph.scoped().all(|(_, seq)| *seq == Seq(0)) => Sharing::AbsentResidue {
            narrowest,
            instances: graph
                .scoped()
                .map(|(i, _)| (i.id.clone(), i.scope_key.scope()))
                .collect(),
        },
        Scope::User | Scope::Session => Sharing::Own,
    }
}

fn serves(
    reader: &Reader,
    entry: &Entry,
    branch: &BranchName,
    identity: &ScopeIdentity,
) -> Result<bool, EngineError> {
    match &entry.sharing {
        Sharing::Pure => Ok(true),
        _ if entry.graph.identity() == identity => Ok(true),
        Sharing::Own => Ok(false),
        Sharing::AbsentResidue { narrowest, instances } => {
            let resolves = [Scope::User, Scope::Session]
                .into_iter()
                .filter(|scope| scope <= narrowest)
                .all(|scope| ScopeKey::resolve(scope, identity).is_ok());
            if !resolves {
                return Ok(false);
            }
            for (id, scope) in instances {
                let instance = InstanceId {
                    id: id.clone(),
                    scope_key: ScopeKey::resolve(*scope, identity)?,
                };
                if reader.find_revision(&instance, branch, None)?.is_some() {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use memory_wire::message::Selector;

    use super::*;
    use crate::{Engine, EngineOptions, StoreLocation};

    /// Where nobody writes, nothing rotates: lists that are each asked for once are not all kept.
    #[test]
    fn eng_1060_what_is_remembered_is_bounded_by_what_it_holds() {
        let engine = Engine::open(StoreLocation::Memory, EngineOptions::default()).unwrap();
        let (space, nobody) = ("did:key:zS".into(), ScopeIdentity::default());
        let cache = EvaluationCache {
            room: 64,
            ..EvaluationCache::new()
        };
        let list = |n: usize, length: usize| {
            let root = |r| {
                let selector = Selector {
                    path: Vec::new(),
                    schema: None,
                };
                Root::new(format!("of:{n}-{r}").as_str(), Scope::Space, selector)
            };
            GraphQuery::of((0..length).map(root).collect())
        };
        let ask = |query: &GraphQuery| cache.track(engine.reader(), &space, &nobody, query).unwrap();
        for n in 0..10 {
            for _ in 0..2 {
                ask(&list(n, 10));
            }
            let weight = cache.generation.lock().weight;
            assert!((1..=64).contains(&weight), "{weight}");
        }
        assert_eq!(cache.counts(), (10, 10), "each was shared while it was there");
        // One that is larger than all there may be puts out nothing in vain, and is made each time.
        for _ in 0..2 {
            ask(&list(11, 64));
        }
        assert_eq!(cache.counts(), (10, 12));
    }
}
