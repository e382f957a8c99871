//! The server's metrics in Prometheus' text format: counters and histograms are kept here and fed by `statistics`; gauges
//! are looked up by `census` when somebody asks. One registry a server, nothing global.

mod census;
mod table;

pub(crate) use census::Census;
pub(crate) use table::{Counter, Gauge, Histogram};
pub use table::{MetricKind, MetricRow, table};

use prometheus::proto::{self, LabelPair, MetricFamily, MetricType};
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TEXT_FORMAT, TextEncoder,
};
use table::SERVING_LOOP;

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = TEXT_FORMAT;

/// From a tenth of a millisecond to beyond the longest wait the server allows itself.
const SECONDS: &[f64] = &[
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
];

/// Counters and histograms of one server.
pub(crate) struct Metrics {
    registry: Registry,
    /// In the order of [`Counter::ALL`].
    counters: Vec<CounterFamily>,
    /// In the order of [`Histogram::ALL`].
    histograms: Vec<HistogramVec>,
}

/// The series of one counter. Most that are counted for each frame have a single one, which need not be looked up.
enum CounterFamily {
    Single(IntCounter),
    Labelled(IntCounterVec),
}

impl CounterFamily {
    fn new(row: &MetricRow, registry: &Registry) -> prometheus::Result<CounterFamily> {
        let options = Opts::new(row.name, row.meaning());
        Ok(if row.labels.is_empty() {
            let counter = IntCounter::with_opts(options)?;
            registry.register(Box::new(counter.clone()))?;
            CounterFamily::Single(counter)
        } else {
            let family = IntCounterVec::new(options, row.labels)?;
            registry.register(Box::new(family.clone()))?;
            CounterFamily::Labelled(family)
        })
    }
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        const SOUND: &str = "the rows of the table have valid and distinct names";
        let registry = Registry::new();
        let counters = Counter::ALL
            .iter()
            .map(|counter| CounterFamily::new(counter.row(), &registry).expect(SOUND));
        let counters = counters.collect();
        let histograms = Histogram::ALL.iter().map(|histogram| {
            let row = histogram.row();
            let options = HistogramOpts::new(row.name, row.meaning()).buckets(SECONDS.to_vec());
            let family = HistogramVec::new(options, row.labels).expect(SOUND);
            if row.labels.is_empty() {
                // There from the start, with nothing in it.
                family.with_label_values(&[] as &[&str]);
            }
            registry.register(Box::new(family.clone())).expect(SOUND);
            family
        });
        let histograms = histograms.collect();
        Metrics {
            registry,
            counters,
            histograms,
        }
    }

    /// Adds to a counter. `labels` are the values of the row's labels, in its order.
    pub(crate) fn add(&self, counter: Counter, labels: &[&str], n: u64) {
        match &self.counters[counter as usize] {
            CounterFamily::Single(counter) => counter.inc_by(n),
            CounterFamily::Labelled(family) => family.with_label_values(labels).inc_by(n),
        }
    }

    /// Adds one.
    pub(crate) fn count(&self, counter: Counter, labels: &[&str]) {
        self.add(counter, labels, 1);
    }

    /// What has been counted.
    pub(crate) fn get(&self, counter: Counter, labels: &[&str]) -> u64 {
        match &self.counters[counter as usize] {
            CounterFamily::Single(counter) => counter.get(),
            CounterFamily::Labelled(family) => family.with_label_values(labels).get(),
        }
    }

    pub(crate) fn observe(&self, histogram: Histogram, seconds: f64) {
        self.histograms[histogram as usize]
            .with_label_values(&[] as &[&str])
            .observe(seconds);
    }

    /// Everything as text.
    pub(crate) fn render(&self, census: &Census, serving_loop: Option<&serde_json::Value>) -> String {
        let mut families = self.registry.gather();
        families.extend(Gauge::ALL.iter().filter_map(|gauge| {
            let samples = census.samples(*gauge);
            family(gauge.row(), &samples)
        }));
        if let Some(block) = serving_loop {
            families.extend(SERVING_LOOP.iter().filter_map(|entry| {
                let value = block.pointer(entry.pointer)?.as_f64()?;
                family(&entry.row, &[Sample::plain(value)])
            }));
        }
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            // Only a family without samples is refused, and none is made.
            tracing::error!(%error, "metrics cannot be written");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A value with the values of its row's labels.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    labels: Vec<String>,
    value: f64,
}

impl Sample {
    fn plain(value: f64) -> Sample {
        Sample {
            labels: Vec::new(),
            value,
        }
    }

    fn labelled(labels: &[&str], value: f64) -> Sample {
        Sample {
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            value,
        }
    }
}

/// The family of a row; `None` without samples, which is how an unknown value looks.
fn family(row: &MetricRow, samples: &[Sample]) -> Option<MetricFamily> {
    if samples.is_empty() {
        return None;
    }
    let metrics = samples.iter().map(|sample| {
        let labels = row.labels.iter().zip(&sample.labels).map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value.clone());
            pair
        });
        let mut metric = proto::Metric::from_label(labels.collect());
        if row.kind == MetricKind::Counter {
            let mut counter = proto::Counter::default();
            counter.set_value(sample.value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(sample.value);
            metric.set_gauge(gauge);
        }
        metric
    });
    let mut family = MetricFamily::default();
    family.set_name(row.name.to_owned());
    family.set_help(row.meaning().to_owned());
    family.set_field_type(match row.kind {
        MetricKind::Counter => MetricType::COUNTER,
        MetricKind::Gauge | MetricKind::Histogram => MetricType::GAUGE,
    });
    family.set_metric(metrics.collect());
    Some(family)
}
