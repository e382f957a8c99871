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
#[derive(Debug, Default)]
pub struct EvaluationCache {
    generation: Mutex<Generation>,
}

#[derive(Debug, Default)]
struct Generation {
    seq: Seq,
    entries: FxHashMap<QueryKey, Vec<Entry>>,
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
        if query.roots.iter().any(|root| root.entity_scope_key.is_some()) {
            return TrackedGraph::track(reader, space, identity, query);
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
            let graph = TrackedGraph::track(reader, space, identity, query)?;
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
        if generation.seq < seq || generation.entries.len() >= QUERIES {
            generation.seq = seq;
            generation.entries.clear();
        }
        let entries = generation.entries.entry(key).or_default();
        if entries.len() < ENTRIES_PER_QUERY {
            entries.push(Entry {
                sharing: sharing(graph),
                graph: graph.clone(),
            });
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
