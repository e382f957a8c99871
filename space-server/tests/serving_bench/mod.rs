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
use memory_wire::well_known::{self, WATERMARK_DOCUMENT};
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
use space_server::time::{ExecutorSleeper, HostTime, Sleep, Sleeper};
use tokio::runtime::Handle;

/// Called by the counter's handler in every run, before it writes.
pub(crate) type Hook = Arc<dyn Fn() -> Result<(), RunnerError> + Send + Sync>;

/// One shared count, what it doubles to, and one sentence per user.
#[derive(Clone)]
pub(crate) struct Counter {
    pub(crate) hook: Hook,
    /// Runs of the handler.
    pub(crate) runs: Arc<AtomicUsize>,
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
    pub(crate) fn with(hook: impl Fn() -> Result<(), RunnerError> + Send + Sync + 'static) -> Counter {
        Counter {
            hook: Arc::new(hook),
            ..Counter::default()
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Pattern for Counter {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("serving-tests", "counter", "1")
    }

    fn graph(&self) -> PatternGraph {
        let argument = value!({ "type": "object", "properties": { "peer": { "asCell": ["stream"] } } });
        let mut g = GraphBuilder::new(&self.identity(), argument);
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
        let told = g.state("told", value!({ "type": "number", "default": 0 }));
        let tell = g.handler(
            "tell",
            fields([("told", (&told).into())]),
            value!({ "type": "object", "properties": { "by": { "type": "number" } } }),
            |_, state, event| {
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(1.0);
                state.cell("told")?.set(Value::from(number(state, "told")? + by))
            },
        );
        let (hook, runs) = (self.hook.clone(), self.runs.clone());
        let peer = g.argument().key("peer");
        let add = g.handler(
            "add",
            fields([
                ("count", (&count).into()),
                ("mine", (&mine).into()),
                ("tell", (&tell).into()),
                ("peer", (&peer).into()),
            ]),
            value!({
                "type": "object",
                "properties": {
                    "by": { "type": "number" },
                    "tell": { "type": "boolean" },
                    "pass": { "type": "boolean" },
                    "poison": { "type": "boolean" }
                }
            }),
            move |cx: &RunCx, state: &ArgView, event: &Value| {
                runs.fetch_add(1, Ordering::SeqCst);
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(1.0);
                let before = (number(state, "count")?, number(state, "mine")?);
                hook()?;
                state.cell("count")?.set(Value::from(before.0 + by))?;
                state.cell("mine")?.set(Value::from(before.1 + by))?;
                for (flag, stream) in [("tell", "tell"), ("pass", "peer")] {
                    if event.member(flag).and_then(Value::as_bool) == Some(true) {
                        cx.send(&state.cell(stream)?, value!({ "by": by }))?;
                    }
                }
                if event.member("poison").and_then(Value::as_bool) == Some(true) {
                    // Streams are appended to by sending; the store refuses whoever writes a log by hand.
                    let id = well_known::stream_sidecar_id(&EntityId::from("of:other"), &["x"], Scope::Space);
                    let log = Link::to_document(state.cell("count")?.link().space.clone(), id, Scope::Space);
                    cx.cell_at(log)
                        .set_raw(Some(value!({ "entries": [{ "eventId": "forged" }] })), false)?;
                }
                Ok(())
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

/// A commit as stored.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) seq: u64,
    pub(crate) class: String,
    pub(crate) holder: Option<String>,
    pub(crate) session: String,
    pub(crate) consequence_of: Vec<String>,
    pub(crate) derived_through: Option<u64>,
    pub(crate) annotations: serde_json::Value,
    /// `id@scope key`, in operation order.
    pub(crate) writes: Vec<String>,
}

/// The store of one space, looked at from outside.
pub(crate) struct Rows(rusqlite::Connection);

impl Rows {
    pub(crate) fn open(data: &std::path::Path, space: &SpaceId) -> Rows {
        let path = StoreRoot::configured(data)
            .and_then(|root| root.store_path(space))
            .expect("a path");
        Rows(rusqlite::Connection::open(path).expect("a store"))
    }

    /// The acting principal and session a commit was delegated for, with its capability reference.
    pub(crate) fn carriage(&self, seq: u64) -> [Option<String>; 3] {
        let query = "SELECT acting_principal, acting_session, capability_ref FROM \"commit\" WHERE seq = ?1";
        let columns = |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?]);
        self.0
            .query_row(query, [i64::try_from(seq).expect("small")], columns)
            .expect("a commit")
    }

    /// Appends that wait for their delivery.
    pub(crate) fn undelivered(&self) -> i64 {
        self.0
            .query_row("SELECT COUNT(*) FROM execution_outbox", [], |row| row.get(0))
            .expect("a count")
    }

    pub(crate) fn head(&self) -> u64 {
        let seq: i64 = self
            .0
            .query_row("SELECT COALESCE(MAX(seq), 0) FROM \"commit\"", [], |row| {
                row.get(0)
            })
            .expect("a head");
        seq.unsigned_abs()
    }

    /// The commits after `seq`, in order.
    pub(crate) fn since(&self, seq: u64) -> Vec<Row> {
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

impl Row {
    /// It carries the watermark and nothing else.
    pub(crate) fn is_advance(&self) -> bool {
        self.class == "derived" && self.writes == [format!("{WATERMARK_DOCUMENT}@space")]
    }
}

impl Place {
    /// Waits until something landed after `head` and the loop is at rest again.
    pub(crate) async fn reaches(&self, client: &Client, rows: &Rows, head: u64) -> u64 {
        client.watermark(&self.space, move |w| w > head).await;
        self.rest(client, rows).await
    }
}
