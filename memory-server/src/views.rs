//! View-scoped replication (SRV §10): what a client renders, told to the serving loop as interests, and what the loop
//! selects for it, told back as documents and plans. Offered iff server execution is on; sessions without views pay
//! nothing for it.

use std::sync::Arc;

use indexmap::IndexMap;
use memory_engine::Engine;
use memory_engine::query::TrackedGraph;
use memory_wire::equality::value_equal;
use memory_wire::message::{
    GraphQuery, PlanError, PlanInput, PlanPiece, PlanProducer, Root, ViewInterest, ViewMode, ViewPlan,
    ViewQuery, Watch, WatchKind,
};
use memory_wire::{Did, SessionId, SpaceId, Value, WireError};
use smol_str::SmolStr;

use crate::acl::{self, Capability};
use crate::error::ServerError;
use crate::identifiers::Identifiers;
use crate::registry::Slot;
use crate::server::Server;
use crate::session::{GraphKey, Session};
use crate::space::Space;

/// Names one interest of one opening of a session: whatever changed since makes it stale.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ViewHandle {
    /// The session.
    pub session_id: SessionId,
    /// Token of the session's opening.
    pub session_epoch: u64,
    /// Token of the view since it appeared in the session's list.
    pub view_epoch: String,
    /// The view.
    pub view_id: SmolStr,
    /// The interest's revision.
    pub revision: u64,
}

/// One interest, as the serving loop sees it (SRV-1003).
#[derive(Debug, Clone)]
pub struct ViewInterestRow {
    /// Under which a selection is published.
    pub handle: ViewHandle,
    /// Whose session it is; an anonymous one has no principal.
    pub principal: Option<Did>,
    /// False while the session is detached within its lifetime.
    pub attached: bool,
    /// What is asked for.
    pub view: ViewInterest,
    /// Generation of the present selection.
    pub selection_generation: Option<u64>,
}

/// What the serving loop selects for a view (SRV-1004).
#[derive(Debug, Clone, Default)]
pub struct ViewSelection {
    /// Grows with every selection; a safe integer.
    pub generation: u64,
    /// What is delivered, without being demanded (SRV-1005).
    pub delivery: Vec<ViewQuery>,
    /// Actions the client may run ahead.
    pub eligible_actions: Vec<SmolStr>,
    /// Pieces involved.
    pub pieces: Vec<PlanPiece>,
    /// Documents read.
    pub inputs: Vec<PlanInput>,
    /// Actions that produce.
    pub producers: Vec<PlanProducer>,
    /// What failed.
    pub errors: Vec<PlanError>,
}

/// The largest integer every peer holds exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// One view of a session.
#[derive(Debug, Clone)]
pub(crate) struct View {
    interest: ViewInterest,
    epoch: String,
    selection: Option<Arc<ViewSelection>>,
    /// The present plan has yet to leave with a frame (SRV-1006).
    plan_pending: bool,
}

/// The views of a session by id, in the order of its list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Views(IndexMap<SmolStr, View>);

impl ViewSelection {
    fn plan(&self, interest: &ViewInterest) -> ViewPlan {
        ViewPlan {
            id: interest.id.clone(),
            revision: interest.revision,
            generation: self.generation,
            eligible_actions: self.eligible_actions.clone(),
            pieces: self.pieces.clone(),
            errors: self.errors.clone(),
            inputs: self.inputs.clone(),
            producers: self.producers.clone(),
        }
    }

    fn query(&self) -> GraphQuery {
        GraphQuery::of(
            self.delivery
                .iter()
                .flat_map(|query| query.roots.iter().cloned())
                .collect(),
        )
    }

    /// Everything that makes two selections the same, as one value.
    fn content(&self, interest: &ViewInterest) -> Value {
        let delivery: Vec<Value> = self.query().roots.iter().map(Root::to_value).collect();
        memory_wire::value!({ "plan": (self.plan(interest).to_value()), "delivery": delivery })
    }
}

