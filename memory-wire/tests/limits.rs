//! Depth and size limits (WIRE-312, WIRE-314), on a thread with the stack of a small worker, so that recursion
//! anywhere in decode, encode, hash, equality or drop would show.

use memory_wire::Seq;
use memory_wire::codec::{
    DecodeReason, EncodeError, MAX_DEPTH, MAX_DOCUMENT_DEPTH, MAX_HOLES, decode, encode,
};
use memory_wire::equality::value_equal;
use memory_wire::error::{ErrorName, WireError};
use memory_wire::hash::hash_value;
use memory_wire::message::{
    ClientCommit, ClientMessage, ServerMessage, SessionSync, Upsert, UpsertContent, WatchOk,
    parse_client_message, parse_server_message,
};
use memory_wire::scope_key::Scope;
use memory_wire::value::{Array, Extent, Slot, Special, Value};

const SMALL_STACK: usize = 2 << 20;

fn on_small_stack(work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new()
        .stack_size(SMALL_STACK)
        .spawn(work)
        .unwrap()
        .join()
        .unwrap();
}

/// Ways to nest, with the number of brackets each level takes.
const SHAPES: [(&str, &str, usize); 6] = [
    ("[", "]", 1),
    ("{\"a\":", "}", 1),
    ("{\"/object\":{\"/a\":", "}}", 2),
    ("{\"/Zork@1\":", "}", 1),
    ("{\"/Error@1\":{\"cause\":", "}}", 2),
    (
        "{\"/Problematic@1\":{\"error\":\"\",\"tag\":\"\",\"state\":",
        "}}",
        2,
    ),
];

fn nested((open, close, _): (&str, &str, usize), levels: usize, core: &str) -> String {
    format!("fvj1:{}{core}{}", open.repeat(levels), close.repeat(levels))
}

#[test]
fn wire_312_deep_values_are_handled_up_to_the_limit() {
    on_small_stack(|| {
        for shape in SHAPES {
            let levels = (MAX_DEPTH - 1) / shape.2;
            let text = nested(shape, levels, "{\"/Undefined@1\":null}");
            let (a, b) = (decode(&text).unwrap(), decode(&text).unwrap());
            assert!(
                value_equal(&a, &b) && hash_value(&a) == hash_value(&b),
                "{}",
                shape.0
            );
            assert!(decode(&encode(&a).unwrap()).is_ok(), "{}", shape.0);
            let beyond = decode(&nested(shape, MAX_DEPTH / shape.2 + 1, "1"));
            assert_eq!(beyond.unwrap_err().reason, DecodeReason::TooDeep, "{}", shape.0);
        }
    });
}

#[test]
fn wire_312_values_deeper_than_the_limit_have_no_text_and_drop_safely() {
    on_small_stack(|| {
        let deep = (0..3 * MAX_DEPTH).fold(Value::Null, |inner, _| Value::from(vec![inner]));
        assert_eq!(encode(&deep), Err(EncodeError::TooDeep));
        assert_eq!(hash_value(&deep), hash_value(&deep.clone()));
        drop(deep);
    });
}

#[test]
fn wire_312_nested_escapes_cost_linear_time() {
    // Each level needs escaping and is not quotable: judging every level anew would take its square.
    on_small_stack(|| {
        let level = format!("{{\"/object\":{{\"/a\":[{}", "1,".repeat(200));
        let text = format!(
            "fvj1:{}{{\"/Undefined@1\":null}}{}",
            level.repeat(600),
            "]}}".repeat(600)
        );
        let value = decode(&text).unwrap();
        assert_eq!(encode(&value).unwrap(), text);
    });
}

