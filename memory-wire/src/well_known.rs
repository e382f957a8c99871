//! Documents whose ids everybody derives without asking (WIRE-206): the access list, the watermark, the effects
//! document and the sidecars of streams.

use crate::hash::hash_string;
use crate::ids::{EntityId, EventId, SpaceId};
use crate::pointer::path_to_value;
use crate::scope_key::Scope;
use crate::value;

/// Holds `{ seq }`: derived state is current through that commit. Space scope.
pub const WATERMARK_DOCUMENT: &str = "of:server-execution-watermark";

/// Holds `{ entries?, acks? }`: effects owed to one session. Session scope; the key alone says whose.
pub const EFFECTS_DOCUMENT: &str = "of:server-execution-effects";

/// What the id of every stream sidecar begins with.
pub const STREAM_SIDECAR_PREFIX: &str = "of:stream-events:";

/// The document that holds the space's access list. Space scope.
pub fn acl_document_id(space: &SpaceId) -> EntityId {
    EntityId::from(format!("of:{}", space.as_str()))
}

/// The sidecar of the stream at a value-relative path of a document (ENG-500). The sidecar itself is always written
/// at space scope; the stream's own scope is in the hash.
pub fn stream_sidecar_id<S: AsRef<str>>(id: &EntityId, path: &[S], scope: Scope) -> EntityId {
    let stream = value!({ "id": id, "path": (path_to_value(path)), "scope": (scope.as_str()) });
    EntityId::from(format!("{STREAM_SIDECAR_PREFIX}{}", hash_string(&stream)))
}

/// True when `id` names a stream sidecar.
pub fn is_stream_sidecar(id: &EntityId) -> bool {
    id.as_str().starts_with(STREAM_SIDECAR_PREFIX)
}

/// The nonce of the navigation effect that an event causes in one handler instance (ENG-550).
pub fn effect_nonce(event_id: &EventId, instance: &str) -> String {
    let cause = value!({ "eventId": event_id, "instance": instance });
    format!("nav:{}", hash_string(&cause))
}
