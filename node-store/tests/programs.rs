//! Programs and their upgrade under faults: killed at every step, and killed again while recovering, a node comes back by
//! itself, never runs code on state of another version, and no marker is ahead of the data. Rules: NODE-30…36.

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::context::{delete_context, register_space, space_did};
use node_store::governance::want_code;
use node_store::id::{ApplicationId, BlobId, ContextId, GroupId, Hash, StateKey};
use node_store::program::{
    Bundle, ContextRows, InstallOutcome, Migration, MigrationError, ReceivedState, ServiceCode,
    UpgradeOutcome,
};
use node_store::value::ContextMigrationFailed as Failure;
use node_store::{
    BlobStore, Column, Database, Family, LayerExt, Markers, Programs, ReadLayer, Store, StoreError,
    UpgradeState, WriteLayer, key, upgrade_state, value,
};

use support::faults::{Faulty, Plan};

const ROWS: u8 = 3;

fn application() -> ApplicationId {
    ApplicationId::of_manifest(b"notes")
}

fn grouped() -> ContextId {
    ContextId::of_space("did:key:grouped")
}

fn alone() -> ContextId {
    ContextId::of_space("did:key:alone")
}

fn bystander() -> ContextId {
    ContextId::of_space("did:key:bystander")
}

fn group() -> GroupId {
    GroupId::new([7; 32])
}

fn bundle(version: u32) -> Bundle<'static> {
    Bundle {
        application_id: application(),
        package: "org.example.notes".into(),
        version: format!("{version}.0.0"),
        source: "test".into(),
        signer_id: "did:key:signer".into(),
        metadata: vec![],
        state_version: version,
        code: Box::new(std::io::Cursor::new(format!("code {version}").into_bytes())),
        services: vec![],
    }
}

/// Moves rows one version on, and refuses rows of any other version: done twice, it would say so.
struct Step {
    calls: usize,
    refuse_call: Option<usize>,
    leads: bool,
}

impl Step {
    fn sound() -> Self {
        Step {
            calls: 0,
            refuse_call: None,
            leads: true,
        }
    }

    fn refusing(call: usize) -> Self {
        Step {
            refuse_call: Some(call),
            ..Step::sound()
        }
    }
}

impl Migration for Step {
    fn leads(&self, _from: BlobId, _to: BlobId) -> bool {
        self.leads
    }

    fn compile(&mut self, _to: BlobId) -> Result<(), MigrationError> {
        Ok(())
    }

    fn migrate(
        &mut self,
        from: BlobId,
        to: BlobId,
        rows: &mut ContextRows<'_, '_>,
    ) -> Result<(), MigrationError> {
        self.calls += 1;
        let versions = code_versions();
        let (from, to) = (versions[&from], versions[&to]);
        for state_key in rows.state_keys()? {
            let value = rows.state(state_key)?.unwrap_or_default();
            if value.first() != Some(&(from as u8)) {
                return Err(MigrationError::Refused(format!(
                    "a row of version {value:?}, expected {from}"
                )));
            }
            rows.put_state(state_key, &[to as u8, value[1]])?;
        }
        rows.set_root_hash(Hash::new([to as u8; 32]))?;
        if self.refuse_call == Some(self.calls) {
            return Err(MigrationError::Refused("the data do not fit".into()));
        }
        Ok(())
    }
}

fn code_id(version: u32) -> BlobId {
    let chunk = BlobId::new(sha(format!("code {version}").as_bytes()));
    BlobId::new(sha(chunk.as_bytes()))
}

fn sha(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).into()
}

fn code_versions() -> BTreeMap<BlobId, u32> {
    (1..=4).map(|version| (code_id(version), version)).collect()
}

/// A node: what is on its disk, and a way to fail it.
struct World {
    disk: Arc<MemoryBackend>,
    files: tempfile::TempDir,
    plan: Arc<Plan>,
}

