//! Counters and timings of the server (SRV §11): written by every room, read by `/api/health/stats`, tests and the
//! embedding host. Names of keys are the reference's, so that its dashboards read ours.

mod figures;
mod outcomes;
mod report;
mod slow_queries;
mod timings;

use memory_engine::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::time::Duration;

use memory_engine::query::RefreshWork;
use memory_wire::SpaceId;
use memory_wire::commit_meta::CommitClass;
use memory_wire::error::{ErrorName, SocketClose};

use crate::limits::Limits;
use crate::metrics::{Census, Counter, Histogram, Metrics};
use crate::rates::{Metered, RateOutcome};

pub use figures::{AclStats, PushStats, WorkStats};
pub(crate) use outcomes::{EvaluatedIn, HoldLimit, Opening, SessionEnd, TurnedAway, Verdict};
use outcomes::{SOCKET_CLOSES, close_label};
use slow_queries::SlowQueries;
pub use slow_queries::{SlowOperation, SlowQuery};
pub(crate) use timings::Timed;
pub use timings::TimingReport;
use timings::Timings;

/// Everything counted in this process.
#[derive(Debug)]
pub(crate) struct Statistics {
    metrics: Metrics,
    timings: Timings,
    slow: SlowQueries,
    /// Most bytes any connection that has ended had queued at once.
    outbound_peak: AtomicUsize,
}

impl Statistics {
    pub(crate) fn new(limits: &Limits) -> Statistics {
        let statistics = Statistics {
            metrics: Metrics::new(),
            timings: Timings::default(),
            slow: SlowQueries::new(limits),
            outbound_peak: AtomicUsize::new(0),
        };
        statistics.begin_at_zero();
        statistics
    }

    /// Makes every series with a closed label set exist from the start: a counter that appears with its first count hides
    /// that count from whoever computes rates.
    fn begin_at_zero(&self) {
        for counter in Counter::ALL
            .iter()
            .filter(|counter| counter.row().labels.is_empty())
        {
            self.metrics.add(*counter, &[], 0);
        }
        for name in ErrorName::ALL {
            self.metrics.add(Counter::Errors, &[name.metric_label()], 0);
        }
        for close in SOCKET_CLOSES {
            self.metrics.add(Counter::Closes, &[close_label(*close)], 0);
        }
        for outcome in [
            Opening::Fresh,
            Opening::Resumed,
            Opening::TakenOver,
            Opening::Refused,
        ] {
            self.metrics.add(Counter::SessionOpens, &[outcome.label()], 0);
        }
        for cause in [SessionEnd::Expired, SessionEnd::Crowded, SessionEnd::Revoked] {
            self.metrics.add(Counter::SessionEnds, &[cause.label()], 0);
        }
        for outcome in ["denied", "would_deny"] {
            self.metrics.add(Counter::AccessShortfalls, &[outcome], 0);
        }
        for outcome in ["hit", "miss"] {
            self.metrics.add(Counter::DocumentCache, &[outcome], 0);
        }
        for reason in [TurnedAway::Full, TurnedAway::NoRequest] {
            self.metrics.add(Counter::TurnedAway, &[reason.label()], 0);
        }
        for outcome in ["accepted", "refused"] {
            self.metrics.add(Counter::Upgrades, &[outcome], 0);
        }
        self.count_refreshes(RefreshWork::default());
        for what in Metered::ALL {
            for outcome in [RateOutcome::Paced, RateOutcome::Refused] {
                self.metrics
                    .add(Counter::RateLimited, &[what.label(), outcome.label()], 0);
            }
        }
        for limit in HoldLimit::ALL {
            self.metrics.add(Counter::LimitRefusals, &[limit.label()], 0);
        }
        for place in EvaluatedIn::ALL {
            self.metrics.add(Counter::WatchRequests, &[place.label()], 0);
        }
        for class in [CommitClass::Authored, CommitClass::Derived, CommitClass::System] {
            self.metrics
                .add(Counter::Commits, &[class.as_str(), "accepted"], 0);
        }
    }

    /// The metrics as text.
    pub(crate) fn render(&self, census: &Census, serving_loop: Option<&serde_json::Value>) -> String {
        self.metrics.render(census, serving_loop)
    }

    pub(crate) fn time(&self, what: Timed, ms: f64, now: i64) {
        self.metrics.observe(what.histogram(), ms / 1000.0);
        self.timings.add(what, ms, now);
    }

    /// Notes a read that took long (SRV-1102).
    pub(crate) fn note_query(&self, query: SlowQuery) {
        self.slow.note(query);
    }

    /// The frames of a batch are queued, so long after its first change.
    pub(crate) fn note_push_delay(&self, waited: Duration) {
        self.metrics.observe(Histogram::PushDelay, waited.as_secs_f64());
    }

    pub(crate) fn count_denied(&self) {
        self.metrics.count(Counter::AccessShortfalls, &["denied"]);
    }

    pub(crate) fn count_would_deny(&self) {
        self.metrics.count(Counter::AccessShortfalls, &["would_deny"]);
    }

    pub(crate) fn count_split(&self, prioritized: usize, followers: usize) {
        if prioritized > 0 && followers > 0 {
            self.metrics
                .add(Counter::PushPrioritized, &[], prioritized as u64);
            self.metrics.add(Counter::PushFollowers, &[], followers as u64);
            self.metrics.count(Counter::PushMixed, &[]);
        }
    }

