//! A query whose reach is kept up to date (ENG-1000, 1010…1016). A refresh walks again what changed and nothing
//! else; only when something that a changed document led to is no longer led to is the whole evaluated anew, to
//! learn what is unreached now (decision 31).

use std::sync::Arc;

use memory_wire::ids::{BranchName, EntityId, Seq, SpaceId};
use memory_wire::js_string::JsString;
use memory_wire::message::{self, GraphQuery};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::traverse::{
    Ctx, DocKey, MAX_OPEN_PLACES, Memo, Mode, Root, Schema, SchemaPool, Seen, Selector, Tracker, visit,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::closure::{self, Referrer, closure, references};
use super::snapshot::{Loaded, Snapshot};
use super::source::{QuerySource, engine_error};
use crate::error::EngineError;
use crate::reader::Reader;

/// What a refresh came to.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Instances whose state differs from what was last reported, or that are new, in key order.
    pub snapshots: Vec<Snapshot>,
    /// Instances that the query reached before and reaches no more, in key order. They are not tracked any longer.
    pub unreached: Vec<InstanceId>,
}

/// How much a graph has worked since it was made; grows only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Documents read, absent ones included.
    pub documents: u64,
    /// Evaluations of everything.
    pub evaluations: u64,
    /// Refreshes that evaluated something.
    pub refreshes: u64,
}

/// One query of one identity on one branch, with everything it reaches. A clone shares everything until one of the
/// two changes, so staging an extension that may fail is cheap (ENG-1015).
#[derive(Clone, Debug)]
pub struct TrackedGraph {
    space: SpaceId,
    branch: BranchName,
    identity: ScopeIdentity,
    roots: Arc<Vec<TrackedRoot>>,
    reach: Arc<Reach>,
    work: Work,
}

/// A root of the query with its address resolved.
#[derive(Clone, Debug)]
pub(super) struct TrackedRoot {
    instance: InstanceId,
    selector: Selector,
}

/// What is reached, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    tracker: Tracker,
    entities: FxHashMap<InstanceId, Entity>,
    /// Every instance that was read, with the seq it was read at: tells what an extension loads for the first time.
    loaded: FxHashMap<InstanceId, Seq>,
    /// Link targets that were absent. They are not tracked (ENG-1026); when one appears, what was walked before is
    /// no longer known to be all there is.
    awaited: FxHashSet<DocKey>,
    /// The narrowest scope that had to be resolved.
    narrowest: Scope,
    /// Something of this may be reached no more, or the walk that brought it here did not end: only a whole evaluation
    /// tells.
    doubtful: bool,
}

#[derive(Clone, Debug)]
struct Entity {
    snapshot: Snapshot,
    /// The schema documents it refers to.
    references: Arc<[EntityId]>,
}

/// What walking the dirty documents again came to.
#[derive(Default)]
struct Refreshed {
    reported: FxHashSet<InstanceId>,
    /// Instances that were not reached before.
    new: FxHashSet<InstanceId>,
}

/// One evaluation, before its results are assembled.
struct Walk {
    loaded: FxHashMap<InstanceId, Loaded>,
    awaited: Vec<DocKey>,
    narrowest: Scope,
}

impl TrackedRoot {
    /// Where it begins.
    pub(super) fn instance(&self) -> &InstanceId {
        &self.instance
    }

    fn equals(&self, other: &TrackedRoot) -> bool {
        self.instance == other.instance && self.selector == other.selector
    }
}

impl Reach {
    /// True when both have reached the same documents at the same seqs: under the same roots they are the same then,
    /// because documents and roots decide everything else.
    pub(super) fn has_reached_the_same(&self, other: &Reach) -> bool {
        !self.doubtful
            && !other.doubtful
            && self.entities.len() == other.entities.len()
            && self.entities.iter().all(|(instance, entity)| {
                other
                    .entities
                    .get(instance)
                    .is_some_and(|found| found.snapshot.seq == entity.snapshot.seq)
            })
    }

    /// The narrowest scope that had to be resolved.
    pub(super) fn narrowest(&self) -> Scope {
        self.narrowest
    }
}

