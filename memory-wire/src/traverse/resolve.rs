//! Resolving the address that is about to be read (RUN-210…213, TRV-1201.3): following stored links by place, with
//! the schema and the scope caps that travel along. Unlike the walk, a loop is an error here, because the caller
//! asked for this very address.

use super::combine::combine;
use super::handles;
use super::narrow::schema_at_path;
use super::place::DocName;
use super::schema::{Schema, SchemaPool};
use super::scope_cap::{ScopeCap, hop_cap};
use super::slot::{self, LinkSchema, Raw, raw_read};
use super::source::{Addr, DeadEnd, Dep, DocKey, DocPath, DocSource, Link, TraverseError};
use crate::codec;
use crate::js_string::JsString;
use crate::scope_key::{ScopeIdentity, ScopeKey};
use crate::value::{Object, Value};

/// Which links at the end of the path are followed (RUN-210). Links before the end always are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Follow {
    /// All.
    All,
    /// Redirects.
    Redirects,
    /// None.
    Nothing,
}

/// Where an address leads.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The end, with the schema that travelled along: the last constraining link's own, else the caller's (RUN-212).
    pub link: Link,
    /// How many links were followed.
    pub hops: usize,
    /// False when the last document is absent.
    pub present: bool,
    /// True when a scope cap kept the next hop from happening; the end then is an undefined `data:` document.
    pub blocked: bool,
}

/// Hops before a resolution counts as a loop (RUN-211).
const MAX_HOPS: usize = 100;

/// Loads the document behind an address; `data:` ids are decoded (TRV-204).
pub(super) fn load_at(
    source: &mut dyn DocSource,
    identity: &ScopeIdentity,
    at: &Addr,
) -> Result<Option<Value>, TraverseError> {
    if at.id.is_inline() {
        let value = at.id.inline_value().ok();
        return Ok(value.map(|value| Object::from_entries(vec![("value".into(), value)]).into()));
    }
    let key = DocKey::new(
        at.space.clone(),
        ScopeKey::resolve(at.scope, identity)?,
        at.id.clone(),
    );
    source.load(&key).map_err(TraverseError::Source)
}

/// Notes a dependency, unless the document is written out in its id (RUN-221).
pub(super) fn note_at(source: &mut dyn DocSource, at: &Addr, how: Dep) {
    if !at.id.is_inline() {
        source.note(at, how);
    }
}

