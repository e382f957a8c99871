//! How much is logged, by logger and level (SRV §11.1, `logCounts`): a layer of the host's subscriber that counts and
//! keeps no text. The host gives the same counts to its subscriber and to [`crate::ServerConfig`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Loggers named one by one; further ones share the name `(others)`.
const LOGGERS_KEPT: usize = 64;

/// Events of one logger, or of all, by level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct LogLevels {
    /// Errors.
    pub error: u64,
    /// Warnings.
    pub warn: u64,
    /// What an operator may want to read.
    pub info: u64,
    /// What a developer may want to read.
    pub debug: u64,
    /// Everything.
    pub trace: u64,
    /// All of these.
    pub total: u64,
}

impl LogLevels {
    fn add(&mut self, level: Level) {
        let slot = match level {
            Level::ERROR => &mut self.error,
            Level::WARN => &mut self.warn,
            Level::INFO => &mut self.info,
            Level::DEBUG => &mut self.debug,
            Level::TRACE => &mut self.trace,
        };
        *slot += 1;
        self.total += 1;
    }

    pub(crate) fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("error", self.error),
            ("warn", self.warn),
            ("info", self.info),
            ("debug", self.debug),
            ("trace", self.trace),
        ]
    }
}

/// The counts; clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogCounts(Arc<Mutex<BTreeMap<&'static str, LogLevels>>>);

impl LogCounts {
    /// All loggers together.
    pub fn levels(&self) -> LogLevels {
        let mut all = LogLevels::default();
        for levels in self.0.lock().values() {
            all.error += levels.error;
            all.warn += levels.warn;
            all.info += levels.info;
            all.debug += levels.debug;
            all.trace += levels.trace;
            all.total += levels.total;
        }
        all
    }

    /// `{<logger>: {…}, total}`.
    pub(crate) fn report(&self) -> serde_json::Value {
        let mut report: serde_json::Map<String, serde_json::Value> = self
            .0
            .lock()
            .iter()
            .map(|(logger, levels)| ((*logger).to_owned(), serde_json::json!(levels)))
            .collect();
        report.insert("total".into(), self.levels().total.into());
        report.into()
    }
}

impl<S: Subscriber> Layer<S> for LogCounts {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut loggers = self.0.lock();
        let logger = if loggers.len() < LOGGERS_KEPT || loggers.contains_key(metadata.target()) {
            metadata.target()
        } else {
            "(others)"
        };
        loggers.entry(logger).or_default().add(*metadata.level());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn srv_1101_log_events_are_counted_by_logger_and_level() {
        let counts = LogCounts::default();
        let subscriber = tracing_subscriber::registry().with(counts.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "one", "x");
            tracing::warn!(target: "one", "y");
            tracing::error!(target: "two", "z");
        });
        let report = counts.report();
        assert_eq!(report["one"]["warn"], 2);
        assert_eq!(report["two"]["error"], 1);
        assert_eq!(report["total"], 3);
        assert_eq!(counts.levels().warn, 2);
    }
}
