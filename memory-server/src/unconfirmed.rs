//! Frames that were written and that the peer has not said to have (SRV-314): kept, within bounds, until a pong or an
//! acknowledgement covers them. Part of [`crate::outbound`].

use std::collections::VecDeque;

use memory_wire::Seq;

use crate::delivery::{Delivered, SessionKey};

/// The records of one connection, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    records: VecDeque<(u64, Delivered)>,
    /// Instances the records name.
    instances: usize,
    overflowed: bool,
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordBounds {
    pub(crate) records: usize,
    pub(crate) instances: usize,
}

fn weight(delivery: &Delivered) -> usize {
    delivery.upserts.len() + delivery.removes.len()
}

impl Unconfirmed {
    /// Adds the frame written as number `position`; the oldest records make room.
    pub(crate) fn push(&mut self, position: u64, delivery: Delivered, bounds: RecordBounds) {
        self.instances += weight(&delivery);
        self.records.push_back((position, delivery));
        while self.records.len() > bounds.records || self.instances > bounds.instances {
            let Some((_, dropped)) = self.records.pop_front() else {
                break;
            };
            self.instances -= weight(&dropped);
            self.overflowed = true;
        }
    }

    /// True when the peer should be asked, having last been asked after frame `asked`.
    pub(crate) fn wants_confirmation(&self, asked: u64, bounds: RecordBounds) -> bool {
        let many = self.records.len() >= bounds.records.div_ceil(4) || self.instances > bounds.instances / 4;
        many && self
            .records
            .front()
            .is_some_and(|(position, _)| *position > asked)
    }

    /// Every frame up to `position` has arrived.
    pub(crate) fn confirm(&mut self, position: u64) {
        while self.records.front().is_some_and(|(at, _)| *at <= position) {
            if let Some((_, confirmed)) = self.records.pop_front() {
                self.instances -= weight(&confirmed);
            }
        }
    }

    /// The session has applied everything through `seen`.
    pub(crate) fn acknowledge(&mut self, session: &SessionKey, seen: Seq) {
        self.take_if(|delivery| delivery.session == *session && delivery.is_confirmed_by(seen));
    }

    /// Takes the records of one session.
    pub(crate) fn take_session(&mut self, session: &SessionKey) -> Vec<Delivered> {
        self.take_if(|delivery| delivery.session == *session)
    }

    /// Takes all records.
    pub(crate) fn take(&mut self) -> Vec<Delivered> {
        self.take_if(|_| true)
    }

    fn take_if(&mut self, mut wanted: impl FnMut(&Delivered) -> bool) -> Vec<Delivered> {
        let mut taken = Vec::new();
        for (position, delivery) in std::mem::take(&mut self.records) {
            if wanted(&delivery) {
                self.instances -= weight(&delivery);
                taken.push(delivery);
            } else {
                self.records.push_back((position, delivery));
            }
        }
        taken
    }

    /// True when records were dropped to stay bounded.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed
    }
}
