//! Refreshing graphs that share an evaluation: sessions with equal watches cost one walk a commit, not one each (SRV-524,
//! ENG-1060…1063). One [`SharedRefresh`] serves one pass over one committed state and one set of dirty instances.

use std::sync::Arc;

use memory_wire::ids::BranchName;
use memory_wire::scope_key::{InstanceId, Scope};
use rustc_hash::{FxHashMap, FxHashSet};

use super::reach::{Reach, TrackedRoot};
use super::tracked_graph::{Changes, TrackedGraph};
use crate::error::EngineError;
use crate::reader::Reader;

/// What graphs that shared an evaluation came to in this pass.
#[derive(Debug, Default)]
pub struct SharedRefresh {
    done: FxHashMap<Evaluation, Vec<Done>>,
    /// What walks came to, by branch and address of the first root.
    reached: FxHashMap<(BranchName, InstanceId), Vec<Parts>>,
    work: RefreshWork,
}

/// How often a refresh was made, and how often taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RefreshWork {
    /// Walks made.
    pub made: u64,
    /// Walks of another graph that served as well.
    pub shared: u64,
}

/// Which evaluation a graph holds, by where its parts are kept: clones keep them in one place until one changes.
type Evaluation = (usize, usize);

/// The parts of an evaluation that graphs share.
type Parts = (Arc<Reach>, Arc<Vec<TrackedRoot>>);

/// How many different queries of one first root are compared with each other.
const COMPARED: usize = 4;

/// One refresh others may take over.
#[derive(Debug)]
struct Done {
    /// What the evaluation was before: kept, so that nothing else comes to be kept in its place.
    _before: Parts,
    dirty: FxHashSet<InstanceId>,
    after: Parts,
    changes: Option<Arc<Changes>>,
}

impl SharedRefresh {
    /// As [`TrackedGraph::refresh`], or what the same refresh of a graph that shares this one's evaluation came to. Only
    /// what meets nothing scoped, before and after, is taken over: it is the same to everybody (ENG-1061).
    ///
    /// # Errors
    /// As [`TrackedGraph::refresh`].
    pub fn refresh(
        &mut self,
        graph: &mut TrackedGraph,
        reader: &Reader,
        dirty: &FxHashSet<InstanceId>,
    ) -> Result<Option<Arc<Changes>>, EngineError> {
        let (reach, roots) = graph.evaluation();
        let sharable = Arc::strong_count(reach) > 1 && reach.narrowest == Scope::Space;
        let evaluation = (Arc::as_ptr(reach) as usize, Arc::as_ptr(roots) as usize);
        if sharable
            && let Some(done) = self
                .done
                .get(&evaluation)
                .and_then(|done| done.iter().find(|done| done.dirty == *dirty))
        {
            self.work.shared += 1;
            graph.take_over(done.after.clone());
            return Ok(done.changes.clone());
        }
        let before = sharable.then(|| (Arc::clone(reach), Arc::clone(roots)));
        let changes = graph.refresh(reader, dirty)?.map(Arc::new);
        self.work.made += u64::from(changes.is_some());
        if graph.narrowest() != Scope::Space {
            return Ok(changes);
        }
        self.join_equals(graph);
        if let Some(before) = before {
            let (reach, roots) = graph.evaluation();
            self.done.entry(evaluation).or_default().push(Done {
                _before: before,
                dirty: dirty.clone(),
                after: (Arc::clone(reach), Arc::clone(roots)),
                changes: changes.clone(),
            });
        }
        Ok(changes)
    }

    /// Lets a graph share the evaluation of an equal one that was walked in this pass, so that the two take one walk from
    /// now on: sessions that came at different seqs hold evaluations of their own until then.
    fn join_equals(&mut self, graph: &mut TrackedGraph) {
        let (reach, roots) = graph.evaluation();
        let Some(first) = roots.first() else { return };
        let address = (graph.branch().clone(), first.instance.clone());
        let known = self.reached.entry(address).or_default();
        let equal = known.iter().find(|(other, other_roots)| {
            graph.asks_the_same(other_roots)
                && (Arc::ptr_eq(other, reach) || other.has_reached_the_same(reach))
        });
        match equal {
            Some(parts) => graph.take_over(parts.clone()),
            None if known.len() < COMPARED => known.push((Arc::clone(reach), Arc::clone(roots))),
            None => {}
        }
    }

    /// The work so far.
    pub fn work(&self) -> RefreshWork {
        self.work
    }
}