impl World {
    /// Version 1 installed and activated in three contexts, one of them in a group, one of another program.
    fn new() -> Self {
        let world = World {
            disk: Arc::new(MemoryBackend::new()),
            files: tempfile::tempdir().unwrap(),
            plan: Plan::new(),
        };
        let programs = world.programs();
        let mut store = world.store();
        programs.install(bundle(1)).unwrap();
        let other = ApplicationId::of_manifest(b"other");
        programs
            .install(Bundle {
                application_id: other,
                code: Box::new(&b"other code"[..]),
                ..bundle(1)
            })
            .unwrap();
        for (did, application) in [
            ("did:key:grouped", application()),
            ("did:key:alone", application()),
            ("did:key:bystander", other),
        ] {
            let context_id = register_space(&mut store, did, application).unwrap();
            let mut handle = store.handle();
            for row in 0..ROWS {
                let state = key::ContextState {
                    context_id,
                    state_key: StateKey::new([row; 32]),
                };
                handle.put(&state, &vec![1, row]).unwrap();
            }
            let private = key::ContextPrivateState {
                context_id,
                state_key: StateKey::new([9; 32]),
            };
            handle.put(&private, &vec![9]).unwrap();
        }
        let group_meta = value::GroupMeta {
            app_key: BlobId::ZERO,
            target_application_id: application(),
            created_at: 0,
            admin_identity: [1; 32].into(),
            owner_identity: [1; 32].into(),
            migration: None,
            auto_join: false,
        };
        store
            .handle()
            .put(&key::GroupMeta { group_id: group() }, &group_meta)
            .unwrap();
        store
            .handle()
            .put(
                &key::ContextGroupRef {
                    context_id: grouped(),
                },
                &group(),
            )
            .unwrap();
        want_code(&mut store, group(), application(), code_id(1)).unwrap();
        for context in [grouped(), alone(), bystander()] {
            let outcome = programs.upgrade(context, &mut Step::sound()).unwrap();
            assert!(matches!(outcome, UpgradeOutcome::Activated { .. }), "{outcome:?}");
        }
        world
    }

    fn store(&self) -> Store {
        Store::new(Faulty {
            inner: self.disk.clone(),
            plan: self.plan.clone(),
        })
    }

    fn programs(&self) -> Programs {
        let store = self.store();
        Programs::new(store.clone(), BlobStore::open(store, self.files.path()).unwrap())
    }

    /// The same disk in another machine, with nothing failing.
    fn copy(&self) -> World {
        let (from, to) = (Store::new(self.disk.clone()), Arc::new(MemoryBackend::new()));
        for column in Column::ALL {
            let mut rows = from.iter(*column).unwrap();
            while let Some(row) = rows.next().unwrap() {
                to.put(*column, row.key, row.value).unwrap();
            }
        }
        let files = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(self.files.path()).unwrap() {
            let path = file.unwrap().path();
            std::fs::copy(&path, files.path().join(path.file_name().unwrap())).unwrap();
        }
        World {
            disk: to,
            files,
            plan: Plan::new(),
        }
    }

    fn dump(&self, keep: impl Fn(Column, &[u8]) -> bool) -> Vec<(Column, Vec<u8>, Vec<u8>)> {
        let store = Store::new(self.disk.clone());
        let mut all = Vec::new();
        for column in Column::ALL {
            let mut rows = store.iter(*column).unwrap();
            while let Some(row) = rows.next().unwrap() {
                if keep(*column, row.key) {
                    all.push((*column, row.key.to_vec(), row.value.to_vec()));
                }
            }
        }
        all
    }

    fn of_bystander(&self) -> Vec<(Column, Vec<u8>, Vec<u8>)> {
        self.dump(|_, key| key.starts_with(bystander().as_bytes()))
    }

    /// The version of a context's rows, which must all be of one.
    fn data_version(&self, context_id: ContextId) -> u32 {
        let store = self.store();
        let handle = store.view();
        let versions: Vec<u8> = handle
            .scan::<key::ContextState>(&context_id)
            .unwrap()
            .map(|row| row.unwrap().1[0])
            .collect();
        assert_eq!(versions.len(), ROWS as usize);
        assert!(
            versions.iter().all(|version| *version == versions[0]),
            "mixed rows: {versions:?}"
        );
        u32::from(versions[0])
    }

