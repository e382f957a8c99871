//! The effects document (ENG §5.4): intents the serving side issues to a session, and their acknowledgements. On
//! the way in, a derived write gets its intents stamped and deduplicated; on the way out, a scan finds what can be
//! retired.

use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::patch::{PatchAction, PatchOp};
use memory_wire::scope_key::{InstanceId, Scope, ScopeKey};
use memory_wire::value::{Array, Object, Value};
use memory_wire::well_known::EFFECTS_DOCUMENT;
use smol_str::SmolStr;

use crate::column;
use crate::error::EngineError;
use crate::reader::Reader;

/// How deep an intent may sit in a written value (ENG-551).
const SCAN_DEPTH: u32 = 8;

/// One session's effects that can be pruned (ENG-552).
#[derive(Clone, Debug)]
pub struct RetirableEffects {
    /// The session's instance.
    pub scope_key: ScopeKey,
    /// Entries not acknowledged yet, as stored.
    pub remaining_entries: Vec<Value>,
    /// Acknowledgements of remaining entries.
    pub remaining_acks: Object,
    /// Nonces that are acknowledged and stored, in entry order.
    pub retired_nonces: Vec<SmolStr>,
}

impl Reader {
    /// The sessions whose effects hold something acknowledged, or an acknowledgement of nothing.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn select_retirable_effects(
        &self,
        branch: &BranchName,
    ) -> Result<Vec<RetirableEffects>, EngineError> {
        let id = EntityId::from(EFFECTS_DOCUMENT);
        // By the document's own heads: the plus keeps SQLite from the index of all live ones.
        let mut statement = self.conn.prepare_cached(
            "SELECT scope_key FROM head WHERE branch = ?1 AND id = ?2 AND +op <> 'delete' ORDER BY scope_key",
        )?;
        let mut rows = statement.query([branch.as_str(), id.as_str()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let scope_key = column::scope_key(row, 0)?;
            if scope_key.scope() != Scope::Session {
                continue;
            }
            let instance = InstanceId {
                id: id.clone(),
                scope_key,
            };
            let document = self.current(&instance, branch)?;
            if let Some(value) = document.as_ref().and_then(|d| d.member("value")) {
                found.extend(retirable(instance.scope_key, value));
            }
        }
        Ok(found)
    }
}

fn retirable(scope_key: ScopeKey, value: &Value) -> Option<RetirableEffects> {
    let empty = Object::new();
    let acks = value.member("acks").and_then(Value::as_object).unwrap_or(&empty);
    let acked = |nonce: &str| acks.get(nonce).and_then(Value::as_bool) == Some(true);
    let mut remaining_entries = Vec::new();
    let mut remaining = rustc_hash::FxHashSet::default();
    let mut retired_nonces = Vec::new();
    for entry in entries(Some(value)) {
        let Some(nonce) = entry
            .as_object()
            .and_then(|entry| entry.get("nonce"))
            .and_then(Value::as_str)
        else {
            continue;
        };
        if acked(nonce) {
            retired_nonces.push(SmolStr::new(nonce));
        } else {
            remaining.insert(SmolStr::new(nonce));
            remaining_entries.push(entry.clone());
        }
    }
    let stored =
        |nonce: &str| remaining.contains(nonce) || retired_nonces.iter().any(|retired| retired == nonce);
    let stale = acks
        .iter()
        .any(|(nonce, mark)| mark.as_bool() != Some(true) || !nonce.as_str().is_some_and(stored));
    if retired_nonces.is_empty() && !stale {
        return None;
    }
    // An acknowledged nonce is retired, so a remaining entry can only have a malformed mark, and those do not survive.
    Some(RetirableEffects {
        scope_key,
        remaining_acks: Object::new(),
        remaining_entries,
        retired_nonces,
    })
}

/// Stamps the intents of a derived `set` (ENG-551 a); `None` when it holds none.
pub(crate) fn stamp_document(document: &Value, seq: Seq) -> Option<Value> {
    let mut stamped = document.clone();
    stamp(&mut stamped, seq, SCAN_DEPTH).then_some(stamped)
}

