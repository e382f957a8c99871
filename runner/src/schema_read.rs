//! Reading values through a schema: handles, defaults, unions, live and lazy views (RUN-225…227, RUN-300…307).
//!
//! The walk itself is `memory_wire::traverse`; here are its source (the open transaction), its identity, and what
//! happens with what it finds: reads are recorded, absent targets are asked for.

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::traverse::{
    self, Addr, Ctx, DeadEnd, Dep, DocKey, DocSource, MAX_OPEN_PLACES, Memo, Mode, Node, NodeIx, Schema,
    SchemaPool, Seen, SourceError, Tracker, Tree, hop_cap, narrow,
};
use memory_wire::{Array, JsString, Object, SpaceId, Value};
use smol_str::SmolStr;

use crate::address::{Address, VALUE};
use crate::error::RunnerError;
use crate::link::{Link, Stamps, is_link};
use crate::link_resolution::{LastNode, constrains, resolve};
use crate::replica::Selector;
use crate::transaction::{ReadMeta, RunTx, tree};

thread_local! {
    /// Interned schemas and cached narrowings: pure functions, so one pool serves every read of the thread.
    static POOL: RefCell<SchemaPool> = RefCell::new(SchemaPool::new());
}

fn with_pool<R>(f: impl FnOnce(&mut SchemaPool) -> R) -> R {
    POOL.with_borrow_mut(f)
}

// --- schemas along paths -----------------------------------------------------------------------------------------

/// The schema one segment below (TRV-701).
pub(crate) fn narrow_step(schema: &Value, segment: &str) -> Value {
    with_pool(|pool| {
        let schema = pool.intern(schema);
        narrow(pool, &schema, &[JsString::from(segment)]).value().clone()
    })
}

/// The schema at a path below.
pub(crate) fn narrow_path(schema: &Value, path: &[SmolStr]) -> Value {
    path.iter()
        .fold(schema.clone(), |schema, segment| narrow_step(&schema, segment))
}

/// The link one segment below: child schema, and the cap of the slot walked past (RUN-213).
pub fn child_link(link: &Link, segment: &str) -> Link {
    let mut child = link.clone();
    if let Some(schema) = &link.schema {
        let cap = with_pool(|pool| {
            let schema = pool.intern(schema);
            hop_cap(pool, &schema)
        });
        if let Some(traverse::ScopeCap::At(scope)) = cap {
            child.stamps.scope_caps.push((link.path.len(), scope));
        }
        child.schema = Some(narrow_step(schema, segment));
    }
    child.path.push(SmolStr::new(segment));
    child.redirect = false;
    child.stamps.pending_hop_doc = false;
    child
}

/// What an inline link holds at its path; absent is `undefined`.
pub fn inline_value(link: &Link) -> Result<Value, RunnerError> {
    let root = link.id.inline_value().map_err(|e| RunnerError::InvalidValue {
        operation: "read inline document",
        reason: e.to_string(),
    })?;
    Ok(tree::get(&root, &link.path).unwrap_or(Value::Undefined))
}

// --- the transaction as a source ----------------------------------------------------------------------------------

/// RUN-300.
struct TxSource<'a> {
    tx: &'a RunTx,
}

impl DocSource for TxSource<'_> {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        let scope = key.instance.scope_key.scope();
        let address = Address::document(key.space.clone(), key.instance.id.clone(), scope);
        // The walk notes what it depended on by itself.
        self.tx
            .peek_document(&address)
            .map_err(|e| Box::new(PlainError(e.to_string())) as SourceError)
    }

    fn note(&mut self, at: &Addr, how: Dep) {
        let meta = match how {
            Dep::Shallow => ReadMeta::SHALLOW,
            Dep::Deep => ReadMeta::RECURSIVE,
            Dep::ShallowNoConflict => ReadMeta {
                exclude_from_conflict: true,
                ..ReadMeta::SHALLOW
            },
            Dep::DeepNoConflict => ReadMeta {
                exclude_from_conflict: true,
                ..ReadMeta::RECURSIVE
            },
        };
        self.tx.note_read(&address_of(at), meta);
    }

    /// RUN-307: absence is asked for, at the place and through the schema the walk was on its way with.
    fn missing(&mut self, link: &traverse::Link, _from: &SpaceId) {
        let address = address_of(&link.at);
        let selector = match &link.schema {
            Some(schema) => Selector::new(address.path.clone(), Some(schema.value().clone())),
            None => Selector::rejecting(),
        };
        self.tx
            .storage()
            .kick_through(&address, selector, self.tx.scope_identity().as_ref());
    }

    fn dead_end(&mut self, at: &Addr, why: &DeadEnd) {
        tracing::debug!(id = %at.id, ?why, "stored link selects nothing");
    }
}

