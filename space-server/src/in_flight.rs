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

    /// A wave decided about these events: their guards go, whatever their stage.
    pub fn release_events(&mut self, events: &[EventId]) {
        self.guards.retain(|key, _| !events.contains(&key.event));
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

    /// The entry is done with; its deferrals are forgotten.
    pub fn settle(&mut self, key: &EntryKey) {
        self.deferrals.remove(key);
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
        guards.release_events(&["e1".into()]);
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
        guards.settle(&key(1));
        guards.enter(key(1));
        assert_eq!(guards.defer(&key(1)), 1);
    }
}
