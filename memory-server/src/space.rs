//! Everything the server keeps for one space: its store, its sessions, what is dirty, what is cached. Rooms receive it
//! as `Arc<Space>`; the map of spaces is in `spaces`.

use memory_engine::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_engine::EngineHandle;
use memory_engine::query::EvaluationCache;
use memory_engine::sync::Mutex;
use memory_wire::{Seq, SessionId, SpaceId};
use tokio::sync::Notify;

use crate::acl::AccessCache;
use crate::dirty::DirtyBatch;
use crate::document_cache::EncodedDocuments;
use crate::limits::Limits;
use crate::outbound::Withdrawn;
use crate::registry::Registry;
use crate::serving_lag::Uncovered;
use crate::tasks::timeout;

/// One open space.
pub(crate) struct Space {
    id: SpaceId,
    engine: EngineHandle,
    /// Highest seq known to be durable.
    head: AtomicU64,
    pub(crate) registry: Mutex<Registry>,
    dirty: Mutex<Dirty>,
    pub(crate) access: AccessCache,
    pub(crate) documents: EncodedDocuments,
    /// Evaluations that sessions with equal watches share (SRV-524).
    pub(crate) evaluations: EvaluationCache,
    pub(crate) schedule: Schedule,
    /// Authored commits that derived state may not cover yet.
    pub(crate) uncovered: Uncovered,
    /// The host works on the space's store: it is not closed when sessions leave (SRV-605, SRV-904).
    pinned: AtomicBool,
    /// Other processes' commits are being looked for.
    watching: AtomicBool,
}

#[derive(Debug, Default)]
struct Dirty {
    batch: DirtyBatch,
    /// A pass is owed, be it for an empty batch (SRV-411, SRV-609).
    due: bool,
    /// A pass is under way: what it took is not sent yet.
    passing: bool,
    /// When the first change was made that no pass has taken.
    since: Option<Instant>,
    /// The same of the batch that the pass under way has taken.
    taken: Option<Instant>,
}

/// When the space is flushed next (SRV-435…437).
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// A task is waiting to flush the space.
    armed: AtomicBool,
    /// Inbound frames addressed to the space that are not handled yet.
    pending: AtomicUsize,
    settled: Notify,
    /// Duration of the last pass, microseconds.
    last_refresh: AtomicU64,
}

/// Counts one inbound frame as pending in its space until it is dropped (SRV-110), or let go because it waits for something
/// other than its turn.
#[derive(Debug)]
pub(crate) struct PendingFrame {
    space: Arc<Space>,
    counted: AtomicBool,
}

impl Space {
    pub(crate) fn new(id: SpaceId, engine: EngineHandle, limits: &Limits) -> Arc<Space> {
        Arc::new(Space {
            registry: Mutex::new(Registry::new()),
            id,
            engine,
            head: AtomicU64::new(0),
            dirty: Mutex::default(),
            access: AccessCache::default(),
            documents: EncodedDocuments::new(limits.encoded_document_bytes),
            evaluations: EvaluationCache::new(),
            schedule: Schedule::default(),
            uncovered: Uncovered::default(),
            pinned: AtomicBool::new(false),
            watching: AtomicBool::new(false),
        })
    }

