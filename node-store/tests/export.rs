//! Nothing of this node leaves: every column and every prefix is filled, exported, and looked through. Rules: NODE-10,
//! NODE-34.

mod support;

use std::collections::BTreeSet;

use node_store::backend::sqlite::SqliteBackend;
use node_store::export::ReachKind;
use node_store::family::KeyWidth;
use node_store::key::{Fragment, GenericScope};
use node_store::{
    Column, Encrypted, ExportRow, Family, Key, LayerExt, ReadLayer, Replication, Secret, Store, StoreError,
    Transaction, WriteLayer, key, value,
};

use support::vectors::{bytes, lines, text};

/// A store with all golden rows, which are of every column, prefix and kind, and some rows that belong to no family.
fn filled(mut store: Store) -> Store {
    let mut rows = Transaction::new();
    for line in lines("node-store.jsonl") {
        let column = Column::from_name(text(&line["column"])).unwrap();
        rows.put(column, bytes(&line["key_hex"]), bytes(&line["value_hex"]));
    }
    for prefix in 0..=255u8 {
        for width in [1, 33, 41, 65, 97] {
            let mut key = vec![prefix; width];
            key[0] = prefix;
            if Family::of(Column::Group, &key).is_none() {
                rows.put(Column::Group, key, *b"of no known family");
            }
        }
    }
    rows.put(
        Column::Generic,
        vec![3; 64],
        *b"a delta row of a very old version",
    );
    rows.put(Column::Meta, vec![3; 31], *b"short");
    let keypair = value::NamespaceIdentity {
        public_key: [1; 32].into(),
        private_key: secret(0x5e),
    };
    store
        .handle()
        .put(
            &key::NamespaceIdentity {
                namespace_id: [0xee; 32].into(),
            },
            &keypair,
        )
        .unwrap();
    let context_id = [0xee; 32].into();
    for (context_id, executing) in [(context_id, 1), ([0xef; 32].into(), 2)] {
        let pin = value::ContextExecutingBlob {
            blob: [executing; 32].into(),
        };
        store
            .handle()
            .put(&key::ContextExecutingBlob { context_id }, &pin)
            .unwrap();
        store
            .handle()
            .put(&key::ContextResyncRequested { context_id }, &())
            .unwrap();
    }
    for scope in LOCAL_SCOPES {
        let row = key::Generic {
            scope,
            fragment: Fragment::new([0x77; 32]),
        };
        store.handle().put(&row, &vec![0x5e; 32]).unwrap();
    }
    let did = key::Generic {
        scope: GenericScope::SPACE_DID,
        fragment: Fragment::new([0x77; 32]),
    };
    store.handle().put(&did, &b"did:key:space".to_vec()).unwrap();
    store.apply(&rows).unwrap();
    store
}

/// Scopes that stay: the known ones, and one that this version does not know.
const LOCAL_SCOPES: [GenericScope; 8] = [
    GenericScope::KEY_VERSION,
    GenericScope::SUPERSEDED_PROGRAM,
    GenericScope::PEER_IDENTITIES,
    GenericScope::PEER_ADDRESSES,
    GenericScope::TLS_CERTIFICATE,
    GenericScope::SYNC_IN_PROGRESS,
    GenericScope::EVENT_SESSIONS,
    GenericScope::new(*b"of-a-later-node\0"),
];

fn secret(byte: u8) -> Secret {
    Secret::new([byte; 32])
}

fn export(store: &Store) -> Vec<ExportRow> {
    let mut rows = Vec::new();
    store
        .export_replicated(|row| {
            rows.push(row);
            Ok(())
        })
        .unwrap();
    rows
}

/// Every secret of the golden rows and of ours, as bytes that must not occur in an export.
fn secrets() -> Vec<Vec<u8>> {
    let mut secrets = vec![vec![0x5e; 32]];
    for line in lines("node-store.jsonl") {
        let value = &line["fields"]["value"];
        for field in [
            "private_key",
            "sender_key",
            "kem_secret",
            "root_secret",
            "group_key",
        ] {
            if let Some(hex) = value[field].as_str() {
                secrets.push(data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap());
            }
        }
        if line["column"] == "PrivateState"
            || line["fields"]["key"]["scope"] == "73736c5f63657274733a736572766572"
        {
            secrets.push(bytes(&line["value_hex"]));
        }
    }
    assert!(secrets.len() >= 11, "{} secrets", secrets.len());
    secrets
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|part| part == needle)
}

