//! Hybrid time: stamps that follow wall time, never repeat and never go back. Rule: NODE-15; facts: §4.5.

use std::fmt;
use std::num::NonZeroU128;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Serialize, Serializer};

use crate::error::StoreError;
use crate::id::sha256;

/// A point in hybrid time: an NTP64 word (whole seconds in the upper half, binary fraction in the lower, the lowest 16
/// bits a counter) and the id of the clock. Ordered by time, then id. 24 bytes, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HybridTimestamp {
    time: u64,
    id: NonZeroU128,
}

const COUNTER_BITS: u64 = 0xffff;

impl HybridTimestamp {
    /// Before every real stamp: time 0 of clock 1.
    pub const ZERO: HybridTimestamp = HybridTimestamp {
        time: 0,
        id: NonZeroU128::MIN,
    };
    /// Bytes of a stamp.
    pub const LEN: usize = 24;

    /// A stamp of the given word and clock.
    pub const fn new(time: u64, id: NonZeroU128) -> Self {
        HybridTimestamp { time, id }
    }

    /// The NTP64 word, counter included.
    pub const fn time(&self) -> u64 {
        self.time
    }

    /// The clock.
    pub const fn id(&self) -> NonZeroU128 {
        self.id
    }

    /// Whole seconds since 1970.
    pub const fn seconds(&self) -> u64 {
        self.time >> 32
    }

    /// The counter among stamps of one instant.
    pub const fn counter(&self) -> u16 {
        (self.time & COUNTER_BITS) as u16
    }

    /// The 24 bytes.
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        bytes[8..].copy_from_slice(&self.id.get().to_le_bytes());
        bytes
    }
}

/// Decimal word, `#`, lower-case hex id.
impl fmt::Display for HybridTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.time, self.id)
    }
}

impl fmt::Debug for HybridTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HybridTimestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        // Decimal text: neither number fits every reader's number type.
        let mut fields = serializer.serialize_struct("HybridTimestamp", 2)?;
        fields.serialize_field("time_u64", &self.time.to_string())?;
        fields.serialize_field("id_u128", &self.id.to_string())?;
        fields.end()
    }
}

impl BorshSerialize for HybridTimestamp {
    fn serialize<W: std::io::Write>(&self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(&self.to_bytes())
    }
}

impl BorshDeserialize for HybridTimestamp {
    fn deserialize_reader<R: std::io::Read>(reader: &mut R) -> std::io::Result<Self> {
        let time = u64::deserialize_reader(reader)?;
        let id = u128::deserialize_reader(reader)?;
        let id = NonZeroU128::new(id)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "HLC id cannot be zero"))?;
        Ok(HybridTimestamp { time, id })
    }
}

/// A 16-byte clock id from 32 bytes that are not evenly spread themselves: the first half of their hash. Device ids are
/// hashes already; see [`DeviceId::clock_seed`](crate::id::DeviceId::clock_seed).
pub fn clock_seed(bytes: &[u8; 32]) -> [u8; 16] {
    first_half(&sha256(&[bytes]))
}

pub(crate) fn first_half(hash: &[u8; 32]) -> [u8; 16] {
    let mut seed = [0; 16];
    seed.copy_from_slice(&hash[..16]);
    seed
}

