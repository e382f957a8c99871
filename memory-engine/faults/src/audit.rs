//! Whether a store is whole: it opens, SQLite finds nothing wrong with it, every acknowledged commit is there, no commit
//! is there in part, the heads are those of the revisions, every document can be read, and the next commit is accepted.

use std::path::Path;

use memory_engine::{Durability, Engine, EngineOptions, ReadInstance, StoreLocation};
use memory_wire::codec;
use memory_wire::ids::BranchName;
use memory_wire::message::{ClientCommit, Operation};
use memory_wire::scope_key::ScopeKey;
use rusqlite::Connection;

use crate::workload;

/// A commit that somebody was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The session key it is filed under.
    pub session: String,
    /// The session's own number for it.
    pub local_seq: u64,
    /// The seq that was told.
    pub seq: u64,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Commits in the store, the audit's own not counted.
    pub commits: u64,
    /// Their revisions.
    pub revisions: u64,
    /// Documents read.
    pub documents: u64,
}

/// Opens the store as a server would, and looks at all of it.
///
/// # Errors
/// The first thing that is wrong, in words.
pub fn audit(path: &Path, acknowledged: &[Acknowledged]) -> Result<Audited, String> {
    let location = StoreLocation::File(path.to_owned());
    let options = EngineOptions {
        durability: Durability::Normal,
        ..workload::options()
    };
    let mut engine = Engine::open(location, options).map_err(|error| format!("opening: {error}"))?;
    let audited = look(path, &engine, acknowledged)?;
    // Writing goes on.
    let mut dice = workload::Dice::new(audited.commits);
    let commit = workload::authored(&mut dice, "audit", audited.commits + 1);
    let applied = workload::apply(&mut engine, "audit", &commit)
        .map_err(|error| format!("the next commit: {error}"))?;
    if applied.seq.0 != audited.commits + 1 {
        return Err(format!(
            "the next commit got seq {} after {}",
            applied.seq, audited.commits
        ));
    }
    Ok(audited)
}

/// As [`audit`], through an engine that is open already, and without a commit of its own.
///
/// # Errors
/// The first thing that is wrong, in words.
pub fn look(path: &Path, engine: &Engine, acknowledged: &[Acknowledged]) -> Result<Audited, String> {
    let conn = Connection::open(path).map_err(|error| format!("a second connection: {error}"))?;
    let audited = tables(&conn, acknowledged).map_err(|error| match error {
        Trouble::Sqlite(error) => format!("SQLite: {error}"),
        Trouble::Wrong(text) => text,
    })?;
    let mut documents = 0;
    for (branch, id, key) in heads(&conn).map_err(|error| format!("heads: {error}"))? {
        let key = ScopeKey::parse(&key).map_err(|error| format!("scope key {key}: {error:?}"))?;
        engine
            .read_state(
                &id.as_str().into(),
                ReadInstance::Named(&key),
                &BranchName::from(branch.as_str()),
                None,
            )
            .map_err(|error| format!("reading {id} {key}: {error}"))?
            .ok_or_else(|| format!("{id} {key} has a head and no state"))?;
        documents += 1;
    }
    Ok(Audited { documents, ..audited })
}

enum Trouble {
    Sqlite(rusqlite::Error),
    Wrong(String),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Trouble::Sqlite(error)
    }
}

