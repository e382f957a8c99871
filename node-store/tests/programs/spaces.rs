//! A space's name, and its removal.

use node_store::context::{delete_context, space_did};
use node_store::id::{ContextId, Hash};
use node_store::{Column, Key, WriteLayer, key};

use crate::scenarios::install_2;
use crate::versions::Step;
use crate::world::{World, alone};

#[test]
fn a_space_is_named_again_and_removed_whole_in_one_batch() {
    let world = World::new();
    let mut store = world.store();
    assert_eq!(
        space_did(&store, alone()).unwrap().as_deref(),
        Some("did:key:alone")
    );
    assert_eq!(space_did(&store, ContextId::new([1; 32])).unwrap(), None);
    let mut index = node_store::sorted_index::SortedIndex::new(&mut store, alone(), [3; 32].into());
    index.insert(b"a", [4; 32].into()).unwrap();
    index.stamp(&Hash::new([5; 32])).unwrap();
    let delta = key::ContextDagDelta {
        context_id: alone(),
        delta_id: [6; 32].into(),
    };
    store.put(Column::Delta, &delta.to_bytes(), b"history").unwrap();
    install_2(&world).unwrap();
    world.programs().upgrade(alone(), &mut Step::refusing(1)).unwrap();
    let replacing = key::Generic {
        scope: key::GenericScope::SYNC_IN_PROGRESS,
        fragment: alone().into(),
    };
    store
        .put(Column::Generic, &replacing.to_bytes(), &[3; 32])
        .unwrap();
    let others = world.dump(|_, key| !key.starts_with(alone().as_bytes()));

    let copy = world.copy();
    copy.plan.die(1, false);
    assert!(delete_context(&mut copy.store(), alone()).is_err());
    assert!(
        copy.dump(|_, _| true) == world.dump(|_, _| true),
        "one write, so nothing or all"
    );
    delete_context(&mut store, alone()).unwrap();
    let left = world.dump(|_, key| key.windows(32).any(|part| part == alone().as_bytes()));
    assert_eq!(
        left,
        [(Column::Delta, delta.to_bytes().to_vec(), b"history".to_vec())],
        "only history stays"
    );
    let did = key::Generic {
        scope: key::GenericScope::SPACE_DID,
        fragment: alone().into(),
    };
    let expected: Vec<_> = others
        .into_iter()
        .filter(|(_, key, _)| {
            ![did, replacing]
                .iter()
                .any(|row| key.as_slice() == row.to_bytes().as_slice())
        })
        .collect();
    assert!(world.dump(|_, key| !key.starts_with(alone().as_bytes())) == expected);
}
