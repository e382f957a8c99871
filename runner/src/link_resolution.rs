//! Following stored links from a place to where they end (RUN-210…215).
//!
//! The walk is `memory_wire::traverse::resolve_link`; here are the transaction it reads through, the asking for
//! what is absent, and the stamps a resolved link carries. Called by cells, writes and the pattern layer.

use memory_wire::traverse::{Follow, resolve_link};
use memory_wire::{Scope, Value};

use crate::address::Path;
use crate::error::RunnerError;
use crate::link::Link;
use crate::schema_read::inline_value;
use crate::transaction::RunTx;
use crate::walk::{TxSource, caps_of, link_of, to_walk};

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
    /// A scope cap stopped the walk: the place is an inline `undefined` (RUN-213).
    pub blocked: bool,
}

/// RUN-210. A loop is an error (RUN-211); an absent target is asked for and reads as absent (RUN-215).
pub fn resolve(tx: &RunTx, link: &Link, last: LastNode) -> Result<Resolved, RunnerError> {
    let follow = match last {
        LastNode::Value => Follow::All,
        LastNode::Redirect => Follow::Redirects,
        LastNode::Top => Follow::Nothing,
    };
    let identity = tx.effective_identity();
    let (start, caps) = (to_walk(link, tx.storage()), caps_of(link));
    let mut source = TxSource::new(tx);
    let found = match tx
        .storage()
        .with_schemas(|pool| resolve_link(&mut source, pool, &identity, &start, &caps, follow))
    {
        Ok(found) => found,
        Err(error) => return Err(source.error(error, link)),
    };
    if found.hops == 0 && !found.blocked {
        // The reader's own place, its stamps included.
        let mut link = link.clone();
        link.stamps.pending_hop_doc =
            link.stamps.via_link_hop && !found.present && link.scope == Scope::Space && !link.is_inline();
        return Ok(Resolved {
            link,
            hops: 0,
            blocked: false,
        });
    }
    let mut end = link_of(&found.link.at, found.link.schema.as_ref());
    // RUN-214: a missing space-scoped document may be on its way; a missing scoped row is knowledge.
    end.stamps.pending_hop_doc =
        !found.present && !found.blocked && end.scope == Scope::Space && !end.is_inline();
    Ok(Resolved {
        link: end,
        hops: found.hops,
        blocked: found.blocked,
    })
}

/// A schema that says something: not absent, `true` or `{}` (RUN-212).
pub(crate) fn constrains(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts) => !accepts,
        Value::Object(object) => !object.is_empty(),
        _ => false,
    }
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