impl Views {
    /// True when both ask for the same and were selected the same: one is then the other's copy, as far as a session's
    /// views come from its requests.
    pub(crate) fn are(&self, other: &Views) -> bool {
        let key = |view: &View| (view.interest.revision, view.selection.as_ref().map(Arc::as_ptr));
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|((id, view), (other_id, other))| id == other_id && key(view) == key(other))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The list with `interests` in place of it. Views that stay as they are keep their selection; a changed one needs a
    /// greater revision and starts anew (SRV-1001).
    pub(crate) fn replaced(
        &self,
        interests: Vec<ViewInterest>,
        identifiers: &dyn Identifiers,
    ) -> Result<Views, WireError> {
        let mut views = IndexMap::with_capacity(interests.len());
        for interest in interests {
            let view = match self.0.get(&interest.id) {
                Some(known) if value_equal(known.interest.to_value(), interest.to_value()) => known.clone(),
                Some(known) if interest.revision <= known.interest.revision => {
                    return Err(WireError::protocol(format!(
                        "view {} changed without a greater revision: {} after {}",
                        interest.id, interest.revision, known.interest.revision
                    )));
                }
                known => View {
                    epoch: known.map_or_else(|| identifiers.uuid(), |known| known.epoch.clone()),
                    interest,
                    selection: None,
                    plan_pending: false,
                },
            };
            views.insert(view.interest.id.clone(), view);
        }
        Ok(Views(views))
    }

    /// `render` views as the watches they act as (SRV-1002).
    pub(crate) fn as_watches(&self) -> Vec<Watch> {
        self.0
            .values()
            .filter(|view| view.interest.mode == ViewMode::Render)
            .map(|view| Watch {
                id: format!("view:{}", view.interest.id).into(),
                kind: WatchKind::Graph,
                query: GraphQuery::of(view.interest.query.roots.clone()),
            })
            .collect()
    }

    /// One query for each selection that delivers something.
    pub(crate) fn deliveries(&self) -> Vec<(GraphKey, GraphQuery)> {
        self.0
            .iter()
            .filter_map(|(id, view)| Some((id, view.selection.as_ref()?)))
            .filter(|(_, selection)| !selection.delivery.is_empty())
            .map(|(id, selection)| (GraphKey::Delivery(id.clone()), selection.query()))
            .collect()
    }

    /// The plans that have yet to leave.
    pub(crate) fn pending_plans(&self) -> Vec<ViewPlan> {
        self.0
            .values()
            .filter(|view| view.plan_pending)
            .filter_map(|view| Some(view.selection.as_ref()?.plan(&view.interest)))
            .collect()
    }

    pub(crate) fn owes_plans(&self) -> bool {
        self.0.values().any(|view| view.plan_pending)
    }

    /// Notes that these plans left, or were lost on the way.
    pub(crate) fn mark_plans(&mut self, plans: &[(SmolStr, u64)], pending: bool) {
        for (id, generation) in plans {
            if let Some(view) = self.0.get_mut(id)
                && view
                    .selection
                    .as_ref()
                    .is_some_and(|selection| selection.generation == *generation)
            {
                view.plan_pending = pending;
            }
        }
    }

    /// After a resume every plan is told again: what the old connection delivered is not known for sure.
    pub(crate) fn renew_plans(&mut self) {
        for view in self.0.values_mut() {
            view.plan_pending = view.selection.is_some();
        }
    }
}

/// The interests of a space's sessions, in the order they were opened (SRV-1003).
pub(crate) fn interests(space: &Space, now: u64) -> Vec<ViewInterestRow> {
    let mut registry = space.registry.lock();
    registry.expire(now);
    let mut sessions: Vec<(Slot, &Session)> = registry
        .iter()
        .filter(|(_, session)| !session.views.is_empty())
        .collect();
    sessions.sort_by_key(|(slot, _)| *slot);
    sessions
        .into_iter()
        .flat_map(|(_, session)| {
            session.views.0.values().map(|view| ViewInterestRow {
                handle: ViewHandle {
                    session_id: session.id.clone(),
                    session_epoch: session.incarnation,
                    view_epoch: view.epoch.clone(),
                    view_id: view.interest.id.clone(),
                    revision: view.interest.revision,
                },
                principal: session.principal.clone(),
                attached: session.connection().is_some(),
                view: view.interest.clone(),
                selection_generation: view.selection.as_ref().map(|selection| selection.generation),
            })
        })
        .collect()
}

