//! Who may commit what (ENG §4): the lease and envelope of derived commits, the carriage each class may have, the
//! addresses of derived writes, the carried actor of delegated ones. Steps 3, 4 and 7.

use memory_wire::commit_meta::CommitClass;
use memory_wire::message::Operation;
use memory_wire::scope_key::{Scope, ScopeKey};
use memory_wire::well_known::acl_document_id;

use super::Admission;
use crate::error::EngineError;
use crate::refusal::Refusal;

/// Reads an annotation's address that came as text (ENG-420).
///
/// # Errors
/// [`Refusal::AnnotationNotCanonical`].
pub fn parse_annotation_key(op: usize, text: &str) -> Result<ScopeKey, EngineError> {
    Ok(
        ScopeKey::parse(text).map_err(|_| Refusal::AnnotationNotCanonical {
            key: text.to_owned(),
            op,
        })?,
    )
}

impl Admission<'_, '_> {
    /// Step 3.
    pub(super) fn check_class(&self) -> Result<(), EngineError> {
        let apply = self.apply;
        match apply.class {
            CommitClass::Derived => {
                self.check_lease()?;
                if apply.delegated.is_some() {
                    return Err(Refusal::DelegatedDerived.into());
                }
                self.check_acl_untouched()
            }
            CommitClass::Authored | CommitClass::System => {
                // Present is enough: an empty array is carriage too (ENG-415).
                if apply.annotations.is_some()
                    || apply.consequence_of.is_some()
                    || apply.derived_through.is_some()
                {
                    return Err(Refusal::DerivedCarriage.into());
                }
                self.check_delegated()
            }
        }
    }

    /// ENG-411, 412.
    pub(crate) fn check_lease(&self) -> Result<(), EngineError> {
        let (Some(space), Some(holder)) = (self.apply.space, self.apply.holder) else {
            return Err(Refusal::NoLiveLease.into());
        };
        if self
            .engine
            .reader()
            .live_holder(space, self.apply.now_ms)?
            .as_ref()
            != Some(holder)
        {
            return Err(Refusal::NoLiveLease.into());
        }
        if self.session_key != holder.as_str() {
            return Err(Refusal::ForeignEnvelope.into());
        }
        Ok(())
    }

    /// ENG-414: no derived commit writes the access list, in any mode, scope or branch.
    pub(crate) fn check_acl_untouched(&self) -> Result<(), EngineError> {
        let Some(space) = self.apply.space else {
            return Ok(());
        };
        let list = acl_document_id(space);
        let touches = |operation: &Operation| operation.target().is_some_and(|(id, _)| *id == list);
        if self.apply.commit.operations.iter().any(touches) {
            return Err(Refusal::DerivedAclWrite.into());
        }
        Ok(())
    }

    /// ENG-430…433.
    fn check_delegated(&self) -> Result<(), EngineError> {
        let Some(delegated) = self.apply.delegated else {
            return Ok(());
        };
        if self.apply.class != CommitClass::Authored {
            return Err(Refusal::DelegatedClass.into());
        }
        if delegated.capability_ref.is_empty() {
            return Err(Refusal::DelegatedWithoutCapability.into());
        }
        let principal = delegated.acting_principal.as_ref().is_some_and(|p| !p.is_empty());
        let session = delegated.acting_session.as_ref().is_some_and(|s| !s.is_empty());
        match (principal, delegated.sessionless_space_scope) {
            (false, false) => Err(Refusal::DelegatedWithoutPrincipal.into()),
            (false, true) if session => Err(Refusal::DelegatedContradiction("session").into()),
            (true, true) => Err(Refusal::DelegatedContradiction("principal").into()),
            (false, true) | (true, false) => Ok(()),
        }
    }

    /// Step 4: every scoped write of a derived commit is addressed explicitly, and only those (ENG-420).
    pub(super) fn check_addresses(&self) -> Result<(), EngineError> {
        if self.apply.class != CommitClass::Derived {
            return Ok(());
        }
        for (op, operation) in self.apply.commit.operations.iter().enumerate() {
            let Some((_, scope)) = operation.target() else {
                continue;
            };
            match (scope, self.annotated_key(op)) {
                (Scope::Space, Some(key)) => {
                    return Err(Refusal::AnnotationOnSpaceWrite {
                        key: key.to_string(),
                        op,
                    }
                    .into());
                }
                (Scope::Space, None) => {}
                (_, None) => return Err(Refusal::AnnotationMissing { op, scope }.into()),
                (_, Some(key)) if key.scope() != scope => {
                    return Err(Refusal::AnnotationScopeMismatch {
                        key: key.to_string(),
                        scope,
                        op,
                    }
                    .into());
                }
                (_, Some(_)) => {}
            }
        }
        Ok(())
    }

    /// The address annotated for an operation.
    pub(super) fn annotated_key(&self, op: usize) -> Option<&ScopeKey> {
        let mut annotations = self.apply.annotations.into_iter().flatten();
        annotations
            .find(|annotation| annotation.op == op)
            .and_then(|annotation| annotation.scope_key.as_ref())
    }

    /// Step 7: an actor without session (or user) has no session (or user) instance (ENG-434).
    pub(super) fn check_delegated_scopes(&self) -> Result<(), EngineError> {
        let Some(delegated) = self.apply.delegated else {
            return Ok(());
        };
        if delegated.acting_session.as_ref().is_some_and(|s| !s.is_empty()) {
            return Ok(());
        }
        let userless = delegated.acting_principal.as_ref().is_none_or(|p| p.is_empty());
        for operation in &self.apply.commit.operations {
            let (scope, what) = match operation {
                Operation::Set { scope, .. }
                | Operation::Patch { scope, .. }
                | Operation::Delete { scope, .. } => (*scope, "write"),
                Operation::Sqlite { db, .. } => (db.scope.unwrap_or_default(), "SQLite write"),
            };
            match scope {
                Scope::Session => return Err(Refusal::DelegatedSessionWrite(what).into()),
                Scope::User if userless => return Err(Refusal::DelegatedUserWrite(what).into()),
                Scope::User | Scope::Space => {}
            }
        }
        Ok(())
    }
}
