//! The path walk and the link hop (TRV §4): from a node along the rest of a selector's path, through links. A
//! selector is carried as what is left of its path and its schema: descending by path, selector path = place + rest
//! always holds (TRV-405).

use std::collections::VecDeque;

use super::build::Build;
use super::chains::Target;
use super::combine;
use super::memo::PlaceUnder;
use super::narrow;
use super::place::{DocIx, DocName, PlaceIx};
use super::schema::{ByAddress, Schema};
use super::scope_cap;
use super::slot::{self, LinkSchema, ParsedLink, Raw};
use super::source::{DeadEnd, Dep, DocPath, Link, TraverseError};
use super::tracker::Selector;
use super::walker::{Mode, Node, Walker};
use crate::js_string::JsString;
use crate::value::{Value, index_rank};

/// Which links are followed once the path is used up (TRV-401).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Last {
    /// All.
    Value,
    /// Redirects.
    Redirect,
}

/// Where a path walk ended. A dead end is the value `undefined`.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) node: Node,
    /// The re-rooted selector's schema there.
    pub(super) schema: Option<Schema>,
}

/// A link ready to be followed: its target and the selector that applies there.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) link: ParsedLink,
    pub(super) target: DocIx,
    /// S' of TRV-403: path = target path + rest.
    pub(super) selector: Selector,
    /// The link's own schema as far as it counts: `false` when it is malformed or its closure is incomplete.
    pub(super) own_schema: Option<Schema>,
}

/// How the target of a hop may be entered.
enum Entry {
    /// On from here.
    At {
        place: PlaceIx,
        value: Value,
        unread: DocPath,
    },
    DeadEnd(Node),
}

