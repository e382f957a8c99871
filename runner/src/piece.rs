//! Pieces: the documents of an instantiated pattern, their setup, and the graph that runs over them
//! (RUN-810…813, RUN-824, RUN-828).
//!
//! [`crate::runtime::Runtime`] is the only caller.

use std::rc::Rc;

use memory_wire::{EntityId, Scope, Value, value};

use crate::address::{Address, path};
use crate::builtins::BuiltinSite;
use crate::entity_derivation::{argument_document, computed, internal_document};
use crate::error::RunnerError;
use crate::link::Link;
use crate::pattern::identity::{builtin_action_id, native_action_id};
use crate::pattern::{
    Bound, Derivation, EVENT_FIELD, InternalKind, ModuleRef, NativeCode, NativeHandler, Node, PatternGraph,
    PatternIdentity, PieceLinks,
};
use crate::promise::Promise;
use crate::runtime::Runtime;
use crate::scheduler::{HandlerId, NodeId, NodeKind, NodeSpec, Timing};
use crate::storage_manager::StorageManager;
use crate::transaction::{Read, ReadMeta, RunTx};

/// Root fields of a piece document (RUN-810).
pub mod field {
    /// Link to the argument document.
    pub const ARGUMENT: &str = "argument";
    /// `[{partialCause, kind?, link}]`.
    pub const INTERNAL: &str = "internal";
    /// Which pattern this is a piece of.
    pub const PATTERN_IDENTITY: &str = "patternIdentity";
    /// Which pattern its documents are set up for: the completion marker of setup.
    pub const PATTERN_SETUP_IDENTITY: &str = "patternSetupIdentity";
    /// Lens of the result.
    pub const SCHEMA: &str = "schema";
    /// From an argument or internal document to its piece; from a child piece to its parent.
    pub const RESULT: &str = "result";
}

/// How far [`find_piece`] follows `result` links (RUN-811).
const MAX_PARENTS: usize = 10;

/// What a stream's document holds (RUN-825).
pub fn stream_marker() -> Value {
    value!({ "$stream": true })
}

/// Where a document's piece is (RUN-811). Only a confirmed absence is terminal.
#[derive(Clone, Debug)]
pub enum PieceOf {
    /// The piece and its stored pattern identity.
    Found {
        /// Its root document.
        root: Link,
        /// Stored `patternIdentity`.
        identity: Value,
    },
    /// No document on the way names a pattern. `unloaded` = some were never answered by the store.
    Absent {
        /// Documents to load before this counts as confirmed.
        unloaded: Vec<Link>,
    },
    /// The `result` links form a cycle or a chain that is too long.
    Cyclic,
}

/// RUN-811: follows `result` links from any document of a piece.
pub fn find_piece(tx: &RunTx, document: &Link) -> Result<PieceOf, RunnerError> {
    let mut at = Link {
        path: Vec::new(),
        ..document.clone()
    };
    let mut seen: Vec<Link> = Vec::new();
    let mut unloaded = Vec::new();
    for _ in 0..=MAX_PARENTS {
        if seen.iter().any(|link| link.same_place(&at)) {
            return Ok(PieceOf::Cyclic);
        }
        seen.push(at.clone());
        let storage = tx.storage();
        if storage.should_pull(&at.space, &at.id, at.scope, tx.scope_identity().as_ref()) {
            unloaded.push(at.clone());
        }
        if let Some(identity) =
            meta(tx, &at, field::PATTERN_IDENTITY)?.filter(|stored| stored.as_object().is_some())
        {
            return Ok(PieceOf::Found { root: at, identity });
        }
        match meta(tx, &at, field::RESULT)?
            .as_ref()
            .and_then(|stored| Link::parse(stored, &at))
        {
            Some(parent) => {
                at = Link {
                    path: Vec::new(),
                    ..parent
                }
            }
            None => return Ok(PieceOf::Absent { unloaded }),
        }
    }
    Ok(PieceOf::Cyclic)
}

fn meta(tx: &RunTx, document: &Link, name: &str) -> Result<Option<Value>, RunnerError> {
    Ok(tx
        .read(&meta_address(document, name), ReadMeta::RECURSIVE)?
        .found())
}

