//! What clients send (WIRE-704, 711, 721, 731, 745…765). Parsing checks the envelope and what the grammar of each
//! type checks, drops unknown fields, and leaves commit, watch and root contents to their own accessors.

use smol_str::SmolStr;

use super::Unparseable;
use super::commit::ClientCommit;
use super::field::{
    Parsed, array, elements, integer, lenient_text, number, object, optional_each, optional_integer,
    optional_text, text, unparseable,
};
use super::operation::SqliteDb;
use super::query::{GraphQuery, Watch};
use super::response::OpenChallenge;
use super::view::{ReadCeiling, ViewInterest};
use crate::auth::sign_session_open;
use crate::codec::{self, EncodeError};
use crate::flags::Flags;
use crate::identity::Signer;
use crate::ids::{EntityId, MEMORY_PROTOCOL, RequestId, Seq, SessionId, SessionToken, SpaceId};
use crate::scope_key::Scope;
use crate::value::{Object, Value};

/// Longest SQL statement of a query, in UTF-16 code units.
const MAX_SQL_UNITS: usize = 100_000;
/// Most tables a database may declare.
const MAX_SQLITE_TABLES: usize = 256;
/// Longest database or source id, in UTF-16 code units.
const MAX_SQLITE_ID_UNITS: usize = 256;
/// Longest path of a disk source, in UTF-16 code units.
const MAX_SOURCE_PATH_UNITS: usize = 4096;

/// A message from a client.
#[derive(Clone, Debug)]
pub enum ClientMessage {
    /// First message of a connection.
    Hello(Hello),
    /// Opens or resumes a session in a space.
    SessionOpen(SessionOpen),
    /// Commits.
    Transact(Transact),
    /// Reads once.
    GraphQuery(GraphQueryRequest),
    /// Lists entity ids.
    EntityIdList(EntityIdList),
    /// Asks whether an entity exists.
    EntityIdExists(EntityIdExists),
    /// Reads a SQLite database.
    SqliteQuery(SqliteQuery),
    /// Registers a read-only database file.
    SqliteRegisterDiskSource(SqliteRegisterDiskSource),
    /// Replaces the session's watches.
    WatchSet(WatchRequest),
    /// Adds to the session's watches.
    WatchAdd(WatchRequest),
    /// Tells how far the client has applied frames.
    Ack(Ack),
}

/// What every request inside a session begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Chosen by the client; the response carries it.
    pub request_id: RequestId,
    /// The space.
    pub space: SpaceId,
    /// The session.
    pub session_id: SessionId,
}

/// `hello`.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The protocol the client speaks; judged by the handshake, not by parsing.
    pub protocol: String,
    /// The known flags.
    pub flags: Flags,
    /// The flags as sent, unknown ones included.
    pub sent_flags: Object,
}

/// The `session` descriptor of a session open (WIRE-721). Signed as part of the invocation.
#[derive(Clone, Debug, Default)]
pub struct SessionDescriptor {
    /// The session to resume, or the id a fresh one shall have.
    pub session_id: Option<SessionId>,
    /// How far the client has applied frames; any number, as received.
    pub seen_seq: Option<f64>,
    /// The latest token issued for the session.
    pub session_token: Option<SessionToken>,
    /// Asks for delegated read binding; only `space-owner` is known (WIRE-724).
    pub acting_as: Option<String>,
    /// Bound on what the session may read (WIRE-776).
    pub read_ceiling: Option<ReadCeiling>,
}

/// `session.open`.
#[derive(Clone, Debug)]
pub struct SessionOpen {
    /// Chosen by the client.
    pub request_id: RequestId,
    /// The space.
    pub space: SpaceId,
    /// Which session.
    pub session: SessionDescriptor,
    /// The signed invocation, when it is an object.
    pub invocation: Option<Value>,
    /// Holds the signature; judged by authentication.
    pub authorization: Option<Value>,
}

/// `transact`.
#[derive(Clone, Debug)]
pub struct Transact {
    /// Envelope.
    pub header: RequestHeader,
    /// An object; read it with [`super::ClientCommit::from_value`].
    pub commit: Value,
}

