//! What changed in a space since its last fan-out, and who may be spared hearing of it (SRV-418…422).
//! Written by admission, direct writes, the serving plane and rollbacks; taken by `flush`.

use memory_wire::{InstanceId, Seq, SessionId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The operation that produced a head. A kind that is not known counts as [`OpKind::Patch`], the one whose head
/// is never withheld from its own writer (SRV-418).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Set,
    Patch,
    Delete,
}

/// The one session whose accepted commit produced the newest head of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) session: SessionId,
    pub(crate) seq: Seq,
    pub(crate) kind: OpKind,
}

impl Origin {
    /// True when `session` provably holds the head `seq` because its own commit produced it whole (SRV-419).
    pub(crate) fn is_held_by(&self, session: &SessionId, seq: Seq) -> bool {
        self.seq == seq
            && self.session == *session
            && match self.kind {
                OpKind::Set | OpKind::Delete => true,
                // The patch may have merged into content its writer has not seen.
                OpKind::Patch => false,
            }
    }
}

/// The dirty instances of one space.
#[derive(Debug, Default, Clone)]
pub(crate) struct DirtyBatch {
    keys: FxHashSet<InstanceId>,
    origins: FxHashMap<InstanceId, Origin>,
    /// Keys written by derived commits. Apart from `origins`, because mixed provenance must not erase push
    /// priority (SRV-420).
    derived: FxHashSet<InstanceId>,
}

impl DirtyBatch {
    /// Marks a key whose head `origin` produced (SRV-418).
    pub(crate) fn mark(&mut self, key: InstanceId, origin: Origin) {
        if self.keys.insert(key.clone()) {
            self.origins.insert(key, origin);
            return;
        }
        match self.origins.get_mut(&key) {
            Some(standing) if standing.session == origin.session => *standing = origin,
            // Another session's undelivered head, or none known: everybody has to hear of it.
            Some(_) => drop(self.origins.remove(&key)),
            None => {}
        }
    }

    /// Marks a key for everybody.
    pub(crate) fn mark_for_all(&mut self, key: InstanceId) {
        self.origins.remove(&key);
        self.keys.insert(key);
    }

    /// Marks a key written by a derived commit (SRV-701).
    pub(crate) fn mark_derived(&mut self, key: InstanceId) {
        self.derived.insert(key.clone());
        self.mark_for_all(key);
    }

    /// Puts a batch whose pass failed back *under* what accrued meanwhile (SRV-422).
    pub(crate) fn requeue(&mut self, older: DirtyBatch) {
        for key in older.keys {
            let was = older.origins.get(&key);
            if self.keys.insert(key.clone()) {
                if let Some(origin) = was {
                    self.origins.insert(key, origin.clone());
                }
                continue;
            }
            let agree =
                matches!((self.origins.get(&key), was), (Some(new), Some(old)) if new.session == old.session);
            if !agree {
                self.origins.remove(&key);
            }
        }
        self.derived.extend(older.derived);
    }

    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = &InstanceId> {
        self.keys.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn origin(&self, key: &InstanceId) -> Option<&Origin> {
        self.origins.get(key)
    }

    pub(crate) fn has_derived(&self) -> bool {
        !self.derived.is_empty()
    }

    pub(crate) fn is_derived(&self, key: &InstanceId) -> bool {
        self.derived.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> InstanceId {
        InstanceId::space(id)
    }

    fn origin(session: &str, seq: u64, kind: OpKind) -> Origin {
        Origin {
            session: session.into(),
            seq: Seq(seq),
            kind,
        }
    }

    #[test]
    fn srv_418_same_session_replaces_its_origin() {
        let mut batch = DirtyBatch::default();
        batch.mark(key("of:x"), origin("a", 1, OpKind::Set));
        batch.mark(key("of:x"), origin("a", 2, OpKind::Delete));
        assert_eq!(batch.origin(&key("of:x")), Some(&origin("a", 2, OpKind::Delete)));
    }

    #[test]
    fn srv_418_mixed_provenance_is_for_everybody_and_stays_so() {
        let mut batch = DirtyBatch::default();
        batch.mark(key("of:x"), origin("a", 1, OpKind::Set));
        batch.mark(key("of:x"), origin("b", 2, OpKind::Set));
        assert_eq!(batch.origin(&key("of:x")), None);
        batch.mark(key("of:x"), origin("b", 3, OpKind::Set));
        assert_eq!(
            batch.origin(&key("of:x")),
            None,
            "an undelivered foreign head is still in the batch"
        );
    }

    #[test]
    fn srv_418_marking_for_all_removes_the_origin() {
        let mut batch = DirtyBatch::default();
        batch.mark(key("of:x"), origin("a", 1, OpKind::Set));
        batch.mark_for_all(key("of:x"));
        assert_eq!(batch.origin(&key("of:x")), None);
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn srv_419_only_whole_own_heads_are_held() {
        let session: SessionId = "a".into();
        assert!(origin("a", 4, OpKind::Set).is_held_by(&session, Seq(4)));
        assert!(origin("a", 4, OpKind::Delete).is_held_by(&session, Seq(4)));
        assert!(!origin("a", 4, OpKind::Patch).is_held_by(&session, Seq(4)));
        assert!(!origin("a", 4, OpKind::Set).is_held_by(&session, Seq(5)));
        assert!(!origin("b", 4, OpKind::Set).is_held_by(&session, Seq(4)));
    }

    #[test]
    fn srv_420_mixed_provenance_keeps_push_priority() {
        let mut batch = DirtyBatch::default();
        batch.mark_derived(key("of:x"));
        batch.mark(key("of:x"), origin("a", 2, OpKind::Set));
        assert!(batch.is_derived(&key("of:x")));
        assert_eq!(batch.origin(&key("of:x")), None);
    }

    #[test]
    fn srv_422_requeue_keeps_an_origin_only_if_both_agree() {
        let mut old = DirtyBatch::default();
        old.mark(key("of:agree"), origin("a", 1, OpKind::Set));
        old.mark(key("of:differ"), origin("a", 1, OpKind::Set));
        old.mark(key("of:alone"), origin("a", 1, OpKind::Set));
        old.mark_derived(key("of:derived"));
        let mut new = DirtyBatch::default();
        new.mark(key("of:agree"), origin("a", 2, OpKind::Set));
        new.mark(key("of:differ"), origin("b", 2, OpKind::Set));
        new.requeue(old);
        assert_eq!(new.origin(&key("of:agree")), Some(&origin("a", 2, OpKind::Set)));
        assert_eq!(new.origin(&key("of:differ")), None);
        assert_eq!(new.origin(&key("of:alone")), Some(&origin("a", 1, OpKind::Set)));
        assert!(new.is_derived(&key("of:derived")));
        assert_eq!(new.len(), 4);
    }
}
