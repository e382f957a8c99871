//! The `servingLoop` block of `GET /api/health/stats` (SS-1400): one for the process, every key present from the
//! start. Loops add to it under one short lock; tests read these counters and never log text.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;

use memory_wire::{Seq, SpaceId};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Notify;

/// Entries kept of each time series.
const SERIES_KEPT: usize = 4_000;

/// Spaces kept by name; the counts of evicted ones are folded into one number.
const SPACES_KEPT: usize = 256;

/// Shared handle; cloning shares the counters.
#[derive(Clone, Debug, Default)]
pub struct Statistics(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    block: Mutex<ServingLoop>,
    changed: Notify,
}

impl Statistics {
    /// Changes counters under the lock; `change` must be short and must not block.
    pub fn update(&self, change: impl FnOnce(&mut ServingLoop)) {
        change(&mut self.0.block.lock());
        self.0.changed.notify_waiters();
    }

    /// A copy of every counter.
    pub fn snapshot(&self) -> ServingLoop {
        self.0.block.lock().clone()
    }

    /// Resolves when `holds`, which is also asked right away.
    pub async fn until(&self, holds: impl Fn(&ServingLoop) -> bool) {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Registered before the question: a change after it is not missed.
            changed.as_mut().enable();
            if holds(&self.0.block.lock()) {
                return;
            }
            changed.await;
        }
    }
}

/// Every counter of the serving loop. The field names are the JSON keys.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServingLoop {
    /// Servers active now.
    pub active_spaces: u64,
    /// Wave commits.
    pub waves: u64,
    /// Cycles cut by the flush deadline, empty ones included.
    pub waves_budget_exhausted: u64,
    /// Derivation operations dropped because a newer write stood there.
    pub superseded_writes: u64,
    /// Authored records drained.
    pub authored_seen: u64,
    /// Authored records that wrote an effects document.
    pub effect_acks: u64,
    /// Own derived commits: waves, completions, direct.
    pub derived_commits: u64,
    /// The same per space.
    pub derived_commits_by_space: BTreeMap<String, u64>,
    /// Counts of spaces evicted from the table above; rows + dropped = total.
    pub derived_commits_by_space_dropped: u64,
    /// Structure loads that threw.
    pub structure_load_failures: u64,
    /// Structure loads that have to be retried.
    pub structure_load_deferred: u64,
    /// Roots whose loads were deferred too often in a row.
    pub structure_load_stuck: u64,
    /// Roots that are no pieces.
    pub structure_load_terminal: u64,
    /// Terminal roots that a write woke again.
    pub structure_load_rearmed: u64,
    /// Cycles whose watermark a hidden foreign write held back.
    pub watermark_clamped: u64,
    /// Seals of transactions that nobody stamped; nonzero names an undeclared commit path.
    pub unstamped_seal_refusals: u64,
    /// Navigation intents whose seal failed.
    pub served_intent_seal_failures: u64,
    /// Runtimes abandoned at park because disposing took too long.
    pub park_dispose_timeouts: u64,
    /// Activations that waited after a failure.
    pub reactivation_backoffs: u64,
    /// Foreign writes refused at the seal.
    pub foreign_write_refusals: u64,
    /// Foreign stores that could not be opened, once a space and wave.
    pub foreign_engine_failures: u64,
    /// Warm notices issued for landed foreign batches.
    pub warm_requests: u64,
    /// Must read 0: the runner withdraws such runs before they seal.
    pub undemanded_narrowing_runs: u64,
    /// Seals refused because an event went out attributed too broadly.
    pub early_emit_refusals: u64,
    /// Demand arrivals at roots.
    pub demand_arrivals: u64,
    /// Largest distance of an active space's watermark behind its store's head.
    pub watermark_lag: u64,
    /// The distances it is the largest of.
    #[serde(skip)]
    lags: BTreeMap<SpaceId, u64>,
    /// Demand.
    pub demand: Demand,
    /// How long each authored input took to be covered.
    pub settle: Settle,
    /// Advances over own commits at quiescence.
    pub settle_advances: SettleAdvances,
    /// Events.
    pub events: Events,
    /// Memoised effects.
    pub memo: Memo,
    /// Effects and cross-space appends.
    pub outbox: Outbox,
    /// Leases.
    pub lease: Lease,
    /// Push order, as the server counts it.
    pub push: Push,
    /// Lifecycle verbs.
    pub lifecycle_verbs: LifecycleVerbs,
}

