//! `transact` (SRV §4.4, 4.5). A commit is admitted in the space's turn — session and access checks, then the engine —
//! and published in the same turn once it is durable: marks, notice, obligation, verdict (SRV-407…417). Commits that
//! wait together share a transaction; later ones see what earlier ones did (SRV-409). Class, holder, scope keys and
//! attribution are given here, never read from the client's words (SRV-3). What a client does with each answer is SRV-441.

use std::sync::Arc;

use memory_engine::{Applied, ApplyCommit, CommitTexts, Engine, EngineError, Reader};
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::{
    ClientCommit, EventAppendDecl, Operation, RevisionContent, ServerMessage, Transact,
};
use memory_wire::scope_key::session_key;
use memory_wire::{EntityId, InstanceId, Scope, ScopeIdentity, ScopeKey, SessionId, WireError};
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use crate::acl;
use crate::connection::Connection;
use crate::dirty::{OpKind, Origin};
use crate::dispatch::{Requester, refuse, send};
use crate::rates::Metered;
use crate::registry::Slot;
use crate::server::Server;
use crate::serving_plane::{AdmittedCommit, EventAppendNotice};
use crate::space::Space;
use crate::spans;
use crate::statistics::Verdict;

/// A commit on its way through its turn.
struct Job {
    server: Arc<Server>,
    connection: Arc<Connection>,
    requester: Requester,
    commit: ClientCommit,
    /// Worked out here, beside the writer.
    texts: CommitTexts,
    span: Span,
    touches_list: bool,
    /// Its database is attached for the length of the commit, which therefore shares no transaction (SRV-523).
    has_sqlite: bool,
}

/// The session a commit was admitted for.
struct Committer {
    slot: Slot,
    identity: ScopeIdentity,
}

/// What admission came to.
enum Admission {
    /// Refused before the engine saw it.
    Refused(WireError),
    /// Decided by the engine.
    Decided {
        committer: Committer,
        outcome: Result<Applied, EngineError>,
        changes_access: bool,
    },
}

/// Handles a `transact`; returns once its verdict is queued.
pub(crate) async fn transact(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    requester: Requester,
    request: Transact,
) {
    let request_id = request.header.request_id.clone();
    let commit = match ClientCommit::from_value(&request.commit) {
        Ok(commit) => commit,
        Err(error) => {
            server
                .statistics()
                .count_commit(CommitClass::Authored, Verdict::Refused(error.name));
            return refuse(connection, &request_id, error);
        }
    };
    let space = Arc::clone(&requester.open.space);
    if let Err(error) = pace(server, connection, &requester, &commit).await {
        server
            .statistics()
            .count_commit(CommitClass::Authored, Verdict::Refused(error.name));
        return refuse(connection, &request_id, error);
    }
    let span = spans::transact(&requester.header, &commit);
    let job = Arc::new(Job {
        span: span.clone(),
        server: Arc::clone(server),
        connection: Arc::clone(connection),
        touches_list: acl::touches_list(&commit, space.id()),
        has_sqlite: commit
            .operations
            .iter()
            .any(|operation| matches!(operation, Operation::Sqlite { .. })),
        requester,
        texts: CommitTexts::of(&commit),
        commit,
    });
    let (decided, verdict_queued) = oneshot::channel();
    // Nobody waits when the connection's task is gone; the commit stands all the same (SRV-410).
    let decide = move || {
        let _ = decided.send(());
    };
    let lost = if job.has_sqlite {
        let turn = space.engine().turn(move |engine| {
            let admission = job.admit(engine);
            job.publish(engine, Ok(admission));
            decide();
        });
        turn.instrument(span).await.err()
    } else {
        let admitting = Arc::clone(&job);
        space.engine().write_then(
            move |engine| admitting.admit(engine),
            move |engine, admission| {
                job.publish(engine, admission);
                decide();
            },
        );
        verdict_queued
            .instrument(span)
            .await
            .err()
            .map(|_| space.engine().open_failure().unwrap_or(EngineError::Closed))
    };
    if let Some(error) = lost {
        refuse(connection, &request_id, error.to_wire(space.server_seq()));
    }
}

/// Holds a commit back while its principal commits too fast. What was accepted before is answered from its record
/// whatever the rate: refusing a replay would make the client undo what is durable (SRV-415).
async fn pace(
    server: &Server,
    connection: &Connection,
    requester: &Requester,
    commit: &ClientCommit,
) -> Result<(), WireError> {
    let space = &requester.open.space;
    let principal = space
        .registry
        .lock()
        .by_id(&requester.header.session_id)
        .and_then(|session| session.principal.clone());
    let Err(too_fast) = server.pace(connection, Metered::Commit, principal.as_ref()).await else {
        return Ok(());
    };
    let key = session_key(principal.as_ref(), &requester.header.session_id);
    let local_seq = commit.local_seq;
    match space
        .read(move |reader| reader.committed_at(&key, local_seq))
        .await
    {
        Ok(Some(_)) => Ok(()),
        // A store that cannot be asked could not take the commit either.
        Ok(None) | Err(_) => Err(too_fast.to_wire()),
    }
}

