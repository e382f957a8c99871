//! A serving runtime with a host made of the least that a host is: one wave at a time, a demand list, and a drain of
//! pending stream entries. It checks what a real host relies on: every sealed write is stamped and keyed.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::{LocalBoxFuture, ready};
use memory_wire::message::Operation;
use memory_wire::stream_entry::{SERVER_SESSION, StreamEntry};
use memory_wire::{EntityId, EventId, Scope, ScopeIdentity, ScopeKey, Seq, SpaceId, Value};
use runner::address::{Address, path};
use runner::ambient::{Clock, ManualClock};
use runner::error::{CommitError, RunnerError};
use runner::link::Link;
use runner::pattern::Pattern;
use runner::promise::Promise;
use runner::runtime::{Posture, Runtime, RuntimeOptions, Timer, WakeSignal};
use runner::scheduler::{ServedFailure, Step};
use runner::seal::{RunStamper, RunSupply, attribution};
use runner::serving_runtime::{ServedEvent, ServingRuntime};
use runner::transaction::{
    Acting, NativeCommit, NativeRead, OutboundAppend, PostCommitEffect, RunKind, RunStamp, RunTx,
    SealDestination, SealOptions, SealSink, SealedVerdict, StreamEntryRef,
};

use crate::store_double::{StoreDouble, Write};

/// Time that passes when somebody waits for it.
pub struct VirtualTime(pub ManualClock);

impl Timer for VirtualTime {
    fn sleep_until(&self, at_ms: i64) -> LocalBoxFuture<'static, ()> {
        self.0.advance((at_ms - self.0.now_ms()).max(0));
        Box::pin(ready(()))
    }
}

/// One sealed run.
pub struct Contribution {
    pub action_id: String,
    pub kind: RunKind,
    pub event_id: Option<EventId>,
    pub acting: Acting,
    pub writes: Vec<Write>,
    verdict: Promise<Result<SealedVerdict, String>>,
}

#[derive(Default)]
struct HostState {
    wave: Vec<Contribution>,
    demanders: Vec<ScopeIdentity>,
    staged: Vec<OutboundAppend>,
    failures: Vec<(EventId, ServedFailure)>,
    in_flight: Vec<EventId>,
    /// The next seal of this kind is refused with this reason.
    refuse: Option<(RunKind, &'static str)>,
}

/// The host: destination, stamper and supply in one.
#[derive(Clone)]
pub struct Host {
    space: SpaceId,
    state: Rc<RefCell<HostState>>,
}

#[derive(Default)]
struct Collected(Vec<(SpaceId, NativeCommit)>);

impl SealSink for Collected {
    fn written(&mut self, space: &SpaceId, native: NativeCommit) {
        self.0.push((space.clone(), native));
    }
    fn read_only(&mut self, _: &SpaceId, _: Vec<NativeRead>) {}
}

impl SealDestination for Host {
    fn space(&self) -> Option<&SpaceId> {
        Some(&self.space)
    }

    fn accepts(&self, _: &RunTx) -> bool {
        true
    }

    fn seal(&self, tx: &RunTx) -> Promise<Result<(), CommitError>> {
        let refused = self
            .state
            .borrow_mut()
            .refuse
            .take_if(|(kind, _)| tx.stamp().is_some_and(|s| s.kind == *kind));
        if let Some((_, reason)) = refused {
            return Promise::ready(Err(CommitError::aborted(reason)));
        }
        let mut collected = Collected::default();
        if let Err(error) = tx.seal_into(&mut collected) {
            return Promise::ready(Err(match error {
                RunnerError::Commit(error) => error,
                other => CommitError::aborted(other.to_string()),
            }));
        }
        for (space, native) in collected.0 {
            if native.operations.is_empty() {
                continue;
            }
            assert_eq!(space, self.space, "nothing writes into another space here");
            let stamp = tx.stamp().expect("what writes into a wave is stamped (RUN-603)");
            let identity = stamp.scope_identity.clone().unwrap_or_default();
            let writes = native
                .operations
                .iter()
                .map(|operation| {
                    let (id, scope) = operation.target().expect("no SQLite here");
                    let key = ScopeKey::resolve(scope, &identity)
                        .unwrap_or_else(|_| panic!("{} wrote {scope:?} of {id} as nobody", stamp.action_id));
                    Write {
                        key,
                        operation: operation.clone(),
                    }
                })
                .collect();
            let verdict = Promise::new();
            let options = SealOptions {
                speculative: false,
                identity: stamp.scope_identity.clone(),
            };
            tx.storage()
                .replica(&space)
                .seal_native(native, tx, &verdict, options);
            self.state.borrow_mut().wave.push(Contribution {
                action_id: stamp.action_id.clone(),
                kind: stamp.kind,
                event_id: stamp.event_id.clone(),
                acting: attribution(&stamp, tx.narrowest_read_scope()).acting,
                writes,
                verdict,
            });
        }
        Promise::ready(Ok(()))
    }

