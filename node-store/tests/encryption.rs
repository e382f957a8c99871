//! Values encrypted at rest over any backend. Rule: NODE-17. Ciphertexts of the reference are in `vectors`, every backend is
//! also run encrypted by `conformance`.

mod support;

use std::sync::Arc;

use node_store::backend::memory::MemoryBackend;
use node_store::{Column, Database, Encrypted, KeyRange, MasterKey, ReadView, StoreError, Transaction};

use support::faults::{Faulty, Plan};

#[test]
fn node_17_a_master_key_of_less_than_32_bytes_is_refused() {
    for length in [0, 1, 16, 31] {
        let refused = MasterKey::new(vec![7; length])
            .err()
            .expect("too short to stretch");
        assert!(
            refused.to_string().contains(&format!("{length} bytes")),
            "{refused}"
        );
    }
    assert!(MasterKey::new(vec![7; 32]).is_ok());
}

#[test]
fn node_17_range_operations_are_the_backend_s_own_one_call_each() {
    let plan = Plan::new();
    let inner = MemoryBackend::new();
    let disk = Arc::new(Faulty {
        inner,
        plan: plan.clone(),
    });
    let store = Encrypted::new(disk, support::master_key()).unwrap();
    let mut rows = Transaction::new();
    for key in 0..100u8 {
        rows.put(Column::State, [key], vec![key; 10]);
    }
    store.apply(&rows).unwrap();
    let range = KeyRange::new([10], [20]);
    let calls = |what: &dyn Fn() -> Result<(), StoreError>| {
        plan.sound();
        what().unwrap();
        plan.calls()
    };
    assert_eq!(
        calls(&|| {
            let last = store.last_in_range(Column::State, &range)?;
            assert_eq!(last, Some((vec![19], vec![19; 10])));
            Ok(())
        }),
        1
    );
    assert_eq!(
        calls(&|| {
            // What is stored: ten rows of a key byte, ten value bytes, and 29 of the cipher.
            assert_eq!(store.approximate_size(Column::State, &range)?, 10 * (1 + 10 + 29));
            Ok(())
        }),
        1
    );
    assert_eq!(calls(&|| store.delete_range(Column::State, &range)), 1);
    assert!(!store.has(Column::State, &[15]).unwrap());
    assert!(store.has(Column::State, &[20]).unwrap());
}

#[test]
fn node_17_over_every_backend_on_disk_the_current_version_is_found_again() {
    for backend in support::disk::BACKENDS {
        let directory = tempfile::tempdir().unwrap();
        let open = || {
            let disk = support::disk::open(backend, directory.path()).unwrap();
            Encrypted::new(disk, support::master_key()).unwrap()
        };
        let store = open();
        store.put(Column::State, b"old", b"one").unwrap();
        store.rotate().unwrap();
        drop(store);
        let store = open();
        assert_eq!(store.key_version(), 2, "{backend}");
        store.put(Column::State, b"new", b"two").unwrap();
        assert_eq!(
            store.get(Column::State, b"old").unwrap().unwrap(),
            b"one",
            "{backend}"
        );
        drop(store);
        let disk = support::disk::open(backend, directory.path()).unwrap();
        assert_eq!(
            disk.get(Column::State, b"new").unwrap().unwrap()[0],
            2,
            "{backend}"
        );
    }
}

#[test]
fn node_17_a_store_that_is_opened_again_is_only_read_so_that_it_opens_on_a_full_disk() {
    let plan = Plan::new();
    let disk = Arc::new(Faulty {
        inner: MemoryBackend::new(),
        plan: plan.clone(),
    });
    let store = Encrypted::new(disk.clone(), support::master_key()).unwrap();
    store.rotate().unwrap();
    // No write succeeds from here on.
    plan.die(1, false);
    let again = Encrypted::new(disk.clone(), support::master_key()).unwrap();
    assert_eq!((again.key_version(), plan.calls()), (2, 0));
    assert!(again.put(Column::State, b"k", b"v").is_err());
    plan.sound();
    // A rotation that could not be written down did not happen.
    plan.die(1, false);
    assert!(again.rotate().is_err());
    assert_eq!(again.key_version(), 2);
}

#[test]
fn node_17_a_wrong_key_is_refused_also_where_no_version_is_written_down() {
    // As the reference leaves it: values of the right key, and no row that tells the version.
    let disk = Arc::new(MemoryBackend::new());
    let store = Encrypted::new(disk.clone(), support::master_key()).unwrap();
    store.put(Column::UnifiedOp, b"k", b"value").unwrap();
    disk.delete_range(Column::Generic, &KeyRange::all()).unwrap();
    let wrong = || MasterKey::new(vec![8; 32]).unwrap();
    let refused = Encrypted::new(disk.clone(), wrong()).err().expect("a wrong key");
    assert!(matches!(refused, StoreError::Ciphertext { .. }), "{refused}");
    // The right key was not locked out by the wrong one.
    let store = Encrypted::new(disk.clone(), support::master_key()).unwrap();
    assert_eq!(store.get(Column::UnifiedOp, b"k").unwrap().unwrap(), b"value");
    assert!(Encrypted::new(disk, wrong()).is_err());

    // Values that nobody encrypted are not taken for a store of this kind, and stay readable.
    let plain = Arc::new(MemoryBackend::new());
    plain.put(Column::Meta, b"k", &[b'v'; 64]).unwrap();
    assert!(Encrypted::new(plain.clone(), wrong()).is_err());
    assert!(!plain.has(Column::Generic, &KEY_VERSION_ROW).unwrap());
    assert_eq!(plain.get(Column::Meta, b"k").unwrap().unwrap(), [b'v'; 64]);
}

#[test]
fn node_17_a_version_row_that_tells_no_version_is_refused() {
    for content in [&[0][..], &[], &[1, 2]] {
        let disk = Arc::new(MemoryBackend::new());
        let store = Encrypted::new(disk.clone(), support::master_key()).unwrap();
        store.put(Column::Generic, &KEY_VERSION_ROW, content).unwrap();
        let refused = Encrypted::new(disk, support::master_key())
            .err()
            .expect("no version");
        assert!(refused.to_string().ends_with("is no key version"), "{refused}");
    }
}

/// `at-rest-version`, padded, and an empty fragment.
const KEY_VERSION_ROW: [u8; 48] = {
    let mut row = [0; 48];
    let (mut at, scope) = (0, *b"at-rest-version");
    while at < scope.len() {
        row[at] = scope[at];
        at += 1;
    }
    row
};
