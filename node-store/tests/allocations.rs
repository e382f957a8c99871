//! What a scan costs: nothing a row beyond what its caller keeps, and no row twice. Rule: NODE-24.

mod support;

use node_store::id::ContextId;
use node_store::{Column, Key, LayerExt, ReadLayer, Store, Transaction, WriteLayer, key};

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

fn fill(store: &mut Store) {
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

fn scan(layer: &impl ReadLayer) -> u32 {
    let view = layer.view();
    let mut rows = view.scan::<key::ContextState>(&context()).unwrap();
    let mut seen = 0;
    while let Some((_, value)) = rows.next_raw().unwrap() {
        assert_eq!(value.len(), 100);
        seen += 1;
    }
    seen
}

#[test]
fn node_24_a_scan_of_10000_rows_allocates_nothing_a_row() {
    for (name, mut store) in support::stores() {
        fill(&mut store);
        scan(&store);
        let cost = allocation_counter::measure(|| assert_eq!(scan(&store), ROWS));
        println!("{name}: {} allocations for {ROWS} rows", cost.count_total);
        // A few for the cursor, a few a page where the backend reads pages.
        assert!(cost.count_total < 600, "{name}: {} allocations", cost.count_total);

        let mut staged = store.temporal();
        for number in 0..100 {
            staged.delete(Column::State, &row(number * 7).to_bytes()).unwrap();
            staged
                .put(Column::State, &row(ROWS + number).to_bytes(), &[0; 100])
                .unwrap();
        }
        let cost = allocation_counter::measure(|| assert_eq!(scan(&staged), ROWS));
        assert!(
            cost.count_total < 600,
            "{name}, staged: {} allocations",
            cost.count_total
        );
    }
}

#[test]
fn node_24_a_typed_point_read_allocates_for_its_value_alone() {
    let mut store = Store::memory();
    fill(&mut store);
    let cost = allocation_counter::measure(|| {
        assert_eq!(store.view().get(&row(5)).unwrap().unwrap().len(), 100);
    });
    // The bytes read, and the value made of them.
    assert_eq!(cost.count_total, 2);
}

#[test]
fn node_24_a_merged_scan_takes_one_step_a_row_whatever_is_staged() {
    let plan = support::faults::Plan::new();
    let inner = node_store::backend::memory::MemoryBackend::new();
    let mut store = Store::new(support::faults::Faulty {
        inner,
        plan: plan.clone(),
    });
    fill(&mut store);
    let mut staged = store.temporal();
    for number in 0..ROWS / 2 {
        staged
            .put(Column::State, &row(2 * number).to_bytes(), &[7; 100])
            .unwrap();
        staged
            .delete(Column::State, &row(2 * number + 1).to_bytes())
            .unwrap();
    }
    plan.sound();
    assert_eq!(scan(&staged), ROWS / 2);
    // One call to make the cursor, one a stored row, one that finds the end.
    assert_eq!(plan.calls(), ROWS as usize + 2);
}
