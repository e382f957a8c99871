//! A backend that fails at a chosen call: once, from there on as if the process had died, or by waiting there for the real
//! death of the process.

use std::sync::Arc;

use node_store::{
    Column, ColumnSet, Database, Direction, Durability, KeyRange, OwnedRow, ReadView, Row, RowCursor,
    StoreError, Transaction,
};
use parking_lot::Mutex;

use super::process;

/// What goes wrong, and when. Numbers count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// Call number `at` fails, reads and the steps of cursors counted.
    Once { at: usize },
    /// Everything stops at write number `at`, before it is carried out or after.
    Death { at: usize, after: bool },
    /// At write number `at` the process says so and waits to be killed.
    Halt { at: usize, after: bool },
}

#[derive(Default)]
struct Counted {
    fault: Fault,
    /// Calls so far; only writes and flushes where the fault counts those.
    calls: usize,
}

/// Which call fails, and how. Shared by a backend and the test that watches it.
#[derive(Default)]
pub(crate) struct Plan(Mutex<Counted>);

impl Plan {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Starts counting all calls anew; nothing fails.
    pub(crate) fn sound(&self) {
        self.set(Fault::None);
    }

    /// Starts counting all calls anew; call number `at` fails.
    pub(crate) fn fail(&self, at: usize) {
        self.set(Fault::Once { at });
    }

    /// Starts counting writes anew; at number `at` everything stops, before or after that write.
    pub(crate) fn die(&self, at: usize, after: bool) {
        self.set(Fault::Death { at, after });
    }

    /// Starts counting writes anew; at number `at` the process waits to be killed, before or after that write.
    pub(crate) fn halt(&self, at: usize, after: bool) {
        self.set(Fault::Halt { at, after });
    }

    fn set(&self, fault: Fault) {
        *self.0.lock() = Counted { fault, calls: 0 };
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.lock().calls
    }

    /// Whether the failing call was reached.
    pub(crate) fn struck(&self) -> bool {
        let counted = self.0.lock();
        match counted.fault {
            Fault::None => false,
            Fault::Once { at } | Fault::Death { at, .. } | Fault::Halt { at, .. } => counted.calls >= at,
        }
    }

    fn step(&self, is_write: bool) -> Result<Step, StoreError> {
        let mut counted = self.0.lock();
        let dead = matches!(counted.fault, Fault::Death { at, .. } if counted.calls >= at);
        if dead {
            return Err(injected());
        }
        match counted.fault {
            Fault::None | Fault::Once { .. } => counted.calls += 1,
            Fault::Death { .. } | Fault::Halt { .. } if is_write => counted.calls += 1,
            Fault::Death { .. } | Fault::Halt { .. } => return Ok(Step::Go),
        }
        match counted.fault {
            Fault::Once { at } if counted.calls == at => Err(injected()),
            Fault::Death { at, after: false } if counted.calls == at => Err(injected()),
            Fault::Death { at, after: true } if counted.calls == at => Ok(Step::GoThenFail),
            Fault::Halt { at, after: false } if counted.calls == at => process::wait_to_be_killed(),
            Fault::Halt { at, after: true } if counted.calls == at => Ok(Step::GoThenHalt),
            _ => Ok(Step::Go),
        }
    }
}

enum Step {
    Go,
    GoThenFail,
    GoThenHalt,
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
            Step::GoThenHalt => {
                write(&self.inner)?;
                process::wait_to_be_killed()
            }
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

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
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
