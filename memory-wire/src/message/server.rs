//! What servers send (WIRE-711, 753, 762, 766): the hello answer, responses, pushed frames and revocations.

use super::Unparseable;
use super::field::{object, optional_text, text, unparseable};
use super::response::OpenChallenge;
use super::sync::SessionSync;
use crate::codec::{self, EncodeError};
use crate::error::WireError;
use crate::flags::Flags;
use crate::ids::{MEMORY_PROTOCOL, RequestId, SessionId, SpaceId};
use crate::value::{Object, Value};

/// The request id of answers to frames that are no message.
pub const INVALID_REQUEST_ID: &str = "invalid";

/// The request id of refusals of the hello handshake.
pub const HANDSHAKE_REQUEST_ID: &str = "handshake";

/// A message from a server.
#[derive(Clone, Debug)]
pub enum ServerMessage {
    /// The hello was accepted.
    HelloOk(HelloOk),
    /// The answer to one request.
    Response(Response),
    /// A pushed sync frame.
    Effect(Effect),
    /// The session is gone.
    Revoked(Revoked),
}

/// `hello.ok`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloOk {
    /// What the server can.
    pub flags: Flags,
    /// What the first session open has to sign.
    pub session_open: OpenChallenge,
}

/// `response`: exactly one of `ok` and `error`.
#[derive(Clone, Debug)]
pub struct Response {
    /// Which request, or [`INVALID_REQUEST_ID`], or [`HANDSHAKE_REQUEST_ID`].
    pub request_id: RequestId,
    /// The body or the error.
    pub result: Result<Value, WireError>,
}

/// `session/effect`.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The space.
    pub space: SpaceId,
    /// The session.
    pub session_id: SessionId,
    /// The frame.
    pub sync: SessionSync,
}

/// Why a session is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RevokedReason {
    /// Another connection opened it.
    TakenOver,
    /// Its principal lost access.
    Unauthorized,
}

impl RevokedReason {
    /// The wire text.
    pub fn as_str(self) -> &'static str {
        match self {
            RevokedReason::TakenOver => "taken-over",
            RevokedReason::Unauthorized => "unauthorized",
        }
    }
}

/// `session/revoked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The space.
    pub space: SpaceId,
    /// The session.
    pub session_id: SessionId,
    /// Why.
    pub reason: RevokedReason,
}

/// Reads one frame from a server. A client that cannot fails its requests in flight (WIRE-766).
pub fn parse_server_message(frame: &str) -> Result<ServerMessage, Unparseable> {
    let Ok(message) = codec::decode(frame) else {
        return unparseable("frame", "an encoded value");
    };
    ServerMessage::from_value(&message)
}

impl ServerMessage {
    /// Reads a decoded message.
    pub fn from_value(message: &Value) -> Result<ServerMessage, Unparseable> {
        match message.member("type").and_then(Value::as_str) {
            Some("hello.ok") => {
                if text(message, "protocol")? != MEMORY_PROTOCOL {
                    return unparseable("protocol", "\"memory\"");
                }
                let session_open = Value::Object(object(message, "sessionOpen")?.clone());
                match Flags::from_object(object(message, "flags")?) {
                    Some(flags) => Ok(ServerMessage::HelloOk(HelloOk {
                        flags,
                        session_open: OpenChallenge::from_value(&session_open)?,
                    })),
                    None => unparseable("flags", "a boolean for every known flag"),
                }
            }
            Some("response") => {
                let result = match (message.member("ok"), message.member("error")) {
                    (Some(ok), None) => Ok(ok.clone()),
                    (None, Some(error)) => match WireError::from_value(error) {
                        Some(error) => Err(error),
                        None => return unparseable("error", "an object with name and message"),
                    },
                    _ => return unparseable("response", "exactly one of ok and error"),
                };
                Ok(ServerMessage::Response(Response {
                    request_id: text(message, "requestId")?.into(),
                    result,
                }))
            }
            Some("session/effect") => {
                let sync = Value::Object(object(message, "effect")?.clone());
                Ok(ServerMessage::Effect(Effect {
                    space: text(message, "space")?.into(),
                    session_id: text(message, "sessionId")?.into(),
                    sync: SessionSync::from_value(&sync)?,
                }))
            }
            Some("session/revoked") => Ok(ServerMessage::Revoked(Revoked {
                space: text(message, "space")?.into(),
                session_id: text(message, "sessionId")?.into(),
                // Whatever the word, the session is gone; only the one that names a take-over says so.
                reason: match optional_text(message, "reason")?.as_deref() {
                    Some("taken-over") => RevokedReason::TakenOver,
                    Some(_) | None => RevokedReason::Unauthorized,
                },
            })),
            Some(_) | None => unparseable("type", "the name of a server message"),
        }
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut message = Object::new();
        match self {
            ServerMessage::HelloOk(hello) => {
                message.insert("type", "hello.ok");
                message.insert("protocol", MEMORY_PROTOCOL);
                message.insert("flags", hello.flags.to_object());
                message.insert("sessionOpen", hello.session_open.to_value());
            }
            ServerMessage::Response(response) => {
                message.insert("type", "response");
                message.insert("requestId", &response.request_id);
                match &response.result {
                    Ok(ok) => message.insert("ok", ok.clone()),
                    Err(error) => message.insert("error", error.to_value()),
                };
            }
            ServerMessage::Effect(effect) => {
                message.insert("type", "session/effect");
                message.insert("space", &effect.space);
                message.insert("sessionId", &effect.session_id);
                message.insert("effect", effect.sync.to_value());
            }
            ServerMessage::Revoked(revoked) => {
                message.insert("type", "session/revoked");
                message.insert("space", &revoked.space);
                message.insert("sessionId", &revoked.session_id);
                message.insert("reason", revoked.reason.as_str());
            }
        }
        message.into()
    }

    /// The frame text.
    pub fn encode(&self) -> Result<String, EncodeError> {
        codec::encode(&self.to_value())
    }

    /// A successful response.
    pub fn ok(request_id: RequestId, body: Value) -> ServerMessage {
        ServerMessage::Response(Response {
            request_id,
            result: Ok(body),
        })
    }

    /// A failed response.
    pub fn error(request_id: RequestId, error: WireError) -> ServerMessage {
        ServerMessage::Response(Response {
            request_id,
            result: Err(error),
        })
    }

    /// The answer to a frame that is no message (WIRE-704).
    pub fn invalid() -> ServerMessage {
        ServerMessage::error(RequestId::new(INVALID_REQUEST_ID), WireError::invalid_message())
    }
}
