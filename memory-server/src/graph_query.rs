//! `graph.query` (SRV-513, SRV-514): one evaluation, answered and forgotten. Runs beside the turn on one committed state.

use std::sync::Arc;
use std::time::Instant;

use memory_engine::EngineError;
use memory_wire::message::{EntitySnapshot, GraphQuery, GraphQueryOk, GraphQueryRequest, Root};
use memory_wire::{BranchName, Seq, WireError};

use crate::acl::{self, Capability, Standing};
use crate::dispatch::{Answer, Requester, revoked_in_flight};
use crate::error::ServerError;
use crate::instance_reads::Naming;
use crate::leases::ElsewhereLeases;
use crate::server::Server;
use crate::statistics::{SlowOperation, SlowQuery};
use memory_engine::query::{Snapshot, TrackedGraph};

pub(crate) async fn graph_query(
    server: &Arc<Server>,
    requester: &Requester,
    request: &GraphQueryRequest,
) -> Result<Answer, WireError> {
    let started = Instant::now();
    let space = &requester.open.space;
    let session_id = &requester.header.session_id;
    let (slot, identity, standing) = {
        let registry = space.registry.lock();
        let (slot, session) = registry
            .current(session_id, requester.open.incarnation)
            .ok_or_else(|| WireError::session("Unknown session for space"))?;
        (slot, session.identity(), Standing::of(session))
    };
    server.require_capability(requester, Capability::Read).await?;
    if is_subscription(request) {
        return Err(WireError::protocol(
            "live graph.query subscriptions were removed; use session.watch.set",
        ));
    }
    let query = GraphQuery::from_value(&request.query)?;
    let roots = query.roots.len();
    let elsewhere = if needs_leases(&query) {
        server.leases_elsewhere(space).await
    } else {
        ElsewhereLeases::default()
    };
    let (shared_server, shared_space) = (Arc::clone(server), Arc::clone(space));
    let evaluated = space
        .read(move |reader| {
            if !acl::stands_in(&shared_server, &shared_space, reader, &standing)? {
                return Ok(Err(revoked_in_flight()));
            }
            let roots = query.roots.iter().map(|root| (&query.branch, root));
            let naming = match shared_server.admit_reads(&shared_space, reader, &identity, roots, &elsewhere)
            {
                Ok(naming) => naming,
                Err(error) => return Ok(Err(error)),
            };
            let snapshots = match TrackedGraph::query(reader, shared_space.id(), &identity, &query) {
                Ok(snapshots) => snapshots,
                Err(error) => return Ok(Err(ServerError::from(error).to_query())),
            };
            Ok::<_, EngineError>(Ok((naming, reader.server_seq()?, snapshots)))
        })
        .await
        .map_err(|error| error.to_query())?;
    server.statistics().note_query(SlowQuery {
        timestamp: server.config().clock.wall_ms(),
        elapsed: started.elapsed().as_secs_f64() * 1000.0,
        operation: SlowOperation::GraphQuery,
        space: space.id().to_string(),
        roots: Some(roots),
        watches: None,
    });
    let (naming, server_seq, snapshots) = evaluated?;
    let keyed = space
        .registry
        .lock()
        .update(slot, |session| {
            session.lease_reads |= naming == Naming::Admitted;
            session.lease_reads
        })
        .unwrap_or(false);
    Ok(Answer::Body(
        body(server, server_seq, snapshots, keyed).to_value(),
    ))
}

fn is_subscription(request: &GraphQueryRequest) -> bool {
    request
        .query
        .member("subscribe")
        .is_some_and(|subscribe| subscribe.as_bool() != Some(false))
}

fn needs_leases(query: &GraphQuery) -> bool {
    let roots: Vec<(&BranchName, &Root)> = query.roots.iter().map(|root| (&query.branch, root)).collect();
    crate::instance_reads::names_instances(roots.iter().copied())
        || crate::instance_reads::first_unnamed_scoped(roots.into_iter()).is_some()
}

/// Sorted by id; duplicate roots were one instance already.
fn body(server: &Server, server_seq: Seq, mut snapshots: Vec<Snapshot>, keyed: bool) -> GraphQueryOk {
    snapshots.sort_by(|a, b| (&a.id, &a.scope_key).cmp(&(&b.id, &b.scope_key)));
    GraphQueryOk {
        server_seq,
        entities: snapshots
            .into_iter()
            .map(|snapshot| EntitySnapshot {
                cover_class: server.cover_class(&snapshot),
                branch: snapshot.branch,
                id: snapshot.id,
                scope: snapshot.scope_key.scope(),
                scope_key: keyed.then_some(snapshot.scope_key),
                seq: snapshot.seq,
                document: snapshot.document,
            })
            .collect(),
    }
}
