//! The op store, governance records and the sorted index over real layers. Rules: NODE-7, NODE-13, NODE-14; facts: §2.3,
//! §4.6, §4.7.

mod support;

use std::num::NonZeroU128;

use ed25519_dalek::{Signer, SigningKey};
use node_store::clock::HybridTimestamp;
use node_store::governance::{
    append_group_op, current_group_key, group_log, nonce_window, record_nonce, store_group_key,
};
use node_store::id::{CollectionId, ContextId, EntityId, GroupId, Hash, PublicKey, ScopeId};
use node_store::op_store::{Appended, Op, OpDag, OpStore, Payload, UnsignedOp};
use node_store::sorted_index::SortedIndex;
use node_store::value::{Bytes, Signature, SignedOp, SignedOpKind};
use node_store::{
    Column, Direction, Key, KeyRange, LayerExt, ReadLayer, Secret, Store, StoreError, WriteLayer, key, value,
};

fn scope() -> ScopeId {
    ScopeId::new([1; 32])
}

fn op(parents: Vec<node_store::id::OpId>, byte: u8) -> Op {
    UnsignedOp {
        scope: scope(),
        parents,
        account: [2; 32].into(),
        device: [3; 32].into(),
        hlc: HybridTimestamp::new(u64::from(byte), NonZeroU128::MIN),
        payload: Payload::Put {
            entity: [4; 32].into(),
            value: Bytes(vec![byte]),
        },
        expected_scope_root: Hash::ZERO,
    }
    .sign(&SigningKey::from_bytes(&[5; 32]))
    .unwrap()
}

#[test]
fn node_14_append_verifies_is_idempotent_and_never_rewrites() {
    for (name, mut store) in support::stores() {
        let first = op(vec![], 1);
        let second = op(vec![first.id], 2);
        let mut ops = OpStore::new(&mut store, scope());
        assert_eq!(ops.append(&second).unwrap(), Appended::New, "{name}");
        assert_eq!(ops.append(&first).unwrap(), Appended::New);
        assert_eq!(ops.append(&first).unwrap(), Appended::AlreadyPresent);
        // What is outside the id may differ; the row stays as it was.
        let other_root = Op {
            expected_scope_root: Hash::new([9; 32]),
            ..first.clone()
        };
        assert_eq!(ops.append(&other_root).unwrap(), Appended::AlreadyPresent);
        assert_eq!(ops.get(first.id).unwrap().unwrap(), first);

        let forged = Op {
            payload: Payload::Noop,
            ..first.clone()
        };
        assert!(
            matches!(ops.append(&forged), Err(StoreError::OpId { .. })),
            "{name}"
        );
        let unsigned = Op {
            signature: Signature([7; 64]),
            ..op(vec![], 3)
        };
        assert!(
            matches!(ops.append(&unsigned), Err(StoreError::OpSignature { .. })),
            "{name}"
        );
        let mut other_scope = op(vec![], 4);
        other_scope.scope = ScopeId::new([8; 32]);
        other_scope.id = other_scope.content_id().unwrap();
        other_scope.signature = Signature(
            SigningKey::from_bytes(&[5; 32])
                .sign(other_scope.id.as_bytes())
                .to_bytes(),
        );
        assert!(
            matches!(ops.append(&other_scope), Err(StoreError::OpScope { .. })),
            "{name}"
        );
        // A mirrored operation comes in by the door that says so.
        let bridge = Op {
            id: [0xe9; 32].into(),
            signature: Signature::ZERO,
            ..op(vec![second.id], 5)
        };
        assert!(ops.append(&bridge).is_err());
        assert_eq!(ops.append_unverified(&bridge).unwrap(), Appended::New);
        // A neighbour's rows are not read as ours.
        let neighbour = key::ScopeUnifiedOp {
            scope: ScopeId::new([2; 32]),
            op_id: [0; 32].into(),
        };
        store
            .put(Column::UnifiedOp, &neighbour.to_bytes(), b"not an op")
            .unwrap();
        let dag = OpDag::load(&OpStore::new(&store, scope()), scope()).unwrap();
        assert_eq!(dag.len(), 3);
        assert!(dag.heads().eq([bridge.id]));
        let order: Vec<_> = dag.in_order().iter().map(|op| op.id).collect();
        assert_eq!(order, [first.id, second.id, bridge.id]);
    }
}

