//! The spans of a trace (SRV-1104): names and attributes in one place. Made by the rooms whose work they cover. At debug
//! level, so that a server nobody traces pays for none of them.

use memory_wire::message::{ClientCommit, Operation, RequestHeader};
use memory_wire::{Did, SpaceId};
use tracing::{Span, debug_span, field::Empty};

/// What a commit consists of.
fn commit_kind(commit: &ClientCommit) -> &'static str {
    let statements = commit
        .operations
        .iter()
        .filter(|operation| matches!(operation, Operation::Sqlite { .. }))
        .count();
    match (statements, commit.operations.len()) {
        (0, 0) if commit.preconditions.is_empty() => "empty",
        (0, 0) => "precondition",
        (0, _) => "semantic",
        (statements, all) if statements == all => "sqlite",
        _ => "mixed",
    }
}

/// A `transact` from its frame to its queued verdict.
pub(crate) fn transact(header: &RequestHeader, commit: &ClientCommit) -> Span {
    debug_span!(
        "memory.transact",
        space.did = %header.space,
        session.id = %header.session_id,
        request.id = %header.request_id,
        user.did = Empty,
        commit.local_seq = commit.local_seq.0,
        commit.kind = commit_kind(commit),
        entity.count = commit.operations.len(),
    )
}

/// Its admission and its way into the store.
pub(crate) fn persist(transact: &Span) -> Span {
    debug_span!(parent: transact, "memory.commit.persist", commit.seq = Empty, ct.conflict = Empty)
}

/// A watch request.
pub(crate) fn subscribe(header: &RequestHeader, watches: usize) -> Span {
    debug_span!(
        "memory.subscribe",
        space.did = %header.space,
        session.id = %header.session_id,
        request.id = %header.request_id,
        watch.count = watches,
    )
}

/// One push pass of a space: a root, for it is no part of the commit that happened to arm the timer.
pub(crate) fn fanout(space: &SpaceId, dirty: usize, subscribers: usize) -> Span {
    debug_span!(
        parent: None,
        "memory.fanout",
        space.did = %space,
        dirty.count = dirty,
        subscriber.count = subscribers,
    )
}

/// One session's evaluation in a pass.
pub(crate) fn refresh(session: &memory_wire::SessionId, watches: usize, touched: usize) -> Span {
    debug_span!("memory.watch.refresh", session.id = %session, watch.count = watches, ct.touched = touched)
}

/// Its frame on the way into the connection's queue.
pub(crate) fn sync(session: &memory_wire::SessionId, upserts: usize) -> Span {
    debug_span!("memory.subscriber.sync", session.id = %session, entity.count = upserts)
}

/// A socket from its upgrade to the first frame its tasks wait for.
pub(crate) fn socket_setup() -> Span {
    debug_span!("memory.socket.setup")
}

/// Says whose commit it is, where somebody listens.
pub(crate) fn record_user(span: &Span, principal: Option<&Did>) {
    if let Some(principal) = principal {
        span.record("user.did", tracing::field::display(principal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::value;

    #[test]
    fn srv_1104_kinds_of_commits() {
        let commit = |operations: memory_wire::Value, preconditions: memory_wire::Value| {
            ClientCommit::from_value(&value!({
                "localSeq": 1, "reads": { "confirmed": [], "pending": [] },
                "operations": operations, "preconditions": preconditions
            }))
            .expect("a commit")
        };
        let set = value!({ "op": "set", "id": "of:x", "value": { "value": 1 } });
        let sql = value!({ "op": "sqlite", "db": { "id": "of:db", "tables": {} }, "sql": "DELETE FROM t" });
        let none = value!([]);
        assert_eq!(
            commit_kind(&commit(value!([(set.clone())]), none.clone())),
            "semantic"
        );
        assert_eq!(
            commit_kind(&commit(value!([(sql.clone())]), none.clone())),
            "sqlite"
        );
        assert_eq!(commit_kind(&commit(value!([(set), (sql)]), none)), "mixed");
    }
}
