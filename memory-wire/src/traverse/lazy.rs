//! Lazy views (TRV-1230): the read of an action body, which looks at what it touches and depends on no more. Each
//! touched member is a read of its own under the narrowed schema; a mismatch shows only where a required member is
//! touched.

use indexmap::IndexMap;
use rustc_hash::FxHashSet;
use thiserror::Error;

use super::branch::{self, handle_branch};
use super::build::Handle;
use super::combine::{combine, combine_optional};
use super::distinct::Distinct;
use super::handles;
use super::narrow::{Marking, is_marker, narrow_item, narrow_step};
use super::place::DocName;
use super::read::{Entered, Entrance, ReadRequest, Reading, default_from, enter};
use super::refs;
use super::resolve::note_at;
use super::schema::{Combinator, Schema, SchemaPool, entries_of_as_cell, with_key, without_key};
use super::slot;
use super::source::{Addr, Dep, DocSource, Link, TraverseError};
use super::tracker::value_segment;
use super::type_check::{MAX_NESTED_OPTIONS, TypeName, Verdict, branch_may_match, type_check};
use super::walk;
use crate::codec;
use crate::hash::{Digest, hash_value};
use crate::ids::EntityId;
use crate::js_string::JsString;
use crate::scope_key::{Scope, ScopeIdentity};
use crate::value::{Object, Value, index_rank};

/// What a lazy read yields at one place.
#[derive(Clone, Debug)]
pub enum LazyRead {
    /// A scalar, `null`, `undefined` or a primitive special value.
    Leaf(Value),
    /// An object or array, opened member by member.
    View(LazyView),
    /// A handle.
    Handle(Handle),
    /// A reference that may not be looked into.
    Opaque(Addr),
    /// A view without schema that starts at this place.
    Live(Addr),
    /// A shaped default, whole.
    Default(Reading),
}

/// Why touching a member failed.
#[derive(Debug, Error)]
pub enum LazyError {
    /// A required member does not satisfy its schema.
    #[error("Schema mismatch at {at}: expected {expected}, found {found}")]
    Mismatch {
        /// `<id>/<path>`.
        at: String,
        /// The schema's `type` as JSON, or the schema.
        expected: String,
        /// The type of what is there.
        found: &'static str,
    },
    /// A required member lies behind a link to a document that is not here (RUN-214, 216).
    #[error(
        "Schema mismatch at {at}: unresolved input: the link chain dead-ends at a doc this replica cannot serve yet"
    )]
    UnresolvedInput {
        /// `<id>/<path>`.
        at: String,
    },
    /// The read itself failed.
    #[error(transparent)]
    Traverse(#[from] TraverseError),
}

/// An object or array as it was when the view was taken, under a schema.
#[derive(Clone, Debug)]
pub struct LazyView {
    position: Addr,
    at: Addr,
    value: Value,
    schema: Schema,
}

/// The outcome of one place before anybody says whether it is required.
enum Outcome {
    Read(LazyRead),
    Mismatch {
        at: Addr,
        schema: Schema,
        found: TypeName,
        unresolved: bool,
    },
}

/// Reads lazily. A mismatch at the entry is `undefined`.
///
/// # Errors
/// As [`super::read`].
pub fn read_lazily(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
) -> Result<LazyRead, TraverseError> {
    match place(source, schemas, request, false)? {
        Outcome::Read(read) => Ok(read),
        Outcome::Mismatch { at, .. } => {
            note_at(source, &at, Dep::Deep);
            Ok(LazyRead::Leaf(Value::Undefined))
        }
    }
}

impl LazyView {
    /// What the view names when it is written back.
    pub fn position(&self) -> &Addr {
        &self.position
    }

    /// True for an array.
    pub fn is_array(&self) -> bool {
        matches!(self.value, Value::Array(_))
    }

    /// Elements of an array, holes included; members of an object.
    pub fn len(&self) -> usize {
        match &self.value {
            Value::Array(array) => array.len(),
            Value::Object(object) => object.len(),
            _ => 0,
        }
    }

    /// True when nothing is stored below.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names a reader may touch: stored ones that the schema does not leave out, then declared defaults.
    pub fn keys(&self, schemas: &mut SchemaPool) -> Vec<JsString> {
        let mut keys: Vec<JsString> = match &self.value {
            Value::Object(object) => object.iter().map(|(key, _)| key.clone()).collect(),
            Value::Array(array) => return array.elements().map(|(i, _)| i.to_string().into()).collect(),
            _ => Vec::new(),
        };
        keys.retain(|key| self.member_schema(schemas, key).is_some());
        if let Some(Value::Object(properties)) = self.schema.keyword("properties") {
            for (name, _) in properties.iter() {
                let declared = self.member_schema(schemas, name);
                let default = declared.and_then(|schema| refs::resolve_ref(schemas, &schema));
                let is_stored = self
                    .value
                    .as_object()
                    .is_some_and(|stored| stored.get_key(name).is_some());
                if !is_stored && default.is_some_and(|schema| schema.keyword("default").is_some()) {
                    keys.push(name.clone());
                }
            }
        }
        keys
    }

