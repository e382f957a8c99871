//! The director: one task that decides which space is activated, when, and on which thread (SS-100…SS-110). It owns
//! the state of every space; loops and the observer reach it through its queue.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use memory_server::AdmittedCommit;
use memory_wire::commit_meta::CommitClass;
use memory_wire::{BranchName, SpaceId};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use super::HostShared;
use super::boot;
use super::routes::Routes;
use super::threads::{Assignment, LoopThread};
use crate::error::ServingError;
use crate::notice::Notice;
use crate::space_loop::ParkReason;

/// What the director is told.
pub(crate) enum Directive {
    /// A notice for a space without a loop.
    Notice {
        /// Space.
        space: SpaceId,
        /// Notice.
        notice: Notice,
    },
    /// Somebody wants the space served.
    Warm {
        /// Space.
        space: SpaceId,
        /// Told whether it is.
        answer: oneshot::Sender<bool>,
    },
    /// An activation succeeded.
    Active {
        /// Space.
        space: SpaceId,
        /// Which activation.
        serial: u64,
    },
    /// A loop is over, or never began.
    Parked(Parked),
    /// A backoff is over.
    BackoffOver {
        /// Space.
        space: SpaceId,
        /// Which backoff.
        serial: u64,
    },
    /// The lease that another holder had may be free now.
    LeaseDue {
        /// Space.
        space: SpaceId,
    },
    /// A space's store was looked at; `owed` = it holds work that waits for nobody.
    Examined {
        /// Space.
        space: SpaceId,
        /// Pending events, or appends to deliver.
        owed: bool,
    },
    /// Stop serving.
    Close {
        /// Told when that is done.
        done: oneshot::Sender<()>,
    },
}

/// How a loop ended.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) space: SpaceId,
    pub(crate) serial: u64,
    pub(crate) reason: ParkReason,
    /// A wave was committed during the tenure.
    pub(crate) committed: bool,
    /// Notices that reached the queue and were not read.
    pub(crate) unread: Vec<Notice>,
}

/// Where a space stands: `Parked` → `BackingOff` or `Live` → `Parked`.
#[derive(Debug, Default)]
enum Phase {
    #[default]
    Parked,
    /// Waits out a failure; becomes `Live`.
    BackingOff { serial: u64 },
    /// Assigned to a thread; `active` once its activation succeeded.
    Live {
        serial: u64,
        thread: usize,
        active: bool,
    },
}

#[derive(Debug, Default)]
struct Slot {
    phase: Phase,
    /// Failures in a row (SS-105).
    failures: u32,
    /// Warm notices for the next activation (SS-103).
    warm: Vec<AdmittedCommit>,
    /// Notices that came between a loop's last read and the news of its end.
    missed: Vec<Notice>,
    /// Whoever waits for the space to be served.
    waiting: Vec<oneshot::Sender<bool>>,
}

pub(super) struct Director {
    shared: Arc<HostShared>,
    routes: Arc<Routes>,
    own: UnboundedSender<Directive>,
    threads: Vec<LoopThread>,
    spaces: FxHashMap<SpaceId, Slot>,
    next_serial: u64,
    closed: bool,
    closing: Vec<oneshot::Sender<()>>,
}

impl Director {
    /// Starts the director's thread and the loop threads.
    pub(super) fn start(
        shared: Arc<HostShared>,
        routes: Arc<Routes>,
        own: UnboundedSender<Directive>,
        inbox: UnboundedReceiver<Directive>,
        threads: NonZeroUsize,
    ) -> Result<(), ServingError> {
        let threads = (0..threads.get())
            .map(|n| LoopThread::start(n, &shared, &routes, &own))
            .collect::<Result<Vec<LoopThread>, ServingError>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let director = Director {
            shared,
            routes,
            own,
            threads,
            spaces: FxHashMap::default(),
            next_serial: 0,
            closed: false,
            closing: Vec::new(),
        };
        std::thread::Builder::new()
            .name("executor-host".to_owned())
            .spawn(move || runtime.block_on(director.run(inbox)))?;
        Ok(())
    }

    async fn run(mut self, mut inbox: UnboundedReceiver<Directive>) {
        boot::discover(&self.shared, &self.own);
        while let Some(directive) = inbox.recv().await {
            self.follow(directive);
            if self.closed
                && self
                    .spaces
                    .values()
                    .all(|slot| matches!(slot.phase, Phase::Parked))
            {
                break;
            }
        }
        // Loop threads end when their command queues do; nothing is left on them.
        let (threads, closing) = (self.threads, self.closing);
        threads.into_iter().for_each(LoopThread::join);
        for done in closing {
            let _ = done.send(());
        }
    }