/// Demand, as the last passes saw it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Demand {
    /// Rows of the last pass.
    pub demanded_rows: u64,
    /// Distinct instances of the last pass.
    pub demanded_instances: u64,
    /// Most distinct instances of any pass.
    pub demanded_instances_max: u64,
    /// Instance × pair entries of the last pass.
    pub demanded_pairs: u64,
    /// Standing demand roots.
    pub demanded_writers: u64,
    /// Most standing demand roots.
    pub demanded_writers_max: u64,
    /// Writers that became demand roots.
    pub demand_root_enters: u64,
    /// Writers that stopped being demand roots.
    pub demand_root_leaves: u64,
    /// Instances re-armed for one pair.
    pub not_current_rearms: u64,
    /// Passes.
    pub demand_passes: u64,
    /// Wall milliseconds of passes, structure loads included.
    pub demand_pass_ms: u64,
    /// Notifies because a closure grew, before coalescing.
    pub push_growth_wakes: u64,
    /// Notifies because watches changed.
    pub watch_wakes: u64,
    /// Notifies because something was warmed.
    pub warm_wakes: u64,
}

/// The settle series.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settle {
    /// Newest last.
    pub series: VecDeque<Settled>,
    /// Entries dropped from the front.
    pub dropped: u64,
}

/// One authored input that the watermark passed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// Space.
    pub space: String,
    /// The input's seq.
    pub seq: u64,
    /// When it was seen, ms since 1970.
    pub admitted_at: i64,
    /// When the watermark passed it.
    pub covered_at: i64,
    /// The difference.
    pub ms: i64,
    /// Waves in between.
    pub waves: u64,
    /// Cycles in between.
    pub cycles: u64,
    /// Demand growth in between.
    pub growth_wakes: u64,
    /// `value-only` or `structural-growth`.
    pub class: &'static str,
    /// It appended an event.
    pub event_append: bool,
}

/// Advances at quiescence.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettleAdvances {
    /// How many.
    pub count: u64,
    /// How far the last one went.
    pub last_delta: u64,
    /// Newest last.
    pub series: VecDeque<SettleAdvance>,
    /// Entries dropped from the front.
    pub dropped: u64,
}

/// One advance at quiescence.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettleAdvance {
    /// Space.
    pub space: String,
    /// From this watermark.
    pub from: u64,
    /// To this one.
    pub to: u64,
    /// When, ms since 1970.
    pub at: i64,
}

/// Event counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Events {
    /// Entries noticed.
    pub appended: u64,
    /// Entries queued by drains.
    pub processed: u64,
    /// Largest drain.
    pub coalesced_per_wave_max: u64,
    /// Duplicates skipped with a notice.
    pub skipped_idempotent: u64,
    /// Entries skipped because their guard was out.
    pub drain_in_flight_skips: u64,
    /// In-process copies purged at a deadline.
    pub lt1_leftovers_purged: u64,
    /// Late seals of in-process copies refused.
    pub lt1_late_seals_refused: u64,
    /// In-process copies refused with their emitter's write, per event.
    pub orphan_deliveries_refused: u64,
}

/// Memo counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memo {
    /// Evaluations answered by a stored result.
    pub hits: u64,
    /// Effects admitted.
    pub misses: u64,
    /// Live entries.
    pub inflight: u64,
}

/// Outbox counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outbox {
    /// Effects admitted.
    pub queued: u64,
    /// Effects done.
    pub completed: u64,
    /// Effects that threw and appends refused for good.
    pub failed: u64,
    /// Times an effect was held by a budget.
    pub budget_deferrals: u64,
}

