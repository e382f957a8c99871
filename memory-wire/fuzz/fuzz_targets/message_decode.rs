//! Any frame: parsing answers or refuses, in both directions; what parses can be written and parses to the same;
//! contents are read without a panic (WIRE-704, WIRE-705).
#![no_main]

use libfuzzer_sys::fuzz_target;
use memory_wire::codec::encode;
use memory_wire::link::Regime;
use memory_wire::message::{
    AppliedCommit, ClientCommit, ClientMessage, GraphQuery, GraphQueryOk, ServerMessage, SessionOpenOk,
    Watch, WatchOk, parse_client_message, parse_server_message,
};
use memory_wire::patch::apply_patches;
use memory_wire::schema_table::expand;

fuzz_target!(|frame: &str| {
    if let Ok(message) = parse_client_message(frame) {
        if let Ok(text) = message.encode() {
            let again = parse_client_message(&text).expect("a written message parses");
            assert_eq!(again.encode().as_deref(), Ok(text.as_str()));
        }
        match &message {
            ClientMessage::Transact(request) => {
                if let Ok(commit) = ClientCommit::from_value(&request.commit) {
                    assert_eq!(encode(&commit.value), encode(&request.commit));
                    for operation in &commit.operations {
                        if let memory_wire::message::Operation::Patch { patches, .. } = operation {
                            drop(apply_patches(&memory_wire::value!({}), patches));
                        }
                    }
                }
            }
            ClientMessage::GraphQuery(request) => drop(GraphQuery::from_value(&request.query)),
            ClientMessage::WatchSet(request) | ClientMessage::WatchAdd(request) => {
                drop(Watch::list_from_values(&request.watches));
            }
            _ => {}
        }
    }
    match parse_server_message(frame) {
        Ok(ServerMessage::Effect(effect)) => drop(expand(effect.sync, Regime::Legacy)),
        Ok(ServerMessage::Response(response)) => {
            if let Ok(body) = &response.result {
                drop(AppliedCommit::from_value(body));
                drop(SessionOpenOk::from_value(body));
                drop(WatchOk::from_value(body));
                drop(GraphQueryOk::from_value(body));
            }
        }
        Ok(ServerMessage::HelloOk(_) | ServerMessage::Revoked(_)) | Err(_) => {}
    }
});
