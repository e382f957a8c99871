//! The commit step: decide, send foreign batches, land the home batch, and say what became of each contribution
//! (SS-703, SS-720…SS-751). The sink is the only way out; retries observe newer state, never a timer.

use std::collections::BTreeSet;

use memory_engine::lease::Tenure;
use memory_wire::pointer::DocPath;
use memory_wire::{EventId, InstanceId, Seq, SpaceId};
use runner::transaction::RunKind;

use super::Wave;
use super::batch::{self, HomeBatch};
use super::contribution::ContributionIx;
use super::foreign::{self, ForeignBatch};
use super::resolve::{Resolution, Withdrawal};

/// What became of one contribution (SS-750).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It landed whole.
    Committed {
        /// Its batch's seq: the home commit's, or the foreign batch's for one that only wrote there; `None` when
        /// nothing of it needed a commit.
        seq: Option<Seq>,
    },
    /// It landed without some documents; its local layer is withdrawn whole, because half a layer would be a lie.
    PartiallyDropped {
        /// Operations that were superseded.
        ops: u32,
    },
    /// Its event goes back to the stream.
    Requeued,
    /// It does not land.
    Dropped,
}

/// Why a whole wave came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// The tenure it opened under is over.
    LeaseLost,
    /// A foreign batch failed; home was withheld (SS-721).
    ForeignCommitFailed,
    /// The store refused it and said nothing that another round could decide differently.
    Rejected,
}

/// A foreign batch that landed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignLanding {
    /// Where.
    pub space: SpaceId,
    /// As which commit.
    pub seq: Seq,
    /// What it wrote.
    pub writes: Vec<InstanceId>,
    /// Events of the contributions it carried (for the bounded replay of SS-721).
    pub events: Vec<EventId>,
    /// The contributions it carried: they settle with its seq (SS-723).
    pub contributions: Vec<ContributionIx>,
}

/// Result of a commit step.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One per contribution, in seal order.
    pub dispositions: Vec<Disposition>,
    /// Seq of the home commit.
    pub seq: Option<Seq>,
    /// Foreign batches that landed, also when home did not.
    pub foreign: Vec<ForeignLanding>,
    /// Derivation operations dropped because a newer write stood there.
    pub superseded_writes: u64,
    /// Operations dropped because something they stood on was withdrawn.
    pub dependency_dropped_writes: u64,
    /// Events that go back to their streams; children of requeued parents are minted afresh instead (SS-751).
    pub requeued_events: Vec<EventId>,
    /// Events whose consequences landed.
    pub committed_events: Vec<EventId>,
    /// In-process event copies refused because their durable entry does not land, counted per event.
    pub orphan_deliveries_refused: u64,
    /// Set when nothing of the home batch landed although something should have.
    pub aborted: Option<Aborted>,
    /// The instances that the home commit wrote.
    pub writes: Vec<InstanceId>,
}

/// Why the store did not take a home batch.
#[derive(Clone, Debug)]
pub enum HomeRejection {
    /// These documents' heads passed the basis, or moved under a rebase.
    Conflicts(Vec<InstanceId>),
    /// These preconditions (indexes into the batch's) failed.
    Preconditions(Vec<usize>),
    /// Anything else: terminal for the wave.
    Other(String),
}

/// The store and the lease as the wave sees them; implemented by the sink over `memory-engine`. Its futures are
/// awaited one at a time.
pub trait WaveSink {
    /// True while `tenure` is the current one; asked before each call that would commit (SS-203).
    fn is_current(&mut self, tenure: Tenure) -> bool;
    /// Head seq of a home instance; 0 = never written.
    fn head(&mut self, instance: &InstanceId) -> impl Future<Output = Result<Seq, String>>;
    /// Paths written to a home instance after `since`.
    fn write_paths_since(
        &mut self,
        instance: &InstanceId,
        since: Seq,
    ) -> impl Future<Output = Result<Vec<DocPath>, String>>;
    /// Lands a foreign batch as an authored, delegated commit.
    fn apply_foreign(&mut self, batch: &ForeignBatch) -> impl Future<Output = Result<Seq, String>>;
    /// Lands the home batch as one derived commit.
    fn apply_home(&mut self, batch: &HomeBatch) -> impl Future<Output = Result<Seq, HomeRejection>>;
}

