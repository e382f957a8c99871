//! Writing values: what changes, where it lands, and which instance it belongs to (RUN-230…237).
//!
//! Called by cells and by the pattern layer for results. Everything goes through the transaction, which elides
//! what is already there.

use memory_wire::equality::value_equal;
use memory_wire::traverse::Schema;
use memory_wire::{Array, EntityId, Object, Scope, SpaceId, Value};
use smol_str::{SmolStr, format_smolstr};

use crate::address::{Address, Path};
use crate::error::RunnerError;
use crate::link::{Link, is_link};
use crate::link_resolution::{LastNode, resolve};
use crate::schema_read::{child_link, inline_value};
use crate::transaction::{MergeableOp, Read, ReadMeta, RunTx, tree};

/// What a run gives to a write so that array elements become entities of their own (RUN-231, RUN-804).
pub trait WriteFrame {
    /// The id of the next anchored element, whose array lies at or below `path` of the document `(space, id)`;
    /// consumes the frame's counter.
    fn anchor(&self, space: &SpaceId, id: &EntityId, path: &[SmolStr]) -> EntityId;
}

/// Reads taken to find out what a write changes: no subscription, and mechanics where an operation merges.
const COMPARE: ReadMeta = ReadMeta {
    ignore_for_scheduling: true,
    attempted_write: true,
    ..ReadMeta::RECURSIVE
};
const COMPARE_SHAPE: ReadMeta = ReadMeta {
    non_recursive: true,
    ..COMPARE
};
/// Reads a mergeable operation takes for its local effect.
const MECHANICS: ReadMeta = ReadMeta {
    ignore_for_scheduling: true,
    mergeable_op: true,
    ..ReadMeta::RECURSIVE
};

/// Writes `value` at the redirect target of `link`; `undefined` removes.
pub fn set(tx: &RunTx, link: &Link, value: Value, frame: Option<&dyn WriteFrame>) -> Result<(), RunnerError> {
    let target = resolve(tx, link, LastNode::Redirect)?.link;
    Writer { tx, frame }.slot(&target, value)
}

/// RUN-92: a scalar the user typed. What was there before is no condition of the write; only that the place still
/// exists in its parent is, judged on what the server knows.
pub fn set_blind(tx: &RunTx, link: &Link, value: Value) -> Result<(), RunnerError> {
    if matches!(value, Value::Object(_) | Value::Array(_)) {
        return Err(RunnerError::InvalidValue {
            operation: "blind write",
            reason: "expected a scalar, got a container".into(),
        });
    }
    let unconditional = ReadMeta {
        ignore_for_commit: true,
        ..ReadMeta::RECURSIVE
    };
    let target = tx.with_read_marks(unconditional, || {
        let target = resolve(tx, link, LastNode::Redirect)?.link;
        Writer { tx, frame: None }.slot(&target, value)?;
        Ok::<Link, RunnerError>(target)
    })?;
    let mut parent = target.address();
    parent.path.pop();
    let meta = ReadMeta {
        non_speculative: true,
        ignore_for_scheduling: true,
        ..ReadMeta::SHALLOW
    };
    tx.note_read(&parent, meta);
    Ok(())
}

