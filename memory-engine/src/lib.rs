//! One space's durable store: admission, waves, lease, reads, queries.
