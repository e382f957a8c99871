//! Patch operations (WIRE-601…608): their typed form, and constructors for writers. [`apply_patches`]
//! is the one definition of what a patch does, for client and server alike; [`touched_paths`] and
//! [`patches_conflict_with_read`] say what it conflicts with.
//!
//! | op | fields | effect |
//! | --- | --- | --- |
//! | `replace` | `path`, `value` | sets what has a parent |
//! | `add` | `path`, `value` | sets, inserts at an index, `-` appends; makes the objects on the way |
//! | `remove` | `path` | removes what is there |
//! | `move` | `from`, `path` | takes, removes, adds, in that order |
//! | `splice` | `path`, `index`, `remove`, `add` | on an array that is there |
//! | `append` | `path`, `values`, `createsKey?` | pushes; makes the array |
//! | `add-unique` | `path`, `values`, `createsKey?` | pushes what no element equals |
//! | `remove-by-value` | `path`, `value` | removes every equal element, if any |
//! | `increment` | `path`, `by`, `createsKey?` | adds to a number; absent is 0 |
//!
//! Only arrays and plain objects are walked; everything else is a leaf (WIRE-602). A list applies as a whole or not at all,
//! and what it leaves has to be an object (WIRE-603). [`PatchError`] has every refusal with its text. The last four merge:
//! two writers that use them do not undo each other.
//!
//! What a patch touches: its `path`, and `from` of a move. A recursive read conflicts with a touched path above or below it, a
//! shape-only read with one at or above it, and with the parents that `add`, `remove`, `move` and `createsKey` change
//! (WIRE-608).

mod apply;
mod array_edit;
mod footprint;

use smol_str::SmolStr;

use crate::codec::MAX_DOCUMENT_DEPTH;
use crate::pointer::{DocPath, PointerError, encode_pointer, parse_pointer};
use crate::value::{Array, Extent, Object, SlotRef, Value};

pub use apply::apply_patches;
pub use footprint::{patches_conflict_with_read, touched_paths};

/// One patch operation, with the value it was read from: unknown fields are stored, forwarded and ignored.
#[derive(Clone, Debug)]
pub struct PatchOp {
    action: PatchAction,
    source: Value,
    /// What it writes, seen from the root of the document.
    extent: Extent,
}

/// What a patch operation does (WIRE-602…605). Paths are document paths.
#[derive(Clone, Debug)]
pub enum PatchAction {
    /// Sets a key, or an existing array element.
    Replace {
        /// Where.
        path: DocPath,
        /// The new value.
        value: Value,
    },
    /// Sets a key or inserts into an array, creating missing object keys on the way.
    Add {
        /// Where; a last segment `-` appends to an array.
        path: DocPath,
        /// The new value.
        value: Value,
    },
    /// Deletes an existing key or array element.
    Remove {
        /// What.
        path: DocPath,
    },
    /// Get, remove, add.
    Move {
        /// From where.
        from: DocPath,
        /// To where, judged after the removal.
        path: DocPath,
    },
    /// Replaces a range of an existing array.
    Splice {
        /// The array.
        path: DocPath,
        /// First index; fractions truncate.
        index: f64,
        /// How many to remove, clamped to the tail.
        remove: f64,
        /// What to insert.
        add: Vec<Value>,
    },
    /// Pushes all values, creating the array if absent.
    Append {
        /// The array.
        path: DocPath,
        /// What to push.
        values: Vec<Value>,
        /// The writer's statement that its base had nothing here.
        creates_key: bool,
    },
    /// Pushes each value that no element equals yet, creating the array if absent.
    AddUnique {
        /// The array.
        path: DocPath,
        /// What to push.
        values: Vec<Value>,
        /// The writer's statement that its base had nothing here.
        creates_key: bool,
    },
    /// Removes every equal element; anything missing is no change.
    RemoveByValue {
        /// The array.
        path: DocPath,
        /// What to remove.
        value: Value,
    },
    /// Adds to a number; absent and undefined count as 0.
    Increment {
        /// The number.
        path: DocPath,
        /// By how much.
        by: f64,
        /// The writer's statement that its base had nothing here.
        creates_key: bool,
    },
}

