//! The lease of one served space (SS §4): its tenures, its two renewal drivers, and what a loss does. Every wave
//! captures the tenure it opens under and asks again before each call that would commit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use memory_engine::lease::{Holder, LeaseHolder, LeaseTable, Tenure};
use memory_engine::{EngineError, EngineHandle};
use memory_wire::SpaceId;

use crate::statistics::Statistics;
use crate::time::HostTime;

/// What an attempt to renew found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The tenure goes on.
    Kept,
    /// The tenure ended and a new one began at once: what sealed under the old one must not land (SS-206).
    Regained,
    /// The tenure ended, and another holder has the lease.
    Lost,
}

/// See the module documentation.
pub(crate) struct LeaseKeeper {
    lease: RefCell<LeaseHolder>,
    engine: EngineHandle,
    time: HostTime,
    ttl: Duration,
    statistics: Statistics,
    /// Monotonic instant of the last attempt to renew, stamped before its outcome is known (SS-205).
    attempted: Cell<i64>,
    lost: Cell<bool>,
    /// It counts as held in the statistics.
    counted: Cell<bool>,
    on_regained: RefCell<Option<Rc<dyn Fn()>>>,
}

impl LeaseKeeper {
    pub(crate) fn new(
        space: SpaceId,
        holder: Holder,
        engine: EngineHandle,
        time: HostTime,
        ttl: Duration,
        statistics: Statistics,
    ) -> LeaseKeeper {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        LeaseKeeper {
            lease: RefCell::new(LeaseHolder::new(space, holder, ttl_ms)),
            engine,
            attempted: Cell::new(time.monotonic_ms()),
            time,
            ttl,
            statistics,
            lost: Cell::new(false),
            counted: Cell::new(false),
            on_regained: RefCell::default(),
        }
    }

    /// Called whenever a tenure begins right after one ended.
    pub(crate) fn on_regained(&self, f: impl Fn() + 'static) {
        *self.on_regained.borrow_mut() = Some(Rc::new(f));
    }

    /// Takes the lease if it is free or ours (SS-202).
    pub(crate) async fn acquire(&self) -> Result<bool, EngineError> {
        let (space, holder) = self.names();
        let (now, ttl_ms) = (self.time.clocks(), self.ttl_ms());
        let taken = self
            .engine
            .turn(move |engine| engine.acquire(&space, &holder, now.wall_ms, ttl_ms))
            .await
            .and_then(|r| r);
        let acquired = self.lease.borrow_mut().acquire(&mut Answer(Some(taken)), now)?;
        if acquired {
            self.count(true);
        }
        Ok(acquired)
    }

    /// The timer's driver: renews, without holding the thread up meanwhile.
    pub(crate) async fn renew(&self) -> Result<Renewal, EngineError> {
        let (space, holder) = self.names();
        let (now, ttl_ms) = (self.time.clocks(), self.ttl_ms());
        self.attempted.set(now.monotonic_ms);
        if self.is_held() {
            let (renewed_space, renewed_holder) = (space.clone(), holder.clone());
            let renewed = self
                .engine
                .turn(move |engine| engine.renew(&renewed_space, &renewed_holder, now.wall_ms, ttl_ms))
                .await
                .and_then(|r| r);
            if self.lease.borrow_mut().renew(&mut Answer(Some(renewed)), now)? {
                return Ok(Renewal::Kept);
            }
        }
        self.note_loss();
        let now = self.time.clocks();
        let taken = self
            .engine
            .turn(move |engine| engine.acquire(&space, &holder, now.wall_ms, ttl_ms))
            .await
            .and_then(|r| r);
        let regained = self.lease.borrow_mut().acquire(&mut Answer(Some(taken)), now)?;
        Ok(self.after_loss(regained))
    }

    /// The yield observer's driver: long synchronous passes starve the timer. Waits for the store.
    pub(crate) fn renew_if_due(&self) -> Option<Result<Renewal, EngineError>> {
        let due = self.attempted.get().saturating_add(self.ttl_ms() / 3);
        let now = self.time.clocks();
        if now.monotonic_ms < due {
            return None;
        }
        self.attempted.set(now.monotonic_ms);
        Some(self.renew_waiting())
    }