/// Writes exactly `value` at `address`. With `only_if_different`, an equal stored value is left alone by a read
/// that counts for nothing.
pub fn set_raw(
    tx: &RunTx,
    address: &Address,
    value: Option<Value>,
    only_if_different: bool,
) -> Result<(), RunnerError> {
    if only_if_different {
        let current = tx.read(address, ReadMeta::UNTRACKED)?.found();
        let same = match (&current, &value) {
            (Some(a), Some(b)) => value_equal(a, b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return Ok(());
        }
    }
    tx.write(address, value)
}

/// Pushes `values` at the tail of the array `link` leads to (`op` is an append or an add-unique).
pub fn grow(
    tx: &RunTx,
    link: &Link,
    values: Vec<Value>,
    op: MergeableOp,
    frame: Option<&dyn WriteFrame>,
) -> Result<(), RunnerError> {
    let target = resolve(tx, link, LastNode::Value)?.link;
    let address = target.address();
    let current = tx.read(&address, MECHANICS)?.or_undefined();
    let (start, existing) = match &current {
        Value::Array(array) => (array.len(), Some(array.clone())),
        Value::Undefined => (0, None),
        _ => return set(tx, link, values.into(), frame),
    };
    let unique = matches!(op, MergeableOp::AddUnique);
    let mut fresh: Vec<Value> = Vec::with_capacity(values.len());
    for value in values {
        let known = |v: &Value| value_equal(v, &value);
        let present = unique
            && (fresh.iter().any(known)
                || existing
                    .as_ref()
                    .is_some_and(|a| a.elements().any(|(_, v)| known(v))));
        if !present {
            fresh.push(value);
        }
    }
    let writer = Writer { tx, frame };
    tx.merging(&address, op, || {
        if existing.is_none() {
            tx.write(&address, Some(Value::Array(Array::new())))?;
        }
        for (offset, value) in fresh.into_iter().enumerate() {
            let index = start + offset;
            writer.element(
                &child_link(tx.storage(), &target, &format_smolstr!("{index}")),
                &target,
                value,
            )?;
        }
        Ok(())
    })
}

/// Adds `by` to the number `link` leads to; absent counts as 0, anything else is replaced.
pub fn increment(tx: &RunTx, link: &Link, by: f64) -> Result<(), RunnerError> {
    if !by.is_finite() {
        return Err(RunnerError::InvalidValue {
            operation: "increment",
            reason: format!("expected a finite amount, got {by}"),
        });
    }
    let target = resolve(tx, link, LastNode::Value)?.link;
    let address = target.address();
    match tx.read(&address, MECHANICS)?.or_undefined() {
        Value::Number(n) => tx.merging(&address, MergeableOp::Increment { by }, || {
            tx.write(&address, Some(Value::Number(n + by)))
        }),
        Value::Undefined => tx.merging(&address, MergeableOp::Increment { by }, || {
            tx.write(&address, Some(Value::Number(by)))
        }),
        _ => set(tx, link, Value::Number(by), None),
    }
}

/// Removes every element equal to one of `values`; nothing happens where there is no array.
pub fn remove_by_value(tx: &RunTx, link: &Link, values: Vec<Value>) -> Result<(), RunnerError> {
    let target = resolve(tx, link, LastNode::Value)?.link;
    let address = target.address();
    let Value::Array(array) = tx.read(&address, MECHANICS)?.or_undefined() else {
        return Ok(());
    };
    let gone = |v: &Value| values.iter().any(|value| value_equal(v, value));
    let kept = array.to_slots().into_iter().filter(|slot| match slot {
        memory_wire::value::Slot::Value(v) => !gone(v),
        memory_wire::value::Slot::Holes(_) => true,
    });
    let left = Array::from_slots(kept.collect()).unwrap_or_default();
    if left.len() == array.len() {
        return Ok(());
    }
    let op = MergeableOp::RemoveByValue {
        values: values.clone(),
    };
    tx.merging(&address, op, || tx.write(&address, Some(Value::Array(left))))
}

/// RUN-232, RUN-233: puts, at the broader instances of `slot`, the redirect (or chain of redirects) that leads to
/// its instance at `narrower`. With server execution on, `space → session` passes through `user`.
pub fn write_narrowing(tx: &RunTx, slot: &Link, narrower: Scope) -> Result<(), RunnerError> {
    let chained = tx.storage().options().server_execution;
    let mut steps: Vec<Scope> = vec![slot.scope];
    if chained && slot.scope == Scope::Space && narrower == Scope::Session {
        steps.push(Scope::User);
    }
    steps.push(narrower);
    for pair in steps.windows(2).rev() {
        let [from, to] = [pair[0], pair[1]];
        let at = Link {
            scope: from,
            ..slot.clone()
        };
        let target = Link {
            scope: to,
            redirect: true,
            schema: None,
            ..slot.clone()
        };
        set_raw(tx, &at.address(), Some(target.to_value(Some(&at))), true)?;
    }
    Ok(())
}

struct Writer<'a> {
    tx: &'a RunTx,
    frame: Option<&'a dyn WriteFrame>,
}

