//! The state of one walk and the small steps all its parts share. `walk`, `containers`, `hop`, `everything`,
//! `metadata` and `closure` add the rules; `query` and `read` are the ways in.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::build::{Build, Handle};
use super::chains::Target;
use super::deep::{self, Deep};
use super::memo::{Memo, Outcome, PlaceUnder};
use super::place::{DocIx, PlaceIx};
use super::schema::{Effort, Schema, SchemaPool};
use super::source::{Addr, DeadEnd, Dep, DocKey, DocSource, Link, TraverseError};
use super::tracker::{Order, Selector, Tracker};
use crate::ids::SpaceId;
use crate::js_string::JsString;
use crate::scope_key::{Scope, ScopeIdentity};
use crate::value::Value;

/// What a walk is for (TRV §13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Which documents are reached.
    Query,
    /// A value and what it depended on.
    Read,
    /// A read that walks into handles as well. A link met twice reads `null` the second time (TRV-305), so reads
    /// that need values never run like this.
    ReadWalkingCells,
}

/// What is visited once per walk: roots of one request share it (TRV-1101).
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(super) metadata: FxHashSet<DocKey>,
    /// The schema documents of each space; `None` for those that are absent or do not hold what their id says.
    pub(super) schema_documents: FxHashMap<(SpaceId, JsString), Option<Schema>>,
    absent: FxHashSet<DocKey>,
    narrowest: Scope,
}

impl Seen {
    /// Nothing visited yet.
    pub fn new() -> Seen {
        Seen::default()
    }

    /// The narrowest scope the walk had to resolve, whether or not it then read anything there. Another identity
    /// sees the same only if it can resolve that too.
    pub fn narrowest_scope(&self) -> Scope {
        self.narrowest
    }

    /// The link targets that were absent, or in which a leaf stood in the way of the link's path. They are not tracked
    /// for those links (TRV-302), so that a change of theirs has to be looked out for.
    pub fn absent(&self) -> impl ExactSizeIterator<Item = &DocKey> + '_ {
        self.absent.iter()
    }
}

/// Places that one walk may have open at once before it fails (TRV-1501).
pub const MAX_OPEN_PLACES: usize = 100_000;

/// Segments from which on a tracked selector's path counts among what a walk leaves behind.
const LONG_PATH: usize = 32;

/// Parts of new schemas, and segments of long selectors, that one walk may leave behind before it fails: its memory beside
/// the documents (TRV-1503).
const MAX_MADE: u64 = 2_000_000;

/// Parts of schemas that one walk may look at before it fails: its time beside the documents (TRV-1502).
const MAX_LOOKED: u64 = 400_000_000;

/// What a walk works on. Everything here belongs to the caller and outlives the walk.
pub struct Ctx<'a, T> {
    /// What the walk is for.
    pub mode: Mode,
    /// Who is asking: resolves scope names and does nothing else (TRV-1).
    pub identity: &'a ScopeIdentity,
    /// What has been reached.
    pub tracker: &'a mut Tracker,
    /// Outcomes so far. A walk that starts after a removal from `tracker` needs an empty one (TRV-311).
    pub memo: &'a mut Memo<T>,
    /// Interned schemas.
    pub schemas: &'a mut SchemaPool,
    /// What this walk has visited.
    pub seen: &'a mut Seen,
    /// [`MAX_OPEN_PLACES`], or a tighter bound.
    pub max_open: usize,
    /// Whether the everything walk of a query leaves out links whose reach it has walked before (decision 24).
    /// The tracked documents and selectors are the same either way.
    pub skip_walked: bool,
}

/// A place and the value stored there.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: PlaceIx,
    pub(super) value: Value,
}

/// What results at a node are named by (TRV-1220), and the schema that arrived there.
#[derive(Clone, Debug)]
pub(super) struct Position {
    pub(super) place: PlaceIx,
    pub(super) schema: Option<Schema>,
}

/// The unions opened at one place without moving: meeting one again leads nowhere.
pub(super) struct Still {
    pub(super) schema: Schema,
    pub(super) above: Option<Rc<Still>>,
}

pub(super) type Selected<B> = Result<Outcome<<B as Build>::Out>, TraverseError>;

