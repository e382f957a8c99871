//! What the scenario tests, the benches and the long runs share: the real binary as a child process, a signed
//! protocol client over a real socket, and a mirror of what a session was pushed.
//!
//! | you need | look in |
//! | --- | --- |
//! | a running server with a temporary data directory | [`process`] |
//! | a client that opens sessions, commits and watches | [`client`] |
//! | what that client holds after the frames it got | [`mirror`] |
//! | the demo's documents and streams, and events for them | [`poll`] |

pub mod client;
pub mod mirror;
pub mod poll;
pub mod process;

pub use client::{Client, Session};
pub use mirror::Mirror;
pub use process::SpaceServer;
