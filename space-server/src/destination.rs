//! Where the runs of a served space seal to (SS §9, RUN-600…610): each becomes a contribution to the open wave and a
//! layer of the serving replica. Nothing here waits, so seals are one chain by construction.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use memory_engine::outbox::{OutboxAppend, PlainJson};
use memory_server::{Authority, ServingPlane};
use memory_wire::message::{ClientCommit, Operation};
use memory_wire::stream_entry::StreamLink;
use memory_wire::well_known::acl_document_id;
use memory_wire::{InstanceId, Scope, ScopeIdentity, ScopeKey, Seq, SpaceId, value};
use runner::error::{CommitError, RunnerError};
use runner::promise::Promise;
use runner::seal::{Attribution, attribution, refusal};
use runner::storage_manager::StorageManager;
use runner::transaction::{
    NativeCommit, NativeRead, OutboundAppend, PostCommitEffect, RunKind, RunStamp, RunTx, SealDestination,
    SealOptions, SealSink, TxId,
};
use rustc_hash::FxHashMap;

use crate::in_flight::InFlight;
use crate::lease_keeper::LeaseKeeper;
use crate::open_wave::{Layer, OpenWave, SeenHeads};
use crate::stamper::entry_key;
use crate::statistics::Statistics;
use crate::wakeup::Wakeup;
use crate::wave::{
    ConfirmedRead, ForeignPosture, PendingRead, RunRecord, SealRefusal, SealRequest, SpaceWrites, Wave,
    check_append,
};

/// See the module documentation.
pub(crate) struct WaveDestination {
    home: SpaceId,
    storage: StorageManager,
    plane: Arc<dyn ServingPlane>,
    lease: Rc<LeaseKeeper>,
    guards: Rc<RefCell<InFlight>>,
    wakeup: Rc<Wakeup>,
    statistics: Statistics,
    /// The store's head as far as the loop has heard of it.
    head: Cell<Seq>,
    open: RefCell<Option<OpenWave>>,
    /// Appends of transactions that have not sealed yet.
    staged: Rc<RefCell<FxHashMap<TxId, Vec<OutboxAppend>>>>,
}

/// What a transaction hands over, before any replica took it.
#[derive(Default)]
struct Handed {
    written: Vec<(SpaceId, NativeCommit)>,
    read_only: Vec<(SpaceId, Vec<NativeRead>)>,
}

impl SealSink for Handed {
    fn written(&mut self, space: &SpaceId, native: NativeCommit) {
        if native.is_empty() {
            self.read_only.push((space.clone(), native.reads));
        } else {
            self.written.push((space.clone(), native));
        }
    }

    fn read_only(&mut self, space: &SpaceId, reads: Vec<NativeRead>) {
        self.read_only.push((space.clone(), reads));
    }
}

