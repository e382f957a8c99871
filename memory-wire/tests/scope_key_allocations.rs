//! What finding an instance costs on a session's hot path: once its keys are resolved, nothing is allocated.

use allocation_counter::measure;
use memory_wire::ids::EntityId;
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey, ScopeKeys};
use rustc_hash::FxHashMap;

const SCOPES: [Scope; 3] = [Scope::Space, Scope::User, Scope::Session];

#[test]
fn wire_109_resolve_and_lookup_allocate_nothing_once_keys_are_resolved() {
    let identity = ScopeIdentity::session(
        "did:key:z6Mktqe4c7rH3PWoWEHUzKtvDHCtDUsVf9JkZRA7nZh9i2FD",
        "0f9c2f4e-8d7f-4b52-a1a7-4a2f0f5a9f11",
    );
    let keys = ScopeKeys::of(identity);
    let ids: Vec<EntityId> = (0..100)
        .map(|n| EntityId::from(format!("of:fid1:{n:043}")))
        .collect();
    let mut heads: FxHashMap<InstanceId, u64> = FxHashMap::default();
    for (seq, id) in ids.iter().enumerate() {
        for scope in SCOPES {
            heads.insert(
                InstanceId::new(id.clone(), keys.resolve(scope).unwrap()),
                seq as u64,
            );
        }
    }
    let mut found = 0u64;
    let cost = measure(|| {
        for (seq, id) in ids.iter().enumerate() {
            for scope in SCOPES {
                let instance = InstanceId {
                    id: id.clone(),
                    scope_key: keys.resolve(scope).unwrap(),
                };
                found += u64::from(heads.get(&instance) == Some(&(seq as u64)));
            }
        }
    });
    assert_eq!(found, 300);
    assert_eq!(cost.count_total, 0);
}

#[test]
fn wire_107_the_delivery_filter_allocates_nothing() {
    let alice = ScopeIdentity::session("did:key:alice", "s/1");
    let bob = ScopeIdentity::session("did:key:bob", "s/1");
    let keys: Vec<ScopeKey> = [&alice, &bob]
        .iter()
        .flat_map(|who| SCOPES.map(|scope| ScopeKey::resolve(scope, who).unwrap()))
        .collect();
    let own = ScopeKeys::of(alice.clone());
    let (mut applicable, mut covered) = (0, 0);
    let cost = measure(|| {
        for key in &keys {
            applicable += u32::from(key.applicable_to(&alice));
            covered += u32::from(own.covers(key));
        }
    });
    // Its own three, and the space key once more.
    assert_eq!((applicable, covered), (4, 4));
    assert_eq!(cost.count_total, 0);
}
