//! `session.open` (SRV §3): connection checks, signature, access, registry, takeover, catch-up, answer. Everything from
//! the registry on happens in the space's turn, and the answer is queued before the turn ends (SRV-323).

use std::sync::Arc;

use memory_engine::{Engine, EngineError};
use memory_wire::error::ErrorName;
use memory_wire::message::{Revoked, RevokedReason, ServerMessage, SessionOpen, SyncFrame};
use memory_wire::{Did, LocalSeq, Object, Seq, WireError};

use crate::acl::{self, Capability};
use crate::acting_as;
use crate::connection::Connection;
use crate::delivery::SessionKey;
use crate::dispatch::{refuse, seen_seq, send};
use crate::evaluate;
use crate::leases::ElsewhereLeases;
use crate::prepared_view::PreparedView;
use crate::rates::{Metered, TooFast};
use crate::registry::{OpenRefusal, OpenRequest, Opened};
use crate::server::Server;
use crate::space::Space;
use crate::statistics::{self, HoldLimit};
use crate::views::Views;
use crate::watches::WatchSet;

/// Handles an open; returns once it is answered.
pub(crate) async fn open(server: &Arc<Server>, connection: &Arc<Connection>, request: SessionOpen) {
    let request_id = request.request_id.clone();
    if let Err(error) = try_open(server, connection, request).await {
        server.statistics().count_open(statistics::Opening::Refused);
        refuse(connection, &request_id, as_open_error(error));
    }
}

/// SRV-307: a client tells a permanent refusal from a transient one by these names.
fn as_open_error(mut error: WireError) -> WireError {
    if !matches!(error.name, ErrorName::Authorization | ErrorName::SessionRevoked) {
        error.name = ErrorName::Protocol;
    }
    error
}

async fn try_open(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    request: SessionOpen,
) -> Result<(), WireError> {
    let principal = server.authenticate(connection, &request)?;
    server
        .pace(connection, Metered::Open, principal.as_ref())
        .await
        .map_err(TooFast::to_open_error)?;
    let space = server
        .open_space(&request.space)
        .map_err(|error| error.to_wire(Seq(0)))?;
    let prepared = prepare_resume(server, &space, principal.as_ref(), &request).await;
    let leases = if is_keyed(&space, &request) {
        server.leases_elsewhere(&space).await
    } else {
        ElsewhereLeases::default()
    };
    let opening = Opening {
        server: Arc::clone(server),
        connection: Arc::clone(connection),
        space: Arc::clone(&space),
        principal,
        leases,
    };
    let opened = space
        .in_turn(move |engine| opening.open(engine, &request, prepared))
        .await;
    opened.map_err(|error| error.to_wire(space.server_seq()))?
}

impl Opening {
    /// Views survive a resume by a client that still speaks of them, and their plans are told again (SRV-1006, SRV-1007).
    fn take_views_along(&self, opened: &Opened) {
        let speaks = self
            .connection
            .speaks_views(&self.server.config().advertised_flags());
        let mut registry = self.space.registry.lock();
        if registry
            .get(opened.slot)
            .is_none_or(|session| session.views.is_empty())
        {
            return;
        }
        if speaks {
            registry.update(opened.slot, |session| session.views.renew_plans());
        } else {
            registry.set_views(opened.slot, Views::default());
        }
    }
}

/// The watches of a session about to be resumed, evaluated beside the turn.
struct PreparedResume {
    watches: Arc<WatchSet>,
    view: PreparedView,
}

/// Evaluates what a resume will have to tell, if the request looks like one that will succeed; the turn decides.
async fn prepare_resume(
    server: &Server,
    space: &Arc<Space>,
    principal: Option<&Did>,
    request: &SessionOpen,
) -> Option<PreparedResume> {
    let (watches, identity) = {
        let registry = space.registry.lock();
        let session = registry.by_id(request.session.session_id.as_ref()?)?;
        let resumes = session.views.is_empty()
            && request.session.session_token.as_ref() == Some(&session.token)
            && session.principal.as_ref() == principal;
        resumes.then(|| (Arc::clone(&session.effective), session.identity()))?
    };
    let queries = watches.queries();
    if queries.is_empty() || !PreparedView::is_possible(space) {
        return None;
    }
    // What fails here the turn tries again, and answers for it.
    let view = PreparedView::prepare(server, space, identity, queries.into())
        .await
        .ok()?;
    Some(PreparedResume { watches, view })
}

/// True when the session to resume reads by lease.
fn is_keyed(space: &Space, request: &SessionOpen) -> bool {
    let registry = space.registry.lock();
    request
        .session
        .session_id
        .as_ref()
        .and_then(|id| registry.by_id(id))
        .is_some_and(|session| session.lease_reads)
}

/// A verified open within its turn.
struct Opening {
    server: Arc<Server>,
    connection: Arc<Connection>,
    space: Arc<Space>,
    principal: Option<Did>,
    leases: ElsewhereLeases,
}

