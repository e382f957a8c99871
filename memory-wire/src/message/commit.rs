//! The client commit (WIRE-731): what a transaction read, what it writes, and under which conditions. The typed
//! view stands beside the value as received, because replay compares the re-encoding of exactly that (WIRE-733,
//! WIRE-1002). It has no field for class, holder, scope key or attribution.

use smol_str::SmolStr;

use super::field::{elements, expected, positive};
use crate::error::WireError;
use crate::ids::{BranchName, EntityId, EventId, LocalSeq, Seq};
use crate::patch::{PatchError, PatchOp, parse_patches, patches_to_value, unsafe_token};
use crate::pointer::{DocPath, encode_pointer, path_from_value, path_to_value};
use crate::scope_key::Scope;
use crate::value::{Object, Value};

/// A read of a document as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmedRead {
    /// The document.
    pub id: EntityId,
    /// Its scope; the instance is the reader's own.
    pub scope: Scope,
    /// Branch, when it is not the commit's.
    pub branch: Option<BranchName>,
    /// What of it was read, from the document root.
    pub path: DocPath,
    /// The seq it was read at.
    pub seq: Seq,
    /// True when only the shape at `path` was read, not what is below.
    pub non_recursive: bool,
}

/// A read through the session's own unconfirmed commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRead {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// What of it was read, from the document root.
    pub path: DocPath,
    /// The session's commits the read looked through. Never empty, in the order given.
    pub local_seqs: Vec<LocalSeq>,
    /// The seq below those layers; 0 for never seen. Absent from old clients.
    pub basis_seq: Option<Seq>,
    /// True when only the shape at `path` was read.
    pub non_recursive: bool,
}

/// The read set of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads of confirmed state.
    pub confirmed: Vec<ConfirmedRead>,
    /// Reads of pending state.
    pub pending: Vec<PendingRead>,
}

/// A SQLite database beside the documents (WIRE-765).
#[derive(Clone, Debug)]
pub struct SqliteDb {
    /// Database id.
    pub id: SmolStr,
    /// Declared tables.
    pub tables: Option<Object>,
    /// Scope of the database; absent is space.
    pub scope: Option<Scope>,
    /// As received on a commit operation; dropped on queries.
    pub owner: Option<Value>,
}

/// One operation of a commit.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Replaces a document.
    Set {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
        /// The new root. The engine refuses one that is no object (ENG-350), at that operation's turn.
        value: Value,
    },
    /// Patches a document.
    Patch {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
        /// What to do, in order.
        patches: Vec<PatchOp>,
    },
    /// Deletes a document.
    Delete {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
    },
    /// Runs a statement in a SQLite database, inside the commit's transaction.
    Sqlite {
        /// The database.
        db: SqliteDb,
        /// The statement.
        sql: String,
        /// Array or object of values.
        params: Option<Value>,
    },
}

/// A condition of a commit beside its reads (WIRE-741).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// An earlier commit of this session is stored.
    OriginCommitted {
        /// That commit.
        origin_local_seq: LocalSeq,
    },
    /// No set or delete of the document was ever stored.
    EntityAbsent {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
    },
    /// The document's value hashes to this.
    EntityValueHash {
        /// The document.
        id: EntityId,
        /// Its scope.
        scope: Scope,
        /// [`crate::hash::precondition_value_hash`] of the value; `None` for no value.
        value_hash: Option<String>,
    },
}

/// The declaration of one event append (WIRE-911).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventAppendDecl {
    /// The stream's sidecar document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// The appended event.
    pub event_id: EventId,
}

/// A commit as a client sends it.
#[derive(Clone, Debug)]
pub struct ClientCommit {
    /// Exactly what was received (or built); its encoding is stored and compared on replay.
    pub value: Value,
    /// Unique per session, chosen by the client; positive.
    pub local_seq: LocalSeq,
    /// Branch; the default branch is `""`.
    pub branch: BranchName,
    /// What the transaction read.
    pub reads: Reads,
    /// What it writes.
    pub operations: Vec<Operation>,
    /// Under which conditions.
    pub preconditions: Vec<Precondition>,
    /// Which events it appends.
    pub event_appends: Vec<EventAppendDecl>,
}

/// The parts a writer builds a [`ClientCommit`] from.
#[derive(Clone, Debug, Default)]
pub struct CommitParts {
    /// Branch; the default branch is `""`.
    pub branch: BranchName,
    /// What the transaction read.
    pub reads: Reads,
    /// What it writes.
    pub operations: Vec<Operation>,
    /// Under which conditions.
    pub preconditions: Vec<Precondition>,
    /// Which events it appends.
    pub event_appends: Vec<EventAppendDecl>,
}

