//! The SQLite builtin (ENG §14): relational tables that live in a file of their own beside the space's store, one per
//! database document and instance, written by operations of commits and read by guarded queries. Who may do either,
//! and the requests themselves, are the server's.
//!
//! | you need | look in |
//! | --- | --- |
//! | whether a statement is admitted | [`guard`] |
//! | which table and columns a write is about | [`write_target`] |
//! | what a row's label is | [`row_label`] |
//! | the statement that creates a declared table | [`table`] |
//! | where a database's file lies, and whose it is | [`cell_file`], `seal` |
//! | how much a request may use up | [`StatementBounds`], `metered` |
//! | to land a commit that writes | [`CellDatabases`], [`Engine::apply_commit_with_sqlite`](crate::Engine::apply_commit_with_sqlite) |
//! | to read | [`CellReaders`] |

mod bounds;
pub mod cell_file;
mod commit;
mod confinement;
pub mod disk_source;
pub mod guard;
mod labelled_write;
mod metered;
mod query;
pub mod row_label;
mod seal;
mod sql_text;
mod sql_value;
pub mod table;
mod text_pattern;
pub mod write_target;

pub(crate) use bounds::Meter;
pub use bounds::StatementBounds;
pub use commit::CellDatabases;
pub use disk_source::DiskSources;
pub use query::{CellReaders, Column, QueryTarget, Rows};