    fn follow(&mut self, directive: Directive) {
        match directive {
            Directive::Notice { space, notice } => self.noticed(space, notice),
            Directive::Warm { space, answer } => self.warm(space, answer),
            Directive::Active { space, serial } => self.activated(&space, serial),
            Directive::Parked(parked) => self.parked(parked),
            Directive::BackoffOver { space, serial } => {
                let waiting = self.slot(&space);
                if matches!(waiting.phase, Phase::BackingOff { serial: s } if s == serial) {
                    waiting.phase = Phase::Parked;
                    self.begin(&space);
                }
            }
            Directive::LeaseDue { space } => {
                let warm = !self.slot(&space).warm.is_empty();
                self.reconsider(&space, warm);
            }
            Directive::Examined { space, owed } => {
                if owed {
                    self.activate(&space);
                }
            }
            Directive::Close { done } => self.close(done),
        }
    }

    fn slot(&mut self, space: &SpaceId) -> &mut Slot {
        self.spaces.entry(space.clone()).or_default()
    }

    /// SS-101.
    fn noticed(&mut self, space: SpaceId, notice: Notice) {
        if self.closed {
            return;
        }
        let open = self.opens_gate(&space, &notice);
        let slot = self.slot(&space);
        match slot.phase {
            // Its loop has taken its route down; what became of it is on the way here.
            Phase::Live { .. } => slot.missed.push(notice),
            Phase::BackingOff { .. } | Phase::Parked => {
                keep_warm(&mut slot.warm, notice);
                if open {
                    self.activate(&space);
                }
            }
        }
    }

    fn opens_gate(&self, space: &SpaceId, notice: &Notice) -> bool {
        match notice {
            Notice::Admitted(commit) => match commit.class {
                CommitClass::Authored => {
                    commit.warm || !commit.event_appends.is_empty() || self.somebody_is_there(space)
                }
                CommitClass::Derived | CommitClass::System => false,
            },
            Notice::SessionOpened => self.somebody_is_there(space),
            Notice::Demand(_) | Notice::Close => false,
        }
    }

    fn somebody_is_there(&self, space: &SpaceId) -> bool {
        self.shared
            .plane
            .has_live_sessions(space, Some(&self.shared.service))
    }

    fn warm(&mut self, space: SpaceId, answer: oneshot::Sender<bool>) {
        if self.closed {
            let _ = answer.send(false);
            return;
        }
        let slot = self.slot(&space);
        if matches!(slot.phase, Phase::Live { active: true, .. }) {
            let _ = answer.send(true);
            return;
        }
        slot.waiting.push(answer);
        self.activate(&space);
    }

    /// Begins an activation, after a backoff when the last ones failed (SS-105). Nothing happens while one is under
    /// way or the space is served.
    fn activate(&mut self, space: &SpaceId) {
        if self.closed || !matches!(self.slot(space).phase, Phase::Parked) {
            return;
        }
        let failures = self.slot(space).failures;
        if failures == 0 {
            return self.begin(space);
        }
        let serial = self.serial();
        self.slot(space).phase = Phase::BackingOff { serial };
        self.shared.statistics.update(|s| s.reactivation_backoffs += 1);
        let sleep = self.shared.time.sleep(self.shared.settings.backoff(failures));
        let (own, space) = (self.own.clone(), space.clone());
        tokio::spawn(async move {
            sleep.await;
            // A director that is gone activates nothing.
            let _ = own.send(Directive::BackoffOver { space, serial });
        });
    }

    fn begin(&mut self, space: &SpaceId) {
        let serial = self.serial();
        let Some(thread) = (0..self.threads.len()).min_by_key(|n| self.threads[*n].loops) else {
            return;
        };
        let slot = self.slot(space);
        let first = std::mem::take(&mut slot.warm)
            .into_iter()
            .map(Notice::Admitted)
            .collect();
        slot.phase = Phase::Live {
            serial,
            thread,
            active: false,
        };
        // The route stands before anything else happens: notices from now on are the loop's (SS-104).
        let queue = self.routes.open(space, serial, first);
        self.threads[thread].assign(Assignment {
            space: space.clone(),
            serial,
            queue,
        });
    }

    fn serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    fn activated(&mut self, space: &SpaceId, which: u64) {
        let slot = self.slot(space);
        if let Phase::Live { serial, active, .. } = &mut slot.phase
            && *serial == which
        {
            *active = true;
            answer(&mut slot.waiting, true);
        }
    }

