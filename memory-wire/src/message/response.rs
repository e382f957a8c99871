//! The `ok` bodies of responses (WIRE-721, 732, 745, 746, 751, 761, 765), typed for both ends.

use super::Unparseable;
use super::field::{
    Parsed, array, each, integer, object, optional_each, optional_integer, optional_scope, optional_text,
    text, unparseable,
};
use super::operation::Operation;
use super::request::insert_some;
use super::sync::{SessionSync, optional_cover_class, optional_scope_key};
use crate::commit_meta::CommitClass;
use crate::ids::{BranchName, Did, EntityId, LocalSeq, Seq, SessionId, SessionToken};
use crate::patch::patches_to_value;
use crate::scope_key::{Scope, ScopeKey};
use crate::value::{Object, Value};

/// What a session open has to sign (WIRE-711): issued in `hello.ok` and in every successful open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenChallenge {
    /// The server's DID, which the invocation names as its audience.
    pub audience: Did,
    /// 64 lower-case hex digits.
    pub value: String,
    /// Unix seconds.
    pub expires_at: u64,
}

impl OpenChallenge {
    /// Reads `sessionOpen`; a client refuses a server message whose challenge is malformed.
    pub fn from_value(value: &Value) -> Result<OpenChallenge, Unparseable> {
        let challenge = Value::Object(object(value, "challenge")?.clone());
        Ok(OpenChallenge {
            audience: text(value, "audience")?.into(),
            value: text(&challenge, "value")?.to_string(),
            expires_at: integer(&challenge, "expiresAt")?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        crate::value!({
            "audience": (&self.audience),
            "challenge": { "value": (self.value.as_str()), "expiresAt": (self.expires_at) }
        })
    }
}

/// `ok` of `session.open`.
#[derive(Clone, Debug)]
pub struct SessionOpenOk {
    /// The session opened.
    pub session_id: SessionId,
    /// The new resume token; earlier ones are void.
    pub session_token: SessionToken,
    /// Head seq of the space.
    pub server_seq: Seq,
    /// The session's last marker; 0 on a fresh session.
    pub caught_up_local_seq: Option<LocalSeq>,
    /// True when an earlier session was taken up again.
    pub resumed: bool,
    /// What the session missed; on resume only.
    pub sync: Option<SessionSync>,
    /// The challenge of the next open on this connection.
    pub session_open: OpenChallenge,
}

impl SessionOpenOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<SessionOpenOk, Unparseable> {
        let session_open = Value::Object(object(value, "sessionOpen")?.clone());
        Ok(SessionOpenOk {
            session_id: text(value, "sessionId")?.into(),
            session_token: text(value, "sessionToken")?.into(),
            server_seq: Seq(integer(value, "serverSeq")?),
            caught_up_local_seq: optional_integer(value, "caughtUpLocalSeq")?.map(LocalSeq),
            resumed: value.member("resumed").and_then(Value::as_bool) == Some(true),
            sync: value.member("sync").map(SessionSync::from_value).transpose()?,
            session_open: OpenChallenge::from_value(&session_open)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("sessionId", &self.session_id);
        object.insert("sessionToken", &self.session_token);
        object.insert("serverSeq", self.server_seq);
        insert_some(&mut object, "caughtUpLocalSeq", self.caught_up_local_seq);
        if self.resumed {
            object.insert("resumed", true);
        }
        insert_some(&mut object, "sync", self.sync.as_ref().map(SessionSync::to_value));
        object.insert("sessionOpen", self.session_open.to_value());
        object.into()
    }
}

/// What one revision of a commit stored.
#[derive(Clone, Debug)]
pub enum RevisionContent {
    /// A whole document, as stored.
    Set {
        /// The root.
        document: Value,
    },
    /// Patches, as stored.
    Patch {
        /// The list.
        patches: Value,
    },
    /// A deletion.
    Delete,
}

impl RevisionContent {
    /// The content of an operation that is stored as it came; `None` for a SQLite statement, which has no revision.
    pub fn of(operation: &Operation) -> Option<RevisionContent> {
        match operation {
            Operation::Set { value, .. } => Some(RevisionContent::Set {
                document: value.clone(),
            }),
            Operation::Patch { patches, .. } => Some(RevisionContent::Patch {
                patches: patches_to_value(patches),
            }),
            Operation::Delete { .. } => Some(RevisionContent::Delete),
            Operation::Sqlite { .. } => None,
        }
    }

    /// The revision's op as the wire spells it.
    pub fn op(&self) -> &'static str {
        match self {
            RevisionContent::Set { .. } => "set",
            RevisionContent::Patch { .. } => "patch",
            RevisionContent::Delete => "delete",
        }
    }
}

/// One revision of an applied commit.
#[derive(Clone, Debug)]
pub struct AppliedRevision {
    /// The document.
    pub id: EntityId,
    /// Its scope as the answer states it: on a fresh commit only when it is not space, on a replay always.
    pub scope: Option<Scope>,
    /// The instance written.
    pub scope_key: ScopeKey,
    /// Branch.
    pub branch: BranchName,
    /// Seq of the revision.
    pub seq: Seq,
    /// Index of the operation in the commit.
    pub op_index: usize,
    /// Seq of the commit.
    pub commit_seq: Seq,
    /// What was stored.
    pub content: RevisionContent,
}

impl AppliedRevision {
    /// Reads one revision.
    pub fn from_value(value: &Value) -> Result<AppliedRevision, Unparseable> {
        let content = match text(value, "op")?.as_str() {
            "set" => RevisionContent::Set {
                document: Value::Object(object(value, "document")?.clone()),
            },
            "patch" => RevisionContent::Patch {
                patches: Value::Array(array(value, "patches")?.clone()),
            },
            "delete" => RevisionContent::Delete,
            _ => return unparseable("revisions.op", "\"set\", \"patch\" or \"delete\""),
        };
        let Some(scope_key) = optional_scope_key(value)? else {
            return unparseable("revisions.scopeKey", "a canonical scope key");
        };
        Ok(AppliedRevision {
            id: text(value, "id")?.into(),
            scope: optional_scope(value)?,
            scope_key,
            branch: text(value, "branch")?.into(),
            seq: Seq(integer(value, "seq")?),
            op_index: integer(value, "opIndex")? as usize,
            commit_seq: Seq(integer(value, "commitSeq")?),
            content,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_some(&mut object, "scope", self.scope.map(Scope::as_str));
        object.insert("scopeKey", self.scope_key.as_str());
        object.insert("branch", &self.branch);
        object.insert("seq", self.seq);
        object.insert("opIndex", self.op_index as u64);
        object.insert("commitSeq", self.commit_seq);
        object.insert("op", self.content.op());
        match &self.content {
            RevisionContent::Set { document } => {
                object.insert("document", document.clone());
            }
            RevisionContent::Patch { patches } => {
                object.insert("patches", patches.clone());
            }
            RevisionContent::Delete => {}
        }
        object.into()
    }
}

/// `ok` of `transact`: the verdict on an accepted commit.
#[derive(Clone, Debug)]
pub struct AppliedCommit {
    /// The commit's seq.
    pub seq: Seq,
    /// Branch.
    pub branch: BranchName,
    /// What was stored, in operation order.
    pub revisions: Vec<AppliedRevision>,
    /// The commit had been stored before, and this is that verdict.
    pub replayed: bool,
    /// Operations that changed nothing and were skipped (WIRE-735).
    pub elided_op_indexes: Option<Vec<usize>>,
}

impl AppliedCommit {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<AppliedCommit, Unparseable> {
        Ok(AppliedCommit {
            seq: Seq(integer(value, "seq")?),
            branch: text(value, "branch")?.into(),
            revisions: each(value, "revisions", AppliedRevision::from_value)?,
            replayed: value.member("replayed").and_then(Value::as_bool) == Some(true),
            elided_op_indexes: optional_each(value, "elidedOpIndexes", |index| match index.as_u64() {
                Some(index) => Ok(index as usize),
                None => unparseable("elidedOpIndexes", "an array of integers"),
            })?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("seq", self.seq);
        object.insert("branch", &self.branch);
        object.insert(
            "revisions",
            self.revisions
                .iter()
                .map(AppliedRevision::to_value)
                .collect::<Vec<_>>(),
        );
        if self.replayed {
            object.insert("replayed", true);
        }
        if let Some(indexes) = &self.elided_op_indexes {
            object.insert(
                "elidedOpIndexes",
                indexes.iter().map(|i| Value::from(*i as u64)).collect::<Vec<_>>(),
            );
        }
        object.into()
    }
}

/// One document of a `graph.query` answer.
#[derive(Clone, Debug)]
pub struct EntitySnapshot {
    /// Branch.
    pub branch: BranchName,
    /// The document.
    pub id: EntityId,
    /// Its scope; left out on the wire when space.
    pub scope: Scope,
    /// The instance; on keyed sessions only.
    pub scope_key: Option<ScopeKey>,
    /// Seq of the revision; 0 for never written.
    pub seq: Seq,
    /// The root; `None` for absent and deleted.
    pub document: Option<Value>,
    /// Class of the covering commit; with server execution on and seq > 0 only.
    pub cover_class: Option<CommitClass>,
}

impl EntitySnapshot {
    /// Reads one snapshot.
    pub fn from_value(value: &Value) -> Result<EntitySnapshot, Unparseable> {
        let document = match value.member("document") {
            None | Some(Value::Null) => None,
            Some(document @ Value::Object(_)) => Some(document.clone()),
            Some(_) => return unparseable("entities.document", "an object or null"),
        };
        Ok(EntitySnapshot {
            branch: text(value, "branch")?.into(),
            id: text(value, "id")?.into(),
            scope: optional_scope(value)?.unwrap_or_default(),
            scope_key: optional_scope_key(value)?,
            seq: Seq(integer(value, "seq")?),
            document,
            cover_class: optional_cover_class(value)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("branch", &self.branch);
        object.insert("id", &self.id);
        if self.scope != Scope::Space {
            object.insert("scope", self.scope.as_str());
        }
        insert_some(
            &mut object,
            "scopeKey",
            self.scope_key.as_ref().map(ScopeKey::as_str),
        );
        object.insert("seq", self.seq);
        object.insert("document", self.document.clone().unwrap_or(Value::Null));
        insert_some(
            &mut object,
            "coverClass",
            self.cover_class.map(CommitClass::as_str),
        );
        object.into()
    }
}

/// `ok` of `graph.query`.
#[derive(Clone, Debug)]
pub struct GraphQueryOk {
    /// Head seq of the space.
    pub server_seq: Seq,
    /// What was reached.
    pub entities: Vec<EntitySnapshot>,
}

impl GraphQueryOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<GraphQueryOk, Unparseable> {
        Ok(GraphQueryOk {
            server_seq: Seq(integer(value, "serverSeq")?),
            entities: each(value, "entities", EntitySnapshot::from_value)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let entities: Vec<Value> = self.entities.iter().map(EntitySnapshot::to_value).collect();
        crate::value!({ "serverSeq": (self.server_seq), "entities": entities })
    }
}

/// `ok` of `session.watch.set` and `session.watch.add`.
#[derive(Clone, Debug)]
pub struct WatchOk {
    /// Head seq of the space.
    pub server_seq: Seq,
    /// What the watches reach.
    pub sync: SessionSync,
}

impl WatchOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<WatchOk, Unparseable> {
        let sync = Value::Object(object(value, "sync")?.clone());
        Ok(WatchOk {
            server_seq: Seq(integer(value, "serverSeq")?),
            sync: SessionSync::from_value(&sync)?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        crate::value!({ "serverSeq": (self.server_seq), "sync": (self.sync.to_value()) })
    }
}

/// `ok` of `entity-id.list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityIdListOk {
    /// Head seq of the space.
    pub server_seq: Seq,
    /// Ids of live documents, ascending.
    pub ids: Vec<EntityId>,
    /// Last id of the page, when more follow.
    pub next_after: Option<EntityId>,
}

impl EntityIdListOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<EntityIdListOk, Unparseable> {
        Ok(EntityIdListOk {
            server_seq: Seq(integer(value, "serverSeq")?),
            ids: each(value, "ids", |id| match id.as_str() {
                Some(id) => Ok(EntityId::from(id)),
                None => unparseable("ids", "an array of strings"),
            })?,
            next_after: optional_text(value, "nextAfter")?.map(EntityId::from),
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("serverSeq", self.server_seq);
        object.insert("ids", self.ids.iter().map(Value::from).collect::<Vec<_>>());
        insert_some(&mut object, "nextAfter", self.next_after.as_ref());
        object.into()
    }
}

/// `ok` of `entity-id.exists`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityIdExistsOk {
    /// Head seq of the space.
    pub server_seq: Seq,
    /// Whether it does.
    pub exists: bool,
}

impl EntityIdExistsOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<EntityIdExistsOk, Unparseable> {
        let Some(exists) = value.member("exists").and_then(Value::as_bool) else {
            return unparseable("exists", "a boolean");
        };
        Ok(EntityIdExistsOk {
            server_seq: Seq(integer(value, "serverSeq")?),
            exists,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        crate::value!({ "serverSeq": (self.server_seq), "exists": (self.exists) })
    }
}

/// `ok` of `session.ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOk {
    /// Head seq of the space.
    pub server_seq: Seq,
}

impl AckOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<AckOk, Unparseable> {
        Ok(AckOk {
            server_seq: Seq(integer(value, "serverSeq")?),
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        crate::value!({ "serverSeq": (self.server_seq) })
    }
}

/// `ok` of `sqlite.query`.
#[derive(Clone, Debug)]
pub struct SqliteQueryOk {
    /// The rows.
    pub rows: Vec<Value>,
    /// Column descriptions, if known.
    pub columns: Option<Value>,
}

impl SqliteQueryOk {
    /// Reads the body.
    pub fn from_value(value: &Value) -> Result<SqliteQueryOk, Unparseable> {
        Ok(SqliteQueryOk {
            rows: parsed_rows(value)?,
            columns: value.member("columns").cloned(),
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("rows", self.rows.clone());
        insert_some(&mut object, "columns", self.columns.clone());
        object.into()
    }
}

fn parsed_rows(value: &Value) -> Parsed<Vec<Value>> {
    each(value, "rows", |row| Ok(row.clone()))
}
