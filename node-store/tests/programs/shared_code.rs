//! Two programs of the same code, contexts made between two versions, and code that nobody names any more. Rules: NODE-30,
//! NODE-32, NODE-35.

use node_store::context::{delete_context, register_space};
use node_store::id::{ApplicationId, StateKey};
use node_store::program::{Bundle, Recovered, UpgradeOutcome};
use node_store::{Column, Key, LayerExt, StoreError, UpgradeState, WriteLayer, key};

use crate::scenarios::install_2;
use crate::versions::{Step, application, bundle, code_id};
use crate::world::{World, alone, bystander, grouped};

#[test]
fn node_35_two_programs_of_the_same_code_are_superseded_and_rolled_back_each_by_itself() {
    let world = World::new();
    let programs = world.programs();
    let twin = ApplicationId::of_manifest(b"the same code under another name");
    let of_twin = |version| Bundle {
        application_id: twin,
        package: "org.example.twin".into(),
        ..bundle(version)
    };
    programs.install(of_twin(1)).unwrap();
    let (ours, theirs) = (programs.get(application()).unwrap(), programs.get(twin).unwrap());
    assert_eq!(programs.blobs().meta(code_id(1)).unwrap().unwrap().refs, 2);
    programs.install(bundle(2)).unwrap();
    programs.install(of_twin(2)).unwrap();
    world.check_counts("both replaced");
    assert_eq!(programs.superseded(application(), code_id(1)).unwrap(), ours);
    assert_eq!(programs.superseded(twin, code_id(1)).unwrap(), theirs);
    programs.rollback(application()).unwrap();
    world.check_counts("one rolled back");
    assert_eq!(programs.superseded(twin, code_id(1)).unwrap(), theirs);
    programs.rollback(twin).unwrap();
    assert_eq!(
        (programs.get(application()).unwrap(), programs.get(twin).unwrap()),
        (ours, theirs)
    );
    world.check("both rolled back");
    world.check_counts("both rolled back");
}

#[test]
fn node_35_code_that_a_newer_context_has_written_state_with_is_not_taken_back() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    let mut store = world.store();
    let context_id = register_space(&mut store, "did:key:newer", application()).unwrap();
    assert_eq!(programs.markers(context_id).unwrap().serving(), Some(code_id(2)));
    // With nothing written yet there is nothing that the old code could not read.
    let copy = world.copy();
    assert_eq!(copy.programs().rollback(application()).unwrap(), code_id(1));

    for column in [Column::State, Column::PrivateState] {
        let world = world.copy();
        let state_key = StateKey::new([1; 32]);
        let row = key::ContextState {
            context_id,
            state_key,
        };
        world.store().put(column, &row.to_bytes(), &[2, 1]).unwrap();
        let before = world.dump(|_, _| true);
        let refused = world.programs().rollback(application()).unwrap_err();
        assert!(
            matches!(refused, StoreError::ActivationBackwards { context, .. } if context == context_id),
            "{refused}"
        );
        assert!(world.dump(|_, _| true) == before);
    }
}

#[test]
fn node_35_code_that_comes_back_is_run_without_a_pin_where_it_was_activated() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    programs.upgrade(alone(), &mut Step::sound()).unwrap();
    programs
        .install(Bundle {
            state_version: 2,
            ..bundle(1)
        })
        .unwrap();
    assert_eq!(programs.markers(alone()).unwrap().executing, Some(code_id(2)));
    programs.install(bundle(2)).unwrap();
    let markers = programs.markers(alone()).unwrap();
    assert_eq!((markers.installed, markers.executing), (Some(code_id(2)), None));
    let archived = programs.superseded(application(), code_id(2)).unwrap();
    assert_eq!(archived, None, "its row is the program's own again");
    world.check("it came back");
    world.check_counts("it came back");
}

#[test]
fn node_30_code_that_only_removed_contexts_were_pinned_to_goes_at_the_next_start() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    programs.install(bundle(3)).unwrap();
    assert!(programs.superseded(application(), code_id(1)).unwrap().is_some());
    let mut store = world.store();
    delete_context(&mut store, alone()).unwrap();
    assert_eq!(
        programs.recover().unwrap().forgotten,
        0,
        "the other context is pinned to it"
    );
    delete_context(&mut store, grouped()).unwrap();

    // Killed on the way, it goes at the start after.
    let copy = world.copy();
    copy.plan.die(1, false);
    assert!(copy.programs().recover().is_err());
    copy.plan.sound();
    for world in [&world, &copy] {
        let programs = world.programs();
        assert_eq!(programs.recover().unwrap().forgotten, 1);
        assert!(!programs.blobs().has(code_id(1)).unwrap());
        assert!(programs.superseded(application(), code_id(1)).unwrap().is_none());
        assert!(
            programs.superseded(application(), code_id(2)).unwrap().is_some(),
            "the previous code stays"
        );
        world.check_counts("forgotten");
        assert_eq!(programs.recover().unwrap().forgotten, 0);
        assert_eq!(programs.rollback(application()).unwrap(), code_id(2));
    }
}

#[test]
fn node_32_a_marker_of_an_unknown_version_stops_its_own_context_and_no_other() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    let mut store = world.store();
    let marker = key::ContextMigrationFailed { context_id: alone() }.to_bytes();
    store.put(Column::ContextMigrationFailed, &marker, &[9]).unwrap();
    let before = world.dump(|_, key| key.starts_with(alone().as_bytes()));
    let Recovered {
        unreadable, contexts, ..
    } = programs.recover().unwrap();
    assert_eq!(unreadable.len(), 1);
    assert_eq!(unreadable[0].0, alone());
    assert!(
        unreadable[0]
            .1
            .starts_with("ContextMigrationFailed: the value (1 bytes)"),
        "{}",
        unreadable[0].1
    );
    let known: Vec<_> = contexts.iter().map(|(context, _)| *context).collect();
    assert!(known.contains(&grouped()) && known.contains(&bystander()) && known.len() == 2);
    assert!(matches!(
        programs.upgrade(alone(), &mut Step::sound()),
        Err(StoreError::UndecodableValue { .. })
    ));
    assert_eq!(
        programs.upgrade(grouped(), &mut Step::sound()).unwrap(),
        UpgradeOutcome::Activated { code: code_id(2) }
    );
    assert!(world.dump(|_, key| key.starts_with(alone().as_bytes())) == before);
    // Once the marker is one that is known, the context goes on.
    store.put(Column::ContextMigrationFailed, &marker, &[1]).unwrap();
    let recovered = programs.recover().unwrap();
    assert_eq!(recovered.unreadable, []);
    assert!(
        recovered
            .contexts
            .iter()
            .any(|(context, state)| *context == alone() && matches!(state, UpgradeState::Failed { .. }))
    );
    // Its metadata may be what does not decode.
    let meta = key::ContextMeta { context_id: alone() }.to_bytes();
    store.put(Column::Meta, &meta, b"cut short").unwrap();
    assert_eq!(programs.recover().unwrap().unreadable.len(), 1);
    assert!(
        store
            .view()
            .get(&key::ContextMeta { context_id: alone() })
            .is_err()
    );
}
