//! A naive re-implementation of admission (ENG §3.2–3.8, 4.1, 5): everything in vectors, every question answered by
//! looking at all of it. Slow and obvious on purpose. It shares the types of a commit with the product and no code: its
//! documents, patches, keys, overlaps, stamps and watermarks are its own.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::Scope;
use memory_wire::message::{ClientCommit, Operation, Precondition};

use super::overlap::{creates_below, overlaps};
use super::stream::{self, Appends};
use super::tree::{Edit, Patch, Tree, apply_all, strings};

/// Which instance of an entity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Everybody,
    User(String),
    Session(String, String),
}

pub(crate) type Instance = (String, Owner);

/// Who submits a commit, and by which path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Submitter {
    pub(crate) session: String,
    pub(crate) principal: Option<String>,
    /// The serving loop, which addresses each scoped write by itself.
    pub(crate) derived: bool,
}

impl Submitter {
    /// Their own instance of an entity.
    pub(crate) fn owner(&self, scope: Scope) -> Option<Owner> {
        let principal = || self.principal.clone();
        match scope {
            Scope::Space => Some(Owner::Everybody),
            Scope::User => Some(Owner::User(principal()?)),
            Scope::Session => Some(Owner::Session(principal()?, self.session.clone())),
        }
    }
}

/// A commit as it reaches admission.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) who: Submitter,
    pub(crate) commit: ClientCommit,
    /// Addresses by operation (ENG-420).
    pub(crate) addresses: Vec<(usize, Owner)>,
}

/// One accepted commit.
struct Commit {
    seq: u64,
    branch: String,
    who: Submitter,
    local_seq: u64,
    original: Tree,
    elided: Vec<usize>,
    /// How many revisions the engine added of its own.
    added: usize,
}

impl Commit {
    /// The elided operations as a replay finds them: those without a revision (ENG-313). A revision that the engine added
    /// takes the index after the last (ENG-541), which may be that of an elided operation at the end.
    fn elided_on_replay(&self, operations: usize) -> Vec<usize> {
        let last = (0..operations).rev().find(|index| !self.elided.contains(index));
        let added = last.map_or(0..0, |last| last + 1..last + 1 + self.added);
        self.elided
            .iter()
            .copied()
            .filter(|index| !added.contains(index))
            .collect()
    }
}

/// One stored operation.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    instance: Instance,
    pub(crate) seq: u64,
    pub(crate) change: Change,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Set(Tree),
    Patch(Vec<Patch>),
    Delete,
}

pub(crate) struct Branch {
    pub(crate) name: String,
    pub(crate) parent: Option<(String, u64)>,
    pub(crate) head: u64,
    active: bool,
}

#[derive(Default)]
pub(crate) struct Model {
    commits: Vec<Commit>,
    /// By branch, then by instance, in order.
    revisions: BTreeMap<String, BTreeMap<Instance, Vec<Revision>>>,
    pub(crate) branches: Vec<Branch>,
    /// What each value hash that a commit may claim is the hash of.
    hashes: BTreeMap<String, Tree>,
}

/// What became of a commit. Texts are left to the vectors.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) enum Verdict {
    Accepted {
        seq: u64,
        replayed: bool,
        elided: Vec<usize>,
    },
    Empty,
    UnknownBranch,
    InactiveBranch,
    NoIdentity,
    OriginNotCommitted(u64),
    ReceiptExists(String),
    ValueHashChanged(String),
    StaleConfirmed {
        of: String,
        seq: u64,
        conflict: u64,
    },
    PendingDependency(u64),
    StalePending {
        of: String,
        via: u64,
        conflict: u64,
    },
    BadPatch,
    DuplicateEvent(String),
    /// A deterministic refusal, by the name of its reason.
    Refused(&'static str),
}

/// A read as admission judges it.
struct Read<'c> {
    branch: &'c str,
    instance: Instance,
    path: Vec<String>,
    shape: bool,
    since: u64,
    own: Vec<u64>,
}

impl Model {
    pub(crate) fn new() -> Model {
        let main = Branch {
            name: String::new(),
            parent: None,
            head: 0,
            active: true,
        };
        Model {
            branches: vec![main],
            ..Model::default()
        }
    }