#[test]
fn wire_306_nested_errors_cost_linear_time() {
    // The type of each error is an error, and stands in for its absent name.
    on_small_stack(|| {
        let text = format!(
            "fvj1:{}\"T\"{}",
            "{\"/Error@1\":{\"type\":".repeat(1000),
            "}}".repeat(1000)
        );
        let value = decode(&text).unwrap();
        assert_eq!(
            hash_value(&value),
            hash_value(&decode(&encode(&value).unwrap()).unwrap())
        );
    });
}

#[test]
fn wire_314_hole_runs_are_budgeted_over_the_whole_text() {
    let half = MAX_HOLES / 2;
    let text = |a: u64, b: u64| format!("fvj1:[[{{\"/hole\":{a}}}],{{\"x\":[1,{{\"/hole\":{b}}}]}}]");
    let value = decode(&text(half, half)).unwrap();
    assert_eq!(encode(&value).unwrap(), text(half, half));
    assert_eq!(
        decode(&text(half, half + 1)).unwrap_err().reason,
        DecodeReason::TooManyHoles
    );
    let run = Value::Array(Array::from_slots(vec![Slot::Holes(MAX_HOLES as u32 + 1)]).unwrap());
    assert_eq!(encode(&run), Err(EncodeError::TooManyHoles));
}

#[test]
fn wire_305_hostile_regular_expressions_are_judged_or_let_pass_quickly() {
    on_small_stack(|| {
        for source in [
            "(".repeat(100_000),
            "[".repeat(100_000),
            "(?<a>".repeat(10_000),
            "(a{1000}){1000}".repeat(20),
        ] {
            let text = format!("fvj1:{{\"/RegExp@1\":{{\"source\":\"{source}\"}}}}");
            // The verdict is free; neither stack nor time may run out.
            let _ = decode(&text);
        }
    });
}

#[test]
fn wire_312_a_document_within_its_nesting_has_a_text_in_every_frame() {
    // The shapes that take most brackets a level, in the message that puts most around a document.
    on_small_stack(|| {
        let slash = |inner: Value| memory_wire::value!({ "/a": inner });
        let error = |inner: Value| {
            decode(&format!(
                "fvj1:{{\"/Error@1\":{{\"/object\":{{\"/x\":{}}}}}}}",
                &encode(&inner).unwrap()[5..]
            ))
            .unwrap()
        };
        let tagged = |inner: Value| {
            Value::Special(std::sync::Arc::new(Special::Unknown {
                tag: "Zork@1".into(),
                state: inner,
            }))
        };
        let leaf = || {
            Value::Special(std::sync::Arc::new(Special::Hash {
                tag: "t".into(),
                bytes: vec![1],
            }))
        };
        let grow = |step: &dyn Fn(Value) -> Value| {
            let mut document = memory_wire::value!({ "/d": (leaf()) });
            loop {
                let next = memory_wire::value!({ "/d": (step(document.clone())) });
                if Extent::of(&next).depth > MAX_DOCUMENT_DEPTH {
                    return document;
                }
                document = next;
            }
        };
        for document in [grow(&slash), grow(&error), grow(&tagged)] {
            let sync = SessionSync {
                upserts: vec![Upsert {
                    branch: "".into(),
                    id: "of:x".into(),
                    scope: Scope::Space,
                    scope_key: None,
                    seq: Seq(1),
                    content: UpsertContent::Doc(document),
                    cover_class: None,
                }],
                ..SessionSync::default()
            };
            let body = WatchOk {
                server_seq: Seq(1),
                sync,
            }
            .to_value();
            let frame = ServerMessage::ok("r".into(), body).encode().unwrap();
            assert!(parse_server_message(&frame).is_ok());
        }
    });
}

fn set(document: &str) -> Result<ClientCommit, WireError> {
    let frame = format!(
        "fvj1:{{\"commit\":{{\"localSeq\":1,\"operations\":[{{\"id\":\"of:x\",\"op\":\"set\",\"value\":{document}}}],\
         \"reads\":{{\"confirmed\":[],\"pending\":[]}}}},\"requestId\":\"r\",\"sessionId\":\"s\",\"space\":\"did:key:z\",\"type\":\"transact\"}}"
    );
    match parse_client_message(&frame).unwrap() {
        ClientMessage::Transact(request) => ClientCommit::from_value(&request.commit),
        other => panic!("{}", other.type_name()),
    }
}

