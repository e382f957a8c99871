//! What the layers cost over a bare backend, and what scans, reads and batches take on each backend. Rule: NODE-24.
//!
//! `cargo bench -p node-store --bench store`; with `--features rocksdb` that backend is in the same run. The ratios at the
//! end are of interleaved rounds, so that a busy machine burdens both sides alike.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use node_store::backend::memory::MemoryBackend;
use node_store::backend::sqlite::SqliteBackend;
use node_store::id::ContextId;
use node_store::{
    Column, Database, Direction, Durability, Key, KeyRange, LayerExt, Op, SqliteOptions, Store, StoreBatch,
    Transaction, WriteLayer, key, value,
};

const ROWS: u32 = 10_000;

fn context() -> ContextId {
    ContextId::new([1; 32])
}

fn row(number: u32) -> key::ContextState {
    let mut state_key = [0; 32];
    state_key[..4].copy_from_slice(&number.to_be_bytes());
    key::ContextState {
        context_id: context(),
        state_key: state_key.into(),
    }
}

/// Spread over the rows, the same for everybody.
fn pick(round: u32) -> key::ContextState {
    row(round.wrapping_mul(2_654_435_761) % ROWS)
}

fn backends(directory: &std::path::Path) -> Vec<(&'static str, Store)> {
    let options = SqliteOptions {
        durability: Durability::Process,
        ..Default::default()
    };
    let sqlite = SqliteBackend::open(directory.join("node.sqlite"), &options).unwrap();
    #[allow(unused_mut)]
    let mut stores = vec![
        ("memory", Store::new(MemoryBackend::new())),
        ("sqlite", Store::new(sqlite)),
    ];
    #[cfg(feature = "rocksdb")]
    {
        use node_store::backend::rocksdb::RocksBackend;
        let rocks = RocksBackend::open(directory.join("rocks"), Durability::Process).unwrap();
        stores.push(("rocksdb", Store::new(rocks)));
    }
    for (_, store) in &mut stores {
        let mut rows = Transaction::new();
        for number in 0..ROWS {
            rows.put(
                Column::State,
                row(number).to_bytes().as_slice(),
                vec![number as u8; 100],
            );
        }
        store.apply(&rows).unwrap();
    }
    stores
}

/// A batch of 100 rows over three columns, typed.
fn stage<L: WriteLayer>(batch: &mut StoreBatch<L>, round: u32) {
    for number in 0..34 {
        batch.put(&row(ROWS + number), &vec![round as u8; 100]).unwrap();
        let counters = value::ContextConfig {
            application_revision: round.into(),
            members_revision: 0,
        };
        let mut context = [2; 32];
        context[0] = number as u8;
        batch
            .put(
                &key::ContextConfig {
                    context_id: context.into(),
                },
                &counters,
            )
            .unwrap();
        if number < 32 {
            let alias = value::Alias {
                target: context.into(),
            };
            let name = key::AliasName::new(&format!("name-{number}")).unwrap();
            batch
                .put(
                    &key::Alias {
                        subject: key::AliasSubject::Context,
                        name,
                    },
                    &alias,
                )
                .unwrap();
        }
    }
}

/// The same 100 rows, raw.
fn transaction(round: u32) -> Transaction {
    let mut store = Recorder(Transaction::new());
    let mut batch = StoreBatch::over(&mut store);
    stage(&mut batch, round);
    batch.commit().unwrap();
    store.0
}

/// A layer that keeps what it is given.
struct Recorder(Transaction);

impl node_store::Layer for Recorder {}

impl node_store::ReadLayer for Recorder {
    fn has(&self, _: Column, _: &[u8]) -> Result<bool, node_store::StoreError> {
        Ok(false)
    }

    fn get(&self, _: Column, _: &[u8]) -> Result<Option<Vec<u8>>, node_store::StoreError> {
        Ok(None)
    }

    fn range(
        &self,
        column: Column,
        _: &KeyRange,
        _: Direction,
    ) -> Result<node_store::Cursor<'_>, node_store::StoreError> {
        Err(node_store::StoreError::UnknownColumns {
            columns: vec![column],
        })
    }

    fn iter_snapshot(&self, column: Column) -> Result<node_store::Cursor<'_>, node_store::StoreError> {
        self.range(column, &KeyRange::all(), Direction::Ascending)
    }
}

impl WriteLayer for Recorder {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) -> Result<(), node_store::StoreError> {
        self.0.put(column, key, value);
        Ok(())
    }

    fn delete(&mut self, column: Column, key: &[u8]) -> Result<(), node_store::StoreError> {
        self.0.delete(column, key);
        Ok(())
    }

    fn apply(&mut self, transaction: &Transaction) -> Result<(), node_store::StoreError> {
        self.0.merge(transaction);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), node_store::StoreError> {
        Ok(())
    }
}

