//! Watches and sync frames (WIRE §7.9).

use memory_wire::codec::{decode, encode};
use memory_wire::link::Regime;
use memory_wire::message::{
    Effect, RevokedReason, ServerMessage, SessionSync, Watch, WatchKind, WatchOk, parse_server_message,
};
use memory_wire::schema_table::find_reserved_reference;
use memory_wire::{Value, value};

fn text(value: &Value) -> String {
    encode(value).unwrap()["fvj1:".len()..].to_owned()
}

fn sync(body: &str) -> Result<SessionSync, String> {
    SessionSync::from_value(&decode(&format!("fvj1:{body}")).unwrap()).map_err(|error| error.field.to_owned())
}

#[test]
fn wire_751_watches_are_named_queries() {
    let watch =
        |kind: &str| Watch::from_value(&value!({ "id": "w", "kind": kind, "query": { "roots": [] } }));
    assert_eq!(watch("graph").unwrap().kind, WatchKind::Graph);
    assert_eq!(watch("query").unwrap().kind, WatchKind::Query);
    assert!(watch("poll").is_err());
    let body = "{\"serverSeq\":4,\"sync\":{\"fromSeq\":1,\"removes\":[],\"toSeq\":4,\"type\":\"sync\",\"upserts\":[]}}";
    assert_eq!(
        text(
            &WatchOk::from_value(&decode(&format!("fvj1:{body}")).unwrap())
                .unwrap()
                .to_value()
        ),
        body
    );
}

#[test]
fn wire_752_the_fields_of_a_sync_frame() {
    let body = "{\"caughtUpLocalSeq\":2,\"fromSeq\":1,\"removes\":[{\"branch\":\"\",\"id\":\"of:c\",\"scope\":\"space\"}],\"toSeq\":4,\"type\":\"sync\",\"upserts\":[\
        {\"branch\":\"\",\"doc\":{\"value\":1},\"id\":\"of:a\",\"scope\":\"space\",\"seq\":4},{\"branch\":\"\",\"deleted\":true,\"id\":\"of:b\",\"scope\":\"user\",\"seq\":0}]}";
    assert_eq!(text(&sync(body).unwrap().to_value()), body);
    // Either a document or a deletion, never both or neither.
    for bad in ["\"doc\":{\"value\":1},", "\"deleted\":true,"] {
        let neither = body.replacen(bad, "", 1);
        assert!(sync(&neither).is_err(), "{neither}");
    }
    assert!(sync(&body.replacen("\"deleted\":true", "\"deleted\":true,\"doc\":{}", 1)).is_err());
    assert!(
        sync(&body.replacen("\"scope\":\"space\",", "", 1)).is_err(),
        "scope is always stated"
    );
}

#[test]
fn wire_753_a_push_names_its_space_and_session() {
    let frame = ServerMessage::Effect(Effect {
        space: "did:key:zS".into(),
        session_id: "s".into(),
        sync: SessionSync::default(),
    })
    .encode()
    .unwrap();
    assert_eq!(
        frame,
        "fvj1:{\"effect\":{\"fromSeq\":0,\"removes\":[],\"toSeq\":0,\"type\":\"sync\",\"upserts\":[]},\"sessionId\":\"s\",\"space\":\"did:key:zS\",\"type\":\"session/effect\"}"
    );
    assert!(matches!(
        parse_server_message(&frame),
        Ok(ServerMessage::Effect(_))
    ));
}

#[test]
fn wire_754_a_marker_stands_in_an_empty_frame_too() {
    let marked = sync(
        "{\"caughtUpLocalSeq\":7,\"fromSeq\":3,\"removes\":[],\"toSeq\":3,\"type\":\"sync\",\"upserts\":[]}",
    )
    .unwrap();
    assert_eq!(marked.caught_up_local_seq.map(|seq| seq.0), Some(7));
    assert!(sync("{\"caughtUpLocalSeq\":-1,\"fromSeq\":3,\"removes\":[],\"toSeq\":3,\"type\":\"sync\",\"upserts\":[]}").is_err());
}

#[test]
fn wire_755_keys_are_on_every_record_of_a_keyed_session_or_on_none() {
    let record = |key: &str| {
        format!(
            "{{\"fromSeq\":0,\"removes\":[{{\"branch\":\"\",\"id\":\"of:c\",\"scope\":\"user\"{key}}}],\"toSeq\":1,\"type\":\"sync\",\"upserts\":[{{\"branch\":\"\",\"deleted\":true,\"id\":\"of:a\",\"scope\":\"user\"{key},\"seq\":1}}]}}"
        )
    };
    let keyed = sync(&record(",\"scopeKey\":\"user:a\"")).unwrap();
    assert_eq!(
        keyed.removes[0].scope_key.as_ref().map(|key| key.as_str()),
        Some("user:a")
    );
    assert_eq!(text(&keyed.to_value()), record(",\"scopeKey\":\"user:a\""));
    let plain = sync(&record("")).unwrap();
    assert_eq!(text(&plain.to_value()), record(""));
}

#[test]
fn wire_762_revocations_say_why() {
    for (reason, spelled) in [
        (RevokedReason::TakenOver, "taken-over"),
        (RevokedReason::Unauthorized, "unauthorized"),
    ] {
        let frame = format!(
            "fvj1:{{\"reason\":\"{spelled}\",\"sessionId\":\"s\",\"space\":\"did:key:zS\",\"type\":\"session/revoked\"}}"
        );
        let Ok(ServerMessage::Revoked(revoked)) = parse_server_message(&frame) else {
            panic!("{frame}")
        };
        assert_eq!(revoked.reason, reason);
        assert_eq!(ServerMessage::Revoked(revoked).encode().unwrap(), frame);
    }
}

#[test]
fn wire_771_reserved_references_are_found_where_they_would_be_stored() {
    let found = |document: Value| find_reserved_reference(&document, Regime::Legacy);
    let reserved = "schema-ref@2:fid1:x";
    let link =
        |schema: Value| value!({ "value": [{ "/": { "link@1": { "id": "of:x", "schema": schema } } }] });
    assert_eq!(found(link(value!(reserved))).as_deref(), Some(reserved));
    assert_eq!(
        found(link(value!("schema-cas@1:y"))).as_deref(),
        Some("schema-cas@1:y")
    );
    assert_eq!(
        found(value!({ "a": { "$alias": { "path": [], "schema": reserved } } })).as_deref(),
        Some(reserved)
    );
    for fine in [
        link(value!({ "$ref": reserved })),
        value!({ "value": reserved }),
        value!({ "schema": reserved }),
    ] {
        assert_eq!(found(fine.clone()), None, "{fine:?}");
    }
}
