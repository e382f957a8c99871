//! What a read hands out: eager views of selected values, and lazy views that read what they are asked for
//! (RUN-225, RUN-227, TRV-1211, TRV-1230).
//!
//! Made by [`crate::schema_read`]; used by pattern bodies, built-ins and embedders.

use std::rc::Rc;

use memory_wire::traverse::{self, LazyError, LazyRead, Node, NodeIx, Reading, Tree};
use memory_wire::value::Slot;
use memory_wire::{Array, JsString, Object, Value};
use smol_str::SmolStr;

use crate::error::RunnerError;
use crate::link::{Link, is_link};
use crate::link_resolution::{LastNode, resolve};
use crate::schema_read::inline_value;
use crate::transaction::{ReadMeta, RunTx, tree};
use crate::walk::{TxSource, link_of, segment};

/// A value as a schema selects it. Cheap to clone; parts without a schema are read when they are opened.
#[derive(Clone)]
pub struct View {
    tx: RunTx,
    part: Part,
}

#[derive(Clone)]
enum Part {
    Undefined,
    Leaf(Value),
    /// An object or array of a selected value.
    Container(Rc<Tree>, NodeIx),
    Handle(CellHandle),
    /// A reference that may not be looked into.
    Opaque(Link),
    /// A place without schema, links followed as they are met.
    Live(Link),
}

/// A reference given out instead of a value (RUN-225).
#[derive(Clone, Debug)]
pub struct CellHandle {
    /// `cell`, `stream`, `opaque`, `comparable`, `readonly`, `writeonly` or `sqlite`.
    pub kind: SmolStr,
    /// Where it leads, with the lens it carries.
    pub link: Link,
}

impl CellHandle {
    fn of(handle: &traverse::Handle) -> CellHandle {
        CellHandle {
            kind: segment(&handle.kind),
            link: link_of(&handle.link.at, handle.link.schema.as_ref()),
        }
    }
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
        match &self.part {
            Part::Undefined => f.write_str("View(undefined)"),
            Part::Leaf(value) => write!(f, "View({value:?})"),
            Part::Container(..) => f.write_str("View(container)"),
            Part::Handle(handle) => write!(f, "View({handle:?})"),
            Part::Opaque(link) => write!(f, "View(opaque {})", link.id),
            Part::Live(link) => write!(f, "View(live {})", link.id),
        }
    }
}

impl View {
    pub(crate) fn of(tx: &RunTx, reading: Reading) -> View {
        let tree = Rc::new(reading.tree);
        View {
            tx: tx.clone(),
            part: part_of(&tree, reading.root),
        }
    }

    fn with(&self, part: Part) -> View {
        View {
            tx: self.tx.clone(),
            part,
        }
    }

