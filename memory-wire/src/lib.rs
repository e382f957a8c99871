//! Vocabulary of the memory protocol: everything both ends of a connection share, and nothing that does I/O.
//!
//! | you need | look in |
//! | --- | --- |
//! | names of things: spaces, sessions, entities, sequence numbers | [`ids`], [`well_known`] |
//! | which stored instance of a document is meant | [`scope_key`] |
//! | values, their text, their hash, their equality | [`value`], [`js_string`], [`codec`], [`hash`], [`equality`] |
//! | links between documents, patches of documents | [`link`], [`pointer`], [`patch`] |
//! | which documents a schema reaches | [`traverse`] |
//! | the messages on the socket | [`message`], [`flags`], [`schema_table`], [`error`] |
//! | keys, DIDs and the signed session open | [`identity`], [`did`], [`auth`] |
//! | who may do what in a space | [`acl`] |
//! | what the server records beside a commit | [`commit_meta`], [`stream_entry`] |
//!
//! No function here reads a clock, randomness or global state; callers pass time, challenge bytes and flags
//! (WIRE-1001).

pub mod acl;
pub mod auth;
pub mod codec;
pub mod commit_meta;
pub mod did;
pub mod equality;
pub mod error;
pub mod flags;
pub mod hash;
pub mod identity;
pub mod ids;
pub mod js_string;
pub mod link;
pub mod message;
pub mod patch;
mod piece_buffer;
pub mod pointer;
pub mod schema_table;
pub mod scope_key;
pub mod stream_entry;
pub mod traverse;
pub mod value;
pub mod well_known;

pub use error::WireError;
pub use ids::{BranchName, Did, EntityId, EventId, LocalSeq, RequestId, Seq, SessionId, SpaceId};
pub use js_string::JsString;
pub use scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
pub use value::{Array, Object, Value};
