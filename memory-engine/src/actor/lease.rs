//! The lease table through a handle: each call is a turn of the writer thread, waited for. For the serving loop's thread,
//! never for the writer's own.

use memory_wire::ids::SpaceId;

use super::EngineHandle;
use crate::error::EngineError;
use crate::lease::{Holder, LeaseTable};

impl LeaseTable for EngineHandle {
    fn acquire(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError> {
        let (space, holder) = (space.clone(), holder.clone());
        self.turn(move |engine| engine.acquire(&space, &holder, now_ms, ttl_ms))
            .wait()?
    }

    fn renew(
        &mut self,
        space: &SpaceId,
        holder: &Holder,
        now_ms: i64,
        ttl_ms: i64,
    ) -> Result<bool, EngineError> {
        let (space, holder) = (space.clone(), holder.clone());
        self.turn(move |engine| engine.renew(&space, &holder, now_ms, ttl_ms))
            .wait()?
    }

    fn release(&mut self, space: &SpaceId, holder: &Holder) -> Result<(), EngineError> {
        let (space, holder) = (space.clone(), holder.clone());
        self.turn(move |engine| engine.release(&space, &holder)).wait()?
    }

    fn live_holder(&mut self, space: &SpaceId, now_ms: i64) -> Result<Option<Holder>, EngineError> {
        let space = space.clone();
        self.read(move |reader| reader.live_holder(&space, now_ms))
            .wait()?
    }
}
