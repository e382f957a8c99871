//! Places with small identities (TRV-1702): a place is a document and a real path, interned, so that memos and
//! cycle guards compare numbers. Inline array elements, which are walked as documents of their own (TRV-508), get
//! a document entry whose id is written only when somebody asks for it.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::slot;
use super::source::{Addr, DocKey, DocPath};
use super::tracker::value_segment;
use crate::ids::{EntityId, SpaceId};
use crate::js_string::JsString;
use crate::scope_key::{Scope, ScopeIdentity, ScopeKey, ScopeKeyError};
use crate::value::Value;

/// A document of the current walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct DocIx(u32);

/// A place in one of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PlaceIx(u32);

/// A document by the name a link gives it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct DocName {
    pub(super) space: SpaceId,
    pub(super) id: EntityId,
    pub(super) scope: Scope,
}

#[derive(Clone, Debug)]
enum Kind {
    Stored(EntityId),
    /// An inline element; its id is the `data:` id of its content with links made absolute.
    Inline {
        element: Value,
        slot: PlaceIx,
        id: OnceLock<EntityId>,
    },
}

#[derive(Clone, Debug)]
struct Doc {
    kind: Kind,
    space: SpaceId,
    scope: Scope,
    root: PlaceIx,
    key: Option<DocKey>,
}

#[derive(Clone, Debug)]
struct Place {
    doc: DocIx,
    /// `None` at a document's root.
    parent: Option<PlaceIx>,
    segment: JsString,
    depth: u32,
}

/// The interned places of one memo.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    docs: Vec<Doc>,
    by_name: FxHashMap<DocName, DocIx>,
    inline: FxHashMap<PlaceIx, DocIx>,
    places: Vec<Place>,
    children: FxHashMap<(PlaceIx, JsString), PlaceIx>,
}

impl Places {
    pub(super) fn doc(&mut self, name: &DocName) -> DocIx {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let doc = self.add_doc(Kind::Stored(name.id.clone()), name.space.clone(), name.scope);
        self.by_name.insert(name.clone(), doc);
        doc
    }

    /// The pseudo document of the inline element at `slot`.
    pub(super) fn inline(&mut self, slot: PlaceIx, element: &Value) -> DocIx {
        if let Some(known) = self.inline.get(&slot) {
            return *known;
        }
        let around = &self.docs[self.places[slot.0 as usize].doc.0 as usize];
        let (space, scope) = (around.space.clone(), around.scope);
        let kind = Kind::Inline {
            element: element.clone(),
            slot,
            id: OnceLock::new(),
        };
        let doc = self.add_doc(kind, space, scope);
        self.inline.insert(slot, doc);
        doc
    }

    fn add_doc(&mut self, kind: Kind, space: SpaceId, scope: Scope) -> DocIx {
        let doc = DocIx(u32::try_from(self.docs.len()).expect("a walk is bounded far below 2^32 documents"));
        let root = self.add_place(Place {
            doc,
            parent: None,
            segment: JsString::default(),
            depth: 0,
        });
        self.docs.push(Doc {
            kind,
            space,
            scope,
            root,
            key: None,
        });
        doc
    }

    fn add_place(&mut self, place: Place) -> PlaceIx {
        let ix = PlaceIx(u32::try_from(self.places.len()).expect("a walk is bounded far below 2^32 places"));
        self.places.push(place);
        ix
    }

    pub(super) fn child(&mut self, parent: PlaceIx, segment: &JsString) -> PlaceIx {
        if let Some(known) = self.children.get(&(parent, segment.clone())) {
            return *known;
        }
        let Place { doc, depth, .. } = self.places[parent.0 as usize];
        let ix = self.add_place(Place {
            doc,
            parent: Some(parent),
            segment: segment.clone(),
            depth: depth + 1,
        });
        self.children.insert((parent, segment.clone()), ix);
        ix
    }

    /// The place at a document-rooted path.
    pub(super) fn at(&mut self, doc: DocIx, path: &[JsString]) -> PlaceIx {
        let root = self.docs[doc.0 as usize].root;
        path.iter()
            .fold(root, |place, segment| self.child(place, segment))
    }