/// Stamps the intents of a derived `patch` and drops appended ones that are stored already (ENG-551); `None` when it holds
/// none. `stored` is the instance's current document, or `None` when that cannot be had.
pub(crate) fn stamp_patches(patches: &[PatchOp], seq: Seq, stored: Option<&Value>) -> Option<Vec<PatchOp>> {
    let known: Vec<&str> = entries(stored.and_then(|document| document.member("value")))
        .filter_map(intent_nonce)
        .collect();
    let mut touched = false;
    let result = patches
        .iter()
        .map(|patch| {
            let mut source = patch.source().clone();
            let Value::Object(object) = &mut source else {
                return patch.clone();
            };
            let mut changed = false;
            for field in ["value", "values", "add"] {
                if let Some(member) = object.get_mut(field) {
                    changed |= stamp(member, seq, SCAN_DEPTH);
                }
            }
            let appends = matches!(
                patch.action(),
                PatchAction::Append { .. } | PatchAction::AddUnique { .. }
            );
            if changed
                && appends
                && !known.is_empty()
                && let Some(Value::Array(values)) = object.get("values")
            {
                let kept = values
                    .elements()
                    .map(|(_, value)| value)
                    .filter(|value| !intent_nonce(value).is_some_and(|nonce| known.contains(&nonce)));
                let kept: Array = kept.cloned().collect();
                object.insert("values", kept);
            }
            touched |= changed;
            if changed {
                PatchOp::from_value(&source).unwrap_or_else(|_| patch.clone())
            } else {
                patch.clone()
            }
        })
        .collect();
    touched.then_some(result)
}

/// Gives every unissued intent in `value` its seq. Returns whether there is any intent at all, issued or not.
fn stamp(value: &mut Value, seq: Seq, depth: u32) -> bool {
    if intent_nonce(value).is_some() {
        if let Value::Object(intent) = value
            && matches!(intent.get("issuedIn"), Some(Value::Null))
        {
            intent.insert("issuedIn", seq);
        }
        return true;
    }
    if depth == 0 || !holds_intent(value, depth) {
        return false;
    }
    match value {
        Value::Object(object) => {
            let keys: Vec<_> = object.iter().map(|(key, _)| key.clone()).collect();
            let members = keys
                .iter()
                .filter_map(|key| Some((key.clone(), object.get_key(key)?.clone())));
            let stamped: Vec<_> = members
                .map(|(key, mut member)| {
                    stamp(&mut member, seq, depth - 1);
                    (key, member)
                })
                .collect();
            *object = Object::from_entries(stamped);
        }
        Value::Array(array) => {
            let present: Vec<usize> = array.elements().map(|(index, _)| index).collect();
            for index in present {
                if let Some(element) = array.get_mut(index) {
                    stamp(element, seq, depth - 1);
                }
            }
        }
        _ => {}
    }
    true
}

fn holds_intent(value: &Value, depth: u32) -> bool {
    if intent_nonce(value).is_some() {
        return true;
    }
    depth > 0
        && match value {
            Value::Object(object) => object.iter().any(|(_, member)| holds_intent(member, depth - 1)),
            Value::Array(array) => array
                .elements()
                .any(|(_, element)| holds_intent(element, depth - 1)),
            _ => false,
        }
}

/// The nonce of an intent-shaped object: a string `nonce` beside `kind: "navigate"`.
fn intent_nonce(value: &Value) -> Option<&str> {
    let object = value.as_object()?;
    let nonce = object.get("nonce")?.as_str()?;
    (object.get("kind")?.as_str()? == "navigate").then_some(nonce)
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    let entries = value
        .and_then(|value| value.member("entries"))
        .and_then(Value::as_array);
    entries
        .into_iter()
        .flat_map(|entries| entries.elements().map(|(_, entry)| entry))
}
