//! Faulty disks, power cuts and kills under the real `memory-engine`: what its tests of durability stand on.
//!
//! | you need | look in |
//! | --- | --- |
//! | a directory whose storage fails on demand and remembers what it was told | [`Disk`], [`Fault`] |
//! | what a power cut or a kill would leave at any moment | [`Record`], [`Survival`] |
//! | a mixed workload whose commits can be told apart | [`workload`] |
//! | whether a store holds every acknowledged commit, each whole | [`audit`] |
//!
//! The crate is for tests alone. It is a crate of its own because SQLite takes a file system only in C: [`Disk`] needs a
//! few lines of `unsafe`, which live in one module with their proof, and nowhere else in the workspace.

pub mod audit;
mod disk;
mod vfs;
pub mod workload;

pub use disk::{Counts, Disk, Fault, Left, Record, Survival};
