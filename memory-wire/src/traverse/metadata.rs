//! Following a document's metadata (TRV-1110): the documents that its root names beside the user data. No schema
//! applies to them; each is tracked whole.

use std::collections::VecDeque;

use super::build::Build;
use super::place::{DocIx, DocName};
use super::slot;
use super::source::TraverseError;
use super::tracker::Selector;
use super::walker::Walker;
use crate::ids::EntityId;
use crate::value::Value;

impl<B: Build> Walker<'_, B> {
    /// Tracks the metadata targets of a document, breadth first, each document once per walk.
    pub(super) fn follow_metadata(&self, doc: DocIx, root: &Value) -> Result<(), TraverseError> {
        let mut pending = VecDeque::from([(doc, root.clone(), self.entered.get())]);
        while let Some((doc, root, entered)) = pending.pop_front() {
            let key = self.key(doc)?;
            if !has_metadata(&root) || !self.seen.borrow_mut().metadata.insert(key) {
                continue;
            }
            let base = self.memo.borrow().places.name(doc);
            for target in targets(&root, &base) {
                let content_addressed = target.id.is_content_addressed();
                let target = self.memo.borrow_mut().places.doc(&target);
                let key = self.key(target)?;
                let order = self.track_from(entered, &key, &Selector::rejecting());
                if content_addressed || self.seen.borrow().metadata.contains(&key) {
                    continue;
                }
                if let Some(found) = self.load(target)? {
                    pending.push_back((target, found, Some(order)));
                }
            }
        }
        Ok(())
    }
}

const LINK_FIELDS: [&str; 4] = ["cfc", "result", "pattern", "argument"];

fn has_metadata(root: &Value) -> bool {
    LINK_FIELDS
        .iter()
        .chain(&["internal"])
        .any(|field| root.member(field).is_some())
}

/// The documents that a root names, in the order of the fields.
fn targets(root: &Value, base: &DocName) -> Vec<DocName> {
    let named_by = |value: &Value| {
        let payload = slot::link_payload(value)?;
        slot::parse(payload, base).ok().map(|link| link.target)
    };
    let mut found = Vec::new();
    for field in LINK_FIELDS {
        let Some(value) = root.member(field) else { continue };
        let by_hash = || {
            let hash = value
                .member("schemaHash")?
                .as_str()
                .filter(|hash| !hash.is_empty())?;
            Some(DocName {
                id: EntityId::from(format!("cid:{hash}")),
                ..base.clone()
            })
        };
        found.extend(named_by(value).or_else(|| if field == "cfc" { by_hash() } else { None }));
    }
    let internal = root.member("internal").and_then(Value::as_array);
    for (_, entry) in internal.into_iter().flat_map(|list| list.elements()) {
        found.extend(entry.member("link").and_then(named_by));
    }
    found
}
