//! How a runtime gets its turns: stepping, waiting, and being idle (RUN-560, §5.8).

use std::future::Future;

use futures_util::future::{Either, select};

use crate::promise::Promise;
use crate::runtime::Runtime;
use crate::scheduler::Step;

impl Runtime {
    /// Does what can be done now: handles frames, runs demanded work, delivers events. Never waits. On the
    /// serving posture it yields every 16 ms of work (RUN-536).
    pub fn step(&self) -> Step {
        loop {
            self.0.storage.pump();
            match self.0.scheduler.step() {
                Step::Yielded => return Step::Yielded,
                Step::Quiet { wake_at } => {
                    if self.0.storage.pump() {
                        // Frames or deferred work may have made something runnable.
                        continue;
                    }
                    if self.settle_pulls() {
                        continue;
                    }
                    let deadlines = [wake_at, self.0.storage.next_deadline_ms()];
                    return Step::Quiet {
                        wake_at: deadlines.into_iter().flatten().min(),
                    };
                }
            }
        }
    }

    /// Steps and waits until idle (RUN-560): no runnable work, no queued event, no piece start under way.
    pub async fn idle(&self) {
        self.drive_until(|| self.is_idle()).await;
    }

    /// Idle now? (§5.8)
    pub fn is_idle(&self) -> bool {
        self.0.scheduler.is_idle()
    }

    /// Idle, and everything read has been answered and every commit settled; repeated until nothing moves.
    pub async fn settled(&self) {
        /// Rounds before giving up on a graph that keeps asking.
        const ROUNDS: usize = 50;
        for _ in 0..ROUNDS {
            self.idle().await;
            let synced = self.0.storage.synced();
            if synced.is_settled() && self.is_idle() {
                return;
            }
            self.wait_on(synced).await;
        }
    }

    /// Waits for inbound loads only (SS-555): the serving loop must not wait for commits it has not issued.
    pub async fn input_synced(&self) {
        let synced = self.0.storage.input_synced();
        self.wait_on(synced).await;
    }

    /// Steps for ever: what an embedder spawns when nobody else drives. Ends when the runtime is disposed.
    pub async fn drive(&self) {
        self.drive_until(|| self.0.scheduler.is_disposed()).await;
    }

    /// Steps until `future` resolves. Everything that settles promises happens in steps, so awaiting a promise of
    /// this runtime without stepping would wait for ever.
    pub async fn wait_on<T: Clone + 'static>(&self, promise: Promise<T>) -> T {
        self.drive_until(|| promise.is_settled()).await;
        promise.await
    }

    async fn drive_until(&self, done: impl Fn() -> bool) {
        loop {
            let bell = self.0.scheduler.bell();
            match self.step() {
                _ if done() => return,
                Step::Yielded => tokio::task::yield_now().await,
                Step::Quiet { wake_at } => self.wait(bell, wake_at).await,
            }
        }
    }

    async fn wait(&self, bell: Promise<()>, wake_at: Option<i64>) {
        if bell.is_settled() {
            // Something rang between the step and now; an executor with other tasks gets a turn first.
            return tokio::task::yield_now().await;
        }
        let signal = Box::pin(self.0.signal.raised());
        let woken = select(bell, signal);
        match wake_at {
            None => drop_either(woken).await,
            Some(at) => match select(Box::pin(drop_either(woken)), self.0.timer.sleep_until(at)).await {
                Either::Left(_) | Either::Right(_) => {}
            },
        }
    }

    fn settle_pulls(&self) -> bool {
        if self.0.pulls.borrow().is_empty() || !self.is_idle() || !self.0.storage.input_synced().is_settled()
        {
            return false;
        }
        let ready = std::mem::take(&mut *self.0.pulls.borrow_mut());
        for pull in ready {
            let value = pull.cell.without_tx().get();
            pull.done.settle(value);
        }
        true
    }
}

async fn drop_either<A: Future + Unpin, B: Future + Unpin>(either: futures_util::future::Select<A, B>) {
    match either.await {
        Either::Left(_) | Either::Right(_) => {}
    }
}
