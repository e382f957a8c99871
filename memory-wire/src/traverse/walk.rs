//! The schema walk (TRV §5): one visit decides by the schema and the kind of value what is selected, in the order
//! of TRV-501. Unions and links are here, containers in `containers`, the walk below `true` in `everything`.

use std::rc::Rc;
use std::sync::Arc;

use super::build::{Build, Handle, merge_matches};
use super::handles;
use super::hop::Last;
use super::memo::{Failure, Outcome, visit_key};
use super::refs;
use super::schema::{
    ByAddress, Combinator, STEP_LIMIT, Schema, SchemaPool, entries_of_as_cell, first_kind, laid_over,
    without_key,
};
use super::scope_cap;
use super::slot;
use super::source::{DeadEnd, Dep, Link};
use super::tracker::Walked;
use super::type_check::{TypeName, Verdict, branch_may_match, is_accessor, type_check};
use super::walker::{Mode, Node, Position, Run, Selected, Still, Walker};
use crate::value::Value;

impl<'w, 'a, B: Build> Run<'w, 'a, B> {
    /// Visits `node` under `schema`. Results are named by `position`; `still` lists the unions that were opened at
    /// this very place.
    pub(super) async fn walk(
        self,
        node: Node,
        schema: Schema,
        position: Position,
        still: Option<Rc<Still>>,
    ) -> Selected<B> {
        let walker = self.walker;
        let schema = walker.pool.borrow_mut().adopt(&schema);
        let named_by = walker
            .building()
            .then_some((position.place, position.schema.as_ref()));
        // A dead end stands at a real place without being what is stored there, so the two are told apart.
        let found = !node.value.is_undefined();
        let key = visit_key(node.place, found, Some(&schema), named_by);
        if let Some(known) = walker.memo.borrow().visit(&key) {
            return Ok(known);
        }
        walker.afford()?;
        walker.note(node.place, Dep::Shallow);
        let outcome = self.select(&node, schema, &position, still).await?;
        walker.memo.borrow_mut().remember(key, &outcome);
        Ok(outcome)
    }

    /// TRV-501.
    async fn select(
        &self,
        node: &Node,
        unresolved: Schema,
        position: &Position,
        still: Option<Rc<Still>>,
    ) -> Selected<B> {
        let walker = self.walker;
        let resolved = refs::resolve_ref(&mut walker.pool.borrow_mut(), &unresolved);
        let Some(schema) = resolved else {
            return Ok(Err(Failure::SchemaRef));
        };
        let combinator = [
            ("anyOf", Combinator::Any),
            ("oneOf", Combinator::One),
            ("allOf", Combinator::All),
        ]
        .into_iter()
        .find_map(|(keyword, combinator)| match schema.keyword(keyword) {
            None | Some(Value::Null) => None,
            Some(Value::Array(members)) if combinator == Combinator::All && members.is_empty() => None,
            Some(_) => Some(combinator),
        });
        if let Some(combinator) = combinator {
            if node.value.is_undefined() && schema.keyword("default").is_some() {
                return walker.default_at(&schema, node.place);
            }
            return self.union(node, &schema, combinator, position, still).await;
        }
        let handle = schema.is_handle();
        if schema.is_true_like() && !handle {
            return self.select_everything(node, &schema, position).await;
        }
        if schema.is_false_like() && !handle {
            return Ok(Err(Failure::FalseSchema));
        }
        if first_kind(schema.value()).is_some_and(|kind| *kind == "opaque") {
            return Ok(Ok(walker.handle_at(node.place, &schema)));
        }
        if slot::link_payload(&node.value).is_some() {
            return self.link(node, &unresolved, position).await;
        }
        let ty = TypeName::of(&node.value);
        let verdict = type_check(&mut walker.pool.borrow_mut(), &schema, ty);
        if ty == TypeName::Undefined {
            if schema.keyword("default").is_some() {
                return walker.default_at(&schema, node.place);
            }
            return Ok(match verdict {
                Verdict::No => Err(Failure::Type),
                Verdict::Yes | Verdict::Unknown => {
                    Ok(walker.named(position, |walker| walker.leaf(&Value::Undefined)))
                }
            });
        }
        if verdict == Verdict::Unknown {
            return Ok(Ok(walker.named(position, |walker| {
                let at = walker.build_addr(position.place);
                walker.build.borrow_mut().opaque(at)
            })));
        }
        if ty == TypeName::Opaque {
            return Ok(Err(Failure::Value));
        }
        if verdict == Verdict::No {
            return Ok(Err(Failure::Type));
        }
        let selected = match &node.value {
            Value::Array(array) => self.array(node, array, &unresolved, &schema, position).await?,
            Value::Object(object) => self.object(node, object, &schema, position).await?,
            special if ty.is_fabric() => match missing_accessor(&schema, ty) {
                true => Err(Failure::Value),
                false => Ok(walker.leaf(special)),
            },
            scalar => Ok(walker.leaf(scalar)),
        };
        Ok(selected.map(|out| walker.named(position, |_| out)))
    }

