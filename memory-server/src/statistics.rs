//! Counters and timings of the server (SRV §11): written by every room, read by `/api/health/stats`, tests and the
//! embedding host. Names of keys are the reference's, so that its dashboards read ours.

use memory_engine::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};

use memory_engine::sync::Mutex;
use memory_wire::SpaceId;
use serde::Serialize;

use crate::limits::Limits;

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
    timings: Mutex<BTreeMap<Timed, Series>>,
    slow: Mutex<VecDeque<SlowQuery>>,
    slow_threshold_ms: f64,
    slow_ring: usize,
    would_deny: AtomicU64,
    denied: AtomicU64,
    prioritized: AtomicU64,
    followers: AtomicU64,
    mixed: AtomicU64,
    cid_mismatches: AtomicU64,
    /// Sessions evaluated by passes: the work counter that load tests compare with commits.
    evaluations: AtomicU64,
    /// Documents encoded for frames; each revision once.
    encoded_documents: AtomicU64,
    frames_sent: AtomicU64,
    sessions_skipped: AtomicU64,
    connections_overrun: AtomicU64,
}

/// Work counters, for tests that assert which work ran instead of how long it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkStats {
    /// Session evaluations by push passes.
    pub evaluations: u64,
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
        Statistics {
            timings: Mutex::default(),
            slow: Mutex::default(),
            slow_threshold_ms: limits.slow_query_threshold.as_secs_f64() * 1000.0,
            slow_ring: limits.slow_query_ring,
            would_deny: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            prioritized: AtomicU64::new(0),
            followers: AtomicU64::new(0),
            mixed: AtomicU64::new(0),
            cid_mismatches: AtomicU64::new(0),
            evaluations: AtomicU64::new(0),
            encoded_documents: AtomicU64::new(0),
            frames_sent: AtomicU64::new(0),
            sessions_skipped: AtomicU64::new(0),
            connections_overrun: AtomicU64::new(0),
        }
    }

    pub(crate) fn time(&self, what: Timed, ms: f64, now: i64) {
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

    pub(crate) fn count_denied(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_would_deny(&self) {
        self.would_deny.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_split(&self, prioritized: usize, followers: usize) {
        if prioritized > 0 && followers > 0 {
            self.prioritized.fetch_add(prioritized as u64, Ordering::Relaxed);
            self.followers.fetch_add(followers as u64, Ordering::Relaxed);
            self.mixed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_evaluation(&self) {
        self.evaluations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_encoded(&self) {
        self.encoded_documents.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_frame(&self) {
        self.frames_sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_skipped(&self) {
        self.sessions_skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_overrun(&self) {
        self.connections_overrun.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_cid_mismatch(&self, space: &SpaceId, id: &str) {
        self.cid_mismatches.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%space, id, "content-addressed document does not hash to its id");
    }

    pub(crate) fn acl(&self) -> AclStats {
        AclStats {
            would_deny: self.would_deny.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn push(&self) -> PushStats {
        PushStats {
            prioritized_sessions: self.prioritized.load(Ordering::Relaxed),
            follower_sessions: self.followers.load(Ordering::Relaxed),
            mixed_flushes: self.mixed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn work(&self) -> WorkStats {
        WorkStats {
            evaluations: self.evaluations.load(Ordering::Relaxed),
            encoded_documents: self.encoded_documents.load(Ordering::Relaxed),
            frames_sent: self.frames_sent.load(Ordering::Relaxed),
            sessions_skipped: self.sessions_skipped.load(Ordering::Relaxed),
            connections_overrun: self.connections_overrun.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn cid_mismatches(&self) -> u64 {
        self.cid_mismatches.load(Ordering::Relaxed)
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
