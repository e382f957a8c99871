//! Asking for documents: loads, pull kicks, and who waits for them (RUN-56, RUN-59…63).

use std::rc::Rc;

use memory_wire::{EntityId, Scope, ScopeIdentity, ScopeKey, SpaceId};

use super::StorageManager;
use crate::address::Address;
use crate::error::RunnerError;
use crate::keys::{EntityKey, entity_key};
use crate::link::Link;
use crate::promise::Promise;
use crate::replica::Selector;

impl StorageManager {
    /// Loads what `link` leads to through its schema, as `identity` (own when absent). Resolves normally even on
    /// failure: the failure is for pending-load waiters and [`StorageManager::authorization_error`] (RUN-63).
    pub fn sync_link(&self, link: &Link, identity: Option<&ScopeIdentity>) -> Promise<()> {
        let (done, settled) = (Promise::new(), self.load_link(link, identity));
        let (this, link, identity, finished) =
            (self.downgrade(), link.clone(), identity.cloned(), done.clone());
        settled.then(move |_| {
            let schema = this
                .upgrade()
                .and_then(|manager| manager.load_label_schema(&link, identity.as_ref()));
            match schema {
                Some(loading) => loading.then(move |_| {
                    finished.settle(());
                }),
                None => {
                    finished.settle(());
                }
            }
        });
        done
    }

    /// RUN-63: a labelled document names its schema document by hash; it is loaded along.
    fn load_label_schema(
        &self,
        link: &Link,
        identity: Option<&ScopeIdentity>,
    ) -> Option<Promise<Result<(), RunnerError>>> {
        if link.is_inline() {
            return None;
        }
        let document = self
            .replica(&link.space)
            .get_document(&link.id, link.scope, identity)?;
        let hash = document.member("cfc")?.member("schemaHash")?.as_str()?;
        let id = EntityId::from(format!("cid:{hash}"));
        Some(self.load(
            &Address::document(link.space.clone(), id, Scope::Space),
            Selector::rejecting(),
            None,
        ))
    }

    /// [`StorageManager::sync_link`] with its outcome.
    pub fn load_link(
        &self,
        link: &Link,
        identity: Option<&ScopeIdentity>,
    ) -> Promise<Result<(), RunnerError>> {
        if link.is_inline() {
            return self.load_inline_targets(link, identity);
        }
        let selector = Selector::of_link(link);
        self.load(&link.address(), selector, identity)
    }

    /// RUN-61: loads one document instance, following nothing.
    pub fn sync_instance(
        &self,
        address: &Address,
        identity: &ScopeIdentity,
    ) -> Promise<Result<(), RunnerError>> {
        self.load(address, Selector::rejecting(), Some(identity))
    }

    /// Loads `address` through `selector` and registers the load (RUN-60).
    pub fn load(
        &self,
        address: &Address,
        selector: Rc<Selector>,
        identity: Option<&ScopeIdentity>,
    ) -> Promise<Result<(), RunnerError>> {
        if let Err(refused) = self.check_foreign_scoped(&address.space, &address.id, address.scope, identity)
        {
            // A refusal is not a load: nothing parks on it.
            return Promise::ready(Err(refused));
        }
        if self.0.closed.get() {
            return Promise::ready(Err(RunnerError::Closed("storage manager")));
        }
        let instance = self.named_instance(address, identity);
        let key = self.load_key(address, identity);
        let loaded = self
            .replica(&address.space)
            .pull(&address.id, address.scope, instance, selector);
        if loaded.is_settled() {
            self.note_load_outcome(&address.space, &loaded.peek());
            return loaded;
        }
        let generation = self.0.loads.borrow_mut().begin(&key, address);
        let (manager, space) = (self.downgrade(), address.space.clone());
        loaded.then(move |outcome| {
            let Some(manager) = manager.upgrade() else { return };
            manager.note_load_outcome(&space, &Some(outcome.clone()));
            let waiters = manager.0.loads.borrow_mut().end(&key, generation, outcome);
            for (waiter, result) in waiters {
                waiter.settle(result);
            }
        });
        loaded
    }

    /// RUN-62: only an instance that is not the manager's own is ever named on the wire.
    fn named_instance(&self, address: &Address, identity: Option<&ScopeIdentity>) -> Option<ScopeKey> {
        let Some(key) = &address.scope_key else {
            return self.foreign_instance(address.scope, identity);
        };
        let own = ScopeKey::resolve(key.scope(), &self.identity()).ok();
        (key.scope() != Scope::Space && own.as_ref() != Some(key)).then(|| key.clone())
    }

