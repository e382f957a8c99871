//! One transport and what it owns: negotiated flags, the live challenge, the sessions opened on it and the queue to
//! its peer (SRV-110…113, SRV-301). Shared by the tasks of `transport`, by `loopback` and by fan-out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use memory_engine::sync::Mutex;
use memory_wire::auth::ChallengeState;
use memory_wire::flags::Flags;
use memory_wire::{Seq, SessionId, SpaceId};

use crate::delivery::SessionKey;
use crate::limits::Limits;
use crate::listener::Allowance;
use crate::outbound::Outbound;
use crate::space::{PendingFrame, Space};
use crate::statistics::Statistics;

/// Where a connection stands (SRV-112). `AwaitHello → Ready`, once; a refused hello stays in `AwaitHello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Negotiation {
    /// No hello has been accepted yet.
    AwaitHello,
    /// The peer's flags are known.
    Ready(Flags),
}

/// A session as its connection knows it.
#[derive(Clone)]
pub(crate) struct OpenSession {
    pub(crate) space: Arc<Space>,
    /// The opening this handle stands for (SRV-310).
    pub(crate) incarnation: u64,
}

/// One connection.
pub(crate) struct Connection {
    /// For logs and fault points; unique in the process.
    pub(crate) id: String,
    /// Order of connecting: fan-out visits connections in it (§4.7).
    pub(crate) order: u64,
    pub(crate) outbound: Outbound,
    pub(crate) statistics: Arc<Statistics>,
    negotiation: Mutex<Negotiation>,
    /// No session was opened on it yet.
    guest: AtomicBool,
    /// What may be read while it is a guest; `None` where nobody counts.
    allowance: OnceLock<Arc<Allowance>>,
    /// At most one challenge lives at a time (SRV-301).
    pub(crate) challenge: Mutex<ChallengeState>,
    sessions: Mutex<BTreeMap<(SpaceId, SessionId), OpenSession>>,
    arrivals: Mutex<Arrivals>,
}

/// Frames that have arrived and are not handled yet, for which the pushes of their spaces wait (SRV-436).
#[derive(Debug, Default)]
struct Arrivals {
    /// Oldest first; those handled are gone.
    pending: VecDeque<Weak<PendingFrame>>,
    /// The first of them waits for its principal's rate, and the others for the first: nobody else is to wait for that.
    held_back: bool,
}

impl Connection {
    pub(crate) fn over_socket(
        id: String,
        order: u64,
        limits: &Limits,
        statistics: Arc<Statistics>,
    ) -> Arc<Connection> {
        Connection::new(id, order, Outbound::socket(limits), statistics)
    }

    pub(crate) fn in_process(id: String, order: u64, statistics: Arc<Statistics>) -> Arc<Connection> {
        Connection::new(id, order, Outbound::loopback(), statistics)
    }

    fn new(id: String, order: u64, outbound: Outbound, statistics: Arc<Statistics>) -> Arc<Connection> {
        Arc::new(Connection {
            statistics,
            id,
            order,
            outbound,
            negotiation: Mutex::new(Negotiation::AwaitHello),
            guest: AtomicBool::new(true),
            allowance: OnceLock::new(),
            challenge: Mutex::default(),
            sessions: Mutex::default(),
            arrivals: Mutex::default(),
        })
    }

    /// A frame that has arrived; it is pending for as long as the caller keeps it.
    pub(crate) fn expect(&self, frame: PendingFrame) -> Arc<PendingFrame> {
        let frame = Arc::new(frame);
        let mut arrivals = self.arrivals.lock();
        if arrivals.held_back {
            frame.let_go();
        }
        while arrivals
            .pending
            .front()
            .is_some_and(|oldest| oldest.strong_count() == 0)
        {
            arrivals.pending.pop_front();
        }
        arrivals.pending.push_back(Arc::downgrade(&frame));
        frame
    }

    /// What has arrived, and what will, waits for a rate: no pushes wait for it.
    pub(crate) fn hold_back(&self) {
        let mut arrivals = self.arrivals.lock();
        arrivals.held_back = true;
        for frame in arrivals.pending.iter().filter_map(Weak::upgrade) {
            frame.let_go();
        }
    }

    /// What arrives from now on is handled in its turn again.
    pub(crate) fn go_on(&self) {
        self.arrivals.lock().held_back = false;
    }

    /// The bound on what it may send before it opens a session.
    pub(crate) fn bound_by(&self, allowance: Arc<Allowance>) {
        // Set once, by the upgrade that made the connection.
        let _ = self.allowance.set(allowance);
    }

    pub(crate) fn is_guest(&self) -> bool {
        self.guest.load(Ordering::Relaxed)
    }

    /// A session was opened: it is known whom the connection serves.
    pub(crate) fn welcome(&self) {
        self.guest.store(false, Ordering::Relaxed);
        if let Some(allowance) = self.allowance.get() {
            allowance.lift();
        }
    }

    pub(crate) fn is_over_its_allowance(&self) -> bool {
        self.allowance
            .get()
            .is_some_and(|allowance| allowance.is_exhausted())
    }

    pub(crate) fn negotiation(&self) -> Negotiation {
        *self.negotiation.lock()
    }

