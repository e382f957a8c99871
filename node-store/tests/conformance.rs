//! One suite over every backend and every stack of layers, against a naive sorted map. Rule: NODE-23.
//!
//! A few sequences run here; `cargo xtask long node-conformance` goes on with 100,000.

mod support;

use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::{
    Direction, Encrypted, KeyRange, LayerExt, ReadLayer, Store, StoreError, Transaction, WriteLayer,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use support::faults::{Faulty, Plan, is_injected};
use support::model::{COLUMNS, Model, Probe, Step, steps};
use support::seeds::{same_cases, seeds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stack {
    Bare,
    Temporal,
    TemporalOverTemporal,
    ReadOnly,
}

const STACKS: [Stack; 4] = [
    Stack::Bare,
    Stack::Temporal,
    Stack::TemporalOverTemporal,
    Stack::ReadOnly,
];

type Checked = Result<(), TestCaseError>;

fn ask(layer: &impl ReadLayer, probe: &Probe, model: &Model) -> Checked {
    prop_assert_eq!(probe.ask(layer).unwrap(), probe.expected(model), "{:?}", probe);
    Ok(())
}

fn compare(layer: &impl ReadLayer, model: &Model) -> Checked {
    for column in COLUMNS {
        for direction in [Direction::Ascending, Direction::Descending] {
            ask(layer, &Probe::Scan(column, KeyRange::all(), direction), model)?;
        }
        let mut rows = Vec::new();
        let mut cursor = layer.iter_snapshot(column).unwrap();
        while let Some(row) = cursor.next().unwrap() {
            rows.push((row.key.to_vec(), row.value.to_vec()));
        }
        prop_assert_eq!(rows, model.rows(column, &KeyRange::all(), Direction::Ascending));
    }
    Ok(())
}

fn write(layer: &mut impl WriteLayer, model: &mut Model, step: &Step) -> Checked {
    match step {
        Step::Put(column, key, value) => {
            layer.put(*column, key, value).unwrap();
            model.write(*column, key, &node_store::Op::Put(value.clone()));
        }
        Step::Delete(column, key) => {
            layer.delete(*column, key).unwrap();
            model.write(*column, key, &node_store::Op::Delete);
        }
        Step::Apply(transaction) => {
            layer.apply(transaction).unwrap();
            model.apply(transaction);
        }
        Step::Ask(probe) => ask(layer, probe, model)?,
        Step::DeleteRange(..) | Step::Commit | Step::Discard => {}
    }
    Ok(())
}

fn delete_range(store: &Store, model: &mut Model, step: &Step) -> Checked {
    if let Step::DeleteRange(column, range) = step {
        store.delete_range(*column, range).unwrap();
        model.clear_range(*column, range);
        prop_assert_eq!(store.last(*column, range).unwrap(), None);
        prop_assert_eq!(
            store
                .approximate_size(*column, &KeyRange::new(*b"b", *b"a"))
                .unwrap(),
            0
        );
        let last = model
            .rows(*column, &KeyRange::all(), Direction::Descending)
            .into_iter()
            .next();
        prop_assert_eq!(store.last(*column, &KeyRange::all()).unwrap(), last);
        let all = store.scan(*column, &KeyRange::all(), Some(3)).unwrap();
        let expected = model.rows(*column, &KeyRange::all(), Direction::Ascending);
        prop_assert_eq!(all, expected.into_iter().take(3).collect::<Vec<_>>());
    }
    Ok(())
}

/// Runs a sequence over a stack on an emptied store.
fn run(store: &Store, stack: Stack, steps: &[Step]) -> Checked {
    let mut store = store.clone();
    for column in COLUMNS {
        store.delete_range(column, &KeyRange::all()).unwrap();
    }
    let mut base = Model::default();
    match stack {
        Stack::Bare | Stack::ReadOnly => {
            for step in steps {
                match step {
                    Step::Ask(probe) if stack == Stack::ReadOnly => ask(&store.read_only(), probe, &base)?,
                    step => write(&mut store, &mut base, step)?,
                }
                delete_range(&store, &mut base, step)?;
            }
            compare(&store.read_only(), &base)?;
        }
        Stack::Temporal => {
            for segment in steps.split_inclusive(|step| matches!(step, Step::Commit | Step::Discard)) {
                let mut view = base.clone();
                let mut staged = store.temporal();
                for step in segment {
                    write(&mut staged, &mut view, step)?;
                }
                compare(&staged, &view)?;
                if let Some(Step::Commit) = segment.last() {
                    staged.commit().unwrap();
                    prop_assert!(staged.is_empty());
                    compare(&staged, &view)?;
                    base = view;
                }
                compare(&store, &base)?;
            }
        }
        Stack::TemporalOverTemporal => {
            for (number, outer_segment) in steps.chunks(7).enumerate() {
                let mut outer_view = base.clone();
                let mut outer = store.temporal();
                for segment in
                    outer_segment.split_inclusive(|step| matches!(step, Step::Commit | Step::Discard))
                {
                    let mut view = outer_view.clone();
                    let mut inner = outer.temporal();
                    for step in segment {
                        write(&mut inner, &mut view, step)?;
                    }
                    compare(&inner, &view)?;
                    if let Some(Step::Commit) = segment.last() {
                        inner.commit().unwrap();
                        prop_assert!(inner.is_empty());
                        outer_view = view;
                    }
                    compare(&outer, &outer_view)?;
                }
                if number % 2 == 0 {
                    outer.commit().unwrap();
                    base = outer_view;
                }
                compare(&store, &base)?;
            }
        }
    }
    compare(&store, &base)
}

#[test]
fn node_23_every_backend_under_every_stack_is_the_sorted_map() {
    let stores = support::stores();
    let mut tried = vec![[0u32; STACKS.len()]; stores.len()];
    for seed in seeds("conformance", 24 * (stores.len() * STACKS.len()) as u64) {
        let number = seed as usize % (stores.len() * STACKS.len());
        let (at, stack_at) = (number / STACKS.len(), number % STACKS.len());
        let (name, store) = &stores[at];
        let stack = STACKS[stack_at];
        let result = TestRunner::new(same_cases(1, seed)).run(&steps(40), |steps| run(store, stack, &steps));
        assert!(
            result.is_ok(),
            "seed {seed}: {name}, {stack:?}: {}",
            result.unwrap_err()
        );
        tried[at][stack_at] += 1;
    }
    for ((name, _), tried) in stores.iter().zip(tried) {
        for (stack, tried) in STACKS.iter().zip(tried) {
            println!("{name}, {stack:?}: {tried} sequences");
        }
    }
}

/// A sequence over a stack, where every failure is passed on; the model follows what succeeded.
fn run_with_faults(store: &mut Store, steps: &[Step]) -> Result<Model, Box<(StoreError, Model)>> {
    let mut base = Model::default();
    for segment in steps.split_inclusive(|step| matches!(step, Step::Commit | Step::Discard)) {
        let mut view = base.clone();
        let mut staged = store.temporal();
        for step in segment {
            let done = match step {
                Step::Put(column, key, value) => {
                    view.write(*column, key, &node_store::Op::Put(value.clone()));
                    staged.put(*column, key, value)
                }
                Step::Delete(column, key) => {
                    view.write(*column, key, &node_store::Op::Delete);
                    staged.delete(*column, key)
                }
                Step::Apply(transaction) => {
                    view.apply(transaction);
                    staged.apply(transaction)
                }
                // An answer is right or an error: a failed read never looks like fewer rows.
                Step::Ask(probe) => probe
                    .ask(&staged)
                    .map(|answer| assert_eq!(answer, probe.expected(&view))),
                Step::Commit | Step::Discard | Step::DeleteRange(..) => Ok(()),
            };
            if let Err(error) = done {
                return Err(Box::new((error, base)));
            }
        }
        if let Some(Step::Commit) = segment.last() {
            let before = staged.staged().clone();
            if let Err(error) = staged.commit() {
                assert_eq!(
                    *staged.staged(),
                    before,
                    "a failed commit keeps everything staged"
                );
                return Err(Box::new((error, base)));
            }
            assert!(staged.is_empty());
            base = view;
        }
    }
    Ok(base)
}

#[test]
fn node_6_node_23_a_fault_at_any_backend_call_is_an_error_and_leaves_all_or_nothing() {
    type Make = fn(Arc<Plan>) -> (Store, Store);
    fn faulty(disk: impl node_store::Database, plan: Arc<Plan>) -> (Store, Store) {
        let disk = Arc::new(disk);
        let inner = disk.clone();
        (Store::new(Faulty { inner, plan }), Store::new(disk))
    }
    let memory: Make = |plan| faulty(MemoryBackend::new(), plan);
    let sqlite: Make = |plan| faulty(support::sqlite(), plan);
    let encrypted: Make = |plan| {
        let disk = Encrypted::new(MemoryBackend::new(), support::master_key()).unwrap();
        faulty(disk, plan)
    };
    let under_encryption: Make = |plan| {
        let disk = Arc::new(Faulty {
            inner: MemoryBackend::new(),
            plan,
        });
        let store = Store::new(Encrypted::new(disk, support::master_key()).unwrap());
        (store.clone(), store)
    };
    #[allow(unused_mut, reason = "one more with the feature")]
    let mut makes = vec![
        ("memory", 64, memory),
        ("encrypted memory", 24, encrypted),
        ("faults under encryption", 24, under_encryption),
        ("sqlite", 24, sqlite),
    ];
    #[cfg(feature = "rocksdb")]
    makes.push(("rocksdb", 24, |plan| faulty(support::rocks(), plan)));
    for (name, cases, make) in makes {
        let plan = Plan::new();
        let (store, sound) = make(plan.clone());
        let struck = std::cell::Cell::new(0);
        let mut runner = TestRunner::new(same_cases(cases, 6));
        let result = runner.run(&steps(25), |steps| {
            let mut calls = usize::MAX;
            let mut at = 0;
            while at <= calls {
                plan.sound();
                for column in COLUMNS {
                    sound.delete_range(column, &KeyRange::all()).unwrap();
                }
                // The first time through counts the calls.
                match at {
                    0 => plan.sound(),
                    at => plan.fail(at),
                }
                let outcome = run_with_faults(&mut store.clone(), &steps);
                let hit = plan.struck();
                if at == 0 {
                    calls = plan.calls();
                }
                plan.sound();
                match outcome {
                    Ok(model) => {
                        prop_assert!(!hit, "call {} failed and nobody noticed", at);
                        compare(&sound, &model)?;
                    }
                    Err(failure) => {
                        let (error, before) = *failure;
                        prop_assert!(hit && is_injected(&error), "call {}: {}", at, error);
                        struck.set(struck.get() + 1);
                        // The injected failure came before the write, so nothing of it is there.
                        compare(&sound, &before)?;
                    }
                }
                at += 1;
            }
            Ok(())
        });
        assert!(result.is_ok(), "{name}: {}", result.unwrap_err());
        let struck = struck.get();
        println!("{name}: {struck} faults");
        assert!(struck > 20, "{name}: only {struck} faults were reached");
    }
}

#[test]
fn node_5_an_unknown_column_refuses_everything_and_names_every_offender() {
    use node_store::{Column, ColumnSet};
    let known = ColumnSet::ALL.without(Column::State).without(Column::Alias);
    let mut store = Store::new(MemoryBackend::with_columns(known));
    let mut transaction = Transaction::new();
    transaction.put(Column::Meta, *b"k", *b"v");
    transaction.put(Column::State, *b"k", *b"v");
    transaction.delete(Column::Alias, *b"k");
    let error = store.apply(&transaction).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store has no column State, Alias; nothing was written"
    );
    assert!(!store.has(Column::Meta, b"k").unwrap());
    assert!(matches!(
        store.get(Column::State, b"k"),
        Err(StoreError::UnknownColumns { .. })
    ));
    assert!(store.iter(Column::State).is_err());
    assert!(
        store
            .range(Column::State, &KeyRange::new(*b"b", *b"a"), Direction::Ascending)
            .is_err()
    );

    let mut staged = store.temporal();
    staged.apply(&transaction).unwrap();
    assert!(staged.commit().is_err());
    assert!(!staged.is_empty(), "what could not be committed is still staged");
}

#[test]
fn node_6_a_cursor_that_failed_stays_failed() {
    use node_store::Column;
    let plan = Plan::new();
    let mut store = Store::new(Faulty {
        inner: MemoryBackend::new(),
        plan: plan.clone(),
    });
    for byte in 0..10 {
        store.put(Column::Meta, &[byte], &[byte]).unwrap();
    }
    plan.fail(5);
    let mut cursor = store.iter(Column::Meta).unwrap();
    for byte in 0..3 {
        assert_eq!(cursor.next().unwrap().unwrap().key, [byte]);
    }
    assert!(is_injected(&cursor.next().unwrap_err()));
    assert!(cursor.row().is_none());
    assert!(matches!(
        cursor.next(),
        Err(StoreError::CursorFailed { column: Column::Meta })
    ));
    assert!(matches!(cursor.seek(b""), Err(StoreError::CursorFailed { .. })));
}
