//! Blob upload and download (SRV-121, SRV-122, ENG-1100): a blob is a content-addressed document whose value is its
//! type and bytes. Uploads are unauthenticated and go through the direct-write path.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use memory_engine::EngineError;
use memory_wire::hash::tagged_hash;
use memory_wire::{EntityId, Object, SpaceId, Value, codec};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ServerError;
use crate::foreign_authority::is_space_did;
use crate::server::Server;

/// Tag that may stand before the hash of a blob name.
const HASH_TAG: &str = "fid1:";

/// An upload after parsing.
#[derive(Debug, Clone)]
struct Upload {
    media_type: String,
    bytes: Arc<[u8]>,
}

/// Where a request comes from, if the host tells.
type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

pub(crate) async fn upload(
    State(server): State<Arc<Server>>,
    Path(space): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    store(&server, &space, None, peer, &headers, body).await
}

pub(crate) async fn upload_named(
    State(server): State<Arc<Server>>,
    Path((space, name)): Path<(String, String)>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    store(&server, &space, Some(&name), peer, &headers, body).await
}

async fn store(
    server: &Arc<Server>,
    space: &str,
    name: Option<&str>,
    peer: Peer,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    if !is_space_did(space) {
        return unread(StatusCode::BAD_REQUEST, "Invalid space DID");
    }
    let address = peer.map(|Extension(ConnectInfo(peer))| peer.ip());
    if let Err(too_fast) = server.pace_upload(address).await {
        // Before anything of it is read.
        return closing(too_fast.to_http());
    }
    let limits = &server.config().limits;
    let patience = limits.patience_with(limits.max_blob);
    let read = tokio::time::timeout(patience, read_bounded(server, headers, body)).await;
    let Received { text, place } = match read {
        Ok(Ok(received)) => received,
        Ok(Err(TooLarge)) => return unread(StatusCode::PAYLOAD_TOO_LARGE, "Blob payload too large"),
        Err(_) => return unread(StatusCode::REQUEST_TIMEOUT, "Blob payload took too long"),
    };
    // Off the network threads: a large one takes its time.
    let parsed = tokio::task::spawn_blocking(move || {
        let upload = std::str::from_utf8(&text).ok().and_then(parse_upload)?;
        let value = upload.value();
        let id = tagged_hash(&value);
        drop(place);
        Some((upload, value, id))
    });
    let Some((upload, value, id)) = parsed.await.ok().flatten() else {
        return (StatusCode::BAD_REQUEST, "Invalid blob payload").into_response();
    };
    let document = EntityId::from(format!("cid:{id}"));
    let suffix = suffix(name, &upload.media_type);
    match server
        .write_document(&SpaceId::from(space), &document, value)
        .await
    {
        Ok(_) => {
            let hash = id.strip_prefix(HASH_TAG).unwrap_or(&id);
            let body = serde_json::json!({ "id": id, "url": format!("blobs/{hash}.{suffix}") });
            (StatusCode::CREATED, axum::Json(body)).into_response()
        }
        // A name that no store can have is the caller's mistake.
        Err(ServerError::Engine(EngineError::InvalidSpaceId(_))) => {
            (StatusCode::BAD_REQUEST, "Invalid space DID").into_response()
        }
        Err(error) => {
            // Anybody can ask, so what the list refuses is nothing to warn of.
            match error {
                ServerError::Refused(_) => tracing::debug!(space, %error, "blob was refused"),
                _ => tracing::warn!(space, %error, "blob was not stored"),
            }
            (StatusCode::INTERNAL_SERVER_ERROR, "Blob could not be stored").into_response()
        }
    }
}

/// A refusal before the body was read to its end: the connection cannot carry another request, and says so.
fn unread(status: StatusCode, text: &'static str) -> Response {
    closing((status, text))
}

fn closing(refusal: impl IntoResponse) -> Response {
    ([(header::CONNECTION, "close")], refusal).into_response()
}

