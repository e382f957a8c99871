//! Evaluation of one session's watches into the next frame it is owed (SRV §4.8, §6): incremental over the instances
//! that changed, or full. Called within the space's turn, on one committed state, by `flush`, `session_open` and
//! `watch_requests`. Nothing of the session changes before its frame is completely built (SRV-429).

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use memory_engine::Reader;
use memory_engine::query::{RefreshWork, SharedRefresh, Snapshot};
use memory_engine::sync::Mutex;
use memory_wire::message::{
    EffectAddress, EffectFrame, GraphQuery, Remove, SyncFrame, UpsertFrame, UpsertFrameContent, ViewPlan,
};
use memory_wire::{InstanceId, LocalSeq, ScopeIdentity, Seq, SessionId};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::applicable::Applicable;
use crate::delivery::{Delivered, Held, InstanceKey, SessionKey};
use crate::dirty::DirtyBatch;
use crate::document_cache::Form;
use crate::error::ServerError;
use crate::full_view::FullView;
use crate::leases::ElsewhereLeases;
use crate::prepared_view::PreparedView;
use crate::registry::Slot;
use crate::server::Server;
use crate::serving_plane::DemandReason;
use crate::session::{GraphKey, Session, SessionView};
use crate::shared_frames::{Candidate, Common, Entry, Reading, SharedFrames, content_of};
use crate::space::Space;
use crate::watches::WatchSet;

/// One committed state of one space, being read for its sessions.
pub(crate) struct Pass<'a> {
    pub(crate) server: &'a Server,
    pub(crate) space: &'a Space,
    pub(crate) reader: &'a Reader,
    pub(crate) head: Seq,
    pub(crate) elsewhere: &'a ElsewhereLeases,
    /// Sessions with equal watches are refreshed by one walk (SRV-524).
    refreshes: RefCell<SharedRefresh>,
    frames: SharedFrames,
}

/// A frame ready to be sent.
pub(crate) struct Frame {
    pub(crate) effect: EffectFrame,
    pub(crate) delivered: Delivered,
}

/// Who is evaluated, copied from the record so that its lock is not held meanwhile.
pub(crate) struct Subject {
    pub(crate) slot: Slot,
    pub(crate) id: SessionId,
    pub(crate) identity: ScopeIdentity,
    pub(crate) reading: Reading,
    address: EffectAddress,
    /// Watches, and views that act as watches.
    pub(crate) watches: Arc<WatchSet>,
    /// What is selected for its views.
    deliveries: Vec<(GraphKey, GraphQuery)>,
    /// Plans that have yet to leave.
    plans: Vec<ViewPlan>,
    pub(crate) view: Arc<Mutex<SessionView>>,
    pub(crate) incarnation: u64,
    pub(crate) last_synced: Seq,
    lapsed: bool,
    force_full: bool,
    /// The marker the session is owed, if any.
    owed: Option<LocalSeq>,
    /// Instances changed while the session was skipped; what their origin was is not known any more (SRV-705).
    deferred: FxHashSet<InstanceId>,
}

impl Subject {
    pub(crate) fn of(server: &Server, slot: Slot, session: &Session) -> Subject {
        let compacts = session
            .connection()
            .is_some_and(|connection| connection.compacts_schemas(&server.config().flags));
        Subject {
            slot,
            id: session.id.clone(),
            identity: session.identity(),
            reading: Reading {
                form: if compacts { Form::Compacted } else { Form::Plain },
                keyed: session.lease_reads,
            },
            address: session.address.clone(),
            watches: Arc::clone(&session.effective),
            deliveries: session.views.deliveries(),
            plans: session.views.pending_plans(),
            view: Arc::clone(&session.view),
            incarnation: session.incarnation,
            last_synced: session.last_synced,
            lapsed: session.lease_reads_lapsed,
            force_full: session.force_full,
            owed: session.markers.due(),
            deferred: session.deferred.0.clone(),
        }
    }
}

impl Subject {
    /// Everything there is to evaluate for it.
    pub(crate) fn queries(&self) -> Vec<(GraphKey, GraphQuery)> {
        let mut queries = self.watches.queries();
        queries.extend(self.deliveries.iter().cloned());
        queries
    }

    pub(crate) fn has_deliveries(&self) -> bool {
        !self.deliveries.is_empty()
    }

    fn asks_nothing(&self) -> bool {
        self.watches.is_empty() && self.deliveries.is_empty()
    }
}

/// Frame content before it is text, with what it makes the session hold.
#[derive(Default)]
struct Content {
    /// One as a rule, as is what it comes from: no memory of their own is asked for.
    upserts: SmallVec<[Rc<Entry>; 2]>,
    removes: Vec<(InstanceKey, Remove)>,
    /// What the session provably has already.
    held: Vec<(InstanceKey, Held)>,
    /// Something was kept from the session for want of a live lease.
    withheld: bool,
}