impl TrackedGraph {
    /// Evaluates a query and keeps it (ENG-1010). The query's own `at_seq` is not looked at: a kept graph is about
    /// the present.
    ///
    /// # Errors
    /// An unresolvable scope, a schema document that is missing or does not verify, an unknown branch, SQLite's.
    pub fn track(
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
    ) -> Result<TrackedGraph, EngineError> {
        TrackedGraph::evaluate(reader, space, identity, query, None)
    }

    /// Answers a query once, at its `at_seq` if it has one, in the order of instances (decision 16).
    ///
    /// # Errors
    /// As [`TrackedGraph::track`]; an `at_seq` that the branch does not have (ENG-901).
    pub fn query(
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
    ) -> Result<Vec<Snapshot>, EngineError> {
        let at = match query.at_seq {
            Some(at) => Some(reader.check_seq_in_range(&query.branch, crate::column::sql(at))?),
            None => None,
        };
        Ok(TrackedGraph::evaluate(reader, space, identity, query, at)?
            .snapshots()
            .collect())
    }

    fn evaluate(
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
        at: Option<Seq>,
    ) -> Result<TrackedGraph, EngineError> {
        let mut graph = TrackedGraph {
            space: space.clone(),
            branch: query.branch.clone(),
            identity: identity.clone(),
            roots: Arc::default(),
            reach: Arc::default(),
            work: Work::default(),
        };
        let roots = graph.resolve_roots(reader, &query.roots, at)?;
        graph.reach = Arc::new(graph.reach_of(reader, &roots, at)?);
        graph.roots = Arc::new(roots);
        Ok(graph)
    }

    /// Adds a query's roots (ENG-1011). Reports each root's instance and every instance that is tracked and was read
    /// for the first time, or has changed since, whether reported before or not.
    ///
    /// # Errors
    /// As [`TrackedGraph::track`]; the graph is then as it was.
    pub fn extend(&mut self, reader: &Reader, query: &GraphQuery) -> Result<Vec<Snapshot>, EngineError> {
        let roots = self.resolve_roots(reader, &query.roots, None)?;
        let mut reach = Arc::clone(&self.reach);
        let extended = Arc::make_mut(&mut reach);
        let walk = self.walk(reader, &mut extended.tracker, &visits(&self.space, &roots), None)?;
        let documents = walk.loaded.len() as u64;
        let mut reported: FxHashSet<InstanceId> = roots.iter().map(|root| root.instance.clone()).collect();
        for (instance, loaded) in &walk.loaded {
            let key = self.key(instance);
            if extended.tracker.contains(&key) && extended.loaded.get(instance) != Some(&loaded.seq) {
                reported.insert(instance.clone());
            }
        }
        reported.extend(self.assemble(reader, extended, walk, None)?);
        let snapshots = report(extended, &reported);
        self.reach = reach;
        self.work.documents += documents;
        Arc::make_mut(&mut self.roots).extend(roots);
        Ok(snapshots)
    }

    /// Takes in that `dirty` instances were written. `None`: nothing tracked was among them and nothing was read.
    ///
    /// # Errors
    /// As [`TrackedGraph::track`]; the caller evaluates anew then (ENG-1016).
    pub fn refresh(
        &mut self,
        reader: &Reader,
        dirty: &FxHashSet<InstanceId>,
    ) -> Result<Option<Changes>, EngineError> {
        let doubtful = self.reach.doubtful;
        let refreshed = self.walk_dirty(reader, dirty)?;
        if refreshed.is_none() && !doubtful {
            return Ok(None);
        }
        let Refreshed { mut reported, new } = refreshed.unwrap_or_default();
        if !self.reach.doubtful {
            return Ok(Some(Changes {
                snapshots: report(&self.reach, &reported),
                unreached: Vec::new(),
            }));
        }
        let whole = self.reach_of(reader, &Arc::clone(&self.roots), None)?;
        let known = &self.reach.entities;
        let gone = known
            .keys()
            .filter(|instance| !whole.entities.contains_key(*instance) && !new.contains(*instance));
        let mut unreached: Vec<InstanceId> = gone.cloned().collect();
        unreached.sort();
        for (instance, entity) in &whole.entities {
            if known
                .get(instance)
                .is_none_or(|known| known.snapshot.seq != entity.snapshot.seq)
            {
                reported.insert(instance.clone());
            }
        }
        let snapshots = report(&whole, &reported);
        self.reach = Arc::new(whole);
        Ok(Some(Changes { snapshots, unreached }))
    }

