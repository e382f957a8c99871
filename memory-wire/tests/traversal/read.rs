//! The kind `read`: values, positions and dependency reads of reads.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::traverse::{
    Addr, Dep, DocKey, DocSource, Follow, Handle, LazyError, LazyRead, Link, Node, NodeIx, ReadRequest,
    SchemaPool, SourceError, Tree, read as read_value, read_lazily, resolve_link,
};
use memory_wire::{EntityId, Scope, ScopeIdentity, SpaceId, Value};
use serde_json::{Value as Json, json};

use super::line::{self, Documents};

const SPACE: &str = "did:key:z6MkSpace";

/// The documents, and what was noted about them.
pub(crate) struct Recorder {
    documents: Documents,
    reads: BTreeSet<String>,
    shallow: BTreeSet<String>,
    recording: bool,
}

impl DocSource for Recorder {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        self.documents.load(key)
    }

    fn note(&mut self, at: &Addr, how: Dep) {
        if !self.recording {
            return;
        }
        let path: Vec<String> = at.path.iter().map(ToString::to_string).collect();
        let text = format!("{} {} {}", at.scope.as_str(), at.id, Json::from(path));
        match how {
            Dep::Deep | Dep::DeepNoConflict => self.reads.insert(text),
            Dep::Shallow | Dep::ShallowNoConflict => self.shallow.insert(text),
        };
    }
}

/// A read with everything in it opened.
pub(crate) struct Opened<'o> {
    pub(crate) source: &'o mut Recorder,
    pub(crate) schemas: &'o mut SchemaPool,
    pub(crate) identity: &'o ScopeIdentity,
    pub(crate) positions: BTreeMap<String, Json>,
}

pub(crate) fn address(at: &Addr) -> Json {
    let path: Vec<String> = at.path.iter().skip(1).map(ToString::to_string).collect();
    json!({ "id": id_text(&at.id), "scope": at.scope.as_str(), "path": path })
}

fn id_text(id: &EntityId) -> String {
    if id.is_inline() {
        "data:*".into()
    } else {
        id.to_string()
    }
}

/// How deep the lines print cyclic values.
const PRINTED_DEPTH: usize = 12;

impl Opened<'_> {
    fn place(&mut self, pointer: &str, at: &Addr) {
        self.positions.insert(pointer.to_owned(), address(at));
    }

    pub(crate) fn node(&mut self, tree: &Tree, ix: NodeIx, pointer: &str, depth: usize) -> Json {
        if depth > PRINTED_DEPTH {
            return json!({ "@deep": true });
        }
        match tree.node(ix) {
            Node::Leaf(value) => leaf(value),
            Node::Object { at, members } => {
                self.place(pointer, at);
                let members = members.iter().map(|(key, member)| {
                    (
                        key.to_string(),
                        self.node(tree, *member, &format!("{pointer}/{key}"), depth + 1),
                    )
                });
                Json::Object(members.collect())
            }
            Node::Array { at, elements } => {
                self.place(pointer, at);
                let elements = elements.iter().enumerate().map(|(i, element)| match element {
                    Some(element) => self.node(tree, *element, &format!("{pointer}/{i}"), depth + 1),
                    None => json!({ "@hole": true }),
                });
                Json::Array(elements.collect())
            }
            Node::Handle(handle) => handle_json(handle),
            Node::Opaque(at) => {
                self.place(pointer, at);
                json!({ "@opaque": true })
            }
            Node::Live(at) => self.live(at.clone(), pointer),
        }
    }

    /// A view without schema, as whoever opens it sees it.
    pub(crate) fn live(&mut self, at: Addr, pointer: &str) -> Json {
        let link = Link { at, schema: None };
        let Ok(end) = resolve_link(self.source, self.schemas, self.identity, &link, &[], Follow::All) else {
            return json!({ "@undefined": true });
        };
        let at = end.link.at;
        self.source.note(&at, Dep::Shallow);
        // Whatever is opened below was not opened when the line was recorded.
        let recording = std::mem::replace(&mut self.source.recording, false);
        let key = DocKey::new(
            at.space.clone(),
            memory_wire::ScopeKey::resolve(at.scope, self.identity).unwrap(),
            at.id.clone(),
        );
        let value = self
            .source
            .load(&key)
            .unwrap()
            .and_then(|root| root.at_path(&text_path(&at)).cloned());
        let opened = match value {
            None => json!({ "@undefined": true }),
            Some(Value::Object(object)) => {
                self.place(pointer, &at);
                let members = object.iter().map(|(key, _)| {
                    let mut below = at.clone();
                    below.path.push(key.clone());
                    (key.to_string(), self.live(below, &format!("{pointer}/{key}")))
                });
                Json::Object(members.collect())
            }
            Some(Value::Array(array)) => {
                self.place(pointer, &at);
                let elements = (0..array.len()).map(|i| {
                    let mut below = at.clone();
                    below.path.push(i.to_string().as_str().into());
                    self.live(below, &format!("{pointer}/{i}"))
                });
                Json::Array(elements.collect())
            }
            Some(value) => leaf(&value),
        };
        self.source.recording = recording;
        opened
    }
}

