//! What a walk builds (TRV §12): nothing in a query, a tree of selected values in a read. The tree is an arena,
//! because links may lead back into it (TRV-511): a node can be its own descendant.

use indexmap::IndexMap;

use super::schema::Schema;
use super::source::{Addr, Link};
use crate::js_string::JsString;
use crate::value::Value;

/// Receives the parts of a selected value, containers before their members.
pub trait Build {
    /// A reference to something built; cloning it does not copy what it refers to.
    type Out: Clone;

    /// False when nothing is built: the walk then skips all work whose only purpose is the value.
    const BUILDS: bool;

    /// A value as it is: a scalar, `null`, `undefined`, a primitive special value, or a part of a default.
    fn leaf(&mut self, value: &Value) -> Self::Out;
    /// An empty object that stands for `at`.
    fn object(&mut self, at: Addr) -> Self::Out;
    /// Adds a member to an object. The walk adds each name once.
    fn insert(&mut self, object: &Self::Out, key: &JsString, member: Self::Out);
    /// An empty array that stands for `at`.
    fn array(&mut self, at: Addr) -> Self::Out;
    /// Appends an element; `None` is a hole.
    fn push(&mut self, array: &Self::Out, element: Option<Self::Out>);
    /// A handle.
    fn handle(&mut self, handle: Handle) -> Self::Out;
    /// A reference that may not be looked into (`type: "unknown"`).
    fn opaque(&mut self, at: Addr) -> Self::Out;
    /// A view without schema, resolved by whoever opens it (TRV-1211).
    fn live(&mut self, at: Addr) -> Self::Out;
    /// What kind of thing `out` is, for merging.
    fn shape(&self, out: &Self::Out) -> Shape<Self::Out>;
}

/// The view of a built value that merging needs (TRV-1213).
#[derive(Clone, Debug)]
pub enum Shape<T> {
    /// A handle.
    Handle(Handle),
    /// An object with its members.
    Object(Addr, Vec<(JsString, T)>),
    /// A reference that may not be looked into.
    Opaque,
    /// Anything else.
    Other,
}

/// A reference to a place, given out instead of its value (TRV-1212).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle {
    /// `cell`, `stream`, `opaque`, `comparable`, `readonly`, `writeonly` or `sqlite`; kept as written.
    pub kind: JsString,
    /// Where it leads. A handle that the scope cap blocks leads to an undefined `data:` document (TRV-1003).
    pub link: Link,
}

/// Builds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Build for Nothing {
    type Out = ();
    const BUILDS: bool = false;

    fn leaf(&mut self, _: &Value) {}
    fn object(&mut self, _: Addr) {}
    fn insert(&mut self, (): &(), _: &JsString, (): ()) {}
    fn array(&mut self, _: Addr) {}
    fn push(&mut self, (): &(), _: Option<()>) {}
    fn handle(&mut self, _: Handle) {}
    fn opaque(&mut self, _: Addr) {}
    fn live(&mut self, _: Addr) {}
    fn shape(&self, (): &()) -> Shape<()> {
        Shape::Other
    }
}

/// A node of a [`Tree`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeIx(u32);

/// One part of a selected value.
#[derive(Clone, Debug)]
pub enum Node {
    /// A value as it is: a scalar, `null`, `undefined`, a primitive special value, or a part of a default.
    Leaf(Value),
    /// An object and the place it stands for (TRV-1220).
    Object {
        /// What the object names when it is written back.
        at: Addr,
        /// Members in the order they were built; each name once.
        members: Vec<(JsString, NodeIx)>,
    },
    /// An array and the place it stands for.
    Array {
        /// What the array names when it is written back.
        at: Addr,
        /// Elements; `None` is a hole.
        elements: Vec<Option<NodeIx>>,
    },
    /// A handle.
    Handle(Handle),
    /// A reference that may not be looked into.
    Opaque(Addr),
    /// A view without schema that starts at this place.
    Live(Addr),
}

