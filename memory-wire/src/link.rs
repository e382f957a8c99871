//! Links between documents (WIRE-501…508): recognition in both regimes, the payload, identity, writing, and the
//! two other spellings (`fcl1:` text and `@scope` handles). What a schema walk makes of a link is
//! [`crate::traverse`]'s business.
//!
//! | | legacy ([`Regime::Legacy`], all stored data) | modern |
//! | --- | --- | --- |
//! | link | an object with the one key `/` whose value has a key `link@1` | [`crate::value::Special::Link`] |
//! | entity reference | an object whose `/` is a string | [`crate::value::Special::Hash`] |
//!
//! Both ends of a connection have to agree on the regime (WIRE-501); each knows only its own links (WIRE-502). The payload
//! (WIRE-503):
//!
//! | field | absent means |
//! | --- | --- |
//! | `id`, `space` | the containing document's |
//! | `path` | `[]`; value-relative: the addressed path begins with `value` |
//! | `scope` | `inherit`: the containing document's |
//! | `schema` | no constraint; a reading lens, not identity |
//! | `overwrite` | only `redirect` says something: writes land at the target |
//!
//! Two links are one address when `id`, `space`, scope and `path` agree (WIRE-504). Written is what differs from where the
//! link stands (WIRE-505). `$alias` records are plain data (WIRE-506).

use smol_str::SmolStr;

use crate::codec::{self, EncodeError};
use crate::ids::{EntityId, SpaceId};
use crate::pointer::{DocPath, path_to_value};
use crate::scope_key::Scope;
use crate::value::{Object, SlotRef, Special, Value};

/// Which representation of links and entity references is in use; both ends of a connection agree on it in the
/// handshake (`modernCellRep`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Regime {
    /// `{"/": {"link@1": payload}}`; all deployed data.
    #[default]
    Legacy,
    /// `/Link@1` and `/Hash@1` values.
    Modern,
}

impl Regime {
    /// The regime a `modernCellRep` flag stands for.
    pub fn from_flag(modern: bool) -> Regime {
        if modern { Regime::Modern } else { Regime::Legacy }
    }
}

/// The key that marks a legacy link inside its envelope.
const LEGACY_TAG: &str = "link@1";

/// The payload of a link, or `None` when `value` is not a link in this regime. Recognition looks at the envelope
/// only: a payload may be anything (WIRE-502).
pub fn link_payload(value: &Value, regime: Regime) -> Option<LinkRef<'_>> {
    match (regime, value) {
        (Regime::Legacy, Value::Object(object)) => match object.entries() {
            [(key, Value::Object(envelope))] if *key == "/" => envelope.get(LEGACY_TAG).map(LinkRef::Payload),
            // An array has no key but its indexes, so it is never an envelope.
            _ => None,
        },
        (Regime::Modern, Value::Special(special)) => match &**special {
            Special::Link(payload) => Some(LinkRef::Object(payload)),
            _ => None,
        },
        _ => None,
    }
}

/// A recognised link's payload, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum LinkRef<'a> {
    /// Legacy: anything may stand here.
    Payload(&'a Value),
    /// Modern: always an object.
    Object(&'a Object),
}

impl<'a> LinkRef<'a> {
    /// The payload when it is a plain object.
    pub fn as_object(self) -> Option<&'a Object> {
        match self {
            LinkRef::Payload(Value::Object(object)) | LinkRef::Object(object) => Some(object),
            LinkRef::Payload(_) => None,
        }
    }

    /// The payload's fields; `None` for a dead link: a null payload or a field of a type that no address can have.
    /// A payload that has no fields at all addresses the containing document.
    pub fn read(self) -> Option<LinkPayload> {
        match self {
            LinkRef::Payload(Value::Null | Value::Undefined) => None,
            LinkRef::Payload(Value::Object(payload)) | LinkRef::Object(payload) => {
                LinkPayload::from_object(payload)
            }
            LinkRef::Payload(_) => Some(LinkPayload::default()),
        }
    }
}

/// True when `value` is a link in this regime.
pub fn is_link(value: &Value, regime: Regime) -> bool {
    link_payload(value, regime).is_some()
}

