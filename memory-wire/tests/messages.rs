//! What messages and queries accept and refuse beyond the golden vectors (WIRE-704, 705, 747, 775, 776; SRV-321, 604,
//! 1001).

mod long;

use long::same_cases;
use memory_wire::codec::encode;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::js_string::JsString;
use memory_wire::message::{
    AppliedCommit, ClientCommit, ClientMessage, GraphQuery, Hello, OnExceed, Root, Selector, ServerMessage,
    SessionOpenOk, Unparseable, ViewMode, Watch, WatchKind, WatchOk, parse_client_message,
};
use memory_wire::scope_key::Scope;
use memory_wire::value;
use memory_wire::value::{Object, Value};
use proptest::prelude::*;

#[test]
fn wire_705_roots_and_watches_are_refused_by_name() {
    let query = |value: Value| GraphQuery::from_value(&value).map_err(|error| (error.name, error.message));
    let root = |root: Value| query(value!({ "roots": [root] })).map(|q| q.roots[0].clone());
    assert_eq!(root(value!(null)).unwrap_err().0, ErrorName::Protocol);
    assert_eq!(root(value!({ "id": "of:x" })).unwrap_err().0, ErrorName::Query);
    assert_eq!(
        root(value!({ "selector": { "path": [] } })).unwrap_err().0,
        ErrorName::Query
    );
    assert_eq!(
        root(value!({ "id": "of:x", "scope": "team", "selector": { "path": [] } }))
            .unwrap_err()
            .0,
        ErrorName::Query
    );
    assert_eq!(
        root(value!({ "id": "of:x", "selector": { "path": [1] } }))
            .unwrap_err()
            .0,
        ErrorName::Query
    );
    assert_eq!(query(value!({})).unwrap_err().0, ErrorName::Protocol);
    assert!(
        query(value!({ "roots": [], "subscribe": true }))
            .unwrap()
            .subscribe
    );
    assert!(
        !query(value!({ "roots": [], "subscribe": false }))
            .unwrap()
            .subscribe
    );

    let watch = |value: Value| Watch::from_value(&value).map_err(|error| (error.name, error.message));
    let missing = watch(value!({ "id": "w", "kind": "graph" })).unwrap_err();
    assert_eq!(
        missing,
        (
            ErrorName::Protocol,
            "watch.query: expected an object, got undefined".to_owned()
        )
    );
    assert_eq!(watch(value!(null)).unwrap_err().0, ErrorName::Protocol);
    assert_eq!(
        watch(value!({ "kind": "graph", "query": { "roots": [] } }))
            .unwrap_err()
            .0,
        ErrorName::Protocol
    );

    let built = Watch {
        id: "w".into(),
        kind: WatchKind::Query,
        query: GraphQuery::of(vec![Root::new(
            "of:x",
            Scope::User,
            Selector {
                path: vec!["a".into()],
                schema: Some(true.into()),
            },
        )]),
    };
    let read = Watch::from_value(&built.to_value()).unwrap();
    assert_eq!(encode(&read.to_value()), encode(&built.to_value()));
}

#[test]
fn srv_604_a_named_instance_has_to_be_canonical_and_fit_its_scope() {
    let root = |scope: Value, key: &str| {
        let value =
            value!({ "id": "of:u", "scope": scope, "entityScopeKey": key, "selector": { "path": [] } });
        Root::from_value(&value).map_err(|error| (error.name, error.message))
    };
    let named = root(Value::Undefined, "user:did%3Akey%3AzA").unwrap();
    assert_eq!(named.scope, Scope::User, "an absent scope is taken from the key");
    assert!(root("user".into(), "user:did%3Akey%3AzA").is_ok());
    for (scope, key) in [
        (value!("user"), "user:a/b"),
        (value!("session"), "user:x"),
        (value!("space"), "user:x"),
    ] {
        let malformed = format!("malformed entity_scope_key \"{key}\" on read root of:u");
        assert_eq!(root(scope, key).unwrap_err(), (ErrorName::Protocol, malformed));
    }
}

fn open(session: Value) -> Result<ClientMessage, Unparseable> {
    ClientMessage::from_value(
        &value!({ "type": "session.open", "requestId": "r", "space": "did:key:zS", "session": session }),
    )
}

