//! Every metric of the server, once: name, kind, labels and meaning. `GET /metrics` describes itself from these rows, and
//! `docs/operate.md` and the dashboard are tested against them. A counter or histogram is fed by `statistics`, a gauge by
//! `census`, a row of the serving loop by the host's report; a row nobody feeds does not compile or fails its test.

use std::fmt;

/// How a metric's value moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the process lives.
    Counter,
    /// The value of the moment.
    Gauge,
    /// Observations in buckets, with their sum and number.
    Histogram,
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        })
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricRow {
    /// As it is scraped. Ends in its unit: `_seconds`, `_bytes`, or nothing for plain numbers; counters add `_total`.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// Its labels; values come from closed sets, never from a peer.
    pub labels: &'static [&'static str],
    /// What it means, as the documentation of its row says it.
    meaning: &'static str,
}

impl MetricRow {
    /// One sentence for the person who looks at it.
    pub fn meaning(&self) -> &'static str {
        self.meaning.trim_start()
    }
}

macro_rules! rows {
    ($(#[$doc:meta])* $kind:ident: $($(#[doc = $meaning:literal])+ $variant:ident = $name:literal [$($label:literal),*];)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $kind {
            $($(#[doc = $meaning])+ $variant,)*
        }

        impl $kind {
            pub(crate) const ALL: &'static [$kind] = &[$($kind::$variant,)*];

            pub(crate) const fn row(self) -> &'static MetricRow {
                match self {
                    $($kind::$variant => &MetricRow {
                        name: $name,
                        kind: MetricKind::$kind,
                        labels: &[$($label),*],
                        meaning: concat!($($meaning),+),
                    },)*
                }
            }
        }
    };
}

rows! {
    /// What only grows.
    Counter:
    /// Commits that reached a decision, by class (authored, derived, system) and verdict: accepted, replayed, or the label of the error.
    Commits = "memory_commits_total" ["class", "verdict"];
    /// Error answers sent, by the error's label.
    Errors = "memory_errors_total" ["name"];
    /// Text frames received over sockets.
    FramesReceived = "memory_frames_received_total" [];
    /// Bytes of those frames.
    ReceivedBytes = "memory_received_bytes_total" [];
    /// Text frames written to sockets.
    FramesSent = "memory_frames_sent_total" [];
    /// Bytes of those frames.
    SentBytes = "memory_sent_bytes_total" [];
    /// Sync frames queued by push passes, loopback sessions included.
    Effects = "memory_effects_total" [];
    /// Socket upgrades, by outcome: accepted, or refused because the server is ending.
    Upgrades = "memory_upgrades_total" ["outcome"];
    /// TCP connections turned away before a request, by reason: full, or no_request within the time for it.
    TurnedAway = "memory_turned_away_total" ["reason"];
    /// Sockets the server closed, by reason.
    Closes = "memory_socket_closes_total" ["reason"];
    /// Session opens, by outcome: fresh, resumed, taken_over, refused.
    SessionOpens = "memory_session_opens_total" ["outcome"];
    /// Sessions that ended, by cause: expired after their connection, crowded out meanwhile, or revoked by a change of access.
    SessionEnds = "memory_session_ends_total" ["cause"];
    /// Access decisions that were no plain grant: denied, or would_deny in observe mode.
    AccessShortfalls = "memory_access_shortfalls_total" ["outcome"];
    /// Session evaluations by push passes.
    Evaluations = "memory_evaluations_total" [];
    /// Sessions that push passes looked at because something they track changed or they are owed something.
    Considered = "memory_sessions_considered_total" [];
    /// Refreshes of watched graphs in push passes, by outcome: made by a walk, or shared with an equal watch list.
    Refreshes = "memory_watch_refreshes_total" ["outcome"];
    /// Watch requests evaluated, by place: in the turn of their space, beside it because they read much, or in the turn at last because the space did not rest.
    WatchRequests = "memory_watch_requests_total" ["place"];
    /// Sessions whose evaluation failed in a push pass; each is evaluated in full next time.
    EvaluationFailures = "memory_evaluation_failures_total" [];
    /// Push passes that failed as a whole and were put back.
    FlushFailures = "memory_flush_failures_total" [];
    /// Look-ups of a document's wire text, by outcome: hit, or miss, which encodes it.
    DocumentCache = "memory_document_cache_total" ["outcome"];
    /// Sessions skipped by a pass because their connection was above its high-water mark.
    SessionsSkipped = "memory_sessions_skipped_total" [];
    /// Frames taken back because their connection ended before they left or were confirmed.
    FramesTakenBack = "memory_frames_taken_back_total" [];
    /// Content-addressed documents accepted whose content does not hash to their id.
    CidMismatches = "memory_cid_mismatches_total" [];
    /// Sessions evaluated first in passes that had both groups of the push order.
    PushPrioritized = "memory_push_prioritized_total" [];
    /// Sessions evaluated after them.
    PushFollowers = "memory_push_followers_total" [];
    /// Passes that had both groups.
    PushMixed = "memory_push_mixed_passes_total" [];
    /// Requests above the rate of their principal, or of their address, by kind (commit, open, query, upload) and outcome: paced, which waited and went on, or refused.
    RateLimited = "memory_rate_limited_total" ["kind", "outcome"];
    /// Requests refused because a session, or a principal, would hold too much, by limit: watches, tracked_documents, sessions.
    LimitRefusals = "memory_limit_refusals_total" ["limit"];
    /// HTTP answers, by route and status.
    HttpResponses = "memory_http_responses_total" ["route", "status"];
}

rows! {
    /// What is looked up when somebody asks.
    Gauge:
    /// Always 1; its labels say what runs.
    BuildInfo = "memory_build_info" ["version", "revision"];
    /// Unix time of the server's start.
    StartTime = "memory_start_time_seconds" [];
    /// Resident memory of the process; absent where the system does not tell.
    ResidentMemory = "memory_resident_bytes" [];
    /// Connections that are open or ending, loopback included.
    Connections = "memory_connections" [];
    /// Spaces that are open.
    Spaces = "memory_spaces" [];
    /// Sessions, by state: attached to a connection, or detached and waiting to be resumed.
    Sessions = "memory_sessions" ["state"];
    /// Sessions that are owed a catch-up marker or a full evaluation.
    SessionsOwed = "memory_sessions_owed" [];
    /// Watches of all sessions, views that act as watches included.
    Watches = "memory_watches" [];
    /// Instances tracked, summed over sessions.
    Tracked = "memory_tracked_documents" [];
    /// Instances that sessions are believed to hold, summed over sessions.
    Held = "memory_held_documents" [];
    /// Spaces in which something is dirty or on its way out.
    DirtySpaces = "memory_dirty_spaces" [];
    /// Age of the oldest change that no push pass has finished with.
    PushLag = "memory_push_lag_seconds" [];
    /// Age of the oldest authored commit that the derived state of a watched space does not cover; 0 with server execution off.
    ServingLag = "memory_serving_lag_seconds" [];
    /// Bytes queued to all connections.
    OutboundBytes = "memory_outbound_queue_bytes" [];
    /// Most bytes any one connection has had queued at once since the start.
    OutboundPeak = "memory_outbound_queue_peak_bytes" [];
    /// Jobs waiting for the writer threads of the open spaces.
    WriterBacklog = "memory_writer_backlog" [];
    /// Size of the write-ahead logs of the open spaces.
    WalBytes = "memory_wal_bytes" [];
    /// Size of the largest of them.
    WalLargest = "memory_wal_largest_bytes" [];
    /// Size of the stores of the open spaces, without their logs.
    StoreBytes = "memory_store_bytes" [];
    /// Evaluations of open spaces, by outcome: shared with an equal watch list, or made.
    SharedEvaluations = "memory_watch_evaluations" ["outcome"];
    /// Log events since the start, by level; absent where the host counts none.
    LogEvents = "memory_log_events" ["level"];
}

rows! {
    /// What is observed.
    Histogram:
    /// Wait of a frame behind earlier frames of its connection.
    FrameQueue = "memory_frame_queue_seconds" [];
    /// A frame's own work.
    FrameHandle = "memory_frame_handle_seconds" [];
    /// From a flush asked for to its start.
    FlushQueue = "memory_flush_queue_seconds" [];
    /// One push pass over one space, evaluation and queueing.
    FlushRefresh = "memory_flush_refresh_seconds" [];
    /// From the first change of a batch to the end of the pass that queued its frames.
    PushDelay = "memory_push_delay_seconds" [];
}

/// A number of the serving loop's block of `/api/health/stats` (SRV §11.2), shown here as a metric while a host reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServingLoopRow {
    pub(crate) row: MetricRow,
    /// Where it stands in the block.
    pub(crate) pointer: &'static str,
}

