//! What a body sees (RUN-822, RUN-227): its argument, read place by place as it touches them, and a context for
//! making cells and sending events. There is nothing else: no clock but the event's instant, no randomness, no I/O.

use std::rc::Rc;

use memory_wire::{EntityId, EventId, Scope, Value};

use crate::cell::{Cell, CellHost};
use crate::entity_derivation::{Frame, frame_cell};
use crate::error::RunnerError;
use crate::link::Link;
use crate::pattern::bind::Bound;
use crate::transaction::RunTx;

/// The context of one run of one body.
pub struct RunCx {
    host: Rc<dyn CellHost>,
    tx: RunTx,
    frame: Rc<Frame>,
    /// A place of the piece; cells made by the body live in its space and scope.
    home: Link,
}

impl RunCx {
    pub(crate) fn new(host: Rc<dyn CellHost>, tx: RunTx, frame: Rc<Frame>, home: Link) -> RunCx {
        RunCx {
            host,
            tx,
            frame,
            home,
        }
    }

    /// A cell at any place, bound to this run.
    pub fn cell_at(&self, link: Link) -> Cell {
        Cell::new(Rc::clone(&self.host), link).with_tx(&self.tx)
    }

    /// A new document of this run: named by `name` within the run's frame, or by the frame's counter (handlers
    /// only, RUN-804). The same run in another process names the same document.
    pub fn new_cell(&self, name: Option<Value>, schema: Option<Value>) -> Result<Cell, RunnerError> {
        let id = frame_cell(&self.frame, name)?;
        let mut link = Link::to_document(self.home.space.clone(), id, Scope::Space);
        link.schema = schema;
        Ok(self.cell_at(link))
    }

    /// Sends an event to a stream. Dies with this run if the run does not stand.
    pub fn send(&self, stream: &Cell, event: Value) -> Result<EventId, RunnerError> {
        stream.with_tx(&self.tx).send(event)
    }

    /// The instant of the event being handled, floored to a second, in milliseconds since 1970-01-01; `None` in
    /// a derivation (RUN-551).
    pub fn event_time_ms(&self) -> Option<i64> {
        self.tx.event_time_ms()
    }

    /// The run's transaction.
    pub fn tx(&self) -> &RunTx {
        &self.tx
    }

    /// The run's frame.
    pub fn frame(&self) -> &Rc<Frame> {
        &self.frame
    }
}

/// A body's argument. Each access reads at that moment and subscribes to exactly what it read.
pub struct ArgView {
    host: Rc<dyn CellHost>,
    tx: RunTx,
    bound: Rc<Bound>,
    schema: Value,
    home: Link,
}

impl ArgView {
    pub(crate) fn new(
        host: Rc<dyn CellHost>,
        tx: RunTx,
        bound: Rc<Bound>,
        schema: Value,
        home: Link,
    ) -> ArgView {
        ArgView {
            host,
            tx,
            bound,
            schema,
            home,
        }
    }

    /// The place behind an input, for reading and (in handlers) writing.
    pub fn cell(&self, name: &str) -> Result<Cell, RunnerError> {
        let bound = self.bound.field(name).ok_or_else(|| RunnerError::InvalidValue {
            operation: "argument",
            reason: format!("the node has no input {name}"),
        })?;
        let schema = self
            .schema
            .member("properties")
            .and_then(|p| p.member(name))
            .cloned();
        let link = match bound {
            Bound::Link(link) => match schema {
                // The lens of the argument wins where it says something; else the place keeps its own.
                Some(schema) if !unconstrained(&schema) => link.with_schema(Some(schema)),
                Some(_) | None => link.clone(),
            },
            Bound::Literal(_) | Bound::Object(_) | Bound::Array(_) => {
                let value = bound.to_value(&self.home, false);
                let id = EntityId::inline(&value).map_err(|error| RunnerError::InvalidValue {
                    operation: "argument",
                    reason: error.to_string(),
                })?;
                Link {
                    schema,
                    ..Link::to_document(self.home.space.clone(), id, Scope::Space)
                }
            }
        };
        Ok(Cell::new(Rc::clone(&self.host), link).with_tx(&self.tx))
    }

    /// The value of an input through its lens; `Undefined` when absent and without a default.
    pub fn value(&self, name: &str) -> Result<Value, RunnerError> {
        self.cell(name)?.value()
    }

    /// The text of an input; `""` when it is absent or no text.
    pub fn text(&self, name: &str) -> Result<String, RunnerError> {
        Ok(self.value(name)?.as_str().map(str::to_owned).unwrap_or_default())
    }

    /// The elements of an input; none when it is absent or no list.
    pub fn items(&self, name: &str) -> Result<Vec<Value>, RunnerError> {
        Ok(match self.value(name)? {
            Value::Array(array) => array.elements().map(|(_, item)| item.clone()).collect(),
            _ => Vec::new(),
        })
    }
}

pub(crate) fn unconstrained(schema: &Value) -> bool {
    match schema {
        Value::Bool(open) => *open,
        Value::Object(object) => object.is_empty(),
        _ => true,
    }
}