    fn renew_waiting(&self) -> Result<Renewal, EngineError> {
        let mut table = self.engine.clone();
        if self.lease.borrow_mut().renew(&mut table, self.time.clocks())? {
            return Ok(Renewal::Kept);
        }
        self.note_loss();
        let regained = self.lease.borrow_mut().acquire(&mut table, self.time.clocks())?;
        Ok(self.after_loss(regained))
    }

    fn note_loss(&self) {
        self.statistics.update(|s| s.lease.lost += 1);
        self.count(false);
    }

    fn count(&self, held: bool) {
        match (self.counted.replace(held), held) {
            (false, true) => self.statistics.update(|s| s.lease.held += 1),
            (true, false) => self
                .statistics
                .update(|s| s.lease.held = s.lease.held.saturating_sub(1)),
            (false, false) | (true, true) => {}
        }
    }

    fn after_loss(&self, regained: bool) -> Renewal {
        if !regained {
            self.lost.set(true);
            return Renewal::Lost;
        }
        self.count(true);
        let told = self.on_regained.borrow().clone();
        if let Some(tell) = told {
            tell();
        }
        Renewal::Regained
    }

    /// Another holder has the lease: park.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    /// Whether the lease is held, judged by both clocks (SS-209).
    pub(crate) fn is_held(&self) -> bool {
        self.lease.borrow().is_held(self.time.clocks())
    }

    /// The tenure that a wave opened now belongs to.
    pub(crate) fn tenure(&self) -> Tenure {
        self.lease.borrow().tenure()
    }

    /// Whether work of `tenure` may still commit (SS-203).
    pub(crate) fn is_current(&self, tenure: Tenure) -> bool {
        self.lease.borrow().is_current(tenure, self.time.clocks())
    }

    /// Looks at the hold on the lease, which a wave commit is made with.
    pub(crate) fn with_lease<R>(&self, look: impl FnOnce(&LeaseHolder) -> R) -> R {
        look(&self.lease.borrow())
    }

    /// Gives the lease up.
    pub(crate) async fn release(&self) -> Result<(), EngineError> {
        let (space, holder) = self.names();
        let released = self
            .engine
            .turn(move |engine| engine.release(&space, &holder))
            .await
            .and_then(|r| r);
        self.count(false);
        self.lease
            .borrow_mut()
            .release(&mut Answer(Some(released.map(|()| true))))
    }

    fn names(&self) -> (SpaceId, Holder) {
        let lease = self.lease.borrow();
        (lease.space().clone(), lease.holder().clone())
    }

    fn ttl_ms(&self) -> i64 {
        i64::try_from(self.ttl.as_millis()).unwrap_or(i64::MAX)
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        // A loop that ended without releasing: the row expires by itself, or this process takes it again.
        self.count(false);
    }
}

/// The table's answer, asked for on the writer's thread and given to the lease here.
struct Answer(Option<Result<bool, EngineError>>);

impl Answer {
    fn take(&mut self) -> Result<bool, EngineError> {
        self.0.take().unwrap_or(Err(EngineError::Closed))
    }
}

impl LeaseTable for Answer {
    fn acquire(&mut self, _: &SpaceId, _: &Holder, _: i64, _: i64) -> Result<bool, EngineError> {
        self.take()
    }

    fn renew(&mut self, _: &SpaceId, _: &Holder, _: i64, _: i64) -> Result<bool, EngineError> {
        self.take()
    }

    fn release(&mut self, _: &SpaceId, _: &Holder) -> Result<(), EngineError> {
        self.take().map(|_| ())
    }

    fn live_holder(&mut self, _: &SpaceId, _: i64) -> Result<Option<Holder>, EngineError> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use memory_engine::store_path::StoreLocation;
    use memory_engine::{ActorOptions, EngineOptions};

    use super::*;
    use crate::time::ExecutorSleeper;

    #[derive(Default)]
    struct Clock {
        wall: AtomicI64,
        monotonic: AtomicI64,
    }

