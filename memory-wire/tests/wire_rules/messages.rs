//! Requests, answers and commits (WIRE §7).

use memory_wire::codec::{decode, encode};
use memory_wire::error::{ErrorName, FailedPrecondition, Retriability, SocketClose, WireError};
use memory_wire::flags::Flags;
use memory_wire::message::{
    AckOk, AppliedCommit, ClientCommit, ClientMessage, EntityIdListOk, GraphQuery, GraphQueryOk,
    OpenChallenge, Operation, Precondition, Root, ServerMessage, SessionOpenOk, SqliteQueryOk,
    parse_client_message, parse_server_message,
};
use memory_wire::{Scope, ScopeKey, Value, value};

fn frame(value: Value) -> String {
    encode(&value).unwrap()
}

fn request(more: Value) -> Result<ClientMessage, String> {
    let mut object = value!({ "requestId": "r", "space": "did:key:zS", "sessionId": "s" })
        .as_object()
        .unwrap()
        .clone();
    for (key, member) in more.as_object().unwrap().iter() {
        object.insert(key.clone(), member.clone());
    }
    parse_client_message(&frame(object.into())).map_err(|error| error.field.to_owned())
}

fn text(value: &Value) -> String {
    encode(value).unwrap()["fvj1:".len()..].to_owned()
}

#[test]
fn wire_701_a_message_is_one_encoded_object_with_a_type() {
    let hello = "fvj1:{\"flags\":{},\"protocol\":\"memory\",\"type\":\"hello\"}";
    assert!(parse_client_message(hello).is_ok());
    for no_message in [
        &hello[5..],
        "fvj1:[]",
        "fvj1:{}",
        "fvj1:{\"type\":1}",
        "fvj1:{\"type\":\"session.close\"}",
        "",
    ] {
        assert!(parse_client_message(no_message).is_err(), "{no_message}");
    }
}

#[test]
fn wire_702_closes_carry_the_codes_and_reasons_of_the_list() {
    for (close, code, reason) in [
        (
            SocketClose::NotMemoryProtocol,
            1002,
            "Memory websocket expects memory protocol",
        ),
        (SocketClose::SetupFailure, 1011, "Memory websocket setup failure"),
        (
            SocketClose::BinaryFrame,
            1003,
            "Memory websocket expects text frames",
        ),
        (
            SocketClose::ReceiveFailure,
            1011,
            "Memory websocket receive failure",
        ),
        (
            SocketClose::NegotiationBuffer,
            1009,
            "Memory websocket negotiation buffer exceeded",
        ),
        (
            SocketClose::BadFrame,
            1002,
            "Memory websocket expects well-formed frames",
        ),
        (SocketClose::InvalidText, 1007, "Memory websocket expects UTF-8"),
    ] {
        assert_eq!((close.code(), close.reason()), (code, reason));
    }
}

#[test]
fn wire_711_a_hello_and_its_answer() {
    let answer = |change: &dyn Fn(&mut memory_wire::Object)| {
        let base = value!({
            "type": "hello.ok", "protocol": "memory", "flags": { "entityIdListing": true },
            "sessionOpen": { "audience": "did:key:zB", "challenge": { "value": "5a", "expiresAt": 7 } }
        });
        let mut object = base.as_object().unwrap().clone();
        change(&mut object);
        parse_server_message(&frame(object.into()))
    };
    let ServerMessage::HelloOk(ok) = answer(&|_| {}).unwrap() else {
        panic!()
    };
    assert!(ok.flags.entity_id_listing && !ok.flags.modern_cell_rep);
    assert_eq!(
        ok.session_open,
        OpenChallenge {
            audience: "did:key:zB".into(),
            value: "5a".into(),
            expires_at: 7
        }
    );
    assert!(answer(&|o| drop(o.insert("protocol", "other"))).is_err());
    assert!(answer(&|o| drop(o.remove("sessionOpen"))).is_err());
    assert!(
        answer(&|o| drop(o.insert("sessionOpen", value!({ "audience": "x", "challenge": {} })))).is_err()
    );
}

#[test]
fn wire_721_a_session_open_asks_and_is_answered() {
    let open = value!({
        "type": "session.open", "requestId": "r", "space": "did:key:zS",
        "session": { "sessionId": "s", "seenSeq": 4, "sessionToken": 5, "actingAs": "anything" }, "invocation": {}, "authorization": 1
    });
    let Ok(ClientMessage::SessionOpen(open)) = parse_client_message(&frame(open)) else {
        panic!()
    };
    assert_eq!(open.session.session_id.unwrap().as_str(), "s");
    assert!(open.session.session_token.is_none(), "a wrong type is absent");
    assert_eq!(
        open.session.acting_as.as_deref(),
        Some("anything"),
        "WIRE-724 judges it, not the parser"
    );
    let body = "{\"caughtUpLocalSeq\":0,\"resumed\":true,\"serverSeq\":3,\"sessionId\":\"s\",\"sessionOpen\":{\"audience\":\"did:key:zB\",\
        \"challenge\":{\"expiresAt\":7,\"value\":\"5a\"}},\"sessionToken\":\"t\"}";
    let ok = SessionOpenOk::from_value(&decode(&format!("fvj1:{body}")).unwrap()).unwrap();
    assert_eq!(text(&ok.to_value()), body);
}