/// One walk. Parts are borrowed for one small step at a time, never across a frame.
pub(super) struct Walker<'a, B: Build> {
    pub(super) mode: Mode,
    pub(super) identity: &'a ScopeIdentity,
    pub(super) skip_walked: bool,
    pub(super) source: RefCell<&'a mut dyn DocSource>,
    pub(super) build: RefCell<&'a mut B>,
    pub(super) tracker: RefCell<&'a mut Tracker>,
    pub(super) memo: RefCell<&'a mut Memo<B::Out>>,
    pub(super) pool: RefCell<&'a mut SchemaPool>,
    pub(super) seen: RefCell<&'a mut Seen>,
    /// Links being followed (TRV-403.4).
    pub(super) following: RefCell<FxHashSet<PlaceUnder>>,
    /// Containers under construction (TRV-511).
    pub(super) open: RefCell<FxHashMap<PlaceUnder, B::Out>>,
    /// How many handle properties the walk is inside of (TRV-1221).
    pub(super) inside_handles: Cell<u32>,
    /// What the pool's functions had done before the walk.
    before: Effort,
    /// Segments of the selectors that the walk tracked.
    segments: Cell<u64>,
    /// The tracked entry by which a query came into the document it is in: what is found there rests on it.
    /// Whoever follows a link sets it back afterwards.
    pub(super) entered: Cell<Option<Order>>,
    /// How many links with a schema of their own were followed.
    pub(super) schemas_crossed: Cell<u32>,
    /// Set while a refresh follows the chain of links on from an entry: the targets of the links that the chain may have
    /// followed until it came there.
    pub(super) resumed: RefCell<Option<FxHashSet<Target>>>,
}

/// A running walk: the walker and the way to open frames.
pub(super) struct Run<'w, 'a, B: Build> {
    pub(super) walker: &'w Walker<'a, B>,
    pub(super) deep: Deep<'w>,
}

impl<B: Build> Clone for Run<'_, '_, B> {
    fn clone(&self) -> Self {
        Run {
            walker: self.walker,
            deep: self.deep.clone(),
        }
    }
}

