//! Programs and their upgrade under faults: killed at every step, and killed again while recovering, a node comes back by
//! itself, never runs code on state of another version, and no marker is ahead of the data. Rules: NODE-30…36.

#[path = "../support/mod.rs"]
mod support;

mod faults;
mod install;
mod kills;
mod markers;
mod processes;
mod received;
mod reference;
mod resync;
mod scenarios;
mod shared_code;
mod spaces;
mod versions;
mod world;