/// `graph.query`.
#[derive(Clone, Debug)]
pub struct GraphQueryRequest {
    /// Envelope.
    pub header: RequestHeader,
    /// An object with an array `roots`; read it with [`super::GraphQuery::from_value`].
    pub query: Value,
}

/// `entity-id.list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityIdList {
    /// Envelope.
    pub header: RequestHeader,
    /// Only ids after this one.
    pub after: Option<EntityId>,
    /// Page size; positive.
    pub limit: Option<u64>,
    /// Fail if the space has moved on from here.
    pub expected_server_seq: Option<Seq>,
}

/// `entity-id.exists`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityIdExists {
    /// Envelope.
    pub header: RequestHeader,
    /// Which entity.
    pub id: EntityId,
}

/// `sqlite.query`.
#[derive(Clone, Debug)]
pub struct SqliteQuery {
    /// Envelope.
    pub header: RequestHeader,
    /// Which database; its `owner` is always dropped.
    pub db: SqliteDb,
    /// One read-only statement.
    pub sql: String,
    /// Array or object of values.
    pub params: Option<Value>,
}

/// `sqlite.register-disk-source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteRegisterDiskSource {
    /// Envelope.
    pub header: RequestHeader,
    /// Id the source shall have.
    pub id: SmolStr,
    /// Absolute path of the file on the server.
    pub path: String,
}

/// `session.watch.set` and `session.watch.add`.
#[derive(Clone, Debug)]
pub struct WatchRequest {
    /// Envelope.
    pub header: RequestHeader,
    /// Unchecked elements; read them with [`super::Watch::list_from_values`].
    pub watches: Vec<Value>,
    /// New views of the session (`set` only): absent keeps them, empty removes all (WIRE-775).
    pub views: Option<Vec<ViewInterest>>,
}

/// `session.ack`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ack {
    /// Envelope.
    pub header: RequestHeader,
    /// The client's applied position; any number, as received.
    pub seen_seq: f64,
}

/// Reads one frame from a client (WIRE-704).
pub fn parse_client_message(frame: &str) -> Result<ClientMessage, Unparseable> {
    let Ok(message) = codec::decode(frame) else {
        return unparseable("frame", "an encoded value");
    };
    ClientMessage::from_value(&message)
}

impl ClientMessage {
    /// Reads a decoded message.
    pub fn from_value(message: &Value) -> Result<ClientMessage, Unparseable> {
        if message.as_object().is_none() {
            return unparseable("frame", "an object");
        }
        match message.member("type").and_then(Value::as_str) {
            Some("hello") => Hello::from_value(message).map(ClientMessage::Hello),
            Some("session.open") => SessionOpen::from_value(message).map(ClientMessage::SessionOpen),
            Some("transact") => Ok(ClientMessage::Transact(Transact {
                header: RequestHeader::from_value(message)?,
                commit: Value::Object(object(message, "commit")?.clone()),
            })),
            Some("graph.query") => {
                let header = RequestHeader::from_value(message)?;
                let query = Value::Object(object(message, "query")?.clone());
                array(&query, "roots")?;
                Ok(ClientMessage::GraphQuery(GraphQueryRequest { header, query }))
            }
            Some("entity-id.list") => EntityIdList::from_value(message).map(ClientMessage::EntityIdList),
            Some("entity-id.exists") => Ok(ClientMessage::EntityIdExists(EntityIdExists {
                header: RequestHeader::from_value(message)?,
                id: text(message, "id")?.into(),
            })),
            Some("sqlite.query") => SqliteQuery::from_value(message).map(ClientMessage::SqliteQuery),
            Some("sqlite.register-disk-source") => {
                let header = RequestHeader::from_value(message)?;
                let id = bounded_text(message, "id", MAX_SQLITE_ID_UNITS)?;
                let path = bounded_text(message, "path", MAX_SOURCE_PATH_UNITS)?.to_string();
                Ok(ClientMessage::SqliteRegisterDiskSource(
                    SqliteRegisterDiskSource { header, id, path },
                ))
            }
            Some("session.watch.set") => Ok(ClientMessage::WatchSet(WatchRequest {
                views: optional_each(message, "views", ViewInterest::from_value)?
                    .map(ViewInterest::distinct)
                    .transpose()?,
                ..WatchRequest::from_value(message)?
            })),
            Some("session.watch.add") => WatchRequest::from_value(message).map(ClientMessage::WatchAdd),
            Some("session.ack") => Ok(ClientMessage::Ack(Ack {
                header: RequestHeader::from_value(message)?,
                seen_seq: number(message, "seenSeq")?,
            })),
            Some(_) | None => unparseable("type", "the name of a client message"),
        }
    }

