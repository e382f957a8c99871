//! Full replacement of a space's state. Rule: NODE-33.

use node_store::id::{ContextId, Hash};
use node_store::program::{ReceivedState, UpgradeOutcome};
use node_store::{LayerExt, StoreError, UpgradeState, key, value};

use crate::scenarios::{received, state};
use crate::versions::{Step, bundle, code_id};
use crate::world::{World, alone};

#[test]
fn node_33_resync_is_admitted_refused_forced_and_withdrawn() {
    let world = World::new();
    let programs = world.programs();
    let mut store = world.store();
    let row = key::ContextMeta { context_id: alone() };
    let mut meta = store.view().get(&row).unwrap().unwrap();
    meta.dag_heads.push([1; 32].into());
    store.handle().put(&row, &meta).unwrap();

    assert!(matches!(
        programs.request_resync(ContextId::ZERO, true),
        Err(StoreError::UnknownContext(_))
    ));
    let refused = programs.request_resync(alone(), false).unwrap_err();
    assert!(matches!(refused, StoreError::ResyncRefused { .. }), "{refused}");
    assert!(
        !programs.settle_resync(alone(), received()).unwrap(),
        "nobody asked"
    );
    programs.request_resync(alone(), true).unwrap();
    assert!(matches!(
        state(&world, alone()),
        UpgradeState::AwaitingResync { .. }
    ));
    assert!(matches!(
        programs.upgrade(alone(), &mut Step::sound()).unwrap(),
        UpgradeOutcome::Unchanged(UpgradeState::AwaitingResync { .. })
    ));
    programs.cancel_resync(alone()).unwrap();
    assert!(matches!(state(&world, alone()), UpgradeState::UpToDate { .. }));

    // One of code that is not here is refused, and settles once the code is installed.
    programs.request_resync(alone(), true).unwrap();
    let refused = programs.settle_resync(alone(), received()).unwrap_err();
    assert!(matches!(refused, StoreError::ResyncRefused { .. }), "{refused}");
    let elsewhere = world.copy();
    elsewhere.programs().install(bundle(2)).unwrap();
    assert!(elsewhere.programs().settle_resync(alone(), received()).unwrap());
    elsewhere.check("settled late");
    elsewhere.check_counts("settled late");

    // A state that does not hash to its root is refused and changes nothing.
    let before = world.dump(|_, _| true);
    let lie = ReceivedState {
        root_hash: Hash::new([1; 32]),
        ..received()
    };
    assert!(matches!(
        programs.settle_resync(alone(), lie),
        Err(StoreError::SnapshotRoot { .. })
    ));
    assert!(world.dump(|_, _| true) == before);

    // One with a true root settles; the sorted index of the old state goes.
    let mut index = node_store::sorted_index::SortedIndex::new(&mut store, alone(), [3; 32].into());
    index.insert(b"a", [4; 32].into()).unwrap();
    index.stamp(&Hash::new([5; 32])).unwrap();
    let root = value::EntityIndex {
        id: alone().into(),
        parent_id: None,
        children: None,
        full_hash: Hash::ZERO,
        own_hash: Hash::new([8; 32]),
        metadata: value::EntityMetadata {
            created_at: 0,
            updated_at: 0,
            storage_type: value::StorageType::Public,
            crdt_type: None,
            field_name: None,
            schema_version: None,
        },
        deleted_at: None,
        deleted_children: vec![],
    };
    let root_hash = root.compute_full_hash().unwrap();
    let root = value::EntityIndex {
        full_hash: root_hash,
        ..root
    };
    let rows = vec![(key::StateRow::Index.key(alone().into()), root.encode().unwrap())];
    let code = Some(code_id(1));
    assert!(
        programs
            .settle_resync(
                alone(),
                ReceivedState {
                    rows,
                    root_hash,
                    dag_heads: vec![],
                    code
                }
            )
            .unwrap()
    );
    for column in [
        node_store::Column::SortedIndex,
        node_store::Column::SortedIndexMeta,
    ] {
        let left = world.dump(|of, key| of == column && key.starts_with(alone().as_bytes()));
        assert_eq!(left, [], "rows of the old state");
    }
    assert!(
        !node_store::sorted_index::SortedIndex::new(&store, alone(), [3; 32].into())
            .is_valid_for(&Hash::new([5; 32]))
            .unwrap()
    );
    assert_eq!(store.view().get(&row).unwrap().unwrap().root_hash, root_hash);
    assert_eq!(
        state(&world, alone()),
        UpgradeState::UpToDate { serving: code_id(1) }
    );
}