impl Content {
    fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removes.is_empty()
    }

    fn sort(&mut self) {
        self.upserts.sort_by(|a, b| a.key.cmp(&b.key));
        self.removes.sort_by(|(a, _), (b, _)| a.cmp(b));
    }

    /// As the answer that carries it to one session; sorted before.
    fn sync(&self, subject: &Subject, to_seq: Seq) -> SyncFrame {
        SyncFrame {
            caught_up_local_seq: subject.owed,
            from_seq: subject.last_synced,
            content: content_of(&self.upserts, to_seq, &self.removes, &subject.plans),
        }
    }
}

/// What an evaluation came to, not yet applied to the session.
struct Outcome {
    content: Content,
    /// Replaces the graphs and everything held.
    full: Option<FullView>,
    /// What an incremental evaluation reports: tracked from now on.
    grown: SmallVec<[Rc<[Candidate]>; 1]>,
    /// Instances an incremental evaluation no longer reaches.
    shrunk: Vec<InstanceId>,
    lapsed: bool,
    /// The session was read up to the head, whether or not that gives it anything to hear.
    advanced: bool,
}

impl Outcome {
    fn says_something(&self, subject: &Subject) -> bool {
        !self.content.is_empty() || subject.owed.is_some() || !subject.plans.is_empty()
    }
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        server: &'a Server,
        space: &'a Space,
        reader: &'a Reader,
        elsewhere: &'a ElsewhereLeases,
    ) -> Result<Pass<'a>, ServerError> {
        let head = reader.server_seq()?;
        space.note_head(head);
        Ok(Pass {
            server,
            space,
            reader,
            head,
            elsewhere,
            refreshes: RefCell::default(),
            frames: SharedFrames::default(),
        })
    }

    /// Walks made and taken over so far.
    pub(crate) fn refresh_work(&self) -> RefreshWork {
        self.refreshes.borrow().work()
    }

    /// The frame entry of a snapshot.
    pub(crate) fn upsert(
        &self,
        key: &InstanceKey,
        snapshot: &Snapshot,
        reading: Reading,
    ) -> Result<UpsertFrame, ServerError> {
        let content = match &snapshot.document {
            None => UpsertFrameContent::Deleted,
            Some(document) => UpsertFrameContent::Doc(
                self.space
                    .documents
                    .encoded(
                        key,
                        snapshot.seq,
                        reading.form,
                        document,
                        self.server.regime(),
                        self.server.statistics(),
                    )
                    .map_err(|error| memory_wire::WireError::query(format!("{}: {error}", snapshot.id)))?,
            ),
        };
        Ok(UpsertFrame {
            branch: snapshot.branch.clone(),
            id: snapshot.id.clone(),
            scope: snapshot.scope_key.scope(),
            scope_key: reading.keyed.then(|| snapshot.scope_key.clone()),
            seq: snapshot.seq,
            content,
            cover_class: self.server.cover_class(snapshot),
        })
    }

    pub(crate) fn remove(key: &InstanceKey, keyed: bool) -> Remove {
        Remove {
            branch: key.branch.clone(),
            id: key.instance.id.clone(),
            scope: key.instance.scope_key.scope(),
            scope_key: keyed.then(|| key.instance.scope_key.clone()),
        }
    }

    /// Evaluates a session in a push pass (SRV-424…427). `touched` are the batch's instances it tracks.
    pub(crate) fn evaluate(
        &self,
        subject: &Subject,
        touched: &FxHashSet<InstanceId>,
        batch: &DirtyBatch,
    ) -> Result<Option<Frame>, ServerError> {
        self.server.statistics().count_evaluation();
        let live = subject.reading.keyed && self.live(subject)?;
        let full = subject.force_full || (subject.reading.keyed && subject.lapsed && live);
        let mut outcome = if full && !subject.asks_nothing() {
            self.full(subject, live)?
        } else {
            self.incremental(subject, live, touched, batch)?
        };
        if !outcome.says_something(subject) {
            self.settle(subject, outcome, live);
            return Ok(None);
        }
        let content = &mut outcome.content;
        content.sort();
        let common = if content.removes.is_empty() && subject.plans.is_empty() {
            self.frames.telling(&content.upserts, self.head)?
        } else {
            Common::new(&content.upserts, self.head, &content.removes, &subject.plans)?
        };
        self.settle(subject, outcome, live);
        Ok(Some(Frame {
            effect: EffectFrame {
                caught_up_local_seq: subject.owed,
                from_seq: subject.last_synced,
                sync: common.sync,
                address: subject.address.clone(),
            },
            delivered: Delivered {
                session: SessionKey {
                    space: self.space.id().clone(),
                    session: subject.id.clone(),
                },
                incarnation: subject.incarnation,
                from_seq: subject.last_synced,
                to_seq: self.head,
                upserts: common.upserts,
                removes: common.removes,
                marker: subject.owed,
                plans: plan_names(&subject.plans),
            },
        }))
    }

    pub(crate) fn live(&self, subject: &Subject) -> Result<bool, ServerError> {
        let principal = subject.identity.principal.as_ref();
        Ok(self
            .server
            .holds_live_lease(self.space, self.reader, principal, self.elsewhere)?)
    }

    /// The whole watch list against everything held (SRV-426).
    fn full(&self, subject: &Subject, live: bool) -> Result<Outcome, ServerError> {
        let view = FullView::evaluate(self.reader, self.space, &subject.identity, &subject.queries())?;
        self.diff(subject, live, view)
    }

    fn diff(&self, subject: &Subject, live: bool, view: FullView) -> Result<Outcome, ServerError> {
        let applicable = Applicable::new(&subject.identity, subject.reading.keyed && live);
        let mut content = Content::default();
        let mut present: FxHashSet<InstanceKey> = FxHashSet::default();
        let held = subject.view.lock();
        for (key, snapshot) in view.entries() {
            if !applicable.admits(&snapshot.scope_key) {
                content.withheld |= subject.reading.keyed;
                continue;
            }
            let deleted = snapshot.document.is_none();
            if !held
                .entities
                .get(&key)
                .is_some_and(|held| held.equals(snapshot.seq, deleted))
            {
                content.upserts.push(Rc::new(Entry {
                    upsert: self.upsert(&key, &snapshot, subject.reading)?,
                    held: Held::new(snapshot.seq, deleted),
                    key: key.clone(),
                }));
            } else {
                content.held.push((key.clone(), Held::new(snapshot.seq, deleted)));
            }
            present.insert(key);
        }
        for key in held.entities.keys().filter(|key| !present.contains(*key)) {
            content
                .removes
                .push((key.clone(), Pass::remove(key, subject.reading.keyed)));
        }
        drop(held);
        let lapsed = content.withheld;
        Ok(Outcome {
            content,
            full: Some(view),
            grown: SmallVec::new(),
            shrunk: Vec::new(),
            lapsed,
            advanced: true,
        })
    }

    /// Only what the touched instances reach (SRV-425).
    fn incremental(
        &self,
        subject: &Subject,
        live: bool,
        touched: &FxHashSet<InstanceId>,
        batch: &DirtyBatch,
    ) -> Result<Outcome, ServerError> {
        let touched = if subject.deferred.is_empty() {
            Cow::Borrowed(touched)
        } else {
            Cow::Owned(touched | &subject.deferred)
        };
        let mut outcome = Outcome {
            content: Content::default(),
            full: None,
            grown: SmallVec::new(),
            shrunk: Vec::new(),
            lapsed: subject.lapsed,
            advanced: !touched.is_empty(),
        };
        if touched.is_empty() || subject.asks_nothing() {
            return Ok(outcome);
        }
        let applicable = Applicable::new(&subject.identity, subject.reading.keyed && live);
        let mut view = subject.view.lock();
        let SessionView { graphs, entities } = &mut *view;
        // What several graphs reach is told once.
        let mut reported: Option<FxHashSet<InstanceKey>> = (graphs.len() > 1).then(FxHashSet::default);
        for (kind, graph) in graphs.iter_mut() {
            let refreshed = self
                .refreshes
                .borrow_mut()
                .refresh(graph, self.reader, &touched)?;
            let Some(changes) = refreshed else {
                continue;
            };
            let candidates = self.frames.candidates(&changes, subject.reading);
            for (snapshot, candidate) in changes.snapshots.iter().zip(candidates.iter()) {
                let key = &candidate.key;
                if let Some(reported) = &mut reported
                    && !reported.insert(key.clone())
                {
                    continue;
                }
                if entities
                    .get(key)
                    .is_some_and(|held| held.equals(candidate.held.seq, candidate.held.deleted))
                {
                    continue;
                }
                if !applicable.admits(&key.instance.scope_key) {
                    outcome.lapsed |= subject.reading.keyed;
                    continue;
                }
                let own = !subject.deferred.contains(&key.instance)
                    && batch
                        .origin(&key.instance)
                        .is_some_and(|origin| origin.is_held_by(&subject.id, candidate.held.seq));
                if own {
                    outcome.content.held.push((key.clone(), candidate.held));
                } else {
                    let entry = candidate.entry(|| self.upsert(key, snapshot, subject.reading))?;
                    outcome.content.upserts.push(entry);
                }
            }
            if let GraphKey::Branch(_) = kind {
                outcome.grown.push(candidates);
            }
            for instance in &changes.unreached {
                let key = InstanceKey {
                    branch: graph.branch().clone(),
                    instance: instance.clone(),
                };
                if entities.contains_key(&key) {
                    outcome
                        .content
                        .removes
                        .push((key.clone(), Pass::remove(&key, subject.reading.keyed)));
                }
                outcome.shrunk.push(key.instance);
            }
        }
        // What one graph no longer reaches another may.
        let graphs = &*graphs;
        let reached = |key: &InstanceKey| {
            graphs
                .values()
                .any(|graph| *graph.branch() == key.branch && graph.tracks(&key.instance))
        };
        outcome.content.removes.retain(|(key, _)| !reached(key));
        Ok(outcome)
    }

    /// Applies an outcome to the session, whose frame is built (SRV-427, SRV-429).
    fn settle(&self, subject: &Subject, outcome: Outcome, live: bool) {
        let says_something = outcome.says_something(subject);
        let Outcome {
            content,
            full,
            grown,
            shrunk,
            lapsed,
            advanced,
        } = outcome;
        let was_full = full.is_some();
        {
            let mut view = subject.view.lock();
            if let Some(full) = full {
                view.graphs = full.graphs;
                view.entities = FxHashMap::default();
            }
            for (key, _) in &content.removes {
                view.entities.remove(key);
            }
            for entry in &content.upserts {
                match view.entities.get_mut(&entry.key) {
                    Some(held) => *held = entry.held,
                    None => drop(view.entities.insert(entry.key.clone(), entry.held)),
                }
            }
            view.entities.extend(content.held);
            let mut registry = self.space.registry.lock();
            let demand_changed = match was_full || !subject.deliveries.is_empty() {
                true => registry.set_interest(subject.slot, &view.graphs),
                false => {
                    // An instance is tracked while any branch's graph reaches it.
                    let gone = shrunk
                        .into_iter()
                        .filter(|instance| !view.graphs.values().any(|graph| graph.tracks(instance)));
                    registry.untrack(subject.slot, gone.collect::<Vec<_>>());
                    let grown = grown.iter().flat_map(|candidates| candidates.iter());
                    registry.track(subject.slot, grown.map(|candidate| &candidate.key.instance))
                }
            };
            registry.update(subject.slot, |session| {
                if let Some(marker) = subject.owed {
                    session.markers.tell(marker);
                }
                if was_full || session.effective.is_empty() {
                    session.force_full = false;
                }
                session.lease_reads_lapsed = if was_full { lapsed && !live } else { lapsed };
                session.deferred.0.clear();
                session.views.mark_plans(&plan_names(&subject.plans), false);
                if says_something || advanced {
                    session.last_synced = self.head;
                }
            });
            drop(registry);
            if demand_changed {
                self.server.notify_demand_changed(
                    self.space.id(),
                    DemandReason::PushGrowth,
                    subject.identity.principal.as_ref(),
                );
            }
        }
    }
}

