//! What server execution records and what never crosses the wire (WIRE §9).

use memory_wire::codec::encode;
use memory_wire::commit_meta::{CommitClass, WriteAnnotation};
use memory_wire::error::{ErrorName, Retriability};
use memory_wire::message::{
    AppliedCommit, AppliedRevision, ClientCommit, CommitParts, EntitySnapshot, RevisionContent, SessionSync,
    Upsert, UpsertContent,
};
use memory_wire::stream_entry::{FiredAt, StreamEntry, StreamLink};
use memory_wire::well_known::{acl_document_id, is_stream_sidecar};
use memory_wire::{LocalSeq, Scope, ScopeKey, Seq, SpaceId, value};

/// Words of the metadata that no frame may hold (WIRE-903).
const NEVER: [&str; 8] = [
    "holder",
    "annotations",
    "consequenceOf",
    "derivedThrough",
    "capabilityRef",
    "actingUser",
    "basis",
    "outbox",
];

#[test]
fn wire_903_no_message_has_a_word_for_what_is_recorded_beside_a_commit() {
    let upsert = Upsert {
        branch: "".into(),
        id: "of:x".into(),
        scope: Scope::User,
        scope_key: Some(ScopeKey::parse("user:a").unwrap()),
        seq: Seq(1),
        content: UpsertContent::Doc(value!({})),
        cover_class: Some(CommitClass::Derived),
    };
    let sync = SessionSync {
        upserts: vec![upsert],
        caught_up_local_seq: Some(LocalSeq(1)),
        ..SessionSync::default()
    };
    let applied = AppliedCommit {
        seq: Seq(1),
        branch: "".into(),
        revisions: vec![AppliedRevision {
            id: "of:x".into(),
            scope: Some(Scope::User),
            scope_key: ScopeKey::parse("user:a").unwrap(),
            branch: "".into(),
            seq: Seq(1),
            op_index: 0,
            commit_seq: Seq(1),
            content: RevisionContent::Delete,
        }],
        replayed: true,
        elided_op_indexes: Some(vec![0]),
    };
    let commit = ClientCommit::build(LocalSeq(1), CommitParts::default());
    for written in [sync.to_value(), applied.to_value(), commit.value] {
        let text = encode(&written).unwrap();
        for word in NEVER {
            assert!(!text.contains(&format!("\"{word}\"")), "{word} in {text}");
        }
    }
    // Sent by a client, such fields are inert: kept as part of the commit and read by nothing.
    let commit = value!({ "class": "derived", "holder": "h", "annotations": [], "localSeq": 1, "reads": { "confirmed": [], "pending": [] }, "operations": [{ "op": "delete", "id": "of:x" }] });
    let read = ClientCommit::from_value(&commit).unwrap();
    assert_eq!(encode(&read.value), encode(&commit));
}

#[test]
fn wire_904_an_annotation_addresses_by_its_key_and_attributes_by_the_pair() {
    let annotation = WriteAnnotation {
        op: 2,
        scope_key: Some(ScopeKey::parse("user:a").unwrap()),
        acting_user: Some("did:key:zA".into()),
        acting_session: None,
    };
    assert_eq!(
        encode(&annotation.to_value()).unwrap(),
        "fvj1:{\"actingUser\":\"did:key:zA\",\"op\":2,\"scopeKey\":\"user:a\"}"
    );
}

#[test]
fn wire_905_the_access_list_is_a_document_of_the_space() {
    assert_eq!(
        acl_document_id(&SpaceId::from("did:key:zS")).as_str(),
        "of:did:key:zS"
    );
}

#[test]
fn wire_906_a_snapshot_says_its_class_and_nothing_else() {
    let snapshot = EntitySnapshot {
        branch: "".into(),
        id: "of:x".into(),
        scope: Scope::Space,
        scope_key: None,
        seq: Seq(1),
        document: Some(value!({})),
        cover_class: Some(CommitClass::System),
    };
    let text = encode(&snapshot.to_value()).unwrap();
    assert_eq!(
        text,
        "fvj1:{\"branch\":\"\",\"coverClass\":\"system\",\"document\":{},\"id\":\"of:x\",\"seq\":1}"
    );
}

#[test]
fn wire_911_an_entry_names_its_stream_and_the_stream_its_sidecar() {
    let stream = StreamLink {
        id: "of:x".into(),
        path: vec!["events".into()],
        scope: Scope::Session,
    };
    let sidecar = stream.sidecar_id();
    assert!(is_stream_sidecar(&sidecar));
    assert_ne!(
        sidecar,
        StreamLink {
            scope: Scope::Space,
            ..stream.clone()
        }
        .sidecar_id(),
        "the stream's scope is in the hash"
    );
    let mut entry = StreamEntry::new("e".into(), stream, Some(value!({ "n": 1 })));
    let as_sent = entry.to_value();
    for stamped in [
        "seq",
        "firedAt",
        "consequenced",
        "error",
        "status",
        "reason",
        "deliveryFailures",
    ] {
        assert!(
            as_sent.member(stamped).is_none(),
            "{stamped} is admission's to write"
        );
    }
    entry.seq = Some(Seq(4));
    entry.fired_at = Some(FiredAt {
        user: Some("did:key:zA".into()),
        session: "s".into(),
        client_seq: Some(LocalSeq(2).into()),
    });
    let read = StreamEntry::from_value(&entry.to_value()).unwrap();
    assert_eq!(encode(&read.to_value()), encode(&entry.to_value()));
    assert!(
        StreamEntry::from_value(&value!({ "eventId": "", "stream": { "id": "of:x", "path": [] } })).is_none(),
        "an event has a name"
    );
    assert_eq!(
        ErrorName::EventAppendDuplicate.as_str(),
        "EventAppendDuplicateError"
    );
    assert_eq!(
        ErrorName::EventAppendDuplicate.retriability(),
        Retriability::Delivered
    );
}