    pub(crate) fn server_seq(&self) -> u64 {
        self.commits.iter().map(|commit| commit.seq).max().unwrap_or(0)
    }

    pub(crate) fn learn_hash(&mut self, hash: String, value: Tree) {
        self.hashes.insert(hash, value);
    }

    /// How many commits were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.commits.len()
    }

    /// The accepted commits of a branch, in order, with what each wrote there.
    pub(crate) fn commits_on(&self, branch: &str) -> Vec<(u64, &Submitter, BTreeSet<&Instance>)> {
        let here = self.commits.iter().filter(|commit| commit.branch == branch);
        let wrote = |seq| {
            let instances = self.revisions.get(branch).into_iter().flatten();
            let written = instances.filter(move |(_, all)| all.iter().any(|revision| revision.seq == seq));
            written.map(|(instance, _)| instance).collect()
        };
        here.map(|commit| (commit.seq, &commit.who, wrote(commit.seq)))
            .collect()
    }

    /// True when exactly this commit was accepted.
    pub(crate) fn has_accepted(&self, submission: &Submission) -> bool {
        let stored = self.committed(&submission.who, submission.commit.local_seq.0);
        stored.is_some_and(|stored| stored.original == Tree::of(&submission.commit.value))
    }

    /// The seq at which a submitter's commit was accepted.
    pub(crate) fn seq_of(&self, who: &Submitter, local_seq: u64) -> Option<u64> {
        self.committed(who, local_seq).map(|commit| commit.seq)
    }

    pub(crate) fn fork(&mut self, name: &str, parent: &str, at: u64) {
        if !self.branches.iter().any(|branch| branch.name == name) {
            let parent = Some((parent.to_owned(), at));
            self.branches.push(Branch {
                name: name.into(),
                parent,
                head: at,
                active: true,
            });
        }
    }

    pub(crate) fn close(&mut self, name: &str) {
        for branch in &mut self.branches {
            branch.active &= branch.name != name;
        }
    }

    /// Judges a commit and, if it is new and fine, stores it.
    pub(crate) fn submit(&mut self, submission: &Submission) -> Verdict {
        match self.judge(submission) {
            Ok((commit, revisions)) => {
                let (seq, elided) = (commit.seq, commit.elided.clone());
                let name = submission.commit.branch.as_str();
                self.branches
                    .iter_mut()
                    .filter(|branch| branch.name == name)
                    .for_each(|branch| branch.head = seq);
                self.commits.push(commit);
                let on_branch = self.revisions.entry(name.to_owned()).or_default();
                for revision in revisions {
                    on_branch
                        .entry(revision.instance.clone())
                        .or_default()
                        .push(revision);
                }
                Verdict::Accepted {
                    seq,
                    replayed: false,
                    elided,
                }
            }
            Err(verdict) => verdict,
        }
    }

    fn judge(&self, submission: &Submission) -> Result<(Commit, Vec<Revision>), Verdict> {
        let Submission { who, commit, .. } = submission;
        let original = Tree::of(&commit.value);
        if let Some(stored) = self.committed(who, commit.local_seq.0) {
            return Err(if stored.original == original {
                Verdict::Accepted {
                    seq: stored.seq,
                    replayed: true,
                    elided: stored.elided_on_replay(commit.operations.len()),
                }
            } else {
                Verdict::Refused("ReplayMismatch")
            });
        }
        let targets = targets(submission)?;
        if commit.operations.is_empty() && commit.preconditions.is_empty() {
            return Err(Verdict::Empty);
        }
        let branch = commit.branch.as_str();
        match self.branches.iter().find(|known| known.name == branch) {
            None => return Err(Verdict::UnknownBranch),
            Some(known) if !known.active => return Err(Verdict::InactiveBranch),
            Some(_) => {}
        }
        self.preconditions(who, commit)?;
        let elided = self.content_addressed(commit)?;
        self.confirmed_reads(who, commit)?;
        self.pending_reads(who, commit)?;
        // From here on it matters whether the submitter has an instance to write.
        let stored = |index: usize| match &targets[index] {
            Some(instance) => Ok((instance.clone(), self.state(branch, instance, u64::MAX).flatten())),
            None => Err(Verdict::NoIdentity),
        };
        let appends = stream::admit(who, commit, &stored)?;
        let seq = self.server_seq() + 1;
        let mut written = Vec::new();
        for (index, operation) in commit
            .operations
            .iter()
            .enumerate()
            .filter(|(i, _)| !elided.contains(i))
        {
            written.push(Revision {
                instance: targets[index].clone().ok_or(Verdict::NoIdentity)?,
                seq,
                change: stored_change(index, operation, &appends, seq),
            });
        }
        let asked = written.len();
        if who.derived {
            written.extend(self.watermarks(branch, &written, seq)?);
        }
        let added = written.len() - asked;
        // A patch that cannot be applied matters only if the final state depends on it.
        for revision in &written {
            self.after(branch, &revision.instance, &written)
                .map_err(|()| Verdict::BadPatch)?;
        }
        let local_seq = commit.local_seq.0;
        Ok((
            Commit {
                seq,
                branch: branch.to_owned(),
                who: who.clone(),
                local_seq,
                original,
                elided,
                added,
            },
            written,
        ))
    }

    fn preconditions(&self, who: &Submitter, commit: &ClientCommit) -> Result<(), Verdict> {
        let branch = commit.branch.as_str();
        let own = |id: &str, scope| Ok((id.to_owned(), who.owner(scope).ok_or(Verdict::NoIdentity)?));
        for precondition in &commit.preconditions {
            match precondition {
                Precondition::OriginCommitted { origin_local_seq } => {
                    if self.committed(who, origin_local_seq.0).is_none() {
                        return Err(Verdict::OriginNotCommitted(origin_local_seq.0));
                    }
                }
                Precondition::EntityAbsent { id, scope } => {
                    let target = own(id.as_str(), *scope)?;
                    let replaced = |r: &&Revision| !matches!(r.change, Change::Patch(_));
                    if self.on(branch, &target).any(|r| replaced(&r)) {
                        return Err(Verdict::ReceiptExists(id.to_string()));
                    }
                }
                Precondition::EntityValueHash {
                    id,
                    scope,
                    value_hash,
                } => {
                    let document = self.state(branch, &own(id.as_str(), *scope)?, u64::MAX).flatten();
                    let current = document.as_ref().and_then(|document| document.key("value"));
                    let claimed = value_hash.as_ref().map(|hash| &self.hashes[hash]);
                    if current != claimed {
                        return Err(Verdict::ValueHashChanged(id.to_string()));
                    }
                }
            }
        }
        Ok(())
    }

    /// ENG-360, 361: which operations write what is stored already.
    fn content_addressed(&self, commit: &ClientCommit) -> Result<Vec<usize>, Verdict> {
        let mut elided = Vec::new();
        let mut sets: Vec<(&str, Tree)> = Vec::new();
        for (index, operation) in commit.operations.iter().enumerate() {
            let Some((id, scope)) = operation
                .target()
                .filter(|(id, _)| id.as_str().starts_with("cid:"))
            else {
                continue;
            };
            let Operation::Set { value, .. } = operation else {
                return Err(Verdict::Refused("ContentAddressedOp"));
            };
            if scope != Scope::Space {
                return Err(Verdict::Refused("ContentAddressedScope"));
            }
            let value = Tree::of(value);
            if sets
                .iter()
                .any(|(other, content)| *other == id.as_str() && *content != value)
            {
                return Err(Verdict::Refused("ContentAddressedConflict"));
            }
            let instance = (id.to_string(), Owner::Everybody);
            match self.state(commit.branch.as_str(), &instance, u64::MAX).flatten() {
                Some(stored) if stored != value => return Err(Verdict::Refused("ContentAddressedChange")),
                Some(_) => elided.push(index),
                None => {}
            }
            sets.push((id.as_str(), value));
        }
        Ok(elided)
    }

    fn confirmed_reads(&self, who: &Submitter, commit: &ClientCommit) -> Result<(), Verdict> {
        for read in &commit.reads.confirmed {
            let branch = read.branch.as_ref().unwrap_or(&commit.branch).as_str();
            if !self.branches.iter().any(|known| known.name == branch) {
                return Err(Verdict::UnknownBranch);
            }
            let conflict = self.conflict(&Read {
                branch,
                instance: (
                    read.id.to_string(),
                    who.owner(read.scope).ok_or(Verdict::NoIdentity)?,
                ),
                path: strings(&read.path),
                shape: read.non_recursive,
                since: read.seq.0,
                own: Vec::new(),
            });
            if let Some(conflict) = conflict {
                return Err(Verdict::StaleConfirmed {
                    of: read.id.to_string(),
                    seq: read.seq.0,
                    conflict,
                });
            }
        }
        Ok(())
    }

    fn pending_reads(&self, who: &Submitter, commit: &ClientCommit) -> Result<(), Verdict> {
        for read in &commit.reads.pending {
            let mut layers = Vec::new();
            for layer in &read.local_seqs {
                match self.committed(who, layer.0) {
                    Some(accepted) => layers.push((layer.0, accepted.seq)),
                    None => return Err(Verdict::PendingDependency(layer.0)),
                }
            }
            let Some(&(via, via_seq)) = layers.iter().max() else {
                return Err(Verdict::Refused("PendingReadWithoutLayer"));
            };
            let (since, own) = match read.basis_seq {
                Some(basis) if basis.0 > self.server_seq() => {
                    return Err(Verdict::Refused("BasisAheadOfLog"));
                }
                Some(basis) => (basis.0, layers.iter().map(|(_, seq)| *seq).collect()),
                None => (via_seq, Vec::new()),
            };
            let conflict = self.conflict(&Read {
                branch: commit.branch.as_str(),
                instance: (
                    read.id.to_string(),
                    who.owner(read.scope).ok_or(Verdict::NoIdentity)?,
                ),
                path: strings(&read.path),
                shape: read.non_recursive,
                since,
                own,
            });
            if let Some(conflict) = conflict {
                return Err(Verdict::StalePending {
                    of: read.id.to_string(),
                    via,
                    conflict,
                });
            }
        }
        Ok(())
    }

    /// ENG-540, 541: a revision for each stream whose watermark is not where its entries say.
    fn watermarks(&self, branch: &str, written: &[Revision], seq: u64) -> Result<Vec<Revision>, Verdict> {
        let mut moved: Vec<Revision> = Vec::new();
        for revision in written {
            let instance = &revision.instance;
            if !stream::is_sidecar(&instance.0) || moved.iter().any(|other| other.instance == *instance) {
                continue;
            }
            let document = self
                .after(branch, instance, written)
                .map_err(|()| Verdict::BadPatch)?;
            let Some(to) = document.as_ref().and_then(stream::watermark_to_store) else {
                continue;
            };
            let path = ["value", "eventWatermark"].map(String::from).to_vec();
            let patch = Patch {
                path,
                edit: Edit::Replace(Tree::Number(to)),
            };
            moved.push(Revision {
                instance: instance.clone(),
                seq,
                change: Change::Patch(vec![patch]),
            });
        }
        Ok(moved)
    }

    fn committed(&self, who: &Submitter, local_seq: u64) -> Option<&Commit> {
        self.commits
            .iter()
            .find(|commit| commit.who == *who && commit.local_seq == local_seq)
    }

    pub(crate) fn on(&self, branch: &str, instance: &Instance) -> impl Iterator<Item = &Revision> {
        let found = self
            .revisions
            .get(branch)
            .and_then(|on_branch| on_branch.get(instance));
        found.into_iter().flatten()
    }

    /// Every seq at which an instance was written on any branch.
    pub(crate) fn written_at(&self, instance: &Instance) -> Vec<u64> {
        let on_branch = |branch: &Branch| {
            self.on(&branch.name, instance)
                .map(|revision| revision.seq)
                .collect::<Vec<_>>()
        };
        self.branches.iter().flat_map(on_branch).collect()
    }

    /// The newest `set` or `delete` after `since`, else the newest overlapping patch.
    fn conflict(&self, read: &Read<'_>) -> Option<u64> {
        let all: Vec<&Revision> = self.on(read.branch, &read.instance).collect();
        let counts = |r: &Revision| r.seq > read.since && !read.own.contains(&r.seq);
        let replaced = all
            .iter()
            .filter(|r| counts(r) && !matches!(r.change, Change::Patch(_)));
        let overlapping = all.iter().enumerate().filter(|(at, r)| match &r.change {
            Change::Patch(patches) if counts(r) => patches.iter().any(|patch| {
                overlaps(patch, &read.path, read.shape)
                    || (read.shape && creates_below(&all[..*at], patch, &read.path))
            }),
            _ => false,
        });
        let newest_replaced = replaced.map(|revision| revision.seq).max();
        newest_replaced.or_else(|| overlapping.map(|(_, revision)| revision.seq).max())
    }

    /// `None`: never written; `Some(None)`: deleted.
    pub(crate) fn state(&self, branch: &str, instance: &Instance, at: u64) -> Option<Option<Tree>> {
        let here: Vec<&Revision> = self
            .on(branch, instance)
            .filter(|revision| revision.seq <= at)
            .collect();
        if !here.is_empty() {
            return Some(fold(&here).expect("an accepted history can be replayed"));
        }
        let branch = self.branches.iter().find(|known| known.name == branch)?;
        let (parent, fork) = branch.parent.as_ref()?;
        self.state(parent, instance, at.min(*fork))
    }

    /// The state once `written` is stored too.
    fn after(&self, branch: &str, instance: &Instance, written: &[Revision]) -> Result<Option<Tree>, ()> {
        let new = written.iter().filter(|revision| revision.instance == *instance);
        fold(&self.on(branch, instance).chain(new).collect::<Vec<_>>())
    }
}

