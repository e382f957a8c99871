//! `ifElse`, `when` and `unless` (RUN-903): the output is the link of the chosen branch; branches are never read.

use std::rc::Rc;

use memory_wire::{EntityId, Scope, Value};

use crate::builtins::{Builtin, BuiltinSite};
use crate::cell::Cell;
use crate::error::RunnerError;
use crate::link::Link;
use crate::link_resolution::{LastNode, resolve};
use crate::pattern::Bound;
use crate::scheduler::{Action, RunFailure};
use crate::transaction::RunTx;
use crate::value_write;

pub(crate) struct Choice {
    builtin: Builtin,
    /// Its own result document; the output slot holds a link to it.
    result: EntityId,
    site: BuiltinSite,
}

impl Choice {
    pub(crate) fn new(builtin: Builtin, result: EntityId, site: BuiltinSite) -> Choice {
        Choice {
            builtin,
            result,
            site,
        }
    }

    /// The condition's value and the scope it resolved to, which is the output's scope (RUN-901).
    fn condition(&self, tx: &RunTx) -> Result<(bool, Scope), RunnerError> {
        match self.site.inputs.field("condition") {
            None => Ok((false, Scope::Space)),
            Some(Bound::Link(link)) => {
                let target = resolve(tx, link, LastNode::Value)?.link;
                let value = Cell::new(Rc::clone(&self.site.host), target.clone())
                    .with_tx(tx)
                    .value()?;
                Ok((truthy(&value), target.scope))
            }
            Some(literal @ (Bound::Literal(_) | Bound::Object(_) | Bound::Array(_))) => {
                Ok((truthy(&literal.to_value(&self.site.piece, false)), Scope::Space))
            }
        }
    }

    fn branch(&self, truthy: bool) -> &'static str {
        match (self.builtin, truthy) {
            (Builtin::IfElse, true) => "ifTrue",
            (Builtin::IfElse, false) => "ifFalse",
            (Builtin::When, true) => "value",
            (Builtin::Unless, false) => "fallback",
            (Builtin::When, false) | (Builtin::Unless, true) => "condition",
        }
    }
}

impl Action for Choice {
    fn run(&self, tx: &RunTx) -> Result<(), RunFailure> {
        tx.reset_narrowest_read_scope();
        let (holds, scope) = match self.condition(tx) {
            Ok(found) => found,
            Err(error @ RunnerError::ForeignScopedRead { .. }) => {
                return Err(RunFailure::Withdrawn(error.to_string()));
            }
            Err(RunnerError::UnresolvedInput { .. } | RunnerError::SchemaMismatch { .. }) => {
                (false, Scope::Space)
            }
            Err(error) => return Err(RunFailure::Failed(error)),
        };
        let piece = &self.site.piece;
        let result = Link::to_document(piece.space.clone(), self.result.clone(), scope);
        let chosen = match self.site.inputs.field(self.branch(holds)) {
            None => None,
            Some(Bound::Link(link)) => Some(link.to_value(Some(&result))),
            Some(other) => Some(other.to_value(&result, false)),
        };
        value_write::set_raw(tx, &result.address(), chosen, true)?;
        // The answer is a link: it goes into the original slot, and only when it is not there already (RUN-238).
        let slot = &self.site.output;
        value_write::set_raw(tx, &slot.address(), Some(result.to_value(Some(slot))), true)?;
        Ok(())
    }
}

/// ECMAScript truth.
pub(crate) fn truthy(value: &Value) -> bool {
    match value {
        Value::Undefined | Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => *n != 0.0 && !n.is_nan(),
        Value::String(text) => !text.is_empty(),
        Value::BigInt(n) => n.to_string() != "0",
        Value::Symbol(_) | Value::Array(_) | Value::Object(_) | Value::Bytes(_) | Value::Special(_) => true,
    }
}