#[test]
fn node_14_a_row_that_holds_another_operation_than_its_key_names_is_an_error() {
    let mut store = Store::memory();
    let op = op(vec![], 1);
    let foreign = ScopeId::new([8; 32]);
    for (scope, op_id) in [(scope(), [9; 32].into()), (foreign, op.id)] {
        let row = key::ScopeUnifiedOp { scope, op_id };
        store
            .put(Column::UnifiedOp, &row.to_bytes(), &op.encode().unwrap())
            .unwrap();
        let ops = OpStore::new(&store, scope);
        for outcome in [ops.get(op_id).map(drop), ops.for_each(|_| Ok(()))] {
            match outcome {
                Err(StoreError::OpId { found, expected }) => assert_eq!((found, expected), (op.id, op_id)),
                Err(StoreError::OpScope { found, expected, .. }) => {
                    assert_eq!((found, expected), (op.scope, foreign))
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn node_14_staged_operations_land_with_the_batch_they_are_part_of() {
    let mut store = Store::memory();
    let first = op(vec![], 1);
    let mut staged = store.temporal();
    OpStore::new(&mut staged, scope()).append(&first).unwrap();
    assert!(OpStore::new(&staged, scope()).get(first.id).unwrap().is_some());
    drop(staged);
    assert!(OpStore::new(&store, scope()).get(first.id).unwrap().is_none());
}

fn group() -> GroupId {
    GroupId::new([0xb1; 32])
}

fn group_op(nonce: u64, parents: Vec<node_store::id::DeltaId>) -> SignedOp {
    signed_op(SignedOpKind::Group, nonce, parents)
}

fn signed_op(kind: SignedOpKind, nonce: u64, parents: Vec<node_store::id::DeltaId>) -> SignedOp {
    let key = SigningKey::from_bytes(&[6; 32]);
    let (version, domain) = match kind {
        SignedOpKind::Group => (10, b"calimero.group.v1".as_slice()),
        SignedOpKind::Namespace => (7, b"calimero.namespace.v1".as_slice()),
    };
    let mut op = SignedOp {
        kind,
        version,
        owner: group(),
        parent_op_hashes: parents,
        signer: PublicKey::new(key.verifying_key().to_bytes()),
        nonce,
        op: Bytes(vec![0]),
        signature: Signature::ZERO,
    };
    let unsigned = op.encode().unwrap();
    let signed = [domain, &unsigned[..unsigned.len() - 64]].concat();
    op.signature = Signature(key.sign(&signed).to_bytes());
    op
}

#[test]
fn node_13_the_log_goes_on_after_the_highest_row_whatever_the_head_says() {
    let mut store = Store::memory();
    let first = group_op(1, vec![]);
    let second = group_op(2, vec![first.content_hash().unwrap()]);
    assert_eq!(append_group_op(&mut store, &first).unwrap(), 1);
    assert_eq!(append_group_op(&mut store, &second).unwrap(), 2);
    let head = key::GroupOpHead { group_id: group() };
    let stale = value::GovernanceHead {
        sequence: 1,
        dag_heads: vec![first.content_hash().unwrap()],
    };
    store.handle().put(&head, &stale).unwrap();
    let third = group_op(3, vec![second.content_hash().unwrap()]);
    assert_eq!(
        append_group_op(&mut store, &third).unwrap(),
        3,
        "the orphan at 2 is not overwritten"
    );
    let log: Vec<u64> = group_log(&store, group())
        .unwrap()
        .into_iter()
        .map(|(_, op)| op.nonce)
        .collect();
    assert_eq!(log, [1, 2, 3]);
    let forged = SignedOp { nonce: 9, ..third };
    assert!(append_group_op(&mut store, &forged).is_err());
    // Numbers, not text: 255 and 256 are neighbours in this order.
    let row = key::GroupOpLog {
        group_id: group(),
        sequence: 255,
    };
    store
        .handle()
        .put(&row, &Bytes(group_op(255, vec![]).encode().unwrap()))
        .unwrap();
    assert_eq!(append_group_op(&mut store, &group_op(256, vec![])).unwrap(), 256);
    assert_eq!(group_log(&store, group()).unwrap().last().unwrap().0, 256);
}

#[test]
fn node_13_heads_of_a_group_log_are_what_nothing_was_made_on_top_of() {
    let mut store = Store::memory();
    let first = group_op(1, vec![]);
    let beside = group_op(2, vec![]);
    let above = group_op(3, vec![first.content_hash().unwrap()]);
    for op in [&first, &beside, &above] {
        append_group_op(&mut store, op).unwrap();
    }
    let head = store
        .view()
        .get(&key::GroupOpHead { group_id: group() })
        .unwrap()
        .unwrap();
    let expected = [&beside, &above].map(|op| op.content_hash().unwrap());
    assert_eq!((head.sequence, head.dag_heads), (3, expected.to_vec()));
    // An operation of a namespace, soundly signed, is none of a group's.
    let namespace = signed_op(SignedOpKind::Namespace, 4, vec![]);
    namespace.verify().unwrap();
    assert!(append_group_op(&mut store, &namespace).is_err());
    assert_eq!(group_log(&store, group()).unwrap().len(), 3);
}

#[test]
fn node_13_arrival_decides_only_among_keys_without_an_epoch() {
    // The greatest id arrives first.
    let mut keys: Vec<u8> = (1..9).collect();
    keys.sort_by_key(|byte| std::cmp::Reverse(node_store::id::KeyId::of_scope_key(&[*byte; 32])));
    let mut store = Store::memory();
    let mut ids = Vec::new();
    for byte in keys {
        ids.push(store_group_key(&mut store, group(), Secret::new([byte; 32]), 100, 5).unwrap());
    }
    let current = current_group_key(&store, group()).unwrap().unwrap();
    assert_eq!(current.key_id(), ids[0]);
}

#[test]
fn node_13_after_the_last_number_nothing_is_written_over() {
    let mut store = Store::memory();
    let row = key::GroupOpLog {
        group_id: group(),
        sequence: u64::MAX,
    };
    let last = Bytes(group_op(1, vec![]).encode().unwrap());
    store.handle().put(&row, &last).unwrap();
    let refused = append_group_op(&mut store, &group_op(2, vec![])).unwrap_err();
    assert!(
        refused
            .to_string()
            .ends_with("18446744073709551615 is the last one"),
        "{refused}"
    );
    assert_eq!(group_log(&store, group()).unwrap().len(), 1);

    let key_id = store_group_key(&mut store, group(), Secret::new([1; 32]), 1, 0).unwrap();
    let entry = key::GroupKeyEntry {
        group_id: group(),
        key_id,
    };
    let mut latest = store.view().get(&entry).unwrap().unwrap().key;
    latest.insertion_seq = u64::MAX;
    store.handle().put(&entry, &latest).unwrap();
    assert!(store_group_key(&mut store, group(), Secret::new([2; 32]), 1, 0).is_err());
    assert_eq!(current_group_key(&store, group()).unwrap(), Some(latest));
}

#[test]
fn node_13_the_key_in_force_is_of_the_highest_epoch_then_the_latest_then_the_greatest_id() {
    let mut store = Store::memory();
    assert!(current_group_key(&store, group()).unwrap().is_none());
    let secret = |byte| Secret::new([byte; 32]);
    let first = store_group_key(&mut store, group(), secret(1), 100, 0).unwrap();
    let second = store_group_key(&mut store, group(), secret(2), 100, 0).unwrap();
    assert_eq!(
        current_group_key(&store, group()).unwrap().unwrap().key_id(),
        second,
        "the latest without an epoch"
    );
    // Stored again, it keeps its place.
    store_group_key(&mut store, group(), secret(1), 200, 0).unwrap();
    assert_eq!(
        current_group_key(&store, group()).unwrap().unwrap().key_id(),
        second
    );
    store_group_key(&mut store, group(), secret(1), 300, 5).unwrap();
    let current = current_group_key(&store, group()).unwrap().unwrap();
    assert_eq!(
        (
            current.key_id(),
            current.epoch,
            current.insertion_seq,
            current.created_at
        ),
        (first, 5, 1, 100)
    );
    store_group_key(&mut store, group(), secret(1), 300, 4).unwrap();
    assert_eq!(
        current_group_key(&store, group()).unwrap().unwrap().epoch,
        5,
        "an epoch only rises"
    );
    // On a namespace root the ids of the next family are the same bytes; its rows are not read as keys (NODE-7).
    let neighbour = key::GroupDeniedMember {
        group_id: group(),
        account: [0xff; 32].into(),
    };
    store.handle().put(&neighbour, &()).unwrap();
    assert_eq!(
        current_group_key(&store, group()).unwrap().unwrap().key_id(),
        first
    );
}

#[test]
fn nonces_are_recorded_once_and_survive_in_one_row() {
    let mut store = Store::memory();
    let signer = PublicKey::new([3; 32]);
    for nonce in [1, 3, 2, 5] {
        record_nonce(&mut store, group(), signer, nonce).unwrap();
        assert!(matches!(
            record_nonce(&mut store, group(), signer, nonce),
            Err(StoreError::Nonce { .. })
        ));
    }
    let window = nonce_window(&store, group(), signer).unwrap();
    assert_eq!((window.floor(), window.above().collect::<Vec<_>>()), (3, vec![5]));
    assert_eq!(
        store.scan(Column::Group, &KeyRange::all(), None).unwrap().len(),
        1
    );
}

#[test]
fn node_7_a_scan_of_one_family_and_owner_never_sees_a_neighbour() {
    for (name, mut store) in support::stores() {
        // All families of 65 bytes, for the same leading id and its neighbours.
        for prefix in 0x20..=0x4au8 {
            for owner in [0xb0, 0xb1, 0xb2] {
                let mut key = vec![owner; 65];
                key[0] = prefix;
                store.put(Column::Group, &key, b"").unwrap();
            }
        }
        let view = store.view();
        let denied: Vec<_> = view
            .scan::<key::GroupDeniedMember>(&group())
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(denied.len(), 1, "{name}");
        assert_eq!(denied[0].0.group_id, group());
        let back = view
            .scan_back::<key::GroupDeniedMember>(&group())
            .unwrap()
            .count();
        assert_eq!(back, 1, "{name}");
        assert_eq!(
            view.scan_family::<key::GroupDeniedMember>().unwrap().count(),
            3,
            "{name}"
        );
        // A row of the family that does not decode is an error at that row, not its absence.
        let members: Vec<_> = view.scan::<key::GroupMember>(&group()).unwrap().collect();
        assert!(
            matches!(members[..], [Err(StoreError::UndecodableValue { length: 0, .. })]),
            "{name}"
        );
        let member = key::GroupMember {
            group_id: group(),
            account: [0xb1; 32].into(),
        };
        assert!(view.get(&member).is_err() && view.has(&member).unwrap(), "{name}");
    }
}

#[test]
fn node_7_rows_of_another_width_in_one_column_are_passed_over() {
    let mut store = Store::memory();
    let context_id = ContextId::new([1; 32]);
    let remaining = value::ContextAuthoredRemaining { count: 3 };
    let left = value::ContextLeftMarker { left_at_ms: 4 };
    let public_key = PublicKey::new([2; 32]);
    let (counter, marker) = (
        key::ContextAuthoredRemaining { context_id },
        key::ContextLeftMarker {
            context_id,
            public_key,
        },
    );
    store.handle().put(&counter, &remaining).unwrap();
    store.handle().put(&marker, &left).unwrap();
    let view = store.view();
    let counters = view.scan::<key::ContextAuthoredRemaining>(&context_id).unwrap();
    assert_eq!(
        counters.map(Result::unwrap).collect::<Vec<_>>(),
        [(counter, remaining)]
    );
    let mut markers = view.scan::<key::ContextLeftMarker>(&context_id).unwrap();
    let from = key::ContextLeftMarker {
        context_id,
        public_key: PublicKey::ZERO,
    };
    assert_eq!(markers.seek(&from).unwrap(), Some((marker, left)));
    assert!(markers.next().is_none());
}

#[test]
fn a_scan_seeks_and_goes_on_and_is_bounded_by_its_range() {
    let mut store = Store::memory();
    let context_id = ContextId::new([1; 32]);
    let row = |byte: u8| key::ContextState {
        context_id,
        state_key: [byte; 32].into(),
    };
    for byte in [1, 3, 5, 7] {
        store.handle().put(&row(byte), &vec![byte]).unwrap();
    }
    let other = key::ContextState {
        context_id: [2; 32].into(),
        state_key: [9; 32].into(),
    };
    store.handle().put(&other, &vec![9]).unwrap();
    let view = store.view();
    let mut scan = view.scan::<key::ContextState>(&context_id).unwrap();
    assert_eq!(scan.seek(&row(4)).unwrap(), Some((row(5), vec![5])));
    assert_eq!(scan.next().unwrap().unwrap(), (row(7), vec![7]));
    assert!(scan.next().is_none() && scan.next().is_none());
    assert_eq!(
        scan.seek(&row(0)).unwrap(),
        Some((row(1), vec![1])),
        "from the end, back to the start"
    );
    assert_eq!(scan.count(), 3);
    let mut back = view.scan_back::<key::ContextState>(&context_id).unwrap();
    assert_eq!(back.seek(&row(4)).unwrap(), Some((row(3), vec![3])));
    let range = KeyRange::new(row(3).to_bytes().to_vec(), other.to_bytes().to_vec());
    let some = view
        .scan_range::<key::ContextState>(&range, Direction::Descending)
        .unwrap();
    assert_eq!(some.map(|row| row.unwrap().1[0]).collect::<Vec<_>>(), [7, 5, 3]);
}

#[test]
fn the_sorted_index_lands_with_its_state_or_not_at_all() {
    let mut store = Store::memory();
    let (context, collection) = (ContextId::new([1; 32]), CollectionId::new([2; 32]));
    let hash = Hash::new([7; 32]);
    let mut staged = store.temporal();
    let mut index = SortedIndex::new(&mut staged, context, collection);
    for (order, entry) in [(b"b".as_slice(), 2), (b"a", 1), (b"b\0", 3), (&[0xff; 3], 4)] {
        index.insert(order, EntityId::new([entry; 32])).unwrap();
    }
    index.stamp(&hash).unwrap();
    drop(staged);
    assert!(
        !SortedIndex::new(&store, context, collection)
            .is_valid_for(&hash)
            .unwrap(),
        "dropped with its state"
    );

    let mut index = SortedIndex::new(&mut store, context, collection);
    for (order, entry) in [(b"b".as_slice(), 2), (b"a", 1), (b"b\0", 3), (&[0xff; 3], 4)] {
        index.insert(order, EntityId::new([entry; 32])).unwrap();
    }
    index.stamp(&hash).unwrap();
    index.remove(b"absent").unwrap();
    assert!(index.is_valid_for(&hash).unwrap() && !index.is_valid_for(&Hash::ZERO).unwrap());
    let entries = |lower, upper, direction| -> Vec<u8> {
        let index = SortedIndex::new(&store, context, collection);
        index
            .entries(lower, upper, direction)
            .unwrap()
            .map(|entry| entry.unwrap().1.as_bytes()[0])
            .collect()
    };
    assert_eq!(entries(None, None, Direction::Ascending), [1, 2, 3, 4]);
    assert_eq!(entries(Some((b"b", false)), None, Direction::Ascending), [3, 4]);
    assert_eq!(
        entries(Some((b"a", false)), Some((b"b", true)), Direction::Descending),
        [2]
    );
    SortedIndex::new(&mut store, context, collection)
        .invalidate()
        .unwrap();
    assert!(
        !SortedIndex::new(&store, context, collection)
            .is_valid_for(&hash)
            .unwrap()
    );
}

#[test]
fn a_delta_and_the_heads_that_name_it_are_one_write() {
    use node_store::context::{record_delta, register_space};
    let plan = support::faults::Plan::new();
    let disk = std::sync::Arc::new(node_store::backend::memory::MemoryBackend::new());
    let mut store = Store::new(support::faults::Faulty {
        inner: disk,
        plan: plan.clone(),
    });
    let context_id = register_space(&mut store, "did:key:deltas", [1; 32].into()).unwrap();
    let delta = |id: u8, parents: Vec<u8>| value::ContextDagDelta {
        delta_id: [id; 32].into(),
        parents: parents.into_iter().map(|parent| [parent; 32].into()).collect(),
        actions: Bytes::default(),
        hlc: HybridTimestamp::ZERO,
        applied: false,
        expected_root_hash: Hash::new([id + 100; 32]),
        events: None,
        author_id: None,
        governance_position_blob: None,
        delta_signature: None,
    };
    let heads = |store: &Store| {
        let meta = store
            .view()
            .get(&key::ContextMeta { context_id })
            .unwrap()
            .unwrap();
        (
            meta.dag_heads
                .iter()
                .map(|head| head.as_bytes()[0])
                .collect::<Vec<_>>(),
            meta.root_hash,
        )
    };
    for (id, parents) in [(1, vec![]), (2, vec![1]), (3, vec![1])] {
        record_delta(&mut store, context_id, &delta(id, parents)).unwrap();
    }
    assert_eq!(heads(&store), (vec![2, 3], Hash::new([103; 32])));
    for after in [false, true] {
        plan.die(1, after);
        assert!(record_delta(&mut store, context_id, &delta(4, vec![2, 3])).is_err());
        plan.sound();
        let row = key::ContextDagDelta {
            context_id,
            delta_id: [4; 32].into(),
        };
        assert_eq!(store.view().has(&row).unwrap(), after);
        assert_eq!(heads(&store).0, if after { vec![4] } else { vec![2, 3] });
    }
    record_delta(&mut store, context_id, &delta(2, vec![1])).unwrap();
    assert_eq!(heads(&store).0, [4], "what was applied before is no head again");
    // A head that names a delta which is not recorded as applied, as an older writer may leave it, is named once.
    let row = key::ContextMeta { context_id };
    let mut meta = store.view().get(&row).unwrap().unwrap();
    meta.dag_heads.push([5; 32].into());
    store.handle().put(&row, &meta).unwrap();
    record_delta(&mut store, context_id, &delta(5, vec![4])).unwrap();
    assert_eq!(heads(&store), (vec![5], Hash::new([105; 32])));
    let unknown = record_delta(&mut store, ContextId::ZERO, &delta(9, vec![]));
    assert!(matches!(unknown, Err(StoreError::UnknownContext(_))));
}

#[test]
fn guest_state_keys_are_32_bytes_or_refused() {
    use node_store::id::StateKey;
    assert!(StateKey::from_guest(&[1; 32]).is_ok());
    for length in [0, 1, 31, 33, 64] {
        let error = StateKey::from_guest(&vec![b'a'; length]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("state key: {length} bytes; expected exactly 32")
        );
    }
}

#[test]
fn a_layer_of_layers_can_be_read_through_every_reference() {
    let mut store = Store::memory();
    let mut outer = store.temporal();
    let mut inner = outer.temporal();
    inner.put(Column::Meta, b"k", b"v").unwrap();
    let by_reference: &dyn ReadLayer = &inner;
    assert_eq!(by_reference.get(Column::Meta, b"k").unwrap().unwrap(), b"v");
    assert!(inner.read_only().has(Column::Meta, b"k").unwrap());
    inner.commit().unwrap();
    assert_eq!(outer.staged().len(), 1);
    outer.commit().unwrap();
    assert!(store.has(Column::Meta, b"k").unwrap());
}
