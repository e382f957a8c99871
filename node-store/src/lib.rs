//! A node's own store: typed rows in column families, staged in layers, written all or not at all.
//!
//! # What it is
//!
//! Everything a node keeps for itself lies in one store of 22 [`Column`]s. A row is a typed key and a typed value:
//! [`key`] declares each family once, and layout, width, prefix and reach follow from that; [`value`] holds the records.
//! A [`Store`] stands on a backend ([`backend::sqlite`] by default, [`backend::memory`] for tests, `backend::rocksdb`
//! behind a feature), and [`encryption`] goes around any of them.
//!
//! # How to write
//!
//! Layers compose without the backend knowing ([`Layer`], [`ReadLayer`], [`WriteLayer`], [`LayerExt`]): `.handle()` gives
//! types, `.temporal()` stages, `.read_only()` takes writing away. A [`Transaction`], a [`StoreBatch`] and a committed
//! [`Temporal`] are each one `apply`, which lands across all columns or not at all, whatever happens meanwhile.
//!
//! # What never leaves
//!
//! Whether a row may go to another machine is a type ([`export`]). [`Store::export_replicated`] is the only way out, and
//! markers, private rows and keys have no way through it.
//!
//! # What stands on it
//!
//! Content-addressed binaries ([`blob`]), programs and their safe upgrade ([`program`], decided by [`markers`] alone), the
//! op store ([`op_store`]), governance records ([`governance`]), spaces ([`context`]), sorted collections
//! ([`sorted_index`]), hybrid time ([`clock`]), and every row by name for display ([`family`]).

pub mod backend;
mod batch;
pub mod blob;
pub mod clock;
mod column;
pub mod context;
mod cursor;
pub mod encryption;
mod error;
pub mod export;
pub mod family;
pub mod governance;
mod handle;
pub mod id;
pub mod key;
mod layer;
pub mod markers;
pub mod op_store;
pub mod program;
mod scan;
mod secret;
pub mod sorted_index;
mod store;
mod transaction;
pub mod value;

pub use backend::sqlite::SqliteOptions;
pub use backend::{Database, Durability, ReadView};
pub use batch::StoreBatch;
pub use blob::BlobStore;
pub use column::{Column, ColumnSet, Replication};
pub use cursor::{Cursor, Row, RowCursor};
pub use encryption::{Encrypted, MasterKey};
pub use error::{Hex, Malformed, StoreError};
pub use export::ExportRow;
pub use family::Family;
pub use handle::{Handle, Read, Value};
pub use key::{Direction, Key, KeyRange};
pub use layer::{Layer, LayerExt, ReadLayer, ReadOnly, Temporal, WriteLayer};
pub use markers::{Markers, UpgradeState, upgrade_state};
pub use program::Programs;
pub use scan::Scan;
pub use secret::Secret;
pub use store::{OwnedRow, Snapshot, Store};
pub use transaction::{Op, Transaction};
pub use value::Codec;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
