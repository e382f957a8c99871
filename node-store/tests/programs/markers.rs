//! Markers of one context cannot overwrite each other. Rule: NODE-36.

use node_store::id::{ApplicationId, ContextId};
use node_store::value::ContextMigrationFailed as Failure;
use node_store::{Column, Family, LayerExt, Store, key, value};

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
