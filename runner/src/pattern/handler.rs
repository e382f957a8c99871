//! Running a handler node (RUN-540, RUN-554, RUN-555, RUN-825).

use std::rc::Rc;

use memory_wire::{EntityId, Object, Scope, ScopeIdentity, ScopeKey, Value};
use smol_str::SmolStr;

use crate::cell::{Cell, CellHost};
use crate::entity_derivation::Frame;
use crate::error::RunnerError;
use crate::link::Link;
use crate::pattern::bind::Bound;
use crate::pattern::body::{ArgView, RunCx, unconstrained};
use crate::pattern::graph::HandlerBody;
use crate::promise::Promise;
use crate::scheduler::EventHandler;
use crate::transaction::RunTx;

/// The field of a node's inputs that makes it a handler.
pub(crate) const EVENT_FIELD: &str = "$event";

/// The handler of one native handler node.
pub(crate) struct NativeHandler {
    pub(crate) host: Rc<dyn CellHost>,
    pub(crate) action_id: SmolStr,
    pub(crate) demand_roots: Vec<EntityId>,
    pub(crate) body: HandlerBody,
    /// Bound inputs without `$event`.
    pub(crate) state: Rc<Bound>,
    pub(crate) argument_schema: Value,
    /// The stream; cells the body makes live in its space.
    pub(crate) stream: Link,
}

impl EventHandler for NativeHandler {
    fn action_id(&self) -> &str {
        &self.action_id
    }

    fn demand_roots(&self) -> &[EntityId] {
        &self.demand_roots
    }

    fn run(&self, tx: &RunTx, event: &Value) -> Result<(), RunnerError> {
        tx.reset_narrowest_read_scope();
        let event = self.payload(tx, event)?;
        let event_id =
            tx.stamp()
                .and_then(|stamp| stamp.event_id)
                .ok_or_else(|| RunnerError::InvalidValue {
                    operation: "handle",
                    reason: format!("run of {} is stamped with no event", self.action_id),
                })?;
        let inputs = match self.state.cause() {
            Value::Object(inputs) => inputs,
            other => Object::from_entries(vec![("$ctx".into(), other)]),
        };
        let frame = Rc::new(Frame::handler(inputs, &event_id));
        let cx = RunCx::new(Rc::clone(&self.host), tx.clone(), frame, self.stream.clone());
        let state = ArgView::new(
            Rc::clone(&self.host),
            tx.clone(),
            Rc::clone(&self.state),
            self.argument_schema.clone(),
            self.stream.clone(),
        );
        (self.body)(&cx, &state, &event)
    }

    fn populate(&self, tx: &RunTx, event: &Value) -> Result<(), RunnerError> {
        let mut first = self.payload(tx, event).map(|_| ());
        for link in self.state.links() {
            // One unreadable input must not hide what the others depend on.
            let read = Cell::new(Rc::clone(&self.host), link).with_tx(tx).value();
            first = first.and(read.map(|_| ()));
        }
        first
    }

    fn presync(&self, event: &Value, who: Option<&ScopeIdentity>) -> Promise<()> {
        let resolvable =
            |link: &Link| who.is_none_or(|identity| ScopeKey::resolve(link.scope, identity).is_ok());
        let storage = self.host.storage();
        let mut loads: Vec<Promise<()>> = self
            .state
            .links()
            .iter()
            // An instance nobody has is not loaded as somebody else's (RUN-574).
            .filter(|link| resolvable(link))
            .map(|link| storage.sync_link(link, who))
            .collect();
        if let Ok(link) = self.payload_link(event) {
            loads.push(storage.sync_link(&link, who));
        }
        Promise::all(loads)
    }
}

impl NativeHandler {
    /// The payload as an immutable cell, read through the event's lens.
    fn payload(&self, tx: &RunTx, event: &Value) -> Result<Value, RunnerError> {
        if event.is_undefined() {
            return Ok(Value::Undefined);
        }
        let schema = self.event_schema();
        if let Some(schema) = &schema {
            refuse_undeclared(schema, event)?;
        }
        let link = self.payload_link(event)?;
        let value = Cell::new(Rc::clone(&self.host), link).with_tx(tx).value()?;
        match (&value, &schema) {
            (Value::Undefined, Some(_)) => Err(RunnerError::SchemaMismatch {
                at: format!("event of stream {}", self.stream.id),
                reason: "the payload does not fit the handler's event schema".to_owned(),
            }),
            _ => Ok(value),
        }
    }

    fn payload_link(&self, event: &Value) -> Result<Link, RunnerError> {
        let id = EntityId::inline(event).map_err(|error| RunnerError::InvalidValue {
            operation: "event payload",
            reason: error.to_string(),
        })?;
        Ok(Link {
            schema: self.event_schema(),
            ..Link::to_document(self.stream.space.clone(), id, Scope::Space)
        })
    }

    fn event_schema(&self) -> Option<Value> {
        let declared = self.argument_schema.member("properties")?.member(EVENT_FIELD)?;
        (!unconstrained(declared)).then(|| declared.clone())
    }
}

/// RUN-825: a closed event schema refuses keys it does not declare.
fn refuse_undeclared(schema: &Value, event: &Value) -> Result<(), RunnerError> {
    let closed = schema.member("additionalProperties").and_then(Value::as_bool) == Some(false);
    let Value::Object(members) = event else {
        return Ok(());
    };
    if !closed {
        return Ok(());
    }
    let declared = schema.member("properties");
    for (key, _) in members.iter() {
        let known = key
            .as_str()
            .is_some_and(|key| declared.is_some_and(|d| d.member(key).is_some()));
        if !known {
            return Err(RunnerError::SchemaMismatch {
                at: format!("event member {key:?}"),
                reason: "the event schema is closed and does not declare it".to_owned(),
            });
        }
    }
    Ok(())
}