    /// Touches a member. `None`: there is none, or the schema leaves it out.
    ///
    /// # Errors
    /// [`LazyError`] where a required member does not satisfy its schema.
    pub fn get(
        &self,
        source: &mut dyn DocSource,
        schemas: &mut SchemaPool,
        identity: &ScopeIdentity,
        key: &JsString,
    ) -> Result<Option<LazyRead>, LazyError> {
        let Some(schema) = self.member_schema(schemas, key) else {
            return Ok(None);
        };
        let stored = match &self.value {
            Value::Object(object) => object.get_key(key),
            Value::Array(array) => index_rank(key.as_bytes()).and_then(|index| array.get(index as usize)),
            _ => None,
        };
        let mut at = self.at.clone();
        at.path.push(key.clone());
        let Some(stored) = stored else {
            let default =
                refs::resolve_ref(schemas, &schema).filter(|schema| schema.keyword("default").is_some());
            let Some(default) = default else { return Ok(None) };
            return Ok(Some(match default.keyword("default") {
                Some(Value::Null) | None => LazyRead::Leaf(Value::Undefined),
                Some(_) => {
                    let link = Link {
                        at: at.clone(),
                        schema: None,
                    };
                    let request = ReadRequest::new(&link, identity);
                    LazyRead::Default(default_from(source, schemas, &request, &at, &default)?)
                }
            }));
        };
        if self.is_array() && is_inline_document(stored) && !schema.is_handle() {
            at = inline_address(&at, stored);
        }
        let link = Link {
            at,
            schema: Some(schema),
        };
        match place(source, schemas, &ReadRequest::new(&link, identity), true)? {
            Outcome::Read(read) => Ok(Some(read)),
            Outcome::Mismatch { .. } if !self.requires(key) => Ok(None),
            Outcome::Mismatch {
                at, unresolved: true, ..
            } => Err(LazyError::UnresolvedInput { at: place_text(&at) }),
            Outcome::Mismatch {
                at, schema, found, ..
            } => Err(LazyError::Mismatch {
                at: place_text(&at),
                expected: json(schema.keyword("type").unwrap_or(schema.value())),
                found: found.as_str(),
            }),
        }
    }

    fn requires(&self, key: &JsString) -> bool {
        let names = self.schema.keyword("required").and_then(Value::as_array);
        self.is_array()
            || names.is_some_and(|names| {
                names
                    .elements()
                    .any(|(_, n)| matches!(n, Value::String(n) if n == key))
            })
    }

    /// The schema of a member; `None` when it is left out without being read.
    fn member_schema(&self, schemas: &mut SchemaPool, key: &JsString) -> Option<Schema> {
        if self.schema.is_true_like() {
            return Some(self.schema.clone());
        }
        let schema = match self.schema.keyword("type") {
            Some(_) => self.schema.clone(),
            // An untyped schema's declared members count here (TRV-1230).
            None => {
                let ty = if self.is_array() { "array" } else { "object" };
                let object = self.schema.value().as_object()?;
                schemas.intern(&with_key(object, "type", Value::string(ty)).into())
            }
        };
        let member = match (&self.value, index_rank(key.as_bytes())) {
            (Value::Array(_), Some(index)) => narrow_item(schemas, &schema, index as usize),
            _ => narrow_step(schemas, &schema, key, Marking::Marked),
        };
        (!is_marker(&member) && !member.is_literal_false()).then_some(member)
    }
}

fn is_inline_document(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Array(_)) && slot::link_payload(value).is_none()
}

/// The pseudo document of an inline element (TRV-508).
fn inline_address(at: &Addr, element: &Value) -> Addr {
    let base = DocName {
        space: at.space.clone(),
        id: at.id.clone(),
        scope: at.scope,
    };
    let id = EntityId::inline(&slot::with_absolute_links(element, &base));
    match id {
        Ok(id) => Addr {
            id,
            path: vec![value_segment()],
            ..at.clone()
        },
        Err(_) => at.clone(),
    }
}

fn place_text(at: &Addr) -> String {
    let path: Vec<String> = at.path.iter().skip(1).map(ToString::to_string).collect();
    format!("{}/{}", at.id, path.join("/"))
}

