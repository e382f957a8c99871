//! Activation (SS §5): takes the lease, builds a runtime over the space, reads from the store where the last tenure
//! ended, and hands a loop over. A failure at any step gives back what was taken; nothing loads a piece here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use memory_engine::{EngineError, EngineHandle, Reader};
use memory_wire::identity::Signer;
use memory_wire::well_known::WATERMARK_DOCUMENT;
use memory_wire::{BranchName, EntityId, Scope, Seq, SpaceId};
use runner::address::Address;
use runner::ambient::RandomMint;
use runner::runtime::{Posture, Runtime, RuntimeOptions, WakeSignal};
use runner::serving_runtime::ServingRuntime;
use runner::storage_manager::{StorageManager, StorageOptions};

use crate::destination::WaveDestination;
use crate::error::ServingError;
use crate::events::{EventDesk, EventDrain};
use crate::host::HostShared;
use crate::in_flight::InFlight;
use crate::lease_keeper::{LeaseKeeper, Renewal};
use crate::notice::Mailbox;
use crate::outbox::Outbox;
use crate::space_loop::{ActiveSpace, Renewer, RuntimeGuard, Settles, SpaceLoop};
use crate::stamper::MarkingStamper;
use crate::structure::{DemandSupply, Demands, Structure};
use crate::time::RuntimeTime;
use crate::wakeup::{Latch, Wakeup};
use crate::watermark::Watermark;

/// How an activation ended without failing.
pub(crate) enum Activated {
    /// The space is served.
    Serving(Box<SpaceLoop>),
    /// Another holder has the lease.
    LeaseElsewhere,
}

/// What the store says about where to go on (SS-402): never the replica, which is cold.
struct Standing {
    watermark: Seq,
    head: Seq,
    stale_instances: usize,
    pending_events: u64,
}

/// SS-400.
pub(crate) async fn activate(
    shared: &Arc<HostShared>,
    space: &SpaceId,
    mailbox: Rc<Mailbox>,
) -> Result<Activated, ServingError> {
    let engine = shared.plane.engine(space)?;
    let lease = Rc::new(LeaseKeeper::new(
        space.clone(),
        shared.holder.clone(),
        engine.clone(),
        shared.time.clone(),
        shared.settings.lease_ttl,
        shared.statistics.clone(),
    ));
    let acquired = lease.acquire().await.map_err(|source| ServingError::Store {
        space: space.clone(),
        source,
    })?;
    if !acquired {
        return Ok(Activated::LeaseElsewhere);
    }
    match build(shared, space, engine, Rc::clone(&lease), mailbox).await {
        Ok(serving) => Ok(Activated::Serving(Box::new(serving))),
        Err(error) => {
            if let Err(unreleased) = lease.release().await {
                tracing::warn!(%space, error = %unreleased, "lease not released after a failed activation");
            }
            Err(error)
        }
    }
}

async fn build(
    shared: &Arc<HostShared>,
    space: &SpaceId,
    engine: EngineHandle,
    lease: Rc<LeaseKeeper>,
    mailbox: Rc<Mailbox>,
) -> Result<SpaceLoop, ServingError> {
    let wakeup = Rc::new(Wakeup::default());
    let runtime = runtime(shared, space);
    let guard = RuntimeGuard::new(runtime.clone());
    let home = space.clone();
    let standing = engine
        .read(move |reader| standing(reader, &home))
        .await
        .and_then(|standing| standing)
        .map_err(|source| ServingError::Store {
            space: space.clone(),
            source,
        })?;
    if standing.stale_instances > 0 {
        // Surfaced only: a fresh runtime computes what is demanded from scratch (SS-405).
        tracing::info!(%space, instances = standing.stale_instances, "derived state is behind its inputs");
    }
    shared
        .statistics
        .update(|s| s.events.appended += standing.pending_events);

    let guards = Rc::new(RefCell::new(InFlight::default()));
    let destination = Rc::new(WaveDestination::new(
        space.clone(),
        runtime.storage().clone(),
        Arc::clone(&shared.plane),
        Rc::clone(&lease),
        Rc::clone(&guards),
        Rc::clone(&wakeup),
        shared.statistics.clone(),
        standing.head,
    ));
    let demands = Rc::new(Demands::default());
    let mut outbox = Outbox::new(Arc::clone(shared), space.clone(), engine.clone(), runtime.clone());
    outbox.deliver().await.map_err(|source| ServingError::Store {
        space: space.clone(),
        source,
    })?;
    runtime.install_seal_destination(
        Rc::clone(&destination) as _,
        Rc::new(MarkingStamper::new(space.clone())),
        Rc::new(DemandSupply(Rc::clone(&demands))),
    );
    observe(shared, space, &runtime, &lease, &wakeup);
    // The watermark is written at a key path; for that the replica has to know the document.
    let watermark_document =
        Address::document(space.clone(), EntityId::from(WATERMARK_DOCUMENT), Scope::Space);
    let storage = runtime.storage().clone();
    runtime
        .wait_on(storage.sync_instance(&watermark_document, &storage.identity()))
        .await?;

    let desk = Rc::new(EventDesk::new(
        guards,
        &shared.settings,
        shared.time.clone(),
        Rc::clone(&wakeup),
    ));
    let renewing = keep_renewing(Arc::clone(shared), Rc::clone(&lease), Rc::clone(&wakeup));
    let renewer = Renewer::new(tokio::task::spawn_local(renewing));
    tracing::info!(%space, head = standing.head.0, watermark = standing.watermark.0, "serving");
    Ok(SpaceLoop {
        events: EventDrain::new(
            space.clone(),
            engine.clone(),
            runtime.clone(),
            desk,
            shared.statistics.clone(),
            shared.time.clone(),
        ),
        structure: Structure::new(
            Arc::clone(shared),
            space.clone(),
            runtime.clone(),
            demands,
            Rc::clone(&wakeup),
        ),
        shared: Arc::clone(shared),
        id: space.clone(),
        engine,
        runtime,
        lease,
        destination,
        wakeup,
        mailbox,
        outbox,
        watermark: Watermark::activate(standing.watermark, standing.head),
        settles: Settles::default(),
        feed: VecDeque::new(),
        scan_owed: standing.pending_events > 0,
        unsettled: false,
        refused_waves: 0,
        closing: false,
        committed: false,
        renewer,
        _active: ActiveSpace::new(space.clone(), shared.statistics.clone()),
        _runtime: guard,
    })
}

