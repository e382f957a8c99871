//! Commits that write to a cell database (ENG-1400, 1401, 1404): the database is attached to the store's own
//! connection for the length of the commit, so that its writes and the commit's revisions stand or fall together.

use std::path::{Path, PathBuf};

use memory_wire::hash::{Digest, hash_value};
use memory_wire::ids::{BranchName, EntityId, SpaceId};
use memory_wire::message::{ClientCommit, Operation, SqliteDb};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey};
use memory_wire::value::Value;
use parking_lot::Mutex;
use rusqlite::Connection;
use rustc_hash::FxHashSet;

use super::bounds::{Meter, StatementBounds};
use super::confinement::{self, Confinement};
use super::disk_source::DiskSources;
use super::row_label::RowContext;
use super::seal::Seal;
use super::table::{create_statement, quoted};
use super::{cell_file, guard, labelled_write, sql_value};
use crate::admission::{Applied, ApplyCommit, SqliteOperations};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::ReadInstance;
use crate::refusal::Refusal;
use crate::wave::WaveCommit;

/// Characters a statement may have, in UTF-16 units.
const MAX_STATEMENT: usize = 100_000;
/// Tables a database may declare.
const MAX_TABLES: usize = 256;
/// Where the databases of a connection begin that were attached to it, after its own and the temporary one.
const FIRST_ATTACHED: usize = 2;
/// Created declarations remembered before they are forgotten together.
const REMEMBERED_DECLARATIONS: usize = 4_096;

/// What a process remembers about cell databases.
#[derive(Debug, Default)]
pub struct CellDatabases {
    created: Mutex<FxHashSet<(PathBuf, Digest)>>,
    sources: DiskSources,
    bounds: StatementBounds,
}

/// The one database a commit writes to.
#[derive(Debug)]
struct Target<'c> {
    id: &'c str,
    instance: ScopeKey,
    declarations: Vec<&'c SqliteDb>,
}

impl CellDatabases {
    /// Nothing remembered yet.
    pub fn new() -> CellDatabases {
        CellDatabases::default()
    }

    /// Nothing remembered yet; writes are bounded like this.
    pub fn bounded(bounds: StatementBounds) -> CellDatabases {
        CellDatabases {
            bounds,
            ..CellDatabases::default()
        }
    }

    /// The read-only files registered in this process.
    pub fn disk_sources(&self) -> &DiskSources {
        &self.sources
    }

    /// Checks a commit's SQLite operations in order (ENG-1400). `None` when there are none.
    fn prepare<'c>(
        &self,
        space: &SpaceId,
        commit: &'c ClientCommit,
        instance: impl Fn(usize, &SqliteDb) -> Result<ScopeKey, EngineError>,
    ) -> Result<Option<Target<'c>>, EngineError> {
        let refused = |text: &str| Err(Refusal::SqlitePreparation(text.to_owned()).into());
        let mut target: Option<Target<'c>> = None;
        for (index, operation) in commit.operations.iter().enumerate() {
            let Operation::Sqlite { db, sql, .. } = operation else {
                continue;
            };
            if sql.encode_utf16().count() > MAX_STATEMENT {
                return refused("sqlite statement exceeds the maximum length");
            }
            if db.tables.as_ref().is_some_and(|tables| tables.len() > MAX_TABLES) {
                return refused("sqlite db declares too many tables");
            }
            if self.sources.get(space, &db.id).is_some() {
                return refused("injected on-disk SQLite sources are read-only in v1 (db.exec rejected)");
            }
            let instance = instance(index, db)?;
            match &mut target {
                None => {
                    target = Some(Target {
                        id: &db.id,
                        instance,
                        declarations: vec![db],
                    })
                }
                Some(known) if known.id == db.id && known.instance == instance => known.declarations.push(db),
                Some(known) if known.id == db.id => {
                    return refused("conflicting scope for the same sqlite database in one commit");
                }
                Some(_) => return refused("a commit may write to at most one sqlite database"),
            }
        }
        Ok(target)
    }

    /// Creates the declared tables, once per file and declaration.
    fn create_tables(
        &self,
        conn: &Connection,
        path: &Path,
        existed: bool,
        alias: &str,
        target: &Target<'_>,
    ) -> Result<(), EngineError> {
        for tables in target.declarations.iter().filter_map(|db| db.tables.as_ref()) {
            let key = (path.to_owned(), hash_value(&Value::Object(tables.clone())));
            // A file that was removed meanwhile has no tables, whatever is remembered.
            if existed && self.created.lock().contains(&key) {
                continue;
            }
            for (name, schema) in tables.iter() {
                conn.execute_batch(&create_statement(&name.to_string(), schema, Some(alias))?)?;
            }
            let mut created = self.created.lock();
            if created.len() >= REMEMBERED_DECLARATIONS {
                created.clear();
            }
            created.insert(key);
        }
        Ok(())
    }
}

