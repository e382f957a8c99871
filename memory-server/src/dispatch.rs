//! One frame of one connection from parsed message to answer (SRV-110…112, SRV-401…406). Called by the connection's
//! dispatcher only, one frame at a time. Every request is answered exactly once.

use std::sync::Arc;

use memory_wire::codec::{self, EncodeError};
use memory_wire::message::{
    Ack, AckOk, ClientMessage, HANDSHAKE_REQUEST_ID, RequestHeader, Response, ServerMessage, SyncFrame,
};
use memory_wire::{Object, RequestId, Seq, Value, WireError};

use crate::acl::{self, Capability};
use crate::connection::{Connection, Negotiation, OpenSession};
use crate::delivery::{Delivered, Loss};
use crate::outbound::Refused;
use crate::rates::{Metered, TooFast};
use crate::server::Server;
use crate::{entity_ids, graph_query, handshake, session_open, sqlite_requests, transact, watch_requests};

/// The body of a successful answer.
pub(crate) enum Answer {
    /// A value.
    Body(Value),
    /// A value with a sync in it, assembled from shared text.
    Sync {
        ok: Object,
        sync: SyncFrame,
        /// What it makes the session hold, when a resume must tell that again if the answer is lost.
        delivered: Option<Box<Delivered>>,
    },
}

impl Answer {
    fn into_text(self, request_id: &RequestId) -> Result<String, WireError> {
        let text = match self {
            Answer::Body(body) => ServerMessage::ok(request_id.clone(), body).encode(),
            Answer::Sync { ok, sync, .. } => sync.response_text(request_id, &ok),
        };
        text.map_err(|error| WireError::query(format!("the answer cannot be encoded: {error}")))
    }

    /// The record of the sync in it, for the case that it is lost.
    fn take_record(&mut self) -> Option<Box<Delivered>> {
        match self {
            Answer::Body(_) => None,
            Answer::Sync { delivered, .. } => delivered.take(),
        }
    }
}

/// Handles one frame.
pub(crate) async fn handle(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    message: Option<ClientMessage>,
) {
    let Some(message) = message else {
        send(connection, ServerMessage::invalid());
        return;
    };
    if let ClientMessage::Hello(hello) = &message {
        match handshake::hello(server, connection, hello) {
            Ok(answer) => drop(queue(connection, codec::encode(&answer))),
            Err(error) => refuse(connection, &RequestId::new(HANDSHAKE_REQUEST_ID), error),
        }
        return;
    }
    if connection.negotiation() == Negotiation::AwaitHello {
        let error = WireError::protocol("memory hello is required first");
        send(
            connection,
            ServerMessage::error(RequestId::new(HANDSHAKE_REQUEST_ID), error),
        );
        return;
    }
    match message {
        ClientMessage::Hello(_) => unreachable!("answered above"),
        ClientMessage::SessionOpen(open) => session_open::open(server, connection, open).await,
        ClientMessage::Transact(request) => match session_of(connection, &request.header) {
            Ok(session) => transact::transact(server, connection, session, request).await,
            Err(error) => refuse(connection, &request.header.request_id, error),
        },
        ClientMessage::GraphQuery(request) => {
            let header = request.header.clone();
            read(server, connection, &header, async |session| {
                graph_query::graph_query(server, session, &request).await
            })
            .await;
        }
        ClientMessage::EntityIdList(request) => {
            let header = request.header.clone();
            read(server, connection, &header, async |session| {
                entity_ids::list(server, session, &request).await
            })
            .await;
        }
        ClientMessage::EntityIdExists(request) => {
            let header = request.header.clone();
            read(server, connection, &header, async |session| {
                entity_ids::exists(server, session, &request).await
            })
            .await;
        }
        ClientMessage::SqliteQuery(request) => {
            let header = request.header.clone();
            read(server, connection, &header, async |session| {
                sqlite_requests::query(server, session, &request).await
            })
            .await;
        }
        ClientMessage::SqliteRegisterDiskSource(request) => {
            let header = request.header.clone();
            read(server, connection, &header, async |session| {
                sqlite_requests::register_disk_source(server, session, &request).await
            })
            .await;
        }
        ClientMessage::WatchSet(request) => match paced_session(server, connection, &request.header).await {
            Ok(session) => watch_requests::set(server, connection, session, request).await,
            Err(error) => refuse(connection, &request.header.request_id, error),
        },
        ClientMessage::WatchAdd(request) => match paced_session(server, connection, &request.header).await {
            Ok(session) => watch_requests::add(server, connection, session, request).await,
            Err(error) => refuse(connection, &request.header.request_id, error),
        },
        ClientMessage::Ack(request) => {
            let header = request.header.clone();
            answer(server, connection, &header, async |session| {
                acknowledge(connection, session, &request).await
            })
            .await;
        }
    }
}

