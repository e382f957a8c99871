//! One space's line to its server: hello, signed session open, resume, back-off (WIRE-711…723, WIRE-781).
//!
//! A state machine over a [`Transport`]; the replica feeds it and acts on its events. It keeps nothing that has to
//! survive a reconnect except the session token: what is unanswered is the replica's to send again.

use std::collections::BTreeMap;
use std::rc::Rc;

use memory_wire::auth::sign_session_open;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::ids::MEMORY_PROTOCOL;
use memory_wire::ids::SessionToken;
use memory_wire::message::{
    Ack, ClientMessage, Hello, OpenChallenge, RequestHeader, RevokedReason, ServerMessage, SessionDescriptor,
    SessionOpen, SessionOpenOk, SessionSync, Transact, WatchRequest, parse_server_message,
};
use memory_wire::{LocalSeq, RequestId, Seq, SessionId, SpaceId, Value, WireError};

use crate::transport::{Connector, Transport, TransportEvent, Wake};

/// First reconnect delay (WIRE-781).
const BACKOFF_FIRST_MS: i64 = 25;
/// Longest reconnect delay.
const BACKOFF_LONGEST_MS: i64 = 30_000;

/// Flags this client advertises.
fn client_flags() -> Flags {
    Flags {
        sync_schema_table_v2: true,
        commit_preconditions: true,
        pending_read_stacks: true,
        verdict_catch_up_markers: true,
        ..Flags::default()
    }
}

/// What a request was for; comes back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// A commit.
    Transact(LocalSeq),
    /// A batch of watches, by number.
    Watch(u64),
    /// An acknowledgement.
    Ack,
}

/// What the replica has to act on.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The session stands. `resumed`: the server still knew it, so unanswered commits are sent again; otherwise it
    /// was replaced.
    Opened {
        resumed: bool,
        sync: Option<SessionSync>,
        caught_up: Option<LocalSeq>,
    },
    /// An answer.
    Answer {
        purpose: Purpose,
        result: Result<Value, WireError>,
    },
    /// A pushed frame.
    Frame(SessionSync),
    /// The session is gone for good on this line.
    Revoked(RevokedReason),
    /// The line broke; it comes back by itself. `unanswered` will never be answered.
    Broken { unanswered: Vec<Purpose> },
    /// The server refuses this session; trying again by itself would not help.
    Refused(WireError),
}

enum Phase {
    /// Nothing to do yet.
    Idle,
    /// Hello is sent.
    Greeting,
    /// `session.open` is sent.
    Opening,
    Open,
    /// Back-off.
    Waiting {
        until_ms: i64,
    },
    /// Refused or revoked: wants a new reason to try.
    Refused {
        not_before_ms: i64,
    },
    Closed,
}

pub(crate) struct Connection {
    space: SpaceId,
    signer: Rc<Signer>,
    connector: Rc<dyn Connector>,
    wake: Wake,
    session_id: SessionId,
    acting_as: Option<String>,
    token: Option<SessionToken>,
    seen: Seq,
    /// A session of this line was opened before.
    opened_before: bool,
    phase: Phase,
    transport: Option<Box<dyn Transport>>,
    flags: Flags,
    failures: u32,
    next_request: u64,
    outstanding: BTreeMap<RequestId, Purpose>,
    opening: Option<RequestId>,
}

impl Connection {
    pub(crate) fn new(
        space: SpaceId,
        session_id: SessionId,
        signer: Rc<Signer>,
        connector: Rc<dyn Connector>,
        wake: Wake,
    ) -> Connection {
        Connection {
            space,
            signer,
            connector,
            wake,
            session_id,
            acting_as: None,
            token: None,
            seen: Seq(0),
            opened_before: false,
            phase: Phase::Idle,
            transport: None,
            flags: Flags::default(),
            failures: 0,
            next_request: 1,
            outstanding: BTreeMap::new(),
            opening: None,
        }
    }

