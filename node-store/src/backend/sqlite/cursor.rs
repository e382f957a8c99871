//! A cursor that reads its rows a page at a time into one buffer, so that a row costs no allocation. Rule: NODE-24.

use std::sync::Arc;

use super::failed;
use super::readers::ReadSession;
use super::statements::SQL;
use crate::column::Column;
use crate::cursor::{Row, RowCursor};
use crate::error::StoreError;
use crate::key::{Direction, KeyRange};

const FIRST_PAGE_ROWS: usize = 16;
const MAX_PAGE_ROWS: usize = 512;
/// A page ends early when it holds this much, so that large values do not pile up.
const PAGE_BYTES: usize = 256 << 10;

pub(super) struct PagedCursor {
    session: Arc<ReadSession>,
    column: Column,
    range: KeyRange,
    direction: Direction,
    /// Keys and values of the page, one after the other.
    bytes: Vec<u8>,
    rows: Vec<PageRow>,
    /// Index of the row stood on; `rows.len()` at the end; none before the first move.
    at: Option<usize>,
    /// Whether the range may hold rows beyond the page.
    more: bool,
    page_rows: usize,
    bound: Vec<u8>,
}

#[derive(Clone, Copy)]
struct PageRow {
    start: usize,
    key_len: usize,
    value_len: usize,
}

impl PagedCursor {
    pub(super) fn new(
        session: Arc<ReadSession>,
        column: Column,
        range: &KeyRange,
        direction: Direction,
    ) -> Self {
        PagedCursor {
            session,
            column,
            range: range.clone(),
            direction,
            bytes: Vec::new(),
            rows: Vec::new(),
            at: None,
            more: true,
            page_rows: FIRST_PAGE_ROWS,
            bound: Vec::new(),
        }
    }

    /// Reads the page that begins at `self.bound` (a lower bound ascending, an upper one descending, both half-open), or
    /// at the range's own start where there is none.
    fn read_page(&mut self, bounded: bool) -> Result<bool, StoreError> {
        let (start, end) = (self.range.start(), self.range.end());
        let bound = bounded.then_some(self.bound.as_slice());
        let (lower, upper) = match self.direction {
            Direction::Ascending => (bound.map_or(start, |bound| bound.max(start)), end),
            Direction::Descending => (start, end.into_iter().chain(bound).min()),
        };
        self.bytes.clear();
        self.rows.clear();
        self.at = Some(0);
        self.more = false;
        if upper.is_some_and(|upper| upper <= lower) {
            return Ok(false);
        }
        let (bytes, rows, limit) = (&mut self.bytes, &mut self.rows, self.page_rows);
        let sql = SQL[self.column.index()].page(self.direction, upper.is_some());
        self.more = self.session.with(|connection| {
            let mut read = || {
                let mut statement = connection.prepare_cached(sql)?;
                let mut found = match upper {
                    Some(upper) => statement.query(rusqlite::params![lower, upper, limit as i64])?,
                    None => statement.query(rusqlite::params![lower, limit as i64])?,
                };
                while let Some(row) = found.next()? {
                    let (key, value) = (row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?);
                    rows.push(PageRow {
                        start: bytes.len(),
                        key_len: key.len(),
                        value_len: value.len(),
                    });
                    bytes.extend_from_slice(key);
                    bytes.extend_from_slice(value);
                    if bytes.len() >= PAGE_BYTES {
                        return Ok(true);
                    }
                }
                Ok(rows.len() == limit)
            };
            read().map_err(failed("scan"))
        })?;
        self.page_rows = (self.page_rows * 2).min(MAX_PAGE_ROWS);
        Ok(!self.rows.is_empty())
    }
}

impl RowCursor for PagedCursor {
    fn advance(&mut self) -> Result<bool, StoreError> {
        let Some(at) = self.at else {
            return self.read_page(false);
        };
        if at + 1 < self.rows.len() {
            self.at = Some(at + 1);
            return Ok(true);
        }
        if !self.more {
            self.at = Some(self.rows.len());
            return Ok(false);
        }
        self.bound.clear();
        if let Some(last) = self.rows.last() {
            self.bound
                .extend_from_slice(&self.bytes[last.start..last.start + last.key_len]);
        }
        if self.direction == Direction::Ascending {
            // The first key after `k` in byte order is `k` and a zero byte.
            self.bound.push(0);
        }
        self.read_page(true)
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        self.bound.clear();
        self.bound.extend_from_slice(target);
        if self.direction == Direction::Descending {
            self.bound.push(0);
        }
        self.page_rows = FIRST_PAGE_ROWS;
        self.read_page(true)
    }

    fn row(&self) -> Option<Row<'_>> {
        let row = self.rows.get(self.at?)?;
        let (key, rest) = self.bytes[row.start..].split_at(row.key_len);
        Some(Row {
            key,
            value: &rest[..row.value_len],
        })
    }
}
