//! The ordered merge of what is stored and what is staged: one pass over both, each key once, the staged value first,
//! staged deletes hidden. Rules: NODE-2, NODE-24.

use std::cmp::Ordering;
use std::collections::btree_map::Range;

use crate::cursor::{Cursor, Row, RowCursor};
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};
use crate::transaction::{Op, Transaction};

/// Where the row under the cursor comes from.
#[derive(Clone, Copy)]
enum Standing<'s> {
    /// Before the first row or after the last.
    Nowhere,
    /// The layer below; its cursor stands on the row.
    Stored,
    /// The shadow.
    Staged(&'s [u8], &'s [u8]),
}

pub(super) struct MergeCursor<'s> {
    inner: Box<dyn RowCursor + 's>,
    /// Whether `inner` stands on a row that has not been given out or hidden.
    inner_waits: bool,
    started: bool,
    shadow: &'s Transaction,
    column: crate::column::Column,
    range: KeyRange,
    direction: Direction,
    staged: Range<'s, Vec<u8>, Op>,
    staged_head: Option<(&'s [u8], &'s Op)>,
    standing: Standing<'s>,
}

impl<'s> MergeCursor<'s> {
    pub(super) fn over(
        inner: Cursor<'s>,
        shadow: &'s Transaction,
        range: KeyRange,
        direction: Direction,
    ) -> Cursor<'s> {
        let column = inner.column();
        let merged = MergeCursor {
            inner: inner.into_rows(),
            inner_waits: false,
            started: false,
            shadow,
            column,
            staged: shadow.range(column, &range),
            range,
            direction,
            staged_head: None,
            standing: Standing::Nowhere,
        };
        Cursor::new(column, Box::new(merged))
    }

    fn next_staged(&mut self) {
        let next = match self.direction {
            Direction::Ascending => self.staged.next(),
            Direction::Descending => self.staged.next_back(),
        };
        self.staged_head = next.map(|(key, op)| (key.as_slice(), op));
    }

    /// Goes on from two heads, neither given out yet, to the first visible row.
    fn settle(&mut self) -> Result<bool, StoreError> {
        loop {
            let stored = if self.inner_waits {
                self.inner.row().map(|row| row.key)
            } else {
                None
            };
            let order = match (stored, self.staged_head) {
                (None, None) => {
                    self.standing = Standing::Nowhere;
                    return Ok(false);
                }
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(stored), Some((staged, _))) => match self.direction {
                    Direction::Ascending => stored.cmp(staged),
                    Direction::Descending => staged.cmp(stored),
                },
            };
            if order == Ordering::Less {
                self.standing = Standing::Stored;
                return Ok(true);
            }
            if order == Ordering::Equal {
                self.inner_waits = self.inner.advance()?;
            }
            let head = self.staged_head;
            self.next_staged();
            if let Some((key, Op::Put(value))) = head {
                self.standing = Standing::Staged(key, value);
                return Ok(true);
            }
        }
    }
}

impl RowCursor for MergeCursor<'_> {
    fn advance(&mut self) -> Result<bool, StoreError> {
        if !self.started {
            self.started = true;
            self.next_staged();
            self.inner_waits = self.inner.advance()?;
        } else if matches!(self.standing, Standing::Stored) {
            self.inner_waits = self.inner.advance()?;
        }
        self.settle()
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        self.started = true;
        let ahead = match self.direction {
            Direction::Ascending => self.range.clone().starting_at(target),
            Direction::Descending => {
                // Everything up to the target itself: the key right after it in byte order is one zero byte longer.
                let after = [target, &[0]].concat();
                match self.range.end() {
                    Some(end) if end <= after.as_slice() => self.range.clone(),
                    _ => KeyRange::new(self.range.start(), after),
                }
            }
        };
        self.staged = self.shadow.range(self.column, &ahead);
        self.next_staged();
        self.inner_waits = self.inner.seek(target)?;
        self.settle()
    }

    fn row(&self) -> Option<Row<'_>> {
        match self.standing {
            Standing::Nowhere => None,
            Standing::Stored => self.inner.row(),
            Standing::Staged(key, value) => Some(Row { key, value }),
        }
    }
}
