//! What refuses an activation, and a store that fails at any call of an upgrade. Rules: NODE-31, NODE-35.

use node_store::program::{Bundle, UpgradeOutcome};
use node_store::{LayerExt, StoreError, key, value};

use crate::scenarios::{Scenario, install_2};
use crate::versions::{Step, application, bundle, code_id};
use crate::world::{World, alone, group, grouped};

#[test]
fn node_35_activation_only_moves_forward() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    programs.upgrade(alone(), &mut Step::sound()).unwrap();
    let refused = programs.rollback(application()).unwrap_err();
    assert!(
        matches!(refused, StoreError::ActivationBackwards { .. }),
        "{refused}"
    );
    world.check("refused rollback");

    // Up the group's ladder only: the group goes back to version 1 and its code is installed as a "newer" bundle.
    programs.upgrade(grouped(), &mut Step::sound()).unwrap();
    programs
        .install(Bundle {
            state_version: 2,
            ..bundle(1)
        })
        .unwrap();
    let mut store = world.store();
    // Wanted again, the same code is no rung more.
    node_store::governance::want_code(&mut store, group(), application(), code_id(2)).unwrap();
    let ladder = key::GroupUpgradeLadder { group_id: group() };
    let mut rungs = store.view().get(&ladder).unwrap().unwrap();
    assert_eq!(rungs.rungs.len(), 2);
    let mut meta = store
        .view()
        .get(&key::GroupMeta { group_id: group() })
        .unwrap()
        .unwrap();
    meta.app_key = code_id(1);
    store
        .handle()
        .put(&key::GroupMeta { group_id: group() }, &meta)
        .unwrap();
    let refused = programs.upgrade(grouped(), &mut Step::sound()).unwrap_err();
    assert!(
        matches!(refused, StoreError::ActivationBackwards { .. }),
        "{refused}"
    );
    assert_eq!(programs.markers(grouped()).unwrap().activated, Some(code_id(2)));
    assert_eq!(rungs.next_after(&code_id(1)).unwrap().app_key, code_id(2));
    // The last occurrence of a version counts.
    rungs.rungs.push(value::UpgradeRung {
        app_key: code_id(1),
        application_id: application(),
    });
    assert_eq!(rungs.position(&code_id(1)), Some(2));
}

#[test]
fn node_35_activation_never_goes_to_an_older_state_version() {
    // As after a resync from a node that was further: state of version 9, and a row that names version 2.
    let world = World::new();
    install_2(&world).unwrap();
    let marker = key::ContextActivatedStateVersion { context_id: alone() };
    let ahead = value::ContextActivatedStateVersion { state_version: 9 };
    world.store().handle().put(&marker, &ahead).unwrap();
    let before = world.dump(|_, _| true);
    let refused = world.programs().upgrade(alone(), &mut Step::sound()).unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::Downgrade {
                offered: 2,
                current: 9,
                ..
            }
        ),
        "{refused}"
    );
    assert!(world.dump(|_, _| true) == before);
}

#[test]
fn node_31_a_store_that_fails_records_nothing_and_is_tried_again() {
    let world = World::new();
    install_2(&world).unwrap();
    // Count the calls of a whole upgrade, reads too, then fail each of them once.
    world.plan.sound();
    world
        .copy()
        .programs()
        .upgrade(alone(), &mut Step::sound())
        .unwrap();
    let (mut at, mut noted) = (1, 0);
    loop {
        let world = world.copy();
        let programs = world.programs();
        world.plan.fail(at);
        let outcome = programs.upgrade(alone(), &mut Step::sound());
        let struck = world.plan.struck();
        world.plan.sound();
        if !struck {
            assert_eq!(outcome.unwrap(), UpgradeOutcome::Activated { code: code_id(2) });
            break;
        }
        let data = world.data_version(alone());
        world.check(&format!("call {at}"));
        match (&outcome, data) {
            // The flush after the batch may fail: the data is there and the next start finds it so.
            (Err(_), 1 | 2) => {}
            other => panic!("call {at}: {other:?}"),
        }
        Scenario::Upgrade.start(&world).unwrap();
        if world.programs().markers(alone()).unwrap().failed.is_some() {
            // The batch itself failed, which is a failure of the apply.
            noted += 1;
            let failed = world.programs().markers(alone()).unwrap().failed;
            assert_eq!(failed, Some(value::ContextMigrationFailed::ApplyFailed));
            assert_eq!(world.data_version(alone()), 1);
            world.programs().upgrade(alone(), &mut Step::sound()).unwrap();
        }
        assert_eq!(world.data_version(alone()), 2);
        at += 1;
    }
    assert!(at > 20, "only {at} calls");
    assert!(noted > 0, "a failure of the batch itself is on record");
}
