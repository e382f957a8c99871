//! Installing and reinstalling a program. Rule: NODE-30.

use node_store::governance::want_code;
use node_store::program::{Bundle, InstallOutcome, ServiceCode};
use node_store::{StoreError, UpgradeState, upgrade_state};

use crate::scenarios::{install_2, state};
use crate::versions::{Step, application, bundle, code_id};
use crate::world::{World, alone, group, grouped};

#[test]
fn node_30_reinstallation_in_place_notes_what_it_replaced_and_pins_who_ran_it() {
    let world = World::new();
    let programs = world.programs();
    let outcome = programs.install(bundle(2)).unwrap();
    let mut pinned = vec![grouped(), alone()];
    pinned.sort();
    assert_eq!(
        outcome,
        InstallOutcome {
            code: code_id(2),
            replaced: Some(code_id(1)),
            pinned
        }
    );
    let markers = programs.markers(alone()).unwrap();
    assert_eq!(
        (markers.previous, markers.executing),
        (Some(code_id(1)), Some(code_id(1)))
    );
    assert_eq!(
        upgrade_state(&markers),
        UpgradeState::Pending {
            serving: code_id(1),
            target: code_id(2),
            migrates: true
        }
    );
    // The group has not moved: its contexts are up to date by the one test, and pinned.
    assert_eq!(
        state(&world, grouped()),
        UpgradeState::UpToDate { serving: code_id(1) }
    );

    // The same again changes nothing but the row's texts.
    let again = programs
        .install(Bundle {
            source: "elsewhere".into(),
            ..bundle(2)
        })
        .unwrap();
    assert_eq!(
        again,
        InstallOutcome {
            code: code_id(2),
            replaced: None,
            pinned: vec![]
        }
    );
    assert_eq!(programs.markers(alone()).unwrap(), markers);
    assert_eq!(programs.get(application()).unwrap().unwrap().source, "elsewhere");
    world.check_counts("installed twice");

    // An older state version is refused, with nothing changed.
    let before = world.dump(|_, _| true);
    let refused = programs.install(bundle(1)).unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::Downgrade {
                offered: 1,
                current: 2,
                ..
            }
        ),
        "{refused}"
    );
    assert!(world.dump(|_, _| true) == before);
    world.check_counts("refused");
}

#[test]
fn node_30_code_that_nobody_names_any_more_goes() {
    let world = World::new();
    let programs = world.programs();
    install_2(&world).unwrap();
    programs.upgrade(alone(), &mut Step::sound()).unwrap();
    programs.install(bundle(3)).unwrap();
    // Version 1 is still pinned by the grouped context.
    assert!(programs.blobs().has(code_id(1)).unwrap());
    world.check("pinned");
    want_code(&mut world.store(), group(), application(), code_id(3)).unwrap();
    programs.upgrade(grouped(), &mut Step::sound()).unwrap();
    assert!(!programs.blobs().has(code_id(1)).unwrap());
    assert!(
        programs.blobs().has(code_id(2)).unwrap(),
        "the previous code stays"
    );
    programs.upgrade(alone(), &mut Step::sound()).unwrap();
    world.check("all upgraded");
    world.check_counts("all upgraded");
}

#[test]
fn node_30_services_are_kept_with_their_program() {
    let world = World::new();
    let programs = world.programs();
    let services = || {
        ["alpha", "beta", "gamma"]
            .map(|name| ServiceCode {
                name: name.into(),
                // Two services of the same code are one blob with one owner.
                code: Box::new(if name == "gamma" {
                    &b"service alpha"[..]
                } else {
                    &b"service beta"[..]
                }),
            })
            .into_iter()
            .collect()
    };
    programs
        .install(Bundle {
            services: services(),
            ..bundle(2)
        })
        .unwrap();
    let row = programs.get(application()).unwrap().unwrap();
    let beta = row.service(Some("beta")).unwrap().bytecode;
    assert_eq!(programs.blobs().meta(beta).unwrap().unwrap().refs, 1);
    programs
        .install(Bundle {
            services: vec![],
            ..bundle(3)
        })
        .unwrap();
    let kept = programs.superseded(application(), code_id(2)).unwrap().unwrap();
    assert_eq!(kept.services, row.services);
    assert!(programs.blobs().has(beta).unwrap());
    programs.rollback(application()).unwrap();
    assert_eq!(programs.get(application()).unwrap().unwrap(), row);
    assert!(!programs.blobs().has(code_id(3)).unwrap());
}
