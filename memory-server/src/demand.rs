//! Who is there and what they demand (SRV-904…906): liveness, demand rows, sizes. Read by the serving loop from the
//! registry alone, never from the store.

use memory_wire::{Did, InstanceId, SessionId};
use rustc_hash::FxHashSet;

use crate::registry::{Registry, Slot};
use crate::serving_plane::{DemandRow, DemandSizes, SessionDemand};
use crate::session::Session;

/// Live sessions other than those of `exclude`, in the order they were opened. Expired records are dropped first.
fn live<'a>(registry: &'a mut Registry, now: u64, exclude: Option<&Did>) -> Vec<&'a Session> {
    registry.expire(now);
    let mut sessions: Vec<(Slot, &Session)> = registry
        .iter()
        .filter(|(_, session)| exclude.is_none() || session.principal.as_ref() != exclude)
        .collect();
    sessions.sort_by_key(|(slot, _)| *slot);
    sessions.into_iter().map(|(_, session)| session).collect()
}

pub(crate) fn has_live(registry: &mut Registry, now: u64, exclude: Option<&Did>) -> bool {
    !live(registry, now, exclude).is_empty()
}

pub(crate) fn has_live_session(
    registry: &mut Registry,
    now: u64,
    principal: &Did,
    session: &SessionId,
) -> bool {
    registry.expire(now);
    registry
        .by_id(session)
        .is_some_and(|session| session.principal.as_ref() == Some(principal))
}

/// Tracked instances and watch roots of every live session, one row per (instance, session) (SRV-904).
pub(crate) fn rows(registry: &mut Registry, now: u64, exclude: Option<&Did>) -> Vec<DemandRow> {
    let mut rows = Vec::new();
    for session in live(registry, now, exclude) {
        let identity = session.identity();
        let roots: FxHashSet<InstanceId> = session.effective.instances(&identity).into_iter().collect();
        let unresolved = roots.iter().filter(|root| !session.tracked.contains(*root));
        let demanded = session.demanded();
        let mut instances: Vec<&InstanceId> = demanded.chain(unresolved).collect();
        instances.sort();
        rows.extend(instances.into_iter().map(|instance| DemandRow {
            id: instance.id.clone(),
            scope: instance.scope_key.scope(),
            scope_key: instance.scope_key.clone(),
            identity: identity.clone(),
            root: roots.contains(instance),
        }));
    }
    rows
}

/// Sizes behind the rows (SRV-905).
pub(crate) fn sizes(registry: &mut Registry, now: u64, exclude: Option<&Did>) -> DemandSizes {
    let mut union: FxHashSet<&InstanceId> = FxHashSet::default();
    let mut per_session = Vec::new();
    for session in live(registry, now, exclude) {
        union.extend(session.demanded());
        per_session.push(SessionDemand {
            session_id: session.id.clone(),
            principal: session.principal.clone(),
            tracked: session.demanded().count(),
            watches: session.effective.len(),
        });
    }
    DemandSizes {
        per_session,
        union_keys: union.len(),
    }
}
