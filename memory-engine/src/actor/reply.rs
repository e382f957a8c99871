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
    Waiting(Waiter),
    /// → `Taken`
    Done {
        result: Result<R, EngineError>,
        /// Whom the thread that takes the result is to wake.
        next: Option<Arc<dyn Sleeper>>,
    },
    Taken,
}

/// Who waits for a result.
enum Waiter {
    Nobody,
    Task(Waker),
    /// Sleeps in [`Reply::wait`].
    Thread,
}

impl<R> State<R> {
    fn done(result: Result<R, EngineError>) -> State<R> {
        State::Done { result, next: None }
    }

    /// Takes the result out, with whom to wake next; nothing if it was taken before.
    fn take(&mut self) -> (Result<R, EngineError>, Option<Arc<dyn Sleeper>>) {
        match std::mem::replace(self, State::Taken) {
            State::Done { result, next } => (result, next),
            State::Waiting(_) | State::Taken => (Err(EngineError::Closed), None),
        }
    }
}

/// A thread asleep in [`Reply::wait`], whose result is there.
trait Sleeper: Send + Sync {
    fn wake(&self);

    /// Has the thread wake `next` as soon as it wakes itself. Gives `next` back when it is awake already.
    fn pass_on(&self, next: Arc<dyn Sleeper>) -> Option<Arc<dyn Sleeper>>;
}

impl<R: Send> Sleeper for Shared<R> {
    fn wake(&self) {
        self.done.notify_all();
    }

    fn pass_on(&self, whom: Arc<dyn Sleeper>) -> Option<Arc<dyn Sleeper>> {
        match &mut *self.state.lock() {
            State::Done { next, .. } => next.replace(whom),
            State::Waiting(_) | State::Taken => Some(whom),
        }
    }
}

/// Whoever waits for the results of a group. Waking a thread costs the one that wakes it a good part of a commit, and all of
/// a group awake at once take the processor from the writer. So the writer wakes the first few, and each wakes another one.
#[derive(Default)]
pub(super) struct Wakes {
    tasks: Vec<Waker>,
    threads: Vec<Arc<dyn Sleeper>>,
}

/// Threads that the writer itself wakes.
const CHAINS: usize = 2;

impl Wakes {
    /// To be called when all of the group have their results.
    pub(super) fn wake(self) {
        self.tasks.into_iter().for_each(Waker::wake);
        let mut first: [Option<Arc<dyn Sleeper>>; CHAINS] = Default::default();
        for (n, sleeper) in self.threads.into_iter().enumerate().rev() {
            let next = &mut first[n % CHAINS];
            if let Some(missed) = next.take().and_then(|next| sleeper.pass_on(next)) {
                missed.wake();
            }
            *next = Some(sleeper);
        }
        first.into_iter().flatten().for_each(|sleeper| sleeper.wake());
    }
}

impl<R> Reply<R> {
    pub(super) fn new() -> (Reply<R>, Complete<R>) {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::Waiting(Waiter::Nobody)),
            done: Condvar::new(),
        });
        (Reply(shared.clone()), Complete(Some(shared)))
    }

    /// A result that is there already.
    pub(super) fn ready(result: R) -> Reply<R> {
        Reply(Arc::new(Shared {
            state: Mutex::new(State::done(Ok(result))),
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
        while let State::Waiting(waiter) = &mut *state {
            *waiter = Waiter::Thread;
            self.0.done.wait(&mut state);
        }
        let (result, next) = state.take();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        result
    }
}

impl<R> Future for Reply<R> {
    type Output = Result<R, EngineError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock();
        match &mut *state {
            State::Waiting(waiter) => {
                match waiter {
                    Waiter::Task(known) => known.clone_from(context.waker()),
                    Waiter::Nobody | Waiter::Thread => *waiter = Waiter::Task(context.waker().clone()),
                }
                Poll::Pending
            }
            // Only a sleeping thread is given anybody to wake.
            State::Done { .. } | State::Taken => Poll::Ready(state.take().0),
        }
    }
}

impl<R> Complete<R> {
    pub(super) fn complete(mut self, result: Result<R, EngineError>) {
        self.settle(result);
    }

    fn settle(&mut self, result: Result<R, EngineError>) {
        let Some(shared) = self.0.take() else { return };
        match shared.settle(result) {
            Waiter::Nobody => {}
            Waiter::Task(waker) => waker.wake(),
            Waiter::Thread => {
                shared.done.notify_all();
            }
        }
    }
}

impl<R: Send + 'static> Complete<R> {
    /// As [`Complete::complete`]; whoever waits is woken with the others of `wakes`.
    pub(super) fn complete_among(mut self, result: Result<R, EngineError>, wakes: &mut Wakes) {
        let Some(shared) = self.0.take() else { return };
        match shared.settle(result) {
            Waiter::Nobody => {}
            Waiter::Task(waker) => wakes.tasks.push(waker),
            Waiter::Thread => wakes.threads.push(shared),
        }
    }
}

impl<R> Shared<R> {
    /// Puts the result in; who waits for it and is to be woken.
    fn settle(&self, result: Result<R, EngineError>) -> Waiter {
        match std::mem::replace(&mut *self.state.lock(), State::done(result)) {
            State::Waiting(waiter) => waiter,
            State::Done { .. } | State::Taken => Waiter::Nobody,
        }
    }
}

impl<R> Drop for Complete<R> {
    fn drop(&mut self) {
        self.settle(Err(EngineError::Closed));
    }
}
