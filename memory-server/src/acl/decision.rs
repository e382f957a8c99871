//! Capability of a principal and the decision a mode makes of it (SRV §8.2, 8.3).

use memory_wire::acl::Capability;
use memory_wire::message::ClientCommit;
use memory_wire::{Did, SpaceId, WireError};

use super::cache::{AccessState, ListState};
use super::genesis;
use crate::config::{AclConfig, AclMode};
use crate::server::Server;

/// What `principal` may do in `space`; `None` is nothing at all.
pub(crate) fn capability_of(
    config: &AclConfig,
    space: &SpaceId,
    state: &AccessState,
    principal: Option<&Did>,
) -> Option<Capability> {
    if let Some(principal) = principal
        && (principal.as_str() == space.as_str() || config.service_principals.contains(principal))
    {
        return Some(Capability::Owner);
    }
    match (&state.list, principal) {
        (ListState::Valid(list), principal) => list.capability_of(principal),
        (ListState::Missing, Some(_)) if state.empty => Some(Capability::Read),
        // Spaces older than access lists keep working for anyone authenticated.
        (ListState::Missing, Some(_)) => Some(Capability::Write),
        (ListState::Missing, None) | (ListState::Invalid, _) => None,
    }
}

/// Decides whether `principal` has `needed` (SRV-804).
pub(crate) fn require(
    server: &Server,
    space: &SpaceId,
    state: &AccessState,
    principal: Option<&Did>,
    needed: Capability,
) -> Result<(), WireError> {
    let config = &server.config().acl;
    if !config.mode.is_active() || capability_of(config, space, state, principal) >= Some(needed) {
        return Ok(());
    }
    if state.list == ListState::Invalid {
        server.statistics().count_denied();
        return Err(WireError::authorization(format!(
            "Space {space} has a malformed, ownerless, or retracted ACL"
        )));
    }
    let who = principal.map_or("<anonymous>", Did::as_str);
    match config.mode {
        AclMode::Off => Ok(()),
        AclMode::Observe => {
            server.statistics().count_would_deny();
            tracing::warn!(%space, principal = who, needed = %needed, "access would be denied");
            Ok(())
        }
        AclMode::Enforce => {
            server.statistics().count_denied();
            Err(WireError::authorization(format!(
                "Principal {who} lacks {needed} on space {space}"
            )))
        }
    }
}

/// The access checks of one commit: list rules first, then capability (SRV-402, SRV-812). Called with access control
/// active.
pub(crate) fn check_commit(
    server: &Server,
    space: &SpaceId,
    state: &AccessState,
    principal: Option<&Did>,
    commit: &ClientCommit,
) -> Result<(), WireError> {
    if !genesis::touches_list(commit, space) {
        genesis::check_ordinary_commit(space, state)?;
        return require(server, space, state, principal, Capability::Write);
    }
    check_list_commit(server, space, state, principal, commit)
}

/// The access checks of a list change made for `actor` by a served handler: in every mode, the same rules (SRV-813).
pub(crate) fn check_served_commit(
    server: &Server,
    space: &SpaceId,
    state: &AccessState,
    actor: &Did,
    commit: &ClientCommit,
) -> Result<(), WireError> {
    check_list_commit(server, space, state, Some(actor), commit)
}

/// One decision for both planes (SRV-812).
fn check_list_commit(
    server: &Server,
    space: &SpaceId,
    state: &AccessState,
    principal: Option<&Did>,
    commit: &ClientCommit,
) -> Result<(), WireError> {
    let new_list = genesis::check_list_change(
        space,
        state,
        principal,
        &server.config().acl.service_principals,
        commit,
    )?;
    if genesis::removes_only_own_entry(state, &new_list, principal) {
        return Ok(());
    }
    require(server, space, state, principal, Capability::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::acl::AclDocument;

    fn state(list: ListState, empty: bool) -> AccessState {
        AccessState { list, empty }
    }

    fn of(state: &AccessState, principal: Option<&str>) -> Option<Capability> {
        let config = AclConfig {
            service_principals: [Did::from("did:key:service")].into(),
            ..AclConfig::default()
        };
        capability_of(
            &config,
            &"did:key:space".into(),
            state,
            principal.map(Did::from).as_ref(),
        )
    }

    #[test]
    fn srv_802_8_2_table_in_order() {
        let list = AclDocument::from_entries([
            ("did:key:owner", Capability::Owner),
            ("did:key:low", Capability::Read),
            ("*", Capability::Write),
        ])
        .expect("well-formed");
        let valid = state(ListState::Valid(list), false);
        let empty = state(ListState::Missing, true);
        let old = state(ListState::Missing, false);
        let invalid = state(ListState::Invalid, false);
        let cases = [
            (&invalid, Some("did:key:space"), Some(Capability::Owner)),
            (&invalid, Some("did:key:service"), Some(Capability::Owner)),
            (&valid, Some("did:key:owner"), Some(Capability::Owner)),
            (&valid, Some("did:key:low"), Some(Capability::Read)),
            (&valid, Some("did:key:other"), Some(Capability::Write)),
            (&valid, None, Some(Capability::Write)),
            (&empty, Some("did:key:other"), Some(Capability::Read)),
            (&old, Some("did:key:other"), Some(Capability::Write)),
            (&empty, None, None),
            (&old, None, None),
            (&invalid, Some("did:key:owner"), None),
        ];
        for (state, principal, expected) in cases {
            assert_eq!(of(state, principal), expected, "{state:?} {principal:?}");
        }
    }
}
