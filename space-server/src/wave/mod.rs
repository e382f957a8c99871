//! The wave: what sealed since the last commit step, decided per document and landed as one derived commit
//! (SS-600…SS-751). Called by the loop and its sink; knows no runtime and no clock, so that every outcome is
//! decided by values.

mod batch;
mod commit;
mod contribution;
mod foreign;
mod resolve;

use std::collections::BTreeMap;

use memory_engine::lease::Tenure;
use memory_engine::outbox::OutboxAppend;
use memory_wire::{Did, EventId, Scope, ScopeIdentity, Seq, SpaceId};
use runner::transaction::RunKind;
use thiserror::Error;

pub use batch::HomeBatch;
pub use commit::{Aborted, Disposition, ForeignLanding, HomeRejection, Outcome, WaveSink};
pub use contribution::{
    ConfirmedRead, Contribution, ContributionIx, PendingRead, RunRecord, SpaceWrites, written_instance,
};
pub use foreign::ForeignBatch;

/// Answers whether a user may write into a space (SS-621).
pub type GrantProbe = Box<dyn Fn(&SpaceId, &Did) -> bool + Send>;

/// What a wave does with writes into other spaces (SS-620).
pub enum ForeignPosture {
    /// They are refused.
    Refuse,
    /// They are accepted for a user that the probe grants.
    Accept(GrantProbe),
}

impl std::fmt::Debug for ForeignPosture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ForeignPosture::Refuse => "Refuse",
            ForeignPosture::Accept(_) => "Accept",
        })
    }
}

/// A run that wants to seal, before the wave has judged it.
#[derive(Clone, Debug)]
pub struct SealRequest {
    /// What it brings; `None` as the run record of a transaction that nobody stamped.
    pub run: Option<RunRecord>,
    /// The rest of the contribution.
    pub writes: Vec<SpaceWrites>,
    /// Spaces it only read.
    pub read_only: Vec<(SpaceId, Vec<memory_wire::InstanceId>)>,
    /// Appends it staged.
    pub appends: Vec<OutboxAppend>,
    /// The run is a derivation whose actor follows from the scope it discovered.
    pub attribution_from_scope: bool,
    /// The scope to which an event of this run was attributed when it went out, if one did (SS-608).
    pub emitted_at: Option<Scope>,
}

/// Why a wave did not take a run. The run fails; the wave and the loop go on (SS-603).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SealRefusal {
    /// The wave is detached.
    #[error("wave-closed")]
    WaveClosed,
    /// A write or an append that no stamp declares: a programming error, counted and raised (SS-602).
    #[error("unstamped transaction sealed into a wave: stamp the run context before its first write")]
    Unstamped,
    /// An event went out attributed more broadly than what the run then discovered (SS-608).
    #[error("early-emit-under-attributed")]
    EarlyEmit,
    /// A write into a foreign space without posture, carriage or grant (SS-620).
    #[error("foreign-write-refused")]
    ForeignWrite(SpaceId),
    /// A staged append contradicts the delegated admission floor (SS-630).
    #[error("{0}")]
    Append(AppendContradiction),
}

/// SS-630: what a staged append may not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AppendContradiction {
    /// No capability reference.
    #[error("outbound append refused: the delegated admission floor requires a capability reference")]
    NoCapability,
    /// Neither an actor nor the declaration that there is none.
    #[error(
        "outbound append refused: without an acting user it must be declared sessionless and space-scoped"
    )]
    NoActor,
    /// Both an acting user and that declaration.
    #[error("outbound append refused: declared sessionless and space-scoped, yet it names an acting user")]
    ActorDespiteDeclaration,
    /// Both an acting session and that declaration.
    #[error("outbound append refused: declared sessionless and space-scoped, yet it names an acting session")]
    SessionDespiteDeclaration,
}

/// What the wave counted while runs sealed; the loop adds it to its statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounts {
    /// SS-602.
    pub unstamped: u64,
    /// SS-620.
    pub foreign_refused: u64,
    /// SS-607; reads 0 while the runner withdraws such runs itself.
    pub undemanded_narrowing: u64,
    /// SS-608.
    pub early_emit: u64,
}

/// An open wave.
#[derive(Debug)]
pub struct Wave {
    home: SpaceId,
    /// The store head when the wave opened (SS-600).
    basis: Seq,
    tenure: Tenure,
    /// What a scoped operation of a run without an identity resolves with (SS-607).
    fallback: ScopeIdentity,
    posture: ForeignPosture,
    grants: BTreeMap<(SpaceId, Did), bool>,
    contributions: Vec<Contribution>,
    /// Events one of whose seals failed (SS-605).
    failed_events: Vec<EventId>,
    counts: SealCounts,
    promise: Option<Promise>,
    closed: bool,
}

/// A watermark that holds only if every event of the wave lands.
#[derive(Clone, Debug)]
struct Promise {
    /// The action that writes it.
    action: &'static str,
    /// What the commit carries when it cannot be kept.
    otherwise: Seq,
}

