//! The one list of error names that cross the wire (WIRE-766), with what each means to a client, and the one
//! list of socket closes (WIRE-702). Engine and server map their own errors into [`WireError`]; the client
//! classifies what it receives by [`ErrorName`].

use std::fmt;

use crate::value::{Object, Value};

/// What a client does about an error of a given name (WIRE-766, SRV-441).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retriability {
    /// Run again once the session's view covers `retryAfterSeq` and the catch-up marker covers the commit.
    AfterCatchUp,
    /// Bounded retry: the failure may be transient.
    Bounded,
    /// Only with `retriable: true`, and then on a fresh connection; otherwise permanent.
    WhenMarked,
    /// Only by opening a new session.
    NewSession,
    /// The work is already done: counts as delivered.
    Delivered,
    /// Never; the same request can only fail again.
    Never,
}

/// A socket close the protocol names (WIRE-702, SRV-103…106, SRV-706). Clients ignore the code and reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketClose {
    /// The server is going away, or the peer answered no ping.
    GoingAway,
    /// No frame arrived for two keep-alive intervals.
    NoPong,
    /// The first frame was not a parseable client message.
    NotMemoryProtocol,
    /// A binary frame after the first.
    BinaryFrame,
    /// The first frame was binary, or setting the connection up failed.
    SetupFailure,
    /// A frame could not be handled at all.
    ReceiveFailure,
    /// Too much was buffered before setup finished.
    NegotiationBuffer,
    /// An inbound message above the size limit.
    MessageTooLarge,
    /// The peer does not read what it is sent.
    OutboundBuffer,
    /// No hello was accepted within the time for it.
    NoHello,
    /// No session was opened, and others need the place.
    Unused,
    /// What came is no frame of a WebSocket, or not where it may stand.
    BadFrame,
    /// A text frame that is not UTF-8.
    InvalidText,
}

impl SocketClose {
    /// The WebSocket close code.
    pub fn code(self) -> u16 {
        match self {
            SocketClose::GoingAway | SocketClose::NoPong => 1001,
            SocketClose::NotMemoryProtocol | SocketClose::NoHello | SocketClose::BadFrame => 1002,
            SocketClose::BinaryFrame => 1003,
            SocketClose::InvalidText => 1007,
            SocketClose::SetupFailure | SocketClose::ReceiveFailure => 1011,
            SocketClose::NegotiationBuffer | SocketClose::MessageTooLarge => 1009,
            SocketClose::OutboundBuffer | SocketClose::Unused => 1013,
        }
    }

    /// The reason text sent with the code.
    pub fn reason(self) -> &'static str {
        match self {
            SocketClose::GoingAway => "Memory server is going away",
            SocketClose::NoPong => "No response from ping frame.",
            SocketClose::NotMemoryProtocol => "Memory websocket expects memory protocol",
            SocketClose::BinaryFrame => "Memory websocket expects text frames",
            SocketClose::SetupFailure => "Memory websocket setup failure",
            SocketClose::ReceiveFailure => "Memory websocket receive failure",
            SocketClose::NegotiationBuffer => "Memory websocket negotiation buffer exceeded",
            SocketClose::MessageTooLarge => "Memory websocket message too large",
            SocketClose::OutboundBuffer => "Memory websocket outbound buffer exceeded",
            SocketClose::NoHello => "Memory websocket expects a hello",
            SocketClose::Unused => "Memory websocket opened no session",
            SocketClose::BadFrame => "Memory websocket expects well-formed frames",
            SocketClose::InvalidText => "Memory websocket expects UTF-8",
        }
    }
}

/// One row of the list: what a name is called, means and is counted as.
struct Row {
    name: &'static str,
    retriability: Retriability,
    close: Option<SocketClose>,
    metric: &'static str,
}

macro_rules! error_names {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $retry:ident, $close:expr, $metric:literal;)*) => {
        /// A name under which an error crosses the wire. Names are contractual: clients classify by them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorName {
            $(
                $(#[$doc])*
                #[doc = ""]
                #[doc = concat!("On the wire `", $name, "`; for clients [`Retriability::", stringify!($retry), "`]; counted as `", $metric, "`.")]
                $variant,
            )*
        }

        impl ErrorName {
            /// Every name, in the order of the list.
            pub const ALL: &'static [ErrorName] = &[$(ErrorName::$variant,)*];

            const fn row(self) -> Row {
                match self {
                    $(ErrorName::$variant => Row {
                        name: $name, retriability: Retriability::$retry, close: $close, metric: $metric,
                    },)*
                }
            }
        }
    };
}

