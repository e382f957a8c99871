//! `session.watch.set` and `session.watch.add` (SRV-501…506, SRV-525, SRV-526): checked, evaluated and installed in the
//! space's turn, so that no commit falls between the evaluation and the installation.

use std::sync::Arc;
use std::time::Instant;

use memory_engine::{Engine, Reader};
use memory_wire::message::{Remove, SyncContent, SyncFrame, Watch, WatchRequest};
use memory_wire::{Object, Seq, Value, WireError};
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::Instrument as _;

use crate::acl::{self, Capability};
use crate::applicable::Applicable;
use crate::connection::Connection;
use crate::delivery::{Delivered, Held, InstanceKey, SessionKey};
use crate::dispatch::{Answer, Requester, refuse, respond};
use crate::error::ServerError;
use crate::evaluate::{Pass, Subject};
use crate::full_view::FullView;
use crate::instance_reads::{self, Naming};
use crate::leases::ElsewhereLeases;
use crate::prepared_view::PreparedView;
use crate::registry::Slot;
use crate::server::Server;
use crate::serving_plane::DemandReason;
use crate::spans;
use crate::statistics::{HoldLimit, SlowOperation, SlowQuery};
use crate::views::Views;
use crate::watches::{WatchSet, queries_by_branch};

/// Which of the two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Set,
    Add,
}

impl Change {
    fn as_str(self) -> &'static str {
        match self {
            Change::Set => "session.watch.set",
            Change::Add => "session.watch.add",
        }
    }
}

pub(crate) async fn set(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    requester: Requester,
    request: WatchRequest,
) {
    let span = spans::subscribe(&request.header, request.watches.len());
    handle(server, connection, requester, request, Change::Set)
        .instrument(span)
        .await;
}

pub(crate) async fn add(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    requester: Requester,
    request: WatchRequest,
) {
    let span = spans::subscribe(&request.header, request.watches.len());
    handle(server, connection, requester, request, Change::Add)
        .instrument(span)
        .await;
}

async fn handle(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    requester: Requester,
    request: WatchRequest,
    change: Change,
) {
    if request.views.is_some() && !connection.speaks_views(&server.config().advertised_flags()) {
        // Dropping them silently would leave the client waiting for plans (SRV-1001).
        let error = WireError::protocol("views require viewScopedReplicationV1, which is not negotiated");
        return refuse(connection, &request.header.request_id, error);
    }
    let space = Arc::clone(&requester.open.space);
    let prepared = match change {
        Change::Set => prepare(server, &requester, &request).await,
        Change::Add => None,
    };
    let elsewhere = if names_instances(&request.watches) || is_keyed(&requester) {
        server.leases_elsewhere(&space).await
    } else {
        ElsewhereLeases::default()
    };
    let (server_in_turn, connection_in_turn) = (Arc::clone(server), Arc::clone(connection));
    let request_id = request.header.request_id.clone();
    let done = space
        .in_turn(move |engine| {
            let job = Job {
                server: server_in_turn,
                requester,
                change,
                elsewhere,
                started: Instant::now(),
            };
            let result = job.run(engine, request, prepared);
            // Queued before the turn ends: no later frame overtakes it.
            respond(&job.server, &connection_in_turn, &job.requester, result);
        })
        .await;
    if let Err(error) = done {
        refuse(connection, &request_id, error.to_query());
    }
}

/// Evaluates a replacement beside the turn, if the request looks like one that will be admitted; the turn decides.
async fn prepare(server: &Server, requester: &Requester, request: &WatchRequest) -> Option<PreparedView> {
    if names_instances(&request.watches) || request.views.is_some() {
        return None;
    }
    server.require_current(requester).ok()?;
    let space = &requester.open.space;
    let identity = space
        .registry
        .lock()
        .by_id(&requester.header.session_id)?
        .identity();
    let watches = Arc::new(WatchSet::replacing(
        Watch::list_from_values(&request.watches).ok()?,
    ));
    if server.config().acl.mode.is_active() {
        let state = space.access.state(space).await.ok()?;
        let reader = space
            .registry
            .lock()
            .by_id(&requester.header.session_id)?
            .reader()
            .cloned();
        if !acl::may_read(server, space.id(), &state, reader.as_ref()) {
            return None;
        }
    }
    PreparedView::prepare(server, space, identity, watches.queries()).await
}

