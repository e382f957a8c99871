//! Every scenario cut off before and after every write it makes, and the recovery from each of those before and after
//! every write *it* makes. All of them, in memory; `processes` kills real processes.

use crate::scenarios::Scenario;
use crate::world::World;

/// No start writes more often than this.
const MOST_WRITES_OF_A_START: usize = 4;

/// Everything that has to hold of a node which was cut off, once it has started in peace.
pub(crate) fn require_recovered(
    scenario: Scenario,
    world: &World,
    bystanders: &crate::world::Rows,
    when: &str,
) {
    world.check(when);
    scenario.start(world).unwrap();
    world.check(when);
    world.check_counts(when);
    scenario.require_resolved(world, when);
    assert_eq!(
        world.of_bystander(),
        *bystanders,
        "{when}: another space was touched"
    );
    let settled = world.dump(|_, _| true);
    scenario.start(world).unwrap();
    assert!(
        world.dump(|_, _| true) == settled,
        "{when}: one more start changes something"
    );
}

/// Cuts `run` off at its write number `at`; whether it came that far.
fn cut_off(
    world: &World,
    at: usize,
    after: bool,
    when: &str,
    run: impl FnOnce() -> Result<(), node_store::StoreError>,
) -> bool {
    world.plan.die(at, after);
    let outcome = run();
    let struck = world.plan.struck();
    world.plan.sound();
    assert_eq!(outcome.is_err(), struck, "{when}: {outcome:?}");
    struck
}

fn killed_everywhere(scenario: Scenario) {
    let (mut first, mut second) = (0, 0);
    for after in [false, true] {
        for at in 1.. {
            let world = World::new();
            scenario.prepare(&world);
            let bystanders = world.of_bystander();
            let when = format!("{scenario:?}, write {at}, after {after}");
            if !cut_off(&world, at, after, &when, || scenario.run(&world)) {
                break;
            }
            first += 1;
            world.check(&when);
            for again_after in [false, true] {
                for again in 1.. {
                    let world = world.copy();
                    let when = format!("{when}, again at {again}, after {again_after}");
                    let struck = cut_off(&world, again, again_after, &when, || scenario.start(&world));
                    require_recovered(scenario, &world, &bystanders, &when);
                    if !struck {
                        break;
                    }
                    assert!(again <= MOST_WRITES_OF_A_START, "{when}");
                    second += 1;
                }
            }
        }
    }
    println!("{scenario:?}: {first} kills, {second} second kills");
    assert!(first > 0);
}

#[test]
fn node_30_killed_installation() {
    killed_everywhere(Scenario::Install);
}

#[test]
fn node_30_killed_second_replacement_over_a_pinned_context() {
    killed_everywhere(Scenario::SecondReplacement);
}

#[test]
fn node_31_killed_upgrade() {
    killed_everywhere(Scenario::Upgrade);
}

#[test]
fn node_31_killed_failed_check() {
    killed_everywhere(Scenario::FailedCheck);
}

#[test]
fn node_31_killed_failed_apply() {
    killed_everywhere(Scenario::FailedApply);
}

#[test]
fn node_31_killed_without_a_path() {
    killed_everywhere(Scenario::NoPath);
}

#[test]
fn node_35_killed_rollback() {
    killed_everywhere(Scenario::Rollback);
}

#[test]
fn node_33_killed_resync() {
    killed_everywhere(Scenario::Resync);
}
