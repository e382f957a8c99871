//! Assembly of sync frames from shared text (SRV-119): a document is encoded once per revision and its text is
//! copied into every recipient's frame. The assembled text is byte-identical to encoding the whole frame as one
//! value, which holds because nothing around a document has a key that begins with `/`, so escaping never looks
//! across the document's edge (WIRE-309).

use std::sync::Arc;

use super::request::insert_some;
use super::sync::Remove;
use super::view::ViewPlan;
use crate::codec::{self, EncodeError, PREFIX};
use crate::commit_meta::CommitClass;
use crate::ids::{BranchName, EntityId, LocalSeq, RequestId, Seq, SessionId, SpaceId};
use crate::link::Regime;
use crate::schema_table;
use crate::scope_key::{Scope, ScopeKey};
use crate::value::{Object, Value};

/// One entry of a frame's schema table, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedSchema {
    /// Tagged hash of the schema.
    pub hash: Arc<str>,
    /// Canonical text of the schema, without prefix.
    pub text: Arc<str>,
}

/// A document's canonical text, shared between recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedDocument {
    /// Canonical text, without prefix.
    text: Arc<str>,
    /// Schemas interned out of it, by hash, ascending.
    schemas: Arc<[EncodedSchema]>,
}

impl EncodedDocument {
    /// The document as it is, for recipients without schema tables and for `graph.query`.
    pub fn plain(document: &Value) -> Result<EncodedDocument, EncodeError> {
        Ok(EncodedDocument {
            text: body(document)?,
            schemas: Arc::from([]),
        })
    }

    /// The document with its link schemas interned (WIRE-770).
    pub fn compacted(document: &Value, regime: Regime) -> Result<EncodedDocument, EncodeError> {
        let mut table = schema_table::SchemaTable::default();
        let compacted = schema_table::compress_document(document, regime, &mut table);
        let schemas: Vec<EncodedSchema> = table
            .entries()
            .map(|(hash, schema)| {
                Ok(EncodedSchema {
                    hash: Arc::from(hash),
                    text: body(schema)?,
                })
            })
            .collect::<Result<_, EncodeError>>()?;
        Ok(EncodedDocument {
            text: body(&compacted)?,
            schemas: schemas.into(),
        })
    }

    /// Canonical text, without prefix.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Schemas interned out of it.
    pub fn schemas(&self) -> &[EncodedSchema] {
        &self.schemas
    }

    /// Bytes held: what caching this document costs.
    pub fn weight(&self) -> usize {
        self.text.len()
            + self
                .schemas
                .iter()
                .map(|schema| schema.hash.len() + schema.text.len())
                .sum::<usize>()
    }
}

fn body(value: &Value) -> Result<Arc<str>, EncodeError> {
    let mut bytes = Vec::new();
    codec::encode_into(&mut bytes, value)?;
    Ok(into_text(bytes).into())
}

/// Invariant of the callers: `bytes` is canonical text, which is whole UTF-8.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("canonical text is UTF-8")
}

/// What an assembled upsert carries.
#[derive(Clone, Debug)]
pub enum UpsertFrameContent {
    /// The document.
    Doc(EncodedDocument),
    /// There is no document.
    Deleted,
}

/// One document of an assembled frame; the fields are those of [`super::Upsert`].
#[derive(Clone, Debug)]
pub struct UpsertFrame {
    /// Branch.
    pub branch: BranchName,
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// The instance; on keyed sessions only.
    pub scope_key: Option<ScopeKey>,
    /// Seq of the revision.
    pub seq: Seq,
    /// The content.
    pub content: UpsertFrameContent,
    /// Class of the covering commit.
    pub cover_class: Option<CommitClass>,
}

/// What a sync tells, which is the same for all sessions that are told the same; the fields are those of
/// [`super::SessionSync`], the schema table is made from the documents.
#[derive(Clone, Debug, Default)]
pub struct SyncContent {
    /// What the session is current through.
    pub to_seq: Seq,
    /// Documents to take.
    pub upserts: Vec<UpsertFrame>,
    /// Documents to stop tracking.
    pub removes: Vec<Remove>,
    /// Plans of views.
    pub view_plans: Option<Vec<ViewPlan>>,
}