/// A look at the raw watches, for requests that name nothing must not wait for leases (SRV-606).
fn names_instances(watches: &[Value]) -> bool {
    watches.iter().any(|watch| {
        watch
            .at_path(&["query", "roots"])
            .and_then(Value::as_array)
            .is_some_and(|roots| {
                roots.elements().any(|(_, root)| {
                    root.member("entityScopeKey").is_some()
                        || root
                            .member("scope")
                            .is_some_and(|scope| scope.as_str() != Some("space"))
                })
            })
    })
}

fn is_keyed(requester: &Requester) -> bool {
    let registry = requester.open.space.registry.lock();
    registry
        .by_id(&requester.header.session_id)
        .is_some_and(|session| session.lease_reads)
}

struct Job {
    server: Arc<Server>,
    requester: Requester,
    change: Change,
    elsewhere: ElsewhereLeases,
    started: Instant,
}

impl Job {
    fn run(
        &self,
        engine: &Engine,
        request: WatchRequest,
        prepared: Option<PreparedView>,
    ) -> Result<Answer, WireError> {
        let space = &self.requester.open.space;
        let (slot, standing, views, reader_of) = {
            let registry = space.registry.lock();
            let (slot, session) = registry
                .current(&self.requester.header.session_id, self.requester.open.incarnation)
                .ok_or_else(|| WireError::session("Unknown session for space"))?;
            (
                slot,
                Arc::clone(&session.watches),
                session.views.clone(),
                session.reader().cloned(),
            )
        };
        let reader = engine.reader();
        if self.server.config().acl.mode.is_active() {
            let state = space
                .access
                .state_by(space, reader)
                .map_err(|error| ServerError::from(error).to_query())?;
            acl::require(
                &self.server,
                space.id(),
                &state,
                reader_of.as_ref(),
                Capability::Read,
            )?;
        }
        let watches = Watch::list_from_values(&request.watches)?;
        let prepared = prepared.filter(|_| views.is_empty());
        let views = match request.views {
            None => views,
            Some(interests) => views.replaced(interests, &*self.server.config().identifiers)?,
        };
        let (all, new) = match self.change {
            Change::Set => (WatchSet::replacing(watches), Vec::new()),
            Change::Add => {
                let new = standing.novelty(watches)?;
                (standing.with(new.clone()), new)
            }
        };
        self.require_room_for_watches(all.len() + views.len())?;
        self.admit(reader, slot, &all)?;
        let result = reader
            .snapshot(|reader| {
                let pass = Pass::new(&self.server, space, reader, &self.elsewhere)?;
                match self.change {
                    Change::Set => self.replace(&pass, slot, Arc::new(all), views, prepared),
                    Change::Add => self.extend(&pass, slot, all, &new),
                }
            })
            .map_err(ServerError::from)
            .and_then(|result| result);
        self.note_slow(watches_len(&standing, &new));
        result.map_err(|error| error.to_query())
    }

    /// Views count like watches, those that only speculate too: each is kept.
    fn require_room_for_watches(&self, watches: usize) -> Result<(), WireError> {
        let most = self.server.config().limits.max_watches;
        if watches <= most {
            return Ok(());
        }
        self.server.statistics().count_limit(HoldLimit::Watches);
        Err(WireError::protocol(format!(
            "{} would give the session {watches} watches, at most {most} are allowed",
            self.change.as_str()
        )))
    }

    /// Refuses a list that reaches more documents than a session may track. What later commits make it reach is delivered.
    fn require_room_for_documents(&self, documents: usize) -> Result<(), ServerError> {
        let most = self.server.config().limits.max_tracked_documents;
        if documents <= most {
            return Ok(());
        }
        self.server.statistics().count_limit(HoldLimit::TrackedDocuments);
        Err(WireError::protocol(format!(
            "{} would make the session track {documents} documents, at most {most} are allowed",
            self.change.as_str()
        ))
        .into())
    }

    /// The read ladders of §6.2 and §6.4. Admission makes the session keyed for life (SRV-607).
    fn admit(&self, reader: &Reader, slot: Slot, all: &WatchSet) -> Result<(), WireError> {
        let space = &self.requester.open.space;
        let identity = match space.registry.lock().get(slot) {
            Some(session) => session.identity(),
            None => return Err(WireError::session("Unknown session for space")),
        };
        let naming = self
            .server
            .admit_reads(space, reader, &identity, all.roots(), &self.elsewhere)?;
        if naming == Naming::Admitted {
            space
                .registry
                .lock()
                .update(slot, |session| session.lease_reads = true);
        }
        Ok(())
    }

