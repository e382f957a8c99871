//! The writer's queue: jobs in order, and the thread that is started when there is work and ends when there has been
//! none for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::reply::Wakes;
use super::writer::Writer;
use super::{ForeignListener, Log};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::store_path::StoreLocation;
use crate::sync::{Condvar, Mutex, MutexGuard, Vigil};

/// Work between transactions.
pub(super) type Turn = Box<dyn FnOnce(Option<&mut Engine>, Option<EngineError>) + Send>;

/// One unit of the writer's work.
pub(super) enum Job {
    /// Shares a transaction with its neighbours.
    Grouped(Box<dyn GroupedJob>),
    /// Runs between transactions. Gets the open engine, or why there is none.
    Alone(Turn),
    /// Closes the file.
    Close(Box<dyn FnOnce(Result<(), EngineError>) + Send>),
}

/// A write in two halves: inside the shared transaction, and after it.
pub(super) trait GroupedJob: Send {
    /// Runs the first half as a member of the open group.
    fn run(&mut self, engine: &mut Engine);
    /// Runs the second half. `lost` says that the group never became durable, or never began. Whoever waits for the result
    /// may be left to `wakes`.
    fn publish(self: Box<Self>, engine: Option<&mut Engine>, lost: Option<EngineError>, wakes: &mut Wakes);
}

struct Write<W, R, P> {
    work: Option<W>,
    result: Option<Result<R, EngineError>>,
    publish: P,
}

impl<W, R, P> GroupedJob for Write<W, R, P>
where
    W: FnOnce(&mut Engine) -> R + Send,
    R: Send,
    P: FnOnce(Option<&mut Engine>, Result<R, EngineError>, &mut Wakes) + Send,
{
    fn run(&mut self, engine: &mut Engine) {
        if let Some(work) = self.work.take() {
            self.result = Some(unwinding(|| engine.group_member(work)).and_then(|done| done));
        }
    }

    fn publish(self: Box<Self>, engine: Option<&mut Engine>, lost: Option<EngineError>, wakes: &mut Wakes) {
        let Write { result, publish, .. } = *self;
        let result = match lost {
            Some(error) => Err(error),
            None => result.unwrap_or(Err(EngineError::Closed)),
        };
        if let Err(error) = unwinding(|| publish(engine, result, wakes)) {
            tracing::error!(%error, "publishing a write panicked");
        }
    }
}

impl Job {
    pub(super) fn grouped<R: Send + 'static>(
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
        publish: impl FnOnce(Option<&mut Engine>, Result<R, EngineError>, &mut Wakes) + Send + 'static,
    ) -> Job {
        Job::Grouped(Box::new(Write {
            work: Some(work),
            result: None,
            publish,
        }))
    }

    pub(super) fn alone(work: impl FnOnce(Option<&mut Engine>, Option<EngineError>) + Send + 'static) -> Job {
        Job::Alone(Box::new(work))
    }

    pub(super) fn close(done: impl FnOnce(Result<(), EngineError>) + Send + 'static) -> Job {
        Job::Close(Box::new(done))
    }
}

/// Runs `work` on the open engine, or answers why there is none.
pub(super) fn run_alone<R>(
    engine: Option<&mut Engine>,
    failed: Option<EngineError>,
    work: impl FnOnce(&mut Engine) -> R,
) -> Result<R, EngineError> {
    match engine {
        Some(engine) => unwinding(|| work(engine)),
        None => Err(failed.unwrap_or(EngineError::Closed)),
    }
}

/// Turns a panic of `work` into an error. Sound to use after: an engine rolls back what unwinds, and nothing else is shared.
pub(super) fn unwinding<R>(work: impl FnOnce() -> R) -> Result<R, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        EngineError::Panicked(
            text.or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default(),
        )
    })
}

/// Jobs of one space's writer.
pub(super) struct Queue {
    location: StoreLocation,
    log: Arc<Log>,
    inner: Mutex<Inner>,
    arrived: Condvar,
}

struct Inner {
    jobs: VecDeque<Job>,
    /// Members of the last group, if nothing else ran since.
    last_group: usize,
    /// How many write at once, as far as was seen lately.
    writers: usize,
    /// The writer, while no thread runs it.
    parked: Option<Box<Writer>>,
    /// No handle is left: run what is queued, then end.
    closing: bool,
    /// The end has come; whatever is pushed now is answered `Closed`.
    ended: bool,
    listener: Option<ForeignListener>,
    /// Why the store could not be opened when it last was to be.
    failure: Option<EngineError>,
    watching: Watching,
}