    /// The place of a document's user data.
    pub(super) fn value(&mut self, doc: DocIx) -> PlaceIx {
        let root = self.docs[doc.0 as usize].root;
        self.child(root, &value_segment())
    }

    pub(super) fn doc_of(&self, place: PlaceIx) -> DocIx {
        self.places[place.0 as usize].doc
    }

    pub(super) fn path(&self, place: PlaceIx) -> DocPath {
        let mut path = vec![JsString::default(); self.places[place.0 as usize].depth as usize];
        let mut at = place;
        for segment in path.iter_mut().rev() {
            let Place {
                parent, segment: own, ..
            } = &self.places[at.0 as usize];
            *segment = own.clone();
            at = parent.expect("a place at depth n has n ancestors");
        }
        path
    }

    pub(super) fn addr(&self, place: PlaceIx) -> Addr {
        let doc = self.doc_of(place);
        let Doc { space, scope, .. } = &self.docs[doc.0 as usize];
        Addr {
            space: space.clone(),
            id: self.id(doc),
            scope: *scope,
            path: self.path(place),
        }
    }

    pub(super) fn space(&self, doc: DocIx) -> &SpaceId {
        &self.docs[doc.0 as usize].space
    }

    pub(super) fn scope(&self, doc: DocIx) -> Scope {
        self.docs[doc.0 as usize].scope
    }

    /// True when both documents have the same id, whatever their spaces and scopes.
    pub(super) fn same_id(&self, a: DocIx, b: DocIx) -> bool {
        match (&self.docs[a.0 as usize].kind, &self.docs[b.0 as usize].kind) {
            (Kind::Stored(a), Kind::Stored(b)) => a == b,
            // A stored link may spell an inline element's id, but no walk is skipped or taken for it.
            _ => a == b,
        }
    }

    /// True when the document is never stored: an inline element, or a `data:` id.
    pub(super) fn is_written_out(&self, doc: DocIx) -> bool {
        match &self.docs[doc.0 as usize].kind {
            Kind::Stored(id) => id.is_inline(),
            Kind::Inline { .. } => true,
        }
    }

    /// The root of a document that is written out in its id or in its slot; `None` when it is not readable.
    pub(super) fn written_out_root(&self, doc: DocIx) -> Option<Value> {
        let value = match &self.docs[doc.0 as usize].kind {
            Kind::Stored(id) => id.inline_value().ok()?,
            Kind::Inline { element, .. } => element.clone(),
        };
        Some(Value::Object([(value_segment(), value)].into_iter().collect()))
    }

    pub(super) fn id(&self, doc: DocIx) -> EntityId {
        match &self.docs[doc.0 as usize].kind {
            Kind::Stored(id) => id.clone(),
            Kind::Inline { element, slot, id } => id
                .get_or_init(|| {
                    let base = self.doc_of(*slot);
                    let base = DocName {
                        space: self.space(base).clone(),
                        id: self.id(base),
                        scope: self.scope(base),
                    };
                    let absolute = slot::with_absolute_links(element, &base);
                    // A stored element was decoded from text, so it can be written again.
                    EntityId::inline(&absolute).unwrap_or_else(|_| EntityId::from("data:"))
                })
                .clone(),
        }
    }

    pub(super) fn name(&self, doc: DocIx) -> DocName {
        DocName {
            space: self.space(doc).clone(),
            id: self.id(doc),
            scope: self.scope(doc),
        }
    }

    /// The document's key under `identity` (TRV-301).
    pub(super) fn key(&mut self, doc: DocIx, identity: &ScopeIdentity) -> Result<DocKey, ScopeKeyError> {
        if let Some(key) = &self.docs[doc.0 as usize].key {
            return Ok(key.clone());
        }
        let scope_key = ScopeKey::resolve(self.scope(doc), identity)?;
        let key = DocKey::new(self.space(doc).clone(), scope_key, self.id(doc));
        self.docs[doc.0 as usize].key = Some(key.clone());
        Ok(key)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }
}