impl Engine {
    /// [`Engine::apply_commit`] for a commit that may hold SQLite operations. Not inside a group: a database cannot be
    /// attached to an open transaction.
    ///
    /// # Errors
    /// As [`Engine::apply_commit`]; the preparation's refusals, a refused statement, a table that cannot be created, a
    /// row label that cannot be given. Nothing of the commit is applied then.
    pub fn apply_commit_with_sqlite(
        &mut self,
        cells: &CellDatabases,
        space: &SpaceId,
        apply: ApplyCommit<'_>,
    ) -> Result<Applied, EngineError> {
        let identity = ScopeIdentity {
            principal: apply.principal.cloned(),
            session_id: Some(apply.session_id.clone()),
        };
        let envelope =
            |_: usize, db: &SqliteDb| Ok(ScopeKey::resolve(db.scope.unwrap_or(Scope::Space), &identity)?);
        let Some(target) = cells.prepare(space, apply.commit, envelope)? else {
            return self.apply_commit(apply);
        };
        let branch = apply.commit.branch.clone();
        self.with_attached(cells, space, &branch, &target, |engine, executor| {
            engine.apply_commit(ApplyCommit {
                sqlite: Some(executor),
                ..apply
            })
        })
    }

    /// [`Engine::apply_wave`] for a wave that may hold SQLite operations; each is addressed by the run that contributed
    /// it.
    ///
    /// # Errors
    /// As [`Engine::apply_wave`] and [`Engine::apply_commit_with_sqlite`].
    pub fn apply_wave_with_sqlite(
        &mut self,
        cells: &CellDatabases,
        wave: &WaveCommit,
        now_ms: i64,
    ) -> Result<Applied, EngineError> {
        let contributing_run = |index: usize, db: &SqliteDb| {
            match db.scope.unwrap_or(Scope::Space) {
            Scope::Space => Ok(ScopeKey::space()),
            Scope::User | Scope::Session => wave.annotated_key(index).cloned().ok_or_else(|| {
                let text = format!(
                    "wave sqlite op {index} (db {}) carries no resolved scope key: a wave resolves no scope of its own",
                    db.id
                );
                Refusal::SqlitePreparation(text).into()
            }),
        }
        };
        let space = wave.space().clone();
        let Some(target) = cells.prepare(&space, &wave.commit, contributing_run)? else {
            return self.apply_wave(wave, now_ms, None);
        };
        let branch = wave.commit.branch.clone();
        self.with_attached(cells, &space, &branch, &target, |engine, executor| {
            engine.apply_wave(wave, now_ms, Some(executor))
        })
    }

