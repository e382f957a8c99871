//! Appends into other spaces (SS-900…SS-915): rows that a wave wrote are admitted at their targets, one at a time and
//! in order, and deleted when acknowledged. What a target refuses for good becomes a notice on the source entry, in a
//! later wave.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_engine::outbox::{OutboxAppend, OutboxRow};
use memory_engine::{EngineError, EngineHandle};
use memory_server::DelegatedAppend;
use memory_wire::stream_entry::{DeliveryFailure, StreamEntry};
use memory_wire::{BranchName, EntityId, EventId, Scope, SpaceId, Value};
use runner::address::{Address, path};
use runner::error::RunnerError;
use runner::runtime::Runtime;

use crate::host::HostShared;

/// What the action of a failure notice is called, before its event (SS-0).
const FAILURE_ACTION: &str = "server-execution/delivery-failure:";

/// An append refused for good, whose row stays until the wave with its notice has landed (SS-912).
#[derive(Clone, Debug)]
struct Refused {
    append: OutboxAppend,
    reason: String,
    /// Its notice sealed into the wave that is open now.
    sealed: bool,
}

/// How an attempt to deliver ended.
enum Delivery {
    Acknowledged,
    /// Trying again cannot help.
    Refused(String),
    /// The target could not be asked.
    Unreachable(String),
}

/// The outbox of one space's loop.
pub(crate) struct Outbox {
    shared: Arc<HostShared>,
    home: SpaceId,
    engine: EngineHandle,
    runtime: Runtime,
    refused: BTreeMap<i64, Refused>,
    /// Rows may be there that were not delivered.
    owed: bool,
}

impl Outbox {
    pub(crate) fn new(
        shared: Arc<HostShared>,
        home: SpaceId,
        engine: EngineHandle,
        runtime: Runtime,
    ) -> Outbox {
        Outbox {
            shared,
            home,
            engine,
            runtime,
            refused: BTreeMap::new(),
            owed: true,
        }
    }

    /// A wave wrote rows.
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// True when a failure notice waits for a wave (SS-914).
    pub(crate) fn owes_notice(&self) -> bool {
        self.refused.values().any(|refused| !refused.sealed)
    }

    /// True when `action` is a failure notice, which is content (SS-583).
    pub(crate) fn is_notice(action: &str) -> bool {
        action.starts_with(FAILURE_ACTION)
    }

    /// Delivers what is pending, if anything may be (SS-910). A target that cannot be asked ends the drain: skipping
    /// ahead would break the order of its stream (SS-911).
    pub(crate) async fn deliver(&mut self) -> Result<(), EngineError> {
        if !self.owed {
            return Ok(());
        }
        let rows = self
            .engine
            .read(|reader| reader.pending_outbox(&BranchName::default()))
            .await??;
        for row in rows {
            if self.refused.contains_key(&row.row_id) {
                continue;
            }
            match self.attempt(&row).await {
                Delivery::Acknowledged => self.delete(row.row_id).await?,
                Delivery::Refused(reason) => self.refuse(row, reason).await?,
                Delivery::Unreachable(why) => {
                    let append = &row.append;
                    tracing::warn!(space = %self.home, target = %append.target_space, why, "append not delivered; kept");
                    return Ok(());
                }
            }
        }
        self.owed = false;
        Ok(())
    }

    async fn attempt(&self, row: &OutboxRow) -> Delivery {
        let append = &row.append;
        let payload = match append.payload.to_value() {
            Ok(payload) => payload,
            Err(error) => return Delivery::Refused(error.to_string()),
        };
        let link = match append
            .target_stream_link
            .as_ref()
            .map(|link| link.to_value())
            .transpose()
        {
            Ok(link) => link,
            Err(error) => return Delivery::Refused(error.to_string()),
        };
        let admitted = self
            .shared
            .plane
            .commit_delegated_append(DelegatedAppend {
                target_space: append.target_space.clone(),
                target_stream: append.target_stream.clone(),
                target_stream_link: link,
                event_id: append.event_id.clone(),
                payload,
                acting_principal: append.acting_principal.clone(),
                acting_session: append.acting_session.clone(),
                sessionless_space_scope: append.sessionless_space_scope,
                capability_ref: append.capability_ref.clone(),
                session_id: self.shared.holder.session_id(),
                local_seq: self.shared.next_local_seq(),
            })
            .await;
        match admitted {
            // Above the horizon or not, it is there now.
            Ok(_) => Delivery::Acknowledged,
            Err(error) if error.is_deterministic() => Delivery::Refused(error.to_string()),
            Err(error) => Delivery::Unreachable(error.to_string()),
        }
    }

    async fn delete(&mut self, row_id: i64) -> Result<(), EngineError> {
        self.refused.remove(&row_id);
        self.engine
            .turn(move |engine| engine.delete_outbox_row(row_id))
            .await?
    }