impl Writer<'_> {
    /// RUN-230: the checks of one slot, in order.
    fn slot(&self, slot: &Link, value: Value) -> Result<(), RunnerError> {
        let content = !is_link(&value);
        if content
            && let Some(narrower) = declared_scope(slot.schema.as_ref()).filter(|s| *s > slot.scope)
            && !value.is_undefined()
        {
            self.slot(
                &Link {
                    scope: narrower,
                    ..slot.clone()
                },
                value,
            )?;
            return write_narrowing(self.tx, slot, narrower);
        }
        if !content {
            return self.link(slot, value);
        }
        if value.is_undefined() {
            return self.tx.write(&slot.address(), None);
        }
        let current = self.tx.read(&slot.address(), COMPARE_SHAPE)?.or_undefined();
        if let Some(stored) = Link::parse(&current, slot) {
            if stored.redirect {
                let target = resolve(self.tx, slot, LastNode::Redirect)?.link;
                return self.slot(
                    &Link {
                        schema: slot.schema.clone().or(target.schema),
                        ..target
                    },
                    value,
                );
            }
            // RUN-234: a stored link to a narrower instance is permanent; only a link re-binds the slot.
            if stored.scope > slot.scope && stored.id == slot.id && stored.space == slot.space {
                return self.slot(
                    &Link {
                        schema: slot.schema.clone(),
                        redirect: false,
                        ..stored
                    },
                    value,
                );
            }
        }
        match value {
            Value::Object(new) => self.object(slot, &new, &current),
            Value::Array(new) => self.array(slot, &new, &current),
            leaf => {
                self.tx.read(&slot.address(), COMPARE)?;
                self.tx.write(&slot.address(), Some(leaf))
            }
        }
    }

    /// A link or handle is stored as it is, relative to where it stands.
    fn link(&self, slot: &Link, value: Value) -> Result<(), RunnerError> {
        let Some(target) = Link::parse(&value, slot) else {
            // A dead link is data.
            return self.tx.write(&slot.address(), Some(value));
        };
        if target.is_inline() && !target.redirect {
            return self.slot(slot, absolute(&inline_value(&target)?, &target));
        }
        if target.same_place(slot) {
            return Ok(());
        }
        self.seed_default(slot, &target)?;
        let stored = relative(&value, &target, slot);
        self.tx.read(&slot.address(), COMPARE)?;
        self.tx.write(&slot.address(), Some(stored))
    }

    /// RUN-237: a handle to a whole document whose lens carries a default brings that default into being. The
    /// probe is no scheduling read.
    fn seed_default(&self, slot: &Link, target: &Link) -> Result<(), RunnerError> {
        let Some(default) = target.schema.as_ref().and_then(|s| s.member("default")).cloned() else {
            return Ok(());
        };
        let streams = target
            .schema
            .as_ref()
            .is_some_and(|s| s.member("asStream").is_some())
            || default.member("$stream").is_some();
        if !target.path.is_empty() || streams || target.space != slot.space || target.redirect {
            return Ok(());
        }
        let probe = ReadMeta {
            ignore_for_scheduling: true,
            ..ReadMeta::SHALLOW
        };
        match self.tx.read(&target.address(), probe)? {
            Read::Found(value) if !value.is_undefined() => Ok(()),
            Read::Found(_) | Read::NoDocument | Read::NoPath { .. } => self.slot(
                &Link {
                    schema: None,
                    ..target.clone()
                },
                default,
            ),
        }
    }

    fn object(&self, slot: &Link, new: &Object, current: &Value) -> Result<(), RunnerError> {
        let eager = narrowed_properties(slot, new);
        let existing = match current {
            Value::Object(existing) if !is_link(current) => Some(existing.clone()),
            _ => None,
        };
        if existing.is_none() {
            self.tx
                .write(&slot.address(), Some(Value::Object(Object::new())))?;
        }
        for (key, value) in new.iter() {
            let key = plain_key(key)?;
            self.slot(&child_link(self.tx.storage(), slot, key), value.clone())?;
        }
        if let Some(existing) = existing {
            for (key, _) in existing.iter().filter(|(key, _)| new.get_key(key).is_none()) {
                let key = plain_key(key)?;
                if !eager.iter().any(|(name, _)| name == key) {
                    self.tx
                        .write(&child_link(self.tx.storage(), slot, key).address(), None)?;
                }
            }
        }
        // RUN-235: only the redirect; the instance's content stays what it is.
        for (key, narrower) in eager {
            write_narrowing(
                self.tx,
                &Link {
                    schema: None,
                    ..child_link(self.tx.storage(), slot, &key)
                },
                narrower,
            )?;
        }
        Ok(())
    }

    fn array(&self, slot: &Link, new: &Array, current: &Value) -> Result<(), RunnerError> {
        if new.as_dense().is_none() {
            // Holes have no slots of their own.
            self.tx.read(&slot.address(), COMPARE)?;
            return self.tx.write(&slot.address(), Some(Value::Array(new.clone())));
        }
        let length = match current {
            Value::Array(existing) => existing.len(),
            _ => {
                self.tx.write(&slot.address(), Some(Value::Array(Array::new())))?;
                0
            }
        };
        for (i, value) in new.elements() {
            self.element(
                &child_link(self.tx.storage(), slot, &format_smolstr!("{i}")),
                slot,
                value.clone(),
            )?;
        }
        if new.len() < length {
            let mut path: Path = slot.address().path;
            path.push(SmolStr::new_static(tree::LENGTH));
            self.tx
                .write(&slot.address().at(path), Some(Value::Number(new.len() as f64)))?;
        }
        Ok(())
    }

    /// RUN-231: a plain object in an array becomes its own document when a frame can name it.
    fn element(&self, slot: &Link, array: &Link, value: Value) -> Result<(), RunnerError> {
        let (Some(frame), Value::Object(_), false) = (self.frame, &value, is_link(&value)) else {
            return self.slot(slot, value);
        };
        let current = self.tx.read(&slot.address(), COMPARE)?.or_undefined();
        let anchored = match Link::parse(&current, slot) {
            // An element that stands for a document already keeps it while its content stays the same.
            Some(standing) if standing.path.is_empty() && self.holds(&standing, &value)? => standing,
            Some(_) | None => {
                let id = frame.anchor(&array.space, &array.id, anchor_path(self.tx, array)?);
                Link::to_document(slot.space.clone(), id, slot.scope)
            }
        };
        let document = Link {
            schema: slot.schema.clone(),
            ..anchored.clone()
        };
        self.slot(&document, value)?;
        self.tx.write(
            &slot.address(),
            Some(
                Link {
                    schema: None,
                    ..anchored
                }
                .to_value(Some(slot)),
            ),
        )
    }

    fn holds(&self, document: &Link, value: &Value) -> Result<bool, RunnerError> {
        let probe = ReadMeta {
            ignore_for_scheduling: true,
            ..ReadMeta::RECURSIVE
        };
        Ok(self
            .tx
            .read(&document.address(), probe)?
            .found()
            .is_some_and(|held| value_equal(&held, value)))
    }
}

