//! Random schedules of sessions: commits with reads of all shapes, stacked pending reads, conflicts, patches, scopes,
//! branches and replays. A schedule is made of raw bytes, so that a failing one shrinks.
#![allow(dead_code, unreachable_pub)]

use memory_wire::ids::{BranchName, EntityId, LocalSeq, Seq};
use memory_wire::message::{ClientCommit, CommitParts, ConfirmedRead, Operation, PendingRead, Precondition};
use memory_wire::patch::PatchOp;
use memory_wire::pointer::DocPath;
use memory_wire::scope_key::{InstanceId, Scope, ScopeKey};
use memory_wire::value::Value;
use memory_wire::{hash, value};

use super::model::{Model, Submitter};

/// Entropy of one action; reads past the end give zero.
pub struct Entropy<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Entropy<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Entropy { bytes, at: 0 }
    }

    pub fn below(&mut self, bound: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        if bound == 0 { 0 } else { usize::from(byte) % bound }
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// One thing that happens.
pub enum Action {
    Commit { who: Submitter, commit: ClientCommit },
    Fork { name: BranchName, at: Seq },
    Close { name: BranchName },
}

pub fn submitters() -> Vec<Submitter> {
    [
        ("s1", Some("did:key:zA")),
        ("s2", Some("did:key:zA")),
        ("s1", Some("did:key:zB")),
        ("anon", None),
    ]
    .into_iter()
    .map(|(session, principal)| Submitter {
        session: session.into(),
        principal: principal.map(Into::into),
    })
    .collect()
}

pub const IDS: [&str; 3] = ["of:x", "of:y", "of:z"];
pub const BRANCHES: [&str; 2] = ["", "f"];
const KEYS: [&str; 3] = ["a", "b", "c"];

/// What the generator remembers of each session, to build commits that mostly make sense.
#[derive(Default)]
pub struct Memory {
    next: Vec<u64>,
    sent: Vec<(usize, ClientCommit)>,
}

impl Memory {
    pub fn action(&mut self, entropy: &mut Entropy<'_>, model: &Model) -> Action {
        let submitters = submitters();
        self.next.resize(submitters.len(), 1);
        match entropy.below(32) {
            30 => {
                let at = Seq(entropy.below(model.branches[0].head as usize + 1) as u64);
                return Action::Fork {
                    name: BRANCHES[1].into(),
                    at,
                };
            }
            31 if entropy.one_in(4) => {
                return Action::Close {
                    name: BRANCHES[1].into(),
                };
            }
            28 | 29 if !self.sent.is_empty() => {
                let (who, mut commit) = self.sent[entropy.below(self.sent.len())].clone();
                if entropy.one_in(3) {
                    // The same localSeq with another payload.
                    commit = self.commit(entropy, model, &submitters[who], commit.local_seq.0);
                }
                return Action::Commit {
                    who: submitters[who].clone(),
                    commit,
                };
            }
            _ => {}
        }
        let who = entropy.below(submitters.len());
        let local_seq = self.next[who];
        self.next[who] += 1;
        let commit = self.commit(entropy, model, &submitters[who], local_seq);
        self.sent.push((who, commit.clone()));
        Action::Commit {
            who: submitters[who].clone(),
            commit,
        }
    }

    fn commit(
        &self,
        entropy: &mut Entropy<'_>,
        model: &Model,
        who: &Submitter,
        local_seq: u64,
    ) -> ClientCommit {
        let mut parts = CommitParts::default();
        if entropy.one_in(6) {
            parts.branch = entropy.pick(&["f", "f", "nope"]).into();
        }
        let operations = match entropy.below(8) {
            0 => 0,
            1..=5 => 1,
            n => n - 4,
        };
        for _ in 0..operations {
            parts.operations.push(operation(entropy));
        }
        for _ in 0..entropy.below(3) {
            parts.reads.confirmed.push(confirmed_read(entropy, model));
        }
        if entropy.one_in(3) {
            parts
                .reads
                .pending
                .push(pending_read(entropy, model, who, local_seq));
        }
        if entropy.one_in(6) {
            parts.preconditions.push(precondition(entropy, model, local_seq));
        }
        ClientCommit::build(LocalSeq(local_seq), parts)
    }
}

fn id(entropy: &mut Entropy<'_>) -> EntityId {
    entropy.pick(&IDS).into()
}

fn scope(entropy: &mut Entropy<'_>) -> Scope {
    entropy.pick(&[
        Scope::Space,
        Scope::Space,
        Scope::Space,
        Scope::User,
        Scope::Session,
    ])
}

/// A path below `value`, at most two keys deep.
fn path(entropy: &mut Entropy<'_>, shortest: usize) -> DocPath {
    let mut path: DocPath = vec!["value".into()];
    for _ in 0..shortest + entropy.below(3 - shortest) {
        path.push(entropy.pick(&KEYS).into());
    }
    path
}

fn leaf(entropy: &mut Entropy<'_>) -> Value {
    match entropy.below(4) {
        0 => value!({ "a": 1, "b": { "c": 2 } }),
        1 => value!([1, 2]),
        n => Value::from(n as i32),
    }
}

fn operation(entropy: &mut Entropy<'_>) -> Operation {
    let (id, scope) = (id(entropy), scope(entropy));
    match entropy.below(8) {
        0 | 1 => {
            let value = leaf(entropy);
            Operation::Set {
                id,
                scope,
                value: value!({ "value": { "a": value, "b": { "a": 0, "c": [] } } }),
            }
        }
        2 => Operation::Delete { id, scope },
        _ => {
            let patches = (0..1 + entropy.below(2)).map(|_| patch(entropy)).collect();
            Operation::Patch { id, scope, patches }
        }
    }
}

fn patch(entropy: &mut Entropy<'_>) -> PatchOp {
    let target = path(entropy, 1);
    match entropy.below(8) {
        0 | 1 => PatchOp::add(target, leaf(entropy)),
        2 => PatchOp::replace(target, leaf(entropy)),
        3 => PatchOp::remove(target),
        4 => PatchOp::append(target, vec![leaf(entropy)], entropy.one_in(2)),
        5 => PatchOp::add_unique(target, vec![1.into(), 3.into()], entropy.one_in(2)),
        6 => PatchOp::increment(target, 1.0, entropy.one_in(2)),
        _ => {
            let from = path(entropy, 1);
            let pointer = |path: &DocPath| memory_wire::pointer::encode_pointer(path);
            PatchOp::from_value(
                &value!({ "op": "move", "from": (pointer(&from)), "path": (pointer(&target)) }),
            )
            .unwrap()
        }
    }
}

/// A seq a client could claim: mostly recent, sometimes old, sometimes ahead.
fn seq(entropy: &mut Entropy<'_>, model: &Model) -> u64 {
    let highest = model.server_seq();
    match entropy.below(8) {
        0 => 0,
        1 => highest + 1,
        n => highest.saturating_sub(n as u64 - 2),
    }
}

fn confirmed_read(entropy: &mut Entropy<'_>, model: &Model) -> ConfirmedRead {
    ConfirmedRead {
        id: id(entropy),
        scope: scope(entropy),
        branch: entropy.one_in(8).then(|| entropy.pick(&["", "f", "nope"]).into()),
        path: path(entropy, 0),
        seq: Seq(seq(entropy, model)),
        non_recursive: entropy.one_in(3),
    }
}

/// Layers are mostly own accepted commits, sometimes refused, future or unknown ones.
fn pending_read(entropy: &mut Entropy<'_>, model: &Model, who: &Submitter, local_seq: u64) -> PendingRead {
    let own: Vec<u64> = model
        .commits
        .iter()
        .filter(|commit| commit.session == who.key())
        .map(|commit| commit.local_seq)
        .collect();
    let layer = |entropy: &mut Entropy<'_>| match own.is_empty() || entropy.one_in(8) {
        true => LocalSeq(1 + entropy.below(local_seq as usize + 1) as u64),
        false => LocalSeq(own[own.len() - 1 - entropy.below(own.len().min(4))]),
    };
    let local_seqs = (0..1 + entropy.below(3)).map(|_| layer(entropy)).collect();
    PendingRead {
        id: id(entropy),
        scope: scope(entropy),
        path: path(entropy, 0),
        local_seqs,
        basis_seq: (!entropy.one_in(3)).then(|| Seq(seq(entropy, model))),
        non_recursive: entropy.one_in(3),
    }
}