    fn subject(&self, slot: Slot) -> Result<Subject, ServerError> {
        let registry = self.requester.open.space.registry.lock();
        let session = registry
            .get(slot)
            .ok_or_else(|| WireError::session("Unknown session for space"))?;
        Ok(Subject::of(&self.server, slot, session))
    }

    /// Full, not a diff: the client rebuilds from it (SRV-501).
    fn replace(
        &self,
        pass: &Pass<'_>,
        slot: Slot,
        all: Arc<WatchSet>,
        views: Views,
        prepared: Option<PreparedView>,
    ) -> Result<Answer, ServerError> {
        let subject = self.subject(slot)?;
        let view = match prepared.and_then(|prepared| prepared.bring_current(pass.reader, pass.head)) {
            Some(view) => view,
            None => {
                let mut queries = all.joined_by(&views).queries();
                queries.extend(views.deliveries());
                FullView::evaluate(pass.reader, pass.space, &subject.identity, &queries)?
            }
        };
        self.require_room_for_documents(
            view.graphs
                .values()
                .map(|graph| graph.tracked_instances().count())
                .sum(),
        )?;
        let applicable = self.applicable(pass, &subject)?;
        let mut upserts = Vec::new();
        let mut entities: FxHashMap<InstanceKey, Held> = FxHashMap::default();
        let mut withheld = false;
        for (key, snapshot) in view.entries() {
            if !applicable.admits(&key.instance.scope_key) {
                withheld = true;
                continue;
            }
            upserts.push((key.clone(), pass.upsert(&key, &snapshot, subject.reading)?));
            entities.insert(key, Held::new(snapshot.seq, snapshot.document.is_none()));
        }
        upserts.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut removes: Vec<(InstanceKey, Remove)> = Vec::new();
        {
            let mut held = subject.view.lock();
            for key in held.entities.keys().filter(|key| !entities.contains_key(*key)) {
                removes.push((key.clone(), Pass::remove(key, subject.reading.keyed)));
            }
            held.entities = entities;
        }
        removes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let seen = {
            let mut registry = pass.space.registry.lock();
            registry.set_interest(slot, &view.graphs);
            registry.set_views(slot, views);
            registry.set_watches(slot, all);
            registry
                .update(slot, |session| {
                    session.last_synced = pass.head;
                    session.force_full = false;
                    session.deferred.0.clear();
                    session.lease_reads_lapsed = subject.reading.keyed && withheld;
                    session.seen_seq
                })
                .unwrap_or_default()
        };
        subject.view.lock().graphs = view.graphs;
        self.demand_changed(&subject);
        let sync = SyncFrame {
            from_seq: seen,
            content: SyncContent {
                to_seq: pass.head,
                upserts: upserts.into_iter().map(|(_, upsert)| upsert).collect(),
                removes: removes.into_iter().map(|(_, remove)| remove).collect(),
                view_plans: None,
            },
            caught_up_local_seq: None,
        };
        Ok(answer(pass.head, sync, None))
    }

