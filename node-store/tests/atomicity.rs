//! A batch is all there or not at all: after a kill at and within every write, and when the disk is full. Rule: NODE-5.
//!
//! The killed process is this very test binary, started again with the test [`writing_process`] alone.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use node_store::backend::sqlite::SqliteBackend;
use node_store::{
    Column, ColumnSet, Database, Direction, Durability, KeyRange, LayerExt, OwnedRow, ReadLayer, ReadView,
    RowCursor, SqliteOptions, Store, StoreError, Transaction, WriteLayer,
};

const COLUMNS: [Column; 3] = [Column::Meta, Column::State, Column::UnifiedOp];
const ROWS: u8 = 40;

/// A backend that says so before or after a chosen write, and then waits to be killed.
struct Stopping<D> {
    inner: D,
    writes: std::sync::atomic::AtomicUsize,
    stop_at: usize,
    after: bool,
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

fn wait_to_be_killed() -> ! {
    say("@stopped");
    loop {
        std::thread::park();
    }
}

impl<D: Database> Stopping<D> {
    fn write(&self, write: impl FnOnce(&D) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let number = 1 + self.writes.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if number == self.stop_at && !self.after {
            wait_to_be_killed();
        }
        let done = write(&self.inner);
        if number == self.stop_at {
            wait_to_be_killed();
        }
        done
    }
}

impl<D: Database> ReadView for Stopping<D> {
    fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
        self.inner.has(column, key)
    }

    fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(column, key)
    }

    fn cursor<'v>(
        &'v self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
        self.inner.cursor(column, range, direction)
    }
}

impl<D: Database> Database for Stopping<D> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn columns(&self) -> ColumnSet {
        self.inner.columns()
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.write(|inner| inner.put(column, key, value))
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.write(|inner| inner.delete(column, key))
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        self.write(|inner| inner.apply(transaction))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.write(|inner| inner.flush())
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        self.inner.snapshot()
    }

    fn last_in_range(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        self.inner.last_in_range(column, range)
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        self.write(|inner| inner.delete_range(column, range))
    }

    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        self.inner.approximate_size(column, range)
    }
}

/// Batch `number`: every row of three columns gets that number; odd rows are absent in odd batches.
fn batch(number: u32, value_bytes: usize) -> Transaction {
    let mut transaction = Transaction::new();
    for column in COLUMNS {
        for row in 0..ROWS {
            if row % 2 == 1 && number % 2 == 1 {
                transaction.delete(column, [row]);
            } else {
                let mut value = number.to_be_bytes().to_vec();
                value.resize(value_bytes, row);
                transaction.put(column, [row], value);
            }
        }
    }
    transaction
}

/// Which batch is in the store; panics on anything between two.
fn find_batch(store: &Store, value_bytes: usize) -> u32 {
    let first = store.get(Column::Meta, &[0]).unwrap();
    let Some(first) = first else {
        for column in COLUMNS {
            assert!(
                store.iter(column).unwrap().next().unwrap().is_none(),
                "rows without a batch"
            );
        }
        return 0;
    };
    let number = u32::from_be_bytes(first[..4].try_into().unwrap());
    let mut expected = Store::memory();
    expected.apply(&batch(number, value_bytes)).unwrap();
    for column in COLUMNS {
        let range = KeyRange::all();
        let (found, expected) = (
            store.scan(column, &range, None).unwrap(),
            expected.scan(column, &range, None).unwrap(),
        );
        assert!(
            found == expected,
            "column {column} is not of batch {number} alone"
        );
    }
    number
}

fn open(backend: &str, path: &Path) -> Arc<dyn Database> {
    match backend {
        "sqlite" => {
            let options = SqliteOptions {
                durability: Durability::Process,
                ..Default::default()
            };
            Arc::new(SqliteBackend::open(path.join("node.sqlite"), &options).unwrap())
        }
        #[cfg(feature = "rocksdb")]
        "rocksdb" => {
            use node_store::backend::rocksdb::RocksBackend;
            Arc::new(RocksBackend::open(path.join("data"), Durability::Process).unwrap())
        }
        other => panic!("unknown backend {other}"),
    }
}

fn backends() -> Vec<&'static str> {
    if cfg!(feature = "rocksdb") {
        vec!["sqlite", "rocksdb"]
    } else {
        vec!["sqlite"]
    }
}