/// A selected value with the places its containers stand for.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// The node behind an index that this tree gave out.
    pub fn node(&self, ix: NodeIx) -> &Node {
        &self.nodes[ix.0 as usize]
    }

    /// All parts, those that a union or a handle left out of the result included.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> + '_ {
        self.nodes.iter()
    }

    fn add(&mut self, node: Node) -> NodeIx {
        let ix = NodeIx(u32::try_from(self.nodes.len()).expect("a read is bounded far below 2^32 nodes"));
        self.nodes.push(node);
        ix
    }
}

impl Build for Tree {
    type Out = NodeIx;
    const BUILDS: bool = true;

    fn leaf(&mut self, value: &Value) -> NodeIx {
        self.add(Node::Leaf(value.clone()))
    }

    fn object(&mut self, at: Addr) -> NodeIx {
        self.add(Node::Object {
            at,
            members: Vec::new(),
        })
    }

    fn insert(&mut self, object: &NodeIx, key: &JsString, member: NodeIx) {
        if let Node::Object { members, .. } = &mut self.nodes[object.0 as usize] {
            members.push((key.clone(), member));
        }
    }

    fn array(&mut self, at: Addr) -> NodeIx {
        self.add(Node::Array {
            at,
            elements: Vec::new(),
        })
    }

    fn push(&mut self, array: &NodeIx, element: Option<NodeIx>) {
        if let Node::Array { elements, .. } = &mut self.nodes[array.0 as usize] {
            elements.push(element);
        }
    }

    fn handle(&mut self, handle: Handle) -> NodeIx {
        self.add(Node::Handle(handle))
    }

    fn opaque(&mut self, at: Addr) -> NodeIx {
        self.add(Node::Opaque(at))
    }

    fn live(&mut self, at: Addr) -> NodeIx {
        self.add(Node::Live(at))
    }

    fn shape(&self, out: &NodeIx) -> Shape<NodeIx> {
        match self.node(*out) {
            Node::Handle(handle) => Shape::Handle(handle.clone()),
            Node::Object { at, members } => Shape::Object(at.clone(), members.clone()),
            Node::Opaque(_) => Shape::Opaque,
            Node::Leaf(_) | Node::Array { .. } | Node::Live(_) => Shape::Other,
        }
    }
}

/// TRV-1213: one answer out of the successes of a union. `schema` is the compound schema.
pub fn merge_matches<B: Build>(build: &mut B, matches: Vec<B::Out>, schema: &Schema) -> Option<B::Out> {
    if !B::BUILDS || matches.len() < 2 {
        return matches.into_iter().next();
    }
    let shapes: Vec<Shape<B::Out>> = matches.iter().map(|out| build.shape(out)).collect();
    let first_handle = shapes.iter().find_map(|shape| match shape {
        Shape::Handle(handle) => Some(handle),
        Shape::Object(..) | Shape::Opaque | Shape::Other => None,
    });
    if let Some(handle) = first_handle {
        let own = handle
            .link
            .schema
            .as_ref()
            .and_then(|schema| schema.keyword("asCell"))
            .cloned();
        let schema = super::handles::compound_schema(schema, own);
        let link = Link {
            at: handle.link.at.clone(),
            schema: Some(schema),
        };
        return Some(build.handle(Handle {
            kind: handle.kind.clone(),
            link,
        }));
    }
    let all_references = shapes
        .iter()
        .all(|shape| matches!(shape, Shape::Object(..) | Shape::Opaque));
    let Some(at) = shapes.iter().find_map(|shape| match shape {
        Shape::Object(at, _) if all_references => Some(at.clone()),
        Shape::Handle(_) | Shape::Object(..) | Shape::Opaque | Shape::Other => None,
    }) else {
        return matches.into_iter().next();
    };
    let mut united: IndexMap<JsString, B::Out> = IndexMap::new();
    for shape in shapes {
        let Shape::Object(_, members) = shape else {
            continue;
        };
        for (key, member) in members {
            // What may not be looked into never hides an answer.
            if !(united.contains_key(&key) && matches!(build.shape(&member), Shape::Opaque)) {
                united.insert(key, member);
            }
        }
    }
    let merged = build.object(at);
    for (key, member) in united {
        build.insert(&merged, &key, member);
    }
    Some(merged)
}