#[test]
fn wire_724_acting_as_is_part_of_the_signed_descriptor() {
    let descriptor = memory_wire::message::SessionDescriptor {
        acting_as: Some("space-owner".into()),
        ..Default::default()
    };
    assert_eq!(text(&descriptor.to_value()), "{\"actingAs\":\"space-owner\"}");
}

#[test]
fn wire_731_the_fields_of_a_commit() {
    let commit = value!({
        "localSeq": 3, "branch": "b", "codeCID": "x",
        "reads": {
            "confirmed": [{ "id": "of:a", "path": ["value"], "seq": 2, "nonRecursive": true, "scope": "user", "branch": "c" }],
            "pending": [{ "id": "of:a", "path": [], "localSeq": 1 }, { "id": "of:a", "path": [], "localSeq": [1, 2], "basisSeq": 0 }]
        },
        "operations": [
            { "op": "set", "id": "of:a", "value": {} }, { "op": "patch", "id": "of:a", "patches": [] },
            { "op": "delete", "id": "of:a" }, { "op": "sqlite", "db": { "id": "d" }, "sql": "x" }
        ],
        "preconditions": [
            { "kind": "origin-committed", "originLocalSeq": 1 }, { "kind": "entity-absent", "id": "of:a" },
            { "kind": "entity-value-hash", "id": "of:a", "valueHash": null }
        ],
        "eventAppends": [{ "id": "of:stream-events:x", "eventId": "e" }]
    });
    let read = ClientCommit::from_value(&commit).unwrap();
    assert_eq!((read.local_seq.0, read.branch.as_str()), (3, "b"));
    let confirmed = &read.reads.confirmed[0];
    assert!(
        confirmed.non_recursive
            && confirmed.scope == Scope::User
            && confirmed.branch.as_ref().unwrap().as_str() == "c"
    );
    let pending: Vec<(usize, bool)> = read
        .reads
        .pending
        .iter()
        .map(|read| (read.local_seqs.len(), read.basis_seq.is_some()))
        .collect();
    assert_eq!(pending, [(1, false), (2, true)]);
    assert_eq!(
        read.operations.iter().map(Operation::kind).collect::<Vec<_>>(),
        ["set", "patch", "delete", "sqlite"]
    );
    assert!(matches!(
        read.preconditions[..],
        [
            Precondition::OriginCommitted { .. },
            Precondition::EntityAbsent { .. },
            Precondition::EntityValueHash { value_hash: None, .. }
        ]
    ));
    assert_eq!(read.event_appends[0].event_id.as_str(), "e");
    assert_eq!(text(&read.value), text(&commit), "kept as it came");
}

#[test]
fn wire_732_an_accepted_commits_answer() {
    let body = "{\"branch\":\"\",\"elidedOpIndexes\":[1],\"replayed\":true,\"revisions\":[{\"branch\":\"\",\"commitSeq\":5,\"document\":{},\"id\":\"of:a\",\
        \"op\":\"set\",\"opIndex\":0,\"scope\":\"space\",\"scopeKey\":\"space\",\"seq\":5},{\"branch\":\"\",\"commitSeq\":5,\"id\":\"of:b\",\"op\":\"patch\",\"opIndex\":2,\
        \"patches\":[],\"scope\":\"user\",\"scopeKey\":\"user:a\",\"seq\":5}],\"seq\":5}";
    let applied = AppliedCommit::from_value(&decode(&format!("fvj1:{body}")).unwrap()).unwrap();
    assert!(applied.replayed);
    assert_eq!(applied.revisions[1].scope_key, ScopeKey::parse("user:a").unwrap());
    assert_eq!(text(&applied.to_value()), body);
}

#[test]
fn wire_733_a_replay_is_compared_by_its_encoded_form() {
    // Two spellings of one commit have one encoded form; a present-undefined member makes another.
    let base = "{\"localSeq\":1,\"operations\":[],\"preconditions\":[{\"kind\":\"entity-absent\",\"id\":\"of:x\"}],\"reads\":{\"confirmed\":[],\"pending\":[]}}";
    let commit = |body: &str| ClientCommit::from_value(&decode(&format!("fvj1:{body}")).unwrap()).unwrap();
    let reordered = "{ \"reads\":{\"pending\":[],\"confirmed\":[]}, \"preconditions\":[{\"id\":\"of:x\",\"kind\":\"entity-absent\"}],\"operations\":[],\"localSeq\":1}";
    assert_eq!(text(&commit(base).value), text(&commit(reordered).value));
    let with_undefined = base.replace(
        "{\"localSeq\"",
        "{\"branch\":{\"/Undefined@1\":null},\"localSeq\"",
    );
    assert_ne!(text(&commit(base).value), text(&commit(&with_undefined).value));
}

