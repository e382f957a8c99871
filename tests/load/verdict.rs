//! Measured figures beside their bounds.

use std::time::Duration;

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

/// Figures in the order they were measured, and which of them missed a bound.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    missed: Vec<String>,
    headed: bool,
}

impl Verdicts {
    /// A figure without a bound.
    pub(crate) fn figure(&mut self, what: &str, figure: impl std::fmt::Display) {
        self.row(what, &figure.to_string(), "");
    }

    /// A figure with one.
    pub(crate) fn bound(&mut self, what: &str, figure: impl std::fmt::Display, bound: &str, held: bool) {
        let figure = figure.to_string();
        self.row(
            what,
            &figure,
            &format!("{bound}: {}", if held { "held" } else { "MISSED" }),
        );
        if !held {
            self.missed.push(format!("{what}: {figure}, bound {bound}"));
        }
    }

    fn row(&mut self, what: &str, figure: &str, bound: &str) {
        if !std::mem::replace(&mut self.headed, true) {
            println!("| what | figure | bound |\n| --- | --- | --- |");
        }
        println!("| {what} | {figure} | {bound} |");
    }

    /// An error naming every bound that was missed.
    pub(crate) fn finish(self) -> Result<()> {
        ensure!(
            self.missed.is_empty(),
            "bounds missed: {}",
            self.missed.join("; ")
        );
        Ok(())
    }
}

/// Durations of one kind, microseconds.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Result<Latencies> {
        Ok(Latencies(Histogram::new_with_bounds(1, 600_000_000, 3)?))
    }

    pub(crate) fn record(&mut self, took: Duration) -> Result<()> {
        Ok(self.0.record(u64::try_from(took.as_micros())?.max(1))?)
    }

    /// Milliseconds.
    pub(crate) fn at(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1_000.0
    }
}

impl std::fmt::Display for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms over {}",
            self.at(50.0),
            self.at(99.0),
            self.at(100.0),
            self.0.len()
        )
    }
}
