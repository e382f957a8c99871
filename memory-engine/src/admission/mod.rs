//! Commit admission (ENG §3): one function, [`Engine::apply_commit`], and the order of its steps (ENG-300), which is
//! observable: the first failure decides the error. Each step lives in the room named for it.

mod classes;
mod conflicts;
mod content_addressed;
mod depth;
mod operations;
mod preconditions;
pub(crate) mod references;
mod replay;
mod texts;

use memory_wire::commit_meta::{CommitClass, Delegated, WriteAnnotation};
use memory_wire::ids::{BranchName, Did, EventId, Seq, SessionId, SpaceId};
use memory_wire::message::{ClientCommit, Operation, SqliteDb};
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey, session_key};
use memory_wire::value::Value;
use rusqlite::Connection;

use crate::branch::BranchStatus;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events;
use crate::lease::Holder;
use crate::refusal::Refusal;

pub use classes::parse_annotation_key;
/// The verdict of an admitted commit: its seq and what was stored. A replay is answered from the store.
pub use memory_wire::message::AppliedCommit as Applied;
pub use texts::CommitTexts;

/// Executes the SQLite operations of one commit, inside its transaction (ENG-353). Whoever attaches the databases
/// implements it; a commit without SQLite operations needs none.
pub trait SqliteOperations {
    /// Runs operation `op_index`, a statement against the database `db`, on the store's own connection.
    ///
    /// # Errors
    /// Any error rolls back the whole commit.
    fn execute(
        &mut self,
        conn: &Connection,
        op_index: usize,
        db: &SqliteDb,
        sql: &str,
        params: Option<&Value>,
    ) -> Result<(), EngineError>;
}

/// A commit to admit, with what the admission path knows about it. Nothing here comes from the client but `commit`.
pub struct ApplyCommit<'a> {
    /// The session it is filed under.
    pub session_id: &'a SessionId,
    /// Who is authenticated; absent or empty for an anonymous session.
    pub principal: Option<&'a Did>,
    /// The space, needed by derived commits for the lease lookup.
    pub space: Option<&'a SpaceId>,
    /// The commit as received.
    pub commit: &'a ClientCommit,
    /// Its texts, if the caller has worked them out.
    pub texts: Option<&'a CommitTexts>,
    /// Chosen by the caller's path, never by the client.
    pub class: CommitClass,
    /// Lease holder of a derived commit; inert on other classes.
    pub holder: Option<&'a Holder>,
    /// Addressing and attribution of a derived commit's writes.
    pub annotations: Option<&'a [WriteAnnotation]>,
    /// Events a derived commit consumed.
    pub consequence_of: Option<&'a [EventId]>,
    /// Watermark a derived commit carries.
    pub derived_through: Option<Seq>,
    /// Carried actor of a server-produced authored commit.
    pub delegated: Option<&'a Delegated>,
    /// Executes SQLite operations.
    pub sqlite: Option<&'a mut dyn SqliteOperations>,
    /// Accept a commit without operations or preconditions.
    pub allow_empty_operations: bool,
    /// Wall clock, Unix milliseconds; used for lease liveness and nothing else (ENG-1).
    pub now_ms: i64,
}

impl<'a> ApplyCommit<'a> {
    /// A session's own commit; other classes set the fields they need.
    pub fn authored(
        session_id: &'a SessionId,
        principal: Option<&'a Did>,
        commit: &'a ClientCommit,
        now_ms: i64,
    ) -> ApplyCommit<'a> {
        ApplyCommit {
            session_id,
            principal,
            space: None,
            commit,
            texts: None,
            class: CommitClass::Authored,
            holder: None,
            annotations: None,
            consequence_of: None,
            derived_through: None,
            delegated: None,
            sqlite: None,
            allow_empty_operations: false,
            now_ms,
        }
    }

    /// The server's own direct write (ENG-400).
    pub fn system(session_id: &'a SessionId, commit: &'a ClientCommit, now_ms: i64) -> ApplyCommit<'a> {
        ApplyCommit {
            class: CommitClass::System,
            ..ApplyCommit::authored(session_id, None, commit, now_ms)
        }
    }

    /// The key the commit is filed and replayed under (ENG-161).
    pub fn session_key(&self) -> String {
        session_key(self.principal.filter(|p| !p.is_empty()), self.session_id)
    }
}

/// A commit on its way through the steps.
pub(crate) struct Admission<'e, 'a> {
    pub(crate) engine: &'e Engine,
    pub(crate) apply: &'e ApplyCommit<'a>,
    /// Column `session_id`.
    pub(crate) session_key: String,
    /// The identity of the connection.
    pub(crate) envelope: ScopeIdentity,
    /// The identity scoped rows are keyed by: the carried actor's, else the connection's (ENG-352).
    pub(crate) actor: ScopeIdentity,
}

