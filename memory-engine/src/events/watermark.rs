//! The per-stream watermark (ENG-540…542): the end of the contiguous run of consequenced entries. Only derived commits
//! move it, and never down.

use memory_wire::patch::PatchOp;
use memory_wire::value::Value;

use super::{is_consequenced, stored_entries, stored_watermark};

/// The patch that moves a stream's watermark to the end of its contiguous consequenced run, if that is not where it is
/// (ENG-540). Entries of one seq pass together. Never lowers it.
pub(crate) fn watermark_advance(document: &Value) -> Option<PatchOp> {
    let value = document
        .member("value")
        .filter(|value| value.as_object().is_some())?;
    let floor = stored_watermark(Some(value));
    let mut by_seq: Vec<(f64, bool)> = stored_entries(Some(value))
        .filter_map(|entry| Some((entry.member("seq")?.as_f64()?, is_consequenced(entry))))
        .filter(|(seq, _)| *seq > floor)
        .collect();
    by_seq.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut frontier = floor;
    for group in by_seq.chunk_by(|a, b| a.0 == b.0) {
        if !group.iter().all(|(_, consequenced)| *consequenced) {
            break;
        }
        frontier = group[0].0;
    }
    let stored = value.member("eventWatermark").and_then(Value::as_f64);
    let path = ["value", "eventWatermark"].map(Into::into).to_vec();
    (stored != Some(frontier)).then(|| PatchOp::replace(path, Value::Number(frontier)))
}
