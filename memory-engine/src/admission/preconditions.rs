//! Preconditions (ENG §3.4): what has to hold beside the reads. Scopes resolve against the envelope. Step 8.

use memory_wire::hash;
use memory_wire::ids::{LocalSeq, Seq};
use memory_wire::message::Precondition;
use memory_wire::scope_key::InstanceId;
use rusqlite::OptionalExtension;

use super::Admission;
use crate::error::EngineError;

impl Admission<'_, '_> {
    pub(crate) fn check_precondition(&self, precondition: &Precondition) -> Result<(), EngineError> {
        match precondition {
            Precondition::OriginCommitted { origin_local_seq } => {
                match self.committed_at(*origin_local_seq)? {
                    Some(_) => Ok(()),
                    None => Err(EngineError::OriginNotCommitted {
                        origin: *origin_local_seq,
                    }),
                }
            }
            Precondition::EntityAbsent { id, scope } => {
                if self.was_set_or_deleted(&self.own_instance(id, *scope)?)? {
                    return Err(EngineError::ReceiptExists { id: id.clone() });
                }
                Ok(())
            }
            Precondition::EntityValueHash {
                id,
                scope,
                value_hash,
            } => {
                let document = self
                    .engine
                    .current(&self.own_instance(id, *scope)?, self.branch())?;
                let value = document
                    .as_ref()
                    .and_then(|d| d.as_object())
                    .and_then(|d| d.get("value"));
                let current = value.map(hash::precondition_value_hash).transpose()?;
                if current != *value_hash {
                    return Err(EngineError::ValueHashChanged { id: id.clone() });
                }
                Ok(())
            }
        }
    }

    /// The seq at which this session key's commit `local_seq` was accepted.
    pub(super) fn committed_at(&self, local_seq: LocalSeq) -> Result<Option<Seq>, EngineError> {
        self.engine.reader().committed_at(&self.session_key, local_seq)
    }

    /// ENG-321: an entity built only by patches counts as absent, a deleted one as existing; parents are not asked.
    fn was_set_or_deleted(&self, instance: &InstanceId) -> Result<bool, EngineError> {
        let mut statement = self.engine.conn.prepare_cached(
            "SELECT 1 FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND op IN ('set', 'delete') LIMIT 1",
        )?;
        let address = [
            self.branch().as_str(),
            instance.id.as_str(),
            instance.scope_key.as_str(),
        ];
        Ok(statement.query_row(address, |_| Ok(())).optional()?.is_some())
    }
}