fn tables(conn: &Connection, acknowledged: &[Acknowledged]) -> Result<Audited, Trouble> {
    let verdict: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Trouble::Wrong(format!("integrity check: {verdict}")));
    }
    let mut orphans = conn.prepare("PRAGMA foreign_key_check")?;
    if orphans.exists([])? {
        return Err(Trouble::Wrong("a row refers to one that is not there".into()));
    }
    let mut revisions = 0;
    let mut commits = 0_i64;
    let mut rows = conn.prepare("SELECT seq, original, class, branch FROM \"commit\" ORDER BY seq")?;
    let mut rows = rows.query([])?;
    let mut stored =
        conn.prepare("SELECT op_index, id, op FROM revision WHERE commit_seq = ?1 ORDER BY op_index")?;
    while let Some(row) = rows.next()? {
        let (seq, original, class): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        commits += 1;
        if seq != commits {
            return Err(Trouble::Wrong(format!("commit {commits} has seq {seq}")));
        }
        let value =
            codec::decode(&original).map_err(|error| Trouble::Wrong(format!("commit {seq}: {error}")))?;
        let commit = ClientCommit::from_value(&value)
            .map_err(|error| Trouble::Wrong(format!("commit {seq}: {}", error.message)))?;
        let found: Vec<(usize, String, String)> = stored
            .query_map([seq], |row| {
                Ok((row.get::<_, i64>(0)? as usize, row.get(1)?, row.get(2)?))
            })?
            .collect::<Result<_, _>>()?;
        revisions += found.len() as u64;
        let wanted: Vec<(usize, String, String)> = commit
            .operations
            .iter()
            .enumerate()
            .filter_map(|(index, operation)| {
                let word = match operation {
                    Operation::Set { .. } => "set",
                    Operation::Patch { .. } => "patch",
                    Operation::Delete { .. } => "delete",
                    Operation::Sqlite { .. } => return None,
                };
                let (id, _) = operation.target()?;
                Some((index, id.to_string(), word.to_owned()))
            })
            .collect();
        // A derived commit may add the watermarks of the streams it touched.
        let own = found.len().min(wanted.len());
        if found[..own] != wanted[..] || (found.len() > wanted.len() && class != "derived") {
            return Err(Trouble::Wrong(format!(
                "commit {seq} is there in part: {found:?} of {wanted:?}"
            )));
        }
    }
    let wrong_heads: i64 = conn.query_row(
        "SELECT (SELECT COUNT(*) FROM head h WHERE NOT EXISTS (SELECT 1 FROM revision r WHERE r.branch = h.branch \
           AND r.id = h.id AND r.scope_key = h.scope_key AND r.seq = h.seq AND r.op_index = h.op_index AND r.op = h.op)) \
         + (SELECT COUNT(*) FROM revision r WHERE NOT EXISTS (SELECT 1 FROM head h WHERE h.branch = r.branch \
           AND h.id = r.id AND h.scope_key = r.scope_key AND (h.seq, h.op_index) >= (r.seq, r.op_index)))",
        [],
        |row| row.get(0),
    )?;
    if wrong_heads != 0 {
        return Err(Trouble::Wrong(format!(
            "{wrong_heads} heads are not their instances' newest revisions"
        )));
    }
    let wrong_branches: i64 = conn.query_row(
        "SELECT COUNT(*) FROM branch b WHERE parent_branch IS NULL \
         AND head_seq <> (SELECT COALESCE(MAX(seq), 0) FROM \"commit\" c WHERE c.branch = b.name)",
        [],
        |row| row.get(0),
    )?;
    if wrong_branches != 0 {
        return Err(Trouble::Wrong(
            "the branch's head is not its newest commit".into(),
        ));
    }
    for Acknowledged {
        session,
        local_seq,
        seq,
    } in acknowledged
    {
        let found: i64 = conn.query_row(
            "SELECT COUNT(*) FROM \"commit\" WHERE session_id = ?1 AND local_seq = ?2 AND seq = ?3",
            (session, *local_seq as i64, *seq as i64),
            |row| row.get(0),
        )?;
        if found != 1 {
            return Err(Trouble::Wrong(format!(
                "the acknowledged commit {local_seq} of {session} is not there with seq {seq}"
            )));
        }
    }
    Ok(Audited {
        commits: commits as u64,
        revisions,
        documents: 0,
    })
}

fn heads(conn: &Connection) -> rusqlite::Result<Vec<(String, String, String)>> {
    let mut rows = conn.prepare("SELECT branch, id, scope_key FROM head ORDER BY 1, 2, 3")?;
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}