impl Job {
    fn space(&self) -> &Arc<Space> {
        &self.requester.open.space
    }

    /// Steps 3…8 of §4.4, inside the transaction.
    fn admit(&self, engine: &mut Engine) -> Admission {
        let space = self.space();
        let header = &self.requester.header;
        let committer = {
            let registry = space.registry.lock();
            match registry.current(&header.session_id, self.requester.open.incarnation) {
                Some((slot, session)) => Committer {
                    slot,
                    identity: session.identity(),
                },
                None => {
                    return Admission::Refused(WireError::session("Unknown or replaced session for space"));
                }
            }
        };
        let principal = committer.identity.principal.as_ref();
        spans::record_user(&self.span, principal);
        let persist = spans::persist(&self.span);
        let _persisting = persist.enter();
        let mut in_empty_space = false;
        if self.server.config().acl.mode.is_active() {
            let state = match space.access.state_by(space, engine.reader()) {
                Ok(state) => state,
                Err(error) => return Admission::Refused(error.to_wire(space.server_seq())),
            };
            in_empty_space = state.empty;
            if let Err(error) = acl::check_commit(&self.server, space.id(), &state, principal, &self.commit) {
                self.doubt_if_landed_before(engine.reader(), &committer);
                return Admission::Refused(error);
            }
        }
        let now_ms = self.server.config().clock.wall_ms();
        let apply = ApplyCommit {
            texts: Some(&self.texts),
            ..ApplyCommit::authored(&header.session_id, principal, &self.commit, now_ms)
        };
        let outcome = if self.has_sqlite {
            engine.apply_commit_with_sqlite(self.server.cells(), space.id(), apply)
        } else {
            engine.apply_commit(apply)
        };
        match &outcome {
            Ok(applied) => drop(persist.record("commit.seq", applied.seq.0)),
            Err(error) => drop(persist.record("ct.conflict", error.is_conflict())),
        }
        let changes_access = outcome.is_ok() && (self.touches_list || in_empty_space);
        if changes_access {
            space.access.begin_change();
        }
        Admission::Decided {
            committer,
            outcome,
            changes_access,
        }
    }

    /// Step 10, once the transaction is durable or lost.
    fn publish(&self, engine: &mut Engine, admission: Result<Admission, EngineError>) {
        let (committer, outcome) = match admission {
            Ok(Admission::Refused(error)) => {
                self.answer_error(error);
                return self.server.schedule_flush(self.space());
            }
            Ok(Admission::Decided {
                committer,
                outcome,
                changes_access,
            }) => {
                if changes_access {
                    self.space().access.end_change();
                }
                (committer, outcome)
            }
            Err(lost) => {
                // Whether this member had begun a change is lost with it.
                self.space().access.end_change();
                return self.answer_error(lost.to_wire(self.space().server_seq()));
            }
        };
        match outcome {
            Ok(applied) => self.accept(engine, &committer, &applied),
            Err(error) => self.reject(&committer, &error),
        }
        self.server.schedule_flush(self.space());
    }

    /// A commit that landed, whose verdict was lost and whose writer may write no more, is refused when it is sent again
    /// (SRV-415). The writer takes it back then, so that it does not hold what it wrote any longer (SRV-419): the next pass
    /// tells it.
    fn doubt_if_landed_before(&self, reader: &Reader, committer: &Committer) {
        let key = session_key(
            committer.identity.principal.as_ref(),
            &self.requester.header.session_id,
        );
        if !matches!(reader.committed_at(&key, self.commit.local_seq), Ok(Some(_))) {
            return;
        }
        let written: FxHashSet<InstanceId> = self
            .commit
            .operations
            .iter()
            .filter_map(Operation::target)
            .filter_map(|(id, scope)| {
                let key = ScopeKey::resolve(scope, &committer.identity).ok()?;
                Some(InstanceId::new(id.clone(), key))
            })
            .collect();
        let space = self.space();
        space.registry.lock().doubt(committer.slot, &written);
        space.mark(|_| ());
    }

    fn answer_error(&self, error: WireError) {
        self.server
            .statistics()
            .count_commit(CommitClass::Authored, Verdict::Refused(error.name));
        refuse(&self.connection, &self.requester.header.request_id, error);
    }

