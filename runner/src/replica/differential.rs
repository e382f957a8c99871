//! Which paths differ between two states of a document (RUN-71, RUN-72).

use memory_wire::equality::value_equal;
use memory_wire::{ScopeIdentity, Value};
use rustc_hash::FxHashSet;
use smol_str::{SmolStr, format_smolstr};

use super::notification::Change;
use crate::address::{Address, Path};
use crate::keys::address_string;

/// RUN-72: the changed paths, sorted segment-wise.
pub fn changed_paths(before: Option<&Value>, after: Option<&Value>) -> Vec<Path> {
    let mut paths = Vec::new();
    match (before, after) {
        (None, None) => {}
        (Some(before), Some(after)) => descend(before, after, &mut Path::new(), &mut paths),
        (None, Some(_)) | (Some(_), None) => paths.push(Path::new()),
    }
    paths.sort();
    paths
}

fn descend(before: &Value, after: &Value, at: &mut Path, paths: &mut Vec<Path>) {
    match (before, after) {
        (Value::Object(b), Value::Object(a)) => {
            if b.ptr_eq(a) {
                return;
            }
            for (key, was) in b.iter() {
                at.push(segment(key));
                match a.get_key(key) {
                    Some(is) => descend(was, is, at, paths),
                    None => paths.push(at.clone()),
                }
                at.pop();
            }
            for (key, _) in a.iter().filter(|(key, _)| b.get_key(key).is_none()) {
                at.push(segment(key));
                paths.push(at.clone());
                at.pop();
            }
        }
        (Value::Array(b), Value::Array(a)) => {
            if b.ptr_eq(a) {
                return;
            }
            if b.len() != a.len() {
                paths.push(at.clone());
            }
            // Holes cost nothing: only indexes present on either side are visited.
            let common = b.len().min(a.len());
            let present = b
                .elements()
                .chain(a.elements())
                .map(|(i, _)| i)
                .filter(|i| *i < common);
            let mut seen = FxHashSet::default();
            for i in present.filter(|i| seen.insert(*i)).collect::<Vec<_>>() {
                at.push(format_smolstr!("{i}"));
                match (b.get(i), a.get(i)) {
                    (Some(was), Some(is)) => descend(was, is, at, paths),
                    (None, None) => {}
                    (None, Some(_)) | (Some(_), None) => paths.push(at.clone()),
                }
                at.pop();
            }
        }
        (before, after) => {
            if !value_equal(before, after) {
                paths.push(at.clone());
            }
        }
    }
}

fn segment(key: &memory_wire::JsString) -> SmolStr {
    match key.as_str() {
        Some(text) => SmolStr::new(text),
        None => SmolStr::new(key.to_string_lossy()),
    }
}

/// Collects changes, keeping the first of each address text (site 8).
#[derive(Default)]
pub(crate) struct Differential {
    changes: Vec<Change>,
    seen: FxHashSet<String>,
}

impl Differential {
    /// Adds the differences of one document; `root.path` is empty, `root.scope_key` as the change carries it.
    pub(crate) fn add(
        &mut self,
        root: &Address,
        before: Option<&Value>,
        after: Option<&Value>,
        own: &ScopeIdentity,
    ) {
        for path in changed_paths(before, after) {
            let address = root.at(path);
            if self.seen.insert(address_string(&address, own)) {
                self.changes.push(Change {
                    address,
                    before: before.cloned(),
                    after: after.cloned(),
                });
            }
        }
    }

    pub(crate) fn into_changes(self) -> Vec<Change> {
        self.changes
    }
}
