//! A whole server in the test's process: memory server, store files, executor host, clients over in-process lines.
//! Tests look at the store's rows and at the host's counters, and wait on the watermark alone (SS-587).

// Each test binary uses its own part of the bench.
#![allow(dead_code)]

mod counter;
mod rows;
mod setup;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use memory_engine::StoreRoot;
use memory_server::{Clock, Server, ServerConfig, Stores, SystemClock};
use memory_wire::identity::Signer;
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{Did, EntityId, EventId, Scope, SessionId, SpaceId, Value};
use runner::ambient::{RandomMint, SystemClock as RunnerClock};
use runner::cell::{Cell, Subscription};
use runner::entity_derivation::entity_for;
use runner::link::Link;
use runner::pattern::Pattern;
use runner::piece;
use runner::promise::Promise;
use runner::runtime::{ExecutorTimer, Posture, Runtime, RuntimeOptions, WakeSignal};
use runner::scheduler::SendOptions;
use runner::storage_manager::{StorageManager, StorageOptions};
use space_server::host::{ExecutorHost, HostConfig};
use space_server::loopback::LoopbackConnector;
use space_server::patterns::Patterns;
use space_server::settings::LoopSettings;
use space_server::statistics::{ServingLoop, Statistics};
use space_server::time::{ExecutorSleeper, HostTime, Sleep, Sleeper};
use tokio::runtime::Handle;

pub(crate) use counter::Counter;
pub(crate) use rows::{Row, Rows};
pub(crate) use setup::{Setup, classes, on_threads};

/// The machine's clocks, with a part that tests move.
#[derive(Default)]
pub(crate) struct MovableClock {
    machine: SystemClock,
    ahead: AtomicI64,
}

impl MovableClock {
    pub(crate) fn advance(&self, ms: i64) {
        self.ahead.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for MovableClock {
    fn wall_ms(&self) -> i64 {
        self.machine.wall_ms() + self.ahead.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.machine.monotonic_ms() + self.ahead.load(Ordering::SeqCst).unsigned_abs()
    }
}

/// Sleeps on the executor's timer, except that idle periods end when a test says so.
#[derive(Default)]
pub(crate) struct IdleOnDemand {
    ended: Arc<tokio::sync::Notify>,
    begun: tokio::sync::Notify,
}

/// The idle period of hosts under test; nothing else sleeps exactly as long.
pub(crate) const IDLE: Duration = Duration::from_millis(29_999);

impl IdleOnDemand {
    /// Ends the idle period that somebody waits out, or the next one.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
    }

    /// Waits until another idle period begins.
    pub(crate) async fn begins(&self) {
        self.begun.notified().await;
    }
}

impl Sleeper for IdleOnDemand {
    fn sleep(&self, how_long: Duration) -> Sleep {
        if how_long == IDLE {
            self.begun.notify_one();
            let ended = Arc::clone(&self.ended);
            return Box::pin(async move { ended.notified().await });
        }
        ExecutorSleeper.sleep(how_long)
    }
}

/// The process under test; its data outlives it.
pub(crate) struct Process {
    pub(crate) server: Arc<Server>,
    pub(crate) host: ExecutorHost,
    pub(crate) statistics: Statistics,
    pub(crate) idle: Arc<IdleOnDemand>,
    service: Signer,
}

impl Process {
    pub(crate) fn start(data: &std::path::Path, clock: &Arc<MovableClock>, counter: &Counter) -> Process {
        // A deadline that a busy machine cannot miss: what a wave holds then follows from what was fired alone.
        let settings = LoopSettings {
            flush_deadline: Duration::from_secs(60),
            idle_before_park: IDLE,
            ..LoopSettings::default()
        };
        Process::start_with(data, clock, counter, settings)
    }

    pub(crate) fn start_with(
        data: &std::path::Path,
        clock: &Arc<MovableClock>,
        counter: &Counter,
        settings: LoopSettings,
    ) -> Process {
        let service = Signer::from_passphrase("the service");
        let stores = Stores::Files(StoreRoot::configured(data).expect("a path"));
        let server = Server::new(ServerConfig {
            server_execution: true,
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            ..ServerConfig::new(service.did().clone(), stores)
        })
        .expect("a server");
        let statistics = Statistics::default();
        let counter = counter.clone();
        let patterns = Patterns::new().with(move || counter.clone());
        let idle = Arc::new(IdleOnDemand::default());
        let config = HostConfig {
            statistics: statistics.clone(),
            time: HostTime::new(
                Arc::clone(clock) as Arc<dyn Clock>,
                Arc::clone(&idle) as Arc<dyn Sleeper>,
            ),
            settings,
            ..HostConfig::new(
                Arc::clone(&server),
                Signer::from_passphrase("the service"),
                patterns,
            )
        };
        let host = ExecutorHost::start(config).expect("a host");
        Process {
            server,
            host,
            statistics,
            idle,
            service,
        }
    }

    pub(crate) fn counters(&self) -> ServingLoop {
        self.statistics.snapshot()
    }

    /// A client of this process, signed by `who`.
    pub(crate) fn client(&self, who: &str) -> Client {
        Client::new(&self.server, Signer::from_passphrase(who))
    }

