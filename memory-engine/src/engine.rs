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
use crate::foreign::Foreign;
use crate::open::{BUSY_TIMEOUT, Durability, map_file, open_reader, open_writer};
use crate::reader::Reader;
use crate::snapshot::SnapshotPolicy;
use crate::sqlite_builtin::Meter;
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
    foreign: Foreign,
    /// Of clients' SQL, once there was any.
    pub(crate) meter: Option<Meter>,
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
            foreign: Foreign::default(),
            meter: None,
            resting: false,
        };
        let seq = engine.server_seq()?;
        engine.foreign.know(seq);
        engine.cache.heads.forget(Some(seq));
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
        match self.foreign.look(&self.reader) {
            Ok(()) => {
                self.reader.enter_transaction(self.foreign.known_seq());
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
            self.foreign.poll(path, &self.reader)?;
        }
        Ok(self.foreign.take())
    }

    /// Foreign commits that were noticed while an own write took the lock; they precede it in seq order and are to be
    /// published before it.
    pub fn take_noticed_foreign(&mut self) -> Vec<FeedRecord> {
        self.foreign.take()
    }

    /// Highest seq this handle has seen durable, by its own commits or by looking for others'.
    pub(crate) fn known_seq(&self) -> Seq {
        self.foreign.known_seq()
    }

    /// Has the next look tell everything after `seq`, which may be before this handle was opened.
    pub(crate) fn look_from(&mut self, seq: Seq) {
        self.foreign.look_from(seq);
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
        self.cache.give_back(self.foreign.known_seq());
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
                match &committed {
                    Ok(Some(seq)) => self.foreign.know(*seq),
                    Ok(None) => {}
                    // What came of it is SQLite's to tell.
                    Err(_) => self.foreign.doubt(),
                }
                committed.map(|_| ())
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
