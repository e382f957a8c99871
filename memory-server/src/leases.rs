//! Who holds execution leases, as far as reads care (SRV-605): the row of the read space, or of any other space this
//! process works on, compared as a whole string so that another process of the same service does not pass. Leases are
//! taken and renewed by the host (SRV-909).

use std::sync::Arc;

use memory_engine::{EngineError, Holder, Reader};
use memory_wire::{Did, SpaceId};

use crate::server::Server;
use crate::space::Space;

/// Live leases of the other spaces the host works on, looked up before the turn: a turn must not wait for another
/// space's store.
#[derive(Debug, Default, Clone)]
pub(crate) struct ElsewhereLeases(Vec<(SpaceId, Holder)>);

impl ElsewhereLeases {
    /// The first space whose lease `holder` has.
    pub(crate) fn held_by(&self, holder: &Holder) -> Option<&SpaceId> {
        self.0
            .iter()
            .find(|(_, live)| live == holder)
            .map(|(space, _)| space)
    }
}

impl Server {
    /// The holder text a principal would have in this process.
    pub(crate) fn holder_of(&self, principal: &Did) -> Holder {
        Holder::new(principal, &self.config().process_instance)
    }

    /// Looks the leases of other spaces up. Only spaces handed to the host can hold one of this process.
    pub(crate) async fn leases_elsewhere(self: &Arc<Server>, except: &Space) -> ElsewhereLeases {
        if !self.config().server_execution {
            return ElsewhereLeases::default();
        }
        let now = self.config().clock.wall_ms();
        let mut leases = Vec::new();
        for space in self.pinned_spaces() {
            if space.id() == except.id() {
                continue;
            }
            let id = space.id().clone();
            match space.read(move |reader| reader.live_holder(&id, now)).await {
                Ok(Some(holder)) => leases.push((space.id().clone(), holder)),
                Ok(None) => {}
                // A store that cannot be read shows no lease; the read is then judged without it.
                Err(error) => tracing::warn!(space = %space.id(), %error, "lease cannot be read"),
            }
        }
        ElsewhereLeases(leases)
    }

    /// True when `principal` holds the live lease of `space`, or of another space of this process (SRV-605).
    pub(crate) fn holds_live_lease(
        &self,
        space: &Space,
        reader: &Reader,
        principal: Option<&Did>,
        elsewhere: &ElsewhereLeases,
    ) -> Result<bool, EngineError> {
        let Some(principal) = principal else {
            return Ok(false);
        };
        let holder = self.holder_of(principal);
        let here = reader.live_holder(space.id(), self.config().clock.wall_ms())?;
        Ok(here.as_ref() == Some(&holder) || elsewhere.held_by(&holder).is_some())
    }
}