    /// What it is. A live place is looked at now.
    pub fn kind(&self) -> ViewKind {
        match &self.part {
            Part::Undefined => ViewKind::Undefined,
            Part::Leaf(_) => ViewKind::Leaf,
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Array { .. } => ViewKind::Array,
                _ => ViewKind::Object,
            },
            Part::Handle(_) => ViewKind::Handle,
            Part::Opaque(_) => ViewKind::Opaque,
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
            Part::Handle(handle) => Some(handle.clone()),
            Part::Undefined | Part::Leaf(_) | Part::Container(..) | Part::Opaque(_) | Part::Live(_) => None,
        }
    }

    /// The place a container or reference stands for when it is written back (TRV-1220).
    pub fn position(&self) -> Option<Link> {
        match &self.part {
            Part::Undefined | Part::Leaf(_) => None,
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Object { at, .. } | Node::Array { at, .. } => Some(link_of(at, None)),
                _ => None,
            },
            Part::Handle(handle) => Some(handle.link.clone()),
            Part::Opaque(link) | Part::Live(link) => Some(link.clone()),
        }
    }

    /// A member of an object; `None` when it is absent or this is no object.
    pub fn get(&self, key: &str) -> Option<View> {
        match &self.part {
            Part::Undefined | Part::Leaf(_) | Part::Handle(_) | Part::Opaque(_) => None,
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => {
                    let (_, ix) = members.iter().find(|(name, _)| *name == key)?;
                    Some(self.with(part_of(tree, *ix)))
                }
                _ => None,
            },
            Part::Live(link) => self.live_child(link, key),
        }
    }

    /// An element of an array; `None` for holes and past the end.
    pub fn index(&self, index: usize) -> Option<View> {
        match &self.part {
            Part::Undefined | Part::Leaf(_) | Part::Handle(_) | Part::Opaque(_) => None,
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Array { elements, .. } => {
                    let ix = elements.get(index).copied().flatten()?;
                    Some(self.with(part_of(tree, ix)))
                }
                _ => None,
            },
            Part::Live(link) => self.live_child(link, &index.to_string()),
        }
    }

    /// Number of members or elements; 0 for everything else.
    pub fn len(&self) -> usize {
        match &self.part {
            Part::Undefined | Part::Leaf(_) | Part::Handle(_) | Part::Opaque(_) => 0,
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => members.len(),
                Node::Array { elements, .. } => elements.len(),
                _ => 0,
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
            Part::Undefined | Part::Leaf(_) | Part::Handle(_) | Part::Opaque(_) => Vec::new(),
            Part::Container(tree, ix) => match tree.node(*ix) {
                Node::Object { members, .. } => members.iter().map(|(name, _)| segment(name)).collect(),
                _ => Vec::new(),
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
            Part::Leaf(value) => value.clone(),
            Part::Handle(handle) => handle.link.to_value(None),
            Part::Opaque(link) => link.to_value(None),
            Part::Live(link) => self.live_plain(link, &mut Vec::new()),
            Part::Container(_, ix) if open.contains(ix) => {
                self.position().map_or(Value::Undefined, |at| at.to_value(None))
            }
            Part::Container(tree, ix) => {
                open.push(*ix);
                let below = |ix: NodeIx, open: &mut Vec<NodeIx>| self.with(part_of(tree, ix)).plain(open);
                let value = match tree.node(*ix) {
                    Node::Object { members, .. } => members
                        .iter()
                        .map(|(k, ix)| (k.clone(), below(*ix, open)))
                        .collect::<Object>()
                        .into(),
                    Node::Array { elements, .. } => {
                        let slots = elements.iter().map(|element| match element {
                            Some(ix) => Slot::Value(below(*ix, open)),
                            None => Slot::Holes(1),
                        });
                        Value::Array(Array::from_slots(slots.collect()).unwrap_or_default())
                    }
                    Node::Leaf(_) | Node::Handle(_) | Node::Opaque(_) | Node::Live(_) => Value::Undefined,
                };
                open.pop();
                value
            }
        }
    }

    // --- live places -----------------------------------------------------------------------------------------------

    /// The end of the links at `link` and the shape of the value there.
    fn live_value(&self, link: &Link) -> Result<(Link, Value), RunnerError> {
        let end = resolve(&self.tx, link, LastNode::Value)?.link;
        let value = if end.is_inline() {
            inline_value(&end)?
        } else {
            self.tx.read(&end.address(), ReadMeta::SHALLOW)?.or_undefined()
        };
        Ok((end, value))
    }

    /// Children name the end of link chains.
    fn live_child(&self, link: &Link, segment: &str) -> Option<View> {
        let (mut child, value) = self.live_value(link).ok()?;
        tree::child(&value, segment)?;
        child.path.push(SmolStr::new(segment));
        let (at, value) = self.live_value(&child).ok()?;
        match value {
            Value::Undefined => None,
            Value::Object(_) | Value::Array(_) => Some(self.with(Part::Live(at))),
            leaf => Some(self.with(Part::Leaf(leaf))),
        }
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
            Value::Object(object) => object
                .iter()
                .map(|(key, member)| {
                    (
                        key.clone(),
                        self.dereferenced(member, &below(&segment(key)), open),
                    )
                })
                .collect::<Object>()
                .into(),
            Value::Array(array) if array.as_dense().is_some() => array
                .elements()
                .map(|(i, v)| self.dereferenced(v, &below(&i.to_string()), open))
                .collect::<Array>()
                .into(),
            leaf => leaf.clone(),
        }
    }
}

fn part_of(tree: &Rc<Tree>, ix: NodeIx) -> Part {
    match tree.node(ix) {
        Node::Leaf(Value::Undefined) => Part::Undefined,
        Node::Leaf(value) => Part::Leaf(value.clone()),
        Node::Object { .. } | Node::Array { .. } => Part::Container(Rc::clone(tree), ix),
        Node::Handle(handle) => Part::Handle(CellHandle::of(handle)),
        Node::Opaque(at) => Part::Opaque(link_of(at, None)),
        Node::Live(at) => Part::Live(link_of(at, None)),
    }
}

/// RUN-227: a view whose members are read when they are touched, against the container as it was when the view
/// was taken. It fails once its transaction has ended (RUN-220).
#[derive(Clone, Debug)]
pub struct LazyView {
    tx: RunTx,
    part: LazyPart,
}

#[derive(Clone, Debug)]
enum LazyPart {
    Members(traverse::LazyView),
    /// Looked into without further schema steps.
    Whole(View),
}

