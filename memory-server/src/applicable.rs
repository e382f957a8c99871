//! Which instances may go to a session (SRV-601, SRV-608). Others are absent: not redacted, not removed, not recorded as
//! held.

use std::cell::OnceCell;

use memory_wire::scope_key::ScopeKeys;
use memory_wire::{Scope, ScopeIdentity, ScopeKey};

/// The filter of one session in one pass.
pub(crate) struct Applicable<'a> {
    identity: &'a ScopeIdentity,
    /// Spelled when the first scoped instance is met: most sessions meet none.
    own: OnceCell<ScopeKeys>,
    /// A live lease admits instances of others.
    foreign: bool,
}

impl<'a> Applicable<'a> {
    pub(crate) fn new(identity: &'a ScopeIdentity, foreign: bool) -> Applicable<'a> {
        Applicable {
            identity,
            own: OnceCell::new(),
            foreign,
        }
    }

    pub(crate) fn admits(&self, key: &ScopeKey) -> bool {
        let own = || self.own.get_or_init(|| ScopeKeys::of(self.identity.clone()));
        self.foreign || key.scope() == Scope::Space || own().covers(key)
    }
}
