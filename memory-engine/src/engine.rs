//! The open handle of one store: its one read-write connection, and the transactions every write runs in
//! (ENG-2, 110, 200, 206). What is written lives in the rooms of admission, waves, leases and branches; what
//! is read, in those of [`Reader`].

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use memory_wire::ids::Seq;
use rusqlite::Connection;

use crate::document_cache::{Remainder, StoreCache};
use crate::error::EngineError;
use crate::feed::FeedRecord;
use crate::open::{BUSY_TIMEOUT, Durability, map_file, open_reader, open_writer};
use crate::reader::Reader;
use crate::snapshot::SnapshotPolicy;
use crate::store_path::StoreLocation;

/// Settings of a handle. None of them shows in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// The serving flag (`EXPERIMENTAL_SERVER_EXECUTION`): derived commits and event appends are admitted.
    pub serving: bool,
    /// When snapshots are taken and how many are kept.
    pub snapshots: SnapshotPolicy,
}

/// One space's durable store. Synchronous; one per space and process (ENG-107).
#[derive(Debug)]
pub struct Engine {
    reader: Reader,
    location: StoreLocation,
    options: EngineOptions,
    legacy_refs: bool,
    open: OpenTransaction,
    /// Why SQLite undid the whole open transaction by itself, as it does when the disk fails it.
    undone: Option<EngineError>,
    /// Highest seq this handle has seen durable, by its own commits or by [`Engine::foreign_commits`].
    known_seq: Seq,
    /// SQLite's count of what other connections did to the store, when this one last looked; `None` to look anew.
    seen_version: Option<i64>,
    foreign: Vec<FeedRecord>,
    poll: Option<Poll>,
    resting: bool,
}

/// Which transaction is open on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenTransaction {
    /// none → `Whole` or `Group`
    None,
    /// One write's own transaction; a nested write joins it. → none
    Whole,
    /// A group's transaction; each write is a member of it. → none
    Group,
}

/// A connection that only watches for other writers (ENG-208).
#[derive(Debug)]
struct Poll {
    conn: Connection,
    seen_version: i64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // From now on others may write unseen.
        self.cache.forget_all();
    }
}

impl Deref for Engine {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Engine {
    /// Opens a store, creating or migrating it as needed (ENG-110).
    ///
    /// # Errors
    /// SQLite's; `NOT NULL constraint failed: head.op` for a corrupt old store (ENG-131).
    pub fn open(location: StoreLocation, options: EngineOptions) -> Result<Engine, EngineError> {
        Engine::open_sharing(location, options, StoreCache::new())
    }

    /// As [`Engine::open`], with a cache that others look at too.
    pub(crate) fn open_sharing(
        location: StoreLocation,
        options: EngineOptions,
        cache: Arc<StoreCache>,
    ) -> Result<Engine, EngineError> {
        let (conn, legacy_refs) = open_writer(&location, options.durability)?;
        let mut engine = Engine {
            reader: Reader::new(conn, cache),
            location,
            options,
            legacy_refs,
            open: OpenTransaction::None,
            undone: None,
            known_seq: Seq(0),
            seen_version: None,
            foreign: Vec::new(),
            poll: None,
            resting: false,
        };
        engine.known_seq = engine.server_seq()?;
        engine.cache.heads.forget(Some(engine.known_seq));
        Ok(engine)
    }

    /// An empty store in memory.
    ///
    /// # Errors
    /// SQLite's.
    pub fn in_memory(options: EngineOptions) -> Result<Engine, EngineError> {
        Engine::open(StoreLocation::Memory, options)
    }

    /// Where the store lies.
    pub fn location(&self) -> &StoreLocation {
        &self.location
    }

    /// The settings it was opened with.
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// The reading side alone, for functions that take a [`Reader`].
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The connection, for what is set on it for a while.
    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        self.reader.conn.get_mut()
    }

    /// Whether commits of this store must reference stored invocations (ENG-128).
    pub fn legacy_refs_required(&self) -> bool {
        self.legacy_refs
    }

    /// A read-only connection on the same file, sharing this handle's caches; `None` for a store in memory (ENG-205).
    ///
    /// # Errors
    /// SQLite's.
    pub fn new_reader(&self) -> Result<Option<Reader>, EngineError> {
        match &self.location {
            StoreLocation::Memory => Ok(None),
            StoreLocation::File(path) => Ok(Some(Reader::new(open_reader(path)?, self.reader.cache.clone()))),
        }
    }

