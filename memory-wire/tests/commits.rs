//! What a commit accepts and refuses beyond the golden vectors (WIRE-705, 733, 736, 766, 1002; SRV-116, 117).

use memory_wire::codec::{decode, encode};
use memory_wire::error::{ErrorName, WireError};
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::js_string::JsString;
use memory_wire::message::{
    ClientCommit, CommitParts, ConfirmedRead, EventAppendDecl, Operation, PendingRead, Precondition, Reads,
    SqliteDb,
};
use memory_wire::patch::PatchOp;
use memory_wire::scope_key::Scope;
use memory_wire::value;
use memory_wire::value::{Object, Value};

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
fn decision_5_an_unpaired_surrogate_in_an_id_is_refused_for_good() {
    let lone = Value::String(JsString::from_utf16(&[0x61, 0xD800]));
    let operations = value!([{ "op": "delete", "id": lone }]);
    assert_eq!(
        refused(|c| drop(c.insert("operations", operations))).0,
        ErrorName::Protocol
    );
}
