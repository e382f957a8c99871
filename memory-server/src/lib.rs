//! Sessions, watches, filtered push, access control and transport of the memory protocol: everything between a client's
//! socket and the store of a space.
//!
//! A [`Server`] is made from a [`ServerConfig`] and mounted as an axum router; in the same process a serving loop reaches
//! it through [`ServingPlane`] and hears from it through [`Observer`], and opens sessions like any client over
//! [`loopback`].
//!
//! | you look for | room |
//! | --- | --- |
//! | how frames come in and go out, closes, limits | `listener`, `transport`, `outbound`, `connection` |
//! | which request is answered where | `dispatch`, then `handshake`, `session_open`, `transact`, `watch_requests` (`large_list`), `graph_query`, `entity_ids`, `sqlite_requests` |
//! | what one space has: sessions, dirt, caches | `space`, `registry`, `session`, `dirty` |
//! | why no frame overtakes a verdict | `turn` |
//! | how a change reaches who watches it | `flush`, `visits`, `evaluate`, `shared_frames`, `full_view`, `prepared_view`, `applicable`, `delivery`, `document_cache` |
//! | who may do what | `acl`, `acting_as`, `authentication` |
//! | what a client renders, and what is selected for it | `views` |
//! | reads of named instances, leases | `instance_reads`, `leases` |
//! | the serving loop's side | `serving_plane`, `demand`, `delegated_append`, `served_acl`, `foreign_authority` |
//! | what an operator can set | [`knobs`] |
//! | bounds, rates | [`limits`], `rates` |
//!
//! Invariant: nothing here executes patterns, derives values or decides a commit's class from a client's words; the
//! crate knows the runner not at all.

mod acl;
mod acting_as;
mod applicable;
mod authentication;
mod clock;
mod config;
mod connection;
mod delegated_append;
mod delivery;
mod demand;
mod direct_write;
mod dirty;
mod dispatch;
mod document_cache;
mod entity_ids;
mod error;
mod evaluate;
mod flush;
mod foreign_authority;
mod foreign_commits;
mod full_view;
mod graph_query;
mod handshake;
mod http;
mod identifiers;
mod instance_reads;
pub mod knobs;
mod large_list;
mod leases;
pub mod limits;
mod listener;
mod log_counts;
pub mod loopback;
mod markers;
mod metrics;
mod outbound;
mod plane;
mod prepared_view;
mod rates;
mod registry;
mod served_acl;
mod server;
mod serving_lag;
mod serving_plane;
mod session;
mod session_open;
mod shared_frames;
mod space;
mod spans;
mod sqlite_requests;
mod statistics;
mod tasks;
mod transact;
mod transport;
mod turn;
mod unconfirmed;
mod views;
mod visits;
mod watch_requests;
mod watches;

pub use authentication::{SessionAuthenticator, SignedSessionOpen};
pub use clock::{Clock, SystemClock};
pub use config::{
    AclConfig, AclMode, FaultPoints, FlushTiming, NoFaults, SendRefused, ServerConfig, Stores, UnknownAclMode,
};
pub use error::ServerError;
pub use identifiers::{Identifiers, RandomIdentifiers};
pub use limits::Limits;
pub use log_counts::{LogCounts, LogLevels};
pub use metrics::{MetricKind, MetricRow, table as metrics_table};
pub use rates::{Rate, RateStats, Rates};
pub use server::{Server, ServingLoopReport};
pub use serving_plane::{
    AdmittedCommit, Appended, Authority, DelegatedAppend, DemandReason, DemandRow, DemandSizes,
    EventAppendNotice, GrantVia, Observer, PlaneFuture, ServedAclChange, ServedAclOutcome, ServingPlane,
    SessionDemand,
};
pub use statistics::{AclStats, PushStats, SlowOperation, SlowQuery, TimingReport, WorkStats};
pub use views::{ViewHandle, ViewInterestRow, ViewSelection};

/// The README's example is compiled like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
