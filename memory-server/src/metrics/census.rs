//! What stands at this moment: connections, sessions, queues, stores. Taken for each scrape and for the statistics route;
//! costs O(sessions), holds each lock for one space at a time.

use std::time::Duration;

use memory_engine::StoreLocation;

use super::Sample;
use super::table::Gauge;
use crate::log_counts::LogLevels;
use crate::server::Server;
use crate::session::Attachment;

/// One look at the server.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) revision: String,
    pub(crate) started_at_ms: i64,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) connections: usize,
    pub(crate) spaces: usize,
    pub(crate) attached: usize,
    pub(crate) detached: usize,
    pub(crate) owed: usize,
    pub(crate) watches: usize,
    pub(crate) tracked: usize,
    pub(crate) held: usize,
    pub(crate) dirty_spaces: usize,
    pub(crate) push_lag: Duration,
    pub(crate) serving_lag: Duration,
    pub(crate) outbound_bytes: usize,
    pub(crate) outbound_peak: usize,
    pub(crate) writer_backlog: usize,
    pub(crate) wal_bytes: u64,
    pub(crate) wal_largest: u64,
    pub(crate) store_bytes: u64,
    pub(crate) evaluations_shared: u64,
    pub(crate) evaluations_made: u64,
    pub(crate) log_levels: Option<LogLevels>,
}

impl Census {
    /// Looks at everything but the serving lag, which takes reads of the stores.
    pub(crate) fn take(server: &Server) -> Census {
        let mut census = Census {
            revision: server.config().git_sha.clone().unwrap_or_default(),
            started_at_ms: server.started_at(),
            resident_bytes: resident_bytes(),
            log_levels: server.config().log_counts.as_ref().map(|counts| counts.levels()),
            ..Census::default()
        };
        for connection in server.connections() {
            census.connections += 1;
            census.outbound_bytes += connection.outbound.queued_bytes();
            census.outbound_peak = census.outbound_peak.max(connection.outbound.peak_bytes());
        }
        census.outbound_peak = census.outbound_peak.max(server.statistics().outbound_peak());
        for space in server.open_spaces() {
            census.spaces += 1;
            {
                let registry = space.registry.lock();
                census.owed += registry.owed().count();
                for (_, session) in registry.iter() {
                    match session.attachment {
                        Attachment::Attached { .. } => census.attached += 1,
                        Attachment::Detached { .. } => census.detached += 1,
                    }
                    census.watches += session.effective.len();
                    census.tracked += session.tracked.len();
                    // A pass that holds the view is not waited for.
                    census.held += session.view.try_lock().map_or(0, |view| view.entities.len());
                }
            }
            if let Some(age) = space.unsettled_for() {
                census.dirty_spaces += 1;
                census.push_lag = census.push_lag.max(age);
            }
            census.writer_backlog += space.engine().backlog();
            let (shared, made) = space.evaluations.counts();
            census.evaluations_shared += shared;
            census.evaluations_made += made;
            if let StoreLocation::File(path) = space.engine().location() {
                let mut log = path.clone().into_os_string();
                log.push("-wal");
                let wal = file_bytes(std::path::Path::new(&log));
                census.wal_bytes += wal;
                census.wal_largest = census.wal_largest.max(wal);
                census.store_bytes += file_bytes(path);
            }
        }
        census
    }

    /// The samples of a gauge; none where its value is not known.
    pub(crate) fn samples(&self, gauge: Gauge) -> Vec<Sample> {
        let plain = |value: f64| vec![Sample::plain(value)];
        match gauge {
            Gauge::BuildInfo => vec![Sample::labelled(
                &[env!("CARGO_PKG_VERSION"), &self.revision],
                1.0,
            )],
            Gauge::StartTime => plain(self.started_at_ms as f64 / 1000.0),
            Gauge::ResidentMemory => self
                .resident_bytes
                .map_or_else(Vec::new, |bytes| plain(bytes as f64)),
            Gauge::Connections => plain(self.connections as f64),
            Gauge::Spaces => plain(self.spaces as f64),
            Gauge::Sessions => vec![
                Sample::labelled(&["attached"], self.attached as f64),
                Sample::labelled(&["detached"], self.detached as f64),
            ],
            Gauge::SessionsOwed => plain(self.owed as f64),
            Gauge::Watches => plain(self.watches as f64),
            Gauge::Tracked => plain(self.tracked as f64),
            Gauge::Held => plain(self.held as f64),
            Gauge::DirtySpaces => plain(self.dirty_spaces as f64),
            Gauge::PushLag => plain(self.push_lag.as_secs_f64()),
            Gauge::ServingLag => plain(self.serving_lag.as_secs_f64()),
            Gauge::OutboundBytes => plain(self.outbound_bytes as f64),
            Gauge::OutboundPeak => plain(self.outbound_peak as f64),
            Gauge::WriterBacklog => plain(self.writer_backlog as f64),
            Gauge::WalBytes => plain(self.wal_bytes as f64),
            Gauge::WalLargest => plain(self.wal_largest as f64),
            Gauge::StoreBytes => plain(self.store_bytes as f64),
            Gauge::SharedEvaluations => vec![
                Sample::labelled(&["shared"], self.evaluations_shared as f64),
                Sample::labelled(&["made"], self.evaluations_made as f64),
            ],
            Gauge::LogEvents => self.log_levels.map_or_else(Vec::new, |levels| {
                levels
                    .named()
                    .map(|(level, count)| Sample::labelled(&[level], count as f64))
                    .to_vec()
            }),
        }
    }
}

fn file_bytes(path: &std::path::Path) -> u64 {
    // A store nobody has written yet has no file.
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Resident memory as the kernel tells it, in kibibytes after `VmRSS:`.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