impl Engine {
    /// Admits a commit, or answers it from the store if it was admitted before (ENG-300). All or nothing.
    ///
    /// # Errors
    /// The first step that fails decides; the store is then as before.
    pub fn apply_commit(&mut self, mut apply: ApplyCommit<'_>) -> Result<Applied, EngineError> {
        let sqlite = apply.sqlite.take();
        self.commit_transaction(|engine| engine.admit(&apply, sqlite))
    }

    /// The steps, inside an open transaction.
    pub(crate) fn admit(
        &self,
        apply: &ApplyCommit<'_>,
        sqlite: Option<&mut dyn SqliteOperations>,
    ) -> Result<Applied, EngineError> {
        let commit = apply.commit;
        let admission = Admission::new(self, apply);

        // 1
        if apply.class == CommitClass::Derived && !self.options().serving {
            return Err(Refusal::DerivedWhileOff.into());
        }
        // 2
        let unprepared = CommitTexts::default();
        let texts = apply.texts.unwrap_or(&unprepared);
        let original = texts.original(commit)?;
        if let Some(answer) = admission.replay(&original)? {
            return Ok(answer);
        }
        // 3, 4
        admission.check_class()?;
        admission.check_addresses()?;
        // 5
        if commit.operations.is_empty() && commit.preconditions.is_empty() && !apply.allow_empty_operations {
            return Err(EngineError::EmptyCommit);
        }
        // 6
        // The default branch is always there and cannot be deleted (ENG-910).
        if !commit.branch.is_empty() && self.branch(&commit.branch)?.status != BranchStatus::Active {
            return Err(EngineError::BranchNotActive(commit.branch.clone()));
        }
        // 7
        admission.check_delegated_scopes()?;
        // 8
        for precondition in &commit.preconditions {
            admission.check_precondition(precondition)?;
        }
        // 9
        let elided = admission.check_content_addressed()?;
        admission.check_schema_references()?;
        // 10, 11
        admission.check_confirmed_reads()?;
        let layers = admission.check_pending_reads()?;
        // 12
        let stamps = events::admit_appends(&admission)?;
        // 13 … 19
        let plan = operations::Plan {
            original: &original,
            texts,
            layers: &layers,
            elided,
            stamps: &stamps,
        };
        admission.write(plan, sqlite)
    }
}

impl<'e, 'a> Admission<'e, 'a> {
    pub(crate) fn new(engine: &'e Engine, apply: &'e ApplyCommit<'a>) -> Self {
        let principal = apply.principal.filter(|p| !p.is_empty()).cloned();
        let session_id = Some(apply.session_id.clone()).filter(|s| !s.is_empty());
        let envelope = ScopeIdentity {
            principal,
            session_id,
        };
        let actor = match apply.delegated {
            Some(delegated) => ScopeIdentity {
                principal: delegated.acting_principal.clone().filter(|p| !p.is_empty()),
                session_id: delegated
                    .acting_session
                    .clone()
                    .filter(|s| !s.is_empty())
                    .or_else(|| envelope.session_id.clone()),
            },
            None => envelope.clone(),
        };
        Admission {
            engine,
            apply,
            session_key: apply.session_key(),
            envelope,
            actor,
        }
    }

    pub(crate) fn branch(&self) -> &'e BranchName {
        &self.apply.commit.branch
    }

    /// An instance of the envelope's own, as reads and preconditions name it.
    pub(crate) fn own_instance(
        &self,
        id: &memory_wire::EntityId,
        scope: Scope,
    ) -> Result<InstanceId, EngineError> {
        Ok(InstanceId {
            id: id.clone(),
            scope_key: ScopeKey::resolve(scope, &self.envelope)?,
        })
    }

    /// The instance an operation writes (ENG-352); `None` for a SQLite statement.
    pub(crate) fn target(
        &self,
        index: usize,
        operation: &Operation,
    ) -> Result<Option<InstanceId>, EngineError> {
        let Some((id, scope)) = operation.target() else {
            return Ok(None);
        };
        let scope_key = match (scope, self.apply.class) {
            (Scope::Space, _) => ScopeKey::space(),
            (Scope::User | Scope::Session, CommitClass::Derived) => self
                .annotated_key(index)
                .cloned()
                .ok_or(Refusal::AnnotationMissing { op: index, scope })?,
            (Scope::User | Scope::Session, CommitClass::Authored | CommitClass::System) => {
                ScopeKey::resolve(scope, &self.actor)?
            }
        };
        Ok(Some(InstanceId {
            id: id.clone(),
            scope_key,
        }))
    }
}