fn plan_names(plans: &[ViewPlan]) -> Vec<(SmolStr, u64)> {
    plans
        .iter()
        .map(|plan| (plan.id.clone(), plan.generation))
        .collect()
}

/// What a resumed session has missed (step 7 of §3.3). A list that cannot be evaluated now is tried again by the next
/// pass: an answer with an error would only make the client reconnect for ever.
pub(crate) fn catch_up(
    server: &Server,
    space: &Space,
    reader: &Reader,
    slot: Slot,
    elsewhere: &ElsewhereLeases,
    prepared: Option<PreparedView>,
) -> Option<SyncFrame> {
    let subject = space
        .registry
        .lock()
        .get(slot)
        .map(|session| Subject::of(server, slot, session))?;
    let caught_up = reader.snapshot(|reader| -> Result<Option<SyncFrame>, ServerError> {
        let pass = Pass::new(server, space, reader, elsewhere)?;
        let live = subject.reading.keyed && pass.live(&subject)?;
        let mut outcome = if subject.asks_nothing() {
            pass.incremental(&subject, live, &FxHashSet::default(), &DirtyBatch::default())?
        } else {
            match prepared.map(|prepared| prepared.bring_current(reader)) {
                Some(Ok(Ok(view))) => pass.diff(&subject, live, view)?,
                Some(Ok(Err(_)) | Err(_)) | None => pass.full(&subject, live)?,
            }
        };
        let sync = outcome.says_something(&subject).then(|| {
            outcome.content.sort();
            outcome.content.sync(&subject, pass.head)
        });
        pass.settle(&subject, outcome, live);
        Ok(sync)
    });
    let caught_up = caught_up
        .map_err(ServerError::from)
        .and_then(|caught_up| caught_up);
    if caught_up.is_err() {
        space
            .registry
            .lock()
            .update(slot, |session| session.force_full = true);
    }
    match caught_up {
        Ok(sync) => sync,
        Err(error) => {
            tracing::warn!(space = %space.id(), session = %subject.id, %error, "resume could not be evaluated");
            None
        }
    }
}
