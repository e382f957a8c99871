//! Frames assembled from shared document text are byte-identical to frames encoded whole (SRV-118, SRV-119).

mod typed_value;

mod long;

use long::same_cases;
use memory_wire::codec::{MAX_DEPTH, decode, encode};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{LocalSeq, RequestId, Seq, SessionId, SpaceId};
use memory_wire::link::Regime;
use memory_wire::message::{
    Effect, EffectAddress, EffectFrame, EncodedDocument, Remove, ServerMessage, SessionSync, SyncContent,
    SyncFrame, Upsert, UpsertContent, UpsertFrame, UpsertFrameContent, ViewPlan, parse_server_message,
};
use memory_wire::schema_table::{compress, expand, find_reserved_reference};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey};
use memory_wire::value;
use memory_wire::value::{Array, Object, Slot, Value};
use proptest::prelude::*;
use typed_value::{run_file, same};

/// The same frame, to be assembled.
fn assembled(sync: &SessionSync, compacted: bool) -> SyncFrame {
    let encoded = |document: &Value| match compacted {
        true => EncodedDocument::compacted(document, Regime::Legacy).unwrap(),
        false => EncodedDocument::plain(document).unwrap(),
    };
    let content = SyncContent {
        to_seq: sync.to_seq,
        upserts: sync
            .upserts
            .iter()
            .map(|upsert| UpsertFrame {
                branch: upsert.branch.clone(),
                id: upsert.id.clone(),
                scope: upsert.scope,
                scope_key: upsert.scope_key.clone(),
                seq: upsert.seq,
                content: match &upsert.content {
                    UpsertContent::Doc(document) => UpsertFrameContent::Doc(encoded(document)),
                    UpsertContent::Deleted => UpsertFrameContent::Deleted,
                },
                cover_class: upsert.cover_class,
            })
            .collect(),
        removes: sync.removes.clone(),
        view_plans: sync.view_plans.clone(),
    };
    SyncFrame {
        caught_up_local_seq: sync.caught_up_local_seq,
        from_seq: sync.from_seq,
        content,
    }
}

/// The effect that carries it.
fn effect(sync: SyncFrame, space: &SpaceId, session_id: &SessionId) -> EffectFrame {
    EffectFrame {
        caught_up_local_seq: sync.caught_up_local_seq,
        from_seq: sync.from_seq,
        sync: sync.content.shared().unwrap(),
        address: EffectAddress::new(space, session_id),
    }
}

#[test]
fn srv_119_every_recorded_sync_frame_is_reproduced() {
    let mut frames = 0;
    run_file("wire-frames.jsonl", |line| {
        let text = line["text"].as_str().unwrap();
        if line["dir"] != "s2c" {
            return Ok(());
        }
        match parse_server_message(text).map_err(|e| e.to_string())? {
            ServerMessage::Effect(effect) => {
                frames += 1;
                let sync = expand(effect.sync, Regime::Legacy).map_err(|e| e.to_string())?;
                let again = self::effect(assembled(&sync, true), &effect.space, &effect.session_id);
                same("effect", again.text().as_str(), text)
            }
            ServerMessage::Response(response) => {
                let Ok(ok) = response.result else { return Ok(()) };
                let Some(sync) = ok.member("sync") else {
                    return Ok(());
                };
                frames += 1;
                let sync = SessionSync::from_value(sync).map_err(|e| e.to_string())?;
                let sync = expand(sync, Regime::Legacy).map_err(|e| e.to_string())?;
                let mut rest = ok.as_object().unwrap().clone();
                rest.remove("sync");
                let again = assembled(&sync, true)
                    .response_text(&response.request_id, &rest)
                    .unwrap();
                same("response", again.as_str(), text)
            }
            ServerMessage::HelloOk(_) | ServerMessage::Revoked(_) => Ok(()),
        }
    });
    assert!(frames >= 20, "the transcripts hold sync frames: {frames}");
}

const NAMES: [&str; 9] = ["a", "é", "\"\n", "value", "/", "/quote", "10", "9", "link@1"];

fn schema() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        Just(value!({ "type": "string" })),
        Just(value!({ "properties": { "/odd": { "type": "number" } } })),
        Just(value!({ "$ref": "cid:fid1:x" })),
        Just(value!("schema")),
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Undefined),
        Just(Value::Null),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,3}".prop_map(Value::from),
        (schema(), "[a-b]")
            .prop_map(|(s, id)| value!({ "/": { "link@1": { "id": id, "path": [], "schema": s } } })),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec((prop::sample::select(&NAMES[..]), inner.clone()), 0..5).prop_map(envelope),
            prop::collection::vec(
                prop_oneof![4 => inner.prop_map(Slot::Value), 1 => (1..4u32).prop_map(Slot::Holes)],
                0..6
            )
            .prop_map(|slots| Value::Array(Array::from_slots(slots).unwrap())),
        ]
    })
}

/// An object in which `link@1` stands alone: rewriting a link drops its siblings, as the reference does (the vectors
/// have such a line), so that compression has no inverse for them.
fn envelope(mut entries: Vec<(&'static str, Value)>) -> Value {
    if entries.iter().any(|(name, _)| *name == "link@1") {
        entries.retain(|(name, _)| *name == "link@1");
    }
    Value::Object(entries.into_iter().collect())
}

fn document() -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), tree()), 0..5)
        .prop_map(|entries| Value::Object(entries.into_iter().collect::<Object>()))
}

