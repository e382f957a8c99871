//! Cells: a place, a lens and a transaction to use it in (RUN-220, RUN-221, §2.3 of the design).
//!
//! Pattern bodies, built-ins and embedders use cells; nothing below them knows the type. A cell is a cheap value.

use std::rc::Rc;

use memory_wire::{EventId, Scope, ScopeIdentity, Value};
use smol_str::SmolStr;

use crate::address::{Address, Path};
use crate::error::RunnerError;
use crate::link::Link;
use crate::link_resolution::{LastNode, resolve};
use crate::promise::Promise;
use crate::schema_read::{self, LazyView, View};
use crate::storage_manager::StorageManager;
use crate::transaction::{MergeableOp, Read, ReadMeta, RunTx};
use crate::value_write::{self, WriteFrame};

/// Ends a subscription when dropped.
pub struct Subscription(Option<Box<dyn FnOnce()>>);

impl Subscription {
    /// A subscription that `cancel` ends.
    pub fn new(cancel: impl FnOnce() + 'static) -> Subscription {
        Subscription(Some(Box::new(cancel)))
    }

    /// Lets it run for ever.
    pub fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel();
        }
    }
}

/// Undoes what the previous call of a sink set up.
pub type Cleanup = Box<dyn FnOnce()>;

/// Called with every value of a cell.
pub type SinkFn = Box<dyn FnMut(&Result<View, RunnerError>) -> Option<Cleanup>>;

/// What a runtime gives its cells.
pub trait CellHost {
    /// Its storage.
    fn storage(&self) -> &StorageManager;
    /// A read-only transaction.
    fn read_tx(&self) -> RunTx;
    /// A transaction with destination, identity and stamp attached.
    fn edit(&self) -> RunTx;
    /// Registers an effect node that reads `cell` and calls `f`.
    fn sink(&self, cell: &Cell, f: SinkFn) -> Subscription;
    /// Resolves with the converged value of `cell`.
    fn pull(&self, cell: &Cell) -> Promise<Result<View, RunnerError>>;
    /// Sends an event to the stream `cell` names, from `tx` when one is running.
    fn send(&self, stream: &Cell, tx: Option<&RunTx>, event: Value) -> Result<EventId, RunnerError>;
}

/// A handle to a place in a space. See the module documentation.
#[derive(Clone)]
pub struct Cell {
    host: Rc<dyn CellHost>,
    link: Link,
    tx: Option<RunTx>,
    frame: Option<Rc<dyn WriteFrame>>,
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Cell({}/{}/{})",
            self.link.id,
            self.link.scope.as_str(),
            self.link.path.join("/")
        )
    }
}

impl Cell {
    /// A cell at `link`.
    pub fn new(host: Rc<dyn CellHost>, link: Link) -> Cell {
        Cell {
            host,
            link,
            tx: None,
            frame: None,
        }
    }

    /// The link: place, lens and stamps.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The runtime behind it.
    pub fn host(&self) -> &Rc<dyn CellHost> {
        &self.host
    }

    /// The transaction it is bound to.
    pub fn tx(&self) -> Option<&RunTx> {
        self.tx.as_ref()
    }

    /// The same cell, reading and writing in `tx`.
    pub fn with_tx(&self, tx: &RunTx) -> Cell {
        Cell {
            tx: Some(tx.clone()),
            ..self.clone()
        }
    }

    /// The same cell without a transaction.
    pub fn without_tx(&self) -> Cell {
        Cell {
            tx: None,
            ..self.clone()
        }
    }

    /// The same cell, anchoring array elements by `frame` when it writes (RUN-231).
    pub fn with_frame(&self, frame: Rc<dyn WriteFrame>) -> Cell {
        Cell {
            frame: Some(frame),
            ..self.clone()
        }
    }

    /// Another cell of the same runtime, transaction and frame.
    pub fn at(&self, link: Link) -> Cell {
        Cell { link, ..self.clone() }
    }

    /// The child `segment`: child schema, and the cap of the segment walked past (RUN-213).
    pub fn key(&self, segment: impl AsRef<str>) -> Cell {
        self.at(schema_read::child_link(
            self.host.storage(),
            &self.link,
            segment.as_ref(),
        ))
    }

