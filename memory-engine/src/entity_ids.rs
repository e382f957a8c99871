//! Which entities a space holds (ENG-905): live space instances of the default branch, in the order of their bytes.

use memory_wire::ids::EntityId;
use rusqlite::{OptionalExtension, params};

use crate::column;
use crate::error::EngineError;
use crate::reader::Reader;

impl Reader {
    /// Every live id.
    ///
    /// # Errors
    /// SQLite's.
    pub fn list_entity_ids(&self) -> Result<Vec<EntityId>, EngineError> {
        self.entity_id_page(None, None)
    }

    /// At most `limit` live ids after `after`, which itself is left out. Page limits are the server's business.
    ///
    /// # Errors
    /// SQLite's.
    pub fn entity_id_page(
        &self,
        after: Option<&EntityId>,
        limit: Option<u64>,
    ) -> Result<Vec<EntityId>, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT id FROM head WHERE branch = '' AND scope_key = 'space' AND op <> 'delete' \
             AND (?1 IS NULL OR id > ?1) ORDER BY id LIMIT ?2",
        )?;
        let limit = limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
        let mut rows = statement.query(params![after.map(EntityId::as_str), limit])?;
        let mut ids = Vec::new();
        while let Some(row) = rows.next()? {
            ids.push(column::text(row, 0)?.into());
        }
        Ok(ids)
    }

    /// Whether `id` is live.
    ///
    /// # Errors
    /// SQLite's.
    pub fn entity_id_exists(&self, id: &EntityId) -> Result<bool, EngineError> {
        let mut statement = self.conn.prepare_cached(
            "SELECT 1 FROM head WHERE branch = '' AND id = ?1 AND scope_key = 'space' AND op <> 'delete'",
        )?;
        Ok(statement
            .query_row([id.as_str()], |_| Ok(()))
            .optional()?
            .is_some())
    }
}