    /// TRV-501.6.
    async fn select_everything(&self, node: &Node, schema: &Schema, position: &Position) -> Selected<B> {
        let walker = self.walker;
        let default = schema.keyword("default");
        match walker.mode {
            Mode::Query | Mode::ReadWalkingCells => {
                let walk = self
                    .clone()
                    .everything(node.clone(), position.clone(), default.cloned());
                Ok(Ok(self.deep.call(walk).await?))
            }
            Mode::Read => {
                walker.note(position.place, Dep::Deep);
                if node.value.is_undefined() {
                    return match default {
                        Some(_) => walker.default_at(schema, node.place),
                        None => Ok(Ok(walker.leaf(&Value::Undefined))),
                    };
                }
                let at = walker.addr(position.place);
                Ok(Ok(walker.build.borrow_mut().live(at)))
            }
        }
    }

    /// TRV-502…505.
    async fn union(
        &self,
        node: &Node,
        schema: &Schema,
        combinator: Combinator,
        position: &Position,
        still: Option<Rc<Still>>,
    ) -> Selected<B> {
        let walker = self.walker;
        let mut above = still.as_ref();
        while let Some(open) = above {
            if open.schema.ptr_eq(schema) {
                return Ok(Err(Failure::SchemaRef));
            }
            above = open.above.as_ref();
        }
        let options = options(&mut walker.pool.borrow_mut(), schema, combinator);
        let Some(options) = options else {
            return Ok(Err(Failure::Value));
        };
        let still = Some(Rc::new(Still {
            schema: schema.clone(),
            above: still,
        }));
        let mut matches: Vec<B::Out> = Vec::new();
        for option in options.iter() {
            match combinator {
                Combinator::Any => {
                    if !branch_may_match(&mut walker.pool.borrow_mut(), option, &node.value) {
                        continue;
                    }
                }
                Combinator::One => {}
                Combinator::All if option.is_false_like() => return Ok(Err(Failure::FalseAllOf)),
                Combinator::All => {}
            }
            let position = Position {
                place: position.place,
                schema: position.schema.is_some().then(|| option.clone()),
            };
            let walk = self
                .clone()
                .walk(node.clone(), option.clone(), position, still.clone());
            match (self.deep.call(walk).await?, combinator) {
                (Ok(out), _) => matches.push(out),
                (Err(failure), Combinator::All) => return Ok(Err(failure)),
                (Err(_), Combinator::Any | Combinator::One) => {}
            }
        }
        Ok(match (combinator, matches.len()) {
            (Combinator::Any, 0) => Err(Failure::NoAnyOf),
            (Combinator::One, 0) => Err(Failure::NoOneOf),
            (Combinator::One, 2..) => Err(Failure::ManyOneOf),
            (Combinator::Any | Combinator::One | Combinator::All, _) => {
                match merge_matches(&mut **walker.build.borrow_mut(), matches, schema) {
                    Some(out) => Ok(out),
                    None => Ok(walker.leaf(&Value::Undefined)),
                }
            }
        })
    }

    /// TRV-507.
    async fn link(&self, slot: &Node, schema: &Schema, position: &Position) -> Selected<B> {
        let here = self.walker.entered.get();
        let selected = self.behind_link(slot, schema, position).await;
        self.walker.entered.set(here);
        selected
    }

