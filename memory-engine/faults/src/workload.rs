//! A mixed workload: documents of all sizes, patches, tombstones, scopes, event appends, waves with basis and outbox rows,
//! branches, lease turns and emptied logs, from several sessions, in groups. Everything about it follows from its seed.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use memory_engine::basis::{ActionInstance, BasisInstance, BasisRead};
use memory_engine::lease::{Clocks, LEASE_TTL_MS};
use memory_engine::outbox::{OutboxAppend, PlainJson};
use memory_engine::{
    Applied, ApplyCommit, Engine, EngineError, EngineHandle, EngineOptions, Holder, LeaseHolder, WaveCommit,
};
use memory_wire::ids::{BranchName, Did, LocalSeq, SessionId};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::{ScopeKey, session_key};
use memory_wire::value;
use memory_wire::value::Value;
use parking_lot::Mutex;

use crate::audit::Acknowledged;

const SPACE: &str = "did:key:zSpace";
const PRINCIPAL: &str = "did:key:zA";
const NOW_MS: i64 = 1_800_000_000_000;
/// The stream of `of:poll` at `votes`.
const SIDECAR: &str = "of:stream-events:XaB0Z6BDVU1dU0Gmf4QGtLWAIHiB01lxtGScGnoHOys";

/// The options a workload's store is opened with: waves and events need the serving flag.
pub fn options() -> EngineOptions {
    EngineOptions {
        serving: true,
        ..EngineOptions::default()
    }
}

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03 | 1)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % bound
    }
}

/// The session that a commit of the workload is filed under.
pub fn key(session: &str) -> String {
    session_key(Some(&Did::from(PRINCIPAL)), &SessionId::from(session))
}

/// All commits of a session, which follow from its name.
pub fn of_session(session: &str) -> impl Iterator<Item = ClientCommit> + '_ {
    let seed = session
        .bytes()
        .fold(7_u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut dice = Dice::new(seed);
    (1..).map(move |local_seq| authored(&mut dice, session, local_seq))
}

/// An authored commit that writes several rows.
pub fn authored(dice: &mut Dice, session: &str, local_seq: u64) -> ClientCommit {
    let mut operations = Vec::new();
    for n in 0..1 + dice.below(4) {
        let id = format!("of:d{}", dice.below(12));
        operations.push(match dice.below(10) {
            0..=2 => value!({ "op": "set", "id": id, "value": { "value": { "of": session, "n": (local_seq), "i": (n) } } }),
            3..=5 => value!({ "op": "patch", "id": (format!("of:count{}", dice.below(3))), "patches": [
                { "op": "increment", "path": "/value/n", "by": 1, "createsKey": true },
                { "op": "append", "path": "/value/by", "values": [session], "createsKey": true }
            ] }),
            // Beyond a page.
            6 => {
                let long = "long ".repeat(1_000 + dice.below(9_000) as usize);
                value!({ "op": "set", "id": (format!("of:long{}", dice.below(2))), "value": { "value": long } })
            }
            7 => value!({ "op": "delete", "id": id }),
            8 => value!({ "op": "set", "id": id, "scope": "user", "value": { "value": (local_seq) } }),
            _ => value!({ "op": "set", "id": id, "scope": "session", "value": { "value": (local_seq) } }),
        });
    }
    let operations = Value::from(operations);
    whole(
        value!({ "localSeq": (local_seq), "operations": operations, "reads": { "confirmed": [], "pending": [] } }),
    )
}

/// A commit that appends an event to a stream.
fn event(session: &str, local_seq: u64, first: bool) -> ClientCommit {
    let id = format!("{session}-{local_seq}");
    let entry = value!({ "eventId": (id.as_str()), "stream": { "id": "of:poll", "path": ["votes"] } });
    let operation = match first {
        true => value!({ "op": "set", "id": SIDECAR, "value": { "value": { "entries": [entry] } } }),
        false => value!({ "op": "patch", "id": SIDECAR, "patches": [
            { "op": "append", "path": "/value/entries", "values": [entry] }
        ] }),
    };
    whole(value!({
        "localSeq": (local_seq),
        "operations": [operation, { "op": "set", "id": "of:last-event", "value": { "value": (id.as_str()) } }],
        "reads": { "confirmed": [], "pending": [] },
        "eventAppends": [{ "id": SIDECAR, "eventId": (id.as_str()) }]
    }))
}