/// A sync frame of shared parts, for one session.
#[derive(Clone, Debug, Default)]
pub struct SyncFrame {
    /// The catch-up marker.
    pub caught_up_local_seq: Option<LocalSeq>,
    /// `to_seq` of the previous frame.
    pub from_seq: Seq,
    /// What it tells.
    pub content: SyncContent,
}

/// The text of a [`SyncContent`]: all of an effect frame that its recipients share.
#[derive(Clone, Debug)]
pub struct SharedSync(Arc<str>);

/// From whom to whom an effect frame goes, as text: the same in every one of a session.
#[derive(Clone, Debug)]
pub struct EffectAddress(Arc<str>);

/// A `session/effect` frame, kept in parts until it is written. Its text is byte-identical to that of
/// [`super::Effect`].
#[derive(Clone, Debug)]
pub struct EffectFrame {
    /// The catch-up marker.
    pub caught_up_local_seq: Option<LocalSeq>,
    /// `to_seq` of the previous frame.
    pub from_seq: Seq,
    /// What it tells.
    pub sync: SharedSync,
    /// Whom.
    pub address: EffectAddress,
}

impl EffectAddress {
    /// Of the frames that `session_id` gets in `space`.
    pub fn new(space: &SpaceId, session_id: &SessionId) -> EffectAddress {
        let mut out = Vec::new();
        for (key, text) in [
            ("sessionId", session_id.into()),
            ("space", space.into()),
            ("type", Value::from("session/effect")),
        ] {
            write_member(&mut out, key, &text).expect("every text has an encoding");
        }
        out.push(b'}');
        EffectAddress(into_text(out).into())
    }
}

const EFFECT: &str = "{\"effect\":{";
const MARKER: &str = "\"caughtUpLocalSeq\":";
const FROM: &str = "\"fromSeq\":";

/// Decimal digits of a number.
fn digits(n: u64) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

impl EffectFrame {
    /// Bytes of the text.
    #[allow(clippy::len_without_is_empty, reason = "no frame is empty")]
    pub fn len(&self) -> usize {
        let marker = match self.caught_up_local_seq {
            Some(marker) => MARKER.len() + digits(marker.0) + 1,
            None => 0,
        };
        let begin = PREFIX.len() + EFFECT.len() + marker + FROM.len() + digits(self.from_seq.0);
        begin + self.sync.0.len() + self.address.0.len()
    }

    /// The text, in a buffer of its size.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(self.len());
        out.push_str(PREFIX);
        out.push_str(EFFECT);
        if let Some(marker) = self.caught_up_local_seq {
            write_number(&mut out, MARKER, marker.0);
            out.push(',');
        }
        write_number(&mut out, FROM, self.from_seq.0);
        out.push_str(&self.sync.0);
        out.push_str(&self.address.0);
        out
    }
}

/// A sequence number is a safe integer, whose canonical text is its digits (WIRE-303).
fn write_number(out: &mut String, key: &str, n: u64) {
    use std::fmt::Write as _;
    out.push_str(key);
    write!(out, "{n}").expect("a string takes every text");
}

impl SyncFrame {
    /// The text of the response whose body is `ok` (without `sync`) and this sync.
    pub fn response_text(&self, request_id: &RequestId, ok: &Object) -> Result<String, EncodeError> {
        let mut rest = Object::new();
        rest.insert("type", "response");
        rest.insert("requestId", request_id);
        let mut out = Vec::with_capacity(256 + self.content.size_hint());
        out.extend_from_slice(PREFIX.as_bytes());
        write_with(&mut out, &rest, "ok", |out| {
            write_with(out, ok, "sync", |out| self.write(out))
        })?;
        Ok(into_text(out))
    }

    /// Writes the sync object.
    fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(b'{');
        if let Some(marker) = self.caught_up_local_seq {
            write_member(out, "caughtUpLocalSeq", &marker.into())?;
        }
        write_member(out, "fromSeq", &self.from_seq.into())?;
        self.content.write_members(out)?;
        out.push(b'}');
        Ok(())
    }
}