impl Operation {
    /// The document written and its scope; `None` for a SQLite statement.
    pub fn target(&self) -> Option<(&EntityId, Scope)> {
        match self {
            Operation::Set { id, scope, .. }
            | Operation::Patch { id, scope, .. }
            | Operation::Delete { id, scope } => Some((id, *scope)),
            Operation::Sqlite { .. } => None,
        }
    }

    /// The operation's kind as the wire spells it.
    pub fn kind(&self) -> &'static str {
        match self {
            Operation::Set { .. } => "set",
            Operation::Patch { .. } => "patch",
            Operation::Delete { .. } => "delete",
            Operation::Sqlite { .. } => "sqlite",
        }
    }

    /// Reads `operations[index]`. What the reference answers with `TransactionError` keeps that name (SRV-116);
    /// everything else is a `ProtocolError`, since no retry can change it.
    fn from_value(index: usize, value: &Value) -> Result<Operation, WireError> {
        let place = |field: &str| format!("commit.operations[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        let kind = value.member("op");
        match kind.and_then(Value::as_str) {
            Some("set") => Ok(Operation::Set {
                id: entity_id(&place(".id"), value)?,
                scope: scope(&place(".scope"), value)?,
                value: value.member("value").cloned().unwrap_or(Value::Undefined),
            }),
            Some("patch") => Ok(Operation::Patch {
                id: entity_id(&place(".id"), value)?,
                scope: scope(&place(".scope"), value)?,
                patches: patches(&place(".patches"), value.member("patches"))?,
            }),
            Some("delete") => Ok(Operation::Delete {
                id: entity_id(&place(".id"), value)?,
                scope: scope(&place(".scope"), value)?,
            }),
            Some("sqlite") => sqlite(&place, value),
            Some(_) | None => Err(WireError::transaction(expected(
                &place(".op"),
                "\"set\", \"patch\", \"delete\" or \"sqlite\"",
                kind,
            ))),
        }
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("op", self.kind());
        if let Some((id, scope)) = self.target() {
            object.insert("id", id);
            insert_scope(&mut object, scope);
        }
        match self {
            Operation::Set { value, .. } => {
                object.insert("value", value.clone());
            }
            Operation::Patch { patches, .. } => {
                object.insert("patches", patches_to_value(patches));
            }
            Operation::Delete { .. } => {}
            Operation::Sqlite { db, sql, params } => {
                object.insert("db", db.to_value());
                object.insert("sql", sql.as_str());
                if let Some(params) = params {
                    object.insert("params", params.clone());
                }
            }
        }
        object.into()
    }
}

impl SqliteDb {
    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", self.id.as_str());
        if let Some(tables) = &self.tables {
            object.insert("tables", tables.clone());
        }
        if let Some(scope) = self.scope {
            object.insert("scope", scope.as_str());
        }
        if let Some(owner) = &self.owner {
            object.insert("owner", owner.clone());
        }
        object.into()
    }
}

fn patches(place: &str, value: Option<&Value>) -> Result<Vec<PatchOp>, WireError> {
    let list = value.filter(|v| v.as_array().is_some());
    let list = list.ok_or_else(|| WireError::protocol(expected(place, "an array", value)))?;
    let patches = parse_patches(list).map_err(|error| match error {
        // A malformed pointer keeps the reference's answer and text.
        PatchError::InvalidPointer(_) => WireError::transaction(error.to_string()),
        _ => WireError::protocol(format!("{place}: {error}")),
    })?;
    for path in patches.iter().flat_map(PatchOp::touched_paths) {
        if let Some(token) = unsafe_token(path) {
            let pointer = encode_pointer(path);
            return Err(WireError::protocol(format!(
                "{place}: unsafe key {:?} in path {pointer}",
                token.as_str()
            )));
        }
    }
    Ok(patches)
}