pub(crate) async fn download(
    State(server): State<Arc<Server>>,
    Path((space, name)): Path<(String, String)>,
) -> Response {
    if !is_space_did(&space) {
        return (StatusCode::BAD_REQUEST, "Invalid space DID").into_response();
    }
    let hash = name.split('.').next().unwrap_or_default();
    let hash = hash.strip_prefix(HASH_TAG).unwrap_or(hash);
    if hash.is_empty() {
        return (StatusCode::BAD_REQUEST, "Invalid blob name").into_response();
    }
    let document = EntityId::from(format!("cid:{HASH_TAG}{hash}"));
    let found = match server
        .read_document(&SpaceId::from(space.as_str()), &document)
        .await
    {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(space, %error, "blob could not be read");
            None
        }
    };
    let Some((media_type, bytes)) = found.as_ref().and_then(stored_blob) else {
        return (StatusCode::NOT_FOUND, "Blob not found").into_response();
    };
    (
        [
            (header::CONTENT_TYPE, served_type(media_type)),
            (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
        ],
        bytes,
    )
        .into_response()
}

/// The body of an upload, with its share of what the process holds of all of them.
struct Received {
    text: Vec<u8>,
    place: Option<OwnedSemaphorePermit>,
}

/// An upload of more than [`crate::Limits::max_blob`] bytes.
struct TooLarge;

/// Reads a body of bounded length. The header is believed first, so that nothing is read that cannot be kept. What all
/// uploads under way hold together is bounded as well: anybody can begin one, so a chunk waits for its room.
async fn read_bounded(server: &Server, headers: &HeaderMap, body: Body) -> Result<Received, TooLarge> {
    let cap = server.config().limits.max_blob;
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > cap as u64) {
        return Err(TooLarge);
    }
    let mut read = Received {
        text: Vec::new(),
        place: None,
    };
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        // A body that breaks off is an incomplete payload, which then does not parse.
        let Ok(chunk) = chunk else { break };
        if read.text.len() + chunk.len() > cap {
            return Err(TooLarge);
        }
        server.make_upload_room(&mut read.place, chunk.len()).await;
        read.text.extend_from_slice(&chunk);
    }
    Ok(read)
}

/// The three shapes a body may have (SRV-121).
fn parse_upload(text: &str) -> Option<Upload> {
    let value = codec::decode(text).ok()?;
    let object = value.as_object()?;
    let media_type = object.get("type")?.as_str()?.to_owned();
    let bytes = match object.get("body")? {
        Value::Bytes(bytes) => Arc::clone(bytes),
        Value::Array(items) => {
            let bytes: Option<Vec<u8>> = (0..items.len()).map(|index| byte(items.get(index)?)).collect();
            bytes?.into()
        }
        Value::Object(entries) => indexed_bytes(entries)?.into(),
        _ => return None,
    };
    Some(Upload { media_type, bytes })
}

fn byte(value: &Value) -> Option<u8> {
    value.as_u64().and_then(|number| u8::try_from(number).ok())
}

/// Bytes of an object keyed `0..n`, as a byte array looks after a generic serialiser; other keys are ignored.
fn indexed_bytes(entries: &Object) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for (key, value) in entries.iter() {
        let Some(index) = key.as_str().and_then(array_index) else {
            continue;
        };
        // Index keys come first and in numeric order, so a gap shows as a mismatch.
        if index != bytes.len() {
            return None;
        }
        bytes.push(byte(value)?);
    }
    (!bytes.is_empty()).then_some(bytes)
}

fn array_index(key: &str) -> Option<usize> {
    let index: usize = key.parse().ok()?;
    (index.to_string() == key).then_some(index)
}

/// Type and bytes of a stored blob; the bytes are those of the document, not a copy for each peer that reads slowly.
fn stored_blob(value: &Value) -> Option<(&str, Bytes)> {
    let media_type = value.member("type")?.as_str()?;
    match value.member("body")? {
        Value::Bytes(bytes) => Some((media_type, Bytes::from_owner(Arc::clone(bytes)))),
        _ => None,
    }
}

