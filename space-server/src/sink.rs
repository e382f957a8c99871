//! The way out of a wave (SS-720…SS-761): reads and commits over the space's store, inside the server's publication
//! turn, so that no frame comes between a commit and the news of it. The only place in the process that makes wave
//! commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memory_engine::lease::Tenure;
use memory_engine::{Applied, ApplyCommit, EngineError, EngineHandle, WaveCommit};
use memory_server::{AdmittedCommit, EventAppendNotice};
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::pointer::DocPath;
use memory_wire::well_known::acl_document_id;
use memory_wire::{BranchName, EventId, InstanceId, Seq, SpaceId};
use tokio::sync::oneshot;

use crate::host::HostShared;
use crate::lease_keeper::LeaseKeeper;
use crate::open_wave::SeenHeads;
use crate::wave::{ForeignBatch, HomeBatch, HomeRejection, WaveSink};

/// The sink of one commit step.
pub(crate) struct EngineSink<'a> {
    pub(crate) shared: &'a Arc<HostShared>,
    pub(crate) space: &'a SpaceId,
    pub(crate) engine: &'a EngineHandle,
    pub(crate) lease: &'a LeaseKeeper,
    pub(crate) seen: SeenHeads,
    /// Heads read ahead, good until the store has judged a batch.
    pub(crate) ahead: BTreeMap<InstanceId, Seq>,
    /// Documents whose heads were asked for: those the batch may write.
    pub(crate) asked: BTreeSet<InstanceId>,
    /// Stores of the foreign spaces, opened before the step (SS-562).
    pub(crate) foreign: BTreeMap<SpaceId, EngineHandle>,
    /// Events whose entries the landed batch introduced without marking them: they are still to be drained.
    pub(crate) unmarked: bool,
}

