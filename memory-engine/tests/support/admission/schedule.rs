//! Random schedules: sessions that build commits on what they last saw, in bursts whose later commits read through the
//! earlier ones; a serving loop that processes streams; branches, replays, and claims that no honest client makes. A
//! schedule is a pure function of its seed and of the model's answers.

use std::collections::BTreeSet;

use memory_wire::ids::{EntityId, EventId, LocalSeq, Seq};
use memory_wire::message::{
    ClientCommit, CommitParts, ConfirmedRead, EventAppendDecl, Operation, PendingRead, Precondition,
};
use memory_wire::patch::PatchOp;
use memory_wire::pointer::DocPath;
use memory_wire::value::Value;
use memory_wire::{Scope, hash, value, well_known};

use super::content::{Entropy, fitting_patch, leaf, patch, path, value_of};
use super::model::{Instance, Model, Owner, Submission, Submitter, Verdict};
use super::tree::Tree;

/// A stream that events are fired at.
pub(crate) struct Stream {
    pub(crate) id: &'static str,
    pub(crate) path: [&'static str; 1],
}

pub(crate) const STREAMS: [Stream; 2] = [
    Stream {
        id: "of:x",
        path: ["clicks"],
    },
    Stream {
        id: "of:y",
        path: ["keys"],
    },
];

impl Stream {
    pub(crate) fn sidecar(&self) -> &'static str {
        static IDS: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
            let sidecar = |stream: &Stream| {
                well_known::stream_sidecar_id(&stream.id.into(), &stream.path, Scope::Space)
            };
            STREAMS.iter().map(|stream| sidecar(stream).to_string()).collect()
        });
        let at = STREAMS.iter().position(|stream| stream.id == self.id);
        &IDS[at.expect("streams differ by id")]
    }
}

pub(crate) const HOLDER: &str = "did:key:zService#1";
const IDS: [&str; 3] = ["of:x", "of:y", "of:z"];
const CONTENT: &str = "cid:fid1:content";
const FORKS: [&str; 2] = ["f", "g"];
const EVENTS: [&str; 5] = ["e1", "e2", "e3", "e4", "e5"];

pub(crate) fn submitters() -> Vec<Submitter> {
    let person = |session: &str, principal: Option<&str>| Submitter {
        session: session.into(),
        principal: principal.map(Into::into),
        derived: false,
    };
    vec![
        person("s1", Some("did:key:zA")),
        person("s2", Some("did:key:zA")),
        person("s1", Some("did:key:zB")),
        person("anon", None),
        Submitter {
            session: HOLDER.into(),
            principal: None,
            derived: true,
        },
    ]
}

/// Every instance a schedule can write.
pub(crate) fn instances() -> Vec<Instance> {
    let mut found = BTreeSet::new();
    for id in IDS
        .into_iter()
        .chain(STREAMS.iter().map(Stream::sidecar))
        .chain([CONTENT])
    {
        for who in submitters() {
            for scope in [Scope::Space, Scope::User, Scope::Session] {
                found.extend(who.owner(scope).map(|owner| (id.to_owned(), owner)));
            }
        }
    }
    found.into_iter().collect()
}

/// One thing that happens.
pub(crate) enum Action {
    Commit(Box<Submission>),
    Fork {
        name: &'static str,
        parent: &'static str,
        at: u64,
    },
    Close {
        name: &'static str,
    },
}

/// What a submitter knows of the store and has sent since.
#[derive(Default)]
struct Client {
    next: u64,
    /// Numbers it has passed over.
    skipped: Vec<u64>,
    /// The highest seq it has seen; what it reads, it reads as of this.
    seen: u64,
    /// Its commits since, with what each wrote. Some were refused, which it does not know yet.
    in_flight: Vec<(u64, Vec<(EntityId, Scope)>)>,
}

pub(crate) struct Schedule {
    entropy: Entropy,
    submitters: Vec<Submitter>,
    clients: Vec<Client>,
    sent: Vec<Submission>,
}

