//! What a session holds after the frames it was sent: frames apply atomically, in order (WIRE-752, WIRE-781).

use std::collections::BTreeMap;

use memory_wire::message::{SessionSync, UpsertContent};
use memory_wire::{EntityId, LocalSeq, Scope, Seq, Value};

/// One held document.
#[derive(Clone, Debug)]
pub struct Held {
    /// Revision.
    pub seq: Seq,
    /// Root object; `None` = deleted or never written.
    pub document: Option<Value>,
}

/// Documents by id and scope kind: a client knows no scope keys.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    documents: BTreeMap<(EntityId, Scope), Held>,
    position: Seq,
    caught_up: LocalSeq,
}

impl Mirror {
    /// Applies one frame. Panics on a frame that the protocol forbids: a position that goes back, or a document
    /// whose seq does.
    pub fn apply(&mut self, sync: &SessionSync) {
        assert!(
            sync.to_seq >= self.position,
            "frame to {} after {}",
            sync.to_seq,
            self.position
        );
        self.position = sync.to_seq;
        for upsert in &sync.upserts {
            let key = (upsert.id.clone(), upsert.scope);
            let before = self.documents.get(&key).map_or(Seq(0), |held| held.seq);
            assert!(
                upsert.seq >= before,
                "{} went back from {before} to {}",
                upsert.id,
                upsert.seq
            );
            let document = match &upsert.content {
                UpsertContent::Doc(document) => Some(document.clone()),
                UpsertContent::Deleted => None,
            };
            self.documents.insert(
                key,
                Held {
                    seq: upsert.seq,
                    document,
                },
            );
        }
        for remove in &sync.removes {
            self.documents.remove(&(remove.id.clone(), remove.scope));
        }
        if let Some(marker) = sync.caught_up_local_seq {
            assert!(
                marker >= self.caught_up,
                "marker went back from {} to {marker}",
                self.caught_up
            );
            self.caught_up = marker;
        }
    }

    /// `toSeq` of the newest frame.
    pub fn position(&self) -> Seq {
        self.position
    }

    /// Newest catch-up marker.
    pub fn caught_up(&self) -> LocalSeq {
        self.caught_up
    }

    /// What is held of a document.
    pub fn get(&self, id: &EntityId, scope: Scope) -> Option<&Held> {
        self.documents.get(&(id.clone(), scope))
    }

    /// The `value` of a document, `None` when absent.
    pub fn value(&self, id: &EntityId, scope: Scope) -> Option<&Value> {
        self.get(id, scope)?.document.as_ref()?.member("value")
    }

    /// Everything held.
    pub fn documents(&self) -> impl Iterator<Item = (&EntityId, Scope, &Held)> + '_ {
        self.documents
            .iter()
            .map(|((id, scope), held)| (id, *scope, held))
    }
}
