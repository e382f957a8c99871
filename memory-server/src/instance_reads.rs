//! Reads that name a stored instance (SRV-604…609) and the refusal of scoped reads that would silently resolve to the
//! service's own empty instance (SRV-611). Nothing lifts either refusal: no message carries a delegated scoped read
//! (SRV-612). Asked by the read requests before evaluation and by every pass.

use memory_engine::Reader;
use memory_wire::message::Root;
use memory_wire::{BranchName, EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId, WireError};
use rustc_hash::FxHashMap;

use crate::error::ServerError;
use crate::leases::ElsewhereLeases;
use crate::server::Server;
use crate::space::Space;

/// How a request's roots may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// No root names an instance.
    Unnamed,
    /// A live lease holder named instances: the session's vocabulary is keyed from now on (SRV-607).
    Admitted,
}

/// True when `roots` need the lease to be looked at (SRV-606).
pub(crate) fn names_instances<'a>(mut roots: impl Iterator<Item = (&'a BranchName, &'a Root)>) -> bool {
    roots.any(|(_, root)| root.entity_scope_key.is_some())
}

/// True when `roots` hold a scoped root without an instance (SRV-611).
pub(crate) fn first_unnamed_scoped<'a>(
    mut roots: impl Iterator<Item = (&'a BranchName, &'a Root)>,
) -> Option<&'a Root> {
    roots
        .find(|(_, root)| root.entity_scope_key.is_none() && root.scope != Scope::Space)
        .map(|(_, root)| root)
}

/// The ladder of SRV-604 after its first row, which is the parser's.
pub(crate) fn admit<'a>(
    roots: impl Iterator<Item = (&'a BranchName, &'a Root)> + Clone,
    identity: &ScopeIdentity,
    server_execution: bool,
    holds_live_lease: bool,
) -> Result<Naming, WireError> {
    if !names_instances(roots.clone()) {
        return Ok(Naming::Unnamed);
    }
    if !server_execution {
        return Err(WireError::protocol(
            "reads naming an entity_scope_key are unclaimable while EXPERIMENTAL_SERVER_EXECUTION is off \
             (protocol.md §2)",
        ));
    }
    if holds_live_lease {
        return Ok(Naming::Admitted);
    }
    let mut instances: FxHashMap<(&BranchName, &EntityId, Scope), ScopeKey> = FxHashMap::default();
    for (branch, root) in roots {
        let Some(key) = root
            .entity_scope_key
            .clone()
            .or_else(|| ScopeKey::resolve(root.scope, identity).ok())
        else {
            continue;
        };
        match instances.get(&(branch, &root.id, root.scope)) {
            None => drop(instances.insert((branch, &root.id, root.scope), key)),
            Some(first) if *first == key => {}
            Some(first) => {
                return Err(WireError::protocol(format!(
                    "read set resolves two instances of ({}, {}) — \"{first}\" and \"{key}\" — which this session's \
                     wire cannot distinguish (frames carry scope names for a non-holder, protocol.md §1); name one \
                     instance per (branch, id, scope), or hold the execution lease (protocol.md §2's read row: \
                     lease-holder frames carry scope_key)",
                    root.id, root.scope
                )));
            }
        }
    }
    Err(WireError::protocol(
        "read naming an entity_scope_key rejected: requester does not hold a live execution_lease on this memory \
         server (protocol.md §2's read row)",
    ))
}

/// The refusal of SRV-611.
pub(crate) fn refuse_foreign_scoped(root: &Root, leased: &SpaceId, read: &SpaceId) -> WireError {
    WireError::protocol(format!(
        "scoped read of {} (scope \"{}\") refused: the requesting session is a co-hosted serving session (live lease \
         on {leased}) reading foreign space {read} without naming an entity_scope_key — resolving it from the \
         delegating envelope would silently read an empty instance (protocol.md §2's grant-scoped read design; \
         delegated scoped reads are fail-closed until grant resolution lands)",
        root.id, root.scope
    ))
}

impl Server {
    /// The ladders of §6.2 and §6.4 over a request's roots.
    pub(crate) fn admit_reads<'a>(
        &self,
        space: &Space,
        reader: &Reader,
        identity: &ScopeIdentity,
        roots: impl Iterator<Item = (&'a BranchName, &'a Root)> + Clone,
        elsewhere: &ElsewhereLeases,
    ) -> Result<Naming, WireError> {
        let config = self.config();
        let in_store = |error| ServerError::Engine(error).to_query();
        if config.server_execution
            && let Some(principal) = &identity.principal
            && let Some(root) = first_unnamed_scoped(roots.clone())
        {
            let holder = self.holder_of(principal);
            let here = reader
                .live_holder(space.id(), config.clock.wall_ms())
                .map_err(in_store)?;
            if here.as_ref() != Some(&holder)
                && let Some(leased) = elsewhere.held_by(&holder)
            {
                return Err(refuse_foreign_scoped(root, leased, space.id()));
            }
        }
        let live = config.server_execution
            && names_instances(roots.clone())
            && self
                .holds_live_lease(space, reader, identity.principal.as_ref(), elsewhere)
                .map_err(in_store)?;
        admit(roots, identity, config.server_execution, live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::message::Selector;

    fn scoped(key: Option<&str>) -> Root {
        let mut root = Root::new(
            "of:d",
            Scope::User,
            Selector {
                path: Default::default(),
                schema: None,
            },
        );
        root.entity_scope_key = key.map(|key| ScopeKey::parse(key).expect("canonical"));
        root
    }

    fn alice() -> ScopeIdentity {
        ScopeIdentity::session("did:key:alice", "s")
    }

    const BOB: &str = "user:did%3Akey%3Abob";
    const ALICE: &str = "user:did%3Akey%3Aalice";

    fn judge(roots: &[Root], on: bool, live: bool) -> Result<Naming, WireError> {
        let branch = BranchName::default();
        admit(roots.iter().map(|root| (&branch, root)), &alice(), on, live)
    }

    #[test]
    fn srv_606_a_request_naming_nothing_takes_no_check() {
        assert_eq!(judge(&[scoped(None)], false, false), Ok(Naming::Unnamed));
    }

    #[test]
    fn srv_604_rows_in_order() {
        let message = |result: Result<Naming, WireError>| result.expect_err("refused").message;
        assert!(
            message(judge(&[scoped(Some(BOB))], false, true)).starts_with("reads naming an entity_scope_key")
        );
        assert_eq!(
            judge(&[scoped(Some(BOB)), scoped(Some(ALICE))], true, true),
            Ok(Naming::Admitted)
        );
        assert!(
            message(judge(&[scoped(None), scoped(Some(BOB))], true, false))
                .starts_with("read set resolves two")
        );
        assert!(message(judge(&[scoped(None), scoped(Some(ALICE))], true, false)).starts_with("read naming"));
    }
}