impl Wave {
    /// Commits what sealed. Consumes the wave: a second commit of it is unrepresentable.
    ///
    /// `derived_through` is the watermark the commit carries; `unreachable` are foreign spaces whose store could
    /// not be opened (SS-562).
    pub async fn commit<S: WaveSink>(
        mut self,
        sink: &mut S,
        derived_through: Option<Seq>,
        unreachable: &[SpaceId],
    ) -> Outcome {
        self.closed = true;
        if !sink.is_current(self.tenure) {
            return self.withdraw_all(Aborted::LeaseLost, Vec::new());
        }
        if self.contributions.is_empty() {
            return Outcome::default();
        }
        let mut resolution = Resolution::default();
        for (ix, contribution) in self.contributions.iter().enumerate() {
            if contribution.writes.iter().any(|w| unreachable.contains(&w.space)) {
                resolution.withdraw_by_kind(ix, contribution);
            }
        }
        if let Err(failure) = self.decide(&mut resolution, sink).await {
            tracing::error!(space = %self.home, %failure, "wave could not be decided");
            return self.withdraw_all(Aborted::Rejected, Vec::new());
        }
        let foreign = match self.land_foreign(&resolution, sink).await {
            Ok(landed) => landed,
            Err((aborted, landed)) => return self.withdraw_all(aborted, landed),
        };
        self.land_home(resolution, foreign, sink, derived_through).await
    }

    async fn decide<S: WaveSink>(&self, resolution: &mut Resolution, sink: &mut S) -> Result<(), String> {
        resolution
            .decide(
                &self.home,
                self.basis,
                &self.contributions,
                &self.failed_events,
                sink,
            )
            .await
    }

    /// SS-720, SS-721: every batch once, before home.
    async fn land_foreign<S: WaveSink>(
        &self,
        resolution: &Resolution,
        sink: &mut S,
    ) -> Result<Vec<ForeignLanding>, (Aborted, Vec<ForeignLanding>)> {
        let mut landed = Vec::new();
        for batch in foreign::group(&self.home, &self.contributions, resolution) {
            if !sink.is_current(self.tenure) {
                return Err((Aborted::LeaseLost, landed));
            }
            match sink.apply_foreign(&batch).await {
                Ok(seq) => landed.push(ForeignLanding {
                    space: batch.space,
                    seq,
                    writes: batch.writes,
                    events: batch
                        .contributions
                        .iter()
                        .filter_map(|ix| self.contributions[*ix].run.event_id.clone())
                        .collect(),
                    contributions: batch.contributions,
                }),
                Err(failure) => {
                    tracing::warn!(space = %batch.space, %failure, "foreign batch refused; home withheld");
                    return Err((Aborted::ForeignCommitFailed, landed));
                }
            }
        }
        Ok(landed)
    }

    /// SS-730: build, apply, learn from a rejection, decide again; a round that teaches nothing is the last.
    async fn land_home<S: WaveSink>(
        self,
        mut resolution: Resolution,
        foreign: Vec<ForeignLanding>,
        sink: &mut S,
        derived_through: Option<Seq>,
    ) -> Outcome {
        loop {
            let carried = self.carried(&mut resolution, derived_through);
            let batch = batch::build(&self.home, self.basis, carried, &self.contributions, &resolution);
            if batch.is_vacuous() {
                return self.outcome(&resolution, foreign, None);
            }
            if !sink.is_current(self.tenure) {
                return self.withdraw_all(Aborted::LeaseLost, foreign);
            }
            let progress = match sink.apply_home(&batch).await {
                Ok(seq) => return self.outcome(&resolution, foreign, Some(seq)),
                Err(HomeRejection::Conflicts(documents)) => {
                    let known = |d: &InstanceId| resolution.moved.contains(d);
                    let fresh = documents.iter().any(|d| !known(d));
                    resolution.moved.extend(documents);
                    fresh && self.decide(&mut resolution, sink).await.is_ok()
                }
                Err(HomeRejection::Preconditions(failed)) => {
                    let owners: BTreeSet<ContributionIx> = failed
                        .iter()
                        .filter_map(|i| batch.preconditions.get(*i))
                        .map(|(_, owner)| *owner)
                        .collect();
                    let withdrawn = owners
                        .into_iter()
                        .filter(|ix| resolution.withdraw_by_kind(*ix, &self.contributions[*ix]))
                        .count();
                    withdrawn > 0 && self.decide(&mut resolution, sink).await.is_ok()
                }
                Err(HomeRejection::Other(failure)) => {
                    tracing::warn!(space = %self.home, %failure, "wave refused by the store");
                    false
                }
            };
            if !progress {
                return self.withdraw_all(Aborted::Rejected, foreign);
            }
        }
    }

    /// The watermark this round may carry (SS-586).
    fn carried(&self, resolution: &mut Resolution, derived_through: Option<Seq>) -> Option<Seq> {
        let requeues = resolution
            .withdrawn
            .values()
            .any(|why| *why == Withdrawal::Requeue);
        let Some(promise) = self.promise.as_ref().filter(|_| requeues) else {
            return derived_through;
        };
        for (ix, contribution) in self.contributions.iter().enumerate() {
            if contribution.run.action_id == promise.action {
                resolution.withdraw_by_kind(ix, contribution);
            }
        }
        Some(promise.otherwise)
    }

