//! What a walk has reached (TRV-301…303): a multimap from documents to the selectors they were reached with, and
//! the coverage test on it. The engine keeps one per tracked graph; the runner one per dependency collection.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::schema::Schema;
use super::source::DocKey;
use crate::js_string::JsString;

/// "At this document-rooted path, this schema applies." An absent schema counts as `false` (TRV-101).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Selector {
    /// From the document's root; the first segment is normally `value`.
    pub path: Arc<[JsString]>,
    /// What applies there.
    pub schema: Option<Schema>,
}

impl Selector {
    /// The selector of a path and a schema.
    pub fn new(path: impl Into<Arc<[JsString]>>, schema: Option<Schema>) -> Selector {
        Selector {
            path: path.into(),
            schema,
        }
    }

    /// TRV-102: from a query root's value-relative path and optional schema.
    pub fn from_root(path: &[JsString], schema: Option<Schema>) -> Selector {
        let path = std::iter::once(value_segment())
            .chain(path.iter().cloned())
            .collect();
        Selector {
            path,
            schema: Some(schema.unwrap_or_else(Schema::nothing)),
        }
    }

    /// `{path: [], schema: false}`: deliver the document, cover nothing but itself (TRV-102).
    pub fn rejecting() -> Selector {
        Selector {
            path: Arc::new([]),
            schema: Some(Schema::nothing()),
        }
    }

    /// `{path: ["value"], schema: true}` (TRV-102).
    pub fn everything() -> Selector {
        Selector {
            path: value_path(),
            schema: Some(Schema::everything()),
        }
    }
}

/// The first segment of user data.
pub(super) fn value_segment() -> JsString {
    value_path()[0].clone()
}

/// `["value"]`, shared.
pub(super) fn value_path() -> Arc<[JsString]> {
    static PATH: OnceLock<Arc<[JsString]>> = OnceLock::new();
    PATH.get_or_init(|| Arc::new(["value".into()])).clone()
}

/// How far a tracked selector's reach has been walked by the everything walk (decision 24).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Walked {
    /// What the selector's schema selects below the link that carried it.
    pub(super) selected: bool,
    /// Everything below it.
    pub(super) everything: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    selector: Selector,
    walked: Walked,
    /// The tracker's epoch in which `walked` was recorded; a record of an earlier epoch counts for nothing.
    epoch: u32,
}

impl Entry {
    fn new(selector: Selector) -> Entry {
        Entry {
            selector,
            walked: Walked::default(),
            epoch: 0,
        }
    }
}

/// The reached documents with their selectors.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    entries: FxHashMap<DocKey, Vec<Entry>>,
    epoch: u32,
    edges: FxHashMap<DocKey, Edges>,
    added: Vec<DocKey>,
    /// Places walked under everything although no tracked selector says so (TRV-603): what is evaluated again with the
    /// tracked selectors, so that a refresh finds what a fresh evaluation would.
    beyond: FxHashMap<DocKey, Vec<Selector>>,
    /// What was walked is no longer what the selectors tell: nothing may be skipped.
    never_skips: bool,
}

/// What one document led to in the walks so far: its targets with the selectors there, as digests. Two sets of one
/// document tell whether a later walk still finds everything that an earlier one did.
#[derive(Clone, Debug, Default)]
pub struct Edges(FxHashSet<u64>);

impl Edges {
    /// True when everything that `self` led to is led to by `now` as well.
    pub fn all_in(&self, now: Option<&Edges>) -> bool {
        self.0.is_empty() || now.is_some_and(|now| self.0.is_subset(&now.0))
    }
}

impl Tracker {
    /// An empty tracker.
    pub fn new() -> Tracker {
        Tracker::default()
    }

    /// Adds a selector; true when the key was not tracked before.
    pub fn add(&mut self, key: &DocKey, selector: Selector) -> bool {
        match self.entries.get_mut(key) {
            Some(entries) => {
                if !entries.iter().any(|entry| entry.selector == selector) {
                    entries.push(Entry::new(selector));
                }
                false
            }
            None => {
                self.entries.insert(key.clone(), vec![Entry::new(selector)]);
                self.added.push(key.clone());
                true
            }
        }
    }

    /// Removes a key with all its selectors and returns what an incremental refresh evaluates again: those selectors,
    /// and the places in the document that were walked further than they say.
    pub fn remove(&mut self, key: &DocKey) -> Vec<Selector> {
        let entries = self.entries.remove(key).unwrap_or_default();
        let beyond = self.beyond.remove(key).unwrap_or_default();
        entries
            .into_iter()
            .map(|entry| entry.selector)
            .chain(beyond)
            .collect()
    }

