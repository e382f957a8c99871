//! The publication turn of a space (SRV-407…409). It is the space's writer thread: one job at a time, in order. A commit
//! is admitted and, once durable, published — marks, notice, verdict — by one job ([`EngineHandle::write_then`], where
//! commits that wait together share a transaction); a fan-out, a watch change, an open and a list change are one job
//! each ([`Space::in_turn`]). So no frame overtakes the verdict it would cover, a marker never precedes what it
//! promises, and whatever a job marks dirty is visible to every fan-out after it. Jobs must not wait for the same
//! space's jobs.
//!
//! [`EngineHandle::write_then`]: memory_engine::EngineHandle::write_then

use memory_engine::{Engine, EngineError, Reader};

use crate::error::ServerError;
use crate::space::Space;

impl Space {
    /// Runs `work` in the space's turn.
    pub(crate) async fn in_turn<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ServerError> {
        Ok(self.engine().turn(work).await?)
    }

    /// Runs `work` on one committed state of the store, beside the turn.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Reader) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, ServerError> {
        Ok(self.engine().read(work).await??)
    }
}
