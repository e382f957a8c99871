//! Following stored links from a place to where they end (RUN-210…215).
//!
//! Called by cells, schema reads and writes. Every step reads through the transaction, so resolving depends on what
//! it looked at; what the replica lacks is asked for and reads as absent.

use memory_wire::Value;
use memory_wire::hash::hash_string;
use memory_wire::traverse::{Schema, SchemaPool, ScopeCap, hop_cap};
use rustc_hash::{FxHashMap, FxHashSet};
use smol_str::SmolStr;

use crate::address::{Path, is_prefix, join};
use crate::error::RunnerError;
use crate::link::{Link, is_link};
use crate::schema_read::{inline_value, narrow_path};
use crate::transaction::{Read, ReadMeta, RunTx, tree};

/// Hops after which a walk counts as a cycle (RUN-211).
const MAX_HOPS: usize = 100;

/// What to do with a link at the very end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LastNode {
    /// Follow it.
    Value,
    /// Follow it only if it is a write redirect.
    Redirect,
    /// Leave it.
    Top,
}

/// Where a walk ended.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The place, with the schema that travelled there and what the walk remembers.
    pub link: Link,
    /// Links followed.
    pub hops: usize,
    /// A followed link brought the schema with it; the reader's own was replaced.
    pub schema_from_link: bool,
    /// A scope cap stopped the walk: the place is an inline `undefined` (RUN-213).
    pub blocked: bool,
}

type MemoKey = (Link0, LastNode);
/// Identity of a walk's start: place, lens and how it was arrived at.
type Link0 = (
    memory_wire::SpaceId,
    memory_wire::EntityId,
    memory_wire::Scope,
    Path,
    String,
    bool,
);

/// Resolutions of one transaction; cleared by every write and by a ratchet reset, because a hit records no read.
#[derive(Default)]
pub(crate) struct ResolutionMemo(FxHashMap<MemoKey, Resolved>);

impl ResolutionMemo {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

fn memo_key(link: &Link, last: LastNode) -> MemoKey {
    let lens = link.schema.as_ref().map(hash_string).unwrap_or_default();
    let via = link.stamps.via_link_hop;
    (
        (
            link.space.clone(),
            link.id.clone(),
            link.scope,
            link.path.clone(),
            lens,
            via,
        ),
        last,
    )
}

/// RUN-210.
pub fn resolve(tx: &RunTx, link: &Link, last: LastNode) -> Result<Resolved, RunnerError> {
    let key = memo_key(link, last);
    if let Some(hit) = tx.resolutions().borrow().0.get(&key) {
        return Ok(hit.clone());
    }
    let resolved = Walk::new(tx, link, last).run()?;
    if !resolved.blocked {
        tx.resolutions().borrow_mut().0.insert(key, resolved.clone());
    }
    Ok(resolved)
}

struct Walk<'a> {
    tx: &'a RunTx,
    last: LastNode,
    at: Link,
    hops: usize,
    schema_from_link: bool,
    visited: FxHashSet<(
        memory_wire::SpaceId,
        memory_wire::EntityId,
        memory_wire::Scope,
        Path,
    )>,
    began_in_data: bool,
}

/// What a probe found.
enum Probe {
    /// A link after `depth` value-relative segments.
    Link { depth: usize, slot: Value },
    /// The place exists and holds no link, or nothing leads further.
    End { document: bool },
}