    /// Runs several writes in one SQLite transaction (ENG-206): each write inside `work` is all or nothing, and
    /// nothing is durable, remembered or to be told to anyone before this returns `Ok`. Not for commits with
    /// SQLite-builtin operations. Returns what `work` returned.
    ///
    /// # Errors
    /// When the transaction cannot begin or the outer COMMIT fails; then every member failed.
    pub fn group<R>(&mut self, work: impl FnOnce(&mut Engine) -> R) -> Result<R, EngineError> {
        if self.open != OpenTransaction::None {
            return Ok(work(self));
        }
        self.begin(OpenTransaction::Group)?;
        let scope = Scope {
            engine: self,
            level: Level::Outermost,
            settled: false,
        };
        let result = work(scope.engine);
        scope.keep()?;
        Ok(result)
    }

    /// Runs `work` as one member of a [`Engine::group`]: if it unwinds, the commits it applied are taken out again and the
    /// group goes on without it. If it had written anything else by then, the group is lost.
    ///
    /// # Errors
    /// [`EngineError::GroupLost`] when that has happened before in this group.
    pub fn group_member<R>(&mut self, work: impl FnOnce(&mut Engine) -> R) -> Result<R, EngineError> {
        self.commit_transaction(|engine| Ok(work(engine)))
    }

    /// Whether the open group cannot become durable any more.
    pub(crate) fn group_is_lost(&self) -> bool {
        self.undone.is_some() || self.conn.is_autocommit()
    }

    /// Runs `work` in a transaction of its own, or in a savepoint of the open one: all or nothing (ENG-2).
    pub(crate) fn transaction<R>(
        &mut self,
        work: impl FnOnce(&mut Engine) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        self.run(work, true)
    }

    /// The same for work that writes commits and nothing else, which can be taken back by name ([`crate::undo`]) and so
    /// does without a savepoint.
    pub(crate) fn commit_transaction<R>(
        &mut self,
        work: impl FnOnce(&mut Engine) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        self.run(work, false)
    }

    fn run<R>(
        &mut self,
        work: impl FnOnce(&mut Engine) -> Result<R, EngineError>,
        savepoint: bool,
    ) -> Result<R, EngineError> {
        let level = match self.open {
            OpenTransaction::None => {
                self.begin(OpenTransaction::Whole)?;
                Level::Outermost
            }
            OpenTransaction::Whole | OpenTransaction::Group => {
                // A savepoint without its transaction would commit on its own, behind the back of its group.
                if self.conn.is_autocommit() {
                    let undone = self.undone.get_or_insert_with(|| {
                        EngineError::GroupLost("SQLite ended the transaction".to_owned())
                    });
                    return Err(undone.for_neighbour());
                }
                let level = if savepoint {
                    self.conn.execute_batch("SAVEPOINT step")?;
                    Level::Savepoint
                } else {
                    Level::Member {
                        changes: self.conn.total_changes(),
                    }
                };
                self.reader.enter_member();
                level
            }
        };
        let scope = Scope {
            engine: self,
            level,
            settled: false,
        };
        let result = work(scope.engine).inspect_err(|error| scope.engine.note_undone(error))?;
        scope.keep()?;
        Ok(result)
    }

    /// Notices that a failure took the whole transaction with it.
    fn note_undone(&mut self, error: &EngineError) {
        if self.open != OpenTransaction::None && self.conn.is_autocommit() {
            self.undone.get_or_insert_with(|| error.for_neighbour());
        }
    }

