//! A whole server in the test's process: memory server, store files, executor host, clients over in-process lines.
//! Tests look at the store's rows and at the host's counters, and wait on the watermark alone (SS-587).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use memory_engine::StoreRoot;
use memory_server::{Clock, Server, ServerConfig, Stores, SystemClock};
use memory_wire::identity::Signer;
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{Did, EntityId, EventId, Scope, SessionId, SpaceId, Value, value};
use runner::ambient::{RandomMint, SystemClock as RunnerClock};
use runner::cell::{Cell, Subscription};
use runner::entity_derivation::entity_for;
use runner::error::RunnerError;
use runner::link::Link;
use runner::pattern::{ArgView, GraphBuilder, Pattern, PatternGraph, PatternIdentity, RunCx, fields};
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
use tokio::runtime::Handle;

/// Called by the counter's handler in every run, before it writes.
pub type Hook = Arc<dyn Fn() -> Result<(), RunnerError> + Send + Sync>;

/// One shared count, what it doubles to, and one sentence per user.
#[derive(Clone)]
pub struct Counter {
    pub hook: Hook,
    /// Runs of the handler.
    pub runs: Arc<AtomicUsize>,
}

impl Default for Counter {
    fn default() -> Self {
        Counter {
            hook: Arc::new(|| Ok(())),
            runs: Arc::default(),
        }
    }
}

impl Counter {
    pub fn with(hook: impl Fn() -> Result<(), RunnerError> + Send + Sync + 'static) -> Counter {
        Counter {
            hook: Arc::new(hook),
            ..Counter::default()
        }
    }

    pub fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Pattern for Counter {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("serving-tests", "counter", "1")
    }

    fn graph(&self) -> PatternGraph {
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
        let count = g.state("count", value!({ "type": "number", "default": 0 }));
        let mine = g.scoped_state("mine", Scope::User, value!({ "type": "number" }));
        let doubled = g.derive(
            "doubled",
            fields([("count", (&count).into())]),
            value!({ "type": "number" }),
            |_, input| Ok(Value::from(number(input, "count")? * 2.0)),
        );
        let share = g.derive(
            "share",
            fields([("count", (&count).into()), ("mine", (&mine).into())]),
            value!({ "type": "string" }),
            |_, input| {
                Ok(Value::from(format!(
                    "{} of {}",
                    number(input, "mine")?,
                    number(input, "count")?
                )))
            },
        );
        let (hook, runs) = (self.hook.clone(), self.runs.clone());
        let add = g.handler(
            "add",
            fields([("count", (&count).into()), ("mine", (&mine).into())]),
            value!({ "type": "object", "properties": { "by": { "type": "number" } } }),
            move |_: &RunCx, state: &ArgView, event: &Value| {
                runs.fetch_add(1, Ordering::SeqCst);
                hook()?;
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(1.0);
                state
                    .cell("count")?
                    .set(Value::from(number(state, "count")? + by))?;
                state.cell("mine")?.set(Value::from(number(state, "mine")? + by))
            },
        );
        g.result(
            value!({ "type": "object" }),
            fields([
                ("count", (&count).into()),
                ("mine", (&mine).into()),
                ("doubled", (&doubled).into()),
                ("share", (&share).into()),
                ("add", (&add).into()),
            ]),
        )
    }
}

fn number(view: &ArgView, name: &str) -> Result<f64, RunnerError> {
    Ok(view.value(name)?.as_f64().unwrap_or(0.0))
}

/// The machine's clocks, with a part that tests move.
#[derive(Default)]
pub struct MovableClock {
    machine: SystemClock,
    ahead: AtomicI64,
}