impl WaveDestination {
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one space's loop, given once at activation"
    )]
    pub(crate) fn new(
        home: SpaceId,
        storage: StorageManager,
        plane: Arc<dyn ServingPlane>,
        lease: Rc<LeaseKeeper>,
        guards: Rc<RefCell<InFlight>>,
        wakeup: Rc<Wakeup>,
        statistics: Statistics,
        head: Seq,
    ) -> WaveDestination {
        WaveDestination {
            home,
            storage,
            plane,
            lease,
            guards,
            wakeup,
            statistics,
            head: Cell::new(head),
            open: RefCell::default(),
            staged: Rc::default(),
        }
    }

    /// The loop has heard of commits up to here.
    pub(crate) fn note_head(&self, head: Seq) {
        self.head.set(self.head.get().max(head));
    }

    /// True when something sealed that no commit step has taken.
    pub(crate) fn has_contributions(&self) -> bool {
        self.open.borrow().as_ref().is_some_and(|open| !open.is_empty())
    }

    /// Drops an open wave that holds nothing: it would fix an old head (SS-560).
    pub(crate) fn discard_if_empty(&self) {
        let mut open = self.open.borrow_mut();
        if let Some(empty) = open.take_if(|open| open.is_empty()) {
            self.fold(&empty);
        }
    }

    /// Takes the open wave; later seals open another one.
    pub(crate) fn detach(&self) -> Option<OpenWave> {
        let open = self.open.borrow_mut().take();
        if let Some(open) = &open {
            self.fold(open);
        }
        open
    }

    /// Looks at the open wave.
    pub(crate) fn with_open<R>(&self, look: impl FnOnce(&OpenWave) -> R) -> Option<R> {
        self.open.borrow().as_ref().map(look)
    }

    fn fold(&self, open: &OpenWave) {
        let counts = open.wave().counts();
        self.statistics.update(|s| {
            s.unstamped_seal_refusals += counts.unstamped;
            s.foreign_write_refusals += counts.foreign_refused;
            s.undemanded_narrowing_runs += counts.undemanded_narrowing;
            s.early_emit_refusals += counts.early_emit;
        });
    }

    fn open_wave(&self) -> OpenWave {
        let plane = Arc::clone(&self.plane);
        let posture = ForeignPosture::Accept(Box::new(move |space, user| {
            match plane.foreign_write_authority(space, Some(user)) {
                Ok(Authority::Granted { .. }) => true,
                Ok(Authority::Refused { reason }) => {
                    tracing::debug!(%space, reason, "foreign write refused");
                    false
                }
                // A probe that fails is a refusal (SS-620).
                Err(error) => {
                    tracing::warn!(%space, %error, "grant probe failed");
                    false
                }
            }
        }));
        // The wave's own basis is zero: what counts as a conflict is decided per document, by what its runs saw.
        let fallback = self.storage.identity();
        let wave = Wave::open(self.home.clone(), Seq(0), self.lease.tenure(), fallback, posture);
        OpenWave::new(wave, self.head.get())
    }

    /// SS-602; the verdicts of everything sealed on the way are settled before an error is answered.
    fn try_seal(&self, tx: &RunTx, stamp: Option<&RunStamp>) -> Result<(), CommitError> {
        let appends = self.staged.borrow_mut().remove(&tx.id()).unwrap_or_default();
        self.check_copy(stamp)?;
        let mut handed = Handed::default();
        tx.seal_into(&mut handed).map_err(commit_error)?;
        check_access_lists(&handed)?;
        let identity = tx.scope_identity();
        // Taken out while layers go on: whoever is told of them may come back here.
        let mut open = self.open.borrow_mut().take().unwrap_or_else(|| self.open_wave());
        let (mut writes, mut layers) = (Vec::new(), Vec::new());
        for (space, native) in handed.written {
            if space == self.home {
                self.note_seen(open.seen(), &native.operations, identity.as_ref());
            }
            let verdict = Promise::new();
            let options = SealOptions {
                speculative: false,
                identity: identity.clone(),
            };
            let sealed = self
                .storage
                .replica(&space)
                .seal_native(native, tx, &verdict, options);
            writes.push(space_writes(space.clone(), sealed.commit, identity.as_ref()));
            layers.push(Layer {
                space,
                verdict,
                settled: sealed.settled,
            });
        }
        let read_only = handed
            .read_only
            .into_iter()
            .filter(|(_, reads)| !reads.is_empty());
        let request = SealRequest {
            run: stamp.map(|stamp| run_record(tx, stamp)),
            writes,
            read_only: read_only
                .map(|(space, reads)| (space, documents(&reads, identity.as_ref())))
                .collect(),
            appends,
            attribution_from_scope: stamp.is_some_and(|stamp| stamp.attribution_from_scope),
            emitted_at: stamp.and_then(|stamp| stamp.emitted_scope),
        };
        let sealed = open.seal(tx, request, layers);
        *self.open.borrow_mut() = Some(open);
        match sealed {
            Ok(true) => {
                self.wakeup.ring();
                Ok(())
            }
            Ok(false) => Ok(()),
            Err((refusal, layers)) => {
                layers.withdraw(&refusal.to_string());
                if refusal == SealRefusal::Unstamped {
                    tracing::error!(tx = %tx.id(), "unstamped transaction sealed into a wave");
                }
                Err(CommitError::aborted(refusal.to_string()))
            }
        }
    }

    /// An in-process event copy lands in the wave that carries its entry or not at all: the entry is drained instead
    /// (SS-822).
    fn check_copy(&self, stamp: Option<&RunStamp>) -> Result<(), CommitError> {
        let Some(emitter) = stamp.and_then(|stamp| stamp.lt1) else {
            return Ok(());
        };
        if self.with_open(|open| open.holds(emitter)).unwrap_or(false) {
            return Ok(());
        }
        self.statistics.update(|s| s.events.lt1_late_seals_refused += 1);
        Err(CommitError::aborted(refusal::LT1_LATE))
    }

    fn note_seen(&self, seen: &mut SeenHeads, operations: &[Operation], identity: Option<&ScopeIdentity>) {
        let replica = self.storage.replica(&self.home);
        for (id, scope) in operations.iter().filter_map(Operation::target) {
            let Ok(scope_key) = ScopeKey::resolve(scope, identity.unwrap_or(&ScopeIdentity::default()))
            else {
                continue;
            };
            if replica.knows(id, scope, identity) {
                let seq = replica.confirmed_seq(&replica.doc_key(id, scope, identity));
                seen.note(
                    InstanceId {
                        id: id.clone(),
                        scope_key,
                    },
                    seq,
                );
            }
        }
    }

    /// SS-605: the failure belongs to the wave it was aimed at.
    fn note_failed(&self, stamp: Option<&RunStamp>, error: &CommitError) {
        let Some(stamp) = stamp.filter(|_| error.message != refusal::LT1_LATE) else {
            return;
        };
        if stamp.kind == RunKind::EventHandler {
            let mut open = self.open.borrow_mut();
            let open = open.get_or_insert_with(|| self.open_wave());
            open.note_failed_seal(stamp.kind, stamp.event_id.as_ref());
        }
    }
}