/// Why a patch could not be read or applied. The texts are those of WIRE-603.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch list is not an array.
    #[error("patches: expected an array of patch operations")]
    NotAList,
    /// An operation of an unknown kind.
    #[error("unknown patch operation: {0}")]
    UnknownOperation(String),
    /// A field of the wrong type.
    #[error("patch {op}: field {field} must be {expected}")]
    MalformedField {
        /// The operation's kind.
        op: &'static str,
        /// The field.
        field: &'static str,
        /// What it has to be.
        expected: &'static str,
    },
    /// A pointer that does not start at the root; a plain error, not an application failure.
    #[error(transparent)]
    InvalidPointer(#[from] PointerError),
    /// Something on the way is absent.
    #[error("missing path {0}")]
    MissingPath(String),
    /// A leaf lies on the way.
    #[error("path is not traversable at {0}")]
    NotTraversable(String),
    /// Removal of an absent key.
    #[error("missing object key at {0}")]
    MissingObjectKey(String),
    /// An array addressed by something that is no index.
    #[error("invalid array index: {0}")]
    InvalidArrayIndex(String),
    /// An index past the end, or past what an array can have.
    #[error("array index out of bounds: {0}")]
    IndexOutOfBounds(String),
    /// Removal of the root.
    #[error("root remove must be represented as a delete operation")]
    RootRemove,
    /// Move of the root.
    #[error("cannot move the root value")]
    MoveRoot,
    /// Move into itself.
    #[error("cannot move a value into its own descendant")]
    MoveIntoDescendant,
    /// An array operation met an object.
    #[error("{op} target is not an array at {at}")]
    TargetNotArray {
        /// The operation's kind.
        op: &'static str,
        /// Where.
        at: String,
    },
    /// A splice outside the array.
    #[error("invalid splice at {0}")]
    InvalidSplice(String),
    /// Increment of the root.
    #[error("increment requires a non-root path")]
    IncrementRoot,
    /// Increment by zero, an infinity, NaN or no number.
    #[error("increment requires a finite non-zero amount at {0}")]
    IncrementAmount(String),
    /// Increment of something else than a number.
    #[error("increment target is not a number at {0}")]
    IncrementTarget(String),
    /// All operations applied, and the root is no object.
    #[error("patched root is not an entity document")]
    RootNotDocument,
    /// A path token that no stored value may have as a key.
    #[error("unsafe key {token:?} in patch path {at}")]
    UnsafeKey {
        /// `__proto__` or `constructor`.
        token: String,
        /// The whole pointer.
        at: String,
    },
    /// The operation would leave a document with more holes than a message may carry (WIRE-314).
    #[error("document would hold more than {limit} array holes by the patch at {at}")]
    HoleBudget {
        /// Most holes a document may have.
        limit: u64,
        /// Where.
        at: String,
    },
    /// The operation would nest a document deeper than a frame can carry (WIRE-312).
    #[error("document would nest deeper than {limit} levels by the patch at {at}")]
    TooDeep {
        /// Deepest nesting a document may have.
        limit: usize,
        /// Where, cut short.
        at: String,
    },
}

impl PatchError {
    /// The reference's class of the error: `Error` for what is wrong with the operation itself, else
    /// `PatchApplyError`. Neither crosses the wire; both become `TransactionError` there.
    pub fn class_name(&self) -> &'static str {
        match self {
            PatchError::NotAList
            | PatchError::UnknownOperation(_)
            | PatchError::MalformedField { .. }
            | PatchError::InvalidPointer(_) => "Error",
            PatchError::MissingPath(_)
            | PatchError::NotTraversable(_)
            | PatchError::MissingObjectKey(_)
            | PatchError::InvalidArrayIndex(_)
            | PatchError::IndexOutOfBounds(_)
            | PatchError::RootRemove
            | PatchError::MoveRoot
            | PatchError::MoveIntoDescendant
            | PatchError::TargetNotArray { .. }
            | PatchError::InvalidSplice(_)
            | PatchError::IncrementRoot
            | PatchError::IncrementAmount(_)
            | PatchError::IncrementTarget(_)
            | PatchError::RootNotDocument
            | PatchError::UnsafeKey { .. }
            | PatchError::HoleBudget { .. }
            | PatchError::TooDeep { .. } => "PatchApplyError",
        }
    }
}

