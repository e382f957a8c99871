//! The scheduler basis (ENG §8): what each action instance's last successful run read, and at which seq. Rows are
//! written only inside a wave ([`crate::WaveCommit`]); this room reads them.

use memory_wire::ids::{BranchName, EntityId, Seq, SpaceId};
use memory_wire::scope_key::ScopeKey;
use rusqlite::params;
use smol_str::SmolStr;

use crate::column;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::reader::Reader;
use crate::refusal::Refusal;

/// One action instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActionInstance {
    /// The action.
    pub action: SmolStr,
    /// Which instance of it.
    pub action_scope_key: ScopeKey,
}

/// One entity instance an action read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasisRow {
    /// The entity's space.
    pub entity_space: SpaceId,
    /// The entity.
    pub entity: EntityId,
    /// Its instance.
    pub entity_scope_key: ScopeKey,
    /// The seq it was read at, in its own space's numbering.
    pub seq: Seq,
}

/// What a wave records for one action instance: all its former rows go, these come (ENG-615). No rows clears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasisInstance {
    /// The action instance.
    pub instance: ActionInstance,
    /// What its run read.
    pub rows: Vec<BasisRead>,
}

/// A row to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasisRead {
    /// The entity's space.
    pub entity_space: SpaceId,
    /// The entity.
    pub entity: EntityId,
    /// Its instance.
    pub entity_scope_key: ScopeKey,
    /// The seq it was read at; `None` is the wave's own.
    pub seq: Option<Seq>,
}

/// Reads an action instance key that came as text (ENG-610 step 1).
///
/// # Errors
/// [`Refusal::BasisActionKey`].
pub fn parse_action_key(text: &str) -> Result<ScopeKey, EngineError> {
    Ok(ScopeKey::parse(text).map_err(|_| Refusal::BasisActionKey(text.to_owned()))?)
}

/// Reads a basis row's entity instance key that came as text (ENG-610 step 1).
///
/// # Errors
/// [`Refusal::BasisEntityKey`].
pub fn parse_entity_key(text: &str) -> Result<ScopeKey, EngineError> {
    Ok(ScopeKey::parse(text).map_err(|_| Refusal::BasisEntityKey(text.to_owned()))?)
}

impl Reader {
    /// The rows of one action instance, by entity space, entity and instance.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn basis_rows(
        &self,
        branch: &BranchName,
        instance: &ActionInstance,
    ) -> Result<Vec<BasisRow>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT entity_space, entity, entity_scope_key, seq FROM scheduler_basis \
             WHERE branch = ?1 AND action = ?2 AND action_scope_key = ?3 ORDER BY 1, 2, 3",
        )?;
        let mut rows = statement.query([
            branch.as_str(),
            instance.action.as_str(),
            instance.action_scope_key.as_str(),
        ])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(basis_row(row, 0)?);
        }
        Ok(found)
    }

    /// The action instances that read something of `own` space which has moved since (ENG-800). An entity that was never
    /// written counts as seq 0; a deleted one has its tombstone's.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn stale_basis_instances(
        &self,
        branch: &BranchName,
        own: &SpaceId,
    ) -> Result<Vec<ActionInstance>, EngineError> {
        self.action_instances(
            "SELECT DISTINCT b.action, b.action_scope_key FROM scheduler_basis b LEFT JOIN head h \
             ON h.branch = b.branch AND h.id = b.entity AND h.scope_key = b.entity_scope_key \
             WHERE b.branch = ?1 AND b.entity_space = ?2 AND COALESCE(h.seq, 0) > b.seq ORDER BY 1, 2",
            branch,
            own,
        )
    }

    /// The action instances that read something of another space.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn foreign_read_instances(
        &self,
        branch: &BranchName,
        own: &SpaceId,
    ) -> Result<Vec<ActionInstance>, EngineError> {
        self.action_instances(
            "SELECT DISTINCT action, action_scope_key FROM scheduler_basis \
             WHERE branch = ?1 AND entity_space <> ?2 ORDER BY 1, 2",
            branch,
            own,
        )
    }

    /// The rows about other spaces in full, to be compared with those spaces' heads.
    ///
    /// # Errors
    /// SQLite's and stored-data errors.
    pub fn foreign_basis_rows(
        &self,
        branch: &BranchName,
        own: &SpaceId,
    ) -> Result<Vec<(ActionInstance, BasisRow)>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT action, action_scope_key, entity_space, entity, entity_scope_key, seq FROM scheduler_basis \
             WHERE branch = ?1 AND entity_space <> ?2 ORDER BY 1, 2, 3, 4, 5",
        )?;
        let mut rows = statement.query([branch.as_str(), own.as_str()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push((action_instance(row)?, basis_row(row, 2)?));
        }
        Ok(found)
    }

    fn action_instances(
        &self,
        query: &str,
        branch: &BranchName,
        own: &SpaceId,
    ) -> Result<Vec<ActionInstance>, EngineError> {
        let mut statement = self.conn.prepare_cached(query)?;
        let mut rows = statement.query([branch.as_str(), own.as_str()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(action_instance(row)?);
        }
        Ok(found)
    }
}

impl Engine {
    /// Replaces the rows of the given action instances (ENG-615). Called by a wave, inside its transaction.
    pub(crate) fn record_basis(
        &self,
        branch: &BranchName,
        wave_seq: Seq,
        instances: &[BasisInstance],
    ) -> Result<(), EngineError> {
        let mut clear = self.conn.prepare_cached(
            "DELETE FROM scheduler_basis WHERE branch = ?1 AND action = ?2 AND action_scope_key = ?3",
        )?;
        let mut insert = self.conn.prepare_cached(
            "INSERT OR REPLACE INTO scheduler_basis \
             (branch, action, action_scope_key, entity_space, entity, entity_scope_key, seq) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for BasisInstance {
            instance: ActionInstance {
                action,
                action_scope_key,
            },
            rows,
        } in instances
        {
            clear.execute([branch.as_str(), action.as_str(), action_scope_key.as_str()])?;
            for row in rows {
                insert.execute(params![
                    branch.as_str(),
                    action.as_str(),
                    action_scope_key.as_str(),
                    row.entity_space.as_str(),
                    row.entity.as_str(),
                    row.entity_scope_key.as_str(),
                    column::sql(row.seq.unwrap_or(wave_seq))
                ])?;
            }
        }
        Ok(())
    }
}

fn action_instance(row: &rusqlite::Row<'_>) -> Result<ActionInstance, EngineError> {
    Ok(ActionInstance {
        action: SmolStr::new(column::text(row, 0)?),
        action_scope_key: column::scope_key(row, 1)?,
    })
}

fn basis_row(row: &rusqlite::Row<'_>, from: usize) -> Result<BasisRow, EngineError> {
    Ok(BasisRow {
        entity_space: column::text(row, from)?.into(),
        entity: column::text(row, from + 1)?.into(),
        entity_scope_key: column::scope_key(row, from + 2)?,
        seq: column::seq(row, from + 3)?,
    })
}
