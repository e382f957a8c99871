//! One document of a replica: the confirmed state, the pending layers over it, and their fold (RUN-20…24).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use memory_wire::commit_meta::CommitClass;
use memory_wire::patch::{PatchOp, apply_patches};
use memory_wire::{EntityId, LocalSeq, Scope, ScopeKey, Seq, Value};

/// The instance part of a document key: a scope key, or the scope *name* when no identity can resolve it (an
/// anonymous session's user-scoped read, RUN-20).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instance {
    /// A concrete instance.
    Key(ScopeKey),
    /// Nobody's: only ever read, never written.
    Unresolved(Scope),
}

impl Instance {
    /// Text of the instance.
    pub fn as_str(&self) -> &str {
        match self {
            Instance::Key(key) => key.as_str(),
            Instance::Unresolved(scope) => scope.as_str(),
        }
    }

    /// The scope it belongs to.
    pub fn scope(&self) -> Scope {
        match self {
            Instance::Key(key) => key.scope(),
            Instance::Unresolved(scope) => *scope,
        }
    }
}

/// RUN-20: names a document of a replica. The joined text `instance + NUL + id` is for vectors and logs only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DocKey {
    /// Which instance.
    pub instance: Instance,
    /// Which document.
    pub id: EntityId,
}

impl fmt::Display for DocKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\0{}", self.instance.as_str(), self.id)
    }
}

/// What a layer does to the document below it.
#[derive(Clone, Debug)]
pub(crate) enum LayerOp {
    Set(Value),
    Patch(Vec<PatchOp>),
    Delete,
}

impl LayerOp {
    /// RUN-22: patches replay with the server's own function; one that does not apply renders as if absent.
    pub(crate) fn fold(&self, base: Option<&Value>, at: LocalSeq, key: &DocKey) -> Option<Value> {
        match self {
            LayerOp::Set(document) => Some(document.clone()),
            LayerOp::Delete => None,
            LayerOp::Patch(patches) => {
                let empty = Value::Object(memory_wire::Object::new());
                match apply_patches(base.unwrap_or(&empty), patches) {
                    Ok(document) => Some(document),
                    Err(error) => {
                        tracing::debug!(local_seq = at.0, id = %key.id, %error, "layer does not apply; left out");
                        base.cloned()
                    }
                }
            }
        }
    }
}

/// One optimistic write over the confirmed document.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) local_seq: LocalSeq,
    pub(crate) op: LayerOp,
    pub(crate) speculative: bool,
}

/// What the server is known to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confirmed {
    pub(crate) seq: Seq,
    pub(crate) document: Option<Value>,
    pub(crate) cover_class: Option<CommitClass>,
}

/// RUN-21.
#[derive(Debug, Default)]
pub(crate) struct Record {
    confirmed: Confirmed,
    pending: Vec<Layer>,
    /// RUN-23: `folded[i]` = the confirmed document with layers `0..=i`; always a prefix of the layers.
    folded: RefCell<Vec<Option<Value>>>,
    /// RUN-53: sequence numbers of foreign novelty that sits below pending layers.
    pub(crate) shadows: BTreeSet<Seq>,
    /// The server told us about this document, or we wrote it: absence is knowledge.
    pub(crate) known: bool,
}

impl Record {
    pub(crate) fn confirmed(&self) -> &Confirmed {
        &self.confirmed
    }

    pub(crate) fn set_confirmed(&mut self, confirmed: Confirmed) {
        self.confirmed = confirmed;
        self.folded.get_mut().clear();
    }

    pub(crate) fn layers(&self) -> &[Layer] {
        &self.pending
    }

    pub(crate) fn push(&mut self, layer: Layer) {
        self.pending.push(layer);
    }

    /// Removes a layer; answers it with its position.
    pub(crate) fn remove(&mut self, local_seq: LocalSeq) -> Option<(usize, Layer)> {
        let at = self
            .pending
            .iter()
            .position(|layer| layer.local_seq == local_seq)?;
        self.folded.get_mut().truncate(at);
        Some((at, self.pending.remove(at)))
    }

    /// The confirmed document with every layer folded in.
    pub(crate) fn visible(&self, key: &DocKey) -> Option<Value> {
        match self.pending.len() {
            0 => self.confirmed.document.clone(),
            n => self.through(n - 1, key),
        }
    }

    /// The fold through layer `last`, from the prefix cache where possible.
    pub(crate) fn through(&self, last: usize, key: &DocKey) -> Option<Value> {
        let mut folded = self.folded.borrow_mut();
        while folded.len() <= last {
            let layer = &self.pending[folded.len()];
            let below = match folded.last() {
                Some(document) => document.as_ref(),
                None => self.confirmed.document.as_ref(),
            };
            let next = layer.op.fold(below, layer.local_seq, key);
            folded.push(next);
        }
        folded[last].clone()
    }

    /// RUN-24: only layers that are not speculative; a subsequence, so it bypasses the prefix cache.
    pub(crate) fn non_speculative(&self, key: &DocKey) -> Option<Value> {
        let durable = self.pending.iter().filter(|layer| !layer.speculative);
        durable.fold(self.confirmed.document.clone(), |document, layer| {
            layer.op.fold(document.as_ref(), layer.local_seq, key)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::equality::value_equal;
    use memory_wire::patch::parse_patches;
    use memory_wire::value;

    fn key() -> DocKey {
        DocKey {
            instance: Instance::Key(ScopeKey::space()),
            id: EntityId::from("of:a"),
        }
    }

    fn patch(value: Value) -> LayerOp {
        LayerOp::Patch(parse_patches(&value).unwrap())
    }

    fn layer(n: u64, op: LayerOp) -> Layer {
        Layer {
            local_seq: LocalSeq(n),
            op,
            speculative: false,
        }
    }

    #[test]
    fn run_22_a_patch_that_does_not_apply_renders_as_absent() {
        let mut record = Record::default();
        record.set_confirmed(Confirmed {
            seq: Seq(1),
            document: Some(value!({ "value": { "n": 1 } })),
            cover_class: None,
        });
        record.push(layer(
            1,
            patch(value!([{ "op": "replace", "path": "/value/x/y", "value": 1 }])),
        ));
        record.push(layer(
            2,
            patch(value!([{ "op": "increment", "path": "/value/n", "by": 2 }])),
        ));
        assert!(value_equal(
            &record.visible(&key()).unwrap(),
            &value!({ "value": { "n": 3 } })
        ));
    }

    #[test]
    fn run_22_layers_replay_ops_over_a_new_base() {
        let mut record = Record::default();
        record.push(layer(1, LayerOp::Set(value!({ "value": { "items": [1] } }))));
        record.push(layer(
            2,
            patch(value!([{ "op": "append", "path": "/value/items", "values": [2] }])),
        ));
        assert!(record.visible(&key()).is_some());
        let (at, _) = record.remove(LocalSeq(1)).unwrap();
        assert_eq!(at, 0);
        record.set_confirmed(Confirmed {
            seq: Seq(9),
            document: Some(value!({ "value": { "items": [7] } })),
            cover_class: None,
        });
        assert!(value_equal(
            &record.visible(&key()).unwrap(),
            &value!({ "value": { "items": [7, 2] } })
        ));
    }

    #[test]
    fn run_24_speculative_layers_are_left_out() {
        let mut record = Record::default();
        record.push(Layer {
            speculative: true,
            ..layer(1, LayerOp::Set(value!({ "value": 1 })))
        });
        assert!(record.visible(&key()).is_some());
        assert!(record.non_speculative(&key()).is_none());
    }
}