    /// Runs `apply` with the database attached and its tables created, and detaches it whatever came of it.
    fn with_attached(
        &mut self,
        cells: &CellDatabases,
        space: &SpaceId,
        branch: &BranchName,
        target: &Target<'_>,
        apply: impl FnOnce(&mut Engine, &mut dyn SqliteOperations) -> Result<Applied, EngineError>,
    ) -> Result<Applied, EngineError> {
        if !self.conn.is_autocommit() {
            return Err(Refusal::SqlitePreparation(
                "sqlite operations cannot join a commit group".to_owned(),
            )
            .into());
        }
        let owner = self.handle_owner(branch, target)?;
        let path = cell_file::path(self.location(), space, target.id, &target.instance);
        let alias = cell_file::alias(target.id);
        let existed = path.exists();
        let file = path.to_str().ok_or_else(|| EngineError::Io {
            path: path.clone(),
            source: std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the path of a cell database must be valid text",
            ),
        })?;
        let attached = Attached::begin(self, file, alias)?;
        Seal::of(space, target.id, &target.instance).claim(&attached.engine.conn, &attached.alias)?;
        cells
            .create_tables(&attached.engine.conn, &path, existed, &attached.alias, target)
            .and_then(|()| {
                let StatementBounds {
                    write_steps,
                    write_time,
                    ..
                } = cells.bounds;
                attached.meter.grant(write_steps, write_time);
                let mut executor = Executor {
                    id: target.id.to_owned(),
                    alias: attached.alias.clone(),
                    owner,
                    context: RowContext::default(),
                    confinement: attached.confinement.clone(),
                    meter: attached.meter.clone(),
                    value_bytes: cells.bounds.value_bytes,
                };
                apply(&mut *attached.engine, &mut executor)
            })
    }

    /// The meter of the store's connection, which stays on it: putting it on anew would have every kept statement prepared
    /// again.
    fn meter(&mut self) -> Result<Meter, EngineError> {
        if let Some(meter) = &self.meter {
            return Ok(meter.clone());
        }
        let meter = Meter::install(&self.conn)?;
        Ok(self.meter.insert(meter).clone())
    }

    /// The owner that the committed handle document names (ENG-1425): what `dbOwner` means where a declaration leaves it
    /// out.
    fn handle_owner(&self, branch: &BranchName, target: &Target<'_>) -> Result<Option<Value>, EngineError> {
        let id = EntityId::from(target.id);
        let document = self.read(&id, ReadInstance::Named(&target.instance), branch, None)?;
        let value = document.as_ref().and_then(|document| document.member("value"));
        Ok(value.and_then(|value| value.member("owner")).cloned())
    }
}

/// A database attached to the store's connection for one commit. Detached when dropped: whatever came of the commit, and
/// when its work unwinds.
struct Attached<'e> {
    engine: &'e mut Engine,
    alias: String,
    confinement: Confinement,
    meter: Meter,
}

