//! The op store: one DAG of signed, content-addressed operations a scope. Rule: NODE-14; facts: §5.

mod credential;
mod dag;
mod log;
mod op;
mod payload;

pub use credential::{AccountGenesis, DeviceCertificate, RootHandoff};
pub use dag::{Arrival, OpDag};
pub use log::{Appended, OpStore};
pub use op::{Authorship, Op, UnsignedOp, scope_root};
pub use payload::Payload;
