//! The watermark of one space and the heads it is judged by (SS-551…SS-553, SS-580…SS-586). Pure arithmetic over
//! sequence numbers; the loop feeds it records and asks what it may promise.

use std::collections::{BTreeSet, VecDeque};

use memory_wire::Seq;

/// Own derived commits kept for the quiescence walk; an evicted one only opens a hole (SS-583).
const OWN_COMMITS_KEPT: usize = 4_096;

/// Sequence numbers remembered to tell a late record from one seen before (SS-552).
const SEEN_KEPT: usize = 1_024;

/// How a feed record stands to the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// New: it moved the heads.
    Fresh,
    /// At or below the input head, but above the activation scan and not seen before: handled, heads stay.
    Late,
    /// Covered by the activation scan, or seen before.
    Known,
}

/// Why the watermark moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// The watermark that the wave carries.
    pub to: Seq,
    /// It moved only over own commits, at quiescence (SS-582).
    pub at_quiescence: bool,
    /// A parked write of ours hides newer foreign state and held it back (SS-581).
    pub clamped: bool,
}

/// W and what it stands on. Transitions: `activate` sets everything; `arrived` raises heads; `landed` records an
/// own commit; `advanced` moves W after the wave that carried it is durable.
#[derive(Clone, Debug)]
pub struct Watermark {
    w: Seq,
    /// The store head that the activation scan has seen.
    scan_head: Seq,
    /// Highest seq seen, own commits included.
    input_head: Seq,
    /// Highest seq that counts as input.
    coverage_head: Seq,
    own: BTreeSet<Seq>,
    seen: VecDeque<Seq>,
    /// Own content landed that no advance has covered yet.
    latch: bool,
}

impl Watermark {
    /// State at activation: the stored watermark and the store's head.
    pub fn activate(stored: Seq, store_head: Seq) -> Watermark {
        Watermark {
            w: stored,
            scan_head: store_head,
            input_head: store_head,
            coverage_head: store_head,
            own: BTreeSet::new(),
            seen: VecDeque::new(),
            latch: false,
        }
    }

    /// The promise as it stands: derived state is current through this seq.
    pub fn current(&self) -> Seq {
        self.w
    }

    /// Highest seq seen.
    pub fn input_head(&self) -> Seq {
        self.input_head
    }

    /// Highest seq that counts as input.
    pub fn coverage_head(&self) -> Seq {
        self.coverage_head
    }

    /// A feed record. `own_derived` is self-echo, which is never input (SS-551).
    pub fn arrived(&mut self, seq: Seq, own_derived: bool) -> Arrival {
        if seq <= self.scan_head || self.seen.contains(&seq) {
            return Arrival::Known;
        }
        if self.seen.len() == SEEN_KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back(seq);
        let arrival = if seq <= self.input_head {
            Arrival::Late
        } else {
            Arrival::Fresh
        };
        if arrival == Arrival::Fresh {
            self.input_head = seq;
            if !own_derived {
                self.coverage_head = seq;
            }
        }
        arrival
    }

    /// The advance a cycle may carry (SS-581, SS-582); `None` when W stays. `shadow_floor` is the lowest foreign
    /// seq that the replica cannot show yet; `quiescent` holds at true quiescence only (SS-582).
    pub fn decide(&self, exhausted: bool, quiescent: bool, shadow_floor: Option<Seq>) -> Option<Advance> {
        if exhausted {
            return None;
        }
        let ceiling = shadow_floor.map_or(u64::MAX, |floor| floor.0.saturating_sub(1));
        let unclamped = self.w.max(self.coverage_head);
        let by_input = self.w.max(Seq(self.coverage_head.0.min(ceiling)));
        let clamped = by_input < unclamped;
        let mut to = by_input;
        if quiescent && self.latch {
            while self.own.contains(&to.next()) && to.next().0 <= ceiling {
                to = to.next();
            }
        }
        (to > self.w).then_some(Advance {
            to,
            at_quiescence: to > by_input,
            clamped,
        })
    }

    /// True when a parked write holds W below a head it would otherwise have passed.
    pub fn is_clamped(&self, shadow_floor: Option<Seq>) -> bool {
        shadow_floor.is_some_and(|floor| floor <= self.coverage_head && self.coverage_head > self.w)
    }