#[test]
fn wire_734_errors_carry_what_clients_act_on() {
    let conflict = WireError::conflict("stale confirmed read: of:x at seq 1 conflicted with seq 2", 2);
    assert_eq!(
        text(&conflict.to_value()),
        "{\"message\":\"stale confirmed read: of:x at seq 1 conflicted with seq 2\",\"name\":\"ConflictError\",\"retryAfterSeq\":2}"
    );
    let failed = WireError::precondition_failed("x", FailedPrecondition::ReceiptExists);
    assert_eq!(
        failed.to_value().member("precondition").and_then(Value::as_str),
        Some("receipt-exists")
    );
    assert_eq!(
        FailedPrecondition::from_name("origin-committed"),
        Some(FailedPrecondition::OriginCommitted)
    );
    // A refusal that a retry cannot change has a name that is not retried.
    for name in [
        ErrorName::Protocol,
        ErrorName::PreconditionFailed,
        ErrorName::RowLabelCommit,
    ] {
        assert_eq!(name.retriability(), Retriability::Never, "{name:?}");
    }
    assert_eq!(
        ErrorName::EventAppendDuplicate.retriability(),
        Retriability::Delivered
    );
    assert_eq!(ErrorName::Transaction.retriability(), Retriability::Bounded);
}

#[test]
fn wire_735_content_addressed_ids_are_recognised_by_their_scheme() {
    let id = |text: &str| memory_wire::EntityId::from(text).is_content_addressed();
    assert!(id("cid:fid1:x"));
    assert!(!id("of:cid:fid1:x") && !id("computed:fid1:x"));
}

#[test]
fn wire_741_preconditions_name_their_scope_and_hash() {
    let read = |value: Value| {
        let commit = value!({ "localSeq": 1, "reads": { "confirmed": [], "pending": [] }, "operations": [], "preconditions": [value] });
        ClientCommit::from_value(&commit).map(|commit| commit.preconditions[0].clone())
    };
    let absent = read(value!({ "kind": "entity-absent", "id": "of:x", "scope": "session" })).unwrap();
    assert!(matches!(
        absent,
        Precondition::EntityAbsent {
            scope: Scope::Session,
            ..
        }
    ));
    let hashed = read(value!({ "kind": "entity-value-hash", "id": "of:x", "valueHash": "h" })).unwrap();
    assert!(
        matches!(hashed, Precondition::EntityValueHash { value_hash: Some(hash), scope: Scope::Space, .. } if hash == "h")
    );
    assert!(
        read(value!({ "kind": "entity-value-hash", "id": "of:x" })).is_err(),
        "null says absent, nothing says nothing"
    );
    assert!(read(value!({ "kind": "entity-value-hash", "id": "of:x", "valueHash": 1 })).is_err());
}

#[test]
fn wire_745_entity_id_listing() {
    for (fields, fine) in [
        (value!({}), true),
        (
            value!({ "after": "of:a", "limit": 1, "expectedServerSeq": 0 }),
            true,
        ),
        (value!({ "limit": 0 }), false),
        (value!({ "limit": 1.5 }), false),
        (value!({ "after": 1 }), false),
        (value!({ "expectedServerSeq": (-1) }), false),
    ] {
        let mut object = fields.as_object().unwrap().clone();
        object.insert("type", "entity-id.list");
        assert_eq!(request(object.into()).is_ok(), fine, "{fields:?}");
    }
    let body = "{\"ids\":[\"of:a\"],\"nextAfter\":\"of:a\",\"serverSeq\":3}";
    assert_eq!(
        text(
            &EntityIdListOk::from_value(&decode(&format!("fvj1:{body}")).unwrap())
                .unwrap()
                .to_value()
        ),
        body
    );
}