    fn parked(&mut self, parked: Parked) {
        let Parked {
            space,
            serial,
            reason,
            committed,
            unread,
        } = parked;
        let slot = self.slot(&space);
        let Phase::Live {
            serial: current,
            thread,
            ..
        } = slot.phase
        else {
            return;
        };
        if current != serial {
            return;
        }
        slot.phase = Phase::Parked;
        if committed || reason == ParkReason::Idle {
            slot.failures = 0;
        }
        if reason == ParkReason::LoopFailed {
            slot.failures = slot.failures.saturating_add(1);
        }
        answer(&mut slot.waiting, false);
        let missed = std::mem::take(&mut slot.missed);
        let later = std::mem::take(&mut slot.warm);
        let mut others = false;
        for notice in unread.into_iter().chain(missed) {
            others |= !matches!(notice, Notice::Close);
            keep_warm(&mut slot.warm, notice);
        }
        slot.warm.extend(later);
        let warm = !slot.warm.is_empty();
        self.threads[thread].loops -= 1;
        match reason {
            // Another holder serves, or did until it was killed: its lease tells when to look again.
            ParkReason::LeaseUnavailable | ParkReason::LeaseLost => self.look_when_lease_ends(space),
            ParkReason::HostClosed => {}
            // What the tenure left undone is a reason of its own: a fresh activation recomputes it (SS-206).
            ParkReason::LeaseLostAbort | ParkReason::LoopFailed => self.reconsider(&space, warm),
            ParkReason::Idle if warm || others => self.reconsider(&space, warm),
            ParkReason::Idle => {}
        }
    }

    /// Asks again when the lease of another holder runs out. Without this a space whose process was killed would wait
    /// for its next commit, although people are looking at it and events are pending.
    fn look_when_lease_ends(&self, space: SpaceId) {
        let (shared, own) = (Arc::clone(&self.shared), self.own.clone());
        tokio::spawn(async move {
            let now = shared.time.clocks().wall_ms;
            let asked = space.clone();
            let expiry = match shared.plane.engine(&space) {
                Ok(engine) => engine
                    .read(move |reader| reader.lease_expiry(&asked, now))
                    .await
                    .and_then(|r| r),
                Err(error) => {
                    tracing::warn!(%space, %error, "store of a parked space does not open");
                    return;
                }
            };
            let wait = match expiry {
                Ok(expiry) => expiry.map_or(Duration::ZERO, |at| Duration::from_millis(at.abs_diff(now))),
                Err(error) => {
                    tracing::warn!(%space, %error, "lease of a parked space does not read");
                    shared.settings.lease_ttl
                }
            };
            shared.time.sleep(wait).await;
            // A director that is gone activates nothing.
            let _ = own.send(Directive::LeaseDue { space });
        });
    }

    /// SS-103: after a park that something raced, serve again if anybody is there or anything is pending.
    fn reconsider(&mut self, space: &SpaceId, warm: bool) {
        if self.closed {
            return;
        }
        if warm || self.somebody_is_there(space) {
            return self.activate(space);
        }
        let (shared, own, space) = (Arc::clone(&self.shared), self.own.clone(), space.clone());
        tokio::spawn(async move {
            let owed = match shared.plane.engine(&space) {
                Ok(engine) => {
                    engine
                        .read(|reader| boot::is_owed_anything(reader, &BranchName::default()))
                        .await
                }
                Err(error) => {
                    tracing::warn!(%space, %error, "store of a parked space does not open");
                    return;
                }
            };
            match owed.and_then(|owed| owed) {
                Ok(owed) => {
                    let _ = own.send(Directive::Examined { space, owed });
                }
                Err(error) => tracing::warn!(%space, %error, "pending events of a parked space do not read"),
            }
        });
    }

    /// SS-110; the observer is detached already.
    fn close(&mut self, done: oneshot::Sender<()>) {
        self.closed = true;
        self.closing.push(done);
        for (space, slot) in &mut self.spaces {
            match slot.phase {
                Phase::Live { .. } => self.routes.post(space, Notice::Close),
                // Whoever sleeps finds the space parked and the host closed.
                Phase::BackingOff { .. } => slot.phase = Phase::Parked,
                Phase::Parked => {}
            }
            answer(&mut slot.waiting, false);
        }
    }
}

fn answer(waiting: &mut Vec<oneshot::Sender<bool>>, served: bool) {
    for waiter in waiting.drain(..) {
        // One who stopped waiting needs no answer.
        let _ = waiter.send(served);
    }
}

/// Several warm notices share one activation, so each is kept (SS-103).
fn keep_warm(kept: &mut Vec<AdmittedCommit>, notice: Notice) {
    if let Notice::Admitted(commit) = notice
        && commit.warm
    {
        kept.push(commit);
    }
}
