//! The stats route's answer (SRV §11.1). Part of [`crate::statistics`].

use serde_json::json;

use crate::log_counts::LogCounts;
use crate::metrics::Census;
use crate::server::Server;

impl Server {
    pub(crate) fn stats_report(&self) -> serde_json::Value {
        let census = Census::take(self);
        let mut report = json!({
            "timestamp": self.config().clock.wall_ms(),
            "serverStart": self.started_at(),
            "logCounts": self
                .config()
                .log_counts
                .as_ref()
                .map_or_else(|| json!({ "total": 0 }), LogCounts::report),
            "timingStats": self.statistics().timings(),
            "slowQueries": self.statistics().slow_queries(),
            "cidMismatches": self.statistics().cid_mismatches(),
            "memory": {
                "connections": census.connections,
                "spaces": census.spaces,
                "sessions": census.attached + census.detached,
                "attachedSessions": census.attached,
                "watches": census.watches,
                "trackedDocuments": census.tracked,
                "pushLagMs": u64::try_from(census.push_lag.as_millis()).unwrap_or(u64::MAX),
                "outboundBytes": census.outbound_bytes,
                "outboundPeakBytes": census.outbound_peak,
                "walBytes": census.wal_bytes,
                "storeBytes": census.store_bytes,
                "errors": self.statistics().errors(),
                "acl": self.statistics().acl(),
                "work": self.statistics().work(),
                "largestSessions": self.largest_sessions(),
            },
        });
        if let Some(block) = self.serving_loop_block() {
            report["servingLoop"] = block;
        }
        report
    }

    /// The sessions that track most (SRV-1205), by space: the route is open to everyone, and a session's id is its own.
    fn largest_sessions(&self) -> serde_json::Value {
        const SHOWN: usize = 10;
        let mut sizes: Vec<(usize, String)> = Vec::new();
        for space in self.open_spaces() {
            let registry = space.registry.lock();
            sizes.extend(
                registry
                    .iter()
                    .map(|(_, session)| (session.tracked.len(), space.id().to_string())),
            );
        }
        sizes.sort_by(|a, b| b.cmp(a));
        sizes
            .into_iter()
            .take(SHOWN)
            .map(|(tracked, space)| json!({ "space": space, "tracked": tracked }))
            .collect()
    }
}
