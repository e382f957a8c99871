//! The everything walk (TRV §6): below a true-like schema every member is visited and every link followed to its
//! end. Links whose reach has been walked under the very same selector are left out in queries (decision 24).

use std::sync::Arc;

use super::build::Build;
use super::hop::{Hop, Last, Reached};
use super::memo::visit_key;
use super::schema::Schema;
use super::slot;
use super::source::{Dep, TraverseError};
use super::tracker::{Order, Selector, Walked};
use super::walker::{Mode, Node, Position, Run, Walker};
use crate::js_string::JsString;
use crate::value::{SlotRef, Value};

/// Where a link was met: the two positions differ in which schema governs what is behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    AsMember,
    AsElement,
}

impl<'w, 'a, B: Build> Run<'w, 'a, B> {
    /// Visits everything below `node`. `default` stands in for an undefined value.
    pub(super) async fn everything(
        self,
        node: Node,
        position: Position,
        default: Option<Value>,
    ) -> Result<B::Out, TraverseError> {
        let walker = self.walker;
        if node.value.is_undefined() {
            // Not remembered: a dead end stands at a real place without being what is stored there.
            walker.note(node.place, Dep::Shallow);
            return Ok(walker.leaf(default.as_ref().unwrap_or(&Value::Undefined)));
        }
        let named_by = walker.building().then_some((position.place, None));
        let key = visit_key(node.place, true, None, named_by);
        if let Some(Ok(known)) = walker.memo.borrow().visit(&key) {
            return Ok(known);
        }
        walker.note(node.place, Dep::Shallow);
        let out = match &node.value {
            link if slot::link_payload(link).is_some() => {
                self.everything_behind(&node, Met::AsMember).await?
            }
            Value::Array(_) | Value::Object(_) => {
                let guard = (node.place, None);
                if let Some(open) = walker.open.borrow().get(&guard) {
                    return Ok(open.clone());
                }
                let at = walker.build_addr(position.place);
                let out = match &node.value {
                    Value::Array(_) => walker.build.borrow_mut().array(at),
                    _ => walker.build.borrow_mut().object(at),
                };
                walker.open.borrow_mut().insert(guard.clone(), out.clone());
                let filled = self.everything_inside(&node, &out).await;
                walker.open.borrow_mut().remove(&guard);
                filled?;
                out
            }
            leaf => walker.leaf(leaf),
        };
        walker.memo.borrow_mut().remember(key, &Ok(out.clone()));
        Ok(out)
    }

