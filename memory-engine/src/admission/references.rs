//! Schema references (ENG-362…368): every schema document a written link names must be there and verify, and no
//! wire-only compression token may be stored. Step 9, second part, and step 16.

use std::collections::VecDeque;
use std::sync::Arc;

use memory_wire::hash::tag_digest;
use memory_wire::ids::EntityId;
use memory_wire::link::{Regime, link_payload};
use memory_wire::message::Operation;
use memory_wire::patch::PatchAction;
use memory_wire::schema_table::{SCHEMA_CAS_PREFIX, SCHEMA_REF_PREFIX, find_reserved_reference};
use memory_wire::scope_key::InstanceId;
use memory_wire::traverse::Schema;
use memory_wire::value::Value;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Admission;
use super::operations::Written;
use crate::document_cache::SchemaReferences;
use crate::error::EngineError;
use crate::refusal::Refusal;

/// The representation of links in stores.
const REGIME: Regime = Regime::Legacy;

impl Admission<'_, '_> {
    /// ENG-362, 363.
    pub(super) fn check_schema_references(&self) -> Result<(), EngineError> {
        let mut included: FxHashMap<&EntityId, &Value> = FxHashMap::default();
        let mut pending: VecDeque<EntityId> = VecDeque::new();
        for operation in &self.apply.commit.operations {
            match operation {
                Operation::Set { id, value, .. } => {
                    if id.is_content_addressed() {
                        included.insert(id, value);
                    }
                    match verified_schema(id, value) {
                        Some(schema) => pending.extend(references_of(&schema)),
                        None => collect_link_references(value, &mut pending),
                    }
                }
                Operation::Patch { patches, .. } => {
                    for patch in patches {
                        match patch.action() {
                            PatchAction::Replace { value, .. }
                            | PatchAction::Add { value, .. }
                            | PatchAction::RemoveByValue { value, .. } => {
                                collect_link_references(value, &mut pending)
                            }
                            PatchAction::Append { values, .. }
                            | PatchAction::AddUnique { values, .. }
                            | PatchAction::Splice { add: values, .. } => {
                                values
                                    .iter()
                                    .for_each(|value| collect_link_references(value, &mut pending));
                            }
                            PatchAction::Remove { .. }
                            | PatchAction::Move { .. }
                            | PatchAction::Increment { .. } => {}
                        }
                    }
                }
                Operation::Delete { .. } | Operation::Sqlite { .. } => {}
            }
        }
        let mut seen: FxHashSet<EntityId> = FxHashSet::default();
        while let Some(id) = pending.pop_front() {
            if !seen.insert(id.clone()) {
                continue;
            }
            // An included set wins over the stored copy.
            let references = match included.get(&id) {
                Some(document) => {
                    let schema = verified_schema(&id, document);
                    let schema = schema.ok_or(Refusal::SchemaUnverified {
                        id,
                        origin: "included",
                    })?;
                    references_of(&schema).collect()
                }
                None => self.stored_schema(id)?,
            };
            pending.extend(references.iter().cloned());
        }
        Ok(())
    }

    /// The references of a stored schema document that verifies (ENG-204).
    fn stored_schema(&self, id: EntityId) -> Result<SchemaReferences, EngineError> {
        let instance = InstanceId::space(id.clone());
        let Some(found) = self.engine.find_revision(&instance, self.branch(), None)? else {
            return Err(Refusal::SchemaMissing { id }.into());
        };
        let seq = found.key.seq;
        if let Some(known) = self
            .engine
            .cache
            .verified_schema(&id, seq)
            .filter(|_| self.engine.is_durable(seq))
        {
            return Ok(known);
        }
        let document = self
            .engine
            .state_after(&found)?
            .ok_or_else(|| Refusal::SchemaMissing { id: id.clone() })?;
        let Some(schema) = verified_schema(&id, &document) else {
            return Err(Refusal::SchemaUnverified { id, origin: "stored" }.into());
        };
        let references: SchemaReferences = references_of(&schema).collect::<Arc<[_]>>();
        if self.engine.is_durable(seq) {
            self.engine.cache.remember_schema(id, seq, references.clone());
        }
        Ok(references)
    }

    /// Step 16: judges the states that resulted, so that a `move` cannot bring a stored string into a forbidden
    /// position. When neither prefix occurs in the commit, only instances a `move` touched can have changed for the worse.
    pub(super) fn check_reserved_references(
        &self,
        original: &str,
        written: &Written<'_>,
    ) -> Result<(), EngineError> {
        let mentioned = original.contains(SCHEMA_REF_PREFIX) || original.contains(SCHEMA_CAS_PREFIX);
        let suspects = if mentioned {
            written.instances().to_vec()
        } else {
            self.instances_with_moves()?
        };
        for instance in &suspects {
            let state = written.state(instance)?;
            if let Some(reference) = state.and_then(|document| find_reserved_reference(&document, REGIME)) {
                return Err(Refusal::ReservedReference(reference).into());
            }
        }
        Ok(())
    }

    fn instances_with_moves(&self) -> Result<Vec<InstanceId>, EngineError> {
        let mut found = Vec::new();
        for (index, operation) in self.apply.commit.operations.iter().enumerate() {
            if let Operation::Patch { patches, .. } = operation
                && patches
                    .iter()
                    .any(|patch| matches!(patch.action(), PatchAction::Move { .. }))
            {
                found.extend(self.target(index, operation)?);
            }
        }
        Ok(found)
    }
}

/// The schema in a document, if the document is a schema document: its `value` is a schema that hashes to the id.
pub(crate) fn verified_schema(id: &EntityId, document: &Value) -> Option<Schema> {
    let hash = id.as_str().strip_prefix("cid:")?;
    let value = document.as_object()?.get("value")?;
    if !matches!(value, Value::Bool(_) | Value::Object(_)) {
        return None;
    }
    let schema = Schema::of(value);
    (tag_digest(schema.digest()) == hash).then_some(schema)
}

pub(crate) fn references_of(schema: &Schema) -> impl Iterator<Item = EntityId> {
    schema
        .external_references()
        .iter()
        .map(|hash| EntityId::from(format!("cid:{hash}")))
}

/// The references of the `schema` of every link anywhere in a document, in the order they are met.
pub(crate) fn link_references(document: &Value) -> Vec<EntityId> {
    let mut found = VecDeque::new();
    collect_link_references(document, &mut found);
    found.into()
}

/// The references of the `schema` of every link anywhere in `value`. Schema content is not searched for links: a
/// `default` may hold link-shaped data.
fn collect_link_references(value: &Value, into: &mut VecDeque<EntityId>) {
    if let Some(payload) = link_payload(value, REGIME).and_then(|link| link.as_object()) {
        for (key, member) in payload.iter() {
            match *key == "schema" {
                true if matches!(member, Value::Object(_)) => into.extend(references_of(&Schema::of(member))),
                true => {}
                false => collect_link_references(member, into),
            }
        }
        return;
    }
    match value {
        Value::Object(object) => object
            .iter()
            .for_each(|(_, member)| collect_link_references(member, into)),
        Value::Array(array) => array
            .elements()
            .for_each(|(_, element)| collect_link_references(element, into)),
        _ => {}
    }
}