/// Reads a list of patch operations.
pub fn parse_patches(value: &Value) -> Result<Vec<PatchOp>, PatchError> {
    let list = value.as_array().ok_or(PatchError::NotAList)?;
    list.slots()
        .map(|slot| match slot {
            SlotRef::Value(op) => PatchOp::from_value(op),
            SlotRef::Holes(_) => PatchOp::from_value(&Value::Undefined),
        })
        .collect()
}

/// The list as it is stored and sent.
pub fn patches_to_value(patches: &[PatchOp]) -> Value {
    Value::Array(
        patches
            .iter()
            .map(|patch| patch.source.clone())
            .collect::<Array>(),
    )
}

/// Keys no stored value may have (WIRE-301).
pub(crate) fn unsafe_token(path: &[SmolStr]) -> Option<&SmolStr> {
    path.iter()
        .find(|token| matches!(token.as_str(), "__proto__" | "constructor"))
}

impl PatchAction {
    fn path(&self) -> &DocPath {
        match self {
            PatchAction::Replace { path, .. }
            | PatchAction::Add { path, .. }
            | PatchAction::Remove { path }
            | PatchAction::Move { path, .. }
            | PatchAction::Splice { path, .. }
            | PatchAction::Append { path, .. }
            | PatchAction::AddUnique { path, .. }
            | PatchAction::RemoveByValue { path, .. }
            | PatchAction::Increment { path, .. } => path,
        }
    }

    /// Seen from the root: the containers on the way count, and so does the array that receives values.
    fn extent(&self) -> Extent {
        let all = |values: &[Value]| {
            values
                .iter()
                .map(Extent::of)
                .fold(Extent::default(), Extent::beside)
        };
        let (above, written) = match self {
            PatchAction::Replace { path, value } | PatchAction::Add { path, value } => {
                (path.len(), Extent::of(value))
            }
            PatchAction::Splice {
                path, add: values, ..
            }
            | PatchAction::Append { path, values, .. }
            | PatchAction::AddUnique { path, values, .. } => (path.len() + 1, all(values)),
            // The sum may pass what JSON can hold, and is tagged then.
            PatchAction::Increment { path, .. } => (path.len() + 1, Extent::default()),
            PatchAction::Move { path, .. } => (path.len(), Extent::default()),
            PatchAction::Remove { .. } | PatchAction::RemoveByValue { .. } => (0, Extent::default()),
        };
        Extent {
            depth: above + written.depth,
            ..written
        }
    }
}

/// Most characters of a pointer that an error about depth shows.
const SHOWN_POINTER: usize = 80;

/// Refuses what would lie `depth` brackets deep, written at `path`.
fn check_depth(depth: usize, path: &[SmolStr]) -> Result<(), PatchError> {
    if depth <= MAX_DOCUMENT_DEPTH {
        return Ok(());
    }
    let mut at = encode_pointer(&path[..path.len().min(SHOWN_POINTER)]);
    if let Some((cut, _)) = at.char_indices().nth(SHOWN_POINTER) {
        at.truncate(cut);
        at.push('…');
    }
    Err(PatchError::TooDeep {
        limit: MAX_DOCUMENT_DEPTH,
        at,
    })
}

