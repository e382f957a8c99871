//! Admitting the schema documents that a schema refers to (TRV-904, 905): read once per walk from the referrer's
//! space, verified by hash, recursively. A schema is usable only when everything it refers to is there.

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
        let mut closure: Vec<(JsString, Schema)> = Vec::new();
        let mut complete = true;
        while let Some(hash) = pending.pop() {
            if closure.iter().any(|(known, _)| *known == hash) {
                continue;
            }
            let visited = self
                .seen
                .borrow()
                .schema_documents
                .get(&(space.clone(), hash.clone()))
                .copied();
            if visited == Some(false) {
                complete = false;
                continue;
            }
            let document = self.schema_document(&space, &hash, place, visited.is_none())?;
            self.seen
                .borrow_mut()
                .schema_documents
                .insert((space.clone(), hash.clone()), document.is_some());
            match document {
                Some(document) => {
                    pending.extend(document.external_references().iter().cloned());
                    closure.push((hash, document));
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

    /// One schema document: tracked, noted, read and verified.
    fn schema_document(
        &self,
        space: &SpaceId,
        hash: &JsString,
        from: PlaceIx,
        first: bool,
    ) -> Result<Option<Schema>, TraverseError> {
        let name = DocName {
            space: space.clone(),
            id: EntityId::from(format!("cid:{hash}")),
            scope: Scope::Space,
        };
        let doc = self.memo.borrow_mut().places.doc(&name);
        if self.mode == Mode::Query {
            let key = self.key(doc)?;
            self.track(from, &key, &Selector::rejecting())?;
        }
        let root = self.memo.borrow_mut().places.at(doc, &[]);
        self.note(root, Dep::Deep);
        let Some(document) = self.load(doc)? else {
            if first {
                self.report_missing(
                    doc,
                    |walker| Link {
                        at: walker.addr(root),
                        schema: None,
                    },
                    from,
                )?;
            }
            return Ok(None);
        };
        let Some(content @ (Value::Bool(_) | Value::Object(_))) = document.member("value") else {
            return Ok(None);
        };
        let verified = hash.as_str() == Some(hash::tagged_hash(content).as_str());
        Ok(verified.then(|| self.pool.borrow_mut().intern(content)))
    }
}
