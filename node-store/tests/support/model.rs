//! The naive model: a sorted map a column; and how a layer is compared with it.

use std::collections::BTreeMap;

use node_store::{Column, Direction, KeyRange, Op, ReadLayer, StoreError, Transaction};
use proptest::prelude::*;

/// Three columns stand for all: they are one code path.
pub(crate) const COLUMNS: [Column; 3] = [Column::Meta, Column::State, Column::UnifiedOp];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model(BTreeMap<(Column, Vec<u8>), Vec<u8>>);

impl Model {
    pub(crate) fn write(&mut self, column: Column, key: &[u8], op: &Op) {
        match op {
            Op::Put(value) => drop(self.0.insert((column, key.to_vec()), value.clone())),
            Op::Delete => drop(self.0.remove(&(column, key.to_vec()))),
        }
    }

    pub(crate) fn apply(&mut self, transaction: &Transaction) {
        for (column, key, op) in transaction.iter() {
            self.write(column, key, op);
        }
    }

    pub(crate) fn get(&self, column: Column, key: &[u8]) -> Option<&Vec<u8>> {
        self.0.get(&(column, key.to_vec()))
    }

    /// By looking at every row there is.
    pub(crate) fn rows(
        &self,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let inside = |key: &[u8]| range.start() <= key && range.end().is_none_or(|end| key < end);
        let mut rows: Vec<_> = self
            .0
            .iter()
            .filter(|((of, key), _)| *of == column && inside(key))
            .map(|((_, key), value)| (key.clone(), value.clone()))
            .collect();
        if direction == Direction::Descending {
            rows.reverse();
        }
        rows
    }

    pub(crate) fn clear_range(&mut self, column: Column, range: &KeyRange) {
        for (key, _) in self.rows(column, range, Direction::Ascending) {
            self.0.remove(&(column, key));
        }
    }
}

/// A question to a layer.
#[derive(Clone, Debug)]
pub(crate) enum Probe {
    Get(Column, Vec<u8>),
    Scan(Column, KeyRange, Direction),
    /// Seek, step, seek again, step: from anywhere to anywhere.
    Seeks(Column, KeyRange, Direction, Vec<(Vec<u8>, usize)>),
}

/// What a layer answers, in a form that can be compared.
pub(crate) type Answer = Vec<Option<(Vec<u8>, Vec<u8>)>>;

impl Probe {
    pub(crate) fn ask(&self, layer: &impl ReadLayer) -> Result<Answer, StoreError> {
        let owned = |row: node_store::Row<'_>| (row.key.to_vec(), row.value.to_vec());
        match self {
            Probe::Get(column, key) => {
                let value = layer.get(*column, key)?;
                assert_eq!(layer.has(*column, key)?, value.is_some());
                Ok(vec![value.map(|value| (key.clone(), value))])
            }
            Probe::Scan(column, range, direction) => {
                let mut cursor = layer.range(*column, range, *direction)?;
                let mut rows = Vec::new();
                while let Some(row) = cursor.next()? {
                    rows.push(Some(owned(row)));
                }
                assert!(
                    cursor.next()?.is_none() && cursor.row().is_none(),
                    "the end stays the end"
                );
                Ok(rows)
            }
            Probe::Seeks(column, range, direction, steps) => {
                let mut cursor = layer.range(*column, range, *direction)?;
                let mut rows = Vec::new();
                for (target, next) in steps {
                    rows.push(cursor.seek(target)?.map(owned));
                    assert_eq!(cursor.row().map(owned), *rows.last().unwrap());
                    for _ in 0..*next {
                        rows.push(cursor.next()?.map(owned));
                    }
                }
                Ok(rows)
            }
        }
    }