/// True when `value` is an entity reference in this regime: legacy, an object whose `"/"` is a string, whatever
/// else it holds; modern, a Hash.
pub fn is_entity_ref(value: &Value, regime: Regime) -> bool {
    match (regime, value) {
        (Regime::Legacy, Value::Object(object)) => matches!(object.get("/"), Some(Value::String(_))),
        (Regime::Modern, Value::Special(special)) => matches!(**special, Special::Hash { .. }),
        _ => false,
    }
}

/// The `scope` field of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkScope {
    /// `inherit`: the base link's scope, as if absent.
    Inherit,
    /// A named scope.
    Of(Scope),
}

/// The fields of a link payload as written (WIRE-503); absent means relative to the containing document.
#[derive(Clone, Debug, Default)]
pub struct LinkPayload {
    /// The document; absent is the containing one.
    pub id: Option<EntityId>,
    /// The space; absent is the containing one.
    pub space: Option<SpaceId>,
    /// The scope.
    pub scope: Option<LinkScope>,
    /// Value-relative path.
    pub path: DocPath,
    /// Reading lens: a JSON Schema, or a reserved reference string inside a compressed frame.
    pub schema: Option<Value>,
    /// Writes through the link land at the target.
    pub redirect: bool,
}

impl LinkPayload {
    /// Reads a payload object; `None` when an address field has a type no address can have.
    pub fn from_object(payload: &Object) -> Option<LinkPayload> {
        let member = |key| payload.get(key).filter(|value| !value.is_undefined());
        let text = |key| match member(key) {
            None => Some(None),
            Some(value) => Some(Some(value.as_str()?).filter(|text| !text.is_empty())),
        };
        let scope = match member("scope").map(Value::as_str) {
            None => None,
            Some(Some("inherit")) => Some(LinkScope::Inherit),
            Some(name) => Some(LinkScope::Of(Scope::from_name(name?)?)),
        };
        Some(LinkPayload {
            id: text("id")?.map(EntityId::from),
            space: text("space")?.map(SpaceId::from),
            scope,
            path: match member("path") {
                None => DocPath::new(),
                Some(path) => read_path(path)?,
            },
            schema: member("schema").cloned(),
            redirect: member("overwrite").and_then(Value::as_str) == Some("redirect"),
        })
    }

    /// The link this payload is in the document that `base` addresses (WIRE-503).
    pub fn resolve(self, base: Option<&Link>) -> Link {
        Link {
            id: self.id.or_else(|| base.and_then(|base| base.id.clone())),
            space: self.space.or_else(|| base.and_then(|base| base.space.clone())),
            scope: match self.scope {
                Some(LinkScope::Of(scope)) => Some(scope),
                Some(LinkScope::Inherit) | None => base.and_then(|base| base.scope),
            },
            path: self.path,
            schema: self.schema,
            redirect: self.redirect,
        }
    }

    /// Link identity (WIRE-504): id, space, scope (absent is space, `inherit` is itself) and path; neither schema
    /// nor overwrite.
    pub fn same_address(&self, other: &LinkPayload) -> bool {
        let scope = |link: &LinkPayload| link.scope.unwrap_or(LinkScope::Of(Scope::Space));
        self.id == other.id
            && self.space == other.space
            && scope(self) == scope(other)
            && self.path == other.path
    }
}

/// Segments are strings; numbers are read as their text.
pub(crate) fn read_path(path: &Value) -> Option<DocPath> {
    path.as_array()?
        .slots()
        .map(|slot| match slot {
            SlotRef::Value(Value::String(text)) => text.as_str().map(SmolStr::new),
            SlotRef::Value(Value::Number(n)) => Some(SmolStr::new(ryu_js::Buffer::new().format(*n))),
            SlotRef::Value(_) | SlotRef::Holes(_) => None,
        })
        .collect()
}

/// A link as seen from where it stands: what was absent is taken from the base, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// The document.
    pub id: Option<EntityId>,
    /// The space.
    pub space: Option<SpaceId>,
    /// The scope; `None` when neither link nor base state one.
    pub scope: Option<Scope>,
    /// Value-relative path.
    pub path: DocPath,
    /// Reading lens.
    pub schema: Option<Value>,
    /// Writes through the link land at the target.
    pub redirect: bool,
}

