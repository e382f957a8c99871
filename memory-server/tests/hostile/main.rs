//! A peer that means harm: real sockets, real signatures, every attempt of one kind in one room. Each attempt must be
//! refused under the right name, must be counted, must give nothing away, and must leave the victim unharmed. What a
//! room calls an attempt is a row of a table, so that the next trick is one more row.

mod access_list;
mod exhaustion;
mod forged;
mod greedy;
mod instances;
mod neighbours;
mod opens;
mod paths;
mod rig;
mod transfers;