    /// The request id; a hello has none.
    pub fn request_id(&self) -> Option<&RequestId> {
        match self {
            ClientMessage::Hello(_) => None,
            ClientMessage::SessionOpen(open) => Some(&open.request_id),
            _ => self.header().map(|header| &header.request_id),
        }
    }

    /// The envelope of a request inside a session.
    pub fn header(&self) -> Option<&RequestHeader> {
        match self {
            ClientMessage::Hello(_) | ClientMessage::SessionOpen(_) => None,
            ClientMessage::Transact(request) => Some(&request.header),
            ClientMessage::GraphQuery(request) => Some(&request.header),
            ClientMessage::EntityIdList(request) => Some(&request.header),
            ClientMessage::EntityIdExists(request) => Some(&request.header),
            ClientMessage::SqliteQuery(request) => Some(&request.header),
            ClientMessage::SqliteRegisterDiskSource(request) => Some(&request.header),
            ClientMessage::WatchSet(request) | ClientMessage::WatchAdd(request) => Some(&request.header),
            ClientMessage::Ack(request) => Some(&request.header),
        }
    }

    /// The `type` of the message.
    pub fn type_name(&self) -> &'static str {
        match self {
            ClientMessage::Hello(_) => "hello",
            ClientMessage::SessionOpen(_) => "session.open",
            ClientMessage::Transact(_) => "transact",
            ClientMessage::GraphQuery(_) => "graph.query",
            ClientMessage::EntityIdList(_) => "entity-id.list",
            ClientMessage::EntityIdExists(_) => "entity-id.exists",
            ClientMessage::SqliteQuery(_) => "sqlite.query",
            ClientMessage::SqliteRegisterDiskSource(_) => "sqlite.register-disk-source",
            ClientMessage::WatchSet(_) => "session.watch.set",
            ClientMessage::WatchAdd(_) => "session.watch.add",
            ClientMessage::Ack(_) => "session.ack",
        }
    }

    /// The wire form, absent fields left out.
    pub fn to_value(&self) -> Value {
        let mut message = Object::new();
        message.insert("type", self.type_name());
        if let Some(header) = self.header() {
            message.insert("requestId", &header.request_id);
            message.insert("space", &header.space);
            message.insert("sessionId", &header.session_id);
        }
        match self {
            ClientMessage::Hello(hello) => {
                message.insert("protocol", hello.protocol.as_str());
                message.insert("flags", hello.sent_flags.clone());
            }
            ClientMessage::SessionOpen(open) => {
                message.insert("requestId", &open.request_id);
                message.insert("space", &open.space);
                message.insert("session", open.session.to_value());
                insert_some(&mut message, "invocation", open.invocation.clone());
                insert_some(&mut message, "authorization", open.authorization.clone());
            }
            ClientMessage::Transact(request) => {
                message.insert("commit", request.commit.clone());
            }
            ClientMessage::GraphQuery(request) => {
                message.insert("query", request.query.clone());
            }
            ClientMessage::EntityIdList(request) => {
                insert_some(&mut message, "after", request.after.as_ref());
                insert_some(&mut message, "limit", request.limit);
                insert_some(&mut message, "expectedServerSeq", request.expected_server_seq);
            }
            ClientMessage::EntityIdExists(request) => {
                message.insert("id", &request.id);
            }
            ClientMessage::SqliteQuery(request) => {
                message.insert("db", request.db.to_value());
                message.insert("sql", request.sql.as_str());
                insert_some(&mut message, "params", request.params.clone());
            }
            ClientMessage::SqliteRegisterDiskSource(request) => {
                message.insert("id", request.id.as_str());
                message.insert("path", request.path.as_str());
            }
            ClientMessage::WatchSet(request) | ClientMessage::WatchAdd(request) => {
                message.insert("watches", request.watches.clone());
                if let Some(views) = &request.views {
                    message.insert(
                        "views",
                        views.iter().map(|v| v.to_value().clone()).collect::<Vec<_>>(),
                    );
                }
            }
            ClientMessage::Ack(request) => {
                message.insert("seenSeq", request.seen_seq);
            }
        }
        message.into()
    }

    /// The frame text.
    pub fn encode(&self) -> Result<String, EncodeError> {
        codec::encode(&self.to_value())
    }
}

