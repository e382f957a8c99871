//! The query walk written down again from the rules, by plain recursion and remembering nothing: no memo, no
//! interned places, no record of what was walked. It shares the pure schema functions, which have vectors of their
//! own, and knows only well-formed links.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::traverse::{
    DocKey, Schema, SchemaPool, Selector, Tracker, TypeName, Verdict, branch_may_match, combine_optional,
    hop_cap, is_marker, narrow, narrow_marked, schema_at_path, type_check,
};
use memory_wire::value::{Value, index_rank};
use memory_wire::{EntityId, JsString, Scope, ScopeIdentity, ScopeKey, SpaceId};

pub(crate) fn selector_text(selector: &Selector) -> String {
    format!("{:?} {:?}", selector.path, selector.schema)
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Doc {
    space: SpaceId,
    id: EntityId,
    scope: Scope,
    /// The slots of the inline elements this document is nested in; empty for a stored one.
    inline: Vec<Vec<String>>,
}

impl Doc {
    /// The test of TRV-304 compares ids; that of an inline element is its content's.
    fn is_named_like(&self, other: &Doc) -> bool {
        self.id == other.id && self.inline == other.inline
    }
}

#[derive(Clone, Debug)]
struct Node {
    doc: Doc,
    path: Vec<String>,
    value: Value,
}

type Place = (Doc, Vec<String>);

#[derive(Clone, Copy, PartialEq)]
enum Last {
    Value,
    Redirect,
    Top,
}

pub(crate) fn evaluate(
    documents: &BTreeMap<DocKey, Value>,
    identity: &ScopeIdentity,
    roots: &[(DocKey, Selector)],
) -> Tracker {
    let mut naive = Naive {
        documents,
        identity,
        tracker: Tracker::new(),
        pool: SchemaPool::new(),
        following: BTreeSet::new(),
        open: BTreeSet::new(),
        metadata: BTreeSet::new(),
    };
    for (key, selector) in roots {
        naive.visit(key, selector);
    }
    naive.tracker
}

struct Naive<'d> {
    documents: &'d BTreeMap<DocKey, Value>,
    identity: &'d ScopeIdentity,
    tracker: Tracker,
    pool: SchemaPool,
    following: BTreeSet<(Place, String)>,
    open: BTreeSet<(Place, String)>,
    metadata: BTreeSet<DocKey>,
}

struct Hop {
    doc: Doc,
    path: Vec<String>,
    selector: Selector,
    own: Option<Schema>,
}

fn js(path: &[String]) -> Vec<JsString> {
    path.iter().map(|segment| segment.as_str().into()).collect()
}

fn payload(value: &Value) -> Option<&Value> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get("/")?.member("link@1")
}

fn text(schema: &Schema) -> String {
    format!("{schema:?}")
}

