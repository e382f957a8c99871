//! What the frames of one pass have in common, made once (SRV-119, SRV-1202): sessions with equal watches are told the same
//! entries, and whoever is told the same entries gets the same text. Which entries a session is told — what applies to it,
//! what it holds, what it wrote itself — is decided for each session by [`crate::evaluate`]; nothing here knows a session.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use memory_engine::query::{Changes, Snapshot};
use memory_wire::message::{Remove, SharedSync, SyncContent, UpsertFrame, ViewPlan};
use memory_wire::{Seq, WireError};
use rustc_hash::FxHashMap;

use crate::delivery::{Held, InstanceKey};
use crate::document_cache::Form;
use crate::error::ServerError;

/// How a session reads: all of it that enters the text of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reading {
    pub(crate) form: Form,
    /// Entries carry scope keys (SRV-607).
    pub(crate) keyed: bool,
}

/// One instance in one state, as frames tell it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: InstanceKey,
    /// What whoever is told it holds from then on.
    pub(crate) held: Held,
    pub(crate) upsert: UpsertFrame,
}

/// One instance that a graph reports: told to some sessions, not to others.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) key: InstanceKey,
    pub(crate) held: Held,
    entry: OnceCell<Rc<Entry>>,
}

impl Candidate {
    pub(crate) fn of(snapshot: &Snapshot) -> Candidate {
        Candidate {
            key: InstanceKey::of(snapshot),
            held: Held::new(snapshot.seq, snapshot.document.is_none()),
            entry: OnceCell::new(),
        }
    }

    /// The entry, encoded when it is first told.
    pub(crate) fn entry(
        &self,
        encode: impl FnOnce() -> Result<UpsertFrame, ServerError>,
    ) -> Result<Rc<Entry>, ServerError> {
        if let Some(entry) = self.entry.get() {
            return Ok(Rc::clone(entry));
        }
        let entry = Rc::new(Entry {
            key: self.key.clone(),
            held: self.held,
            upsert: encode()?,
        });
        Ok(Rc::clone(self.entry.get_or_init(|| entry)))
    }
}

/// The text that frames telling the same share, and what it names.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) sync: SharedSync,
    pub(crate) upserts: Arc<[InstanceKey]>,
    pub(crate) removes: Arc<[InstanceKey]>,
}

/// How many texts of a pass are kept for who else is told the same. Passes have few; each may be large.
const KEPT: usize = 16;

/// What a refresh came to, for one kind of reader.
#[derive(Debug)]
struct Report {
    /// Kept, so that nothing else comes to be kept in its place.
    _changes: Arc<Changes>,
    candidates: Rc<[Candidate]>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct SharedFrames {
    /// Of refreshes that several graphs share, by the address of the changes.
    reports: RefCell<FxHashMap<(usize, Reading), Report>>,
    /// By the very entries told.
    told: RefCell<Vec<(Vec<Rc<Entry>>, Common)>>,
}

impl SharedFrames {
    /// The candidates among `changes`, in their order.
    pub(crate) fn candidates(&self, changes: &Arc<Changes>, reading: Reading) -> Rc<[Candidate]> {
        let made = || changes.snapshots.iter().map(Candidate::of).collect::<Rc<[_]>>();
        // Nobody else can come with them.
        if Arc::strong_count(changes) == 1 {
            return made();
        }
        let mut reports = self.reports.borrow_mut();
        let report = reports
            .entry((Arc::as_ptr(changes) as usize, reading))
            .or_insert_with(|| Report {
                _changes: Arc::clone(changes),
                candidates: made(),
            });
        Rc::clone(&report.candidates)
    }