    async fn behind_link(&self, slot: &Node, schema: &Schema, position: &Position) -> Selected<B> {
        let walker = self.walker;
        let Some(hop) = walker.hop(slot, &[], Some(schema))? else {
            walker.note(slot.place, Dep::Deep);
            return self.at_dead_end(slot, schema, position).await;
        };
        let elsewhere = !walker.same_id(hop.target, walker.doc_of(slot.place));
        if walker.tracks() && walker.hop_covered(&hop)? && elsewhere {
            walker.note(slot.place, Dep::Deep);
            return Ok(Ok(walker.leaf(&Value::Null)));
        }
        let redirected = walker.path_walk(
            slot.clone(),
            &[],
            Some(schema.clone()),
            Last::Redirect,
            Some(hop.clone()),
        )?;
        let moved = redirected.node.place != slot.place;
        let re_rooted = redirected.schema.unwrap_or_else(Schema::everything);
        if redirected.node.value.is_undefined() {
            if re_rooted.is_handle() && walker.building() {
                return Ok(Ok(walker.handle_at(redirected.node.place, &re_rooted)));
            }
            return Ok(
                match type_check(&mut walker.pool.borrow_mut(), &re_rooted, TypeName::Undefined) {
                    Verdict::No => Err(Failure::UndefinedLink),
                    Verdict::Yes | Verdict::Unknown => Ok(walker.leaf(&Value::Undefined)),
                },
            );
        }
        if walker.mode == Mode::Read && schema.is_handle() {
            return walker.handle_over(&redirected.node, schema);
        }
        let first = (!moved).then(|| hop.clone());
        let end = walker.path_walk(redirected.node.clone(), &[], Some(re_rooted), Last::Value, first)?;
        let walked = Walked {
            selected: true,
            everything: hop.is_everything(),
        };
        walker.mark(&hop, &end.node, walked)?;
        let position = Position {
            place: redirected.node.place,
            schema: position.schema.clone(),
        };
        let schema = end.schema.unwrap_or_else(Schema::everything);
        self.deep
            .call(self.clone().walk(end.node, schema, position, None))
            .await
    }

    /// A link that cannot be read is an undefined value.
    async fn at_dead_end(&self, slot: &Node, schema: &Schema, position: &Position) -> Selected<B> {
        let nothing = Node {
            place: slot.place,
            value: Value::Undefined,
        };
        let pool = &self.walker.pool;
        let resolved = refs::resolve_ref(&mut pool.borrow_mut(), schema);
        let Some(schema) = resolved else {
            return Ok(Err(Failure::SchemaRef));
        };
        if schema.is_true_like() && !schema.is_handle() {
            return self.select_everything(&nothing, &schema, position).await;
        }
        if schema.keyword("default").is_some() {
            return self.walker.default_at(&schema, slot.place);
        }
        let verdict = type_check(&mut pool.borrow_mut(), &schema, TypeName::Undefined);
        Ok(if verdict == Verdict::No {
            Err(Failure::UndefinedLink)
        } else {
            Ok(self.walker.leaf(&Value::Undefined))
        })
    }
}

