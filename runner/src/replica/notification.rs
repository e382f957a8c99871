//! What a replica tells its subscribers (RUN-70, RUN-71).

use memory_wire::{SpaceId, Value};

use crate::address::Address;
use crate::transaction::RunTx;

/// One changed place. `before` and `after` are the *whole documents* (`None` = no document); `address.path` says
/// where they differ, and `address.scope_key` is set iff the frame entry or sealed op named an instance.
#[derive(Clone, Debug)]
pub struct Change {
    /// Where the documents differ.
    pub address: Address,
    /// The document before.
    pub before: Option<Value>,
    /// The document after.
    pub after: Option<Value>,
}

/// Why the visible state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationKind {
    /// Optimistic apply of a local commit or seal.
    Commit,
    /// A local commit was rejected or withdrawn.
    Revert,
    /// A read answered from memory made documents visible.
    Load,
    /// A pull finished; emitted even with no changes.
    Pull,
    /// A frame arrived, or a shadow cleared, or a superseded layer went away.
    Integrate,
    /// The replica forgot everything.
    Reset,
}

/// A notification; subscribers run synchronously on the runtime's thread.
#[derive(Clone, Debug)]
pub struct Notification {
    /// Why.
    pub kind: NotificationKind,
    /// Of which space.
    pub space: SpaceId,
    /// Differences, first change per address text kept, in order of documents.
    pub changes: Vec<Change>,
    /// The transaction that caused it, when one of this runtime did: object identity for self-suppression (RUN-512).
    pub source: Option<RunTx>,
    /// Text of the rejection, for `Revert`.
    pub reason: Option<String>,
}

/// Receives notifications. One failing subscriber must not stop the others, so this returns nothing.
pub trait NotificationSink {
    /// Called for every notification, in order.
    fn notify(&self, notification: &Notification);
}
