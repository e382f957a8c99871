//! Foreign novelty below pending layers, which nobody can see yet (RUN-53).
//!
//! The serving loop must not claim to have covered what its own runs could not read; it clamps its watermark below
//! [`Replica::unapplied_foreign_seq_floor`].

use memory_wire::Seq;

use super::Replica;
use super::record::Record;

/// Shadow of a removal, which has no seq of its own.
const REMOVED: Seq = Seq(1);

impl Record {
    /// An upsert at `seq` landed; `acked` tells whether one of the layers above was accepted at that very seq.
    pub(super) fn note_arrival(&mut self, seq: Seq, previous: Seq, acked: bool) {
        if seq > Seq(0) && seq > previous && !self.layers().is_empty() && !acked {
            self.shadows.insert(seq);
        }
    }

    pub(super) fn note_removal(&mut self) {
        if !self.layers().is_empty() {
            self.shadows.insert(REMOVED);
        }
    }

    /// A layer went away: `accepted_at` removes exactly that shadow; without layers nothing is hidden any more.
    /// Answers whether the document stopped being shadowed.
    pub(super) fn clear_shadow(&mut self, accepted_at: Option<Seq>) -> bool {
        if self.shadows.is_empty() {
            return false;
        }
        if let Some(seq) = accepted_at {
            self.shadows.remove(&seq);
        }
        if self.layers().is_empty() {
            self.shadows.clear();
        }
        self.shadows.is_empty()
    }
}

impl Replica {
    /// Lowest seq of hidden foreign novelty, over documents that still have pending layers.
    pub fn unapplied_foreign_seq_floor(&self) -> Option<Seq> {
        let core = self.0.core.borrow();
        let shadowed = core.records.values().filter(|r| !r.layers().is_empty());
        shadowed.filter_map(|r| r.shadows.first().copied()).min()
    }

    /// Tells the host, value change or not.
    pub(super) fn shadow_cleared(&self, cleared: bool) {
        if cleared {
            let observers = self.0.observers.borrow().shadow_flip.clone();
            observers.iter().for_each(|f| f());
        }
    }
}