    fn stage_outbound_append(&self, _: &RunTx, row: OutboundAppend) -> Result<(), CommitError> {
        self.state.borrow_mut().staged.push(row);
        Ok(())
    }

    fn defer_sealed_effects(&self, _: &RunTx, _: &[PostCommitEffect]) -> bool {
        false
    }
}

impl RunStamper for Host {
    fn stamp(&self, tx: &RunTx, stamp: RunStamp) -> Result<(), RunnerError> {
        let entry = stamp.stream_entry.clone();
        tx.set_stamp(stamp)?;
        if let Some(entry) = entry {
            let index = entry.index.to_string();
            let at = Address::document(self.space.clone(), entry.sidecar_id, Scope::Space).at(path([
                "value",
                "entries",
                index.as_str(),
                "consequenced",
            ]));
            tx.write(&at, Some(Value::from(true)))?;
        }
        Ok(())
    }
}

impl RunSupply for Host {
    fn demanders(&self, _: &[EntityId]) -> Vec<ScopeIdentity> {
        self.state.borrow().demanders.clone()
    }
}

impl Host {
    /// What sealed since the last commit, as `action name @ instance keys written`.
    pub fn wave(&self) -> Vec<(String, Vec<String>)> {
        let state = self.state.borrow();
        let name = |c: &Contribution| c.action_id.split(':').nth(2).unwrap_or(&c.action_id).to_owned();
        state
            .wave
            .iter()
            .map(|c| {
                (
                    name(c),
                    c.writes.iter().map(|w| w.key.as_str().to_owned()).collect(),
                )
            })
            .collect()
    }

    pub fn actors(&self) -> Vec<(String, Acting)> {
        let state = self.state.borrow();
        let name = |c: &Contribution| c.action_id.split(':').nth(2).unwrap_or(&c.action_id).to_owned();
        state.wave.iter().map(|c| (name(c), c.acting.clone())).collect()
    }

    pub fn refuse_next_seal(&self, kind: RunKind, reason: &'static str) {
        self.state.borrow_mut().refuse = Some((kind, reason));
    }

    pub fn failures(&self) -> Vec<(EventId, ServedFailure)> {
        self.state.borrow().failures.clone()
    }

    pub fn staged(&self) -> usize {
        self.state.borrow().staged.len()
    }
}

/// A serving runtime and its host.
pub struct Bench {
    pub store: StoreDouble,
    pub clock: ManualClock,
    pub runtime: Runtime,
    pub host: Host,
}

pub fn who(principal: &str, session: &str) -> ScopeIdentity {
    ScopeIdentity::session(principal, session)
}

pub fn bench(store: &StoreDouble) -> Bench {
    let clock = ManualClock::at(1_700_000_000_000);
    let storage = store.storage("service", &clock, |options| {
        options.server_execution = true;
        options.serving_home_space = Some(SpaceId::from(crate::store_double::SPACE));
    });
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Serving,
        storage,
        signal: WakeSignal::new(),
        timer: Rc::new(VirtualTime(clock.clone())),
    });
    let host = Host {
        space: store.space(),
        state: Rc::default(),
    };
    let (destination, stamper, supply) = (
        Rc::new(host.clone()),
        Rc::new(host.clone()),
        Rc::new(host.clone()),
    );
    ServingRuntime::install_seal_destination(&runtime, destination, stamper, supply);
    Bench {
        store: store.clone(),
        clock,
        runtime,
        host,
    }
}

impl Bench {
    /// Runs runtime and store until neither moves. Seals; commits no wave.
    pub fn settle(&self) {
        loop {
            let step = self.runtime.step();
            let served = self.store.serve();
            match step {
                Step::Quiet { wake_at: Some(at) } if !served => {
                    self.clock.advance((at - self.clock.now_ms()).max(1));
                }
                Step::Quiet { wake_at: None } if !served => return,
                Step::Quiet { .. } | Step::Yielded => {}
            }
        }
    }

    /// Commits the open wave as one derived commit. Answers its seq, `None` when it was empty.
    pub fn commit_wave(&self) -> Option<Seq> {
        let wave = std::mem::take(&mut self.host.state.borrow_mut().wave);
        if wave.is_empty() {
            return None;
        }
        let mut verdicts = Vec::new();
        let mut writes = Vec::new();
        for contribution in wave {
            writes.extend(contribution.writes);
            verdicts.push(contribution.verdict);
        }
        let seq = self.store.apply_derived(writes);
        for verdict in verdicts {
            verdict.settle(Ok(SealedVerdict::Committed { seq }));
        }
        self.settle();
        Some(seq)
    }

    /// Withdraws the open wave whole, as a lost lease does.
    pub fn abandon_wave(&self) {
        for contribution in std::mem::take(&mut self.host.state.borrow_mut().wave) {
            let withdrawn = SealedVerdict::Withdrawn {
                message: "lease-lost".to_owned(),
                superseded: false,
            };
            contribution.verdict.settle(Ok(withdrawn));
        }
        self.settle();
    }

