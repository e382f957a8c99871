//! `session.watch.set` and `session.watch.add` (SRV-501…506, SRV-525, SRV-526): checked, evaluated and installed in the
//! space's turn, so that no commit falls between the evaluation and the installation. A list that reads much is evaluated
//! beside the turn, between a first look that checks the request and a second that installs it (SRV-1203).

use std::sync::Arc;
use std::time::Instant;

use memory_engine::{Engine, EngineError, Reader};
use memory_wire::message::{Remove, SyncContent, SyncFrame, UpsertFrame, Watch, WatchRequest};
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
use crate::instance_reads::Naming;
use crate::large_list::{Large, Prepared, Standing};
use crate::leases::ElsewhereLeases;
use crate::registry::Slot;
use crate::server::Server;
use crate::serving_plane::DemandReason;
use crate::spans;
use crate::statistics::{EvaluatedIn, HoldLimit, SlowOperation, SlowQuery};
use crate::views::Views;
use crate::watches::{WatchSet, queries_by_branch};

/// How often a list is brought nearer to the head beside the turn; then the turn evaluates it, for it must be answered.
const MOST_ROUNDS: u32 = 8;

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
    let elsewhere = if names_instances(&request.watches) || is_keyed(&requester) {
        Arc::new(server.leases_elsewhere(&space).await)
    } else {
        Arc::default()
    };
    let request = Arc::new(request);
    let started = Instant::now();
    let mut prepared = None;
    for round in 0.. {
        let job = Job {
            server: Arc::clone(server),
            requester: requester.clone(),
            request: Arc::clone(&request),
            change,
            elsewhere: Arc::clone(&elsewhere),
            started,
            beside: round < MOST_ROUNDS,
        };
        let (connection_in_turn, so_far) = (Arc::clone(connection), prepared.take());
        let looked = space
            .in_turn(move |engine| {
                let result = match job.run(engine, so_far) {
                    Ok(Looked::Large(large)) => return Some(large),
                    Ok(Looked::Answered(answer)) => Ok(answer),
                    Err(error) => Err(error),
                };
                // Queued before the turn ends: no later frame overtakes it.
                respond(&job.server, &connection_in_turn, &job.requester, result);
                None
            })
            .await;
        match looked {
            Ok(Some(large)) => prepared = large.evaluate(server, &space).await,
            Ok(None) => return,
            Err(error) => return refuse(connection, &request.header.request_id, error.to_query()),
        }
    }
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

/// The session's list as it is to be.
#[derive(Clone)]
struct Wanted {
    all: Arc<WatchSet>,
    /// Those of it that are new, where the request adds.
    new: Vec<Watch>,
    views: Views,
}

/// What a look at the request in the turn came to.
enum Looked {
    Answered(Answer),
    Large(Box<Large>),
}

struct Job {
    server: Arc<Server>,
    requester: Requester,
    request: Arc<WatchRequest>,
    change: Change,
    elsewhere: Arc<ElsewhereLeases>,
    started: Instant,
    /// What reads much may go beside the turn yet.
    beside: bool,
}

