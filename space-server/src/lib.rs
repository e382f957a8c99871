//! The executor host and the serving loop: what runs handlers and derivations for everybody and lands the result as
//! one derived commit per wave.
//!
//! | you need | look in |
//! | --- | --- |
//! | to serve spaces: start, warm, close | [`host`] |
//! | one space's loop, from activation to park | `activation`, `space_loop` |
//! | where runs seal and how a wave leaves | `destination`, `stamper`, `open_wave`, `sink` |
//! | events, demanded structure, appends to other spaces | `events`, `structure`, `outbox` |
//! | the wave: what sealed, what survives, what lands | [`wave`] |
//! | what may be promised as current | [`watermark`] |
//! | who demands what | [`demand`] |
//! | the guard that delivers an event once | [`in_flight`] |
//! | the lease and its tenures | `lease_keeper` |
//! | knobs, counters, time | [`settings`], [`statistics`], [`time`] |
//! | the program put together | [`application`] |
//! | what the operator says, and the node's key | [`configuration`], [`node_key`] |
//! | the patterns compiled in, and the served example | [`patterns`], [`demo`] |
//! | the runner's way to the server in the same process | [`loopback`] |

mod activation;
pub mod application;
pub mod configuration;
pub mod demand;
pub mod demo;
mod destination;
pub mod error;
mod events;
pub mod host;
pub mod in_flight;
mod lease_keeper;
pub mod loopback;
pub mod node_key;
mod notice;
mod open_wave;
mod outbox;
pub mod patterns;
pub mod settings;
mod sink;
mod space_loop;
mod stamper;
pub mod statistics;
mod structure;
pub mod time;
mod wakeup;
pub mod watermark;
pub mod wave;