    /// The same place through another lens; caps persist.
    pub fn as_schema(&self, schema: Option<Value>) -> Cell {
        self.at(self.link.with_schema(schema))
    }

    /// The same place in another scope.
    pub fn in_scope(&self, scope: Scope) -> Cell {
        self.at(Link {
            scope,
            ..self.link.clone()
        })
    }

    /// A transaction to read in: the cell's own while it is open, else a fresh one (RUN-220).
    fn reading_tx(&self) -> RunTx {
        match &self.tx {
            Some(tx) if tx.is_open() => tx.clone(),
            Some(_) | None => self.host.read_tx(),
        }
    }

    fn writing_tx(&self, operation: &'static str) -> Result<&RunTx, RunnerError> {
        match &self.tx {
            Some(tx) if tx.is_open() => Ok(tx),
            Some(tx) => Err(RunnerError::TransactionClosed {
                tx: tx.id().to_string(),
                state: "finished",
                action: operation,
            }),
            None => Err(RunnerError::TransactionClosed {
                tx: "no transaction".into(),
                state: "absent",
                action: operation,
            }),
        }
    }

    // --- reading -------------------------------------------------------------------------------------------------

    /// The schema-directed value (RUN-225); absence and failure are both `undefined`. Asks for what is not here.
    pub fn get(&self) -> Result<View, RunnerError> {
        let tx = self.reading_tx();
        schema_read::read(&tx, &self.link)
    }

    /// [`Cell::get`] with handles written as links.
    pub fn value(&self) -> Result<Value, RunnerError> {
        Ok(self.get()?.to_value())
    }

    /// [`Cell::get`] that subscribes nobody.
    pub fn sample(&self) -> Result<View, RunnerError> {
        let tx = self.reading_tx();
        let quiet = ReadMeta {
            ignore_for_scheduling: true,
            ..ReadMeta::RECURSIVE
        };
        tx.with_read_marks(quiet, || schema_read::read(&tx, &self.link))
    }

    /// A view that reads each touched path when it is touched (RUN-227).
    pub fn lazy(&self) -> Result<LazyView, RunnerError> {
        schema_read::read_lazily(&self.reading_tx(), &self.link)
    }

    /// The stored value, links included, without the lens.
    pub fn get_raw(&self) -> Result<Value, RunnerError> {
        if self.link.is_inline() {
            return schema_read::inline_value(&self.link);
        }
        self.reading_tx().read_value(&self.link.address())
    }

    /// A root field of the document beside `value` (RUN-810).
    pub fn get_meta_raw(&self, field: &str) -> Result<Value, RunnerError> {
        self.reading_tx().read_value(&self.meta_address(field))
    }

    /// Where the links end: the cell whose value is no link (RUN-210).
    pub fn resolve_as_cell(&self) -> Result<Cell, RunnerError> {
        let tx = self.reading_tx();
        Ok(self.at(resolve(&tx, &self.link, LastNode::Value)?.link))
    }

    /// The write-redirect target of this slot.
    pub fn redirect_target(&self) -> Result<Cell, RunnerError> {
        let tx = self.reading_tx();
        Ok(self.at(resolve(&tx, &self.link, LastNode::Redirect)?.link))
    }

    fn meta_address(&self, field: &str) -> Address {
        self.link.document_address().at(vec![SmolStr::new(field)])
    }

    // --- loading and watching ------------------------------------------------------------------------------------

    /// Loads without subscribing; resolves normally even on failure (RUN-63).
    pub fn sync(&self) -> Promise<()> {
        self.sync_as(None)
    }

    /// [`Cell::sync`] as another identity.
    pub fn sync_as(&self, identity: Option<&ScopeIdentity>) -> Promise<()> {
        self.host.storage().sync_link(&self.link, identity)
    }

    /// Calls `f` now and whenever the value changes.
    pub fn sink(
        &self,
        f: impl FnMut(&Result<View, RunnerError>) -> Option<Cleanup> + 'static,
    ) -> Subscription {
        self.host.sink(self, Box::new(f))
    }

