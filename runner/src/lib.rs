//! Reactive runtime: cells, transactions, replica, scheduler, speculation.

pub mod address;
pub mod ambient;
pub mod cell;
pub(crate) mod connection;
pub mod error;
pub mod event_append_queue;
pub mod keys;
pub mod link;
pub mod link_resolution;
pub(crate) mod pending_loads;
pub mod promise;
pub mod replica;
pub mod schema_read;
pub mod storage_manager;
pub mod transaction;
pub mod transport;
pub mod value_write;
