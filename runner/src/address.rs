//! Addresses: where a value of a space lives, instance and document path included (RUN-0 vocabulary).
//!
//! Called by every room of the crate. Key *texts* built from addresses live in [`crate::keys`].

use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId};
use smol_str::SmolStr;

/// Segments of a document path, from the document root: user data lives under `"value"`.
pub type Path = Vec<SmolStr>;

/// The root key that holds user data; its siblings are the document's meta fields.
pub const VALUE: SmolStr = SmolStr::new_static("value");

/// A place in a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Space of the document.
    pub space: SpaceId,
    /// The document.
    pub id: EntityId,
    /// Scope *name*; which instance it means depends on the reader's identity unless `scope_key` says so.
    pub scope: Scope,
    /// The explicit instance; wins over resolving `scope` (RUN-400).
    pub scope_key: Option<ScopeKey>,
    /// Document-rooted path.
    pub path: Path,
}

impl Address {
    /// The root of a document, without an explicit instance.
    pub fn document(space: SpaceId, id: EntityId, scope: Scope) -> Address {
        Address {
            space,
            id,
            scope,
            scope_key: None,
            path: Path::new(),
        }
    }

    /// The same document at another path.
    pub fn at(&self, path: Path) -> Address {
        Address { path, ..self.clone() }
    }

    /// The instance this address means for `identity`: the explicit key, else the resolved one. `None` when the
    /// identity cannot resolve the scope (an anonymous session's user-scoped read, RUN-20).
    pub fn instance(&self, identity: &ScopeIdentity) -> Option<ScopeKey> {
        match &self.scope_key {
            Some(key) => Some(key.clone()),
            None => ScopeKey::resolve(self.scope, identity).ok(),
        }
    }

    /// True when both name the same document by scope name (instances are not compared).
    pub fn same_document(&self, other: &Address) -> bool {
        self.id == other.id && self.scope == other.scope && self.space == other.space
    }
}

/// True when `prefix` is a prefix of `path`, itself included.
pub fn is_prefix(prefix: &[SmolStr], path: &[SmolStr]) -> bool {
    path.len() >= prefix.len() && prefix.iter().zip(path).all(|(a, b)| a == b)
}

/// True when one path is a prefix of the other.
pub fn overlaps(a: &[SmolStr], b: &[SmolStr]) -> bool {
    a.iter().zip(b).all(|(x, y)| x == y)
}

/// Joins a base path and further segments.
pub fn join(base: &[SmolStr], rest: &[SmolStr]) -> Path {
    let mut path = Path::with_capacity(base.len() + rest.len());
    path.extend_from_slice(base);
    path.extend_from_slice(rest);
    path
}

/// A document path from string literals.
pub fn path<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Path {
    segments.into_iter().map(|s| SmolStr::new(s.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_prefix_either_way() {
        let (a, b, c) = (path(["value"]), path(["value", "a"]), path(["value", "b"]));
        assert!(is_prefix(&a, &b) && !is_prefix(&b, &a) && is_prefix(&a, &a));
        assert!(overlaps(&a, &b) && overlaps(&b, &a) && !overlaps(&b, &c));
    }
}