impl Schedule {
    pub(crate) fn of(seed: u64) -> Schedule {
        let submitters = submitters();
        let clients = submitters
            .iter()
            .map(|_| Client {
                next: 1,
                ..Client::default()
            })
            .collect();
        Schedule {
            entropy: Entropy::of(seed),
            submitters,
            clients,
            sent: Vec::new(),
        }
    }

    pub(crate) fn entropy(&mut self) -> &mut Entropy {
        &mut self.entropy
    }

    pub(crate) fn action(&mut self, model: &mut Model) -> Action {
        let entropy = &mut self.entropy;
        match entropy.below(64) {
            0 => {
                let name = entropy.pick(&FORKS);
                let others = model.branches.iter().filter(|branch| branch.name != name);
                let parents: Vec<(&str, u64)> = others
                    .map(|branch| {
                        (
                            FORKS.into_iter().find(|f| *f == branch.name).unwrap_or(""),
                            branch.head,
                        )
                    })
                    .collect();
                let (parent, head) = entropy.pick(&parents);
                Action::Fork {
                    name,
                    parent,
                    at: entropy.below(head + 1),
                }
            }
            1 if entropy.one_in(4) => Action::Close {
                name: entropy.pick(&FORKS),
            },
            2..=5 if !self.sent.is_empty() => {
                let again = entropy.pick(&self.sent);
                let other = entropy
                    .one_in(3)
                    .then(|| self.submitters.iter().position(|who| *who == again.who))
                    .flatten();
                Action::Commit(Box::new(match other {
                    // The same localSeq with another payload.
                    Some(who) => self.submission(who, again.commit.local_seq.0, model),
                    None => again,
                }))
            }
            _ => {
                let who = self.entropy.below(self.submitters.len() as u64) as usize;
                let local_seq = self.next_local_seq(who);
                let submission = self.submission(who, local_seq, model);
                self.sent.push(submission.clone());
                Action::Commit(Box::new(submission))
            }
        }
    }

    /// The next localSeq of a client; now and then one is skipped and used later.
    fn next_local_seq(&mut self, who: usize) -> u64 {
        let (entropy, client) = (&mut self.entropy, &mut self.clients[who]);
        if !client.skipped.is_empty() && entropy.one_in(2) {
            return client.skipped.remove(0);
        }
        if entropy.one_in(6) {
            client.skipped.push(client.next);
            client.next += 1;
        }
        client.next += 1;
        client.next - 1
    }

    /// Tells a client what became of its commit.
    pub(crate) fn learn(&mut self, submission: &Submission, verdict: &Verdict, model: &Model) {
        let Some(who) = self.submitters.iter().position(|who| *who == submission.who) else {
            return;
        };
        let client = &mut self.clients[who];
        let Verdict::Accepted { replayed: false, .. } = verdict else {
            // It hears of a refusal soon, and starts again from what is there.
            if self.entropy.one_in(2) {
                client.in_flight.clear();
                client.seen = model.server_seq();
            }
            return;
        };
        let written = submission.commit.operations.iter().filter_map(Operation::target);
        let written = written.map(|(id, scope)| (id.clone(), scope)).collect();
        client.in_flight.push((submission.commit.local_seq.0, written));
        if client.in_flight.len() > 4 || self.entropy.one_in(3) {
            client.in_flight.clear();
            client.seen = model.server_seq();
        }
    }