    /// What frames that tell `entries`, sorted by key, and nothing else share.
    pub(crate) fn telling(&self, entries: &[Rc<Entry>], to_seq: Seq) -> Result<Common, ServerError> {
        let mut told = self.told.borrow_mut();
        let same = |known: &[Rc<Entry>]| {
            known.len() == entries.len() && known.iter().zip(entries).all(|(a, b)| Rc::ptr_eq(a, b))
        };
        if let Some((_, common)) = told.iter().find(|(known, _)| same(known)) {
            return Ok(common.clone());
        }
        let common = Common::new(entries, to_seq, &[], &[])?;
        // An entry that no candidate keeps is told once.
        if entries.iter().all(|entry| Rc::strong_count(entry) > 1) {
            if told.len() == KEPT {
                told.remove(0);
            }
            told.push((entries.to_vec(), common.clone()));
        }
        Ok(common)
    }
}

impl Common {
    /// What a frame tells; entries and removes are sorted by key.
    pub(crate) fn new(
        entries: &[Rc<Entry>],
        to_seq: Seq,
        removes: &[(InstanceKey, Remove)],
        plans: &[ViewPlan],
    ) -> Result<Common, ServerError> {
        let shared = content_of(entries, to_seq, removes, plans).shared();
        Ok(Common {
            sync: shared
                .map_err(|error| WireError::query(format!("the frame cannot be encoded: {error}")))?,
            upserts: entries.iter().map(|entry| entry.key.clone()).collect(),
            removes: removes.iter().map(|(key, _)| key.clone()).collect(),
        })
    }
}

/// What a sync tells; entries and removes are sorted by key.
pub(crate) fn content_of(
    entries: &[Rc<Entry>],
    to_seq: Seq,
    removes: &[(InstanceKey, Remove)],
    plans: &[ViewPlan],
) -> SyncContent {
    SyncContent {
        to_seq,
        upserts: entries.iter().map(|entry| entry.upsert.clone()).collect(),
        removes: removes.iter().map(|(_, remove)| remove.clone()).collect(),
        view_plans: (!plans.is_empty()).then(|| plans.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::message::UpsertFrameContent;
    use memory_wire::{EntityId, Scope, ScopeKey};

    fn changes(ids: &[&str]) -> Arc<Changes> {
        let snapshot = |id: &&str| Snapshot {
            branch: Default::default(),
            id: EntityId::from(*id),
            scope_key: ScopeKey::space(),
            seq: Seq(3),
            document: None,
            cover_class: None,
        };
        Arc::new(Changes {
            snapshots: ids.iter().map(snapshot).collect(),
            unreached: Vec::new(),
        })
    }

    fn entry(candidate: &Candidate, keyed: bool) -> Rc<Entry> {
        let upsert = UpsertFrame {
            branch: Default::default(),
            id: candidate.key.instance.id.clone(),
            scope: Scope::Space,
            scope_key: keyed.then(ScopeKey::space),
            seq: candidate.held.seq,
            content: UpsertFrameContent::Deleted,
            cover_class: None,
        };
        candidate.entry(|| Ok(upsert)).expect("encodable")
    }

    const PLAIN: Reading = Reading {
        form: Form::Plain,
        keyed: false,
    };

    fn text(common: &Common) -> String {
        format!("{:?}", common.sync)
    }

    #[test]
    fn srv_119_the_same_entries_have_one_text_and_others_their_own() {
        let frames = SharedFrames::default();
        let changes = changes(&["of:a", "of:b"]);
        let _second_graph = Arc::clone(&changes);
        let tell = |which: &[usize], reading: Reading| {
            let candidates = frames.candidates(&changes, reading);
            let entries: Vec<_> = which
                .iter()
                .map(|n| entry(&candidates[*n], reading.keyed))
                .collect();
            drop(candidates);
            frames.telling(&entries, Seq(3)).expect("encodable")
        };
        let both = tell(&[0, 1], PLAIN);
        assert!(Arc::ptr_eq(&both.upserts, &tell(&[0, 1], PLAIN).upserts));
        for (which, readings) in [(&[0][..], PLAIN), (&[1], PLAIN), (&[], PLAIN)] {
            let part = tell(which, readings);
            assert_eq!(part.upserts.len(), which.len());
            for (n, id) in ["of:a", "of:b"].iter().enumerate() {
                assert_eq!(text(&part).contains(id), which.contains(&n), "{which:?}");
            }
        }
        let keyed = Reading { keyed: true, ..PLAIN };
        let compacted = Reading {
            form: Form::Compacted,
            ..PLAIN
        };
        assert!(text(&tell(&[0, 1], keyed)).contains("scopeKey") && !text(&both).contains("scopeKey"));
        assert!(!Arc::ptr_eq(&both.upserts, &tell(&[0, 1], compacted).upserts));
    }

    #[test]
    fn what_only_one_graph_reports_is_not_kept() {
        let frames = SharedFrames::default();
        for _ in 0..3 {
            let changes = changes(&["of:a"]);
            let candidates = frames.candidates(&changes, PLAIN);
            let entries = [entry(&candidates[0], false)];
            drop(candidates);
            frames.telling(&entries, Seq(3)).expect("encodable");
        }
        assert!(frames.reports.borrow().is_empty() && frames.told.borrow().is_empty());
    }

    #[test]
    fn texts_are_kept_within_bounds() {
        let frames = SharedFrames::default();
        let ids: Vec<String> = (0..KEPT + 4).map(|n| format!("of:{n}")).collect();
        let changes = changes(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        let _second_graph = Arc::clone(&changes);
        for n in 0..ids.len() {
            let candidates = frames.candidates(&changes, PLAIN);
            let entries = [entry(&candidates[n], false)];
            frames.telling(&entries, Seq(3)).expect("encodable");
        }
        assert_eq!(frames.told.borrow().len(), KEPT);
    }
}
