//! What has been counted so far, read back: for the stats route, for tests that assert which work ran instead of how long it
//! took, and for the embedding host. Part of [`crate::statistics`].

use std::collections::BTreeMap;

use memory_wire::error::{ErrorName, SocketClose};
use serde::Serialize;

use super::Statistics;
use super::outcomes::close_label;
use crate::metrics::Counter;
use crate::rates::{Metered, RateOutcome, RateStats};

/// Outcomes of access decisions that were not plain grants (SRV-804).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AclStats {
    /// Shortfalls that `observe` let pass.
    pub would_deny: u64,
    /// Refusals.
    pub denied: u64,
}

/// Push priority at work (SRV-702). All zero while server execution is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PushStats {
    /// Sessions evaluated first, in passes that had both groups.
    pub prioritized_sessions: u64,
    /// Sessions evaluated after them.
    pub follower_sessions: u64,
    /// Passes that had both groups.
    pub mixed_flushes: u64,
}

/// Work counters, for tests that assert which work ran instead of how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkStats {
    /// Session evaluations by push passes.
    pub evaluations: u64,
    /// Sessions that push passes looked at.
    pub sessions_considered: u64,
    /// Walks of watched graphs that those needed.
    pub refreshes_made: u64,
    /// Walks of equal watch lists that served as well.
    pub refreshes_shared: u64,
    /// Documents encoded for frames.
    pub encoded_documents: u64,
    /// Effect frames queued.
    pub frames_sent: u64,
    /// Sessions skipped because their connection was above high-water (SRV-705).
    pub sessions_skipped: u64,
    /// Connections closed for not reading (SRV-706).
    pub connections_overrun: u64,
}

impl Statistics {
    pub(crate) fn acl(&self) -> AclStats {
        AclStats {
            would_deny: self.metrics.get(Counter::AccessShortfalls, &["would_deny"]),
            denied: self.metrics.get(Counter::AccessShortfalls, &["denied"]),
        }
    }

    pub(crate) fn push(&self) -> PushStats {
        PushStats {
            prioritized_sessions: self.metrics.get(Counter::PushPrioritized, &[]),
            follower_sessions: self.metrics.get(Counter::PushFollowers, &[]),
            mixed_flushes: self.metrics.get(Counter::PushMixed, &[]),
        }
    }

    pub(crate) fn work(&self) -> WorkStats {
        WorkStats {
            evaluations: self.metrics.get(Counter::Evaluations, &[]),
            sessions_considered: self.metrics.get(Counter::Considered, &[]),
            refreshes_made: self.metrics.get(Counter::Refreshes, &["made"]),
            refreshes_shared: self.metrics.get(Counter::Refreshes, &["shared"]),
            encoded_documents: self.metrics.get(Counter::DocumentCache, &["miss"]),
            frames_sent: self.metrics.get(Counter::Effects, &[]),
            sessions_skipped: self.metrics.get(Counter::SessionsSkipped, &[]),
            connections_overrun: self
                .metrics
                .get(Counter::Closes, &[close_label(SocketClose::OutboundBuffer)]),
        }
    }

    /// Requests that met a rate so far.
    pub(crate) fn rates(&self) -> RateStats {
        let count = |what: Metered, outcome: RateOutcome| {
            self.metrics
                .get(Counter::RateLimited, &[what.label(), outcome.label()])
        };
        RateStats {
            commits_refused: count(Metered::Commit, RateOutcome::Refused),
            opens_refused: count(Metered::Open, RateOutcome::Refused),
            queries_refused: count(Metered::Query, RateOutcome::Refused),
            uploads_refused: count(Metered::Upload, RateOutcome::Refused),
            paced: Metered::ALL
                .iter()
                .map(|what| count(*what, RateOutcome::Paced))
                .sum(),
        }
    }

    /// Error answers so far, by name.
    pub(crate) fn errors(&self) -> BTreeMap<&'static str, u64> {
        ErrorName::ALL
            .iter()
            .map(|name| {
                (
                    name.as_str(),
                    self.metrics.get(Counter::Errors, &[name.metric_label()]),
                )
            })
            .collect()
    }

    pub(crate) fn cid_mismatches(&self) -> u64 {
        self.metrics.get(Counter::CidMismatches, &[])
    }
}