fn whole(commit: Value) -> ClientCommit {
    ClientCommit::from_value(&commit).expect("the workload's commits are well formed")
}

/// Applies an authored commit.
///
/// # Errors
/// The engine's.
pub fn apply(engine: &mut Engine, session: &str, commit: &ClientCommit) -> Result<Applied, EngineError> {
    engine.apply_commit(ApplyCommit::authored(
        &session.into(),
        Some(&PRINCIPAL.into()),
        commit,
        NOW_MS,
    ))
}

/// A wave over documents of its own, with a basis row and an outbox row.
fn wave(engine: &mut Engine, lease: &LeaseHolder, local_seq: u64) -> Result<Applied, EngineError> {
    let basis = engine.server_seq()?;
    let commit = whole(value!({
        "localSeq": (local_seq),
        "operations": [
            { "op": "patch", "id": "of:derived", "patches": [
                { "op": "increment", "path": "/value", "by": 1, "createsKey": true }
            ] },
            { "op": "set", "id": (format!("of:derived{local_seq}")), "value": { "value": (local_seq) } }
        ],
        "reads": { "confirmed": [], "pending": [] }
    }));
    let mut wave = WaveCommit::new(lease, commit, basis);
    wave.derived_through = Some(basis);
    wave.basis_instances = vec![BasisInstance {
        instance: ActionInstance {
            action: format!("action{}", local_seq % 3).into(),
            action_scope_key: ScopeKey::space(),
        },
        rows: vec![BasisRead {
            entity_space: SPACE.into(),
            entity: "of:derived".into(),
            entity_scope_key: ScopeKey::space(),
            seq: None,
        }],
    }];
    wave.outbox = vec![OutboxAppend {
        target_space: "did:key:zOther".into(),
        target_stream: "of:stream-events:x".into(),
        target_stream_link: None,
        event_id: format!("out{local_seq}").into(),
        payload: PlainJson::null(),
        acting_principal: None,
        acting_session: None,
        sessionless_space_scope: true,
        capability_ref: "stream-append:x".into(),
        source_event: None,
    }];
    engine.apply_wave(&wave, NOW_MS, None)
}

/// Work between transactions.
type Turn = Box<dyn FnOnce(&mut Engine) -> Result<(), EngineError> + Send>;

/// One step: who does what.
enum Step {
    Authored(&'static str, ClientCommit),
    Wave(u64),
    /// A turn between transactions.
    Fork(u64),
    Checkpoint,
}

/// The workload of a seed.
pub struct Workload {
    steps: Vec<Step>,
    lease: Arc<Mutex<LeaseHolder>>,
}

/// What came of a step, to be waited for.
pub struct Outcome {
    answered: Receiver<Result<Option<Acknowledged>, EngineError>>,
    handle: EngineHandle,
}

impl Outcome {
    fn ready(handle: &EngineHandle, answer: Result<Option<Acknowledged>, EngineError>) -> Outcome {
        let (told, answered) = std::sync::mpsc::channel();
        told.send(answer).expect("the receiver is below");
        Outcome {
            answered,
            handle: handle.clone(),
        }
    }