fn text_path(at: &Addr) -> Vec<String> {
    at.path.iter().map(ToString::to_string).collect()
}

pub(crate) fn leaf(value: &Value) -> Json {
    match value {
        Value::Undefined => json!({ "@undefined": true }),
        Value::Null => Json::Null,
        Value::Bool(b) => json!(b),
        Value::Number(n) if n.is_nan() => json!({ "@num": "NaN" }),
        Value::Number(n) if *n == 0.0 && n.is_sign_negative() => json!({ "@num": "-0" }),
        Value::Number(n) => json!(n),
        Value::String(s) => json!(s.to_string()),
        // Part of a default that no schema shapes.
        whole => to_json(whole),
    }
}

pub(crate) fn handle_json(handle: &Handle) -> Json {
    let mut fields = address(&handle.link.at);
    fields["kind"] = json!(handle.kind.to_string());
    fields["schema"] = match &handle.link.schema {
        Some(schema) => to_json(schema.value()),
        None => Json::Null,
    };
    json!({ "@handle": fields })
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Object(object) => {
            Json::Object(object.iter().map(|(k, v)| (k.to_string(), to_json(v))).collect())
        }
        Value::Array(array) => Json::Array(array.elements().map(|(_, v)| to_json(v)).collect()),
        leaf_value => leaf(leaf_value),
    }
}

/// Numbers compare as numbers: the lines write `1`, the tree holds `1.0`.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, a)| b.get(k).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

pub(crate) fn start(line: &Json) -> Link {
    let at = &line["at"];
    let mut path = vec!["value".into()];
    path.extend(line::path(&at["path"]));
    let scope = at["scope"]
        .as_str()
        .map_or(Scope::Space, |s| Scope::from_name(s).unwrap());
    let at = Addr {
        space: SpaceId::from(SPACE),
        id: at["id"].as_str().unwrap().into(),
        scope,
        path,
    };
    Link {
        at,
        schema: line::schema(line.get("schema")),
    }
}

pub(crate) fn read(line: &Json) -> Result<(), String> {
    let identity = ScopeIdentity::session("did:key:alice", "s1");
    let documents = Documents::of(&line["documents"], &SpaceId::from(SPACE), &identity);
    let mut source = Recorder {
        documents,
        reads: BTreeSet::new(),
        shallow: BTreeSet::new(),
        recording: true,
    };
    let mut schemas = SchemaPool::new();
    let link = start(line);
    let mut request = ReadRequest::new(&link, &identity);
    request.walk_cells = line["traverseCells"].as_bool().unwrap_or(false);
    let expect = line.get("ours").unwrap_or(&line["expect"]);
    if line["lazy"] == true {
        return lazily(&mut source, &mut schemas, &request, expect);
    }
    let reading = match (
        read_value(&mut source, &mut schemas, &request),
        expect.get("error"),
    ) {
        (Ok(reading), None) => reading,
        (Err(error), Some(expected)) if error.to_string() == expected["message"].as_str().unwrap() => {
            return Ok(());
        }
        (outcome, expected) => return Err(format!("{outcome:?}, expected error {expected:?}")),
    };
    let mut opened = Opened {
        source: &mut source,
        schemas: &mut schemas,
        identity: &identity,
        positions: BTreeMap::new(),
    };
    // A view is resolved when it is made, also one that a handle then took the place of.
    for node in reading.tree.nodes() {
        if let Node::Live(at) = node {
            opened.live(at.clone(), "");
        }
    }
    opened.positions.clear();
    let value = opened.node(&reading.tree, reading.root, "", 0);
    let positions: Json = opened
        .positions
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into();
    if !same(&value, &expect["value"]) {
        return Err(format!("value\n  ours   {value}\n  theirs {}", expect["value"]));
    }
    if let Some(expected) = expect.get("positions")
        && positions != *expected
    {
        return Err(format!("positions\n  ours   {positions}\n  theirs {expected}"));
    }
    // The label code's reads of `cfc` are not this module's (TRV-1221).
    compare_set("reads", &source.reads, expect.get("reads"))?;
    compare_set("shallow", &source.shallow, expect.get("shallow"))
}

