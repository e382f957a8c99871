//! Wire text of documents, encoded once per revision and shared by every recipient (SRV-119, SRV-1202). Filled by
//! `evaluate`; revisions never change, so nothing is ever invalidated.

use memory_engine::sync::Mutex;
use memory_wire::codec::EncodeError;
use memory_wire::link::Regime;
use memory_wire::message::EncodedDocument;
use memory_wire::{Seq, Value};
use rustc_hash::FxHashMap;

use crate::delivery::InstanceKey;
use crate::statistics::Statistics;

/// How a recipient reads documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// As they are.
    Plain,
    /// With link schemas in the frame's table (SRV-118).
    Compacted,
}

type Key = (InstanceKey, Seq, Form);

/// A cache of two generations: what is used moves to the young one; when that is full, the old one is forgotten.
#[derive(Debug)]
pub(crate) struct EncodedDocuments {
    generations: Mutex<Generations>,
    half: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: FxHashMap<Key, EncodedDocument>,
    old: FxHashMap<Key, EncodedDocument>,
    young_bytes: usize,
}

impl EncodedDocuments {
    pub(crate) fn new(bytes: usize) -> EncodedDocuments {
        EncodedDocuments {
            generations: Mutex::default(),
            half: bytes / 2,
        }
    }

    /// The text of the revision of `key` at `seq`, whose content is `document`.
    pub(crate) fn encoded(
        &self,
        key: &InstanceKey,
        seq: Seq,
        form: Form,
        document: &Value,
        regime: Regime,
        statistics: &Statistics,
    ) -> Result<EncodedDocument, EncodeError> {
        let cached = (key.clone(), seq, form);
        if let Some(encoded) = self.find(&cached) {
            statistics.count_encoded_hit();
            return Ok(encoded);
        }
        let encoded = match form {
            Form::Plain => EncodedDocument::plain(document)?,
            Form::Compacted => EncodedDocument::compacted(document, regime)?,
        };
        statistics.count_encoded();
        self.keep(cached, encoded.clone());
        Ok(encoded)
    }

    fn find(&self, key: &Key) -> Option<EncodedDocument> {
        let mut generations = self.generations.lock();
        if let Some(encoded) = generations.young.get(key) {
            return Some(encoded.clone());
        }
        let (key, encoded) = generations.old.remove_entry(key)?;
        self.insert(&mut generations, key, encoded.clone());
        Some(encoded)
    }

    fn keep(&self, key: Key, encoded: EncodedDocument) {
        self.insert(&mut self.generations.lock(), key, encoded);
    }

    fn insert(&self, generations: &mut Generations, key: Key, encoded: EncodedDocument) {
        let weight = encoded.weight();
        if generations.young_bytes + weight > self.half {
            generations.old = std::mem::take(&mut generations.young);
            generations.young_bytes = 0;
        }
        if weight <= self.half {
            generations.young_bytes += weight;
            generations.young.insert(key, encoded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use memory_wire::{BranchName, InstanceId};

    fn key(id: &str) -> InstanceKey {
        InstanceKey {
            branch: BranchName::default(),
            instance: InstanceId::space(id),
        }
    }

    #[test]
    fn srv_119_a_revision_is_encoded_once_per_form() {
        let cache = EncodedDocuments::new(1024);
        let statistics = Statistics::new(&Limits::default());
        let document = memory_wire::value!({ "value": 1 });
        for _ in 0..3 {
            for form in [Form::Plain, Form::Compacted] {
                cache
                    .encoded(&key("of:x"), Seq(1), form, &document, Regime::Legacy, &statistics)
                    .expect("encodable");
            }
        }
        assert_eq!(statistics.work().encoded_documents, 2);
    }

    #[test]
    fn a_full_cache_forgets_what_is_not_used() {
        let cache = EncodedDocuments::new(64);
        let statistics = Statistics::new(&Limits::default());
        let document = memory_wire::value!({ "value": "0123456789" });
        let encode = |id: &str| {
            cache
                .encoded(
                    &key(id),
                    Seq(1),
                    Form::Plain,
                    &document,
                    Regime::Legacy,
                    &statistics,
                )
                .expect("encodable");
            statistics.work().encoded_documents
        };
        assert_eq!(encode("of:kept"), 1);
        for round in 0..10 {
            encode(&format!("of:{round}"));
            let before = encode("of:kept");
            assert_eq!(before, round + 2, "a document used every time stays");
        }
    }
}