    /// The acknowledgement, if the step was a commit.
    ///
    /// # Errors
    /// Why the step failed.
    pub fn wait(self) -> Result<Option<Acknowledged>, EngineError> {
        match self.answered.recv() {
            Ok(answer) => answer,
            Err(_) => Err(self.handle.open_failure().unwrap_or(EngineError::Closed)),
        }
    }
}

impl Workload {
    /// `length` steps.
    pub fn new(seed: u64, length: usize) -> Workload {
        let mut dice = Dice::new(seed);
        let sessions = ["s1", "s2", "s3"];
        let mut next = [0; 3];
        let (mut waves, mut events, mut forks) = (0, 0, 0);
        let steps = (0..length).map(|_| {
            let who = dice.below(3) as usize;
            match dice.below(12) {
                0 => {
                    waves += 1;
                    Step::Wave(waves)
                }
                1 => {
                    forks += 1;
                    Step::Fork(forks)
                }
                2 => Step::Checkpoint,
                3 => {
                    next[who] += 1;
                    events += 1;
                    Step::Authored(sessions[who], event(sessions[who], next[who], events == 1))
                }
                _ => {
                    next[who] += 1;
                    Step::Authored(sessions[who], authored(&mut dice, sessions[who], next[who]))
                }
            }
        });
        Workload {
            steps: steps.collect(),
            lease: Arc::new(Mutex::new(LeaseHolder::new(
                SPACE.into(),
                Holder::from("did:key:zSvc#p1"),
                LEASE_TTL_MS,
            ))),
        }
    }

    /// How many steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Hands step `n` to the writer. `acknowledged` is told on the writer's thread, once the commit is durable. A step that
    /// failed may be submitted again.
    pub fn submit(
        &self,
        handle: &EngineHandle,
        n: usize,
        acknowledged: impl FnOnce(Acknowledged) + Send + 'static,
    ) -> Outcome {
        let (answer, answered) = std::sync::mpsc::channel();
        let turned = answer.clone();
        // Whoever does not wait any more does not mind that nobody hears the answer.
        let publish =
            move |_: &mut Engine, result: Result<Result<Acknowledged, EngineError>, EngineError>| {
                let result = result.and_then(|result| result);
                if let Ok(told) = &result {
                    acknowledged(told.clone());
                }
                let _ = answer.send(result.map(Some));
            };
        let turn = |work: Turn| {
            let told = turned.clone();
            let turn = handle.turn(move |engine| {
                let _ = told.send(work(engine).map(|()| None));
            });
            if let Err(error) = turn.wait() {
                let _ = turned.send(Err(error));
            }
        };
        match &self.steps[n] {
            Step::Authored(session, commit) => {
                let (session, commit) = (*session, commit.clone());
                let local_seq = commit.local_seq.0;
                handle.write_then(
                    move |engine| {
                        apply(engine, session, &commit).map(|applied| told(key(session), local_seq, &applied))
                    },
                    publish,
                );
            }
            Step::Wave(local_seq) => {
                let (lease, local_seq) = (self.lease.clone(), *local_seq);
                // In a transaction of its own: a lease taken in a group that is lost would be believed and not held.
                if let Err(error) = take(handle, &lease) {
                    return Outcome::ready(handle, Err(error));
                }
                handle.write_then(
                    move |engine| {
                        let lease = lease.lock();
                        let applied = wave(engine, &lease, local_seq)?;
                        Ok(told(lease.holder().session_id().to_string(), local_seq, &applied))
                    },
                    publish,
                );
            }
            Step::Fork(number) => {
                let name = BranchName::from(format!("b{number}").as_str());
                turn(Box::new(move |engine| {
                    // The first half may have been done by an earlier attempt.
                    if engine.branch(&name).is_err() {
                        engine.create_branch(&name, &"".into(), None)?;
                    }
                    engine.delete_branch(&name).map(drop)
                }));
            }
            Step::Checkpoint => turn(Box::new(|engine| engine.checkpoint(Duration::ZERO).map(drop))),
        }
        Outcome {
            answered,
            handle: handle.clone(),
        }
    }
}

fn take(handle: &EngineHandle, lease: &Arc<Mutex<LeaseHolder>>) -> Result<(), EngineError> {
    let lease = lease.clone();
    let taken = handle.turn(move |engine| {
        let clocks = Clocks {
            wall_ms: NOW_MS,
            monotonic_ms: 0,
        };
        lease.lock().acquire(engine, clocks)
    });
    assert!(taken.wait()??, "nobody else holds the lease");
    Ok(())
}

fn told(session: String, local_seq: u64, applied: &Applied) -> Acknowledged {
    Acknowledged {
        session,
        local_seq: LocalSeq(local_seq).0,
        seq: applied.seq.0,
    }
}