    /// What must hold at every moment, crash or not.
    fn check(&self, when: &str) {
        self.plan.fail(0);
        let (store, programs, versions) = (self.store(), self.programs(), code_versions());
        for context in [grouped(), alone()] {
            let markers = programs.markers(context).unwrap();
            let state = upgrade_state(&markers);
            let data = self.data_version(context);
            let serving = state.serving().expect("there is always code to run");
            assert_eq!(
                versions[&serving], data,
                "{when}: code of another version than the data: {markers:?}"
            );
            let activated = markers.activated.expect("activated in the set-up");
            assert_eq!(
                versions[&activated], data,
                "{when}: the marker is not of the data: {markers:?}"
            );
            assert_eq!(markers.activated_state_version, Some(data), "{when}");
            for named in [markers.installed, markers.executing, markers.previous]
                .into_iter()
                .flatten()
            {
                let mut code = Vec::new();
                let read = programs
                    .blobs()
                    .reader(named)
                    .map(|mut reader| reader.read_to_end(&mut code));
                assert!(
                    matches!(read, Ok(Ok(_))),
                    "{when}: {named} is named and cannot be read: {read:?}"
                );
                assert_eq!(code, format!("code {}", versions[&named]).into_bytes());
            }
            if let Some(previous) = markers.previous {
                assert!(
                    programs.superseded(previous).unwrap().is_some(),
                    "{when}: nothing to roll back to"
                );
            }
        }
        assert_eq!(programs.blobs().dangling().unwrap(), [], "{when}");
        let context_rows = self.data_version(bystander());
        assert_eq!(context_rows, 1, "{when}: another program's space was touched");
        assert!(matches!(
            upgrade_state(&Markers::read(&store, bystander()).unwrap()),
            UpgradeState::UpToDate { .. }
        ));
    }

    /// After a recovery: no orphan files, and every count is of an owner that there is.
    fn check_counts(&self, when: &str) {
        let (store, programs) = (self.store(), self.programs());
        let handle = store.view();
        let mut owners: BTreeMap<BlobId, u32> = BTreeMap::new();
        let mut own = |meta: &value::ApplicationMeta| *owners.entry(meta.bytecode).or_default() += 1;
        for row in handle.scan_family::<key::ApplicationMeta>().unwrap() {
            own(&row.unwrap().1);
        }
        let archive = key::Generic::owner_range(&key::GenericScope::SUPERSEDED_PROGRAM);
        for (_, bytes) in store.scan(Column::Generic, &archive, None).unwrap() {
            own(&borsh::from_slice(&bytes).unwrap());
        }
        for row in handle.scan_family::<key::BlobMeta>().unwrap() {
            let (key, meta) = row.unwrap();
            if !meta.links.is_empty() {
                assert_eq!(
                    owners.remove(&key.blob_id),
                    Some(meta.refs),
                    "{when}: owners of {}",
                    key.blob_id
                );
            }
        }
        assert!(owners.is_empty(), "{when}: owned and not there: {owners:?}");
        assert_eq!(programs.blobs().sweep().unwrap().files, 0, "{when}: orphans");
    }
}

use node_store::Key;

/// What a start does: recover, drive what is pending, answer what was asked for.
fn start(world: &World, step: &mut dyn FnMut() -> Step) -> Result<(), StoreError> {
    let programs = world.programs();
    for (context, state) in programs.recover()?.contexts {
        match state {
            UpgradeState::Pending { .. } => drop(programs.upgrade(context, &mut step())?),
            UpgradeState::AwaitingResync { .. } => drop(programs.settle_resync(context, received())?),
            // The old code goes on; the operator may look, and nothing waits for it.
            UpgradeState::Failed { .. } | UpgradeState::AwaitingCode { .. } => {}
            UpgradeState::UpToDate { .. } | UpgradeState::NotInstalled { .. } => {}
        }
    }
    Ok(())
}

/// A whole state of version 2 for the context without a group.
fn received() -> ReceivedState {
    ReceivedState {
        rows: (0..ROWS)
            .map(|row| (StateKey::new([row + 100; 32]), vec![2, row]))
            .collect(),
        root_hash: Hash::ZERO,
        dag_heads: vec![[5; 32].into()],
        code: Some(code_id(2)),
    }
}

