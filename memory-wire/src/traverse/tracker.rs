//! What a walk has reached (TRV-301…303): a multimap from documents to the selectors they were reached with, and
//! the coverage test on it. The engine keeps one per tracked graph; the runner one per dependency collection.

use std::sync::{Arc, OnceLock};

use rustc_hash::{FxHashMap, FxHashSet};

use super::chains::{Chains, Target};
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

    /// TRV-303: a walk under this selector makes one under `other` unnecessary.
    fn covers(&self, other: &Selector) -> bool {
        let Some(schema) = &self.schema else { return false };
        let nothing = Schema::nothing();
        (schema.is_true_like() && other.path.starts_with(&self.path))
            || (schema == other.schema.as_ref().unwrap_or(&nothing) && self.path == other.path)
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

/// When an entry came to be tracked, counted from the first one; it stands for the entry as long as there is one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Order(u32);

#[derive(Clone, Debug)]
struct Entry {
    selector: Selector,
    order: Order,
    walked: Walked,
    /// The tracker's epoch in which `walked` was recorded; a record of an earlier epoch counts for nothing.
    epoch: u32,
}

/// What an entry rests on, and what rests on it.
#[derive(Clone, Debug, Default)]
struct Standing {
    /// Later entries that a walk from this one led to.
    supports: FxHashSet<Order>,
    /// How many earlier entries lead here; the query itself is one for what it asks for.
    supporters: u32,
    /// Whether a document is tracked or walked because of it at present.
    held: bool,
    /// Whether what is stored at the selector's path leads on to another document.
    passes_on: bool,
}

/// The reached documents with their selectors.
///
/// An entry, a document with a selector, stays as long as something that is reached itself leads to it. Links run in
/// circles, so that "led to" alone would let entries hold each other; only an *earlier* entry supports a later one.
/// Then every entry that has a supporter, or that the query asks for, is reached. An entry whose last supporter is
/// gone may still be reached on another way, and finding out takes a whole evaluation ([`Tracker::settle`]).
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    entries: FxHashMap<DocKey, Vec<Entry>>,
    /// One for each entry there ever was, in their order.
    standings: Vec<Standing>,
    epoch: u32,
    added: Vec<DocKey>,
    /// Places that were walked further than the tracked selectors say (TRV-602, 603): what is evaluated again with
    /// the tracked selectors, so that a refresh finds what a fresh evaluation would.
    beyond: FxHashMap<DocKey, Vec<(Selector, Order)>>,
    /// What was walked is no longer what the selectors tell: nothing may be skipped.
    never_skips: bool,
    chains: Chains,
    taken: Taken,
}

/// What was taken out to be walked again and is not settled yet.
#[derive(Clone, Debug, Default)]
struct Taken {
    /// The entries, which get their former order when they come back.
    entries: FxHashMap<DocKey, Vec<(Selector, Order)>>,
    /// What they supported.
    supported: Vec<Order>,
    /// One of them stood in the middle of a chain of links, and what the chain reaches is not to be learnt from there.
    in_a_chain: bool,
}

impl Tracker {
    /// An empty tracker.
    pub fn new() -> Tracker {
        Tracker::default()
    }

    /// Adds a selector; true when the key was not tracked before.
    pub fn add(&mut self, key: &DocKey, selector: Selector) -> bool {
        let new = !self.entries.contains_key(key);
        self.enter(key, &selector);
        new
    }

    /// As [`Tracker::add`] for a selector that the query itself asks for: it needs nothing else to lead to it. What
    /// was taken out and comes back is as it was.
    pub fn add_root(&mut self, key: &DocKey, selector: &Selector) {
        self.enter_root(key, selector);
    }

    pub(super) fn enter_root(&mut self, key: &DocKey, selector: &Selector) -> Order {
        let known = self.standings.len();
        let order = self.enter(key, selector);
        if self.standings.len() > known {
            self.standing(order).supporters += 1;
        }
        order
    }

