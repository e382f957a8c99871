//! How far derived state is behind where somebody waits for it (field fault F36). A serving loop that stops without an
//! error shows nowhere else: its own counters stop with it. So the server compares what it admitted with the watermark in
//! the store. Fed by `server`, asked by health and metrics.

use std::sync::Arc;
use std::time::Duration;

use memory_engine::sync::Mutex;
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{EntityId, Seq};

use crate::server::Server;
use crate::space::Space;

/// An authored commit and when it was admitted, milliseconds of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Admitted {
    seq: Seq,
    at: u64,
}

/// Authored commits of one space that may not be covered: the oldest and the newest suffice. When the oldest is covered,
/// the newest takes its place; what lies between is taken for as old as the newest.
#[derive(Debug, Default)]
pub(crate) struct Uncovered(Mutex<Option<(Admitted, Admitted)>>);

impl Uncovered {
    /// An authored commit was admitted.
    pub(crate) fn note(&self, seq: Seq, at: u64) {
        let newest = Admitted { seq, at };
        let mut marks = self.0.lock();
        *marks = match *marks {
            None => Some((newest, newest)),
            // A replay is announced with its first seq.
            Some((oldest, last)) if seq <= last.seq => Some((oldest, last)),
            Some((oldest, _)) => Some((oldest, newest)),
        };
    }

    /// True when something may be uncovered.
    fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The derived state is current through `watermark`; what is the age of the oldest commit beyond it?
    fn age(&self, watermark: Seq, now: u64) -> Duration {
        let mut marks = self.0.lock();
        if let Some((oldest, newest)) = *marks
            && oldest.seq <= watermark
        {
            *marks = (newest.seq > watermark).then_some((newest, newest));
        }
        marks.map_or(Duration::ZERO, |(oldest, _)| {
            Duration::from_millis(now.saturating_sub(oldest.at))
        })
    }
}

impl Server {
    /// The largest lag of a space that somebody but the service watches; zero with server execution off.
    pub(crate) async fn serving_lag(&self) -> Duration {
        let mut largest = Duration::ZERO;
        if !self.config().server_execution {
            return largest;
        }
        for space in self.open_spaces() {
            if !space.uncovered.is_open() || !self.is_watched(&space) {
                continue;
            }
            let watermark = match space.read(stored_watermark).await {
                Ok(watermark) => watermark,
                Err(error) => {
                    // A store that cannot be read covers nothing.
                    tracing::warn!(space = %space.id(), %error, "the watermark cannot be read");
                    Seq(0)
                }
            };
            let now = self.config().clock.monotonic_ms();
            largest = largest.max(space.uncovered.age(watermark, now));
        }
        largest
    }

    /// True when a session other than the service's own watches something in the space (SRV-906).
    fn is_watched(&self, space: &Arc<Space>) -> bool {
        let service = &self.config().audience;
        space
            .registry
            .lock()
            .iter()
            .any(|(_, session)| session.principal.as_ref() != Some(service) && !session.effective.is_empty())
    }
}

fn stored_watermark(reader: &memory_engine::Reader) -> Result<Seq, memory_engine::EngineError> {
    let stored = reader.read_space_value(&EntityId::from(WATERMARK_DOCUMENT))?;
    // Absent or malformed promises nothing.
    Ok(stored
        .as_ref()
        .and_then(|value| value.member("seq"))
        .and_then(Seq::from_value)
        .unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f36_age_is_that_of_the_oldest_uncovered_commit_and_compares_numbers() {
        let uncovered = Uncovered::default();
        assert_eq!(uncovered.age(Seq(0), 1_000), Duration::ZERO);
        uncovered.note(Seq(9), 1_000);
        uncovered.note(Seq(10), 3_000);
        assert_eq!(uncovered.age(Seq(8), 4_000), Duration::from_secs(3));
        // 9 covered, 10 not: as text "9" would stand above "10".
        assert_eq!(uncovered.age(Seq(9), 4_000), Duration::from_secs(1));
        assert_eq!(uncovered.age(Seq(10), 9_000), Duration::ZERO);
        uncovered.note(Seq(10), 9_500);
        assert_eq!(
            uncovered.age(Seq(10), 9_900),
            Duration::ZERO,
            "a replay of what is covered is covered"
        );
    }
}