impl SealDestination for WaveDestination {
    fn space(&self) -> Option<&SpaceId> {
        Some(&self.home)
    }

    fn accepts(&self, _tx: &RunTx) -> bool {
        true
    }

    fn seal(&self, tx: &RunTx) -> Promise<Result<(), CommitError>> {
        let stamp = tx.stamp();
        let sealed = self.try_seal(tx, stamp.as_ref());
        match &sealed {
            Ok(()) => {
                if let Some(entry) = stamp.as_ref().and_then(|stamp| stamp.stream_entry.as_ref()) {
                    // A mark is staged: from now on only the wave's outcome releases the entry (SS-812).
                    self.guards.borrow_mut().mark(&entry_key(entry));
                }
            }
            Err(error) => self.note_failed(stamp.as_ref(), error),
        }
        Promise::ready(sealed)
    }

    fn stage_outbound_append(&self, tx: &RunTx, row: OutboundAppend) -> Result<(), CommitError> {
        let append = outbox_append(row)?;
        check_append(&append).map_err(|contradiction| CommitError::aborted(contradiction.to_string()))?;
        let mut staged = self.staged.borrow_mut();
        if !staged.contains_key(&tx.id()) {
            // A transaction that never seals takes its appends with it.
            let staged = Rc::clone(&self.staged);
            tx.on_commit(move |tx, _| {
                staged.borrow_mut().remove(&tx.id());
            });
        }
        staged.entry(tx.id()).or_default().push(append);
        Ok(())
    }

    fn defer_sealed_effects(&self, _tx: &RunTx, _effects: &[PostCommitEffect]) -> bool {
        // They stay with their transaction, which enacts them when its verdict is a durable commit (SS-922).
        false
    }
}

/// A derived commit may not touch an access list, and neither may a delegated batch that was not asked for first: such
/// a run is refused by itself, before it takes a whole wave with it (SS-208).
fn check_access_lists(handed: &Handed) -> Result<(), CommitError> {
    for (space, native) in &handed.written {
        let list = acl_document_id(space);
        if native
            .operations
            .iter()
            .filter_map(Operation::target)
            .any(|(id, _)| *id == list)
        {
            return Err(CommitError::aborted(format!(
                "a served run may not write the access list of {space}"
            )));
        }
    }
    Ok(())
}

fn commit_error(error: RunnerError) -> CommitError {
    match error {
        RunnerError::Commit(error) => error,
        other => CommitError::aborted(other.to_string()),
    }
}