    pub(crate) fn id(&self) -> &SpaceId {
        &self.id
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Highest seq known to be durable; exact within this process.
    pub(crate) fn server_seq(&self) -> Seq {
        Seq(self.head.load(Ordering::Acquire))
    }

    /// A commit is durable, or the store was found at this seq. Returns the seq known before.
    pub(crate) fn note_head(&self, seq: Seq) -> Seq {
        Seq(self.head.fetch_max(seq.0, Ordering::AcqRel))
    }

    /// Changes what is dirty; a pass is then due. The caller schedules it.
    pub(crate) fn mark(&self, change: impl FnOnce(&mut DirtyBatch)) {
        let mut dirty = self.dirty.lock();
        change(&mut dirty.batch);
        dirty.due = true;
        dirty.since.get_or_insert_with(Instant::now);
    }

    /// Takes what is dirty, for a pass; `None` when nothing is due.
    pub(crate) fn take_dirty(&self) -> Option<DirtyBatch> {
        let mut dirty = self.dirty.lock();
        if !std::mem::take(&mut dirty.due) {
            return None;
        }
        dirty.passing = true;
        dirty.taken = dirty.since.take();
        Some(std::mem::take(&mut dirty.batch))
    }

    /// Ends the pass that took a batch; one that failed gives its batch back (SRV-422). Tells how long the first change of
    /// a batch that is done has waited.
    pub(crate) fn end_pass(&self, failed: Option<DirtyBatch>) -> Option<Duration> {
        let mut dirty = self.dirty.lock();
        dirty.passing = false;
        let since = dirty.taken.take();
        let Some(batch) = failed else {
            return since.map(|since| since.elapsed());
        };
        dirty.batch.requeue(batch);
        dirty.due = true;
        dirty.since = since.or(dirty.since);
        None
    }

    /// Age of the oldest change that no pass is done with; `None` when there is none.
    pub(crate) fn unsettled_for(&self) -> Option<Duration> {
        let dirty = self.dirty.lock();
        let since = dirty.taken.or(dirty.since)?;
        (dirty.due || dirty.passing).then(|| since.elapsed())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.lock().due
    }

    /// True while something is dirty or on its way out.
    pub(crate) fn is_unsettled(&self) -> bool {
        let dirty = self.dirty.lock();
        dirty.due || dirty.passing
    }

    /// True while somebody may be told of commits.
    pub(crate) fn is_attended(&self) -> bool {
        self.is_pinned() || self.registry.lock().has_attached()
    }

    pub(crate) fn has_derived_dirt(&self) -> bool {
        self.dirty.lock().batch.has_derived()
    }

    /// Drops dirty state nobody attached can be told of; obligations stay with the sessions (SRV-439).
    pub(crate) fn drop_dirt_if_unattended(&self) {
        // Under the registry's lock: nobody attaches between the question and the answer.
        let registry = self.registry.lock();
        if !registry.has_attached() {
            let mut dirty = self.dirty.lock();
            dirty.batch = DirtyBatch::default();
            dirty.due = false;
            dirty.since = None;
        }
    }

    /// Detaches the opening `incarnation` of a session whose connection has ended, after taking back what that connection
    /// may not have delivered. Runs in the turn; the resume that follows tells the session everything (SRV-314). Returns
    /// how many detached sessions had to go because there are more than `most`.
    pub(crate) fn detach(
        &self,
        session: &SessionId,
        incarnation: u64,
        expires_at: u64,
        withdrawn: &Withdrawn,
        most: usize,
    ) -> usize {
        let mut registry = self.registry.lock();
        registry.take_back(session, withdrawn, &self.id);
        let dropped = registry.detach(session, incarnation, expires_at, most);
        let unattended = !registry.has_attached();
        drop(registry);
        if unattended {
            self.drop_dirt_if_unattended();
            if !self.pinned.load(Ordering::Relaxed) && self.watching.swap(false, Ordering::AcqRel) {
                self.engine.watch_foreign(None);
            }
        }
        dropped
    }

    /// Claims the watch for other processes' commits; false when it is on already.
    pub(crate) fn begin_watching(&self) -> bool {
        !self.watching.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed)
    }

    pub(crate) fn pin(&self) {
        self.pinned.store(true, Ordering::Relaxed);
    }

    /// True when nothing here would be missed: no sessions, no dirt, no host.
    pub(crate) fn is_idle(&self) -> bool {
        !self.pinned.load(Ordering::Relaxed) && self.registry.lock().is_empty() && !self.is_dirty()
    }

    pub(crate) fn pending_frame(self: &Arc<Space>) -> PendingFrame {
        self.schedule.pending.fetch_add(1, Ordering::AcqRel);
        PendingFrame {
            space: Arc::clone(self),
            counted: AtomicBool::new(true),
        }
    }
}

impl PendingFrame {
    /// The space's pushes wait for the frame no longer.
    pub(crate) fn let_go(&self) {
        if self.counted.swap(false, Ordering::AcqRel) {
            let schedule = &self.space.schedule;
            if schedule.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                schedule.settled.notify_waiters();
            }
        }
    }
}

impl Drop for PendingFrame {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Schedule {
    /// Claims the right to wait for the next flush; false when a task has it already.
    pub(crate) fn arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
    }

    /// Waits until no inbound frame of the space is pending, for at most `max(floor, 2 × last refresh)` (SRV-436).
    pub(crate) async fn wait_settled(&self, floor: Duration) {
        let bound = floor.max(Duration::from_micros(
            self.last_refresh.load(Ordering::Relaxed) * 2,
        ));
        // Running into the bound is the intended way out under steady load.
        let _ = timeout(bound, async {
            loop {
                let settled = self.settled.notified();
                if self.pending.load(Ordering::Acquire) == 0 {
                    return;
                }
                settled.await;
            }
        })
        .await;
    }

    pub(crate) fn note_refresh(&self, took: Duration) {
        self.last_refresh.store(
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
