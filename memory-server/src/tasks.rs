//! Work that goes on beside the requests, and the passing of time it waits for. The runtime is tokio's; with the feature
//! `schedules` it is the scheduler that plays a test's interleavings through, where time is a choice of the schedule.

#[cfg(not(feature = "schedules"))]
pub(crate) use served::{Tasks, sleep, timeout};

#[cfg(feature = "schedules")]
pub(crate) use scheduled::{Tasks, sleep, timeout};

#[cfg(not(feature = "schedules"))]
mod served {
    use std::future::Future;
    use std::time::Duration;

    use tokio::runtime::Handle;

    use crate::error::ServerError;

    /// Where tasks run.
    pub(crate) struct Tasks(Handle);

    impl Tasks {
        /// The runtime the caller is in.
        pub(crate) fn current() -> Result<Tasks, ServerError> {
            Handle::try_current()
                .map(Tasks)
                .map_err(|_| ServerError::NoRuntime)
        }

        /// Starts a task nobody waits for.
        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            drop(self.0.spawn(task));
        }
    }

    pub(crate) async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// What `work` comes to, or `None` when it takes longer than `limit`.
    pub(crate) async fn timeout<R>(limit: Duration, work: impl Future<Output = R>) -> Option<R> {
        tokio::time::timeout(limit, work).await.ok()
    }
}

#[cfg(feature = "schedules")]
mod scheduled {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use shuttle::rand::Rng;

    use crate::error::ServerError;

    pub(crate) struct Tasks(());

    impl Tasks {
        #[allow(clippy::unnecessary_wraps, reason = "the signature of the one that serves")]
        pub(crate) fn current() -> Result<Tasks, ServerError> {
            Ok(Tasks(()))
        }

        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            drop(shuttle::future::spawn(task));
        }
    }

    /// The others go on meanwhile. No schedule lasts a second.
    pub(crate) async fn sleep(duration: Duration) {
        if duration >= Duration::from_secs(1) {
            std::future::pending::<()>().await;
        }
        shuttle::future::yield_now().await;
    }

    /// The schedule decides whether the time is up when `work` has to wait.
    pub(crate) async fn timeout<R>(_: Duration, work: impl Future<Output = R>) -> Option<R> {
        let mut work = pin!(work);
        std::future::poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if shuttle::rand::thread_rng().gen_bool(0.25) => Poll::Ready(None),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await
    }
}
