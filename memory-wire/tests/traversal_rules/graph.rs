//! Small document graphs and short ways to walk them: documents `of:a`, `of:b` … in one space, links between them,
//! what a query tracked and what a read selected as text.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::codec::{PREFIX, encode};
use memory_wire::traverse::{
    Addr, Ctx, DeadEnd, Dep, DocKey, DocSource, LazyRead, Link, MAX_OPEN_PLACES, Memo, Mode, Node, NodeIx,
    Outcome, ReadRequest, Root, Schema, SchemaPool, Seen, Selector, SourceError, Tracker, TraverseError,
    Tree, read, visit,
};
use memory_wire::{EntityId, JsString, Object, Scope, ScopeIdentity, ScopeKey, SpaceId, Value, value};

pub(crate) const SPACE: &str = "did:key:home";

/// A link to the root of the value of `of:<name>`.
pub(crate) fn link(name: &str) -> Value {
    link_with(value!({ "id": (format!("of:{name}")) }))
}

/// A link with this payload.
pub(crate) fn link_with(payload: Value) -> Value {
    value!({ "/": { "link@1": payload } })
}

/// A link to `of:<name>` with more fields.
pub(crate) fn link_to(name: &str, more: Value) -> Value {
    let mut payload: Object = more.as_object().unwrap().clone();
    payload.insert("id", format!("of:{name}"));
    link_with(payload.into())
}

/// A link that writes go through.
pub(crate) fn redirect(name: &str) -> Value {
    link_to(name, value!({ "overwrite": "redirect" }))
}

/// A value as the JSON of its encoding.
pub(crate) fn text(value: &Value) -> String {
    encode(value).unwrap()[PREFIX.len()..].to_owned()
}

pub(crate) fn schema(value: Value) -> Schema {
    Schema::of(&value)
}

pub(crate) fn path(segments: &[&str]) -> Vec<JsString> {
    segments.iter().map(|segment| (*segment).into()).collect()
}

pub(crate) fn alice() -> ScopeIdentity {
    ScopeIdentity::session("did:key:alice", "s1")
}

/// Documents, and who asks.
pub(crate) struct Graph {
    pub(crate) documents: BTreeMap<DocKey, Value>,
    pub(crate) identity: ScopeIdentity,
}

/// What was asked of a source.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) loads: Vec<String>,
    pub(crate) deps: BTreeSet<(String, Dep)>,
    pub(crate) missing: Vec<String>,
    pub(crate) dead_ends: Vec<DeadEnd>,
}

pub(crate) struct Source<'g> {
    graph: &'g Graph,
    pub(crate) notes: Notes,
}

impl DocSource for Source<'_> {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        self.notes.loads.push(key.to_string());
        Ok(self.graph.documents.get(key).cloned())
    }

    fn note(&mut self, at: &Addr, how: Dep) {
        self.notes.deps.insert((place_text(at), how));
    }

    fn missing(&mut self, link: &Link, from: &SpaceId) {
        self.notes
            .missing
            .push(format!("{} from {from}", place_text(&link.at)));
    }

    fn dead_end(&mut self, _at: &Addr, why: &DeadEnd) {
        self.notes.dead_ends.push(why.clone());
    }
}

/// `a/x/y`, or `a@user/x/y`: a place below a document's value.
pub(crate) fn place_text(at: &Addr) -> String {
    let id = match at.id.is_inline() {
        true => "data:*",
        false => at.id.as_str().strip_prefix("of:").unwrap_or(at.id.as_str()),
    };
    let scope = match at.scope {
        Scope::Space => String::new(),
        scope => format!("@{scope}"),
    };
    let path: String = at
        .path
        .iter()
        .skip(1)
        .map(|segment| format!("/{segment}"))
        .collect();
    format!("{id}{scope}{path}")
}

/// A query and what came of it.
pub(crate) struct Queried {
    pub(crate) outcome: Result<Outcome<()>, TraverseError>,
    pub(crate) tracker: Tracker,
    pub(crate) notes: Notes,
}