/// Kills a scenario before and after every write it makes, and the recovery from each of those before and after every
/// write *it* makes; then lets the node start once more in peace.
fn killed_everywhere(
    name: &str,
    prepare: impl Fn(&World),
    scenario: impl Fn(&World) -> Result<(), StoreError>,
    mut step: impl FnMut() -> Step,
    resolved: impl Fn(&World),
) {
    let (mut first, mut second) = (0, 0);
    for after in [false, true] {
        for at in 1.. {
            let world = World::new();
            prepare(&world);
            let bystanders = world.of_bystander();
            world.plan.die(at, after);
            let outcome = scenario(&world);
            let struck = world.plan.struck();
            world.plan.fail(0);
            assert_eq!(
                outcome.is_err(),
                struck,
                "{name}: write {at}, after {after}: {outcome:?}"
            );
            if !struck {
                break;
            }
            first += 1;
            let when = format!(
                "{name}, killed at write {at} ({})",
                if after { "after" } else { "before" }
            );
            world.check(&when);
            for again_after in [false, true] {
                for again in 1.. {
                    let world = world.copy();
                    world.plan.die(again, again_after);
                    let outcome = start(&world, &mut step);
                    let struck = world.plan.struck();
                    world.plan.fail(0);
                    let when = format!("{when}, again at {again} ({again_after})");
                    assert_eq!(outcome.is_err(), struck, "{when}: {outcome:?}");
                    world.check(&when);
                    start(&world, &mut step).unwrap();
                    world.check(&when);
                    world.check_counts(&when);
                    resolved(&world);
                    assert_eq!(
                        world.of_bystander(),
                        bystanders,
                        "{when}: another space was touched"
                    );
                    let settled = world.dump(|_, _| true);
                    start(&world, &mut step).unwrap();
                    assert!(
                        world.dump(|_, _| true) == settled,
                        "{when}: one more start changes something"
                    );
                    if !struck {
                        break;
                    }
                    second += 1;
                }
            }
        }
    }
    println!("{name}: {first} kills, {second} second kills");
    assert!(first > 0);
}

fn state(world: &World, context: ContextId) -> UpgradeState {
    upgrade_state(&world.programs().markers(context).unwrap())
}

fn install_2(world: &World) -> Result<(), StoreError> {
    world.programs().install(bundle(2))?;
    want_code(&mut world.store(), group(), application(), code_id(2))
}

#[test]
fn node_30_killed_installation() {
    killed_everywhere(
        "install",
        |_| (),
        install_2,
        Step::sound,
        |world| {
            // Lost whole or there whole: either way nobody has to look.
            for context in [grouped(), alone()] {
                assert!(
                    matches!(state(world, context), UpgradeState::UpToDate { .. }),
                    "{:?}",
                    state(world, context)
                );
            }
        },
    );
}

#[test]
fn node_31_killed_upgrade() {
    killed_everywhere(
        "upgrade",
        |world| install_2(world).unwrap(),
        |world| {
            for context in [grouped(), alone()] {
                world.programs().upgrade(context, &mut Step::sound())?;
            }
            Ok(())
        },
        Step::sound,
        |world| {
            for context in [grouped(), alone()] {
                assert_eq!(
                    state(world, context),
                    UpgradeState::UpToDate { serving: code_id(2) }
                );
                assert_eq!(world.data_version(context), 2);
            }
        },
    );
}

fn killed_failure(name: &str, step: impl Fn() -> Step, kind: Failure) {
    killed_everywhere(
        name,
        |world| install_2(world).unwrap(),
        |world| {
            for context in [grouped(), alone()] {
                let outcome = world.programs().upgrade(context, &mut step())?;
                assert!(
                    matches!(outcome, UpgradeOutcome::Failed { kind: found, .. } if found == kind),
                    "{outcome:?}"
                );
            }
            Ok(())
        },
        &step,
        |world| {
            for context in [grouped(), alone()] {
                let (serving, target) = (code_id(1), code_id(2));
                assert_eq!(
                    state(world, context),
                    UpgradeState::Failed {
                        serving,
                        target,
                        reason: kind
                    }
                );
                assert_eq!(world.data_version(context), 1);
                // A later migration that commits clears the failure by itself.
                let world = world.copy();
                let outcome = world.programs().upgrade(context, &mut Step::sound()).unwrap();
                assert_eq!(outcome, UpgradeOutcome::Activated { code: target });
                assert_eq!(world.programs().markers(context).unwrap().failed, None);
                world.check("after the failure");
            }
        },
    );
}