    fn submission(&mut self, at: usize, local_seq: u64, model: &mut Model) -> Submission {
        let who = self.submitters[at].clone();
        let mut parts = CommitParts::default();
        if self.entropy.one_in(5) {
            let names: Vec<&str> = model.branches.iter().map(|branch| branch.name.as_str()).collect();
            let any = self.entropy.one_in(24);
            parts.branch = self
                .entropy
                .pick(if any { &["f", "g", "nope"] } else { &names })
                .into();
        }
        let operations =
            self.entropy.pick(&[1, 1, 1, 1, 1, 1, 1, 2, 2, 3]) - usize::from(self.entropy.one_in(24));
        let mut addresses = Vec::new();
        for index in 0..operations {
            let operation = match self.entropy.below(12) {
                0 | 1 => self.append(&who, &mut parts),
                2 | 3 if who.derived => self.processing(&parts, model),
                4 if self.entropy.one_in(2) => content(&mut self.entropy),
                _ => self.write(&who, parts.branch.as_str(), model),
            };
            let scope = operation.target().map_or(Scope::Space, |(_, scope)| scope);
            let person = &self.submitters[self.entropy.below(3) as usize];
            let wrong = self
                .entropy
                .one_in(24)
                .then(|| self.entropy.pick(&[Scope::Space, Scope::User, Scope::Session]));
            if who.derived
                && (scope != Scope::Space || wrong == Some(Scope::User))
                && wrong != Some(Scope::Space)
            {
                addresses.extend(person.owner(wrong.unwrap_or(scope)).map(|owner| (index, owner)));
            }
            parts.operations.push(operation);
        }
        for _ in 0..self.entropy.below(3) {
            self.read(at, local_seq, &mut parts, model);
        }
        if self.entropy.one_in(6) {
            let precondition = self.precondition(&who, local_seq, &parts, model);
            parts.preconditions.push(precondition);
        }
        Submission {
            who,
            commit: ClientCommit::build(LocalSeq(local_seq), parts),
            addresses,
        }
    }

    /// A read of what the client sees: its own writes in flight through their layers, everything else as confirmed; or any
    /// claim at all.
    fn read(&mut self, at: usize, local_seq: u64, parts: &mut CommitParts, model: &Model) {
        let (entropy, client) = (&mut self.entropy, &self.clients[at]);
        let id: EntityId = match entropy.below(8) {
            0 => entropy.pick(&STREAMS.each_ref().map(Stream::sidecar)).into(),
            _ => entropy.pick(&IDS).into(),
        };
        let (scope, path) = (scope(entropy, &self.submitters[at]), path(entropy, 0));
        let non_recursive = entropy.one_in(3);
        let wrote = |(_, written): &&(u64, Vec<(EntityId, Scope)>)| written.contains(&(id.clone(), scope));
        let mut layers: Vec<LocalSeq> = client
            .in_flight
            .iter()
            .filter(wrote)
            .map(|(l, _)| LocalSeq(*l))
            .collect();
        let mut basis = client.seen;
        let honest = entropy.below(4) != 0;
        if !honest {
            basis = match entropy.below(8) {
                0 => 0,
                1 => model.server_seq() + 1,
                n => model.server_seq().saturating_sub(n - 2),
            };
            if entropy.one_in(2) {
                layers.pop();
            }
            if entropy.one_in(3) {
                layers.push(LocalSeq(1 + entropy.below(local_seq)));
            }
        }
        if layers.is_empty() {
            let other = entropy
                .one_in(10)
                .then(|| entropy.pick(&["", "f", "g", "nope"]).into());
            let read = ConfirmedRead {
                id,
                scope,
                branch: other,
                path,
                seq: Seq(basis),
                non_recursive,
            };
            parts.reads.confirmed.push(read);
        } else {
            let basis_seq = (honest || !entropy.one_in(3)).then_some(Seq(basis));
            parts.reads.pending.push(PendingRead {
                id,
                scope,
                path,
                local_seqs: layers,
                basis_seq,
                non_recursive,
            });
        }
    }

    fn precondition(
        &mut self,
        who: &Submitter,
        local_seq: u64,
        parts: &CommitParts,
        model: &mut Model,
    ) -> Precondition {
        let entropy = &mut self.entropy;
        let (id, scope) = (entropy.pick(&IDS), scope(entropy, who));
        match entropy.below(3) {
            0 => Precondition::OriginCommitted {
                origin_local_seq: LocalSeq(1 + entropy.below(local_seq)),
            },
            1 => Precondition::EntityAbsent { id: id.into(), scope },
            _ => {
                let document = model
                    .state(parts.branch.as_str(), &(id.into(), Owner::Everybody), u64::MAX)
                    .flatten();
                let mut tree = document.and_then(|document| document.key("value").cloned());
                if entropy.one_in(4) {
                    tree = Some(Tree::Number(7.0));
                }
                let value_hash = tree.map(|tree| {
                    let hash =
                        hash::precondition_value_hash(&value_of(&tree)).expect("a plain value has a hash");
                    model.learn_hash(hash.clone(), tree);
                    hash
                });
                Precondition::EntityValueHash {
                    id: id.into(),
                    scope,
                    value_hash,
                }
            }
        }
    }

