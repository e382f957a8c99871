//! Values, their hashes, links and patches (WIRE §§3–6).

use std::sync::Arc;

use memory_wire::codec::{PREFIX, decode, encode};
use memory_wire::hash::{hash_preimage, hash_string, parse_hash_string, tagged_hash};
use memory_wire::link::{Link, LinkBase, LinkPayload, Regime, is_entity_ref, is_link, parse_handle};
use memory_wire::message::{Upsert, UpsertContent};
use memory_wire::patch::{PatchOp, apply_patches};
use memory_wire::traverse::Schema;
use memory_wire::value::{Special, Value};
use memory_wire::{JsString, Scope, value};

fn text(value: &Value) -> String {
    encode(value).unwrap()[PREFIX.len()..].to_owned()
}

fn read(body: &str) -> Value {
    decode(&format!("{PREFIX}{body}")).unwrap()
}

#[test]
fn wire_301_every_kind_of_value_has_one_text() {
    for body in [
        "null",
        "{\"/Undefined@1\":null}",
        "true",
        "1.5",
        "\"s\"",
        "\"\\ud800\"",
        "{\"/BigInt@1\":\"AQ\"}",
        "{\"/Symbol@1\":\"k\"}",
        "{\"/SpecialNumber@1\":\"NaN\"}",
        "{\"/SpecialNumber@1\":\"-0\"}",
        "{\"/SpecialNumber@1\":\"-Infinity\"}",
        "[1,{\"/hole\":2}]",
        "{\"a\":{}}",
        "{\"/Bytes@1\":\"AQ\"}",
        "{\"/EpochNsec@1\":\"AQ\"}",
        "{\"/EpochDay@1\":\"AQ\"}",
        "{\"/Hash@1\":{\"hash\":\"AQ\",\"tag\":\"t\"}}",
        "{\"/RegExp@1\":{\"flags\":\"g\",\"flavor\":\"es2025\",\"source\":\"a\"}}",
        "{\"/KeyPair@1\":{\"algorithm\":\"Ed25519\",\"privateKey\":\"AQ\",\"publicKey\":\"Ag\"}}",
        "{\"/Error@1\":{\"message\":\"m\",\"name\":null,\"type\":\"TypeError\"}}",
        "{\"/Link@1\":{\"id\":\"of:x\"}}",
        "{\"/Zork@7\":[1]}",
        "{\"/Problematic@1\":{\"error\":\"e\",\"state\":1,\"tag\":\"T@1\"}}",
    ] {
        assert_eq!(text(&read(body)), body);
    }
    for reserved in ["{\"/Map@1\":[]}", "{\"/Set@1\":[]}"] {
        assert!(decode(&format!("{PREFIX}{reserved}")).is_err(), "{reserved}");
    }
}