    async fn refuse(&mut self, row: OutboxRow, reason: String) -> Result<(), EngineError> {
        self.shared.statistics.update(|s| s.outbox.failed += 1);
        if source_of(&row.append).is_none() {
            let append = &row.append;
            tracing::warn!(space = %self.home, event = %append.event_id, reason, "append refused; no entry to tell");
            return self.delete(row.row_id).await;
        }
        self.refused.insert(
            row.row_id,
            Refused {
                append: row.append,
                reason,
                sealed: false,
            },
        );
        Ok(())
    }

    // --- failure notices -----------------------------------------------------------------------------------------

    /// Seals the notices that are owed into the open wave (SS-914).
    pub(crate) async fn seal_notices(&mut self) -> Result<(), EngineError> {
        let owed: Vec<(i64, Refused)> = self
            .refused
            .iter()
            .filter(|(_, r)| !r.sealed)
            .map(|(id, r)| (*id, r.clone()))
            .collect();
        for (row_id, refused) in owed {
            let Some((sidecar, source)) = source_of(&refused.append) else {
                continue;
            };
            match self.seal_notice(&sidecar, &source, &refused).await {
                Ok(true) => {
                    if let Some(refused) = self.refused.get_mut(&row_id) {
                        refused.sealed = true;
                    }
                }
                Ok(false) => {
                    tracing::warn!(space = %self.home, event = %source, "append refused; its source entry is compacted");
                    self.delete(row_id).await?;
                }
                Err(error) => {
                    tracing::warn!(space = %self.home, event = %source, %error, "failure notice did not seal")
                }
            }
        }
        Ok(())
    }

    /// True when it sealed, false when there is no entry left to write to.
    async fn seal_notice(
        &self,
        sidecar: &EntityId,
        source: &EventId,
        refused: &Refused,
    ) -> Result<bool, RunnerError> {
        let document = Address::document(self.home.clone(), sidecar.clone(), Scope::Space);
        let storage = self.runtime.storage();
        self.runtime
            .wait_on(storage.sync_instance(&document, &storage.identity()))
            .await?;
        let view = storage
            .replica(&self.home)
            .get_document(sidecar, Scope::Space, None);
        let Some((index, mut entry)) = view
            .as_ref()
            .and_then(|view| newest_entry(view.member("value")?, source))
        else {
            return Ok(false);
        };
        entry.record_delivery_failure(DeliveryFailure {
            event_id: refused.append.event_id.clone(),
            target_space: refused.append.target_space.clone(),
            reason: refused.reason.clone(),
        });
        let tx = self
            .runtime
            .bookkeeping(&format!("{FAILURE_ACTION}{}", refused.append.event_id))?;
        let index = index.to_string();
        let written = entry.to_value();
        for field in ["deliveryFailures", "deliveryFailuresDropped"] {
            let value = written.member(field).cloned();
            if value.is_some()
                && let Err(error) = tx.write(&document.at(path(["value", "entries", &index, field])), value)
            {
                tx.abort(error.to_string());
                return Err(error);
            }
        }
        match tx.commit().peek() {
            Some(sealed) => sealed.map(|()| true).map_err(RunnerError::from),
            None => Err(RunnerError::Closed("wave destination")),
        }
    }

    /// A wave is over: rows whose notice landed with it retire, the others are owed again.
    pub(crate) async fn wave_over(&mut self, landed_actions: &[String]) -> Result<(), EngineError> {
        let sealed: Vec<(i64, String)> = self
            .refused
            .iter_mut()
            .filter_map(|(id, refused)| {
                let sealed = std::mem::take(&mut refused.sealed);
                sealed.then(|| (*id, format!("{FAILURE_ACTION}{}", refused.append.event_id)))
            })
            .collect();
        for (row_id, action) in sealed {
            if landed_actions.contains(&action) {
                self.delete(row_id).await?;
            }
        }
        Ok(())
    }
}

/// The entry whose handling emitted the append.
fn source_of(append: &OutboxAppend) -> Option<(EntityId, EventId)> {
    let source = append.source_event.as_ref()?.to_value().ok()?;
    let text = |field| source.member(field).and_then(Value::as_str);
    Some((text("sidecarId")?.into(), text("eventId")?.into()))
}

/// The newest entry of an event.
fn newest_entry(sidecar: &Value, event: &EventId) -> Option<(usize, StreamEntry)> {
    sidecar
        .member("entries")
        .and_then(Value::as_array)?
        .elements()
        .filter_map(|(index, entry)| Some((index, StreamEntry::from_value(entry)?)))
        .filter(|(_, entry)| entry.event_id == *event)
        .max_by_key(|(_, entry)| entry.seq)
}
