//! Which instances may go to a session (SRV-601, SRV-608). Others are absent: not redacted, not removed, not recorded as
//! held.

use memory_wire::scope_key::ScopeKeys;
use memory_wire::{ScopeIdentity, ScopeKey};

/// The filter of one session in one pass.
pub(crate) struct Applicable {
    own: ScopeKeys,
    /// A live lease admits instances of others.
    foreign: bool,
}

impl Applicable {
    pub(crate) fn new(identity: &ScopeIdentity, foreign: bool) -> Applicable {
        Applicable {
            own: ScopeKeys::of(identity.clone()),
            foreign,
        }
    }

    pub(crate) fn admits(&self, key: &ScopeKey) -> bool {
        self.foreign || self.own.covers(key)
    }
}