impl Opening {
    /// Steps 3…11 of §3.3.
    fn open(
        &self,
        engine: &mut Engine,
        request: &SessionOpen,
        prepared: Option<PreparedResume>,
    ) -> Result<(), WireError> {
        let (server, space, principal) = (&self.server, &self.space, self.principal.as_ref());
        let reader = engine.reader();
        let in_store = |error: EngineError| error.to_wire(space.server_seq());
        space.note_head(reader.server_seq().map_err(in_store)?);
        let acting = acting_as::resolve(
            server,
            space,
            reader,
            principal,
            request.session.acting_as.as_deref(),
        )?;
        if server.config().acl.mode.is_active() {
            let state = space.access.state_by(space, reader).map_err(in_store)?;
            acl::require(
                server,
                space.id(),
                &state,
                acting.as_ref().or(principal),
                Capability::Read,
            )?;
        }
        let opened = register(
            server,
            &self.connection,
            space,
            self.principal.clone(),
            acting,
            request,
        )?;
        // The value before the catch-up; the attached sync may carry a higher one (SRV-306).
        let caught_up = space
            .registry
            .lock()
            .get(opened.slot)
            .map_or(opened.caught_up, |session| session.markers.told());
        let catch_up = if opened.resumed {
            self.take_views_along(&opened);
            let watches = space
                .registry
                .lock()
                .get(opened.slot)
                .map(|session| Arc::clone(&session.effective));
            // The list may have been replaced since it was evaluated.
            let prepared = prepared
                .filter(|prepared| watches.is_some_and(|watches| Arc::ptr_eq(&watches, &prepared.watches)))
                .map(|prepared| prepared.view);
            evaluate::catch_up(server, space, reader, opened.slot, &self.leases, prepared)
        } else {
            None
        };
        if !self
            .connection
            .holds(space.id(), &opened.session_id, opened.incarnation)
        {
            return Err(WireError::session_revoked("Session was revoked while opening"));
        }
        answer(
            server,
            &self.connection,
            space,
            request,
            &opened,
            caught_up,
            catch_up,
        );
        server
            .statistics()
            .count_open(match (&opened.displaced, opened.resumed) {
                (Some(_), _) => statistics::Opening::TakenOver,
                (None, true) => statistics::Opening::Resumed,
                (None, false) => statistics::Opening::Fresh,
            });
        server.notify_session_opened(space.id());
        Ok(())
    }
}

/// Steps 5 and 6 of §3.3: the record, and word to whoever had the session.
fn register(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    space: &Arc<Space>,
    principal: Option<Did>,
    acting_principal: Option<Did>,
    request: &SessionOpen,
) -> Result<Opened, WireError> {
    let descriptor = &request.session;
    let seen = descriptor.seen_seq.map_or(Seq(0), seen_seq);
    let config = server.config();
    // The process itself has as many as it serves.
    let most = match connection.outbound.is_loopback() || principal.as_ref() == Some(&config.audience) {
        true => usize::MAX,
        false => config.limits.sessions_per_principal,
    };
    let opened = space
        .registry
        .lock()
        .open(
            OpenRequest {
                space: space.id(),
                session_id: descriptor.session_id.clone(),
                token: descriptor.session_token.clone(),
                seen_seq: seen,
                principal,
                acting_principal,
                read_ceiling: descriptor.read_ceiling.clone(),
                connection,
                most,
            },
            config.clock.monotonic_ms(),
            &*config.identifiers,
        )
        .map_err(|refusal| {
            if let OpenRefusal::TooMany { .. } = refusal {
                server.statistics().count_limit(HoldLimit::Sessions);
            }
            refusal.into_wire()
        })?;
    if let Some((old, incarnation)) = &opened.displaced {
        displace(space, old, &opened, *incarnation, seen);
    }
    connection.attach(space, opened.session_id.clone(), opened.incarnation);
    server.note_opened(connection);
    server.watch_foreign_commits(space);
    Ok(opened)
}

/// Takes a session from the connection that had it (SRV-311), together with what that connection may not have
/// delivered (SRV-314).
fn displace(space: &Arc<Space>, old: &Connection, opened: &Opened, incarnation: u64, seen: Seq) {
    let key = SessionKey {
        space: space.id().clone(),
        session: opened.session_id.clone(),
    };
    old.outbound.acknowledge(&key, seen);
    let withdrawn = old.outbound.withdraw(&key);
    space
        .registry
        .lock()
        .take_back(&opened.session_id, &withdrawn, space.id());
    old.forget(space.id(), &opened.session_id, incarnation);
    send(
        old,
        ServerMessage::Revoked(Revoked {
            space: space.id().clone(),
            session_id: opened.session_id.clone(),
            reason: RevokedReason::TakenOver,
        }),
    );
}

fn answer(
    server: &Arc<Server>,
    connection: &Connection,
    space: &Arc<Space>,
    request: &SessionOpen,
    opened: &Opened,
    caught_up: LocalSeq,
    catch_up: Option<SyncFrame>,
) {
    let mut ok = Object::new();
    ok.insert("sessionId", &opened.session_id);
    ok.insert("sessionToken", opened.token.as_str());
    ok.insert("serverSeq", space.server_seq());
    ok.insert("caughtUpLocalSeq", caught_up);
    if opened.resumed {
        ok.insert("resumed", true);
    }
    ok.insert("sessionOpen", server.issue_challenge(connection).to_value());
    match catch_up {
        None => {
            send(
                connection,
                ServerMessage::ok(request.request_id.clone(), ok.into()),
            );
        }
        Some(sync) => match sync.response_text(&request.request_id, &ok) {
            Ok(text) => {
                connection.outbound.push_answer(text);
            }
            Err(error) => {
                let error = WireError::protocol(format!("the session's catch-up cannot be encoded: {error}"));
                refuse(connection, &request.request_id, error);
            }
        },
    }
}
