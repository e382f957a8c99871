//! What a runtime waits on: a signal that other threads raise, and a timer over its clock.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;

use crate::ambient::Clock;
use crate::transport::Wake;

/// Wakes the runtime's thread from any other.
#[derive(Clone, Debug, Default)]
pub struct WakeSignal(Arc<tokio::sync::Notify>);

impl WakeSignal {
    /// A signal nobody has raised.
    pub fn new() -> WakeSignal {
        WakeSignal::default()
    }

    /// The function transports call.
    pub fn wake(&self) -> Wake {
        let notify = Arc::clone(&self.0);
        Arc::new(move || notify.notify_one())
    }

    /// Raises it.
    pub fn raise(&self) {
        self.0.notify_one();
    }

    /// Waits until it is raised; consumes that raise.
    pub async fn raised(&self) {
        self.0.notified().await;
    }
}

/// Waits for an instant of the runtime's clock.
pub trait Timer {
    /// Resolves when the clock has reached `at_ms`. Resolving early is harmless.
    fn sleep_until(&self, at_ms: i64) -> LocalBoxFuture<'static, ()>;
}

/// Sleeps on the executor's timer by the distance the clock reports.
pub struct ExecutorTimer(Rc<dyn Clock>);

impl ExecutorTimer {
    /// A timer for that clock; only polled inside a tokio runtime with time enabled.
    pub fn new(clock: Rc<dyn Clock>) -> ExecutorTimer {
        ExecutorTimer(clock)
    }
}

impl Timer for ExecutorTimer {
    fn sleep_until(&self, at_ms: i64) -> LocalBoxFuture<'static, ()> {
        let distance = u64::try_from(at_ms - self.0.now_ms()).unwrap_or(0);
        Box::pin(tokio::time::sleep(Duration::from_millis(distance)))
    }
}
