//! The loop of one served space (SS §6): cycles while there is work, waits while there is none, parks when nobody
//! needs it. Made by [`crate::activation`], run on one of the host's threads; every part lives and dies with one
//! tenure of the host's service for the space.

mod cycle;
mod park;
mod settle;
mod settles;
mod wait;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use memory_engine::EngineHandle;
use memory_server::AdmittedCommit;
use memory_wire::SpaceId;
use runner::runtime::Runtime;

use crate::destination::WaveDestination;
use crate::error::ServingError;
use crate::events::EventDrain;
use crate::host::HostShared;
use crate::lease_keeper::LeaseKeeper;
use crate::notice::{Mailbox, Notice};
use crate::outbox::Outbox;
use crate::structure::Structure;
use crate::wakeup::Wakeup;
use crate::watermark::Watermark;
pub(crate) use park::{ActiveSpace, Ended, ParkReason, Renewer, RuntimeGuard};
pub(crate) use settles::Settles;
use wait::Woken;

/// One space being served.
pub(crate) struct SpaceLoop {
    pub(crate) shared: Arc<HostShared>,
    pub(crate) id: SpaceId,
    pub(crate) engine: EngineHandle,
    pub(crate) runtime: Runtime,
    pub(crate) lease: Rc<LeaseKeeper>,
    pub(crate) destination: Rc<WaveDestination>,
    pub(crate) wakeup: Rc<Wakeup>,
    pub(crate) mailbox: Rc<Mailbox>,
    pub(crate) events: EventDrain,
    pub(crate) structure: Structure,
    pub(crate) outbox: Outbox,
    pub(crate) watermark: Watermark,
    pub(crate) settles: Settles,
    /// Commits heard of and not handled yet, in the order of their notices.
    pub(crate) feed: VecDeque<AdmittedCommit>,
    /// Streams may hold pending entries (SS-810).
    pub(crate) scan_owed: bool,
    /// The last settle was cut: what it left, and the watermark with it, is taken up at once (SS-557).
    pub(crate) unsettled: bool,
    /// Waves in a row that the store refused as a whole.
    pub(crate) refused_waves: u32,
    /// The host wants the space parked.
    pub(crate) closing: bool,
    /// Some wave landed.
    pub(crate) committed: bool,
    /// The timer that renews the lease (SS-205).
    pub(crate) renewer: Renewer,
    pub(crate) _active: ActiveSpace,
    pub(crate) _runtime: RuntimeGuard,
}

impl SpaceLoop {
    /// SS-500.
    pub(crate) async fn run(mut self) -> Ended {
        let reason = loop {
            match self.cycle().await {
                Ok(None) => {}
                Ok(Some(reason)) => break reason,
                Err(error) => {
                    tracing::error!(space = %self.id, %error, "serving loop failed");
                    break ParkReason::LoopFailed;
                }
            }
            let lag = self
                .watermark
                .input_head()
                .0
                .saturating_sub(self.watermark.current().0);
            self.shared.statistics.update(|s| s.note_lag(&self.id, Some(lag)));
            if self.has_work() {
                // Other loops live on this thread.
                tokio::task::yield_now().await;
                continue;
            }
            match self.wait().await {
                Woken::Input => {}
                Woken::Idle => match self.is_parkable().await {
                    Ok(false) => {}
                    Ok(true) => break ParkReason::Idle,
                    Err(error) => {
                        tracing::error!(space = %self.id, %error, "serving loop failed");
                        break ParkReason::LoopFailed;
                    }
                },
            }
        };
        self.park(reason).await
    }

    /// Takes what is in the mailbox; commits go to the feed, everything else acts now.
    pub(crate) fn take_notices(&mut self) {
        while let Some(notice) = self.mailbox.try_next() {
            self.take_notice(notice);
        }
    }

    pub(crate) fn take_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Admitted(commit) => {
                if commit.warm {
                    // Before the feed can drop it as known (SS-1101).
                    self.structure.warm(&commit.writes);
                }
                self.feed.push_back(commit);
            }
            // Its watches follow, and they are demand.
            Notice::SessionOpened => {}
            Notice::Demand(reason) => {
                self.structure.demand_changed(reason);
                self.settles.note_growth();
            }
            Notice::Close => self.closing = true,
        }
    }

    /// SS-500.
    fn has_work(&self) -> bool {
        !self.feed.is_empty()
            || self.closing
            || self.scan_owed
            || self.unsettled
            || self.destination.has_contributions()
            || self.events.desk.has_notices()
            || self.outbox.owes_notice()
    }

    /// SS-502; asked after a whole idle period without input.
    async fn is_parkable(&mut self) -> Result<bool, ServingError> {
        self.take_notices();
        if self.has_work()
            || self.runtime.scheduler().has_armed_gate_wake()
            || self
                .shared
                .plane
                .has_live_sessions(&self.id, Some(&self.shared.service))
        {
            return Ok(false);
        }
        let pending = self
            .engine
            .read(|reader| reader.select_pending_stream_events(&memory_wire::BranchName::default()))
            .await
            .and_then(|pending| pending)
            .map_err(|source| ServingError::Store {
                space: self.id.clone(),
                source,
            })?;
        Ok(pending.is_empty())
    }
}
