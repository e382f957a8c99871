//! Access control of spaces (SRV §8): what the list says, how a mode applies it, the rules every list must keep, and
//! what losing access does to open sessions. Asked by every request; the list itself is `memory_wire::acl`'s.

mod cache;
mod decision;
mod genesis;
mod revocation;

pub(crate) use cache::{AccessCache, AccessState, ListState, read_list};
pub(crate) use decision::{check_commit, check_served_commit, require};
pub(crate) use genesis::{is_list, touches_list};
pub(crate) use memory_wire::acl::Capability;
pub(crate) use memory_wire::did::is_acl_did as is_did;
pub(crate) use revocation::{Revocation, Standing, revoke_after_list_change, stands_in};
