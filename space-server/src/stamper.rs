//! Stamps of served runs: what is attached to every transaction before its first read, and the `consequenced` mark
//! that a handler's own transaction carries (SS-612).

use memory_wire::{Scope, SpaceId};
use runner::address::{Address, path};
use runner::error::RunnerError;
use runner::seal::RunStamper;
use runner::transaction::{RunKind, RunStamp, RunTx, StreamEntryRef};

use crate::in_flight::EntryKey;

/// The key of a drained entry's guard.
pub(crate) fn entry_key(entry: &StreamEntryRef) -> EntryKey {
    EntryKey {
        event: entry.event_id.clone(),
        seq: entry.seq,
    }
}

/// Stamps runs; a handler that consumes a durable entry also marks it, in the same transaction (SS-612).
pub(crate) struct MarkingStamper {
    home: SpaceId,
}

impl MarkingStamper {
    pub(crate) fn new(home: SpaceId) -> MarkingStamper {
        MarkingStamper { home }
    }
}

impl RunStamper for MarkingStamper {
    fn stamp(&self, tx: &RunTx, stamp: RunStamp) -> Result<(), RunnerError> {
        let entry = stamp
            .stream_entry
            .clone()
            .filter(|_| stamp.kind == RunKind::EventHandler);
        tx.set_stamp(stamp)?;
        match entry {
            Some(entry) => {
                let place = entry_place(&self.home, &entry);
                tx.write(
                    &place.at([place.path.as_slice(), &["consequenced".into()]].concat()),
                    Some(true.into()),
                )
            }
            None => Ok(()),
        }
    }
}

/// Where a drained entry is stored.
pub(crate) fn entry_place(home: &SpaceId, entry: &StreamEntryRef) -> Address {
    let index = entry.index.to_string();
    Address::document(home.clone(), entry.sidecar_id.clone(), Scope::Space)
        .at(path(["value", "entries", &index]))
}