    fn begin(&mut self, kind: OpenTransaction) -> Result<(), EngineError> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        self.open = kind;
        self.undone = None;
        // From here on no other process can commit, so what is foreign is known exactly.
        match self.look() {
            Ok(()) => {
                self.reader.enter_transaction(self.known_seq);
                Ok(())
            }
            Err(error) => {
                self.open = OpenTransaction::None;
                rollback(&self.conn, "ROLLBACK");
                Err(error)
            }
        }
    }

    /// Commits of other processes since the last call or the last own write, in seq order over all branches (ENG-208).
    /// Costs one pragma when nothing happened. Not to be called inside a group.
    ///
    /// # Errors
    /// SQLite's.
    pub fn foreign_commits(&mut self) -> Result<Vec<FeedRecord>, EngineError> {
        if let StoreLocation::File(path) = &self.location {
            let poll = match &mut self.poll {
                Some(poll) => poll,
                None => self.poll.insert(Poll {
                    conn: open_reader(path)?,
                    seen_version: -1,
                }),
            };
            let version: i64 = poll
                .conn
                .pragma_query_value(None, "data_version", |row| row.get(0))?;
            if version != poll.seen_version {
                self.look()?;
                // Only what was read was seen: after a failure the next look looks again.
                if let Some(poll) = &mut self.poll {
                    poll.seen_version = version;
                }
            }
        }
        Ok(std::mem::take(&mut self.foreign))
    }

    /// Foreign commits that were noticed while an own write took the lock; they precede it in seq order and are to be
    /// published before it.
    pub fn take_noticed_foreign(&mut self) -> Vec<FeedRecord> {
        std::mem::take(&mut self.foreign)
    }

    /// Moves what the log holds into the main file and truncates the log, unless a reader pins it. Waits for readers no
    /// longer than `patience`, since writes wait with it. Returns whether the log is empty now.
    ///
    /// # Errors
    /// SQLite's.
    pub fn checkpoint(&mut self, patience: Duration) -> Result<bool, EngineError> {
        self.conn.busy_timeout(patience)?;
        let busy = self
            .conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.conn.busy_timeout(BUSY_TIMEOUT)?;
        Ok(busy? == 0)
    }

    /// Gives back the pages that SQLite keeps of the store, and its prepared statements. Whatever comes next reads and
    /// prepares them again.
    pub(crate) fn pause(&self) -> Result<(), EngineError> {
        self.conn.flush_prepared_statement_cache();
        Ok(self.conn.release_memory()?)
    }

    /// Gives back all that only makes work quick, since there is none: beside those, the mapped file and what is remembered.
    /// The store stays open, with all that is known of its seqs. To be called outside any transaction;
    /// [`Engine::resume`] undoes it.
    pub(crate) fn rest(&mut self) -> Result<(), EngineError> {
        if self.location == StoreLocation::Memory || self.resting {
            return Ok(());
        }
        self.resting = true;
        self.cache.give_back(self.known_seq);
        self.conn.execute_batch("PRAGMA mmap_size = 0")?;
        self.pause()
    }

    /// Whether the store rests.
    pub(crate) fn is_resting(&self) -> bool {
        self.resting
    }

    /// There is work again.
    pub(crate) fn resume(&mut self) -> Result<(), EngineError> {
        if self.resting {
            map_file(&self.conn)?;
            self.resting = false;
        }
        Ok(())
    }

    /// Notices what other processes did since the last look.
    fn look(&mut self) -> Result<(), EngineError> {
        let version: i64 = self
            .conn
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        if self.seen_version == Some(version) {
            return Ok(());
        }
        let records = self.reader.all_commits_since(self.known_seq)?;
        if let Some(newest) = records.last().map(|record| record.seq) {
            tracing::debug!(from = %self.known_seq, to = %newest, count = records.len(), "commits of another process");
            self.known_seq = newest;
            self.foreign.extend(records);
            self.cache.sessions.forget();
        }
        // Heads can also have been removed without a commit (ENG-1601).
        self.cache.heads.forget(Some(self.known_seq));
        self.seen_version = Some(version);
        Ok(())
    }

    /// Does what was left to the end of the transaction and makes it durable. Returns the store's seq.
    fn finish(&self) -> Result<Seq, EngineError> {
        let Remainder { head_seqs, snapshots } = self.reader.remainder();
        self.move_branches(&head_seqs)?;
        self.prune_snapshots(&snapshots)?;
        let seq = self.server_seq()?;
        self.conn.execute_batch("COMMIT")?;
        Ok(seq)
    }

    fn settle(&mut self, level: Level, keep: bool) -> Result<(), EngineError> {
        match level {
            Level::Savepoint => {
                let released = if keep && self.undone.is_none() {
                    self.conn.execute_batch("RELEASE step")
                } else {
                    Ok(())
                };
                let kept = keep && released.is_ok() && self.undone.is_none();
                if kept {
                    self.reader.keep_member();
                } else {
                    self.reader.discard_member();
                    if !self.conn.is_autocommit() {
                        rollback(&self.conn, "ROLLBACK TO step; RELEASE step");
                    }
                }
                let released = released.map_err(EngineError::from);
                released.inspect_err(|error| self.note_undone(error))
            }
            Level::Member { changes } => {
                if keep && self.undone.is_none() {
                    self.reader.keep_member();
                    return Ok(());
                }
                let member = self.reader.discard_member();
                let changed = self.conn.total_changes() - changes;
                if changed > 0 && !self.conn.is_autocommit() && !self.undo(&member, changed) {
                    rollback(&self.conn, "ROLLBACK");
                    self.undone
                        .get_or_insert_with(|| EngineError::GroupLost("a member failed half way".to_owned()));
                }
                match &self.undone {
                    Some(undone) if keep => Err(undone.for_neighbour()),
                    Some(_) | None => Ok(()),
                }
            }
            Level::Outermost => {
                self.open = OpenTransaction::None;
                let committed = if let Some(undone) = self.undone.take() {
                    if keep { Err(undone) } else { Ok(None) }
                } else if keep {
                    self.finish().map(Some)
                } else {
                    Ok(None)
                };
                if !self.conn.is_autocommit() {
                    rollback(&self.conn, "ROLLBACK");
                }
                self.reader
                    .leave_transaction(committed.as_ref().ok().copied().flatten());
                if committed.is_err() {
                    // What came of it is SQLite's to tell.
                    self.seen_version = None;
                }
                if let Some(seq) = committed? {
                    self.known_seq = self.known_seq.max(seq);
                }
                Ok(())
            }
        }
    }
}

