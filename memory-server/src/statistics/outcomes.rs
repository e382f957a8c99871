//! How things end, as the labels of counters tell it. Part of [`crate::statistics`].

use memory_engine::Applied;
use memory_wire::error::{ErrorName, SocketClose};

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// Answered from its record.
    Replayed,
    Refused(ErrorName),
}

impl Verdict {
    pub(crate) fn of(applied: &Applied) -> Verdict {
        if applied.replayed {
            Verdict::Replayed
        } else {
            Verdict::Accepted
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Verdict::Accepted => "accepted",
            Verdict::Replayed => "replayed",
            Verdict::Refused(name) => name.metric_label(),
        }
    }
}

/// What became of a `session.open`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Fresh,
    Resumed,
    /// Resumed from under another connection.
    TakenOver,
    Refused,
}

impl Opening {
    pub(super) fn label(self) -> &'static str {
        match self {
            Opening::Fresh => "fresh",
            Opening::Resumed => "resumed",
            Opening::TakenOver => "taken_over",
            Opening::Refused => "refused",
        }
    }
}

/// Why a session's record went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    Expired,
    /// Too many others waited for a resume.
    Crowded,
    Revoked,
}

impl SessionEnd {
    pub(super) fn label(self) -> &'static str {
        match self {
            SessionEnd::Expired => "expired",
            SessionEnd::Crowded => "crowded",
            SessionEnd::Revoked => "revoked",
        }
    }
}

/// A bound of what one session, or all of one principal, may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldLimit {
    Watches,
    TrackedDocuments,
    /// Of one principal in one space.
    Sessions,
}

impl HoldLimit {
    pub(super) const ALL: &'static [HoldLimit] = &[
        HoldLimit::Watches,
        HoldLimit::TrackedDocuments,
        HoldLimit::Sessions,
    ];

    pub(super) fn label(self) -> &'static str {
        match self {
            HoldLimit::Watches => "watches",
            HoldLimit::TrackedDocuments => "tracked_documents",
            HoldLimit::Sessions => "sessions",
        }
    }
}

/// Where the list of a watch request was evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvaluatedIn {
    Turn,
    Beside,
    /// In the turn after all, because what landed meanwhile was too much each time.
    TurnAtLast,
}

impl EvaluatedIn {
    pub(super) const ALL: &'static [EvaluatedIn] =
        &[EvaluatedIn::Turn, EvaluatedIn::Beside, EvaluatedIn::TurnAtLast];

    pub(super) fn label(self) -> &'static str {
        match self {
            EvaluatedIn::Turn => "turn",
            EvaluatedIn::Beside => "beside",
            EvaluatedIn::TurnAtLast => "turn_at_last",
        }
    }
}

/// Why a TCP connection ended before it asked anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// There are as many connections as there may be.
    Full,
    /// It did not send a request that can be read in time.
    NoRequest,
}

impl TurnedAway {
    pub(super) fn label(self) -> &'static str {
        match self {
            TurnedAway::Full => "full",
            TurnedAway::NoRequest => "no_request",
        }
    }
}

/// Every close the server sends.
pub(super) const SOCKET_CLOSES: &[SocketClose] = &[
    SocketClose::GoingAway,
    SocketClose::NoPong,
    SocketClose::NotMemoryProtocol,
    SocketClose::BinaryFrame,
    SocketClose::SetupFailure,
    SocketClose::ReceiveFailure,
    SocketClose::NegotiationBuffer,
    SocketClose::MessageTooLarge,
    SocketClose::OutboundBuffer,
    SocketClose::NoHello,
    SocketClose::Unused,
    SocketClose::BadFrame,
    SocketClose::InvalidText,
];

pub(super) fn close_label(close: SocketClose) -> &'static str {
    match close {
        SocketClose::GoingAway => "going_away",
        SocketClose::NoPong => "no_pong",
        SocketClose::NotMemoryProtocol => "not_memory_protocol",
        SocketClose::BinaryFrame => "binary_frame",
        SocketClose::SetupFailure => "setup_failure",
        SocketClose::ReceiveFailure => "receive_failure",
        SocketClose::NegotiationBuffer => "negotiation_buffer",
        SocketClose::MessageTooLarge => "message_too_large",
        SocketClose::OutboundBuffer => "outbound_buffer",
        SocketClose::NoHello => "no_hello",
        SocketClose::Unused => "unused",
        SocketClose::BadFrame => "bad_frame",
        SocketClose::InvalidText => "invalid_text",
    }
}
