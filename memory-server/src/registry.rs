//! The sessions of one space and the index from tracked instances to them (SRV-308…313, SRV-423). Owned by
//! [`crate::space::Space`] behind a short lock; nothing here waits or touches the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_engine::query::TrackedGraph;
use memory_wire::ids::SessionToken;
use memory_wire::message::{EffectAddress, ReadCeiling};
use memory_wire::{Did, InstanceId, LocalSeq, Seq, SessionId, SpaceId, WireError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::connection::Connection;
use crate::delivery::{Delivered, Held, Loss};
use crate::identifiers::Identifiers;
use crate::markers::Markers;
use crate::outbound::Withdrawn;
use crate::session::{Attachment, GraphKey, Session};
use crate::views::Views;
use crate::watches::WatchSet;

/// Names one session record; never used again after it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(u64);

/// The sessions of one space.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Boxed: a map that has held many keeps their places until it is told to give them back.
    sessions: FxHashMap<Slot, Box<Session>>,
    by_id: FxHashMap<SessionId, Slot>,
    tracking: FxHashMap<InstanceId, FxHashSet<Slot>>,
    /// Attached sessions a pass must visit although nothing touches them. Ordered, for reproducible passes.
    owed: BTreeSet<Slot>,
    /// Detached records by the time they die (SRV-312).
    expiring: BTreeSet<(u64, Slot)>,
    /// Records of each principal, attached or not.
    held: FxHashMap<Option<Did>, usize>,
    /// Records that have died and nobody has counted yet.
    expired: usize,
    attached: usize,
    /// Records that read by lease (SRV-607).
    keyed: usize,
    next: u64,
}

/// A verified open, as the registry needs it.
pub(crate) struct OpenRequest<'a> {
    pub(crate) space: &'a SpaceId,
    pub(crate) session_id: Option<SessionId>,
    pub(crate) token: Option<SessionToken>,
    pub(crate) seen_seq: Seq,
    pub(crate) principal: Option<Did>,
    pub(crate) acting_principal: Option<Did>,
    pub(crate) read_ceiling: Option<ReadCeiling>,
    pub(crate) connection: &'a Arc<Connection>,
    /// Records the principal may have here.
    pub(crate) most: usize,
}

/// The outcome of an open.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) slot: Slot,
    pub(crate) session_id: SessionId,
    pub(crate) token: SessionToken,
    pub(crate) incarnation: u64,
    pub(crate) resumed: bool,
    pub(crate) caught_up: LocalSeq,
    /// The connection that had the session until now, with the incarnation it knew, when it is another one.
    pub(crate) displaced: Option<(Arc<Connection>, u64)>,
}

/// Why an open is refused (SRV-308).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenRefusal {
    #[error("session {session} is already bound to {principal}")]
    Bound { session: SessionId, principal: Did },
    #[error("session {session} resume token is no longer valid")]
    StaleToken { session: SessionId },
    #[error("this principal has {most} sessions in the space, kept ones included, and may have no more")]
    TooMany { most: usize },
}