fn variable(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

#[test]
#[ignore = "the process that the other tests start and kill"]
fn writing_process() {
    let Ok(path) = std::env::var("NODE_STORE_CHILD") else {
        return;
    };
    let backend = std::env::var("NODE_STORE_BACKEND").unwrap();
    let backend = open(&backend, Path::new(&path));
    let (first, value_bytes) = (variable("NODE_STORE_FIRST") as u32, variable("NODE_STORE_VALUE"));
    let stop_at = variable("NODE_STORE_STOP_AT");
    if stop_at > 0 {
        let stopping = Stopping {
            inner: backend,
            writes: Default::default(),
            stop_at,
            after: variable("NODE_STORE_AFTER") == 1,
        };
        let mut store = Store::new(stopping);
        for number in first.. {
            // By turns a batch and a staged layer: both are one apply.
            if number % 2 == 0 {
                store.apply(&batch(number, value_bytes)).unwrap();
            } else {
                let mut staged = store.temporal();
                staged.apply(&batch(number, value_bytes)).unwrap();
                staged.commit().unwrap();
            }
        }
        return;
    }
    let mut store = Store::new(backend);
    for number in first.. {
        store.apply(&batch(number, value_bytes)).unwrap();
        say(&format!("@{number}"));
    }
}

struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    fn start(
        backend: &str,
        path: &Path,
        first: u32,
        value_bytes: usize,
        stop_at: usize,
        after: bool,
    ) -> Writer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writing_process", "--include-ignored", "--nocapture"])
            .env("NODE_STORE_CHILD", path)
            .env("NODE_STORE_BACKEND", backend)
            .env("NODE_STORE_FIRST", first.to_string())
            .env("NODE_STORE_VALUE", value_bytes.to_string())
            .env("NODE_STORE_STOP_AT", stop_at.to_string())
            .env("NODE_STORE_AFTER", u8::from(after).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Writer { child, lines }
    }

    /// The next line that the process says.
    fn hear(&mut self) -> String {
        self.lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.find('@').map(|at| line[at + 1..].to_owned()))
            .expect("the process says something before it ends")
    }

    fn kill(mut self) {
        // SIGKILL on Unix: nothing of the process runs any more.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn node_5_killed_at_every_write_a_batch_is_there_or_not() {
    for backend in backends() {
        for stop_at in 1..=6 {
            for after in [false, true] {
                let directory = tempfile::tempdir().unwrap();
                let mut writer = Writer::start(backend, directory.path(), 1, 100, stop_at, after);
                assert_eq!(writer.hear(), "stopped");
                writer.kill();
                let found = find_batch(&Store::new(open(backend, directory.path())), 100);
                assert_eq!(
                    found,
                    stop_at as u32 - u32::from(!after),
                    "{backend}, write {stop_at}, after {after}"
                );
            }
        }
    }
}

#[test]
fn node_5_killed_within_a_write_a_batch_is_there_or_not() {
    for backend in backends() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = 1;
        for round in 0..12u32 {
            // Large values: nearly all of the time passes inside a write, and that is where the kill comes.
            let mut writer = Writer::start(backend, directory.path(), first, 8000, 0, false);
            let mut said = 0;
            for _ in 0..=round {
                said = writer.hear().parse().unwrap();
            }
            writer.kill();
            let found = find_batch(&Store::new(open(backend, directory.path())), 8000);
            assert!(
                found >= said,
                "{backend}: batch {said} was reported written and {found} is there"
            );
            first = found + 1;
        }
    }
}

#[test]
fn node_5_on_a_full_disk_nothing_of_a_batch_is_written_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let options = SqliteOptions {
        durability: Durability::Process,
        max_pages: Some(400),
    };
    let mut store = Store::new(SqliteBackend::open(&path, &options).unwrap());
    let mut written = 0u32;
    let error = loop {
        let mut rows = Transaction::new();
        for column in COLUMNS {
            for row in 0..4u32 {
                let key = [written.to_be_bytes(), row.to_be_bytes()].concat();
                rows.put(column, key, vec![written as u8; 9000]);
            }
        }
        match store.apply(&rows) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the limit was never met");
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(written > 2, "only {written} batches fitted");
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = Store::new(SqliteBackend::open(&path, &options).unwrap());
        }
        for column in COLUMNS {
            assert_eq!(
                store.scan(column, &KeyRange::all(), None).unwrap().len(),
                4 * written as usize
            );
        }
    }
    // A single put fails whole too, and once there is room the store takes writes again.
    assert!(matches!(
        store.put(Column::Meta, b"large", &[1; 1 << 20]),
        Err(StoreError::Full { .. })
    ));
    assert!(!store.has(Column::Meta, b"large").unwrap());
    store.delete_range(Column::State, &KeyRange::all()).unwrap();
    store.put(Column::Meta, b"small", &[1; 9000]).unwrap();
    assert!(store.has(Column::Meta, b"small").unwrap());
}

#[test]
fn node_4_a_value_that_cannot_be_written_fails_when_staged_with_nothing_written() {
    use node_store::{key, value};
    let mut store = Store::new(support::sqlite());
    let group_id = [1; 32].into();
    let nameless = value::MetadataRecord {
        name: Some(String::new()),
        data: Default::default(),
        updated_at: 0,
        updated_by: [2; 32].into(),
    };
    let mut batch = store.batch();
    batch
        .put(
            &key::ContextGroupRef {
                context_id: [3; 32].into(),
            },
            &group_id,
        )
        .unwrap();
    let error = batch
        .put(&key::GroupMetadata { group_id }, &nameless)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "GroupMetadata: the value cannot be written: name: 0 bytes; expected 1 to 64"
    );
    drop(batch);
    assert!(store.iter(Column::Group).unwrap().next().unwrap().is_none());

    let named = value::MetadataRecord {
        name: Some("n".into()),
        ..nameless
    };
    let mut staged = store.temporal();
    let mut batch = node_store::StoreBatch::over(&mut staged);
    batch.put(&key::GroupMetadata { group_id }, &named).unwrap();
    assert_eq!(batch.len(), 1);
    batch.commit().unwrap();
    staged.commit().unwrap();
    assert_eq!(
        store.view().get(&key::GroupMetadata { group_id }).unwrap(),
        Some(named)
    );
}