/// Follows the links stored on the way to `start` and, as `follow` says, at its end. `caps` are the caps recorded
/// at the depths of the value-relative path (RUN-213).
///
/// # Errors
/// [`TraverseError::LinkCycle`] for a loop (RUN-211), an unresolvable scope, a failure of the source.
pub fn resolve_link(
    source: &mut dyn DocSource,
    schemas: &mut SchemaPool,
    identity: &ScopeIdentity,
    start: &Link,
    caps: &[Option<ScopeCap>],
    follow: Follow,
) -> Result<Resolved, TraverseError> {
    let mut link = start.clone();
    let mut visited: Vec<String> = Vec::new();
    let mut hops = 0usize;
    loop {
        let key = address_text(&link.at);
        if visited.contains(&key) || hops > MAX_HOPS {
            let seen = Value::from(vec![Value::from(
                visited.into_iter().map(Value::from).collect::<Vec<_>>(),
            )]);
            return Err(TraverseError::LinkCycle(format!(
                "Link cycle detected at {key} {}",
                json(&seen)
            )));
        }
        visited.push(key.clone());
        let mut probe = link.at.clone();
        probe.path.extend(["/".into(), "link@1".into()]);
        note_at(source, &probe, Dep::Deep);
        let Some(root) = load_at(source, identity, &link.at)? else {
            if hops > 0 {
                source.missing(&link, &start.at.space);
            }
            return Ok(Resolved {
                link,
                hops,
                present: false,
                blocked: false,
            });
        };
        let at_end = match raw_read(&root, &link.at.path) {
            Raw::Found(value) => Some((link.at.path.len(), value)),
            Raw::Undefined => deepest(source, &root, &link.at, link.at.path.len() - 1),
            Raw::Missing(k) => deepest(source, &root, &link.at, k.saturating_sub(1)),
            Raw::Blocked => None,
        };
        let stored = at_end.and_then(|(depth, value)| {
            slot::link_payload(&value)
                .cloned()
                .map(|payload| (depth, payload))
        });
        let Some((depth, payload)) = stored else {
            return Ok(Resolved {
                link,
                hops,
                present: true,
                blocked: false,
            });
        };
        let rest = &link.at.path[depth..];
        let followed = !rest.is_empty()
            || match follow {
                Follow::All => true,
                Follow::Redirects => slot::is_redirect(&payload),
                Follow::Nothing => false,
            };
        if !followed {
            return Ok(Resolved {
                link,
                hops,
                present: true,
                blocked: false,
            });
        }
        let slot = Addr {
            path: link.at.path[..depth].to_vec(),
            ..link.at.clone()
        };
        note_at(source, &slot, Dep::Deep);
        let base = DocName {
            space: slot.space.clone(),
            id: slot.id.clone(),
            scope: slot.scope,
        };
        let parsed = match slot::parse(&payload, &base) {
            Ok(parsed) => parsed,
            Err(why) => {
                source.dead_end(&slot, &why);
                return Ok(nowhere(link, hops, false));
            }
        };
        let leaf = link.schema.as_ref().and_then(|schema| hop_cap(schemas, schema));
        let recorded = if hops == 0 {
            caps.get(depth.saturating_sub(1)).copied().flatten()
        } else {
            None
        };
        let cap = match (leaf, recorded) {
            (Some(a), Some(b)) => Some(a.narrower(b)),
            (one, None) | (None, one) => one,
        };
        if let Some(cap) = cap
            && !cap.admits(parsed.target.scope)
        {
            source.dead_end(
                &slot,
                &DeadEnd::Blocked {
                    scope: parsed.target.scope,
                    cap,
                },
            );
            link.at.scope = parsed.target.scope;
            return Ok(nowhere(link, hops, true));
        }
        let target: DocPath = parsed.path.iter().chain(rest).cloned().collect();
        let same_doc = parsed.target.space == slot.space
            && parsed.target.id == slot.id
            && parsed.target.scope == slot.scope;
        if same_doc && target.len() > slot.path.len() && target.starts_with(&slot.path) && rest.is_empty() {
            return Err(TraverseError::LinkCycle(format!(
                "Link cycle detected at {key}: link at [{}] targets its own subpath [{}]",
                joined(&slot.path[1..]),
                joined(&target[1..])
            )));
        }
        let own = match &parsed.schema {
            LinkSchema::Present(own) if constrains(own) => {
                if rest.is_empty() {
                    Some(own.clone())
                } else {
                    schema_at_path(schemas, own, rest)
                }
            }
            LinkSchema::Malformed => Some(Schema::nothing()),
            LinkSchema::Present(_) | LinkSchema::Absent => None,
        };
        let at = Addr {
            space: parsed.target.space,
            id: parsed.target.id,
            scope: parsed.target.scope,
            path: target,
        };
        link = Link {
            at,
            schema: own.or(link.schema),
        };
        hops += 1;
    }
}

/// `true` and `{}` say nothing about a target.
pub(super) fn constrains(schema: &Schema) -> bool {
    match schema.value() {
        Value::Bool(everything) => !everything,
        Value::Object(object) => !object.is_empty(),
        _ => true,
    }
}

/// The deepest existing place above a missing one, probed for a link.
fn deepest(source: &mut dyn DocSource, root: &Value, at: &Addr, depth: usize) -> Option<(usize, Value)> {
    if depth == 0 {
        return None;
    }
    let mut probe = Addr {
        path: at.path[..depth].to_vec(),
        ..at.clone()
    };
    probe.path.extend(["/".into(), "link@1".into()]);
    note_at(source, &probe, Dep::Deep);
    match raw_read(root, &at.path[..depth]) {
        Raw::Found(value) => Some((depth, value)),
        Raw::Undefined | Raw::Missing(_) | Raw::Blocked => None,
    }
}

fn nowhere(link: Link, hops: usize, blocked: bool) -> Resolved {
    let at = handles::nowhere(&link.at, link.at.scope);
    Resolved {
        link: Link {
            at,
            schema: link.schema,
        },
        hops,
        present: false,
        blocked,
    }
}

/// `[space, id, scope, path]` as JSON, the path value-relative: what a loop is recognised and reported by.
fn address_text(at: &Addr) -> String {
    let path: Vec<Value> = at.path.iter().skip(1).cloned().map(Value::String).collect();
    json(&Value::from(vec![
        Value::from(&at.space),
        Value::from(&at.id),
        Value::from(at.scope.as_str()),
        Value::from(path),
    ]))
}

fn json(value: &Value) -> String {
    let text = codec::encode(value).unwrap_or_default();
    text.strip_prefix(codec::PREFIX).unwrap_or(&text).to_owned()
}

fn joined(path: &[JsString]) -> String {
    path.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}

/// The reader's schema combined with what travelled along (TRV-1201.4).
pub(super) fn effective(
    schemas: &mut SchemaPool,
    readers: Option<&Schema>,
    carried: Option<&Schema>,
) -> Option<Schema> {
    combine(schemas, readers, carried)
}