    /// What follows from an accepted commit, its verdict last of all but the writer's own revocation (SRV-411…414,
    /// SRV-809).
    fn accept(&self, engine: &mut Engine, committer: &Committer, applied: &Applied) {
        let space = self.space();
        let header = &self.requester.header;
        space.note_head(applied.seq);
        mark_accepted(space, &header.session_id, applied);
        space.registry.lock().update(committer.slot, |session| {
            session.markers.owe(self.commit.local_seq)
        });
        self.server
            .count_cid_mismatches(space.id(), &self.commit, applied);
        self.server
            .statistics()
            .count_commit(CommitClass::Authored, Verdict::of(applied));
        self.server.notify_admitted(&AdmittedCommit {
            space: space.id().clone(),
            seq: applied.seq,
            class: CommitClass::Authored,
            holder: None,
            session_id: header.session_id.clone(),
            writes: written_instances(applied),
            event_appends: appended_events(&self.commit.event_appends, &committer.identity),
            warm: false,
        });
        let revoked = if self.touches_list {
            acl::revoke_after_list_change(&self.server, space, engine.reader())
        } else {
            Vec::new()
        };
        let (own, others): (Vec<_>, Vec<_>) = revoked
            .into_iter()
            .partition(|revocation| revocation.slot == committer.slot);
        others.into_iter().for_each(acl::Revocation::announce);
        tracing::debug!(space = %space.id(), session = %header.session_id, seq = applied.seq.0, "commit accepted");
        send(
            &self.connection,
            ServerMessage::ok(header.request_id.clone(), applied.to_value()),
        );
        own.into_iter().for_each(acl::Revocation::announce);
    }

    /// What follows from a refusal (SRV-417): a conflict owes the session a marker and whatever it lacks of what it
    /// wrote or read; anything else owes nothing.
    fn reject(&self, committer: &Committer, error: &EngineError) {
        let space = self.space();
        if error.is_conflict() {
            let targets = self.commit.operations.iter().filter_map(Operation::target);
            let confirmed = self
                .commit
                .reads
                .confirmed
                .iter()
                .map(|read| (&read.id, read.scope));
            let pending = self
                .commit
                .reads
                .pending
                .iter()
                .map(|read| (&read.id, read.scope));
            let touched: Vec<(&EntityId, Scope)> = targets.chain(confirmed).chain(pending).collect();
            space.mark(|batch| {
                for (id, scope) in touched {
                    // What the session cannot resolve it cannot hold a wrong copy of.
                    if let Ok(key) = ScopeKey::resolve(scope, &committer.identity) {
                        batch.mark_for_all(InstanceId::new(id.clone(), key));
                    }
                }
            });
            space.registry.lock().update(committer.slot, |session| {
                session.markers.owe(self.commit.local_seq)
            });
        }
        let wire = error.to_wire(space.server_seq());
        tracing::debug!(
            space = %space.id(), session = %self.requester.header.session_id, name = %wire.name, "commit refused"
        );
        self.answer_error(wire);
    }
}

/// The kind a revision's head has.
fn op_kind(content: &RevisionContent) -> OpKind {
    match content {
        RevisionContent::Set { .. } => OpKind::Set,
        RevisionContent::Patch { .. } => OpKind::Patch,
        RevisionContent::Delete => OpKind::Delete,
    }
}

/// Marks what an accepted commit changed, with the writer as origin (SRV-411). An entirely elided commit marks
/// nothing, yet a pass is due, because its marker is owed.
fn mark_accepted(space: &Space, session: &SessionId, applied: &Applied) {
    let mut last: FxHashMap<InstanceId, OpKind> = FxHashMap::default();
    for revision in &applied.revisions {
        last.insert(
            InstanceId::new(revision.id.clone(), revision.scope_key.clone()),
            op_kind(&revision.content),
        );
    }
    space.mark(|batch| {
        for (key, kind) in last {
            batch.mark(
                key,
                Origin {
                    session: session.clone(),
                    seq: applied.seq,
                    kind,
                },
            );
        }
    });
}

/// The instances a commit wrote, each once, in operation order.
fn written_instances(applied: &Applied) -> Vec<InstanceId> {
    let mut written: indexmap::IndexSet<InstanceId, rustc_hash::FxBuildHasher> = Default::default();
    for revision in &applied.revisions {
        written.insert(InstanceId::new(revision.id.clone(), revision.scope_key.clone()));
    }
    written.into_iter().collect()
}

fn appended_events(appends: &[EventAppendDecl], identity: &ScopeIdentity) -> Vec<EventAppendNotice> {
    appends
        .iter()
        .filter_map(|append| {
            let scope_key = ScopeKey::resolve(append.scope, identity).ok()?;
            Some(EventAppendNotice {
                stream: InstanceId::new(append.id.clone(), scope_key),
                event_id: append.event_id.clone(),
            })
        })
        .collect()
}
