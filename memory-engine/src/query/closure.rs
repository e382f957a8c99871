//! The schema documents that belong to a query (ENG §10.6): those its selectors name must be stored and verify, and
//! those its delivered documents name are delivered along. Verification is always against this store's own copies
//! (ENG-1052).

use std::sync::Arc;

use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::scope_key::InstanceId;
use memory_wire::traverse::Schema;
use memory_wire::value::Value;
use rustc_hash::FxHashSet;

use crate::admission::references::{link_references, references_of, verified_schema};
use crate::error::EngineError;
use crate::reader::Reader;

/// Who refers to a schema document: decides the text of the refusal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Referrer {
    /// A selector of the query (ENG-1053).
    Selector,
    /// A delivered document (ENG-1050).
    Result,
}

impl Referrer {
    fn missing(self, id: &EntityId) -> EngineError {
        EngineError::SchemaClosure {
            message: match self {
                Referrer::Selector => format!(
                    "Selector references schema document {id}, which is not stored in this space. A selector reference \
                     must name a persisted closure (docs/specs/content-addressed-schemas.md)."
                ),
                Referrer::Result => format!(
                    "Query result requires schema document {id}, which is not stored in this space. Every embedded \
                     schema ref must resolve within the delivered set (docs/specs/content-addressed-schemas.md)."
                ),
            },
        }
    }

    fn unverified(self, id: &EntityId) -> EngineError {
        EngineError::SchemaClosure {
            message: match self {
                Referrer::Selector => format!(
                    "Selector references schema document {id} that did not verify in this space: its stored content \
                     does not hash to its id."
                ),
                Referrer::Result => format!(
                    "Schema document {id} did not verify in this space: its stored content does not hash to its id."
                ),
            },
        }
    }
}

/// The schema documents that a delivered document refers to: a schema document to itself, any other through the
/// schemas of its links (ENG-1050).
pub(super) fn references(id: &EntityId, document: &Value) -> Arc<[EntityId]> {
    if verified_schema(id, document).is_some() {
        return Arc::new([id.clone()]);
    }
    let mut found = link_references(document);
    found.sort();
    found.dedup();
    found.into()
}

/// The schema documents that a schema refers to.
pub(super) fn references_in(schema: &Schema) -> Vec<EntityId> {
    references_of(schema).collect()
}

/// Everything that `roots` refer to, directly or not. Nothing is returned unless all of it is stored and verifies.
pub(super) fn closure(
    reader: &Reader,
    branch: &BranchName,
    at: Option<Seq>,
    roots: impl IntoIterator<Item = EntityId>,
    referrer: Referrer,
) -> Result<FxHashSet<EntityId>, EngineError> {
    let mut pending: Vec<EntityId> = roots.into_iter().collect();
    let mut seen = FxHashSet::default();
    while let Some(id) = pending.pop() {
        if seen.contains(&id) {
            continue;
        }
        let instance = InstanceId::space(id.clone());
        let Some(found) = reader.find_revision(&instance, branch, at)? else {
            return Err(referrer.missing(&id));
        };
        let seq = found.key.seq;
        let known = reader
            .cache
            .verified_schema(&id, seq)
            .filter(|_| reader.is_durable(seq));
        let further = match known {
            Some(known) => known,
            None => {
                let Some(document) = reader.state_after(&found)? else {
                    return Err(referrer.missing(&id));
                };
                let schema = verified_schema(&id, &document).ok_or_else(|| referrer.unverified(&id))?;
                let further: Arc<[EntityId]> = references_of(&schema).collect();
                if reader.is_durable(seq) {
                    reader.cache.remember_schema(id.clone(), seq, further.clone());
                }
                further
            }
        };
        pending.extend(further.iter().cloned());
        seen.insert(id);
    }
    Ok(seen)
}
