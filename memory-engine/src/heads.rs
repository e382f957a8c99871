//! The newest revision of instances that were written or read lately, so that reading a document in use asks SQLite for
//! nothing (ENG-201, 208). Shared by a store's writer, its readers and its handles. An entry holds from its own seq to
//! the seq that the whole is known for: whoever reads at another seq is not served.

use memory_wire::ids::{BranchName, Seq};
use memory_wire::scope_key::InstanceId;
use parking_lot::Mutex;

use crate::column::RevisionOp;
use crate::document_cache::{CacheCounters, Generations};

/// An instance on one branch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HeadKey {
    pub(crate) branch: BranchName,
    pub(crate) instance: InstanceId,
}

/// The newest revision of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) seq: Seq,
    pub(crate) op_index: u64,
    pub(crate) op: RevisionOp,
    /// Patch revisions since the instance's last `set`, `delete` or snapshot (ENG-380), if they were counted.
    pub(crate) patches: Option<u32>,
}

/// One committed state, as a reader found it when it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Era(u64);

/// Heads kept, by the weight of an entry without text.
const BUDGET: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct Heads(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The seq that everything known holds for; `None` while no engine is open, which may miss what others write.
    as_of: Option<Seq>,
    /// Counts what changes heads without a seq of its own, so that nobody who began before brings back what it removed.
    era: u64,
    known: Generations<HeadKey, Head>,
}

impl Heads {
    pub(crate) fn new() -> Heads {
        Heads(Mutex::new(Inner {
            as_of: None,
            era: 0,
            known: Generations::new(BUDGET),
        }))
    }

    /// To be asked before a read transaction begins.
    pub(crate) fn era(&self) -> Era {
        Era(self.0.lock().era)
    }

    /// The head at `seq`, if it is known.
    pub(crate) fn at(&self, key: &HeadKey, seq: Seq) -> Option<Head> {
        let mut inner = self.0.lock();
        if inner.as_of.is_none_or(|as_of| seq > as_of) {
            return None;
        }
        inner.known.get(key).filter(|head| head.seq <= seq)
    }

    /// The head after everything this process has committed or noticed.
    pub(crate) fn newest(&self, key: &HeadKey) -> Option<Head> {
        let mut inner = self.0.lock();
        inner.as_of?;
        inner.known.get(key)
    }

    /// Remembers a head that was read at `seq` by a transaction that began in `era`.
    pub(crate) fn learn(&self, key: HeadKey, head: Head, seq: Seq, era: Era) {
        let mut inner = self.0.lock();
        if inner.as_of == Some(seq) && inner.era == era.0 {
            inner.known.insert(key, head, 0);
        }
    }

    /// The store is at `seq` now, by commits of this process that wrote `written`.
    pub(crate) fn advance(&self, seq: Seq, written: impl IntoIterator<Item = (HeadKey, Head)>) {
        let mut inner = self.0.lock();
        for (key, head) in written {
            inner.known.insert(key, head, 0);
        }
        inner.as_of = Some(seq);
    }

    /// Nothing is known any more but the seq: somebody else wrote, or rows were removed.
    pub(crate) fn forget(&self, as_of: Option<Seq>) {
        let mut inner = self.0.lock();
        inner.known.clear();
        inner.as_of = as_of;
        inner.era += 1;
    }

    pub(crate) fn counters(&self) -> CacheCounters {
        self.0.lock().known.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HeadKey {
        HeadKey {
            branch: BranchName::default(),
            instance: InstanceId::space("of:x"),
        }
    }

    fn head(seq: u64) -> Head {
        Head {
            seq: Seq(seq),
            op_index: 0,
            op: RevisionOp::Set,
            patches: None,
        }
    }

    #[test]
    fn eng_208_a_head_serves_the_seqs_it_is_known_for_and_no_others() {
        let heads = Heads::new();
        heads.learn(key(), head(3), Seq(5), heads.era());
        assert_eq!(
            heads.newest(&key()),
            None,
            "nothing is known before an engine is open"
        );
        heads.forget(Some(Seq(5)));
        heads.learn(key(), head(3), Seq(4), heads.era());
        assert_eq!(heads.newest(&key()), None, "read at an older state");
        heads.learn(key(), head(3), Seq(5), heads.era());
        assert_eq!(heads.at(&key(), Seq(2)), None);
        assert_eq!(heads.at(&key(), Seq(3)), Some(head(3)));
        assert_eq!(heads.at(&key(), Seq(6)), None, "another process committed");
        heads.advance(Seq(6), [(key(), head(6))]);
        assert_eq!(heads.at(&key(), Seq(5)), None, "an older snapshot asks SQLite");
        assert_eq!(heads.newest(&key()), Some(head(6)));
    }

    #[test]
    fn eng_1601_a_reader_of_before_does_not_bring_back_what_was_removed() {
        let heads = Heads::new();
        heads.forget(Some(Seq(5)));
        let began = heads.era();
        heads.forget(Some(Seq(5)));
        heads.learn(key(), head(3), Seq(5), began);
        assert_eq!(heads.newest(&key()), None);
    }
}
