//! The pattern as data (RUN-820): nodes over bindings, and the internal documents a piece of it owns.

use std::fmt;
use std::rc::Rc;

use memory_wire::{Scope, Value};
use smol_str::SmolStr;

use crate::address::Path;
use crate::builtins::Builtin;
use crate::error::RunnerError;
use crate::pattern::body::{ArgView, RunCx};
use crate::scheduler::Timing;

/// A pattern's graph.
#[derive(Clone, Debug)]
pub struct PatternGraph {
    /// Lens of the argument document.
    pub argument_schema: Value,
    /// Lens of the result, stored with the piece.
    pub result_schema: Value,
    /// The projected result.
    pub result: Template,
    /// Nodes, in program order.
    pub nodes: Vec<Node>,
    /// Internal documents.
    pub internals: Vec<Internal>,
    /// Scope of the piece's own documents; `space` unless the pattern says otherwise.
    pub default_scope: Scope,
}

/// Which document of the piece a binding starts at.
#[derive(Clone, Debug)]
pub enum BindingRoot {
    /// The argument document.
    Argument,
    /// The result document.
    Result,
    /// The internal document of this partial cause.
    Internal(Value),
}

/// A place in one of the piece's documents.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Document.
    pub root: BindingRoot,
    /// Value-relative path in it.
    pub path: Path,
    /// Lens of the place, if the pattern declares one.
    pub schema: Option<Value>,
}

/// A value with bindings in it.
#[derive(Clone, Debug)]
pub enum Template {
    /// A plain value.
    Literal(Value),
    /// A place.
    Binding(Binding),
    /// An object of templates.
    Object(Vec<(SmolStr, Template)>),
    /// A list of templates.
    Array(Vec<Template>),
}

impl Template {
    /// An object template of these fields.
    pub fn object<K: Into<SmolStr>>(fields: impl IntoIterator<Item = (K, Template)>) -> Template {
        Template::Object(
            fields
                .into_iter()
                .map(|(key, value)| (key.into(), value))
                .collect(),
        )
    }

    /// The field `name` of an object template.
    pub fn field(&self, name: &str) -> Option<&Template> {
        match self {
            Template::Object(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            Template::Literal(_) | Template::Binding(_) | Template::Array(_) => None,
        }
    }
}

/// What an internal document is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalKind {
    /// State that handlers write; seeded with its default when the piece is created.
    State,
    /// Output of a derivation; spelled `computed:`.
    Computed,
    /// A stream: holds the marker that makes a node a handler (RUN-825).
    Stream,
}

/// An internal document.
#[derive(Clone, Debug)]
pub struct Internal {
    /// What names it within the piece.
    pub partial_cause: Value,
    /// What it is for.
    pub kind: InternalKind,
    /// Lens.
    pub schema: Option<Value>,
    /// Scope its content lives in.
    pub scope: Scope,
    /// Seed, for documents created at setup; narrower-scoped ones take theirs from the lens.
    pub default: Option<Value>,
}

/// Body of a derivation: the output value of one run.
pub type DerivationBody = Rc<dyn Fn(&RunCx, &ArgView) -> Result<Value, RunnerError>>;

/// Body of a handler: state handles in, writes and sends out.
pub type HandlerBody = Rc<dyn Fn(&RunCx, &ArgView, &Value) -> Result<(), RunnerError>>;

/// Code of a native module.
#[derive(Clone)]
pub enum NativeCode {
    /// Computes an output from its inputs.
    Derivation(DerivationBody),
    /// Handles an event.
    Handler(HandlerBody),
}

impl fmt::Debug for NativeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NativeCode::Derivation(_) => "Derivation",
            NativeCode::Handler(_) => "Handler",
        })
    }
}

/// The code of a node (RUN-821). Modules of other languages become further variants.
#[derive(Clone, Debug)]
pub enum ModuleRef {
    /// One of the registered built-ins (RUN-900).
    Builtin(Builtin),
    /// Rust code with a durable identity.
    Native {
        /// `native:<crate>/<name>@<version>`.
        implementation: SmolStr,
        /// Name of the node's code within it.
        symbol: SmolStr,
        /// The code.
        code: NativeCode,
    },
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Code.
    pub module: ModuleRef,
    /// Bound inputs. A field `$event` that is bound to a stream makes the node a handler.
    pub inputs: Template,
    /// Lens of the argument; a required property that is absent keeps the body from being called (RUN-540).
    pub argument_schema: Value,
    /// Where the output goes: exactly one place. `None` for handlers.
    pub output: Option<Binding>,
    /// Debounce and throttle.
    pub timing: Timing,
}
