//! What a node was doing when it died, what a start does about it, and where it has to end.

use node_store::governance::want_code;
use node_store::id::{ContextId, Hash, StateKey};
use node_store::program::{ReceivedState, UpgradeOutcome};
use node_store::value::ContextMigrationFailed as Failure;
use node_store::{LayerExt, StoreError, UpgradeState, key, upgrade_state};

use crate::versions::{Step, application, bundle, code_id, code_versions};
use crate::world::{ROWS, World, alone, group, grouped};

/// What a node was doing when it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Installing version 2 in place.
    Install,
    /// Upgrading both contexts to it.
    Upgrade,
    /// An upgrade whose check says no.
    FailedCheck,
    /// An upgrade whose check passes and whose second run says no.
    FailedApply,
    /// An upgrade for which there is no migration.
    NoPath,
    /// Installing version 3 while the contexts are pinned to version 1.
    SecondReplacement,
    /// Taking version 2 back after a failed check.
    Rollback,
    /// Asking for a whole state, and putting it in the place of the old one.
    Resync,
}

impl Scenario {
    pub(crate) const ALL: [Scenario; 8] = [
        Scenario::Install,
        Scenario::Upgrade,
        Scenario::FailedCheck,
        Scenario::FailedApply,
        Scenario::NoPath,
        Scenario::SecondReplacement,
        Scenario::Rollback,
        Scenario::Resync,
    ];

    /// What was done before, in peace.
    pub(crate) fn prepare(self, world: &World) {
        match self {
            Scenario::Install => {}
            Scenario::Upgrade
            | Scenario::FailedCheck
            | Scenario::FailedApply
            | Scenario::NoPath
            | Scenario::SecondReplacement => install_2(world).unwrap(),
            Scenario::Rollback => {
                install_2(world).unwrap();
                for context in [grouped(), alone()] {
                    world.programs().upgrade(context, &mut Step::refusing(1)).unwrap();
                }
            }
            Scenario::Resync => {
                install_2(world).unwrap();
                world.programs().upgrade(alone(), &mut Step::refusing(1)).unwrap();
            }
        }
    }

    /// What is done, until it is cut off.
    pub(crate) fn run(self, world: &World) -> Result<(), StoreError> {
        let programs = world.programs();
        match self {
            Scenario::Install => install_2(world),
            Scenario::Upgrade => {
                for context in [grouped(), alone()] {
                    programs.upgrade(context, &mut self.migration())?;
                }
                Ok(())
            }
            Scenario::FailedCheck | Scenario::FailedApply | Scenario::NoPath => {
                for context in [grouped(), alone()] {
                    let outcome = programs.upgrade(context, &mut self.migration())?;
                    assert!(
                        matches!(outcome, UpgradeOutcome::Failed { kind, .. } if Some(kind) == self.failure()),
                        "{outcome:?}"
                    );
                }
                Ok(())
            }
            Scenario::SecondReplacement => {
                programs.install(bundle(3))?;
                want_code(&mut world.store(), group(), application(), code_id(3))
            }
            Scenario::Rollback => programs.rollback(application()).map(drop),
            Scenario::Resync => {
                programs.request_resync(alone(), false)?;
                assert!(programs.settle_resync(alone(), received())?);
                Ok(())
            }
        }
    }

    /// The failure that ends on record.
    fn failure(self) -> Option<Failure> {
        match self {
            Scenario::FailedCheck => Some(Failure::CheckAborted),
            Scenario::FailedApply => Some(Failure::ApplyFailed),
            Scenario::NoPath => Some(Failure::NoMigrationPath),
            Scenario::Install
            | Scenario::Upgrade
            | Scenario::SecondReplacement
            | Scenario::Rollback
            | Scenario::Resync => None,
        }
    }

    fn migration(self) -> Step {
        match self {
            Scenario::Install | Scenario::Upgrade | Scenario::SecondReplacement => Step::sound(),
            Scenario::FailedCheck | Scenario::Rollback | Scenario::Resync => Step::refusing(1),
            Scenario::FailedApply => Step::refusing(2),
            Scenario::NoPath => Step::without_a_path(),
        }
    }

    /// What a start does: recover, drive what is pending, answer what was asked for. Nobody has to be asked.
    pub(crate) fn start(self, world: &World) -> Result<(), StoreError> {
        let programs = world.programs();
        for (context, state) in programs.recover()?.contexts {
            match state {
                UpgradeState::Pending { .. } => drop(programs.upgrade(context, &mut self.migration())?),
                UpgradeState::AwaitingResync { .. } => drop(programs.settle_resync(context, received())?),
                // The old code goes on; the operator may look, and nothing waits for it.
                UpgradeState::Failed { .. } | UpgradeState::AwaitingCode { .. } => {}
                UpgradeState::UpToDate { .. } | UpgradeState::NotInstalled { .. } => {}
            }
        }
        Ok(())
    }