#[test]
fn node_34_no_node_local_row_no_marker_and_no_key_is_in_an_export() {
    for (name, store) in support::stores() {
        let store = filled(store);
        let rows = export(&store);
        let mut exported = BTreeSet::new();
        for row in &rows {
            let family = Family::of(row.column(), row.key()).expect("a row of no family stays");
            exported.insert(family.name);
            assert!(
                !matches!(family.reach, ReachKind::NodeLocal | ReachKind::Secret),
                "{name}: {family:?}"
            );
            assert_ne!(
                row.column().replication(),
                Replication::NodeLocal,
                "{name}: {row:?}"
            );
            for secret in secrets() {
                // The golden ops name a parent whose id happens to be the bytes of a golden private key.
                if row.column() == Column::UnifiedOp && secret == [0x22; 32] {
                    continue;
                }
                assert!(
                    !contains(row.value(), &secret),
                    "{name}: a secret leaves in {family:?}"
                );
                assert!(
                    !contains(row.key(), &secret),
                    "{name}: a secret leaves in a key of {family:?}"
                );
            }
            if row.column() == Column::Generic {
                let key = key::Generic::parse(row.key()).unwrap();
                assert_eq!(key.scope, GenericScope::SPACE_DID, "{name}: {key:?}");
            }
        }
        // And everything that may leave is there, so that the test cannot pass by exporting nothing.
        for family in Family::all() {
            let leaves = !matches!(family.reach, ReachKind::NodeLocal | ReachKind::Secret);
            assert_eq!(exported.contains(family.name), leaves, "{name}: {family:?}");
        }
    }
}

#[test]
fn node_10_every_secret_prefix_of_the_page_stays_whatever_its_layout() {
    for prefix in [0x44, 0x45, 0x48, 0x3a, 0x36] {
        let family = Family::all()
            .iter()
            .find(|family| family.column == Column::Group && family.prefix == Some(prefix))
            .unwrap();
        assert_eq!(family.reach, ReachKind::Secret, "{prefix:#x}");
        let KeyWidth::Exactly(width) = family.width else {
            panic!("{family:?}")
        };
        let mut key = vec![9; width];
        key[0] = prefix;
        let refused = ExportRow::incoming(Column::Group, &key, &[0; 64]);
        assert!(
            matches!(refused, Err(StoreError::UnknownRow { .. })),
            "{prefix:#x}"
        );
    }
    let member = key::GroupMember {
        group_id: [1; 32].into(),
        account: [2; 32].into(),
    };
    let private = value::GroupMember {
        role: value::MemberRole::Admin,
        private_key: Some(secret(0x5e)),
        sender_key: Some(secret(0x52)),
        auto_follow: Default::default(),
    };
    let row = ExportRow::of(&member, private.clone()).unwrap().unwrap();
    let public = value::GroupMember {
        private_key: None,
        sender_key: None,
        ..private
    };
    assert_eq!(row.value(), borsh::to_vec(&public).unwrap());
    let identity = key::ContextIdentity {
        context_id: [1; 32].into(),
        public_key: [2; 32].into(),
    };
    let row = ExportRow::of(
        &identity,
        value::ContextIdentity {
            private_key: Some(secret(0x5e)),
        },
    )
    .unwrap();
    assert_eq!(row.unwrap().value(), [0]);
    let local = key::Generic {
        scope: GenericScope::TLS_CERTIFICATE,
        fragment: Fragment::ONLY,
    };
    assert!(ExportRow::of(&local, vec![1]).unwrap().is_none());
    let open = key::Generic {
        scope: GenericScope::SPACE_DID,
        fragment: Fragment::ONLY,
    };
    assert!(ExportRow::of(&open, vec![1]).unwrap().is_some());
}

#[test]
fn an_export_comes_in_again_as_the_same_rows_and_brings_nothing_private_with_it() {
    let rows = export(&filled(Store::memory()));
    let (mut incoming, mut store) = (Transaction::new(), Store::memory());
    for row in &rows {
        let checked = ExportRow::incoming(row.column(), row.key(), row.value()).unwrap();
        assert_eq!(checked, *row);
        // A blob comes in with its bytes, which are not here.
        let taken = checked.stage(&store, &mut incoming).unwrap();
        assert_eq!(taken, row.column() != Column::Blobs);
    }
    store.apply(&incoming).unwrap();
    let without_blobs = rows.into_iter().filter(|row| row.column() != Column::Blobs);
    assert_eq!(export(&store), without_blobs.collect::<Vec<_>>());
    // A peer that sends markers or keys is refused row by row.
    let marker = key::ContextResyncRequested {
        context_id: [1; 32].into(),
    };
    assert!(ExportRow::incoming(Column::ContextResyncRequested, &marker.to_bytes(), b"").is_err());
    assert!(ExportRow::incoming(Column::State, &[1; 63], b"").is_err());
    assert!(ExportRow::incoming(Column::Config, &[1; 32], &[0; 17]).is_err());
    // One that sends a private half has it taken off.
    let member = key::GroupMember {
        group_id: [1; 32].into(),
        account: [2; 32].into(),
    };
    let private = value::GroupMember {
        role: value::MemberRole::Member,
        private_key: Some(secret(0x5e)),
        sender_key: None,
        auto_follow: Default::default(),
    };
    let row = ExportRow::incoming(
        Column::Group,
        &member.to_bytes(),
        &borsh::to_vec(&private).unwrap(),
    )
    .unwrap();
    assert!(!contains(row.value(), &[0x5e; 32]));
}

