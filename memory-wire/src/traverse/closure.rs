//! Admitting the schema documents that a schema refers to (TRV-904, 905): read once per walk from the referrer's
//! space, verified by hash, recursively. A schema is usable only when everything it refers to is there.

use rustc_hash::FxHashMap;

use super::build::Build;
use super::place::{DocName, PlaceIx};
use super::schema::Schema;
use super::source::{Dep, Link, TraverseError};
use super::tracker::Selector;
use super::walker::{Mode, Walker};
use crate::hash;
use crate::ids::{EntityId, SpaceId};
use crate::js_string::JsString;
use crate::scope_key::Scope;
use crate::value::Value;

impl<B: Build> Walker<'_, B> {
    /// True when every document that `schema` refers to, directly or not, is stored in `place`'s space and holds
    /// what its id says.
    pub(super) fn admit(&self, schema: &Schema, place: PlaceIx) -> Result<bool, TraverseError> {
        if schema.external_references().is_empty() {
            return Ok(true);
        }
        let space = self.memo.borrow().places.space(self.doc_of(place)).clone();
        let mut pending: Vec<JsString> = schema.external_references().to_vec();
        let mut closure: FxHashMap<JsString, Schema> = FxHashMap::default();
        let mut complete = true;
        while let Some(hash) = pending.pop() {
            if closure.contains_key(&hash) {
                continue;
            }
            match self.schema_document(&space, &hash, place)? {
                Some(document) => {
                    pending.extend(document.external_references().iter().cloned());
                    closure.insert(hash, document);
                }
                None => complete = false,
            }
        }
        if complete {
            let mut pool = self.pool.borrow_mut();
            for (hash, document) in closure {
                pool.admit_external(hash, document);
            }
        }
        Ok(complete)
    }

    /// One schema document: tracked and noted for each schema that names it, read and verified once per walk.
    fn schema_document(
        &self,
        space: &SpaceId,
        hash: &JsString,
        from: PlaceIx,
    ) -> Result<Option<Schema>, TraverseError> {
        let seen = (space.clone(), hash.clone());
        let known = self.seen.borrow().schema_documents.get(&seen).cloned();
        if let Some(None) = known {
            return Ok(None);
        }
        let name = DocName {
            space: space.clone(),
            id: EntityId::from(format!("cid:{hash}")),
            scope: Scope::Space,
        };
        let doc = self.memo.borrow_mut().places.doc(&name);
        if self.mode == Mode::Query {
            let key = self.key(doc)?;
            self.track(&key, &Selector::rejecting())?;
        }
        let root = self.memo.borrow_mut().places.at(doc, &[]);
        self.note(root, Dep::Deep);
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.load(doc)?;
        if found.is_none() {
            self.report_missing(
                doc,
                |walker| Link {
                    at: walker.addr(root),
                    schema: None,
                },
                from,
            )?;
        }
        let verified = match found.as_ref().and_then(|document| document.member("value")) {
            Some(content @ (Value::Bool(_) | Value::Object(_)))
                if hash.as_str() == Some(hash::tagged_hash(content).as_str()) =>
            {
                Some(self.pool.borrow_mut().intern(content))
            }
            Some(_) | None => None,
        };
        self.seen
            .borrow_mut()
            .schema_documents
            .insert(seen, verified.clone());
        Ok(verified)
    }
}
