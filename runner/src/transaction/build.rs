//! What a finished transaction turns into: native commits per space (RUN-87…90) and the reactivity log (RUN-93).

use memory_wire::equality::value_equal;
use memory_wire::message::{Operation, Precondition};
use memory_wire::{Scope, ScopeIdentity, ScopeKey, SpaceId, Value};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use super::diff::{patches, shifts_an_array};
use super::mergeable::Settled;
use super::native::{NativeCommit, NativeRead};
use super::tree;
use super::work::{DocName, LoggedRead, SpaceWork, Work, WorkingDoc};
use super::{ReactivityLog, ReadMeta};
use crate::address::{Address, Path, is_prefix};

/// The native commit of one space.
pub(crate) fn native_commit(
    work: &Work,
    space: &SpaceId,
    authoritative: bool,
    preconditions: impl Iterator<Item = Precondition>,
) -> NativeCommit {
    let Some(part) = work.spaces.get(space) else {
        return NativeCommit::default();
    };
    let mut commit = NativeCommit {
        preconditions: preconditions.collect(),
        ..NativeCommit::default()
    };
    let mut merged: FxHashMap<DocName, Vec<Path>> = FxHashMap::default();
    for (name, doc) in &part.docs {
        if doc.create_only {
            commit.preconditions.push(Precondition::EntityAbsent {
                id: name.1.clone(),
                scope: name.0,
            });
        }
        let touched = !doc.written.is_empty();
        if !touched || (doc.unchanged() && !authoritative) {
            continue;
        }
        let settled = if authoritative {
            Vec::new()
        } else {
            doc.intents.settle(doc.base.as_ref(), doc.working.as_ref())
        };
        if !settled.is_empty() {
            merged.insert(name.clone(), settled.iter().map(|s| s.path.clone()).collect());
        }
        commit
            .operations
            .push(operation(name, doc, &settled, authoritative));
    }
    commit.reads = read_set(&work.reads, space, &merged);
    commit
}

/// The read set of a space that was only read (RUN-608).
pub(crate) fn reads_of(work: &Work, space: &SpaceId) -> Vec<NativeRead> {
    read_set(&work.reads, space, &FxHashMap::default())
}

fn operation(name: &DocName, doc: &WorkingDoc, settled: &[Settled], authoritative: bool) -> Operation {
    let (scope, id) = (name.0, name.1.clone());
    let Some(working) = &doc.working else {
        return Operation::Delete { id, scope };
    };
    let root_written = doc.written.iter().any(Vec::is_empty);
    let empty = Value::Object(memory_wire::Object::new());
    // A document that exists only through patches counts as absent for preconditions (WIRE-741), so a fresh
    // document is set whole, unless everything said about it is mergeable.
    let base = match &doc.base {
        Some(base) if !root_written && !authoritative => base,
        None if !settled.is_empty() && !root_written => &empty,
        Some(_) | None => {
            return Operation::Set {
                id,
                scope,
                value: working.clone(),
            };
        }
    };
    let ops = patches(base, working, &doc.written, settled);
    if ops.iter().any(|op| shifts_an_array(op, base)) {
        // Whole-document writes conflict with every read, which is safe where a leaf footprint would not be.
        tracing::error!(%id, "patch would shift array elements; writing the whole document");
        return Operation::Set {
            id,
            scope,
            value: working.clone(),
        };
    }
    Operation::Patch {
        id,
        scope,
        patches: ops,
    }
}

/// RUN-90.
fn read_set(
    reads: &[LoggedRead],
    space: &SpaceId,
    merged: &FxHashMap<DocName, Vec<Path>>,
) -> Vec<NativeRead> {
    let mut kept: Vec<NativeRead> = Vec::new();
    for read in reads
        .iter()
        .filter(|r| r.space == *space && counts(r, merged.get(&r.doc)))
    {
        kept.push(NativeRead {
            id: read.doc.1.clone(),
            scope: read.doc.0,
            path: read.path.clone(),
            non_recursive: read.meta.non_recursive,
            non_speculative: read.meta.non_speculative,
        });
    }
    compact(kept)
}

fn counts(read: &LoggedRead, merged: Option<&Vec<Path>>) -> bool {
    let (id, meta) = (&read.doc.1, read.meta);
    if id.is_inline() || id.is_content_addressed() || meta.ignore_for_commit {
        return false;
    }
    if meta.non_recursive && meta.exclude_from_conflict {
        return false;
    }
    let Some(op_paths) = merged else { return true };
    if meta.mergeable_op || meta.attempted_write {
        return false;
    }
    if read.path.first().map(SmolStr::as_str) == Some("cfc") && read.path.len() == 1 {
        return false;
    }
    !op_paths.iter().any(|op| {
        if !is_prefix(op, &read.path) {
            return false;
        }
        match &read.path[op.len()..] {
            // A recursive read of the whole value is a real dependency; its shape is what the operation merges.
            [] => meta.non_recursive,
            [only] if only == tree::LENGTH => false,
            _ => true,
        }
    })
}

