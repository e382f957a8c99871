//! `wire-frames.jsonl`, whole, and the parsing and refusals of `server-ingress.jsonl` (WIRE-704, WIRE-705, SRV-114…
//! 117): what is a message, what is none, and under which name bad contents are refused.

mod typed_value;

use memory_wire::codec::{decode, encode};
use memory_wire::error::ErrorName;
use memory_wire::message::{
    ClientCommit, ClientMessage, GraphQuery, ServerMessage, Watch, parse_client_message, parse_server_message,
};
use memory_wire::value::{Object, Value};
use serde_json::{Value as Json, json};
use typed_value::{run_file, same};

#[test]
fn wire_frames_file() {
    let mut unparsed = false;
    run_file("wire-frames.jsonl", |line| match line["kind"].as_str() {
        Some("parse") => {
            let parsed = parse_client_message(text(line, "text"))
                .ok()
                .map(|m| encode(&m.to_value()).unwrap());
            let expected = line["parsed"]
                .as_str()
                .map(|text| encode(&without_undefined(&decode(text).unwrap())).unwrap());
            // Present-undefined members are the reference's habit, not a requirement (WIRE-003). A hello keeps its
            // flags as sent.
            let parsed = parsed.map(|text| encode(&without_undefined(&decode(&text).unwrap())).unwrap());
            same("parsed", parsed, expected)
        }
        Some("frame") => match line["dir"].as_str() {
            Some("c2s") => {
                unparsed = parse_client_message(text(line, "text")).is_err();
                if unparsed {
                    Ok(())
                } else {
                    check_client_frame(text(line, "text"))
                }
            }
            Some("s2c") => {
                // The answer to what does not parse is always the same frame, and to nothing else.
                let invalid = text(line, "text") == ServerMessage::invalid().encode().unwrap();
                same("answered as unparseable", invalid, std::mem::take(&mut unparsed))?;
                check_server_frame(text(line, "text"))
            }
            other => Err(format!("unknown direction {other:?}")),
        },
        other => Err(format!("unknown kind {other:?}")),
    });
}

#[test]
fn server_ingress_file() {
    run_file("server-ingress.jsonl", |line| match line["kind"].as_str() {
        Some("parse") => {
            let parsed = parse_client_message(text(line, "frame")).ok();
            same("accepted", json!(parsed.is_some()), line["accepted"].clone())?;
            let Some(parsed) = parsed else { return Ok(()) };
            let expected = decode(&format!("fvj1:{}", line["parsed"])).unwrap();
            same(
                "parsed",
                encode(&parsed.to_value()).unwrap(),
                encode(&expected).unwrap(),
            )
        }
        Some("dispatch") => check_dispatch(line),
        other => Err(format!("unknown kind {other:?}")),
    });
}

/// A frame that parses re-encodes to what was sent.
fn check_client_frame(frame: &str) -> Result<(), String> {
    let message = parse_client_message(frame).map_err(|error| error.to_string())?;
    let sent = encode(&without_undefined(&decode(frame).unwrap())).unwrap();
    same("re-encoded", message.encode().unwrap(), sent)?;
    // Whatever the contents, reading them answers and never panics.
    match &message {
        ClientMessage::Transact(request) => {
            if let Ok(commit) = ClientCommit::from_value(&request.commit) {
                same("kept as received", encode(&commit.value), encode(&request.commit))?;
            }
        }
        ClientMessage::GraphQuery(request) => drop(GraphQuery::from_value(&request.query)),
        ClientMessage::WatchSet(request) | ClientMessage::WatchAdd(request) => {
            drop(Watch::list_from_values(&request.watches));
        }
        _ => {}
    }
    Ok(())
}

fn check_server_frame(frame: &str) -> Result<(), String> {
    let message = parse_server_message(frame).map_err(|error| error.to_string())?;
    if let ServerMessage::HelloOk(hello) = &message {
        // Ours states flags of later revisions too, as false.
        let sent = decode(frame).unwrap();
        let again = message.to_value();
        same(
            "challenge",
            encode(again.member("sessionOpen").unwrap()),
            encode(sent.member("sessionOpen").unwrap()),
        )?;
        for (flag, set) in sent.member("flags").and_then(Value::as_object).unwrap().iter() {
            let ours = hello.flags.to_object().get_key(flag).and_then(Value::as_bool);
            same(&flag.to_string(), ours, set.as_bool())?;
        }
        return Ok(());
    }
    same("re-encoded", message.encode().unwrap().as_str(), frame)
}

/// What the reference refuses by name keeps its name; what tears its connection, and the odd `localSeq` types it
/// lets through, is a `ProtocolError` (SRV-116, SRV-117). Everything else is for admission to judge.
fn check_dispatch(line: &Json) -> Result<(), String> {
    let label = line["label"].as_str().unwrap();
    let message = parse_client_message(text(line, "frame")).map_err(|error| error.to_string())?;
    let refusal = match &message {
        ClientMessage::Transact(request) => ClientCommit::from_value(&request.commit).err(),
        ClientMessage::GraphQuery(request) => GraphQuery::from_value(&request.query).err(),
        ClientMessage::WatchSet(request) | ClientMessage::WatchAdd(request) => {
            Watch::list_from_values(&request.watches).err()
        }
        _ => None,
    };
    let expected = if !line["receiveRejected"].is_null()
        || matches!(label, "localSeq string" | "localSeq 0" | "localSeq -1")
    {
        Some(ErrorName::Protocol)
    } else {
        match label {
            "op without id" | "unknown op" | "reads missing" | "localSeq missing" | "scope bogus" => {
                Some(ErrorName::Transaction)
            }
            "watch root no selector" => Some(ErrorName::Query),
            _ => None,
        }
    };
    same("refused as", refusal.as_ref().map(|error| error.name), expected)?;
    // The names of the reference's typed answers are not ours to choose.
    if let Some(ErrorName::Transaction | ErrorName::Query) = expected {
        let answer = line["responses"][0].as_str().ok_or("no answer")?;
        let ServerMessage::Response(response) = parse_server_message(answer).map_err(|e| e.to_string())?
        else {
            return Err("not a response".to_owned());
        };
        same(
            "reference's name",
            response.result.err().map(|error| error.name),
            expected,
        )?;
    }
    Ok(())
}

fn text<'a>(line: &'a Json, key: &str) -> &'a str {
    line[key].as_str().unwrap()
}

fn without_undefined(value: &Value) -> Value {
    match value {
        Value::Object(object) => Value::Object(
            object
                .iter()
                .filter(|(_, member)| !member.is_undefined())
                .map(|(key, member)| (key.clone(), without_undefined(member)))
                .collect::<Object>(),
        ),
        Value::Array(array) => Value::Array(
            array
                .elements()
                .map(|(_, element)| without_undefined(element))
                .collect(),
        ),
        other => other.clone(),
    }
}