pub(crate) fn compare_set(what: &str, ours: &BTreeSet<String>, expect: Option<&Json>) -> Result<(), String> {
    let Some(expect) = expect else { return Ok(()) };
    let theirs = expect
        .as_array()
        .unwrap()
        .iter()
        .map(|read| read.as_str().unwrap().to_owned());
    let theirs: BTreeSet<String> = theirs.filter(|read| !read.ends_with(" [\"cfc\"]")).collect();
    let missing: Vec<&String> = theirs.difference(ours).collect();
    let extra: Vec<&String> = ours.difference(&theirs).collect();
    if missing.is_empty() && extra.is_empty() {
        Ok(())
    } else {
        Err(format!("{what}: missing {missing:?}, extra {extra:?}"))
    }
}

fn lazily(
    source: &mut Recorder,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    expect: &Json,
) -> Result<(), String> {
    let entry = read_lazily(source, schemas, request).map_err(|e| e.to_string())?;
    let (reads, shallow) = (source.reads.clone(), source.shallow.clone());
    source.recording = false;
    let mut opened = Opened {
        source,
        schemas,
        identity: request.identity,
        positions: BTreeMap::new(),
    };
    let value = match (opened.lazy(&entry, ""), expect.get("error")) {
        (Ok(value), None) => value,
        (Err(error), Some(expected)) if error.to_string() == expected["message"].as_str().unwrap() => {
            return Ok(());
        }
        (outcome, expected) => return Err(format!("{outcome:?}, expected error {expected:?}")),
    };
    let positions: Json = opened
        .positions
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into();
    if !same(&value, &expect["value"]) {
        return Err(format!("value\n  ours   {value}\n  theirs {}", expect["value"]));
    }
    if positions != expect["positions"] {
        return Err(format!(
            "positions\n  ours   {positions}\n  theirs {}",
            expect["positions"]
        ));
    }
    compare_set("reads", &reads, expect.get("reads"))?;
    compare_set("shallow", &shallow, expect.get("shallow"))
}

impl Opened<'_> {
    fn lazy(&mut self, read: &LazyRead, pointer: &str) -> Result<Json, LazyError> {
        Ok(match read {
            LazyRead::Leaf(value) => leaf(value),
            LazyRead::Handle(handle) => handle_json(handle),
            LazyRead::Live(at) => self.live(at.clone(), pointer),
            LazyRead::Default(reading) => self.node(&reading.tree, reading.root, pointer, 0),
            LazyRead::Opaque(at) => {
                self.place(pointer, at);
                json!({ "@opaque": true })
            }
            LazyRead::View(view) => {
                self.place(pointer, view.position());
                let mut members = Vec::new();
                for key in view.keys(self.schemas) {
                    if let Some(member) = view.get(self.source, self.schemas, self.identity, &key)? {
                        members.push((key.to_string(), self.lazy(&member, &format!("{pointer}/{key}"))?));
                    }
                }
                match view.is_array() {
                    true => Json::Array(members.into_iter().map(|(_, member)| member).collect()),
                    false => Json::Object(members.into_iter().collect()),
                }
            }
        })
    }
}