    /// Settles and commits until nothing seals any more.
    pub fn quiesce(&self) {
        loop {
            self.settle();
            self.drain();
            self.settle();
            if self.commit_wave().is_none()
                && self.store.pending_entries().iter().all(|(_, _, e)| self.over(e))
            {
                return;
            }
        }
    }

    fn over(&self, entry: &Value) -> bool {
        let id = entry
            .member("eventId")
            .and_then(Value::as_str)
            .unwrap_or_default();
        self.host
            .state
            .borrow()
            .failures
            .iter()
            .any(|(event, _)| event.as_str() == id)
    }

    /// Sets up a piece with a bookkeeping run, and starts it.
    pub fn start(&self, pattern: &dyn Pattern, root: &Link) {
        let tx = self.runtime.bookkeeping("test/setup").expect("stamped");
        self.runtime
            .run(&tx, pattern, memory_wire::value!({}), root)
            .expect("the piece starts");
        assert!(matches!(tx.commit().peek(), Some(Ok(()))), "setup seals");
    }

    /// Makes these pairs demand the piece, as watchers of its whole graph do.
    pub fn demand(&self, pattern: &dyn Pattern, root: &Link, pairs: &[ScopeIdentity]) {
        let newcomers: Vec<ScopeIdentity> = {
            let mut state = self.host.state.borrow_mut();
            let newcomers = pairs
                .iter()
                .filter(|p| !state.demanders.contains(p))
                .cloned()
                .collect();
            state.demanders = pairs.to_vec();
            newcomers
        };
        let links = runner::piece::derived_links(&pattern.graph(), root);
        for link in links.documents() {
            self.runtime
                .scheduler()
                .enter_demanded_entity(&link.space, &link.id, link.scope);
            for pair in &newcomers {
                self.runtime
                    .scheduler()
                    .rearm_not_current_for_demander(&link.address(), pair);
            }
        }
        self.runtime
            .scheduler()
            .invalidate_for_demand_roots(std::slice::from_ref(&root.id));
    }

    /// Drains pending stream entries into the runtime (SS-810, the plain path).
    pub fn drain(&self) {
        for (sidecar, index, stored) in self.store.pending_entries() {
            let entry = StreamEntry::from_value(&stored).expect("stored entries read back");
            let already = {
                let mut state = self.host.state.borrow_mut();
                let known = state.in_flight.contains(&entry.event_id);
                state.in_flight.push(entry.event_id.clone());
                known
            };
            if already {
                continue;
            }
            let at = Address::document(self.store.space(), sidecar.clone(), Scope::Space);
            let loaded = self
                .runtime
                .storage()
                .load(&at, runner::replica::Selector::rejecting(), None);
            self.settle();
            assert!(matches!(loaded.peek(), Some(Ok(()))), "the sidecar loads");
            let fired_at = entry.fired_at.clone().expect("admission stamps");
            let session = (fired_at.session.as_str() != SERVER_SESSION).then_some(fired_at.session);
            let (host, event_id) = (self.host.clone(), entry.event_id.clone());
            let stream = Link {
                path: entry.stream.path.clone(),
                ..Link::to_document(self.store.space(), entry.stream.id.clone(), entry.stream.scope)
            };
            let event = ServedEvent {
                event_id: entry.event_id.clone(),
                stream,
                payload: entry.payload.clone().unwrap_or(Value::Undefined),
                fired_at: Acting {
                    user: fired_at.user,
                    session,
                },
                now_ms: self.clock.now_ms(),
                stream_entry: StreamEntryRef {
                    sidecar_id: sidecar,
                    index,
                    seq: entry.seq.expect("admission stamps"),
                    event_id: entry.event_id.clone(),
                },
                on_failure: Rc::new(move |failure| {
                    host.state.borrow_mut().failures.push((event_id.clone(), failure));
                }),
                on_outcome: None,
            };
            ServingRuntime::queue_event(&self.runtime, event).expect("queued");
        }
    }

    /// Appends an event as `who`'s client would, as an authored commit.
    pub fn fire(&self, stream: &Link, who: &ScopeIdentity, event_id: &str, payload: Value) {
        use memory_wire::stream_entry::{FiredAt, StreamLink};
        let target = StreamLink {
            id: stream.id.clone(),
            path: stream.path.clone(),
            scope: stream.scope,
        };
        let mut entry = StreamEntry::new(EventId::from(event_id), target.clone(), Some(payload));
        entry.fired_at = Some(FiredAt {
            user: who.principal.clone(),
            session: who.session_id.clone().unwrap_or_else(|| SERVER_SESSION.into()),
            client_seq: None,
        });
        let patches = memory_wire::patch::parse_patches(&memory_wire::value!([{
            "op": "append", "path": "/value/entries", "values": [(entry.to_value())]
        }]))
        .expect("well-formed");
        let operation = Operation::Patch {
            id: target.sidecar_id(),
            scope: Scope::Space,
            patches,
        };
        self.store.apply_derived(vec![Write {
            key: ScopeKey::space(),
            operation,
        }]);
    }
}
