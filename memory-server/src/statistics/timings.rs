//! How long things took (SRV-1101): what is timed, and each timing as the stats route shows it. Part of
//! [`crate::statistics`].

use std::collections::{BTreeMap, VecDeque};

use memory_engine::sync::Mutex;
use serde::Serialize;

use crate::metrics::Histogram;

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
    pub(super) fn histogram(self) -> Histogram {
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

/// All timings.
#[derive(Debug, Default)]
pub(super) struct Timings(Mutex<BTreeMap<Timed, Series>>);

impl Timings {
    pub(super) fn add(&self, what: Timed, ms: f64, now: i64) {
        self.0.lock().entry(what).or_default().add(ms, now);
    }

    /// Grouped by the first segment of their path (SRV-1101).
    pub(super) fn report(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, TimingReport>> {
        let mut groups: BTreeMap<&'static str, BTreeMap<&'static str, TimingReport>> = BTreeMap::new();
        for (what, series) in &*self.0.lock() {
            let path = what.path();
            let group = path.split_once('/').map_or(path, |(group, _)| group);
            groups.entry(group).or_default().insert(path, series.report());
        }
        groups
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_1101_timings_are_grouped_and_ordered() {
        let timings = Timings::default();
        for ms in [1.0, 2.0, 3.0] {
            timings.add(Timed::FlushRefresh, ms, 7);
        }
        let report = &timings.report()["memory"]["memory/flush/refresh"];
        assert_eq!(
            (report.count, report.min, report.max, report.p50),
            (3, 1.0, 3.0, 2.0)
        );
        assert_eq!(report.cdf.last().map(|point| point.x), Some(3.0));
    }
}