#[test]
fn node_31_killed_failed_check() {
    killed_failure("failed check", || Step::refusing(1), Failure::CheckAborted);
}

#[test]
fn node_31_killed_failed_apply() {
    killed_failure("failed apply", || Step::refusing(2), Failure::ApplyFailed);
}

#[test]
fn node_31_killed_without_a_path() {
    killed_failure(
        "no path",
        || Step {
            leads: false,
            ..Step::sound()
        },
        Failure::NoMigrationPath,
    );
}

#[test]
fn node_30_killed_second_replacement_over_a_pinned_context() {
    killed_everywhere(
        "second replacement",
        |world| install_2(world).unwrap(),
        |world| {
            world.programs().install(bundle(3))?;
            want_code(&mut world.store(), group(), application(), code_id(3))
        },
        Step::sound,
        |world| {
            for context in [grouped(), alone()] {
                let UpgradeState::UpToDate { serving } = state(world, context) else {
                    // The group's word came before the code, or the code before the group's word.
                    assert!(matches!(state(world, context), UpgradeState::AwaitingCode { .. }));
                    continue;
                };
                assert_eq!(code_versions()[&serving], world.data_version(context));
            }
        },
    );
}

#[test]
fn node_35_killed_rollback() {
    killed_everywhere(
        "rollback",
        |world| {
            install_2(world).unwrap();
            for context in [grouped(), alone()] {
                world.programs().upgrade(context, &mut Step::refusing(1)).unwrap();
            }
        },
        |world| world.programs().rollback(application()).map(drop),
        || Step::refusing(1),
        |world| {
            for context in [grouped(), alone()] {
                assert_eq!(world.data_version(context), 1);
                match state(world, context) {
                    UpgradeState::UpToDate { serving } => {
                        assert_eq!(serving, code_id(1));
                        let row = world.programs().get(application()).unwrap().unwrap();
                        assert_eq!((row.version.as_str(), row.state_version), ("1.0.0", 1));
                        let markers = world.programs().markers(context).unwrap();
                        assert_eq!(
                            (markers.failed, markers.executing, markers.previous),
                            (None, None, None)
                        );
                    }
                    UpgradeState::Failed { serving, .. } => assert_eq!(serving, code_id(1)),
                    other => panic!("{other:?}"),
                }
            }
        },
    );
}

#[test]
fn node_33_killed_resync() {
    killed_everywhere(
        "resync",
        |world| {
            install_2(world).unwrap();
            world.programs().upgrade(alone(), &mut Step::refusing(1)).unwrap();
        },
        |world| {
            world.programs().request_resync(alone(), false)?;
            assert!(world.programs().settle_resync(alone(), received())?);
            Ok(())
        },
        || Step::refusing(1),
        |world| {
            let markers = world.programs().markers(alone()).unwrap();
            assert!(!markers.resync_requested);
            match world.data_version(alone()) {
                1 => assert_eq!(
                    markers.failed,
                    Some(Failure::CheckAborted),
                    "the request was lost whole"
                ),
                _ => {
                    assert_eq!(markers.failed, None);
                    assert_eq!(
                        state(world, alone()),
                        UpgradeState::UpToDate { serving: code_id(2) }
                    );
                    let meta = world
                        .store()
                        .view()
                        .get(&key::ContextMeta { context_id: alone() })
                        .unwrap();
                    assert_eq!(meta.unwrap().dag_heads, [[5; 32].into()]);
                }
            }
        },
    );
}

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
    let kept = programs.superseded(code_id(2)).unwrap().unwrap();
    assert_eq!(kept.services, row.services);
    assert!(programs.blobs().has(beta).unwrap());
    programs.rollback(application()).unwrap();
    assert_eq!(programs.get(application()).unwrap().unwrap(), row);
    assert!(!programs.blobs().has(code_id(3)).unwrap());
}

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
fn node_31_a_store_that_fails_records_nothing_and_is_tried_again() {
    let world = World::new();
    install_2(&world).unwrap();
    // Count the calls of a whole upgrade, reads too, then fail each of them once.
    world.plan.fail(0);
    world
        .copy()
        .programs()
        .upgrade(alone(), &mut Step::sound())
        .unwrap();
    let mut at = 1;
    loop {
        let world = world.copy();
        let programs = world.programs();
        world.plan.fail(at);
        let outcome = programs.upgrade(alone(), &mut Step::sound());
        let struck = world.plan.struck();
        world.plan.fail(0);
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
        start(&world, &mut Step::sound).unwrap();
        if world.programs().markers(alone()).unwrap().failed.is_some() {
            // The write of the batch itself failed, which is a failure of the apply.
            assert_eq!(world.data_version(alone()), 1);
            world.programs().upgrade(alone(), &mut Step::sound()).unwrap();
        }
        assert_eq!(world.data_version(alone()), 2);
        at += 1;
    }
    assert!(at > 20, "only {at} calls");
}

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