/// A session handle of a request, with the names it came by.
#[derive(Clone)]
pub(crate) struct Requester {
    pub(crate) header: RequestHeader,
    pub(crate) open: OpenSession,
}

fn session_of(connection: &Connection, header: &RequestHeader) -> Result<Requester, WireError> {
    connection
        .session(&header.space, &header.session_id)
        .map(|open| Requester {
            header: header.clone(),
            open,
        })
        .ok_or_else(|| WireError::session("Session is not open on this connection"))
}

/// The session of a read request, once its principal may read again.
async fn paced_session(
    server: &Server,
    connection: &Connection,
    header: &RequestHeader,
) -> Result<Requester, WireError> {
    let requester = session_of(connection, header)?;
    let principal = requester
        .open
        .space
        .registry
        .lock()
        .by_id(&header.session_id)
        .and_then(|session| session.principal.clone());
    server
        .pace(connection, Metered::Query, principal.as_ref())
        .await
        .map_err(TooFast::to_wire)?;
    Ok(requester)
}

/// Runs a read request, at the rate of its principal.
async fn read(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    header: &RequestHeader,
    work: impl AsyncFnOnce(&Requester) -> Result<Answer, WireError>,
) {
    match paced_session(server, connection, header).await {
        Ok(requester) => {
            let result = work(&requester).await;
            respond(server, connection, &requester, result);
        }
        Err(error) => refuse(connection, &header.request_id, error),
    }
}

/// Runs a request whose answer the loss of the session replaces (SRV-403).
async fn answer(
    server: &Arc<Server>,
    connection: &Arc<Connection>,
    header: &RequestHeader,
    work: impl AsyncFnOnce(&Requester) -> Result<Answer, WireError>,
) {
    let requester = match session_of(connection, header) {
        Ok(requester) => requester,
        Err(error) => return refuse(connection, &header.request_id, error),
    };
    let result = work(&requester).await;
    respond(server, connection, &requester, result);
}

impl Server {
    /// Session and capability checks of a read request (SRV-402, SRV-405).
    pub(crate) async fn require_capability(
        &self,
        requester: &Requester,
        needed: Capability,
    ) -> Result<(), WireError> {
        self.require_current(requester)?;
        if !self.config().acl.mode.is_active() {
            return Ok(());
        }
        let space = &requester.open.space;
        let state = space
            .access
            .state(space)
            .await
            .map_err(|error| error.to_wire(space.server_seq()))?;
        let principal = {
            let registry = space.registry.lock();
            let (_, session) = registry
                .current(&requester.header.session_id, requester.open.incarnation)
                .ok_or_else(|| WireError::session("Unknown session for space"))?;
            // A delegated binding speaks for reads only (SRV-319).
            match needed {
                Capability::Read => session.reader().cloned(),
                Capability::Write | Capability::Owner => session.principal.clone(),
            }
        };
        acl::require(self, space.id(), &state, principal.as_ref(), needed)
    }

    /// The request's session is still the one it was sent for.
    pub(crate) fn require_current(&self, requester: &Requester) -> Result<(), WireError> {
        let registry = requester.open.space.registry.lock();
        registry
            .current(&requester.header.session_id, requester.open.incarnation)
            .map(|_| ())
            .ok_or_else(|| WireError::session("Unknown session for space"))
    }
}

