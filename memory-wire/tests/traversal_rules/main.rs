//! The rules of the traversal, each by a case of its own that needs that rule and little else. The golden vectors
//! (`vectors_traversal`) have the combinations; here a rule that is broken is named.

mod driver;
mod graph;
mod links;
mod narrowing;
mod reads;
mod references;
mod schemas;
mod scopes;
mod tracking;
mod walk;