    /// As [`TrackedGraph::refresh`], and nothing is ever un-tracked: a document no longer reached stays tracked and
    /// reported until the query is replaced (ENG-1012, 1013).
    ///
    /// # Errors
    /// As [`TrackedGraph::refresh`].
    pub fn refresh_keeping(
        &mut self,
        reader: &Reader,
        dirty: &FxHashSet<InstanceId>,
    ) -> Result<Option<Vec<Snapshot>>, EngineError> {
        let refreshed = self.walk_dirty(reader, dirty)?;
        Ok(refreshed.map(|refreshed| report(&self.reach, &refreshed.reported)))
    }

    /// Walks the dirty documents again.
    fn walk_dirty(
        &mut self,
        reader: &Reader,
        dirty: &FxHashSet<InstanceId>,
    ) -> Result<Option<Refreshed>, EngineError> {
        let keys: Vec<DocKey> = dirty.iter().map(|instance| self.key(instance)).collect();
        if keys.iter().any(|key| self.reach.awaited.contains(key)) {
            let reach = Arc::make_mut(&mut self.reach);
            reach.awaited.retain(|key| !keys.contains(key));
            reach.tracker.forget_walked();
        }
        let mut affected: Vec<DocKey> = keys
            .into_iter()
            .filter(|key| self.reach.tracker.contains(key))
            .collect();
        if affected.is_empty() {
            return Ok(None);
        }
        affected.sort();
        self.work.refreshes += 1;
        // Taken out, so that it is changed in place while `self` is only read.
        let mut reach = std::mem::take(&mut self.reach);
        let changed = Arc::make_mut(&mut reach);
        let refreshed = self.walk_again(reader, changed, &affected);
        changed.doubtful |= refreshed.is_err();
        self.reach = reach;
        let (refreshed, documents) = refreshed?;
        self.work.documents += documents;
        Ok(Some(refreshed))
    }

    fn walk_again(
        &self,
        reader: &Reader,
        reach: &mut Reach,
        affected: &[DocKey],
    ) -> Result<(Refreshed, u64), EngineError> {
        let again = reach.tracker.take_out(affected);
        let walk = self.walk(reader, &mut reach.tracker, &again, None)?;
        let documents = walk.loaded.len() as u64;
        let mut reported: FxHashSet<InstanceId> = affected.iter().map(|key| key.instance.clone()).collect();
        for (instance, loaded) in &walk.loaded {
            let known = reach.entities.get(instance).map(|entity| entity.snapshot.seq);
            if known != Some(loaded.seq) && reach.tracker.contains(&self.key(instance)) {
                reported.insert(instance.clone());
            }
        }
        let new = self.assemble(reader, reach, walk, None)?;
        reported.extend(new.iter().cloned());
        reach.doubtful |= reach.tracker.settle();
        Ok((Refreshed { reported, new }, documents))
    }

