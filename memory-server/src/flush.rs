//! Fan-out of a space (SRV §4.7, 4.10): when, in which order, to whom. A pass takes what is dirty, visits the sessions
//! that track any of it or are owed a marker, and queues at most one frame each. One failing session never holds up
//! another. Nothing is delayed beyond the window and the evaluation (SRV-703). A pass of the timer that fails is logged, one
//! that was asked for is told to whoever asked; both have put their batch back (SRV-440).

use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_engine::Engine;
use memory_wire::SpaceId;

use crate::config::FlushTiming;
use crate::delivery::Loss;
use crate::dirty::DirtyBatch;
use crate::error::ServerError;
use crate::evaluate::{Frame, Pass, Subject};
use crate::leases::ElsewhereLeases;
use crate::outbound::{Closing, Refused};
use crate::server::Server;
use crate::space::Space;
use crate::spans;
use crate::statistics::{SlowOperation, SlowQuery, Statistics, Timed};
use crate::tasks::sleep;
use crate::visits::{Visit, Visits};

impl Server {
    /// Arms the space's flush if it is dirty and nobody waits to flush it yet (SRV-435, SRV-437).
    pub(crate) fn schedule_flush(self: &Arc<Server>, space: &Arc<Space>) {
        match self.config().flush {
            FlushTiming::Manual => {}
            FlushTiming::Timed => {
                if space.is_dirty() && space.schedule.arm() {
                    self.tasks()
                        .spawn(flush_when_due(Arc::clone(self), Arc::clone(space)));
                }
            }
        }
    }

    /// Flushes the given spaces, or all, until none of them is dirty and every frame is queued (SRV-438).
    pub(crate) async fn flush_spaces(
        self: &Arc<Server>,
        spaces: Option<&[SpaceId]>,
    ) -> Result<(), ServerError> {
        let mut outcome = Ok(());
        loop {
            let mut dirty: Vec<Arc<Space>> = self
                .open_spaces()
                .into_iter()
                .filter(|space| {
                    spaces.is_none_or(|wanted| wanted.contains(space.id())) && space.is_unsettled()
                })
                .collect();
            if dirty.is_empty() || outcome.is_err() {
                return outcome;
            }
            // Derived content first, otherwise stable (SRV-701).
            dirty.sort_by_key(|space| !space.has_derived_dirt());
            for space in dirty {
                outcome = flush_space(self, &space).await.and(outcome);
            }
        }
    }

    /// Waits for the turns queued by now, then flushes everything (SRV-438, SRV-1305).
    pub(crate) async fn settle(self: &Arc<Server>) -> Result<(), ServerError> {
        // Where nobody is, nothing is owed, and asking would only wake a sleeping store.
        for space in self.open_spaces().into_iter().filter(|space| space.is_attended()) {
            space.in_turn(|_| ()).await?;
        }
        self.flush_spaces(None).await
    }
}

/// Waits out the refresh delay and the inbound frames, then flushes until the space is clean.
async fn flush_when_due(server: Arc<Server>, space: Arc<Space>) {
    let limits = server.config().limits.clone();
    let requested = Instant::now();
    // A timer's tick is a window of its own.
    if !limits.refresh_delay.is_zero() {
        sleep(limits.refresh_delay).await;
    }
    loop {
        space.schedule.wait_settled(limits.drain_wait_floor).await;
        server.time(Timed::FlushQueue, requested.elapsed());
        if let Err(error) = flush_space(&server, &space).await {
            // The batch is back in place; wait a little, so that a broken store is not hammered.
            server.statistics().count_flush_failure();
            tracing::warn!(space = %space.id(), %error, "flush failed");
            sleep(limits.drain_wait_floor).await;
        }
        if space.is_dirty() {
            continue;
        }
        space.schedule.disarm();
        // A mark between the question and the disarming finds nobody armed but us.
        if !(space.is_dirty() && space.schedule.arm()) {
            return;
        }
    }
}

/// One pass over one space, in its turn.
pub(crate) async fn flush_space(server: &Arc<Server>, space: &Arc<Space>) -> Result<(), ServerError> {
    let keyed = space.registry.lock().has_keyed();
    let elsewhere = if keyed {
        server.leases_elsewhere(space).await
    } else {
        ElsewhereLeases::default()
    };
    let (server, space) = (Arc::clone(server), Arc::clone(space));
    let turn_space = Arc::clone(&space);
    space
        .in_turn(move |engine| pass(&server, &turn_space, engine, &elsewhere))
        .await?
}

/// The batch of a pass; given back if the pass does not come to an end, however it fails (SRV-422, fault 5).
struct Batch<'a> {
    space: &'a Space,
    statistics: &'a Statistics,
    dirty: Option<DirtyBatch>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(waited) = self.space.end_pass(self.dirty.take()) {
            self.statistics.note_push_delay(waited);
        }
    }
}