pub(super) fn insert_some<V: Into<Value>>(object: &mut Object, key: &'static str, value: Option<V>) {
    if let Some(value) = value {
        object.insert(key, value);
    }
}

impl RequestHeader {
    /// The beginning of a request.
    pub fn new(request_id: impl Into<RequestId>, space: &SpaceId, session_id: &SessionId) -> RequestHeader {
        RequestHeader {
            request_id: request_id.into(),
            space: space.clone(),
            session_id: session_id.clone(),
        }
    }

    fn from_value(message: &Value) -> Parsed<RequestHeader> {
        Ok(RequestHeader {
            request_id: text(message, "requestId")?.into(),
            space: text(message, "space")?.into(),
            session_id: text(message, "sessionId")?.into(),
        })
    }
}

impl Hello {
    /// The hello of a client with these flags.
    pub fn new(flags: Flags) -> Hello {
        Hello {
            protocol: MEMORY_PROTOCOL.to_owned(),
            flags,
            sent_flags: flags.to_object(),
        }
    }

    fn from_value(message: &Value) -> Parsed<Hello> {
        let sent_flags = object(message, "flags")?.clone();
        match Flags::from_object(&sent_flags) {
            Some(flags) => Ok(Hello {
                protocol: text(message, "protocol")?.to_string(),
                flags,
                sent_flags,
            }),
            None => unparseable("flags", "a boolean for every known flag"),
        }
    }
}

impl SessionOpen {
    /// Asks for a session in `space` with `signer`'s signature over `challenge`: the latest one of the connection, from
    /// `hello.ok` or from the last open that succeeded (WIRE-781). `now` is unix seconds.
    pub fn signed(
        request_id: impl Into<RequestId>,
        signer: &Signer,
        space: &SpaceId,
        session: SessionDescriptor,
        challenge: &OpenChallenge,
        now: u64,
    ) -> SessionOpen {
        let (audience, descriptor) = (&challenge.audience, session.to_value());
        let (invocation, authorization) =
            sign_session_open(signer, space, audience, &challenge.value, &descriptor, now);
        SessionOpen {
            request_id: request_id.into(),
            space: space.clone(),
            session,
            invocation: Some(invocation),
            authorization: Some(authorization),
        }
    }
}

impl Transact {
    /// Sends a commit.
    pub fn new(header: RequestHeader, commit: &ClientCommit) -> Transact {
        Transact {
            header,
            commit: commit.value.clone(),
        }
    }
}

impl GraphQueryRequest {
    /// Asks once.
    pub fn new(header: RequestHeader, query: &GraphQuery) -> GraphQueryRequest {
        GraphQueryRequest {
            header,
            query: query.to_value(),
        }
    }
}

impl WatchRequest {
    /// Watches these queries; views stay as they are.
    pub fn new(header: RequestHeader, watches: &[Watch]) -> WatchRequest {
        WatchRequest {
            header,
            watches: watches.iter().map(Watch::to_value).collect(),
            views: None,
        }
    }
}

impl Ack {
    /// Frames have been applied through `seen`: the `to_seq` of the last one.
    pub fn new(header: RequestHeader, seen: Seq) -> Ack {
        Ack {
            header,
            // A seq is a double on the wire (WIRE-002), and stays far below 2^53.
            seen_seq: seen.0 as f64,
        }
    }
}