/// The message, the commit, its operations and the operation.
const AROUND_A_DOCUMENT: usize = 4;

#[test]
fn wire_312_a_message_of_1024_levels_may_set_any_document() {
    on_small_stack(|| {
        for shape in SHAPES {
            let levels = (1024 - AROUND_A_DOCUMENT) / shape.2;
            assert!(set(&nested(shape, levels, "\"\"")[5..]).is_ok(), "{}", shape.0);
        }
        let literal = format!(
            "{{\"/quote\":{}}}",
            &nested(("{\"/a\":", "}", 1), 1024 - AROUND_A_DOCUMENT - 1, "1")[5..]
        );
        assert!(set(&literal).is_ok());
    });
}

#[test]
fn wire_312_a_document_beyond_its_depth_is_refused_by_name() {
    on_small_stack(|| {
        let plain = |levels| nested(("{\"a\":", "}", 1), levels, "1")[5..].to_owned();
        assert!(set(&plain(MAX_DOCUMENT_DEPTH)).is_ok());
        let error = set(&plain(MAX_DOCUMENT_DEPTH + 1)).unwrap_err();
        assert_eq!(error.name, ErrorName::Protocol);
        assert_eq!(
            error.message,
            "commit.operations[0].value: document nests deeper than 2040 levels"
        );
    });
}

#[test]
fn wire_312_a_patch_that_nests_too_deep_is_refused_at_the_door() {
    let commit = |path: &str| {
        let commit = memory_wire::value!({
            "localSeq": 1,
            "reads": { "confirmed": [], "pending": [] },
            "operations": [{ "op": "patch", "id": "of:x", "patches": [{ "op": "add", "path": path, "value": [1] }] }]
        });
        ClientCommit::from_value(&commit).map_err(|error| error.name)
    };
    assert!(commit(&"/a".repeat(MAX_DOCUMENT_DEPTH - 1)).is_ok());
    assert_eq!(
        commit(&"/a".repeat(MAX_DOCUMENT_DEPTH)).unwrap_err(),
        ErrorName::Protocol
    );
}

#[test]
fn wire_305_regular_expressions_cost_a_bounded_time_in_all() {
    // Judged one by one without a budget, these would take the better part of an hour.
    let one = "{\"/RegExp@1\":{\"flags\":\"iv\",\"source\":\"\\\\p{RGI_Emoji}\\\\p{L}\"}},".repeat(50_000);
    let value = decode(&format!("fvj1:[{one}0]")).unwrap();
    assert_eq!(value.as_array().map(Array::len), Some(50_001));
    // The budget is a text's own: the next one is judged again, whatever its case flag.
    for flags in ["", "i", "iu"] {
        let text = format!("fvj1:{{\"/RegExp@1\":{{\"flags\":\"{flags}\",\"source\":\"(\"}}}}");
        assert!(matches!(
            decode(&text).unwrap_err().reason,
            DecodeReason::BadRegExp(_)
        ));
    }
}

#[test]
fn wire_304_large_containers_keep_their_members_whatever_is_pending_around_them() {
    for size in [4095usize, 4096, 4097, 10_000] {
        let numbers = (0..size).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let mut keys: Vec<String> = (0..size).map(|n| format!("\"k{n:05}\":[{n}]")).collect();
        keys.sort();
        let text = format!(
            "fvj1:[\"before\",{{\"a\":1,\"b\":[[{numbers}],{{{}}},\"between\",[{numbers}]]}},\"after\"]",
            keys.join(",")
        );
        assert_eq!(encode(&decode(&text).unwrap()).unwrap(), text, "{size}");
    }
}
