//! A space's name, and its removal.

use node_store::context::{delete_context, space_did};
use node_store::family::KeyWidth;
use node_store::id::{ContextId, Hash};
use node_store::{Column, Family, Key, ReadLayer, WriteLayer, key};

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
    // Noted again, it keeps its rows.
    let noted = world.dump(|_, _| true);
    let again = node_store::context::register_space(&mut store, "did:key:alone", [9; 32].into());
    assert_eq!(again.unwrap(), alone());
    assert!(world.dump(|_, _| true) == noted);
    // A DID that does not hash to its context is no answer.
    let other = ContextId::new([2; 32]);
    let misplaced = key::Generic {
        scope: key::GenericScope::SPACE_DID,
        fragment: other.into(),
    };
    store
        .put(Column::Generic, &misplaced.to_bytes(), b"did:key:alone")
        .unwrap();
    assert!(space_did(&store, other).is_err());
    store.delete(Column::Generic, &misplaced.to_bytes()).unwrap();
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
    // A row of every family that belongs to a context, whatever it holds.
    for family in Family::all() {
        let history = matches!(family.column, Column::Delta | Column::Group);
        if history
            || family
                .components
                .first()
                .is_none_or(|(name, _)| *name != "context_id")
        {
            continue;
        }
        let (KeyWidth::Exactly(width) | KeyWidth::AtLeast(width)) = family.width;
        let mut row = Vec::from_iter(family.prefix);
        row.extend_from_slice(alone().as_bytes());
        row.resize(width, 7);
        if !store.has(family.column, &row).unwrap() {
            store.put(family.column, &row, b"of the context").unwrap();
        }
    }
    let names_it = |key: &[u8]| key.windows(32).any(|part| part == alone().as_bytes());
    let others = world.dump(|_, key| !names_it(key));

    let copy = world.copy();
    copy.plan.die(1, false);
    assert!(delete_context(&mut copy.store(), alone()).is_err());
    assert!(
        copy.dump(|_, _| true) == world.dump(|_, _| true),
        "one write, so nothing or all"
    );
    delete_context(&mut store, alone()).unwrap();
    let left = world.dump(|_, key| names_it(key));
    assert_eq!(
        left,
        [(Column::Delta, delta.to_bytes().to_vec(), b"history".to_vec())],
        "only history stays"
    );
    assert!(world.dump(|_, key| !names_it(key)) == others);
}
