//! What messages, commits and queries accept and refuse beyond the golden vectors (WIRE-704, 705, 733, 747, 775,
//! 776, 1002; SRV-116, 117, 321, 604, 1001).

use memory_wire::codec::{decode, encode};
use memory_wire::error::{ErrorName, WireError};
use memory_wire::flags::Flags;
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::js_string::JsString;
use memory_wire::message::{
    AppliedCommit, ClientCommit, ClientMessage, CommitParts, ConfirmedRead, EventAppendDecl, GraphQuery,
    Hello, OnExceed, Operation, PendingRead, Precondition, Reads, Root, Selector, ServerMessage,
    SessionOpenOk, SqliteDb, Unparseable, ViewMode, Watch, WatchKind, WatchOk, parse_client_message,
};
use memory_wire::patch::PatchOp;
use memory_wire::scope_key::Scope;
use memory_wire::value;
use memory_wire::value::{Object, Value};
use proptest::prelude::*;

fn commit(change: impl FnOnce(&mut Object)) -> Result<ClientCommit, WireError> {
    let base = value!({
        "localSeq": 1,
        "reads": { "confirmed": [], "pending": [] },
        "operations": [{ "op": "delete", "id": "of:a" }]
    });
    let mut object = base.as_object().unwrap().clone();
    change(&mut object);
    ClientCommit::from_value(&object.into())
}

fn refused(change: impl FnOnce(&mut Object)) -> (ErrorName, String) {
    let error = commit(change).unwrap_err();
    (error.name, error.message)
}

#[test]
fn srv_116_refusals_name_the_field_and_keep_the_reference_names() {
    let protocol = |message: &str| (ErrorName::Protocol, message.to_owned());
    let transaction = |message: &str| (ErrorName::Transaction, message.to_owned());

    assert_eq!(
        refused(|c| drop(c.remove("operations"))),
        protocol("commit.operations: expected an array, got undefined")
    );
    assert_eq!(
        refused(|c| drop(c.insert("operations", "abc"))),
        protocol("commit.operations: expected an array, got \"abc\"")
    );
    assert_eq!(
        refused(|c| drop(c.insert("operations", value!([null])))),
        protocol("commit.operations[0]: expected an object, got null")
    );
    assert_eq!(
        refused(|c| drop(c.insert("operations", value!([{ "op": "set", "value": {} }])))),
        transaction("commit.operations[0].id: expected a string, got undefined")
    );
    assert_eq!(
        refused(|c| drop(c.insert("operations", value!([{ "op": "zap", "id": "of:x" }])))).0,
        ErrorName::Transaction
    );
    assert_eq!(
        refused(|c| drop(c.insert(
            "operations",
            value!([{ "op": "set", "id": "of:x", "scope": "team", "value": {} }])
        ))),
        transaction("commit.operations[0].scope: expected \"space\", \"user\" or \"session\", got \"team\"")
    );
    assert_eq!(
        refused(|c| drop(c.remove("reads"))),
        transaction("commit.reads: expected an object, got undefined")
    );
    assert_eq!(refused(|c| drop(c.remove("localSeq"))).0, ErrorName::Transaction);
    assert_eq!(
        refused(|c| drop(c.insert("preconditions", value!([{ "kind": "moon-phase" }])))),
        protocol("unsupported commit precondition: moon-phase")
    );
    assert_eq!(
        refused(|c| drop(c.insert("preconditions", value!([{}])))),
        protocol("unsupported commit precondition: undefined")
    );
    assert_eq!(
        refused(|c| drop(c.insert(
            "operations",
            value!([{ "op": "patch", "id": "of:x", "patches": [{ "op": "zap" }] }])
        ))),
        protocol("commit.operations[0].patches: unknown patch operation: zap")
    );
}

#[test]
fn srv_117_local_seq_is_a_positive_safe_integer() {
    for bad in [
        value!("1"),
        value!(0),
        value!(-1),
        value!(1.5),
        value!(9_007_199_254_740_992.0),
        value!(null),
    ] {
        let shown = encode(&bad).unwrap();
        assert_eq!(
            refused(|c| drop(c.insert("localSeq", bad))).0,
            ErrorName::Protocol,
            "{shown}"
        );
    }
    assert_eq!(
        commit(|c| drop(c.insert("localSeq", 9_007_199_254_740_991.0)))
            .unwrap()
            .local_seq
            .0,
        (1 << 53) - 1
    );
}

#[test]
fn wire_736_pending_reads_are_refused_with_the_engines_texts() {
    let pending =
        |read: Value| refused(|c| drop(c.insert("reads", value!({ "confirmed": [], "pending": [read] })))).1;
    let read = |extra: Value| {
        let mut read = value!({ "id": "of:a", "path": ["value"] })
            .as_object()
            .unwrap()
            .clone();
        for (key, member) in extra.as_object().unwrap().iter() {
            read.insert(key.clone(), member.clone());
        }
        Value::Object(read)
    };
    assert_eq!(
        pending(read(value!({}))),
        "pending read on of:a names no localSeq"
    );
    assert_eq!(
        pending(read(value!({ "localSeq": [] }))),
        "pending read on of:a names no localSeq"
    );
    assert_eq!(
        pending(read(value!({ "localSeq": [1, "2"] }))),
        "pending read on of:a names a non-integer localSeq"
    );
    assert_eq!(
        pending(read(value!({ "localSeq": 1, "basisSeq": (-1) }))),
        "pending read on of:a names a malformed basisSeq: -1"
    );
}

