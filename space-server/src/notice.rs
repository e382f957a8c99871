//! What the host tells a loop, and how it crosses: one unbounded queue a space, posted to from any thread and never
//! blocking whoever posts (SS-8, SS-111).

use std::cell::RefCell;
use std::future::poll_fn;

use memory_server::{AdmittedCommit, DemandReason};
use tokio::sync::mpsc::UnboundedReceiver;

/// One notice.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// A commit is durable.
    Admitted(AdmittedCommit),
    /// A session was opened or resumed.
    SessionOpened,
    /// Demand changed.
    Demand(DemandReason),
    /// The host closes: park.
    Close,
}

/// The loop's end of its queue. Shared with the task that watches over the loop, so that what a dead loop left
/// unread is not lost (SS-103).
#[derive(Debug)]
pub(crate) struct Mailbox(RefCell<UnboundedReceiver<Notice>>);

impl Mailbox {
    pub(crate) fn new(receiver: UnboundedReceiver<Notice>) -> Mailbox {
        Mailbox(RefCell::new(receiver))
    }

    /// The next notice, if one is here.
    pub(crate) fn try_next(&self) -> Option<Notice> {
        self.0.borrow_mut().try_recv().ok()
    }

    /// Waits for the next notice; `None` when the host is gone.
    pub(crate) async fn next(&self) -> Option<Notice> {
        poll_fn(|cx| self.0.borrow_mut().poll_recv(cx)).await
    }

    /// Refuses further notices and answers those that were not read.
    pub(crate) fn close(&self) -> Vec<Notice> {
        self.0.borrow_mut().close();
        std::iter::from_fn(|| self.try_next()).collect()
    }
}