fn scan(store: &Store) -> usize {
    let view = store.view();
    let mut rows = view.scan::<key::ContextState>(&context()).unwrap();
    let mut bytes = 0;
    while let Some((_, value)) = rows.next_raw().unwrap() {
        bytes += value.len();
    }
    bytes
}

fn each_backend(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    for (name, mut store) in backends(directory.path()) {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(u64::from(ROWS)));
        group.bench_function("scan 10,000 rows of 100 bytes", |bench| {
            bench.iter(|| black_box(scan(&store)))
        });
        group.throughput(Throughput::Elements(1));
        let mut round = 0;
        group.bench_function("random get", |bench| {
            bench.iter(|| {
                round += 1;
                black_box(store.view().get(&pick(round)).unwrap())
            });
        });
        group.throughput(Throughput::Elements(100));
        group.bench_function("batch of 100 rows over three columns", |bench| {
            bench.iter(|| {
                round += 1;
                let mut batch = StoreBatch::over(&mut store);
                stage(&mut batch, round);
                batch.commit().unwrap();
            });
        });
        group.finish();
        let (read, batch) = ratios(&mut store);
        println!("{name}: layers over bare backend: point read {read:.3}, batch of 100 rows {batch:.3}");
        let (few, many) = staged_scans(&mut store);
        println!("{name}: scan of 10,000 rows with 10 staged {few:?}, with 10,000 staged {many:?}");
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Both sides in turn, a round each, and the ratio of their medians. Who goes first changes every round, because the
/// second one finds the rows of the first in the caches.
fn interleaved(rounds: u32, mut bare: impl FnMut(u32), mut layered: impl FnMut(u32)) -> f64 {
    let (mut bare_times, mut layered_times) = (Vec::new(), Vec::new());
    let timed = |times: &mut Vec<Duration>, side: &mut dyn FnMut(u32), round: u32| {
        let start = Instant::now();
        side(round);
        times.push(start.elapsed());
    };
    for round in 0..rounds {
        if round % 2 == 0 {
            timed(&mut bare_times, &mut bare, round);
            timed(&mut layered_times, &mut layered, round);
        } else {
            timed(&mut layered_times, &mut layered, round);
            timed(&mut bare_times, &mut bare, round);
        }
    }
    median(layered_times) / median(bare_times)
}

fn ratios(store: &mut Store) -> (f64, f64) {
    let bare = store.clone();
    let database: &dyn Database = bare.database();
    let staged = &mut store.clone();
    let staged = staged.temporal();
    let read = interleaved(
        301,
        |round| {
            for step in 0..200 {
                black_box(
                    database
                        .get(Column::State, &pick(round * 200 + step).to_bytes())
                        .unwrap(),
                );
            }
        },
        |round| {
            use node_store::ReadLayer;
            for step in 0..200 {
                black_box(
                    staged
                        .get(Column::State, &pick(round * 200 + step).to_bytes())
                        .unwrap(),
                );
            }
        },
    );
    // Both sides stage the same 100 rows and write them: into a transaction of their own, or into a layer.
    let ready: Vec<Transaction> = (0..301).map(transaction).collect();
    let batch = interleaved(
        301,
        |round| {
            let mut staged = Transaction::new();
            for (column, key, op) in ready[round as usize].iter() {
                if let Op::Put(value) = op {
                    staged.put(column, key, value.as_slice());
                }
            }
            database.apply(&staged).unwrap();
        },
        |round| {
            let mut staged = store.temporal();
            for (column, key, op) in ready[round as usize].iter() {
                if let Op::Put(value) = op {
                    staged.put(column, key, value).unwrap();
                }
            }
            staged.commit().unwrap();
        },
    );
    (read, batch)
}

/// A merged scan costs its rows and what is staged, not one times the other.
fn staged_scans(store: &mut Store) -> (Duration, Duration) {
    let mut timed = |count: u32| {
        let mut staged = store.temporal();
        for number in 0..count {
            staged
                .put(Column::State, &row(number * (ROWS / count)).to_bytes(), &[7; 100])
                .unwrap();
        }
        let start = Instant::now();
        for _ in 0..10 {
            let view = staged.view();
            let mut rows = view.scan::<key::ContextState>(&context()).unwrap();
            while let Some(row) = rows.next_raw().unwrap() {
                black_box(row);
            }
        }
        start.elapsed() / 10
    };
    (timed(10), timed(ROWS))
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = each_backend
}
criterion_main!(benches);
