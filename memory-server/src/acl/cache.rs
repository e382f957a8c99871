//! What is known of a space's access list, read once and dropped when something may have changed it (SRV-801, SRV-802,
//! §8.2).

use std::sync::Arc;

use memory_engine::sync::Mutex;
use memory_engine::{EngineError, Reader};
use memory_wire::acl::AclDocument;
use memory_wire::well_known::acl_document_id;
use memory_wire::{BranchName, EntityId, SpaceId, Value};

use crate::error::ServerError;
use crate::space::Space;

/// The list of a space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListState {
    /// The document never had a revision.
    Missing,
    /// Deleted, malformed, or without a concrete owner. A deleted list is not a missing one: deletion must not make a
    /// space public.
    Invalid,
    /// Enforceable.
    Valid(AclDocument),
}

/// Everything a decision looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessState {
    pub(crate) list: ListState,
    /// No commit has ever landed in the space.
    pub(crate) empty: bool,
}

impl AccessState {
    /// What `reader` sees of it.
    pub(crate) fn read(space: &SpaceId, reader: &Reader) -> Result<AccessState, EngineError> {
        Ok(AccessState {
            list: read_list(reader, &acl_document_id(space))?,
            empty: reader.server_seq()?.0 == 0,
        })
    }
}

/// Reads the list document `id`.
pub(crate) fn read_list(reader: &Reader, id: &EntityId) -> Result<ListState, EngineError> {
    let state = reader.read_state(
        id,
        memory_engine::ReadInstance::Space,
        &BranchName::default(),
        None,
    )?;
    Ok(match state {
        None => ListState::Missing,
        Some(state) => {
            let list = state
                .document
                .as_ref()
                .and_then(|document: &Value| document.member("value"));
            match list.map(AclDocument::parse_enforceable) {
                Some(Ok(list)) => ListState::Valid(list),
                Some(Err(_)) | None => ListState::Invalid,
            }
        }
    })
}

#[derive(Debug, Default)]
struct Cached {
    state: Option<Arc<AccessState>>,
    /// Commits that change the state and are not durable yet: until they are, nothing is cached.
    changing: usize,
    /// Grows with every change, so that a slow read does not cache what it read before one.
    generation: u64,
}

/// The cached state of one space.
#[derive(Debug, Default)]
pub(crate) struct AccessCache(Mutex<Cached>);

impl AccessCache {
    fn cached(&self) -> (Option<Arc<AccessState>>, u64) {
        let cached = self.0.lock();
        (cached.state.clone(), cached.generation)
    }

    /// The state as `reader` sees it: in the turn, with everything admitted before (SRV-409).
    pub(crate) fn state_by(&self, space: &Space, reader: &Reader) -> Result<Arc<AccessState>, EngineError> {
        let (cached, generation) = self.cached();
        if let Some(state) = cached {
            return Ok(state);
        }
        let state = Arc::new(AccessState::read(space.id(), reader)?);
        self.keep(generation, &state);
        Ok(state)
    }

    /// Keeps what was read after `generation`, unless something has changed since or is about to.
    fn keep(&self, generation: u64, state: &Arc<AccessState>) {
        let mut cached = self.0.lock();
        if cached.changing == 0 && cached.generation == generation {
            cached.state = Some(Arc::clone(state));
        }
    }

    /// The state beside the turn. Whoever acts on it re-checks before answering (SRV-403, SRV-406).
    pub(crate) async fn state(&self, space: &Arc<Space>) -> Result<Arc<AccessState>, ServerError> {
        if let (Some(state), _) = self.cached() {
            return Ok(state);
        }
        let shared = Arc::clone(space);
        space
            .read(move |reader| shared.access.state_by(&shared, reader))
            .await
    }

    /// A commit that changes the list, or the first of its space, has been applied and may become durable.
    pub(crate) fn begin_change(&self) {
        let mut cached = self.0.lock();
        cached.changing += 1;
        cached.generation += 1;
        cached.state = None;
    }

    /// It is durable, or lost.
    pub(crate) fn end_change(&self) {
        let mut cached = self.0.lock();
        cached.changing = cached.changing.saturating_sub(1);
        cached.generation += 1;
        cached.state = None;
    }

    /// Drops what is known: another process changed it.
    pub(crate) fn forget(&self) {
        let mut cached = self.0.lock();
        cached.generation += 1;
        cached.state = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a read finds cached after `meanwhile` happened between another read's beginning and its end.
    fn cached_after(meanwhile: impl FnOnce(&AccessCache)) -> bool {
        let cache = AccessCache::default();
        let (_, generation) = cache.cached();
        meanwhile(&cache);
        let old = Arc::new(AccessState {
            list: ListState::Missing,
            empty: true,
        });
        cache.keep(generation, &old);
        cache.cached().0.is_some()
    }

    #[test]
    fn srv_801_what_was_read_before_a_change_is_not_kept_after_it() {
        assert!(cached_after(|_| ()));
        assert!(!cached_after(AccessCache::begin_change), "while it changes");
        assert!(
            !cached_after(|cache| {
                cache.begin_change();
                cache.end_change();
            }),
            "after it has changed"
        );
        assert!(
            !cached_after(AccessCache::forget),
            "after another process changed it"
        );
    }

    #[test]
    fn srv_801_nothing_is_kept_while_one_of_two_changes_is_under_way() {
        let cache = AccessCache::default();
        cache.begin_change();
        cache.begin_change();
        cache.end_change();
        let (_, generation) = cache.cached();
        let read = Arc::new(AccessState {
            list: ListState::Missing,
            empty: false,
        });
        cache.keep(generation, &read);
        assert!(cache.cached().0.is_none(), "the second is not durable yet");
        cache.end_change();
        let (_, generation) = cache.cached();
        cache.keep(generation, &read);
        assert!(cache.cached().0.is_some());
    }
}