    fn load_key(&self, address: &Address, identity: Option<&ScopeIdentity>) -> EntityKey {
        match identity {
            Some(identity) => entity_key(address, identity),
            None => entity_key(address, &self.identity()),
        }
    }

    fn note_load_outcome(&self, space: &SpaceId, outcome: &Option<Result<(), RunnerError>>) {
        match outcome {
            Some(Ok(())) => {
                self.0.authorization_errors.borrow_mut().remove(space);
            }
            Some(Err(RunnerError::Load { name, message, .. })) => {
                let entry = (space.clone(), name.clone(), message.clone());
                if self.0.reported.borrow_mut().insert(entry) {
                    tracing::warn!(%space, name = %name, message = %message, "load failed");
                }
            }
            Some(Err(_)) | None => {}
        }
    }

    /// RUN-60: a data URI loads every linked target, as the requester.
    fn load_inline_targets(
        &self,
        link: &Link,
        identity: Option<&ScopeIdentity>,
    ) -> Promise<Result<(), RunnerError>> {
        let loads: Vec<_> = match crate::link_resolution::links_inside(link) {
            Ok(targets) => targets
                .iter()
                .map(|target| self.load_link(target, identity))
                .collect(),
            Err(error) => return Promise::ready(Err(error)),
        };
        let outcomes = loads.clone();
        Promise::all(loads).map(move |()| {
            outcomes
                .iter()
                .find_map(|p| p.peek().and_then(Result::err))
                .map_or(Ok(()), Err)
        })
    }

    /// RUN-61: whether a read of this document should ask for it (it is not loaded, and no kick is reserved).
    pub fn should_pull(
        &self,
        space: &SpaceId,
        id: &EntityId,
        scope: Scope,
        identity: Option<&ScopeIdentity>,
    ) -> bool {
        !id.as_str().starts_with("data:") && !self.replica(space).knows(id, scope, identity)
    }

    /// RUN-61: asks once per (space, instance, document) for something a read could not be served; the
    /// reservation is handed back only if this very load fails. Data URIs never kick.
    pub fn kick(&self, address: &Address, identity: Option<&ScopeIdentity>) {
        self.kick_through(address, Selector::rejecting(), identity);
    }

    /// [`StorageManager::kick`] through a selector, so that what lies behind arrives with it.
    pub fn kick_through(&self, address: &Address, selector: Rc<Selector>, identity: Option<&ScopeIdentity>) {
        if !self.should_pull(&address.space, &address.id, address.scope, identity) {
            return;
        }
        let key = self.load_key(address, identity);
        if !self.0.kicked.borrow_mut().insert(key.clone()) {
            return;
        }
        let (this, address, identity) = (self.downgrade(), address.clone(), identity.cloned());
        // Asked for in the next turn, so that the read that found it missing is finished first.
        self.defer(move || {
            let Some(manager) = this.upgrade() else { return };
            let loaded = manager.load(&address, selector, identity.as_ref());
            loaded.then(move |outcome| {
                if outcome.is_err()
                    && let Some(manager) = this.upgrade()
                {
                    manager.0.kicked.borrow_mut().remove(&key);
                }
            });
        });
    }

    /// Addresses with a load in flight.
    pub fn pending_load_addresses(&self) -> Vec<Address> {
        self.0.loads.borrow().addresses()
    }

    /// RUN-554 (c): load keys in flight, each with the generation of its present load.
    pub fn pending_loads(&self) -> Vec<(EntityKey, u64)> {
        self.0.loads.borrow().in_flight()
    }

    /// RUN-60: settles when none of `keys` is loading, with the first failure.
    pub fn loads_settled(&self, keys: &[EntityKey]) -> Promise<Result<(), RunnerError>> {
        self.0.loads.borrow_mut().settled(keys)
    }

    /// RUN-63: the standing refusal of a space, cleared by the next success.
    pub fn authorization_error(&self, space: &SpaceId) -> Option<String> {
        self.0.authorization_errors.borrow().get(space).cloned()
    }

    pub(crate) fn set_authorization_error(&self, space: &SpaceId, message: String) {
        self.0
            .authorization_errors
            .borrow_mut()
            .insert(space.clone(), message);
    }
}