/// A text that crosses the walk as a `Send` error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PlainError(String);

fn address_of(at: &Addr) -> Address {
    Address {
        space: at.space.clone(),
        id: at.id.clone(),
        scope: at.scope,
        scope_key: None,
        path: at.path.iter().map(segment).collect(),
    }
}

fn segment(text: &JsString) -> SmolStr {
    match text.as_str() {
        Some(text) => SmolStr::new(text),
        None => SmolStr::new(text.to_string_lossy()),
    }
}

/// A walk's link in the runner's form: value-relative, taken out of data.
fn link_of(at: &Addr, schema: Option<&Schema>) -> Link {
    let address = address_of(at);
    let path = match address.path.split_first() {
        Some((first, rest)) if *first == VALUE => rest.to_vec(),
        Some(_) | None => address.path.clone(),
    };
    Link {
        space: address.space,
        id: address.id,
        scope: address.scope,
        path,
        schema: schema.map(|s| s.value().clone()),
        redirect: false,
        stamps: Stamps {
            via_link_hop: true,
            ..Stamps::default()
        },
    }
}

fn addr_of(address: &Address) -> Addr {
    Addr {
        space: address.space.clone(),
        id: address.id.clone(),
        scope: address.scope,
        path: address.path.iter().map(|s| JsString::from(s.as_str())).collect(),
    }
}

// --- views --------------------------------------------------------------------------------------------------------

/// A value as a schema selects it. Cheap to clone; parts without a schema are read when they are opened.
#[derive(Clone)]
pub struct View {
    tx: RunTx,
    part: Part,
}

#[derive(Clone)]
enum Part {
    /// A part of a selected value.
    Node(Rc<Tree>, NodeIx),
    /// A place without schema, links followed as they are met (TRV-1211).
    Live(Link),
    Undefined,
}

/// A reference given out instead of a value (RUN-225).
#[derive(Clone, Debug)]
pub struct CellHandle {
    /// `cell`, `stream`, `opaque`, `comparable`, `readonly`, `writeonly` or `sqlite`.
    pub kind: SmolStr,
    /// Where it leads, with the lens it carries.
    pub link: Link,
}

/// What a view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// Nothing is there, or the schema selects nothing.
    Undefined,
    /// A scalar or a special value.
    Leaf,
    /// An object.
    Object,
    /// An array.
    Array,
    /// A handle.
    Handle,
    /// A reference that may not be looked into.
    Opaque,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({:?})", self.kind())
    }
}

impl View {
    fn undefined(tx: &RunTx) -> View {
        View {
            tx: tx.clone(),
            part: Part::Undefined,
        }
    }

    fn live(tx: &RunTx, link: Link) -> View {
        View {
            tx: tx.clone(),
            part: Part::Live(link),
        }
    }

    fn part(&self, tree: &Rc<Tree>, ix: NodeIx) -> View {
        match tree.node(ix) {
            Node::Live(at) => View::live(&self.tx, link_of(at, None)),
            Node::Leaf(Value::Undefined) => View::undefined(&self.tx),
            Node::Leaf(_) | Node::Object { .. } | Node::Array { .. } | Node::Handle(_) | Node::Opaque(_) => {
                View {
                    tx: self.tx.clone(),
                    part: Part::Node(Rc::clone(tree), ix),
                }
            }
        }
    }