    /// True when every root of `query` is covered by what is tracked (ENG-1014).
    ///
    /// # Errors
    /// A root whose scope the identity cannot resolve.
    pub fn covers(&self, query: &GraphQuery) -> Result<bool, EngineError> {
        for root in &query.roots {
            let root = self.resolve_root(root)?;
            if !self
                .reach
                .tracker
                .covers(&self.key(&root.instance), &root.selector)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The branch the graph is on.
    pub fn branch(&self) -> &BranchName {
        &self.branch
    }

    /// Whose graph it is.
    pub fn identity(&self) -> &ScopeIdentity {
        &self.identity
    }

    /// Everything reached, in key order.
    pub fn snapshots(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let mut instances: Vec<&InstanceId> = self.reach.entities.keys().collect();
        instances.sort();
        instances
            .into_iter()
            .map(|instance| self.reach.entities[instance].snapshot.clone())
    }

    /// The tracked instances, in no particular order.
    pub fn tracked_instances(&self) -> impl Iterator<Item = &InstanceId> + '_ {
        self.reach.entities.keys()
    }

    /// True when a write to the instance may change what the graph reports.
    pub fn tracks(&self, instance: &InstanceId) -> bool {
        self.reach.entities.contains_key(instance)
    }

    /// True when a write to the instance may let the query reach something that no refresh learns of: a link leads
    /// there that could not be followed (ENG-1013, 1026).
    pub fn awaits(&self, instance: &InstanceId) -> bool {
        self.reach.awaited.contains(&self.key(instance))
    }

    /// The tracked documents with their selectors.
    pub fn tracker(&self) -> &Tracker {
        &self.reach.tracker
    }

    /// How much the graph has worked so far.
    pub fn work(&self) -> Work {
        self.work
    }

    fn key(&self, instance: &InstanceId) -> DocKey {
        DocKey {
            space: self.space.clone(),
            instance: instance.clone(),
        }
    }

    fn resolve_root(&self, root: &message::Root) -> Result<TrackedRoot, EngineError> {
        // A root may name an instance outright; everything beyond it resolves under the identity (ENG-1003).
        let scope_key = match &root.entity_scope_key {
            Some(key) => key.clone(),
            None => ScopeKey::resolve(root.scope, &self.identity)?,
        };
        let path: Vec<JsString> = root
            .selector
            .path
            .iter()
            .map(|segment| JsString::from(segment.clone()))
            .collect();
        let schema = root.selector.schema.as_ref().map(Schema::of);
        Ok(TrackedRoot {
            instance: InstanceId {
                id: root.id.clone(),
                scope_key,
            },
            selector: Selector::from_root(&path, schema),
        })
    }

    /// The roots with their addresses, once the schema documents their selectors name are known to verify (ENG-1053).
    fn resolve_roots(
        &self,
        reader: &Reader,
        roots: &[message::Root],
        at: Option<Seq>,
    ) -> Result<Vec<TrackedRoot>, EngineError> {
        let named = roots.iter().filter_map(|root| root.selector.schema.as_ref());
        let named: Vec<EntityId> = named
            .flat_map(|schema| closure::references_in(&Schema::of(schema)))
            .collect();
        if !named.is_empty() {
            closure(reader, &self.branch, at, named, Referrer::Selector)?;
        }
        roots.iter().map(|root| self.resolve_root(root)).collect()
    }

    /// Evaluates everything.
    fn reach_of(
        &mut self,
        reader: &Reader,
        roots: &[TrackedRoot],
        at: Option<Seq>,
    ) -> Result<Reach, EngineError> {
        let mut reach = Reach::default();
        let walk = self.walk(reader, &mut reach.tracker, &visits(&self.space, roots), at)?;
        self.work.documents += walk.loaded.len() as u64;
        self.work.evaluations += 1;
        self.assemble(reader, &mut reach, walk, at)?;
        Ok(reach)
    }

    fn walk(
        &self,
        reader: &Reader,
        tracker: &mut Tracker,
        visits: &[(DocKey, Selector)],
        at: Option<Seq>,
    ) -> Result<Walk, EngineError> {
        let mut source = QuerySource::new(reader, &self.space, &self.branch, at);
        let (mut memo, mut schemas, mut seen) = (Memo::new(), SchemaPool::new(), Seen::new());
        let mut ctx = Ctx {
            mode: Mode::Query,
            identity: &self.identity,
            tracker,
            memo: &mut memo,
            schemas: &mut schemas,
            seen: &mut seen,
            max_open: MAX_OPEN_PLACES,
            skip_walked: true,
        };
        for (key, selector) in visits {
            let scope = key.instance.scope_key.scope();
            let document = match key.space == self.space {
                true => source.instance(&key.instance)?.document.clone(),
                false => None,
            };
            if document.is_none() {
                ctx.tracker.add_root(key, selector);
                continue;
            }
            let own = ScopeKey::resolve(scope, &self.identity).is_ok_and(|own| own == key.instance.scope_key);
            let explicit = (!own).then(|| key.clone());
            let root = Root {
                space: key.space.clone(),
                id: key.instance.id.clone(),
                scope,
                explicit,
                document,
            };
            if let Err(failure) = visit(&mut source, &mut ctx, &root, selector).map_err(engine_error)? {
                tracing::trace!(space = %self.space, failure = failure.as_str(), "a root does not satisfy its schema");
            }
        }
        let visited_scopes = visits.iter().map(|(key, _)| key.instance.scope_key.scope());
        Ok(Walk {
            awaited: seen.absent().cloned().collect(),
            narrowest: visited_scopes
                .chain([seen.narrowest_scope()])
                .max()
                .unwrap_or_default(),
            loaded: source.into_loaded(),
        })
    }

    /// Turns a finished walk into entities and adds the schema documents they refer to (ENG-1050, 1051). Returns the
    /// instances that there was no entity of before.
    fn assemble(
        &self,
        reader: &Reader,
        reach: &mut Reach,
        walk: Walk,
        at: Option<Seq>,
    ) -> Result<FxHashSet<InstanceId>, EngineError> {
        let mut new = FxHashSet::default();
        let Walk {
            mut loaded,
            awaited,
            narrowest,
        } = walk;
        reach.narrowest = reach.narrowest.max(narrowest);
        reach.awaited.extend(awaited);
        for (instance, found) in &loaded {
            reach.loaded.insert(instance.clone(), found.seq);
        }
        let added = reach
            .tracker
            .take_added()
            .into_iter()
            .filter(|key| key.space == self.space);
        let mut tracked: FxHashSet<InstanceId> = added.map(|key| key.instance).collect();
        tracked.extend(
            loaded
                .keys()
                .filter(|instance| reach.tracker.contains(&self.key(instance)))
                .cloned(),
        );
        let mut referred: Vec<(InstanceId, Arc<[EntityId]>)> = Vec::new();
        for instance in tracked {
            let found = loaded.remove(&instance);
            let known = reach.entities.get(&instance);
            if let (Some(known), Some(found)) = (known, &found)
                && known.snapshot.seq == found.seq
            {
                referred.push((instance, known.references.clone()));
                continue;
            }
            let entity = self.entity(reader, &instance, found, at)?;
            referred.push((instance.clone(), entity.references.clone()));
            if reach.entities.insert(instance.clone(), entity).is_none() {
                new.insert(instance);
            }
        }
        let roots = referred
            .iter()
            .flat_map(|(_, references)| references.iter().cloned());
        let members = closure(reader, &self.branch, at, roots, Referrer::Result)?;
        let mut members: Vec<EntityId> = members.into_iter().collect();
        members.sort();
        for id in members {
            let instance = InstanceId::space(id);
            let key = self.key(&instance);
            if !reach.tracker.contains(&key) {
                reach.tracker.add(&key, Selector::rejecting());
                let entity = self.entity(reader, &instance, None, at)?;
                reach.entities.insert(instance.clone(), entity);
                new.insert(instance);
            }
        }
        for (instance, references) in &referred {
            let source = self.key(instance);
            for id in references.iter().filter(|id| **id != instance.id) {
                let target = self.key(&InstanceId::space(id.clone()));
                reach.tracker.refer(&source, &target);
            }
        }
        Ok(new)
    }

    fn entity(
        &self,
        reader: &Reader,
        instance: &InstanceId,
        loaded: Option<Loaded>,
        at: Option<Seq>,
    ) -> Result<Entity, EngineError> {
        let loaded = match loaded {
            Some(loaded) => loaded,
            None => {
                let mut source = QuerySource::new(reader, &self.space, &self.branch, at);
                source.instance(instance)?.clone()
            }
        };
        let references = match &loaded.document {
            Some(document) => references(&instance.id, document),
            None => Arc::new([]),
        };
        Ok(Entity {
            snapshot: Snapshot::of(reader, &self.branch, instance, &loaded)?,
            references,
        })
    }

    /// The parts that clones share until one changes.
    pub(super) fn evaluation(&self) -> (&Arc<Reach>, &Arc<Vec<TrackedRoot>>) {
        (&self.reach, &self.roots)
    }

    /// Holds from now on what another graph's refresh came to, whose evaluation was this one's.
    pub(super) fn take_over(&mut self, (reach, roots): (Arc<Reach>, Arc<Vec<TrackedRoot>>)) {
        self.reach = reach;
        self.roots = roots;
    }

    /// True when a graph of this branch with these roots is the same query.
    pub(super) fn asks_the_same(&self, roots: &Arc<Vec<TrackedRoot>>) -> bool {
        Arc::ptr_eq(&self.roots, roots)
            || (self.roots.len() == roots.len()
                && self.roots.iter().zip(roots.iter()).all(|(a, b)| a.equals(b)))
    }

    /// What sharing this graph with another identity depends on.
    pub(super) fn touched(&self) -> Touched<'_> {
        let scoped = self
            .reach
            .loaded
            .iter()
            .filter(|(instance, _)| instance.scope_key.scope() != Scope::Space);
        Touched {
            narrowest: self.reach.narrowest,
            scoped: scoped.collect(),
        }
    }