#[test]
fn wire_766_a_bad_event_declaration_is_never_retryable() {
    for bad in [
        value!({}),
        value!({ "id": "of:x" }),
        value!({ "id": "of:x", "eventId": "e", "scope": "team" }),
        value!(null),
    ] {
        assert_eq!(
            refused(|c| drop(c.insert("eventAppends", value!([bad])))).0,
            ErrorName::Protocol
        );
    }
}

#[test]
fn decision_28_unsafe_patch_tokens_are_refused_at_the_door() {
    let patches = value!([{ "op": "add", "path": "/value/__proto__/x", "value": 1 }]);
    let operations = value!([{ "op": "patch", "id": "of:x", "patches": patches }]);
    let (name, message) = refused(|c| drop(c.insert("operations", operations)));
    assert_eq!(name, ErrorName::Protocol);
    assert_eq!(
        message,
        "commit.operations[0].patches: unsafe key \"__proto__\" in path /value/__proto__/x"
    );
}

#[test]
fn wire_1002_a_commit_keeps_exactly_what_arrived() {
    let text = "fvj1:{\"class\":\"derived\",\"codeCID\":\"x\",\"holder\":\"did:key:z#1\",\"localSeq\":3,\"merge\":{\"/Undefined@1\":null},\
        \"operations\":[{\"extra\":1,\"id\":\"of:a\",\"op\":\"patch\",\"patches\":[{\"later\":true,\"op\":\"remove\",\"path\":\"/value\"}],\
        \"scope\":\"user\"}],\"reads\":{\"confirmed\":[],\"pending\":[]}}";
    let value = decode(text).unwrap();
    let commit = ClientCommit::from_value(&value).unwrap();
    assert_eq!(encode(&commit.value).unwrap(), text);
    let [Operation::Patch { scope, patches, .. }] = commit.operations.as_slice() else {
        panic!("one patch")
    };
    assert_eq!((*scope, patches.len()), (Scope::User, 1));
}

#[test]
fn a_built_commit_reads_back_as_itself() {
    let parts = CommitParts {
        branch: "b".into(),
        reads: Reads {
            confirmed: vec![ConfirmedRead {
                id: "of:a".into(),
                scope: Scope::Session,
                branch: Some("c".into()),
                path: vec!["value".into(), "x".into()],
                seq: Seq(4),
                non_recursive: true,
            }],
            pending: vec![PendingRead {
                id: "of:b".into(),
                scope: Scope::Space,
                path: vec![],
                local_seqs: vec![LocalSeq(1), LocalSeq(2)],
                basis_seq: Some(Seq(0)),
                non_recursive: false,
            }],
        },
        operations: vec![
            Operation::Set {
                id: "of:a".into(),
                scope: Scope::Space,
                value: value!({ "value": 1 }),
            },
            Operation::Patch {
                id: "of:b".into(),
                scope: Scope::User,
                patches: vec![PatchOp::increment(vec!["value".into()], 2.0, true)],
            },
            Operation::Delete {
                id: "of:c".into(),
                scope: Scope::Session,
            },
            Operation::Sqlite {
                db: SqliteDb {
                    id: "d".into(),
                    tables: None,
                    scope: Some(Scope::User),
                    owner: None,
                },
                sql: "insert".into(),
                params: Some(value!([1])),
            },
        ],
        preconditions: vec![
            Precondition::OriginCommitted {
                origin_local_seq: LocalSeq(2),
            },
            Precondition::EntityAbsent {
                id: "of:a".into(),
                scope: Scope::Space,
            },
            Precondition::EntityValueHash {
                id: "of:b".into(),
                scope: Scope::User,
                value_hash: None,
            },
        ],
        event_appends: vec![EventAppendDecl {
            id: "of:s".into(),
            scope: Scope::Space,
            event_id: "e".into(),
        }],
    };
    let built = ClientCommit::build(LocalSeq(7), parts);
    let read = ClientCommit::from_value(&decode(&encode(&built.value).unwrap()).unwrap()).unwrap();
    assert_eq!(read.local_seq, built.local_seq);
    assert_eq!(read.branch, built.branch);
    assert_eq!(read.reads, built.reads);
    assert_eq!(read.preconditions, built.preconditions);
    assert_eq!(read.event_appends, built.event_appends);
    let operations = |commit: &ClientCommit| {
        encode(&Value::from(
            commit
                .operations
                .iter()
                .map(Operation::to_value)
                .collect::<Vec<_>>(),
        ))
    };
    assert_eq!(operations(&read), operations(&built));
    assert_eq!(
        read.operations.iter().map(Operation::kind).collect::<Vec<_>>(),
        ["set", "patch", "delete", "sqlite"]
    );
}

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
    let operations = value!([{ "op": "delete", "id": (lone()) }]);
    assert_eq!(
        refused(|c| drop(c.insert("operations", operations))).0,
        ErrorName::Protocol
    );
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
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

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