impl SessionDescriptor {
    /// Reads a descriptor: wrong-typed members count as absent (WIRE-803), except a read ceiling, whose loss would
    /// widen what the session may read (SRV-321).
    pub fn from_value(descriptor: &Value) -> Result<SessionDescriptor, Unparseable> {
        Ok(SessionDescriptor {
            session_id: lenient_text(descriptor, "sessionId")?.map(SessionId::from),
            seen_seq: descriptor.member("seenSeq").and_then(Value::as_f64),
            session_token: lenient_text(descriptor, "sessionToken")?.map(SessionToken::from),
            acting_as: lenient_text(descriptor, "actingAs")?.map(String::from),
            read_ceiling: descriptor
                .member("readCeiling")
                .map(ReadCeiling::from_value)
                .transpose()?,
        })
    }

    /// The wire form, absent fields left out.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        insert_some(&mut object, "sessionId", self.session_id.as_ref());
        insert_some(&mut object, "seenSeq", self.seen_seq);
        insert_some(&mut object, "sessionToken", self.session_token.as_ref());
        insert_some(&mut object, "actingAs", self.acting_as.as_deref());
        insert_some(
            &mut object,
            "readCeiling",
            self.read_ceiling.as_ref().map(|c| c.to_value().clone()),
        );
        object.into()
    }
}

impl SessionOpen {
    fn from_value(message: &Value) -> Parsed<SessionOpen> {
        let session = Value::Object(object(message, "session")?.clone());
        Ok(SessionOpen {
            request_id: text(message, "requestId")?.into(),
            space: text(message, "space")?.into(),
            session: SessionDescriptor::from_value(&session)?,
            invocation: message
                .member("invocation")
                .filter(|i| i.as_object().is_some())
                .cloned(),
            authorization: message.member("authorization").cloned(),
        })
    }
}

impl EntityIdList {
    fn from_value(message: &Value) -> Parsed<EntityIdList> {
        let limit = optional_integer(message, "limit")?;
        if limit == Some(0) {
            return unparseable("limit", "a positive safe integer");
        }
        Ok(EntityIdList {
            header: RequestHeader::from_value(message)?,
            after: optional_text(message, "after")?.map(EntityId::from),
            limit,
            expected_server_seq: match message.member("expectedServerSeq") {
                None => None,
                Some(_) => Some(Seq(integer(message, "expectedServerSeq")?)),
            },
        })
    }
}

impl SqliteQuery {
    fn from_value(message: &Value) -> Parsed<SqliteQuery> {
        let header = RequestHeader::from_value(message)?;
        let db = Value::Object(object(message, "db")?.clone());
        let tables = db
            .member("tables")
            .map(|_| object(&db, "tables").cloned())
            .transpose()?;
        if tables
            .as_ref()
            .is_some_and(|tables| tables.len() > MAX_SQLITE_TABLES)
        {
            return unparseable("db.tables", "at most 256 tables");
        }
        let scope = match db.member("scope") {
            None => None,
            Some(name) => match name.as_str().and_then(Scope::from_name) {
                Some(scope) => Some(scope),
                None => return unparseable("db.scope", "a scope name"),
            },
        };
        let sql = match message.member("sql") {
            Some(Value::String(sql)) if sql.len_utf16() <= MAX_SQL_UNITS => {
                sql.to_string_lossy().into_owned()
            }
            Some(_) | None => return unparseable("sql", "a string of at most 100,000 code units"),
        };
        Ok(SqliteQuery {
            header,
            db: SqliteDb {
                id: bounded_text(&db, "id", MAX_SQLITE_ID_UNITS)?,
                tables,
                scope,
                owner: None,
            },
            sql,
            params: message
                .member("params")
                .filter(|p| matches!(p, Value::Array(_) | Value::Object(_)))
                .cloned(),
        })
    }
}

fn bounded_text(of: &Value, key: &'static str, max_units: usize) -> Parsed<SmolStr> {
    match of.member(key) {
        Some(Value::String(value)) if !value.is_empty() && value.len_utf16() <= max_units => text(of, key),
        Some(_) | None => unparseable(key, "a non-empty string within its length limit"),
    }
}

impl WatchRequest {
    fn from_value(message: &Value) -> Parsed<WatchRequest> {
        Ok(WatchRequest {
            header: RequestHeader::from_value(message)?,
            watches: elements(array(message, "watches")?),
            views: None,
        })
    }
}
