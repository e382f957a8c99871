//! What wakes a waiting loop (SS-501): three latches, each consumed by the wait that returns because of it, and a bell
//! for everything that leaves its trace elsewhere. Rung from callbacks of the runtime on the loop's own thread.

use std::cell::Cell;

use tokio::sync::Notify;

/// A latched reason, in the order waits look at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Latch {
    /// Demand changed and its grace is over.
    Demand,
    /// A structure load may succeed now.
    StructureRetry,
    /// A parked write stopped hiding foreign state.
    ShadowFlip,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    demand: Cell<bool>,
    structure_retry: Cell<bool>,
    shadow_flip: Cell<bool>,
    bell: Notify,
}

impl Wakeup {
    /// Sets a latch and wakes.
    pub(crate) fn latch(&self, latch: Latch) {
        self.cell(latch).set(true);
        self.ring();
    }

    /// Wakes whoever waits, or the next who does.
    pub(crate) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Consumes the first latch that is set.
    pub(crate) fn take(&self) -> Option<Latch> {
        [Latch::Demand, Latch::StructureRetry, Latch::ShadowFlip]
            .into_iter()
            .find(|latch| self.cell(*latch).replace(false))
    }

    /// Waits for the bell.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    fn cell(&self, latch: Latch) -> &Cell<bool> {
        match latch {
            Latch::Demand => &self.demand,
            Latch::StructureRetry => &self.structure_retry,
            Latch::ShadowFlip => &self.shadow_flip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_501_latches_are_consumed_one_a_wait_and_in_order() {
        let wakeup = Wakeup::default();
        wakeup.latch(Latch::ShadowFlip);
        wakeup.latch(Latch::Demand);
        wakeup.latch(Latch::Demand);
        assert_eq!(wakeup.take(), Some(Latch::Demand));
        assert_eq!(wakeup.take(), Some(Latch::ShadowFlip));
        assert_eq!(wakeup.take(), None);
    }
}
