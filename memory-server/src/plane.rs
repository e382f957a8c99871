//! [`ServingPlane`] of [`Server`]: each method hands over to the room of what it does.

use std::sync::Arc;

use memory_engine::EngineHandle;
use memory_engine::sqlite_builtin::CellDatabases;
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::ReadCeiling;
use memory_wire::{Did, SessionId, SpaceId};

use crate::acl;
use crate::error::ServerError;
use crate::server::Server;
use crate::serving_plane::{
    AdmittedCommit, Appended, Authority, DelegatedAppend, DemandRow, DemandSizes, Observer, PlaneFuture,
    ServedAclChange, ServedAclOutcome, ServingPlane,
};
use crate::statistics::{PushStats, Verdict};
use crate::views::{self, ViewHandle, ViewInterestRow, ViewSelection};
use crate::{delegated_append, demand, foreign_authority, served_acl};

impl Server {
    fn me(&self) -> Result<Arc<Server>, ServerError> {
        self.shared()
            .ok_or_else(|| ServerError::TaskLost("the server is being dropped".into()))
    }
}

impl ServingPlane for Server {
    fn engine(&self, space: &SpaceId) -> Result<EngineHandle, ServerError> {
        let space = self.open_space(space)?;
        space.pin();
        self.watch_foreign_commits(&space);
        Ok(space.engine().clone())
    }

    fn set_observer(&self, observer: Option<Arc<dyn Observer>>) {
        self.install_observer(observer);
    }

    fn note_executor_commit(&self, notice: AdmittedCommit) {
        let Some(space) = self.find_space(&notice.space) else {
            return;
        };
        let known = space.note_head(notice.seq);
        // The first commit of a space changes what a missing list means (§8.2).
        if known.0 == 0
            || notice
                .writes
                .iter()
                .any(|write| acl::is_list(&write.id, space.id()))
        {
            space.access.forget();
        }
        let derived = notice.class == CommitClass::Derived;
        space.mark(|batch| {
            for write in &notice.writes {
                if derived {
                    batch.mark_derived(write.clone())
                } else {
                    batch.mark_for_all(write.clone())
                }
            }
        });
        self.statistics().count_commit(notice.class, Verdict::Accepted);
        self.notify_admitted(&notice);
        if let Some(server) = self.shared() {
            server.schedule_flush(&space);
        }
    }

    fn has_live_sessions(&self, space: &SpaceId, exclude: Option<&Did>) -> bool {
        let now = self.config().clock.monotonic_ms();
        self.find_space(space)
            .is_some_and(|space| demand::has_live(&mut space.registry.lock(), now, exclude))
    }

    fn has_live_session_for(&self, space: &SpaceId, principal: &Did, session: &SessionId) -> bool {
        let now = self.config().clock.monotonic_ms();
        self.find_space(space).is_some_and(|space| {
            demand::has_live_session(&mut space.registry.lock(), now, principal, session)
        })
    }

    fn demanded_instances(&self, space: &SpaceId, exclude: Option<&Did>) -> Vec<DemandRow> {
        let now = self.config().clock.monotonic_ms();
        self.find_space(space).map_or_else(Vec::new, |space| {
            demand::rows(&mut space.registry.lock(), now, exclude)
        })
    }

    fn demand_set_sizes(&self, space: &SpaceId, exclude: Option<&Did>) -> DemandSizes {
        let now = self.config().clock.monotonic_ms();
        self.find_space(space).map_or_else(DemandSizes::default, |space| {
            demand::sizes(&mut space.registry.lock(), now, exclude)
        })
    }

    fn commit_delegated_append(
        &self,
        append: DelegatedAppend,
    ) -> PlaneFuture<'_, Result<Appended, ServerError>> {
        Box::pin(async move { delegated_append::append(&self.me()?, append).await })
    }

    fn cell_databases(&self) -> Arc<CellDatabases> {
        Arc::clone(self.cells())
    }

    fn foreign_write_authority(
        &self,
        space: &SpaceId,
        principal: Option<&Did>,
    ) -> Result<Authority, ServerError> {
        if let Some(decided) = foreign_authority::before_list(space, principal) {
            return Ok(decided);
        }
        let Some(principal) = principal else {
            return Ok(foreign_authority::nobody());
        };
        if !self.space_exists(space)? {
            return Ok(foreign_authority::creation());
        }
        let open = self.open_space(space)?;
        let id = memory_wire::well_known::acl_document_id(space);
        let list = open
            .engine()
            .read(move |reader| acl::read_list(reader, &id))
            .wait()??;
        Ok(foreign_authority::by_list(space, &list, principal))
    }

    fn note_lease_reacquired(&self, space: &SpaceId, principal: &Did) {
        let Some(space) = self.find_space(space) else {
            return;
        };
        let lapsed = space.registry.lock().iter().any(|(_, session)| {
            session.principal.as_ref() == Some(principal) && session.lease_reads && session.lease_reads_lapsed
        });
        if lapsed {
            // An empty key set: only the lapsed sessions, which are owed a visit, do work (SRV-609).
            space.mark(|_| ());
            if let Some(server) = self.shared() {
                server.schedule_flush(&space);
            }
        }
    }

    fn session_read_ceiling(&self, space: &SpaceId, session: &SessionId) -> Option<ReadCeiling> {
        self.declared_ceiling(space, session)
    }

    fn view_interests(&self, space: &SpaceId) -> Vec<ViewInterestRow> {
        let now = self.config().clock.monotonic_ms();
        self.find_space(space)
            .map_or_else(Vec::new, |space| views::interests(&space, now))
    }

    fn set_view_selection(
        &self,
        space: &SpaceId,
        handle: ViewHandle,
        selection: ViewSelection,
    ) -> PlaneFuture<'_, Result<bool, ServerError>> {
        let space = space.clone();
        Box::pin(async move { views::select(&self.me()?, &space, handle, selection).await })
    }

    fn flush(&self, spaces: Option<&[SpaceId]>) -> PlaneFuture<'_, Result<(), ServerError>> {
        let spaces = spaces.map(<[SpaceId]>::to_vec);
        Box::pin(async move { self.me()?.flush_spaces(spaces.as_deref()).await })
    }

    fn idle(&self) -> PlaneFuture<'_, Result<(), ServerError>> {
        Box::pin(async move { self.me()?.settle().await })
    }

    fn push_priority_stats(&self) -> PushStats {
        self.statistics().push()
    }

    fn check_served_acl_change(&self, change: ServedAclChange) -> PlaneFuture<'_, Result<(), ServerError>> {
        Box::pin(async move { served_acl::check(&self.me()?, change).await })
    }

    fn commit_served_acl_change(
        &self,
        change: ServedAclChange,
    ) -> PlaneFuture<'_, Result<ServedAclOutcome, ServerError>> {
        Box::pin(async move { served_acl::commit(&self.me()?, change).await })
    }
}