impl<B: Build> Walker<'_, B> {
    /// A success under a position that a handle schema arrived at is that handle; anything else is the value.
    pub(super) fn named(&self, position: &Position, value: impl FnOnce(&Self) -> B::Out) -> B::Out {
        match &position.schema {
            Some(schema) if self.building() && entries_of_as_cell(schema.value()).is_some() => {
                self.handle_at(position.place, schema)
            }
            _ => value(self),
        }
    }

    /// TRV-1212: the handle at a place that redirects have been followed to. A link stored there is followed once,
    /// by name only.
    pub(super) fn handle_over(&self, node: &Node, schema: &Schema) -> Selected<B> {
        let Some(hop) = self.hop(node, &[], None)? else {
            return Ok(Ok(self.handle_at(node.place, schema)));
        };
        self.note(node.place, Dep::Deep);
        let combined = handles::over_link(&mut self.pool.borrow_mut(), schema, hop.own_schema.as_ref());
        let combined = combined.unwrap_or_else(handles::open_schema);
        let unwrapped = handles::unwrap(&mut self.pool.borrow_mut(), &combined);
        let Some((kind, rest)) = unwrapped else {
            return self.union_of_handles(node, schema);
        };
        let target = self.memo.borrow_mut().places.at(hop.target, &hop.link.path);
        let mut at = self.addr(target);
        let scope = hop.link.target.scope;
        if let Some(cap) = scope_cap::handle_cap(schema)
            && !cap.admits(scope)
        {
            self.report_dead_end(node.place, &DeadEnd::Blocked { scope, cap });
            at = handles::nowhere(&at, scope);
        }
        let handle = Handle {
            kind,
            link: Link {
                at,
                schema: Some(rest),
            },
        };
        Ok(Ok(self.build.borrow_mut().handle(handle)))
    }

    /// A position where every option is a handle and none is chosen yet (TRV-1214).
    fn union_of_handles(&self, node: &Node, schema: &Schema) -> Selected<B> {
        Ok(Ok(self.handle_at(node.place, schema)))
    }
}

/// The options of a union, each merged over the rest of the schema (TRV-502). Options that are not handles come
/// first, except in `allOf`. `None`: the keyword is no list.
pub(super) fn options(
    pool: &mut SchemaPool,
    schema: &Schema,
    combinator: Combinator,
) -> Option<Arc<[Schema]>> {
    let key = (ByAddress(schema.clone()), combinator);
    if let Some(known) = pool.options.get(&key) {
        return known.clone();
    }
    let merged = merge_options(pool, schema, combinator);
    let misses = pool.misses;
    pool.remember(misses, |pool| &mut pool.options, key, &merged);
    merged
}

fn merge_options(pool: &mut SchemaPool, schema: &Schema, combinator: Combinator) -> Option<Arc<[Schema]>> {
    let keyword = match combinator {
        Combinator::Any => "anyOf",
        Combinator::One => "oneOf",
        Combinator::All => "allOf",
    };
    let members = schema.keyword(keyword)?.as_array()?;
    let rest = without_key(schema.value().as_object()?, keyword);
    if members.len().saturating_mul(rest.len() + 1) > STEP_LIMIT {
        return None;
    }
    let mut merged: Vec<Schema> = Vec::with_capacity(members.len().min(1024));
    for (_, member) in members.elements() {
        match member {
            Value::Bool(true) => merged.push(pool.intern(&Value::Object(rest.clone()))),
            Value::Object(option) => merged.push(pool.intern(&laid_over(&rest, option).into())),
            _ if combinator == Combinator::All => merged.push(Schema::nothing()),
            _ => {}
        }
    }
    if combinator != Combinator::All {
        merged.sort_by_key(Schema::is_handle);
    }
    Some(merged.into())
}

/// TRV-510.
fn missing_accessor(schema: &Schema, ty: TypeName) -> bool {
    let required = schema.keyword("required").and_then(Value::as_array);
    required.is_some_and(|names| {
        names.elements().any(|(_, name)| match name {
            Value::String(name) => !is_accessor(ty, name.as_bytes()),
            _ => false,
        })
    })
}

/// The outcome of a scalar under a schema whose `type` is all that matters, without visiting it: queries meet
/// mostly these. `None`: the schema needs a visit.
pub(super) fn scalar_outcome(pool: &mut SchemaPool, schema: &Schema, value: &Value) -> Option<Outcome<()>> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        _ => return None,
    }
    match schema.value() {
        Value::Bool(true) => return Some(Ok(())),
        Value::Bool(false) => return Some(Err(Failure::FalseSchema)),
        Value::Object(object) => {
            let simple = ["$ref", "anyOf", "oneOf", "allOf", "not"]
                .iter()
                .all(|keyword| !object.contains_key(keyword));
            if !simple {
                return None;
            }
        }
        _ => return None,
    }
    Some(match type_check(pool, schema, TypeName::of(value)) {
        Verdict::No => Err(Failure::Type),
        Verdict::Yes | Verdict::Unknown => Ok(()),
    })
}
