//! One space's store across threads: [`EngineHandle`]. One writer thread owns the [`Engine`]; writes that wait
//! together share one SQLite transaction, a savepoint each (ENG-206); reads run on pooled read-only connections
//! (ENG-205). No async runtime is needed: a [`Reply`] is a future and can also be waited for.

mod lease;
mod log;
mod queue;
mod readers;
mod reply;
mod residency;
mod resting;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use memory_wire::ids::BranchName;
use memory_wire::scope_key::InstanceId;

use crate::document_cache::{StoreCache, StoreCounters};
use crate::engine::{Engine, EngineOptions};
use crate::error::EngineError;
use crate::feed::FeedRecord;
use crate::read::{EntityState, ReadInstance};
use crate::reader::Reader;
use crate::store_path::StoreLocation;

pub(crate) use log::Log;
pub use log::LogCounters;
use queue::{Job, Queue, Watching};
use readers::ReaderPool;
pub use reply::Reply;
use reply::Wakes;
use writer::Writer;

/// How the threads of a space behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActorOptions {
    /// Most writes that share one transaction.
    pub max_group: usize,
    /// Most reader threads, each with a connection; they start on demand.
    pub max_readers: usize,
    /// How often other processes' commits are looked for while [`EngineHandle::watch_foreign`] is on (ENG-208).
    pub foreign_poll: Duration,
    /// How long a thread without work keeps its connection open. The file is closed when all threads are gone; the next job
    /// opens it again.
    pub idle_close: Duration,
    /// Store files that may stay open in this process without work. Beyond that, idle ones close at once, and twice as many
    /// are opened only if all of them are in use.
    pub crowd: usize,
    /// Bytes that the write-ahead log may grow to. From three quarters of it on the writer tries to empty it; beyond it, reads that
    /// still use it are ended with [`EngineError::ReadOvertaken`].
    pub log_limit: u64,
}

impl Default for ActorOptions {
    /// Groups of 64, 4 readers, poll every 50 ms, close after 60 s, 128 idle files, a log of 128 MiB.
    fn default() -> Self {
        ActorOptions {
            max_group: 64,
            max_readers: 4,
            foreign_poll: Duration::from_millis(50),
            idle_close: Duration::from_secs(60),
            crowd: 128,
            log_limit: 128 << 20,
        }
    }
}

/// Told about commits of other processes, on the writer thread, in seq order and before any own commit that follows them.
pub type ForeignListener = Box<dyn FnMut(&mut Engine, Vec<FeedRecord>) + Send>;

/// Access to one space's store from any thread. Clones share it; when the last one is dropped, what is queued still runs,
/// then the threads end.
#[derive(Clone)]
pub struct EngineHandle(Arc<Owner>);

/// Ends the threads when nobody can give them work any more.
struct Owner {
    queue: Arc<Queue>,
    readers: Arc<ReaderPool>,
    cache: Arc<StoreCache>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // They end the writer when they need it no more.
        self.readers.close();
    }
}

impl std::fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineHandle")
            .field("location", self.0.queue.location())
            .finish_non_exhaustive()
    }
}

impl EngineHandle {
    /// A handle on the store at `location`. The file is opened by the first job, which gets the error if that fails.
    pub fn new(location: StoreLocation, engine: EngineOptions, actor: ActorOptions) -> EngineHandle {
        let writer = Writer::new(location, engine, actor);
        let cache = writer.cache().clone();
        let queue = Arc::new(Queue::new(writer));
        let readers = Arc::new(ReaderPool::new(queue.clone(), actor));
        EngineHandle(Arc::new(Owner {
            queue,
            readers,
            cache,
        }))
    }

    /// Where the store lies.
    pub fn location(&self) -> &StoreLocation {
        self.0.queue.location()
    }

