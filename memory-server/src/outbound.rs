//! One connection's queue to its peer, bounded in bytes (SRV-704…707), and the record of what was sent but not yet
//! confirmed (SRV-314). Rooms push encoded frames; the connection's writer task takes them out.

use std::collections::VecDeque;

use memory_engine::sync::Mutex;
use memory_wire::Seq;
use memory_wire::error::SocketClose;
use memory_wire::message::EffectFrame;
use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use crate::delivery::{Delivered, SessionKey};
use crate::limits::Limits;
use crate::unconfirmed::{RecordBounds, Unconfirmed};

/// The text of a frame that waits. An effect is put together by its writer, so that until then its recipients share it.
#[derive(Debug)]
enum Text {
    Whole(String),
    Effect(EffectFrame),
}

impl Text {
    fn len(&self) -> usize {
        match self {
            Text::Whole(text) => text.len(),
            Text::Effect(effect) => effect.len(),
        }
    }

    fn into_string(self) -> String {
        match self {
            Text::Whole(text) => text,
            Text::Effect(effect) => effect.text(),
        }
    }
}

/// A frame waiting to be written.
#[derive(Debug)]
struct Queued {
    text: Text,
    delivery: Option<Box<Delivered>>,
}

/// What the writer does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Write this frame, then call [`Outbound::written`].
    Frame(Written, String),
    /// Send a ping with this payload.
    Ping(Vec<u8>),
    /// Close the socket and stop.
    Close(Closing),
}

/// Accounts for one frame handed to the writer.
#[derive(Debug)]
pub(crate) struct Written {
    bytes: usize,
}

/// Why the queue ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The server closes with this code; frames still queued are dropped.
    Now(SocketClose),
    /// The server closes with this code once everything queued is written (SRV-1401).
    AfterQueue(SocketClose),
    /// The peer is gone.
    PeerGone,
}

/// A frame that could not be queued because the connection is ending.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Box<Delivered>);

/// Frames taken back from a connection.
#[derive(Debug, Default)]
pub(crate) struct Withdrawn {
    /// Never written.
    pub(crate) unsent: Vec<Delivered>,
    /// Written, not confirmed by the peer.
    pub(crate) unconfirmed: Vec<Delivered>,
    /// Records were dropped to stay bounded: everything the connection's sessions hold is uncertain.
    pub(crate) overflowed: bool,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
    bytes: usize,
    /// Most bytes that waited at once.
    peak: usize,
    closing: Option<Closing>,
    /// A session of this connection was skipped since the queue was last low (SRV-705).
    starved: bool,
    /// Record of the frame the writer is writing.
    in_flight: Option<Box<Delivered>>,
    unconfirmed: Unconfirmed,
    /// Frames written so far; a ping carries it, its pong confirms everything up to it.
    written: u64,
    /// `written` at the last ping that asked for confirmation.
    asked: u64,
    /// A ping is to be sent before the next frame.
    ping: bool,
    /// Once the connection has ended: what each session may not have, until its space's turn takes it back.
    stranded: Option<FxHashMap<SessionKey, Withdrawn>>,
}

/// The queue. Loopback connections are bounded by coalescing only (SRV-1304).
#[derive(Debug)]
pub(crate) struct Outbound {
    state: Mutex<State>,
    /// Wakes the writer when there is something to do.
    wake: Notify,
    /// Wakes whoever waits for the end.
    end: Notify,
    high_water: usize,
    cap: usize,
    /// `None` where handing a frame over is delivering it.
    records: Option<RecordBounds>,
}

impl Outbound {
    pub(crate) fn socket(limits: &Limits) -> Outbound {
        Outbound {
            state: Mutex::default(),
            wake: Notify::new(),
            end: Notify::new(),
            high_water: limits.outbound_high_water,
            cap: limits.outbound_cap,
            records: Some(RecordBounds {
                records: limits.unconfirmed_deliveries,
                instances: limits.unconfirmed_instances,
            }),
        }
    }

    pub(crate) fn loopback() -> Outbound {
        Outbound {
            state: Mutex::default(),
            wake: Notify::new(),
            end: Notify::new(),
            high_water: usize::MAX,
            cap: usize::MAX,
            records: None,
        }
    }

