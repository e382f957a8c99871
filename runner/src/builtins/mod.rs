//! Built-in modules (RUN-900…909). Each is an [`Action`] over bound inputs that writes one output; the enum is the
//! registry of names.

mod choice;

use std::rc::Rc;

use memory_wire::{EntityId, Scope, Value};

use crate::cell::CellHost;
use crate::entity_derivation::{builtin_result, entity_cause, place_cause, spot_cause};
use crate::error::RunnerError;
use crate::link::Link;
use crate::pattern::Bound;
use crate::scheduler::Action;

/// The built-ins of this runtime, by registered name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// `ifElse(condition, ifTrue, ifFalse)`.
    IfElse,
    /// `when(condition, value)`: the condition itself when it is falsy.
    When,
    /// `unless(condition, fallback)`: the condition itself when it is truthy.
    Unless,
}

impl Builtin {
    /// The registered name (RUN-900).
    pub fn name(self) -> &'static str {
        match self {
            Builtin::IfElse => "ifElse",
            Builtin::When => "when",
            Builtin::Unless => "unless",
        }
    }

    /// The built-in of that name.
    pub fn from_name(name: &str) -> Option<Builtin> {
        [Builtin::IfElse, Builtin::When, Builtin::Unless]
            .into_iter()
            .find(|b| b.name() == name)
    }

    /// Inputs the action reads; the others are opaque: only their link is handed on (RUN-900).
    pub(crate) fn read_inputs(self) -> &'static [&'static str] {
        match self {
            Builtin::IfElse | Builtin::When | Builtin::Unless => &["condition"],
        }
    }

    /// The action of one node.
    pub(crate) fn instantiate(self, site: BuiltinSite) -> Result<Rc<dyn Action>, RunnerError> {
        let cause = site.cause()?;
        match self {
            Builtin::IfElse | Builtin::When | Builtin::Unless => Ok(Rc::new(choice::Choice::new(
                self,
                builtin_result(self.name(), cause),
                site,
            ))),
        }
    }
}

/// Where a built-in node stands.
pub(crate) struct BuiltinSite {
    pub(crate) host: Rc<dyn CellHost>,
    pub(crate) inputs: Rc<Bound>,
    /// The piece's root.
    pub(crate) piece: Link,
    pub(crate) output: Link,
}

impl BuiltinSite {
    /// RUN-900: `{inputs, parents, outputSpot}`. The inputs are the *unreduced* bound-inputs cell, so the ids of
    /// raw built-ins follow the schemas of their inputs (RUN-803).
    fn cause(&self) -> Result<Value, RunnerError> {
        let bound = self.inputs.to_value(&self.piece, false);
        let id = EntityId::inline(&bound).map_err(|error| RunnerError::InvalidValue {
            operation: "bind built-in",
            reason: error.to_string(),
        })?;
        let inputs = Link::to_document(self.piece.space.clone(), id, Scope::Space);
        Ok(memory_wire::value!({
            "inputs": (place_cause(&inputs)),
            "parents": (entity_cause(&self.piece.id)),
            "outputSpot": (spot_cause(&self.output)),
        }))
    }
}
