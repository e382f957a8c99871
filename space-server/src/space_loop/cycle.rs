//! One cycle (SS-550): drain what came, settle what it caused, decide what may be promised, land the wave. The order
//! of the steps is load-bearing.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::commit_meta::CommitClass;
use memory_wire::well_known::{EFFECTS_DOCUMENT, WATERMARK_DOCUMENT};
use memory_wire::{EntityId, EventId, InstanceId, Scope, Seq, SpaceId};
use runner::address::{Address, path};
use runner::error::RunnerError;
use runner::serving_runtime::ServingRuntime;
use runner::transaction::RunKind;

use super::settle::Settled;
use super::{ParkReason, SpaceLoop};
use crate::error::ServingError;
use crate::lease_keeper::Renewal;
use crate::open_wave::OpenWave;
use crate::outbox::Outbox;
use crate::sink::EngineSink;
use crate::watermark::{Advance, Arrival};
use crate::wave::{Aborted, Disposition, Outcome, written_instance};

/// The action that writes the watermark document.
const WATERMARK_ACTION: &str = "server-execution/watermark";

impl SpaceLoop {
    /// `Some`: the space has to be parked.
    pub(super) async fn cycle(&mut self) -> Result<Option<ParkReason>, ServingError> {
        self.take_notices();
        if self.closing {
            return Ok(Some(ParkReason::HostClosed));
        }
        if self.lease.is_lost() {
            return Ok(Some(ParkReason::LeaseLost));
        }
        self.settles.note_cycle();
        self.destination.discard_if_empty();
        let input = self.drain_feed();
        if std::mem::take(&mut self.scan_owed) {
            self.catch_up().await?;
            let most = if self.refused_waves > 0 { 1 } else { u64::MAX };
            let queued = self
                .events
                .drain(most)
                .await
                .map_err(|source| self.store_error(source))?;
            self.scan_owed |= queued == most;
        }
        let settled = self.settle(input).await?;
        self.unsettled = settled == Settled::Exhausted;
        match settled {
            Settled::Exhausted => {
                self.events.purge_copies();
                self.shared.statistics.update(|s| s.waves_budget_exhausted += 1);
            }
            Settled::Quiescent => self.structure.settled(),
        }
        self.events.seal_notices();
        self.outbox
            .seal_notices()
            .await
            .map_err(|source| self.store_error(source))?;
        self.take_notices();
        let advance = self.write_advance(settled == Settled::Exhausted);
        if !self.destination.has_contributions() {
            self.destination.discard_if_empty();
            self.deliver_outbox().await?;
            return Ok(None);
        }
        self.commit(advance).await
    }

    // --- input -------------------------------------------------------------------------------------------------

    /// SS-551, SS-552: takes the feed in; true when some of it was input.
    fn drain_feed(&mut self) -> bool {
        let mut input = false;
        while let Some(commit) = self.feed.pop_front() {
            let own =
                commit.class == CommitClass::Derived && commit.holder.as_ref() == Some(&self.shared.holder);
            let arrival = self.watermark.arrived(commit.seq, own);
            self.destination.note_head(commit.seq);
            if own || arrival == Arrival::Known {
                continue;
            }
            input = true;
            let authored = commit.class == CommitClass::Authored;
            let acknowledges = authored && commit.writes.iter().any(|w| w.id.as_str() == EFFECTS_DOCUMENT);
            let appends = commit.event_appends.len() as u64;
            self.shared.statistics.update(|s| {
                s.authored_seen += u64::from(authored);
                s.effect_acks += u64::from(acknowledges);
                s.events.appended += appends;
            });
            if authored {
                self.settles
                    .begin(commit.seq, appends > 0, self.shared.time.wall_ms());
            }
            self.scan_owed |= appends > 0;
            self.structure.written(&commit.writes);
        }
        // Entries put off are looked at again with the next input (SS-818).
        self.scan_owed |= input && self.events.desk.has_deferred();
        input
    }

    // --- the watermark -------------------------------------------------------------------------------------------

    /// Decides the advance and writes it into the open wave (SS-581…SS-585); `None` when the watermark stays.
    fn write_advance(&mut self, exhausted: bool) -> Option<Advance> {
        let shadow = self.runtime.unapplied_foreign_seq_floor(&self.id);
        if !exhausted && self.watermark.is_clamped(shadow) {
            self.shared.statistics.update(|s| s.watermark_clamped += 1);
        }
        let quiescent = !exhausted
            && !self.destination.has_contributions()
            && self.feed.is_empty()
            && !self.scan_owed
            && !self.events.desk.has_notices()
            && !self.outbox.owes_notice();
        let floor = [shadow, self.events.desk.lowest_open()]
            .into_iter()
            .flatten()
            .min();
        let advance = self.watermark.decide(exhausted, quiescent, floor)?;
        match self.seal_watermark(advance.to) {
            Ok(()) => Some(advance),
            Err(error) => {
                tracing::warn!(space = %self.id, %error, "watermark did not seal; it stays");
                None
            }
        }
    }