    /// A write of an ordinary document.
    fn write(&mut self, who: &Submitter, branch: &str, model: &Model) -> Operation {
        let entropy = &mut self.entropy;
        let id: EntityId = entropy.pick(&IDS).into();
        // The serving loop writes everybody's instances.
        let scope = if who.derived {
            entropy.pick(&[Scope::Space, Scope::User])
        } else {
            scope(entropy, who)
        };
        match entropy.below(8) {
            0 | 1 => {
                let leaf = leaf(entropy);
                let value = value!({ "value": { "a": leaf, "b": { "a": 0, "c": [] } } });
                Operation::Set { id, scope, value }
            }
            2 if entropy.one_in(2) => Operation::Delete { id, scope },
            _ => {
                let owner = who.owner(scope).unwrap_or(Owner::Everybody);
                let known = model.state(branch, &(id.to_string(), owner), u64::MAX).flatten();
                let patches = (0..entropy.pick(&[0, 1, 1, 1, 2, 2])).map(|_| match &known {
                    Some(document) if !entropy.one_in(4) => fitting_patch(entropy, document),
                    _ => patch(entropy),
                });
                Operation::Patch {
                    id,
                    scope,
                    patches: patches.collect(),
                }
            }
        }
    }

    /// An operation that appends events, more or less as it should.
    fn append(&mut self, who: &Submitter, parts: &mut CommitParts) -> Operation {
        let entropy = &mut self.entropy;
        let stream = &STREAMS[entropy.below(2) as usize];
        let id: EntityId = stream.sidecar().into();
        let mut entries = Vec::new();
        for _ in 0..1 + entropy.below(2) {
            let (entry, event) = entry(entropy, stream, who);
            let declared = if entropy.one_in(24) {
                0
            } else {
                1 + u64::from(entropy.one_in(32))
            };
            for _ in 0..declared {
                let declared_id = if entropy.one_in(40) {
                    "of:x".into()
                } else {
                    id.clone()
                };
                let event_id = EventId::from(event);
                parts.event_appends.push(EventAppendDecl {
                    id: declared_id,
                    scope: Scope::Space,
                    event_id,
                });
            }
            entries.push(entry);
        }
        let log: DocPath = vec!["value".into(), "entries".into()];
        let scope = Scope::Space;
        let patch = |patch| Operation::Patch {
            id: id.clone(),
            scope,
            patches: vec![patch],
        };
        match entropy.below(16) {
            0 => Operation::Set {
                id,
                scope,
                value: value!({ "value": { "entries": entries } }),
            },
            1 => Operation::Set {
                id,
                scope,
                value: value!({ "value": { "entries": entries, "eventWatermark": 3 } }),
            },
            2 => patch(PatchOp::add(log, Value::from(entries))),
            3 => patch(PatchOp::replace(log, Value::from(entries))),
            4 if entropy.one_in(2) => Operation::Delete { id, scope },
            5 if entropy.one_in(2) => patch(PatchOp::replace(log, Value::from(1))),
            6 if entropy.one_in(2) => patch(PatchOp::add(
                vec!["value".into(), "eventWatermark".into()],
                9.into(),
            )),
            7 | 8 => patch(PatchOp::add_unique(log, entries, true)),
            _ => patch(PatchOp::append(log, entries, entropy.one_in(2))),
        }
    }