fn json(value: &Value) -> String {
    let text = codec::encode(value).unwrap_or_default();
    text.strip_prefix(codec::PREFIX).unwrap_or(&text).to_owned()
}

/// One place, read lazily. Below the entry, a linked place is named by the link's target.
fn place(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    below: bool,
) -> Result<Outcome, TraverseError> {
    let entrance = match enter(source, schemas, request)? {
        Entered::Walk(entrance) => *entrance,
        Entered::Done(reading) => {
            return Ok(Outcome::Read(match reading.tree.node(reading.root) {
                super::build::Node::Handle(handle) => LazyRead::Handle(handle.clone()),
                super::build::Node::Live(at) => LazyRead::Live(at.clone()),
                _ => LazyRead::Leaf(Value::Undefined),
            }));
        }
    };
    let Entrance {
        position,
        end,
        value,
        branch,
        effective,
    } = entrance;
    let position = if below { end.link.at.clone() } else { position };
    if let Some(branch) = branch {
        return Ok(Outcome::Read(handle_or_undefined(schemas, &position, &branch)));
    }
    let schema = combine_optional(schemas, Some(&effective), end.link.schema.as_ref()).unwrap_or(effective);
    let ty = TypeName::of(&value);
    let unresolved = end.hops > 0 && !end.present && !end.blocked && end.link.at.scope == Scope::Space;
    let at = end.link.at;
    let mismatch = |schema: Schema| Outcome::Mismatch {
        at: at.clone(),
        schema,
        found: ty,
        unresolved,
    };
    let Some(resolved) = refs::resolve_ref(schemas, &schema) else {
        return Ok(mismatch(schema));
    };
    if value.is_undefined() {
        if resolved.keyword("default").is_some() {
            let reading = default_from(source, schemas, request, &at, &resolved)?;
            return Ok(Outcome::Read(LazyRead::Default(reading)));
        }
        let admitted = !unresolved && type_check(schemas, &resolved, TypeName::Undefined) != Verdict::No;
        return Ok(if admitted {
            Outcome::Read(LazyRead::Leaf(Value::Undefined))
        } else {
            mismatch(resolved)
        });
    }
    let Some(schema) = one_schema(schemas, &resolved, &value) else {
        return Ok(mismatch(resolved));
    };
    if entries_of_as_cell(schema.value()).is_some() {
        return Ok(Outcome::Read(handle_or_undefined(schemas, &position, &schema)));
    }
    if schema.is_true_like() {
        return Ok(Outcome::Read(LazyRead::Live(position)));
    }
    Ok(match type_check(schemas, &schema, ty) {
        Verdict::No => mismatch(schema),
        Verdict::Unknown => Outcome::Read(LazyRead::Opaque(position)),
        Verdict::Yes if ty == TypeName::Opaque => mismatch(schema),
        Verdict::Yes => match &value {
            Value::Object(_) | Value::Array(_) => {
                let required = branch_may_match(schemas, &schema, &value)
                    || has_required_defaults(schemas, &schema, &value);
                match required {
                    true => Outcome::Read(LazyRead::View(LazyView {
                        position,
                        at,
                        value,
                        schema,
                    })),
                    false => mismatch(schema),
                }
            }
            leaf => Outcome::Read(LazyRead::Leaf(leaf.clone())),
        },
    })
}

fn handle_or_undefined(schemas: &mut SchemaPool, at: &Addr, schema: &Schema) -> LazyRead {
    match handles::unwrap(schemas, schema) {
        Some((kind, rest)) => LazyRead::Handle(Handle {
            kind,
            link: Link {
                at: at.clone(),
                schema: Some(rest),
            },
        }),
        None => LazyRead::Leaf(Value::Undefined),
    }
}

/// Every required member that is not stored has a default.
fn has_required_defaults(schemas: &mut SchemaPool, schema: &Schema, value: &Value) -> bool {
    let (Some(object), Some(Value::Array(names))) = (value.as_object(), schema.keyword("required")) else {
        return false;
    };
    names.elements().all(|(_, name)| {
        let Value::String(name) = name else { return true };
        object.get_key(name).is_some() || {
            let member = narrow_step(schemas, schema, name, Marking::Plain);
            let resolved = refs::resolve_ref(schemas, &member);
            resolved.is_some_and(|member| !matches!(member.keyword("default"), None | Some(Value::Null)))
        }
    })
}

