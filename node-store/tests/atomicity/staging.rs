//! What cannot be encoded fails when it is staged. Rule: NODE-4.

use node_store::{Column, LayerExt, ReadLayer, Store, WriteLayer, key, value};

use crate::support;

#[test]
fn node_4_a_value_that_cannot_be_written_fails_when_staged_with_nothing_written() {
    let mut store = Store::new(support::sqlite());
    let group_id = [1; 32].into();
    let nameless = value::MetadataRecord {
        name: Some(String::new()),
        data: Default::default(),
        updated_at: 0,
        updated_by: [2; 32].into(),
    };
    let mut batch = store.batch();
    batch
        .put(
            &key::ContextGroupRef {
                context_id: [3; 32].into(),
            },
            &group_id,
        )
        .unwrap();
    let error = batch
        .put(&key::GroupMetadata { group_id }, &nameless)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "GroupMetadata: the value cannot be written: name: 0 bytes; expected 1 to 64"
    );
    drop(batch);
    assert!(store.iter(Column::Group).unwrap().next().unwrap().is_none());

    let named = value::MetadataRecord {
        name: Some("n".into()),
        ..nameless
    };
    let mut staged = store.temporal();
    let mut batch = node_store::StoreBatch::over(&mut staged);
    batch.put(&key::GroupMetadata { group_id }, &named).unwrap();
    assert_eq!(batch.len(), 1);
    batch.commit().unwrap();
    staged.commit().unwrap();
    assert_eq!(
        store.view().get(&key::GroupMetadata { group_id }).unwrap(),
        Some(named)
    );
}
