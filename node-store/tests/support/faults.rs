//! A backend that fails at a chosen call: once, or from there on as if the process had died.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use node_store::{
    Column, ColumnSet, Database, Direction, KeyRange, OwnedRow, ReadView, Row, RowCursor, StoreError,
    Transaction,
};

/// Which call fails, and how.
#[derive(Default)]
pub(crate) struct Plan {
    calls: AtomicUsize,
    /// The number of the failing call, counted from 1; 0 for none.
    fail_at: AtomicUsize,
    /// Whether all calls after it fail too.
    dies: AtomicBool,
    /// Whether the failing write is carried out before the error: a crash after the write.
    after: AtomicBool,
    /// Counts only writes and flushes.
    writes_only: AtomicBool,
}

impl Plan {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Starts counting anew; call number `fail_at` fails.
    pub(crate) fn fail(&self, fail_at: usize) {
        self.calls.store(0, Ordering::SeqCst);
        self.fail_at.store(fail_at, Ordering::SeqCst);
        self.dies.store(false, Ordering::SeqCst);
        self.after.store(false, Ordering::SeqCst);
        self.writes_only.store(false, Ordering::SeqCst);
    }

    /// Starts counting writes anew; at number `die_at` everything stops, before or after that write.
    pub(crate) fn die(&self, die_at: usize, after: bool) {
        self.fail(die_at);
        self.dies.store(true, Ordering::SeqCst);
        self.after.store(after, Ordering::SeqCst);
        self.writes_only.store(true, Ordering::SeqCst);
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether the failing call was reached.
    pub(crate) fn struck(&self) -> bool {
        let at = self.fail_at.load(Ordering::SeqCst);
        at != 0 && self.calls() >= at
    }

    fn step(&self, is_write: bool) -> Result<Step, StoreError> {
        let at = self.fail_at.load(Ordering::SeqCst);
        let dies = self.dies.load(Ordering::SeqCst);
        if self.writes_only.load(Ordering::SeqCst) && !is_write {
            return if dies && at != 0 && self.calls() >= at {
                Err(injected())
            } else {
                Ok(Step::Go)
            };
        }
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        match at {
            0 => Ok(Step::Go),
            at if call == at && self.after.load(Ordering::SeqCst) => Ok(Step::GoThenFail),
            at if call == at || dies && call > at => Err(injected()),
            _ => Ok(Step::Go),
        }
    }
}

enum Step {
    Go,
    GoThenFail,
}

pub(crate) fn injected() -> StoreError {
    StoreError::Backend {
        backend: "faulty",
        operation: "any",
        cause: "injected".into(),
    }
}

pub(crate) fn is_injected(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Backend {
            backend: "faulty",
            ..
        }
    )
}

pub(crate) struct Faulty<D> {
    pub(crate) inner: D,
    pub(crate) plan: Arc<Plan>,
}

impl<D: Database> Faulty<D> {
    fn write(&self, write: impl FnOnce(&D) -> Result<(), StoreError>) -> Result<(), StoreError> {
        match self.plan.step(true)? {
            Step::Go => write(&self.inner),
            Step::GoThenFail => write(&self.inner).and(Err(injected())),
        }
    }
}

struct FaultyCursor<'v> {
    inner: Box<dyn RowCursor + 'v>,
    plan: Arc<Plan>,
}

impl RowCursor for FaultyCursor<'_> {
    fn advance(&mut self) -> Result<bool, StoreError> {
        self.plan.step(false)?;
        self.inner.advance()
    }

    fn seek(&mut self, target: &[u8]) -> Result<bool, StoreError> {
        self.plan.step(false)?;
        self.inner.seek(target)
    }

    fn row(&self) -> Option<Row<'_>> {
        self.inner.row()
    }
}

struct FaultyView<'v> {
    inner: Box<dyn ReadView + 'v>,
    plan: Arc<Plan>,
}

macro_rules! faulty_reads {
    () => {
        fn has(&self, column: Column, key: &[u8]) -> Result<bool, StoreError> {
            self.plan.step(false)?;
            self.inner.has(column, key)
        }

        fn get(&self, column: Column, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            self.plan.step(false)?;
            self.inner.get(column, key)
        }

        fn cursor<'v>(
            &'v self,
            column: Column,
            range: &KeyRange,
            direction: Direction,
        ) -> Result<Box<dyn RowCursor + 'v>, StoreError> {
            self.plan.step(false)?;
            let inner = self.inner.cursor(column, range, direction)?;
            Ok(Box::new(FaultyCursor {
                inner,
                plan: self.plan.clone(),
            }))
        }
    };
}

impl ReadView for FaultyView<'_> {
    faulty_reads!();
}

impl<D: Database> ReadView for Faulty<D> {
    faulty_reads!();
}

impl<D: Database> Database for Faulty<D> {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn columns(&self) -> ColumnSet {
        self.inner.columns()
    }

    fn put(&self, column: Column, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.write(|inner| inner.put(column, key, value))
    }

    fn delete(&self, column: Column, key: &[u8]) -> Result<(), StoreError> {
        self.write(|inner| inner.delete(column, key))
    }

    fn apply(&self, transaction: &Transaction) -> Result<(), StoreError> {
        self.write(|inner| inner.apply(transaction))
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.write(|inner| inner.flush())
    }

    fn snapshot(&self) -> Result<Box<dyn ReadView + '_>, StoreError> {
        self.plan.step(false)?;
        Ok(Box::new(FaultyView {
            inner: self.inner.snapshot()?,
            plan: self.plan.clone(),
        }))
    }

    fn last_in_range(&self, column: Column, range: &KeyRange) -> Result<Option<OwnedRow>, StoreError> {
        self.plan.step(false)?;
        self.inner.last_in_range(column, range)
    }

    fn delete_range(&self, column: Column, range: &KeyRange) -> Result<(), StoreError> {
        self.write(|inner| inner.delete_range(column, range))
    }

    fn approximate_size(&self, column: Column, range: &KeyRange) -> Result<u64, StoreError> {
        self.plan.step(false)?;
        self.inner.approximate_size(column, range)
    }
}