fn plan() -> ViewPlan {
    let plan = value!({
        "id": "v", "revision": 1, "generation": 2, "eligibleActions": ["x"],
        "pieces": [{ "id": "of:p", "scope": "space", "patternIdentity": { "/k": 1 } }],
        "inputs": [{ "id": "of:i", "scope": "user" }],
        "errors": [{ "nodeId": "n", "pieceId": "p", "message": "m", "stack": "s" }],
        "producers": [{
            "id": "x",
            "writes": [{ "id": "of:w", "scope": "session", "path": ["a"] }],
            "basis": { "reads": [{ "id": "of:r", "scope": "space", "path": [], "fingerprint": "f" }], "outputs": [] }
        }]
    });
    let read = ViewPlan::from_value(&plan).unwrap();
    assert_eq!(encode(&read.to_value()).unwrap(), encode(&plan).unwrap());
    read
}

fn sync() -> impl Strategy<Value = SessionSync> {
    let key = || {
        prop::option::of(Just(
            ScopeKey::resolve(Scope::Session, &ScopeIdentity::session("did:key:zA", "s\"1")).unwrap(),
        ))
    };
    let upsert = (
        prop::option::of(document()),
        key(),
        "\\PC{0,4}",
        prop::option::of(Just(CommitClass::Derived)),
    )
        .prop_map(|(document, scope_key, id, cover_class)| Upsert {
            branch: "".into(),
            id: id.into(),
            scope: scope_key.as_ref().map_or(Scope::Space, ScopeKey::scope),
            scope_key,
            seq: Seq(3),
            content: document.map_or(UpsertContent::Deleted, UpsertContent::Doc),
            cover_class,
        });
    let remove = (key(), "\\PC{0,4}").prop_map(|(scope_key, id)| Remove {
        branch: "b".into(),
        id: id.into(),
        scope: Scope::User,
        scope_key,
    });
    (
        prop::collection::vec(upsert, 0..4),
        prop::collection::vec(remove, 0..3),
        (0..54u32, prop::option::of(0..54u32)),
        prop::option::of(0..3usize),
    )
        .prop_map(|(upserts, removes, (from, marker), plans)| SessionSync {
            // Of every length there is.
            from_seq: Seq((1 << from) - 1),
            to_seq: Seq(4),
            caught_up_local_seq: marker.map(|bits| LocalSeq((1 << bits) - 1)),
            upserts,
            removes,
            schema_table: None,
            view_plans: plans.map(|n| vec![plan(); n]),
        })
}

proptest! {
    #![proptest_config(same_cases(400))]

    #[test]
    fn srv_119_assembly_equals_encoding_the_whole(sync in sync(), space in "\\PC{0,5}", session in "\\PC{0,5}") {
        let (space, session_id) = (SpaceId::from(space), SessionId::from(session));
        let request_id = RequestId::from("r");
        for compacted in [false, true] {
            let whole = if compacted { compress(&sync, Regime::Legacy) } else { sync.clone() };
            let frame = assembled(&sync, compacted);

            let effect = Effect { space: space.clone(), session_id: session_id.clone(), sync: whole.clone() };
            let expected = ServerMessage::Effect(effect).encode().unwrap();
            let assembled = self::effect(frame.clone(), &space, &session_id);
            prop_assert_eq!(assembled.len(), expected.len());
            prop_assert_eq!(assembled.text(), expected);

            for rest in [value!({}), value!({ "serverSeq": 4 }), value!({ "serverSeq": 4, "zz": { "/": 1 }, "a": [] })] {
                let rest = rest.as_object().unwrap().clone();
                let mut ok = rest.clone();
                ok.insert("sync", whole.to_value());
                let expected = ServerMessage::ok(request_id.clone(), ok.into()).encode().unwrap();
                prop_assert_eq!(frame.response_text(&request_id, &rest).unwrap(), expected);
            }
        }
    }

    #[test]
    fn wire_770_expansion_undoes_compression(sync in sync()) {
        // A document that already spells a reserved reference could not have been stored.
        let compressed = compress(&sync, Regime::Legacy);
        let received = SessionSync::from_value(&decode(&encode(&compressed.to_value()).unwrap()).unwrap()).unwrap();
        let expanded = expand(received, Regime::Legacy).unwrap();
        prop_assert_eq!(encode(&expanded.to_value()).unwrap(), encode(&sync.to_value()).unwrap());
    }
}

#[test]
fn srv_119_recipients_share_one_text() {
    let document = value!({ "value": { "/": { "link@1": { "id": "of:x", "path": [], "schema": { "type": "string" } } } } });
    let encoded = EncodedDocument::compacted(&document, Regime::Legacy).unwrap();
    assert!(std::sync::Arc::ptr_eq(encoded.text(), encoded.clone().text()));
    assert_eq!(encoded.schemas().len(), 1);
    assert!(encoded.weight() >= encoded.text().len());
}

#[test]
fn wire_312_the_deepest_document_fits_an_ordinary_stack() {
    let link = value!({ "/": { "link@1": { "id": "of:x", "path": [], "schema": { "type": "string" } } } });
    for as_arrays in [false, true] {
        // The document's root and the link's own three containers count too.
        let deep = (0..MAX_DEPTH - 16).fold(link.clone(), |inner, _| match as_arrays {
            true => value!([inner]),
            false => value!({ "k": inner }),
        });
        let document = value!({ "value": deep });
        let encoded = EncodedDocument::compacted(&document, Regime::Legacy).unwrap();
        assert_eq!(encoded.schemas().len(), 1);
        assert_eq!(find_reserved_reference(&document, Regime::Legacy), None);
    }
}