fn precondition(entropy: &mut Entropy<'_>, model: &Model, local_seq: u64) -> Precondition {
    let (id, scope) = (id(entropy), scope(entropy));
    match entropy.below(3) {
        0 => Precondition::OriginCommitted {
            origin_local_seq: LocalSeq(1 + entropy.below(local_seq as usize) as u64),
        },
        1 => Precondition::EntityAbsent { id, scope },
        _ => {
            let instance = InstanceId {
                id: id.clone(),
                scope_key: ScopeKey::space(),
            };
            let document = model.state("", &instance, u64::MAX).flatten();
            let value = document.as_ref().and_then(|document| document.member("value"));
            let value_hash = value.map(|value| hash::precondition_value_hash(value).unwrap());
            Precondition::EntityValueHash {
                id,
                scope,
                value_hash: value_hash.filter(|_| !entropy.one_in(4)),
            }
        }
    }
}

/// Every instance a schedule can write.
pub fn instances() -> Vec<InstanceId> {
    let mut instances = Vec::new();
    for id in IDS {
        instances.push(InstanceId::space(id));
        for who in submitters().iter().filter(|who| who.principal.is_some()) {
            for scope in [Scope::User, Scope::Session] {
                instances.push(InstanceId::new(
                    id,
                    ScopeKey::resolve(scope, &who.identity()).unwrap(),
                ));
            }
        }
    }
    instances.sort();
    instances.dedup();
    instances
}
