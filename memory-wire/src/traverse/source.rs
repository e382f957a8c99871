//! What a walk asks of its surroundings (TRV §17): documents by key, and somewhere to note what it depended on.
//! Implemented by the engine's reader, the runner's transaction and the tests.

use std::fmt;

use thiserror::Error;

use super::schema::Schema;
use super::scope_cap::ScopeCap;
use crate::ids::{EntityId, SpaceId};
use crate::js_string::JsString;
use crate::scope_key::{InstanceId, Scope, ScopeKey, ScopeKeyError};
use crate::value::Value;

/// A path from a document's root: object keys and array indexes as texts.
pub type DocPath = Vec<JsString>;

/// One stored instance of a document in a space (TRV-301). Its text is `<space>/<scope_key>/<id>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DocKey {
    /// The space.
    pub space: SpaceId,
    /// The instance.
    pub instance: InstanceId,
}

impl DocKey {
    /// The instance of `id` under `scope_key` in `space`.
    pub fn new(space: SpaceId, scope_key: ScopeKey, id: EntityId) -> DocKey {
        DocKey {
            space,
            instance: InstanceId { id, scope_key },
        }
    }
}

impl fmt::Display for DocKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.space, self.instance.scope_key, self.instance.id
        )
    }
}

/// A place in a document, with the scope by its name: what dependency logs and positions are made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Addr {
    /// The space.
    pub space: SpaceId,
    /// The document.
    pub id: EntityId,
    /// Which of its instances, from the reader's point of view.
    pub scope: Scope,
    /// From the document's root; user data lies below `value`.
    pub path: DocPath,
}

/// How much of the subtree at an address a read depended on (TRV-1221).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Dep {
    /// The place itself: its kind and its keys.
    Shallow,
    /// Everything below.
    Deep,
    /// As `Shallow`, and writers below must not conflict with the reader.
    ShallowNoConflict,
    /// As `Deep`, and writers below must not conflict with the reader.
    DeepNoConflict,
}

/// A link with its target spelled out: what a handle, a live view or a missing target is reported with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The target; the path is document-rooted.
    pub at: Addr,
    /// What the reader asks of the target.
    pub schema: Option<Schema>,
}

/// Why a place selects nothing although something is stored there (TRV-1004, §16).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeadEnd {
    /// The stored link cannot be read: its payload is null, or an address field has a type no address can have.
    MalformedLink,
    /// The link's schema is neither a boolean nor an object.
    MalformedLinkSchema,
    /// The reader's schema keeps links of this scope out.
    Blocked {
        /// The link's scope.
        scope: Scope,
        /// The cap.
        cap: ScopeCap,
    },
}

/// A failure of the document source itself (a store error), passed through unchanged.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Yields documents and takes notes. All methods but `load` do nothing by default.
pub trait DocSource {
    /// The whole root of a document; `None` when it was never written or is deleted.
    ///
    /// # Errors
    /// A failure of the store; it ends the walk.
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError>;

    /// Read mode: the result depends on `at`. Recording must not load anything.
    fn note(&mut self, _at: &Addr, _how: Dep) {}

    /// Read mode: `link`'s target, met in `from`, is not there (TRV-1303).
    fn missing(&mut self, _link: &Link, _from: &SpaceId) {}

    /// Something is stored at `at` that selects nothing. Called at each encounter; whoever reports it does so once
    /// per place.
    fn dead_end(&mut self, _at: &Addr, _why: &DeadEnd) {}
}

/// Why a walk ended without a result (TRV-1701). Everything else that can be wrong with stored data makes a place
/// select nothing (TRV-1601).
#[derive(Debug, Error)]
pub enum TraverseError {
    /// A scope was met that the identity cannot resolve (TRV-301).
    #[error(transparent)]
    Scope(#[from] ScopeKeyError),
    /// A memo bound to one identity was offered to a walk under another (TRV-312).
    #[error("a traversal memo is bound to the identity it was filled under")]
    Identity,
    /// More places were open at once than the limit (TRV-1501).
    #[error("traversal is too deep: more than {limit} places are open at once")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// Schemas or selectors multiplied on the way, as only hostile ones do (TRV-1502, 1503).
    #[error("traversal is too costly: schemas or selectors on the way multiply")]
    TooCostly,
    /// An address that is read resolves to itself (TRV-1201).
    #[error("{0}")]
    LinkCycle(String),
    /// A default contradicts its own schema (TRV-1215).
    #[error("{0}")]
    Default(String),
    /// The source failed.
    #[error(transparent)]
    Source(SourceError),
}
