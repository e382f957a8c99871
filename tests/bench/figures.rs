//! Latency histograms and the table they end in.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

/// Measured durations of one kind, in microseconds.
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    total: Duration,
}

impl Latencies {
    pub(crate) fn new() -> Result<Latencies> {
        Ok(Latencies {
            histogram: Histogram::new_with_bounds(1, 600_000_000, 3)?,
            total: Duration::ZERO,
        })
    }

    pub(crate) fn record(&mut self, took: Duration) -> Result<()> {
        self.total += took;
        Ok(self.histogram.record(u64::try_from(took.as_micros())?.max(1))?)
    }

    pub(crate) fn at(&self, percentile: f64) -> f64 {
        self.histogram.value_at_percentile(percentile) as f64 / 1_000.0
    }
}

/// Rows of the report, in the order they were measured.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn row(&mut self, what: impl Into<String>, figure: impl Into<String>) {
        self.rows.push((what.into(), figure.into()));
    }

    /// A row of a latency distribution.
    pub(crate) fn latencies(&mut self, what: &str, of: &Latencies) {
        self.row(
            what,
            format!(
                "p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms over {}",
                of.at(50.0),
                of.at(99.0),
                of.at(100.0),
                of.histogram.len()
            ),
        );
    }

    /// A ratio against a floor measured in the same run.
    pub(crate) fn ratio(&mut self, what: &str, value: f64, floor: f64) {
        self.row(what, format!("{:.2} ×", value / floor));
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("| what | figure |\n| --- | --- |\n");
        for (what, figure) in &self.rows {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {what} | {figure} |");
        }
        text
    }
}
