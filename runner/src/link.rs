//! Links as the runner holds them: absolute, value-relative, with read-side stamps (RUN-200…202).
//!
//! The stored form is `memory_wire::link`'s business; here a link is a place plus the lens it is read through.

use memory_wire::link::{Link as WireLink, LinkBase, Regime, link_value};
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
        Link {
            space,
            id,
            scope,
            path: Path::new(),
            schema: None,
            redirect: false,
            stamps: Stamps::default(),
        }
    }

    /// The address of the linked value.
    pub fn address(&self) -> Address {
        let mut path = Path::with_capacity(self.path.len() + 1);
        path.push(VALUE);
        path.extend(self.path.iter().cloned());
        Address {
            space: self.space.clone(),
            id: self.id.clone(),
            scope: self.scope,
            scope_key: None,
            path,
        }
    }

    /// The address of the document root (meta fields included).
    pub fn document_address(&self) -> Address {
        Address::document(self.space.clone(), self.id.clone(), self.scope)
    }

    /// RUN-201: same space, id, scope and path; lens and stamps never take part.
    pub fn same_place(&self, other: &Link) -> bool {
        self.id == other.id
            && self.scope == other.scope
            && self.path == other.path
            && self.space == other.space
    }

    /// The same place through another lens.
    pub fn with_schema(&self, schema: Option<Value>) -> Link {
        Link {
            schema,
            ..self.clone()
        }
    }

    /// True when the id carries its content (`data:`): such links are read without storage (RUN-221).
    pub fn is_inline(&self) -> bool {
        self.id.as_str().starts_with("data:")
    }
}

impl Link {
    /// The stored form (RUN-200): absolute when `base` is absent, else relative to the containing document.
    pub fn to_value(&self, base: Option<&Link>) -> Value {
        let me = self.to_wire();
        match base.map(Link::to_wire) {
            None => me.to_value(LinkBase::None, Regime::Legacy),
            Some(base) => {
                let mut payload = me.to_payload(LinkBase::Link(&base));
                // A narrower instance of the same document has to say so, whatever else is left out.
                if me.id == base.id && me.scope > base.scope {
                    payload.insert("scope", self.scope.as_str());
                }
                link_value(payload, Regime::Legacy)
            }
        }
    }

    /// Reads a stored link found in the document of `base`; `None` when `value` is no link, or a dead one.
    pub fn parse(value: &Value, base: &Link) -> Option<Link> {
        let link = WireLink::parse(value, Some(&base.to_wire()), Regime::Legacy)?;
        Some(Link {
            space: link.space?,
            id: link.id?,
            scope: link.scope.unwrap_or_default(),
            path: link.path,
            schema: link.schema,
            redirect: link.redirect,
            stamps: Stamps {
                via_link_hop: true,
                ..Stamps::default()
            },
        })
    }

    fn to_wire(&self) -> WireLink {
        WireLink {
            id: Some(self.id.clone()),
            space: Some(self.space.clone()),
            scope: Some(self.scope),
            path: self.path.clone(),
            schema: self.schema.clone(),
            redirect: self.redirect,
        }
    }
}

/// True when `value` is a stored link.
pub fn is_link(value: &Value) -> bool {
    memory_wire::link::is_link(value, Regime::Legacy)
}
