//! `wire-link.jsonl`, whole (WIRE-204, WIRE-501…508).

mod typed_value;

use memory_wire::EntityId;
use memory_wire::codec::{decode, encode};
use memory_wire::link::{
    Link, LinkPayload, Regime, decode_link_text, encode_link_text, is_entity_ref, is_link, parse_handle,
};
use memory_wire::value::{Object, Value};
use serde_json::{Value as Json, json};
use typed_value::{run_file, same};

#[test]
fn wire_link_file() {
    run_file("wire-link.jsonl", |line| match line["kind"].as_str() {
        Some("recognize") => {
            let regime = Regime::from_flag(line["modernCellRep"] == true);
            let value = decode(text(line, "value")).unwrap();
            same(
                "isLink",
                Json::from(is_link(&value, regime)),
                line["isLink"].clone(),
            )?;
            same(
                "isEntityRef",
                Json::from(is_entity_ref(&value, regime)),
                line["isEntityRef"].clone(),
            )
        }
        Some("parse") => {
            let base = line["base"].as_str().map(|base| payload(base).resolve(None));
            let link = Link::parse(
                &decode(text(line, "value")).unwrap(),
                base.as_ref(),
                Regime::Legacy,
            );
            let link = link.ok_or("no link")?;
            same(
                "link",
                encode(&spelled(&link)).unwrap().as_str(),
                text(line, "link"),
            )
        }
        Some("same") => {
            let same_address = payload(text(line, "a")).same_address(&payload(text(line, "b")));
            same("same", Json::from(same_address), line["same"].clone())
        }
        Some("handle") => match parse_handle(text(line, "text")) {
            Ok((id, scope)) => {
                same("id", Json::from(id.as_str()), line["id"].clone())?;
                same("scope", scope.map(|s| s.as_str()), line["scope"].as_str())
            }
            Err(_) => same("error", json!(true), line["error"].clone()),
        },
        Some("fcl1-encode") => {
            let address = decode(&format!("fvj1:{}", line["payload"])).unwrap();
            match encode_link_text(address.as_object().unwrap()) {
                Ok(encoded) => same("text", Some(encoded.as_str()), line["text"].as_str()),
                Err(_) => same("error", json!(true), line["error"].clone()),
            }
        }
        Some("fcl1-decode") => match decode_link_text(text(line, "text")) {
            Ok(address) => {
                let expected = decode(&format!("fvj1:{}", line["payload"])).unwrap();
                same(
                    "payload",
                    encode(&address.into()).unwrap(),
                    encode(&expected).unwrap(),
                )
            }
            Err(_) => same("error", json!(true), line["error"].clone()),
        },
        Some("dataUri-encode") => {
            let id = EntityId::inline(&decode(text(line, "value")).unwrap()).map_err(|e| e.to_string())?;
            same("uri", id.as_str(), text(line, "uri"))
        }
        Some("dataUri-decode") => match EntityId::from(text(line, "uri")).inline_value() {
            Ok(value) => same(
                "value",
                Some(encode(&value).unwrap().as_str()),
                line["value"].as_str(),
            ),
            Err(_) => same("error", json!(true), line["error"].clone()),
        },
        other => Err(format!("unknown kind {other:?}")),
    });
}

#[test]
fn wire_507_tagged_text_is_not_an_address() {
    for forged in [
        r#"fcl1:{"/quote":{"id":"of:x"}}"#,
        r#"fcl1:{},"/quote":{"id":"of:x"}"#,
        r#"fcl1:{}},"a":{"b":"c""#,
        r#"fcl1:{"/object":{"id":"of:x"}}"#,
    ] {
        assert!(decode_link_text(forged).is_err(), "{forged}");
    }
}

fn text<'a>(line: &'a Json, key: &str) -> &'a str {
    line[key].as_str().unwrap()
}

fn payload(text: &str) -> LinkPayload {
    LinkPayload::from_object(decode(text).unwrap().as_object().unwrap()).unwrap()
}

/// A resolved link as the vectors spell it.
fn spelled(link: &Link) -> Value {
    let mut object = Object::new();
    object.insert("path", memory_wire::pointer::path_to_value(&link.path));
    if let Some(id) = &link.id {
        object.insert("id", id);
    }
    if let Some(space) = &link.space {
        object.insert("space", space);
    }
    if let Some(scope) = link.scope {
        object.insert("scope", scope.as_str());
    }
    if let Some(schema) = &link.schema {
        object.insert("schema", schema.clone());
    }
    if link.redirect {
        object.insert("overwrite", "redirect");
    }
    object.into()
}
