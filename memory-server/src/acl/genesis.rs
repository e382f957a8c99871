//! The rules every access list keeps, whoever writes it (SRV §8.4, SRV-806, SRV-812): how a space gets its first list,
//! and what shape a change may have. Enforced in `observe` and `enforce`, never counted.

use std::collections::BTreeSet;

use memory_wire::acl::AclDocument;
use memory_wire::message::{ClientCommit, Operation};
use memory_wire::well_known::acl_document_id;
use memory_wire::{Did, EntityId, Scope, SpaceId, WireError};

use super::cache::{AccessState, ListState};

/// True when `id` is the list of `space`.
pub(crate) fn is_list(id: &EntityId, space: &SpaceId) -> bool {
    *id == acl_document_id(space)
}

/// True when any operation of the commit names the list, whatever its kind or scope (SRV-806).
pub(crate) fn touches_list(commit: &ClientCommit, space: &SpaceId) -> bool {
    let list = acl_document_id(space);
    commit
        .operations
        .iter()
        .any(|operation| operation.target().is_some_and(|(id, _)| *id == list))
}

/// Row 1: an empty space takes nothing before its list.
pub(crate) fn check_ordinary_commit(space: &SpaceId, state: &AccessState) -> Result<(), WireError> {
    if state.list == ListState::Missing && state.empty {
        return Err(WireError::authorization(format!(
            "Space {space} requires an ACL genesis commit before ordinary writes"
        )));
    }
    Ok(())
}

/// Rows 2–6 for a commit that touches the list. Returns the new list.
pub(crate) fn check_list_change(
    space: &SpaceId,
    state: &AccessState,
    principal: Option<&Did>,
    service_principals: &BTreeSet<Did>,
    commit: &ClientCommit,
) -> Result<AclDocument, WireError> {
    if !commit.branch.is_empty() {
        return Err(WireError::protocol(
            "ACL mutations are only valid on the default branch",
        ));
    }
    let [operation] = commit.operations.as_slice() else {
        return Err(WireError::protocol("ACL mutations must be an ACL-only commit"));
    };
    let Operation::Set {
        scope: Scope::Space,
        value,
        ..
    } = operation
    else {
        return Err(WireError::protocol(
            "ACL mutations must replace the space-scoped ACL document",
        ));
    };
    let list = value
        .member("value")
        .and_then(|list| AclDocument::parse_enforceable(list).ok())
        .ok_or_else(|| WireError::protocol("ACL must be valid and retain at least one concrete OWNER"))?;
    if state.list == ListState::Missing {
        let may = principal.is_some_and(|principal| {
            principal.as_str() == space.as_str() || service_principals.contains(principal)
        });
        if !may {
            return Err(WireError::authorization(format!(
                "Only the space identity or a service DID may initialize {space}"
            )));
        }
    }
    Ok(list)
}

/// True when the new list is the present one minus exactly `principal`'s own entry: leaving needs no OWNER (SRV-812).
pub(crate) fn removes_only_own_entry(
    state: &AccessState,
    new: &AclDocument,
    principal: Option<&Did>,
) -> bool {
    let (ListState::Valid(old), Some(principal)) = (&state.list, principal) else {
        return false;
    };
    let had_own = old.entries().any(|(entry, _)| entry == principal.as_str());
    had_own
        && old
            .entries()
            .filter(|(entry, _)| *entry != principal.as_str())
            .eq(new.entries())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::acl::Capability;

    fn list(entries: &[(&str, Capability)]) -> AclDocument {
        AclDocument::from_entries(entries.iter().copied()).expect("well-formed")
    }

    #[test]
    fn srv_812_a_member_may_leave_and_do_nothing_else() {
        let owner = ("did:key:owner", Capability::Owner);
        let member = ("did:key:member", Capability::Write);
        let state = AccessState {
            list: ListState::Valid(list(&[owner, member])),
            empty: false,
        };
        let who = Did::from("did:key:member");
        let leaves = |new: &AclDocument| removes_only_own_entry(&state, new, Some(&who));
        assert!(leaves(&list(&[owner])));
        assert!(!leaves(&list(&[owner, member])), "nothing removed");
        assert!(
            !leaves(&list(&[owner, ("did:key:member", Capability::Read)])),
            "changed, not removed"
        );
        assert!(
            !leaves(&list(&[("did:key:owner", Capability::Read)])),
            "another's entry changed"
        );
        assert!(!removes_only_own_entry(
            &state,
            &list(&[owner]),
            Some(&"did:key:stranger".into())
        ));
        assert!(!removes_only_own_entry(&state, &list(&[owner]), None));
    }
}
