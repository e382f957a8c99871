//! The way into a read (TRV §12): resolve the address, combine the reader's schema with what the links on the way
//! say, and walk. The result is a [`Tree`]; views without schema in it are opened by whoever needs them, as reads
//! of their own.

use super::branch::handle_branch;
use super::build::{Build, Handle, NodeIx, Tree};
use super::handles;
use super::memo::Memo;
use super::place::DocName;
use super::refs;
use super::resolve::{Follow, Resolved, constrains, effective, load_at, note_at, resolve_link};
use super::schema::{Schema, SchemaPool, first_kind, without_key};
use super::scope_cap::ScopeCap;
use super::slot::{Raw, raw_read};
use super::source::{Addr, Dep, DocSource, Link, TraverseError};
use super::tracker::Tracker;
use super::walker::{Ctx, MAX_OPEN_PLACES, Mode, Node, Position, Seen, Walker};
use crate::scope_key::ScopeIdentity;
use crate::value::Value;

/// What is read, by whom.
#[derive(Clone, Debug)]
pub struct ReadRequest<'r> {
    /// The address and the reader's schema.
    pub link: &'r Link,
    /// Follow caps recorded at the depths of the value-relative path (RUN-213); empty when there are none.
    pub caps: &'r [Option<ScopeCap>],
    /// Who is reading.
    pub identity: &'r ScopeIdentity,
    /// Walk into handles as well (TRV-305: values may read `null` then).
    pub walk_cells: bool,
    /// [`MAX_OPEN_PLACES`], or a tighter bound.
    pub max_open: usize,
}

impl<'r> ReadRequest<'r> {
    /// A plain read.
    pub fn new(link: &'r Link, identity: &'r ScopeIdentity) -> ReadRequest<'r> {
        ReadRequest {
            link,
            caps: &[],
            identity,
            walk_cells: false,
            max_open: MAX_OPEN_PLACES,
        }
    }
}

/// A selected value.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The parts.
    pub tree: Tree,
    /// The whole.
    pub root: NodeIx,
}

impl Reading {
    fn of(make: impl FnOnce(&mut Tree) -> NodeIx) -> Reading {
        let mut tree = Tree::new();
        let root = make(&mut tree);
        Reading { tree, root }
    }
}

/// What steps 1–9 of TRV-1201 come to.
pub(super) enum Entered {
    /// Nothing needs a walk.
    Done(Reading),
    /// A walk, eager or lazy, from here.
    Walk(Box<Entrance>),
}

/// A position ready to be walked.
pub(super) struct Entrance {
    /// The redirect target: what the result is named by.
    pub(super) position: Addr,
    /// Where the value is.
    pub(super) end: Resolved,
    pub(super) value: Value,
    /// The handle branch that the value chose.
    pub(super) branch: Option<Schema>,
    /// The reader's schema combined with the redirect's.
    pub(super) effective: Schema,
}

/// TRV-1201: reads the value that the link's schema selects. Failure and absence are both `undefined` (TRV-1210).
///
/// # Errors
/// A loop at the address itself, a scope the identity cannot resolve, a default that contradicts its schema, depth,
/// or the source.
pub fn read(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
) -> Result<Reading, TraverseError> {
    match enter(source, schemas, request)? {
        Entered::Done(reading) => Ok(reading),
        Entered::Walk(entrance) => {
            let schema = entrance
                .branch
                .clone()
                .or_else(|| entrance.end.link.schema.clone());
            let schema = schema.unwrap_or_else(|| entrance.effective.clone());
            let Entrance {
                position, end, value, ..
            } = *entrance;
            walk_from(source, schemas, request, &position, &end.link.at, value, schema)
        }
    }
}

/// Steps 1–9.
pub(super) fn enter(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
) -> Result<Entered, TraverseError> {
    let start = request.link;
    let readers = match &start.schema {
        Some(schema) if constrains(schema) && !matches!(schema.value(), Value::Bool(_)) => {
            Some(refs::resolve_ref(schemas, schema).unwrap_or_else(Schema::nothing))
        }
        _ => None,
    };
    if let Some(schema) = &readers
        && first_kind(schema.value()).is_some_and(|kind| *kind == "opaque")
        && let Some((kind, rest)) = handles::unwrap(schemas, schema)
    {
        let link = Link {
            at: start.at.clone(),
            schema: Some(rest),
        };
        return Ok(Entered::Done(Reading::of(|tree| {
            tree.handle(Handle { kind, link })
        })));
    }
    let start = Link {
        at: start.at.clone(),
        schema: readers.clone(),
    };
    let redirected = resolve_link(
        source,
        schemas,
        request.identity,
        &start,
        request.caps,
        Follow::Redirects,
    )?;
    let effective = effective(schemas, readers.as_ref(), redirected.link.schema.as_ref());
    let Some(effective) = effective.filter(|schema| schema.is_handle() || selects(schema)) else {
        return Ok(Entered::Done(Reading::of(|tree| tree.live(redirected.link.at))));
    };
    let from = Link {
        at: redirected.link.at.clone(),
        schema: Some(effective.clone()),
    };
    let caps = if redirected.hops == 0 { request.caps } else { &[] };
    let mut end = resolve_link(source, schemas, request.identity, &from, caps, Follow::All)?;
    end.hops += redirected.hops;
    if effective.is_handle() {
        return handle_at_entry(source, schemas, request, &redirected.link.at, &effective).map(Entered::Done);
    }
    let value = read_value(source, request.identity, &end.link.at)?;
    let branch = handle_branch(schemas, &effective, &value);
    let entrance = Entrance {
        position: redirected.link.at,
        end,
        value,
        branch,
        effective,
    };
    Ok(Entered::Walk(Box::new(entrance)))
}

