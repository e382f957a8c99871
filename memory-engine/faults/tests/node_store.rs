//! Power cuts under `node-store` on SQLite (NODE-5, NODE-16, NODE-31): what a stop after any write leaves. One pass runs
//! the work and remembers every write and sync, the second goes through all stops.

use std::path::Path;

use engine_faults::{Disk, Record, Survival};
use node_store::backend::sqlite::SqliteBackend;
use node_store::id::{ApplicationId, BlobId, Hash, StateKey};
use node_store::program::{Bundle, ContextRows, Migration, MigrationError, ReceivedState, UpgradeOutcome};
use node_store::{
    BlobStore, Column, Durability, KeyRange, LayerExt, Markers, Programs, ReadLayer, SqliteOptions, Store,
    Transaction, WriteLayer, context, key,
};

const FILE: &str = "node.sqlite";
const COLUMNS: [Column; 3] = [Column::Meta, Column::State, Column::UnifiedOp];
const ROWS: u8 = 12;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a decimal number"))
}

fn open(directory: &Path, durability: Durability) -> Store {
    let options = SqliteOptions {
        durability,
        ..Default::default()
    };
    Store::new(SqliteBackend::open(directory.join(FILE), &options).unwrap())
}

/// Every row of three columns gets the batch's number; odd rows are absent in odd batches.
fn batch(number: u64) -> Transaction {
    let mut transaction = Transaction::new();
    for column in COLUMNS {
        for row in 0..ROWS {
            if row % 2 == 1 && number % 2 == 1 {
                transaction.delete(column, [row]);
            } else {
                let mut value = number.to_be_bytes().to_vec();
                value.resize(8 + number as usize % 3 * 2000, row);
                transaction.put(column, [row], value);
            }
        }
    }
    transaction
}

/// The batch that is there whole; none if there is nothing.
fn found(store: &Store) -> Option<u64> {
    let first = store.get(Column::Meta, &[0]).unwrap();
    let number = first.map(|value| u64::from_be_bytes(value[..8].try_into().unwrap()));
    let mut expected = Store::memory();
    if let Some(number) = number {
        expected.apply(&batch(number)).unwrap();
    }
    for column in COLUMNS {
        let rows = |store: &Store| store.scan(column, &KeyRange::all(), None).unwrap();
        assert!(
            rows(store) == rows(&expected),
            "{column} is not of batch {number:?} alone"
        );
    }
    number
}

fn watched() -> (tempfile::TempDir, Disk) {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::watch(directory.path());
    disk.record();
    (directory, disk)
}

/// Batches one after the other, with a mark when each has returned; every third is followed by a flush.
fn record(durability: Durability, numbers: std::ops::Range<u64>) -> Record {
    let (directory, disk) = watched();
    let mut store = open(directory.path(), durability);
    for number in numbers {
        if number % 2 == 0 {
            store.apply(&batch(number)).unwrap();
        } else {
            let mut staged = store.temporal();
            staged.apply(&batch(number)).unwrap();
            staged.commit().unwrap();
        }
        disk.mark(number);
        if number % 3 == 2 {
            store.flush().unwrap();
        }
    }
    drop(store);
    disk.recorded()
}

/// The last batch that had returned before the stop, and the one that is there after it.
fn after(record: &Record, steps: usize, survival: Survival) -> (Option<u64>, Option<u64>) {
    let left = record.after(steps, survival);
    let directory = tempfile::tempdir().unwrap();
    left.put(directory.path());
    let store = open(directory.path(), Durability::Full);
    (left.marks.last().copied(), found(&store))
}

#[test]
fn node_5_a_batch_that_returned_survives_a_stop_at_any_write_and_none_is_there_in_part() {
    let (from, count) = (number("LONG_FROM", 0), number("LONG_COUNT", 1));
    // A taste of it in an ordinary test run.
    let (batches, stride) = if std::env::var("LONG_COUNT").is_ok() {
        (9, 1)
    } else {
        (6, 5)
    };
    let mut stops = 0;
    for (seed, durability) in
        (from..from + count).flat_map(|seed| [(seed, Durability::Full), (seed, Durability::Process)])
    {
        // Batches differ in size and in what they remove, by their numbers.
        let record = record(durability, seed..seed + batches);
        assert!(record.len() > 20, "seed {seed}: nothing was tried");
        for steps in (0..=record.len()).step_by(stride) {
            for survival in [
                Survival::Everything,
                Survival::Torn,
                Survival::SyncedOnly,
                Survival::Shuffled(seed),
            ] {
                let (returned, there) = after(&record, steps, survival);
                let killed = matches!(survival, Survival::Everything | Survival::Torn);
                if durability == Durability::Full || killed {
                    assert!(
                        there >= returned,
                        "seed {seed}, {durability:?}, {survival:?}, stop after write {steps}: {there:?} is there, \
                         {returned:?} had returned\n{}",
                        record.around(steps)
                    );
                }
                stops += 1;
            }
        }
    }
    println!("node-store: {stops} stops");
}

/// The test above can fail: without a sync a write, a power cut loses batches that had returned.
#[test]
fn node_5_without_syncs_a_power_cut_loses_batches() {
    let record = record(Durability::Process, 0..6);
    let mut stops = (0..=record.len()).map(|steps| after(&record, steps, Survival::SyncedOnly));
    assert!(stops.any(|(returned, there)| there < returned));
}