    /// Adds a selector and tells its entry.
    pub(super) fn enter(&mut self, key: &DocKey, selector: &Selector) -> Order {
        if let Some(order) = self.entry(key, selector) {
            return order;
        }
        let order =
            take_exact(&mut self.beyond, key, selector).unwrap_or_else(|| self.order_for(key, selector));
        let entry = Entry {
            selector: selector.clone(),
            order,
            walked: Walked::default(),
            epoch: 0,
        };
        match self.entries.get_mut(key) {
            Some(entries) => entries.push(entry),
            None => {
                self.entries.insert(key.clone(), vec![entry]);
                self.added.push(key.clone());
            }
        }
        order
    }

    /// The order of an entry that is not held at present: its former one, or the next.
    fn order_for(&mut self, key: &DocKey, selector: &Selector) -> Order {
        let former = self.taken.entries.get(key);
        let former = former.and_then(|all| all.iter().find(|(known, _)| known == selector));
        let order = match former {
            Some((_, order)) => *order,
            None => {
                let next =
                    u32::try_from(self.standings.len()).expect("fewer than 2^32 entries fit into memory");
                self.standings.push(Standing::default());
                Order(next)
            }
        };
        self.standing(order).held = true;
        order
    }

    fn standing(&mut self, order: Order) -> &mut Standing {
        &mut self.standings[order.0 as usize]
    }

    /// The entry of exactly this selector.
    pub(super) fn entry(&self, key: &DocKey, selector: &Selector) -> Option<Order> {
        let entries = self.entries.get(key)?;
        let entry = entries.iter().find(|entry| entry.selector == *selector)?;
        Some(entry.order)
    }

    /// True for what was taken out and is not back yet.
    pub(super) fn comes_back(&self, key: &DocKey, selector: &Selector) -> bool {
        let taken = self.taken.entries.get(key).into_iter().flatten();
        taken.into_iter().any(|(known, _)| known == selector) && self.entry(key, selector).is_none()
    }

    /// Records that a walk from one entry led to another.
    pub(super) fn support(&mut self, from: Order, to: Order) {
        if from < to && self.standing(from).supports.insert(to) {
            self.standing(to).supporters += 1;
        }
    }

    /// Records that a walk from an entry led to a place that need not be walked again. Where only a wider selector is
    /// tracked, nothing rests on this way there.
    pub(super) fn support_known(&mut self, from: Order, key: &DocKey, selector: &Selector) {
        let known = self.entry(key, selector);
        if let Some(to) = known.or_else(|| self.place_beyond(key, selector)) {
            self.support(from, to);
        }
    }

    /// Records that the document `source` names the document `target`, which is tracked whole.
    pub fn refer(&mut self, source: &DocKey, target: &DocKey) {
        let entries = self.entries.get(source).into_iter().flatten();
        if let Some(from) = entries.map(|entry| entry.order).min() {
            self.support_known(from, target, &Selector::rejecting());
        }
    }