/// How deep a write sits.
#[derive(Clone, Copy, Debug)]
enum Level {
    Outermost,
    /// A savepoint in a transaction.
    Savepoint,
    /// Commits in a transaction, and how many rows the connection had changed before it.
    Member {
        changes: u64,
    },
}

/// An open transaction or a member of one. Taken back on drop unless kept: on an error, and when its work unwinds, so that a
/// panic leaves no open transaction (field fault F39).
struct Scope<'e> {
    engine: &'e mut Engine,
    level: Level,
    settled: bool,
}

impl Scope<'_> {
    fn keep(mut self) -> Result<(), EngineError> {
        self.settled = true;
        self.engine.settle(self.level, true)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        if !self.settled
            && let Err(error) = self.engine.settle(self.level, false)
        {
            tracing::warn!(%error, "a failed write could not be rolled back");
        }
    }
}

fn rollback(conn: &Connection, statement: &str) {
    if let Err(error) = conn.execute_batch(statement) {
        // SQLite rolls back by itself on some errors (disk full, I/O); then there is nothing left to undo.
        tracing::debug!(%error, statement, "rollback found nothing to undo");
    }
}

#[cfg(test)]
mod tests {
    use memory_wire::ids::LocalSeq;
    use memory_wire::message::{ClientCommit, CommitParts, Operation};
    use memory_wire::value;
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    use super::*;
    use crate::ApplyCommit;

    fn apply(engine: &mut Engine, local_seq: u64) -> Result<Seq, EngineError> {
        let operation = Operation::Set {
            id: format!("of:{local_seq}").as_str().into(),
            scope: memory_wire::Scope::Space,
            value: value!({ "value": 1 }),
        };
        let parts = CommitParts {
            operations: vec![operation],
            ..CommitParts::default()
        };
        let commit = ClientCommit::build(LocalSeq(local_seq), parts);
        let applied = engine.apply_commit(ApplyCommit::authored(&"s".into(), None, &commit, 0));
        applied.map(|applied| applied.seq)
    }

