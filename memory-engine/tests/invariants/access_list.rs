//! INV-12 and INV-13 as far as the engine carries them: no derived commit writes the access list, and a missing list is not
//! a deleted one.

use memory_engine::lease::LEASE_TTL_MS;
use memory_engine::{
    ApplyCommit, Engine, EngineError, EngineOptions, Holder, LeaseHolder, ReadInstance, Refusal, WaveCommit,
};
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::ids::Seq;
use serde_json::json;

use crate::support::NOW_MS;
use crate::{SPACE, by, commit, leased, patch, serving, set};

/// INV-12: no derived commit touches the access list, in any shape, scope or branch, and it learns so before any conflict.
#[test]
fn inv_12_no_derived_commit_writes_the_access_list() {
    let mut engine = Engine::in_memory(serving()).unwrap();
    let list = format!("of:{SPACE}");
    by(
        &mut engine,
        "s",
        &commit(
            1,
            json!({ "operations": [set(&list, json!({ "did:key:zA": "OWNER" }))] }),
        ),
    )
    .unwrap();
    engine.create_branch(&"f".into(), &"".into(), None).unwrap();
    let lease = leased(&mut engine);
    let shapes = [
        set(&list, json!({})),
        patch(&list, json!([])),
        json!({ "op": "delete", "id": list }),
        json!({ "op": "set", "id": list, "scope": "user", "value": { "value": 1 } }),
    ];
    for (shape, branch) in shapes.iter().flat_map(|shape| [(shape, ""), (shape, "f")]) {
        let parts = json!({ "branch": branch, "operations": [set("of:x", json!(1)), shape] });
        // Basis 0 would conflict on the list, were it looked at.
        let mut wave = WaveCommit::new(&lease, commit(1, parts.clone()), Seq(0));
        wave.annotations = vec![WriteAnnotation {
            op: 1,
            scope_key: None,
            acting_user: None,
            acting_session: None,
        }];
        let refused = engine.apply_wave(&wave, NOW_MS, None).unwrap_err();
        assert!(
            matches!(refused, EngineError::Refused(Refusal::DerivedAclWrite)),
            "{shape} {refused}"
        );
        let session = lease.holder().session_id();
        let commit = commit(1, parts);
        let direct = ApplyCommit {
            space: Some(lease.space()),
            class: CommitClass::Derived,
            holder: Some(lease.holder()),
            ..ApplyCommit::authored(&session, None, &commit, NOW_MS)
        };
        let refused = engine.apply_commit(direct).unwrap_err();
        assert!(
            matches!(refused, EngineError::Refused(Refusal::DerivedAclWrite)),
            "{shape} {refused}"
        );
    }
    // Without the lease the producer learns that first.
    let stranger = LeaseHolder::new(SPACE.into(), Holder::from("did:key:zOther#1"), LEASE_TTL_MS);
    let wave = WaveCommit::new(&stranger, commit(1, json!({ "operations": [shapes[0]] })), Seq(0));
    assert!(matches!(
        engine.apply_wave(&wave, NOW_MS, None),
        Err(EngineError::Refused(Refusal::NoLiveLease))
    ));
    assert_eq!(engine.server_seq().unwrap(), Seq(1));
}

/// INV-13 is the server's; what it needs of the engine is that "never written" and "deleted" are told apart.
#[test]
fn inv_13_a_missing_access_list_and_a_deleted_one_are_different_answers() {
    let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
    let list = memory_wire::well_known::acl_document_id(&SPACE.into());
    let state = |engine: &Engine| {
        engine
            .read_state(&list, ReadInstance::Space, &"".into(), None)
            .unwrap()
    };
    assert!(state(&engine).is_none() && engine.server_seq().unwrap() == Seq(0));
    by(
        &mut engine,
        "s",
        &commit(
            1,
            json!({ "operations": [{ "op": "delete", "id": list.as_str() }] }),
        ),
    )
    .unwrap();
    let tombstone = state(&engine).unwrap();
    assert!(tombstone.document.is_none() && tombstone.seq == Seq(1));
}
