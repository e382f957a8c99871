//! The writer thread of one space: opens the engine when there is work, runs groups and turns, looks for other
//! processes' commits, truncates the log when it comes to rest, and closes after a while (field fault F39).

use std::sync::Arc;
use std::time::Duration;

use memory_wire::ids::Seq;

use super::log::LogKeeper;
use super::queue::{GroupedJob, Job, Next, Queue, Watching, unwinding};
use super::reply::Wakes;
use super::residency::{Resident, SOON, is_crowded};
use super::{ActorOptions, Log, resting};
use crate::document_cache::StoreCache;
use crate::engine::{Engine, EngineOptions};
use crate::error::EngineError;
use crate::feed::FeedRecord;
use crate::store_path::StoreLocation;
use crate::sync::TIME_PASSES;

/// Stack of the threads that touch documents: deep values recurse within the codec's limit (WIRE-312).
pub(super) const STACK: usize = 16 << 20;

/// How long the writer has been without work when it gives back the pages and the statements of the store, and its thread.
const PAUSE: Duration = Duration::from_millis(200);

/// How long it has been without work when it truncates the log and gives back the rest.
pub(super) const REST: Duration = Duration::from_secs(2);

/// What the writer thread owns.
pub(super) struct Writer {
    location: StoreLocation,
    engine_options: EngineOptions,
    options: ActorOptions,
    engine: Option<Engine>,
    /// While the engine is open on a file.
    resident: Option<Resident>,
    /// Outlives the engine, so that handles can look at it.
    cache: Arc<StoreCache>,
    keeper: LogKeeper,
    /// Up to where a watcher was told of other processes' commits, while the store is closed under it.
    told: Option<Seq>,
}

/// How long there has been no work, in waits rather than by a clock.
#[derive(Default)]
struct Idle {
    waited: Duration,
    paused: bool,
    rested: bool,
}

impl Writer {
    pub(super) fn new(
        location: StoreLocation,
        engine_options: EngineOptions,
        options: ActorOptions,
    ) -> Writer {
        let keeper = LogKeeper::new(&location, options.log_limit, Arc::default());
        Writer {
            keeper,
            cache: StoreCache::new(),
            location,
            engine_options,
            options,
            engine: None,
            resident: None,
            told: None,
        }
    }

    pub(super) fn location(&self) -> &StoreLocation {
        &self.location
    }

    pub(super) fn cache(&self) -> &Arc<StoreCache> {
        &self.cache
    }

    pub(super) fn log(&self) -> &Arc<Log> {
        self.keeper.log()
    }

    /// The thread's body.
    pub(super) fn run(self: Box<Self>, queue: &Arc<Queue>) {
        let mut writer = self;
        let mut idle = Idle::default();
        loop {
            let watching = match queue.watching() {
                Watching::Off => false,
                Watching::Begun => {
                    writer.poll_foreign(queue);
                    true
                }
                Watching::On => true,
            };
            let patience = if watching {
                writer.options.foreign_poll
            } else {
                REST
            };
            let crowded = is_crowded(writer.options.crowd);
            let idle_close = if crowded {
                writer.options.idle_close.min(SOON)
            } else {
                writer.options.idle_close
            };
            // In short waits, so that an idle writer notices when it gets crowded.
            let patience = patience.min(idle_close).min(SOON);
            match queue.next(patience) {
                Next::Group(first) => {
                    writer.run_group(first, queue);
                    idle = Idle::default();
                }
                Next::Single(job) => {
                    writer.run_single(job, queue);
                    idle = Idle::default();
                }
                Next::Nothing => {
                    idle.waited += patience;
                    if watching {
                        writer.poll_foreign(queue);
                    }
                    if idle.waited >= PAUSE && !idle.paused {
                        idle.paused = true;
                        writer.pause();
                    }
                    if idle.waited >= REST && !idle.rested {
                        idle.rested = true;
                        writer.rest();
                    }
                    let stays_open = idle.waited < idle_close;
                    if (!stays_open || idle.paused && TIME_PASSES) && !watching {
                        // A store in memory lives only as long as its connection.
                        if !stays_open && writer.location != StoreLocation::Memory {
                            writer.close();
                        }
                        let (holds_file, options) = (writer.holds_file(), writer.options);
                        match queue.park(writer) {
                            Some(back) => writer = back,
                            None => {
                                if holds_file {
                                    resting::look_after(queue, idle.waited, options);
                                }
                                return;
                            }
                        }
                    }
                }
                Next::Closed => {
                    writer.rest();
                    return;
                }
            }
        }
    }

    fn engine(&mut self) -> Result<&mut Engine, EngineError> {
        if self.engine.is_none() {
            let (location, cache) = (self.location.clone(), self.cache.clone());
            let resident = (location != StoreLocation::Memory).then(|| Resident::enter(self.options.crowd));
            let mut engine = Engine::open_sharing(location, self.engine_options, cache)?;
            if let Some(told) = self.told.take() {
                engine.look_from(told);
            }
            self.engine = Some(engine);
            self.resident = resident;
        }
        let engine = self.engine.as_mut().ok_or(EngineError::Closed)?;
        engine.resume()?;
        Ok(engine)
    }