/// The instance each operation writes; `None` when the submitter has none. Refuses misaddressed ones (ENG-420).
fn targets(submission: &Submission) -> Result<Vec<Option<Instance>>, Verdict> {
    let Submission {
        who,
        commit,
        addresses,
    } = submission;
    let mut targets = Vec::new();
    for (index, operation) in commit.operations.iter().enumerate() {
        let (id, scope) = operation.target().expect("schedules hold no SQL");
        let named = addresses
            .iter()
            .find(|(op, _)| *op == index)
            .map(|(_, owner)| owner.clone());
        let owner = match (who.derived, scope, named) {
            (false, ..) => who.owner(scope),
            (true, Scope::Space, None) => Some(Owner::Everybody),
            (true, Scope::Space, Some(_)) => return Err(Verdict::Refused("AnnotationOnSpaceWrite")),
            (true, _, None) => return Err(Verdict::Refused("AnnotationMissing")),
            (true, Scope::User, Some(owner @ Owner::User(_))) => Some(owner),
            (true, Scope::Session, Some(owner @ Owner::Session(..))) => Some(owner),
            (true, ..) => return Err(Verdict::Refused("AnnotationScopeMismatch")),
        };
        targets.push(owner.map(|owner| (id.to_string(), owner)));
    }
    Ok(targets)
}

fn stored_change(index: usize, operation: &Operation, appends: &Appends, seq: u64) -> Change {
    match operation {
        Operation::Set { value, .. } => Change::Set(appends.stamped_document(index, Tree::of(value), seq)),
        Operation::Patch { patches, .. } => {
            let patches = patches.iter().map(Patch::of).collect();
            Change::Patch(appends.stamped_patches(index, patches, seq))
        }
        Operation::Delete { .. } | Operation::Sqlite { .. } => Change::Delete,
    }
}

/// Replays revisions over nothing.
pub(crate) fn fold(revisions: &[&Revision]) -> Result<Option<Tree>, ()> {
    // What a later `set` or `delete` replaces is never computed.
    let base = revisions
        .iter()
        .rposition(|revision| !matches!(revision.change, Change::Patch(_)));
    let mut state = None;
    for revision in &revisions[base.unwrap_or(0)..] {
        state = match &revision.change {
            Change::Set(document) => Some(document.clone()),
            Change::Delete => None,
            Change::Patch(patches) => {
                Some(apply_all(state.unwrap_or_else(Tree::empty), patches).map_err(|_| ())?)
            }
        };
    }
    Ok(state)
}