    /// A client that is no demand and keeps nothing alive: it signs as the service.
    pub(crate) fn bystander(&self) -> Client {
        Client::new(&self.server, Signer::from_seed(*self.service.seed()))
    }

    pub(crate) async fn stop(self) {
        self.host.close().await;
        self.server.shut_down().await;
    }
}

/// A client runtime over an in-process line.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    pub(crate) did: Did,
    watching: RefCell<Vec<Subscription>>,
}

impl Client {
    fn new(server: &Arc<Server>, signer: Signer) -> Client {
        let signal = WakeSignal::new();
        let clock = Rc::new(RunnerClock);
        let did = signer.did().clone();
        let mut options = StorageOptions::new(
            Rc::new(signer),
            Rc::new(LoopbackConnector::new(Arc::clone(server), Handle::current())),
            clock.clone(),
            Rc::new(RandomMint),
            signal.wake(),
        );
        options.server_execution = true;
        let runtime = Runtime::new(RuntimeOptions {
            posture: Posture::Client,
            storage: StorageManager::new(options),
            signal,
            timer: Rc::new(ExecutorTimer::new(clock)),
        });
        Client {
            runtime,
            did,
            watching: RefCell::default(),
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.runtime.storage().session_id()
    }

    /// Writes the piece's documents; authored, like any creation by a client.
    pub(crate) async fn create(&self, pattern: &dyn Pattern, root: &Link, argument: Value) {
        let tx = self.runtime.edit();
        piece::setup(&tx, &pattern.identity(), &pattern.graph(), Some(argument), root).expect("set up");
        self.runtime.wait_on(tx.commit()).await.expect("admitted");
    }

    /// Demands a document with all it leads to.
    pub(crate) fn watch(&self, root: &Link) {
        let cell = self.runtime.cell(root.with_schema(Some(Value::Bool(true))));
        self.watching.borrow_mut().push(cell.sink(|_| None));
    }

    /// Fires an event and answers its id, once it is admitted.
    pub(crate) async fn fire(&self, stream: &Link, payload: Value) -> EventId {
        let admitted = Promise::new();
        let told = admitted.clone();
        self.runtime.storage().replica(&stream.space).on_ack(move |_, _| {
            told.settle(());
        });
        let event = self
            .runtime
            .send(stream, payload, SendOptions::default())
            .expect("sent");
        self.runtime.wait_on(admitted).await;
        event
    }

    /// Waits until the space's watermark is `reached`, which is also looked at right away.
    pub(crate) async fn watermark(&self, space: &SpaceId, reached: impl Fn(u64) -> bool + 'static) -> u64 {
        let document = Link {
            path: vec!["seq".into()],
            ..Link::to_document(space.clone(), EntityId::from(WATERMARK_DOCUMENT), Scope::Space)
        };
        let tell = Promise::new();
        let told = tell.clone();
        let cell: Cell = self.runtime.cell(document);
        let watching = cell.sink(move |seen| {
            if let Some(seq) = seen.as_ref().ok().and_then(|view| view.to_value().as_u64())
                && reached(seq)
            {
                told.settle(seq);
            }
            None
        });
        let seq = self.runtime.wait_on(tell).await;
        drop(watching);
        seq
    }

    pub(crate) fn leave(self) {
        self.watching.borrow_mut().clear();
        self.runtime.dispose();
        self.runtime.storage().close();
    }
}

/// A space with one counter in it, and where its parts are.
pub(crate) struct Place {
    pub(crate) space: SpaceId,
    pub(crate) root: Link,
    pub(crate) links: runner::pattern::PieceLinks,
}

/// The space all tests use.
pub(crate) fn place(counter: &Counter) -> Place {
    place_in("the space", counter)
}

/// Another space with a counter of its own.
pub(crate) fn place_in(name: &str, counter: &Counter) -> Place {
    let space = SpaceId::from(Signer::from_passphrase(name).did().as_str());
    let root = Link::to_document(space.clone(), entity_for(Value::from("counter")), Scope::Space);
    let links = piece::derived_links(&counter.graph(), &root);
    Place { space, root, links }
}

impl Place {
    pub(crate) fn link(&self, name: &str) -> Link {
        let found = self
            .links
            .internals
            .iter()
            .find(|(cause, _)| cause.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    /// Waits until the loop has nothing more to say: the last commit is one that only carried the watermark, and the
    /// watermark covers everything before it.
    pub(crate) async fn rest(&self, client: &Client, rows: &Rows) -> u64 {
        loop {
            let head = rows.head();
            let carried_only = rows
                .since(head.saturating_sub(1))
                .iter()
                .all(|row| row.is_advance());
            let wanted = if carried_only {
                head.saturating_sub(1)
            } else {
                head
            };
            let through = client.watermark(&self.space, move |w| w >= wanted).await;
            if carried_only && through + 1 == rows.head() {
                return head;
            }
        }
    }
}

impl Place {
    /// Waits until something landed after `head` and the loop is at rest again.
    pub(crate) async fn reaches(&self, client: &Client, rows: &Rows, head: u64) -> u64 {
        client.watermark(&self.space, move |w| w > head).await;
        self.rest(client, rows).await
    }
}
