//! A batch is all there or not at all: after a kill at and within every write, and when the disk is full. Rules: NODE-4,
//! NODE-5.

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod full_disk;
mod kills;
mod staging;
mod writer;
