//! Two servers on one directory, as two processes are (SRV-442): what one commits the other's sessions hear of, and who loses
//! access through one loses its sessions at both.

use std::path::Path;
use std::sync::{Arc, Mutex};

use memory_engine::StoreRoot;
use memory_server::{
    AclMode, AdmittedCommit, DemandReason, FlushTiming, Observer, ServerConfig, ServingPlane, Stores,
};
use memory_wire::{Did, SpaceId};
use serde_json::{Value as Json, json};

use crate::manual;
use crate::support::{Running, SPACE, json, open, set, transact, watch};

/// The seqs of the commits a server has noticed.
#[derive(Default)]
struct Seqs(Mutex<Vec<u64>>);

impl Observer for Seqs {
    fn commit_admitted(&self, notice: &AdmittedCommit) {
        self.0.lock().expect("not poisoned").push(notice.seq.0);
    }

    fn session_opened(&self, _: &SpaceId) {}

    fn demand_changed(&self, _: &SpaceId, _: DemandReason, _: Option<&Did>) {}
}

/// A server on the directory.
async fn started(directory: &Path, mode: AclMode) -> Running {
    let mut config = ServerConfig {
        stores: Stores::Files(StoreRoot::configured(directory).expect("usable")),
        flush: FlushTiming::Timed,
        ..manual()
    };
    config.acl.mode = mode;
    Running::production(config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_442_a_commit_of_another_server_on_the_same_directory_is_pushed() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = started(directory.path(), AclMode::Off).await;
    let there = started(directory.path(), AclMode::Off).await;
    let notices = Arc::new(Seqs::default());
    here.server.set_observer(Some(notices.clone()));
    let mut reader = open(&here, "r", "did:key:r").await;
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    let mut writer = open(&there, "w", "did:key:w").await;
    for n in 1..=3u64 {
        writer.send(&set("w", n, "of:x", &json!(n))).await;
    }
    let newest = loop {
        let effect = json(&reader.recv().await);
        let value = effect["effect"]["upserts"][0]["doc"]["value"]
            .as_u64()
            .expect("a number");
        if value == 3 {
            break effect;
        }
    };
    assert_eq!(newest["effect"]["toSeq"], 3);
    let seqs = notices.0.lock().expect("not poisoned").clone();
    assert_eq!(seqs, [1, 2, 3], "every commit is noticed once, in seq order");
}

/// SRV-442, SRV-808: who loses access by another process's change of the list loses its session here.
#[tokio::test(flavor = "multi_thread")]
async fn srv_442_a_list_changed_by_another_server_ends_sessions_here() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = started(directory.path(), AclMode::Enforce).await;
    let there = started(directory.path(), AclMode::Enforce).await;
    let mut owner = open(&there, "own", SPACE).await;
    let change = |local_seq, list: Json| {
        let operations = json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": list } }]);
        transact("own", local_seq, &operations)
    };
    let founded = change(
        1,
        json!({ SPACE: "OWNER", "did:key:r": "READ", "did:key:s": "READ" }),
    );
    assert!(owner.request(&founded).await["ok"].is_object());
    let mut staying = open(&here, "s", "did:key:s").await;
    let mut reader = open(&here, "r", "did:key:r").await;
    let without = change(2, json!({ SPACE: "OWNER", "did:key:s": "READ" }));
    owner.send(&without).await;
    let told = json(&reader.recv().await);
    assert_eq!(
        (&told["type"], &told["reason"]),
        (&json!("session/revoked"), &json!("unauthorized")),
        "{told}"
    );
    assert!(staying.request(&watch("s", &["of:x"])).await["ok"].is_object());
}