    /// Queues an answer. Always accepted while the connection lives; beyond the hard cap the connection ends
    /// (SRV-704, SRV-706). False when it is ending already (SRV-107).
    pub(crate) fn push_answer(&self, text: String) -> bool {
        let text = Text::Whole(text);
        self.push(Queued { text, delivery: None }).is_ok()
    }

    /// Queues an effect frame (SRV-704). The caller has asked [`Outbound::is_above_high_water`] before evaluating.
    pub(crate) fn push_effect(&self, effect: EffectFrame, delivery: Delivered) -> Result<(), Refused> {
        self.push_with_record(Text::Effect(effect), Box::new(delivery))
    }

    /// Queues a frame with the record of what it carries, which may be lost with it (SRV-314).
    pub(crate) fn push_recorded(&self, text: String, delivery: Box<Delivered>) -> Result<(), Refused> {
        self.push_with_record(Text::Whole(text), delivery)
    }

    fn push_with_record(&self, text: Text, delivery: Box<Delivered>) -> Result<(), Refused> {
        self.push(Queued {
            text,
            delivery: Some(delivery),
        })
        .map_err(|refused| {
            Refused(
                refused
                    .delivery
                    .expect("the frame pushed here carries its record"),
            )
        })
    }

    fn push(&self, frame: Queued) -> Result<(), Queued> {
        let mut state = self.state.lock();
        if state.closing.is_some() {
            return Err(frame);
        }
        state.bytes += frame.text.len();
        state.peak = state.peak.max(state.bytes);
        // One frame may exceed the cap by itself; a backlog may not.
        let over = state.bytes > self.cap && !state.queue.is_empty();
        state.queue.push_back(frame);
        if over {
            state.closing = Some(Closing::Now(SocketClose::OutboundBuffer));
        }
        drop(state);
        self.wake.notify_one();
        if over {
            self.end.notify_waiters();
        }
        Ok(())
    }

    /// True when fan-out must skip this connection's sessions (SRV-705). Remembers that it did.
    pub(crate) fn is_above_high_water(&self) -> bool {
        let mut state = self.state.lock();
        let above = state.bytes > self.high_water && state.closing.is_none();
        state.starved |= above;
        above
    }