fn sqlite(place: &dyn Fn(&str) -> String, value: &Value) -> Result<Operation, WireError> {
    let Some(db @ Value::Object(_)) = value.member("db") else {
        return Err(WireError::protocol(expected(
            &place(".db"),
            "an object",
            value.member("db"),
        )));
    };
    let scope = match db.member("scope") {
        None => None,
        Some(name) => Some(name.as_str().and_then(Scope::from_name).ok_or_else(|| {
            // ENG-1400 owns the text.
            WireError::protocol("sqlite op declares an invalid scope")
        })?),
    };
    let tables = match db.member("tables") {
        None => None,
        Some(Value::Object(tables)) => Some(tables.clone()),
        other => {
            return Err(WireError::protocol(expected(
                &place(".db.tables"),
                "an object",
                other,
            )));
        }
    };
    let id = db.member("id");
    let Some(Value::String(sql)) = value.member("sql") else {
        return Err(WireError::protocol(expected(
            &place(".sql"),
            "a string",
            value.member("sql"),
        )));
    };
    Ok(Operation::Sqlite {
        db: SqliteDb {
            id: id
                .and_then(Value::as_str)
                .map(SmolStr::new)
                .ok_or_else(|| WireError::protocol(expected(&place(".db.id"), "a string", id)))?,
            tables,
            scope,
            owner: db.member("owner").cloned(),
        },
        sql: sql.to_string_lossy().into_owned(),
        params: value
            .member("params")
            .filter(|p| matches!(p, Value::Array(_) | Value::Object(_)))
            .cloned(),
    })
}

fn entity_id(place: &str, value: &Value) -> Result<EntityId, WireError> {
    let id = value.member("id");
    match id {
        Some(Value::String(text)) => match text.as_str() {
            Some(text) => Ok(EntityId::from(text)),
            None => Err(WireError::protocol(format!(
                "{place}: holds an unpaired surrogate"
            ))),
        },
        // The reference's answer, kept by name (SRV-116).
        Some(_) | None => Err(WireError::transaction(expected(place, "a string", id))),
    }
}

fn scope(place: &str, value: &Value) -> Result<Scope, WireError> {
    match value.member("scope") {
        None => Ok(Scope::Space),
        Some(name) => name.as_str().and_then(Scope::from_name).ok_or_else(|| {
            WireError::transaction(expected(place, "\"space\", \"user\" or \"session\"", Some(name)))
        }),
    }
}

fn insert_scope(object: &mut Object, scope: Scope) {
    if scope != Scope::Space {
        object.insert("scope", scope.as_str());
    }
}

fn path(place: &str, value: &Value) -> Result<DocPath, WireError> {
    let path = value.member("path");
    path.and_then(path_from_value)
        .ok_or_else(|| WireError::protocol(expected(place, "an array of strings", path)))
}

fn flag(place: &str, value: Option<&Value>) -> Result<bool, WireError> {
    match value {
        None => Ok(false),
        Some(Value::Bool(b)) => Ok(*b),
        Some(_) => Err(WireError::protocol(expected(place, "a boolean", value))),
    }
}

fn branch(place: &str, value: Option<&Value>) -> Result<Option<BranchName>, WireError> {
    match value {
        None => Ok(None),
        Some(name) => match name.as_str() {
            Some(name) => Ok(Some(BranchName::from(name))),
            None => Err(WireError::protocol(expected(place, "a string", value))),
        },
    }
}

/// The elements of an array that may be absent where `optional` says so.
fn list(place: &str, value: Option<&Value>, optional: bool) -> Result<Vec<Value>, WireError> {
    match value {
        Some(Value::Array(array)) => Ok(elements(array)),
        None if optional => Ok(Vec::new()),
        _ => Err(WireError::protocol(expected(place, "an array", value))),
    }
}

