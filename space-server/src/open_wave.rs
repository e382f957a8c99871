//! A wave while it takes seals, and what its contributions left in the replicas: layers that wait for their verdicts,
//! and the heads its writes stand on. Filled by [`crate::destination`], emptied by the loop's commit step.

use std::collections::BTreeMap;

use memory_wire::{EventId, InstanceId, Seq, SpaceId};
use runner::error::CommitError;
use runner::promise::Promise;
use runner::transaction::{RunKind, RunTx, SealedVerdict, TxId};
use rustc_hash::FxHashSet;

use crate::wave::{ContributionIx, Disposition, Outcome, SealRefusal, SealRequest, Wave};

/// A wave that takes seals, with what its contributions left in the replicas.
pub(crate) struct OpenWave {
    wave: Wave,
    /// One per contribution, in seal order.
    sealed: Vec<Sealed>,
    /// Transactions that sealed into this wave: the emitters whose in-process event copies may (SS-613).
    emitters: FxHashSet<TxId>,
    seen: SeenHeads,
}

/// Per home document that the wave writes: the head its runs stood on, as far as the replica knew one. A document
/// conflicts when it has moved since; the store's head at the opening stands in for documents nobody loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenHeads {
    /// The store's head when the wave opened, or earlier.
    pub(crate) opened_at: Seq,
    known: BTreeMap<InstanceId, Seq>,
}

impl SeenHeads {
    /// What the runs of the wave may have seen of a document, at the least.
    pub(crate) fn of(&self, instance: &InstanceId) -> Seq {
        self.known.get(instance).copied().unwrap_or(self.opened_at)
    }

    /// The exact head a write of a known document insists on.
    pub(crate) fn pin(&self, instance: &InstanceId) -> Option<Seq> {
        self.known.get(instance).copied()
    }

    /// A run that writes `instance` stands on the replica's state at `seq`.
    pub(crate) fn note(&mut self, instance: InstanceId, seq: Seq) {
        // The oldest of several runs decides: it stood on the least.
        self.known
            .entry(instance)
            .and_modify(|seen| *seen = (*seen).min(seq))
            .or_insert(seq);
    }
}

struct Sealed {
    tx: RunTx,
    layers: Vec<Layer>,
}

/// What a contribution holds in one replica until its verdict.
pub(crate) struct Layer {
    pub(crate) space: SpaceId,
    /// Told by the wave.
    pub(crate) verdict: Promise<Result<SealedVerdict, String>>,
    /// Told by the replica when it is through with the layer.
    pub(crate) settled: Promise<Result<(), CommitError>>,
}

/// The parts of a wave that outlive its commit step.
pub(crate) struct Layers(Vec<Sealed>);

impl OpenWave {
    /// A wave over a store whose head was `opened_at`, or higher, when it opened.
    pub(crate) fn new(wave: Wave, opened_at: Seq) -> OpenWave {
        OpenWave {
            wave,
            sealed: Vec::new(),
            emitters: FxHashSet::default(),
            seen: SeenHeads {
                opened_at,
                ..SeenHeads::default()
            },
        }
    }

    /// Judges a run and takes it with its layers (SS-602); true when it contributed anything. A refused run's layers
    /// are handed back, to be withdrawn.
    pub(crate) fn seal(
        &mut self,
        tx: &RunTx,
        request: SealRequest,
        layers: Vec<Layer>,
    ) -> Result<bool, (SealRefusal, Layers)> {
        let sealed = Sealed {
            tx: tx.clone(),
            layers,
        };
        match self.wave.seal(request) {
            Ok(Some(_)) => {
                self.sealed.push(sealed);
                self.emitters.insert(tx.id());
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(refusal) => Err((refusal, Layers(vec![sealed]))),
        }
    }

    /// True when `emitter` sealed into this very wave.
    pub(crate) fn holds(&self, emitter: TxId) -> bool {
        self.emitters.contains(&emitter)
    }

    /// What its runs saw of what they write.
    pub(crate) fn seen(&mut self) -> &mut SeenHeads {
        &mut self.seen
    }

    /// A seal of an event failed (SS-605).
    pub(crate) fn note_failed_seal(&mut self, kind: RunKind, event: Option<&EventId>) {
        self.wave.note_failed_seal(kind, event);
    }

    /// True when nothing sealed and nothing failed to.
    pub(crate) fn is_empty(&self) -> bool {
        self.wave.is_empty()
    }

    /// The wave.
    pub(crate) fn wave(&self) -> &Wave {
        &self.wave
    }

    /// The transactions of its contributions, in seal order.
    pub(crate) fn transactions(&self) -> impl Iterator<Item = &RunTx> {
        self.sealed.iter().map(|sealed| &sealed.tx)
    }

    /// Takes it apart for the commit step.
    pub(crate) fn into_parts(self) -> (Wave, SeenHeads, Layers) {
        (self.wave, self.seen, Layers(self.sealed))
    }
}

impl Layers {
    /// Tells every layer its verdict (SS-750): accepted ones first, so that what is built on them finds them
    /// confirmed. Answers what settles when the replicas are through with it.
    pub(crate) fn settle(self, home: &SpaceId, outcome: &Outcome) -> Promise<()> {
        let (landed, rest): (Vec<_>, Vec<_>) = self
            .0
            .into_iter()
            .zip(&outcome.dispositions)
            .enumerate()
            .partition(|(_, (_, disposition))| matches!(disposition, Disposition::Committed { .. }));
        let mut settled = Vec::new();
        for (ix, (sealed, disposition)) in landed.into_iter().chain(rest) {
            for layer in sealed.layers {
                let seq = if layer.space == *home {
                    outcome.seq
                } else {
                    foreign_seq(outcome, ix, &layer.space)
                };
                layer.verdict.settle(Ok(verdict(*disposition, seq)));
                settled.push(layer.settled);
            }
        }
        Promise::all(settled)
    }

