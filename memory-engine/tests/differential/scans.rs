//! What the engine finds by scanning, against the model's history: the feed of commits and their classes (ENG-203, 556),
//! pending events (ENG-545), heads and written paths (ENG-611, 620), and entity ids by the page (ENG-905).

use std::collections::BTreeSet;

use memory_engine::{Holder, Reader};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::{Did, EntityId, Seq};
use memory_wire::scope_key::{InstanceId, session_key};

use super::admission::key;
use super::admission::model::{Change, Instance, Model, Submitter};
use super::admission::schedule::instances;
use super::admission::tree::{Tree, strings};

pub(crate) fn compare(engine: &Reader, model: &Model, what: &str) {
    for branch in &model.branches {
        feed(engine, model, &branch.name, what);
        pending_events(engine, model, &branch.name, what);
        written_paths(engine, model, &branch.name, what);
    }
    let beyond = Seq(model.server_seq() + 1);
    for unknown in [Seq(0), beyond] {
        assert_eq!(engine.commit_class_of_seq(unknown).unwrap(), None, "{what}");
    }
    pages(engine, what);
}

fn named(instance: &Instance) -> InstanceId {
    InstanceId::new(instance.0.as_str(), key(&instance.1))
}

fn class_of(who: &Submitter) -> CommitClass {
    match who.derived {
        true => CommitClass::Derived,
        false => CommitClass::Authored,
    }
}

fn feed(engine: &Reader, model: &Model, branch: &str, what: &str) {
    let want = model.commits_on(branch);
    let middle = want.get(want.len() / 2).map_or(0, |(seq, ..)| *seq);
    for (from, limit) in [(0, None), (middle, None), (middle, Some(3)), (0, Some(0))] {
        let got = engine.commits_since(Seq(from), &branch.into(), limit).unwrap();
        let expected = want.iter().filter(|(seq, ..)| *seq > from);
        let expected: Vec<_> = expected.take(limit.unwrap_or(u64::MAX) as usize).collect();
        assert_eq!(
            got.len(),
            expected.len(),
            "{what}: commits of {branch:?} after {from}"
        );
        for (record, (seq, who, writes)) in got.iter().zip(expected) {
            let principal = who.principal.as_deref().map(Did::from);
            let filed = session_key(principal.as_ref(), &who.session.as_str().into());
            let holder = who.derived.then(|| Holder::from(who.session.as_str()));
            assert_eq!(record.seq.0, *seq, "{what}");
            assert_eq!(record.branch, *branch, "{what}");
            assert_eq!(record.class, class_of(who), "{what}");
            assert_eq!((&record.session_key, &record.holder), (&filed, &holder), "{what}");
            let told: BTreeSet<InstanceId> = record.writes.iter().cloned().collect();
            let wrote: BTreeSet<InstanceId> = writes.iter().map(|instance| named(instance)).collect();
            assert_eq!(told, wrote, "{what}: writes at {seq}");
            assert_eq!(told.len(), record.writes.len(), "{what}: each once at {seq}");
            let class = engine.commit_class_of_seq(Seq(*seq)).unwrap();
            assert_eq!(class, Some(class_of(who)), "{what}");
        }
    }
}

/// The entries that nobody has processed, and how far the stream was.
fn pending(document: &Tree) -> (Vec<Tree>, f64) {
    let value = document.key("value");
    let watermark = value.and_then(|value| value.key("eventWatermark")?.number());
    let watermark = watermark.unwrap_or(0.0);
    let entries = value
        .and_then(|value| value.key("entries")?.list())
        .unwrap_or_default();
    let waits = |entry: &&Tree| {
        let above = entry
            .key("seq")
            .and_then(Tree::number)
            .is_none_or(|seq| seq > watermark);
        let named = entry.key("eventId").is_some_and(|id| id.text().is_some());
        named && above && !entry.key("consequenced").is_some_and(Tree::is_true)
    };
    (entries.iter().filter(waits).cloned().collect(), watermark)
}

fn pending_events(engine: &Reader, model: &Model, branch: &str, what: &str) {
    let mut want = Vec::new();
    for instance in instances() {
        if !instance.0.starts_with("of:stream-events:") || model.on(branch, &instance).next().is_none() {
            continue;
        }
        let Some(Some(document)) = model.state(branch, &instance, u64::MAX) else {
            continue;
        };
        let (entries, watermark) = pending(&document);
        if !entries.is_empty() {
            want.push((named(&instance), entries, watermark as u64));
        }
    }
    want.sort_by(|a, b| (&a.0.id, a.0.scope_key.as_str()).cmp(&(&b.0.id, b.0.scope_key.as_str())));
    let got = engine.select_pending_stream_events(&branch.into()).unwrap();
    let got: Vec<(InstanceId, Vec<Tree>, u64)> = got
        .into_iter()
        .map(|stream| {
            let entries = stream.entries.iter().map(Tree::of).collect();
            let instance = InstanceId {
                id: stream.id,
                scope_key: stream.scope_key,
            };
            (instance, entries, stream.event_watermark.0)
        })
        .collect();
    assert_eq!(got, want, "{what}: pending events on {branch:?}");
}

fn written_paths(engine: &Reader, model: &Model, branch: &str, what: &str) {
    for instance in instances() {
        let all: Vec<_> = model.on(branch, &instance).collect();
        let head = all.iter().map(|revision| revision.seq).max().unwrap_or(0);
        let id = named(&instance);
        assert_eq!(
            engine.doc_head(&id, &branch.into()).unwrap().0,
            head,
            "{what}: {id}"
        );
        for since in [0, head / 2, head] {
            let mut want: Vec<Vec<String>> = Vec::new();
            for revision in all.iter().filter(|revision| revision.seq > since) {
                match &revision.change {
                    Change::Set(_) | Change::Delete => want.push(Vec::new()),
                    Change::Patch(patches) => want.extend(patches.iter().map(|patch| patch.path.clone())),
                }
            }
            let got = engine.write_paths_since(&id, &branch.into(), Seq(since)).unwrap();
            let got: Vec<Vec<String>> = got.iter().map(|path| strings(path)).collect();
            assert_eq!(got, want, "{what}: paths of {id} on {branch:?} after {since}");
        }
    }
}

/// Page by page the ids are those of the whole list, each of which exists.
fn pages(engine: &Reader, what: &str) {
    let whole = engine.list_entity_ids().unwrap();
    for size in [1, 2] {
        let mut paged: Vec<EntityId> = Vec::new();
        loop {
            let page = engine.entity_id_page(paged.last(), Some(size)).unwrap();
            assert!(page.len() as u64 <= size, "{what}");
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, whole, "{what}: pages of {size}");
    }
    for (id, _) in instances() {
        let id = EntityId::from(id);
        let exists = engine.entity_id_exists(&id).unwrap();
        assert_eq!(exists, whole.contains(&id), "{what}: {id}");
    }
}