#[test]
fn wire_302_the_prefix_is_exact_and_space_inside_tolerated() {
    for bad in [
        "{}",
        " fvj1:{}",
        "FVJ1:{}",
        "fvj2:{}",
        "fvj1:",
        "fvj1",
        "fvj1:{} x",
        "fvj1:\u{FEFF}{}",
    ] {
        assert!(decode(bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        encode(&decode("fvj1: { \"a\" :\t[ 1 ,\n2 ] } ").unwrap()).unwrap(),
        "fvj1:{\"a\":[1,2]}"
    );
}

#[test]
fn wire_310_decoding_is_strict() {
    assert_eq!(
        text(&read("{\"/quote\":{\"/\":{\"link@1\":{\"/hole\":1}}}}")),
        "{\"/quote\":{\"/\":{\"link@1\":{\"/hole\":1}}}}"
    );
    assert_eq!(
        text(&read("{\"/object\":{\"a\":1}}")),
        "{\"a\":1}",
        "an escape that was not needed is not kept"
    );
    for bad in [
        "{\"/\":{\"link@1\":{}}}",
        "{\"//\":1}",
        "{\"/lower@1\":1}",
        "{\"/A@0\":1}",
        "{\"/A@01\":1}",
        "{\"/a\":1,\"b\":2}",
        "{\"/object\":[]}",
        "{\"__proto__\":1}",
        "{\"/object\":{\"constructor\":1}}",
        "{\"/Link@1\":{\"__proto__\":1}}",
        "{\"/quote\":{\"a\":{\"__proto__\":1}}}",
        "{\"/hole\":1}",
        "[{\"/hole\":0}]",
        "[{\"/hole\":1.5}]",
    ] {
        assert!(decode(&format!("{PREFIX}{bad}")).is_err(), "{bad}");
    }
}

#[test]
fn wire_311_what_no_peer_could_read_is_not_written() {
    for key in ["__proto__", "constructor"] {
        let object = Value::Object([(key, 1)].into_iter().collect());
        assert!(encode(&object).is_err(), "{key}");
        assert!(
            encode(&value!({ "/a": [object] })).is_err(),
            "{key} within an escape"
        );
    }
    // An unknown value has a tag that nothing else has: these would read back as something else, or not at all.
    for tag in [
        "Map@1", "Set@1", "Bytes@1", "quote", "object", "hole", "", "lower@1",
    ] {
        let unknown = Value::Special(Arc::new(Special::Unknown {
            tag: tag.into(),
            state: Value::Null,
        }));
        assert!(encode(&unknown).is_err(), "{tag}");
    }
    for ordinary in ["prototype", "toString"] {
        assert!(
            encode(&Value::Object([(ordinary, 1)].into_iter().collect())).is_ok(),
            "{ordinary}"
        );
    }
}

#[test]
fn wire_402_the_hash_stream_is_as_written() {
    let stream = |value: Value| memory_hex(&hash_preimage(&value));
    assert_eq!(stream(Value::Null), "20");
    assert_eq!(stream(Value::Undefined), "21");
    assert_eq!(stream(value!([true, false])), "102201220000");
    assert_eq!(stream(f64::NAN.into()), "237ff8000000000000");
    assert_eq!(stream(value!({ "a": 1 })), "11240161233ff000000000000000");
    assert_eq!(stream(read("[{\"/hole\":3},null]")), "1001032000");
    assert_eq!(stream(read("{\"/BigInt@1\":\"AA\"}")), "260100");
    // 64 bytes stand in the stream, 65 by their hash.
    assert_eq!(stream("x".repeat(64).as_str().into()).len(), 2 * (2 + 64));
    assert!(stream("x".repeat(65).as_str().into()).starts_with("f0"));
    assert_eq!(stream("x".repeat(65).as_str().into()).len(), 2 * 33);
    // Keys in true UTF-8 order here, index keys first in the text.
    let both = value!({ "10": 1, "9": 2 });
    assert_eq!(text(&both), "{\"9\":2,\"10\":1}");
    assert!(stream(both).starts_with("1124023130"));
    // A lone surrogate hashes as U+FFFD.
    let lone = Value::String(JsString::from_utf16(&[0xD800]));
    assert_eq!(stream(lone), stream("\u{FFFD}".into()));
}

fn memory_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn wire_403_a_schemas_hash_is_its_values() {
    let schema = value!({ "type": "string" });
    assert_eq!(
        tagged_hash(&schema),
        "fid1:vfzH49OWCbF_cEsFg47pOhiYNeRd6thTSgqkiSfJs_Y"
    );
    assert_eq!(
        *Schema::of(&schema).digest(),
        memory_wire::hash::hash_value(&schema)
    );
    assert_ne!(
        tagged_hash(&value!({})),
        tagged_hash(&value!(true)),
        "no normalisation"
    );
}

#[test]
fn wire_404_the_untagged_hash_is_the_tagged_ones_rest() {
    let value = value!({ "a": [1, "x"] });
    assert_eq!(format!("fid1:{}", hash_string(&value)), tagged_hash(&value));
    assert_eq!(hash_string(&value).len(), 43);
    let tagged = tagged_hash(&value);
    let (tag, bytes) = parse_hash_string(&tagged).unwrap();
    assert_eq!(
        (tag, bytes),
        ("fid1", memory_wire::hash::hash_value(&value).to_vec())
    );
}

fn payload(value: Value) -> LinkPayload {
    LinkPayload::from_object(value.as_object().unwrap()).unwrap()
}

#[test]
fn wire_501_each_regime_knows_its_own_links_only() {
    let legacy = value!({ "/": { "link@1": { "id": "of:x" } } });
    let modern = read("{\"/Link@1\":{\"id\":\"of:x\"}}");
    assert_eq!(Regime::from_flag(false), Regime::Legacy);
    for (value, regime, link) in [
        (&legacy, Regime::Legacy, true),
        (&legacy, Regime::Modern, false),
        (&modern, Regime::Legacy, false),
        (&modern, Regime::Modern, true),
    ] {
        assert_eq!(is_link(value, regime), link, "{value:?} {regime:?}");
    }
    assert!(is_entity_ref(&value!({ "/": "of:x", "more": 1 }), Regime::Legacy));
    assert!(!is_entity_ref(&value!({ "/": "of:x" }), Regime::Modern));
}

#[test]
fn wire_503_the_fields_of_a_links_payload() {
    let base = payload(value!({ "id": "of:base", "space": "did:key:s", "scope": "user" })).resolve(None);
    let of = |value: Value| payload(value).resolve(Some(&base));
    let own = of(value!({}));
    let whole = |link: &Link| {
        let scope = link.scope.map(Scope::as_str);
        format!(
            "{:?} {:?} {scope:?} {:?} {}",
            link.id, link.space, link.path, link.redirect
        )
    };
    assert_eq!(
        whole(&own),
        whole(&base),
        "everything absent is the containing document's root"
    );
    assert_eq!(
        whole(&of(value!({ "id": "", "space": "", "scope": "inherit" }))),
        whole(&own)
    );
    assert_eq!(of(value!({ "path": ["a", 0] })).path, ["a", "0"]);
    assert_eq!(of(value!({ "scope": "session" })).scope, Some(Scope::Session));
    assert_eq!(
        payload(value!({ "id": "of:x" })).resolve(None).scope,
        None,
        "none without a base"
    );
    assert!(of(value!({ "overwrite": "redirect" })).redirect);
    assert!(!of(value!({ "overwrite": "this" })).redirect && !of(value!({ "overwrite": "else" })).redirect);
}

#[test]
fn wire_505_a_link_is_written_with_what_differs_from_its_base() {
    let base = payload(value!({ "id": "of:base", "space": "did:key:s", "scope": "user" })).resolve(None);
    let written = |value: Value| {
        text(
            &payload(value)
                .resolve(Some(&base))
                .to_payload(LinkBase::Link(&base))
                .into(),
        )
    };
    assert_eq!(written(value!({})), "{\"path\":[]}");
    assert_eq!(
        written(value!({ "id": "of:x", "path": ["a"], "overwrite": "this", "schema": true })),
        "{\"id\":\"of:x\",\"path\":[\"a\"]}"
    );
    assert_eq!(
        written(value!({ "scope": "space", "overwrite": "redirect", "schema": { "type": "null" } })),
        "{\"overwrite\":\"redirect\",\"path\":[],\"schema\":{\"type\":\"null\"},\"scope\":\"space\"}"
    );
}

#[test]
fn wire_506_alias_records_are_plain_data() {
    let alias = value!({ "$alias": { "path": ["a"], "cell": "result", "schema": true } });
    for regime in [Regime::Legacy, Regime::Modern] {
        assert!(!is_link(&alias, regime));
    }
    assert_eq!(
        text(&alias),
        "{\"$alias\":{\"cell\":\"result\",\"path\":[\"a\"],\"schema\":true}}",
        "and need no escape"
    );
}

#[test]
fn wire_508_handles_end_in_at_scope() {
    let parsed = |handle: &str| {
        parse_handle(handle)
            .ok()
            .map(|(id, scope)| (id.as_str().to_owned(), scope))
    };
    assert_eq!(parsed("of:x"), Some(("of:x".into(), None)));
    assert_eq!(parsed("of:x@user"), Some(("of:x".into(), Some(Scope::User))));
    assert_eq!(
        parsed("of:a@b@session"),
        Some(("of:a@b".into(), Some(Scope::Session)))
    );
    for bad in ["of:x@team", "@space", "", "of:x@"] {
        assert_eq!(parsed(bad), None, "{bad:?}");
    }
}

#[test]
fn wire_509_documents_are_plain_objects() {
    // An empty one is a live document without a value, which a frame tells from a deleted one.
    let frame = |content: &str| {
        format!("fvj1:{{\"branch\":\"\",{content}\"id\":\"of:x\",\"scope\":\"space\",\"seq\":1}}")
    };
    let upsert =
        |content: &str| Upsert::from_value(&decode(&frame(content)).unwrap()).map(|upsert| upsert.content);
    assert!(matches!(upsert("\"doc\":{},"), Ok(UpsertContent::Doc(_))));
    assert!(matches!(upsert("\"deleted\":true,"), Ok(UpsertContent::Deleted)));
    for no_document in ["1", "[]", "null", "{\"/Bytes@1\":\"AQ\"}"] {
        assert!(
            upsert(&format!("\"doc\":{no_document},")).is_err(),
            "{no_document}"
        );
    }
    let patches = [PatchOp::from_value(&value!({ "op": "replace", "path": "", "value": 1 })).unwrap()];
    let error = apply_patches(&value!({}), &patches).unwrap_err();
    assert_eq!(error.to_string(), "patched root is not an entity document");
}

fn patched(document: Value, op: Value) -> String {
    match apply_patches(&document, &[PatchOp::from_value(&op).unwrap()]) {
        Ok(document) => text(&document),
        Err(error) => error.to_string(),
    }
}

#[test]
fn wire_605_quirks_that_replay_depends_on() {
    let list = || value!({ "v": [[1], [2]] });
    assert_eq!(
        patched(list(), value!({ "op": "append", "path": "/v/4", "values": [9] })),
        "{\"v\":[[1],[2],{\"/hole\":2},[9]]}"
    );
    assert_eq!(
        patched(list(), value!({ "op": "append", "path": "/v/-", "values": [9] })),
        "{\"v\":[[1],[2]]}"
    );
    let holes = read("{\"v\":[{\"/hole\":1},{\"/Undefined@1\":null},1]}");
    assert_eq!(
        patched(
            holes.clone(),
            value!({ "op": "remove-by-value", "path": "/v", "value": (Value::Undefined) })
        ),
        "{\"v\":[1]}"
    );
    assert_eq!(
        patched(
            holes,
            value!({ "op": "add-unique", "path": "/v", "values": [(Value::Undefined)] })
        ),
        "{\"v\":[{\"/hole\":1},{\"/Undefined@1\":null},1]}"
    );
    assert_eq!(
        patched(
            value!({ "v": [1, 2, 3] }),
            value!({ "op": "splice", "path": "/v", "index": 1.9, "remove": 1.9, "add": [] })
        ),
        "{\"v\":[1,3]}"
    );
    assert_eq!(
        patched(
            value!({ "v": (f64::MAX) }),
            value!({ "op": "increment", "path": "/v", "by": (f64::MAX) })
        ),
        "{\"v\":{\"/SpecialNumber@1\":\"+Infinity\"}}"
    );
}

#[test]
fn wire_606_an_absent_document_is_patched_from_nothing() {
    assert_eq!(
        patched(
            value!({}),
            value!({ "op": "increment", "path": "/value/n", "by": 2 })
        ),
        "{\"value\":{\"n\":2}}"
    );
    assert_eq!(
        patched(
            value!({}),
            value!({ "op": "replace", "path": "/value/n", "value": 1 })
        ),
        "missing path /value/n"
    );
}