#[test]
fn a_row_that_comes_in_takes_no_private_half_and_no_blob_away() {
    let mut store = Store::memory();
    let member = key::GroupMember {
        group_id: [1; 32].into(),
        account: [2; 32].into(),
    };
    let ours = value::GroupMember {
        role: value::MemberRole::Member,
        private_key: Some(secret(0x5e)),
        sender_key: Some(secret(0x52)),
        auto_follow: Default::default(),
    };
    store.handle().put(&member, &ours).unwrap();
    let identity = key::ContextIdentity {
        context_id: [1; 32].into(),
        public_key: [2; 32].into(),
    };
    let own = value::ContextIdentity {
        private_key: Some(secret(0x5e)),
    };
    store.handle().put(&identity, &own).unwrap();
    let files = tempfile::tempdir().unwrap();
    let blobs = node_store::BlobStore::open(store.clone(), files.path()).unwrap();
    let blob_id = blobs.put(&b"content"[..]).unwrap();
    let kept = blobs.meta(blob_id).unwrap().unwrap();

    let theirs = value::GroupMember {
        role: value::MemberRole::Admin,
        private_key: None,
        sender_key: None,
        auto_follow: Default::default(),
    };
    let elsewhere = value::BlobMeta {
        refs: 9,
        ..kept.clone()
    };
    let rows = [
        ExportRow::of(&member, theirs).unwrap().unwrap(),
        ExportRow::of(&identity, value::ContextIdentity { private_key: None })
            .unwrap()
            .unwrap(),
        ExportRow::of(&key::BlobMeta { blob_id }, elsewhere)
            .unwrap()
            .unwrap(),
    ];
    let mut incoming = Transaction::new();
    for row in rows {
        row.stage(&store, &mut incoming).unwrap();
    }
    store.apply(&incoming).unwrap();
    let merged = value::GroupMember {
        role: value::MemberRole::Admin,
        ..ours
    };
    assert_eq!(store.view().get(&member).unwrap(), Some(merged));
    assert_eq!(store.view().get(&identity).unwrap(), Some(own));
    assert_eq!(blobs.meta(blob_id).unwrap(), Some(kept));
    // A row here that does not decode is told, not replaced.
    store.put(Column::Identity, &identity.to_bytes(), &[7]).unwrap();
    let row = ExportRow::of(&identity, value::ContextIdentity { private_key: None });
    let staged = row.unwrap().unwrap().stage(&store, &mut incoming);
    assert!(matches!(staged, Err(StoreError::UndecodableValue { .. })));
}

#[test]
fn an_export_is_of_one_moment() {
    let store = Store::new(support::sqlite());
    let context = |n: u8| key::ContextConfig {
        context_id: [n; 32].into(),
    };
    let group = |n: u8| key::ContextGroupRef {
        context_id: [n; 32].into(),
    };
    let mut writer = store.clone();
    let counters = value::ContextConfig {
        application_revision: 1,
        members_revision: 1,
    };
    writer.handle().put(&context(1), &counters).unwrap();
    let mut seen = 0;
    store
        .export_replicated(|_| {
            seen += 1;
            // A row of a later column, written while the export is under way.
            writer.handle().put(&group(seen), &[seen; 32].into())
        })
        .unwrap();
    assert_eq!(seen, 1);
    let stopped = store.export_replicated(|_| Err(StoreError::ClockExhausted));
    assert!(matches!(stopped, Err(StoreError::ClockExhausted)));
}

#[test]
fn secrets_are_not_printed() {
    let shown = format!(
        "{:?}",
        value::NodeAccountRoot {
            root_secret: secret(0x5e)
        }
    );
    assert_eq!(shown, "NodeAccountRoot { root_secret: [secret] }");
    let store = filled(Store::memory());
    let mut described = String::new();
    for column in Column::ALL {
        let mut rows = store.iter(*column).unwrap();
        while let Some(row) = rows.next().unwrap() {
            if let Ok(row) = node_store::family::describe(*column, row.key, row.value) {
                described += &format!("{row:?} {}", row.value);
            }
        }
    }
    let hidden = secrets();
    let typed = hidden
        .iter()
        .filter(|secret| secret.len() == 32 && secret.iter().all(|byte| *byte == secret[0]));
    for secret in typed.filter(|secret| secret[0] != 0x5e) {
        assert!(
            !described.contains(&data_encoding::HEXLOWER.encode(secret)),
            "{secret:02x?}"
        );
    }
    assert!(described.contains("[secret]"));
    let certificate = key::Generic {
        scope: GenericScope::TLS_CERTIFICATE,
        fragment: Fragment::ONLY,
    };
    let row = node_store::family::describe(Column::Generic, &certificate.to_bytes(), b"{key}").unwrap();
    assert_eq!(row.value, "[secret]");
}

#[test]
fn node_17_an_encrypted_file_shows_no_value() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.sqlite");
    let backend = SqliteBackend::open(&path, &Default::default()).unwrap();
    let mut store = Store::new(Encrypted::new(backend, support::master_key()).unwrap());
    let text = b"a text that is easily found";
    store.put(Column::PrivateState, b"key", text).unwrap();
    store.flush().unwrap();
    drop(store);
    for file in std::fs::read_dir(directory.path()).unwrap() {
        assert!(!contains(&std::fs::read(file.unwrap().path()).unwrap(), text));
    }
}
