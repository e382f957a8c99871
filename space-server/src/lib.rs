//! Executor host, wave loop and the space-server binary.
