//! Reactive runtime: cells, transactions, replica, scheduler, speculation.

pub mod address;
pub mod ambient;
pub mod error;
pub mod link;
pub mod promise;
pub mod replica;
pub mod transaction;
