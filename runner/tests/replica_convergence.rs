//! Random histories between one client and a small honest server: whatever was accepted, refused, delayed or cut off,
//! the client ends up showing exactly what the server holds, with nothing pending (I-12, I-17, I-19).

mod wire_double;

use std::collections::BTreeMap;

use memory_wire::error::ErrorName;
use memory_wire::message::{ClientCommit, ClientMessage, Operation};
use memory_wire::patch::apply_patches;
use memory_wire::{LocalSeq, Scope, Value, value};
use proptest::prelude::*;
use runner::address::{Address, path};
use runner::error::CommitError;
use runner::promise::Promise;
use runner::transaction::{MergeableOp, ReadMeta, RunTx};
use wire_double::{Bench, SPACE, bench, upsert};

const DOCS: [&str; 3] = ["of:a", "of:b", "of:c"];

#[derive(Clone, Debug)]
enum Step {
    /// The client reads a document and writes one more.
    Bump(usize),
    /// The client reads one document and writes another.
    Copy(usize, usize),
    /// The client increments without depending on what it read.
    Increment(usize),
    /// Somebody else writes.
    Foreign(usize, i32),
    /// The server looks at what arrived.
    Judge,
    /// The server sends what is due.
    Push,
    /// The line breaks and comes back.
    Break,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let doc = 0..DOCS.len();
    let step = prop_oneof![
        4 => doc.clone().prop_map(Step::Bump),
        2 => (doc.clone(), doc.clone()).prop_map(|(a, b)| Step::Copy(a, b)),
        2 => doc.clone().prop_map(Step::Increment),
        3 => (doc, 0..100).prop_map(|(d, v)| Step::Foreign(d, v)),
        3 => Just(Step::Judge),
        3 => Just(Step::Push),
        1 => Just(Step::Break),
    ];
    prop::collection::vec(step, 1..60)
}

/// The server's side: documents with the seq of every write, verdicts by local number, and what is due.
#[derive(Default)]
struct Store {
    seq: u64,
    docs: BTreeMap<String, (Value, Vec<u64>)>,
    verdicts: BTreeMap<LocalSeq, Result<u64, String>>,
    /// What each write left, so that the client's confirmed state can be held against it.
    history: BTreeMap<(String, u64), Value>,
    sent: BTreeMap<String, u64>,
    marker: Option<u64>,
}

impl Store {
    fn write(&mut self, id: &str, document: Value) {
        let entry = self
            .docs
            .entry(id.to_owned())
            .or_insert_with(|| (Value::Undefined, Vec::new()));
        entry.0 = document.clone();
        entry.1.push(self.seq);
        self.history.insert((id.to_owned(), self.seq), document);
    }

    fn newest(&self, id: &str) -> u64 {
        self.docs
            .get(id)
            .and_then(|(_, seqs)| seqs.last().copied())
            .unwrap_or(0)
    }

    /// The conflict rules of WIRE-734 and WIRE-736, document by document.
    fn conflict(&self, commit: &ClientCommit) -> Option<String> {
        for read in &commit.reads.confirmed {
            let newest = self.newest(read.id.as_str());
            if newest > read.seq.0 {
                let (id, seq) = (&read.id, read.seq);
                return Some(format!(
                    "stale confirmed read: {id} at seq {seq} conflicted with seq {newest}"
                ));
            }
        }
        for read in &commit.reads.pending {
            let mut own = Vec::new();
            for layer in &read.local_seqs {
                match self.verdicts.get(layer) {
                    Some(Ok(seq)) => own.push(*seq),
                    Some(Err(_)) | None => return Some(format!("pending dependency not resolved: {layer}")),
                }
            }
            let basis = read.basis_seq.map_or(0, |seq| seq.0);
            let writes = self
                .docs
                .get(read.id.as_str())
                .map(|(_, seqs)| seqs.as_slice())
                .unwrap_or_default();
            if let Some(foreign) = writes.iter().find(|seq| **seq > basis && !own.contains(seq)) {
                let id = &read.id;
                return Some(format!(
                    "stale pending read: {id} via localSeq conflicted with seq {foreign}"
                ));
            }
        }
        None
    }

    fn commit(&mut self, commit: &ClientCommit) -> Result<u64, String> {
        if let Some(verdict) = self.verdicts.get(&commit.local_seq) {
            return verdict.clone();
        }
        let verdict = match self.conflict(commit) {
            Some(message) => Err(message),
            None => {
                self.seq += 1;
                for operation in &commit.operations {
                    let (id, _) = operation.target().expect("documents only");
                    let base = self
                        .docs
                        .get(id.as_str())
                        .map_or(value!({}), |(document, _)| document.clone());
                    let document = match operation {
                        Operation::Set { value, .. } => value.clone(),
                        Operation::Patch { patches, .. } => apply_patches(&base, patches).expect("applies"),
                        other => panic!("unexpected {other:?}"),
                    };
                    self.write(id.as_str(), document);
                }
                Ok(self.seq)
            }
        };
        self.marker = Some(self.marker.unwrap_or(0).max(commit.local_seq.0));
        self.verdicts.insert(commit.local_seq, verdict.clone());
        verdict
    }
}

struct World {
    bench: Bench,
    store: Store,
    outcomes: Vec<Promise<Result<(), CommitError>>>,
}

fn at(id: &str) -> Address {
    Address::document(SPACE.into(), id.into(), Scope::Space).at(path(["value"]))
}