    pub(crate) fn accept_hello(&self, flags: Flags) {
        *self.negotiation.lock() = Negotiation::Ready(flags);
    }

    /// True when syncs to this peer carry a schema table (SRV-118).
    pub(crate) fn compacts_schemas(&self, server: &Flags) -> bool {
        match self.negotiation() {
            Negotiation::AwaitHello => false,
            Negotiation::Ready(flags) => flags.sync_schema_table_v2 && server.sync_schema_table_v2,
        }
    }

    /// True when both sides have views (SRV-1001).
    pub(crate) fn speaks_views(&self, server: &Flags) -> bool {
        match self.negotiation() {
            Negotiation::AwaitHello => false,
            Negotiation::Ready(flags) => flags.both(*server).view_scoped_replication_v1,
        }
    }

    /// The session, if it is open on this connection (SRV-401).
    pub(crate) fn session(&self, space: &SpaceId, session: &SessionId) -> Option<OpenSession> {
        self.sessions
            .lock()
            .get(&(space.clone(), session.clone()))
            .cloned()
    }

    /// True while the opening `incarnation` of the session is attached here (SRV-403).
    pub(crate) fn holds(&self, space: &SpaceId, session: &SessionId, incarnation: u64) -> bool {
        self.session(space, session)
            .is_some_and(|open| open.incarnation == incarnation)
    }

    /// Runs `queue` while the opening `incarnation` of the session is attached here, or not at all. Whoever takes the
    /// session away waits for it, so that what it queues stands before word of that (SRV-403).
    pub(crate) fn while_holding<R>(
        &self,
        space: &SpaceId,
        session: &SessionId,
        incarnation: u64,
        queue: impl FnOnce() -> R,
    ) -> Option<R> {
        let sessions = self.sessions.lock();
        sessions
            .get(&(space.clone(), session.clone()))
            .is_some_and(|open| open.incarnation == incarnation)
            .then(queue)
    }

    pub(crate) fn attach(&self, space: &Arc<Space>, session: SessionId, incarnation: u64) {
        self.sessions.lock().insert(
            (space.id().clone(), session),
            OpenSession {
                space: Arc::clone(space),
                incarnation,
            },
        );
    }

    /// Forgets the session if it is still the opening `incarnation`.
    pub(crate) fn forget(&self, space: &SpaceId, session: &SessionId, incarnation: u64) {
        let mut sessions = self.sessions.lock();
        let key = (space.clone(), session.clone());
        if sessions
            .get(&key)
            .is_some_and(|open| open.incarnation == incarnation)
        {
            sessions.remove(&key);
        }
    }

    /// Takes every session off the connection, for its end (SRV-113).
    pub(crate) fn take_sessions(&self) -> Vec<(SessionKey, OpenSession)> {
        std::mem::take(&mut *self.sessions.lock())
            .into_iter()
            .map(|((space, session), open)| (SessionKey { space, session }, open))
            .collect()
    }

    /// The spaces this connection has sessions in.
    pub(crate) fn spaces(&self) -> Vec<Arc<Space>> {
        let mut spaces: Vec<Arc<Space>> = self
            .sessions
            .lock()
            .values()
            .map(|open| Arc::clone(&open.space))
            .collect();
        spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
        spaces
    }

    /// The peer has applied everything through `seen` in this session.
    pub(crate) fn acknowledge(&self, space: &SpaceId, session: &SessionId, seen: Seq) {
        self.outbound.acknowledge(
            &SessionKey {
                space: space.clone(),
                session: session.clone(),
            },
            seen,
        );
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use memory_engine::{ActorOptions, EngineHandle, EngineOptions, StoreLocation};

    use super::*;

    #[test]
    fn srv_403_whoever_takes_a_session_away_waits_until_its_answer_is_queued() {
        let limits = Limits::default();
        let connection = Connection::in_process("c".into(), 1, Arc::new(Statistics::new(&limits)));
        let engine = EngineHandle::new(
            StoreLocation::Memory,
            EngineOptions::default(),
            ActorOptions::default(),
        );
        let space = Space::new("did:key:s".into(), engine, &limits);
        let session = SessionId::from("s");
        connection.attach(&space, session.clone(), 7);
        let (taking, taken) = channel();
        let taker = Arc::clone(&connection);
        let queued = connection.while_holding(space.id(), &session, 7, || {
            let (space, session) = (Arc::clone(&space), session.clone());
            let (begins, began) = channel();
            let thread = std::thread::spawn(move || {
                begins.send(()).expect("awaited");
                taker.forget(space.id(), &session, 7);
                taking.send("taken").expect("awaited");
            });
            began.recv().expect("begins");
            std::thread::yield_now();
            assert!(
                taken.try_recv().is_err(),
                "taken while its answer was being queued"
            );
            thread
        });
        queued.expect("attached").join().expect("ends");
        assert_eq!(taken.recv(), Ok("taken"));
        assert!(connection.while_holding(space.id(), &session, 7, || ()).is_none());
        connection.attach(&space, session.clone(), 8);
        assert!(
            connection.while_holding(space.id(), &session, 7, || ()).is_none(),
            "another opening"
        );
    }
}
