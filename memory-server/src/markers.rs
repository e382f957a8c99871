//! The catch-up markers of one session (SRV-413): which `localSeq` it has been told that its frames cover, and which one
//! it is still to be told. Part of the [`crate::session`] record.

use memory_wire::LocalSeq;

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Markers {
    told: LocalSeq,
    /// 0 when none is owed.
    owed: LocalSeq,
}

impl Markers {
    /// The newest marker told and not taken back.
    pub(crate) fn told(&self) -> LocalSeq {
        self.told
    }

    /// The marker that the next frame carries, if the session is owed one.
    pub(crate) fn due(&self) -> Option<LocalSeq> {
        (self.owed > self.told).then_some(self.owed)
    }

    /// A commit landed: its marker is owed.
    pub(crate) fn owe(&mut self, marker: LocalSeq) {
        self.owed = self.owed.max(marker);
    }

    /// A frame with `marker` is on its way.
    pub(crate) fn tell(&mut self, marker: LocalSeq) {
        self.told = self.told.max(marker);
        if self.owed <= self.told {
            self.owed = LocalSeq(0);
        }
    }

    /// The frame with `marker` was lost, or may have been. What was told since is owed with it: a later marker may have
    /// been heard, and a session's markers never go back.
    pub(crate) fn take_back(&mut self, marker: LocalSeq) {
        self.owed = self.owed.max(self.told).max(marker);
        self.told = self.told.min(LocalSeq(marker.0.saturating_sub(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv_413_a_marker_is_owed_until_it_is_told() {
        let mut markers = Markers::default();
        assert_eq!(markers.due(), None);
        markers.owe(LocalSeq(3));
        markers.owe(LocalSeq(2));
        assert_eq!(markers.due(), Some(LocalSeq(3)));
        markers.tell(LocalSeq(3));
        assert_eq!((markers.told(), markers.due()), (LocalSeq(3), None));
    }

    /// The content of the first frame is lost; the bare marker after it may have arrived.
    #[test]
    fn what_is_told_again_is_no_earlier_marker_than_one_that_may_have_been_heard() {
        let mut markers = Markers::default();
        for marker in [LocalSeq(1), LocalSeq(2)] {
            markers.owe(marker);
            markers.tell(marker);
        }
        markers.take_back(LocalSeq(1));
        assert_eq!((markers.told(), markers.due()), (LocalSeq(0), Some(LocalSeq(2))));
    }

    #[test]
    fn lost_frames_may_be_taken_back_in_any_order() {
        for order in [[1, 2], [2, 1]] {
            let mut markers = Markers::default();
            markers.owe(LocalSeq(2));
            markers.tell(LocalSeq(2));
            for marker in order {
                markers.take_back(LocalSeq(marker));
            }
            assert_eq!((markers.told(), markers.due()), (LocalSeq(0), Some(LocalSeq(2))));
        }
    }
}
