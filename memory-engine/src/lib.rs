//! One space's durable store: commit admission, waves, the lease, reads and queries over one SQLite file.
//!
//! Knows nothing of sockets, sessions, watches or the runner: callers hand in identities that are already
//! authenticated, and the time. Everything is synchronous and safe to move between threads; [`actor`] puts it on
//! threads of its own.
//!
//! | you need | look in |
//! | --- | --- |
//! | where a space's file lies | [`store_path`] |
//! | to open one, group writes, notice other processes' commits | [`Engine`] |
//! | to admit a commit | [`Engine::apply_commit`], [`ApplyCommit`] |
//! | to land a wave | [`Engine::apply_wave`], [`WaveCommit`] |
//! | to hold a space's lease | [`lease`] |
//! | a document, now or earlier | [`Reader::read_state`] |
//! | ids, branches, the feed of commits | [`Reader`] |
//! | what a graph query reaches, now and after each commit | [`query`] |
//! | pending events, retirable effects, basis rows, the outbox | [`events`], [`effects`], [`basis`], [`outbox`] |
//! | relational tables beside the store | [`sqlite_builtin`] |
//! | a copy of a store in one file, and a store of a copy | [`dump`], [`Reader::back_up`], [`EngineHandle::back_up`] |
//! | to know whether a store is sound | [`integrity`] |
//! | to retire a dead session | [`Engine::retire_session`] |
//! | one store from many threads | [`actor::EngineHandle`] |
//!
//! What is written to the file, what is admitted or refused, and every error's name and text are a contract shared
//! with the reference implementation; the rule ids (`ENG-…`) in the docs name its clauses.

pub mod actor;
mod admission;
pub mod basis;
mod branch;
mod column;
mod connection;
mod document_cache;
pub mod dump;
pub mod effects;
mod engine;
mod entity_ids;
mod error;
pub mod events;
mod feed;
mod foreign;
mod heads;
#[cfg(test)]
mod indexes;
pub mod integrity;
pub mod lease;
mod migration;
mod open;
pub mod outbox;
pub mod query;
mod read;
mod reader;
mod refusal;
mod retirement;
mod schema;
mod sessions;
mod snapshot;
pub mod sqlite_builtin;
mod store_file;
pub mod store_path;
#[doc(hidden)]
pub mod sync;
mod undo;
mod wave;

pub use actor::{ActorOptions, EngineHandle, LogCounters};
pub use admission::{Applied, ApplyCommit, CommitTexts, SqliteOperations, parse_annotation_key};
pub use branch::{BranchState, BranchStatus};
pub use column::RevisionOp;
pub use document_cache::{CacheCounters, StoreCounters};
pub use engine::{Engine, EngineOptions};
pub use error::{BadStore, EngineError, StoredDataError};
pub use feed::FeedRecord;
pub use lease::{Holder, LeaseHolder};
pub use open::Durability;
pub use read::{EntityState, ReadInstance};
pub use reader::Reader;
pub use refusal::Refusal;
pub use retirement::Retired;
pub use snapshot::SnapshotPolicy;
pub use store_path::{StoreLocation, StoreRoot};
pub use wave::WaveCommit;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
