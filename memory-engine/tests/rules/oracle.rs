//! ENG-1301: a finished store's commits judged again. Every read of every accepted commit is compared with the rows that
//! came before it; none may have been written since it was read.

use memory_wire::codec;
use memory_wire::ids::SessionId;
use memory_wire::message::ClientCommit;
use memory_wire::patch::{parse_patches, patches_conflict_with_read};
use memory_wire::scope_key::{Scope, ScopeIdentity, ScopeKey, identity_of};
use rusqlite::{Connection, OpenFlags, params};

struct Read<'c> {
    branch: &'c str,
    id: &'c str,
    scope: Scope,
    path: &'c [smol_str::SmolStr],
    shape: bool,
    since: u64,
    own: Vec<u64>,
}

/// Whether a row between the read's seq and its commit's conflicts with it.
fn conflicts(conn: &Connection, read: &Read<'_>, key: &str, seq: u64) -> bool {
    let mut statement = conn
        .prepare_cached(
            "SELECT seq, op, data FROM revision WHERE branch = ?1 AND id = ?2 AND scope_key = ?3 AND seq > ?4 AND seq < ?5",
        )
        .unwrap();
    let rows = statement
        .query_map(
            params![read.branch, read.id, key, read.since as i64, seq as i64],
            |row| {
                Ok((
                    row.get::<_, i64>(0)? as u64,
                    row.get::<_, String>(1)?,
                    row.get::<_, Option<String>>(2)?,
                ))
            },
        )
        .unwrap();
    rows.map(Result::unwrap)
        .filter(|(seq, ..)| !read.own.contains(seq))
        .any(|(_, op, data)| {
            op != "patch" || {
                let patches = parse_patches(&codec::decode(&data.unwrap()).unwrap()).unwrap();
                patches_conflict_with_read(&patches, read.path, read.shape)
            }
        })
}

#[test]
fn eng_1301_the_log_is_judged_again_and_holds() {
    let mut judged = 0;
    for store in ["authored.sqlite", "served.sqlite"] {
        let path = super::workspace().join("tests/vectors/stores").join(store);
        let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let mut commits = conn
            .prepare("SELECT seq, session_id, original FROM \"commit\" ORDER BY seq")
            .unwrap();
        let commits = commits
            .query_map([], |row| {
                Ok((
                    row.get::<_, i64>(0)? as u64,
                    row.get::<_, String>(1)?,
                    row.get::<_, String>(2)?,
                ))
            })
            .unwrap();
        for (seq, session, original) in commits.map(Result::unwrap) {
            let commit = ClientCommit::from_value(&codec::decode(&original).unwrap()).unwrap();
            let identity = identity_of(&session).unwrap_or_else(|| ScopeIdentity {
                principal: None,
                session_id: Some(SessionId::from(session.as_str())),
            });
            let layer = |local_seq: u64| {
                conn.query_row(
                    "SELECT seq FROM \"commit\" WHERE session_id = ?1 AND local_seq = ?2",
                    params![session, local_seq as i64],
                    |row| Ok(row.get::<_, i64>(0)? as u64),
                )
                .unwrap()
            };
            let confirmed = commit.reads.confirmed.iter().map(|read| Read {
                branch: read.branch.as_ref().unwrap_or(&commit.branch).as_str(),
                id: read.id.as_str(),
                scope: read.scope,
                path: &read.path,
                shape: read.non_recursive,
                since: read.seq.0,
                own: Vec::new(),
            });
            // A pending read without `basisSeq` claims less (ENG-336).
            let pending = commit.reads.pending.iter().filter_map(|read| {
                Some(Read {
                    branch: commit.branch.as_str(),
                    id: read.id.as_str(),
                    scope: read.scope,
                    path: &read.path,
                    shape: read.non_recursive,
                    since: read.basis_seq?.0,
                    own: read
                        .local_seqs
                        .iter()
                        .map(|local_seq| layer(local_seq.0))
                        .collect(),
                })
            });
            for read in confirmed.chain(pending) {
                let key = ScopeKey::resolve(read.scope, &identity).unwrap();
                judged += 1;
                assert!(
                    !conflicts(&conn, &read, key.as_str(), seq),
                    "{store}: a read of {} by commit {seq}",
                    read.id
                );
            }
        }
    }
    assert!(judged > 20, "{judged} reads");
}