    /// The converged value.
    pub fn pull(&self) -> Promise<Result<View, RunnerError>> {
        self.host.pull(self)
    }

    // --- writing -------------------------------------------------------------------------------------------------

    /// Writes through the redirects of the slot (RUN-230); `undefined` removes.
    pub fn set(&self, value: Value) -> Result<(), RunnerError> {
        let tx = self.writing_tx("set")?;
        value_write::set(tx, &self.link, value, self.frame.as_deref())
    }

    /// Writes a scalar the user typed, whatever was there before (RUN-92).
    pub fn set_blind(&self, value: Value) -> Result<(), RunnerError> {
        value_write::set_blind(self.writing_tx("set_blind")?, &self.link, value)
    }

    /// Writes only the given keys.
    pub fn update(&self, fields: &memory_wire::Object) -> Result<(), RunnerError> {
        let tx = self.writing_tx("update")?;
        let target = resolve(tx, &self.link, LastNode::Redirect)?.link;
        for (key, value) in fields.iter() {
            let key = key.as_str().ok_or_else(|| RunnerError::InvalidValue {
                operation: "update",
                reason: "a key has an unpaired surrogate".into(),
            })?;
            value_write::set(
                tx,
                &schema_read::child_link(tx.storage(), &target, key),
                value.clone(),
                self.frame.as_deref(),
            )?;
        }
        Ok(())
    }

    /// Pushes at the tail, as a mergeable append; a place that holds no array gets one.
    pub fn push(&self, values: Vec<Value>) -> Result<(), RunnerError> {
        self.grow("push", values, MergeableOp::Append)
    }

    /// Pushes what no element equals yet, as a mergeable add-unique.
    pub fn add_unique(&self, values: Vec<Value>) -> Result<(), RunnerError> {
        self.grow("add_unique", values, MergeableOp::AddUnique)
    }

    fn grow(&self, operation: &'static str, values: Vec<Value>, op: MergeableOp) -> Result<(), RunnerError> {
        let tx = self.writing_tx(operation)?;
        value_write::grow(tx, &self.link, values, op, self.frame.as_deref())
    }

    /// Adds to a number, as a mergeable increment; absent counts as 0.
    pub fn increment(&self, by: f64) -> Result<(), RunnerError> {
        value_write::increment(self.writing_tx("increment")?, &self.link, by)
    }

    /// Removes every equal element, as a mergeable remove-by-value.
    pub fn remove_by_value(&self, values: Vec<Value>) -> Result<(), RunnerError> {
        value_write::remove_by_value(self.writing_tx("remove_by_value")?, &self.link, values)
    }

    /// Writes past the lens; used for links. With `only_if_different`, an equal stored value is left alone by a
    /// read that is neither a scheduling nor a commit read.
    pub fn set_raw(&self, value: Option<Value>, only_if_different: bool) -> Result<(), RunnerError> {
        let tx = self.writing_tx("set_raw")?;
        value_write::set_raw(tx, &self.link.address(), value, only_if_different)
    }

    /// Writes a root field of the document beside `value`.
    pub fn set_meta_raw(&self, field: &str, value: Option<Value>) -> Result<(), RunnerError> {
        self.writing_tx("set_meta_raw")?
            .write(&self.meta_address(field), value)
    }

    /// True when the document exists as far as this process knows.
    pub fn exists(&self) -> Result<bool, RunnerError> {
        let read = self
            .reading_tx()
            .read(&self.link.document_address(), ReadMeta::SHALLOW)?;
        Ok(matches!(read, Read::Found(_)))
    }

    // --- events --------------------------------------------------------------------------------------------------

    /// Sends an event to this stream (RUN-550, RUN-570, RUN-701).
    pub fn send(&self, event: Value) -> Result<EventId, RunnerError> {
        self.host
            .send(self, self.tx.as_ref().filter(|tx| tx.is_open()), event)
    }

    /// This cell as a stored link (RUN-200), absolute, with its schema.
    pub fn to_link_value(&self) -> Value {
        self.link.to_value(None)
    }

    /// Value-relative path of the cell.
    pub fn path(&self) -> &Path {
        &self.link.path
    }
}
