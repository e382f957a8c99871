//! A query whose reach is kept up to date (ENG-1000, 1010…1016). A refresh walks again what changed and nothing
//! else; only when something that a changed document led to is no longer led to is the whole evaluated anew, to
//! learn what is unreached now (decision 31). Each evaluation is of one committed state, also where other processes write
//! meanwhile (INV-10).

use std::sync::Arc;

use memory_wire::ids::{BranchName, Seq, SpaceId};
use memory_wire::message::GraphQuery;
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity};
use memory_wire::traverse::{DocKey, Tracker};
use rustc_hash::FxHashSet;

use super::evaluation::{Evaluation, resolve_root};
use super::reach::{OwnKeys, Reach, Refreshed, TrackedRoot};
use super::snapshot::Snapshot;
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
        TrackedGraph::track_within(reader, space, identity, query, usize::MAX)
    }

    /// As [`TrackedGraph::track`], when that reads at most so many documents.
    ///
    /// # Errors
    /// As [`TrackedGraph::track`]; [`EngineError::ReadsTooMuch`].
    pub fn track_within(
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
        most: usize,
    ) -> Result<TrackedGraph, EngineError> {
        reader.snapshot(|reader| TrackedGraph::evaluate(reader, space, identity, query, None, most))?
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
        reader.snapshot(|reader| {
            let at = match query.at_seq {
                Some(at) => Some(reader.check_seq_in_range(&query.branch, crate::column::sql(at))?),
                None => None,
            };
            Ok(
                TrackedGraph::evaluate(reader, space, identity, query, at, usize::MAX)?
                    .snapshots()
                    .collect(),
            )
        })?
    }

    fn evaluate(
        reader: &Reader,
        space: &SpaceId,
        identity: &ScopeIdentity,
        query: &GraphQuery,
        at: Option<Seq>,
        most: usize,
    ) -> Result<TrackedGraph, EngineError> {
        let evaluation = Evaluation {
            reader,
            space,
            branch: &query.branch,
            identity,
            at,
            most,
        };
        let roots = evaluation.roots(&query.roots)?;
        let (reach, documents) = evaluation.whole(&roots)?;
        Ok(TrackedGraph {
            space: space.clone(),
            branch: query.branch.clone(),
            identity: identity.clone(),
            roots: Arc::new(roots),
            reach: Arc::new(reach),
            work: Work {
                documents,
                evaluations: 1,
                refreshes: 0,
            },
        })
    }

    /// An evaluation of this graph's query as the store is now.
    fn now<'e>(&'e self, reader: &'e Reader) -> Evaluation<'e> {
        Evaluation {
            reader,
            space: &self.space,
            branch: &self.branch,
            identity: &self.identity,
            at: None,
            most: usize::MAX,
        }
    }

    /// Adds a query's roots (ENG-1011). Reports each root's instance and every instance that is tracked and was read
    /// for the first time, or has changed since, whether reported before or not.
    ///
    /// # Errors
    /// As [`TrackedGraph::track`]; the graph is then as it was.
    pub fn extend(&mut self, reader: &Reader, query: &GraphQuery) -> Result<Vec<Snapshot>, EngineError> {
        self.extend_within(reader, query, usize::MAX)
    }

    /// As [`TrackedGraph::extend`], when that reads at most so many documents.
    ///
    /// # Errors
    /// As [`TrackedGraph::extend`]; [`EngineError::ReadsTooMuch`].
    pub fn extend_within(
        &mut self,
        reader: &Reader,
        query: &GraphQuery,
        most: usize,
    ) -> Result<Vec<Snapshot>, EngineError> {
        reader.snapshot(|reader| self.walk_further(reader, query, most))?
    }

    fn walk_further(
        &mut self,
        reader: &Reader,
        query: &GraphQuery,
        most: usize,
    ) -> Result<Vec<Snapshot>, EngineError> {
        let evaluation = Evaluation {
            most,
            ..self.now(reader)
        };
        let roots = evaluation.roots(&query.roots)?;
        let visits: Vec<_> = roots.iter().map(|root| root.visit(&self.space)).collect();
        let mut reach = Arc::clone(&self.reach);
        let extended = Arc::make_mut(&mut reach);
        let walk = evaluation.walk(&mut extended.tracker, &visits)?;
        let documents = walk.loaded.len() as u64;
        let mut reported: FxHashSet<InstanceId> = roots.iter().map(|root| root.instance.clone()).collect();
        for (instance, loaded) in &walk.loaded {
            let key = self.key(instance);
            if extended.tracker.contains(&key) && extended.loaded.get(instance) != Some(&loaded.seq) {
                reported.insert(instance.clone());
            }
        }
        reported.extend(evaluation.assemble(extended, walk)?);
        let snapshots = extended.report(&reported);
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
        let keys = self.keys(dirty);
        if !self.is_touched(&keys) && !self.reach.doubtful {
            return Ok(None);
        }
        reader.snapshot(|reader| self.take_in(reader, keys))?
    }

    fn take_in(&mut self, reader: &Reader, dirty: Vec<DocKey>) -> Result<Option<Changes>, EngineError> {
        let doubtful = self.reach.doubtful;
        let refreshed = self.walk_dirty(reader, dirty)?;
        if refreshed.is_none() && !doubtful {
            return Ok(None);
        }
        let mut refreshed = refreshed.unwrap_or_default();
        if !self.reach.doubtful {
            return Ok(Some(Changes {
                snapshots: self.reach.report(&refreshed.reported),
                unreached: Vec::new(),
            }));
        }
        // Of an earlier refresh, if its whole evaluation failed.
        refreshed.join(&self.reach.untold);
        let (whole, documents) = match self.now(reader).whole(&self.roots) {
            Ok(whole) => whole,
            Err(error) => {
                Arc::make_mut(&mut self.reach).untold = refreshed;
                return Err(error);
            }
        };
        let Refreshed { mut reported, new } = refreshed;
        self.work.documents += documents;
        self.work.evaluations += 1;
        let known = &self.reach.entities;
        let gone = known
            .keys()
            .filter(|instance| !whole.entities.contains_key(*instance) && !new.contains(*instance));
        let mut unreached: Vec<InstanceId> = gone.cloned().collect();
        unreached.sort();
        for (instance, entity) in &whole.entities {
            if self.reach.seq(instance) != Some(entity.snapshot.seq) {
                reported.insert(instance.clone());
            }
        }
        let snapshots = whole.report(&reported);
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
        let keys = self.keys(dirty);
        if !self.is_touched(&keys) {
            return Ok(None);
        }
        let refreshed = reader.snapshot(|reader| self.walk_dirty(reader, keys))??;
        Ok(refreshed.map(|refreshed| self.reach.report(&refreshed.reported)))
    }

    fn keys(&self, instances: &FxHashSet<InstanceId>) -> Vec<DocKey> {
        instances.iter().map(|instance| self.key(instance)).collect()
    }

    /// Whether any of what was written matters to this graph. The store is not looked into otherwise.
    fn is_touched(&self, dirty: &[DocKey]) -> bool {
        let Reach { awaited, tracker, .. } = &*self.reach;
        dirty
            .iter()
            .any(|key| awaited.contains(key) || tracker.contains(key))
    }

    /// Walks the dirty documents again.
    fn walk_dirty(&mut self, reader: &Reader, keys: Vec<DocKey>) -> Result<Option<Refreshed>, EngineError> {
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
        let evaluation = self.now(reader);
        let again = reach.tracker.take_out(affected);
        let walk = evaluation.walk(&mut reach.tracker, &again)?;
        let documents = walk.loaded.len() as u64;
        let mut reported: FxHashSet<InstanceId> = affected.iter().map(|key| key.instance.clone()).collect();
        for (instance, loaded) in &walk.loaded {
            if reach.seq(instance) != Some(loaded.seq) && reach.tracker.contains(&self.key(instance)) {
                reported.insert(instance.clone());
            }
        }
        let new = evaluation.assemble(reach, walk)?;
        reported.extend(new.iter().cloned());
        reach.doubtful |= reach.tracker.settle();
        Ok((Refreshed { reported, new }, documents))
    }

    /// True when something of this may be reached no more: the next [`TrackedGraph::refresh`], of nothing even, evaluates
    /// everything to tell.
    pub fn is_doubtful(&self) -> bool {
        self.reach.doubtful
    }

    /// True when every root of `query` is covered by what is tracked (ENG-1014).
    ///
    /// # Errors
    /// A root whose scope the identity cannot resolve.
    pub fn covers(&self, query: &GraphQuery) -> Result<bool, EngineError> {
        for root in &query.roots {
            let root = resolve_root(root, &self.identity)?;
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
        Arc::ptr_eq(&self.roots, roots) || self.roots == *roots
    }

    /// The narrowest scope that had to be resolved.
    pub(super) fn narrowest(&self) -> Scope {
        self.reach.narrowest
    }

    /// The scoped instances an evaluation met, with their seqs: what sharing it with another identity depends on.
    pub(super) fn scoped(&self) -> impl Iterator<Item = (&InstanceId, &Seq)> {
        self.reach.scoped()
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
        let own = OwnKeys::of(identity);
        let mut roots = Vec::clone(&self.roots);
        for root in &mut roots {
            root.instance = own.instance(&root.instance)?;
        }
        shared.roots = Arc::new(roots);
        shared.reach = Arc::new(self.reach.rekeyed(&own)?);
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use memory_wire::Value;
    use memory_wire::message::ClientCommit;
    use memory_wire::value;

    use super::*;
    use crate::{ApplyCommit, Durability, Engine, EngineOptions, StoreLocation};

    fn open(path: &Path) -> Engine {
        let options = EngineOptions {
            durability: Durability::Normal,
            ..EngineOptions::default()
        };
        Engine::open(StoreLocation::File(path.to_owned()), options).unwrap()
    }

    /// Writes both documents of the query.
    fn write_both(engine: &mut Engine, n: u64) {
        let set = |id: &str| value!({ "op": "set", "id": id, "value": { "value": n } });
        let commit = ClientCommit::from_value(&value!({
            "localSeq": n, "reads": { "confirmed": [], "pending": [] },
            "operations": [(set("of:a")), (set("of:b"))]
        }))
        .unwrap();
        let applied = engine.apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, 0));
        assert_eq!(applied.unwrap().seq, Seq(n));
    }

    /// Has `theirs` write after so many steps of `ours`.
    fn interrupt(ours: &mut Engine, mut theirs: Engine, after: u32, n: u64) {
        let mut steps = 0;
        let count = move || {
            steps += 1;
            if steps == after {
                write_both(&mut theirs, n);
            }
            false
        };
        ours.connection_mut().progress_handler(1, Some(count)).unwrap();
    }

    fn one_seq(snapshots: &[Snapshot]) -> Seq {
        let seqs: FxHashSet<Seq> = snapshots.iter().map(|snapshot| snapshot.seq).collect();
        assert_eq!((snapshots.len(), seqs.len()), (2, 1), "{snapshots:?}");
        snapshots[0].seq
    }

    /// INV-10: a graph is of one state of the store, also where another process writes in the middle of its evaluation, and
    /// whoever asks.
    #[test]
    fn inv_10_an_evaluation_sees_one_state() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sqlite");
        write_both(&mut open(&path), 1);
        let root = |id: &str| value!({ "id": id, "selector": { "path": [], "schema": false } });
        let query: Value = value!({ "roots": [(root("of:a")), (root("of:b"))] });
        let query = GraphQuery::from_value(&query).unwrap();
        let (space, nobody) = ("did:key:zS".into(), ScopeIdentity::default());
        let dirty: FxHashSet<InstanceId> = ["of:a", "of:b"].map(InstanceId::space).into_iter().collect();
        let mut n = 1;
        let (mut during, mut after) = (0, 0);
        for steps in 1..80 {
            let mut ours = open(&path);
            let mut graph = TrackedGraph::track(ours.reader(), &space, &nobody, &query).unwrap();
            interrupt(&mut ours, open(&path), steps, n + 1);
            let tracked = TrackedGraph::query(ours.reader(), &space, &nobody, &query).unwrap();
            let seen = one_seq(&tracked);
            // It is interrupted for sure by the end of this.
            while ours.server_seq().unwrap() == Seq(n) {}
            n += 1;
            match seen == Seq(n) {
                true => after += 1,
                false => during += 1,
            }
            interrupt(&mut ours, open(&path), steps, n + 1);
            let changes = graph.refresh(ours.reader(), &dirty).unwrap().unwrap();
            one_seq(&changes.snapshots);
            while ours.server_seq().unwrap() == Seq(n) {}
            n += 1;
        }
        assert!(during > 0 && after > 0, "{during} before, {after} after");
    }
}
