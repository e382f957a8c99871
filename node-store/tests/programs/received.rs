//! What a received state has to hash to. Rule: NODE-33.

use node_store::id::{EntityId, Hash, StateKey};
use node_store::key::StateRow;
use node_store::program::ReceivedState;
use node_store::value::{ChildInfo, EntityIndex, EntityMetadata, StorageType};
use node_store::{LayerExt, StoreError, key};

use crate::versions::code_id;
use crate::world::{World, alone};

fn metadata() -> EntityMetadata {
    EntityMetadata {
        created_at: 0,
        updated_at: 0,
        storage_type: StorageType::Public,
        crdt_type: None,
        field_name: None,
        schema_version: None,
    }
}

fn entity(id: EntityId, own: u8, children: &[&EntityIndex]) -> EntityIndex {
    let child = |index: &&EntityIndex| ChildInfo {
        id: index.id,
        merkle_hash: index.full_hash,
        metadata: metadata(),
    };
    let mut index = EntityIndex {
        id,
        parent_id: None,
        children: Some(children.iter().map(child).collect()),
        full_hash: Hash::ZERO,
        own_hash: Hash::new([own; 32]),
        metadata: metadata(),
        deleted_at: None,
        deleted_children: vec![],
    };
    index.full_hash = index.compute_full_hash().unwrap();
    index
}

fn row(index: &EntityIndex) -> (StateKey, Vec<u8>) {
    (StateRow::Index.key(index.id), index.encode().unwrap())
}

/// A root with a branch of two leaves, and a leaf beside it: root, branch, first, second, third.
fn tree() -> [EntityIndex; 5] {
    let first = entity([1; 32].into(), 1, &[]);
    let second = entity([2; 32].into(), 2, &[]);
    let third = entity([3; 32].into(), 3, &[]);
    let branch = entity([4; 32].into(), 4, &[&first, &second]);
    let root = entity(alone().into(), 5, &[&branch, &third]);
    [root, branch, first, second, third]
}

/// Settles rows under a claimed root in a world of its own, where a refusal has to change nothing.
fn settle(rows: Vec<(StateKey, Vec<u8>)>, root_hash: Hash) -> Result<World, StoreError> {
    let world = World::new();
    let programs = world.programs();
    programs.request_resync(alone(), true).unwrap();
    let before = world.dump(|_, _| true);
    let received = ReceivedState {
        rows,
        root_hash,
        dag_heads: vec![],
        code: Some(code_id(1)),
    };
    match programs.settle_resync(alone(), received) {
        Ok(settled) => {
            assert!(settled);
            Ok(world)
        }
        Err(error) => {
            assert!(world.dump(|_, _| true) == before, "{error}");
            Err(error)
        }
    }
}

#[test]
fn node_33_a_received_state_hashes_to_its_root_all_the_way_down() {
    let tree = tree();
    let rows: Vec<_> = tree.iter().map(row).collect();
    let root_hash = tree[0].full_hash;
    let world = settle(rows.clone(), root_hash).unwrap();
    let meta = world
        .store()
        .view()
        .get(&key::ContextMeta { context_id: alone() })
        .unwrap();
    assert_eq!(meta.unwrap().root_hash, root_hash);

    let refused = |rows: Vec<(StateKey, Vec<u8>)>, reason: &str| {
        let error = settle(rows, root_hash)
            .err()
            .unwrap_or_else(|| panic!("taken, although {reason}"));
        assert!(error.to_string().contains(reason), "{error}; expected: {reason}");
    };
    for missing in 1..5 {
        let mut rows = rows.clone();
        rows.remove(missing);
        refused(rows, "has no index row");
    }
    for changed in 1..5 {
        // Sound in itself, and not what the parent counts on.
        let mut rows = rows.clone();
        rows[changed] = row(&entity(tree[changed].id, 9, &[]));
        refused(rows, "does not hash to what its parent says");
    }
    for lying in 0..5 {
        // The row tells the right hash, and its content has another one.
        let mut rows = rows.clone();
        let index = EntityIndex {
            own_hash: Hash::new([9; 32]),
            ..tree[lying].clone()
        };
        rows[lying] = row(&index);
        refused(rows, "and hashes to");
    }
    let mut misplaced = rows.clone();
    misplaced[2].1 = rows[3].1.clone();
    refused(misplaced, "it is of entity");
    let mut torn = rows.clone();
    torn[4].1.pop();
    refused(torn, "is no EntityIndex");
}

#[test]
fn node_33_a_row_that_comes_twice_is_refused_because_only_one_of_them_was_checked() {
    let tree = tree();
    let mut rows: Vec<_> = tree.iter().map(row).collect();
    rows.push((rows[0].0, b"what would be stored".to_vec()));
    let error = settle(rows, tree[0].full_hash).err().expect("twice");
    assert!(error.to_string().ends_with("comes twice"), "{error}");
}

#[test]
fn node_33_an_entity_in_two_places_is_refused_and_a_long_chain_is_walked_without_recursion() {
    let leaf = entity([1; 32].into(), 1, &[]);
    let one = entity([2; 32].into(), 2, &[&leaf]);
    let other = entity([3; 32].into(), 3, &[&leaf]);
    let root = entity(alone().into(), 5, &[&one, &other]);
    let rows = [&root, &one, &other, &leaf].map(row).to_vec();
    let error = settle(rows, root.full_hash).err().expect("two places");
    assert!(error.to_string().ends_with("stands in two places"), "{error}");

    let mut rows = Vec::new();
    let mut below = leaf;
    rows.push(row(&below));
    for link in 2..20_000u32 {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&link.to_be_bytes());
        below = entity(id.into(), 1, &[&below]);
        rows.push(row(&below));
    }
    let root = entity(alone().into(), 5, &[&below]);
    rows.push(row(&root));
    assert!(settle(rows, root.full_hash).is_ok());
}
