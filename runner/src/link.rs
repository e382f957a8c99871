//! Links as the runner holds them: absolute, value-relative, with read-side stamps (RUN-200…202).
//!
//! The stored form is `memory_wire::link`'s business; here a link is a place plus the lens it is read through.

use memory_wire::{EntityId, Scope, SpaceId, Value};

use crate::address::{Address, Path, VALUE};

/// An absolute link. Equality for identity purposes is [`Link::same_place`] (RUN-201).
#[derive(Clone, Debug)]
pub struct Link {
    /// Space of the target.
    pub space: SpaceId,
    /// Target document, possibly a `data:` id.
    pub id: EntityId,
    /// Scope name of the target.
    pub scope: Scope,
    /// Value-relative path: the address is `["value", …path]`.
    pub path: Path,
    /// Reading lens: `true`, `false` or an object; `None` = no constraint.
    pub schema: Option<Value>,
    /// True for a write redirect (`overwrite: "redirect"`).
    pub redirect: bool,
    /// What the walk that produced this link remembered; never serialised, never identity.
    pub stamps: Stamps,
}

/// Read-side stamps of a link (RUN-202).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Follow caps declared above the leaf: (path length at which declared, cap), narrowest wins (RUN-213).
    pub scope_caps: Vec<(usize, Scope)>,
    /// The walk stopped behind a hop at a space-scoped document that is not here yet (RUN-214).
    pub pending_hop_doc: bool,
    /// This link was taken out of data rather than made by the reader (RUN-214).
    pub via_link_hop: bool,
}

impl Link {
    /// A link to the value of a document, without a lens.
    pub fn to_document(space: SpaceId, id: EntityId, scope: Scope) -> Link {
        Link { space, id, scope, path: Path::new(), schema: None, redirect: false, stamps: Stamps::default() }
    }

    /// The address of the linked value.
    pub fn address(&self) -> Address {
        let mut path = Path::with_capacity(self.path.len() + 1);
        path.push(VALUE);
        path.extend(self.path.iter().cloned());
        Address { space: self.space.clone(), id: self.id.clone(), scope: self.scope, scope_key: None, path }
    }

    /// The address of the document root (meta fields included).
    pub fn document_address(&self) -> Address {
        Address::document(self.space.clone(), self.id.clone(), self.scope)
    }

    /// RUN-201: same space, id, scope and path; lens and stamps never take part.
    pub fn same_place(&self, other: &Link) -> bool {
        self.id == other.id && self.scope == other.scope && self.path == other.path && self.space == other.space
    }

    /// The same place through another lens.
    pub fn with_schema(&self, schema: Option<Value>) -> Link {
        Link { schema, ..self.clone() }
    }

    /// True when the id carries its content (`data:`): such links are read without storage (RUN-221).
    pub fn is_inline(&self) -> bool {
        self.id.as_str().starts_with("data:")
    }
}