/// Something is left of the schema besides `asCell`.
fn selects(schema: &Schema) -> bool {
    match schema.value() {
        Value::Bool(everything) => !everything,
        Value::Object(object) => !without_key(object, "asCell").is_empty(),
        _ => true,
    }
}

/// Step 8.
fn read_value(
    source: &mut dyn DocSource,
    identity: &ScopeIdentity,
    at: &Addr,
) -> Result<Value, TraverseError> {
    note_at(source, at, Dep::Shallow);
    let Some(root) = load_at(source, identity, at)? else {
        return Ok(Value::Undefined);
    };
    Ok(match raw_read(&root, &at.path) {
        Raw::Found(value) => value,
        Raw::Undefined | Raw::Missing(_) => Value::Undefined,
        Raw::Blocked => match at.path.split_last() {
            Some((last, parent)) if *last == "length" => {
                let parent = Addr {
                    path: parent.to_vec(),
                    ..at.clone()
                };
                note_at(source, &parent, Dep::Shallow);
                match raw_read(&root, &parent.path) {
                    Raw::Found(Value::String(text)) => Value::Number(text.len_utf16() as f64),
                    Raw::Found(_) | Raw::Undefined | Raw::Missing(_) | Raw::Blocked => Value::Undefined,
                }
            }
            Some(_) | None => Value::Undefined,
        },
    })
}

/// Step 7: a handle at the redirect target, one link further if one is stored there.
fn handle_at_entry(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    at: &Addr,
    effective: &Schema,
) -> Result<Reading, TraverseError> {
    let stored = load_at(source, request.identity, at)?.map(|root| raw_read(&root, &at.path));
    let value = match stored {
        Some(Raw::Found(value)) => value,
        Some(Raw::Undefined | Raw::Missing(_) | Raw::Blocked) | None => Value::Undefined,
    };
    with_walker(source, schemas, request, |walker| {
        let place = place_of(walker, at);
        let outcome = walker.handle_over(&Node { place, value }, effective)?;
        Ok(outcome.unwrap_or_else(|_| walker.leaf(&Value::Undefined)))
    })
}

/// Step 10.
pub(super) fn walk_from(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    position: &Addr,
    at: &Addr,
    value: Value,
    schema: Schema,
) -> Result<Reading, TraverseError> {
    with_walker(source, schemas, request, |walker| {
        let place = place_of(walker, at);
        if !walker.admit(&schema, place)? {
            return Ok(walker.leaf(&Value::Undefined));
        }
        let position = Position {
            place: place_of(walker, position),
            schema: Some(schema.clone()),
        };
        let outcome = walker.run(request.max_open, |run| {
            run.walk(Node { place, value }, schema, position, None)
        })?;
        Ok(outcome.unwrap_or_else(|_| walker.leaf(&Value::Undefined)))
    })
}

/// The shaped default of a schema that stands for `at`.
pub(super) fn default_from(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    at: &Addr,
    schema: &Schema,
) -> Result<Reading, TraverseError> {
    with_walker(source, schemas, request, |walker| {
        walker.shape_default(schema, place_of(walker, at))
    })
}

fn with_walker(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    request: &ReadRequest<'_>,
    body: impl FnOnce(&Walker<'_, Tree>) -> Result<NodeIx, TraverseError>,
) -> Result<Reading, TraverseError> {
    let mut tree = Tree::new();
    let (mut tracker, mut memo, mut seen) = (Tracker::new(), Memo::new(), Seen::new());
    let mut ctx = Ctx {
        mode: if request.walk_cells {
            Mode::ReadWalkingCells
        } else {
            Mode::Read
        },
        identity: request.identity,
        tracker: &mut tracker,
        memo: &mut memo,
        schemas,
        seen: &mut seen,
        max_open: request.max_open,
        skip_walked: false,
    };
    let root = {
        let walker = Walker::new(source, &mut tree, &mut ctx)?;
        body(&walker)?
    };
    Ok(Reading { tree, root })
}

fn place_of(walker: &Walker<'_, Tree>, at: &Addr) -> super::place::PlaceIx {
    let mut memo = walker.memo.borrow_mut();
    let doc = memo.places.doc(&DocName {
        space: at.space.clone(),
        id: at.id.clone(),
        scope: at.scope,
    });
    memo.places.at(doc, &at.path)
}