    /// What it is. A live view is looked at now.
    pub fn kind(&self) -> ViewKind {
        match &self.part {
            Part::Undefined => ViewKind::Undefined,
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Leaf(_) => ViewKind::Leaf,
                Node::Object { .. } => ViewKind::Object,
                Node::Array { .. } => ViewKind::Array,
                Node::Handle(_) => ViewKind::Handle,
                Node::Opaque(_) => ViewKind::Opaque,
                Node::Live(_) => ViewKind::Undefined,
            },
            Part::Live(link) => match self.live_value(link) {
                Ok((_, Value::Object(_))) => ViewKind::Object,
                Ok((_, Value::Array(_))) => ViewKind::Array,
                Ok((_, Value::Undefined)) | Err(_) => ViewKind::Undefined,
                Ok(_) => ViewKind::Leaf,
            },
        }
    }

    /// True when nothing is selected.
    pub fn is_undefined(&self) -> bool {
        self.kind() == ViewKind::Undefined
    }

    /// The handle, if it is one.
    pub fn as_handle(&self) -> Option<CellHandle> {
        match &self.part {
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Handle(handle) => Some(CellHandle {
                    kind: segment(&handle.kind),
                    link: link_of(&handle.link.at, handle.link.schema.as_ref()),
                }),
                Node::Leaf(_)
                | Node::Object { .. }
                | Node::Array { .. }
                | Node::Opaque(_)
                | Node::Live(_) => None,
            },
            Part::Live(_) | Part::Undefined => None,
        }
    }

    /// The place a container or reference stands for when it is written back (TRV-1220).
    pub fn position(&self) -> Option<Link> {
        match &self.part {
            Part::Live(link) => Some(link.clone()),
            Part::Undefined => None,
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Object { at, .. } | Node::Array { at, .. } | Node::Opaque(at) | Node::Live(at) => {
                    Some(link_of(at, None))
                }
                Node::Handle(handle) => Some(link_of(&handle.link.at, handle.link.schema.as_ref())),
                Node::Leaf(_) => None,
            },
        }
    }

    /// A member of an object; `None` when it is absent or this is no object.
    pub fn get(&self, key: &str) -> Option<View> {
        match &self.part {
            Part::Undefined => None,
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => members
                    .iter()
                    .find(|(name, _)| *name == key)
                    .map(|(_, ix)| self.part(tree, *ix)),
                Node::Leaf(_) | Node::Array { .. } | Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => {
                    None
                }
            },
            Part::Live(link) => self.live_child(link, key),
        }
    }

    /// An element of an array; `None` for holes and past the end.
    pub fn index(&self, index: usize) -> Option<View> {
        match &self.part {
            Part::Undefined => None,
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Array { elements, .. } => elements
                    .get(index)
                    .copied()
                    .flatten()
                    .map(|ix| self.part(tree, ix)),
                Node::Leaf(_) | Node::Object { .. } | Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => {
                    None
                }
            },
            Part::Live(link) => self.live_child(link, &index.to_string()),
        }
    }

    /// Number of members or elements; 0 for everything else.
    pub fn len(&self) -> usize {
        match &self.part {
            Part::Undefined => 0,
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => members.len(),
                Node::Array { elements, .. } => elements.len(),
                Node::Leaf(_) | Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => 0,
            },
            Part::Live(link) => match self.live_value(link) {
                Ok((_, Value::Object(object))) => object.len(),
                Ok((_, Value::Array(array))) => array.len(),
                Ok(_) | Err(_) => 0,
            },
        }
    }

    /// True when there are no members or elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of an object's members.
    pub fn keys(&self) -> Vec<SmolStr> {
        match &self.part {
            Part::Undefined => Vec::new(),
            Part::Node(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => members.iter().map(|(name, _)| segment(name)).collect(),
                Node::Leaf(_) | Node::Array { .. } | Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => {
                    Vec::new()
                }
            },
            Part::Live(link) => match self.live_value(link) {
                Ok((_, Value::Object(object))) => object.iter().map(|(name, _)| segment(name)).collect(),
                Ok(_) | Err(_) => Vec::new(),
            },
        }
    }

    /// The plain value: handles and references become links, a container met inside itself a link to its place.
    pub fn to_value(&self) -> Value {
        self.plain(&mut Vec::new())
    }

    fn plain(&self, open: &mut Vec<NodeIx>) -> Value {
        match &self.part {
            Part::Undefined => Value::Undefined,
            Part::Live(link) => self.live_plain(link, &mut Vec::new()),
            Part::Node(tree, ix) => {
                if open.contains(ix) {
                    return self.position().map_or(Value::Undefined, |at| at.to_value(None));
                }
                open.push(*ix);
                let value = match tree.node(*ix) {
                    Node::Leaf(value) => value.clone(),
                    Node::Object { members, .. } => {
                        let members = members
                            .iter()
                            .map(|(k, ix)| (k.clone(), self.part(tree, *ix).plain(open)));
                        members.collect::<Object>().into()
                    }
                    Node::Array { elements, .. } => self.plain_elements(tree, elements, open),
                    Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => {
                        self.position().map_or(Value::Undefined, |at| at.to_value(None))
                    }
                };
                open.pop();
                value
            }
        }
    }

    fn plain_elements(&self, tree: &Rc<Tree>, elements: &[Option<NodeIx>], open: &mut Vec<NodeIx>) -> Value {
        let slots = elements.iter().map(|element| match element {
            Some(ix) => memory_wire::value::Slot::Value(self.part(tree, *ix).plain(open)),
            None => memory_wire::value::Slot::Holes(1),
        });
        Value::Array(Array::from_slots(slots.collect()).unwrap_or_default())
    }

    // --- live parts -----------------------------------------------------------------------------------------------

    /// The end of the links at `link` and the value there.
    fn live_value(&self, link: &Link) -> Result<(Link, Value), RunnerError> {
        let end = resolve(&self.tx, link, LastNode::Value)?.link;
        let value = read_shape(&self.tx, &end)?;
        Ok((end, value))
    }

    fn live_child(&self, link: &Link, segment: &str) -> Option<View> {
        let (end, value) = self.live_value(link).ok()?;
        tree::child(&value, segment)?;
        let mut child = end;
        child.path.push(SmolStr::new(segment));
        // Children name the end of link chains.
        let (at, value) = self.live_value(&child).ok()?;
        (!value.is_undefined()).then(|| View::live(&self.tx, at))
    }

    fn live_plain(&self, link: &Link, open: &mut Vec<Link>) -> Value {
        let Ok(end) = resolve(&self.tx, link, LastNode::Value).map(|r| r.link) else {
            return Value::Undefined;
        };
        if open.iter().any(|above| above.same_place(&end)) {
            return end.to_value(None);
        }
        let value = if end.is_inline() {
            inline_value(&end).unwrap_or(Value::Undefined)
        } else {
            self.tx.read_value(&end.address()).unwrap_or(Value::Undefined)
        };
        open.push(end.clone());
        let plain = self.dereferenced(&value, &end, open);
        open.pop();
        plain
    }

    fn dereferenced(&self, value: &Value, at: &Link, open: &mut Vec<Link>) -> Value {
        if is_link(value) {
            return self.live_plain(at, open);
        }
        let below = |segment: &str| {
            let mut child = at.clone();
            child.path.push(SmolStr::new(segment));
            child
        };
        match value {
            Value::Object(object) => {
                let members = object.iter().map(|(key, member)| {
                    let child = below(&segment(key));
                    (key.clone(), self.dereferenced(member, &child, open))
                });
                members.collect::<Object>().into()
            }
            Value::Array(array) if array.as_dense().is_some() => {
                let elements = array
                    .elements()
                    .map(|(i, v)| self.dereferenced(v, &below(&i.to_string()), open));
                elements.collect::<Array>().into()
            }
            leaf => leaf.clone(),
        }
    }
}

