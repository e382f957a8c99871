//! A set of writes that lands together or not at all. Rules: NODE-3, NODE-5.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::ops::Bound;

use crate::column::Column;
use crate::key::KeyRange;

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The key has this value from now on.
    Put(Vec<u8>),
    /// The key is gone from now on.
    Delete,
}

/// Writes by column, then key; the last write of a key is the one that counts. Replayed in declaration order of the
/// columns, then in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    columns: BTreeMap<Column, BTreeMap<Vec<u8>, Op>>,
}

impl Transaction {
    /// No writes.
    pub fn new() -> Self {
        Transaction::default()
    }

    /// Stages a value.
    pub fn put(&mut self, column: Column, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.stage(column, key.into(), Op::Put(value.into()));
    }

    /// Stages a removal.
    pub fn delete(&mut self, column: Column, key: impl Into<Vec<u8>>) {
        self.stage(column, key.into(), Op::Delete);
    }

    fn stage(&mut self, column: Column, key: Vec<u8>, op: Op) {
        self.columns.entry(column).or_default().insert(key, op);
    }

    /// The write staged for a key.
    pub fn get(&self, column: Column, key: &[u8]) -> Option<&Op> {
        self.columns.get(&column)?.get(key)
    }

    /// Takes in another transaction; where both write a key, the other side's write counts.
    pub fn merge(&mut self, other: &Transaction) {
        for (column, keys) in &other.columns {
            let ours = self.columns.entry(*column).or_default();
            if ours.is_empty() {
                ours.clone_from(keys);
            } else {
                ours.extend(keys.iter().map(|(key, op)| (key.clone(), op.clone())));
            }
        }
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// How many keys are written.
    pub fn len(&self) -> usize {
        self.columns.values().map(BTreeMap::len).sum()
    }

    /// The columns that are written, in declaration order.
    pub fn columns(&self) -> impl Iterator<Item = Column> + '_ {
        self.columns.keys().copied()
    }

    /// All writes in replay order.
    pub fn iter(&self) -> impl Iterator<Item = (Column, &[u8], &Op)> {
        self.columns
            .iter()
            .flat_map(|(column, keys)| keys.iter().map(move |(key, op)| (*column, key.as_slice(), op)))
    }

    /// The writes of one column within a range, in key order.
    pub(crate) fn range(&self, column: Column, range: &KeyRange) -> Range<'_, Vec<u8>, Op> {
        static NONE: BTreeMap<Vec<u8>, Op> = BTreeMap::new();
        let keys = self.columns.get(&column).unwrap_or(&NONE);
        if range.is_empty() {
            return NONE.range::<[u8], _>(..);
        }
        let end = range.end().map_or(Bound::Unbounded, Bound::Excluded);
        keys.range::<[u8], _>((Bound::Included(range.start()), end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_3_replay_order_is_declaration_then_key_and_the_last_write_counts() {
        let mut transaction = Transaction::new();
        assert!(transaction.is_empty());
        transaction.put(Column::UnifiedOp, *b"z", *b"1");
        transaction.put(Column::Meta, *b"b", *b"2");
        transaction.delete(Column::Meta, *b"a");
        transaction.delete(Column::Meta, *b"b");
        transaction.put(Column::Meta, *b"b", *b"3");
        let replay: Vec<_> = transaction
            .iter()
            .map(|(c, k, op)| (c, k.to_vec(), op.clone()))
            .collect();
        assert_eq!(
            replay,
            [
                (Column::Meta, b"a".to_vec(), Op::Delete),
                (Column::Meta, b"b".to_vec(), Op::Put(b"3".to_vec())),
                (Column::UnifiedOp, b"z".to_vec(), Op::Put(b"1".to_vec())),
            ]
        );
        assert_eq!(transaction.len(), 3);
    }

    #[test]
    fn node_3_merge_takes_the_other_side_deletes_included() {
        let (mut ours, mut theirs) = (Transaction::new(), Transaction::new());
        ours.put(Column::Meta, *b"a", *b"ours");
        ours.put(Column::Meta, *b"b", *b"ours");
        theirs.delete(Column::Meta, *b"a");
        theirs.put(Column::State, *b"c", *b"theirs");
        ours.merge(&theirs);
        assert_eq!(ours.get(Column::Meta, b"a"), Some(&Op::Delete));
        assert_eq!(ours.get(Column::Meta, b"b"), Some(&Op::Put(b"ours".to_vec())));
        assert_eq!(ours.get(Column::State, b"c"), Some(&Op::Put(b"theirs".to_vec())));
    }
}