#[test]
fn wire_746_a_graph_query_and_its_snapshots() {
    let query = GraphQuery::from_value(&value!({
        "roots": [{ "id": "of:a", "selector": { "path": ["x", "y"], "schema": false } }], "branch": "b", "atSeq": 4, "excludeSent": true
    }))
    .unwrap();
    assert_eq!(
        (query.branch.as_str(), query.at_seq.map(|seq| seq.0)),
        ("b", Some(4))
    );
    assert_eq!(query.roots[0].selector.path, ["x", "y"]);
    let body = "{\"entities\":[{\"branch\":\"\",\"document\":null,\"id\":\"of:a\",\"seq\":0},{\"branch\":\"\",\"coverClass\":\"derived\",\"document\":{},\
        \"id\":\"of:a\",\"scope\":\"user\",\"scopeKey\":\"user:a\",\"seq\":2}],\"serverSeq\":2}";
    assert_eq!(
        text(
            &GraphQueryOk::from_value(&decode(&format!("fvj1:{body}")).unwrap())
                .unwrap()
                .to_value()
        ),
        body
    );
}

#[test]
fn wire_747_a_named_instance_has_to_be_a_key() {
    let error =
        Root::from_value(&value!({ "id": "of:x", "entityScopeKey": "user:a:b", "selector": { "path": [] } }))
            .unwrap_err();
    assert_eq!(
        (error.name, error.message.as_str()),
        (
            ErrorName::Protocol,
            "malformed entity_scope_key \"user:a:b\" on read root of:x"
        )
    );
}

#[test]
fn wire_761_acknowledgements() {
    let Ok(ClientMessage::Ack(ack)) = request(value!({ "type": "session.ack", "seenSeq": 7 })) else {
        panic!()
    };
    assert_eq!(ack.seen_seq, 7.0);
    assert!(request(value!({ "type": "session.ack", "seenSeq": "7" })).is_err());
    assert_eq!(
        text(
            &AckOk {
                server_seq: memory_wire::Seq(7)
            }
            .to_value()
        ),
        "{\"serverSeq\":7}"
    );
}

#[test]
fn wire_763_the_name_of_an_unopened_session_is_terminal() {
    let error = WireError::session("Session is not open on this connection");
    assert_eq!(
        (error.name.as_str(), error.name.retriability()),
        ("SessionError", Retriability::Never)
    );
    assert_eq!(ErrorName::SessionRevoked.retriability(), Retriability::NewSession);
}

#[test]
fn wire_765_sqlite_requests() {
    let query = |db: Value, sql: &str| {
        request(value!({ "type": "sqlite.query", "db": db, "sql": sql, "params": "dropped" }))
    };
    let Ok(ClientMessage::SqliteQuery(read)) =
        query(value!({ "id": "d", "scope": "user", "owner": "x" }), "select 1")
    else {
        panic!()
    };
    assert!(
        read.params.is_none() && read.db.owner.is_none(),
        "params of another kind and an owner are dropped"
    );
    for (db, sql) in [
        (value!({ "id": "" }), "s".to_owned()),
        (value!({ "id": ("d".repeat(257)) }), "s".to_owned()),
        (value!({ "id": "d", "scope": "team" }), "s".to_owned()),
        (value!({ "id": "d", "tables": [] }), "s".to_owned()),
        (value!({ "id": "d" }), "s".repeat(100_001)),
    ] {
        assert!(query(db, &sql).is_err());
    }
    let body = "{\"columns\":[\"n\"],\"rows\":[[1]]}";
    assert_eq!(
        text(
            &SqliteQueryOk::from_value(&decode(&format!("fvj1:{body}")).unwrap())
                .unwrap()
                .to_value()
        ),
        body
    );
}

#[test]
fn wire_776_a_read_ceiling_is_part_of_the_signed_descriptor() {
    let open = value!({
        "type": "session.open", "requestId": "r", "space": "did:key:zS",
        "session": { "readCeiling": { "maxConfidentiality": ["a"], "onExceed": "fail" } }
    });
    let Ok(ClientMessage::SessionOpen(open)) = parse_client_message(&frame(open)) else {
        panic!()
    };
    assert_eq!(
        text(&open.session.to_value()),
        "{\"readCeiling\":{\"maxConfidentiality\":[\"a\"],\"onExceed\":\"fail\"}}"
    );
}

#[test]
fn wire_777_flags_of_later_clients_are_ignored() {
    let later = value!({ "stableExpressionResultIds": true, "serverExecution": 1, "presenceV1": {}, "messageCompressionV1": null });
    assert_eq!(
        Flags::from_object(later.as_object().unwrap()),
        Some(Flags::default())
    );
    let unknown = request(value!({ "type": "session.ack", "seenSeq": 1, "holdings": [1] }));
    assert!(unknown.is_ok(), "unknown fields are dropped");
}

#[test]
fn wire_806_other_failures_of_an_open_are_protocol_errors() {
    // A server answers by name, and the list has one for each of the three that a client tells apart.
    for name in ["AuthorizationError", "SessionRevokedError", "ProtocolError"] {
        assert!(ErrorName::from_name(name).is_some(), "{name}");
    }
    assert_eq!(ErrorName::Authorization.retriability(), Retriability::WhenMarked);
}