    pub(crate) fn expected(&self, model: &Model) -> Answer {
        match self {
            Probe::Get(column, key) => {
                vec![model.get(*column, key).map(|value| (key.clone(), value.clone()))]
            }
            Probe::Scan(column, range, direction) => model
                .rows(*column, range, *direction)
                .into_iter()
                .map(Some)
                .collect(),
            Probe::Seeks(column, range, direction, steps) => {
                let rows = model.rows(*column, range, *direction);
                let mut answer = Vec::new();
                for (target, next) in steps {
                    let beyond = |key: &Vec<u8>| match direction {
                        Direction::Ascending => key >= target,
                        Direction::Descending => key <= target,
                    };
                    let at = rows.iter().position(|(key, _)| beyond(key)).unwrap_or(rows.len());
                    for step in 0..=*next {
                        answer.push(rows.get(at + step).cloned());
                    }
                }
                answer
            }
        }
    }
}

/// One step of a sequence.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put(Column, Vec<u8>, Vec<u8>),
    Delete(Column, Vec<u8>),
    Apply(Transaction),
    DeleteRange(Column, KeyRange),
    Commit,
    Discard,
    Ask(Probe),
}

/// Few bytes and few lengths, so that keys meet: empty ones, prefixes of each other, runs of 0xFF.
pub(crate) fn keys() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(0x7f), Just(0xfe), Just(0xff)];
    prop::collection::vec(byte, 0..4)
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..4),
        // Larger than a page of the file backends.
        1 => (any::<u8>(), 5000usize..5003).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

pub(crate) fn columns() -> impl Strategy<Value = Column> {
    prop::sample::select(COLUMNS.to_vec())
}

/// Bounded, half-open, by prefix (0xFF ones too), empty and inverted.
pub(crate) fn ranges() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        Just(KeyRange::all()),
        keys().prop_map(|key| KeyRange::prefix(&key)),
        (0usize..4).prop_map(|length| KeyRange::prefix(&vec![0xff; length])),
        keys().prop_map(KeyRange::from),
        (keys(), keys()).prop_map(|(start, end)| KeyRange::new(start, end)),
    ]
}

fn directions() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Ascending), Just(Direction::Descending)]
}

pub(crate) fn transactions() -> impl Strategy<Value = Transaction> {
    let write = (columns(), keys(), prop::option::of(values()));
    prop::collection::vec(write, 0..8).prop_map(|writes| {
        let mut transaction = Transaction::new();
        for (column, key, value) in writes {
            match value {
                Some(value) => transaction.put(column, key, value),
                None => transaction.delete(column, key),
            }
        }
        transaction
    })
}

/// More rows of one column than a page of any cursor holds at first, with the short keys between them.
fn fills() -> impl Strategy<Value = Transaction> {
    (columns(), 20u8..90, any::<u8>()).prop_map(|(column, count, value)| {
        let mut transaction = Transaction::new();
        for number in 0..count {
            transaction.put(column, [1, number], [value]);
            if number % 3 == 0 {
                transaction.put(column, [0xff, 0xff, number], [value]);
            }
        }
        transaction
    })
}

fn probes() -> impl Strategy<Value = Probe> {
    let seeks = prop::collection::vec((keys(), 0usize..4), 1..5);
    prop_oneof![
        2 => (columns(), keys()).prop_map(|(column, key)| Probe::Get(column, key)),
        2 => (columns(), ranges(), directions()).prop_map(|(c, range, direction)| Probe::Scan(c, range, direction)),
        2 => (columns(), ranges(), directions(), seeks).prop_map(|(c, r, d, seeks)| Probe::Seeks(c, r, d, seeks)),
    ]
}

pub(crate) fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (columns(), keys(), values()).prop_map(|(column, key, value)| Step::Put(column, key, value)),
        3 => (columns(), keys()).prop_map(|(column, key)| Step::Delete(column, key)),
        2 => transactions().prop_map(Step::Apply),
        1 => fills().prop_map(Step::Apply),
        1 => (columns(), ranges()).prop_map(|(column, range)| Step::DeleteRange(column, range)),
        2 => Just(Step::Commit),
        1 => Just(Step::Discard),
        6 => probes().prop_map(Step::Ask),
    ];
    prop::collection::vec(step, 1..length)
}