fn meta_address(document: &Link, name: &str) -> Address {
    document.document_address().at(path([name]))
}

/// The documents a piece at `result` has by derivation (RUN-802).
pub fn derived_links(graph: &PatternGraph, result: &Link) -> PieceLinks {
    let place = |id: EntityId, scope: Scope| Link::to_document(result.space.clone(), id, scope);
    let internals = graph
        .internals
        .iter()
        .map(|internal| {
            let id = internal_document(&result.id, &internal.partial_cause);
            let id = match internal.kind {
                InternalKind::Computed => computed(&id),
                InternalKind::State | InternalKind::Stream => id,
            };
            (
                internal.partial_cause.clone(),
                place(id, internal.scope.max(result.scope)),
            )
        })
        .collect();
    PieceLinks {
        result: result.clone(),
        argument: place(argument_document(result), result.scope),
        internals,
    }
}

/// RUN-812: writes a piece's documents in `tx`. With an unchanged identity and no new argument it writes nothing.
pub fn setup(
    tx: &RunTx,
    identity: &PatternIdentity,
    graph: &PatternGraph,
    argument: Option<Value>,
    result: &Link,
) -> Result<PieceLinks, RunnerError> {
    let links = derived_links(graph, result);
    let done =
        meta(tx, result, field::PATTERN_SETUP_IDENTITY)?.is_some_and(|stored| identity.matches(&stored));
    if done && argument.is_none() {
        return Ok(links);
    }
    for (internal, (_, link)) in graph.internals.iter().zip(&links.internals) {
        // A narrower instance belongs to whoever first writes it; its default comes from the lens.
        if link.scope != result.scope || exists(tx, link)? {
            continue;
        }
        tx.write(
            &meta_address(link, field::RESULT),
            Some(result.to_value(Some(link))),
        )?;
        let seed = match internal.kind {
            InternalKind::Stream => Some(stream_marker()),
            InternalKind::State => internal.default.clone(),
            InternalKind::Computed => None,
        };
        if let Some(seed) = seed {
            tx.write(&link.address(), Some(seed))?;
        }
    }
    if argument.is_some() || !exists(tx, &links.argument)? {
        let merged = with_defaults(&graph.argument_schema, argument.unwrap_or(value!({})));
        tx.write(&links.argument.address(), Some(merged))?;
        tx.write(
            &meta_address(&links.argument, field::RESULT),
            Some(result.to_value(Some(&links.argument))),
        )?;
    }
    let described: Vec<Value> = graph
        .internals
        .iter()
        .zip(&links.internals)
        .map(|(internal, (cause, link))| {
            let mut entry = memory_wire::Object::new();
            entry.insert("partialCause", cause.clone());
            match internal.kind {
                InternalKind::Computed => entry.insert("kind", "computed"),
                InternalKind::Stream => entry.insert("kind", "stream"),
                InternalKind::State => None,
            };
            entry.insert("link", link.to_value(Some(result)));
            Value::Object(entry)
        })
        .collect();
    let argument_link = Link {
        redirect: true,
        ..links.argument.clone()
    };
    let projection = links.bind(&graph.result)?.to_value(result, true);
    for (name, stored) in [
        (field::INTERNAL, Value::from(described)),
        (field::ARGUMENT, argument_link.to_value(Some(result))),
        (field::PATTERN_IDENTITY, identity.to_value()),
        (field::SCHEMA, graph.result_schema.clone()),
    ] {
        tx.write(&meta_address(result, name), Some(stored))?;
    }
    tx.write(&result.address(), Some(projection))?;
    // Last: the completion marker.
    tx.write(
        &meta_address(result, field::PATTERN_SETUP_IDENTITY),
        Some(identity.to_value()),
    )?;
    Ok(links)
}

fn exists(tx: &RunTx, link: &Link) -> Result<bool, RunnerError> {
    Ok(matches!(
        tx.read(&link.document_address(), ReadMeta::SHALLOW)?,
        Read::Found(_)
    ))
}

/// Fills in the defaults that an argument's schema declares for absent properties.
fn with_defaults(schema: &Value, argument: Value) -> Value {
    let Value::Object(mut argument) = argument else {
        return argument;
    };
    if let Some(Value::Object(properties)) = schema.member("properties") {
        for (key, property) in properties.iter() {
            if let (None, Some(default)) = (argument.get_key(key), property.member("default")) {
                argument.insert(key.clone(), default.clone());
            }
        }
    }
    Value::Object(argument)
}

