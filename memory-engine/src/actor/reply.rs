//! The result of a job that runs on another thread: a future without a runtime, which can also be waited for. Made by
//! [`super::EngineHandle`]; completed exactly once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::EngineError;
use crate::sync::{Condvar, Mutex};

/// The pending result of a job. Dropping it does not cancel the job.
#[must_use = "a reply does nothing unless awaited or waited for; drop it on purpose to ignore the result"]
pub struct Reply<R>(Arc<Shared<R>>);

/// The other end. Dropped without completing, it answers [`EngineError::Closed`].
pub(super) struct Complete<R>(Option<Arc<Shared<R>>>);

struct Shared<R> {
    state: Mutex<State<R>>,
    done: Condvar,
}

enum State<R> {
    /// → `Done`
    Waiting(Option<Waker>),
    /// → `Taken`
    Done(Result<R, EngineError>),
    Taken,
}

impl<R> Reply<R> {
    pub(super) fn new() -> (Reply<R>, Complete<R>) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Waiting(None)),
            done: Condvar::new(),
        });
        (Reply(shared.clone()), Complete(Some(shared)))
    }

    /// A result that is there already.
    pub(super) fn ready(result: R) -> Reply<R> {
        Reply(Arc::new(Shared {
            state: Mutex::new(State::Done(Ok(result))),
            done: Condvar::new(),
        }))
    }

    /// Blocks until the result is there. Never to be called on the writer thread itself.
    ///
    /// # Errors
    /// What became of the job: [`EngineError::Panicked`], [`EngineError::GroupLost`], [`EngineError::Closed`], or why
    /// the store could not be opened.
    pub fn wait(self) -> Result<R, EngineError> {
        let mut state = self.0.state.lock();
        while let State::Waiting(_) = *state {
            self.0.done.wait(&mut state);
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => result,
            State::Waiting(_) | State::Taken => Err(EngineError::Closed),
        }
    }
}

impl<R> Future for Reply<R> {
    type Output = Result<R, EngineError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock();
        match &mut *state {
            State::Waiting(waker) => {
                match waker {
                    Some(known) => known.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            State::Done(_) | State::Taken => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(result) => Poll::Ready(result),
                State::Waiting(_) | State::Taken => Poll::Ready(Err(EngineError::Closed)),
            },
        }
    }
}

impl<R> Complete<R> {
    pub(super) fn complete(mut self, result: Result<R, EngineError>) {
        self.settle(result);
    }

    fn settle(&mut self, result: Result<R, EngineError>) {
        let Some(shared) = self.0.take() else { return };
        let waker = match std::mem::replace(&mut *shared.state.lock(), State::Done(result)) {
            State::Waiting(waker) => waker,
            State::Done(_) | State::Taken => None,
        };
        shared.done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<R> Drop for Complete<R> {
    fn drop(&mut self) {
        self.settle(Err(EngineError::Closed));
    }
}
