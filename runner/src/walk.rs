//! The open transaction as a source of documents for `memory_wire::traverse` (RUN-300, RUN-306, RUN-307), and the two
//! ways of spelling a place: the walk's document-rooted address and the runner's value-relative link.
//!
//! Called by link resolution and schema reads only.

use memory_wire::traverse::{
    self, Addr, DeadEnd, Dep, DocKey, DocSource, Schema, SourceError, TraverseError,
};
use memory_wire::{JsString, SpaceId, Value};
use smol_str::SmolStr;

use crate::address::{Address, VALUE};
use crate::error::RunnerError;
use crate::link::{Link, Stamps};
use crate::replica::Selector;
use crate::storage_manager::StorageManager;
use crate::transaction::{ReadMeta, RunTx};

/// Reads through a transaction: what is noted is recorded there, what is absent is asked for.
pub(crate) struct TxSource<'a> {
    tx: &'a RunTx,
    /// The refusal that ended the walk, kept because the walk only carries its text.
    refused: Option<RunnerError>,
}

impl<'a> TxSource<'a> {
    pub(crate) fn new(tx: &'a RunTx) -> TxSource<'a> {
        TxSource { tx, refused: None }
    }

    /// What a failed walk means to the caller.
    pub(crate) fn error(self, error: TraverseError, at: &Link) -> RunnerError {
        if let Some(refused) = self.refused {
            return refused;
        }
        match error {
            TraverseError::Scope(error) => RunnerError::UnresolvableScope(error.to_string()),
            TraverseError::LinkCycle(text) => {
                tracing::warn!(id = %at.id, %text, "link cycle");
                RunnerError::LinkCycle {
                    at: format!("{}/{}", at.id, at.path.join("/")),
                    reason: text,
                }
            }
            other => RunnerError::Traverse(other.to_string()),
        }
    }
}

impl DocSource for TxSource<'_> {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        let scope = key.instance.scope_key.scope();
        let address = Address::document(key.space.clone(), key.instance.id.clone(), scope);
        // The walk notes by itself what it depended on.
        self.tx.peek_document(&address).map_err(|error| {
            let text = error.to_string();
            self.refused = Some(error);
            text.into()
        })
    }

    fn note(&mut self, at: &Addr, how: Dep) {
        let meta = match how {
            Dep::Shallow => ReadMeta::SHALLOW,
            Dep::Deep => ReadMeta::RECURSIVE,
            Dep::ShallowNoConflict => ReadMeta {
                exclude_from_conflict: true,
                ..ReadMeta::SHALLOW
            },
            Dep::DeepNoConflict => ReadMeta {
                exclude_from_conflict: true,
                ..ReadMeta::RECURSIVE
            },
        };
        let probe = at.path.last().is_some_and(|last| *last == "link@1");
        self.tx.note_read(
            &address_of(at),
            ReadMeta {
                link_probe: probe,
                ..meta
            },
        );
    }

    /// Absence is asked for at the place, and through the schema, that the walk was on its way with.
    fn missing(&mut self, link: &traverse::Link, _from: &SpaceId) {
        let address = address_of(&link.at);
        let selector = match &link.schema {
            Some(schema) => Selector::new(address.path.clone(), Some(schema.value().clone())),
            None => Selector::rejecting(),
        };
        self.tx
            .storage()
            .kick_through(&address, selector, self.tx.scope_identity().as_ref());
    }

    fn dead_end(&mut self, at: &Addr, why: &DeadEnd) {
        match why {
            DeadEnd::Blocked { scope, cap } => {
                tracing::warn!(id = %at.id, scope = scope.as_str(), cap = cap.as_str(), "link is narrower than its scope cap");
            }
            DeadEnd::MalformedLink | DeadEnd::MalformedLinkSchema => {
                tracing::warn!(id = %at.id, ?why, "stored link selects nothing");
            }
        }
    }
}

/// A path segment as text; the store's paths know no unpaired surrogates.
pub(crate) fn segment(text: &JsString) -> SmolStr {
    match text.as_str() {
        Some(text) => SmolStr::new(text),
        None => SmolStr::new(text.to_string_lossy()),
    }
}

pub(crate) fn address_of(at: &Addr) -> Address {
    Address {
        space: at.space.clone(),
        id: at.id.clone(),
        scope: at.scope,
        scope_key: None,
        path: at.path.iter().map(segment).collect(),
    }
}

/// A walk's place as a link taken out of data.
pub(crate) fn link_of(at: &Addr, schema: Option<&Schema>) -> Link {
    let address = address_of(at);
    let path = match address.path.split_first() {
        Some((first, rest)) if *first == VALUE => rest.to_vec(),
        Some(_) | None => address.path.clone(),
    };
    Link {
        space: address.space,
        id: address.id,
        scope: address.scope,
        path,
        schema: schema.map(|s| s.value().clone()),
        redirect: false,
        stamps: Stamps {
            via_link_hop: true,
            ..Stamps::default()
        },
    }
}

/// A link as the walk takes it, its schema interned.
pub(crate) fn to_walk(link: &Link, storage: &StorageManager) -> traverse::Link {
    let address = link.address();
    traverse::Link {
        at: Addr {
            space: address.space,
            id: address.id,
            scope: address.scope,
            path: address.path.iter().map(|s| JsString::from(s.as_str())).collect(),
        },
        schema: link
            .schema
            .as_ref()
            .map(|schema| storage.with_schemas(|pool| pool.intern(schema))),
    }
}

/// The caps recorded on a link, by depth of its value-relative path (RUN-213).
pub(crate) fn caps_of(link: &Link) -> Vec<Option<traverse::ScopeCap>> {
    let mut caps = vec![None; link.path.len()];
    for (depth, scope) in &link.stamps.scope_caps {
        let cap = traverse::ScopeCap::At(*scope);
        if let Some(slot) = caps.get_mut(*depth) {
            *slot = Some(slot.map_or(cap, |known: traverse::ScopeCap| known.narrower(cap)));
        }
    }
    caps
}