impl<B: Build> Walker<'_, B> {
    /// Reads the link stored at `slot` and re-roots the selector `{slot path + rest, schema}` (TRV-406). `None`:
    /// the stored link cannot be read.
    pub(super) fn hop(
        &self,
        slot: &Node,
        rest: &[JsString],
        schema: Option<&Schema>,
    ) -> Result<Option<Hop>, TraverseError> {
        let Some(payload) = slot::link_payload(&slot.value) else {
            return Ok(None);
        };
        let base_doc = self.doc_of(slot.place);
        let base = self.base_name(base_doc, payload);
        let link = match slot::parse(payload, &base) {
            Ok(link) => link,
            Err(why) => {
                self.report_dead_end(slot.place, &why);
                return Ok(None);
            }
        };
        let own_schema = match &link.schema {
            LinkSchema::Absent => None,
            LinkSchema::Malformed => {
                self.report_dead_end(slot.place, &DeadEnd::MalformedLinkSchema);
                Some(Schema::nothing())
            }
            LinkSchema::Present(own) => {
                let own = self.pool.borrow_mut().adopt(own);
                Some(if self.admit(&own, slot.place)? {
                    own
                } else {
                    Schema::nothing()
                })
            }
        };
        // A link without id names the document it is stored in, pseudo documents included.
        let names_own = payload
            .member("id")
            .is_none_or(|id| matches!(id, Value::String(id) if id.is_empty()));
        let same_place = link.target.space == base.space && link.target.scope == base.scope;
        let target = match names_own && same_place {
            true => base_doc,
            false => self.memo.borrow_mut().places.doc(&link.target),
        };
        let mut pool = self.pool.borrow_mut();
        let narrowed = match (&own_schema, rest) {
            (Some(own), [_, ..]) => narrow::schema_at_path(&mut pool, own, rest),
            (own, _) => own.clone(),
        };
        let combined = combine::combine_optional(&mut pool, schema, narrowed.as_ref());
        let path: std::sync::Arc<[JsString]> = match (link.path.len(), rest) {
            (1, []) => super::tracker::value_path(),
            _ => link.path.iter().chain(rest).cloned().collect(),
        };
        Ok(Some(Hop {
            selector: Selector {
                path,
                schema: combined,
            },
            target,
            own_schema,
            link,
        }))
    }

    /// The name that relative links resolve against. A pseudo document's id is written only for links that lack
    /// one of their own, and those are recognised before it is read.
    fn base_name(&self, doc: DocIx, payload: &Value) -> DocName {
        let memo = self.memo.borrow();
        let has_id = matches!(payload.member("id"), Some(Value::String(id)) if !id.is_empty());
        let id = if has_id {
            Default::default()
        } else {
            memo.places.id(doc)
        };
        DocName {
            space: memo.places.space(doc).clone(),
            id,
            scope: memo.places.scope(doc),
        }
    }

    /// TRV-303 and 304: something tracked at the hop's target makes the hop unnecessary. Resolves the target's
    /// scope, so it fails where that cannot be done (TRV-1005).
    pub(super) fn hop_covered(&self, hop: &Hop) -> Result<bool, TraverseError> {
        let key = self.key(hop.target)?;
        let covered = self.tracker.borrow().covers(&key, &hop.selector);
        if covered {
            self.leads_to_known(&key, &hop.selector);
        }
        Ok(covered)
    }

    pub(super) fn same_id(&self, a: DocIx, b: DocIx) -> bool {
        self.memo.borrow().places.same_id(a, b)
    }

    /// TRV-401: walks `rest` from `node`, through links, and on from there as `last` says.
    pub(super) fn path_walk(
        &self,
        node: Node,
        rest: &[JsString],
        schema: Option<Schema>,
        last: Last,
        first_hop: Option<Hop>,
    ) -> Result<Reached, TraverseError> {
        let mut followed = Vec::new();
        let reached = self.walk_on(
            node,
            rest.to_vec().into(),
            schema,
            Some(last),
            first_hop,
            &mut followed,
        );
        self.end_following(followed);
        reached
    }

    /// Follows exactly the link stored at `node` (TRV-508): `top` follows nothing at the end.
    pub(super) fn follow_one(&self, node: Node, schema: Option<Schema>) -> Result<Reached, TraverseError> {
        let mut followed = Vec::new();
        let first = self.hop(&node, &[], schema.as_ref())?;
        let reached = match first {
            Some(hop) => {
                self.enter(&node, &[], schema, hop, &mut followed)
                    .and_then(|entered| match entered {
                        (Entry::DeadEnd(node), schema) => Ok(Reached { node, schema }),
                        (Entry::At { place, value, unread }, schema) => self.walk_on(
                            Node { place, value },
                            unread.into(),
                            schema,
                            None,
                            None,
                            &mut followed,
                        ),
                    })
            }
            None => Ok(Reached {
                node: Node {
                    place: node.place,
                    value: Value::Undefined,
                },
                schema,
            }),
        };
        self.end_following(followed);
        reached
    }

    fn end_following(&self, followed: Vec<PlaceUnder>) {
        let mut following = self.following.borrow_mut();
        for pair in followed {
            following.remove(&pair);
        }
    }

    fn walk_on(
        &self,
        mut node: Node,
        mut rest: VecDeque<JsString>,
        mut schema: Option<Schema>,
        last: Option<Last>,
        mut first_hop: Option<Hop>,
        followed: &mut Vec<PlaceUnder>,
    ) -> Result<Reached, TraverseError> {
        loop {
            let followed_link = slot::link_payload(&node.value).is_some_and(|payload| {
                !rest.is_empty()
                    || match last {
                        Some(Last::Value) => true,
                        Some(Last::Redirect) => slot::is_redirect(payload),
                        None => false,
                    }
            });
            if followed_link {
                let hop = match first_hop.take() {
                    Some(hop) => Some(hop),
                    None => self.hop(&node, rest.make_contiguous(), schema.as_ref())?,
                };
                let Some(hop) = hop else {
                    self.note(node.place, Dep::Deep);
                    return Ok(Reached {
                        node: Node {
                            place: node.place,
                            value: Value::Undefined,
                        },
                        schema,
                    });
                };
                match self.enter(&node, rest.make_contiguous(), schema, hop, followed)? {
                    (Entry::DeadEnd(node), schema) => return Ok(Reached { node, schema }),
                    (Entry::At { place, value, unread }, re_rooted) => {
                        unread
                            .into_iter()
                            .rev()
                            .for_each(|segment| rest.push_front(segment));
                        (node, schema) = (Node { place, value }, re_rooted);
                        continue;
                    }
                }
            }
            let Some(segment) = rest.pop_front() else {
                return Ok(Reached { node, schema });
            };
            node = match step(&node.value, &segment) {
                Some(value) => Node {
                    place: self.child(node.place, &segment),
                    value,
                },
                None => {
                    let place = rest
                        .iter()
                        .fold(self.child(node.place, &segment), |at, next| self.child(at, next));
                    self.note(place, Dep::Shallow);
                    return Ok(Reached {
                        node: Node {
                            place,
                            value: Value::Undefined,
                        },
                        schema,
                    });
                }
            };
            self.note(node.place, Dep::Shallow);
        }
    }

    /// Steps 2–7 of TRV-403, up to the place where the path walk goes on.
    fn enter(
        &self,
        slot: &Node,
        rest: &[JsString],
        schema: Option<Schema>,
        hop: Hop,
        followed: &mut Vec<PlaceUnder>,
    ) -> Result<(Entry, Option<Schema>), TraverseError> {
        self.note(slot.place, Dep::Deep);
        let nowhere = |place| {
            Entry::DeadEnd(Node {
                place,
                value: Value::Undefined,
            })
        };
        let cap = schema
            .as_ref()
            .and_then(|schema| scope_cap::hop_cap(&mut self.pool.borrow_mut(), schema));
        if let Some(cap) = cap
            && !cap.admits(hop.link.target.scope)
        {
            self.report_dead_end(
                slot.place,
                &DeadEnd::Blocked {
                    scope: hop.link.target.scope,
                    cap,
                },
            );
            // The dead end stands at the slot's selector path in the target, as the reference has it.
            let path: DocPath = self
                .memo
                .borrow()
                .places
                .path(slot.place)
                .iter()
                .chain(rest)
                .cloned()
                .collect();
            let place = self.memo.borrow_mut().places.at(hop.target, &path);
            return Ok((nowhere(place), schema));
        }
        let Selector {
            path,
            schema: re_rooted,
        } = &hop.selector;
        let everything = re_rooted
            .as_ref()
            .is_some_and(|s| matches!(s.value(), Value::Bool(true)));
        let pair = (
            slot.place,
            re_rooted.clone().filter(|_| !everything).map(ByAddress),
        );
        if !self.following.borrow_mut().insert(pair.clone()) {
            if self.resumed.borrow().is_some() {
                self.tracker.borrow_mut().doubt_chain();
            }
            return Ok((nowhere(slot.place), schema));
        }
        followed.push(pair);
        self.doubt_if_followed_before(&hop)?;
        let at_target = self.memo.borrow_mut().places.at(hop.target, &hop.link.path);
        self.note(at_target, Dep::Shallow);
        let Some(root) = self.load(hop.target)? else {
            let schema = re_rooted.clone();
            let whole = path.to_vec();
            self.report_missing(
                hop.target,
                |walker| {
                    let mut at = walker.addr(at_target);
                    at.path = whole;
                    Link { at, schema }
                },
                slot.place,
            )?;
            return Ok((nowhere(at_target), re_rooted.clone()));
        };
        let raw = slot::raw_read(&root, &hop.link.path);
        if matches!(raw, Raw::Blocked) {
            self.await_target(hop.target)?;
            return Ok((nowhere(at_target), re_rooted.clone()));
        }
        if self.tracks() && !self.memo.borrow().places.is_written_out(hop.target) {
            let key = self.key(hop.target)?;
            let order = self.track(&key, &hop.selector)?;
            let ends_here =
                rest.is_empty() && matches!(&raw, Raw::Found(value) if slot::link_payload(value).is_none());
            if self.mode == Mode::Query {
                // The first link of a chain says nothing about it, unless the chain goes on.
                let first = followed.len() == 1 && self.resumed.borrow().is_none();
                if !first || !ends_here {
                    let before = self.entered.get().filter(|_| !first);
                    let target = Target::new(key, &hop.link.path);
                    self.tracker.borrow_mut().note_step(order, target, before);
                }
                self.entered.set(Some(order));
                self.schemas_crossed.set(
                    self.schemas_crossed
                        .get()
                        .saturating_add(u32::from(hop.own_schema.is_some())),
                );
                if !ends_here {
                    self.tracker.borrow_mut().mark_passing_on(order);
                }
            }
            self.follow_metadata(hop.target, &root)?;
        }
        let readable = match raw {
            Raw::Found(value) => {
                let entry = Entry::At {
                    place: at_target,
                    value,
                    unread: Vec::new(),
                };
                return Ok((entry, hop.selector.schema));
            }
            Raw::Undefined | Raw::Blocked => hop.link.path.len() - 1,
            Raw::Missing(k) => k - 1,
        };
        // Back up to the deepest existing container, never above `value`.
        let (read, unread) = hop.link.path.split_at(readable.max(1));
        let container = self.memo.borrow_mut().places.at(hop.target, read);
        let value = match slot::raw_read(&root, read) {
            Raw::Found(value) => value,
            Raw::Undefined | Raw::Missing(_) | Raw::Blocked => Value::Undefined,
        };
        self.note(container, Dep::Deep);
        Ok((
            Entry::At {
                place: container,
                value,
                unread: unread.to_vec(),
            },
            hop.selector.schema,
        ))
    }
}

