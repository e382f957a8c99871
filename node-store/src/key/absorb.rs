//! The family of deltas that wait for code this node does not run yet. Facts: §2, §4.4.

use super::keys;
use crate::id::{BlobId, ContextId, DeltaId};
use crate::value;

keys! {
    /// A buffered record. Saving one again under the same key replaces it.
    AbsorbBuffer in AbsorbBuffer [0x4a], NodeLocal, value::AbsorbCodec {
        context_id: ContextId,
        /// The code that produced the record.
        producing_app_key: BlobId,
        /// The record's delta, leaf or entity.
        delta_id: DeltaId,
    }
}
