//! What a read asks for: roots, selectors, graph queries and watches (WIRE-746, 747, 751). A request is accepted
//! with these unchecked; the typed accessors here give the errors of WIRE-705 and SRV-116.

use smol_str::SmolStr;

use super::field::{elements, expected};
use crate::error::WireError;
use crate::ids::{BranchName, EntityId, Seq};
use crate::pointer::{DocPath, path_from_value, path_to_value};
use crate::scope_key::{Scope, ScopeKey};
use crate::value::{Object, Value};

/// Where in a document a read starts, and through which schema it looks.
#[derive(Clone, Debug)]
pub struct Selector {
    /// Path relative to the document's `value`.
    pub path: DocPath,
    /// A JSON Schema; absent behaves as `false` (SRV-503).
    pub schema: Option<Value>,
}

/// One root of a read.
#[derive(Clone, Debug)]
pub struct Root {
    /// The document.
    pub id: EntityId,
    /// Its scope. With an `entity_scope_key` this is that key's scope.
    pub scope: Scope,
    /// Names one stored instance; admissible for a live lease holder only (WIRE-747).
    pub entity_scope_key: Option<ScopeKey>,
    /// What to read of it.
    pub selector: Selector,
}

/// The `query` of `graph.query` and of a watch.
#[derive(Clone, Debug)]
pub struct GraphQuery {
    /// Where the walk starts.
    pub roots: Vec<Root>,
    /// Branch; the default branch is `""`.
    pub branch: BranchName,
    /// Read as of this seq; on a watch it is part of the identity only.
    pub at_seq: Option<Seq>,
    /// Part of a watch's identity; without effect on evaluation.
    pub exclude_sent: Option<bool>,
    /// A live query was asked for, which no longer exists.
    pub subscribe: bool,
}

/// The kind of a watch; both behave alike, and the kind is part of the watch's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchKind {
    /// `query`.
    Query,
    /// `graph`.
    Graph,
}

impl WatchKind {
    /// The wire text.
    pub fn as_str(self) -> &'static str {
        match self {
            WatchKind::Query => "query",
            WatchKind::Graph => "graph",
        }
    }
}

/// One entry of a session's watch list.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Chosen by the client; unique within a session.
    pub id: SmolStr,
    /// Which kind.
    pub kind: WatchKind,
    /// What it watches.
    pub query: GraphQuery,
}

impl Selector {
    /// Reads a selector; anything malformed is a `QueryError`, as the reference answers it.
    pub fn from_value(value: &Value) -> Result<Selector, WireError> {
        let path = value.member("path");
        Ok(Selector {
            path: path.and_then(path_from_value).ok_or_else(|| {
                WireError::query(expected("root.selector.path", "an array of strings", path))
            })?,
            schema: value.member("schema").cloned(),
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("path", path_to_value(&self.path));
        if let Some(schema) = &self.schema {
            object.insert("schema", schema.clone());
        }
        object.into()
    }
}

impl Root {
    /// A root of a document's value under a schema, in the given scope.
    pub fn new(id: impl Into<EntityId>, scope: Scope, selector: Selector) -> Root {
        Root {
            id: id.into(),
            scope,
            entity_scope_key: None,
            selector,
        }
    }

    /// Reads a root. A root that is no object is a `ProtocolError`, as is an `entityScopeKey` that is not
    /// canonical or contradicts the stated scope (SRV-604 row 1); a missing id or selector and an unknown scope
    /// are `QueryError`s.
    pub fn from_value(value: &Value) -> Result<Root, WireError> {
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                "query.roots",
                "an object for each root",
                Some(value),
            )));
        }
        let id = value
            .member("id")
            .and_then(Value::as_str)
            .map(EntityId::from)
            .ok_or_else(|| WireError::query(expected("root.id", "a string", value.member("id"))))?;
        let stated = match value.member("scope") {
            None => None,
            Some(name) => Some(name.as_str().and_then(Scope::from_name).ok_or_else(|| {
                WireError::query(expected(
                    "root.scope",
                    "\"space\", \"user\" or \"session\"",
                    Some(name),
                ))
            })?),
        };
        let entity_scope_key = match value.member("entityScopeKey") {
            None => None,
            Some(named) => {
                let key = named.as_str().and_then(|text| ScopeKey::parse(text).ok());
                let fitting = key.filter(|key| stated.is_none_or(|scope| scope == key.scope()));
                let spelled = match named {
                    Value::String(text) => text.to_string(),
                    other => super::field::describe(Some(other)),
                };
                Some(fitting.ok_or_else(|| {
                    WireError::protocol(format!(
                        "malformed entity_scope_key \"{spelled}\" on read root {id}"
                    ))
                })?)
            }
        };
        let selector = match value.member("selector") {
            Some(selector @ Value::Object(_)) => Selector::from_value(selector)?,
            other => return Err(WireError::query(expected("root.selector", "an object", other))),
        };
        let scope = stated
            .or(entity_scope_key.as_ref().map(ScopeKey::scope))
            .unwrap_or_default();
        Ok(Root {
            id,
            scope,
            entity_scope_key,
            selector,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        if self.scope != Scope::Space {
            object.insert("scope", self.scope.as_str());
        }
        if let Some(key) = &self.entity_scope_key {
            object.insert("entityScopeKey", key.as_str());
        }
        object.insert("selector", self.selector.to_value());
        object.into()
    }
}

