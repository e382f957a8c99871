//! The threads that loops live on (SS-8): each runs a single-threaded executor with any number of loops, because a
//! runtime never leaves the thread it was made on.

use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use memory_wire::SpaceId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use super::HostShared;
use super::director::{Directive, Parked};
use super::routes::Routes;
use crate::activation::{Activated, activate};
use crate::error::ServingError;
use crate::notice::{Mailbox, Notice};
use crate::space_loop::{Ended, ParkReason};

/// A space for a thread to serve.
pub(super) struct Assignment {
    pub(super) space: SpaceId,
    pub(super) serial: u64,
    pub(super) queue: UnboundedReceiver<Notice>,
}

/// The director's end of a thread.
pub(super) struct LoopThread {
    commands: UnboundedSender<Assignment>,
    handle: JoinHandle<()>,
    /// Loops assigned and not over.
    pub(super) loops: usize,
}

impl LoopThread {
    pub(super) fn start(
        n: usize,
        shared: &Arc<HostShared>,
        routes: &Arc<Routes>,
        director: &UnboundedSender<Directive>,
    ) -> Result<LoopThread, ServingError> {
        let (commands, assignments) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let (shared, routes, director) = (Arc::clone(shared), Arc::clone(routes), director.clone());
        let handle = std::thread::Builder::new()
            .name(format!("space-loop-{n}"))
            .spawn(move || {
                let local = LocalSet::new();
                runtime.block_on(local.run_until(take_assignments(shared, routes, director, assignments)));
                // Loops whose director is gone end by themselves: their queues are closed.
                runtime.block_on(local);
            })?;
        Ok(LoopThread {
            commands,
            handle,
            loops: 0,
        })
    }

    pub(super) fn assign(&mut self, assignment: Assignment) {
        self.loops += 1;
        if self.commands.send(assignment).is_err() {
            tracing::error!("a loop thread is gone; the space stays unserved until the process restarts");
        }
    }

    pub(super) fn join(self) {
        drop(self.commands);
        if self.handle.join().is_err() {
            tracing::error!("a loop thread panicked");
        }
    }
}

async fn take_assignments(
    shared: Arc<HostShared>,
    routes: Arc<Routes>,
    director: UnboundedSender<Directive>,
    mut assignments: UnboundedReceiver<Assignment>,
) {
    while let Some(assignment) = assignments.recv().await {
        tokio::task::spawn_local(serve(
            Arc::clone(&shared),
            Arc::clone(&routes),
            director.clone(),
            assignment,
        ));
    }
}

/// Activates a space, runs its loop to the end, and tells the director, whatever happens on the way.
async fn serve(
    shared: Arc<HostShared>,
    routes: Arc<Routes>,
    director: UnboundedSender<Directive>,
    assignment: Assignment,
) {
    let Assignment { space, serial, queue } = assignment;
    let mailbox = Rc::new(Mailbox::new(queue));
    let task = tokio::task::spawn_local(activate_and_run(
        Arc::clone(&shared),
        director.clone(),
        space.clone(),
        serial,
        Rc::clone(&mailbox),
    ));
    let ended = match task.await {
        Ok(ended) => ended,
        Err(lost) => {
            let failure = ServingError::TaskLost {
                space: space.clone(),
                detail: lost.to_string(),
            };
            tracing::error!(%space, error = %failure, "loop lost");
            Ended {
                reason: ParkReason::LoopFailed,
                committed: false,
            }
        }
    };
    let unread = routes.close(&space, serial, &mailbox).unread;
    // Without a director nobody is left to care.
    let Ended { reason, committed } = ended;
    let _ = director.send(Directive::Parked(Parked {
        space,
        serial,
        reason,
        committed,
        unread,
    }));
}

async fn activate_and_run(
    shared: Arc<HostShared>,
    director: UnboundedSender<Directive>,
    space: SpaceId,
    serial: u64,
    mailbox: Rc<Mailbox>,
) -> Ended {
    match activate(&shared, &space, mailbox).await {
        Ok(Activated::Serving(serving)) => {
            let _ = director.send(Directive::Active { space, serial });
            serving.run().await
        }
        Ok(Activated::LeaseElsewhere) => {
            tracing::info!(%space, "lease is held elsewhere");
            Ended {
                reason: ParkReason::LeaseUnavailable,
                committed: false,
            }
        }
        Err(error) => {
            tracing::error!(%space, %error, "activation failed");
            Ended {
                reason: ParkReason::LoopFailed,
                committed: false,
            }
        }
    }
}