/// A runtime of the serving posture over the in-process line, acting as the space's owner when it reads (SS-5).
fn runtime(shared: &Arc<HostShared>, space: &SpaceId) -> Runtime {
    let signal = WakeSignal::new();
    let time = Rc::new(RuntimeTime(shared.time.clone()));
    let signer = Signer::from_seed(*shared.signer.seed());
    let mut options = StorageOptions::new(
        Rc::new(signer),
        Rc::new(shared.connector.clone()),
        Rc::clone(&time) as _,
        Rc::new(RandomMint),
        signal.wake(),
    );
    options.serving_home_space = Some(space.clone());
    options.server_execution = true;
    options.acting_as = Some("space-owner".to_owned());
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Serving,
        storage: StorageManager::new(options),
        signal,
        timer: time,
    });
    shared.patterns.register(&runtime);
    runtime
}

fn standing(reader: &Reader, space: &SpaceId) -> Result<Standing, EngineError> {
    let branch = BranchName::default();
    let stored = reader.read_space_value(&EntityId::from(WATERMARK_DOCUMENT))?;
    // Absent or malformed is zero: nothing is promised then (SS-1203).
    let watermark = stored
        .as_ref()
        .and_then(|value| value.member("seq"))
        .and_then(Seq::from_value)
        .unwrap_or_default();
    let pending = reader.select_pending_stream_events(&branch)?;
    Ok(Standing {
        watermark,
        head: reader.head_seq(&branch)?,
        stale_instances: reader.stale_basis_instances(&branch, space)?.len(),
        pending_events: pending.iter().map(|stream| stream.entries.len() as u64).sum(),
    })
}

/// The callbacks by which the runtime and the lease reach the loop (SS-400 step 4).
fn observe(
    shared: &Arc<HostShared>,
    space: &SpaceId,
    runtime: &Runtime,
    lease: &Rc<LeaseKeeper>,
    wakeup: &Rc<Wakeup>,
) {
    let flipped = Rc::clone(wakeup);
    runtime
        .storage()
        .replica(space)
        .on_shadow_flip(move || flipped.latch(Latch::ShadowFlip));
    let (keeper, bell) = (Rc::clone(lease), Rc::clone(wakeup));
    runtime.serving_yield_observer(Some(Rc::new(move || match keeper.renew_if_due() {
        None | Some(Ok(Renewal::Kept)) => {}
        Some(Ok(Renewal::Regained | Renewal::Lost)) => bell.ring(),
        Some(Err(error)) => tracing::warn!(%error, "lease not renewed"),
    })));
    let (plane, service, home) = (Arc::clone(&shared.plane), shared.service.clone(), space.clone());
    lease.on_regained(move || plane.note_lease_reacquired(&home, &service));
}

/// The timer driver of the lease (SS-205).
async fn keep_renewing(shared: Arc<HostShared>, lease: Rc<LeaseKeeper>, wakeup: Rc<Wakeup>) {
    loop {
        shared.time.sleep(shared.settings.lease_renew).await;
        match lease.renew().await {
            Ok(Renewal::Kept) => {}
            Ok(Renewal::Regained) => wakeup.ring(),
            Ok(Renewal::Lost) => {
                wakeup.ring();
                return;
            }
            Err(error) => tracing::warn!(%error, "lease not renewed"),
        }
    }
}