    /// What a serving loop does to a stream: it marks an entry as done, or drops entries below the watermark.
    fn processing(&mut self, parts: &CommitParts, model: &Model) -> Operation {
        let entropy = &mut self.entropy;
        let sidecar = STREAMS[entropy.below(2) as usize].sidecar();
        let (id, scope): (EntityId, _) = (sidecar.into(), Scope::Space);
        let stored = model
            .state(
                parts.branch.as_str(),
                &(sidecar.into(), Owner::Everybody),
                u64::MAX,
            )
            .flatten();
        let entries = stored
            .as_ref()
            .and_then(|document| document.key("value")?.key("entries")?.list());
        let entries = entries.unwrap_or_default();
        if entropy.one_in(5) {
            let kept = entries
                .iter()
                .filter(|_| !entropy.one_in(3))
                .map(value_of)
                .collect::<Vec<_>>();
            let watermark = stored
                .as_ref()
                .and_then(|document| document.key("value")?.key("eventWatermark"));
            let mut value = value!({ "value": { "entries": kept } });
            if let (Value::Object(root), Some(watermark)) = (&mut value, watermark)
                && let Some(Value::Object(value)) = root.get_mut("value")
            {
                value.insert("eventWatermark", value_of(watermark));
            }
            return Operation::Set { id, scope, value };
        }
        let undone = entries
            .iter()
            .position(|entry| entry.key("consequenced").is_none());
        let at = match undone {
            Some(at) if !entropy.one_in(4) => at as u64,
            _ => entropy.below(entries.len() as u64 + 1),
        };
        let path = ["value", "entries", &at.to_string(), "consequenced"]
            .map(Into::into)
            .to_vec();
        Operation::Patch {
            id,
            scope,
            patches: vec![PatchOp::add(path, Value::Bool(true))],
        }
    }
}

/// A stream entry and the event it names; one in a few breaks a rule.
fn entry(entropy: &mut Entropy, stream: &Stream, who: &Submitter) -> (Value, &'static str) {
    let event = entropy.pick(&EVENTS);
    let link = value!({ "id": (stream.id), "path": [(stream.path[0])] });
    let mut entry = value!({ "eventId": event, "stream": link, "payload": (entropy.below(9) as f64) });
    let Value::Object(members) = &mut entry else {
        return (entry, event);
    };
    if who.derived && !entropy.one_in(8) {
        members.insert("firedAt", value!({ "session": "server" }));
    }
    match entropy.below(48) {
        0 => members.insert("eventId", ""),
        1 => members.insert("seq", entropy.below(6) as f64),
        2 => members.insert("consequenced", true),
        3 => members.insert("stream", value!({ "id": "of:x" })),
        4 => members.insert("stream", value!({ "id": "of:z", "path": ["clicks"] })),
        5 => members.insert("firedAt", value!({ "user": "did:key:zA", "clientSeq": 4 })),
        6 | 7 => members.insert(
            "firedAt",
            value!({ "session": (who.session.as_str()), "clientSeq": 5 }),
        ),
        8 => return (Value::from(3), event),
        _ => None,
    };
    (entry, event)
}

/// A write of a content-addressed document, mostly of what it is.
fn content(entropy: &mut Entropy) -> Operation {
    let id: EntityId = CONTENT.into();
    match entropy.below(8) {
        0 => Operation::Delete {
            id,
            scope: Scope::Space,
        },
        1 => Operation::Set {
            id,
            scope: Scope::User,
            value: value!({ "value": 1 }),
        },
        2 => Operation::Set {
            id,
            scope: Scope::Space,
            value: value!({ "value": 2 }),
        },
        _ => Operation::Set {
            id,
            scope: Scope::Space,
            value: value!({ "value": 1 }),
        },
    }
}

/// A scope, mostly one that the submitter has an instance of.
fn scope(entropy: &mut Entropy, who: &Submitter) -> Scope {
    if who.principal.is_none() && !entropy.one_in(12) {
        return Scope::Space;
    }
    entropy.pick(&[
        Scope::Space,
        Scope::Space,
        Scope::Space,
        Scope::User,
        Scope::Session,
    ])
}