error_names! {
    /// A read was stale or a pending dependency was rejected; carries `retryAfterSeq`.
    Conflict = "ConflictError", AfterCatchUp, None, "conflict";
    /// A commit precondition failed; carries `precondition`.
    PreconditionFailed = "PreconditionFailedError", Never, None, "precondition_failed";
    /// A folded SQLite write was refused by a row label.
    RowLabelCommit = "RowLabelCommitError", Never, None, "row_label";
    /// A deterministic refusal of the request's shape or content.
    Protocol = "ProtocolError", Never, None, "protocol";
    /// The event is already in the stream: the append counts as delivered.
    EventAppendDuplicate = "EventAppendDuplicateError", Delivered, None, "event_duplicate";
    /// Anything unclassified; clients retry it, so never use it for a refusal that cannot change.
    Transaction = "TransactionError", Bounded, None, "transaction";
    /// Not authenticated or not allowed.
    Authorization = "AuthorizationError", WhenMarked, None, "authorization";
    /// The session was taken over, revoked, or its resume token is old.
    SessionRevoked = "SessionRevokedError", NewSession, None, "session_revoked";
    /// The session is not open here.
    Session = "SessionError", Never, None, "session";
    /// A read request could not be evaluated.
    Query = "QueryError", Never, None, "query";
    /// The space moved on between two pages of a listing.
    SnapshotChanged = "SnapshotChangedError", Never, None, "snapshot_changed";
    /// A SQLite statement failed.
    Sqlite = "SqliteError", Never, None, "sqlite";
    /// A SQLite statement was refused before it ran.
    Guard = "GuardError", Never, None, "sqlite_guard";
    /// The hello named another protocol.
    UnsupportedProtocol = "UnsupportedProtocol", Never, None, "unsupported_protocol";
    /// The principal asks more often than it may; carries `retryAfterMs`. No name of the reference: its clients treat
    /// it as every name outside their list, as a [`ErrorName::Transaction`], and retry.
    RateLimited = "RateLimitedError", Bounded, None, "rate_limited";
    /// The frame is no message; as the first frame of a connection it closes the socket.
    InvalidMessage = "InvalidMessageError", Never, Some(SocketClose::NotMemoryProtocol), "invalid_message";
}

impl ErrorName {
    /// The name as it crosses the wire.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The name spelled `text`, or `None` for a name outside the list.
    pub fn from_name(text: &str) -> Option<ErrorName> {
        ErrorName::ALL.iter().copied().find(|name| name.as_str() == text)
    }

    /// What a client does about it.
    pub fn retriability(self) -> Retriability {
        self.row().retriability
    }

    /// The close that replaces the answer when the error meets the *first* frame of a connection (WIRE-702);
    /// later, every error is answered and the socket stays open.
    pub fn socket_close(self) -> Option<SocketClose> {
        self.row().close
    }

    /// Label value under which metrics count this error.
    pub fn metric_label(self) -> &'static str {
        self.row().metric
    }
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which precondition failed (WIRE-734), as the wire spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailedPrecondition {
    /// The named earlier commit of the session is not stored.
    OriginCommitted,
    /// The entity that had to be absent exists.
    ReceiptExists,
}

impl FailedPrecondition {
    /// The wire text.
    pub fn as_str(self) -> &'static str {
        match self {
            FailedPrecondition::OriginCommitted => "origin-committed",
            FailedPrecondition::ReceiptExists => "receipt-exists",
        }
    }

    /// The precondition spelled `text`.
    pub fn from_name(text: &str) -> Option<FailedPrecondition> {
        [
            FailedPrecondition::OriginCommitted,
            FailedPrecondition::ReceiptExists,
        ]
        .into_iter()
        .find(|precondition| precondition.as_str() == text)
    }
}

/// An error as a response carries it: `{ name, message, precondition?, retryAfterSeq?, retriable?, retryAfterMs? }`;
/// the last is ours, and a client that does not know it loses nothing but the hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct WireError {
    /// The classified name.
    pub name: ErrorName,
    /// Text for people and logs; two texts are contractual (WIRE-766): `stale confirmed read: <id> at seq` and
    /// `pending dependency`.
    pub message: String,
    /// Set on [`ErrorName::PreconditionFailed`] only.
    pub precondition: Option<FailedPrecondition>,
    /// Head seq at the rejection, set on [`ErrorName::Conflict`] only.
    pub retry_after_seq: Option<u64>,
    /// True when a fresh connection may succeed; meaningful on [`ErrorName::Authorization`] only.
    pub retriable: bool,
    /// Milliseconds after which the same request may succeed; set where a rate limit refused it.
    pub retry_after_ms: Option<u64>,
}

impl WireError {
    /// An error without optional fields.
    pub fn new(name: ErrorName, message: impl Into<String>) -> WireError {
        WireError {
            name,
            message: message.into(),
            precondition: None,
            retry_after_seq: None,
            retriable: false,
            retry_after_ms: None,
        }
    }