fn pass(
    server: &Server,
    space: &Space,
    engine: &Engine,
    elsewhere: &ElsewhereLeases,
) -> Result<(), ServerError> {
    // Taken only now that the turn has come: a pass over a selection emptied earlier would strand the rest.
    let Some(dirty) = space.take_dirty() else {
        return Ok(());
    };
    let mut batch = Batch {
        space,
        statistics: server.statistics(),
        dirty: Some(dirty),
    };
    let started = Instant::now();
    let dirty = batch.dirty.as_ref().expect("just put there");
    let visits = Visits::select(&space.registry.lock(), dirty);
    let span = spans::fanout(space.id(), dirty.len(), visits.len());
    let _passing = span.enter();
    let outcome = engine.reader().snapshot(|reader| -> Result<(), ServerError> {
        let pass = Pass::new(server, space, reader, elsewhere)?;
        for visit in visits.in_order() {
            visit_session(&pass, visit, dirty);
        }
        server.statistics().count_considered(visits.considered);
        server.statistics().count_refreshes(pass.refresh_work());
        Ok(())
    });
    outcome.map_err(ServerError::from).and_then(|outcome| outcome)?;
    if server.config().server_execution && dirty.has_derived() {
        server
            .statistics()
            .count_split(visits.prioritized.len(), visits.followers.len());
    }
    tracing::trace!(space = %space.id(), dirty = dirty.len(), sessions = visits.len(), "flushed");
    batch.dirty = None;
    space.schedule.note_refresh(started.elapsed());
    server.time(Timed::FlushRefresh, started.elapsed());
    Ok(())
}

/// Evaluates one session and queues its frame.
fn visit_session(pass: &Pass<'_>, visit: &Visit, dirty: &DirtyBatch) {
    let (server, space) = (pass.server, pass.space);
    let found = {
        let registry = space.registry.lock();
        // Revoked or detached since the pass began: dropped silently.
        registry.get(visit.slot).and_then(|session| {
            Some((
                Subject::of(server, visit.slot, session),
                Arc::clone(session.connection()?),
            ))
        })
    };
    let Some((subject, connection)) = found else {
        return;
    };
    if connection.outbound.is_above_high_water() {
        server.statistics().count_skipped();
        defer(server, space, visit);
        return;
    }
    let started = Instant::now();
    let refresh = spans::refresh(&subject.id, subject.watches.len(), visit.touched.keys.len()).entered();
    let frame = match pass.evaluate(&subject, &visit.touched.keys, dirty) {
        Ok(frame) => frame,
        Err(error) => {
            server.statistics().count_evaluation_failure();
            tracing::warn!(space = %space.id(), session = %subject.id, %error, "session could not be refreshed");
            space
                .registry
                .lock()
                .update(visit.slot, |session| session.force_full = true);
            None
        }
    };
    drop(refresh);
    note_slow(server, space, &subject, started.elapsed());
    let Some(Frame { effect, delivered }) = frame else {
        return;
    };
    let _syncing = spans::sync(&subject.id, delivered.upserts.len()).entered();
    if let Err(error) = server.config().faults.before_effect(space.id(), &subject.id) {
        tracing::debug!(connection = %connection.id, session = %subject.id, %error, "send failed");
        space.registry.lock().roll_back(&delivered, Loss::Unsent);
        // The session resumes elsewhere; trying for ever would keep the pass busy (SRV-434).
        connection.outbound.close(Closing::PeerGone);
        return;
    }
    match connection.outbound.push_effect(effect, delivered) {
        Ok(()) => server.statistics().count_frame(),
        Err(Refused(delivered)) => space.registry.lock().roll_back(&delivered, Loss::Unsent),
    }
}

/// Remembers what a slow consumer was spared, so that its next frame is computed from state (SRV-705).
fn defer(server: &Server, space: &Space, visit: &Visit) {
    let bound = server.config().limits.deferred_keys;
    space.registry.lock().update(visit.slot, |session| {
        if session.deferred.0.len() + visit.touched.keys.len() > bound {
            session.deferred.0.clear();
            session.force_full = true;
        } else if !session.force_full {
            session.deferred.0.extend(visit.touched.keys.iter().cloned());
        }
    });
}

fn note_slow(server: &Server, space: &Space, subject: &Subject, took: Duration) {
    if took <= server.config().limits.slow_query_threshold {
        return;
    }
    server.statistics().note_query(SlowQuery {
        timestamp: server.config().clock.wall_ms(),
        elapsed: took.as_secs_f64() * 1000.0,
        operation: SlowOperation::WatchRefresh,
        space: space.id().to_string(),
        roots: None,
        watches: Some(subject.watches.len()),
    });
}
