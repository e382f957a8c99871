//! The reactivity log of a transaction: what it read and wrote, as addresses (RUN-93).

use crate::address::Address;

/// Addresses carry `scope_key` iff the transaction has an identity, the scope is not `space`, and it resolves.
#[derive(Clone, Debug, Default)]
pub struct ReactivityLog {
    /// Recursive reads.
    pub reads: Vec<Address>,
    /// Shape-only reads.
    pub shallow_reads: Vec<Address>,
    /// Changed paths plus every proper ancestor whose shallow structure changed.
    pub writes: Vec<Address>,
    /// Writes that were elided because the value was already there.
    pub attempted_writes: Vec<Address>,
}