impl ConfirmedRead {
    fn from_value(index: usize, value: &Value) -> Result<ConfirmedRead, WireError> {
        let place = |field: &str| format!("commit.reads.confirmed[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        let seq = value.member("seq");
        Ok(ConfirmedRead {
            id: entity_id(&place(".id"), value)?,
            scope: scope(&place(".scope"), value)?,
            branch: branch(&place(".branch"), value.member("branch"))?,
            path: path(&place(".path"), value)?,
            seq: seq.and_then(Seq::from_value).ok_or_else(|| {
                WireError::protocol(expected(&place(".seq"), "a non-negative safe integer", seq))
            })?,
            non_recursive: flag(&place(".nonRecursive"), value.member("nonRecursive"))?,
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        if let Some(branch) = &self.branch {
            object.insert("branch", branch);
        }
        object.insert("path", path_to_value(&self.path));
        object.insert("seq", self.seq);
        if self.non_recursive {
            object.insert("nonRecursive", true);
        }
        object.into()
    }
}

impl PendingRead {
    fn from_value(index: usize, value: &Value) -> Result<PendingRead, WireError> {
        let place = |field: &str| format!("commit.reads.pending[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        let id = entity_id(&place(".id"), value)?;
        let layers = match value.member("localSeq") {
            Some(Value::Array(layers)) => elements(layers),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        if layers.is_empty() {
            return Err(WireError::protocol(format!(
                "pending read on {id} names no localSeq"
            )));
        }
        let local_seqs = layers
            .iter()
            .map(LocalSeq::from_value)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                WireError::protocol(format!("pending read on {id} names a non-integer localSeq"))
            })?;
        let basis_seq = match value.member("basisSeq") {
            None => None,
            Some(basis) => Some(Seq::from_value(basis).ok_or_else(|| {
                let spelled = super::field::describe(Some(basis));
                WireError::protocol(format!(
                    "pending read on {id} names a malformed basisSeq: {spelled}"
                ))
            })?),
        };
        Ok(PendingRead {
            scope: scope(&place(".scope"), value)?,
            path: path(&place(".path"), value)?,
            non_recursive: flag(&place(".nonRecursive"), value.member("nonRecursive"))?,
            id,
            local_seqs,
            basis_seq,
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        object.insert("path", path_to_value(&self.path));
        // One layer is a plain number, which every server understands; several need `pendingReadStacks`.
        match self.local_seqs.as_slice() {
            [one] => object.insert("localSeq", *one),
            several => object.insert(
                "localSeq",
                several.iter().map(|n| Value::from(*n)).collect::<Vec<_>>(),
            ),
        };
        if let Some(basis) = self.basis_seq {
            object.insert("basisSeq", basis);
        }
        if self.non_recursive {
            object.insert("nonRecursive", true);
        }
        object.into()
    }
}

impl Precondition {
    /// Reads one precondition; the texts are those of ENG-324.
    fn from_value(index: usize, value: &Value) -> Result<Precondition, WireError> {
        let place = |field: &str| format!("commit.preconditions[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(
                "malformed commit precondition: not an object",
            ));
        }
        match value.member("kind").and_then(Value::as_str) {
            Some("origin-committed") => Ok(Precondition::OriginCommitted {
                origin_local_seq: value
                    .member("originLocalSeq")
                    .and_then(LocalSeq::from_value)
                    .ok_or_else(|| {
                        WireError::protocol(
                            "malformed origin-committed precondition: originLocalSeq must be an integer",
                        )
                    })?,
            }),
            Some("entity-absent") => Ok(Precondition::EntityAbsent {
                id: entity_id(&place(".id"), value)?,
                scope: scope(&place(".scope"), value)?,
            }),
            Some("entity-value-hash") => Ok(Precondition::EntityValueHash {
                value_hash: match value.member("valueHash") {
                    Some(Value::Null) => None,
                    Some(Value::String(hash)) => Some(hash.to_string()),
                    Some(_) | None => {
                        return Err(WireError::protocol(
                            "malformed entity-value-hash precondition: valueHash must be a string or null",
                        ));
                    }
                },
                id: entity_id(&place(".id"), value)?,
                scope: scope(&place(".scope"), value)?,
            }),
            Some(_) | None => {
                let kind = match value.member("kind") {
                    Some(Value::String(kind)) => kind.to_string(),
                    other => super::field::describe(other),
                };
                Err(WireError::protocol(format!(
                    "unsupported commit precondition: {kind}"
                )))
            }
        }
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        match self {
            Precondition::OriginCommitted { origin_local_seq } => {
                object.insert("kind", "origin-committed");
                object.insert("originLocalSeq", *origin_local_seq);
            }
            Precondition::EntityAbsent { id, scope } => {
                object.insert("kind", "entity-absent");
                object.insert("id", id);
                insert_scope(&mut object, *scope);
            }
            Precondition::EntityValueHash {
                id,
                scope,
                value_hash,
            } => {
                object.insert("kind", "entity-value-hash");
                object.insert("id", id);
                insert_scope(&mut object, *scope);
                object.insert(
                    "valueHash",
                    value_hash.as_deref().map_or(Value::Null, Value::from),
                );
            }
        }
        object.into()
    }
}

impl EventAppendDecl {
    fn from_value(index: usize, value: &Value) -> Result<EventAppendDecl, WireError> {
        let place = |field: &str| format!("commit.eventAppends[{index}]{field}");
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected(
                &place(""),
                "an object",
                Some(value),
            )));
        }
        // Unlike an operation's, a declaration's mistakes are never answered as retryable: an append that is
        // refused so is retried for ever (WIRE-766).
        let deterministic = |error: WireError| WireError::protocol(error.message);
        let event_id = value.member("eventId");
        Ok(EventAppendDecl {
            id: entity_id(&place(".id"), value).map_err(deterministic)?,
            scope: scope(&place(".scope"), value).map_err(deterministic)?,
            event_id: event_id
                .and_then(Value::as_str)
                .map(EventId::from)
                .ok_or_else(|| WireError::protocol(expected(&place(".eventId"), "a string", event_id)))?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", &self.id);
        insert_scope(&mut object, self.scope);
        object.insert("eventId", &self.event_id);
        object.into()
    }
}

impl Reads {
    fn from_value(value: Option<&Value>) -> Result<Reads, WireError> {
        // Missing `reads` is one of the reference's typed answers (SRV-116).
        let Some(reads @ Value::Object(_)) = value else {
            return Err(WireError::transaction(expected(
                "commit.reads",
                "an object",
                value,
            )));
        };
        Ok(Reads {
            confirmed: list("commit.reads.confirmed", reads.member("confirmed"), false)?
                .iter()
                .enumerate()
                .map(|(index, read)| ConfirmedRead::from_value(index, read))
                .collect::<Result<_, _>>()?,
            pending: list("commit.reads.pending", reads.member("pending"), false)?
                .iter()
                .enumerate()
                .map(|(index, read)| PendingRead::from_value(index, read))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The wire form.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert(
            "confirmed",
            self.confirmed
                .iter()
                .map(ConfirmedRead::to_value)
                .collect::<Vec<_>>(),
        );
        object.insert(
            "pending",
            self.pending.iter().map(PendingRead::to_value).collect::<Vec<_>>(),
        );
        object.into()
    }
}

impl ClientCommit {
    /// Reads the `commit` of a transact request. Errors name the field; their names are those of SRV-116 and
    /// SRV-117.
    pub fn from_value(value: &Value) -> Result<ClientCommit, WireError> {
        if value.as_object().is_none() {
            return Err(WireError::protocol(expected("commit", "an object", Some(value))));
        }
        let operations = list("commit.operations", value.member("operations"), false)?;
        let operations = operations
            .iter()
            .enumerate()
            .map(|(index, operation)| Operation::from_value(index, operation))
            .collect::<Result<_, _>>()?;
        let local_seq = match value.member("localSeq") {
            // A missing one is the reference's typed answer; a wrong one passes there and is ours to refuse.
            None => {
                return Err(WireError::transaction(expected(
                    "commit.localSeq",
                    "a positive safe integer",
                    None,
                )));
            }
            some => LocalSeq(positive("commit.localSeq", some)?),
        };
        Ok(ClientCommit {
            local_seq,
            branch: branch("commit.branch", value.member("branch"))?.unwrap_or_default(),
            reads: Reads::from_value(value.member("reads"))?,
            operations,
            preconditions: list("commit.preconditions", value.member("preconditions"), true)?
                .iter()
                .enumerate()
                .map(|(index, precondition)| Precondition::from_value(index, precondition))
                .collect::<Result<_, _>>()?,
            event_appends: list("commit.eventAppends", value.member("eventAppends"), true)?
                .iter()
                .enumerate()
                .map(|(index, declaration)| EventAppendDecl::from_value(index, declaration))
                .collect::<Result<_, _>>()?,
            value: value.clone(),
        })
    }

    /// Builds a commit to send; `local_seq` has to be positive and new to the session.
    pub fn build(local_seq: LocalSeq, parts: CommitParts) -> ClientCommit {
        let CommitParts {
            branch,
            reads,
            operations,
            preconditions,
            event_appends,
        } = parts;
        let mut object = Object::new();
        object.insert("localSeq", local_seq);
        object.insert("reads", reads.to_value());
        object.insert(
            "operations",
            operations.iter().map(Operation::to_value).collect::<Vec<_>>(),
        );
        if !preconditions.is_empty() {
            object.insert(
                "preconditions",
                preconditions
                    .iter()
                    .map(Precondition::to_value)
                    .collect::<Vec<_>>(),
            );
        }
        if !branch.is_empty() {
            object.insert("branch", &branch);
        }
        if !event_appends.is_empty() {
            object.insert(
                "eventAppends",
                event_appends
                    .iter()
                    .map(EventAppendDecl::to_value)
                    .collect::<Vec<_>>(),
            );
        }
        ClientCommit {
            value: object.into(),
            local_seq,
            branch,
            reads,
            operations,
            preconditions,
            event_appends,
        }
    }
}
