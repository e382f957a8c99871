//! Settling a cycle (SS-555, SS-556): until the runtime is quiet and everything the server had to say has been
//! applied, or the flush deadline expires.

use runner::runtime::Runtime;
use runner::serving_runtime::ServingRuntime;

use super::SpaceLoop;
use crate::error::ServingError;

/// How settling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Nothing moves any more.
    Quiescent,
    /// The deadline cut it (SS-557).
    Exhausted,
}

impl SpaceLoop {
    pub(super) async fn settle(&mut self, input: bool) -> Result<Settled, ServingError> {
        let deadline = self.shared.time.sleep(self.shared.settings.flush_deadline);
        tokio::select! {
            biased;
            settled = self.settle_rounds(input) => settled.map(|()| Settled::Quiescent),
            () = deadline => Ok(Settled::Exhausted),
        }
    }

    async fn settle_rounds(&mut self, input: bool) -> Result<(), ServingError> {
        loop {
            self.structure.pass(input).await;
            Runtime::idle(&self.runtime).await;
            self.catch_up().await?;
            // Inbound only: a full barrier would wait for commits this very wave has not made yet.
            Runtime::input_synced(&self.runtime).await;
            tokio::task::yield_now().await;
            self.take_notices();
            if ServingRuntime::is_idle(&self.runtime) && !self.structure.is_owed() {
                return Ok(());
            }
        }
    }

    /// Has the server queue, on our own line too, every frame for what is committed by now. A pass that was under way
    /// when the flush found nothing to do still holds the turn, which is waited for.
    pub(super) async fn catch_up(&self) -> Result<(), ServingError> {
        let home = std::slice::from_ref(&self.id);
        self.shared.plane.flush(Some(home)).await?;
        self.engine
            .turn(|_| ())
            .await
            .map_err(|source| self.store_error(source))?;
        let foreign: Vec<_> = self
            .runtime
            .storage()
            .replicas()
            .iter()
            .map(|replica| replica.space().clone())
            .filter(|space| *space != self.id)
            .collect();
        if !foreign.is_empty()
            && let Err(error) = self.shared.plane.flush(Some(&foreign)).await
        {
            // Another space's trouble is not this loop's.
            tracing::warn!(space = %self.id, %error, "a foreign space did not flush");
        }
        Ok(())
    }
}
