//! Read-only lenses over space stores and the node store.
