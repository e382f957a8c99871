//! Reactive runtime: the client of a space, and the engine that a serving host runs.
//!
//! A [`Runtime`] lives on one thread and is driven from there. Patterns read and write [`Cell`]s inside
//! transactions ([`RunTx`]); a transaction becomes a commit, and the [`Replica`] of its space shows the commit at
//! once, sends it, and settles it when the server has spoken. What others write arrives in frames, the replica says
//! which documents changed, and the scheduler runs what depended on them.
//!
//! ```text
//!  Cell ── RunTx ── commit ──> Replica ──> connection ──> transport ──> server
//!   ^                 │           │  <──── frames, verdicts ────────────┘
//!   │                 └─ seal ──> overlay (client) or wave (serving host)
//!  scheduler <── notifications ───┘
//! ```
//!
//! | you need | look in |
//! | --- | --- |
//! | a runtime, its postures, driving it | [`runtime`], [`serving_runtime`] |
//! | places, lenses, reading and writing values | [`cell`], [`view`], [`link`], [`address`] |
//! | what one run reads and writes, and how it ends | [`transaction`] |
//! | documents, pending commits, loads, sessions | [`storage_manager`], [`replica`], [`transport`] |
//! | what runs, when, and for whom | [`scheduler`], [`seal`], [`overlay`] |
//! | patterns, pieces, built-ins, and the ids they mint | [`pattern`], [`piece`], [`builtins`], [`entity_derivation`] |
//! | key texts in which an identity takes part | [`keys`] |
//! | time, randomness, values that arrive later | [`ambient`], [`promise`] |
//!
//! Two rules hold everywhere. An instance of a scoped document is only ever chosen by an identity that came with the
//! work, through `memory_wire`'s one constructor (RUN-400). And a run never waits: what is not here reads as absent,
//! is asked for, and runs again when it arrives (I-1).

pub mod address;
pub mod ambient;
pub mod builtins;
pub mod cell;
mod connection;
pub mod entity_derivation;
pub mod error;
pub mod event_append_queue;
pub mod keys;
pub mod link;
pub mod link_resolution;
pub mod overlay;
pub mod pattern;
pub mod piece;
pub mod promise;
pub mod replica;
pub mod runtime;
pub mod scheduler;
pub mod schema_read;
pub mod seal;
pub mod serving_runtime;
pub mod storage_manager;
pub mod transaction;
pub mod transport;
pub mod value_write;
pub mod view;
mod walk;

pub use address::Address;
pub use cell::{Cell, CellHost};
pub use error::{CommitError, CommitErrorName, RunnerError};
pub use link::Link;
pub use promise::Promise;
pub use replica::Replica;
pub use runtime::Runtime;
pub use storage_manager::{StorageManager, StorageOptions};
pub use transaction::RunTx;
pub use view::View;