    /// Takes documents out and returns what an incremental refresh evaluates again, in this order: their selectors,
    /// and the places in them that were walked further than they say. [`Tracker::settle`] ends the refresh.
    pub fn take_out<'k>(&mut self, keys: impl IntoIterator<Item = &'k DocKey>) -> Vec<(DocKey, Selector)> {
        let mut out: Vec<(Order, DocKey, Selector)> = Vec::new();
        for key in keys {
            let entries = self.entries.remove(key).unwrap_or_default();
            let beyond = self.beyond.remove(key).unwrap_or_default();
            let entries = entries.into_iter().map(|entry| (entry.selector, entry.order));
            for (selector, order) in entries.chain(beyond) {
                let never_skips = self.never_skips;
                let standing = self.standing(order);
                standing.held = false;
                let passed_on = std::mem::take(&mut standing.passes_on);
                let supported = std::mem::take(&mut standing.supports);
                self.taken.in_a_chain |= never_skips && passed_on;
                for later in supported {
                    self.standing(later).supporters -= 1;
                    self.taken.supported.push(later);
                }
                let former = self.taken.entries.entry(key.clone()).or_default();
                former.push((selector.clone(), order));
                out.push((order, key.clone(), selector));
            }
        }
        // The earliest first, so that what several lead to is supported as it was.
        out.sort_by_key(|(order, ..)| *order);
        out.into_iter()
            .map(|(_, key, selector)| (key, selector))
            .collect()
    }

    /// Ends a refresh: true when an entry has lost its last supporter, or when what was walked again is not all that
    /// the change bears on, so that only a whole evaluation tells what is reached.
    pub fn settle(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        let mut again = taken.entries.values().flatten().map(|(_, order)| *order);
        taken.in_a_chain
            || self.never_skips && again.any(|order| self.standing(order).passes_on)
            || taken.supported.iter().any(|order| {
                let standing = self.standing(*order);
                standing.held && standing.supporters == 0
            })
    }

    /// Notes that what is stored at an entry's path leads on to another document.
    pub(super) fn mark_passing_on(&mut self, order: Order) {
        self.standing(order).passes_on = true;
    }

    /// Notes that a chain of links came to an entry by a link to `target`, through the entry `before` if not at once.
    pub(super) fn note_step(&mut self, entry: Order, target: Target, before: Option<Order>) {
        self.chains.note(entry, target, before);
    }

    /// The targets of the links that a chain may have followed until it came to an entry.
    pub(super) fn followed_before(&self, entry: Order) -> FxHashSet<Target> {
        self.chains.before(entry)
    }

    /// What is walked again stands in a chain that may have been here before: it would not go on here again, and the walk
    /// from its middle does.
    pub(super) fn doubt_chain(&mut self) {
        self.taken.in_a_chain = true;
    }

    /// Records that a walk from an entry goes on at a tracked document's place, under a selector that the tracked ones
    /// need not say. Tells by which entry what is found from there is found. `direct`: the entry's document itself
    /// holds the link to that place; otherwise what is on the way matters too, and nothing may be skipped any more.
    pub(super) fn mark_beyond(
        &mut self,
        from: Order,
        key: &DocKey,
        selector: &Selector,
        direct: bool,
    ) -> Option<Order> {
        let entries = self.entries.get(key)?;
        if let Some(exact) = self.entry(key, selector) {
            if direct {
                self.support(from, exact);
            }
            return Some(exact);
        }
        if let Some(wider) = entries.iter().find(|entry| entry.selector.covers(selector)) {
            return Some(wider.order);
        }
        let order = match self.place_beyond(key, selector) {
            Some(order) => order,
            None => {
                let order = self.order_for(key, selector);
                let places = self.beyond.entry(key.clone()).or_default();
                places.push((selector.clone(), order));
                order
            }
        };
        self.support(from, order);
        self.never_skips |= !direct;
        Some(order)
    }

    /// The place of exactly this selector among those that were walked further.
    fn place_beyond(&self, key: &DocKey, selector: &Selector) -> Option<Order> {
        let places = self.beyond.get(key)?;
        let place = places.iter().find(|(known, _)| known == selector)?;
        Some(place.1)
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
        entries.iter().any(|entry| entry.selector.covers(selector))
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

    /// The tracker with every document's key replaced: the same reach, seen from another identity.
    pub fn rekeyed(&self, mut key: impl FnMut(&DocKey) -> DocKey) -> Tracker {
        let entries = self.entries.iter();
        let entries = entries
            .map(|(old, entries)| (key(old), entries.clone()))
            .collect();
        let beyond = self.beyond.iter();
        let beyond = beyond.map(|(old, places)| (key(old), places.clone())).collect();
        let chains = self.chains.rekeyed(key);
        Tracker {
            entries,
            standings: self.standings.clone(),
            epoch: self.epoch,
            beyond,
            never_skips: self.never_skips,
            chains,
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

/// Takes exactly this selector's place out of those of a document.
fn take_exact(
    places: &mut FxHashMap<DocKey, Vec<(Selector, Order)>>,
    key: &DocKey,
    selector: &Selector,
) -> Option<Order> {
    let of_key = places.get_mut(key)?;
    let at = of_key.iter().position(|(known, _)| known == selector)?;
    Some(of_key.remove(at).1)
}

/// TRV-303 as a function.
pub fn covered(tracker: &Tracker, key: &DocKey, selector: &Selector) -> bool {
    tracker.covers(key, selector)
}
