//! The executor host (SS §3): which spaces are served by this process. It hears of commits, sessions and demand from
//! the memory server, and gives each space that needs it a loop on one of its threads. The decisions are in
//! `director`, the threads in `threads`, the way a notice takes in `routes`, the start-up scan in `boot`.

mod boot;
mod director;
mod routes;
mod threads;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memory_engine::StoreRoot;
use memory_engine::lease::Holder;
use memory_server::{Observer, Server, ServingPlane, Stores};
use memory_wire::identity::Signer;
use memory_wire::{Did, LocalSeq, SpaceId};
use tokio::sync::{mpsc, oneshot};

use crate::error::ServingError;
use crate::loopback::LoopbackConnector;
use crate::patterns::Patterns;
use crate::settings::LoopSettings;
use crate::statistics::Statistics;
use crate::time::{ExecutorSleeper, HostTime};
use director::{Directive, Director};
use routes::{HostObserver, Routes};

/// Everything a host is told at start.
#[derive(Clone)]
pub struct HostConfig {
    /// The engine plane of the co-hosted memory server.
    pub plane: Arc<dyn ServingPlane>,
    /// In-process lines to that server, over which serving runtimes read.
    pub connector: LoopbackConnector,
    /// Whether server execution is on, as the server sees it (SS-11).
    pub server_execution: bool,
    /// The service identity: signs the runtimes' sessions; its sessions are never demand.
    pub service: Arc<Signer>,
    /// The process part of the lease holder; the one the server was given (SS-201).
    pub process_instance: String,
    /// Where stores lie, for boot discovery; `None` discovers nothing (SS-109).
    pub stores: Option<StoreRoot>,
    /// Patterns that runtimes can run.
    pub patterns: Patterns,
    /// Knobs.
    pub settings: LoopSettings,
    /// Counters.
    pub statistics: Statistics,
    /// Clocks and sleeps.
    pub time: HostTime,
    /// OS threads that host loops.
    pub threads: NonZeroUsize,
}

impl HostConfig {
    /// A host over `server` with its clock, its process instance and its flag, default settings, and one loop thread
    /// per two processors. To be called in the executor that runs the server.
    pub fn new(server: Arc<Server>, service: Signer, patterns: Patterns) -> HostConfig {
        let config = server.config();
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        HostConfig {
            connector: LoopbackConnector::new(Arc::clone(&server), tokio::runtime::Handle::current()),
            server_execution: config.server_execution,
            service: Arc::new(service),
            process_instance: config.process_instance.clone(),
            stores: match &config.stores {
                Stores::Files(root) => Some(root.clone()),
                Stores::Memory => None,
            },
            patterns,
            settings: LoopSettings::default(),
            statistics: Statistics::default(),
            time: HostTime::new(Arc::clone(&config.clock), Arc::new(ExecutorSleeper)),
            threads: NonZeroUsize::new(processors.div_ceil(2)).unwrap_or(NonZeroUsize::MIN),
            plane: server,
        }
    }
}

/// What every loop of a host shares.
pub(crate) struct HostShared {
    pub(crate) plane: Arc<dyn ServingPlane>,
    pub(crate) connector: LoopbackConnector,
    pub(crate) signer: Arc<Signer>,
    pub(crate) service: Did,
    /// Minted once per process; constant across renewals and re-acquisitions (SS-201).
    pub(crate) holder: Holder,
    pub(crate) stores: Option<StoreRoot>,
    pub(crate) patterns: Patterns,
    pub(crate) settings: LoopSettings,
    pub(crate) statistics: Statistics,
    pub(crate) time: HostTime,
    next_local_seq: AtomicU64,
}

impl HostShared {
    /// The next number of the one counter that every commit of this process under its own session takes (SS-107).
    pub(crate) fn next_local_seq(&self) -> LocalSeq {
        LocalSeq(self.next_local_seq.fetch_add(1, Ordering::Relaxed))
    }
}

/// The one host of a process. Dropped without [`ExecutorHost::close`] it closes in the background.
pub struct ExecutorHost {
    director: mpsc::UnboundedSender<Directive>,
    routes: Arc<Routes>,
    plane: Arc<dyn ServingPlane>,
    service: Did,
    statistics: Statistics,
    closed: AtomicBool,
}

impl ExecutorHost {
    /// Starts the host's threads, attaches its observer to the server, and begins boot discovery.
    ///
    /// # Errors
    /// [`ServingError::ServerExecutionOff`] while the flag is off; [`ServingError::Thread`].
    pub fn start(config: HostConfig) -> Result<ExecutorHost, ServingError> {
        if !config.server_execution {
            return Err(ServingError::ServerExecutionOff);
        }
        let service = config.service.did().clone();
        let shared = Arc::new(HostShared {
            holder: Holder::new(&service, &config.process_instance),
            service: service.clone(),
            plane: Arc::clone(&config.plane),
            connector: config.connector,
            signer: config.service,
            stores: config.stores,
            patterns: config.patterns,
            settings: config.settings,
            statistics: config.statistics.clone(),
            time: config.time,
            next_local_seq: AtomicU64::new(1),
        });
        let (director, inbox) = mpsc::unbounded_channel();
        let routes = Arc::new(Routes::new(director.clone()));
        Director::start(
            shared,
            Arc::clone(&routes),
            director.clone(),
            inbox,
            config.threads,
        )?;
        let host = ExecutorHost {
            director,
            routes,
            plane: config.plane,
            service,
            statistics: config.statistics,
            closed: AtomicBool::new(false),
        };
        host.plane.set_observer(Some(host.observer()));
        Ok(host)
    }

    /// What the server tells the host through: it only posts to queues (SS-108). [`ExecutorHost::start`] has attached
    /// it already; a server that is restarted beside the host takes it again.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(HostObserver::new(Arc::clone(&self.routes), self.service.clone()))
    }

    /// Activates a space although nobody is there (SS-100). Answers whether it is served by this process then: false
    /// when another holder has the lease.
    ///
    /// # Errors
    /// [`ServingError::Closed`].
    pub async fn warm(&self, space: &SpaceId) -> Result<bool, ServingError> {
        let (answer, served) = oneshot::channel();
        let asked = self.director.send(Directive::Warm {
            space: space.clone(),
            answer,
        });
        if asked.is_err() {
            return Err(ServingError::Closed);
        }
        served.await.map_err(|_| ServingError::Closed)
    }

    /// The host's counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Stops serving (SS-110): detaches the observer, parks every space and gives its lease back, ends the threads.
    /// Idempotent; returns when all of that is done.
    pub async fn close(&self) {
        // The director drops what it cannot answer when it ends: then it is closed as well.
        if let Some(closed) = self.begin_closing() {
            let _ = closed.await;
        }
    }

    /// Detaches the observer and tells the director; `None` when that has ended already.
    fn begin_closing(&self) -> Option<oneshot::Receiver<()>> {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.plane.set_observer(None);
        }
        let (done, closed) = oneshot::channel();
        self.director
            .send(Directive::Close { done })
            .ok()
            .map(|()| closed)
    }
}

impl Drop for ExecutorHost {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::SeqCst) {
            self.begin_closing();
        }
    }
}

impl std::fmt::Debug for ExecutorHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutorHost")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