impl<'a> Walk<'a> {
    fn new(tx: &'a RunTx, link: &Link, last: LastNode) -> Walk<'a> {
        Walk {
            tx,
            last,
            at: link.clone(),
            hops: 0,
            schema_from_link: false,
            visited: FxHashSet::default(),
            began_in_data: link.stamps.via_link_hop,
        }
    }

    fn run(mut self) -> Result<Resolved, RunnerError> {
        loop {
            let place = (
                self.at.space.clone(),
                self.at.id.clone(),
                self.at.scope,
                self.at.path.clone(),
            );
            if !self.visited.insert(place) {
                return Err(self.cycle("the same place is reached twice"));
            }
            let (depth, slot) = match self.probe()? {
                Probe::End { document } => return Ok(self.end(document)),
                Probe::Link { depth, slot } => (depth, slot),
            };
            let rest: Vec<SmolStr> = self.at.path[depth..].to_vec();
            let Some(target) = Link::parse(&slot, &self.at) else {
                // A dead link is the value it is stored as.
                return Ok(self.end(true));
            };
            let follow = !rest.is_empty()
                || match self.last {
                    LastNode::Value => true,
                    LastNode::Redirect => target.redirect,
                    LastNode::Top => false,
                };
            if !follow {
                return Ok(self.end(true));
            }
            if self.blocks(depth, &target) {
                tracing::warn!(from = %self.at.id, to = %target.id, scope = target.scope.as_str(), "link is narrower than its scope cap");
                return Ok(self.blocked());
            }
            self.hop(target, rest)?;
        }
    }

    /// Looks for a link at the full path, else at the deepest existing prefix.
    fn probe(&self) -> Result<Probe, RunnerError> {
        if self.at.is_inline() {
            return Ok(probe_inline(&self.at));
        }
        let address = self.at.address();
        let mut probe_path = address.path.clone();
        probe_path.extend([SmolStr::new_static("/"), SmolStr::new_static("link@1")]);
        let marks = ReadMeta {
            link_probe: true,
            ..ReadMeta::RECURSIVE
        };
        let length = address.path.len();
        let existing = match self.tx.read(&address.at(probe_path), marks)? {
            Read::NoDocument => return Ok(Probe::End { document: false }),
            Read::Found(_) => length,
            // The envelope's own segments do not count.
            Read::NoPath { existing } => existing.min(length),
        };
        // The root itself (`value` missing) is no slot.
        if existing == 0 {
            return Ok(Probe::End { document: true });
        }
        let slot_address = address.at(address.path[..existing].to_vec());
        if existing < length {
            // Whether the deepest existing place is a link decides where the rest of the path goes.
            let mut deeper = slot_address.path.clone();
            deeper.extend([SmolStr::new_static("/"), SmolStr::new_static("link@1")]);
            if self.tx.read(&slot_address.at(deeper), marks)?.found().is_none() {
                return Ok(Probe::End { document: true });
            }
        }
        // The whole slot, because any change of the link moves the result.
        let slot = self.tx.read(&slot_address, ReadMeta::RECURSIVE)?.or_undefined();
        if is_link(&slot) {
            Ok(Probe::Link {
                depth: existing - 1,
                slot,
            })
        } else {
            Ok(Probe::End { document: true })
        }
    }

    /// RUN-213.
    fn blocks(&self, depth: usize, target: &Link) -> bool {
        let mut pool = SchemaPool::new();
        let leaf = self
            .at
            .schema
            .as_ref()
            .and_then(|s| hop_cap(&mut pool, &Schema::of(s)));
        let recorded = self
            .at
            .stamps
            .scope_caps
            .iter()
            .filter(|(at, _)| *at == depth)
            .map(|(_, cap)| ScopeCap::At(*cap));
        recorded
            .chain(leaf)
            .reduce(ScopeCap::narrower)
            .is_some_and(|cap| !cap.admits(target.scope))
    }

    fn hop(&mut self, target: Link, rest: Vec<SmolStr>) -> Result<(), RunnerError> {
        self.hops += 1;
        if self.hops > MAX_HOPS {
            return Err(self.cycle("more than 100 links in a row"));
        }
        let same_document =
            target.id == self.at.id && target.scope == self.at.scope && target.space == self.at.space;
        let slot_depth = self.at.path.len() - rest.len();
        if same_document
            && target.path.len() > slot_depth
            && is_prefix(&self.at.path[..slot_depth], &target.path)
        {
            return Err(self.cycle("a link targets its own subpath"));
        }
        let carried = match &target.schema {
            Some(schema) if constrains(schema) => {
                self.schema_from_link = true;
                Some(narrow_path(schema, &rest))
            }
            Some(_) | None => self.at.schema.clone(),
        };
        let scope_caps = std::mem::take(&mut self.at.stamps.scope_caps);
        self.at = Link {
            path: join(&target.path, &rest),
            schema: carried,
            ..target
        };
        // Caps only tighten: those recorded for segments still ahead keep their place from the end.
        let shift = self.at.path.len();
        let ahead = rest.len();
        self.at.stamps.scope_caps = scope_caps
            .into_iter()
            .filter_map(|(depth, cap)| {
                let from_end = (slot_depth + ahead).checked_sub(depth)?;
                (from_end < ahead).then(|| (shift - from_end, cap))
            })
            .collect();
        if !self.at.is_inline() {
            self.tx
                .storage()
                .kick(&self.at.document_address(), self.tx.scope_identity().as_ref());
        }
        Ok(())
    }

    /// RUN-214: a missing space-scoped document behind a hop may be on its way; a missing scoped row is knowledge.
    fn end(mut self, document: bool) -> Resolved {
        let behind_hop = self.hops > 0 || self.began_in_data;
        self.at.stamps.pending_hop_doc =
            behind_hop && !document && !self.at.is_inline() && self.at.scope == memory_wire::Scope::Space;
        self.at.stamps.via_link_hop = behind_hop;
        self.at.redirect = false;
        Resolved {
            link: self.at,
            hops: self.hops,
            schema_from_link: self.schema_from_link,
            blocked: false,
        }
    }

    fn blocked(self) -> Resolved {
        let link = Link {
            path: Path::new(),
            id: undefined_id(),
            ..self.at
        };
        Resolved {
            link,
            hops: self.hops,
            schema_from_link: self.schema_from_link,
            blocked: true,
        }
    }

    fn cycle(&self, reason: &'static str) -> RunnerError {
        let at = format!("{}/{}", self.at.id, self.at.path.join("/"));
        tracing::warn!(%at, reason, "link cycle");
        RunnerError::LinkCycle { at, reason }
    }
}

/// A schema that says something: not absent, `true` or `{}` (RUN-212).
pub(crate) fn constrains(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts) => !accepts,
        Value::Object(object) => !object.is_empty(),
        _ => false,
    }
}

