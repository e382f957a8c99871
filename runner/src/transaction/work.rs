//! The working side of a transaction: document snapshots, edits and the journal of one or more spaces (RUN-81…84).
//!
//! Private to the transaction; building commits from it is [`super::build`]'s business.

use indexmap::IndexMap;
use memory_wire::equality::value_equal;
use memory_wire::{EntityId, Scope, ScopeIdentity, SpaceId, Value};
use rustc_hash::FxBuildHasher;
use smol_str::SmolStr;

use super::mergeable::Intents;
use super::tree::{self, Lookup};
use crate::address::{Address, Path};
use crate::replica::Replica;

/// Document key inside one transaction: sound because a transaction serves exactly one identity (RUN-81).
pub(crate) type DocName = (Scope, EntityId);

/// How a read counts (RUN-82, RUN-90, RUN-93).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadMeta {
    /// Shape only: key set, array length, kind.
    pub non_recursive: bool,
    /// Not part of the commit's read set.
    pub ignore_for_commit: bool,
    /// Does not subscribe the run.
    pub ignore_for_scheduling: bool,
    /// A non-recursive read with this mark is no conflict basis (holding a reference, TRV-1221).
    pub exclude_from_conflict: bool,
    /// Mechanics of a mergeable operation (RUN-88, RUN-90).
    pub mergeable_op: bool,
    /// Taken to find out whether a write changes anything (RUN-90).
    pub attempted_write: bool,
    /// Base on the stack without speculative layers (RUN-92).
    pub non_speculative: bool,
    /// Probe for a link (RUN-1000).
    pub link_probe: bool,
    /// Taken by machinery rather than by the body (RUN-1000).
    pub machinery: bool,
}

impl ReadMeta {
    /// A plain recursive read.
    pub const RECURSIVE: ReadMeta = ReadMeta {
        non_recursive: false,
        ignore_for_commit: false,
        ignore_for_scheduling: false,
        exclude_from_conflict: false,
        mergeable_op: false,
        attempted_write: false,
        non_speculative: false,
        link_probe: false,
        machinery: false,
    };
    /// A shape-only read.
    pub const SHALLOW: ReadMeta = ReadMeta {
        non_recursive: true,
        ..ReadMeta::RECURSIVE
    };
    /// A read that leaves no trace in commit or schedule.
    pub const UNTRACKED: ReadMeta = ReadMeta {
        ignore_for_commit: true,
        ignore_for_scheduling: true,
        ..ReadMeta::RECURSIVE
    };
}

/// The answer of a read.
#[derive(Clone, Debug)]
pub enum Read {
    /// The value there.
    Found(Value),
    /// There is no such document (here).
    NoDocument,
    /// The document exists, the path does not: `existing` leading segments do.
    NoPath {
        /// Number of existing leading segments.
        existing: usize,
    },
}

impl Read {
    /// The value, or `undefined` for every kind of absence.
    pub fn or_undefined(self) -> Value {
        match self {
            Read::Found(value) => value,
            Read::NoDocument | Read::NoPath { .. } => Value::Undefined,
        }
    }

    /// The value, if found.
    pub fn found(self) -> Option<Value> {
        match self {
            Read::Found(value) => Some(value),
            Read::NoDocument | Read::NoPath { .. } => None,
        }
    }
}

/// One logged read.
#[derive(Clone, Debug)]
pub(crate) struct LoggedRead {
    pub(crate) space: SpaceId,
    pub(crate) doc: DocName,
    pub(crate) path: Path,
    pub(crate) meta: ReadMeta,
}

/// A document as this transaction sees it.
#[derive(Debug)]
pub(crate) struct WorkingDoc {
    /// What the replica held at first touch.
    pub(crate) base: Option<Value>,
    /// The same with this transaction's writes.
    pub(crate) working: Option<Value>,
    /// Read, so it must not have changed by commit time (RUN-86).
    pub(crate) validated: bool,
    /// Written paths in order, duplicates removed.
    pub(crate) written: Vec<Path>,
    /// Recorded mergeable operations.
    pub(crate) intents: Intents,
    /// RUN-89.
    pub(crate) create_only: bool,
}