impl PatchOp {
    /// Reads one operation; every field its kind needs is checked, every other is kept untouched.
    pub fn from_value(source: &Value) -> Result<PatchOp, PatchError> {
        let kind = match source.member("op") {
            Some(Value::String(kind)) => kind.to_string(),
            Some(_) | None => return Err(PatchError::UnknownOperation("undefined".to_owned())),
        };
        let op = |op| Fields { op, source };
        let action = match kind.as_str() {
            "replace" => PatchAction::Replace {
                path: op("replace").pointer("path")?,
                value: any(source, "value"),
            },
            "add" => PatchAction::Add {
                path: op("add").pointer("path")?,
                value: any(source, "value"),
            },
            "remove" => PatchAction::Remove {
                path: op("remove").pointer("path")?,
            },
            "move" => PatchAction::Move {
                from: op("move").pointer("from")?,
                path: op("move").pointer("path")?,
            },
            "splice" => {
                let fields = op("splice");
                PatchAction::Splice {
                    path: fields.pointer("path")?,
                    index: fields.number("index")?,
                    remove: fields.number("remove")?,
                    add: fields.list("add")?,
                }
            }
            "append" => {
                let fields = op("append");
                PatchAction::Append {
                    path: fields.pointer("path")?,
                    values: fields.list("values")?,
                    creates_key: fields.creates_key(),
                }
            }
            "add-unique" => {
                let fields = op("add-unique");
                PatchAction::AddUnique {
                    path: fields.pointer("path")?,
                    values: fields.list("values")?,
                    creates_key: fields.creates_key(),
                }
            }
            "remove-by-value" => PatchAction::RemoveByValue {
                path: op("remove-by-value").pointer("path")?,
                value: any(source, "value"),
            },
            "increment" => {
                let fields = op("increment");
                PatchAction::Increment {
                    path: fields.pointer("path")?,
                    // What is no number is as little an amount as NaN is; `apply` says so with its own text.
                    by: source.member("by").and_then(Value::as_f64).unwrap_or(f64::NAN),
                    creates_key: fields.creates_key(),
                }
            }
            unknown => return Err(PatchError::UnknownOperation(unknown.to_owned())),
        };
        Ok(PatchOp {
            extent: action.extent(),
            action,
            source: source.clone(),
        })
    }

    /// What the operation does.
    pub fn action(&self) -> &PatchAction {
        &self.action
    }

    /// The operation as received, or as built; this is what is stored and sent.
    pub fn source(&self) -> &Value {
        &self.source
    }