    /// Runs a write on the writer thread, in order. Writes that wait together share a transaction; the reply comes only
    /// when it is durable. `work` sees the writes before it; if it panics, what it wrote is rolled back. Not for
    /// commits with SQLite-builtin operations: those take [`EngineHandle::turn`].
    pub fn write<R: Send + 'static>(&self, work: impl FnOnce(&mut Engine) -> R + Send + 'static) -> Reply<R> {
        let (reply, complete) = Reply::new();
        self.0.queue.push(Job::grouped(work, move |_, result, wakes| {
            complete.complete_among(result, wakes)
        }));
        reply
    }

    /// As [`EngineHandle::write`], with `publish` run on the writer thread after the shared transaction is durable (or
    /// lost): in the order of the writes, outside any transaction, and before any later job. This is where verdicts
    /// are sent and dirtiness is marked, so that no [`EngineHandle::turn`] can come in between. If the store cannot be
    /// opened there is nobody to publish with: `publish` is dropped, and [`EngineHandle::open_failure`] says why.
    pub fn write_then<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> R + Send + 'static,
        publish: impl FnOnce(&mut Engine, Result<R, EngineError>) + Send + 'static,
    ) {
        let publish = move |engine: Option<&mut Engine>, result, _: &mut Wakes| match engine {
            Some(engine) => publish(engine, result),
            None => drop(publish),
        };
        self.0.queue.push(Job::grouped(work, publish));
    }

    /// Runs `work` on the writer thread, in order, with no transaction open: for fan-out, commits with SQLite-builtin
    /// operations, and everything else that must not share a transaction.
    pub fn turn<R: Send + 'static>(&self, work: impl FnOnce(&mut Engine) -> R + Send + 'static) -> Reply<R> {
        let (reply, complete) = Reply::new();
        self.0.queue.push(Job::alone(move |engine, failed| {
            complete.complete(queue::run_alone(engine, failed, work))
        }));
        reply
    }

    /// Runs `work` on one committed state of the store, beside the writer (on the writer thread for a store in memory).
    /// Sees at least every write whose reply was delivered before. `work` must not wait for anything: as long as it runs,
    /// the log cannot be emptied, and when that takes too long, its next question to SQLite is answered
    /// [`EngineError::ReadOvertaken`] (field fault F39).
    pub fn read<R: Send + 'static>(&self, work: impl FnOnce(&Reader) -> R + Send + 'static) -> Reply<R> {
        if *self.location() == StoreLocation::Memory {
            return self.turn(|engine| work(engine.reader()));
        }
        let (reply, complete) = Reply::new();
        self.0.readers.push(Box::new(move |reader| {
            complete.complete(
                reader.and_then(|reader| queue::unwinding(|| reader.snapshot(work)).and_then(|done| done)),
            );
        }));
        reply
    }

    /// The newest state of one instance on `branch` or its parents; `None` when it was never written there. A document in
    /// use is answered at once and without SQLite, while other processes' commits are watched for
    /// ([`EngineHandle::watch_foreign`]) or cannot be (a store in memory); then it may be as old as the last look at them,
    /// and never older than the watch.
    pub fn state(
        &self,
        instance: &InstanceId,
        branch: &BranchName,
    ) -> Reply<Result<Option<EntityState>, EngineError>> {
        if (*self.location() == StoreLocation::Memory || self.0.queue.watching() == Watching::On)
            && let Some(hot) = self.0.cache.hot_state(instance, branch)
        {
            return Reply::ready(Ok(Some(hot)));
        }
        let (instance, branch) = (instance.clone(), branch.clone());
        self.read(move |reader| {
            let named = ReadInstance::Named(&instance.scope_key);
            reader.snapshot(|reader| reader.read_state(&instance.id, named, &branch, None))?
        })
    }

    /// Copies the store into a new file at `destination`, which must not exist: one committed state of it, beside the writer
    /// and however long it takes ([`Reader::back_up`]).
    pub fn back_up(&self, destination: std::path::PathBuf) -> Reply<Result<(), EngineError>> {
        if *self.location() == StoreLocation::Memory {
            return self.turn(move |engine| engine.reader().back_up(&destination));
        }
        let (reply, complete) = Reply::new();
        self.0.readers.push(Box::new(move |reader| {
            // In no snapshot: SQLite makes one of its own for this.
            let copied = |reader: &Reader| queue::unwinding(|| reader.back_up(&destination));
            complete.complete(reader.and_then(copied));
        }));
        reply
    }

    /// What the store's threads have done and remember.
    pub fn counters(&self) -> StoreCounters {
        self.0.cache.counters()
    }

    /// Starts looking for other processes' commits while the space has sessions or an active loop (ENG-208); `None` stops
    /// polling. Commits noticed while an own write took the lock are told in any case, if a listener is set.
    pub fn watch_foreign(&self, listener: Option<ForeignListener>) {
        self.0.queue.watch_foreign(listener);
    }

    /// Runs what is queued, then truncates the log and closes the writer's file. A later job opens it again.
    pub fn close(&self) -> Reply<()> {
        let (reply, complete) = Reply::new();
        self.0
            .queue
            .push(Job::close(move |result| complete.complete(result)));
        reply
    }

    /// Why the store could not be opened for the last write; `None` if it could.
    pub fn open_failure(&self) -> Option<EngineError> {
        self.0.queue.failure()
    }

    /// The write-ahead log's length and history.
    pub fn log_counters(&self) -> LogCounters {
        self.0.queue.log().counters()
    }

    /// Jobs waiting for the writer.
    pub fn backlog(&self) -> usize {
        self.0.queue.backlog()
    }

    /// Whether nothing of this space runs: no thread, and (unless the store is in memory) no open file. The next job starts
    /// what it needs.
    pub fn is_resting(&self) -> bool {
        self.0.queue.is_closed() && self.0.readers.is_empty()
    }
}