/// The id of the document that holds `undefined`.
pub(crate) fn undefined_id() -> memory_wire::EntityId {
    memory_wire::EntityId::inline(&Value::Undefined).unwrap_or_else(|_| "data:".into())
}

/// Links inside an inline document are followed like any other; nothing is recorded (RUN-221).
fn probe_inline(at: &Link) -> Probe {
    let Ok(root) = at.id.inline_value() else {
        return Probe::End { document: false };
    };
    let mut node = root;
    for depth in 0..=at.path.len() {
        if is_link(&node) {
            return Probe::Link { depth, slot: node };
        }
        let Some(segment) = at.path.get(depth) else { break };
        match tree::child(&node, segment) {
            Some(next) => node = next,
            None => break,
        }
    }
    Probe::End { document: true }
}

/// Every link stored inside the content of an inline link.
pub(crate) fn links_inside(link: &Link) -> Result<Vec<Link>, RunnerError> {
    let mut found = Vec::new();
    collect(
        &inline_value(&Link {
            path: Path::new(),
            ..link.clone()
        })?,
        link,
        &mut found,
    );
    Ok(found)
}

fn collect(value: &Value, base: &Link, found: &mut Vec<Link>) {
    if let Some(target) = Link::parse(value, base) {
        if target.id != base.id {
            found.push(target);
        }
        return;
    }
    match value {
        Value::Object(object) => object.iter().for_each(|(_, v)| collect(v, base, found)),
        Value::Array(array) => array.elements().for_each(|(_, v)| collect(v, base, found)),
        _ => {}
    }
}
