//! Programs: what a pattern is, and the graph it is made of (RUN-820, RUN-821).
//!
//! A pattern is written as a Rust type that implements [`Pattern`]; its graph is built once with
//! [`GraphBuilder`] and instantiated per piece by [`crate::piece`]. Bodies are synchronous, name things by cause,
//! and see no clock, no randomness and no network (RUN-805, RUN-822).
//!
//! | room | holds |
//! | --- | --- |
//! | `graph` | nodes, internals, bindings: the pattern as data |
//! | `build` | the builder patterns are written with |
//! | `bind` | bindings resolved to the documents of one piece |
//! | `identity` | durable ids of code (RUN-604, RUN-821) |
//! | `body` | what a body sees: its argument and its [`RunCx`] |
//! | `derivation`, `handler` | running the two kinds of node |

mod bind;
mod body;
mod build;
mod derivation;
mod graph;
mod handler;
pub mod identity;

use std::rc::Rc;

use memory_wire::Value;

pub use bind::{Bound, PieceLinks};
pub use body::{ArgView, RunCx};
pub use build::{GraphBuilder, Place, fields};
pub(crate) use derivation::Derivation;
pub use graph::{
    Binding, BindingRoot, DerivationBody, HandlerBody, Internal, InternalKind, ModuleRef, NativeCode, Node,
    PatternGraph, Template,
};
pub(crate) use handler::{EVENT_FIELD, NativeHandler};
pub use identity::PatternIdentity;

/// A program. Implementations are plain values; the runtime keeps one `Rc` per identity.
pub trait Pattern {
    /// What pieces of this pattern store to be found again (RUN-810, decision 7). MUST change whenever the
    /// graph or a body changes what it computes.
    fn identity(&self) -> PatternIdentity;

    /// The graph. Called once per registration; MUST be the same every time.
    fn graph(&self) -> PatternGraph;
}

/// The patterns a runtime can instantiate, by stored identity.
#[derive(Clone, Default)]
pub struct PatternRegistry {
    known: Vec<(PatternIdentity, Rc<PatternGraph>)>,
}

impl PatternRegistry {
    /// Adds a pattern; a second one of the same identity replaces the first.
    pub fn add(&mut self, pattern: &dyn Pattern) -> PatternIdentity {
        let identity = pattern.identity();
        let graph = Rc::new(pattern.graph());
        self.known.retain(|(known, _)| *known != identity);
        self.known.push((identity.clone(), graph));
        identity
    }

    /// The graph of an identity, if it is known here.
    pub fn get(&self, identity: &PatternIdentity) -> Option<Rc<PatternGraph>> {
        self.known
            .iter()
            .find(|(known, _)| known == identity)
            .map(|(_, graph)| Rc::clone(graph))
    }

    /// The identity whose stored form a piece holds, if it is known here.
    pub fn stored(&self, stored: &Value) -> Option<PatternIdentity> {
        self.known
            .iter()
            .find(|(known, _)| known.matches(stored))
            .map(|(known, _)| known.clone())
    }
}