impl Upload {
    fn value(&self) -> Value {
        let mut object = Object::new();
        object.insert("type", self.media_type.as_str());
        object.insert("body", Value::Bytes(Arc::clone(&self.bytes)));
        Value::Object(object)
    }
}

/// Suffix of the returned URL.
fn suffix<'a>(name: Option<&'a str>, media_type: &str) -> &'a str {
    let extension = name
        .and_then(|name| name.rsplit_once('.'))
        .map(|(_, extension)| extension);
    if let Some(extension) = extension
        && (1..=8).contains(&extension.len())
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        return extension;
    }
    match media_type {
        "image/gif" => "gif",
        "image/jpeg" => "jpg",
        "image/png" => "png",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        _ => "bin",
    }
}

/// Only types that cannot carry script are served as themselves: the route shares its origin with applications.
fn served_type(media_type: &str) -> &'static str {
    match media_type {
        "image/gif" => "image/gif",
        "image/jpeg" => "image/jpeg",
        "image/png" => "image/png",
        "image/webp" => "image/webp",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(body: &str) -> Option<String> {
        parse_upload(body).map(|upload| tagged_hash(&upload.value()))
    }

    #[test]
    fn srv_121_ids_of_uploads() {
        let cases = [
            (
                r#"fvj1:{"body":{"/Bytes@1":"iVBORw"},"type":"image/png"}"#,
                "fid1:sD92egETmvCXYfBOygLjn8oGrN1B4T1xSiOSQd5VQyc",
            ),
            (
                r#"fvj1:{"body":{"/Bytes@1":"aGk"},"type":"text/plain"}"#,
                "fid1:oWA3OGr9yK8qXbsIb-edJGlM0lO8LIXLfwpfRmtHDKQ",
            ),
            (
                r#"fvj1:{"body":{"/Bytes@1":""},"type":""}"#,
                "fid1:v4jhxpnZfTsJn-Dwzt5CuY-bLyZSeBhj89SAaNz3jLo",
            ),
            (
                r#"fvj1:{"body":[104,105],"type":"text/plain"}"#,
                "fid1:oWA3OGr9yK8qXbsIb-edJGlM0lO8LIXLfwpfRmtHDKQ",
            ),
            (
                r#"fvj1:{"body":{"0":104,"1":105,"length":2},"type":"text/plain"}"#,
                "fid1:oWA3OGr9yK8qXbsIb-edJGlM0lO8LIXLfwpfRmtHDKQ",
            ),
        ];
        for (body, expected) in cases {
            assert_eq!(id(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn srv_121_other_shapes_are_invalid() {
        for body in [
            "",
            "{}",
            "fvj1:[]",
            r#"fvj1:{"body":"aGk","type":"text/plain"}"#,
            r#"fvj1:{"body":[256],"type":"text/plain"}"#,
            r#"fvj1:{"body":[1.5],"type":"text/plain"}"#,
            r#"fvj1:{"body":{"length":0},"type":"text/plain"}"#,
            r#"fvj1:{"body":{"1":104},"type":"text/plain"}"#,
            r#"fvj1:{"body":[104]}"#,
        ] {
            assert_eq!(id(body), None, "{body}");
        }
    }

    #[test]
    fn srv_121_suffix_prefers_a_plain_extension() {
        assert_eq!(suffix(Some("a.tar.GZ"), "image/png"), "GZ");
        assert_eq!(suffix(Some("a.not-plain"), "image/png"), "png");
        assert_eq!(suffix(Some("plain"), "image/svg+xml"), "svg");
        assert_eq!(suffix(None, "text/html"), "bin");
    }

    #[test]
    fn srv_122_scriptable_types_are_served_as_bytes() {
        assert_eq!(served_type("image/svg+xml"), "application/octet-stream");
        assert_eq!(served_type("text/html"), "application/octet-stream");
        assert_eq!(served_type("image/webp"), "image/webp");
    }
}
