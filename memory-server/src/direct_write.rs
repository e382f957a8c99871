//! The server's own writes and unauthenticated reads of single documents (SRV-814, SRV-815). Only the blob routes use
//! them; a new caller is a matter of specification.

use std::sync::Arc;

use memory_engine::{Applied, ApplyCommit, Engine};
use memory_wire::commit_meta::CommitClass;
use memory_wire::message::{ClientCommit, CommitParts, Operation};
use memory_wire::well_known::acl_document_id;
use memory_wire::{EntityId, InstanceId, Object, Scope, SpaceId, Value, WireError};

use crate::acl::{AccessState, ListState};
use crate::error::ServerError;
use crate::server::Server;
use crate::serving_plane::AdmittedCommit;
use crate::space::Space;
use crate::statistics::Verdict;

impl Server {
    /// Sets the value of a space-scoped document as a `system` commit, in the space's turn.
    ///
    /// # Errors
    /// `ProtocolError` when access control is active and the space's list does not admit direct writes; whatever the
    /// store refuses.
    pub async fn write_document(
        self: &Arc<Server>,
        space: &SpaceId,
        id: &EntityId,
        value: Value,
    ) -> Result<Applied, ServerError> {
        if self.config().acl.mode.is_active() && !self.space_exists(space)? {
            // What is refused for want of a list must not leave a store behind: nobody has signed this.
            let unfounded = AccessState {
                list: ListState::Missing,
                empty: true,
            };
            check_list(space, &unfounded, id)?;
        }
        let space = self.open_space(space)?;
        let mut document = Object::new();
        document.insert("value", value);
        let commit = ClientCommit::build(
            self.next_local_seq(),
            CommitParts {
                operations: vec![Operation::Set {
                    id: id.clone(),
                    scope: Scope::Space,
                    value: Value::Object(document),
                }],
                ..CommitParts::default()
            },
        );
        let (server, turn_space, id) = (Arc::clone(self), Arc::clone(&space), id.clone());
        space
            .in_turn(move |engine| server.write_in_turn(&turn_space, engine, &id, &commit))
            .await?
    }

    fn write_in_turn(
        self: &Arc<Server>,
        space: &Arc<Space>,
        engine: &mut Engine,
        id: &EntityId,
        commit: &ClientCommit,
    ) -> Result<Applied, ServerError> {
        let mut first = false;
        if self.config().acl.mode.is_active() {
            let state = space.access.state_by(space, engine.reader())?;
            check_list(space.id(), &state, id)?;
            first = state.empty;
        }
        let apply = ApplyCommit::system(self.own_session(), commit, self.config().clock.wall_ms());
        let applied = engine.apply_commit(apply)?;
        space.note_head(applied.seq);
        if first {
            space.access.forget();
        }
        let key = InstanceId::space(id.clone());
        if !applied.revisions.is_empty() {
            space.mark(|batch| batch.mark_for_all(key.clone()));
            self.schedule_flush(space);
        }
        self.statistics()
            .count_commit(CommitClass::System, Verdict::of(&applied));
        self.notify_admitted(&AdmittedCommit {
            space: space.id().clone(),
            seq: applied.seq,
            class: CommitClass::System,
            holder: None,
            session_id: self.own_session().clone(),
            // Unlike a transact's, also when the write was elided.
            writes: vec![key],
            event_appends: Vec::new(),
            warm: false,
        });
        Ok(applied)
    }

    /// The value of a space-scoped document, or `None` when it was never written or is deleted. Creates no store.
    ///
    /// # Errors
    /// The store's.
    pub async fn read_document(
        self: &Arc<Server>,
        space: &SpaceId,
        id: &EntityId,
    ) -> Result<Option<Value>, ServerError> {
        if !self.space_exists(space)? {
            return Ok(None);
        }
        let space = self.open_space(space)?;
        let id = id.clone();
        space.read(move |reader| reader.read_space_value(&id)).await
    }
}

fn check_list(space: &SpaceId, state: &AccessState, id: &EntityId) -> Result<(), WireError> {
    if *id == acl_document_id(space) {
        return Err(WireError::protocol(
            "direct writes may not mutate the ACL document",
        ));
    }
    match state.list {
        ListState::Invalid => Err(WireError::protocol(format!(
            "space {space} has invalid ACL state"
        ))),
        ListState::Missing if state.empty => Err(WireError::protocol(format!(
            "space {space} requires an ACL genesis commit before direct writes"
        ))),
        ListState::Missing | ListState::Valid(_) => Ok(()),
    }
}
