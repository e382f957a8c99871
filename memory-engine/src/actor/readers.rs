//! The reader threads of one space: up to a few, started on demand, each with a read-only connection of its own, ended
//! after a while without work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::ActorOptions;
use super::queue::{Job, Queue, unwinding};
use super::reply::Reply;
use super::residency::{SOON, is_crowded};
use super::writer::{REST, STACK};
use crate::error::EngineError;
use crate::reader::Reader;
use crate::store_path::StoreLocation;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Work for a reader; gets the reader, or why there is none.
pub(super) type ReadJob = Box<dyn FnOnce(Result<&Reader, EngineError>) + Send>;

pub(super) struct ReaderPool {
    writer: Arc<Queue>,
    options: ActorOptions,
    inner: Mutex<Inner>,
    arrived: Condvar,
}

#[derive(Default)]
struct Inner {
    jobs: VecDeque<ReadJob>,
    threads: usize,
    idle: usize,
    closing: bool,
}

impl ReaderPool {
    pub(super) fn new(writer: Arc<Queue>, options: ActorOptions) -> ReaderPool {
        ReaderPool {
            writer,
            options,
            inner: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    pub(super) fn push(self: &Arc<Self>, job: ReadJob) {
        let mut inner = self.inner.lock();
        let mut unanswered = VecDeque::new();
        inner.jobs.push_back(job);
        if inner.idle < inner.jobs.len() && inner.threads < self.options.max_readers.max(1) {
            let pool = self.clone();
            let spawned = crate::sync::thread::Builder::new()
                .name("space-reader".to_owned())
                .stack_size(STACK)
                .spawn(move || pool.run());
            match spawned {
                Ok(_) => inner.threads += 1,
                Err(error) if inner.threads == 0 => {
                    tracing::error!(%error, "no thread for a space's readers");
                    unanswered = std::mem::take(&mut inner.jobs);
                }
                Err(error) => tracing::warn!(%error, "no further thread for a space's readers"),
            }
        }
        self.arrived.notify_one();
        drop(inner);
        drop(unanswered);
    }

    /// Whether no reader thread runs.
    pub(super) fn is_empty(&self) -> bool {
        self.inner.lock().threads == 0
    }

    /// No more jobs will come. What is queued still runs, which may take the writer, so that one ends after the readers.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closing = true;
        let ended = inner.threads == 0;
        self.arrived.notify_all();
        drop(inner);
        if ended {
            self.writer.close();
        }
    }

    /// One thread ends.
    fn leave(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.threads -= 1;
        let ended = inner.closing && inner.threads == 0;
        drop(inner);
        if ended {
            self.writer.close();
        }
    }

    fn run(&self) {
        let mut reader: Option<Reader> = None;
        while let Some(job) = self.next() {
            // Whoever owns what was read may panic when nobody takes it; others still need this thread.
            if let Err(error) = unwinding(|| self.answer(job, &mut reader)) {
                tracing::error!(%error, "what was read could not be handed over");
            }
        }
    }

    /// Runs a job on this thread's connection, which is opened for the first one.
    fn answer(&self, job: ReadJob, reader: &mut Option<Reader>) {
        let opened = match reader {
            Some(reader) => return job(Ok(reader)),
            None => self.open(),
        };
        match (opened, self.writer.location()) {
            (Ok(opened), _) => job(Ok(reader.insert(opened))),
            // Reads go on while the disk is full, also in a space that came to rest before.
            (Err(error @ EngineError::StoreFull(_)), StoreLocation::File(path)) => {
                match Reader::open_alone(path) {
                    Ok(alone) => job(Ok(&alone)),
                    Err(_) => job(Err(error)),
                }
            }
            (Err(error), _) => job(Err(error)),
        }
    }

    /// Asks the writer for a connection: the file then exists and is migrated, and the caches are shared.
    fn open(&self) -> Result<Reader, EngineError> {
        let (reply, complete) = Reply::new();
        self.writer.push(Job::alone(move |engine, failed| {
            complete.complete(super::queue::run_alone(engine, failed, |engine| {
                engine.new_reader()
            }));
        }));
        let mut reader = reply.wait()??.ok_or(EngineError::Closed)?;
        reader.obey(self.writer.log().overtaken())?;
        Ok(reader)
    }

    /// The next job; `None` when this thread should end.
    fn next(&self) -> Option<ReadJob> {
        let mut inner = self.inner.lock();
        let mut idle = Duration::ZERO;
        loop {
            if let Some(job) = inner.jobs.pop_front() {
                return Some(job);
            }
            if inner.closing {
                self.leave(inner);
                return None;
            }
            inner.idle += 1;
            let crowded = is_crowded(self.options.crowd);
            let idle_close = self.options.idle_close.min(REST);
            let waited = self.arrived.wait_for(&mut inner, idle_close.min(SOON));
            inner.idle -= 1;
            idle = if waited.timed_out() {
                idle + SOON
            } else {
                Duration::ZERO
            };
            if (crowded || idle >= idle_close) && waited.timed_out() && inner.jobs.is_empty() {
                self.leave(inner);
                return None;
            }
        }
    }
}
