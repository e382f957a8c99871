//! Which nonces of a signer were applied: a floor and what lies above it, in one value. Facts: §4.7.

use std::collections::BTreeSet;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::Record;
use crate::error::StoreError;

/// Applied nonces of one signer. An absent row is the empty window.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct NonceWindow {
    floor: u64,
    above: BTreeSet<u64>,
}

impl Record for NonceWindow {}

impl NonceWindow {
    /// How far above the floor a nonce may lie.
    pub const MAX_AHEAD: u64 = 1 << 20;
    /// How many nonces above the floor are kept.
    pub const MAX_HELD: usize = 4096;

    /// Every nonce from 1 to this one was applied.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Applied nonces above the floor, ascending.
    pub fn above(&self) -> impl Iterator<Item = u64> + '_ {
        self.above.iter().copied()
    }

    /// The same window without what the floor already covers; rows of other writers need not be in that form.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        self.above = self.above.split_off(&self.floor.saturating_add(1));
        self.absorb();
        self
    }

    /// Takes a nonce in. One that was applied is refused; the one right above the floor is always taken; others only
    /// within the two limits.
    pub fn record(&mut self, nonce: u64) -> Result<(), StoreError> {
        let refuse = |reason| Err(StoreError::Nonce { nonce, reason });
        if nonce <= self.floor || self.above.contains(&nonce) {
            return refuse("applied before");
        }
        if nonce == self.floor + 1 {
            self.floor = nonce;
            self.absorb();
            return Ok(());
        }
        if nonce - self.floor > Self::MAX_AHEAD {
            return refuse("more than 1048576 above the floor");
        }
        if self.above.len() >= Self::MAX_HELD {
            return refuse("4096 nonces above the floor are held already");
        }
        self.above.insert(nonce);
        Ok(())
    }

    fn absorb(&mut self) {
        while let Some(next) = self.floor.checked_add(1) {
            if !self.above.remove(&next) {
                break;
            }
            self.floor = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_are_taken_once_in_any_order_within_limits() {
        let mut window = NonceWindow::default();
        for nonce in [3, 1, 2] {
            window.record(nonce).unwrap();
            assert!(window.record(nonce).is_err(), "{nonce} twice");
        }
        assert_eq!((window.floor(), window.above().count()), (3, 0));
        assert!(window.record(0).is_err());
        window.record(3 + NonceWindow::MAX_AHEAD).unwrap();
        assert!(window.record(4 + NonceWindow::MAX_AHEAD).is_err());
        for nonce in 0..NonceWindow::MAX_HELD as u64 - 1 {
            window.record(5 + nonce).unwrap();
        }
        assert!(window.record(9000).is_err(), "full");
        window.record(4).unwrap();
        assert_eq!(window.floor(), 4 + NonceWindow::MAX_HELD as u64 - 1);
    }

    #[test]
    fn loading_drops_what_the_floor_covers() {
        let window = NonceWindow {
            floor: 7,
            above: [3, 7, 8, 9, 12].into(),
        }
        .normalised();
        assert_eq!(
            window,
            NonceWindow {
                floor: 9,
                above: [12].into()
            }
        );
        let full = NonceWindow {
            floor: u64::MAX,
            above: BTreeSet::new(),
        };
        assert!(full.clone().normalised().record(u64::MAX).is_err());
    }
}