#[test]
fn node_31_a_flush_makes_durable_what_was_written_also_while_a_view_is_open() {
    for viewed in [false, true] {
        let (directory, disk) = watched();
        let mut store = open(directory.path(), Durability::Process);
        store.apply(&batch(0)).unwrap();
        store.flush().unwrap();
        let reader = store.clone();
        // It stands where the log begins, so a checkpoint can move nothing.
        let view = viewed.then(|| reader.snapshot().unwrap());
        store.apply(&batch(1)).unwrap();
        store.flush().unwrap();
        let record = disk.recorded();
        let (_, there) = after(&record, record.len(), Survival::SyncedOnly);
        assert_eq!(there, Some(1), "a view is open: {viewed}");
        drop(view);
    }
}

#[test]
fn node_16_after_a_power_cut_no_row_counts_on_a_file_that_is_gone() {
    for durability in [Durability::Full, Durability::Process] {
        for swept in [false, true] {
            let (directory, disk) = watched();
            let store = open(directory.path(), durability);
            let files = tempfile::tempdir().unwrap();
            let blobs = BlobStore::open(store.clone(), files.path()).unwrap();
            let id = blobs.put(&b"content"[..]).unwrap();
            store.flush().unwrap();
            if swept {
                // The process dies between the removal of the rows and that of the file.
                let chunk = std::fs::read_dir(files.path())
                    .unwrap()
                    .next()
                    .unwrap()
                    .unwrap()
                    .path();
                let content = std::fs::read(&chunk).unwrap();
                let mut removals = Transaction::new();
                for (key, _) in store.scan(Column::Blobs, &KeyRange::all(), None).unwrap() {
                    removals.delete(Column::Blobs, key);
                }
                store.write(&removals).unwrap();
                assert_eq!(std::fs::read(&chunk).unwrap(), content);
                assert_eq!(blobs.sweep().unwrap().files, 1);
            } else {
                blobs.delete(id).unwrap();
            }
            let record = disk.recorded();
            let left = tempfile::tempdir().unwrap();
            record.after(record.len(), Survival::SyncedOnly).put(left.path());
            let store = open(left.path(), durability);
            let found = BlobStore::open(store, files.path()).unwrap();
            assert_eq!(found.dangling().unwrap(), [], "{durability:?}, swept: {swept}");
        }
    }
}

/// Writes the state anew.
struct Rewrite;

impl Migration for Rewrite {
    fn leads(&self, _from: BlobId, _to: BlobId) -> bool {
        true
    }

    fn compile(&mut self, _to: BlobId) -> Result<(), MigrationError> {
        Ok(())
    }

    fn migrate(
        &mut self,
        _from: BlobId,
        _to: BlobId,
        rows: &mut ContextRows<'_, '_>,
    ) -> Result<(), MigrationError> {
        rows.put_state(StateKey::new([1; 32]), b"of version 2")?;
        Ok(())
    }
}

fn bundle(code: &'static [u8], state_version: u32) -> Bundle<'static> {
    Bundle {
        application_id: ApplicationId::of_manifest(b"notes"),
        package: String::new(),
        version: String::new(),
        source: String::new(),
        signer_id: String::new(),
        metadata: vec![],
        state_version,
        code: Box::new(code),
        services: vec![],
    }
}

#[test]
fn node_31_node_33_an_activation_that_was_reported_survives_a_power_cut_with_its_state() {
    for resync in [false, true] {
        let (directory, disk) = watched();
        let mut store = open(directory.path(), Durability::Process);
        let files = tempfile::tempdir().unwrap();
        let blobs = BlobStore::open(store.clone(), files.path()).unwrap();
        let programs = Programs::new(store.clone(), blobs);
        programs.install(bundle(b"code 1", 1)).unwrap();
        let application = ApplicationId::of_manifest(b"notes");
        let space = context::register_space(&mut store, "did:key:space", application).unwrap();
        programs.upgrade(space, &mut Rewrite).unwrap();
        let code = programs.install(bundle(b"code 2", 2)).unwrap().code;
        if resync {
            programs.request_resync(space, false).unwrap();
            let state = ReceivedState {
                rows: vec![(StateKey::new([1; 32]), b"of version 2".to_vec())],
                root_hash: Hash::ZERO,
                dag_heads: vec![],
                code: Some(code),
            };
            assert!(programs.settle_resync(space, state).unwrap());
        } else {
            let outcome = programs.upgrade(space, &mut Rewrite).unwrap();
            assert_eq!(outcome, UpgradeOutcome::Activated { code });
        }
        let record = disk.recorded();
        let left = tempfile::tempdir().unwrap();
        record.after(record.len(), Survival::SyncedOnly).put(left.path());
        let store = open(left.path(), Durability::Process);
        let markers = Markers::read(&store, space).unwrap();
        assert_eq!(
            (markers.activated, markers.executing),
            (Some(code), None),
            "resync: {resync}"
        );
        let row = key::ContextState {
            context_id: space,
            state_key: StateKey::new([1; 32]),
        };
        assert_eq!(store.view().get(&row).unwrap().unwrap(), b"of version 2");
    }
}