    /// Whether the store is open on a file.
    pub(super) fn holds_file(&self) -> bool {
        self.resident.is_some()
    }

    pub(super) fn close(&mut self) {
        self.engine = None;
        self.resident = None;
    }

    /// Runs a group, which begins with `first` and takes in what has come by the time its last member is written.
    fn run_group(&mut self, first: Box<dyn GroupedJob>, queue: &Arc<Queue>) {
        let max_group = self.options.max_group;
        let mut jobs = Vec::new();
        let mut next = Some(first);
        let outcome = self.engine().and_then(|engine| {
            engine.group(|engine| {
                while let Some(mut job) = next.take() {
                    job.run(engine);
                    jobs.push(job);
                    if !engine.group_is_lost() {
                        next = queue.joining(jobs.len(), max_group);
                    }
                }
            })
        });
        // There was no engine to begin with.
        jobs.extend(next);
        let lost = outcome.err();
        if let Some(error) = &lost {
            tracing::warn!(%error, members = jobs.len(), "a commit group was lost");
        }
        let foreign = self
            .engine
            .as_mut()
            .map(Engine::take_noticed_foreign)
            .unwrap_or_default();
        self.tell(foreign, queue);
        let unopened = lost.as_ref().filter(|_| self.engine.is_none());
        queue.note_failure(unopened.map(EngineError::for_neighbour));
        let mut wakes = Wakes::default();
        for job in jobs {
            let lost = lost.as_ref().map(EngineError::for_neighbour);
            job.publish(self.engine.as_mut(), lost, &mut wakes);
        }
        wakes.wake();
        self.tend_log();
    }

    fn tend_log(&mut self) {
        if let Some(engine) = &mut self.engine {
            self.keeper.tend(engine);
        }
    }

    fn run_single(&mut self, job: Job, queue: &Arc<Queue>) {
        match job {
            Job::Grouped(job) => self.run_group(job, queue),
            Job::Alone(work) => {
                // What other processes did before is published before what this turn may publish.
                if queue.watching() != Watching::Off {
                    self.poll_foreign(queue);
                }
                let failed = self.engine().err();
                let engine = self.engine.as_mut();
                if let Err(error) = unwinding(|| work(engine, failed)) {
                    tracing::error!(%error, "what came of a turn could not be handed over");
                }
                let foreign = self
                    .engine
                    .as_mut()
                    .map(Engine::take_noticed_foreign)
                    .unwrap_or_default();
                self.tell(foreign, queue);
                self.tend_log();
            }
            Job::Close(done) => {
                let emptied = match &mut self.engine {
                    Some(engine) => self.keeper.empty(engine, Duration::ZERO),
                    None => Ok(true),
                };
                if self.location != StoreLocation::Memory {
                    if queue.watching() != Watching::Off && self.engine.is_some() {
                        self.poll_foreign(queue);
                        self.told = self.engine.as_ref().map(Engine::known_seq);
                    }
                    self.close();
                }
                self.keeper.measure();
                done(emptied.map(|_| ()));
            }
        }
    }

    fn poll_foreign(&mut self, queue: &Arc<Queue>) {
        // Looking needs nothing that a store at rest has given back.
        let looked = match &mut self.engine {
            Some(engine) if engine.is_resting() => engine.foreign_commits(),
            Some(_) | None => self.engine().and_then(Engine::foreign_commits),
        };
        match looked {
            Ok(foreign) => {
                self.tell(foreign, queue);
                queue.note_look();
            }
            Err(error) => tracing::warn!(%error, "looking for other processes' commits failed"),
        }
    }

    /// Tells the listener about other processes' commits.
    fn tell(&mut self, foreign: Vec<FeedRecord>, queue: &Arc<Queue>) {
        if foreign.is_empty() {
            return;
        }
        let (Some(engine), Some(mut listener)) = (self.engine.as_mut(), queue.take_listener()) else {
            return;
        };
        if let Err(error) = unwinding(|| listener(engine, foreign)) {
            tracing::error!(%error, "the listener for other processes' commits panicked");
        }
        queue.restore_listener(listener);
    }

    fn pause(&self) {
        if let Some(Err(error)) = self.engine.as_ref().map(Engine::pause) {
            tracing::debug!(%error, "the pages of a store could not be given back");
        }
    }

    /// Empties the log once the writer has come to rest, and gives back what the store does not need for that.
    pub(super) fn rest(&mut self) {
        if let Some(engine) = &mut self.engine {
            match self.keeper.empty(engine, Duration::ZERO) {
                Ok(true) => {}
                Ok(false) => tracing::debug!("a reader pins the log"),
                Err(error) => tracing::warn!(%error, "the log could not be emptied"),
            }
            if let Err(error) = engine.rest() {
                tracing::debug!(%error, "a store could not be brought to rest");
            }
        }
    }
}