impl World {
    fn new() -> World {
        let bench = bench();
        let mut store = Store::default();
        for id in DOCS {
            store.seq += 1;
            store.write(id, value!({ "value": 0 }));
            bench.load(id, store.seq, Some(value!(0)));
            store.sent.insert(id.to_owned(), store.seq);
        }
        World {
            bench,
            store,
            outcomes: Vec::new(),
        }
    }

    fn commit(&mut self, body: impl FnOnce(&RunTx)) {
        let tx = RunTx::open(&self.bench.storage);
        body(&tx);
        self.outcomes.push(tx.commit());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Bump(doc) => self.commit(|tx| {
                let n = tx
                    .read_value(&at(DOCS[*doc]))
                    .expect("readable")
                    .as_f64()
                    .expect("a number");
                tx.write(&at(DOCS[*doc]), Some(Value::Number(n + 1.0)))
                    .expect("taken");
            }),
            Step::Copy(from, to) => self.commit(|tx| {
                let value = tx.read_value(&at(DOCS[*from])).expect("readable");
                tx.write(&at(DOCS[*to]), Some(value)).expect("taken");
            }),
            Step::Increment(doc) => self.commit(|tx| {
                let address = at(DOCS[*doc]);
                let mechanics = ReadMeta {
                    mergeable_op: true,
                    ..ReadMeta::RECURSIVE
                };
                let n = tx
                    .read(&address, mechanics)
                    .expect("readable")
                    .or_undefined()
                    .as_f64()
                    .expect("a number");
                let write = || tx.write(&address, Some(Value::Number(n + 5.0)));
                tx.merging(&address, MergeableOp::Increment { by: 5.0 }, write)
                    .expect("taken");
            }),
            Step::Foreign(doc, to) => {
                self.store.seq += 1;
                self.store.write(DOCS[*doc], value!({ "value": (*to) }));
            }
            Step::Judge => self.judge(),
            Step::Push => self.push(),
            Step::Break => {
                self.bench.server.hang_up();
                self.bench.storage.pump();
                self.bench.server.forget_requests();
                self.bench.clock.advance(30_000);
                self.bench.settle();
            }
        }
    }

    fn judge(&mut self) {
        self.bench.settle();
        while self.bench.server.pending_requests() > 0 {
            let request = self.bench.server.take("");
            match &request.message {
                ClientMessage::Transact(transact) => {
                    let commit = ClientCommit::from_value(&transact.commit).expect("well-formed");
                    match self.store.commit(&commit) {
                        Ok(seq) => self.bench.server.accept(&request, seq),
                        Err(message) => self.bench.server.reject(&request, ErrorName::Conflict, &message),
                    }
                }
                ClientMessage::WatchSet(_) | ClientMessage::WatchAdd(_) => {
                    self.bench.server.answer_watch(&request, Vec::new());
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        self.bench.settle();
    }

    /// One frame: every document that moved since it was last sent, and the marker.
    fn push(&mut self) {
        self.bench.settle();
        let mut upserts = Vec::new();
        for (id, (document, seqs)) in &self.store.docs {
            let newest = seqs.last().copied().unwrap_or(0);
            if self.store.sent.get(id) != Some(&newest) {
                upserts.push(upsert(id, newest, document.member("value").cloned()));
            }
        }
        for sent in &upserts {
            self.store.sent.insert(sent.id.to_string(), sent.seq.0);
        }
        self.bench.server.push(upserts, self.store.marker);
        self.bench.settle();
    }

    /// Where nothing is pending, the client shows what the server held at exactly the seq it names (RUN-32: never a
    /// confirmed document over a mirror that lacks foreign writes).
    fn confirmed_is_true(&self) -> Result<(), TestCaseError> {
        let replica = self.bench.storage.replica(&self.bench.space());
        for id in DOCS {
            let view = replica.retirement_view(&replica.doc_key(&id.into(), Scope::Space, None));
            if view.layers.is_empty() {
                let held = self.store.history.get(&(id.to_owned(), view.confirmed_seq.0));
                let held = held
                    .and_then(|document| document.member("value"))
                    .and_then(Value::as_f64);
                prop_assert_eq!(self.shown(id), held, "{} at seq {}", id, view.confirmed_seq);
            }
        }
        Ok(())
    }

    fn shown(&self, id: &str) -> Option<f64> {
        let replica = self.bench.storage.replica(&self.bench.space());
        replica
            .get_document(&id.into(), Scope::Space, None)?
            .member("value")
            .and_then(Value::as_f64)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_client_converges_on_the_server_and_leaves_nothing_pending(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.bench.settle();
            world.confirmed_is_true()?;
        }
        // Frames lost with a line come again on resume: everything is due once more.
        world.store.sent.clear();
        for _ in 0..3 {
            world.judge();
            world.push();
        }
        for (n, outcome) in world.outcomes.iter().enumerate() {
            prop_assert!(outcome.is_settled(), "commit {n} was never settled");
        }
        let replica = world.bench.storage.replica(&world.bench.space());
        for id in DOCS {
            let held = world.store.docs[id].0.member("value").and_then(Value::as_f64);
            prop_assert_eq!(world.shown(id), held, "{}", id);
            let key = replica.doc_key(&id.into(), Scope::Space, None);
            let view = replica.retirement_view(&key);
            prop_assert!(view.layers.is_empty(), "{} keeps {:?}", id, view.layers);
            prop_assert_eq!(view.confirmed_seq.0, world.store.newest(id));
        }
        prop_assert_eq!(replica.unapplied_foreign_seq_floor(), None);
        prop_assert!(world.bench.storage.synced().is_settled());
    }
}
