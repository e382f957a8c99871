//! The node's own layered, typed column-family store.