impl OpenRefusal {
    /// SRV-308: who is bound decides before whether the token is current.
    pub(crate) fn into_wire(self) -> WireError {
        match &self {
            OpenRefusal::Bound { .. } => WireError::authorization(self.to_string()),
            OpenRefusal::StaleToken { .. } => WireError::session_revoked(self.to_string()),
            // Those without a connection die soon: the client comes back on a fresh one (SRV-324).
            OpenRefusal::TooMany { .. } => WireError::authorization(self.to_string()).retriable(),
        }
    }
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            sessions: FxHashMap::default(),
            by_id: FxHashMap::default(),
            tracking: FxHashMap::default(),
            owed: BTreeSet::new(),
            expiring: BTreeSet::new(),
            held: FxHashMap::default(),
            expired: 0,
            attached: 0,
            keyed: 0,
            next: 1,
        }
    }

    /// Opens or resumes a session (SRV-308, SRV-309). The caller sends what follows from it and attaches the
    /// connection's own handle.
    pub(crate) fn open(
        &mut self,
        request: OpenRequest<'_>,
        now: u64,
        identifiers: &dyn Identifiers,
    ) -> Result<Opened, OpenRefusal> {
        let session_id = request
            .session_id
            .unwrap_or_else(|| SessionId::from(identifiers.uuid()));
        self.expire(now);
        let order = self.take_number();
        let incarnation = order;
        let attachment = Attachment::Attached {
            connection: Arc::clone(request.connection),
            order,
        };
        let Some(slot) = self.by_id.get(&session_id).copied() else {
            self.require_room(&request.principal, request.most)?;
            *self.held.entry(request.principal.clone()).or_default() += 1;
            let token = SessionToken::from(identifiers.uuid());
            let slot = Slot(order);
            let session = Session {
                address: EffectAddress::new(request.space, &session_id),
                id: session_id.clone(),
                token: token.clone(),
                principal: request.principal,
                acting_principal: request.acting_principal,
                read_ceiling: request.read_ceiling,
                seen_seq: request.seen_seq,
                last_synced: request.seen_seq,
                markers: Markers::default(),
                force_full: false,
                lease_reads: false,
                lease_reads_lapsed: false,
                attachment,
                incarnation,
                born: incarnation,
                watches: Arc::default(),
                views: Views::default(),
                effective: Arc::default(),
                tracked: FxHashSet::default(),
                undemanded: FxHashSet::default(),
                deferred: Default::default(),
                view: Arc::default(),
            };
            self.by_id.insert(session_id.clone(), slot);
            self.sessions.insert(slot, Box::new(session));
            self.attached += 1;
            return Ok(Opened {
                slot,
                session_id,
                token,
                incarnation,
                resumed: false,
                caught_up: LocalSeq(0),
                displaced: None,
            });
        };
        let session = self
            .sessions
            .get_mut(&slot)
            .expect("by_id names live records only");
        if let Some(bound) = &session.principal
            && request.principal.as_ref() != Some(bound)
        {
            return Err(OpenRefusal::Bound {
                session: session_id,
                principal: bound.clone(),
            });
        }
        if request.token.as_ref() != Some(&session.token) {
            return Err(OpenRefusal::StaleToken { session: session_id });
        }
        let claims = session.principal.is_none() && request.principal.is_some();
        if claims {
            self.require_room(&request.principal, request.most)?;
            self.let_go(&None);
            *self.held.entry(request.principal.clone()).or_default() += 1;
        }
        let session = self
            .sessions
            .get_mut(&slot)
            .expect("by_id names live records only");
        let displaced = match &session.attachment {
            Attachment::Attached { connection, .. } if !Arc::ptr_eq(connection, request.connection) => {
                Some((Arc::clone(connection), session.incarnation))
            }
            Attachment::Attached { .. } | Attachment::Detached { .. } => None,
        };
        session.token = SessionToken::from(identifiers.uuid());
        session.principal = session.principal.take().or(request.principal);
        session.acting_principal = request.acting_principal;
        session.read_ceiling = request.read_ceiling;
        session.seen_seq = session.seen_seq.max(request.seen_seq);
        session.incarnation = incarnation;
        let opened = Opened {
            slot,
            session_id,
            token: session.token.clone(),
            incarnation,
            resumed: true,
            caught_up: session.markers.told(),
            displaced,
        };
        self.set_attachment(slot, attachment);
        Ok(opened)
    }

    fn require_room(&self, principal: &Option<Did>, most: usize) -> Result<(), OpenRefusal> {
        match self.held.get(principal) {
            Some(held) if *held >= most => Err(OpenRefusal::TooMany { most }),
            Some(_) | None => Ok(()),
        }
    }

    /// A record of `principal` is gone.
    fn let_go(&mut self, principal: &Option<Did>) {
        if let Some(held) = self.held.get_mut(principal) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(principal);
            }
        }
    }

    fn set_attachment(&mut self, slot: Slot, attachment: Attachment) {
        let Some(session) = self.sessions.get_mut(&slot) else {
            return;
        };
        match std::mem::replace(&mut session.attachment, attachment) {
            Attachment::Attached { .. } => self.attached -= 1,
            Attachment::Detached { expires_at } => drop(self.expiring.remove(&(expires_at, slot))),
        }
        match session.attachment {
            Attachment::Attached { .. } => self.attached += 1,
            Attachment::Detached { expires_at } => drop(self.expiring.insert((expires_at, slot))),
        }
        self.note_owed(slot);
    }

    fn take_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    pub(crate) fn slot(&self, id: &SessionId) -> Option<Slot> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Session> {
        self.sessions.get(&slot).map(Box::as_ref)
    }

    pub(crate) fn by_id(&self, id: &SessionId) -> Option<&Session> {
        self.slot(id).and_then(|slot| self.get(slot))
    }

    /// The record of the opening `incarnation`, or nothing when it was replaced or removed (SRV-405).
    pub(crate) fn current(&self, id: &SessionId, incarnation: u64) -> Option<(Slot, &Session)> {
        let slot = self.slot(id)?;
        let session = self.get(slot)?;
        (session.incarnation == incarnation).then_some((slot, session))
    }

    /// Changes a record, then notes whether it is owed a visit.
    pub(crate) fn update<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Session) -> R) -> Option<R> {
        let session = self.sessions.get_mut(&slot)?;
        let was_keyed = session.lease_reads;
        let result = change(session);
        // Once keyed, always keyed.
        self.keyed += usize::from(session.lease_reads && !was_keyed);
        self.note_owed(slot);
        Some(result)
    }

    fn note_owed(&mut self, slot: Slot) {
        if self.sessions.get(&slot).is_some_and(|session| session.is_owed()) {
            self.owed.insert(slot);
        } else {
            self.owed.remove(&slot);
        }
    }

    /// Replaces the tracked set by what `graphs` reach. Returns true when it changed.
    pub(crate) fn set_interest(&mut self, slot: Slot, graphs: &BTreeMap<GraphKey, TrackedGraph>) -> bool {
        let mut tracked: FxHashSet<InstanceId> = FxHashSet::default();
        let mut undemanded: FxHashSet<InstanceId> = FxHashSet::default();
        // Branches come before deliveries.
        for (key, graph) in graphs {
            match key {
                GraphKey::Branch(_) => tracked.extend(graph.tracked_instances().cloned()),
                GraphKey::Delivery(_) => {
                    undemanded.extend(
                        graph
                            .tracked_instances()
                            .filter(|i| !tracked.contains(*i))
                            .cloned(),
                    );
                }
            }
        }
        tracked.extend(undemanded.iter().cloned());
        if let Some(session) = self.sessions.get_mut(&slot) {
            session.undemanded = undemanded;
        }
        self.set_tracked(slot, tracked)
    }

    fn set_tracked(&mut self, slot: Slot, tracked: FxHashSet<InstanceId>) -> bool {
        let Some(session) = self.sessions.get_mut(&slot) else {
            return false;
        };
        let old = std::mem::replace(&mut session.tracked, tracked);
        let gone: Vec<&InstanceId> = old.iter().filter(|key| !session.tracked.contains(*key)).collect();
        let new: Vec<&InstanceId> = session.tracked.iter().filter(|key| !old.contains(*key)).collect();
        let changed = !gone.is_empty() || !new.is_empty();
        for key in gone {
            untrack(&mut self.tracking, key, slot);
        }
        for key in new {
            self.tracking.entry(key.clone()).or_default().insert(slot);
        }
        changed
    }

    /// Adds to the tracked set. Returns true when something was new.
    pub(crate) fn track<'a>(&mut self, slot: Slot, keys: impl IntoIterator<Item = &'a InstanceId>) -> bool {
        let Some(session) = self.sessions.get_mut(&slot) else {
            return false;
        };
        let mut grew = false;
        for key in keys {
            if !session.tracked.contains(key) {
                grew = true;
                session.tracked.insert(key.clone());
                self.tracking.entry(key.clone()).or_default().insert(slot);
            }
        }
        grew
    }

    /// Takes keys out of the tracked set.
    pub(crate) fn untrack(&mut self, slot: Slot, keys: impl IntoIterator<Item = InstanceId>) {
        let Some(session) = self.sessions.get_mut(&slot) else {
            return;
        };
        for key in keys {
            if session.tracked.remove(&key) {
                untrack(&mut self.tracking, &key, slot);
            }
        }
    }

    /// Sessions tracking `key`.
    pub(crate) fn tracking(&self, key: &InstanceId) -> impl Iterator<Item = Slot> + '_ {
        self.tracking.get(key).into_iter().flatten().copied()
    }

    /// Attached sessions owed a visit.
    pub(crate) fn owed(&self) -> impl Iterator<Item = Slot> + '_ {
        self.owed.iter().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Session)> {
        self.sessions.iter().map(|(slot, session)| (*slot, &**session))
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// True while some session reads by lease.
    pub(crate) fn has_keyed(&self) -> bool {
        self.keyed > 0
    }

    /// True while some session is attached.
    pub(crate) fn has_attached(&self) -> bool {
        self.attached > 0
    }

    /// Removes a record and every index entry of it (SRV-4).
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Session> {
        let session = *self.sessions.remove(&slot)?;
        self.by_id.remove(&session.id);
        self.let_go(&session.principal);
        self.owed.remove(&slot);
        self.keyed -= usize::from(session.lease_reads);
        match session.attachment {
            Attachment::Attached { .. } => self.attached -= 1,
            Attachment::Detached { expires_at } => drop(self.expiring.remove(&(expires_at, slot))),
        }
        for key in &session.tracked {
            untrack(&mut self.tracking, key, slot);
        }
        Some(session)
    }

    /// Detaches the opening `incarnation` of a session whose connection has ended (SRV-312). Runs in the turn. The record
    /// keeps what the client holds, not what was evaluated for it: a resume evaluates everything. Of more than `most`
    /// detached records, those that have waited longest are dropped; returns how many.
    pub(crate) fn detach(&mut self, id: &SessionId, incarnation: u64, expires_at: u64, most: usize) -> usize {
        let Some((slot, _)) = self.current(id, incarnation) else {
            return 0;
        };
        self.set_attachment(slot, Attachment::Detached { expires_at });
        self.update(slot, |session| {
            // What is selected for a view may change meanwhile, and is then compared with what it was.
            if session.views.is_empty() {
                session.view.lock().graphs = BTreeMap::new();
                session.force_full = true;
            }
        });
        let mut dropped = 0;
        while self.expiring.len() > most
            && let Some(&(_, longest)) = self.expiring.first()
        {
            self.remove(longest);
            dropped += 1;
        }
        dropped
    }

    /// Drops detached records whose time has come.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some(&(expires_at, slot)) = self.expiring.first()
            && now >= expires_at
        {
            self.remove(slot);
            self.expired += 1;
        }
    }

    /// How many records have died since this was asked last.
    pub(crate) fn take_expired(&mut self) -> usize {
        std::mem::take(&mut self.expired)
    }

    /// Gives back the room that sessions which are gone have left in the maps. Looks at every tracked instance: for the
    /// sweep, not for each session that goes.
    pub(crate) fn give_back(&mut self) {
        fn is_spare(capacity: usize, len: usize) -> bool {
            capacity > 64 && capacity / 4 > len
        }
        if is_spare(self.sessions.capacity(), self.sessions.len()) {
            self.sessions.shrink_to_fit();
            self.by_id.shrink_to_fit();
        }
        if is_spare(self.held.capacity(), self.held.len()) {
            self.held.shrink_to_fit();
        }
        if is_spare(self.tracking.capacity(), self.tracking.len()) {
            self.tracking.shrink_to_fit();
        }
        for slots in self.tracking.values_mut() {
            if is_spare(slots.capacity(), slots.len()) {
                slots.shrink_to_fit();
            }
        }
    }

    /// Takes a frame that was not delivered out of the session's beliefs (SRV-433). Runs in the turn. Nothing is marked
    /// dirty: a connection that loses a frame ends, and the resume that follows evaluates everything.
    pub(crate) fn roll_back(&mut self, frame: &Delivered, loss: Loss) {
        let Some(slot) = self.slot(&frame.session.session) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&slot) else {
            return;
        };
        if frame.incarnation < session.born {
            // It went to an earlier session of this id, which has expired.
            return;
        }
        {
            let mut view = session.view.lock();
            for key in frame.upserts.iter() {
                if let Some(held) = view.entities.get_mut(key) {
                    held.certain = false;
                }
            }
            for key in frame.removes.iter() {
                // Only a full pass regenerates a remove, and only for something the session seems to hold.
                view.entities.entry(key.clone()).or_insert(Held {
                    seq: Seq(0),
                    deleted: true,
                    certain: false,
                });
            }
        }
        session.force_full = true;
        if let Some(marker) = frame.marker
            && (loss == Loss::Unsent || !frame.is_bare_marker())
        {
            session.markers.take_back(marker);
        }
        session.views.mark_plans(&frame.plans, true);
        self.note_owed(slot);
    }

    /// Takes everything of one session back that was withdrawn from a connection.
    pub(crate) fn take_back(&mut self, session: &SessionId, withdrawn: &Withdrawn, space: &SpaceId) {
        let is_mine = |frame: &&Delivered| frame.session.session == *session && frame.session.space == *space;
        for frame in withdrawn.unsent.iter().filter(is_mine) {
            self.roll_back(frame, Loss::Unsent);
        }
        for frame in withdrawn.unconfirmed.iter().filter(is_mine) {
            self.roll_back(frame, Loss::Unconfirmed);
        }
        if withdrawn.overflowed {
            self.doubt_everything(session);
        }
    }

    /// Makes what a session holds of `instances` uncertain. Runs in the turn; the next pass tells it again.
    pub(crate) fn doubt(&mut self, slot: Slot, instances: &FxHashSet<InstanceId>) {
        self.update(slot, |session| {
            session.force_full = true;
            for (key, held) in &mut session.view.lock().entities {
                held.certain &= !instances.contains(&key.instance);
            }
        });
    }

    /// Makes everything a session holds uncertain: records of its frames were dropped.
    fn doubt_everything(&mut self, id: &SessionId) {
        let Some(slot) = self.slot(id) else { return };
        self.update(slot, |session| {
            session.force_full = true;
            for held in session.view.lock().entities.values_mut() {
                held.certain = false;
            }
        });
    }

    /// Installs the views of a session (SRV-1001).
    pub(crate) fn set_views(&mut self, slot: Slot, views: Views) {
        self.update(slot, |session| {
            session.views = views;
            session.effective = session.watches.joined_by(&session.views);
        });
    }

    /// Installs a new watch list (SRV-501).
    pub(crate) fn set_watches(&mut self, slot: Slot, watches: Arc<WatchSet>) {
        self.update(slot, |session| {
            session.effective = watches.joined_by(&session.views);
            session.watches = watches;
        });
    }
}

fn untrack(tracking: &mut FxHashMap<InstanceId, FxHashSet<Slot>>, key: &InstanceId, slot: Slot) {
    if let Some(slots) = tracking.get_mut(key) {
        slots.remove(&slot);
        if slots.is_empty() {
            tracking.remove(key);
        }
    }
}