/// Whether other processes' commits are looked for (ENG-208).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watching {
    /// They are not.
    Off,
    /// They are from now on; what happened before the first look is not known yet. → `On`
    Begun,
    /// They are, and have been looked for.
    On,
}

/// How long the writer stays for those that it has just answered, who as a rule have more to write: groups would else get
/// ever smaller, each of the few that were quickest, and a group costs a good deal by itself. It stays awake meanwhile, for
/// to be woken takes longer than most of them need, and gives way to every thread that could run.
const LINGER: Duration = Duration::from_micros(100);

/// What the writer finds when it asks for work.
pub(super) enum Next {
    /// The first member of a group; [`Queue::joining`] gives the others.
    Group(Box<dyn GroupedJob>),
    /// A job of its own.
    Single(Job),
    /// Nothing within the poll interval.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
}

impl Queue {
    pub(super) fn new(writer: Writer) -> Queue {
        Queue {
            location: writer.location().clone(),
            log: writer.log().clone(),
            inner: Mutex::new(Inner {
                jobs: VecDeque::new(),
                last_group: 0,
                writers: 0,
                parked: Some(Box::new(writer)),
                closing: false,
                ended: false,
                listener: None,
                failure: None,
                watching: Watching::Off,
            }),
            arrived: Condvar::new(),
        }
    }

    pub(super) fn location(&self) -> &StoreLocation {
        &self.location
    }

    pub(super) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    pub(super) fn backlog(&self) -> usize {
        self.inner.lock().jobs.len()
    }

    /// Whether no thread runs the writer.
    pub(super) fn is_parked(&self) -> bool {
        self.inner.lock().parked.is_some()
    }

    pub(super) fn push(self: &Arc<Self>, job: Job) {
        let mut inner = self.inner.lock();
        if inner.ended {
            // Dropping a job wakes whoever waits for it, which must not happen under the lock.
            drop(inner);
            return drop(job);
        }
        inner.jobs.push_back(job);
        let unanswered = self.start(&mut inner);
        self.arrived.notify_one();
        drop(inner);
        drop(unanswered);
    }