fn read_shape(tx: &RunTx, at: &Link) -> Result<Value, RunnerError> {
    if at.is_inline() {
        return inline_value(at);
    }
    Ok(tx.read(&at.address(), ReadMeta::SHALLOW)?.or_undefined())
}

// --- reading ------------------------------------------------------------------------------------------------------

/// TRV-1201: the value `link` selects. In lazily reading transactions, a place behind a hop that is not here yet
/// and has no default is refused instead of read as absent (RUN-216).
pub fn read(tx: &RunTx, link: &Link) -> Result<View, RunnerError> {
    ask_for(tx, link);
    refuse_unresolved(tx, link)?;
    let identity = tx.effective_identity();
    let at = addr_of(&link.address());
    let schema = link.schema.as_ref().map(|s| with_pool(|pool| pool.intern(s)));
    let (mut tracker, mut memo, mut seen, mut build) =
        (Tracker::new(), Memo::new(), Seen::new(), Tree::new());
    let selected = with_pool(|pool| {
        let mut ctx = Ctx {
            mode: Mode::Read,
            identity: &identity,
            tracker: &mut tracker,
            memo: &mut memo,
            schemas: pool,
            seen: &mut seen,
            max_open: MAX_OPEN_PLACES,
            skip_walked: false,
        };
        select(
            &mut TxSource { tx },
            &mut build,
            &mut ctx,
            &traverse::Link { at, schema },
        )
    })
    .map_err(|e| RunnerError::Traverse(e.to_string()))?;
    let tree = Rc::new(build);
    Ok(match selected {
        Ok(ix) => View::undefined(tx).part(&tree, ix),
        Err(_) => View::undefined(tx),
    })
}

