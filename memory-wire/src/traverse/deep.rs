//! Recursion on the heap (TRV-1501): the one device by which the walk and the schema functions recurse.
//! A recursive step is an `async` block used purely as a frame that the compiler lays out; nothing here waits for
//! I/O. [`run`] keeps the open frames in a vector, so stored data decides how much memory a walk takes and never
//! how much native stack. Used by this module's siblings only.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

type Frame<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

/// More frames were open than the caller allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooDeep;

/// The way a running frame opens another one.
pub(super) struct Deep<'f>(Rc<RefCell<Option<Frame<'f>>>>);

impl Clone for Deep<'_> {
    fn clone(&self) -> Self {
        Deep(Rc::clone(&self.0))
    }
}

impl<'f> Deep<'f> {
    /// Opens a frame that runs `body`; awaiting the result suspends the current frame until `body` is done.
    pub(super) fn call<T: 'f>(&self, body: impl Future<Output = T> + 'f) -> Call<T> {
        let result = Rc::new(Cell::new(None));
        let slot = Rc::clone(&result);
        *self.0.borrow_mut() = Some(Box::pin(async move { slot.set(Some(body.await)) }));
        Call { result }
    }
}

/// The pending result of [`Deep::call`]. It must be awaited at once: only one frame can be opened at a time.
pub(super) struct Call<T> {
    result: Rc<Cell<Option<T>>>,
}

impl<T> Future for Call<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.result.take() {
            Some(value) => Poll::Ready(value),
            None => Poll::Pending,
        }
    }
}

/// Runs `body` and every frame it opens, at most `limit` at a time.
pub(super) fn run<'f, T: 'f, F>(limit: usize, body: impl FnOnce(Deep<'f>) -> F) -> Result<T, TooDeep>
where
    F: Future<Output = T> + 'f,
{
    let deep = Deep(Rc::new(RefCell::new(None)));
    let result = deep.call(body(deep.clone())).result;
    let mut frames: Vec<Frame<'f>> = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Some(opened) = deep.0.borrow_mut().take() {
            if frames.len() >= limit {
                return Err(TooDeep);
            }
            frames.push(opened);
        }
        match frames.last_mut() {
            Some(top) => {
                if top.as_mut().poll(&mut cx).is_ready() {
                    frames.pop();
                }
            }
            None => {
                return Ok(result
                    .take()
                    .expect("the first frame stores its result before it ends"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn count(deep: Deep<'_>, n: u32) -> u32 {
        if n == 0 {
            0
        } else {
            1 + deep.call(count(deep.clone(), n - 1)).await
        }
    }

    #[test]
    fn trv_1501_recursion_is_bounded_by_the_limit_not_the_stack() {
        assert_eq!(run(200_000, |deep| count(deep, 150_000)), Ok(150_000));
        assert_eq!(run(1_000, |deep| count(deep, 1_000)), Err(TooDeep));
        assert_eq!(run(1_001, |deep| count(deep, 1_000)), Ok(1_000));
    }
}