impl<'a, B: Build> Walker<'a, B> {
    pub(super) fn new(
        source: &'a mut dyn DocSource,
        build: &'a mut B,
        ctx: &'a mut Ctx<'_, B::Out>,
    ) -> Result<Walker<'a, B>, TraverseError> {
        ctx.memo.bind(ctx.identity)?;
        let before = ctx.schemas.effort;
        Ok(Walker {
            mode: ctx.mode,
            identity: ctx.identity,
            skip_walked: ctx.skip_walked && ctx.mode == Mode::Query,
            source: RefCell::new(source),
            build: RefCell::new(build),
            tracker: RefCell::new(ctx.tracker),
            memo: RefCell::new(ctx.memo),
            pool: RefCell::new(ctx.schemas),
            seen: RefCell::new(ctx.seen),
            following: RefCell::default(),
            open: RefCell::default(),
            inside_handles: Cell::new(0),
            before,
            segments: Cell::new(0),
            entered: Cell::new(None),
            schemas_crossed: Cell::new(0),
            resumed: RefCell::new(None),
        })
    }

    /// Fails when schemas or selectors multiply beyond all use.
    pub(super) fn afford(&self) -> Result<(), TraverseError> {
        let now = self.pool.borrow().effort;
        let made = now.made - self.before.made + self.segments.get();
        if made > MAX_MADE || now.looked - self.before.looked > MAX_LOOKED {
            return Err(TraverseError::TooCostly);
        }
        Ok(())
    }

    /// Runs one frame and all it opens.
    pub(super) fn run<'w, T: 'w, F>(
        &'w self,
        max_open: usize,
        body: impl FnOnce(Run<'w, 'a, B>) -> F,
    ) -> Result<T, TraverseError>
    where
        F: Future<Output = Result<T, TraverseError>> + 'w,
    {
        deep::run(max_open, |deep| body(Run { walker: self, deep }))
            .unwrap_or(Err(TraverseError::TooDeep { limit: max_open }))
    }

    pub(super) fn building(&self) -> bool {
        B::BUILDS
    }

    /// True where covered links are skipped and metadata is followed (TRV-304).
    pub(super) fn tracks(&self) -> bool {
        match self.mode {
            Mode::Query | Mode::ReadWalkingCells => true,
            Mode::Read => false,
        }
    }

    pub(super) fn child(&self, parent: PlaceIx, segment: &JsString) -> PlaceIx {
        self.memo.borrow_mut().places.child(parent, segment)
    }

    pub(super) fn addr(&self, place: PlaceIx) -> Addr {
        self.memo.borrow().places.addr(place)
    }

    pub(super) fn doc_of(&self, place: PlaceIx) -> DocIx {
        self.memo.borrow().places.doc_of(place)
    }

    pub(super) fn key(&self, doc: DocIx) -> Result<DocKey, TraverseError> {
        let mut memo = self.memo.borrow_mut();
        let scope = memo.places.scope(doc);
        if scope != Scope::Space {
            let mut seen = self.seen.borrow_mut();
            seen.narrowest = seen.narrowest.max(scope);
        }
        Ok(memo.places.key(doc, self.identity)?)
    }

    /// Tracks a document that the one the walk is in leads to.
    pub(super) fn track(&self, target: &DocKey, selector: &Selector) -> Result<Order, TraverseError> {
        if selector.path.len() > LONG_PATH && self.tracker.borrow().entry(target, selector).is_none() {
            let segments = self.segments.get() + selector.path.len() as u64;
            self.segments.set(segments);
            self.afford()?;
        }
        Ok(self.track_from(self.entered.get(), target, selector))
    }

    /// Tracks a document that what was entered by `from` leads to.
    pub(super) fn track_from(&self, from: Option<Order>, target: &DocKey, selector: &Selector) -> Order {
        let mut tracker = self.tracker.borrow_mut();
        let order = tracker.enter(target, selector);
        if let Some(from) = from {
            tracker.support(from, order);
        }
        order
    }

    /// Records that the document the walk is in leads to what has been walked before.
    pub(super) fn leads_to_known(&self, target: &DocKey, selector: &Selector) {
        if let Some(from) = self.entered.get() {
            self.tracker.borrow_mut().support_known(from, target, selector);
        }
    }

    /// The root of a document: written out in its id, or from the source. A query never reads `data:` ids (TRV-204).
    pub(super) fn load(&self, doc: DocIx) -> Result<Option<Value>, TraverseError> {
        let written_out = self.memo.borrow().places.is_written_out(doc);
        if written_out {
            return Ok(match self.mode {
                Mode::Query => None,
                Mode::Read | Mode::ReadWalkingCells => self.memo.borrow().places.written_out_root(doc),
            });
        }
        let key = self.key(doc)?;
        self.source.borrow_mut().load(&key).map_err(TraverseError::Source)
    }

    /// Notes a dependency of a read (TRV-1221). What is written out in an id depends on nothing.
    pub(super) fn note(&self, place: PlaceIx, how: Dep) {
        if self.mode == Mode::Query || self.memo.borrow().places.is_written_out(self.doc_of(place)) {
            return;
        }
        let how = match (how, self.inside_handles.get()) {
            (how, 0) => how,
            (Dep::Shallow | Dep::ShallowNoConflict, _) => Dep::ShallowNoConflict,
            (Dep::Deep | Dep::DeepNoConflict, _) => Dep::DeepNoConflict,
        };
        let addr = self.addr(place);
        self.source.borrow_mut().note(&addr, how);
    }

    /// Reports a link target that is not there (TRV-1303).
    pub(super) fn report_missing(
        &self,
        doc: DocIx,
        link: impl FnOnce(&Self) -> Link,
        from: PlaceIx,
    ) -> Result<(), TraverseError> {
        match self.mode {
            Mode::Query => self.await_target(doc)?,
            Mode::Read | Mode::ReadWalkingCells => {
                let link = link(self);
                let space = self.memo.borrow().places.space(self.doc_of(from)).clone();
                self.source.borrow_mut().missing(&link, &space);
            }
        }
        Ok(())
    }

    /// Remembers a link target that a walk did not get into and that is not tracked for it (TRV-302): what the walk
    /// reached has to be found anew once that document changes.
    pub(super) fn await_target(&self, doc: DocIx) -> Result<(), TraverseError> {
        if self.mode == Mode::Query && !self.memo.borrow().places.is_written_out(doc) {
            let key = self.key(doc)?;
            self.seen.borrow_mut().absent.insert(key);
        }
        Ok(())
    }

    pub(super) fn report_dead_end(&self, place: PlaceIx, why: &DeadEnd) {
        let addr = self.addr(place);
        self.source.borrow_mut().dead_end(&addr, why);
    }

    pub(super) fn leaf(&self, value: &Value) -> B::Out {
        self.build.borrow_mut().leaf(value)
    }

    /// The handle at a place, without looking at what is there. `undefined` for a union of handles (TRV-1214).
    pub(super) fn handle_at(&self, place: PlaceIx, schema: &Schema) -> B::Out {
        if !self.building() {
            return self.leaf(&Value::Undefined);
        }
        let unwrapped = super::handles::unwrap(&mut self.pool.borrow_mut(), schema);
        match unwrapped {
            Some((kind, schema)) => {
                let at = self.addr(place);
                self.build.borrow_mut().handle(Handle {
                    kind,
                    link: Link {
                        at,
                        schema: Some(schema),
                    },
                })
            }
            None => self.leaf(&Value::Undefined),
        }
    }
}
