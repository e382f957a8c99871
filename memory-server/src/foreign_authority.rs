//! Whether a served write may go into another space (SRV-816): judged by that space's structure and list alone, in every
//! mode, without service blanket and without the compatibility of old spaces. Fails closed.

use memory_wire::acl::Capability;
use memory_wire::{Did, SpaceId};

use crate::acl::ListState;
use crate::serving_plane::{Authority, GrantVia};

fn refused(reason: impl Into<String>) -> Authority {
    Authority::Refused {
        reason: reason.into(),
    }
}

/// True for `did:<method>:<id>`, exactly three non-empty parts.
pub(crate) fn is_space_did(space: &str) -> bool {
    let parts: Vec<&str> = space.split(':').collect();
    parts.len() == 3 && parts[0] == "did" && parts.iter().all(|part| !part.is_empty())
}

/// The rows that need no store; `None` when the list decides.
pub(crate) fn before_list(space: &SpaceId, principal: Option<&Did>) -> Option<Authority> {
    if !is_space_did(space.as_str()) {
        return Some(refused(format!(
            "\"{space}\" is not a space DID — refusing to resolve (or provision) a store for a malformed space name \
             (protocol.md §2b)"
        )));
    }
    let Some(principal) = principal else {
        return Some(nobody());
    };
    (principal.as_str() == space.as_str()).then_some(Authority::Granted { via: GrantVia::Owner })
}

/// Nobody is acting.
pub(crate) fn nobody() -> Authority {
    refused(
        "no acting principal — a foreign provisioning write is admitted only under a carried actor's grant \
         (protocol.md §2b)",
    )
}

/// A space that has no store yet may be created.
pub(crate) fn creation() -> Authority {
    Authority::Granted {
        via: GrantVia::Creation,
    }
}

/// What the list of an existing space says.
pub(crate) fn by_list(space: &SpaceId, list: &ListState, principal: &Did) -> Authority {
    match list {
        ListState::Valid(list) => match list.capability_of(Some(principal)) {
            Some(Capability::Write | Capability::Owner) => Authority::Granted { via: GrantVia::Acl },
            granted @ (Some(Capability::Read) | None) => refused(format!(
                "the ACL of {space} grants {principal} {} (WRITE required)",
                granted.map_or("nothing", Capability::as_str)
            )),
        },
        ListState::Missing => refused(format!(
            "{space} exists with no ACL document — the serving plane fails closed (protocol.md §2's interim; the \
             client path's legacy compat arm is a rollout accommodation, not a grant)"
        )),
        ListState::Invalid => refused(format!("{space} has a malformed, ownerless, or retracted ACL")),
    }
}