impl Queried {
    /// The tracked documents: `a`, `b@user` …, with their space where it is not home.
    pub(crate) fn reached(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.tracker.keys().map(key_text).collect();
        keys.sort();
        keys
    }

    /// The selectors of a tracked document: `path schema`, sorted.
    pub(crate) fn selectors(&self, key: &DocKey) -> Vec<String> {
        let mut all: Vec<String> = self.tracker.selectors(key).map(selector_text).collect();
        all.sort();
        all
    }

    pub(crate) fn selects(&self) -> bool {
        matches!(self.outcome, Ok(Ok(())))
    }
}

pub(crate) fn selector_text(selector: &Selector) -> String {
    let path: String = selector
        .path
        .iter()
        .map(|segment| format!("/{segment}"))
        .collect();
    let schema = selector
        .schema
        .as_ref()
        .map_or("absent".into(), |schema| text(schema.value()));
    format!("{path} {schema}")
}

fn key_text(key: &DocKey) -> String {
    let id = key.instance.id.as_str();
    let id = id.strip_prefix("of:").unwrap_or(id);
    let space = match key.space.as_str() {
        SPACE => String::new(),
        other => format!("{other} "),
    };
    match key.instance.scope_key.scope() {
        Scope::Space => format!("{space}{id}"),
        scope => format!("{space}{id}@{scope}"),
    }
}

/// A read and what came of it.
pub(crate) struct Read {
    pub(crate) value: Result<String, TraverseError>,
    pub(crate) notes: Notes,
}

impl Graph {
    /// Documents with these contents under `value`, in the space scope.
    pub(crate) fn of<const N: usize>(contents: [(&str, Value); N]) -> Graph {
        let mut graph = Graph {
            documents: BTreeMap::new(),
            identity: alice(),
        };
        for (name, content) in contents {
            graph.put(name, Scope::Space, content);
        }
        graph
    }

    pub(crate) fn put(&mut self, name: &str, scope: Scope, content: Value) {
        self.put_root(name, scope, value!({ "value": content }));
    }

    pub(crate) fn put_root(&mut self, name: &str, scope: Scope, root: Value) {
        self.documents.insert(self.key(name, scope), root);
    }

    /// Stores a schema document; its `cid:` id.
    pub(crate) fn put_schema(&mut self, schema: &Value) -> String {
        let id = format!("cid:{}", memory_wire::hash::tagged_hash(schema));
        let key = DocKey::new(SPACE.into(), ScopeKey::space(), EntityId::from(id.as_str()));
        self.documents.insert(key, value!({ "value": (schema.clone()) }));
        id
    }

    /// The key of `of:<name>`, or of an id that is written out.
    pub(crate) fn key(&self, name: &str, scope: Scope) -> DocKey {
        let id = if name.contains(':') {
            name.to_owned()
        } else {
            format!("of:{name}")
        };
        let scope_key = ScopeKey::resolve(scope, &self.identity).unwrap();
        DocKey::new(SPACE.into(), scope_key, id.into())
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source {
            graph: self,
            notes: Notes::default(),
        }
    }

    /// A graph query from `of:a`.
    pub(crate) fn query(&self, at: &[&str], schema: Value) -> Queried {
        self.query_roots(&[("a", Selector::from_root(&path(at), Some(Schema::of(&schema))))])
    }

    pub(crate) fn query_roots(&self, roots: &[(&str, Selector)]) -> Queried {
        self.query_in(Mode::Query, roots)
    }