impl EngineSink<'_> {
    /// Reads the heads of what the wave writes in one go.
    pub(crate) async fn read_ahead(&mut self, instances: Vec<InstanceId>) {
        let heads = self
            .engine
            .read(move |reader| {
                let branch = BranchName::default();
                let head =
                    |instance: InstanceId| Ok((instance.clone(), reader.doc_head(&instance, &branch)?));
                instances
                    .into_iter()
                    .map(head)
                    .collect::<Result<BTreeMap<InstanceId, Seq>, EngineError>>()
            })
            .await
            .and_then(|heads| heads);
        match heads {
            Ok(heads) => self.ahead = heads,
            // Asked one by one they give the error to whoever needs the answer.
            Err(error) => tracing::debug!(space = %self.space, %error, "heads not read ahead"),
        }
    }

    /// Home documents that a batch writes with the head their runs saw: the store must find exactly that one.
    fn pins(&self, batch: &HomeBatch) -> Vec<(InstanceId, Seq)> {
        let rebased = |instance: &InstanceId| batch.rebased_heads.iter().any(|(other, _)| other == instance);
        let mut pins = batch.rebased_heads.clone();
        pins.extend(
            self.asked
                .iter()
                .filter(|instance| !rebased(instance))
                .filter_map(|instance| Some((instance.clone(), self.seen.pin(instance)?))),
        );
        pins
    }

    async fn land(&self, batch: &HomeBatch) -> Result<Seq, HomeRejection> {
        let commit = ClientCommit::build(
            self.shared.next_local_seq(),
            CommitParts {
                operations: batch.operations.clone(),
                preconditions: batch
                    .preconditions
                    .iter()
                    .map(|(precondition, _)| precondition.clone())
                    .collect(),
                event_appends: batch.event_appends.clone(),
                ..CommitParts::default()
            },
        );
        let opened_at = self.seen.opened_at;
        let mut wave = self
            .lease
            .with_lease(|lease| WaveCommit::new(lease, commit, opened_at));
        wave.rebased_heads = self.pins(batch);
        wave.annotations = batch.annotations.clone();
        wave.consequence_of = batch.consequence_of.clone();
        wave.derived_through = batch.derived_through;
        wave.basis_instances = batch.basis.clone();
        wave.outbox = batch.outbox.clone();
        let (shared, space) = (Arc::clone(self.shared), self.space.clone());
        let (now_ms, appends) = (self.shared.time.wall_ms(), appended(batch));
        let (landed, landing) = oneshot::channel();
        // Told in the turn that made it durable: no frame comes between the commit and the news of it (SRV-903).
        self.engine.write_then(
            move |engine| engine.apply_wave(&wave, now_ms, None),
            move |_, applied| {
                let applied = applied.and_then(|applied| applied);
                if let Ok(applied) = &applied {
                    shared.plane.note_executor_commit(AdmittedCommit {
                        space,
                        seq: applied.seq,
                        class: CommitClass::Derived,
                        holder: Some(shared.holder.clone()),
                        session_id: shared.holder.session_id(),
                        writes: written(applied),
                        event_appends: appends,
                        warm: false,
                    });
                }
                // A loop that is gone asks no more.
                let _ = landed.send(applied.map(|applied| applied.seq));
            },
        );
        match answer(self.engine, landing).await {
            Ok(seq) => Ok(seq),
            Err(EngineError::WaveConflict { conflicted }) => Err(HomeRejection::Conflicts(conflicted)),
            Err(EngineError::WavePrecondition { failed, .. }) => Err(HomeRejection::Preconditions(failed)),
            Err(error) => Err(HomeRejection::Other(error.to_string())),
        }
    }

    async fn land_foreign(&self, batch: &ForeignBatch) -> Result<Seq, String> {
        let space = batch.space.clone();
        let engine = self
            .foreign
            .get(&space)
            .ok_or_else(|| format!("the store of {space} was not opened for this wave"))?;
        if batch
            .operations
            .iter()
            .any(|operation| matches!(operation, Operation::Sqlite { .. }))
        {
            return Err("a foreign batch may not hold SQLite operations".to_owned());
        }
        let commit = ClientCommit::build(
            self.shared.next_local_seq(),
            CommitParts {
                operations: batch.operations.clone(),
                ..CommitParts::default()
            },
        );
        let (session, delegated) = (self.shared.holder.session_id(), batch.delegated());
        let (now_ms, list, target) = (self.shared.time.wall_ms(), acl_document_id(&space), space.clone());
        let (shared, noted, writes) = (Arc::clone(self.shared), space.clone(), batch.writes.clone());
        let (landed, landing) = oneshot::channel();
        engine.write_then(
            move |engine| {
                // A fresh store begins with its access list, which no batch carries (SS-722).
                if engine.server_seq()? == Seq(0) && engine.read_space_value(&list)?.is_none() {
                    return Ok(None);
                }
                let apply = ApplyCommit {
                    space: Some(&target),
                    delegated: Some(&delegated),
                    ..ApplyCommit::authored(&session, None, &commit, now_ms)
                };
                engine.apply_commit(apply).map(Some)
            },
            move |_, applied| {
                let applied = applied.and_then(|applied| applied);
                if let Ok(Some(applied)) = &applied {
                    shared.plane.note_executor_commit(AdmittedCommit {
                        space: noted,
                        seq: applied.seq,
                        class: CommitClass::Authored,
                        holder: None,
                        session_id: shared.holder.session_id(),
                        writes,
                        event_appends: Vec::new(),
                        // Nobody may be there: the target is activated for it (SS-564).
                        warm: true,
                    });
                    shared.statistics.update(|s| s.warm_requests += 1);
                }
                let _ = landed.send(applied.map(|applied| applied.map(|applied| applied.seq)));
            },
        );
        match answer(engine, landing).await {
            Ok(Some(seq)) => Ok(seq),
            Ok(None) => Err(format!(
                "{space} has no access list yet; its first commit must be one"
            )),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What became of a commit that [`EngineHandle::write_then`] was to tell of. A store that could not be opened for it tells
/// nothing: it is asked why.
async fn answer<R>(
    engine: &EngineHandle,
    landing: oneshot::Receiver<Result<R, EngineError>>,
) -> Result<R, EngineError> {
    match landing.await {
        Ok(answer) => answer,
        Err(_) => Err(engine.open_failure().unwrap_or(EngineError::Closed)),
    }
}

/// The instances a commit wrote, each once; operations that changed nothing are left out.
fn written(applied: &Applied) -> Vec<InstanceId> {
    let mut writes: Vec<InstanceId> = applied
        .revisions
        .iter()
        .map(|revision| InstanceId {
            id: revision.id.clone(),
            scope_key: revision.scope_key.clone(),
        })
        .collect();
    writes.sort();
    writes.dedup();
    writes
}

fn appended(batch: &HomeBatch) -> Vec<EventAppendNotice> {
    batch
        .event_appends
        .iter()
        .map(|append| EventAppendNotice {
            stream: InstanceId::space(append.id.clone()),
            event_id: append.event_id.clone(),
        })
        .collect()
}

fn unmarked(batch: &HomeBatch) -> bool {
    let marked = |event: &EventId| batch.consequence_of.contains(event);
    batch.event_appends.iter().any(|append| !marked(&append.event_id))
}

impl WaveSink for EngineSink<'_> {
    fn is_current(&mut self, tenure: Tenure) -> bool {
        self.lease.is_current(tenure)
    }

    /// The head, as far as it is news to the runs that wrote the document: one they stood on reads as never written.
    async fn head(&mut self, instance: &InstanceId) -> Result<Seq, String> {
        let head = match self.ahead.get(instance) {
            Some(head) => *head,
            None => {
                let asked = instance.clone();
                self.engine
                    .read(move |reader| reader.doc_head(&asked, &BranchName::default()))
                    .await
                    .and_then(|head| head)
                    .map_err(|error| error.to_string())?
            }
        };
        self.asked.insert(instance.clone());
        Ok(if head <= self.seen.of(instance) {
            Seq(0)
        } else {
            head
        })
    }

    async fn write_paths_since(
        &mut self,
        instance: &InstanceId,
        _since: Seq,
    ) -> Result<Vec<DocPath>, String> {
        let (asked, since) = (instance.clone(), self.seen.of(instance));
        self.engine
            .read(move |reader| reader.write_paths_since(&asked, &BranchName::default(), since))
            .await
            .and_then(|paths| paths)
            .map_err(|error| error.to_string())
    }

    async fn apply_foreign(&mut self, batch: &ForeignBatch) -> Result<Seq, String> {
        self.land_foreign(batch).await
    }

    async fn apply_home(&mut self, batch: &HomeBatch) -> Result<Seq, HomeRejection> {
        // Whatever it answers, the next question wants to know anew.
        self.ahead.clear();
        let seq = self.land(batch).await?;
        self.unmarked = unmarked(batch);
        Ok(seq)
    }
}

#[cfg(test)]
mod tests {
    use memory_engine::{ActorOptions, EngineOptions, StoreLocation};

    use super::*;

    #[tokio::test]
    async fn a_commit_into_a_store_that_does_not_open_fails_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: std::path::PathBuf| {
            let location = StoreLocation::File(path);
            EngineHandle::new(location, EngineOptions::default(), ActorOptions::default())
        };
        let told = |engine: &EngineHandle| {
            let (landed, landing) = oneshot::channel();
            engine.write_then(
                |engine| engine.server_seq(),
                move |_, seq| {
                    let _ = landed.send(seq.and_then(|seq| seq));
                },
            );
            landing
        };
        let sound = open(dir.path().join("store.sqlite"));
        assert_eq!(answer(&sound, told(&sound)).await.unwrap(), Seq(0));
        let missing = open(dir.path().join("missing").join("store.sqlite"));
        let failure = answer(&missing, told(&missing)).await.unwrap_err();
        assert!(matches!(failure, EngineError::BadStore(_)), "{failure}");
        assert!(failure.to_string().contains("missing"), "{failure}");
    }
}
