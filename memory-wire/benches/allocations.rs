//! What a one-leaf patch and an instance lookup allocate. Counts, not times: a bench of its own, because the counting
//! allocator would disturb the times of the others.

use std::hint::black_box;

use allocation_counter::measure;
use memory_wire::codec::encode;
use memory_wire::ids::EntityId;
use memory_wire::patch::{PatchOp, apply_patches};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKeys};
use memory_wire::value;
use memory_wire::value::Value;
use rustc_hash::FxHashMap;

/// A document of `groups` groups of 20 rows; a row is about 500 bytes of text.
fn document(groups: usize) -> Value {
    let row = |n: usize| {
        let note = "a text too long to be inline, ".repeat(15);
        value!({ "title": (format!("Row {n}")), "note": note, "count": 1, "done": false })
    };
    let group = |_| value!({ "rows": ((0..20).map(row).collect::<Vec<_>>()) });
    value!({ "value": { "groups": ((0..groups).map(group).collect::<Vec<_>>()) } })
}

fn patch_allocations() {
    let path = ["value", "groups", "0", "rows", "7", "count"]
        .map(Into::into)
        .to_vec();
    let patch = [PatchOp::increment(path, 1.0, false)];
    for groups in [1, 10, 100, 1000] {
        let document = document(groups);
        let text = encode(&document).expect("the document has a text").len();
        let mut patched = None;
        let one = measure(|| patched = Some(apply_patches(black_box(&document), &patch)));
        assert!(patched.is_some_and(|patched| patched.is_ok()));
        println!(
            "one-leaf patch of a document of {text} bytes, path of 6: {} allocations, {} bytes (the lists of the six \
             containers on the path; `groups` has {groups} entries)",
            one.count_total, one.bytes_total
        );
    }
}

fn lookup_allocations() {
    const LOOKUPS: u64 = 30_000;
    let keys = ScopeKeys::of(ScopeIdentity::session(
        "did:key:z6Mktqe4c7rH3PWoWEHUzKtvDHCtDUsVf9JkZRA7nZh9i2FD",
        "0f9c2f4e-8d7f-4b52-a1a7-4a2f0f5a9f11",
    ));
    let ids: Vec<EntityId> = (0..10_000)
        .map(|n| EntityId::from(format!("of:fid1:{n:043}")))
        .collect();
    let scopes = [Scope::Space, Scope::User, Scope::Session];
    let instances = || {
        ids.iter().flat_map(|id| {
            scopes.iter().map(|scope| InstanceId {
                id: id.clone(),
                scope_key: keys.resolve(*scope).expect("a session resolves every scope"),
            })
        })
    };
    let heads: FxHashMap<InstanceId, u64> = instances().zip(0..).collect();
    let mut found = 0;
    let cost = measure(|| {
        found = instances()
            .filter(|instance| black_box(heads.get(instance)).is_some())
            .count() as u64;
    });
    assert_eq!(found, LOOKUPS);
    println!(
        "scope-key resolve and instance lookup, {LOOKUPS} times: {} allocations",
        cost.count_total
    );
}

fn main() {
    patch_allocations();
    lookup_allocations();
}