/// Loads a piece's documents; settles when every answer is here. User- and session-scoped ones belong to whoever
/// reads them and are loaded by the runs that do.
pub fn load_documents(storage: &StorageManager, links: &PieceLinks) -> Promise<()> {
    Promise::all(
        links
            .documents()
            .filter(|link| link.scope == Scope::Space)
            .map(|link| storage.sync_link(&bare(link), None)),
    )
}

/// The document itself, following nothing.
fn bare(link: &Link) -> Link {
    Link {
        path: Vec::new(),
        schema: Some(Value::Bool(false)),
        ..link.clone()
    }
}

/// A piece whose graph is registered.
#[derive(Debug)]
pub(crate) struct RunningPiece {
    pub(crate) result: Link,
    pub(crate) identity: PatternIdentity,
    nodes: Vec<NodeId>,
    handlers: Vec<HandlerId>,
}

impl RunningPiece {
    /// Drops the graph; never data (RUN-824).
    pub(crate) fn stop(self, runtime: &Runtime) {
        let scheduler = runtime.scheduler();
        self.nodes.into_iter().for_each(|id| scheduler.unregister(id));
        self.handlers
            .into_iter()
            .for_each(|id| scheduler.unregister_handler(id));
    }
}

/// Registers the graph of a piece. `ancestors` are the piece roots that instantiated it, for demand (RUN-828).
/// `loaded` holds first runs until the documents are here. On error nothing stays registered.
pub(crate) fn start(
    runtime: &Runtime,
    identity: &PatternIdentity,
    graph: &PatternGraph,
    links: &PieceLinks,
    ancestors: &[EntityId],
    loaded: &Promise<()>,
) -> Result<RunningPiece, RunnerError> {
    let mut demand_roots = vec![links.root_id().clone()];
    demand_roots.extend(ancestors.iter().cloned());
    let mut piece = RunningPiece {
        result: links.result.clone(),
        identity: identity.clone(),
        nodes: Vec::new(),
        handlers: Vec::new(),
    };
    for node in &graph.nodes {
        let registered = register(runtime, graph, links, node, &demand_roots, &mut piece);
        match registered {
            Ok(Some(id)) => runtime.scheduler().hold_first_run(id, loaded.clone()),
            Ok(None) => {}
            Err(error) => {
                piece.stop(runtime);
                return Err(error);
            }
        }
    }
    match watch_identity(runtime, identity, &links.result) {
        Ok(watch) => {
            piece.nodes.push(watch);
            Ok(piece)
        }
        Err(error) => {
            piece.stop(runtime);
            Err(error)
        }
    }
}

/// RUN-813: a write of `patternIdentity` is ordinary input; the piece is started anew as what it says now.
fn watch_identity(
    runtime: &Runtime,
    identity: &PatternIdentity,
    result: &Link,
) -> Result<NodeId, RunnerError> {
    let (swapped, identity, root) = (runtime.swap_request(), identity.clone(), result.clone());
    let action = move |tx: &RunTx| {
        match meta(tx, &root, field::PATTERN_IDENTITY)? {
            Some(stored) if stored.as_object().is_some() && !identity.matches(&stored) => swapped(&root),
            Some(_) | None => {}
        }
        Ok(())
    };
    runtime.scheduler().register(NodeSpec {
        action_id: "raw:patternIdentity".into(),
        kind: NodeKind::Effect,
        action: Rc::new(action),
        writes: Vec::new(),
        declared_reads: vec![meta_address(result, field::PATTERN_IDENTITY)],
        materializes: Vec::new(),
        demand_roots: vec![result.id.clone()],
        space: result.space.clone(),
        timing: Timing::default(),
    })
}

