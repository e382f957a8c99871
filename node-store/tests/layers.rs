//! Staging layers: what is seen, what is written, and when. Rules: NODE-1, NODE-2. The conformance suite compares every
//! layer with a sorted map; here is each sentence of the rule by itself.

mod support;

use node_store::backend::memory::MemoryBackend;
use node_store::{Column, LayerExt, ReadLayer, Store, WriteLayer};

use support::faults::{Faulty, Plan};

const COLUMN: Column = Column::Meta;

fn rows(layer: &impl ReadLayer) -> Vec<(u8, u8)> {
    let mut cursor = layer.iter(COLUMN).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = cursor.next().unwrap() {
        rows.push((row.key[0], row.value[0]));
    }
    rows
}

fn base() -> Store {
    let mut store = Store::memory();
    for key in [1, 3, 5] {
        store.put(COLUMN, &[key], &[0]).unwrap();
    }
    store
}

#[test]
fn node_2_reads_see_staged_rows_first_in_order_each_once_and_staged_deletes_hide() {
    let mut store = base();
    let mut staged = store.temporal();
    staged.put(COLUMN, &[2], &[9]).unwrap();
    staged.put(COLUMN, &[3], &[9]).unwrap();
    staged.delete(COLUMN, &[5]).unwrap();
    staged.delete(COLUMN, &[6]).unwrap();
    assert_eq!(rows(&staged), [(1, 0), (2, 9), (3, 9)]);
    assert_eq!(staged.get(COLUMN, &[3]).unwrap().unwrap(), [9]);
    assert!(!staged.has(COLUMN, &[5]).unwrap());
    // A seek lands on the first key that can be seen, and on none behind a hidden last one.
    let mut cursor = staged.iter(COLUMN).unwrap();
    assert_eq!(cursor.seek(&[2]).unwrap().unwrap().key, [2]);
    assert!(cursor.seek(&[4]).unwrap().is_none());
}

#[test]
fn node_2_nothing_is_written_before_the_commit_which_is_exactly_one_apply() {
    let plan = Plan::new();
    let inner = MemoryBackend::new();
    let mut store = Store::new(Faulty {
        inner,
        plan: plan.clone(),
    });
    // Counts writes alone, and fails none that is ever reached.
    plan.die(usize::MAX, false);
    let other = store.clone();
    let mut staged = store.temporal();
    for number in 0..10u8 {
        staged.put(COLUMN, &[number], &[number]).unwrap();
        staged.put(Column::State, &[number], &[number]).unwrap();
        staged.delete(Column::UnifiedOp, &[number]).unwrap();
    }
    assert_eq!((plan.calls(), rows(&other).len()), (0, 0));
    staged.commit().unwrap();
    assert_eq!((plan.calls(), rows(&other).len()), (1, 10));
}

#[test]
fn node_2_after_a_commit_nothing_is_staged_and_later_writes_of_others_are_seen() {
    let mut store = base();
    let mut other = store.clone();
    let mut staged = store.temporal();
    staged.put(COLUMN, &[1], &[9]).unwrap();
    assert!(!staged.is_empty());
    staged.commit().unwrap();
    assert!(staged.is_empty());
    other.put(COLUMN, &[1], &[7]).unwrap();
    assert_eq!(staged.get(COLUMN, &[1]).unwrap().unwrap(), [7]);
    staged.commit().unwrap();
    assert_eq!(
        other.get(COLUMN, &[1]).unwrap().unwrap(),
        [7],
        "nothing is written twice"
    );
}

#[test]
fn node_2_a_layer_that_is_dropped_leaves_nothing_and_layers_nest() {
    let mut store = base();
    let before = rows(&store);
    let mut dropped = store.temporal();
    dropped.put(COLUMN, &[9], &[9]).unwrap();
    drop(dropped);
    assert_eq!(rows(&store), before);

    let mut outer = store.temporal();
    let mut inner = outer.temporal();
    inner.delete(COLUMN, &[1]).unwrap();
    inner.commit().unwrap();
    assert_eq!(rows(&outer), [(3, 0), (5, 0)]);
    drop(outer);
    assert_eq!(rows(&store), before, "the outer layer was never committed");
}

#[test]
fn node_1_layers_compose_over_any_layer_and_read_only_reads_all_of_it() {
    let mut store = base();
    let mut outer = store.temporal();
    outer.put(COLUMN, &[2], &[9]).unwrap();
    let inner = outer.temporal();
    let view = inner.read_only();
    assert_eq!(rows(&view), [(1, 0), (2, 9), (3, 0), (5, 0)]);
    assert!(view.has(COLUMN, &[2]).unwrap());
    assert_eq!(view.get(COLUMN, &[2]).unwrap().unwrap(), [9]);
    assert_eq!(
        view.iter_snapshot(COLUMN).unwrap().next().unwrap().unwrap().key,
        [1]
    );
}

#[test]
fn a_scan_of_no_rows_does_not_touch_the_backend() {
    let plan = Plan::new();
    let inner = MemoryBackend::new();
    let store = Store::new(Faulty {
        inner,
        plan: plan.clone(),
    });
    plan.sound();
    let all = node_store::KeyRange::all();
    assert_eq!(store.scan(COLUMN, &all, Some(0)).unwrap(), []);
    let inverted = node_store::KeyRange::new(*b"b", *b"a");
    assert_eq!(store.scan(COLUMN, &inverted, None).unwrap(), []);
    assert_eq!(store.last(COLUMN, &inverted).unwrap(), None);
    assert_eq!(plan.calls(), 0);
    assert_eq!(store.scan(COLUMN, &all, Some(1)).unwrap(), []);
    assert!(plan.calls() > 0);
}