    /// Only what the new watches bring, staged on a clone so that a failure installs nothing (SRV-503, SRV-504).
    fn extend(
        &self,
        pass: &Pass<'_>,
        slot: Slot,
        all: WatchSet,
        new: &[Watch],
    ) -> Result<Answer, ServerError> {
        let subject = self.subject(slot)?;
        let from_seq = subject.last_synced;
        if new.is_empty() {
            let sync = SyncFrame {
                from_seq,
                content: SyncContent {
                    to_seq: pass.head,
                    ..SyncContent::default()
                },
                caught_up_local_seq: None,
            };
            return Ok(answer(pass.head, sync, None));
        }
        let applicable = self.applicable(pass, &subject)?;
        let mut staged = Vec::new();
        let mut upserts = Vec::new();
        let mut held_now: Vec<(InstanceKey, Held)> = Vec::new();
        let mut grown: FxHashSet<memory_wire::InstanceId> = FxHashSet::default();
        let mut withheld = false;
        {
            let view = subject.view.lock();
            for (kind, query) in queries_by_branch(new) {
                let (graph, reported) = FullView::extended(
                    pass.reader,
                    pass.space,
                    &subject.identity,
                    view.graphs.get(&kind),
                    &query,
                )?;
                for (key, snapshot) in reported {
                    grown.insert(key.instance.clone());
                    let deleted = snapshot.document.is_none();
                    if view
                        .entities
                        .get(&key)
                        .is_some_and(|held| held.equals(snapshot.seq, deleted))
                    {
                        continue;
                    }
                    if !applicable.admits(&key.instance.scope_key) {
                        withheld = true;
                        continue;
                    }
                    upserts.push((key.clone(), pass.upsert(&key, &snapshot, subject.reading)?));
                    held_now.push((key, Held::new(snapshot.seq, deleted)));
                }
                staged.push((kind, graph));
            }
        }
        self.require_room_for_documents(pass.space.registry.lock().get(slot).map_or(0, |session| {
            let new = grown
                .iter()
                .filter(|instance| !session.tracked.contains(*instance));
            session.tracked.len() + new.count()
        }))?;
        upserts.sort_by(|(a, _), (b, _)| a.cmp(b));
        {
            let mut view = subject.view.lock();
            view.graphs.extend(staged);
            view.entities.extend(held_now);
            let mut registry = pass.space.registry.lock();
            if subject.has_deliveries() {
                // What was only delivered may be demanded now.
                registry.set_interest(slot, &view.graphs);
            } else {
                registry.track(slot, &grown);
            }
            registry.set_watches(slot, Arc::new(all));
            registry.update(slot, |session| {
                session.last_synced = pass.head;
                session.lease_reads_lapsed |= subject.reading.keyed && withheld;
            });
        }
        self.demand_changed(&subject);
        let (told, upserts): (Vec<_>, Vec<_>) = upserts.into_iter().unzip();
        let sync = SyncFrame {
            from_seq,
            content: SyncContent {
                to_seq: pass.head,
                upserts,
                ..SyncContent::default()
            },
            caught_up_local_seq: None,
        };
        let delivered = Delivered {
            session: SessionKey {
                space: pass.space.id().clone(),
                session: subject.id.clone(),
            },
            incarnation: subject.incarnation,
            from_seq,
            to_seq: pass.head,
            upserts: told.into(),
            removes: Arc::default(),
            marker: None,
            plans: Vec::new(),
        };
        Ok(answer(pass.head, sync, Some(Box::new(delivered))))
    }

    fn applicable<'s>(&self, pass: &Pass<'_>, subject: &'s Subject) -> Result<Applicable<'s>, ServerError> {
        let live = subject.reading.keyed && pass.live(subject)?;
        Ok(Applicable::new(&subject.identity, live))
    }

    fn demand_changed(&self, subject: &Subject) {
        self.server.notify_demand_changed(
            self.requester.open.space.id(),
            DemandReason::Watch,
            subject.identity.principal.as_ref(),
        );
    }

    fn note_slow(&self, watches: usize) {
        self.server.statistics().note_query(SlowQuery {
            timestamp: self.server.config().clock.wall_ms(),
            elapsed: self.started.elapsed().as_secs_f64() * 1000.0,
            operation: match self.change {
                Change::Set => SlowOperation::WatchSet,
                Change::Add => SlowOperation::WatchAdd,
            },
            space: self.requester.open.space.id().to_string(),
            roots: None,
            watches: Some(watches),
        });
    }
}

fn watches_len(standing: &WatchSet, new: &[Watch]) -> usize {
    standing.len() + new.len()
}

fn answer(server_seq: Seq, sync: SyncFrame, delivered: Option<Box<Delivered>>) -> Answer {
    let mut ok = Object::new();
    ok.insert("serverSeq", server_seq);
    Answer::Sync { ok, sync, delivered }
}

impl Server {
    /// The ladders of §6.2 and §6.4 over a request's roots.
    pub(crate) fn admit_reads<'a>(
        &self,
        space: &crate::space::Space,
        reader: &Reader,
        identity: &memory_wire::ScopeIdentity,
        roots: impl Iterator<Item = (&'a memory_wire::BranchName, &'a memory_wire::message::Root)> + Clone,
        elsewhere: &ElsewhereLeases,
    ) -> Result<Naming, WireError> {
        let config = self.config();
        let in_store = |error| ServerError::Engine(error).to_query();
        if config.server_execution
            && let Some(principal) = &identity.principal
            && let Some(root) = instance_reads::first_unnamed_scoped(roots.clone())
        {
            let holder = self.holder_of(principal);
            let here = reader
                .live_holder(space.id(), config.clock.wall_ms())
                .map_err(in_store)?;
            if here.as_ref() != Some(&holder)
                && let Some(leased) = elsewhere.held_by(&holder)
            {
                return Err(instance_reads::refuse_foreign_scoped(root, leased, space.id()));
            }
        }
        let live = config.server_execution
            && instance_reads::names_instances(roots.clone())
            && self
                .holds_live_lease(space, reader, identity.principal.as_ref(), elsewhere)
                .map_err(in_store)?;
        instance_reads::admit(roots, identity, config.server_execution, live)
    }
}
