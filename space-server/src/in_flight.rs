//! The events of one tenure that are between their entry and its mark (SS-812): the guard that keeps one durable
//! entry from being delivered twice.

use std::collections::BTreeMap;

use memory_wire::{EventId, Seq};

/// Where a drained event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Given to the scheduler; no mark is staged. The dispatch's final callback releases it.
    Queued,
    /// A mark is staged in some wave; only that wave's outcome releases it.
    Marked,
}

/// One entry of a stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryKey {
    /// The event.
    pub event: EventId,
    /// The seq its entry carries; the same event id may come again beyond the horizon.
    pub seq: Seq,
}

/// Guards and deferral counts.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    guards: BTreeMap<EntryKey, Stage>,
    deferrals: BTreeMap<EntryKey, u32>,
}

impl InFlight {
    /// Takes the guard for a delivery; false when it is already out.
    pub fn enter(&mut self, key: EntryKey) -> bool {
        match self.guards.entry(key) {
            std::collections::btree_map::Entry::Occupied(_) => false,
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(Stage::Queued);
                true
            }
        }
    }

    /// A mark was staged: the guard now belongs to the wave.
    pub fn mark(&mut self, key: &EntryKey) {
        if let Some(stage) = self.guards.get_mut(key) {
            *stage = Stage::Marked;
        }
    }

    /// The dispatch ended without a mark: releases a queued guard, and leaves a marked one to its wave.
    pub fn release_unmarked(&mut self, key: &EntryKey) {
        if self.guards.get(key) == Some(&Stage::Queued) {
            self.guards.remove(key);
        }
    }

    /// A wave took these events back: their guards go, whatever their stage, and their entries are drained again.
    pub fn requeued(&mut self, events: &[EventId]) {
        self.guards.retain(|key, _| !events.contains(&key.event));
    }

    /// A wave landed these events' consequences: they are done with.
    pub fn committed(&mut self, events: &[EventId]) {
        self.guards.retain(|key, _| !events.contains(&key.event));
        self.deferrals.retain(|key, _| !events.contains(&key.event));
    }

    /// Seq of the oldest entry that is known and not decided: the watermark may not pass it (SS-580). Marked ones are
    /// left out, because their wave decides.
    pub fn lowest_open(&self) -> Option<Seq> {
        let queued = self
            .guards
            .iter()
            .filter(|(_, stage)| **stage == Stage::Queued)
            .map(|(key, _)| key);
        let deferred = self
            .deferrals
            .keys()
            .filter(|key| !self.guards.contains_key(*key));
        queued.chain(deferred).map(|key| key.seq).min()
    }

    /// True when some entry waits for another attempt.
    pub fn has_deferred(&self) -> bool {
        self.deferrals.keys().any(|key| !self.guards.contains_key(key))
    }

    /// Stage of an entry.
    pub fn stage(&self, key: &EntryKey) -> Option<Stage> {
        self.guards.get(key).copied()
    }

    /// Counts one deferred attempt and says how many there were (SS-816).
    pub fn defer(&mut self, key: &EntryKey) -> u32 {
        self.release_unmarked(key);
        let count = self.deferrals.entry(key.clone()).or_insert(0);
        *count += 1;
        *count
    }

    /// Guards out now.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// True when no guard is out.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seq: u64) -> EntryKey {
        EntryKey {
            event: "e1".into(),
            seq: Seq(seq),
        }
    }

    #[test]
    fn ss_812_a_marked_guard_outlives_its_dispatch() {
        let mut guards = InFlight::default();
        assert!(guards.enter(key(1)));
        assert!(!guards.enter(key(1)), "delivered once at a time");
        guards.mark(&key(1));
        guards.release_unmarked(&key(1));
        assert_eq!(guards.stage(&key(1)), Some(Stage::Marked));
        assert_eq!(guards.lowest_open(), None, "its wave decides");
        guards.requeued(&["e1".into()]);
        assert!(guards.is_empty());
    }

    #[test]
    fn ss_816_deferrals_count_per_entry() {
        let mut guards = InFlight::default();
        for n in 1..=8 {
            assert!(guards.enter(key(1)));
            assert_eq!(guards.defer(&key(1)), n);
        }
        assert_eq!(guards.defer(&key(2)), 1);
        assert_eq!(guards.lowest_open(), Some(Seq(1)));
        guards.committed(&["e1".into()]);
        assert!(!guards.has_deferred());
        guards.enter(key(1));
        assert_eq!(guards.defer(&key(1)), 1);
    }
}