impl GraphQuery {
    /// A query of the default branch.
    pub fn of(roots: Vec<Root>) -> GraphQuery {
        GraphQuery {
            roots,
            branch: BranchName::default(),
            at_seq: None,
            exclude_sent: None,
            subscribe: false,
        }
    }

    /// Reads a query. A query without an array of roots, and fields of the wrong type, are `ProtocolError`s.
    pub fn from_value(value: &Value) -> Result<GraphQuery, WireError> {
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected("query", "an object", Some(value))));
        }
        let Some(Value::Array(roots)) = value.member("roots") else {
            return Err(WireError::protocol(expected(
                "query.roots",
                "an array",
                value.member("roots"),
            )));
        };
        Ok(GraphQuery {
            roots: elements(roots)
                .iter()
                .map(Root::from_value)
                .collect::<Result<_, _>>()?,
            branch: match value.member("branch") {
                None => BranchName::default(),
                Some(name) => name
                    .as_str()
                    .map(BranchName::from)
                    .ok_or_else(|| WireError::protocol(expected("query.branch", "a string", Some(name))))?,
            },
            at_seq: match value.member("atSeq") {
                None => None,
                Some(seq) => Some(Seq::from_value(seq).ok_or_else(|| {
                    WireError::protocol(expected("query.atSeq", "a non-negative safe integer", Some(seq)))
                })?),
            },
            exclude_sent: match value.member("excludeSent") {
                None => None,
                Some(Value::Bool(exclude)) => Some(*exclude),
                other => {
                    return Err(WireError::protocol(expected(
                        "query.excludeSent",
                        "a boolean",
                        other,
                    )));
                }
            },
            subscribe: !matches!(value.member("subscribe"), None | Some(Value::Bool(false))),
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("roots", self.roots.iter().map(Root::to_value).collect::<Vec<_>>());
        if !self.branch.is_empty() {
            object.insert("branch", &self.branch);
        }
        if let Some(seq) = self.at_seq {
            object.insert("atSeq", seq);
        }
        if let Some(exclude) = self.exclude_sent {
            object.insert("excludeSent", exclude);
        }
        if self.subscribe {
            object.insert("subscribe", true);
        }
        object.into()
    }
}

impl Watch {
    /// Reads a watch; everything outside its roots is a `ProtocolError` naming the field.
    pub fn from_value(value: &Value) -> Result<Watch, WireError> {
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                "watches",
                "an object for each watch",
                Some(value),
            )));
        }
        let id = value.member("id");
        let kind = value.member("kind");
        Ok(Watch {
            id: id
                .and_then(Value::as_str)
                .map(SmolStr::new)
                .ok_or_else(|| WireError::protocol(expected("watch.id", "a string", id)))?,
            kind: match kind.and_then(Value::as_str) {
                Some("query") => WatchKind::Query,
                Some("graph") => WatchKind::Graph,
                Some(_) | None => {
                    return Err(WireError::protocol(expected(
                        "watch.kind",
                        "\"query\" or \"graph\"",
                        kind,
                    )));
                }
            },
            query: match value.member("query") {
                Some(query) => GraphQuery::from_value(query)?,
                None => return Err(WireError::protocol(expected("watch.query", "an object", None))),
            },
        })
    }

    /// Reads every element of a request's `watches`.
    pub fn list_from_values(values: &[Value]) -> Result<Vec<Watch>, WireError> {
        values.iter().map(Watch::from_value).collect()
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", self.id.as_str());
        object.insert("kind", self.kind.as_str());
        object.insert("query", self.query.to_value());
        object.into()
    }
}