#[test]
fn node_36_no_two_markers_of_one_context_can_overwrite_each_other() {
    let mut store = Store::memory();
    let context_id = ContextId::new([1; 32]);
    let application_id = ApplicationId::new([1; 32]);
    let mut handle = store.handle();
    handle
        .put(
            &key::ContextMigrationFailed { context_id },
            &Failure::CheckAborted,
        )
        .unwrap();
    handle
        .put(
            &key::ContextExecutingBlob { context_id },
            &value::ContextExecutingBlob { blob: [2; 32].into() },
        )
        .unwrap();
    handle
        .put(
            &key::ContextActivatedBlob { context_id },
            &value::ContextActivatedBlob { blob: [3; 32].into() },
        )
        .unwrap();
    let version = value::ContextActivatedStateVersion { state_version: 4 };
    handle
        .put(&key::ContextActivatedStateVersion { context_id }, &version)
        .unwrap();
    handle
        .put(&key::ContextResyncRequested { context_id }, &())
        .unwrap();
    handle
        .put(
            &key::ContextAuthoredRemaining { context_id },
            &value::ContextAuthoredRemaining { count: 1 },
        )
        .unwrap();
    let previous = value::ApplicationPreviousBlob {
        bytecode: [5; 32].into(),
    };
    handle
        .put(&key::ApplicationPreviousBlob { application_id }, &previous)
        .unwrap();

    // Every family keyed by a bare context or program id has a column to itself, or a width of its own in it.
    let bare: Vec<&Family> = Family::all()
        .iter()
        .filter(|family| family.prefix.is_none() && family.components.len() == 1)
        .collect();
    for one in &bare {
        let others = bare.iter().filter(|other| other.column == one.column).count();
        assert_eq!(others, 1, "{one:?} shares its keys");
    }
    let rows: usize = Column::ALL
        .iter()
        .map(|column| {
            store
                .scan(*column, &node_store::KeyRange::all(), None)
                .unwrap()
                .len()
        })
        .sum();
    assert_eq!(rows, 7);
    let handle = store.view();
    assert_eq!(
        handle.get(&key::ContextMigrationFailed { context_id }).unwrap(),
        Some(Failure::CheckAborted)
    );
    assert_eq!(
        handle
            .get(&key::ContextAuthoredRemaining { context_id })
            .unwrap()
            .unwrap()
            .count,
        1
    );
    assert_eq!(
        handle
            .get(&key::ContextActivatedStateVersion { context_id })
            .unwrap(),
        Some(version)
    );
}

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
    let others = world.dump(|_, key| !key.starts_with(alone().as_bytes()));

    world.plan.fail(0);
    let before = world.plan.calls();
    let copy = world.copy();
    copy.plan.die(1, false);
    assert!(delete_context(&mut copy.store(), alone()).is_err());
    assert!(
        copy.dump(|_, _| true) == world.dump(|_, _| true),
        "one write, so nothing or all"
    );
    let _ = before;

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
        .filter(|(_, key, _)| key.as_slice() != did.to_bytes().as_slice())
        .collect();
    assert!(world.dump(|_, key| !key.starts_with(alone().as_bytes())) == expected);
    let _: &Path = world.files.path();
}