/// The schema without unions that holds for a known value: survivors of the prefilter, a handle option before
/// others, several object options as one.
fn one_schema(schemas: &mut SchemaPool, schema: &Schema, value: &Value) -> Option<Schema> {
    let mut opened: Vec<Schema> = Vec::new();
    let mut schema = schemas.adopt(schema);
    // A union that leads back to itself selects nothing.
    while opened.len() < MAX_NESTED_OPTIONS && !opened.iter().any(|open| open.ptr_eq(&schema)) {
        opened.push(schema.clone());
        match narrowed_once(schemas, &schema, value)? {
            Narrowed::Once(next) => schema = schemas.adopt(&next),
            Narrowed::Whole(one) => return Some(one),
        }
    }
    None
}

enum Narrowed {
    /// One union less.
    Once(Schema),
    /// No union is left.
    Whole(Schema),
}

/// One step of [`one_schema`]. `None`: no option survives.
fn narrowed_once(schemas: &mut SchemaPool, schema: &Schema, value: &Value) -> Option<Narrowed> {
    if let Some(branch) = handle_branch(schemas, schema, value) {
        return Some(Narrowed::Whole(branch));
    }
    for (keyword, combinator) in [("anyOf", Combinator::Any), ("oneOf", Combinator::One)] {
        if !matches!(schema.keyword(keyword), Some(Value::Array(_))) {
            continue;
        }
        let options = walk::options(schemas, schema, combinator)?;
        let survivors: Vec<Schema> = options
            .iter()
            .filter(|option| branch_may_match(schemas, option, value))
            .cloned()
            .collect();
        let outer = Schema::of(&without_key(schema.value().as_object()?, keyword).into());
        let one = match survivors.as_slice() {
            [] => return None,
            [one] => combine(schemas, Some(&outer), Some(one))?,
            [first, ..] if value.as_object().is_none() => first.clone(),
            several => united(schemas, several)?,
        };
        return Some(Narrowed::Once(refs::resolve_ref(schemas, &one)?));
    }
    if let Some(Value::Array(members)) = schema.keyword("allOf")
        && !members.is_empty()
    {
        let outer = Schema::of(&without_key(schema.value().as_object()?, "allOf").into());
        let combined = members.elements().try_fold(outer, |all, (_, member)| {
            let member = branch::with_definitions(schema, member);
            combine(schemas, Some(&all), Some(&member))
        })?;
        return Some(Narrowed::Whole(combined));
    }
    let whole = match (schema.keyword("type"), schema.value()) {
        (Some(Value::Array(types)), Value::Object(object)) => {
            let ty = TypeName::of(value);
            let matching = types
                .elements()
                .find(|(_, name)| name.as_str().is_some_and(|name| ty.matches(name)));
            match matching {
                Some((_, name)) => schemas.intern(&with_key(object, "type", name.clone()).into()),
                None => schema.clone(),
            }
        }
        _ => schema.clone(),
    };
    Some(Narrowed::Whole(whole))
}

/// One object schema for several object options: a property keeps its schema where all agree, else any of them;
/// required is what all require.
fn united(schemas: &mut SchemaPool, options: &[Schema]) -> Option<Schema> {
    let mut properties: IndexMap<JsString, Distinct> = IndexMap::new();
    let mut required: Option<Vec<Value>> = None;
    let mut open = false;
    for option in options {
        let resolved = refs::resolve_ref(schemas, option)?;
        if resolved.keyword("properties").is_none() {
            open = true;
        }
        if let Some(Value::Object(declared)) = resolved.keyword("properties") {
            for (name, property) in declared.iter() {
                let property = branch::with_definitions(&resolved, property).value().clone();
                properties.entry(name.clone()).or_default().add(&property);
            }
        }
        let names: Vec<Value> = match resolved.keyword("required") {
            Some(Value::Array(names)) => names.elements().map(|(_, name)| name.clone()).collect(),
            _ => Vec::new(),
        };
        required = Some(match required {
            None => names,
            Some(mut known) => {
                let names: FxHashSet<Digest> = names.iter().map(hash_value).collect();
                known.retain(|name| names.contains(&hash_value(name)));
                known
            }
        });
    }
    let properties: Object = properties
        .into_iter()
        .map(|(name, all)| {
            let mut all = all.into_values();
            let one = if all.len() == 1 {
                all.remove(0)
            } else {
                Object::from_entries(vec![("anyOf".into(), all.into())]).into()
            };
            (name, one)
        })
        .collect();
    let mut entries: Vec<(JsString, Value)> = vec![("type".into(), Value::string("object"))];
    if !open || !properties.is_empty() {
        entries.push(("properties".into(), properties.into()));
    }
    if open {
        entries.push(("additionalProperties".into(), Value::Bool(true)));
    }
    if let Some(names) = required.filter(|names| !names.is_empty()) {
        entries.push(("required".into(), names.into()));
    }
    Some(schemas.intern(&Object::from_entries(entries).into()))
}