    /// The same reach as another identity sees it, whose own instances are as absent as this one's were (ENG-1061).
    pub(super) fn for_identity(&self, identity: &ScopeIdentity) -> Result<TrackedGraph, EngineError> {
        let mut shared = TrackedGraph {
            identity: identity.clone(),
            work: Work::default(),
            ..self.clone()
        };
        if self.identity == *identity || self.reach.narrowest == Scope::Space {
            return Ok(shared);
        }
        let user = ScopeKey::resolve(Scope::User, identity);
        let session = ScopeKey::resolve(Scope::Session, identity);
        let own = |instance: &InstanceId| -> Result<InstanceId, EngineError> {
            let scope_key = match instance.scope_key.scope() {
                Scope::Space => instance.scope_key.clone(),
                Scope::User => user.clone()?,
                Scope::Session => session.clone()?,
            };
            Ok(InstanceId {
                id: instance.id.clone(),
                scope_key,
            })
        };
        let mut reach = Reach {
            narrowest: self.reach.narrowest,
            doubtful: self.reach.doubtful,
            ..Reach::default()
        };
        // Every key was resolvable for the narrowest scope, which was checked before sharing.
        reach.tracker = self.reach.tracker.rekeyed(|key| match own(&key.instance) {
            Ok(instance) => DocKey {
                space: key.space.clone(),
                instance,
            },
            Err(_) => key.clone(),
        });
        for (instance, entity) in &self.reach.entities {
            let instance = own(instance)?;
            let mut entity = entity.clone();
            entity.snapshot.scope_key = instance.scope_key.clone();
            reach.entities.insert(instance, entity);
        }
        for (instance, seq) in &self.reach.loaded {
            reach.loaded.insert(own(instance)?, *seq);
        }
        for key in &self.reach.awaited {
            reach.awaited.insert(DocKey {
                space: key.space.clone(),
                instance: own(&key.instance)?,
            });
        }
        let mut roots = Vec::clone(&self.roots);
        for root in &mut roots {
            root.instance = own(&root.instance)?;
        }
        shared.roots = Arc::new(roots);
        shared.reach = Arc::new(reach);
        Ok(shared)
    }
}

/// The scoped instances an evaluation met.
pub(super) struct Touched<'g> {
    pub(super) narrowest: Scope,
    pub(super) scoped: Vec<(&'g InstanceId, &'g Seq)>,
}

/// The documents to walk, each with the selector it is walked under.
fn visits(space: &SpaceId, roots: &[TrackedRoot]) -> Vec<(DocKey, Selector)> {
    let key = |root: &TrackedRoot| DocKey {
        space: space.clone(),
        instance: root.instance.clone(),
    };
    roots
        .iter()
        .map(|root| (key(root), root.selector.clone()))
        .collect()
}

fn report(reach: &Reach, instances: &FxHashSet<InstanceId>) -> Vec<Snapshot> {
    let mut instances: Vec<&InstanceId> = instances.iter().collect();
    instances.sort();
    instances
        .into_iter()
        .filter_map(|instance| reach.entities.get(instance))
        .map(|e| e.snapshot.clone())
        .collect()
}
