//! Counters and timings of the server (SRV §11): written by every room, read by `/api/health/stats`, tests and the
//! embedding host. Names of keys are the reference's, so that its dashboards read ours.

use memory_engine::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use memory_engine::Applied;
use memory_engine::query::RefreshWork;
use memory_engine::sync::Mutex;
use memory_wire::SpaceId;
use memory_wire::commit_meta::CommitClass;
use memory_wire::error::{ErrorName, SocketClose};
use serde::Serialize;

use crate::limits::Limits;
use crate::metrics::{Census, Counter, Histogram, Metrics};
use crate::rates::{Metered, RateOutcome, RateStats};

/// What is timed (SRV-1101).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timed {
    /// Wait of a frame behind earlier frames of its connection.
    FrameQueue,
    /// A frame's own work.
    FrameHandle,
    /// Flush requested until started.
    FlushQueue,
    /// One whole pass, evaluation and sending.
    FlushRefresh,
}

impl Timed {
    fn histogram(self) -> Histogram {
        match self {
            Timed::FrameQueue => Histogram::FrameQueue,
            Timed::FrameHandle => Histogram::FrameHandle,
            Timed::FlushQueue => Histogram::FlushQueue,
            Timed::FlushRefresh => Histogram::FlushRefresh,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Timed::FrameQueue => "memory/frame/queue",
            Timed::FrameHandle => "memory/frame/handle",
            Timed::FlushQueue => "memory/flush/queue",
            Timed::FlushRefresh => "memory/flush/refresh",
        }
    }
}

/// Samples kept for the percentiles of one timing.
const SAMPLES: usize = 1024;

#[derive(Debug, Default)]
struct Series {
    count: u64,
    total: f64,
    min: f64,
    max: f64,
    last: f64,
    last_timestamp: i64,
    /// The newest `SAMPLES` durations, for percentiles.
    samples: VecDeque<f64>,
}

/// One timing as the stats route shows it; milliseconds.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimingReport {
    count: u64,
    min: f64,
    max: f64,
    total_time: f64,
    average: f64,
    count_since_baseline: u64,
    total_time_since_baseline: f64,
    average_since_baseline: f64,
    p50: f64,
    p95: f64,
    last_time: f64,
    last_timestamp: i64,
    cdf: Vec<CdfPoint>,
    cdf_since_baseline: Option<Vec<CdfPoint>>,
}

/// One point of a cumulative distribution.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CdfPoint {
    x: f64,
    y: f64,
}

impl Series {
    fn add(&mut self, ms: f64, now: i64) {
        self.min = if self.count == 0 { ms } else { self.min.min(ms) };
        self.max = self.max.max(ms);
        self.count += 1;
        self.total += ms;
        self.last = ms;
        self.last_timestamp = now;
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(ms);
    }

    fn report(&self) -> TimingReport {
        let mut sorted: Vec<f64> = self.samples.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |q: f64| match sorted.len() {
            0 => 0.0,
            n => sorted[((n - 1) as f64 * q).round() as usize],
        };
        let average = if self.count == 0 {
            0.0
        } else {
            self.total / self.count as f64
        };
        let cdf = (1..=20)
            .map(|step| f64::from(step) / 20.0)
            .filter(|_| !sorted.is_empty())
            .map(|q| CdfPoint { x: at(q), y: q })
            .collect();
        TimingReport {
            count: self.count,
            min: self.min,
            max: self.max,
            total_time: self.total,
            average,
            count_since_baseline: self.count,
            total_time_since_baseline: self.total,
            average_since_baseline: average,
            p50: at(0.5),
            p95: at(0.95),
            last_time: self.last,
            last_timestamp: self.last_timestamp,
            cdf,
            cdf_since_baseline: None,
        }
    }
}

/// Read operations that enter the slow-query ring (SRV-1102).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SlowOperation {
    /// A one-off query.
    #[serde(rename = "graph.query")]
    GraphQuery,
    /// A replaced watch list.
    #[serde(rename = "session.watch.set")]
    WatchSet,
    /// Added watches.
    #[serde(rename = "session.watch.add")]
    WatchAdd,
    /// A session's evaluation in a push pass.
    #[serde(rename = "session.watch.refresh")]
    WatchRefresh,
}

/// One slow request.
#[derive(Debug, Clone, Serialize)]
pub struct SlowQuery {
    /// Wall clock, milliseconds.
    pub timestamp: i64,
    /// Milliseconds it took.
    pub elapsed: f64,
    /// What it was.
    pub operation: SlowOperation,
    /// Where.
    pub space: String,
    /// Roots of a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roots: Option<usize>,
    /// Watches of a watch request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watches: Option<usize>,
}

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

    fn label(self) -> &'static str {
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
    fn label(self) -> &'static str {
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
    Revoked,
}