    /// Withdraws everything: the wave was abandoned.
    pub(crate) fn withdraw(self, reason: &str) {
        for layer in self.0.into_iter().flat_map(|sealed| sealed.layers) {
            layer.verdict.settle(Ok(withdrawn(reason)));
        }
    }
}

/// As which commit a contribution's part for another space landed (SS-723).
fn foreign_seq(outcome: &Outcome, ix: ContributionIx, space: &SpaceId) -> Option<Seq> {
    let landing = outcome
        .foreign
        .iter()
        .find(|l| l.space == *space && l.contributions.contains(&ix))?;
    Some(landing.seq)
}

fn verdict(disposition: Disposition, seq: Option<Seq>) -> SealedVerdict {
    match (disposition, seq) {
        (Disposition::Committed { .. }, Some(seq)) => SealedVerdict::Committed { seq },
        (Disposition::Committed { .. }, None) => SealedVerdict::Withdrawn {
            message: "nothing of it needed a commit".to_owned(),
            superseded: true,
        },
        // What was kept is in the store and comes back as a frame; half a layer would be a lie.
        (Disposition::PartiallyDropped { .. }, _) => SealedVerdict::Withdrawn {
            message: "superseded in part".to_owned(),
            superseded: true,
        },
        (Disposition::Requeued, _) => withdrawn("requeued"),
        (Disposition::Dropped, _) => withdrawn("superseded"),
    }
}

fn withdrawn(reason: &str) -> SealedVerdict {
    SealedVerdict::Withdrawn {
        message: reason.to_owned(),
        superseded: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_head_that_a_run_stood_on_decides() {
        let mut seen = SeenHeads {
            opened_at: Seq(9),
            ..SeenHeads::default()
        };
        let (loaded, blind) = (InstanceId::space("of:loaded"), InstanceId::space("of:blind"));
        seen.note(loaded.clone(), Seq(7));
        seen.note(loaded.clone(), Seq(5));
        seen.note(loaded.clone(), Seq(8));
        assert_eq!((seen.of(&loaded), seen.pin(&loaded)), (Seq(5), Some(Seq(5))));
        assert_eq!(
            (seen.of(&blind), seen.pin(&blind)),
            (Seq(9), None),
            "nobody loaded it: the opening stands in"
        );
    }

    #[test]
    fn ss_723_each_part_settles_with_its_own_commit() {
        let (home, other) = (SpaceId::from("did:key:zH"), SpaceId::from("did:key:zO"));
        let layer = |space: &SpaceId| Layer {
            space: space.clone(),
            verdict: Promise::new(),
            settled: Promise::new(),
        };
        let (here, there) = (layer(&home), layer(&other));
        let told = (here.verdict.clone(), there.verdict.clone());
        let landing = crate::wave::ForeignLanding {
            space: other.clone(),
            seq: Seq(3),
            writes: Vec::new(),
            events: Vec::new(),
            contributions: vec![0],
        };
        let outcome = Outcome {
            seq: Some(Seq(8)),
            foreign: vec![landing],
            ..Outcome::default()
        };
        assert_eq!(foreign_seq(&outcome, 0, &other), Some(Seq(3)));
        assert_eq!(foreign_seq(&outcome, 1, &other), None);
        let committed = Disposition::Committed { seq: Some(Seq(8)) };
        for (layer, seq) in [(here, outcome.seq), (there, foreign_seq(&outcome, 0, &other))] {
            layer.verdict.settle(Ok(verdict(committed, seq)));
        }
        assert_eq!(told.0.peek(), Some(Ok(SealedVerdict::Committed { seq: Seq(8) })));
        assert_eq!(told.1.peek(), Some(Ok(SealedVerdict::Committed { seq: Seq(3) })));
    }

    #[test]
    fn ss_750_half_a_layer_is_withdrawn_without_taking_its_readers_along() {
        let half = verdict(Disposition::PartiallyDropped { ops: 1 }, Some(Seq(4)));
        assert!(matches!(half, SealedVerdict::Withdrawn { superseded: true, .. }));
        let whole = verdict(Disposition::Dropped, Some(Seq(4)));
        assert!(matches!(
            whole,
            SealedVerdict::Withdrawn {
                superseded: false,
                ..
            }
        ));
    }
}
