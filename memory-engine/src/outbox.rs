//! The execution outbox (ENG-121, 810): appends to streams of other spaces that await delivery. Rows are inserted
//! only inside a wave ([`crate::WaveCommit`]) and deleted when their delivery is acknowledged.

use memory_wire::ids::{BranchName, Did, EntityId, EventId, Seq, SessionId, SpaceId};
use memory_wire::value::{SlotRef, Value};
use rusqlite::params;

use crate::column;
use crate::engine::Engine;
use crate::error::{EngineError, StoredDataError};
use crate::reader::Reader;

/// Plain JSON text, without the codec's prefix, tags or key order (ENG-121). It cannot carry special values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainJson(Box<str>);

/// A value that plain JSON cannot say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected a value that plain JSON can say, found {found}")]
pub struct NotPlainJson {
    /// Which column.
    pub field: &'static str,
    /// What stood in the way.
    pub found: &'static str,
}

impl PlainJson {
    /// `null`, the payload of an event that has none.
    pub fn null() -> PlainJson {
        PlainJson("null".into())
    }

    /// Checks that `text` is JSON and keeps it as it is.
    ///
    /// # Errors
    /// [`StoredDataError::PlainJson`], naming `column`.
    pub fn parse(column: &'static str, text: &str) -> Result<PlainJson, StoredDataError> {
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map(|_| PlainJson(text.into()))
            .map_err(|error| StoredDataError::PlainJson {
                column,
                detail: error.to_string(),
            })
    }

    /// Writes a value as plain JSON; a member that is `undefined` is left out, as JSON does.
    ///
    /// # Errors
    /// [`NotPlainJson`] for anything JSON has no word for.
    pub fn from_value(field: &'static str, value: &Value) -> Result<PlainJson, NotPlainJson> {
        let json = to_json(field, value)?;
        Ok(PlainJson(json.to_string().into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value it says.
    ///
    /// # Errors
    /// [`StoredDataError::PlainJson`] when it is nested deeper than a parser follows.
    pub fn to_value(&self) -> Result<Value, StoredDataError> {
        serde_json::from_str(&self.0)
            .map(from_json)
            .map_err(|error| StoredDataError::PlainJson {
                column: "payload",
                detail: error.to_string(),
            })
    }
}

/// Invariant used by both directions: serde_json itself limits nesting, so these recursions are bounded on the way in;
/// values on the way out are documents, whose depth the codec bounds (WIRE-312).
fn to_json(field: &'static str, value: &Value) -> Result<serde_json::Value, NotPlainJson> {
    let not = |found| Err(NotPlainJson { field, found });
    match value {
        Value::Null => Ok(serde_json::Value::Null),
        Value::Bool(flag) => Ok((*flag).into()),
        Value::Number(n) => match serde_json::Number::from_f64(*n) {
            // Whole numbers are written as such, the way JSON.stringify does.
            Some(_) if n.fract() == 0.0 && n.abs() < 9_007_199_254_740_992.0 => Ok((*n as i64).into()),
            Some(number) => Ok(number.into()),
            None => not("a number that is not finite"),
        },
        Value::String(text) => match text.as_str() {
            Some(text) => Ok(text.into()),
            None => not("a string with an unpaired surrogate"),
        },
        Value::Array(array) => array
            .slots()
            .map(|slot| match slot {
                SlotRef::Value(element) => to_json(field, element),
                SlotRef::Holes(_) => not("an array hole"),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(serde_json::Value::Array),
        Value::Object(object) => {
            let mut map = serde_json::Map::new();
            for (key, member) in object.iter().filter(|(_, member)| !member.is_undefined()) {
                let Some(key) = key.as_str() else {
                    return not("a key with an unpaired surrogate");
                };
                map.insert(key.to_owned(), to_json(field, member)?);
            }
            Ok(map.into())
        }
        Value::Undefined => not("undefined"),
        Value::BigInt(_) | Value::Symbol(_) | Value::Bytes(_) | Value::Special(_) => not("a special value"),
    }
}

fn from_json(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => flag.into(),
        serde_json::Value::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(text) => text.into(),
        serde_json::Value::Array(items) => items.into_iter().map(from_json).collect::<Vec<_>>().into(),
        serde_json::Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, member)| (key, from_json(member)))
                .collect(),
        ),
    }
}

/// An append to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxAppend {
    /// The space of the stream.
    pub target_space: SpaceId,
    /// The stream's sidecar there.
    pub target_stream: EntityId,
    /// The stream link the sidecar derives from.
    pub target_stream_link: Option<PlainJson>,
    /// The event's id, minted by its emitter.
    pub event_id: EventId,
    /// What it carries.
    pub payload: PlainJson,
    /// Who it acts for.
    pub acting_principal: Option<Did>,
    /// Which session it acts for.
    pub acting_session: Option<SessionId>,
    /// Declares a chain without any actor.
    pub sessionless_space_scope: bool,
    /// What grants it.
    pub capability_ref: String,
    /// The event it is a consequence of, as `{ sidecarId, eventId }`.
    pub source_event: Option<PlainJson>,
}

