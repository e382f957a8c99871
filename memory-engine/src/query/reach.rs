//! What a query reaches and how (ENG-1000): the tracked documents with their selectors and snapshots, and what else was
//! read on the way. [`evaluation`](super::evaluation) fills it; [`TrackedGraph`](super::TrackedGraph) keeps it.

use std::sync::Arc;

use memory_wire::ids::{EntityId, Seq, SpaceId};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey, ScopeKeyError};
use memory_wire::traverse::{DocKey, Selector, Tracker};
use rustc_hash::{FxHashMap, FxHashSet};

use super::snapshot::Snapshot;
use crate::error::EngineError;

/// A root of the query with its address resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TrackedRoot {
    pub(super) instance: InstanceId,
    pub(super) selector: Selector,
}

/// What is reached, and how.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    pub(super) tracker: Tracker,
    pub(super) entities: FxHashMap<InstanceId, Entity>,
    /// Every instance that was read, with the seq it was read at: tells what an extension loads for the first time.
    pub(super) loaded: FxHashMap<InstanceId, Seq>,
    /// Link targets that were absent. They are not tracked (ENG-1026); when one appears, what was walked before is
    /// no longer known to be all there is.
    pub(super) awaited: FxHashSet<DocKey>,
    /// The narrowest scope that had to be resolved.
    pub(super) narrowest: Scope,
    /// Something of this may be reached no more, or the walk that brought it here did not end: only a whole evaluation
    /// tells.
    pub(super) doubtful: bool,
    /// What was taken in and not told, because the whole evaluation that was to follow failed.
    pub(super) untold: Refreshed,
}

/// What walking dirty documents again came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Refreshed {
    pub(super) reported: FxHashSet<InstanceId>,
    /// Instances that were not reached before.
    pub(super) new: FxHashSet<InstanceId>,
}

impl Refreshed {
    /// Adds what another refresh came to.
    pub(super) fn join(&mut self, other: &Refreshed) {
        self.reported.extend(other.reported.iter().cloned());
        self.new.extend(other.new.iter().cloned());
    }
}

/// A tracked document.
#[derive(Clone, Debug)]
pub(super) struct Entity {
    pub(super) snapshot: Snapshot,
    /// The schema documents it refers to.
    pub(super) references: Arc<[EntityId]>,
}

impl TrackedRoot {
    /// The document to walk, with the selector it is walked under.
    pub(super) fn visit(&self, space: &SpaceId) -> (DocKey, Selector) {
        let key = DocKey {
            space: space.clone(),
            instance: self.instance.clone(),
        };
        (key, self.selector.clone())
    }
}

impl Reach {
    /// True when both have reached the same documents at the same seqs: under the same roots they are the same then,
    /// because documents and roots decide everything else.
    pub(super) fn has_reached_the_same(&self, other: &Reach) -> bool {
        !self.doubtful
            && !other.doubtful
            && self.entities.len() == other.entities.len()
            && self
                .entities
                .iter()
                .all(|(instance, entity)| other.seq(instance) == Some(entity.snapshot.seq))
    }

    /// The seq of a tracked document's snapshot.
    pub(super) fn seq(&self, instance: &InstanceId) -> Option<Seq> {
        self.entities.get(instance).map(|entity| entity.snapshot.seq)
    }

    /// The snapshots of those of the instances that are tracked, in key order.
    pub(super) fn report(&self, instances: &FxHashSet<InstanceId>) -> Vec<Snapshot> {
        let mut instances: Vec<&InstanceId> = instances.iter().collect();
        instances.sort();
        instances
            .into_iter()
            .filter_map(|instance| self.entities.get(instance))
            .map(|entity| entity.snapshot.clone())
            .collect()
    }

    /// The scoped instances that were read, with their seqs.
    pub(super) fn scoped(&self) -> impl Iterator<Item = (&InstanceId, &Seq)> {
        self.loaded
            .iter()
            .filter(|(instance, _)| instance.scope_key.scope() != Scope::Space)
    }

    /// The same with other keys of instances, as `own` tells them.
    pub(super) fn rekeyed(&self, own: &OwnKeys) -> Result<Reach, EngineError> {
        let mut reach = Reach {
            narrowest: self.narrowest,
            doubtful: self.doubtful,
            ..Reach::default()
        };
        // Every key was resolvable for the narrowest scope, which was checked before sharing.
        reach.tracker = self.tracker.rekeyed(|key| match own.instance(&key.instance) {
            Ok(instance) => DocKey {
                space: key.space.clone(),
                instance,
            },
            Err(_) => key.clone(),
        });
        for (instance, entity) in &self.entities {
            let instance = own.instance(instance)?;
            let mut entity = entity.clone();
            entity.snapshot.scope_key = instance.scope_key.clone();
            reach.entities.insert(instance, entity);
        }
        for (instance, seq) in &self.loaded {
            reach.loaded.insert(own.instance(instance)?, *seq);
        }
        for key in &self.awaited {
            reach.awaited.insert(DocKey {
                space: key.space.clone(),
                instance: own.instance(&key.instance)?,
            });
        }
        Ok(reach)
    }
}

/// The scope keys of one identity; an error where it has none.
pub(super) struct OwnKeys {
    user: Result<ScopeKey, ScopeKeyError>,
    session: Result<ScopeKey, ScopeKeyError>,
}

impl OwnKeys {
    pub(super) fn of(identity: &ScopeIdentity) -> OwnKeys {
        OwnKeys {
            user: ScopeKey::resolve(Scope::User, identity),
            session: ScopeKey::resolve(Scope::Session, identity),
        }
    }

    /// The identity's own instance of the same document and scope.
    pub(super) fn instance(&self, instance: &InstanceId) -> Result<InstanceId, EngineError> {
        let scope_key = match instance.scope_key.scope() {
            Scope::Space => instance.scope_key.clone(),
            Scope::User => self.user.clone()?,
            Scope::Session => self.session.clone()?,
        };
        Ok(InstanceId {
            id: instance.id.clone(),
            scope_key,
        })
    }
}
