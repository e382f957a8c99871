//! Cursors: walking the rows of one column in one direction without copying them. Rules: NODE-6, NODE-24.

use crate::column::Column;
use crate::error::StoreError;

/// A row under a cursor; it lives until the cursor moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'c> {
    /// The key, without its column.
    pub key: &'c [u8],
    /// The value.
    pub value: &'c [u8],
}

/// What a backend or a layer offers for walking. Use it through [`Cursor`], which keeps a failed one from being read on.
pub trait RowCursor: Send {
    /// Moves to the next row; the first call moves to the first one. False at the end.
    fn advance(&mut self) -> Result<bool, StoreError>;

    /// Moves to the first row at or beyond `target` in the cursor's direction, forwards or back, within its range. False
    /// if there is none. The next [`advance`](Self::advance) goes on from there.
    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError>;

    /// The row stood on: none before the first move and at the end.
    fn row(&self) -> Option<Row<'_>>;
}

/// A walk over one column at one point in time. A read error is reported once; after it every call is an error, so a
/// failed walk never looks like a finished one.
pub struct Cursor<'a> {
    column: Column,
    rows: Box<dyn RowCursor + 'a>,
    failed: bool,
}

impl<'a> Cursor<'a> {
    /// Wraps what a backend or a layer offers.
    pub fn new(column: Column, rows: Box<dyn RowCursor + 'a>) -> Self {
        Cursor {
            column,
            rows,
            failed: false,
        }
    }

    /// The column walked.
    pub fn column(&self) -> Column {
        self.column
    }

    /// The next row, or none at the end.
    #[allow(
        clippy::should_implement_trait,
        reason = "the row borrows the cursor, which Iterator cannot say"
    )]
    pub fn next(&mut self) -> Result<Option<Row<'_>>, StoreError> {
        self.moved(|rows| rows.advance())
    }

    /// The first row at or beyond `target` in the cursor's direction; [`next`](Self::next) goes on after it. Works from
    /// anywhere, the end included.
    pub fn seek(&mut self, target: &[u8]) -> Result<Option<Row<'_>>, StoreError> {
        self.moved(|rows| rows.seek(target))
    }

    /// The row stood on.
    pub fn row(&self) -> Option<Row<'_>> {
        if self.failed { None } else { self.rows.row() }
    }

    fn moved(
        &mut self,
        step: impl FnOnce(&mut dyn RowCursor) -> Result<bool, StoreError>,
    ) -> Result<Option<Row<'_>>, StoreError> {
        if self.failed {
            return Err(StoreError::CursorFailed { column: self.column });
        }
        match step(self.rows.as_mut()) {
            Ok(true) => Ok(self.rows.row()),
            Ok(false) => Ok(None),
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    pub(crate) fn into_rows(self) -> Box<dyn RowCursor + 'a> {
        self.rows
    }
}

/// A walk over nothing.
pub(crate) struct EmptyCursor;

impl RowCursor for EmptyCursor {
    fn advance(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn seek(&mut self, _target: &[u8]) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn row(&self) -> Option<Row<'_>> {
        None
    }
}
