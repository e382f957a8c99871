//! How long authored inputs take to be covered by the watermark: the settle series of the counters (SS-1400).

use std::collections::VecDeque;

use memory_wire::{Seq, SpaceId};

use crate::statistics::{Settled, Statistics};

/// Inputs waited for; the oldest are forgotten beyond.
const PENDING_KEPT: usize = 4_096;

/// Authored inputs that the watermark has not passed yet.
#[derive(Debug, Default)]
pub(crate) struct Settles {
    pending: VecDeque<Pending>,
    cycles: u64,
    waves: u64,
    growth: u64,
}

#[derive(Debug)]
struct Pending {
    seq: Seq,
    admitted_at: i64,
    event_append: bool,
    cycles: u64,
    waves: u64,
    growth: u64,
}

impl Settles {
    pub(crate) fn note_cycle(&mut self) {
        self.cycles += 1;
    }

    pub(crate) fn note_wave(&mut self) {
        self.waves += 1;
    }

    pub(crate) fn note_growth(&mut self) {
        self.growth += 1;
    }

    /// An authored commit was drained.
    pub(crate) fn begin(&mut self, seq: Seq, event_append: bool, now_ms: i64) {
        if self.pending.len() == PENDING_KEPT {
            self.pending.pop_front();
        }
        let (cycles, waves, growth) = (self.cycles, self.waves, self.growth);
        self.pending.push_back(Pending {
            seq,
            admitted_at: now_ms,
            event_append,
            cycles,
            waves,
            growth,
        });
    }

    /// The watermark passed everything through `w`.
    pub(crate) fn covered(&mut self, w: Seq, space: &SpaceId, statistics: &Statistics, now_ms: i64) {
        let (done, waiting): (VecDeque<Pending>, VecDeque<Pending>) =
            self.pending.drain(..).partition(|input| input.seq <= w);
        self.pending = waiting;
        if done.is_empty() {
            return;
        }
        statistics.update(|s| {
            for input in done {
                let growth_wakes = self.growth - input.growth;
                s.record_settled(Settled {
                    space: space.as_str().to_owned(),
                    seq: input.seq.0,
                    admitted_at: input.admitted_at,
                    covered_at: now_ms,
                    ms: now_ms - input.admitted_at,
                    waves: self.waves - input.waves,
                    cycles: self.cycles - input.cycles,
                    growth_wakes,
                    class: if growth_wakes == 0 {
                        "value-only"
                    } else {
                        "structural-growth"
                    },
                    event_append: input.event_append,
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_recorded_once_when_the_watermark_passes_it() {
        let (mut settles, statistics) = (Settles::default(), Statistics::default());
        let space = SpaceId::from("did:key:zS");
        settles.begin(Seq(3), true, 100);
        settles.note_wave();
        settles.begin(Seq(5), false, 110);
        settles.note_growth();
        settles.covered(Seq(4), &space, &statistics, 130);
        settles.covered(Seq(9), &space, &statistics, 150);
        settles.covered(Seq(9), &space, &statistics, 160);
        let series = statistics.snapshot().settle.series;
        let rows: Vec<(u64, i64, u64, &str)> =
            series.iter().map(|s| (s.seq, s.ms, s.waves, s.class)).collect();
        assert_eq!(
            rows,
            [(3, 30, 1, "structural-growth"), (5, 40, 0, "structural-growth")]
        );
    }
}