/// Sends a request's one answer, unless access was lost meanwhile (SRV-403).
pub(crate) fn respond(
    server: &Server,
    connection: &Connection,
    requester: &Requester,
    mut result: Result<Answer, WireError>,
) {
    let header = &requester.header;
    let mut delivered = result.as_mut().ok().and_then(Answer::take_record);
    // Written before the question is asked, because nobody can take the session away until it is queued.
    let text = result.and_then(|answer| answer.into_text(&header.request_id));
    let queue = || match (text, delivered.take()) {
        (Ok(text), None) => {
            connection.outbound.push_answer(text);
            None
        }
        (Ok(text), Some(delivered)) => connection
            .outbound
            .push_recorded(text, delivered)
            .err()
            .map(|Refused(delivered)| delivered),
        (Err(error), delivered) => {
            refuse(connection, &header.request_id, error);
            delivered
        }
    };
    let queued = if server.config().acl.mode.is_active() {
        let incarnation = requester.open.incarnation;
        connection.while_holding(&header.space, &header.session_id, incarnation, queue)
    } else {
        Some(queue())
    };
    let unsent = queued.unwrap_or_else(|| {
        refuse(connection, &header.request_id, revoked_in_flight());
        delivered
    });
    if let Some(delivered) = unsent {
        let mut registry = requester.open.space.registry.lock();
        registry.roll_back(&delivered, Loss::Unsent);
    }
}

/// What takes the place of an answer whose session has lost its access (SRV-403).
pub(crate) fn revoked_in_flight() -> WireError {
    WireError::session_revoked("Session was revoked while the request was in flight")
}

/// Sends an error answer.
pub(crate) fn refuse(connection: &Connection, request_id: &RequestId, error: WireError) {
    tracing::debug!(connection = %connection.id, request = %request_id, name = %error.name, "request refused");
    send(connection, ServerMessage::error(request_id.clone(), error));
}

/// Queues a message; a connection that is ending drops it (SRV-107).
pub(crate) fn send(connection: &Connection, message: ServerMessage) -> bool {
    if let ServerMessage::Response(Response {
        result: Err(error), ..
    }) = &message
    {
        connection.statistics.count_error(error.name);
    }
    queue(connection, message.encode())
}

fn queue(connection: &Connection, text: Result<String, EncodeError>) -> bool {
    match text {
        Ok(text) => connection.outbound.push_answer(text),
        Err(error) => {
            // Answers are built from values that were decoded; only their nesting could fail here.
            tracing::error!(connection = %connection.id, %error, "message cannot be encoded");
            false
        }
    }
}

/// `session.ack` (SRV-315): remembers the position, checks nothing else.
async fn acknowledge(
    connection: &Connection,
    requester: &Requester,
    request: &Ack,
) -> Result<Answer, WireError> {
    let space = &requester.open.space;
    let seen = seen_seq(request.seen_seq);
    {
        let mut registry = space.registry.lock();
        let slot = registry
            .current(&request.header.session_id, requester.open.incarnation)
            .map(|(slot, _)| slot)
            .ok_or_else(|| WireError::session("Unknown session for space"))?;
        registry.update(slot, |session| session.seen_seq = session.seen_seq.max(seen));
    }
    connection.acknowledge(&request.header.space, &request.header.session_id, seen);
    Ok(Answer::Body(
        AckOk {
            server_seq: space.server_seq(),
        }
        .to_value(),
    ))
}

/// A client's position as a seq: any number is accepted, only whole non-negative positions exist.
pub(crate) fn seen_seq(number: f64) -> Seq {
    /// The largest integer a double holds exactly.
    const MAX_SAFE: f64 = 9_007_199_254_740_991.0;
    Seq(if number.is_nan() {
        0
    } else {
        number.clamp(0.0, MAX_SAFE).floor() as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_315_any_number_is_a_position() {
        for (number, seq) in [
            (0.5, 0),
            (-3.0, 0),
            (7.9, 7),
            (f64::NAN, 0),
            (f64::INFINITY, 9_007_199_254_740_991),
            (4.0, 4),
        ] {
            assert_eq!(seen_seq(number), Seq(seq), "{number}");
        }
    }
}