fn run_record(tx: &RunTx, stamp: &RunStamp) -> RunRecord {
    let discovered = tx.narrowest_read_scope();
    let Attribution {
        acting,
        capability_ref,
    } = attribution(stamp, discovered);
    RunRecord {
        action_id: stamp.action_id.clone(),
        kind: stamp.kind,
        event_id: stamp.event_id.clone(),
        parent_event_id: stamp.parent_event_id.clone(),
        lt1: stamp.lt1.is_some(),
        resolution: tx.scope_identity().unwrap_or_default(),
        acting,
        capability_ref,
        stamped_key: stamp.action_scope_key.clone(),
        discovered,
    }
}

fn resolve(scope: Scope, identity: Option<&ScopeIdentity>) -> Option<ScopeKey> {
    ScopeKey::resolve(scope, identity.unwrap_or(&ScopeIdentity::default())).ok()
}

/// One read a document is enough for a wave: it decides by documents and layers.
fn space_writes(space: SpaceId, commit: ClientCommit, identity: Option<&ScopeIdentity>) -> SpaceWrites {
    let mut confirmed: BTreeMap<InstanceId, Seq> = BTreeMap::new();
    for read in &commit.reads.confirmed {
        if let Some(scope_key) = resolve(read.scope, identity) {
            confirmed.insert(
                InstanceId {
                    id: read.id.clone(),
                    scope_key,
                },
                read.seq,
            );
        }
    }
    let mut pending: BTreeMap<InstanceId, Vec<memory_wire::LocalSeq>> = BTreeMap::new();
    for read in &commit.reads.pending {
        if let Some(scope_key) = resolve(read.scope, identity) {
            let layers = pending
                .entry(InstanceId {
                    id: read.id.clone(),
                    scope_key,
                })
                .or_default();
            layers.extend(
                read.local_seqs
                    .iter()
                    .filter(|layer| !layers.contains(layer))
                    .copied()
                    .collect::<Vec<_>>(),
            );
        }
    }
    SpaceWrites {
        space,
        local_seq: commit.local_seq,
        operations: commit.operations,
        confirmed: confirmed
            .into_iter()
            .map(|(instance, seq)| ConfirmedRead { instance, seq })
            .collect(),
        pending: pending
            .into_iter()
            .map(|(instance, layers)| PendingRead { instance, layers })
            .collect(),
        preconditions: commit.preconditions,
    }
}

fn documents(reads: &[NativeRead], identity: Option<&ScopeIdentity>) -> Vec<InstanceId> {
    let mut documents: Vec<InstanceId> = reads
        .iter()
        .filter_map(|read| {
            Some(InstanceId {
                id: read.id.clone(),
                scope_key: resolve(read.scope, identity)?,
            })
        })
        .collect();
    documents.sort();
    documents.dedup();
    documents
}

/// A staged append as the outbox stores it.
fn outbox_append(row: OutboundAppend) -> Result<OutboxAppend, CommitError> {
    let refused = |error: memory_engine::outbox::NotPlainJson| CommitError::aborted(error.to_string());
    let stream = StreamLink {
        id: row.target_stream_link.id.clone(),
        path: row.target_stream_link.path.clone(),
        scope: row.target_stream_link.scope,
    };
    let payload = match row.payload.is_undefined() {
        true => PlainJson::null(),
        false => PlainJson::from_value("payload", &row.payload).map_err(refused)?,
    };
    let source_event = row
        .source_event
        .map(|(sidecar, event)| value!({ "sidecarId": (sidecar.as_str()), "eventId": (event.as_str()) }));
    Ok(OutboxAppend {
        target_space: row.target_space,
        target_stream: row.target_stream,
        target_stream_link: Some(
            PlainJson::from_value("target_stream_link", &stream.to_value()).map_err(refused)?,
        ),
        event_id: row.event_id,
        payload,
        acting_principal: row.acting_principal,
        acting_session: row.acting_session,
        sessionless_space_scope: row.sessionless_space_scope,
        capability_ref: row.capability_ref,
        source_event: source_event
            .map(|value| PlainJson::from_value("source_event", &value))
            .transpose()
            .map_err(refused)?,
    })
}