/// A stored row: an append that was not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Row id; may be used again after the row is deleted, so never keep one across that.
    pub row_id: i64,
    /// Seq of the wave that wrote it.
    pub created_seq: Seq,
    /// The append.
    pub append: OutboxAppend,
}

impl Reader {
    /// The appends of `branch` that await delivery, oldest first; within a wave and stream in emission order.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn pending_outbox(&self, branch: &BranchName) -> Result<Vec<OutboxRow>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id, target_space, target_stream, target_stream_link, event_id, payload, acting_principal, \
             acting_session, sessionless_space_scope, capability_ref, created_seq, source_event \
             FROM execution_outbox WHERE branch = ?1 ORDER BY id",
        )?;
        let mut rows = statement.query([branch.as_str()])?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next()? {
            let json = |index, column| {
                column::optional_text(row, index)?
                    .map(|text| PlainJson::parse(column, text).map_err(EngineError::from))
                    .transpose()
            };
            let sessionless: Option<i64> = row.get(8)?;
            pending.push(OutboxRow {
                row_id: row.get(0)?,
                created_seq: column::seq(row, 10)?,
                append: OutboxAppend {
                    target_space: column::text(row, 1)?.into(),
                    target_stream: column::text(row, 2)?.into(),
                    target_stream_link: json(3, "target_stream_link")?,
                    event_id: column::text(row, 4)?.into(),
                    payload: PlainJson::parse("payload", column::text(row, 5)?)?,
                    acting_principal: column::optional_text(row, 6)?.map(Did::from),
                    acting_session: column::optional_text(row, 7)?.map(SessionId::from),
                    sessionless_space_scope: sessionless == Some(1),
                    capability_ref: column::text(row, 9)?.to_owned(),
                    source_event: json(11, "source_event")?,
                },
            });
        }
        Ok(pending)
    }
}

impl Engine {
    /// Inserts a wave's appends (ENG-616). Called by a wave, inside its transaction.
    pub(crate) fn insert_outbox(
        &self,
        branch: &BranchName,
        wave_seq: Seq,
        appends: &[OutboxAppend],
    ) -> Result<(), EngineError> {
        let mut insert = self.conn.prepare_cached(
            "INSERT INTO execution_outbox (branch, target_space, target_stream, target_stream_link, event_id, payload, \
             acting_principal, acting_session, sessionless_space_scope, capability_ref, created_seq, source_event) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?;
        for append in appends {
            insert.execute(params![
                branch.as_str(),
                append.target_space.as_str(),
                append.target_stream.as_str(),
                append.target_stream_link.as_ref().map(PlainJson::as_str),
                append.event_id.as_str(),
                append.payload.as_str(),
                append.acting_principal.as_ref().map(Did::as_str),
                append.acting_session.as_ref().map(SessionId::as_str),
                append.sessionless_space_scope.then_some(1),
                append.capability_ref,
                column::sql(wave_seq),
                append.source_event.as_ref().map(PlainJson::as_str),
            ])?;
        }
        Ok(())
    }

    /// Deletes a row whose delivery was acknowledged; an absent row is no error.
    ///
    /// # Errors
    /// SQLite's.
    pub fn delete_outbox_row(&mut self, row_id: i64) -> Result<(), EngineError> {
        self.transaction(|engine| {
            engine
                .conn
                .prepare_cached("DELETE FROM execution_outbox WHERE id = ?1")?
                .execute([row_id])?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::value;

    #[test]
    fn eng_121_plain_json_keeps_its_text_and_refuses_special_values() {
        let text = r#"{"b":1,"a":[null,1.5,"x"]}"#;
        let json = PlainJson::parse("payload", text).unwrap();
        assert_eq!(json.as_str(), text);
        assert!(json.to_value().unwrap().member("a").is_some());
        let written =
            PlainJson::from_value("payload", &value!({ "n": 3, "s": "é", "u": (Value::Undefined) })).unwrap();
        assert_eq!(written.as_str(), r#"{"n":3,"s":"é"}"#);
        for bad in [
            Value::Undefined,
            Value::Number(f64::NAN),
            Value::Bytes([1u8].as_slice().into()),
        ] {
            assert_eq!(
                PlainJson::from_value("payload", &bad).unwrap_err().field,
                "payload"
            );
        }
        assert!(PlainJson::parse("payload", "fvj1:1").is_err());
    }
}
