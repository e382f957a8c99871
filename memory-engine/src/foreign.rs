//! Other processes on the same file (ENG-143, 208): what they have committed, and what must be forgotten because of them.
//! The [`Engine`](crate::Engine) asks whenever it holds the lock, and when it is told to look.

use std::path::Path;

use memory_wire::ids::Seq;
use rusqlite::Connection;

use crate::error::EngineError;
use crate::feed::FeedRecord;
use crate::open::open_reader;
use crate::reader::Reader;

/// What is known of the store as others may change it.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// Highest seq seen durable: an own commit's, or one that was looked at.
    known_seq: Seq,
    /// SQLite's count of what other connections did, as of the last look; `None` to look anew.
    seen_version: Option<i64>,
    /// Commits that were noticed and not told yet.
    noticed: Vec<FeedRecord>,
    poll: Option<Poll>,
}

/// A connection that does not write. Its count also goes up by what this process writes, and asking it needs no lock.
#[derive(Debug)]
struct Poll {
    conn: Connection,
    seen_version: i64,
}

impl Foreign {
    pub(crate) fn known_seq(&self) -> Seq {
        self.known_seq
    }

    /// Everything up to `seq` is known.
    pub(crate) fn know(&mut self, seq: Seq) {
        self.known_seq = self.known_seq.max(seq);
    }

    /// Nothing after `seq` is known.
    pub(crate) fn look_from(&mut self, seq: Seq) {
        self.known_seq = seq;
        self.doubt();
    }

    /// Nobody knows what became of an own transaction.
    pub(crate) fn doubt(&mut self) {
        self.seen_version = None;
        if let Some(poll) = &mut self.poll {
            poll.seen_version = -1;
        }
    }

    /// The commits noticed since this was last asked, in seq order.
    pub(crate) fn take(&mut self) -> Vec<FeedRecord> {
        std::mem::take(&mut self.noticed)
    }

    /// Looks, if anything happened at all since this was last asked.
    pub(crate) fn poll(&mut self, store: &Path, writer: &Reader) -> Result<(), EngineError> {
        let poll = match &mut self.poll {
            Some(poll) => poll,
            None => self.poll.insert(Poll {
                conn: open_reader(store)?,
                seen_version: -1,
            }),
        };
        let version: i64 = poll
            .conn
            .pragma_query_value(None, "data_version", |row| row.get(0))?;
        if version != poll.seen_version {
            self.look(writer)?;
            // Only what was read was seen: after a failure the next look looks again.
            if let Some(poll) = &mut self.poll {
                poll.seen_version = version;
            }
        }
        Ok(())
    }

    /// Notices what others did since the last look. Exact while `writer` holds the lock; else they may go on meanwhile, which
    /// the next look tells.
    pub(crate) fn look(&mut self, writer: &Reader) -> Result<(), EngineError> {
        let version: i64 = writer
            .conn
            .prepare_cached("PRAGMA data_version")?
            .query_row([], |row| row.get(0))?;
        if self.seen_version == Some(version) {
            return Ok(());
        }
        let records = writer.all_commits_since(self.known_seq)?;
        if let Some(newest) = records.last().map(|record| record.seq) {
            tracing::debug!(from = %self.known_seq, to = %newest, count = records.len(), "commits of another process");
            self.known_seq = newest;
            self.noticed.extend(records);
            writer.cache.sessions.forget();
        }
        // Heads can also have been removed without a commit (ENG-1601).
        writer.cache.heads.forget(Some(self.known_seq));
        self.seen_version = Some(version);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memory_wire::ids::LocalSeq;
    use memory_wire::message::{ClientCommit, CommitParts, Operation};
    use memory_wire::value;
    use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

    use super::*;
    use crate::{ApplyCommit, Engine, EngineOptions, StoreLocation};

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
        let conn = ours.connection_mut();
        conn.progress_handler(1, Some(|| true)).unwrap();
        assert!(ours.foreign_commits().is_err(), "interrupted");
        let conn = ours.connection_mut();
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
}
