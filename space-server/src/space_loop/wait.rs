//! Waiting for input (SS-501). Meanwhile the runtime is driven: frames are applied and debounced work runs, and what
//! seals rings the bell.

use std::time::Duration;

use crate::time::Sleep;

use super::SpaceLoop;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// Something to look at.
    Input,
    /// Nothing for the whole idle period.
    Idle,
}

impl SpaceLoop {
    pub(super) async fn wait(&mut self) -> Woken {
        if self.wakeup.take().is_some() {
            return Woken::Input;
        }
        let (rescan, demand) = (self.rescan_due(), self.demand_due());
        let idle = self.shared.time.sleep(self.shared.settings.idle_before_park);
        let woken = tokio::select! {
            biased;
            notice = self.mailbox.next() => match notice {
                Some(notice) => Wake::Notice(notice),
                // The host is gone without closing.
                None => Wake::HostGone,
            },
            () = self.wakeup.rung() => Wake::Bell,
            () = elapsed(rescan) => Wake::Rescan,
            () = elapsed(demand) => Wake::Bell,
            () = self.runtime.drive() => Wake::HostGone,
            () = idle => return Woken::Idle,
        };
        match woken {
            Wake::Notice(notice) => self.take_notice(notice),
            Wake::HostGone => self.closing = true,
            Wake::Rescan => self.scan_owed = true,
            Wake::Bell => {
                self.wakeup.take();
            }
        }
        Woken::Input
    }

    /// Deferred entries are looked at again without any input after a while (SS-818).
    fn rescan_due(&self) -> Option<Sleep> {
        let at = self.events.desk.rescan_at(&self.shared.settings)?;
        Some(self.shared.time.sleep(distance(at, self.shared.time.wall_ms())))
    }

    fn demand_due(&self) -> Option<Sleep> {
        let at = self.structure.wake_at()?;
        Some(
            self.shared
                .time
                .sleep(distance(at, self.shared.time.monotonic_ms())),
        )
    }
}

enum Wake {
    Notice(crate::notice::Notice),
    HostGone,
    Rescan,
    Bell,
}

fn distance(at: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0))
}

/// Resolves after `sleep`, or never.
async fn elapsed(sleep: Option<Sleep>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}
