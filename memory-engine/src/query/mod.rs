//! Graph queries (ENG §10): which documents the roots of a query reach under their schemas, and how that reach is
//! kept up to date as commits land. The walk itself is [`memory_wire::traverse`]; here are its source (one branch
//! of one store at one seq, read by one identity), the state between evaluations, the schema documents that belong
//! to a result, the cache that lets sessions share one evaluation,
//! and the refresh that equal watches share. Called by the server, on a
//! [`Reader`](crate::Reader).

mod closure;
mod evaluation;
mod evaluation_cache;
mod reach;
mod shared_refresh;
mod snapshot;
mod source;
mod tracked_graph;

pub use evaluation_cache::EvaluationCache;
pub use shared_refresh::{RefreshWork, SharedRefresh};
pub use snapshot::Snapshot;
pub use tracked_graph::{Changes, TrackedGraph, Work};