impl<'e> Attached<'e> {
    fn begin(engine: &'e mut Engine, file: &str, alias: String) -> Result<Attached<'e>, EngineError> {
        // A second one would make unqualified names mean another file. There is none, unless detaching it failed.
        while let Ok(left) = engine.conn.db_name(FIRST_ATTACHED) {
            detach(&engine.conn, &left)?;
        }
        engine
            .conn
            .execute(&format!("ATTACH DATABASE ?1 AS {}", quoted(&alias)), [file])?;
        let mut attached = Attached {
            engine,
            alias,
            confinement: Confinement::default(),
            meter: Meter::default(),
        };
        attached.confinement = Confinement::begin(attached.engine.connection_mut(), attached.alias.clone())?;
        attached.meter = attached.engine.meter()?;
        attached.meter.watch(attached.engine.connection_mut())?;
        Ok(attached)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let conn = self.engine.connection_mut();
        let ended = Meter::unwatch(conn).and_then(|()| Confinement::end(conn));
        if let Err(error) = ended {
            tracing::error!(%error, "the store's statements stay bounded");
        }
        if let Err(error) = detach(&self.engine.conn, &self.alias) {
            tracing::error!(%error, "a cell database could not be detached");
        }
    }
}

fn detach(conn: &Connection, alias: &str) -> Result<(), EngineError> {
    Ok(conn.execute_batch(&format!("DETACH DATABASE {}", quoted(alias)))?)
}

/// Runs the operations of one commit against the one attached database.
struct Executor {
    id: String,
    alias: String,
    owner: Option<Value>,
    context: RowContext,
    confinement: Confinement,
    meter: Meter,
    value_bytes: u32,
}

impl SqliteOperations for Executor {
    fn execute(
        &mut self,
        conn: &Connection,
        _op_index: usize,
        db: &SqliteDb,
        sql: &str,
        params: Option<&Value>,
    ) -> Result<(), EngineError> {
        if *db.id != *self.id {
            return Err(EngineError::SqliteUnattached {
                db: db.id.to_string(),
            });
        }
        guard::check_write(sql)?;
        self.context
            .set_owner(db.owner.clone().or_else(|| self.owner.clone()));
        let _confined = self.confinement.confine();
        let written = self.meter.run(conn, self.value_bytes, || {
            labelled_write::execute(conn, &self.alias, db, sql, params, &self.context)
        });
        written.map_err(|error| confinement::refusal(error, sql))
    }
}

/// Runs a statement to its end.
pub(super) fn run(conn: &Connection, sql: &str, params: Option<&Value>) -> Result<(), EngineError> {
    let mut statement = conn.prepare(sql)?;
    sql_value::bind(&mut statement, params)?;
    let mut rows = statement.raw_query();
    while rows.next()?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use memory_wire::value;

    use super::*;
    use crate::engine::EngineOptions;
    use crate::store_path::StoreLocation;

    type Work = fn(&mut Engine) -> Result<Applied, EngineError>;

    struct Store {
        _dir: tempfile::TempDir,
        engine: Engine,
        cells: CellDatabases,
    }

    impl Store {
        fn new() -> Store {
            let dir = tempfile::tempdir().unwrap();
            let location = StoreLocation::File(dir.path().join("store.sqlite"));
            Store {
                engine: Engine::open(location, EngineOptions::default()).unwrap(),
                cells: CellDatabases::new(),
                _dir: dir,
            }
        }

        /// Adds a row to table `t` of a database, and has `apply` run in place of the admission, if there is one.
        fn write(&mut self, local_seq: u64, db: &str, apply: Option<Work>) -> Result<Applied, EngineError> {
            let db =
                value!({ "id": db, "tables": { "t": { "properties": { "n": { "sqlType": "integer" } } } } });
            let operation = value!({ "op": "sqlite", "db": db, "sql": "INSERT INTO t (n) VALUES (1)" });
            let commit = ClientCommit::from_value(&value!({
                "localSeq": local_seq, "reads": { "confirmed": [], "pending": [] }, "operations": [operation]
            }))
            .unwrap();
            let (session, space) = ("s".into(), "did:key:zSpace".into());
            let Some(apply) = apply else {
                let commit = ApplyCommit::authored(&session, None, &commit, 0);
                return self.engine.apply_commit_with_sqlite(&self.cells, &space, commit);
            };
            let space_instance = |_: usize, _: &SqliteDb| Ok(ScopeKey::space());
            let target = self.cells.prepare(&space, &commit, space_instance)?.unwrap();
            self.engine.with_attached(
                &self.cells,
                &space,
                &BranchName::default(),
                &target,
                |engine, _| apply(engine),
            )
        }

        fn databases(&self) -> i64 {
            let count = "SELECT COUNT(*) FROM pragma_database_list WHERE name LIKE 'cf_%'";
            self.engine.conn.query_row(count, [], |row| row.get(0)).unwrap()
        }
    }

    /// Field fault F39: a panic inside a commit leaves nothing behind that the next commit would meet, least of all another
    /// database.
    #[test]
    fn eng_1401_a_database_is_detached_on_every_path() {
        let mut store = Store::new();
        store.write(1, "of:a", None).unwrap();
        assert_eq!(store.databases(), 0);
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.write(
                2,
                "of:a",
                Some(|engine| engine.transaction(|_| panic!("in the commit"))),
            )
        }));
        assert!(unwound.is_err());
        assert_eq!(store.databases(), 0);
        store.write(2, "of:b", None).unwrap();
        store.write(3, "of:a", None).unwrap();
        assert_eq!(store.databases(), 0);
    }

    #[test]
    fn eng_1401_a_database_that_could_not_be_detached_is_gone_before_the_next_is_attached() {
        let mut store = Store::new();
        store
            .engine
            .conn
            .execute_batch("ATTACH DATABASE ':memory:' AS cf_left; CREATE TABLE cf_left.t (n)")
            .unwrap();
        store.write(1, "of:a", None).unwrap();
        assert_eq!(store.databases(), 0);
        // What was written was the commit's own database.
        store.write(2, "of:a", None).unwrap();
        let path = cell_file::path(
            store.engine.location(),
            &"did:key:zSpace".into(),
            "of:a",
            &ScopeKey::space(),
        );
        let rows = Connection::open(path)
            .unwrap()
            .query_row("SELECT COUNT(*) FROM t", [], |row| row.get::<_, i64>(0));
        assert_eq!(rows.unwrap(), 2);
    }
}