    async fn everything_inside(&self, node: &Node, out: &B::Out) -> Result<(), TraverseError> {
        let walker = self.walker;
        match &node.value {
            Value::Array(array) => {
                let mut index = 0usize;
                for slot in array.slots() {
                    match slot {
                        SlotRef::Value(element) => {
                            let element = self
                                .everything_at(
                                    node,
                                    &JsString::from(index.to_string()),
                                    element,
                                    Met::AsElement,
                                )
                                .await?;
                            walker.build.borrow_mut().push(out, Some(element));
                            index += 1;
                        }
                        SlotRef::Holes(n) => {
                            index += n as usize;
                            if walker.building() {
                                (0..n).for_each(|_| walker.build.borrow_mut().push(out, None));
                            }
                        }
                    }
                }
            }
            Value::Object(object) => {
                for (key, member) in object.iter() {
                    let member = self.everything_at(node, key, member, Met::AsMember).await?;
                    walker.build.borrow_mut().insert(out, key, member);
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn everything_at(
        &self,
        parent: &Node,
        segment: &JsString,
        value: &Value,
        met: Met,
    ) -> Result<B::Out, TraverseError> {
        let walker = self.walker;
        let container = matches!(value, Value::Array(_) | Value::Object(_));
        if !container && !walker.building() {
            return Ok(walker.leaf(value));
        }
        let node = Node {
            place: walker.child(parent.place, segment),
            value: value.clone(),
        };
        if met == Met::AsElement && slot::link_payload(value).is_some() {
            return self.everything_behind(&node, Met::AsElement).await;
        }
        let position = Position {
            place: node.place,
            schema: None,
        };
        self.deep
            .call(self.clone().everything(node, position, None))
            .await
    }

    /// TRV-602 and 603.
    async fn everything_behind(&self, slot: &Node, met: Met) -> Result<B::Out, TraverseError> {
        let here = self.walker.entered.get();
        let out = self.everything_at_the_end_of(slot, met, here).await;
        self.walker.entered.set(here);
        out
    }

    /// `here` is the entry by which the slot's document was entered.
    async fn everything_at_the_end_of(
        &self,
        slot: &Node,
        met: Met,
        here: Option<Order>,
    ) -> Result<B::Out, TraverseError> {
        let walker = self.walker;
        let null = || Ok(walker.leaf(&Value::Null));
        let everything = Schema::everything();
        let Some(hop) = walker.hop(slot, &[], Some(&everything))? else {
            walker.note(slot.place, Dep::Deep);
            return null();
        };
        let covered = met == Met::AsMember && walker.tracks() && walker.hop_covered(&hop)?;
        if self.walked_before(slot, &hop, met)? {
            return null();
        }
        let schemas_crossed = walker.schemas_crossed.get();
        let redirected = walker.path_walk(
            slot.clone(),
            &[],
            Some(everything.clone()),
            Last::Redirect,
            Some(hop.clone()),
        )?;
        if redirected.node.value.is_undefined() {
            if met == Met::AsElement && !hop.is_everything() {
                walker.go_beyond(here, &hop, true, &redirected.node, everything)?;
            }
            return null();
        }
        if covered && !walker.same_id(walker.doc_of(redirected.node.place), walker.doc_of(slot.place)) {
            return null();
        }
        let own = hop
            .own_schema
            .clone()
            .filter(|own| met == Met::AsMember && !own.is_true_like());
        let first = (redirected.node.place == slot.place).then(|| hop.clone());
        let Reached { node, .. } = match met {
            Met::AsMember => {
                walker.path_walk(redirected.node.clone(), &[], Some(everything), Last::Value, first)?
            }
            Met::AsElement => {
                let one = match slot::link_payload(&redirected.node.value) {
                    Some(_) => walker.follow_one(redirected.node.clone(), redirected.schema.clone())?,
                    None => redirected.clone(),
                };
                walker.path_walk(one.node, &[], Some(everything), Last::Value, None)?
            }
        };
        let walked = Walked {
            selected: own.is_some() || hop.is_everything(),
            everything: own.is_none(),
        };
        walker.mark(&hop, &node, walked)?;
        let position = Position {
            place: redirected.node.place,
            schema: None,
        };
        // How it goes on is what the tracked selectors say, unless they have it from other links' schemas.
        let schemas_crossed = walker.schemas_crossed.get() - schemas_crossed;
        let narrowed = schemas_crossed > u32::from(hop.own_schema.is_some());
        if narrowed || !(own.is_some() || hop.is_everything()) {
            let schema = own.clone().unwrap_or_else(Schema::everything);
            let redirect = redirected.node.place != slot.place;
            walker.go_beyond(here, &hop, redirect, &node, schema)?;
        }
        match own {
            Some(own) => {
                let selected = self
                    .deep
                    .call(self.clone().walk(node, own, position, None))
                    .await?;
                selected.map_or_else(|_| null(), Ok)
            }
            None => {
                self.deep
                    .call(self.clone().everything(node, position, None))
                    .await
            }
        }
    }

    /// Decision 24: exactly this selector was followed before, with the same continuation.
    fn walked_before(&self, slot: &Node, hop: &Hop, met: Met) -> Result<bool, TraverseError> {
        let walker = self.walker;
        if !walker.skip_walked
            || !walker.tracker.borrow().may_skip()
            || walker.same_id(hop.target, walker.doc_of(slot.place))
        {
            return Ok(false);
        }
        let key = walker.key(hop.target)?;
        let walked = walker.tracker.borrow().walked(&key, &hop.selector);
        let before = match met {
            Met::AsMember => walked.selected,
            Met::AsElement => walked.everything,
        };
        if before {
            walker.leads_to_known(&key, &hop.selector);
            if met == Met::AsElement && !hop.is_everything() {
                let beyond = Selector {
                    schema: Some(Schema::everything()),
                    ..hop.selector.clone()
                };
                walker.leads_to_known(&key, &beyond);
            }
        }
        Ok(before)
    }
}

impl Hop {
    /// True when the selector at the target selects everything there.
    pub(super) fn is_everything(&self) -> bool {
        self.selector.schema.as_ref().is_some_and(Schema::is_true_like)
    }
}

impl<B: Build> Walker<'_, B> {
    /// Records how far the reach behind a link is walked, from where it led to.
    pub(super) fn mark(&self, hop: &Hop, reached: &Node, walked: Walked) -> Result<(), TraverseError> {
        if self.skip_walked && self.is_direct(hop, reached) {
            let key = self.key(hop.target)?;
            self.tracker.borrow_mut().mark_walked(&key, &hop.selector, walked);
        }
        Ok(())
    }

    /// Records a walk that goes on under `schema` where the tracked selectors select less: behind an element's link
    /// with a schema (TRV-603), which a refresh then repeats, or behind a chain of links, which it does not.
    fn go_beyond(
        &self,
        here: Option<Order>,
        hop: &Hop,
        redirect: bool,
        reached: &Node,
        schema: Schema,
    ) -> Result<(), TraverseError> {
        let (Mode::Query, Some(here)) = (self.mode, here) else {
            return Ok(());
        };
        let key = self.key(hop.target)?;
        let Some(first) = self.tracker.borrow().entry(&key, &hop.selector) else {
            return Ok(());
        };
        // The link's own target, also while it is a link itself or there is nothing: it may come to be something else.
        let selector = Selector::new(Arc::clone(&hop.selector.path), Some(schema.clone()));
        let beyond = self.tracker.borrow_mut().mark_beyond(here, &key, &selector, true);
        if self.is_direct(hop, reached) {
            self.entered.set(beyond);
            return Ok(());
        }
        if reached.value.is_undefined() {
            if self.entered.get() != Some(first) {
                self.tracker.borrow_mut().never_skip();
            }
            return Ok(());
        }
        if redirect {
            self.tracker.borrow_mut().never_skip();
        }
        let doc = self.doc_of(reached.place);
        if self.memo.borrow().places.is_written_out(doc) {
            return Ok(());
        }
        let key = self.key(doc)?;
        let selector = Selector::new(self.memo.borrow().places.path(reached.place), Some(schema));
        if let Some(order) = self
            .tracker
            .borrow_mut()
            .mark_beyond(here, &key, &selector, false)
        {
            self.entered.set(Some(order));
        }
        Ok(())
    }

    /// True when the hop's target is no link itself, nor anything on the way to it: only then do all ways of following
    /// a link end the same. A dead end stands wherever it was met.
    fn is_direct(&self, hop: &Hop, reached: &Node) -> bool {
        !reached.value.is_undefined()
            && self.memo.borrow_mut().places.at(hop.target, &hop.link.path) == reached.place
    }

    /// The address of a place, when somebody is going to read it.
    pub(super) fn build_addr(&self, place: super::place::PlaceIx) -> super::source::Addr {
        if self.building() {
            self.addr(place)
        } else {
            super::source::Addr {
                space: Default::default(),
                id: Default::default(),
                scope: Default::default(),
                path: Vec::new(),
            }
        }
    }
}