    /// Records that the walk went on under everything at a tracked document's `path`; true when no selector says so.
    pub(super) fn mark_beyond(&mut self, key: &DocKey, path: Arc<[JsString]>) -> bool {
        let selector = Selector {
            path,
            schema: Some(Schema::everything()),
        };
        if self.covers(key, &selector) || !self.entries.contains_key(key) {
            return false;
        }
        let beyond = self.beyond.entry(key.clone()).or_default();
        if !beyond.contains(&selector) {
            beyond.push(selector);
        }
        true
    }

    /// Nothing is skipped any more: the walk went, or the next refresh will go, another way than the selectors tell.
    pub(super) fn never_skip(&mut self) {
        self.never_skips = true;
    }

    /// True when a reach that was walked may be left out (decision 24).
    pub(super) fn may_skip(&self) -> bool {
        !self.never_skips
    }

    /// The documents that became tracked since the last call, in that order.
    pub fn take_added(&mut self) -> Vec<DocKey> {
        std::mem::take(&mut self.added)
    }

    /// TRV-303: some tracked selector at `key` makes a walk under `selector` unnecessary.
    pub fn covers(&self, key: &DocKey, selector: &Selector) -> bool {
        let Some(entries) = self.entries.get(key) else {
            return false;
        };
        let nothing = Schema::nothing();
        let schema = selector.schema.as_ref().unwrap_or(&nothing);
        entries.iter().any(|entry| {
            let Some(tracked) = &entry.selector.schema else {
                return false;
            };
            (tracked.is_true_like() && selector.path.starts_with(&entry.selector.path))
                || (tracked == schema && entry.selector.path == selector.path)
        })
    }

    /// How far the reach of exactly this selector has been walked.
    pub(super) fn walked(&self, key: &DocKey, selector: &Selector) -> Walked {
        let entry = self
            .entries
            .get(key)
            .and_then(|all| all.iter().find(|entry| entry.selector == *selector));
        entry
            .filter(|entry| entry.epoch == self.epoch)
            .map_or_else(Walked::default, |entry| entry.walked)
    }

    pub(super) fn mark_walked(&mut self, key: &DocKey, selector: &Selector, walked: Walked) {
        let entry = self
            .entries
            .get_mut(key)
            .and_then(|all| all.iter_mut().find(|entry| entry.selector == *selector));
        if let Some(entry) = entry {
            if entry.epoch != self.epoch {
                entry.walked = Walked::default();
                entry.epoch = self.epoch;
            }
            entry.walked.selected |= walked.selected;
            entry.walked.everything |= walked.everything;
        }
    }

    /// Forgets which reaches have been walked: the next walk skips nothing that only the record allows to skip.
    /// Called when a document changes that a walk did not get into ([`super::Seen::absent`]), because no selector leads
    /// to it.
    pub fn forget_walked(&mut self) {
        self.epoch += 1;
    }

    /// Records that a walk in `source` led to `target` with `selector`, tracked before or not.
    pub fn record_edge(&mut self, source: &DocKey, target: &DocKey, selector: &Selector) {
        let mut hasher = FxHasher::default();
        (target, selector).hash(&mut hasher);
        match self.edges.get_mut(source) {
            Some(edges) => drop(edges.0.insert(hasher.finish())),
            None => drop(
                self.edges
                    .insert(source.clone(), Edges([hasher.finish()].into_iter().collect())),
            ),
        }
    }

    /// What `source` leads to.
    pub fn edges(&self, source: &DocKey) -> Option<&Edges> {
        self.edges.get(source)
    }

    /// Takes what `source` led to, before it is walked again.
    pub fn take_edges(&mut self, source: &DocKey) -> Edges {
        self.edges.remove(source).unwrap_or_default()
    }

    /// The tracker with every document's key replaced: the same reach, seen from another identity. Edges are digests
    /// of keys and cannot follow; the next walk records them anew.
    pub fn rekeyed(&self, mut key: impl FnMut(&DocKey) -> DocKey) -> Tracker {
        let entries = self
            .entries
            .iter()
            .map(|(old, entries)| (key(old), entries.clone()))
            .collect();
        let beyond = self
            .beyond
            .iter()
            .map(|(old, paths)| (key(old), paths.clone()))
            .collect();
        Tracker {
            entries,
            epoch: self.epoch,
            beyond,
            never_skips: self.never_skips,
            ..Tracker::default()
        }
    }

    /// True when the document is tracked at all.
    pub fn contains(&self, key: &DocKey) -> bool {
        self.entries.contains_key(key)
    }

    /// The selectors of a document, in the order they were added.
    pub fn selectors<'t>(&'t self, key: &DocKey) -> impl Iterator<Item = &'t Selector> + use<'t> {
        self.entries
            .get(key)
            .into_iter()
            .flatten()
            .map(|entry| &entry.selector)
    }

    /// The tracked documents, in no particular order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &DocKey> + '_ {
        self.entries.keys()
    }

    /// Number of tracked documents.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when nothing is tracked.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// TRV-303 as a function.
pub fn covered(tracker: &Tracker, key: &DocKey, selector: &Selector) -> bool {
    tracker.covers(key, selector)
}