impl SyncContent {
    /// The text that recipients share.
    pub fn shared(&self) -> Result<SharedSync, EncodeError> {
        let mut out = Vec::with_capacity(self.size_hint());
        self.write_members(&mut out)?;
        out.push(b'}');
        Ok(SharedSync(into_text(out).into()))
    }

    /// About the bytes of the text.
    fn size_hint(&self) -> usize {
        let documents: usize = self
            .upserts
            .iter()
            .map(|upsert| match &upsert.content {
                UpsertFrameContent::Doc(document) => document.weight() + 160,
                UpsertFrameContent::Deleted => 160,
            })
            .sum();
        128 + documents + 96 * self.removes.len()
    }

    /// Writes the members of the sync object that follow `fromSeq`, which are all but that and the marker.
    fn write_members(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        write_member(
            out,
            "removes",
            &self
                .removes
                .iter()
                .map(Remove::to_value)
                .collect::<Vec<_>>()
                .into(),
        )?;
        self.write_schema_table(out)?;
        write_member(out, "toSeq", &self.to_seq.into())?;
        write_member(out, "type", &"sync".into())?;
        write_key(out, "upserts");
        out.push(b'[');
        for (index, upsert) in self.upserts.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            upsert.write(out)?;
        }
        out.push(b']');
        if let Some(plans) = &self.view_plans {
            write_member(
                out,
                "viewPlans",
                &plans.iter().map(ViewPlan::to_value).collect::<Vec<_>>().into(),
            )?;
        }
        Ok(())
    }

    /// Hashes all begin alike and none is an array index, so byte order is key order.
    fn write_schema_table(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut schemas: Vec<&EncodedSchema> = self
            .upserts
            .iter()
            .filter_map(|upsert| match &upsert.content {
                UpsertFrameContent::Doc(document) => Some(document.schemas()),
                UpsertFrameContent::Deleted => None,
            })
            .flatten()
            .collect();
        if schemas.is_empty() {
            return Ok(());
        }
        schemas.sort_unstable_by(|a, b| a.hash.cmp(&b.hash));
        schemas.dedup_by(|a, b| a.hash == b.hash);
        write_key(out, "schemaTable");
        out.push(b'{');
        for schema in schemas {
            write_key(out, &schema.hash);
            out.extend_from_slice(schema.text.as_bytes());
        }
        out.push(b'}');
        Ok(())
    }
}

impl UpsertFrame {
    fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let mut rest = Object::new();
        rest.insert("branch", &self.branch);
        rest.insert("id", &self.id);
        rest.insert("scope", self.scope.as_str());
        insert_some(
            &mut rest,
            "scopeKey",
            self.scope_key.as_ref().map(ScopeKey::as_str),
        );
        rest.insert("seq", self.seq);
        insert_some(&mut rest, "coverClass", self.cover_class.map(CommitClass::as_str));
        match &self.content {
            UpsertFrameContent::Doc(document) => write_with(out, &rest, "doc", |out| {
                out.extend_from_slice(document.text.as_bytes());
                Ok(())
            }),
            UpsertFrameContent::Deleted => {
                rest.insert("deleted", true);
                codec::encode_into(out, &rest.into())
            }
        }
    }
}

/// Writes an object of fixed, plain keys in canonical order, with one more member whose text `member` writes.
fn write_with(
    out: &mut Vec<u8>,
    rest: &Object,
    key: &'static str,
    member: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    out.push(b'{');
    let mut member = Some(member);
    for (name, value) in rest.iter() {
        let name = name.to_string_lossy();
        if key < name.as_ref()
            && let Some(member) = member.take()
        {
            write_key(out, key);
            member(out)?;
        }
        write_member(out, &name, value)?;
    }
    if let Some(member) = member.take() {
        write_key(out, key);
        member(out)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &Value) -> Result<(), EncodeError> {
    write_key(out, key);
    codec::encode_into(out, value)
}

/// Writes `"key":`, preceded by a comma unless it opens the object. The keys of a frame need no escape.
fn write_key(out: &mut Vec<u8>, key: &str) {
    if !out.ends_with(b"{") {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
}