/// Publishes a selection (SRV-1004). False when the handle is stale, READ is denied, or a newer or different selection of
/// the generation stands.
pub(crate) async fn select(
    server: &Arc<Server>,
    space: &SpaceId,
    handle: ViewHandle,
    selection: ViewSelection,
) -> Result<bool, ServerError> {
    if selection.generation > MAX_SAFE_INTEGER {
        return Err(WireError::protocol("Invalid view selection").into());
    }
    let Some(space) = server.find_space(space) else {
        return Ok(false);
    };
    let (server, turn_space) = (Arc::clone(server), Arc::clone(&space));
    space
        .in_turn(move |engine| install(&server, &turn_space, engine, &handle, selection))
        .await?
}

fn install(
    server: &Arc<Server>,
    space: &Arc<Space>,
    engine: &Engine,
    handle: &ViewHandle,
    selection: ViewSelection,
) -> Result<bool, ServerError> {
    let found = {
        let registry = space.registry.lock();
        registry
            .current(&handle.session_id, handle.session_epoch)
            .and_then(|(slot, session)| {
                let view = session.views.0.get(&handle.view_id)?;
                let current = view.epoch == handle.view_epoch && view.interest.revision == handle.revision;
                current.then(|| {
                    (
                        slot,
                        session.identity(),
                        session.reader().cloned(),
                        Arc::clone(&session.view),
                        view.clone(),
                    )
                })
            })
    };
    let Some((slot, identity, reader_of, held, view)) = found else {
        return Ok(false);
    };
    let reader = engine.reader();
    if server.config().acl.mode.is_active() {
        let state = space.access.state_by(space, reader)?;
        if acl::require(server, space.id(), &state, reader_of.as_ref(), Capability::Read).is_err() {
            return Ok(false);
        }
    }
    if let Some(present) = &view.selection {
        if selection.generation < present.generation {
            return Ok(false);
        }
        if selection.generation == present.generation {
            return Ok(value_equal(
                &selection.content(&view.interest),
                &present.content(&view.interest),
            ));
        }
    }
    let graph = if selection.delivery.is_empty() {
        None
    } else {
        Some(TrackedGraph::track(
            reader,
            space.id(),
            &identity,
            &selection.query(),
        )?)
    };
    let key = GraphKey::Delivery(handle.view_id.clone());
    let mut held = held.lock();
    let delivered: Vec<_> = graph
        .iter()
        .flat_map(TrackedGraph::tracked_instances)
        .cloned()
        .collect();
    let before = match graph {
        Some(graph) => held.graphs.insert(key, graph),
        None => held.graphs.remove(&key),
    };
    // What nothing reaches any more is retracted, which takes a full pass.
    let shrunk = before.is_some_and(|before| {
        before
            .tracked_instances()
            .any(|instance| !held.graphs.values().any(|graph| graph.tracks(instance)))
    });
    let mut registry = space.registry.lock();
    registry.set_interest(slot, &held.graphs);
    registry.update(slot, |session| {
        if let Some(view) = session.views.0.get_mut(&handle.view_id) {
            view.selection = Some(Arc::new(selection));
            view.plan_pending = true;
        }
        // What is delivered now and not held yet goes out with the plan.
        session.deferred.0.extend(delivered);
        session.force_full |= shrunk;
    });
    drop(registry);
    drop(held);
    space.mark(|_| ());
    server.schedule_flush(space);
    Ok(true)
}
