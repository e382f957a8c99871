//! Time and randomness as the embedder gives them: nothing else in the crate reads a clock or mints an id.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A wall clock.
pub trait Clock {
    /// Milliseconds since 1970-01-01.
    fn now_ms(&self) -> i64;
}

/// A source of fresh identifiers.
pub trait Mint {
    /// A UUIDv4 text.
    fn uuid(&self) -> String;
    /// A number in `[0, 1)`, for jitter.
    fn fraction(&self) -> f64;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(_) => 0,
        }
    }
}

/// Identifiers from the machine's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomMint;

impl Mint for RandomMint {
    fn uuid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    fn fraction(&self) -> f64 {
        // 53 random bits over 2⁵³: every value is exact and below one.
        (uuid::Uuid::new_v4().as_u128() >> 75) as f64 / (1u64 << 53) as f64
    }
}

/// A clock that only moves when told to.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Rc<Cell<i64>>);

impl ManualClock {
    /// A clock standing at `now_ms`.
    pub fn at(now_ms: i64) -> ManualClock {
        ManualClock(Rc::new(Cell::new(now_ms)))
    }

    /// Moves the clock forward by `ms`.
    pub fn advance(&self, ms: i64) {
        self.0.set(self.0.get() + ms);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.0.get()
    }
}

/// Identifiers counted up from one: reproducible runs.
#[derive(Clone, Debug, Default)]
pub struct CountingMint(Rc<Cell<u64>>);

impl Mint for CountingMint {
    fn uuid(&self) -> String {
        self.0.set(self.0.get() + 1);
        format!("00000000-0000-4000-8000-{:012x}", self.0.get())
    }

    fn fraction(&self) -> f64 {
        0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_stay_below_one() {
        for _ in 0..1000 {
            let f = RandomMint.fraction();
            assert!((0.0..1.0).contains(&f));
        }
    }
}
