//! Event appends (ENG §5): an event is an append to a stream's sidecar document. They are validated, deduplicated and
//! given the stamps that nobody else can give (`append`, step 12 of admission, and `stamp`); the per-stream watermark
//! follows what was processed (`watermark`); and what is pending is found here, for the serving loop.

mod append;
mod stamp;
mod watermark;

use memory_wire::ids::{BranchName, EntityId, Seq};
use memory_wire::scope_key::{InstanceId, ScopeKey};
use memory_wire::value::Value;
use memory_wire::well_known::STREAM_SIDECAR_PREFIX;
use rusqlite::params;

use crate::column;
use crate::error::EngineError;
use crate::reader::Reader;

pub(crate) use append::admit_appends;
pub(crate) use stamp::{Stamps, stamp_document, stamp_patches};
pub(crate) use watermark::watermark_advance;

fn stored_entries(value: Option<&Value>) -> impl Iterator<Item = &Value> + use<'_> {
    let entries = value
        .and_then(|value| value.member("entries"))
        .and_then(Value::as_array);
    entries
        .into_iter()
        .flat_map(|entries| entries.elements().map(|(_, entry)| entry))
}

fn event_id(entry: &Value) -> Option<&str> {
    entry.member("eventId").and_then(Value::as_str)
}

fn is_consequenced(entry: &Value) -> bool {
    entry.member("consequenced").and_then(Value::as_bool) == Some(true)
}

fn stored_watermark(value: Option<&Value>) -> f64 {
    value
        .and_then(|value| value.member("eventWatermark"))
        .and_then(Value::as_f64)
        .unwrap_or(0.0)
}

/// Above the watermark: by its seq, or, when it has none, by not being consequenced.
fn above(entry: &Value, watermark: f64) -> bool {
    match entry.member("seq").and_then(Value::as_f64) {
        Some(seq) => seq > watermark,
        None => !is_consequenced(entry),
    }
}

/// A stream with entries that await processing (ENG-545).
#[derive(Clone, Debug)]
pub struct PendingStreamEvents {
    /// The sidecar.
    pub id: EntityId,
    /// Its instance.
    pub scope_key: ScopeKey,
    /// The pending entries, in log order, as stored.
    pub entries: Vec<Value>,
    /// The stored watermark, 0 when absent.
    pub event_watermark: Seq,
}

impl Reader {
    /// The streams of `branch` with pending entries, by id and instance. Malformed logs are skipped.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn select_pending_stream_events(
        &self,
        branch: &BranchName,
    ) -> Result<Vec<PendingStreamEvents>, EngineError> {
        // The upper end of the prefix range is the prefix with its last byte counted up.
        let end = format!("{};", STREAM_SIDECAR_PREFIX.trim_end_matches(':'));
        let mut statement = self.conn.prepare_cached(
            "SELECT id, scope_key FROM head WHERE branch = ?1 AND id >= ?2 AND id < ?3 AND op <> 'delete' \
             ORDER BY id, scope_key",
        )?;
        let mut rows = statement.query(params![branch.as_str(), STREAM_SIDECAR_PREFIX, end])?;
        let mut pending = Vec::new();
        while let Some(row) = rows.next()? {
            let instance = InstanceId::new(column::text(row, 0)?, column::scope_key(row, 1)?);
            let document = self.current(&instance, branch)?;
            let value = document.as_ref().and_then(|document| document.member("value"));
            let watermark = stored_watermark(value);
            let entries: Vec<Value> = stored_entries(value)
                .filter(|entry| {
                    event_id(entry).is_some() && !is_consequenced(entry) && above(entry, watermark)
                })
                .cloned()
                .collect();
            if !entries.is_empty() {
                pending.push(PendingStreamEvents {
                    id: instance.id,
                    scope_key: instance.scope_key,
                    entries,
                    event_watermark: Seq(watermark.max(0.0) as u64),
                });
            }
        }
        Ok(pending)
    }
}