impl Naive<'_> {
    fn key(&self, doc: &Doc) -> DocKey {
        DocKey::new(
            doc.space.clone(),
            ScopeKey::resolve(doc.scope, self.identity).unwrap(),
            doc.id.clone(),
        )
    }

    fn load(&self, doc: &Doc) -> Option<Value> {
        // An inline element is a `data:` document, which a query never reads.
        if doc.inline.is_empty() {
            self.documents.get(&self.key(doc)).cloned()
        } else {
            None
        }
    }

    fn visit(&mut self, key: &DocKey, selector: &Selector) {
        if self.tracker.covers(key, selector) {
            return;
        }
        self.tracker.add(key, selector.clone());
        let doc = Doc {
            space: key.space.clone(),
            id: key.instance.id.clone(),
            scope: key.instance.scope_key.scope(),
            inline: Vec::new(),
        };
        let Some(root) = self.load(&doc) else { return };
        let value = root.member("value").cloned().unwrap_or(Value::Undefined);
        let node = Node {
            doc: doc.clone(),
            path: vec!["value".into()],
            value,
        };
        let rest: Vec<String> = selector.path.iter().skip(1).map(ToString::to_string).collect();
        let (node, schema) = self.path_walk(node, rest, selector.schema.clone(), Last::Value);
        if let Some(schema) = schema.filter(|schema| !schema.is_literal_false() && !node.value.is_undefined())
        {
            self.tracker.add(
                &self.key(&node.doc),
                Selector::new(js(&node.path), Some(schema.clone())),
            );
            self.walk(node, schema);
        }
        self.follow_metadata(&doc, &root);
    }

    fn follow_metadata(&mut self, doc: &Doc, root: &Value) {
        let mut pending = vec![(doc.clone(), root.clone())];
        while let Some((doc, root)) = pending.pop() {
            let Some(argument) = root.member("argument").and_then(payload).cloned() else {
                continue;
            };
            if !self.metadata.insert(self.key(&doc)) {
                continue;
            }
            let (target, _) = self.target(&doc, &argument);
            self.tracker.add(&self.key(&target), Selector::rejecting());
            if let Some(root) = self.load(&target) {
                pending.push((target, root));
            }
        }
    }

    fn target(&self, base: &Doc, payload: &Value) -> (Doc, Vec<String>) {
        let scope = payload
            .member("scope")
            .map_or(base.scope, |s| Scope::from_name(s.as_str().unwrap()).unwrap());
        let doc = match payload.member("id") {
            Some(id) => Doc {
                space: base.space.clone(),
                id: id.as_str().unwrap().into(),
                scope,
                inline: Vec::new(),
            },
            None => Doc {
                scope,
                ..base.clone()
            },
        };
        let mut path = vec!["value".to_owned()];
        let segments = payload.member("path").and_then(Value::as_array).unwrap();
        path.extend(segments.elements().map(|(_, s)| s.as_str().unwrap().to_owned()));
        (doc, path)
    }

    fn hop(&mut self, slot: &Node, rest: &[String], schema: Option<&Schema>) -> Hop {
        let payload = payload(&slot.value).unwrap().clone();
        let (doc, path) = self.target(&slot.doc, &payload);
        let own = payload.member("schema").map(Schema::of);
        let narrowed = match &own {
            Some(own) if !rest.is_empty() => schema_at_path(&mut self.pool, own, &js(rest)),
            own => own.clone(),
        };
        let combined = combine_optional(&mut self.pool, schema, narrowed.as_ref());
        let whole: Vec<String> = path.iter().chain(rest).cloned().collect();
        Hop {
            doc,
            path,
            selector: Selector::new(js(&whole), combined),
            own,
        }
    }

    fn covered(&self, hop: &Hop) -> bool {
        hop.doc.inline.is_empty() && self.tracker.covers(&self.key(&hop.doc), &hop.selector)
    }

    fn path_walk(
        &mut self,
        node: Node,
        rest: Vec<String>,
        schema: Option<Schema>,
        last: Last,
    ) -> (Node, Option<Schema>) {
        let mut rest = rest;
        let mut node = node;
        loop {
            if let Some(link) = payload(&node.value) {
                let redirect = link.member("overwrite").is_some();
                if !rest.is_empty() || last == Last::Value || (last == Last::Redirect && redirect) {
                    return self.follow(node, rest, schema, last);
                }
                return (node, schema);
            }
            if rest.is_empty() {
                return (node, schema);
            }
            let segment = rest.remove(0);
            node.path.push(segment.clone());
            node.value = match &node.value {
                Value::Object(object) => object.get(&segment).cloned().unwrap_or(Value::Undefined),
                Value::Array(array) if segment == "length" => Value::from(array.len() as f64),
                Value::Array(array) => {
                    let index = index_rank(segment.as_bytes());
                    index
                        .and_then(|i| array.get(i as usize))
                        .cloned()
                        .unwrap_or(Value::Undefined)
                }
                _ => Value::Undefined,
            };
            if node.value.is_undefined() {
                node.path.append(&mut rest);
                return (node, schema);
            }
        }
    }

    fn follow(
        &mut self,
        slot: Node,
        rest: Vec<String>,
        schema: Option<Schema>,
        last: Last,
    ) -> (Node, Option<Schema>) {
        let hop = self.hop(&slot, &rest, schema.as_ref());
        let nothing = |doc: &Doc, path: &[String]| Node {
            doc: doc.clone(),
            path: path.to_vec(),
            value: Value::Undefined,
        };
        if let Some(cap) = schema.as_ref().and_then(|schema| hop_cap(&mut self.pool, schema))
            && !cap.admits(hop.doc.scope)
        {
            return (nothing(&slot.doc, &slot.path), schema);
        }
        let re_rooted = hop.selector.schema.clone();
        let pair = (
            (slot.doc.clone(), slot.path.clone()),
            re_rooted.as_ref().map_or("true".into(), text),
        );
        if !self.following.insert(pair.clone()) {
            return (nothing(&slot.doc, &slot.path), schema);
        }
        let reached = self.enter(&hop, rest, last, re_rooted.clone());
        self.following.remove(&pair);
        reached.unwrap_or((nothing(&hop.doc, &hop.path), re_rooted))
    }

    fn enter(
        &mut self,
        hop: &Hop,
        rest: Vec<String>,
        last: Last,
        schema: Option<Schema>,
    ) -> Option<(Node, Option<Schema>)> {
        let root = self.load(&hop.doc)?;
        let mut read = 0;
        let mut value = root.clone();
        let mut container = root.clone();
        for segment in &hop.path {
            let next = match &value {
                Value::Object(object) => object.get(segment).cloned(),
                Value::Array(array) => match segment.as_str() {
                    "length" => Some(Value::from(array.len() as f64)),
                    _ => index_rank(segment.as_bytes())
                        .and_then(|i| array.get(i as usize))
                        .cloned(),
                },
                _ => return None,
            };
            container = value;
            match next {
                Some(next) => (value, read) = (next, read + 1),
                None => {
                    value = Value::Undefined;
                    break;
                }
            }
        }
        self.tracker.add(&self.key(&hop.doc), hop.selector.clone());
        self.follow_metadata(&hop.doc, &root);
        let (read, value) = match value.is_undefined() && read > 0 {
            true => (read, container),
            false => (read.max(1), value),
        };
        let (path, unread) = hop.path.split_at(read);
        let node = Node {
            doc: hop.doc.clone(),
            path: path.to_vec(),
            value,
        };
        let rest = unread.iter().cloned().chain(rest).collect();
        Some(self.path_walk(node, rest, schema, last))
    }

    /// True when the node satisfies the schema.
    fn walk(&mut self, node: Node, schema: Schema) -> bool {
        for union in ["anyOf", "oneOf"] {
            let Some(options) = schema.keyword(union).and_then(Value::as_array) else {
                continue;
            };
            let mut options: Vec<Schema> = options
                .elements()
                .filter(|(_, option)| option.as_bool() != Some(false))
                .map(|(_, option)| {
                    let mut merged = schema.value().as_object().unwrap().clone();
                    merged.remove(union);
                    for (key, value) in option.as_object().into_iter().flat_map(|o| o.iter()) {
                        merged.insert(key.clone(), value.clone());
                    }
                    Schema::of(&merged.into())
                })
                .collect();
            options.sort_by_key(Schema::is_handle);
            let mut matches = 0;
            for option in options {
                if union == "oneOf" || branch_may_match(&mut self.pool, &option, &node.value) {
                    matches += usize::from(self.walk(node.clone(), option));
                }
            }
            return if union == "anyOf" {
                matches > 0
            } else {
                matches == 1
            };
        }
        let members = schema.keyword("allOf").and_then(Value::as_array);
        if let Some(members) = members.filter(|members| !members.is_empty()) {
            return members.elements().all(|(_, member)| {
                let mut merged = schema.value().as_object().unwrap().clone();
                merged.remove("allOf");
                let Some(member) = member.as_object() else {
                    let everything = member.as_bool() == Some(true);
                    return everything && self.walk(node.clone(), Schema::of(&merged.into()));
                };
                for (key, value) in member.iter() {
                    merged.insert(key.clone(), value.clone());
                }
                self.walk(node.clone(), Schema::of(&merged.into()))
            });
        }
        if schema.is_true_like() && !schema.is_handle() {
            self.everything(node);
            return true;
        }
        if schema.is_false_like() {
            return false;
        }
        if payload(&node.value).is_some() {
            return self.link(node, schema);
        }
        let verdict = type_check(&mut self.pool, &schema, TypeName::of(&node.value));
        if verdict != Verdict::Yes || !matches!(node.value, Value::Object(_) | Value::Array(_)) {
            return verdict != Verdict::No;
        }
        let guard = ((node.doc.clone(), node.path.clone()), text(&schema));
        if !self.open.insert(guard.clone()) {
            return true;
        }
        let selected = match node.value.clone() {
            Value::Array(array) => {
                let mut fine = true;
                for (index, element) in array.elements() {
                    fine &= self.element(&node, index, element, &schema);
                }
                fine
            }
            Value::Object(object) => {
                let mut failed = BTreeSet::new();
                for (name, member) in object.iter() {
                    let child = narrow_marked(&mut self.pool, &schema, std::slice::from_ref(name));
                    if !is_marker(&child) {
                        let mut path = node.path.clone();
                        path.push(name.to_string());
                        let slot = Node {
                            doc: node.doc.clone(),
                            path,
                            value: member.clone(),
                        };
                        if !self.walk(slot, child) {
                            failed.insert(name.to_string());
                        }
                    }
                }
                let required = schema.keyword("required").and_then(Value::as_array);
                required
                    .into_iter()
                    .flat_map(|names| names.elements())
                    .all(|(_, name)| {
                        let name = name.as_str().unwrap();
                        object.contains_key(name) && !failed.contains(name)
                    })
            }
            _ => true,
        };
        self.open.remove(&guard);
        selected
    }

    fn link(&mut self, slot: Node, schema: Schema) -> bool {
        let hop = self.hop(&slot, &[], Some(&schema));
        if self.covered(&hop) && !hop.doc.is_named_like(&slot.doc) {
            return true;
        }
        let (node, schema) = self.path_walk(slot, Vec::new(), Some(schema), Last::Redirect);
        let schema = schema.unwrap();
        if node.value.is_undefined() {
            return type_check(&mut self.pool, &schema, TypeName::Undefined) != Verdict::No;
        }
        let (node, schema) = self.path_walk(node, Vec::new(), Some(schema), Last::Value);
        self.walk(node, schema.unwrap())
    }

    fn element(&mut self, array: &Node, index: usize, element: &Value, schema: &Schema) -> bool {
        let item = narrow(&mut self.pool, schema, &[index.to_string().as_str().into()]);
        let mut path = array.path.clone();
        path.push(index.to_string());
        let mut node = Node {
            doc: array.doc.clone(),
            path: path.clone(),
            value: element.clone(),
        };
        let mut under = item.clone();
        if payload(element).is_some() {
            let hop = self.hop(&node, &[], Some(&item));
            if self.covered(&hop) && !hop.doc.is_named_like(&node.doc) {
                return true;
            }
            let mut reached = self.path_walk(node, Vec::new(), Some(item.clone()), Last::Redirect);
            if payload(&reached.0.value).is_some() {
                reached = self.follow(reached.0, Vec::new(), reached.1, Last::Top);
            }
            (node, under) = (reached.0, reached.1.unwrap());
        } else if matches!(element, Value::Object(_) | Value::Array(_)) && !item.is_handle() {
            node.doc.inline.push(path);
            node.path = vec!["value".into()];
        }
        self.walk(node, under)
            || [TypeName::Undefined, TypeName::Null]
                .iter()
                .any(|ty| type_check(&mut self.pool, &item, *ty) != Verdict::No)
    }

    fn everything(&mut self, node: Node) {
        if payload(&node.value).is_some() {
            return self.everything_behind(node, false);
        }
        let guard = ((node.doc.clone(), node.path.clone()), "everything".into());
        if !self.open.insert(guard.clone()) {
            return;
        }
        let members: Vec<(String, Value, bool)> = match &node.value {
            Value::Object(object) => object
                .iter()
                .map(|(k, v)| (k.to_string(), v.clone(), false))
                .collect(),
            Value::Array(array) => array
                .elements()
                .map(|(i, v)| (i.to_string(), v.clone(), true))
                .collect(),
            _ => Vec::new(),
        };
        for (segment, value, element) in members {
            let mut path = node.path.clone();
            path.push(segment);
            let child = Node {
                doc: node.doc.clone(),
                path,
                value,
            };
            match element && payload(&child.value).is_some() {
                true => self.everything_behind(child, true),
                false => self.everything(child),
            }
        }
        self.open.remove(&guard);
    }

    fn everything_behind(&mut self, slot: Node, element: bool) {
        let everything = || Some(Schema::everything());
        let hop = self.hop(&slot, &[], everything().as_ref());
        let covered = !element && self.covered(&hop);
        let (node, schema) = self.path_walk(slot.clone(), Vec::new(), everything(), Last::Redirect);
        if node.value.is_undefined() || (covered && !node.doc.is_named_like(&slot.doc)) {
            return;
        }
        let node = match element && payload(&node.value).is_some() {
            true => self.follow(node, Vec::new(), schema, Last::Top).0,
            false => node,
        };
        let (node, _) = self.path_walk(node, Vec::new(), everything(), Last::Value);
        match hop.own.filter(|own| !element && !own.is_true_like()) {
            Some(own) => {
                self.walk(node, own);
            }
            None => self.everything(node),
        }
    }
}