#[test]
fn srv_321_a_malformed_read_ceiling_makes_the_message_unparseable() {
    let ceiling = |value: Value| match open(value!({ "readCeiling": value }))? {
        ClientMessage::SessionOpen(open) => {
            Ok::<_, Unparseable>(open.session.read_ceiling.expect("it was sent"))
        }
        other => panic!("{other:?}"),
    };
    let fine = ceiling(
        value!({ "maxConfidentiality": ["a", { "kind": "k" }, { "anyOf": ["x", {}] }], "onExceed": "skip" }),
    )
    .unwrap();
    assert_eq!(
        (fine.on_exceed(), fine.max_confidentiality().len()),
        (Some(OnExceed::Skip), 3)
    );
    for bad in [
        value!({}),
        value!({ "maxConfidentiality": [] }),
        value!({ "maxConfidentiality": "a" }),
        value!({ "maxConfidentiality": [""] }),
        value!({ "maxConfidentiality": [1] }),
        value!({ "maxConfidentiality": [{ "anyOf": [] }] }),
        value!({ "maxConfidentiality": [{ "anyOf": ["a"], "x": 1 }] }),
        value!({ "maxConfidentiality": [{ "anyOf": [{ "anyOf": ["a"] }] }] }),
        value!({ "maxConfidentiality": ["a"], "onExceed": "warn" }),
        value!({ "maxConfidentiality": ["a"], "future": true }),
        value!(null),
        value!("a"),
    ] {
        assert!(ceiling(bad.clone()).is_err(), "{}", encode(&bad).unwrap());
    }
    assert!(
        open(value!({ "readCeiling": (Value::Undefined) })).is_ok(),
        "present-undefined is absent"
    );
}

fn watch_set(views: Value) -> Result<ClientMessage, Unparseable> {
    ClientMessage::from_value(&value!({
        "type": "session.watch.set", "requestId": "r", "space": "did:key:zS", "sessionId": "s", "watches": [], "views": views
    }))
}

#[test]
fn wire_775_a_malformed_view_makes_the_message_unparseable() {
    let view = |change: &dyn Fn(&mut Object)| {
        let base = value!({
            "id": "v", "revision": 0, "mode": "render", "componentContractVersion": "1",
            "query": { "roots": [{ "id": "of:x", "selector": { "path": ["a"], "schema": true } }], "branch": "" }
        });
        let mut object = base.as_object().unwrap().clone();
        change(&mut object);
        Value::Object(object)
    };
    let set = |views: Value| match watch_set(views)? {
        ClientMessage::WatchSet(request) => Ok::<_, Unparseable>(request.views),
        other => panic!("{other:?}"),
    };
    let fine = set(value!([(view(&|_| {}))])).unwrap().unwrap();
    assert_eq!((fine[0].mode, fine[0].query.roots.len()), (ViewMode::Render, 1));
    assert_eq!(
        set(value!([])).unwrap().map(|views| views.len()),
        Some(0),
        "empty removes all"
    );
    assert!(set(Value::Undefined).unwrap().is_none(), "absent keeps them");

    let bad: Vec<Value> = vec![
        value!({}),
        value!([null]),
        value!([(view(&|_| {})), (view(&|_| {}))]),
        value!([(view(&|v| drop(v.insert("id", ""))))]),
        value!([(view(&|v| drop(v.insert("revision", -1))))]),
        value!([(view(&|v| drop(v.insert("revision", 0.5))))]),
        value!([(view(&|v| drop(v.insert("mode", "peek"))))]),
        value!([(view(&|v| drop(v.remove("componentContractVersion"))))]),
        value!([(view(&|v| drop(v.insert("query", value!({ "roots": [], "branch": "b" })))))]),
        value!([(view(&|v| drop(v.insert("query", value!({ "roots": [], "atSeq": 1 })))))]),
        value!([(view(&|v| drop(v.insert("query", value!({ "roots": [], "excludeSent": true })))))]),
        value!([(view(&|v| drop(v.insert(
            "query",
            value!({ "roots": [{ "id": "of:x", "selector": { "path": [1] } }] })
        ))))]),
        value!([(view(&|v| drop(v.insert(
            "query",
            value!({ "roots": [{ "id": "of:x", "selector": { "path": [], "schema": "x" } }] })
        ))))]),
        value!([(view(&|v| drop(v.insert(
            "query",
            value!({ "roots": [{ "id": "of:x", "entityScopeKey": "space", "selector": { "path": [] } }] })
        ))))]),
    ];
    for views in bad {
        assert!(set(views.clone()).is_err(), "{}", encode(&views).unwrap());
    }
}

