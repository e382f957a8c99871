//! Where each rule of the server's page is shown (`rules.tsv`), and the rules that no transcript tells apart from their
//! neighbours, each by a small exchange of its own.

#[path = "../support/mod.rs"]
mod support;

mod acting_owner;
mod bounds;
mod exchanges;
mod failing_flush;
mod shared_work;
mod table;
