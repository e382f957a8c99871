//! The operations of a commit (WIRE-731) and the SQLite database some of them address (WIRE-765).

use smol_str::SmolStr;

use super::field::{entity_id, expected, insert_scope, scope_named};
use crate::codec::MAX_DOCUMENT_DEPTH;
use crate::error::WireError;
use crate::ids::EntityId;
use crate::patch::{PatchError, PatchOp, parse_patches, patches_to_value, unsafe_token};
use crate::pointer::encode_pointer;
use crate::scope_key::Scope;
use crate::value::{Extent, Object, Value};

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
    pub(super) fn from_value(index: usize, value: &Value) -> Result<Operation, WireError> {
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
                scope: scope_named(&place(".scope"), value)?,
                value: document(&place(".value"), value.member("value"))?,
            }),
            Some("patch") => Ok(Operation::Patch {
                id: entity_id(&place(".id"), value)?,
                scope: scope_named(&place(".scope"), value)?,
                patches: patches(&place(".patches"), value.member("patches"))?,
            }),
            Some("delete") => Ok(Operation::Delete {
                id: entity_id(&place(".id"), value)?,
                scope: scope_named(&place(".scope"), value)?,
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

/// A document to set, of any kind; only its depth is judged here, since a deeper one could be sent to nobody.
fn document(place: &str, value: Option<&Value>) -> Result<Value, WireError> {
    match value {
        Some(value) if Extent::of(value).depth > MAX_DOCUMENT_DEPTH => Err(WireError::protocol(format!(
            "{place}: document nests deeper than {MAX_DOCUMENT_DEPTH} levels"
        ))),
        value => Ok(value.cloned().unwrap_or(Value::Undefined)),
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
    for patch in &patches {
        let checked = patch.check_depth();
        checked.map_err(|error| WireError::protocol(format!("{place}: {error}")))?;
    }
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
