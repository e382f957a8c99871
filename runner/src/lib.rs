//! Reactive runtime: cells, transactions, replica, scheduler, speculation.