    /// An error answer is sent.
    pub(crate) fn count_error(&self, name: ErrorName) {
        self.metrics.count(Counter::Errors, &[name.metric_label()]);
    }

    /// A commit was decided.
    pub(crate) fn count_commit(&self, class: CommitClass, verdict: Verdict) {
        self.metrics
            .count(Counter::Commits, &[class.as_str(), verdict.label()]);
    }

    /// A frame came in over a socket.
    pub(crate) fn count_received(&self, bytes: usize) {
        self.metrics.count(Counter::FramesReceived, &[]);
        self.metrics.add(Counter::ReceivedBytes, &[], bytes as u64);
    }

    /// A frame was written to a socket.
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.metrics.count(Counter::FramesSent, &[]);
        self.metrics.add(Counter::SentBytes, &[], bytes as u64);
    }

    /// A peer that was not let in, or not let finish, before there was a socket.
    pub(crate) fn count_turned_away(&self, reason: TurnedAway) {
        self.metrics.count(Counter::TurnedAway, &[reason.label()]);
    }

    pub(crate) fn count_upgrade(&self, accepted: bool) {
        let outcome = if accepted { "accepted" } else { "refused" };
        self.metrics.count(Counter::Upgrades, &[outcome]);
    }

    pub(crate) fn count_close(&self, close: SocketClose) {
        self.metrics.count(Counter::Closes, &[close_label(close)]);
    }

    pub(crate) fn count_open(&self, opening: Opening) {
        self.metrics.count(Counter::SessionOpens, &[opening.label()]);
    }

    pub(crate) fn count_ends(&self, cause: SessionEnd, n: usize) {
        self.metrics.add(Counter::SessionEnds, &[cause.label()], n as u64);
    }

    pub(crate) fn count_evaluation(&self) {
        self.metrics.count(Counter::Evaluations, &[]);
    }

    pub(crate) fn count_evaluation_failure(&self) {
        self.metrics.count(Counter::EvaluationFailures, &[]);
    }

    pub(crate) fn count_flush_failure(&self) {
        self.metrics.count(Counter::FlushFailures, &[]);
    }

    /// A document was encoded for frames.
    pub(crate) fn count_encoded(&self) {
        self.metrics.count(Counter::DocumentCache, &["miss"]);
    }

    /// A document's text was there already.
    pub(crate) fn count_encoded_hit(&self) {
        self.metrics.count(Counter::DocumentCache, &["hit"]);
    }

    pub(crate) fn count_frame(&self) {
        self.metrics.count(Counter::Effects, &[]);
    }

    pub(crate) fn count_skipped(&self) {
        self.metrics.count(Counter::SessionsSkipped, &[]);
    }

    /// A connection has ended: what it may not have delivered, and the most it had queued.
    pub(crate) fn note_ended_connection(&self, frames_taken_back: usize, peak_bytes: usize) {
        self.metrics
            .add(Counter::FramesTakenBack, &[], frames_taken_back as u64);
        self.outbound_peak.fetch_max(peak_bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_cid_mismatch(&self, space: &SpaceId, id: &str) {
        self.metrics.count(Counter::CidMismatches, &[]);
        tracing::warn!(%space, id, "content-addressed document does not hash to its id");
    }

    /// `route` is the pattern that answered, never the path that was asked for.
    pub(crate) fn count_http(&self, route: &str, status: u16) {
        self.metrics
            .count(Counter::HttpResponses, &[route, status.to_string().as_str()]);
    }

    pub(crate) fn outbound_peak(&self) -> usize {
        self.outbound_peak.load(Ordering::Relaxed)
    }

    /// Sessions a pass looked at.
    pub(crate) fn count_considered(&self, sessions: usize) {
        self.metrics.add(Counter::Considered, &[], sessions as u64);
    }

    /// The walks of a pass.
    pub(crate) fn count_refreshes(&self, work: RefreshWork) {
        self.metrics.add(Counter::Refreshes, &["made"], work.made);
        self.metrics.add(Counter::Refreshes, &["shared"], work.shared);
    }

    /// A request met its principal's rate.
    pub(crate) fn count_rate(&self, what: Metered, outcome: RateOutcome) {
        self.metrics
            .count(Counter::RateLimited, &[what.label(), outcome.label()]);
    }

    /// The list of a watch request was evaluated.
    pub(crate) fn count_watch_request(&self, place: EvaluatedIn) {
        self.metrics.count(Counter::WatchRequests, &[place.label()]);
    }

    /// A request was refused because its session, or its principal, would hold too much.
    pub(crate) fn count_limit(&self, limit: HoldLimit) {
        self.metrics.count(Counter::LimitRefusals, &[limit.label()]);
    }

    pub(crate) fn timings(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, TimingReport>> {
        self.timings.report()
    }

    pub(crate) fn slow_queries(&self) -> Vec<SlowQuery> {
        self.slow.kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_702_split_sizes_count_only_when_both_groups_are_there() {
        let statistics = Statistics::new(&Limits::default());
        statistics.count_split(3, 0);
        statistics.count_split(0, 3);
        assert_eq!(statistics.push(), PushStats::default());
        statistics.count_split(1, 2);
        assert_eq!(
            statistics.push(),
            PushStats {
                prioritized_sessions: 1,
                follower_sessions: 2,
                mixed_flushes: 1
            }
        );
    }
}