/// What a link is written relative to.
#[derive(Clone, Copy, Debug)]
pub enum LinkBase<'a> {
    /// Nothing: the link has to stand alone.
    None,
    /// A space; id and scope are written whenever known.
    Space(&'a SpaceId),
    /// The link of the containing document.
    Link(&'a Link),
}

impl Link {
    /// Reads `value` as a link of the document `base` addresses; `None` when it is no link, or a dead one.
    pub fn parse(value: &Value, base: Option<&Link>, regime: Regime) -> Option<Link> {
        Some(link_payload(value, regime)?.read()?.resolve(base))
    }

    /// Link identity between resolved links (WIRE-504).
    pub fn same_address(&self, other: &Link) -> bool {
        let scope = |link: &Link| link.scope.unwrap_or_default();
        self.id == other.id
            && self.space == other.space
            && scope(self) == scope(other)
            && self.path == other.path
    }

    /// The payload to write (WIRE-505): `path` always, what equals the base left out, no schema that says nothing,
    /// `overwrite` only as `redirect`.
    pub fn to_payload(&self, base: LinkBase<'_>) -> Object {
        let (base_id, base_space, base_scope) = match base {
            LinkBase::None => (None, None, None),
            LinkBase::Space(space) => (None, Some(space), None),
            LinkBase::Link(link) => (link.id.as_ref(), link.space.as_ref(), link.scope),
        };
        let mut payload = Object::new();
        payload.insert("path", path_to_value(&self.path));
        if let Some(id) = self.id.as_ref().filter(|id| Some(*id) != base_id) {
            payload.insert("id", id);
        }
        if let Some(space) = self.space.as_ref().filter(|space| Some(*space) != base_space) {
            payload.insert("space", space);
        }
        if let Some(scope) = self.scope.filter(|scope| Some(*scope) != base_scope) {
            payload.insert("scope", scope.as_str());
        }
        if let Some(schema) = self.schema.as_ref().filter(|schema| !says_nothing(schema)) {
            payload.insert("schema", schema.clone());
        }
        if self.redirect {
            payload.insert("overwrite", "redirect");
        }
        payload
    }

    /// The stored form in this regime.
    pub fn to_value(&self, base: LinkBase<'_>, regime: Regime) -> Value {
        link_value(self.to_payload(base), regime)
    }
}

/// Wraps a payload in this regime's envelope.
pub fn link_value(payload: Object, regime: Regime) -> Value {
    match regime {
        Regime::Legacy => crate::value!({ "/": { "link@1": payload } }),
        Regime::Modern => Value::Special(std::sync::Arc::new(Special::Link(payload))),
    }
}

/// `true` and `{}` accept everything, so a link does not spell them.
fn says_nothing(schema: &Value) -> bool {
    match schema {
        Value::Bool(accepts) => *accepts,
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

/// The schema that stands for a content-addressed schema document: `{"$ref": "cid:<tagged hash>"}`.
pub fn schema_document_ref(tagged_hash: &str) -> Value {
    crate::value!({ "$ref": (format!("cid:{tagged_hash}")) })
}

/// The payload reduced to the address keys it has (WIRE-504): what a cause hash may be derived from.
pub fn address_of_payload(payload: &Object) -> Object {
    const ADDRESS_KEYS: [&str; 5] = ["id", "space", "scope", "path", "overwrite"];
    ADDRESS_KEYS
        .iter()
        .filter_map(|key| Some((*key, payload.get(key)?.clone())))
        .collect()
}

/// Why a link text could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkTextError {
    /// No `fcl1:` prefix.
    #[error("link text: expected the prefix fcl1:")]
    NoPrefix,
    /// Not an object of strings and string lists, or an unsafe key.
    #[error("link text: expected a JSON object of strings and string arrays")]
    NotAnAddress,
    /// A handle whose suffix is no scope, or without an id.
    #[error("link handle {0:?}: expected <id>, <id>@space, <id>@user or <id>@session")]
    BadHandle(String),
    /// The value has no text.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Prefix of a link spelled for an HTTP body.
const TEXT_PREFIX: &str = "fcl1:";

/// Spells an address object of strings and string arrays as text (WIRE-507).
pub fn encode_link_text(address: &Object) -> Result<String, LinkTextError> {
    if !is_plain_address(address) {
        return Err(LinkTextError::NotAnAddress);
    }
    // Without `/`-keys the canonical text of such an object is plain JSON.
    let text = codec::encode(&Value::Object(address.clone()))?;
    Ok(text.replacen(codec::PREFIX, TEXT_PREFIX, 1))
}

/// Reads an address object back from its text (WIRE-507).
pub fn decode_link_text(text: &str) -> Result<Object, LinkTextError> {
    let json = text.strip_prefix(TEXT_PREFIX).ok_or(LinkTextError::NoPrefix)?;
    // Plain JSON has no tags, so nothing tagged may have been read: what `/quote` holds is literal.
    let literal =
        codec::decode_body(json).and_then(|_| codec::decode_body(&format!("{{\"/quote\":{json}}}")));
    match literal {
        Ok(Value::Object(address)) if is_plain_address(&address) => Ok(address),
        Ok(_) | Err(_) => Err(LinkTextError::NotAnAddress),
    }
}

fn is_plain_address(address: &Object) -> bool {
    address.iter().all(|(key, value)| {
        let safe = *key != "__proto__" && *key != "constructor" && !key.as_bytes().starts_with(b"/");
        safe && match value {
            Value::String(_) => true,
            Value::Array(items) => items
                .as_dense()
                .is_some_and(|items| items.iter().all(|item| matches!(item, Value::String(_)))),
            _ => false,
        }
    })
}

/// Splits a link handle at its last `@` (WIRE-508): an id, and the scope it names, if any.
pub fn parse_handle(text: &str) -> Result<(EntityId, Option<Scope>), LinkTextError> {
    let bad = || LinkTextError::BadHandle(text.to_owned());
    let (id, scope) = match text.rsplit_once('@') {
        None => (text, None),
        Some((id, name)) => (id, Some(Scope::from_name(name).ok_or_else(bad)?)),
    };
    if id.is_empty() {
        Err(bad())
    } else {
        Ok((EntityId::from(id), scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    #[test]
    fn wire_505_writes_only_what_the_base_does_not_say() {
        let base = Link {
            id: Some("of:a".into()),
            space: Some("did:key:zS".into()),
            scope: Some(Scope::User),
            ..Link::default()
        };
        let link = Link {
            path: vec!["x".into()],
            schema: Some(value!(true)),
            ..base.clone()
        };
        let text = |base| codec::encode(&Value::Object(link.to_payload(base))).unwrap();
        assert_eq!(text(LinkBase::Link(&base)), r#"fvj1:{"path":["x"]}"#);
        assert_eq!(
            text(LinkBase::None),
            r#"fvj1:{"id":"of:a","path":["x"],"scope":"user","space":"did:key:zS"}"#
        );
        assert_eq!(
            text(LinkBase::Space(&"did:key:zS".into())),
            r#"fvj1:{"id":"of:a","path":["x"],"scope":"user"}"#
        );
    }

    #[test]
    fn wire_502_a_malformed_payload_is_a_dead_link_not_a_panic() {
        for payload in [
            value!(null),
            value!({ "path": "x" }),
            value!({ "path": [null] }),
            value!({ "id": 5 }),
        ] {
            let link = value!({ "/": { "link@1": payload } });
            assert!(is_link(&link, Regime::Legacy));
            assert!(Link::parse(&link, None, Regime::Legacy).is_none());
        }
        let rootless = value!({ "/": { "link@1": 5 } });
        assert!(Link::parse(&rootless, None, Regime::Legacy).is_some_and(|link| link.path.is_empty()));
    }

    #[test]
    fn wire_504_an_address_drops_schema_and_strangers() {
        let payload: Object = [
            ("id", value!("of:x")),
            ("schema", value!({})),
            ("other", value!(1)),
            ("path", value!([])),
        ]
        .into_iter()
        .collect();
        let address = address_of_payload(&payload);
        let keys: Vec<String> = address.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!(keys, ["id", "path"]);
    }
}