    /// Whose reads its sessions make, as the server resolves it (SS-5).
    pub(crate) fn acting_as(self, acting_as: Option<String>) -> Connection {
        Connection { acting_as, ..self }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// What the server can; meaningful while open.
    pub(crate) fn server_flags(&self) -> Flags {
        self.flags
    }

    /// There is something to send: connects if nothing is under way.
    pub(crate) fn want_open(&mut self, now_ms: i64) {
        match self.phase {
            Phase::Idle => self.connect(),
            Phase::Refused { not_before_ms } if now_ms >= not_before_ms => self.connect(),
            Phase::Refused { not_before_ms } => {
                self.phase = Phase::Waiting {
                    until_ms: not_before_ms,
                }
            }
            Phase::Greeting | Phase::Opening | Phase::Open | Phase::Waiting { .. } | Phase::Closed => {}
        }
    }

    /// When [`Connection::poll`] has work without a frame arriving.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        match self.phase {
            Phase::Waiting { until_ms } => Some(until_ms),
            Phase::Idle
            | Phase::Greeting
            | Phase::Opening
            | Phase::Open
            | Phase::Refused { .. }
            | Phase::Closed => None,
        }
    }

    pub(crate) fn close(&mut self) {
        if let Some(mut transport) = self.transport.take() {
            transport.close();
        }
        self.outstanding.clear();
        self.phase = Phase::Closed;
    }

    // --- sending -------------------------------------------------------------------------------------------------

    pub(crate) fn transact(&mut self, local_seq: LocalSeq, commit: Value) {
        self.request(Purpose::Transact(local_seq), |header| {
            ClientMessage::Transact(Transact { header, commit })
        });
    }

    pub(crate) fn watch_set(&mut self, batch: u64, watches: Vec<Value>) {
        self.request(Purpose::Watch(batch), |header| {
            ClientMessage::WatchSet(WatchRequest {
                header,
                watches,
                views: None,
            })
        });
    }

    pub(crate) fn watch_add(&mut self, batch: u64, watches: Vec<Value>) {
        self.request(Purpose::Watch(batch), |header| {
            ClientMessage::WatchAdd(WatchRequest {
                header,
                watches,
                views: None,
            })
        });
    }

    /// Tells the server how far frames were applied; a resume starts there.
    pub(crate) fn ack(&mut self, seen: Seq) {
        if seen > self.seen {
            self.seen = seen;
            if self.is_open() {
                self.request(Purpose::Ack, |header| {
                    ClientMessage::Ack(Ack {
                        header,
                        seen_seq: seen.0 as f64,
                    })
                });
            }
        }
    }

    fn request(&mut self, purpose: Purpose, build: impl FnOnce(RequestHeader) -> ClientMessage) {
        let request_id = self.next_request_id();
        let header = RequestHeader {
            request_id: request_id.clone(),
            space: self.space.clone(),
            session_id: self.session_id.clone(),
        };
        self.outstanding.insert(request_id, purpose);
        self.send(&build(header));
    }

    fn next_request_id(&mut self) -> RequestId {
        let n = self.next_request;
        self.next_request += 1;
        RequestId::from(n.to_string())
    }

    fn send(&mut self, message: &ClientMessage) {
        match message.encode() {
            Ok(frame) => {
                if let Some(transport) = &mut self.transport {
                    transport.send(frame);
                }
            }
            Err(error) => {
                // Values are checked when they are written; what reaches this point can be encoded.
                tracing::error!(space = %self.space, kind = message.type_name(), %error, "message cannot be encoded");
            }
        }
    }

    // --- receiving -----------------------------------------------------------------------------------------------

    /// The next event, if there is one.
    pub(crate) fn poll(&mut self, now_ms: i64) -> Option<ConnectionEvent> {
        if let Phase::Waiting { until_ms } = self.phase
            && now_ms >= until_ms
        {
            self.connect();
        }
        loop {
            let event = self.transport.as_mut()?.poll()?;
            let answer = match event {
                TransportEvent::Closed(reason) => Some(self.broken(&reason, now_ms)),
                TransportEvent::Frame(frame) => self.frame(&frame, now_ms),
            };
            if answer.is_some() {
                return answer;
            }
        }
    }

    fn connect(&mut self) {
        self.transport = Some(self.connector.connect(&self.space, self.wake.clone()));
        self.phase = Phase::Greeting;
        let flags = client_flags();
        self.send(&ClientMessage::Hello(Hello {
            protocol: MEMORY_PROTOCOL.to_owned(),
            flags,
            sent_flags: flags.to_object(),
        }));
    }

    fn frame(&mut self, frame: &str, now_ms: i64) -> Option<ConnectionEvent> {
        let message = match parse_server_message(frame) {
            Ok(message) => message,
            Err(error) => {
                // WIRE-766: whatever was in flight cannot be told apart any more.
                tracing::warn!(space = %self.space, %error, "undecodable server frame");
                return Some(self.broken("undecodable server frame", now_ms));
            }
        };
        match message {
            ServerMessage::HelloOk(hello) => {
                if !matches!(self.phase, Phase::Greeting) {
                    return Some(self.broken("unexpected hello.ok", now_ms));
                }
                self.flags = hello.flags;
                self.open_session(&hello.session_open, now_ms)
            }
            ServerMessage::Response(response) => {
                if self.opening.as_ref() == Some(&response.request_id) {
                    self.opening = None;
                    return Some(self.open_answered(response.result, now_ms));
                }
                if let Some(purpose) = self.outstanding.remove(&response.request_id) {
                    return match (purpose, response.result) {
                        (Purpose::Ack, Err(error)) => {
                            tracing::debug!(space = %self.space, %error, "acknowledgement refused");
                            None
                        }
                        (Purpose::Ack, Ok(_)) => None,
                        (purpose, result) => Some(ConnectionEvent::Answer { purpose, result }),
                    };
                }
                match (&self.phase, response.result) {
                    (Phase::Greeting, Err(error)) => Some(self.refused(error, now_ms)),
                    (_, Err(error)) => {
                        tracing::warn!(space = %self.space, request = %response.request_id, %error, "answer to no request");
                        None
                    }
                    (_, Ok(_)) => None,
                }
            }
            ServerMessage::Effect(effect) if self.is_mine(&effect.space, &effect.session_id) => {
                Some(ConnectionEvent::Frame(effect.sync))
            }
            ServerMessage::Revoked(revoked) if self.is_mine(&revoked.space, &revoked.session_id) => {
                self.token = None;
                self.drop_line(Phase::Refused {
                    not_before_ms: now_ms + BACKOFF_LONGEST_MS,
                });
                Some(ConnectionEvent::Revoked(revoked.reason))
            }
            ServerMessage::Effect(_) | ServerMessage::Revoked(_) => None,
        }
    }

    fn is_mine(&self, space: &SpaceId, session: &SessionId) -> bool {
        *space == self.space && *session == self.session_id
    }

    fn open_session(&mut self, challenge: &OpenChallenge, now_ms: i64) -> Option<ConnectionEvent> {
        let request_id = self.next_request_id();
        let session = SessionDescriptor {
            session_id: Some(self.session_id.clone()),
            seen_seq: Some(self.seen.0 as f64),
            session_token: self.token.clone(),
            acting_as: self.acting_as.clone(),
            ..SessionDescriptor::default()
        };
        let (invocation, authorization) = sign_session_open(
            &self.signer,
            &self.space,
            &challenge.audience,
            &challenge.value,
            &session.to_value(),
            u64::try_from(now_ms / 1000).unwrap_or(0),
        );
        self.opening = Some(request_id.clone());
        self.phase = Phase::Opening;
        self.send(&ClientMessage::SessionOpen(SessionOpen {
            request_id,
            space: self.space.clone(),
            session,
            invocation: Some(invocation),
            authorization: Some(authorization),
        }));
        None
    }

    fn open_answered(&mut self, result: Result<Value, WireError>, now_ms: i64) -> ConnectionEvent {
        let opened = match result {
            Err(error) => return self.open_failed(error, now_ms),
            Ok(body) => SessionOpenOk::from_value(&body),
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => return self.broken(&error.to_string(), now_ms),
        };
        self.session_id = opened.session_id;
        self.token = Some(opened.session_token);
        self.failures = 0;
        self.phase = Phase::Open;
        let first = !std::mem::replace(&mut self.opened_before, true);
        tracing::debug!(space = %self.space, session = %self.session_id, seq = opened.server_seq.0, resumed = opened.resumed, "session open");
        ConnectionEvent::Opened {
            // The first open of a line has nothing to lose: what waits was never sent.
            resumed: opened.resumed || first,
            sync: opened.sync,
            caught_up: opened.caught_up_local_seq,
        }
    }

    /// WIRE-808: after a failed open the challenge may be spent, so every retry is a fresh connection.
    fn open_failed(&mut self, error: WireError, now_ms: i64) -> ConnectionEvent {
        match error.name {
            ErrorName::Authorization if error.retriable => self.broken(&error.message, now_ms),
            // Our token is not the latest one: its answer was lost. The server forgets the session in time.
            ErrorName::SessionRevoked => {
                self.token = None;
                self.broken(&error.message, now_ms)
            }
            _ => self.refused(error, now_ms),
        }
    }

    fn refused(&mut self, error: WireError, now_ms: i64) -> ConnectionEvent {
        self.failures += 1;
        self.drop_line(Phase::Refused {
            not_before_ms: now_ms + self.backoff_ms(),
        });
        ConnectionEvent::Refused(error)
    }

    fn broken(&mut self, reason: &str, now_ms: i64) -> ConnectionEvent {
        self.failures += 1;
        let delay = self.backoff_ms();
        tracing::debug!(space = %self.space, reason, delay_ms = delay, "connection lost");
        let unanswered = std::mem::take(&mut self.outstanding).into_values().collect();
        self.drop_line(Phase::Waiting {
            until_ms: now_ms + delay,
        });
        ConnectionEvent::Broken { unanswered }
    }

    /// Gives the line up and comes back after the back-off.
    pub(crate) fn renew(&mut self, now_ms: i64) -> ConnectionEvent {
        self.broken("renewed", now_ms)
    }

    /// 25 ms, doubling, at most 30 s.
    fn backoff_ms(&self) -> i64 {
        let doublings = self.failures.saturating_sub(1).min(20);
        (BACKOFF_FIRST_MS << doublings).min(BACKOFF_LONGEST_MS)
    }

    fn drop_line(&mut self, phase: Phase) {
        if let Some(mut transport) = self.transport.take() {
            transport.close();
        }
        self.opening = None;
        self.outstanding.clear();
        self.phase = phase;
    }
}