#[test]
fn decision_5_unpaired_surrogates_in_identifiers_are_unparseable() {
    let lone = || Value::String(JsString::from_utf16(&[0x61, 0xD800]));
    for key in ["requestId", "space", "sessionId"] {
        let mut message = value!({
            "type": "session.ack", "requestId": "r", "space": "did:key:zS", "sessionId": "s", "seenSeq": 1
        });
        let Value::Object(object) = &mut message else {
            unreachable!()
        };
        object.insert(key, lone());
        let frame = encode(&message).unwrap();
        assert!(parse_client_message(&frame).is_err(), "{key}");
    }
    assert!(open(value!({ "sessionId": (lone()) })).is_err());
}

#[test]
fn a_client_hello_states_its_flags() {
    let flags = Flags {
        sync_schema_table_v2: true,
        ..Flags::default()
    };
    let frame = ClientMessage::Hello(Hello::new(flags)).encode().unwrap();
    let Ok(ClientMessage::Hello(hello)) = parse_client_message(&frame) else {
        panic!("{frame}")
    };
    assert_eq!((hello.protocol.as_str(), hello.flags), ("memory", flags));
}

/// Anything at all, with the words of the protocol strewn in.
fn anything() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 40] = [
        "type",
        "requestId",
        "space",
        "sessionId",
        "session",
        "commit",
        "query",
        "roots",
        "watches",
        "views",
        "seenSeq",
        "localSeq",
        "reads",
        "confirmed",
        "pending",
        "operations",
        "op",
        "id",
        "scope",
        "path",
        "patches",
        "preconditions",
        "kind",
        "selector",
        "schema",
        "entityScopeKey",
        "effect",
        "upserts",
        "removes",
        "doc",
        "ok",
        "error",
        "name",
        "message",
        "sync",
        "fromSeq",
        "toSeq",
        "readCeiling",
        "flags",
        "protocol",
    ];
    const TEXTS: [&str; 20] = [
        "transact",
        "session.open",
        "graph.query",
        "session.watch.set",
        "session/effect",
        "response",
        "hello",
        "hello.ok",
        "set",
        "patch",
        "delete",
        "sqlite",
        "user",
        "session",
        "space",
        "sync",
        "memory",
        "graph",
        "of:a",
        "/value",
    ];
    let leaf = prop_oneof![
        Just(Value::Undefined),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..6i32).prop_map(Value::from),
        Just(Value::Number(f64::INFINITY)),
        prop::sample::select(&TEXTS[..]).prop_map(Value::from),
        Just(Value::String(JsString::from_utf16(&[0xD800]))),
    ];
    leaf.prop_recursive(5, 48, 8, |inner| {
        prop_oneof![
            3 => prop::collection::vec((prop::sample::select(&WORDS[..]), inner.clone()), 0..8)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

proptest! {
    #![proptest_config(same_cases(1_000))]

    #[test]
    fn wire_705_no_contents_panic(value in anything()) {
        drop(ClientCommit::from_value(&value));
        drop(GraphQuery::from_value(&value));
        drop(Watch::from_value(&value));
        drop(Root::from_value(&value));
        drop(AppliedCommit::from_value(&value));
        drop(SessionOpenOk::from_value(&value));
        drop(WatchOk::from_value(&value));
        drop(ServerMessage::from_value(&value));
        // What parses can be written and reads back the same.
        if let Ok(message) = ClientMessage::from_value(&value) {
            let again = ClientMessage::from_value(&message.to_value()).unwrap();
            prop_assert_eq!(encode(&again.to_value()), encode(&message.to_value()));
        }
    }

    #[test]
    fn wire_704_client_messages_with_random_contents(value in anything(), kind in 0..5usize) {
        let kinds = ["transact", "graph.query", "session.watch.set", "session.open", "session.ack"];
        let mut object = value.as_object().cloned().unwrap_or_default();
        object.insert("type", kinds[kind]);
        object.insert("requestId", "r");
        object.insert("space", "did:key:zS");
        object.insert("sessionId", "s");
        if let Ok(message) = ClientMessage::from_value(&object.into()) {
            let again = ClientMessage::from_value(&message.to_value()).unwrap();
            prop_assert_eq!(encode(&again.to_value()), encode(&message.to_value()));
        }
    }
}