impl<B: Build> Walker<'_, B> {
    /// A refresh that goes on with a chain where the chain may have been before learns too much: the chain would not have
    /// followed a link again (TRV-403.4).
    fn doubt_if_followed_before(&self, hop: &Hop) -> Result<(), TraverseError> {
        let resumed = self.resumed.borrow();
        let Some(before) = resumed.as_ref() else {
            return Ok(());
        };
        if !self.memo.borrow().places.is_written_out(hop.target) {
            let target = Target::new(self.key(hop.target)?, &hop.link.path);
            if before.contains(&target) {
                self.tracker.borrow_mut().doubt_chain();
            }
        }
        Ok(())
    }
}

/// TRV-402: one segment below a value that is no link.
fn step(value: &Value, segment: &JsString) -> Option<Value> {
    match value {
        Value::Array(array) if *segment == "length" => Some(Value::Number(array.len() as f64)),
        Value::Array(array) => {
            let element = index_rank(segment.as_bytes()).and_then(|index| array.get(index as usize));
            Some(element.cloned().unwrap_or(Value::Undefined))
        }
        Value::String(text) if *segment == "length" => Some(Value::Number(text.len_utf16() as f64)),
        Value::Object(object) => object.get_key(segment).cloned(),
        _ => None,
    }
}