impl Wave {
    /// Opens a wave at the store head `basis` under `tenure`.
    pub fn open(
        home: SpaceId,
        basis: Seq,
        tenure: Tenure,
        fallback: ScopeIdentity,
        posture: ForeignPosture,
    ) -> Wave {
        Wave {
            home,
            basis,
            tenure,
            fallback,
            posture,
            grants: BTreeMap::new(),
            contributions: Vec::new(),
            failed_events: Vec::new(),
            counts: SealCounts::default(),
            promise: None,
            closed: false,
        }
    }

    /// The space it commits to.
    pub fn home(&self) -> &SpaceId {
        &self.home
    }

    /// The store head when it opened.
    pub fn basis(&self) -> Seq {
        self.basis
    }

    /// The tenure it opened under.
    pub fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// What sealed so far.
    pub fn contributions(&self) -> &[Contribution] {
        &self.contributions
    }

    /// What was counted so far.
    pub fn counts(&self) -> SealCounts {
        self.counts
    }

    /// True when nothing sealed and nothing failed to.
    pub fn is_empty(&self) -> bool {
        self.contributions.is_empty() && self.failed_events.is_empty()
    }

    /// The run of `action` promises a watermark. If an event of the wave goes back to its stream, the promise is
    /// withdrawn and the commit carries `otherwise` (SS-586).
    pub fn promise(&mut self, action: &'static str, otherwise: Seq) {
        self.promise = Some(Promise { action, otherwise });
    }

    /// Notes that a seal of this kind failed elsewhere: an event's seal that failed requeues the whole event,
    /// other kinds note nothing (SS-605).
    pub fn note_failed_seal(&mut self, kind: RunKind, event: Option<&EventId>) {
        if let (RunKind::EventHandler, Some(event)) = (kind, event) {
            self.failed_events.push(event.clone());
        }
    }

    /// Judges a run and takes it (SS-602). `Ok(None)`: it wrote nothing and staged nothing, which is no
    /// contribution and a success.
    pub fn seal(&mut self, request: SealRequest) -> Result<Option<ContributionIx>, SealRefusal> {
        if self.closed {
            return Err(SealRefusal::WaveClosed);
        }
        let empty = request.writes.is_empty() && request.appends.is_empty();
        let Some(mut run) = request.run else {
            if empty {
                return Ok(None);
            }
            self.counts.unstamped += 1;
            return Err(SealRefusal::Unstamped);
        };
        if let Err(contradiction) = request.appends.iter().try_for_each(check_append) {
            return Err(SealRefusal::Append(contradiction));
        }
        if request.attribution_from_scope {
            run.acting = runner::seal::acting_at(&run.resolution, run.discovered);
            run.capability_ref = run.acting.user.as_ref().map(runner::seal::demanded_run);
            if request.emitted_at.is_some_and(|emitted| emitted < run.discovered) {
                self.counts.early_emit += 1;
                return Err(SealRefusal::EarlyEmit);
            }
        } else if run.kind == RunKind::Derivation && run.discovered > Scope::Space {
            self.counts.undemanded_narrowing += 1;
        }
        if run.resolution == ScopeIdentity::default() && run.kind == RunKind::Derivation {
            run.resolution = self.fallback.clone();
        }
        let foreign: Vec<SpaceId> = request
            .writes
            .iter()
            .map(|w| &w.space)
            .filter(|s| **s != self.home)
            .cloned()
            .collect();
        for space in foreign {
            if !self.may_write_foreign(&space, &run) {
                self.counts.foreign_refused += 1;
                return Err(SealRefusal::ForeignWrite(space));
            }
        }
        if empty {
            return Ok(None);
        }
        self.contributions.push(Contribution {
            run,
            writes: request.writes,
            read_only: request.read_only,
            appends: request.appends,
        });
        Ok(Some(self.contributions.len() - 1))
    }

    /// SS-620: carriage and grant; the verdict is kept for the wave.
    fn may_write_foreign(&mut self, space: &SpaceId, run: &RunRecord) -> bool {
        let ForeignPosture::Accept(probe) = &self.posture else {
            return false;
        };
        let (Some(user), Some(_)) = (&run.acting.user, &run.capability_ref) else {
            return false;
        };
        *self
            .grants
            .entry((space.clone(), user.clone()))
            .or_insert_with(|| probe(space, user))
    }
}

/// SS-630. Public to the destination, which checks at the call, inside the run.
pub fn check_append(row: &OutboxAppend) -> Result<(), AppendContradiction> {
    if row.capability_ref.is_empty() {
        return Err(AppendContradiction::NoCapability);
    }
    match (
        row.sessionless_space_scope,
        &row.acting_principal,
        &row.acting_session,
    ) {
        (true, Some(_), _) => Err(AppendContradiction::ActorDespiteDeclaration),
        (true, None, Some(_)) => Err(AppendContradiction::SessionDespiteDeclaration),
        (false, None, _) => Err(AppendContradiction::NoActor),
        (true, None, None) | (false, Some(_), _) => Ok(()),
    }
}
