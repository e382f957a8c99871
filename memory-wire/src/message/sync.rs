//! Sync frames (WIRE-752): the documents a session has to know now, and those it may forget. Clients read and
//! servers of small tests write this typed form; the serving path assembles frames from shared text
//! ([`super::SyncFrame`]).

use super::Unparseable;
use super::field::{
    Parsed, each, integer, optional_each, optional_integer, optional_text, scope, text, unparseable,
};
use super::request::insert_some;
use super::view::ViewPlan;
use crate::commit_meta::CommitClass;
use crate::ids::{BranchName, EntityId, LocalSeq, Seq};
use crate::scope_key::{Scope, ScopeKey};
use crate::value::{Object, Value};

/// What an upsert carries.
#[derive(Clone, Debug)]
pub enum UpsertContent {
    /// The document's root.
    Doc(Value),
    /// There is no document: deleted, or (at seq 0) never written.
    Deleted,
}

/// One document of a frame.
#[derive(Clone, Debug)]
pub struct Upsert {
    /// Branch.
    pub branch: BranchName,
    /// The document.
    pub id: EntityId,
    /// Its scope, always stated.
    pub scope: Scope,
    /// The instance; on keyed sessions only (WIRE-755).
    pub scope_key: Option<ScopeKey>,
    /// Seq of the revision; 0 for never written.
    pub seq: Seq,
    /// The content.
    pub content: UpsertContent,
    /// Class of the covering commit; with server execution on and seq > 0 only.
    pub cover_class: Option<CommitClass>,
}

/// "Stop tracking", which is not deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remove {
    /// Branch.
    pub branch: BranchName,
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// The instance; on keyed sessions only.
    pub scope_key: Option<ScopeKey>,
}

/// A sync frame; applied atomically.
#[derive(Clone, Debug, Default)]
pub struct SessionSync {
    /// `to_seq` of the previous frame of this session.
    pub from_seq: Seq,
    /// What the session is current through once it has applied this.
    pub to_seq: Seq,
    /// The catch-up marker: everything up to the verdict of this commit is in (WIRE-754).
    pub caught_up_local_seq: Option<LocalSeq>,
    /// Documents to take.
    pub upserts: Vec<Upsert>,
    /// Documents to stop tracking.
    pub removes: Vec<Remove>,
    /// Interned link schemas (WIRE-770); expanded by [`crate::schema_table::expand`].
    pub schema_table: Option<Object>,
    /// Plans of views, applied after the documents.
    pub view_plans: Option<Vec<ViewPlan>>,
}

pub(super) fn optional_scope_key(value: &Value) -> Parsed<Option<ScopeKey>> {
    match optional_text(value, "scopeKey")? {
        None => Ok(None),
        Some(text) => match ScopeKey::parse(&text) {
            Ok(key) => Ok(Some(key)),
            Err(_) => unparseable("scopeKey", "a canonical scope key"),
        },
    }
}

pub(super) fn optional_cover_class(value: &Value) -> Parsed<Option<CommitClass>> {
    match optional_text(value, "coverClass")? {
        None => Ok(None),
        Some(text) => match CommitClass::from_name(&text) {
            Some(class) => Ok(Some(class)),
            None => unparseable("coverClass", "a commit class"),
        },
    }
}

impl Upsert {
    /// Reads one upsert.
    pub fn from_value(value: &Value) -> Result<Upsert, Unparseable> {
        let content = match (value.member("doc"), value.member("deleted")) {
            (Some(doc @ Value::Object(_)), None | Some(Value::Bool(false))) => {
                UpsertContent::Doc(doc.clone())
            }
            (None, Some(Value::Bool(true))) => UpsertContent::Deleted,
            _ => return unparseable("upserts", "either a doc object or deleted: true"),
        };
        Ok(Upsert {
            branch: text(value, "branch")?.into(),
            id: text(value, "id")?.into(),
            scope: scope(value)?,
            scope_key: optional_scope_key(value)?,
            seq: Seq(integer(value, "seq")?),
            content,
            cover_class: optional_cover_class(value)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("branch", &self.branch);
        object.insert("id", &self.id);
        object.insert("scope", self.scope.as_str());
        insert_some(
            &mut object,
            "scopeKey",
            self.scope_key.as_ref().map(ScopeKey::as_str),
        );
        object.insert("seq", self.seq);
        match &self.content {
            UpsertContent::Doc(doc) => object.insert("doc", doc.clone()),
            UpsertContent::Deleted => object.insert("deleted", true),
        };
        insert_some(
            &mut object,
            "coverClass",
            self.cover_class.map(CommitClass::as_str),
        );
        object.into()
    }
}

impl Remove {
    /// Reads one remove.
    pub fn from_value(value: &Value) -> Result<Remove, Unparseable> {
        Ok(Remove {
            branch: text(value, "branch")?.into(),
            id: text(value, "id")?.into(),
            scope: scope(value)?,
            scope_key: optional_scope_key(value)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("branch", &self.branch);
        object.insert("id", &self.id);
        object.insert("scope", self.scope.as_str());
        insert_some(
            &mut object,
            "scopeKey",
            self.scope_key.as_ref().map(ScopeKey::as_str),
        );
        object.into()
    }
}

impl SessionSync {
    /// Reads a frame.
    pub fn from_value(value: &Value) -> Result<SessionSync, Unparseable> {
        if value.member("type").and_then(Value::as_str) != Some("sync") {
            return unparseable("sync.type", "\"sync\"");
        }
        let schema_table = match value.member("schemaTable") {
            None => None,
            Some(Value::Object(table)) => Some(table.clone()),
            Some(_) => return unparseable("sync.schemaTable", "an object"),
        };
        Ok(SessionSync {
            from_seq: Seq(integer(value, "fromSeq")?),
            to_seq: Seq(integer(value, "toSeq")?),
            caught_up_local_seq: optional_integer(value, "caughtUpLocalSeq")?.map(LocalSeq),
            upserts: each(value, "upserts", Upsert::from_value)?,
            removes: each(value, "removes", Remove::from_value)?,
            schema_table,
            view_plans: optional_each(value, "viewPlans", ViewPlan::from_value)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("type", "sync");
        object.insert("fromSeq", self.from_seq);
        object.insert("toSeq", self.to_seq);
        insert_some(&mut object, "caughtUpLocalSeq", self.caught_up_local_seq);
        object.insert(
            "upserts",
            self.upserts.iter().map(Upsert::to_value).collect::<Vec<_>>(),
        );
        object.insert(
            "removes",
            self.removes.iter().map(Remove::to_value).collect::<Vec<_>>(),
        );
        insert_some(&mut object, "schemaTable", self.schema_table.clone());
        if let Some(plans) = &self.view_plans {
            object.insert(
                "viewPlans",
                plans.iter().map(ViewPlan::to_value).collect::<Vec<_>>(),
            );
        }
        object.into()
    }
}