    /// The operation's kind as the wire spells it.
    pub fn kind(&self) -> &'static str {
        match self.action {
            PatchAction::Replace { .. } => "replace",
            PatchAction::Add { .. } => "add",
            PatchAction::Remove { .. } => "remove",
            PatchAction::Move { .. } => "move",
            PatchAction::Splice { .. } => "splice",
            PatchAction::Append { .. } => "append",
            PatchAction::AddUnique { .. } => "add-unique",
            PatchAction::RemoveByValue { .. } => "remove-by-value",
            PatchAction::Increment { .. } => "increment",
        }
    }

    /// The operation's `path`.
    pub fn path(&self) -> &DocPath {
        self.action.path()
    }

    /// How deep what the operation writes lies in the document at least, and the holes it brings; of a `move`, only the
    /// way.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// The refusal of an operation that by itself nests a document too deep (WIRE-312).
    pub(crate) fn check_depth(&self) -> Result<(), PatchError> {
        check_depth(self.extent.depth, self.path())
    }

    /// Builds an operation from what it does.
    pub fn from_action(action: PatchAction) -> PatchOp {
        let mut op = PatchOp {
            extent: action.extent(),
            action,
            source: Value::Undefined,
        };
        let mut fields = Object::new();
        fields.insert("op", op.kind());
        fields.insert("path", encode_pointer(op.path()));
        match &op.action {
            PatchAction::Replace { value, .. }
            | PatchAction::Add { value, .. }
            | PatchAction::RemoveByValue { value, .. } => {
                fields.insert("value", value.clone());
            }
            PatchAction::Remove { .. } => {}
            PatchAction::Move { from, .. } => {
                fields.insert("from", encode_pointer(from));
            }
            PatchAction::Splice {
                index, remove, add, ..
            } => {
                fields.insert("index", *index);
                fields.insert("remove", *remove);
                fields.insert("add", add.clone());
            }
            PatchAction::Append {
                values, creates_key, ..
            }
            | PatchAction::AddUnique {
                values, creates_key, ..
            } => {
                fields.insert("values", values.clone());
                if *creates_key {
                    fields.insert("createsKey", true);
                }
            }
            PatchAction::Increment { by, creates_key, .. } => {
                fields.insert("by", *by);
                if *creates_key {
                    fields.insert("createsKey", true);
                }
            }
        }
        op.source = Value::Object(fields);
        op
    }

    /// `replace`: sets a key, or an existing array element.
    pub fn replace(path: DocPath, value: Value) -> PatchOp {
        PatchOp::from_action(PatchAction::Replace { path, value })
    }

    /// `add`: sets a key or inserts into an array.
    pub fn add(path: DocPath, value: Value) -> PatchOp {
        PatchOp::from_action(PatchAction::Add { path, value })
    }

    /// `remove`: deletes an existing key or element.
    pub fn remove(path: DocPath) -> PatchOp {
        PatchOp::from_action(PatchAction::Remove { path })
    }

    /// `append`: pushes the tail a writer added.
    pub fn append(path: DocPath, values: Vec<Value>, creates_key: bool) -> PatchOp {
        PatchOp::from_action(PatchAction::Append {
            path,
            values,
            creates_key,
        })
    }

    /// `add-unique`: pushes what is not there yet.
    pub fn add_unique(path: DocPath, values: Vec<Value>, creates_key: bool) -> PatchOp {
        PatchOp::from_action(PatchAction::AddUnique {
            path,
            values,
            creates_key,
        })
    }

    /// `remove-by-value`: removes every equal element.
    pub fn remove_by_value(path: DocPath, value: Value) -> PatchOp {
        PatchOp::from_action(PatchAction::RemoveByValue { path, value })
    }

    /// `increment`: adds to a number.
    pub fn increment(path: DocPath, by: f64, creates_key: bool) -> PatchOp {
        PatchOp::from_action(PatchAction::Increment {
            path,
            by,
            creates_key,
        })
    }
}

/// A missing `value` writes `undefined`, as it does in the reference.
fn any(source: &Value, field: &str) -> Value {
    source.member(field).cloned().unwrap_or(Value::Undefined)
}

/// Field access of one operation, with errors that name it.
struct Fields<'a> {
    op: &'static str,
    source: &'a Value,
}

impl Fields<'_> {
    fn malformed(&self, field: &'static str, expected: &'static str) -> PatchError {
        PatchError::MalformedField {
            op: self.op,
            field,
            expected,
        }
    }

    fn pointer(&self, field: &'static str) -> Result<DocPath, PatchError> {
        let text = self.source.member(field).and_then(Value::as_str);
        Ok(parse_pointer(
            text.ok_or_else(|| self.malformed(field, "a JSON pointer"))?,
        )?)
    }

    fn number(&self, field: &'static str) -> Result<f64, PatchError> {
        self.source
            .member(field)
            .and_then(Value::as_f64)
            .ok_or_else(|| self.malformed(field, "a number"))
    }

    /// Spreading an array reads its holes as undefined.
    fn list(&self, field: &'static str) -> Result<Vec<Value>, PatchError> {
        let array = self.source.member(field).and_then(Value::as_array);
        let array = array.ok_or_else(|| self.malformed(field, "an array"))?;
        if let Some(items) = array.as_dense() {
            return Ok(items.to_vec());
        }
        let mut items = Vec::with_capacity(array.len());
        for slot in array.slots() {
            match slot {
                SlotRef::Value(item) => items.push(item.clone()),
                SlotRef::Holes(n) => items.extend(std::iter::repeat_n(Value::Undefined, n as usize)),
            }
        }
        Ok(items)
    }

    fn creates_key(&self) -> bool {
        matches!(self.source.member("createsKey"), Some(Value::Bool(true)))
    }
}