    pub(super) fn watch_foreign(self: &Arc<Self>, listener: Option<ForeignListener>) {
        let mut inner = self.inner.lock();
        inner.watching = match (&listener, inner.watching) {
            (None, _) => Watching::Off,
            (Some(_), Watching::Off) => Watching::Begun,
            (Some(_), watching) => watching,
        };
        let replaced = std::mem::replace(&mut inner.listener, listener);
        let unanswered = if inner.watching == Watching::Off {
            VecDeque::new()
        } else {
            self.start(&mut inner)
        };
        self.arrived.notify_one();
        drop(inner);
        drop((replaced, unanswered));
    }

    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closing = true;
        // A parked writer has no jobs left, so there is nothing to wait for.
        inner.ended = inner.parked.is_some();
        let listener = inner.listener.take();
        inner.watching = Watching::Off;
        self.arrived.notify_one();
        drop(inner);
        drop(listener);
    }

    /// Starts the writer's thread if it is not running. Returns the jobs that cannot be run, to be dropped (and so
    /// answered `Closed`) outside the lock.
    fn start(self: &Arc<Self>, inner: &mut Inner) -> VecDeque<Job> {
        let Some(writer) = inner.parked.take() else {
            return VecDeque::new();
        };
        // The thread takes the writer out; if there is no thread, it is still here to be parked again.
        let seat = Arc::new(Mutex::new(Some(writer)));
        let (queue, taken) = (self.clone(), seat.clone());
        let spawned = crate::sync::thread::Builder::new()
            .name("space-writer".to_owned())
            .stack_size(super::writer::STACK)
            .spawn(move || {
                let writer = taken.lock().take();
                if let Some(writer) = writer {
                    writer.run(&queue);
                }
            });
        match spawned {
            Ok(_) => VecDeque::new(),
            Err(error) => {
                tracing::error!(%error, "no thread for a space's writer");
                inner.parked = seat.lock().take();
                std::mem::take(&mut inner.jobs)
            }
        }
    }

    /// The next work, waiting at most `patience` for it.
    pub(super) fn next(&self, patience: Duration) -> Next {
        let mut inner = self.inner.lock();
        if inner.last_group > 0 {
            let seen = std::mem::take(&mut inner.last_group) + inner.jobs.len();
            inner.writers = seen.max(inner.writers - inner.writers.div_ceil(8));
            inner = self.linger(inner);
        }
        if inner.jobs.is_empty() && !inner.closing {
            self.arrived.wait_for(&mut inner, patience);
        }
        match inner.jobs.pop_front() {
            None if inner.closing => {
                inner.ended = true;
                Next::Closed
            }
            None => Next::Nothing,
            Some(Job::Grouped(first)) => Next::Group(first),
            Some(job) => Next::Single(job),
        }
    }

    /// Stays for a job, if several write at once.
    fn linger<'q>(&'q self, mut inner: MutexGuard<'q, Inner>) -> MutexGuard<'q, Inner> {
        if inner.writers < 2 {
            return inner;
        }
        let vigil = Vigil::of(LINGER);
        while inner.jobs.is_empty() && !inner.closing {
            if vigil.is_over() {
                inner.writers /= 2;
                break;
            }
            drop(inner);
            crate::sync::thread::yield_now();
            inner = self.inner.lock();
        }
        inner
    }

    /// The next member of the open group, which has `members` so far; none when the group is to end. Whoever comes while a
    /// group is being written still gets in.
    pub(super) fn joining(&self, members: usize, max_group: usize) -> Option<Box<dyn GroupedJob>> {
        let mut inner = self.inner.lock();
        inner.last_group = members;
        if members >= max_group {
            return None;
        }
        // The last few are not worth everybody else's time.
        if members < inner.writers - inner.writers / 8 {
            inner = self.linger(inner);
        }
        match inner.jobs.pop_front()? {
            Job::Grouped(job) => Some(job),
            other => {
                inner.jobs.push_front(other);
                None
            }
        }
    }

    /// Ends the writer's thread unless work has arrived meanwhile; then the writer is given back.
    pub(super) fn park(&self, writer: Box<Writer>) -> Option<Box<Writer>> {
        let mut inner = self.inner.lock();
        if !inner.jobs.is_empty() || inner.watching != Watching::Off {
            return Some(writer);
        }
        inner.parked = Some(writer);
        None
    }

    /// Whether no thread runs the writer, and it has no file open.
    pub(super) fn is_closed(&self) -> bool {
        self.inner
            .lock()
            .parked
            .as_ref()
            .is_some_and(|writer| !writer.holds_file())
    }

    /// Does something to a writer while it is parked.
    pub(super) fn tend_parked(self: &Arc<Self>, tend: impl FnOnce(&mut Writer)) {
        let Some(mut writer) = self.inner.lock().parked.take() else {
            return;
        };
        tend(&mut writer);
        let mut inner = self.inner.lock();
        inner.parked = Some(writer);
        // As in `close`, which may have come meanwhile.
        inner.ended = inner.closing && inner.jobs.is_empty();
        // Whoever came meanwhile found nobody to start.
        let unanswered = if inner.jobs.is_empty() && inner.watching == Watching::Off {
            VecDeque::new()
        } else {
            self.start(&mut inner)
        };
        drop(inner);
        drop(unanswered);
    }

    /// Remembers why the store cannot be opened, or that it can.
    pub(super) fn note_failure(&self, failure: Option<EngineError>) {
        self.inner.lock().failure = failure;
    }

    pub(super) fn failure(&self) -> Option<EngineError> {
        self.inner.lock().failure.as_ref().map(EngineError::for_neighbour)
    }

    pub(super) fn watching(&self) -> Watching {
        self.inner.lock().watching
    }

    /// Other processes' commits were looked for.
    pub(super) fn note_look(&self) {
        let mut inner = self.inner.lock();
        if inner.watching == Watching::Begun {
            inner.watching = Watching::On;
        }
    }

    pub(super) fn take_listener(&self) -> Option<ForeignListener> {
        self.inner.lock().listener.take()
    }

    /// Puts a listener back, unless another one was set meanwhile.
    pub(super) fn restore_listener(&self, listener: ForeignListener) {
        let mut inner = self.inner.lock();
        if inner.watching != Watching::Off && inner.listener.is_none() {
            inner.listener = Some(listener);
        }
    }
}
