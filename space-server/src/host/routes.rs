//! The way of a notice: to the space's loop if it has one, else to the director (SS-102, SS-103, SS-108). Posting
//! takes one short lock and never blocks; a loop that parks takes its route down before it reads its queue out, so
//! that nothing falls between.

use std::sync::Arc;

use memory_server::{AdmittedCommit, DemandReason, Observer};
use memory_wire::{Did, SpaceId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::director::Directive;
use crate::notice::{Mailbox, Notice};

/// The routes of one host.
pub(crate) struct Routes {
    loops: Mutex<FxHashMap<SpaceId, Route>>,
    director: UnboundedSender<Directive>,
}

struct Route {
    /// Which activation it leads to; a later one has another number (SS-106).
    serial: u64,
    queue: UnboundedSender<Notice>,
}

/// What is left when a loop's route is taken down.
#[derive(Debug, Default)]
pub(crate) struct Parting {
    /// Notices nobody read, in order.
    pub(crate) unread: Vec<Notice>,
}

impl Routes {
    pub(super) fn new(director: UnboundedSender<Directive>) -> Routes {
        Routes {
            loops: Mutex::default(),
            director,
        }
    }

    /// Opens the route of an activation that begins with `first` in its queue (SS-104).
    pub(super) fn open(&self, space: &SpaceId, serial: u64, first: Vec<Notice>) -> UnboundedReceiver<Notice> {
        let (queue, receiver) = unbounded_channel();
        for notice in first {
            // The receiver is in this very scope.
            let _ = queue.send(notice);
        }
        self.loops.lock().insert(space.clone(), Route { serial, queue });
        receiver
    }

    /// Takes the route of that activation down and answers what it carried unread.
    pub(crate) fn close(&self, space: &SpaceId, serial: u64, mailbox: &Mailbox) -> Parting {
        let mut loops = self.loops.lock();
        if loops.get(space).is_some_and(|route| route.serial == serial) {
            loops.remove(space);
        }
        drop(loops);
        Parting {
            unread: mailbox.close(),
        }
    }

    /// Posts to the loop of `space`, or to the director when it has none.
    pub(super) fn post(&self, space: &SpaceId, notice: Notice) {
        let loops = self.loops.lock();
        let unrouted = match loops.get(space) {
            Some(route) => route.queue.send(notice).err().map(|refused| refused.0),
            None => Some(notice),
        };
        drop(loops);
        if let Some(notice) = unrouted {
            // A host that is gone serves nothing: notices are dropped (SS-110).
            let _ = self.director.send(Directive::Notice {
                space: space.clone(),
                notice,
            });
        }
    }
}

/// The host as the memory server calls it.
pub(super) struct HostObserver {
    routes: Arc<Routes>,
    service: Did,
}

impl HostObserver {
    pub(super) fn new(routes: Arc<Routes>, service: Did) -> HostObserver {
        HostObserver { routes, service }
    }
}

impl Observer for HostObserver {
    fn commit_admitted(&self, notice: &AdmittedCommit) {
        self.routes.post(&notice.space, Notice::Admitted(notice.clone()));
    }

    fn session_opened(&self, space: &SpaceId) {
        self.routes.post(space, Notice::SessionOpened);
    }

    fn demand_changed(&self, space: &SpaceId, reason: DemandReason, principal: Option<&Did>) {
        // The serving graph's own reads are nobody's demand (SS-108).
        if principal != Some(&self.service) {
            self.routes.post(space, Notice::Demand(reason));
        }
    }
}