/// Where a clock reads wall time: the duration since 1970.
pub trait WallTime: Send {
    /// Now.
    fn since_epoch(&self) -> Duration;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallTime;

impl WallTime for SystemWallTime {
    fn since_epoch(&self) -> Duration {
        // A machine set before 1970 stamps from 1970 on; the hybrid part keeps its stamps rising.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

impl<F: Fn() -> Duration + Send> WallTime for F {
    fn since_epoch(&self) -> Duration {
        self()
    }
}

/// Gives out stamps, each later than all before it, whatever wall time does.
#[derive(Debug)]
pub struct HybridClock<W = SystemWallTime> {
    id: NonZeroU128,
    last: u64,
    wall: W,
}

impl<W: WallTime> HybridClock<W> {
    /// How far ahead of wall time another clock's stamp may lie.
    pub const MAX_DRIFT: Duration = Duration::from_secs(5);

    /// A clock that has stamped nothing yet.
    pub fn new(id: NonZeroU128, wall: W) -> Self {
        HybridClock { id, last: 0, wall }
    }

    /// A clock that goes on after the last stamp it gave out before a restart, wherever wall time stands now: a new one would
    /// repeat stamps if wall time has gone back since, and [`observe`](Self::observe) refuses what lies far ahead.
    pub fn going_on(last: &HybridTimestamp, wall: W) -> Self {
        HybridClock {
            id: last.id,
            last: last.time,
            wall,
        }
    }

    /// The last stamp given or seen.
    pub fn last(&self) -> HybridTimestamp {
        HybridTimestamp {
            time: self.last,
            id: self.id,
        }
    }

    /// The next stamp: wall time if it is ahead, else one more than the last. A full counter carries into time.
    pub fn tick(&mut self) -> Result<HybridTimestamp, StoreError> {
        let wall = quantised(self.wall.since_epoch());
        self.last = if wall > self.last {
            wall
        } else {
            self.last.checked_add(1).ok_or(StoreError::ClockExhausted)?
        };
        Ok(self.last())
    }

    /// Moves past another clock's stamp. One that lies too far ahead of wall time is refused and changes nothing.
    pub fn observe(&mut self, remote: &HybridTimestamp) -> Result<(), StoreError> {
        let limit = self.wall.since_epoch().saturating_add(Self::MAX_DRIFT);
        if remote.time & !COUNTER_BITS > ntp64(limit) {
            let ahead = duration(remote.time).saturating_sub(self.wall.since_epoch());
            return Err(StoreError::ClockDrift {
                ahead_ms: ahead.as_millis() as u64,
                limit_ms: Self::MAX_DRIFT.as_millis() as u64,
            });
        }
        self.last = self.last.max(remote.time);
        Ok(())
    }
}

fn ntp64(since_epoch: Duration) -> u64 {
    let Ok(seconds) = u32::try_from(since_epoch.as_secs()) else {
        return u64::MAX;
    };
    u64::from(seconds) << 32 | ((u64::from(since_epoch.subsec_nanos()) << 32) / 1_000_000_000)
}

fn quantised(since_epoch: Duration) -> u64 {
    ntp64(since_epoch) & !COUNTER_BITS
}

fn duration(time: u64) -> Duration {
    let nanos = ((time & 0xffff_ffff) * 1_000_000_000) >> 32;
    Duration::new(time >> 32, nanos as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn clock(wall: &Arc<AtomicU64>) -> HybridClock<impl WallTime> {
        let wall = wall.clone();
        let id = NonZeroU128::new(7).unwrap();
        HybridClock::new(id, move || Duration::from_millis(wall.load(Ordering::Relaxed)))
    }

    #[test]
    fn node_15_a_standing_clock_counts_and_a_full_counter_carries() {
        let wall = Arc::new(AtomicU64::new(1_000));
        let mut clock = clock(&wall);
        let first = clock.tick().unwrap();
        assert_eq!((first.seconds(), first.counter()), (1, 0));
        let mut last = first;
        for _ in 0..70_000 {
            let next = clock.tick().unwrap();
            assert!(next > last);
            last = next;
        }
        assert_eq!(last.time() - first.time(), 70_000, "65,536 counts carried once");
    }

    #[test]
    fn node_15_a_clock_that_goes_on_after_a_restart_repeats_nothing_although_wall_time_went_back() {
        let wall = Arc::new(AtomicU64::new(3_600_000));
        let last = clock(&wall).tick().unwrap();
        wall.store(1_000, Ordering::Relaxed);
        assert!(clock(&wall).tick().unwrap() < last, "a new clock knows nothing");
        assert!(clock(&wall).observe(&last).is_err());
        let ticking = wall.clone();
        let now = move || Duration::from_millis(ticking.load(Ordering::Relaxed));
        let mut resumed = HybridClock::going_on(&last, now);
        let next = resumed.tick().unwrap();
        assert!(next > last && next.id() == last.id());
        wall.store(7_200_000, Ordering::Relaxed);
        assert_eq!(resumed.tick().unwrap().seconds(), 7_200);
    }

    #[test]
    fn node_15_too_far_ahead_is_refused_and_changes_nothing() {
        let wall = Arc::new(AtomicU64::new(10_000));
        let mut clock = clock(&wall);
        let before = clock.tick().unwrap();
        let id = NonZeroU128::new(9).unwrap();
        let near = HybridTimestamp::new(quantised(Duration::from_millis(15_000)), id);
        let far = HybridTimestamp::new(quantised(Duration::from_millis(15_100)), id);
        assert!(matches!(
            clock.observe(&far),
            Err(StoreError::ClockDrift { limit_ms: 5000, .. })
        ));
        assert_eq!(clock.last(), before);
        clock.observe(&near).unwrap();
        assert!(clock.tick().unwrap() > near);
        // The counter is no time: a full one at the bound is not beyond it.
        let counted = HybridTimestamp::new(near.time() | COUNTER_BITS, id);
        clock.observe(&counted).unwrap();
        assert!(clock.tick().unwrap() > counted);
    }

    #[test]
    fn node_15_the_end_of_time_is_an_error() {
        let wall = Arc::new(AtomicU64::new(u64::from(u32::MAX) * 1000 + 999));
        let mut clock = clock(&wall);
        clock
            .observe(&HybridTimestamp::new(u64::MAX, NonZeroU128::MIN))
            .unwrap();
        assert!(matches!(clock.tick(), Err(StoreError::ClockExhausted)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(15), failure_persistence: None, ..Default::default() })]

        #[test]
        fn node_15_stamps_rise_whatever_wall_time_does(steps in prop::collection::vec((0u64..1 << 33, any::<bool>()), 1..200)) {
            let wall = Arc::new(AtomicU64::new(0));
            let mut clock = clock(&wall);
            let mut last = clock.tick().unwrap();
            for (now, observe) in steps {
                wall.store(now, Ordering::Relaxed);
                if observe {
                    let remote = HybridTimestamp::new(now << 30, NonZeroU128::MIN);
                    let _ = clock.observe(&remote);
                }
                let next = clock.tick().unwrap();
                prop_assert!(next > last);
                last = next;
            }
        }
    }
}
