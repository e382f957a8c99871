//! The query driver (TRV §11): visiting one root of a graph query.

use rustc_hash::FxHashSet;

use super::build::Nothing;
use super::chains::Target;
use super::hop::Last;
use super::memo::Outcome;
use super::place::DocName;
use super::slot::{self, Raw};
use super::source::{DocKey, DocSource, TraverseError};
use super::tracker::{Selector, Walked, value_segment};
use super::walker::{Ctx, Node, Position, Run, Walker};
use crate::ids::{EntityId, SpaceId};
use crate::scope_key::Scope;
use crate::value::Value;

/// A document to visit. `explicit` is its key where the query names an instance outright; everything beyond the
/// root resolves under the walk's identity.
#[derive(Clone, Debug)]
pub struct Root {
    /// The space.
    pub space: SpaceId,
    /// The document.
    pub id: EntityId,
    /// The scope its relative links inherit.
    pub scope: Scope,
    /// The instance, where named outright.
    pub explicit: Option<DocKey>,
    /// The document's root, or `None` when it is absent.
    pub document: Option<Value>,
}

/// TRV-1101: visits `root` with `selector`. Everything reached is in the context's tracker afterwards; the outcome
/// says whether the selector's schema was satisfied, for diagnosis only.
///
/// # Errors
/// See [`TraverseError`]; the tracker keeps what was tracked before.
pub fn visit(
    source: &mut dyn DocSource,
    ctx: &mut Ctx<'_, ()>,
    root: &Root,
    selector: &Selector,
) -> Result<Outcome<()>, TraverseError> {
    let max_open = ctx.max_open;
    let mut nothing = Nothing;
    let walker = Walker::new(source, &mut nothing, ctx)?;
    walker.run(max_open, |run| run.visit(root, selector))
}

impl<'w, 'a> Run<'w, 'a, Nothing> {
    async fn visit(self, root: &'w Root, selector: &'w Selector) -> Result<Outcome<()>, TraverseError> {
        let walker = self.walker;
        let name = DocName {
            space: root.space.clone(),
            id: root.id.clone(),
            scope: root.scope,
        };
        let doc = walker.memo.borrow_mut().places.doc(&name);
        let key = match &root.explicit {
            Some(key) => key.clone(),
            None => walker.key(doc)?,
        };
        let passes_on = root.document.as_ref().is_some_and(|document| {
            let stored = slot::raw_read(document, &selector.path);
            !matches!(&stored, Raw::Found(value) if slot::link_payload(value).is_none())
        });
        let comes_back = walker.tracker.borrow().comes_back(&key, selector);
        if walker.tracker.borrow().covers(&key, selector) {
            // What comes back in a refresh is kept beside a wider selector, as where links led to both. A path on through
            // links is gone as well: a wider selector meets those links one by one, each with its own schema.
            let mut tracker = walker.tracker.borrow_mut();
            if !comes_back {
                return Ok(Ok(()));
            }
            tracker.enter(&key, selector);
            if !passes_on {
                return Ok(Ok(()));
            }
        }
        let order = walker.tracker.borrow_mut().enter_root(&key, selector);
        walker.entered.set(Some(order));
        let Some(document) = &root.document else {
            return Ok(Ok(()));
        };
        let mut resumed = None;
        if passes_on {
            let mut tracker = walker.tracker.borrow_mut();
            tracker.note_step(order, Target::new(key.clone(), &selector.path), None);
            // A link may have led here; a refresh goes on from the middle of its chain then.
            resumed = comes_back.then(|| tracker.followed_before(order));
        }
        let outcome = self.select_root(document, doc, selector, resumed).await;
        walker.entered.set(Some(order));
        let outcome = outcome?;
        if passes_on {
            walker.tracker.borrow_mut().mark_passing_on(order);
        }
        match slot::raw_read(document, &selector.path) {
            Raw::Found(link) if slot::link_payload(&link).is_some() => {
                if slot::link_payload(&link).is_some_and(|payload| payload.member("schema").is_some()) {
                    walker.tracker.borrow_mut().never_skip();
                }
            }
            Raw::Found(_) if walker.skip_walked && outcome.is_some() => {
                let everything = selector
                    .schema
                    .as_ref()
                    .is_some_and(super::schema::Schema::is_true_like);
                let walked = Walked {
                    selected: true,
                    everything,
                };
                walker.tracker.borrow_mut().mark_walked(&key, selector, walked);
            }
            Raw::Found(_) | Raw::Undefined | Raw::Missing(_) | Raw::Blocked => {}
        }
        walker.follow_metadata(doc, document)?;
        Ok(outcome.unwrap_or(Ok(())))
    }

    /// Steps 3 and 4. `None`: the path ended in nothing, or the schema selects nothing. `resumed`: see [`Walker`].
    async fn select_root(
        &self,
        document: &Value,
        doc: super::place::DocIx,
        selector: &Selector,
        resumed: Option<FxHashSet<Target>>,
    ) -> Result<Option<Outcome<()>>, TraverseError> {
        let walker = self.walker;
        let Some((first, rest)) = selector.path.split_first() else {
            return Ok(None);
        };
        if *first != value_segment() {
            return Ok(None);
        }
        let value = document.member("value").cloned().unwrap_or(Value::Undefined);
        let node = Node {
            place: walker.memo.borrow_mut().places.value(doc),
            value,
        };
        let schemas_crossed = walker.schemas_crossed.get();
        walker.resumed.replace(resumed);
        let reached = walker.path_walk(node, rest, selector.schema.clone(), Last::Value, None);
        walker.resumed.replace(None);
        let reached = reached?;
        if walker.schemas_crossed.get() > schemas_crossed {
            // A link with a schema is followed under it from here, and without regard to it from elsewhere.
            walker.tracker.borrow_mut().never_skip();
        }
        let Some(schema) = reached.schema.filter(|schema| !schema.is_literal_false()) else {
            return Ok(None);
        };
        if reached.node.value.is_undefined() {
            return Ok(None);
        }
        let place = reached.node.place;
        let usable = walker.admit(&schema, place)?;
        let key = walker.key(walker.doc_of(place))?;
        let path = walker.memo.borrow().places.path(place);
        walker.track(&key, &Selector::new(path, Some(schema.clone())))?;
        if !usable {
            return Ok(Some(Err(super::memo::Failure::SchemaRef)));
        }
        let position = Position { place, schema: None };
        Ok(Some(
            self.deep
                .call(self.clone().walk(reached.node, schema, position, None))
                .await?,
        ))
    }
}