    fn seal_watermark(&self, to: Seq) -> Result<(), RunnerError> {
        let tx = self.runtime.bookkeeping(WATERMARK_ACTION)?;
        let document = Address::document(self.id.clone(), EntityId::from(WATERMARK_DOCUMENT), Scope::Space);
        if let Err(error) = tx.write(&document.at(path(["value", "seq"])), Some((to.0 as f64).into())) {
            tx.abort(error.to_string());
            return Err(error);
        }
        match tx.commit().peek() {
            Some(sealed) => Ok(sealed?),
            None => Err(RunnerError::Closed("wave destination")),
        }
    }

    // --- the commit step -----------------------------------------------------------------------------------------

    async fn commit(&mut self, advance: Option<Advance>) -> Result<Option<ParkReason>, ServingError> {
        let Some(open) = self.destination.detach() else {
            return Ok(None);
        };
        let facts = WaveFacts::of(&open, &self.id);
        let (foreign, unreachable) = self.open_foreign(&facts.foreign_spaces);
        let (mut wave, seen, layers) = open.into_parts();
        let standing = self.watermark.current();
        let carried = advance.map_or(standing, |advance| advance.to);
        if advance.is_some() {
            wave.promise(WATERMARK_ACTION, standing);
        }
        let (shared, engine, lease) = (self.shared.clone(), self.engine.clone(), self.lease.clone());
        let mut sink = EngineSink {
            shared: &shared,
            space: &self.id,
            engine: &engine,
            lease: &lease,
            seen,
            ahead: BTreeMap::new(),
            asked: BTreeSet::new(),
            foreign,
            unmarked: false,
        };
        sink.read_ahead(facts.home_documents.clone()).await;
        let outcome = wave.commit(&mut sink, Some(carried), &unreachable).await;
        self.scan_owed |= sink.unmarked;
        let settled = layers.settle(&self.id, &outcome);
        self.runtime.wait_on(settled).await;
        self.note_outcome(&facts, &outcome).await?;
        match outcome.aborted {
            None => {
                self.refused_waves = 0;
                let unreachable = facts
                    .foreign_spaces
                    .iter()
                    .any(|space| unreachable.contains(space));
                if unreachable {
                    self.events.desk.note_refusals(&facts.foreign_events);
                }
            }
            Some(Aborted::LeaseLost) => return Ok(Some(ParkReason::LeaseLostAbort)),
            Some(Aborted::Rejected) => {
                if let Some(reason) = self.note_rejected(&facts, &outcome).await? {
                    return Ok(Some(reason));
                }
            }
            Some(Aborted::ForeignCommitFailed) => {
                self.events.desk.note_refusals(&facts.foreign_events);
                facts.rearm_derivations(&self.runtime, &outcome);
            }
        }
        if let Some(seq) = outcome.seq {
            self.note_landed(seq, &facts, &outcome, advance);
        }
        self.deliver_outbox().await?;
        Ok(None)
    }

    /// The store refused a wave as a whole. Either the lease is gone, which the store knows first, or something in it
    /// can never land: its events come again one at a time, until the one that cannot is known and ends as an error.
    async fn note_rejected(
        &mut self,
        facts: &WaveFacts,
        outcome: &Outcome,
    ) -> Result<Option<ParkReason>, ServingError> {
        match self
            .lease
            .renew()
            .await
            .map_err(|source| self.store_error(source))?
        {
            Renewal::Kept => {}
            Renewal::Regained => return Ok(Some(ParkReason::LeaseLostAbort)),
            Renewal::Lost => return Ok(Some(ParkReason::LeaseLost)),
        }
        if outcome.requeued_events.is_empty() {
            // No event to blame; what it withdrew is marked clean in the runtime and would never come again.
            return Ok(Some(ParkReason::LoopFailed));
        }
        self.refused_waves += 1;
        self.events.desk.note_refusals(&outcome.requeued_events);
        facts.rearm_derivations(&self.runtime, outcome);
        Ok(None)
    }

    /// SS-562.
    fn open_foreign(
        &self,
        spaces: &[SpaceId],
    ) -> (BTreeMap<SpaceId, memory_engine::EngineHandle>, Vec<SpaceId>) {
        let (mut opened, mut unreachable) = (BTreeMap::new(), Vec::new());
        for space in spaces {
            match self.shared.plane.engine(space) {
                Ok(engine) => {
                    opened.insert(space.clone(), engine);
                }
                Err(error) => {
                    tracing::warn!(space = %self.id, foreign = %space, %error, "foreign store does not open");
                    self.shared.statistics.update(|s| s.foreign_engine_failures += 1);
                    unreachable.push(space.clone());
                }
            }
        }
        (opened, unreachable)
    }

