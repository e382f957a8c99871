//! Whose a cell database's file is. Its name is made of hashes of 32 bits (ENG-1403): whoever tries enough keys finds a space
//! whose files are called as another's. So a file says in its header, in 64 bits that cannot be chosen, which instance it
//! belongs to. A file that says nothing (another implementation made it) is its first writer's.

use memory_wire::hash::hash_value;
use memory_wire::ids::SpaceId;
use memory_wire::scope_key::ScopeKey;
use memory_wire::value;
use rusqlite::Connection;

use super::table::quoted;
use crate::error::EngineError;

/// The two integers SQLite keeps for applications in a database's header; zero where nobody has set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seal([i32; 2]);

const FIELDS: [&str; 2] = ["application_id", "user_version"];

impl Seal {
    const UNSET: Seal = Seal([0, 0]);

    /// The seal of an instance's database.
    pub(super) fn of(space: &SpaceId, db: &str, scope_key: &ScopeKey) -> Seal {
        let instance = value!([(space.as_str()), db, (scope_key.as_str())]);
        let [a, b, c, d, e, f, g, h, ..] = hash_value(&instance);
        // The lowest bit keeps it apart from no seal.
        Seal([
            i32::from_be_bytes([a, b, c, d | 1]),
            i32::from_be_bytes([e, f, g, h]),
        ])
    }

    fn found(conn: &Connection, schema: &str) -> Result<Seal, EngineError> {
        let read = |field: &str| conn.pragma_query_value(Some(schema), field, |row| row.get(0));
        Ok(Seal([read(FIELDS[0])?, read(FIELDS[1])?]))
    }

    /// Checks that a database may be this instance's.
    ///
    /// # Errors
    /// [`EngineError::SqliteOfAnother`].
    pub(super) fn check(self, conn: &Connection, schema: &str) -> Result<(), EngineError> {
        let found = Seal::found(conn, schema)?;
        if found == self || found == Seal::UNSET {
            return Ok(());
        }
        Err(EngineError::SqliteOfAnother)
    }

    /// As [`Seal::check`]; a file without a seal gets this one. Outside any transaction.
    pub(super) fn claim(self, conn: &Connection, schema: &str) -> Result<(), EngineError> {
        let found = Seal::found(conn, schema)?;
        if found == self {
            return Ok(());
        }
        if found != Seal::UNSET {
            return Err(EngineError::SqliteOfAnother);
        }
        let schema = quoted(schema);
        // One write, so that no half of it is ever there.
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE; PRAGMA {schema}.{} = {}; PRAGMA {schema}.{} = {}; COMMIT",
            FIELDS[0], self.0[0], FIELDS[1], self.0[1]
        ))?;
        Ok(())
    }
}