impl LazyView {
    pub(crate) fn of(tx: &RunTx, read: LazyRead) -> LazyView {
        let whole = |part| LazyPart::Whole(View { tx: tx.clone(), part });
        let part = match read {
            LazyRead::View(view) => LazyPart::Members(view),
            LazyRead::Leaf(Value::Undefined) => whole(Part::Undefined),
            LazyRead::Leaf(value) => whole(Part::Leaf(value)),
            LazyRead::Handle(handle) => whole(Part::Handle(CellHandle::of(&handle))),
            LazyRead::Opaque(at) => whole(Part::Opaque(link_of(&at, None))),
            LazyRead::Live(at) => whole(Part::Live(link_of(&at, None))),
            LazyRead::Default(reading) => LazyPart::Whole(View::of(tx, reading)),
        };
        LazyView { tx: tx.clone(), part }
    }

    fn whole(&self, view: View) -> LazyView {
        LazyView {
            tx: self.tx.clone(),
            part: LazyPart::Whole(view),
        }
    }

    /// Touches a member; `None` when there is none or the schema leaves it out. A required member that does not
    /// satisfy its schema is the run's refusal (RUN-216).
    pub fn get(&self, key: &str) -> Result<Option<LazyView>, RunnerError> {
        require_open(&self.tx)?;
        let view = match &self.part {
            LazyPart::Whole(view) => return Ok(view.get(key).map(|part| self.whole(part))),
            LazyPart::Members(view) => view,
        };
        let (identity, key) = (self.tx.effective_identity(), JsString::from(key));
        let mut source = TxSource::new(&self.tx);
        match self
            .tx
            .storage()
            .with_schemas(|pool| view.get(&mut source, pool, &identity, &key))
        {
            Ok(read) => Ok(read.map(|read| LazyView::of(&self.tx, read))),
            Err(LazyError::Traverse(error)) => Err(source.error(error, &link_of(view.position(), None))),
            Err(LazyError::UnresolvedInput { at }) => Err(RunnerError::UnresolvedInput { at }),
            Err(LazyError::Mismatch { at, expected, found }) => Err(RunnerError::SchemaMismatch {
                at,
                reason: format!("expected {expected}, found {found}"),
            }),
        }
    }

    /// Touches an element.
    pub fn index(&self, index: usize) -> Result<Option<LazyView>, RunnerError> {
        match &self.part {
            LazyPart::Whole(view) => {
                require_open(&self.tx)?;
                Ok(view.index(index).map(|part| self.whole(part)))
            }
            LazyPart::Members(_) => self.get(&index.to_string()),
        }
    }

    /// Names that may be touched.
    pub fn keys(&self) -> Vec<SmolStr> {
        match &self.part {
            LazyPart::Members(view) => self
                .tx
                .storage()
                .with_schemas(|pool| view.keys(pool))
                .iter()
                .map(segment)
                .collect(),
            LazyPart::Whole(view) => view.keys(),
        }
    }

    /// Number of members or elements.
    pub fn len(&self) -> usize {
        match &self.part {
            LazyPart::Members(view) => view.len(),
            LazyPart::Whole(view) => view.len(),
        }
    }

    /// True when there are no members or elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True when nothing is selected here.
    pub fn is_undefined(&self) -> bool {
        match &self.part {
            LazyPart::Members(_) => false,
            LazyPart::Whole(view) => view.is_undefined(),
        }
    }

    /// The handle, if it is one.
    pub fn as_handle(&self) -> Option<CellHandle> {
        match &self.part {
            LazyPart::Members(_) => None,
            LazyPart::Whole(view) => view.as_handle(),
        }
    }

    /// The value with everything below touched; handles and references become links.
    pub fn to_value(&self) -> Result<Value, RunnerError> {
        require_open(&self.tx)?;
        let view = match &self.part {
            LazyPart::Whole(view) => return Ok(view.to_value()),
            LazyPart::Members(view) => view,
        };
        if view.is_array() {
            let elements = (0..view.len()).map(|i| match self.index(i)? {
                Some(element) => Ok(Slot::Value(element.to_value()?)),
                None => Ok(Slot::Holes(1)),
            });
            let slots = elements.collect::<Result<Vec<_>, RunnerError>>()?;
            return Ok(Value::Array(Array::from_slots(slots).unwrap_or_default()));
        }
        let mut object = Object::new();
        for key in self.keys() {
            if let Some(member) = self.get(&key)? {
                object.insert(key.as_str(), member.to_value()?);
            }
        }
        Ok(Value::Object(object))
    }
}

pub(crate) fn require_open(tx: &RunTx) -> Result<(), RunnerError> {
    if tx.is_open() {
        return Ok(());
    }
    Err(RunnerError::TransactionClosed {
        tx: tx.id().to_string(),
        state: "finished",
        action: "read of an argument view",
    })
}
