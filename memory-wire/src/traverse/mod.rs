//! Schema-directed traversal (`TRV-…`): which documents a schema reaches, and which value it selects. Pure functions
//! over a [`DocSource`]; the engine walks in query mode through [`visit`], the runner reads through [`read`]. Both
//! follow one definition, because a client waits for every document that it believes the server sends.
//!
//! | you need | look in |
//! | --- | --- |
//! | schemas, interning, narrowing, combining, references | [`Schema`], [`SchemaPool`], [`narrow`], [`combine`], [`resolve_ref`] |
//! | what a reader sees | [`read`], [`read_lazily`], [`resolve_link`], [`Tree`] |
//! | what a graph query reaches | [`visit`], [`Tracker`], [`Selector`] |
//!
//! # Rules
//!
//! | rules | what they say | where |
//! | --- | --- | --- |
//! | TRV-101…107 | what a schema is, which keywords count, what a type admits | [`Schema`], [`type_check`] |
//! | TRV-201…204, 401…406 | stored links: recognising, reading, following, re-rooting the selector | [`visit`], [`resolve_link`] |
//! | TRV-301…313 | tracking, coverage, what is remembered and for whom | [`Tracker`], [`Memo`] |
//! | TRV-501…511 | the walk under a schema: unions, links, arrays, objects, cycles | [`visit`], [`read`] |
//! | TRV-601…604 | the walk under `true` | [`visit`] |
//! | TRV-701…706, 801…804 | the schema below a path; a reader's and a link's together | [`narrow`], [`combine`] |
//! | TRV-901…905 | `$ref`: local, stored and compiled-in schemas | [`resolve_ref`] |
//! | TRV-1001…1005, 1401 | scopes and spaces of links, caps | [`hop_cap`], [`handle_cap`] |
//! | TRV-1101…1120 | a graph query | [`visit`] |
//! | TRV-1201…1230 | a read: handles, defaults, positions, dependencies, lazy views | [`read`], [`read_lazily`] |
//! | TRV-1501…1503 | depth on the heap, bounded work and memory | [`TraverseError`] |
//! | TRV-1601 | malformed data makes a place select nothing | [`DeadEnd`] |
//!
//! A walk succeeds or fails, and tracks documents, notes dependencies and reports missing targets as it goes; a failure takes
//! none of that back (TRV-2). It asks for documents and nothing else (TRV-1):
//!
//! ```
//! use memory_wire::traverse::{
//!     Ctx, DocKey, DocSource, MAX_OPEN_PLACES, Memo, Mode, Root, SchemaPool, Seen, Selector, SourceError, Tracker, visit,
//! };
//! use memory_wire::{Scope, ScopeIdentity, Value, value};
//!
//! /// Everybody's `of:b`, which `of:a` links to.
//! struct Store;
//!
//! impl DocSource for Store {
//!     fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
//!         Ok((key.instance.id.as_str() == "of:b").then(|| value!({ "value": "found" })))
//!     }
//! }
//!
//! let (mut tracker, mut memo, mut schemas, mut seen) = (Tracker::new(), Memo::new(), SchemaPool::new(), Seen::new());
//! let mut ctx = Ctx {
//!     mode: Mode::Query,
//!     identity: &ScopeIdentity::user("did:key:zA"),
//!     tracker: &mut tracker,
//!     memo: &mut memo,
//!     schemas: &mut schemas,
//!     seen: &mut seen,
//!     max_open: MAX_OPEN_PLACES,
//!     skip_walked: true,
//! };
//! let root = Root {
//!     space: "did:key:zS".into(),
//!     id: "of:a".into(),
//!     scope: Scope::Space,
//!     explicit: None,
//!     document: Some(value!({ "value": { "to": { "/": { "link@1": { "id": "of:b" } } } } })),
//! };
//! let outcome = visit(&mut Store, &mut ctx, &root, &Selector::everything())?;
//! assert!(outcome.is_ok() && tracker.len() == 2);
//! # Ok::<(), memory_wire::traverse::TraverseError>(())
//! ```

mod branch;
mod build;
mod chains;
mod closure;
mod combine;
mod containers;
mod deep;
mod defaults;
mod distinct;
mod embedded;
mod everything;
mod handles;
mod hop;
mod lazy;
mod memo;
mod metadata;
mod narrow;
mod place;
mod query;
mod read;
mod refs;
mod resolve;
mod schema;
mod scope_cap;
mod slot;
mod source;
mod tracker;
mod type_check;
mod walk;
mod walker;

pub use branch::handle_branch;
pub use build::{Build, Handle, Node, NodeIx, Nothing, Shape, Tree, merge_matches};
pub use combine::{combine, combine_optional};
pub use lazy::{LazyError, LazyRead, LazyView, read_lazily};
pub use memo::{Failure, Memo, Outcome};
pub use narrow::{is_marker, narrow, narrow_marked, schema_at_path};
pub use query::{Root, visit};
pub use read::{ReadRequest, Reading, read};
pub use refs::resolve_ref;
pub use resolve::{Follow, Resolved, resolve_link};
pub use schema::{Schema, SchemaPool};
pub use scope_cap::{ScopeCap, handle_cap, hop_cap};
pub use source::{Addr, DeadEnd, Dep, DocKey, DocPath, DocSource, Link, SourceError, TraverseError};
pub use tracker::{Selector, Tracker, covered};
pub use type_check::{TypeName, Verdict, branch_may_match, type_check};
pub use walker::{Ctx, MAX_OPEN_PLACES, Mode, Seen};
