//! One evaluation (ENG-1010, 1020, 1050): walking documents under their selectors and turning what was walked into
//! tracked documents, with the schema documents they refer to. Of everything, of what an extension adds, or of what a
//! refresh walks again: [`TrackedGraph`](super::TrackedGraph) decides.

use std::sync::Arc;

use memory_wire::ids::{BranchName, EntityId, Seq, SpaceId};
use memory_wire::js_string::JsString;
use memory_wire::message;
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::traverse::{
    Ctx, DocKey, MAX_OPEN_PLACES, Memo, Mode, Root, Schema, SchemaPool, Seen, Selector, Tracker, visit,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::closure::{self, Referrer, closure, references};
use super::reach::{Entity, Reach, TrackedRoot};
use super::snapshot::{Loaded, Snapshot};
use super::source::{QuerySource, engine_error};
use crate::error::EngineError;
use crate::reader::Reader;

/// Who evaluates, on which branch of which store; at a seq of the past, or now.
#[derive(Clone, Copy)]
pub(super) struct Evaluation<'e> {
    pub(super) reader: &'e Reader,
    pub(super) space: &'e SpaceId,
    pub(super) branch: &'e BranchName,
    pub(super) identity: &'e ScopeIdentity,
    pub(super) at: Option<Seq>,
    /// Documents one walk may read.
    pub(super) most: usize,
}

/// What was walked, before it is assembled.
pub(super) struct Walk {
    pub(super) loaded: FxHashMap<InstanceId, Loaded>,
    awaited: Vec<DocKey>,
    narrowest: Scope,
}

/// Where a root begins, under an identity. A root may name an instance outright; everything beyond it resolves under the
/// identity (ENG-1003).
pub(super) fn resolve_root(
    root: &message::Root,
    identity: &ScopeIdentity,
) -> Result<TrackedRoot, EngineError> {
    let scope_key = match &root.entity_scope_key {
        Some(key) => key.clone(),
        None => ScopeKey::resolve(root.scope, identity)?,
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

impl Evaluation<'_> {
    /// The roots with their addresses, once the schema documents their selectors name are known to verify (ENG-1053).
    pub(super) fn roots(self, roots: &[message::Root]) -> Result<Vec<TrackedRoot>, EngineError> {
        let named = roots.iter().filter_map(|root| root.selector.schema.as_ref());
        let named: Vec<EntityId> = named
            .flat_map(|schema| closure::references_in(&Schema::of(schema)))
            .collect();
        if !named.is_empty() {
            closure(self.reader, self.branch, self.at, named, Referrer::Selector)?;
        }
        roots
            .iter()
            .map(|root| resolve_root(root, self.identity))
            .collect()
    }

    /// Evaluates everything. Tells how many documents were read.
    pub(super) fn whole(self, roots: &[TrackedRoot]) -> Result<(Reach, u64), EngineError> {
        let mut reach = Reach::default();
        let visits: Vec<_> = roots.iter().map(|root| root.visit(self.space)).collect();
        let walk = self.walk(&mut reach.tracker, &visits)?;
        let documents = walk.loaded.len() as u64;
        self.assemble(&mut reach, walk)?;
        Ok((reach, documents))
    }

    /// Walks documents, each under its selector.
    pub(super) fn walk(
        self,
        tracker: &mut Tracker,
        visits: &[(DocKey, Selector)],
    ) -> Result<Walk, EngineError> {
        let mut source = QuerySource::new(self.reader, self.space, self.branch, self.at, self.most);
        let (mut memo, mut schemas, mut seen) = (Memo::new(), SchemaPool::new(), Seen::new());
        let mut ctx = Ctx {
            mode: Mode::Query,
            identity: self.identity,
            tracker,
            memo: &mut memo,
            schemas: &mut schemas,
            seen: &mut seen,
            max_open: MAX_OPEN_PLACES,
            skip_walked: true,
        };
        for (key, selector) in visits {
            let scope = key.instance.scope_key.scope();
            let document = match key.space == *self.space {
                true => source.instance(&key.instance)?.document.clone(),
                false => None,
            };
            if document.is_none() {
                ctx.tracker.add_root(key, selector);
                continue;
            }
            let own = ScopeKey::resolve(scope, self.identity).is_ok_and(|own| own == key.instance.scope_key);
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
    /// instances that there was no entity of before. Nothing is added unless everything can be: what a failed refresh
    /// did not report is news to the next one.
    pub(super) fn assemble(
        self,
        reach: &mut Reach,
        walk: Walk,
    ) -> Result<FxHashSet<InstanceId>, EngineError> {
        let Walk {
            mut loaded,
            awaited,
            narrowest,
        } = walk;
        let read: Vec<(InstanceId, Seq)> = loaded.iter().map(|(i, found)| (i.clone(), found.seq)).collect();
        let added = reach
            .tracker
            .take_added()
            .into_iter()
            .filter(|key| key.space == *self.space);
        let mut tracked: FxHashSet<InstanceId> = added.map(|key| key.instance).collect();
        tracked.extend(
            loaded
                .keys()
                .filter(|instance| reach.tracker.contains(&self.key(instance)))
                .cloned(),
        );
        let mut changed: Vec<(InstanceId, Entity)> = Vec::new();
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
            let entity = self.entity(&instance, found)?;
            referred.push((instance.clone(), entity.references.clone()));
            changed.push((instance, entity));
        }
        let roots = referred
            .iter()
            .flat_map(|(_, references)| references.iter().cloned());
        let members = closure(self.reader, self.branch, self.at, roots, Referrer::Result)?;
        let mut members: Vec<EntityId> = members.into_iter().collect();
        members.sort();
        let mut joined = Vec::new();
        for instance in members.into_iter().map(InstanceId::space) {
            let key = self.key(&instance);
            if !reach.tracker.contains(&key) {
                changed.push((instance.clone(), self.entity(&instance, None)?));
                joined.push(key);
            }
        }
        for key in &joined {
            reach.tracker.add(key, Selector::rejecting());
        }
        for (instance, references) in &referred {
            let source = self.key(instance);
            for id in references.iter().filter(|id| **id != instance.id) {
                let target = self.key(&InstanceId::space(id.clone()));
                reach.tracker.refer(&source, &target);
            }
        }
        reach.narrowest = reach.narrowest.max(narrowest);
        reach.awaited.extend(awaited);
        reach.loaded.extend(read);
        let mut new = FxHashSet::default();
        for (instance, entity) in changed {
            if reach.entities.insert(instance.clone(), entity).is_none() {
                new.insert(instance);
            }
        }
        Ok(new)
    }

    fn entity(self, instance: &InstanceId, loaded: Option<Loaded>) -> Result<Entity, EngineError> {
        let loaded = match loaded {
            Some(loaded) => loaded,
            None => {
                let mut source = QuerySource::new(self.reader, self.space, self.branch, self.at, usize::MAX);
                source.instance(instance)?.clone()
            }
        };
        let references = match &loaded.document {
            Some(document) => references(&instance.id, document),
            None => Arc::new([]),
        };
        Ok(Entity {
            snapshot: Snapshot::of(self.reader, self.branch, instance, &loaded)?,
            references,
        })
    }

    /// The key of an instance of this space.
    pub(super) fn key(&self, instance: &InstanceId) -> DocKey {
        DocKey {
            space: self.space.clone(),
            instance: instance.clone(),
        }
    }
}
