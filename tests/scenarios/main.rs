//! Scenario tests: the real binary, real sockets, real signatures, real SQLite files, more than one client. Each
//! asserts by what clients were pushed, by store query and by counters; none waits on time.

mod admission;
mod crash;
mod hostile;
mod poll;
mod reconnect;
mod scopes;
mod store;
mod two_processes;