fn register(
    runtime: &Runtime,
    graph: &PatternGraph,
    links: &PieceLinks,
    node: &Node,
    demand_roots: &[EntityId],
    piece: &mut RunningPiece,
) -> Result<Option<NodeId>, RunnerError> {
    let inputs = links.bind(&node.inputs)?;
    let process = Some(&links.result);
    if inputs.field(EVENT_FIELD).is_some() {
        let stream = event_stream(graph, links, node)?;
        let ModuleRef::Native {
            implementation,
            symbol,
            code: NativeCode::Handler(body),
        } = &node.module
        else {
            return Err(setup_error("a node with $event must be a handler"));
        };
        let state = inputs.without(EVENT_FIELD);
        let action_id = native_action_id(
            implementation,
            symbol,
            process,
            &state.links(),
            std::slice::from_ref(&stream),
        );
        let handler = NativeHandler {
            host: runtime.cell_host(),
            action_id,
            demand_roots: demand_roots.to_vec(),
            body: Rc::clone(body),
            state: Rc::new(state),
            argument_schema: node.argument_schema.clone(),
            stream: stream.clone(),
        };
        piece
            .handlers
            .push(runtime.scheduler().register_handler(stream, Rc::new(handler)));
        return Ok(None);
    }
    let output = node
        .output
        .as_ref()
        .ok_or_else(|| setup_error("a derivation needs exactly one output"))?;
    let output = links.place(output)?;
    let reads = inputs.links();
    let writes = std::slice::from_ref(&output);
    let (action_id, declared_reads, action): (_, _, Rc<dyn crate::scheduler::Action>) = match &node.module {
        ModuleRef::Builtin(builtin) => {
            let read: Vec<Address> = builtin
                .read_inputs()
                .iter()
                .filter_map(|name| inputs.field(name))
                .flat_map(Bound::addresses)
                .collect();
            let site = BuiltinSite {
                host: runtime.cell_host(),
                inputs: Rc::new(inputs),
                piece: links.result.clone(),
                output: output.clone(),
            };
            (
                builtin_action_id(builtin.name(), process, &reads, writes),
                read,
                builtin.instantiate(site)?,
            )
        }
        ModuleRef::Native {
            implementation,
            symbol,
            code: NativeCode::Derivation(body),
        } => {
            let action_id = native_action_id(implementation, symbol, process, &reads, writes);
            let declared = inputs.addresses();
            let derivation = Derivation {
                host: runtime.cell_host(),
                action_id: action_id.clone(),
                body: Rc::clone(body),
                inputs: Rc::new(inputs),
                argument_schema: node.argument_schema.clone(),
                output: output.clone(),
                posture: runtime.posture(),
                errors: runtime.scheduler().error_observer(),
            };
            (action_id, declared, Rc::new(derivation))
        }
        ModuleRef::Native {
            code: NativeCode::Handler(_),
            ..
        } => {
            // Never a lift: a handler without its stream would run on every change (RUN-825).
            return Err(setup_error("a handler node is bound to no stream"));
        }
    };
    let id = runtime.scheduler().register(NodeSpec {
        action_id,
        kind: NodeKind::Computation,
        action,
        writes: vec![output.address()],
        declared_reads,
        materializes: Vec::new(),
        demand_roots: demand_roots.to_vec(),
        space: links.result.space.clone(),
        timing: node.timing,
    })?;
    piece.nodes.push(id);
    Ok(Some(id))
}

/// RUN-825: the stream behind `$event`; anything else there is a setup error.
fn event_stream(graph: &PatternGraph, links: &PieceLinks, node: &Node) -> Result<Link, RunnerError> {
    use crate::pattern::{BindingRoot, Template};
    let Some(Template::Binding(binding)) = node.inputs.field(EVENT_FIELD) else {
        return Err(setup_error("$event must be bound to a place"));
    };
    let is_stream = match &binding.root {
        BindingRoot::Internal(cause) => graph.internals.iter().any(|internal| {
            internal.kind == InternalKind::Stream
                && memory_wire::equality::value_equal(&internal.partial_cause, cause)
        }),
        BindingRoot::Argument | BindingRoot::Result => false,
    };
    if !is_stream {
        return Err(setup_error("$event is bound to a place that holds no stream"));
    }
    Ok(Link {
        schema: None,
        ..links.place(binding)?
    })
}

fn setup_error(reason: &str) -> RunnerError {
    RunnerError::InvalidValue {
        operation: "start piece",
        reason: reason.to_owned(),
    }
}