/// Ancestor recursive reads absorb descendants of the same document and basis.
fn compact(reads: Vec<NativeRead>) -> Vec<NativeRead> {
    let mut by_doc: FxHashMap<(Scope, &str, bool), Vec<usize>> = FxHashMap::default();
    for (i, read) in reads.iter().enumerate() {
        by_doc
            .entry((read.scope, read.id.as_str(), read.non_speculative))
            .or_default()
            .push(i);
    }
    let mut keep = vec![true; reads.len()];
    for indexes in by_doc.values() {
        let mut order: Vec<usize> = indexes.clone();
        // Ancestors first, recursive before shallow, journal order among equals.
        order.sort_by(|a, b| {
            let key = |i: usize| (reads[i].path.len(), reads[i].non_recursive, i);
            key(*a).cmp(&key(*b))
        });
        let mut recursive: rustc_hash::FxHashSet<&[SmolStr]> = rustc_hash::FxHashSet::default();
        let mut shallow: rustc_hash::FxHashSet<&[SmolStr]> = rustc_hash::FxHashSet::default();
        for i in order {
            let path = reads[i].path.as_slice();
            let absorbed = (0..=path.len()).any(|n| recursive.contains(&path[..n]))
                || (reads[i].non_recursive && shallow.contains(path));
            if absorbed {
                keep[i] = false;
            } else if reads[i].non_recursive {
                shallow.insert(path);
            } else {
                recursive.insert(path);
            }
        }
    }
    reads
        .into_iter()
        .zip(keep)
        .filter_map(|(read, keep)| keep.then_some(read))
        .collect()
}

/// RUN-93.
pub(crate) fn reactivity_log(work: &Work, identity: Option<&ScopeIdentity>) -> ReactivityLog {
    let mut log = ReactivityLog::default();
    let address = |space: &SpaceId, doc: &DocName, path: Path| Address {
        space: space.clone(),
        id: doc.1.clone(),
        scope: doc.0,
        scope_key: match (identity, doc.0) {
            (None, _) | (_, Scope::Space) => None,
            (Some(identity), scope) => ScopeKey::resolve(scope, identity).ok(),
        },
        path,
    };
    let mut seen: rustc_hash::FxHashSet<(&SpaceId, &DocName, &[SmolStr], bool)> =
        rustc_hash::FxHashSet::default();
    for read in &work.reads {
        let shallow = read.meta.non_recursive;
        if !subscribes(read.meta)
            || read.doc.1.is_inline()
            || !seen.insert((&read.space, &read.doc, &read.path, shallow))
        {
            continue;
        }
        let at = address(&read.space, &read.doc, read.path.clone());
        if shallow {
            log.shallow_reads.push(at)
        } else {
            log.reads.push(at)
        }
    }
    for (space, part) in &work.spaces {
        for (name, path) in changed_paths(part) {
            log.writes.push(address(space, name, path));
        }
    }
    log.attempted_writes = work
        .attempted
        .iter()
        .map(|(s, d, p)| address(s, d, p.clone()))
        .collect();
    log
}

fn subscribes(meta: ReadMeta) -> bool {
    !meta.ignore_for_scheduling
}

/// Each changed path plus every proper ancestor whose shallow structure changed.
fn changed_paths(part: &SpaceWork) -> Vec<(&DocName, Path)> {
    let mut paths: Vec<(&DocName, Path)> = Vec::new();
    for (name, doc) in &part.docs {
        let mut mine: Vec<Path> = Vec::new();
        for written in &doc.written {
            let (before, after) = (at(&doc.base, written), at(&doc.working, written));
            let same = match (&before, &after) {
                (None, None) => true,
                (Some(a), Some(b)) => value_equal(a, b),
                (None, Some(_)) | (Some(_), None) => false,
            };
            if same {
                continue;
            }
            for n in 0..written.len() {
                let (b, a) = (at(&doc.base, &written[..n]), at(&doc.working, &written[..n]));
                if !same_shape(b.as_ref(), a.as_ref()) && !mine.iter().any(|p| p.as_slice() == &written[..n])
                {
                    mine.push(written[..n].to_vec());
                }
            }
            if !mine.contains(written) {
                mine.push(written.clone());
            }
        }
        paths.extend(mine.into_iter().map(|path| (name, path)));
    }
    paths
}

fn at(root: &Option<Value>, path: &[SmolStr]) -> Option<Value> {
    root.as_ref().and_then(|root| tree::get(root, path))
}

/// Same container kind with the same key set or length; leaves count as changed shape only against containers.
fn same_shape(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a, b) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|((x, _), (y, _))| x == y)
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => a.len() == b.len(),
        (None, None) => true,
        (Some(Value::Object(_) | Value::Array(_)), _) | (_, Some(Value::Object(_) | Value::Array(_))) => {
            false
        }
        (Some(_), Some(_)) => true,
        (None, Some(_)) | (Some(_), None) => false,
    }
}