    pub(crate) fn query_in(&self, mode: Mode, roots: &[(&str, Selector)]) -> Queried {
        let (mut tracker, mut memo) = (Tracker::new(), Memo::new());
        let (mut schemas, mut seen) = (SchemaPool::new(), Seen::new());
        let mut source = self.source();
        let mut outcome = Ok(Ok(()));
        for (name, selector) in roots {
            let mut ctx = Ctx {
                mode,
                identity: &self.identity,
                tracker: &mut tracker,
                memo: &mut memo,
                schemas: &mut schemas,
                seen: &mut seen,
                max_open: MAX_OPEN_PLACES,
                skip_walked: true,
            };
            let root = Root {
                space: SPACE.into(),
                id: format!("of:{name}").into(),
                scope: Scope::Space,
                explicit: None,
                document: self.documents.get(&self.key(name, Scope::Space)).cloned(),
            };
            outcome = visit(&mut source, &mut ctx, &root, selector);
            if outcome.is_err() {
                break;
            }
        }
        Queried {
            outcome,
            tracker,
            notes: source.notes,
        }
    }

    pub(crate) fn place(&self, name: &str, at: &[&str]) -> Addr {
        Addr {
            space: SPACE.into(),
            id: format!("of:{name}").into(),
            scope: Scope::Space,
            path: path(&[&["value"], at].concat()),
        }
    }

    /// A read at a path of `of:a`.
    pub(crate) fn read(&self, at: &[&str], schema: Value) -> Read {
        self.read_with(at, Some(schema), false)
    }

    pub(crate) fn read_with(&self, at: &[&str], schema: Option<Value>, walk_cells: bool) -> Read {
        let start = Link {
            at: self.place("a", at),
            schema: schema.as_ref().map(Schema::of),
        };
        let mut request = ReadRequest::new(&start, &self.identity);
        request.walk_cells = walk_cells;
        let mut source = self.source();
        let reading = read(&mut source, &mut SchemaPool::new(), &request);
        Read {
            value: reading.map(|reading| show(&reading.tree, reading.root, 0)),
            notes: source.notes,
        }
    }

    /// What a read selects, as text.
    pub(crate) fn value(&self, at: &[&str], schema: Value) -> String {
        self.read(at, schema).value.unwrap()
    }
}

/// A selected value: JSON with `<cell b/x>` for a handle, `<live b/x>` for a view without schema, `<opaque b/x>` for a
/// reference, `_` for a hole, and the place of a container behind `^` where it is not where it was met.
pub(crate) fn show(tree: &Tree, ix: NodeIx, depth: usize) -> String {
    if depth > 4 {
        return "…".into();
    }
    match tree.node(ix) {
        Node::Leaf(value) => leaf(value),
        Node::Object { members, .. } => {
            let members = members
                .iter()
                .map(|(name, member)| format!("{name}:{}", show(tree, *member, depth + 1)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        Node::Array { elements, .. } => {
            let elements = elements.iter().map(|element| match element {
                Some(element) => show(tree, *element, depth + 1),
                None => "_".into(),
            });
            format!("[{}]", elements.collect::<Vec<_>>().join(","))
        }
        Node::Handle(handle) => handle_text(&handle.kind, &handle.link),
        Node::Opaque(at) => format!("<opaque {}>", place_text(at)),
        Node::Live(at) => format!("<live {}>", place_text(at)),
    }
}

fn handle_text(kind: &JsString, link: &Link) -> String {
    format!("<{kind} {}>", place_text(&link.at))
}

fn leaf(value: &Value) -> String {
    match value {
        Value::Undefined => "undefined".into(),
        value => text(value),
    }
}

/// The same notation for a lazy read, one level deep.
pub(crate) fn show_lazy(read: &LazyRead) -> String {
    match read {
        LazyRead::Leaf(value) => leaf(value),
        LazyRead::Handle(handle) => handle_text(&handle.kind, &handle.link),
        LazyRead::Opaque(at) => format!("<opaque {}>", place_text(at)),
        LazyRead::Live(at) => format!("<live {}>", place_text(at)),
        LazyRead::Default(reading) => show(&reading.tree, reading.root, 0),
        LazyRead::View(view) => format!("<view {}>", place_text(view.position())),
    }
}
