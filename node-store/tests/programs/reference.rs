//! What the reference implementation leaves behind is completed at start. Rules: NODE-32, NODE-35.

use node_store::program::ReceivedState;
use node_store::{LayerExt, UpgradeState, key, value};

use crate::scenarios::{install_2, received, state};
use crate::versions::{Step, code_id};
use crate::world::{World, alone, grouped};

#[test]
fn stores_of_the_reference_which_no_longer_pins_are_completed_at_start() {
    // As the reference leaves it: the row names version 2, version 1 is activated, and there is no pin.
    let world = World::new();
    install_2(&world).unwrap();
    let mut store = world.store();
    for context_id in [grouped(), alone()] {
        store
            .handle()
            .delete(&key::ContextExecutingBlob { context_id })
            .unwrap();
    }
    let recovered = world.programs().recover().unwrap();
    let mut both = vec![grouped(), alone()];
    both.sort();
    assert_eq!(recovered.repaired, both);
    world.check("completed");
    // And a pin that is left over although everything is at the new version is dropped.
    for context_id in [grouped(), alone()] {
        world.programs().upgrade(context_id, &mut Step::sound()).unwrap();
        let pin = value::ContextExecutingBlob { blob: code_id(1) };
        store
            .handle()
            .put(&key::ContextExecutingBlob { context_id }, &pin)
            .unwrap();
    }
    assert_eq!(world.programs().recover().unwrap().repaired, both);
    world.check("dropped");
    assert_eq!(world.programs().recover().unwrap().repaired, []);
}

#[test]
fn a_replacement_that_the_reference_left_half_done_is_asked_for_again_at_start() {
    let world = World::new();
    let mut store = world.store();
    let note = key::Generic {
        scope: key::GenericScope::SYNC_IN_PROGRESS,
        fragment: alone().into(),
    };
    store.handle().put(&note, &vec![3; 32]).unwrap();
    let recovered = world.programs().recover().unwrap();
    assert_eq!(recovered.repaired, [alone()]);
    assert!(matches!(
        state(&world, alone()),
        UpgradeState::AwaitingResync { .. }
    ));
    assert_eq!(world.programs().recover().unwrap().repaired, []);
    let whole = ReceivedState {
        code: Some(code_id(1)),
        ..received()
    };
    assert!(world.programs().settle_resync(alone(), whole).unwrap());
    assert!(!store.view().has(&note).unwrap());
    assert_eq!(
        state(&world, alone()),
        UpgradeState::UpToDate { serving: code_id(1) }
    );
}