    /// A look that fails has seen nothing: the commit is told by the next one, though nothing changed meanwhile.
    #[test]
    fn eng_208_a_look_for_foreign_commits_that_failed_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(directory.path().join("s.sqlite"));
        let [mut ours, mut theirs] =
            [(); 2].map(|()| Engine::open(location.clone(), EngineOptions::default()).unwrap());
        assert!(ours.foreign_commits().unwrap().is_empty());
        assert_eq!(apply(&mut theirs, 1).unwrap(), Seq(1));
        let conn = ours.reader.conn.get_mut();
        conn.progress_handler(1, Some(|| true)).unwrap();
        assert!(ours.foreign_commits().is_err(), "interrupted");
        let conn = ours.reader.conn.get_mut();
        conn.progress_handler(0, None::<fn() -> bool>).unwrap();
        let told: Vec<Seq> = ours
            .foreign_commits()
            .unwrap()
            .iter()
            .map(|record| record.seq)
            .collect();
        assert_eq!(told, [Seq(1)]);
        assert!(ours.foreign_commits().unwrap().is_empty(), "told once");
    }

    /// Another process may go on committing while this one looks.
    #[test]
    fn eng_208_a_commit_that_lands_while_others_are_looked_for_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(directory.path().join("s.sqlite"));
        let [mut ours, mut theirs] =
            [(); 2].map(|()| Engine::open(location.clone(), EngineOptions::default()).unwrap());
        assert_eq!(apply(&mut theirs, 1).unwrap(), Seq(1));
        let mut theirs = Some(theirs);
        // As the statement that reads the commits is prepared.
        let hook = move |context: AuthContext<'_>| {
            if let AuthAction::Read {
                column_name: "class", ..
            } = context.action
                && let Some(mut theirs) = theirs.take()
            {
                assert_eq!(apply(&mut theirs, 2).unwrap(), Seq(2));
            }
            Authorization::Allow
        };
        ours.connection_mut().authorizer(Some(hook)).unwrap();
        let mut told = Vec::new();
        for _ in 0..3 {
            let records = ours.foreign_commits().unwrap();
            told.extend(records.iter().map(|record| record.seq));
        }
        assert_eq!(told, [Seq(1), Seq(2)]);
    }

    /// ENG-1601, in another process: no commit tells of it, and what was known of the instance does not hold any more.
    #[test]
    fn eng_1601_what_another_process_retires_is_not_built_on() {
        let session = memory_wire::ScopeKey::parse("session:did%3Akey%3Az:s").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let location = StoreLocation::File(directory.path().join("s.sqlite"));
        let [mut ours, mut theirs] =
            [(); 2].map(|()| Engine::open(location.clone(), EngineOptions::default()).unwrap());
        let draft = |local_seq: u64, operation: &str, content: memory_wire::Value| {
            ClientCommit::from_value(&value!({
                "localSeq": local_seq, "reads": { "confirmed": [], "pending": [] },
                "operations": [{ "op": operation, "id": "of:draft", "scope": "session",
                    "value": (content.clone()), "patches": [content] }]
            }))
            .unwrap()
        };
        let principal = "did:key:z".into();
        let write = |engine: &mut Engine, commit: &ClientCommit| {
            let applied =
                engine.apply_commit(ApplyCommit::authored(&"s".into(), Some(&principal), commit, 0));
            applied.unwrap().seq
        };
        write(&mut ours, &draft(1, "set", value!({ "value": { "n": 1 } })));
        assert!(theirs.retire_session(&session, 100, false).unwrap().done);
        assert!(ours.foreign_commits().unwrap().is_empty(), "no commit");
        let instance = memory_wire::scope_key::InstanceId {
            id: "of:draft".into(),
            scope_key: session,
        };
        assert!(ours.hot_state(&instance, &Default::default()).is_none());
        let patch = value!({ "op": "add", "path": "/value/m", "value": 2 });
        let build_on_it = |engine: &mut Engine| {
            write(engine, &draft(2, "patch", patch.clone()));
            let document = engine.current(&instance, &Default::default()).unwrap();
            memory_wire::codec::encode(&document.unwrap()).unwrap()
        };
        // What it is from here on is what the store says it is.
        let as_told = build_on_it(&mut ours);
        drop(ours);
        let reopened = Engine::open(location, EngineOptions::default()).unwrap();
        let stored = reopened.current(&instance, &Default::default()).unwrap().unwrap();
        assert_eq!(as_told, memory_wire::codec::encode(&stored).unwrap());
        assert_eq!(as_told, r#"fvj1:{"value":{"m":2}}"#);
    }

    /// When the disk fails it, SQLite ends the whole transaction by itself, in the middle of a group. What comes after in
    /// the group must not land on its own, and all of the group is lost.
    #[test]
    fn a_transaction_that_sqlite_ended_by_itself_loses_its_whole_group() {
        let mut engine = Engine::in_memory(EngineOptions::default()).unwrap();
        assert_eq!(apply(&mut engine, 1).unwrap(), Seq(1));
        let group = engine.group(|engine| {
            assert_eq!(apply(engine, 2).unwrap(), Seq(2));
            let inside: Result<(), EngineError> = engine.transaction(|engine| {
                engine.conn.execute_batch("ROLLBACK")?;
                Err(EngineError::StoreFull("no room".into()))
            });
            assert!(matches!(inside, Err(EngineError::StoreFull(_))));
            // The reason is passed on, to the next member and to the group.
            assert!(matches!(apply(engine, 3), Err(EngineError::StoreFull(_))));
        });
        assert!(matches!(group, Err(EngineError::StoreFull(_))));
        assert_eq!(engine.server_seq().unwrap(), Seq(1));
        assert_eq!(apply(&mut engine, 3).unwrap(), Seq(2));
        assert!(engine.read_space_value(&"of:2".into()).unwrap().is_none());
    }
}