    /// An own derived commit landed. `content`: it holds more than an advance, so an advance is owed (SS-583). Heads
    /// are the feed's: an input below this seq may still be on its way through it, and must not look late.
    pub fn landed(&mut self, seq: Seq, content: bool) {
        self.own.insert(seq);
        if self.own.len() > OWN_COMMITS_KEPT {
            self.own.pop_first();
        }
        if content {
            self.latch = true;
        }
    }

    /// The commit that carried an advance is durable. `advance_only` consumes the latch: an advance never chases
    /// itself.
    pub fn advanced(&mut self, to: Seq, advance_only: bool) {
        self.w = self.w.max(to);
        self.own = self.own.split_off(&self.w.next());
        if advance_only {
            self.latch = false;
        }
    }

    /// True when an advance over own content is still owed.
    pub fn owes_advance(&self) -> bool {
        self.latch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_581_input_moves_w_and_an_exhausted_cycle_does_not() {
        let mut w = Watermark::activate(Seq(0), Seq(0));
        assert_eq!(w.arrived(Seq(1), false), Arrival::Fresh);
        assert_eq!(w.decide(true, true, None), None);
        assert_eq!(
            w.decide(false, false, None),
            Some(Advance {
                to: Seq(1),
                at_quiescence: false,
                clamped: false
            })
        );
    }

    #[test]
    fn ss_581_shadow_clamps() {
        let mut w = Watermark::activate(Seq(3), Seq(3));
        w.arrived(Seq(5), false);
        assert!(w.is_clamped(Some(Seq(5))));
        assert_eq!(w.decide(false, false, Some(Seq(5))).map(|a| a.to), Some(Seq(4)));
        assert_eq!(
            w.decide(false, false, Some(Seq(1))),
            None,
            "a shadowed removal holds W entirely"
        );
    }

    #[test]
    fn ss_582_walks_own_commits_and_stops_at_a_hole() {
        let mut w = Watermark::activate(Seq(0), Seq(0));
        w.arrived(Seq(1), false);
        w.landed(Seq(2), true);
        w.advanced(Seq(1), false);
        assert_eq!(w.decide(false, false, None), None, "only at quiescence");
        let advance = w.decide(false, true, None).unwrap();
        assert_eq!((advance.to, advance.at_quiescence), (Seq(2), true));
        w.landed(Seq(3), false);
        w.advanced(Seq(2), true);
        assert!(!w.owes_advance());
        assert_eq!(
            w.decide(false, true, None),
            None,
            "the last advance is never covered at rest"
        );
        w.landed(Seq(5), true);
        assert_eq!(
            w.decide(false, true, None).map(|a| a.to),
            Some(Seq(3)),
            "seq 4 is a hole"
        );
    }

    #[test]
    fn ss_552_late_records_do_not_move_heads() {
        let mut w = Watermark::activate(Seq(0), Seq(2));
        assert_eq!(w.arrived(Seq(2), false), Arrival::Known);
        assert_eq!(w.arrived(Seq(5), false), Arrival::Fresh);
        assert_eq!(w.arrived(Seq(4), false), Arrival::Late);
        assert_eq!(w.arrived(Seq(4), false), Arrival::Known);
        assert_eq!(w.input_head(), Seq(5));
    }

    /// A click admitted while the wave before it was landing reached the loop after that wave's seq was known, was
    /// taken for a late record, and the watermark never covered it.
    #[test]
    fn ss_552_an_input_below_an_own_commit_in_flight_is_fresh() {
        let mut w = Watermark::activate(Seq(0), Seq(3));
        w.landed(Seq(5), true);
        assert_eq!(w.arrived(Seq(4), false), Arrival::Fresh);
        assert_eq!(w.arrived(Seq(5), true), Arrival::Fresh);
        assert_eq!(w.decide(false, false, None).map(|a| a.to), Some(Seq(4)));
    }

    #[test]
    fn own_echo_raises_the_input_head_only() {
        let mut w = Watermark::activate(Seq(0), Seq(0));
        w.arrived(Seq(7), true);
        assert_eq!((w.input_head(), w.coverage_head()), (Seq(7), Seq(0)));
    }
}
