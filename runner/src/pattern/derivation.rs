//! Running a derivation (RUN-540, RUN-236, RUN-238): argument in, output value through the output's redirects,
//! narrowed to the scope the run discovered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use memory_wire::{Scope, Value};

use crate::cell::CellHost;
use crate::entity_derivation::Frame;
use crate::error::RunnerError;
use crate::link::Link;
use crate::link_resolution::{LastNode, resolve};
use crate::pattern::bind::Bound;
use crate::pattern::body::{ArgView, RunCx};
use crate::pattern::graph::DerivationBody;
use crate::runtime::Posture;
use crate::scheduler::{Action, RunFailure};
use crate::transaction::{ReadMeta, RunTx};
use crate::value_write;

/// Where errors of bodies go.
pub(crate) type BodyErrors = Rc<dyn Fn(&str, &RunnerError)>;

/// The action of one native derivation node.
pub(crate) struct Derivation {
    pub(crate) host: Rc<dyn CellHost>,
    pub(crate) action_id: smol_str::SmolStr,
    pub(crate) body: DerivationBody,
    pub(crate) inputs: Rc<Bound>,
    pub(crate) argument_schema: Value,
    pub(crate) output: Link,
    pub(crate) posture: Posture,
    pub(crate) errors: BodyErrors,
}

impl Action for Derivation {
    fn run(&self, tx: &RunTx) -> Result<(), RunFailure> {
        // The ratchet starts where the argument is read (RUN-540).
        tx.reset_narrowest_read_scope();
        let result = self.compute(tx)?;
        let discovered = tx.narrowest_read_scope();
        write_result(tx, &self.output, result, discovered, self.posture)?;
        Ok(())
    }
}

impl Derivation {
    /// The output value; `Undefined` for an unavailable argument, an input in transit, or a throwing body.
    fn compute(&self, tx: &RunTx) -> Result<Value, RunFailure> {
        let argument = ArgView::new(
            Rc::clone(&self.host),
            tx.clone(),
            Rc::clone(&self.inputs),
            self.argument_schema.clone(),
            self.output.clone(),
        );
        if !available(&argument, &self.argument_schema)? {
            return Ok(Value::Undefined);
        }
        let frame = Rc::new(Frame::derivation(self.inputs.cause()));
        let cx = RunCx::new(Rc::clone(&self.host), tx.clone(), frame, self.output.clone());
        let was_lazy = tx.set_lazy_reads(true);
        let ran = catch_unwind(AssertUnwindSafe(|| (self.body)(&cx, &argument)));
        tx.set_lazy_reads(was_lazy);
        match ran {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => self.without_value(error),
            Err(panic) => {
                let message = crate::scheduler::panic_text(panic.as_ref());
                self.without_value(RunnerError::Panicked {
                    action: self.action_id.to_string(),
                    message,
                })
            }
        }
    }

    /// What a body's error means (RUN-540, RUN-216, RUN-59).
    fn without_value(&self, error: RunnerError) -> Result<Value, RunFailure> {
        match error {
            // Some runtime with access computes this instance; nothing of this run may land.
            RunnerError::ForeignScopedRead { .. } => Err(RunFailure::Withdrawn(error.to_string())),
            // In transit: the reads taken re-run it on arrival.
            RunnerError::UnresolvedInput { .. } | RunnerError::SchemaMismatch { .. } => Ok(Value::Undefined),
            other => {
                (self.errors)(&self.action_id, &other);
                Ok(Value::Undefined)
            }
        }
    }
}

/// RUN-540: is every required input there? What is looked at is read, so that its arrival re-runs the node.
fn available(argument: &ArgView, schema: &Value) -> Result<bool, RunFailure> {
    let Some(Value::Array(required)) = schema.member("required") else {
        return Ok(true);
    };
    for (_, name) in required.elements() {
        let Some(name) = name.as_str() else { continue };
        match argument.value(name) {
            Ok(value) if !value.is_undefined() => {}
            Ok(_) => return Ok(false),
            Err(RunnerError::UnresolvedInput { .. } | RunnerError::SchemaMismatch { .. }) => {
                return Ok(false);
            }
            Err(error @ RunnerError::ForeignScopedRead { .. }) => {
                return Err(RunFailure::Withdrawn(error.to_string()));
            }
            Err(error) => return Err(RunFailure::Failed(error)),
        }
    }
    Ok(true)
}

/// RUN-236: writes a derivation's output at the scope it discovered, with the redirects that lead there.
pub(crate) fn write_result(
    tx: &RunTx,
    output: &Link,
    value: Value,
    discovered: Scope,
    posture: Posture,
) -> Result<(), RunnerError> {
    // Where the slot leads now is mechanics: neither a dependency nor a conflict basis of the run.
    let resolved = tx
        .with_read_marks(ReadMeta::UNTRACKED, || resolve(tx, output, LastNode::Redirect))?
        .link;
    if discovered <= resolved.scope {
        return value_write::set(tx, output, value, None);
    }
    let target = Link {
        scope: discovered,
        schema: output.schema.clone(),
        ..resolved.clone()
    };
    value_write::set(tx, &target, value, None)?;
    match resolved.scope {
        // Ragged: this run's own user instance leads on; the shared slot already leads to it.
        Scope::User => write_redirect(tx, &resolved, &target),
        Scope::Space | Scope::Session => match (discovered, posture) {
            // RUN-233: never a direct hop from space to session where server execution is on.
            (Scope::Session, Posture::Serving | Posture::Client) => {
                let between = Link {
                    scope: Scope::User,
                    ..target.clone()
                };
                write_redirect(tx, &between, &target)?;
                write_redirect(tx, output, &between)
            }
            (Scope::Space | Scope::User, _) | (Scope::Session, Posture::Standalone) => {
                write_redirect(tx, output, &target)
            }
        },
    }
}

/// Puts a write redirect to `target` into the slot at `from`, unless it is there.
fn write_redirect(tx: &RunTx, from: &Link, target: &Link) -> Result<(), RunnerError> {
    let redirect = Link {
        redirect: true,
        schema: None,
        ..target.clone()
    }
    .to_value(Some(from));
    value_write::set_raw(tx, &from.address(), Some(redirect), true)
}
