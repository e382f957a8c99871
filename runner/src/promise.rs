//! A value that arrives once, on this thread: the crate's only asynchronous primitive (RUN-1100, RUN-1101).
//!
//! A [`Promise`] can be polled ([`Promise::peek`]), listened to ([`Promise::then`]) or awaited, so the same API
//! serves a plain thread that pumps, a `LocalSet`, and tests that step by hand.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

type Listener<T> = Box<dyn FnOnce(&T)>;

struct State<T> {
    value: Option<T>,
    listeners: Vec<Listener<T>>,
    wakers: Vec<Waker>,
}

/// A shared handle to a value that is settled at most once; clones see the same value.
pub struct Promise<T>(Rc<RefCell<State<T>>>);

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        Promise(Rc::clone(&self.0))
    }
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Promise::new()
    }
}

impl<T> std::fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_settled() {
            "Promise(settled)"
        } else {
            "Promise(pending)"
        })
    }
}

impl<T> Promise<T> {
    /// A promise nobody has settled yet.
    pub fn new() -> Promise<T> {
        Promise(Rc::new(RefCell::new(State {
            value: None,
            listeners: Vec::new(),
            wakers: Vec::new(),
        })))
    }

    /// True once a value is there.
    pub fn is_settled(&self) -> bool {
        self.0.borrow().value.is_some()
    }

    /// True when both handles are the same promise.
    pub fn same(&self, other: &Promise<T>) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: Clone + 'static> Promise<T> {
    /// A promise that already holds `value`.
    pub fn ready(value: T) -> Promise<T> {
        let promise = Promise::new();
        promise.settle(value);
        promise
    }

    /// Gives the value; the first call wins and answers `true`. Listeners run now, in order of registration.
    pub fn settle(&self, value: T) -> bool {
        let (listeners, wakers) = {
            let mut state = self.0.borrow_mut();
            if state.value.is_some() {
                return false;
            }
            state.value = Some(value.clone());
            (
                std::mem::take(&mut state.listeners),
                std::mem::take(&mut state.wakers),
            )
        };
        for listener in listeners {
            listener(&value);
        }
        for waker in wakers {
            waker.wake();
        }
        true
    }

    /// The value, if it is there.
    pub fn peek(&self) -> Option<T> {
        self.0.borrow().value.clone()
    }

    /// Runs `listener` with the value: now if it is there, else when it arrives.
    pub fn then(&self, listener: impl FnOnce(&T) + 'static) {
        match self.peek() {
            Some(value) => listener(&value),
            None => self.0.borrow_mut().listeners.push(Box::new(listener)),
        }
    }

    /// A promise of the mapped value.
    pub fn map<U: Clone + 'static>(&self, f: impl FnOnce(&T) -> U + 'static) -> Promise<U> {
        let mapped = Promise::new();
        let out = mapped.clone();
        self.then(move |value| {
            out.settle(f(value));
        });
        mapped
    }
}

impl Promise<()> {
    /// Settles when every given promise has (at once for none).
    pub fn all<T: Clone + 'static>(promises: impl IntoIterator<Item = Promise<T>>) -> Promise<()> {
        let done = Promise::new();
        let waiting: Vec<Promise<T>> = promises.into_iter().filter(|p| !p.is_settled()).collect();
        if waiting.is_empty() {
            done.settle(());
            return done;
        }
        let left = Rc::new(std::cell::Cell::new(waiting.len()));
        for promise in waiting {
            let (left, done) = (Rc::clone(&left), done.clone());
            promise.then(move |_| {
                left.set(left.get() - 1);
                if left.get() == 0 {
                    done.settle(());
                }
            });
        }
        done
    }
}

impl<T: Clone> Future for Promise<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match &state.value {
            Some(value) => Poll::Ready(value.clone()),
            None => {
                if !state.wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    state.wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn settles_once_and_tells_everyone() {
        let promise = Promise::new();
        let seen = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let seen = Rc::clone(&seen);
            promise.then(move |v: &i32| seen.set(seen.get() + v));
        }
        assert!(promise.settle(3));
        assert!(!promise.settle(4));
        assert_eq!((seen.get(), promise.peek()), (6, Some(3)));
    }

    #[test]
    fn all_waits_for_the_last_one() {
        let (a, b) = (Promise::new(), Promise::new());
        let all = Promise::all([a.clone(), b.clone()]);
        a.settle(1);
        assert!(!all.is_settled());
        b.settle(2);
        assert!(all.is_settled());
        assert!(Promise::all(Vec::<Promise<i32>>::new()).is_settled());
    }
}