impl WorkingDoc {
    fn new(base: Option<Value>) -> WorkingDoc {
        WorkingDoc {
            working: base.clone(),
            base,
            validated: false,
            written: Vec::new(),
            intents: Intents::default(),
            create_only: false,
        }
    }

    /// True when the document ends where it began.
    pub(crate) fn unchanged(&self) -> bool {
        match (&self.base, &self.working) {
            (None, None) => true,
            (Some(a), Some(b)) => value_equal(a, b),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    pub(crate) fn read(&self, path: &[SmolStr]) -> Read {
        match &self.working {
            None => Read::NoDocument,
            Some(root) => match tree::lookup(root, path) {
                Lookup::Found(value) => Read::Found(value),
                Lookup::Missing { depth } => Read::NoPath { existing: depth },
            },
        }
    }

    /// Applies a write. `Err(depth)` = blocked there; nothing changed then.
    pub(crate) fn write(&mut self, path: &[SmolStr], value: Option<Value>) -> Result<(), usize> {
        if path.is_empty() {
            self.working = value;
        } else {
            let mut root = self.working.clone().unwrap_or(Value::Undefined);
            tree::put(&mut root, path, value)?;
            self.working = (!root.is_undefined()).then_some(root);
        }
        if !self.written.iter().any(|p| p.as_slice() == path) {
            self.written.push(path.to_vec());
        }
        Ok(())
    }
}

/// A transaction's part in one space.
#[derive(Debug)]
pub(crate) struct SpaceWork {
    pub(crate) replica: Replica,
    pub(crate) docs: IndexMap<DocName, WorkingDoc, FxBuildHasher>,
    /// Claimed for writing.
    pub(crate) written: bool,
}

impl SpaceWork {
    pub(crate) fn new(replica: Replica) -> SpaceWork {
        SpaceWork {
            replica,
            docs: IndexMap::default(),
            written: false,
        }
    }

    /// The working document, snapshotted from the replica under `identity` at first touch.
    pub(crate) fn doc(&mut self, name: &DocName, identity: Option<&ScopeIdentity>) -> &mut WorkingDoc {
        let replica = &self.replica;
        self.docs
            .entry(name.clone())
            .or_insert_with(|| WorkingDoc::new(replica.get_document(&name.1, name.0, identity)))
    }

    /// RUN-86: the first validated document that is no longer what was snapshotted.
    pub(crate) fn first_stale(&self, identity: Option<&ScopeIdentity>) -> Option<&DocName> {
        self.docs.iter().find_map(|(name, doc)| {
            let fresh = || match (&self.replica.get_document(&name.1, name.0, identity), &doc.base) {
                (None, None) => true,
                (Some(Value::Object(a)), Some(Value::Object(b))) if a.ptr_eq(b) => true,
                (Some(a), Some(b)) => value_equal(a, b),
                (None, Some(_)) | (Some(_), None) => false,
            };
            (doc.validated && !fresh()).then_some(name)
        })
    }
}

/// All spaces a transaction touched, in order of first touch, and the journal of its reads.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) spaces: IndexMap<SpaceId, SpaceWork, FxBuildHasher>,
    pub(crate) reads: Vec<LoggedRead>,
    /// Elided writes.
    pub(crate) attempted: Vec<(SpaceId, DocName, Path)>,
    /// RUN-84: several spaces may be written; the order given first.
    pub(crate) multi_space: Option<Vec<SpaceId>>,
}

impl Work {
    /// Spaces to commit: the given order first, then first-write order (RUN-85).
    pub(crate) fn written_spaces(&self) -> Vec<SpaceId> {
        let given = self.multi_space.iter().flatten();
        let mut order: Vec<SpaceId> = given
            .filter(|s| self.spaces.get(*s).is_some_and(|w| w.written))
            .cloned()
            .collect();
        for (space, _) in self.spaces.iter().filter(|(_, work)| work.written) {
            if !order.contains(space) {
                order.push(space.clone());
            }
        }
        order
    }

    /// True once any document was loaded.
    pub(crate) fn touched(&self) -> bool {
        self.spaces.values().any(|work| !work.docs.is_empty())
    }

    pub(crate) fn log(&mut self, address: &Address, meta: ReadMeta) {
        self.reads.push(LoggedRead {
            space: address.space.clone(),
            doc: (address.scope, address.id.clone()),
            path: address.path.clone(),
            meta,
        });
    }
}