    /// Where it has to end after a start in peace.
    pub(crate) fn require_resolved(self, world: &World, when: &str) {
        for context in [grouped(), alone()] {
            let (state, data) = (state(world, context), world.data_version(context));
            match self {
                // Lost whole or there whole: either way nobody has to look.
                Scenario::Install => assert!(
                    matches!(state, UpgradeState::UpToDate { .. }),
                    "{when}: {state:?}"
                ),
                Scenario::Upgrade => {
                    assert_eq!(state, UpgradeState::UpToDate { serving: code_id(2) }, "{when}");
                    assert_eq!(data, 2, "{when}");
                }
                Scenario::FailedCheck | Scenario::FailedApply | Scenario::NoPath => {
                    let (serving, target) = (code_id(1), code_id(2));
                    let reason = self.failure().unwrap();
                    assert_eq!(
                        state,
                        UpgradeState::Failed {
                            serving,
                            target,
                            reason
                        },
                        "{when}"
                    );
                    assert_eq!(data, 1, "{when}");
                    // A later migration that commits clears the failure by itself.
                    let world = world.copy();
                    let outcome = world.programs().upgrade(context, &mut Step::sound()).unwrap();
                    assert_eq!(outcome, UpgradeOutcome::Activated { code: target });
                    assert_eq!(world.programs().markers(context).unwrap().failed, None);
                    world.check("after the failure");
                }
                Scenario::SecondReplacement => match state {
                    UpgradeState::UpToDate { serving } => {
                        assert_eq!(code_versions()[&serving], data, "{when}")
                    }
                    // The group's word came before the code, or the code before the group's word.
                    state => assert!(
                        matches!(state, UpgradeState::AwaitingCode { .. }),
                        "{when}: {state:?}"
                    ),
                },
                Scenario::Rollback => require_rolled_back(world, context, state, when),
                Scenario::Resync if context == alone() => require_replaced(world, state, data, when),
                Scenario::Resync => assert_eq!(data, 1, "{when}: another space was touched"),
            }
        }
    }
}

fn require_rolled_back(world: &World, context: ContextId, state: UpgradeState, when: &str) {
    assert_eq!(world.data_version(context), 1, "{when}");
    match state {
        UpgradeState::UpToDate { serving } => {
            assert_eq!(serving, code_id(1), "{when}");
            let row = world.programs().get(application()).unwrap().unwrap();
            assert_eq!((row.version.as_str(), row.state_version), ("1.0.0", 1), "{when}");
            let markers = world.programs().markers(context).unwrap();
            let left = (markers.failed, markers.executing, markers.previous);
            assert_eq!(left, (None, None, None), "{when}");
        }
        UpgradeState::Failed { serving, .. } => assert_eq!(serving, code_id(1), "{when}"),
        other => panic!("{when}: {other:?}"),
    }
}

fn require_replaced(world: &World, state: UpgradeState, data: u32, when: &str) {
    let markers = world.programs().markers(alone()).unwrap();
    assert!(!markers.resync_requested, "{when}");
    if data == 1 {
        assert_eq!(
            markers.failed,
            Some(Failure::CheckAborted),
            "{when}: the request was lost whole"
        );
        return;
    }
    assert_eq!(markers.failed, None, "{when}");
    assert_eq!(state, UpgradeState::UpToDate { serving: code_id(2) }, "{when}");
    let meta = world
        .store()
        .view()
        .get(&key::ContextMeta { context_id: alone() })
        .unwrap();
    assert_eq!(meta.unwrap().dag_heads, [[5; 32].into()], "{when}");
}

/// A whole state of version 2 for the context without a group.
pub(crate) fn received() -> ReceivedState {
    ReceivedState {
        rows: (0..ROWS)
            .map(|row| (StateKey::new([row + 100; 32]), vec![2, row]))
            .collect(),
        root_hash: Hash::ZERO,
        dag_heads: vec![[5; 32].into()],
        code: Some(code_id(2)),
    }
}

pub(crate) fn state(world: &World, context: ContextId) -> UpgradeState {
    upgrade_state(&world.programs().markers(context).unwrap())
}

pub(crate) fn install_2(world: &World) -> Result<(), StoreError> {
    world.programs().install(bundle(2))?;
    want_code(&mut world.store(), group(), application(), code_id(2))
}