    /// SS-565, and the counters of a commit step.
    async fn note_outcome(&mut self, facts: &WaveFacts, outcome: &Outcome) -> Result<(), ServingError> {
        self.events
            .desk
            .decided(&outcome.committed_events, &outcome.requeued_events);
        self.scan_owed |= !outcome.requeued_events.is_empty();
        self.shared.statistics.update(|s| {
            s.superseded_writes += outcome.superseded_writes;
            s.events.orphan_deliveries_refused += outcome.orphan_deliveries_refused;
        });
        let landed: Vec<String> = facts
            .actions
            .iter()
            .zip(&outcome.dispositions)
            .filter(|(_, disposition)| matches!(disposition, Disposition::Committed { .. }))
            .map(|(action, _)| action.clone())
            .collect();
        if facts.appends {
            self.outbox.owe();
        }
        self.outbox
            .wave_over(&landed)
            .await
            .map_err(|source| self.store_error(source))
    }

    /// SS-583, SS-584: a wave landed as commit `seq`.
    fn note_landed(&mut self, seq: Seq, facts: &WaveFacts, outcome: &Outcome, advance: Option<Advance>) {
        let now = self.shared.time.wall_ms();
        self.committed = true;
        self.settles.note_wave();
        self.destination.note_head(seq);
        self.watermark.landed(seq, facts.content);
        self.shared.statistics.update(|s| {
            s.waves += 1;
            s.count_derived_commit(&self.id);
        });
        let Some(advance) = advance.filter(|_| outcome.requeued_events.is_empty()) else {
            return;
        };
        let from = self.watermark.current();
        self.watermark.advanced(advance.to, !facts.content);
        self.settles
            .covered(advance.to, &self.id, &self.shared.statistics, now);
        if advance.at_quiescence {
            self.shared
                .statistics
                .update(|s| s.record_settle_advance(&self.id, from, advance.to, now));
        }
    }

    async fn deliver_outbox(&mut self) -> Result<(), ServingError> {
        self.outbox
            .deliver()
            .await
            .map_err(|source| self.store_error(source))
    }

    pub(super) fn store_error(&self, source: memory_engine::EngineError) -> ServingError {
        ServingError::Store {
            space: self.id.clone(),
            source,
        }
    }
}

/// What the loop has to know of a wave after the commit step has consumed it.
struct WaveFacts {
    /// Action ids, in seal order.
    actions: Vec<String>,
    /// Kinds and transactions, in seal order.
    runs: Vec<(RunKind, runner::transaction::RunTx)>,
    /// It holds more than an advance (SS-583).
    content: bool,
    /// It stages appends into other spaces.
    appends: bool,
    /// Spaces it writes besides home, each once.
    foreign_spaces: Vec<SpaceId>,
    /// Events whose contributions write there.
    foreign_events: Vec<EventId>,
    /// Home documents it writes, each once.
    home_documents: Vec<InstanceId>,
}

impl WaveFacts {
    fn of(open: &OpenWave, home: &SpaceId) -> WaveFacts {
        let contributions = open.wave().contributions();
        let mut facts = WaveFacts {
            actions: contributions.iter().map(|c| c.run.action_id.clone()).collect(),
            runs: contributions
                .iter()
                .map(|c| c.run.kind)
                .zip(open.transactions().cloned())
                .collect(),
            content: contributions.iter().any(|c| match c.run.kind {
                RunKind::Derivation | RunKind::EventHandler => true,
                RunKind::Bookkeeping => Outbox::is_notice(&c.run.action_id),
            }),
            appends: contributions.iter().any(|c| !c.appends.is_empty()),
            foreign_spaces: Vec::new(),
            foreign_events: Vec::new(),
            home_documents: Vec::new(),
        };
        for contribution in contributions {
            for writes in contribution.writes.iter().filter(|writes| writes.space != *home) {
                if !facts.foreign_spaces.contains(&writes.space) {
                    facts.foreign_spaces.push(writes.space.clone());
                }
                facts.foreign_events.extend(contribution.run.event_id.clone());
            }
        }
        facts.foreign_events.dedup();
        let written: BTreeSet<InstanceId> = contributions
            .iter()
            .filter_map(|contribution| Some((contribution, contribution.writes_to(home)?)))
            .flat_map(|(contribution, writes)| {
                let resolution = &contribution.run.resolution;
                writes
                    .operations
                    .iter()
                    .filter_map(|operation| written_instance(operation, resolution).ok().flatten())
            })
            .collect();
        facts.home_documents = written.into_iter().collect();
        facts
    }

    /// Derivations that a withheld wave took along have to run again: they were marked clean when they sealed.
    fn rearm_derivations(&self, runtime: &runner::runtime::Runtime, outcome: &Outcome) {
        for ((kind, tx), disposition) in self.runs.iter().zip(&outcome.dispositions) {
            if (*kind, *disposition) == (RunKind::Derivation, Disposition::Dropped) {
                runtime.scheduler().rearm_withdrawn(tx);
            }
        }
    }
}
