//! Batches that write every row of three columns, and how one finds out which of them is in a store.

use node_store::{Column, KeyRange, LayerExt, ReadLayer, Store, Transaction, WriteLayer};

pub(crate) const COLUMNS: [Column; 3] = [Column::Meta, Column::State, Column::UnifiedOp];
const ROWS: u8 = 40;

/// Batch `number`: every row of three columns gets that number; odd rows are absent in odd batches.
pub(crate) fn batch(number: u32, value_bytes: usize) -> Transaction {
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
pub(crate) fn find_batch(store: &Store, value_bytes: usize) -> u32 {
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

/// Writes a batch by turns at once and from a staged layer: both are one apply.
pub(crate) fn write(
    store: &mut Store,
    number: u32,
    value_bytes: usize,
) -> Result<(), node_store::StoreError> {
    if number.is_multiple_of(2) {
        return store.apply(&batch(number, value_bytes));
    }
    let mut staged = store.temporal();
    staged.apply(&batch(number, value_bytes))?;
    staged.commit()
}