    /// `ProtocolError`: a refusal no retry can change.
    pub fn protocol(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::Protocol, message)
    }

    /// `TransactionError`: unclassified, possibly transient.
    pub fn transaction(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::Transaction, message)
    }

    /// `QueryError`: a read request could not be evaluated.
    pub fn query(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::Query, message)
    }

    /// `AuthorizationError`, permanent unless [`WireError::retriable`] follows.
    pub fn authorization(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::Authorization, message)
    }

    /// `SessionError`: the session is not open here.
    pub fn session(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::Session, message)
    }

    /// `SessionRevokedError`: the session is gone.
    pub fn session_revoked(message: impl Into<String>) -> WireError {
        WireError::new(ErrorName::SessionRevoked, message)
    }

    /// `ConflictError`, to be retried once the session has seen `retry_after_seq`.
    pub fn conflict(message: impl Into<String>, retry_after_seq: u64) -> WireError {
        WireError {
            retry_after_seq: Some(retry_after_seq),
            ..WireError::new(ErrorName::Conflict, message)
        }
    }

    /// `PreconditionFailedError` naming what failed.
    pub fn precondition_failed(message: impl Into<String>, failed: FailedPrecondition) -> WireError {
        WireError {
            precondition: Some(failed),
            ..WireError::new(ErrorName::PreconditionFailed, message)
        }
    }

    /// The answer to a frame that is no message (WIRE-704).
    pub fn invalid_message() -> WireError {
        WireError::new(ErrorName::InvalidMessage, "Unable to parse memory message")
    }

    /// The same error marked as worth a fresh connection.
    #[must_use]
    pub fn retriable(mut self) -> WireError {
        self.retriable = true;
        self
    }

    /// The same error with the time after which it is worth trying again.
    #[must_use]
    pub fn with_retry_after_ms(mut self, ms: u64) -> WireError {
        self.retry_after_ms = Some(ms);
        self
    }

    /// The `error` member of a response.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("name", self.name.as_str());
        object.insert("message", self.message.as_str());
        if let Some(precondition) = self.precondition {
            object.insert("precondition", precondition.as_str());
        }
        if let Some(seq) = self.retry_after_seq {
            object.insert("retryAfterSeq", seq);
        }
        if self.retriable {
            object.insert("retriable", true);
        }
        if let Some(ms) = self.retry_after_ms {
            object.insert("retryAfterMs", ms);
        }
        Value::Object(object)
    }

    /// Reads the `error` member of a response; `None` when name or message is not a string. A name outside the
    /// list is what WIRE-766 says it is to a client, a `TransactionError`; its text is kept in the message.
    pub fn from_value(value: &Value) -> Option<WireError> {
        let Some(Value::String(name)) = value.member("name") else {
            return None;
        };
        let Some(Value::String(message)) = value.member("message") else {
            return None;
        };
        let (listed, message) = match name.as_str().and_then(ErrorName::from_name) {
            Some(listed) => (listed, message.to_string()),
            None => (ErrorName::Transaction, format!("{name}: {message}")),
        };
        Some(WireError {
            name: listed,
            message,
            precondition: value
                .member("precondition")
                .and_then(Value::as_str)
                .and_then(FailedPrecondition::from_name),
            retry_after_seq: value.member("retryAfterSeq").and_then(Value::as_u64),
            retriable: value.member("retriable").and_then(Value::as_bool) == Some(true),
            retry_after_ms: value.member("retryAfterMs").and_then(Value::as_u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_766_every_name_reads_back_as_itself() {
        for &name in ErrorName::ALL {
            assert_eq!(ErrorName::from_name(name.as_str()), Some(name));
        }
        let labels: std::collections::BTreeSet<_> = ErrorName::ALL.iter().map(|n| n.metric_label()).collect();
        assert_eq!(labels.len(), ErrorName::ALL.len(), "metric labels are distinct");
    }

    #[test]
    fn wire_766_errors_survive_a_round_trip() {
        let errors = [
            WireError::conflict("stale confirmed read: of:a at seq 1 conflicted with seq 2", 2),
            WireError::precondition_failed(
                "origin commit not committed: localSeq 3",
                FailedPrecondition::OriginCommitted,
            ),
            WireError::authorization("memory session.open challenge expired").retriable(),
            WireError::invalid_message(),
            WireError::new(ErrorName::RateLimited, "commit rate exceeded").with_retry_after_ms(250),
        ];
        for error in errors {
            assert_eq!(WireError::from_value(&error.to_value()), Some(error));
        }
    }

    #[test]
    fn wire_766_an_unknown_name_is_unclassified_not_lost() {
        let received = crate::value!({ "name": "FutureError", "message": "later" });
        let error = WireError::from_value(&received).expect("well-formed");
        assert_eq!(error.name, ErrorName::Transaction);
        assert_eq!(error.message, "FutureError: later");
        assert!(WireError::from_value(&crate::value!({ "name": 1, "message": "x" })).is_none());
    }
}
