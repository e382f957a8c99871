//! The builder that patterns are written with.

use std::rc::Rc;

use memory_wire::{Scope, Value, value};
use smol_str::SmolStr;

use crate::address::Path;
use crate::builtins::Builtin;
use crate::error::RunnerError;
use crate::pattern::body::{ArgView, RunCx};
use crate::pattern::graph::{
    Binding, BindingRoot, Internal, InternalKind, ModuleRef, NativeCode, Node, PatternGraph, Template,
};
use crate::pattern::identity::PatternIdentity;
use crate::scheduler::Timing;

/// A place of the piece under construction: a state, a stream, a derivation's output, or a path below one.
#[derive(Clone, Debug)]
pub struct Place(Binding);

impl Place {
    /// The place below `segment`.
    pub fn key(&self, segment: impl AsRef<str>) -> Place {
        let schema = self
            .0
            .schema
            .as_ref()
            .and_then(|s| s.member("properties"))
            .and_then(|p| p.member(segment.as_ref()));
        let mut path = self.0.path.clone();
        path.push(SmolStr::new(segment.as_ref()));
        Place(Binding {
            root: self.0.root.clone(),
            path,
            schema: schema.cloned(),
        })
    }

    /// The binding.
    pub fn binding(&self) -> &Binding {
        &self.0
    }
}

impl From<Place> for Template {
    fn from(place: Place) -> Template {
        Template::Binding(place.0)
    }
}

impl From<&Place> for Template {
    fn from(place: &Place) -> Template {
        Template::Binding(place.0.clone())
    }
}

impl From<Value> for Template {
    fn from(value: Value) -> Template {
        Template::Literal(value)
    }
}

/// An object template, for inputs and results: `fields([("a", a.into()), …])`.
pub fn fields<const N: usize>(fields: [(&str, Template); N]) -> Template {
    Template::object(fields)
}

/// Builds a [`PatternGraph`].
#[derive(Debug)]
pub struct GraphBuilder {
    implementation: SmolStr,
    graph: PatternGraph,
}

impl GraphBuilder {
    /// A graph for the native pattern `identity`, whose argument is read through `argument_schema`.
    pub fn new(identity: &PatternIdentity, argument_schema: Value) -> GraphBuilder {
        GraphBuilder {
            implementation: identity.implementation.clone(),
            graph: PatternGraph {
                argument_schema,
                result_schema: Value::Bool(true),
                result: Template::Object(Vec::new()),
                nodes: Vec::new(),
                internals: Vec::new(),
                default_scope: Scope::Space,
            },
        }
    }

    /// A place in the argument.
    pub fn argument(&self) -> Place {
        let schema = Some(self.graph.argument_schema.clone());
        Place(Binding {
            root: BindingRoot::Argument,
            path: Path::new(),
            schema,
        })
    }

    /// Shared state: one value for everybody.
    pub fn state(&mut self, name: &str, schema: Value) -> Place {
        self.scoped_state(name, Scope::Space, schema)
    }

    /// State with one value per user or per session. Its default is the `default` of `schema`.
    pub fn scoped_state(&mut self, name: &str, scope: Scope, schema: Value) -> Place {
        let default = match scope {
            Scope::Space => schema.member("default").cloned(),
            Scope::User | Scope::Session => None,
        };
        self.internal(name, InternalKind::State, scope, schema, default)
    }

    /// A derivation over `inputs`. Its output follows the scope of what it reads.
    pub fn derive(
        &mut self,
        name: &str,
        inputs: Template,
        schema: Value,
        body: impl Fn(&RunCx, &ArgView) -> Result<Value, RunnerError> + 'static,
    ) -> Place {
        let output = self.internal(name, InternalKind::Computed, Scope::Space, schema, None);
        let argument_schema = schema_of(&inputs);
        self.graph.nodes.push(Node {
            module: self.native(name, NativeCode::Derivation(Rc::new(body))),
            inputs,
            argument_schema,
            output: Some(output.0.clone()),
            timing: Timing::default(),
        });
        output
    }

    /// A built-in over `inputs`.
    pub fn builtin(&mut self, name: &str, builtin: Builtin, inputs: Template, schema: Value) -> Place {
        let output = self.internal(name, InternalKind::Computed, Scope::Space, schema, None);
        let argument_schema = schema_of(&inputs);
        self.graph.nodes.push(Node {
            module: ModuleRef::Builtin(builtin),
            inputs,
            argument_schema,
            output: Some(output.0.clone()),
            timing: Timing::default(),
        });
        output
    }

    /// A handler over `state`; answers its stream. Events are read through `event_schema`.
    pub fn handler(
        &mut self,
        name: &str,
        state: Template,
        event_schema: Value,
        body: impl Fn(&RunCx, &ArgView, &Value) -> Result<(), RunnerError> + 'static,
    ) -> Place {
        let stream = self.internal(
            name,
            InternalKind::Stream,
            Scope::Space,
            value!({ "asCell": ["stream"] }),
            None,
        );
        let mut inputs = match state {
            Template::Object(fields) => fields,
            other => vec![(SmolStr::new_static("$ctx"), other)],
        };
        inputs.push((SmolStr::new_static("$event"), Template::from(&stream)));
        self.graph.nodes.push(Node {
            module: self.native(name, NativeCode::Handler(Rc::new(body))),
            inputs: Template::Object(inputs),
            argument_schema: value!({ "type": "object", "properties": { "$event": event_schema } }),
            output: None,
            timing: Timing::default(),
        });
        stream
    }

    /// Gates of the node added last.
    pub fn timing(&mut self, timing: Timing) -> &mut GraphBuilder {
        if let Some(node) = self.graph.nodes.last_mut() {
            node.timing = timing;
        }
        self
    }

    /// Requires these inputs of the node added last: while one is absent the body is not called and the output
    /// is `undefined`.
    pub fn require(&mut self, names: &[&str]) -> &mut GraphBuilder {
        if let Some(Value::Object(schema)) = self.graph.nodes.last_mut().map(|node| &mut node.argument_schema)
        {
            schema.insert(
                "required",
                names.iter().map(|name| Value::from(*name)).collect::<Vec<_>>(),
            );
        }
        self
    }

    /// Finishes with the projected result.
    pub fn result(mut self, schema: Value, result: Template) -> PatternGraph {
        self.graph.result_schema = schema;
        self.graph.result = result;
        self.graph
    }

    fn internal(
        &mut self,
        name: &str,
        kind: InternalKind,
        scope: Scope,
        schema: Value,
        default: Option<Value>,
    ) -> Place {
        let partial_cause = Value::from(name);
        self.graph.internals.push(Internal {
            partial_cause: partial_cause.clone(),
            kind,
            schema: Some(schema.clone()),
            scope,
            default,
        });
        Place(Binding {
            root: BindingRoot::Internal(partial_cause),
            path: Path::new(),
            schema: Some(schema),
        })
    }

    fn native(&self, symbol: &str, code: NativeCode) -> ModuleRef {
        ModuleRef::Native {
            implementation: self.implementation.clone(),
            symbol: SmolStr::new(symbol),
            code,
        }
    }
}

/// The argument lens that follows from what is bound.
fn schema_of(inputs: &Template) -> Value {
    match inputs {
        Template::Object(fields) => {
            let properties: memory_wire::Object = fields
                .iter()
                .map(|(key, template)| (key.as_str(), schema_of(template)))
                .collect();
            value!({ "type": "object", "properties": (Value::Object(properties)) })
        }
        Template::Binding(binding) => binding.schema.clone().unwrap_or(Value::Bool(true)),
        Template::Literal(_) | Template::Array(_) => Value::Bool(true),
    }
}