    impl Clock {
        fn advance(&self, wall: i64, monotonic: i64) {
            self.wall.fetch_add(wall, Ordering::Relaxed);
            self.monotonic.fetch_add(monotonic, Ordering::Relaxed);
        }
    }

    impl memory_server::Clock for Clock {
        fn wall_ms(&self) -> i64 {
            self.wall.load(Ordering::Relaxed)
        }
        fn monotonic_ms(&self) -> u64 {
            self.monotonic.load(Ordering::Relaxed).unsigned_abs()
        }
    }

    struct Setup {
        clock: Arc<Clock>,
        engine: EngineHandle,
        statistics: Statistics,
    }

    impl Setup {
        fn new() -> Setup {
            let options = EngineOptions {
                serving: true,
                ..EngineOptions::default()
            };
            Setup {
                clock: Arc::default(),
                engine: EngineHandle::new(StoreLocation::Memory, options, ActorOptions::default()),
                statistics: Statistics::default(),
            }
        }

        fn keeper(&self, holder: &str) -> LeaseKeeper {
            let time = HostTime::new(self.clock.clone(), Arc::new(ExecutorSleeper));
            let ttl = Duration::from_millis(15_000);
            LeaseKeeper::new(
                "did:key:zS".into(),
                Holder::from(holder),
                self.engine.clone(),
                time,
                ttl,
                self.statistics.clone(),
            )
        }
    }

    #[tokio::test]
    async fn ss_203_a_tenure_lasts_while_renewed_and_ends_before_a_failed_renewal_returns() {
        let setup = Setup::new();
        let keeper = setup.keeper("did:key:zA#1");
        assert!(keeper.acquire().await.unwrap());
        let first = keeper.tenure();
        setup.clock.advance(14_000, 14_000);
        assert_eq!(keeper.renew().await.unwrap(), Renewal::Kept);
        setup.clock.advance(14_000, 14_000);
        assert!(keeper.is_current(first));
        setup.clock.advance(1_000, 1_000);
        assert!(!keeper.is_current(first), "exactly at its end a lease is over");
        assert_eq!(keeper.renew().await.unwrap(), Renewal::Regained);
        assert!(!keeper.is_current(first), "a regained lease is another tenure");
        assert!(keeper.is_current(keeper.tenure()));
        assert_eq!(setup.statistics.snapshot().lease.lost, 1);
        assert_eq!(setup.statistics.snapshot().lease.held, 1);
    }

    #[tokio::test]
    async fn ss_206_an_interim_holder_makes_a_loss_final() {
        let setup = Setup::new();
        let (ours, theirs) = (setup.keeper("did:key:zA#1"), setup.keeper("did:key:zA#2"));
        assert!(ours.acquire().await.unwrap());
        assert!(!theirs.acquire().await.unwrap());
        setup.clock.advance(15_000, 15_000);
        assert!(theirs.acquire().await.unwrap());
        assert_eq!(ours.renew().await.unwrap(), Renewal::Lost);
        assert!(ours.is_lost());
        theirs.release().await.unwrap();
        assert_eq!(setup.statistics.snapshot().lease.held, 0);
    }

    #[tokio::test]
    async fn ss_209_a_suspended_host_finds_its_tenure_over() {
        let setup = Setup::new();
        let keeper = setup.keeper("did:key:zA#1");
        assert!(keeper.acquire().await.unwrap());
        let first = keeper.tenure();
        // The wall clock was set back while the host slept.
        setup.clock.advance(-1_000, 20_000);
        assert!(!keeper.is_current(first));
        assert_eq!(keeper.renew().await.unwrap(), Renewal::Regained);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ss_205_the_yield_driver_renews_a_third_of_the_lease_after_the_last_attempt() {
        let setup = Setup::new();
        let keeper = setup.keeper("did:key:zA#1");
        assert!(keeper.acquire().await.unwrap());
        setup.clock.advance(4_999, 4_999);
        assert!(keeper.renew_if_due().is_none());
        setup.clock.advance(1, 1);
        assert_eq!(keeper.renew_if_due().unwrap().unwrap(), Renewal::Kept);
        assert!(keeper.renew_if_due().is_none(), "the attempt itself is the stamp");
    }
}