impl Job {
    fn run(&self, engine: &Engine, prepared: Option<Prepared>) -> Result<Looked, WireError> {
        let space = &self.requester.open.space;
        let (slot, standing, reader_of) = {
            let registry = space.registry.lock();
            let (slot, session) = registry
                .current(&self.requester.header.session_id, self.requester.open.incarnation)
                .ok_or_else(|| WireError::session("Unknown session for space"))?;
            let standing = Standing {
                watches: Arc::clone(&session.watches),
                views: session.views.clone(),
                identity: session.identity(),
            };
            (slot, standing, session.reader().cloned())
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
        let watches = Watch::list_from_values(&self.request.watches)?;
        let views = match &self.request.views {
            None => standing.views.clone(),
            Some(interests) => standing
                .views
                .replaced(interests.clone(), &*self.server.config().identifiers)?,
        };
        let (all, new) = match self.change {
            Change::Set => (WatchSet::replacing(watches), Vec::new()),
            Change::Add => {
                let new = standing.watches.novelty(watches)?;
                (standing.watches.with(new.clone()), new)
            }
        };
        self.require_room_for_watches(all.len() + views.len())?;
        self.admit(reader, slot, &all)?;
        let wanted = Wanted {
            all: Arc::new(all),
            new,
            views,
        };
        let watches = standing.watches.len() + wanted.new.len();
        let prepared = prepared.filter(|prepared| prepared.standing.is(&standing));
        let looked = reader
            .snapshot(|reader| {
                let pass = Pass::new(&self.server, space, reader, &self.elsewhere)?;
                self.look(&pass, slot, standing, wanted, prepared)
            })
            .map_err(ServerError::from)
            .and_then(|looked| looked);
        if !matches!(looked, Ok(Looked::Large(_))) {
            self.note_slow(watches);
        }
        looked.map_err(|error| error.to_query())
    }

    /// Evaluates what is little, or takes what was evaluated beside the turn; sends there what is not little.
    fn look(
        &self,
        pass: &Pass<'_>,
        slot: Slot,
        standing: Standing,
        wanted: Wanted,
        prepared: Option<Prepared>,
    ) -> Result<Looked, ServerError> {
        let mut so_far = None;
        if let Some(prepared) = prepared {
            match prepared.view?.bring_current(pass.reader)? {
                Ok(view) => {
                    let answer = self.install(pass, slot, wanted, view)?;
                    self.count(EvaluatedIn::Beside);
                    return Ok(Looked::Answered(answer));
                }
                Err(behind) => so_far = Some(behind),
            }
        }
        let most = match self.beside {
            true => self.server.config().limits.documents_in_turn,
            false => usize::MAX,
        };
        let everything = || {
            let mut queries = wanted.all.joined_by(&wanted.views).queries();
            queries.extend(wanted.views.deliveries());
            queries
        };
        let large = |standing, so_far| {
            Ok(Looked::Large(Box::new(Large {
                standing,
                queries: everything(),
                so_far,
            })))
        };
        if so_far.is_some() && self.beside {
            return large(standing, so_far);
        }
        let answer = match self.change {
            Change::Set => {
                FullView::evaluate_within(pass.reader, pass.space, &standing.identity, &everything(), most)
                    .and_then(|view| self.install(pass, slot, wanted.clone(), view))
            }
            Change::Add => self.extend(pass, slot, wanted.clone(), most),
        };
        match answer {
            Err(ServerError::Engine(EngineError::ReadsTooMuch(_))) => large(standing, None),
            Err(error) => Err(error),
            Ok(answer) => {
                self.count(match so_far {
                    None => EvaluatedIn::Turn,
                    Some(_) => EvaluatedIn::TurnAtLast,
                });
                Ok(Looked::Answered(answer))
            }
        }
    }

    fn count(&self, place: EvaluatedIn) {
        self.server.statistics().count_watch_request(place);
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

    /// Installs the whole list, evaluated. A replacement is told whole, not as a diff: the client rebuilds from it
    /// (SRV-501). An addition is told what it does not hold yet, and what a change that it has not been told yet took from
    /// its reach (decision 31).
    fn install(
        &self,
        pass: &Pass<'_>,
        slot: Slot,
        wanted: Wanted,
        view: FullView,
    ) -> Result<Answer, ServerError> {
        let Wanted { all, views, .. } = wanted;
        let subject = self.subject(slot)?;
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
        let mut standing = subject.view.lock();
        for (key, snapshot) in view.entries() {
            if !applicable.admits(&key.instance.scope_key) {
                withheld = true;
                continue;
            }
            let deleted = snapshot.document.is_none();
            let held = standing.entities.get(&key);
            let is_news = !held.is_some_and(|held| held.equals(snapshot.seq, deleted));
            if is_news || self.change == Change::Set {
                upserts.push((key.clone(), pass.upsert(&key, &snapshot, subject.reading)?));
            }
            entities.insert(key, Held::new(snapshot.seq, deleted));
        }
        upserts.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut removes: Vec<(InstanceKey, Remove)> = Vec::new();
        for key in standing
            .entities
            .keys()
            .filter(|key| !entities.contains_key(*key))
        {
            removes.push((key.clone(), Pass::remove(key, subject.reading.keyed)));
        }
        standing.entities = entities;
        drop(standing);
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
        let told = Told { upserts, removes };
        Ok(match self.change {
            Change::Set => told.answer(pass.head, seen),
            Change::Add => told.recorded_answer(pass, &subject),
        })
    }

    /// Only what the new watches bring, staged on a clone so that a failure installs nothing (SRV-503, SRV-504).
    fn extend(
        &self,
        pass: &Pass<'_>,
        slot: Slot,
        wanted: Wanted,
        most: usize,
    ) -> Result<Answer, ServerError> {
        let Wanted { all, new, .. } = wanted;
        let subject = self.subject(slot)?;
        if new.is_empty() {
            return Ok(Told::default().answer(pass.head, subject.last_synced));
        }
        let applicable = self.applicable(pass, &subject)?;
        let mut staged = Vec::new();
        let mut upserts = Vec::new();
        let mut held_now: Vec<(InstanceKey, Held)> = Vec::new();
        let mut grown: FxHashSet<memory_wire::InstanceId> = FxHashSet::default();
        let mut withheld = false;
        {
            let view = subject.view.lock();
            for (kind, query) in queries_by_branch(&new) {
                let (graph, reported) = FullView::extended(
                    pass.reader,
                    pass.space,
                    &subject.identity,
                    view.graphs.get(&kind),
                    &query,
                    most,
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
            registry.set_watches(slot, all);
            registry.update(slot, |session| {
                session.last_synced = pass.head;
                session.lease_reads_lapsed |= subject.reading.keyed && withheld;
            });
        }
        self.demand_changed(&subject);
        let told = Told {
            upserts,
            removes: Vec::new(),
        };
        Ok(told.recorded_answer(pass, &subject))
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

/// What an answer tells, in the order of keys.
#[derive(Default)]
struct Told {
    upserts: Vec<(InstanceKey, UpsertFrame)>,
    removes: Vec<(InstanceKey, Remove)>,
}

impl Told {
    fn answer(self, to_seq: Seq, from_seq: Seq) -> Answer {
        let mut ok = Object::new();
        ok.insert("serverSeq", to_seq);
        let sync = SyncFrame {
            from_seq,
            content: SyncContent {
                to_seq,
                upserts: self.upserts.into_iter().map(|(_, upsert)| upsert).collect(),
                removes: self.removes.into_iter().map(|(_, remove)| remove).collect(),
                view_plans: None,
            },
            caught_up_local_seq: None,
        };
        Answer::Sync {
            ok,
            sync,
            delivered: None,
        }
    }

    /// An answer that a resume makes up for when it is lost: the request is not made again.
    fn recorded_answer(self, pass: &Pass<'_>, subject: &Subject) -> Answer {
        let record = Delivered {
            session: SessionKey {
                space: pass.space.id().clone(),
                session: subject.id.clone(),
            },
            incarnation: subject.incarnation,
            from_seq: subject.last_synced,
            to_seq: pass.head,
            upserts: self.upserts.iter().map(|(key, _)| key.clone()).collect(),
            removes: self.removes.iter().map(|(key, _)| key.clone()).collect(),
            marker: None,
            plans: Vec::new(),
        };
        let mut answer = self.answer(pass.head, subject.last_synced);
        if let Answer::Sync { delivered, .. } = &mut answer {
            *delivered = Some(Box::new(record));
        }
        answer
    }
}
