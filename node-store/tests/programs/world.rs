//! A node: what is on its disk, a way to fail it, and what must hold of it at every moment.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::context::register_space;
use node_store::governance::want_code;
use node_store::id::{ApplicationId, BlobId, ContextId, GroupId, StateKey};
use node_store::program::{Bundle, UpgradeOutcome};
use node_store::{
    BlobStore, Column, Database, Key, LayerExt, Markers, Programs, ReadLayer, Store, UpgradeState, key,
    upgrade_state, value,
};

use crate::support::disk;
use crate::support::faults::{Faulty, Plan};
use crate::versions::{Step, application, bundle, code_id, code_versions};

pub(crate) const ROWS: u8 = 3;

pub(crate) fn grouped() -> ContextId {
    ContextId::of_space("did:key:grouped")
}

pub(crate) fn alone() -> ContextId {
    ContextId::of_space("did:key:alone")
}

pub(crate) fn bystander() -> ContextId {
    ContextId::of_space("did:key:bystander")
}

pub(crate) fn group() -> GroupId {
    GroupId::new([7; 32])
}

/// Column, key and value of rows.
pub(crate) type Rows = Vec<(Column, Vec<u8>, Vec<u8>)>;

/// A node: what is on its disk, and a way to fail it.
pub(crate) struct World {
    pub(crate) disk: Arc<dyn Database>,
    pub(crate) blobs: PathBuf,
    pub(crate) plan: Arc<Plan>,
    /// Where a world that is kept in memory has its files.
    _files: Option<tempfile::TempDir>,
}

impl World {
    /// An empty one in memory.
    fn blank() -> Self {
        let files = tempfile::tempdir().unwrap();
        World {
            disk: Arc::new(MemoryBackend::new()),
            blobs: files.path().to_owned(),
            plan: Plan::new(),
            _files: Some(files),
        }
    }

    /// The one of a directory, as it was left.
    pub(crate) fn open(backend: &str, directory: &Path) -> Self {
        World {
            disk: disk::open(backend, directory).unwrap_or_else(|error| panic!("{backend}: {error}")),
            blobs: directory.join("blobs"),
            plan: Plan::new(),
            _files: None,
        }
    }

    /// In memory, set up.
    pub(crate) fn new() -> Self {
        let world = World::blank();
        world.set_up();
        world
    }

    /// Version 1 installed and activated in three contexts, one of them in a group, one of another program.
    pub(crate) fn set_up(&self) {
        let programs = self.programs();
        let mut store = self.store();
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
    }

    pub(crate) fn store(&self) -> Store {
        Store::new(Faulty {
            inner: self.disk.clone(),
            plan: self.plan.clone(),
        })
    }

    pub(crate) fn programs(&self) -> Programs {
        let store = self.store();
        Programs::new(store.clone(), BlobStore::open(store, &self.blobs).unwrap())
    }

    /// The same disk in another machine, in memory, with nothing failing.
    pub(crate) fn copy(&self) -> World {
        let (from, copy) = (Store::new(self.disk.clone()), World::blank());
        for column in Column::ALL {
            let mut rows = from.iter(*column).unwrap();
            while let Some(row) = rows.next().unwrap() {
                copy.disk.put(*column, row.key, row.value).unwrap();
            }
        }
        disk::copy(&self.blobs, &copy.blobs);
        copy
    }

    pub(crate) fn dump(&self, keep: impl Fn(Column, &[u8]) -> bool) -> Rows {
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

    pub(crate) fn of_bystander(&self) -> Rows {
        self.dump(|_, key| key.starts_with(bystander().as_bytes()))
    }

    /// The version of a context's rows, which must all be of one.
    pub(crate) fn data_version(&self, context_id: ContextId) -> u32 {
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
    pub(crate) fn check(&self, when: &str) {
        self.plan.sound();
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
                    programs.superseded(application(), previous).unwrap().is_some(),
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
    pub(crate) fn check_counts(&self, when: &str) {
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