/// The reader's own document is asked for once, through its lens.
fn ask_for(tx: &RunTx, link: &Link) {
    let identity = tx.scope_identity();
    if link.is_inline() {
        return;
    }
    tx.storage()
        .kick_through(&link.address(), Selector::of_link(link), identity.as_ref());
}

/// RUN-216.
fn refuse_unresolved(tx: &RunTx, link: &Link) -> Result<(), RunnerError> {
    if !tx.lazy_reads() || !link.schema.as_ref().is_some_and(constrains) {
        return Ok(());
    }
    let resolved = resolve(tx, link, LastNode::Value)?.link;
    let has_default = |schema: &Option<Value>| schema.as_ref().is_some_and(|s| s.member("default").is_some());
    if resolved.stamps.pending_hop_doc && !has_default(&link.schema) && !has_default(&resolved.schema) {
        return Err(RunnerError::UnresolvedInput {
            at: format!("{}/{}", resolved.id, resolved.path.join("/")),
        });
    }
    Ok(())
}

/// RUN-227: a view that reads each touched path when it is touched, and registers exactly that read.
#[derive(Clone, Debug)]
pub struct LazyView {
    tx: RunTx,
    link: Link,
}

impl LazyView {
    /// Enters at `link`; fails once its transaction has ended (RUN-220).
    pub fn enter(tx: &RunTx, link: &Link) -> Result<LazyView, RunnerError> {
        Ok(LazyView {
            tx: tx.clone(),
            link: link.clone(),
        })
    }

    /// The place and lens.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// One step down; nothing is read yet.
    pub fn key(&self, segment: &str) -> LazyView {
        LazyView {
            tx: self.tx.clone(),
            link: child_link(&self.link, segment),
        }
    }

    /// The value here. A required property that cannot be produced is the run's refusal (RUN-216).
    pub fn get(&self) -> Result<View, RunnerError> {
        if !self.tx.is_open() {
            return Err(RunnerError::TransactionClosed {
                tx: self.tx.id().to_string(),
                state: "finished",
                action: "read of an argument view",
            });
        }
        read(&self.tx, &self.link)
    }

    /// The value under a property that the schema here requires; `SchemaMismatch` when it cannot be produced.
    pub fn require(&self, segment: &str) -> Result<View, RunnerError> {
        let view = self.key(segment).get()?;
        let required = self
            .link
            .schema
            .as_ref()
            .and_then(|s| s.member("required"))
            .and_then(Value::as_array);
        let named = required.is_some_and(|r| r.elements().any(|(_, name)| name.as_str() == Some(segment)));
        if named && view.is_undefined() {
            return Err(RunnerError::SchemaMismatch {
                at: format!("{}/{}/{segment}", self.link.id, self.link.path.join("/")),
                reason: "a required property cannot be produced".into(),
            });
        }
        Ok(view)
    }

    /// Number of members or elements, read by shape alone.
    pub fn len(&self) -> Result<usize, RunnerError> {
        let end = resolve(&self.tx, &self.link, LastNode::Value)?.link;
        Ok(match read_shape(&self.tx, &end)? {
            Value::Object(object) => object.len(),
            Value::Array(array) => array.len(),
            _ => 0,
        })
    }

    /// True when there are no members or elements.
    pub fn is_empty(&self) -> Result<bool, RunnerError> {
        Ok(self.len()? == 0)
    }
}

fn select(
    _source: &mut TxSource<'_>,
    build: &mut Tree,
    _ctx: &mut Ctx<'_, NodeIx>,
    link: &traverse::Link,
) -> Result<traverse::Outcome<NodeIx>, traverse::TraverseError> {
    use memory_wire::traverse::Build;
    Ok(Ok(build.live(link.at.clone())))
}