/// The nearest path at or above the array that does not lead into another array, so that moving an element keeps
/// its identity. Array ancestry that is not stored yet is not visible here (kept for parity).
fn anchor_path<'a>(tx: &RunTx, array: &'a Link) -> Result<&'a [SmolStr], RunnerError> {
    let mut length = array.path.len();
    for n in (0..array.path.len()).rev() {
        let above = Link {
            path: array.path[..n].to_vec(),
            ..array.clone()
        };
        let quiet = ReadMeta {
            non_recursive: true,
            ..ReadMeta::UNTRACKED
        };
        if matches!(tx.read(&above.address(), quiet)?, Read::Found(Value::Array(_))) {
            length = n;
        }
    }
    Ok(&array.path[..length])
}

/// Only the top level counts (RUN-232).
fn declared_scope(schema: Option<&Value>) -> Option<Scope> {
    schema?
        .member("scope")
        .and_then(Value::as_str)
        .and_then(Scope::from_name)
}

/// Properties declared narrower than the slot that a new object leaves out.
fn narrowed_properties(slot: &Link, new: &Object) -> Vec<(SmolStr, Scope)> {
    let Some(properties) = slot
        .schema
        .as_ref()
        .and_then(|s| s.member("properties"))
        .and_then(Value::as_object)
    else {
        return Vec::new();
    };
    let mut narrowed = Vec::new();
    for (key, property) in properties.iter() {
        let resolved = Schema::of(property);
        let scope = declared_scope(Some(resolved.value())).filter(|s| *s > slot.scope);
        if let (Some(scope), Some(name), None) = (scope, key.as_str(), new.get_key(key)) {
            narrowed.push((SmolStr::new(name), scope));
        }
    }
    narrowed
}

fn plain_key(key: &memory_wire::JsString) -> Result<&str, RunnerError> {
    key.as_str().ok_or_else(|| RunnerError::InvalidValue {
        operation: "write",
        reason: format!("key {:?} has an unpaired surrogate", key.to_string_lossy()),
    })
}

/// The link as given, with what equals its surroundings left out (RUN-200).
fn relative(value: &Value, target: &Link, slot: &Link) -> Value {
    let normal = target.to_value(Some(slot));
    let (Some(given), Some(mut payload)) = (payload_of(value), payload_of(&normal)) else {
        return normal;
    };
    // Fields that addressing does not know are carried.
    const KNOWN: [&str; 6] = ["id", "space", "scope", "path", "schema", "overwrite"];
    for (key, extra) in given
        .iter()
        .filter(|(key, _)| !KNOWN.iter().any(|known| *key == known))
    {
        payload.insert(key.clone(), extra.clone());
    }
    memory_wire::link::link_value(payload, memory_wire::link::Regime::Legacy)
}

fn payload_of(value: &Value) -> Option<Object> {
    let payload = memory_wire::link::link_payload(value, memory_wire::link::Regime::Legacy)?;
    payload.as_object().cloned()
}

/// Inline content on its way into another document: its links are spelled out, since they stood in the inline one.
fn absolute(value: &Value, base: &Link) -> Value {
    if let Some(target) = Link::parse(value, base) {
        return target.to_value(None);
    }
    match value {
        Value::Object(object) => object
            .iter()
            .map(|(k, v)| (k.clone(), absolute(v, base)))
            .collect::<Object>()
            .into(),
        Value::Array(array) => match array.as_dense() {
            Some(items) => items.iter().map(|v| absolute(v, base)).collect::<Array>().into(),
            None => value.clone(),
        },
        leaf => leaf.clone(),
    }
}