impl MovableClock {
    pub fn advance(&self, ms: i64) {
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

/// The process under test; its data outlives it.
pub struct Process {
    pub server: Arc<Server>,
    pub host: ExecutorHost,
    pub statistics: Statistics,
    service: Signer,
}

impl Process {
    pub fn start(data: &std::path::Path, clock: &Arc<MovableClock>, counter: &Counter) -> Process {
        // A deadline that a busy machine cannot miss: what a wave holds then follows from what was fired alone.
        let settings = LoopSettings {
            flush_deadline: Duration::from_secs(60),
            ..LoopSettings::default()
        };
        Process::start_with(data, clock, counter, settings)
    }

    pub fn start_with(
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
        let config = HostConfig {
            statistics: statistics.clone(),
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
            service,
        }
    }

    pub fn counters(&self) -> ServingLoop {
        self.statistics.snapshot()
    }

    /// A client of this process, signed by `who`.
    pub fn client(&self, who: &str) -> Client {
        Client::new(&self.server, Signer::from_passphrase(who))
    }

    /// A client that is no demand and keeps nothing alive: it signs as the service.
    pub fn bystander(&self) -> Client {
        Client::new(&self.server, Signer::from_seed(*self.service.seed()))
    }

    pub async fn stop(self) {
        self.host.close().await;
        self.server.shut_down().await;
    }
}

/// A client runtime over an in-process line.
pub struct Client {
    pub runtime: Runtime,
    pub did: Did,
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

    pub fn session(&self) -> SessionId {
        self.runtime.storage().session_id()
    }

    /// Writes the piece's documents; authored, like any creation by a client.
    pub async fn create(&self, pattern: &dyn Pattern, root: &Link) {
        let tx = self.runtime.edit();
        piece::setup(&tx, &pattern.identity(), &pattern.graph(), Some(value!({})), root).expect("set up");
        self.runtime.wait_on(tx.commit()).await.expect("admitted");
    }

    /// Demands a document with all it leads to.
    pub fn watch(&self, root: &Link) {
        let cell = self.runtime.cell(root.with_schema(Some(Value::Bool(true))));
        self.watching.borrow_mut().push(cell.sink(|_| None));
    }

    /// Fires an event and answers its id, once it is admitted.
    pub async fn fire(&self, stream: &Link, payload: Value) -> EventId {
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
    pub async fn watermark(&self, space: &SpaceId, reached: impl Fn(u64) -> bool + 'static) -> u64 {
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

    pub fn leave(self) {
        self.watching.borrow_mut().clear();
        self.runtime.dispose();
        self.runtime.storage().close();
    }
}

/// A commit as stored.
#[derive(Debug)]
pub struct Row {
    pub seq: u64,
    pub class: String,
    pub holder: Option<String>,
    pub session: String,
    pub consequence_of: Vec<String>,
    pub derived_through: Option<u64>,
    pub annotations: serde_json::Value,
    /// `id@scope key`, in operation order.
    pub writes: Vec<String>,
}

/// The store of one space, looked at from outside.
pub struct Rows(rusqlite::Connection);

impl Rows {
    pub fn open(data: &std::path::Path, space: &SpaceId) -> Rows {
        let path = StoreRoot::configured(data)
            .and_then(|root| root.store_path(space))
            .expect("a path");
        Rows(rusqlite::Connection::open(path).expect("a store"))
    }

    pub fn head(&self) -> u64 {
        let seq: i64 = self
            .0
            .query_row("SELECT COALESCE(MAX(seq), 0) FROM \"commit\"", [], |row| {
                row.get(0)
            })
            .expect("a head");
        seq.unsigned_abs()
    }

    /// The commits after `seq`, in order.
    pub fn since(&self, seq: u64) -> Vec<Row> {
        let mut statement = self
            .0
            .prepare(
                "SELECT seq, class, holder, session_id, consequence_of, derived_through, annotations FROM \"commit\" \
                 WHERE seq > ?1 ORDER BY seq",
            )
            .expect("commits");
        let rows = statement
            .query_map([i64::try_from(seq).expect("small")], |row| {
                let text = |index| row.get::<_, Option<String>>(index);
                let json = |text: Option<String>| {
                    let text = text.unwrap_or_else(|| "null".to_owned());
                    let plain = text.strip_prefix("fvj1:").unwrap_or(&text).to_owned();
                    serde_json::from_str::<serde_json::Value>(&plain).expect("json")
                };
                let events = json(text(4)?);
                Ok(Row {
                    seq: row.get::<_, i64>(0)?.unsigned_abs(),
                    class: row.get(1)?,
                    holder: text(2)?,
                    session: row.get(3)?,
                    consequence_of: events
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(|event| event.as_str().map(str::to_owned))
                        .collect(),
                    derived_through: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
                    annotations: json(text(6)?),
                    writes: Vec::new(),
                })
            })
            .expect("rows");
        rows.map(|row| {
            let mut row = row.expect("a row");
            row.writes = self.writes(row.seq);
            row
        })
        .collect()
    }

    fn writes(&self, seq: u64) -> Vec<String> {
        let mut statement = self
            .0
            .prepare("SELECT id, scope_key FROM revision WHERE commit_seq = ?1 ORDER BY op_index")
            .expect("revisions");
        let rows = statement
            .query_map([i64::try_from(seq).expect("small")], |row| {
                Ok(format!(
                    "{}@{}",
                    row.get::<_, String>(0)?,
                    row.get::<_, String>(1)?
                ))
            })
            .expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }
}

/// A space with one counter in it, and where its parts are.
pub struct Place {
    pub space: SpaceId,
    pub root: Link,
    pub links: runner::pattern::PieceLinks,
}

/// The space all tests use.
pub fn place(counter: &Counter) -> Place {
    let space = SpaceId::from(Signer::from_passphrase("the space").did().as_str());
    let root = Link::to_document(space.clone(), entity_for(Value::from("counter")), Scope::Space);
    let links = piece::derived_links(&counter.graph(), &root);
    Place { space, root, links }
}

impl Place {
    pub fn link(&self, name: &str) -> Link {
        let found = self
            .links
            .internals
            .iter()
            .find(|(cause, _)| cause.as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    /// Waits until the loop has nothing more to say: the last commit is one that only carried the watermark, and the
    /// watermark covers everything before it.
    pub async fn rest(&self, client: &Client, rows: &Rows) -> u64 {
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

impl Row {
    /// It carries the watermark and nothing else.
    pub fn is_advance(&self) -> bool {
        self.class == "derived" && self.writes == [format!("{WATERMARK_DOCUMENT}@space")]
    }
}

impl Place {
    /// Waits until something landed after `head` and the loop is at rest again.
    pub async fn reaches(&self, client: &Client, rows: &Rows, head: u64) -> u64 {
        client.watermark(&self.space, move |w| w > head).await;
        self.rest(client, rows).await
    }
}
