//! Schema-directed traversal (`TRV-…`): which documents a schema reaches, and which value it selects. Pure functions
//! over a [`DocSource`]; the engine walks in query mode through [`visit`], the runner reads through [`read`]. Both
//! follow one definition, because a client waits for every document that it believes the server sends.
//!
//! | you need | look in |
//! | --- | --- |
//! | schemas, interning, narrowing, combining, references | [`Schema`], [`SchemaPool`], [`narrow`], [`combine`], [`resolve_ref`] |
//! | what a reader sees | [`read`], [`read_lazily`], [`resolve_link`], [`Tree`] |
//! | what a graph query reaches | [`visit`], [`Tracker`], [`Selector`] |

mod branch;
mod build;
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