    /// True for a connection within the process: handing a frame over is delivering it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.records.is_none()
    }

    /// True once the connection is ending: nothing queued now will be written.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().closing.is_some()
    }

    /// Asks the writer to end. The first reason wins, except that `PeerGone` and an immediate close overrule a
    /// drain.
    pub(crate) fn close(&self, closing: Closing) {
        let mut state = self.state.lock();
        match state.closing {
            None | Some(Closing::AfterQueue(_)) => state.closing = Some(closing),
            Some(Closing::Now(_) | Closing::PeerGone) => {}
        }
        drop(state);
        self.wake.notify_one();
        self.end.notify_waiters();
    }

    /// The next thing to write; waits while there is none.
    pub(crate) async fn next(&self) -> Next {
        loop {
            // Registered before the state is looked at, so that a push in between is not missed.
            let woken = self.wake.notified();
            let frame = {
                let mut state = self.state.lock();
                let now = match state.closing {
                    Some(closing @ (Closing::Now(_) | Closing::PeerGone)) => Some(closing),
                    Some(closing @ Closing::AfterQueue(_)) if state.queue.is_empty() => Some(closing),
                    Some(Closing::AfterQueue(_)) | None => None,
                };
                if let Some(closing) = now {
                    return Next::Close(closing);
                }
                if state.ping || self.wants_confirmation(&state) {
                    state.ping = false;
                    state.asked = state.written;
                    return Next::Ping(state.written.to_be_bytes().to_vec());
                }
                state.queue.pop_front().map(|frame| {
                    state.in_flight = frame.delivery;
                    frame.text
                })
            };
            if let Some(text) = frame {
                let text = text.into_string();
                return Next::Frame(Written { bytes: text.len() }, text);
            }
            woken.await;
        }
    }

    /// The writer has written a frame. Returns true when the queue has drained below half of high-water after
    /// sessions were skipped: their spaces are then owed a pass (SRV-705).
    pub(crate) fn written(&self, frame: Written) -> bool {
        let mut state = self.state.lock();
        state.bytes = state.bytes.saturating_sub(frame.bytes);
        state.written += 1;
        let position = state.written;
        if let Some(delivery) = state.in_flight.take()
            && let Some(bounds) = self.records
        {
            state.unconfirmed.push(position, *delivery, bounds);
        }
        let drained = state.starved && state.bytes <= self.high_water / 2;
        state.starved &= !drained;
        drained
    }

    /// The writer could not write a frame: its record counts as written and unconfirmed, for part of it may have
    /// left.
    pub(crate) fn write_failed(&self, frame: Written) {
        self.written(frame);
        self.close(Closing::PeerGone);
    }

    /// Asks the writer for a ping, whose pong confirms every frame written before it.
    pub(crate) fn ask_ping(&self) {
        self.state.lock().ping = true;
        self.wake.notify_one();
    }

    /// True when many frames wait for confirmation and no ping is out that would confirm them.
    fn wants_confirmation(&self, state: &State) -> bool {
        self.records
            .is_some_and(|bounds| state.unconfirmed.wants_confirmation(state.asked, bounds))
    }

    /// Resolves when the connection is to end at once, even while a frame is being written.
    pub(crate) async fn ending(&self) -> Closing {
        loop {
            let woken = self.end.notified();
            if let Some(closing @ (Closing::Now(_) | Closing::PeerGone)) = self.state.lock().closing {
                return closing;
            }
            woken.await;
        }
    }

    /// The peer answered a ping with `payload`.
    pub(crate) fn pong(&self, payload: &[u8]) {
        let Ok(bytes) = <[u8; 8]>::try_from(payload) else {
            return;
        };
        let confirmed = u64::from_be_bytes(bytes);
        let mut state = self.state.lock();
        // A larger number was carried by no ping of ours.
        if confirmed <= state.written {
            state.unconfirmed.confirm(confirmed);
        }
    }

    /// The peer says that `session` has applied everything through `seen` (SRV-315).
    pub(crate) fn acknowledge(&self, session: &SessionKey, seen: Seq) {
        let mut state = self.state.lock();
        match &mut state.stranded {
            None => state.unconfirmed.acknowledge(session, seen),
            Some(stranded) => {
                if let Some(withdrawn) = stranded.get_mut(session) {
                    withdrawn.unconfirmed.retain(|frame| !frame.is_confirmed_by(seen));
                }
            }
        }
    }

    /// Takes back what one session may not have: when it moves to another connection, and when this one has ended. Runs
    /// in the turn of the session's space, because whoever evaluates the session next must find it taken back.
    pub(crate) fn withdraw(&self, session: &SessionKey) -> Withdrawn {
        let mut state = self.state.lock();
        let overflowed = state.unconfirmed.has_overflowed();
        if let Some(stranded) = &mut state.stranded {
            return Withdrawn {
                overflowed,
                ..stranded.remove(session).unwrap_or_default()
            };
        }
        let mut taken = Withdrawn {
            overflowed,
            ..Withdrawn::default()
        };
        let queue = std::mem::take(&mut state.queue);
        for Queued { text, delivery } in queue {
            let moves = |delivery: &Delivered| delivery.session == *session;
            let kept = match (text, delivery) {
                (Text::Effect(effect), Some(delivery)) if moves(&delivery) => {
                    state.bytes -= effect.len();
                    taken.unsent.push(*delivery);
                    continue;
                }
                // Whoever moves is told again what an answer carries; its request has no other answer (SRV-403).
                (answer @ Text::Whole(_), Some(delivery)) if moves(&delivery) => {
                    taken.unsent.push(*delivery);
                    (answer, None)
                }
                others => others,
            };
            let (text, delivery) = kept;
            state.queue.push_back(Queued { text, delivery });
        }
        if state
            .in_flight
            .as_ref()
            .is_some_and(|delivery| delivery.session == *session)
        {
            taken
                .unconfirmed
                .extend(state.in_flight.take().map(|delivery| *delivery));
        }
        let records = state.unconfirmed.take_session(session);
        taken.unconfirmed.extend(records);
        taken
    }

    /// The connection has ended: sorts what its peer may not have by session, for [`Outbound::withdraw`]. Returns how many
    /// frames that are.
    pub(crate) fn strand(&self) -> usize {
        let mut state = self.state.lock();
        state.bytes = 0;
        let unsent = std::mem::take(&mut state.queue)
            .into_iter()
            .filter_map(|frame| frame.delivery);
        let in_flight = state.in_flight.take();
        let mut unconfirmed = state.unconfirmed.take();
        unconfirmed.extend(in_flight.map(|delivery| *delivery));
        let mut frames = unconfirmed.len();
        let mut stranded: FxHashMap<SessionKey, Withdrawn> = FxHashMap::default();
        for frame in unsent {
            frames += 1;
            let withdrawn = stranded.entry(frame.session.clone()).or_default();
            withdrawn.unsent.push(*frame);
        }
        for frame in unconfirmed {
            let withdrawn = stranded.entry(frame.session.clone()).or_default();
            withdrawn.unconfirmed.push(frame);
        }
        state.stranded = Some(stranded);
        frames
    }

    /// Most bytes that ever waited at once.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.state.lock().peak
    }

    /// Bytes waiting to be written.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memory_wire::message::{EffectAddress, SyncContent};

    use super::*;

    fn delivery(session: &str, from: u64, to: u64) -> Delivered {
        Delivered {
            session: SessionKey {
                space: "did:key:zS".into(),
                session: session.into(),
            },
            incarnation: 1,
            from_seq: Seq(from),
            to_seq: Seq(to),
            upserts: Arc::default(),
            removes: Arc::default(),
            marker: None,
            plans: Vec::new(),
        }
    }

    fn outbound(high_water: usize, cap: usize) -> Outbound {
        let limits = Limits {
            outbound_high_water: high_water,
            outbound_cap: cap,
            ..Limits::default()
        };
        Outbound::socket(&limits)
    }

    async fn write_one(outbound: &Outbound) -> bool {
        loop {
            match outbound.next().await {
                Next::Frame(frame, _) => return outbound.written(frame),
                Next::Ping(_) => {}
                Next::Close(closing) => panic!("closed: {closing:?}"),
            }
        }
    }

    #[tokio::test]
    async fn srv_705_skips_above_high_water_and_asks_for_a_pass_below_half() {
        let outbound = outbound(10, 1000);
        for _ in 0..4 {
            assert!(outbound.push_answer("12345".into()));
        }
        assert!(outbound.is_above_high_water());
        assert!(!write_one(&outbound).await);
        assert!(!write_one(&outbound).await, "10 of 10 bytes: not below half");
        assert!(write_one(&outbound).await, "5 of 10 bytes");
        assert!(!write_one(&outbound).await, "asked for once");
    }

    #[tokio::test]
    async fn srv_706_a_backlog_above_the_cap_closes_1013() {
        let outbound = outbound(10, 20);
        assert!(
            outbound.push_answer("x".repeat(30)),
            "a single frame may exceed the cap"
        );
        assert!(!outbound.is_closing());
        assert!(outbound.push_answer("x".into()));
        assert!(outbound.is_closing());
        assert!(matches!(
            outbound.next().await,
            Next::Close(Closing::Now(SocketClose::OutboundBuffer))
        ));
        assert!(!outbound.push_answer("late".into()));
    }

    #[tokio::test]
    async fn srv_1401_a_drain_writes_what_is_queued_first() {
        let outbound = outbound(10, 20);
        outbound.push_answer("a".into());
        outbound.close(Closing::AfterQueue(SocketClose::GoingAway));
        assert!(!outbound.push_answer("b".into()));
        assert!(!write_one(&outbound).await);
        assert!(matches!(
            outbound.next().await,
            Next::Close(Closing::AfterQueue(SocketClose::GoingAway))
        ));
    }

    #[tokio::test]
    async fn srv_314_records_stay_until_a_pong_or_an_acknowledgement_confirms_them() {
        let outbound = outbound(1000, 1000);
        for (session, from, to) in [("a", 0, 1), ("b", 0, 1), ("a", 1, 2), ("a", 2, 2)] {
            outbound
                .push_recorded("f".into(), Box::new(delivery(session, from, to)))
                .expect("open");
        }
        for _ in 0..2 {
            write_one(&outbound).await;
        }
        outbound.ask_ping();
        let Next::Ping(payload) = outbound.next().await else {
            panic!("a ping was asked for")
        };
        for _ in 0..2 {
            write_one(&outbound).await;
        }
        outbound.pong(&payload);
        outbound.pong(&u64::MAX.to_be_bytes());
        outbound.pong(b"not ours");
        let a = SessionKey {
            space: "did:key:zS".into(),
            session: "a".into(),
        };
        outbound.acknowledge(&a, Seq(2));
        let left = outbound.withdraw(&a);
        let spans: Vec<_> = left
            .unconfirmed
            .iter()
            .map(|d| (d.from_seq.0, d.to_seq.0))
            .collect();
        assert_eq!(
            spans,
            [(2, 2)],
            "the frame that did not advance is not covered by the acknowledgement"
        );
        assert!(left.unsent.is_empty());
    }

    #[tokio::test]
    async fn srv_314_dropped_records_are_remembered_as_uncertainty() {
        let limits = Limits {
            unconfirmed_deliveries: 2,
            ..Limits::default()
        };
        let outbound = Outbound::socket(&limits);
        for to in 1..=3 {
            outbound
                .push_recorded("f".into(), Box::new(delivery("a", to - 1, to)))
                .expect("open");
            write_one(&outbound).await;
        }
        assert_eq!(outbound.strand(), 2);
        let a = SessionKey {
            space: "did:key:zS".into(),
            session: "a".into(),
        };
        let left = outbound.withdraw(&a);
        assert!(left.overflowed);
        assert_eq!(left.unconfirmed.len(), 2);
    }

    #[tokio::test]
    async fn what_an_ended_connection_did_not_deliver_is_there_for_each_session_once() {
        let outbound = outbound(1000, 1000);
        for (session, from, to) in [("a", 0, 1), ("b", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 2, 3)] {
            outbound
                .push_recorded("f".into(), Box::new(delivery(session, from, to)))
                .expect("open");
        }
        for _ in 0..3 {
            write_one(&outbound).await;
        }
        outbound.close(Closing::PeerGone);
        assert_eq!(outbound.strand(), 5);
        let [a, b] = ["a", "b"].map(|session| SessionKey {
            space: "did:key:zS".into(),
            session: session.into(),
        });
        // Who has it now says how far it came.
        outbound.acknowledge(&a, Seq(1));
        let ends = |frames: &[Delivered]| frames.iter().map(|frame| frame.to_seq.0).collect::<Vec<_>>();
        let left = outbound.withdraw(&a);
        assert_eq!((ends(&left.unconfirmed), ends(&left.unsent)), (vec![2], vec![3]));
        let left = outbound.withdraw(&b);
        assert_eq!((ends(&left.unconfirmed), ends(&left.unsent)), (vec![1], vec![3]));
        let again = outbound.withdraw(&a);
        assert!(again.unconfirmed.is_empty() && again.unsent.is_empty());
    }

    #[tokio::test]
    async fn srv_403_a_moved_session_takes_its_effects_along_and_leaves_its_answers() {
        let outbound = outbound(1000, 1000);
        let effect = |session: &str| EffectFrame {
            caught_up_local_seq: None,
            from_seq: Seq(0),
            sync: SyncContent::default().shared().expect("encodable"),
            address: EffectAddress::new(&"did:key:zS".into(), &session.into()),
        };
        for session in ["a", "b"] {
            outbound
                .push_effect(effect(session), delivery(session, 0, 1))
                .expect("open");
            outbound
                .push_recorded(session.into(), Box::new(delivery(session, 1, 2)))
                .expect("open");
        }
        let a = SessionKey {
            space: "did:key:zS".into(),
            session: "a".into(),
        };
        let taken = outbound.withdraw(&a);
        assert_eq!(taken.unsent.len(), 2, "what both carried is told again");
        assert_eq!(outbound.queued_bytes(), effect("b").len() + 2);
        let mut left = Vec::new();
        while left.len() < 3 {
            if let Next::Frame(frame, text) = outbound.next().await {
                outbound.written(frame);
                left.push(text);
            }
        }
        assert_eq!(left, ["a".to_owned(), effect("b").text(), "b".to_owned()]);
        assert!(
            outbound.withdraw(&a).unconfirmed.is_empty(),
            "nothing of it is left"
        );
    }
}
