//! What a client's statement may touch (ENG-1410): the tables of its own database, and nothing of the store that the
//! database is attached to. The guard judges text, in which SQLite takes a string where it expects a name
//! (`DELETE FROM 'revision'`); so SQLite is asked as well, while it prepares a statement, what the statement is about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode};

use super::guard;
use crate::error::EngineError;

/// Tables that a function makes of its arguments. SQLite counts them among the main database's.
const TABLE_FUNCTIONS: [&str; 2] = ["json_each", "json_tree"];

/// Confines a connection's statements to one of its databases, while it is on.
#[derive(Clone, Debug, Default)]
pub(super) struct Confinement(Arc<AtomicBool>);

/// It is on; off again when dropped.
pub(super) struct Confined<'c>(&'c Confinement);

impl Drop for Confined<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

impl Confinement {
    /// Has `conn` ask before it prepares a statement whether it may, from now on and until [`Confinement::end`].
    pub(super) fn begin(conn: &mut Connection, database: String) -> Result<Confinement, EngineError> {
        let confinement = Confinement::default();
        let on = confinement.0.clone();
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            if !on.load(Ordering::Relaxed) || permits(&database, &context) {
                Authorization::Allow
            } else {
                Authorization::Deny
            }
        }))?;
        Ok(confinement)
    }

    /// The connection asks no more.
    pub(super) fn end(conn: &mut Connection) -> Result<(), EngineError> {
        Ok(conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?)
    }

    /// Turns it on.
    pub(super) fn confine(&self) -> Confined<'_> {
        self.0.store(true, Ordering::Relaxed);
        Confined(self)
    }
}

fn permits(database: &str, context: &AuthContext<'_>) -> bool {
    let own = context.database_name == Some(database);
    match context.action {
        AuthAction::Select | AuthAction::Recursive | AuthAction::Function { .. } => true,
        // A table of which no column is read is not always told with its database.
        AuthAction::Read { table_name, .. } => {
            let elsewhere = context.database_name.is_some() && !own;
            !guard::is_reserved(table_name) && (!elsewhere || TABLE_FUNCTIONS.contains(&table_name))
        }
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => own && !guard::is_reserved(table_name),
        _ => false,
    }
}

/// A failure as the guard's refusal of `sql`, if that is what it was.
pub(super) fn refusal(error: EngineError, sql: &str) -> EngineError {
    match error {
        EngineError::Sqlite(denied)
            if denied.sqlite_error_code() == Some(ErrorCode::AuthorizationForStatementDenied) =>
        {
            guard::core_reference(sql)
        }
        error => error,
    }
}
