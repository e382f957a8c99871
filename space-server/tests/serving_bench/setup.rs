//! The situation most tests begin in.

use std::sync::Arc;

use memory_server::ServingPlane;
use memory_wire::stream_entry::StreamEntry;
use memory_wire::{EntityId, Value, value};
use tokio::task::LocalSet;

use super::{Client, Counter, MovableClock, Place, Process, Row, Rows, place};

/// A process with the counter made by Alice, watched by her, and at rest.
pub(crate) struct Setup {
    pub(crate) data: tempfile::TempDir,
    pub(crate) clock: Arc<MovableClock>,
    pub(crate) counter: Counter,
    pub(crate) place: Place,
    pub(crate) process: Process,
    pub(crate) alice: Client,
    pub(crate) rows: Rows,
    pub(crate) head: u64,
}

impl Setup {
    pub(crate) async fn new(counter: Counter) -> Setup {
        let data = tempfile::tempdir().expect("a directory");
        let clock = Arc::new(MovableClock::default());
        let process = Process::start(data.path(), &clock, &counter);
        let place = place(&counter);
        let alice = process.client("alice");
        alice.create(&counter, &place.root, value!({})).await;
        alice.watch(&place.root);
        let rows = Rows::open(data.path(), &place.space);
        let head = place.rest(&alice, &rows).await;
        Setup {
            data,
            clock,
            counter,
            place,
            process,
            alice,
            rows,
            head,
        }
    }

    pub(crate) async fn fire(&self, by: f64) -> String {
        self.alice
            .fire(&self.place.link("add"), value!({ "by": by }))
            .await
            .as_str()
            .to_owned()
    }

    pub(crate) async fn rest(&self) -> u64 {
        self.place.rest(&self.alice, &self.rows).await
    }

    /// The commits since the setup came to rest.
    pub(crate) fn news(&self) -> Vec<Row> {
        self.rows.since(self.head)
    }
}

pub(crate) fn on_threads<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(LocalSet::new().run_until(test()));
}

pub(crate) fn classes(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.class.as_str()).collect()
}

impl Setup {
    pub(crate) async fn value(&self, name: &str) -> Option<f64> {
        let cell = self.alice.runtime.cell(self.place.link(name));
        let value = self.alice.runtime.wait_on(cell.pull()).await.expect("readable");
        value.to_value().as_f64()
    }
}

impl Setup {
    /// The entries of the stream that `append` appended to, as stored.
    pub(crate) async fn entries(&self, append: &Row) -> Vec<StreamEntry> {
        self.entries_of(EntityId::from(append.writes[0].split('@').next().expect("an id")))
            .await
    }

    pub(crate) async fn entries_of(&self, sidecar: EntityId) -> Vec<StreamEntry> {
        let engine = self.process.server.engine(&self.place.space).expect("a store");
        let stored = engine.read(move |reader| reader.read_space_value(&sidecar)).await;
        let stored = stored
            .and_then(|stored| stored)
            .expect("readable")
            .expect("a sidecar");
        let entries = stored
            .member("entries")
            .and_then(Value::as_array)
            .expect("entries")
            .clone();
        entries
            .elements()
            .filter_map(|(_, entry)| StreamEntry::from_value(entry))
            .collect()
    }
}