/// Lease counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Leases held now.
    pub held: u64,
    /// Renewals that failed.
    pub lost: u64,
}

/// Push order counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Push {
    /// Sessions served first.
    pub prioritized_sessions: u64,
    /// Sessions served after them.
    pub follower_sessions: u64,
    /// Flushes that had both.
    pub mixed_flushes: u64,
}

/// Lifecycle verb counters.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LifecycleVerbs {
    /// Completed runs.
    pub runs: u64,
    /// Thrown runs and failed confirmations.
    pub failures: u64,
}

impl ServingLoop {
    /// Counts one own derived commit of `space`.
    pub fn count_derived_commit(&mut self, space: &SpaceId) {
        self.derived_commits += 1;
        if !self.derived_commits_by_space.contains_key(space.as_str())
            && self.derived_commits_by_space.len() == SPACES_KEPT
        {
            // The quietest space makes room.
            let quietest = self
                .derived_commits_by_space
                .iter()
                .min_by_key(|(_, n)| **n)
                .map(|(s, _)| s.clone());
            if let Some(evicted) = quietest.and_then(|s| self.derived_commits_by_space.remove(&s)) {
                self.derived_commits_by_space_dropped += evicted;
            }
        }
        *self
            .derived_commits_by_space
            .entry(space.as_str().to_owned())
            .or_insert(0) += 1;
    }

    /// How far the watermark of an active space is behind its head; `None` once it is parked.
    pub fn note_lag(&mut self, space: &SpaceId, lag: Option<u64>) {
        match lag {
            Some(lag) => self.lags.insert(space.clone(), lag),
            None => self.lags.remove(space),
        };
        self.watermark_lag = self.lags.values().copied().max().unwrap_or(0);
    }

    /// Records an advance at quiescence.
    pub fn record_settle_advance(&mut self, space: &SpaceId, from: Seq, to: Seq, at: i64) {
        let advances = &mut self.settle_advances;
        advances.count += 1;
        advances.last_delta = to.0.saturating_sub(from.0);
        if advances.series.len() == SERIES_KEPT {
            advances.series.pop_front();
            advances.dropped += 1;
        }
        advances.series.push_back(SettleAdvance {
            space: space.as_str().to_owned(),
            from: from.0,
            to: to.0,
            at,
        });
    }

    /// Records a covered input.
    pub fn record_settled(&mut self, settled: Settled) {
        if self.settle.series.len() == SERIES_KEPT {
            self.settle.series.pop_front();
            self.settle.dropped += 1;
        }
        self.settle.series.push_back(settled);
    }

    /// Derived commits per logical write (SS-588): advance-only commits and effect acknowledgements are left out;
    /// `None` before the first write.
    pub fn amplification(&self) -> Option<f64> {
        let writes = self.authored_seen.saturating_sub(self.effect_acks);
        let derived = self.derived_commits.saturating_sub(self.settle_advances.count);
        (writes > 0).then(|| derived as f64 / writes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_1400_rows_and_dropped_add_up() {
        let mut block = ServingLoop::default();
        for n in 0..300 {
            for _ in 0..=(n % 3) {
                block.count_derived_commit(&SpaceId::from(format!("did:key:z{n}")));
            }
        }
        let rows: u64 = block.derived_commits_by_space.values().sum();
        assert_eq!(block.derived_commits_by_space.len(), SPACES_KEPT);
        assert_eq!(
            rows + block.derived_commits_by_space_dropped,
            block.derived_commits
        );
    }

    #[test]
    fn ss_588_amplification_leaves_advances_out() {
        let mut block = ServingLoop {
            authored_seen: 4,
            derived_commits: 8,
            ..ServingLoop::default()
        };
        block.settle_advances.count = 4;
        assert_eq!(block.amplification(), Some(1.0));
        assert_eq!(ServingLoop::default().amplification(), None);
    }
}
