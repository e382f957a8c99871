//! Commits of other processes on the same data directory (SRV-442, ENG-208): taken in seq order in the space's turn,
//! they make instances dirty, may change access, and are reported like local ones.

use std::sync::{Arc, Weak};

use memory_engine::{Engine, EngineError, FeedRecord, Reader};
use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::EventId;
use memory_wire::well_known::is_stream_sidecar;
use memory_wire::{InstanceId, SessionId, Value};

use crate::acl;
use crate::server::Server;
use crate::serving_plane::{AdmittedCommit, EventAppendNotice};
use crate::space::Space;

impl Server {
    /// Looks for other processes' commits from now on, until the space is left.
    pub(crate) fn watch_foreign_commits(&self, space: &Arc<Space>) {
        if !space.begin_watching() {
            return;
        }
        let (server, watched): (Option<Weak<Server>>, _) = (
            self.shared().map(|server| Arc::downgrade(&server)),
            Arc::downgrade(space),
        );
        let Some(server) = server else { return };
        space
            .engine()
            .watch_foreign(Some(Box::new(move |engine, records| {
                if let (Some(server), Some(space)) = (server.upgrade(), watched.upgrade()) {
                    for record in records {
                        server.take_foreign(&space, engine, record);
                    }
                    server.schedule_flush(&space);
                }
            })));
    }

    fn take_foreign(&self, space: &Arc<Space>, engine: &mut Engine, record: FeedRecord) {
        let known = space.note_head(record.seq);
        let touches_list = record
            .writes
            .iter()
            .any(|write| acl::is_list(&write.id, space.id()));
        if touches_list || known.0 == 0 {
            space.access.forget();
        }
        space.mark(|batch| {
            for write in &record.writes {
                match record.class {
                    CommitClass::Derived => batch.mark_derived(write.clone()),
                    CommitClass::Authored | CommitClass::System => batch.mark_for_all(write.clone()),
                }
            }
        });
        if touches_list {
            let revoked = acl::revoke_after_list_change(self, space, engine.reader());
            revoked.into_iter().for_each(acl::Revocation::announce);
        }
        let event_appends = match record.class {
            CommitClass::Authored => appended_events(engine.reader(), &record).unwrap_or_else(|error| {
                tracing::warn!(space = %space.id(), seq = record.seq.0, %error, "appended events cannot be read");
                Vec::new()
            }),
            CommitClass::Derived | CommitClass::System => Vec::new(),
        };
        self.notify_admitted(&AdmittedCommit {
            space: space.id().clone(),
            seq: record.seq,
            class: record.class,
            holder: record.holder,
            session_id: SessionId::from(record.session_key),
            writes: record.writes,
            event_appends,
            warm: false,
        });
    }
}

/// The events a foreign commit appended: entries stamped with its seq.
fn appended_events(reader: &Reader, record: &FeedRecord) -> Result<Vec<EventAppendNotice>, EngineError> {
    let mut appended = Vec::new();
    for write in record.writes.iter().filter(|write| is_stream_sidecar(&write.id)) {
        let Some(value) = reader.read_space_value(&write.id)? else {
            continue;
        };
        let Some(entries) = value.member("entries").and_then(Value::as_array) else {
            continue;
        };
        for (_, entry) in entries.elements() {
            if entry.member("seq").and_then(Value::as_u64) == Some(record.seq.0)
                && let Some(event) = entry.member("eventId").and_then(Value::as_str)
            {
                appended.push(EventAppendNotice {
                    stream: InstanceId::new(write.id.clone(), write.scope_key.clone()),
                    event_id: EventId::from(event),
                });
            }
        }
    }
    Ok(appended)
}