impl SessionEnd {
    fn label(self) -> &'static str {
        match self {
            SessionEnd::Expired => "expired",
            SessionEnd::Revoked => "revoked",
        }
    }
}

/// A bound of what one session may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionLimit {
    Watches,
    TrackedDocuments,
}

impl SessionLimit {
    fn label(self) -> &'static str {
        match self {
            SessionLimit::Watches => "watches",
            SessionLimit::TrackedDocuments => "tracked_documents",
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
    fn label(self) -> &'static str {
        match self {
            TurnedAway::Full => "full",
            TurnedAway::NoRequest => "no_request",
        }
    }
}

/// Every close the server sends.
const SOCKET_CLOSES: &[SocketClose] = &[
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
];

fn close_label(close: SocketClose) -> &'static str {
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
    }
}

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

/// Everything counted in this process.
#[derive(Debug)]
pub(crate) struct Statistics {
    metrics: Metrics,
    timings: Mutex<BTreeMap<Timed, Series>>,
    slow: Mutex<VecDeque<SlowQuery>>,
    slow_threshold_ms: f64,
    slow_ring: usize,
    /// Most bytes any connection that has ended had queued at once.
    outbound_peak: AtomicUsize,
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
    pub(crate) fn new(limits: &Limits) -> Statistics {
        let statistics = Statistics {
            metrics: Metrics::new(),
            timings: Mutex::default(),
            slow: Mutex::default(),
            slow_threshold_ms: limits.slow_query_threshold.as_secs_f64() * 1000.0,
            slow_ring: limits.slow_query_ring,
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
        for cause in [SessionEnd::Expired, SessionEnd::Revoked] {
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
        for limit in [SessionLimit::Watches, SessionLimit::TrackedDocuments] {
            self.metrics.add(Counter::LimitRefusals, &[limit.label()], 0);
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
        self.timings.lock().entry(what).or_default().add(ms, now);
    }

    /// Notes a read that took long (SRV-1102).
    pub(crate) fn note_query(&self, query: SlowQuery) {
        if query.elapsed <= self.slow_threshold_ms {
            return;
        }
        let mut ring = self.slow.lock();
        if ring.len() == self.slow_ring {
            ring.pop_front();
        }
        ring.push_back(query);
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
            paced: Metered::ALL
                .iter()
                .map(|what| count(*what, RateOutcome::Paced))
                .sum(),
        }
    }

    /// A request was refused because its session would hold too much.
    pub(crate) fn count_limit(&self, limit: SessionLimit) {
        self.metrics.count(Counter::LimitRefusals, &[limit.label()]);
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

    /// Timings grouped by the first segment of their path (SRV-1101).
    pub(crate) fn timings(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, TimingReport>> {
        let mut groups: BTreeMap<&'static str, BTreeMap<&'static str, TimingReport>> = BTreeMap::new();
        for (what, series) in &*self.timings.lock() {
            let path = what.path();
            let group = path.split_once('/').map_or(path, |(group, _)| group);
            groups.entry(group).or_default().insert(path, series.report());
        }
        groups
    }

    pub(crate) fn slow_queries(&self) -> Vec<SlowQuery> {
        self.slow.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_1102_the_ring_keeps_the_newest_slow_queries() {
        let limits = Limits {
            slow_query_ring: 2,
            ..Limits::default()
        };
        let statistics = Statistics::new(&limits);
        for elapsed in [100.0, 101.0, 102.0, 103.0] {
            statistics.note_query(SlowQuery {
                timestamp: 0,
                elapsed,
                operation: SlowOperation::GraphQuery,
                space: "did:key:z".into(),
                roots: Some(1),
                watches: None,
            });
        }
        let kept: Vec<f64> = statistics
            .slow_queries()
            .iter()
            .map(|query| query.elapsed)
            .collect();
        assert_eq!(kept, [102.0, 103.0]);
    }

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

    #[test]
    fn srv_1101_timings_are_grouped_and_ordered() {
        let statistics = Statistics::new(&Limits::default());
        for ms in [1.0, 2.0, 3.0] {
            statistics.time(Timed::FlushRefresh, ms, 7);
        }
        let report = &statistics.timings()["memory"]["memory/flush/refresh"];
        assert_eq!(
            (report.count, report.min, report.max, report.p50),
            (3, 1.0, 3.0, 2.0)
        );
        assert_eq!(report.cdf.last().map(|point| point.x), Some(3.0));
    }
}
