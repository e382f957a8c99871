//! Which loads are in flight, and who waits for them (RUN-60; site 7 of the key vocabulary).

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::address::Address;
use crate::error::RunnerError;
use crate::keys::EntityKey;
use crate::promise::Promise;

type Outcome = Result<(), RunnerError>;

#[derive(Debug)]
struct Entry {
    count: usize,
    generation: u64,
    address: Address,
    failure: Option<RunnerError>,
    waiters: Vec<Promise<Outcome>>,
}

/// Loads by instance, refcounted; a fresh entry gets a fresh generation.
#[derive(Debug, Default)]
pub(crate) struct PendingLoads {
    entries: IndexMap<EntityKey, Entry, FxBuildHasher>,
    next_generation: u64,
}

impl PendingLoads {
    /// A load started; answers its generation.
    pub(crate) fn begin(&mut self, key: &EntityKey, address: &Address) -> u64 {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.count += 1;
            return entry.generation;
        }
        self.next_generation += 1;
        let generation = self.next_generation;
        let entry = Entry {
            count: 1,
            generation,
            address: address.clone(),
            failure: None,
            waiters: Vec::new(),
        };
        self.entries.insert(key.clone(), entry);
        generation
    }

    /// A load ended. Answers the waiters to settle, outside any borrow, when it was the last of its key.
    pub(crate) fn end(
        &mut self,
        key: &EntityKey,
        generation: u64,
        outcome: &Outcome,
    ) -> Vec<(Promise<Outcome>, Outcome)> {
        let Some(entry) = self.entries.get_mut(key).filter(|e| e.generation == generation) else {
            return Vec::new();
        };
        if let (None, Err(error)) = (&entry.failure, outcome) {
            entry.failure = Some(error.clone());
        }
        entry.count -= 1;
        if entry.count > 0 {
            return Vec::new();
        }
        match self.entries.shift_remove(key) {
            Some(entry) => {
                let result = entry.failure.map_or(Ok(()), Err);
                entry.waiters.into_iter().map(|w| (w, result.clone())).collect()
            }
            None => Vec::new(),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.entries.values().map(|e| e.address.clone()).collect()
    }

    pub(crate) fn in_flight(&self) -> Vec<(EntityKey, u64)> {
        self.entries
            .iter()
            .map(|(k, e)| (k.clone(), e.generation))
            .collect()
    }

    /// Settles when none of `keys` (repetitions count once) is in flight; the first failure wins.
    pub(crate) fn settled(&mut self, keys: &[EntityKey]) -> Promise<Outcome> {
        let mut waiting: Vec<Promise<Outcome>> = Vec::new();
        let mut seen: Vec<&EntityKey> = Vec::new();
        for key in keys {
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            if let Some(entry) = self.entries.get_mut(key) {
                let waiter = Promise::new();
                entry.waiters.push(waiter.clone());
                waiting.push(waiter);
            }
        }
        let outcomes = waiting.clone();
        Promise::all(waiting).map(move |()| {
            outcomes
                .iter()
                .find_map(|p| p.peek().and_then(Result::err))
                .map_or(Ok(()), Err)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::entity_key;
    use memory_wire::{EntityId, Scope, ScopeIdentity, SpaceId};

    fn load(who: &str) -> (EntityKey, Address) {
        let address = Address::document(SpaceId::from("did:key:s"), EntityId::from("of:a"), Scope::User);
        (entity_key(&address, &ScopeIdentity::user(who)), address)
    }

    #[test]
    fn run_403_one_instances_failure_is_not_the_others() {
        let mut loads = PendingLoads::default();
        let ((alice, a), (bob, b)) = (load("did:key:alice"), load("did:key:bob"));
        let (ga, gb) = (loads.begin(&alice, &a), loads.begin(&bob, &b));
        let waits_bob = loads.settled(&[bob.clone(), bob.clone()]);
        assert!(loads.end(&alice, ga, &Err(RunnerError::Closed("x"))).is_empty());
        for (waiter, result) in loads.end(&bob, gb, &Ok(())) {
            waiter.settle(result);
        }
        assert!(matches!(waits_bob.peek(), Some(Ok(()))));
    }

    #[test]
    fn run_60_waiters_fire_at_zero_with_the_first_failure() {
        let mut loads = PendingLoads::default();
        let (key, address) = load("did:key:alice");
        let generation = loads.begin(&key, &address);
        assert_eq!(loads.begin(&key, &address), generation);
        let waits = loads.settled(std::slice::from_ref(&key));
        assert!(
            loads
                .end(&key, generation, &Err(RunnerError::Closed("first")))
                .is_empty()
        );
        for (waiter, result) in loads.end(&key, generation, &Ok(())) {
            waiter.settle(result);
        }
        assert!(matches!(waits.peek(), Some(Err(RunnerError::Closed("first")))));
        assert!(loads.settled(std::slice::from_ref(&key)).is_settled());
        assert_ne!(loads.begin(&key, &address), generation);
    }
}