macro_rules! serving_loop {
    ($($(#[doc = $meaning:literal])+ $kind:ident $name:literal $pointer:literal;)*) => {
        /// The serving loop's metrics.
        pub(crate) const SERVING_LOOP: &[ServingLoopRow] = &[$(ServingLoopRow {
            row: MetricRow {
                name: $name,
                kind: MetricKind::$kind,
                labels: &[],
                meaning: concat!($($meaning),+),
            },
            pointer: $pointer,
        },)*];
    };
}

serving_loop! {
    /// Spaces with a running serving loop.
    Gauge "serving_loop_active_spaces" "/activeSpaces";
    /// Wave commits.
    Counter "serving_loop_waves_total" "/waves";
    /// Cycles cut by the flush deadline.
    Counter "serving_loop_waves_budget_exhausted_total" "/wavesBudgetExhausted";
    /// Derived writes dropped because a newer write stood there.
    Counter "serving_loop_superseded_writes_total" "/supersededWrites";
    /// Authored commits taken as input.
    Counter "serving_loop_authored_seen_total" "/authoredSeen";
    /// Of those, acknowledgements of effects.
    Counter "serving_loop_effect_acks_total" "/effectAcks";
    /// Derived commits; divided by authored_seen less effect_acks it is the amplification.
    Counter "serving_loop_derived_commits_total" "/derivedCommits";
    /// Largest distance of an active space's watermark behind its head, in commits.
    Gauge "serving_loop_watermark_lag" "/watermarkLag";
    /// Cycles whose watermark an unsettled own write held back.
    Counter "serving_loop_watermark_clamped_total" "/watermarkClamped";
    /// Writes refused for want of a run's stamp; must stay 0.
    Counter "serving_loop_unstamped_seal_refusals_total" "/unstampedSealRefusals";
    /// Loads of demanded roots that failed.
    Counter "serving_loop_structure_load_failures_total" "/structureLoadFailures";
    /// Roots whose loads were deferred too often in a row.
    Counter "serving_loop_structure_load_stuck_total" "/structureLoadStuck";
    /// Activations delayed after a failure.
    Counter "serving_loop_reactivation_backoffs_total" "/reactivationBackoffs";
    /// Runtimes given up at park because disposing took too long.
    Counter "serving_loop_park_dispose_timeouts_total" "/parkDisposeTimeouts";
    /// Writes into other spaces refused.
    Counter "serving_loop_foreign_write_refusals_total" "/foreignWriteRefusals";
    /// Demand rows of the last passes.
    Gauge "serving_loop_demanded_rows" "/demand/demandedRows";
    /// Distinct instances demanded in the last passes.
    Gauge "serving_loop_demanded_instances" "/demand/demandedInstances";
    /// Demand passes.
    Counter "serving_loop_demand_passes_total" "/demand/demandPasses";
    /// Events appended to streams.
    Counter "serving_loop_events_appended_total" "/events/appended";
    /// Events whose consequence landed.
    Counter "serving_loop_events_processed_total" "/events/processed";
    /// Events skipped because their consequence stood already.
    Counter "serving_loop_events_skipped_idempotent_total" "/events/skippedIdempotent";
    /// Effect requests answered from stored results.
    Counter "serving_loop_memo_hits_total" "/memo/hits";
    /// Effect requests admitted.
    Counter "serving_loop_memo_misses_total" "/memo/misses";
    /// Effect requests under way.
    Gauge "serving_loop_memo_inflight" "/memo/inflight";
    /// Outbox entries admitted.
    Counter "serving_loop_outbox_queued_total" "/outbox/queued";
    /// Outbox entries settled.
    Counter "serving_loop_outbox_completed_total" "/outbox/completed";
    /// Outbox entries that failed for want of infrastructure.
    Counter "serving_loop_outbox_failed_total" "/outbox/failed";
    /// Dispatches held back by a budget.
    Counter "serving_loop_outbox_budget_deferrals_total" "/outbox/budgetDeferrals";
    /// Leases held by this process.
    Gauge "serving_loop_leases_held" "/lease/held";
    /// Leases lost.
    Counter "serving_loop_leases_lost_total" "/lease/lost";
}

/// Every metric there is.
pub fn table() -> impl Iterator<Item = &'static MetricRow> {
    let counters = Counter::ALL.iter().map(|counter| counter.row());
    let gauges = Gauge::ALL.iter().map(|gauge| gauge.row());
    let histograms = Histogram::ALL.iter().map(|histogram| histogram.row());
    let serving_loop = SERVING_LOOP.iter().map(|entry| &entry.row);
    counters.chain(gauges).chain(histograms).chain(serving_loop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_tell_kind_and_unit() {
        let mut names: Vec<&str> = table().map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for row in table() {
            assert_eq!(
                row.name.ends_with("_total"),
                row.kind == MetricKind::Counter,
                "{}",
                row.name
            );
            if row.kind == MetricKind::Histogram {
                assert!(row.name.ends_with("_seconds"), "{}", row.name);
            }
            assert!(row.meaning().ends_with('.'), "{}: {}", row.name, row.meaning());
        }
    }
}