    fn outcome(&self, resolution: &Resolution, foreign: Vec<ForeignLanding>, seq: Option<Seq>) -> Outcome {
        let mut outcome = Outcome {
            seq,
            foreign,
            ..Outcome::default()
        };
        let mut orphans: BTreeSet<&EventId> = BTreeSet::new();
        for (ix, contribution) in self.contributions.iter().enumerate() {
            let home_writes = contribution.writes_to(&self.home);
            let disposition = match resolution.withdrawn.get(&ix) {
                Some(Withdrawal::Requeue) => Disposition::Requeued,
                Some(Withdrawal::Orphan) => {
                    orphans.extend(&contribution.run.event_id);
                    Disposition::Dropped
                }
                Some(Withdrawal::Dependency) => {
                    let operations: usize = contribution.writes.iter().map(|w| w.operations.len()).sum();
                    outcome.dependency_dropped_writes += operations as u64;
                    Disposition::Dropped
                }
                None => {
                    let (mut kept, mut lost) = (0u32, 0u32);
                    for operation in home_writes.iter().flat_map(|w| &w.operations) {
                        let instance = super::written_instance(operation, &contribution.run.resolution)
                            .ok()
                            .flatten();
                        if resolution.keeps(ix, instance.as_ref()) {
                            kept += 1;
                            outcome.writes.extend(instance.filter(|_| seq.is_some()));
                        } else {
                            lost += 1;
                        }
                    }
                    outcome.superseded_writes += u64::from(lost);
                    let elsewhere = contribution.writes.iter().any(|w| w.space != self.home);
                    match (kept, lost) {
                        (_, 0) => Disposition::Committed {
                            seq: self.landed_seq(ix, seq, &outcome.foreign),
                        },
                        (0, _) if !elsewhere => Disposition::Dropped,
                        (_, ops) => Disposition::PartiallyDropped { ops },
                    }
                }
            };
            outcome.dispositions.push(disposition);
        }
        outcome.writes.sort();
        outcome.writes.dedup();
        outcome.orphan_deliveries_refused = orphans.len() as u64;
        self.report_events(&mut outcome);
        outcome
    }

    /// SS-723: a contribution settles with its own batch's seq.
    fn landed_seq(&self, ix: ContributionIx, home: Option<Seq>, foreign: &[ForeignLanding]) -> Option<Seq> {
        let contribution = &self.contributions[ix];
        if contribution.writes.iter().any(|w| w.space == self.home) || contribution.writes.is_empty() {
            return home;
        }
        foreign
            .iter()
            .find(|landing| landing.contributions.contains(&ix))
            .map(|landing| landing.seq)
    }

    fn report_events(&self, outcome: &mut Outcome) {
        let requeued = |event: &EventId| {
            self.contributions
                .iter()
                .zip(&outcome.dispositions)
                .any(|(c, d)| *d == Disposition::Requeued && c.run.event_id.as_ref() == Some(event))
        };
        let (mut back, mut done): (Vec<EventId>, Vec<EventId>) = (Vec::new(), Vec::new());
        for (contribution, disposition) in self.contributions.iter().zip(&outcome.dispositions) {
            let run = &contribution.run;
            let Some(event) = run
                .event_id
                .as_ref()
                .filter(|_| run.kind == RunKind::EventHandler)
            else {
                continue;
            };
            match disposition {
                Disposition::Requeued => {
                    if !run.parent_event_id.as_ref().is_some_and(requeued) && !back.contains(event) {
                        back.push(event.clone());
                    }
                }
                Disposition::Committed { .. } | Disposition::PartiallyDropped { .. } => {
                    if !done.contains(event) {
                        done.push(event.clone());
                    }
                }
                Disposition::Dropped => {}
            }
        }
        outcome.requeued_events = back;
        outcome.committed_events = done;
    }

    /// Nothing of the home batch landed: handlers requeue, everything else is dropped. What landed elsewhere stays.
    fn withdraw_all(&self, aborted: Aborted, foreign: Vec<ForeignLanding>) -> Outcome {
        let mut outcome = Outcome {
            foreign,
            aborted: Some(aborted),
            ..Outcome::default()
        };
        outcome.dispositions = self
            .contributions
            .iter()
            .map(|c| match c.run.kind {
                RunKind::EventHandler => Disposition::Requeued,
                RunKind::Derivation | RunKind::Bookkeeping => Disposition::Dropped,
            })
            .collect();
        self.report_events(&mut outcome);
        outcome
    }
}
