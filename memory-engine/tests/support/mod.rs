//! What the vector tests share: reading vector lines, plain JSON to values and back, and the raw rows of a store.
#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};

use memory_engine::lease::{LEASE_TTL_MS, LeaseTable};
use memory_engine::outbox::{OutboxAppend, OutboxRow, PlainJson};
use memory_engine::{
    Applied, ApplyCommit, Engine, EngineError, EntityState, FeedRecord, Holder, LeaseHolder, ReadInstance,
    WaveCommit,
    basis::{self, ActionInstance, BasisInstance, BasisRead, BasisRow},
    parse_annotation_key,
};
use memory_wire::commit_meta::{CommitClass, Delegated, WriteAnnotation};
use memory_wire::ids::{BranchName, Did, EntityId, EventId, Seq, SessionId, SpaceId};
use memory_wire::message::ClientCommit;
use memory_wire::scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
use memory_wire::value::{SlotRef, Value};
use memory_wire::{WireError, codec};
use serde_json::{Map, Value as Json, json};

/// Admission inside vectors runs between a lease taken at 1000 (expired) and one at 4000000000000 (live).
pub const NOW_MS: i64 = 1_800_000_000_000;

pub fn vector_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/vectors")
        .join(name)
}

/// Every line of a vector file.
pub fn vector_lines(name: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(vector_file(name)).unwrap();
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A value from plain JSON: no tags, no prefix.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => Value::Number(number.as_f64().unwrap()),
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Json::Object(map) => Value::Object(
            map.iter()
                .map(|(key, member)| (key.as_str(), value(member)))
                .collect(),
        ),
    }
}

/// Plain JSON of a value that has no special parts.
pub fn json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(n) if n.fract() == 0.0 && n.abs() < 9e15 => (*n as i64).into(),
        Value::Number(n) => (*n).into(),
        Value::String(text) => text.as_str().unwrap().into(),
        Value::Array(array) => array
            .slots()
            .map(|slot| match slot {
                SlotRef::Value(element) => json(element),
                SlotRef::Holes(_) => panic!("a hole has no plain JSON"),
            })
            .collect(),
        Value::Object(object) => {
            let members = object.iter().filter(|(_, member)| !member.is_undefined());
            Json::Object(
                members
                    .map(|(key, member)| (key.to_string(), json(member)))
                    .collect(),
            )
        }
        other => panic!("no plain JSON for {other:?}"),
    }
}

/// JSON with every whole number spelled the same way, so that `1` and `1.0` compare equal.
pub fn normal(json: &Json) -> Json {
    match json {
        Json::Number(number) => match number.as_f64() {
            Some(n) if n.fract() == 0.0 && n.abs() < 9e15 => (n as i64).into(),
            _ => json.clone(),
        },
        Json::Array(items) => items.iter().map(normal).collect(),
        Json::Object(map) => Json::Object(
            map.iter()
                .map(|(key, member)| (key.clone(), normal(member)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// How documents and patches are spelled in results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    Plain,
    /// Canonical text.
    Text,
}

impl Spelling {
    pub fn of(self, value: &Value) -> Json {
        match self {
            Spelling::Plain => json(value),
            Spelling::Text => codec::encode(value).unwrap().into(),
        }
    }
}

/// An error as vectors state it.
#[derive(Debug)]
pub enum Failure {
    Engine(EngineError),
    /// Refused before the engine: the commit's own parsing.
    Wire(WireError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Failure::Engine(error)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Wire(error)
    }
}

impl Failure {
    pub fn json(&self) -> Json {
        match self {
            // The reference's engine throws plain errors where the wire says `TransactionError`.
            Failure::Wire(error) => {
                let name = error.name.as_str();
                json!({ "name": if name == "TransactionError" { "Error" } else { name }, "message": error.message })
            }
            Failure::Engine(error) => {
                let mut object = Map::new();
                object.insert("name".into(), error.name().into());
                object.insert("message".into(), error.to_string().into());
                if let Some(precondition) = error.precondition() {
                    object.insert("precondition".into(), precondition.as_str().into());
                }
                match error {
                    EngineError::StaleConfirmedRead {
                        of,
                        seq,
                        conflict_seq,
                    } => {
                        object.insert("of".into(), of.as_str().into());
                        object.insert("seq".into(), seq.0.into());
                        object.insert("conflictSeq".into(), conflict_seq.0.into());
                    }
                    EngineError::WaveConflict { conflicted } => {
                        let docs = conflicted
                            .iter()
                            .map(|doc| format!("{} {}", doc.id, doc.scope_key));
                        object.insert("conflictedDocs".into(), docs.collect::<Vec<_>>().into());
                    }
                    EngineError::WavePrecondition { failed, .. } => {
                        object.insert("failedPreconditions".into(), failed.clone().into());
                    }
                    _ => {}
                }
                object.into()
            }
        }
    }
}

fn text(json: &Json, key: &str) -> Option<String> {
    json.get(key).and_then(Json::as_str).map(str::to_owned)
}

fn seq(json: &Json, key: &str) -> Option<Seq> {
    json.get(key).and_then(Json::as_u64).map(Seq)
}

fn branch(args: &Json) -> BranchName {
    text(args, "branch").unwrap_or_default().into()
}

/// The arguments of `applyCommit` and `applyWaveCommit`, owned.
pub struct CommitArgs {
    pub session_id: SessionId,
    pub principal: Option<Did>,
    pub space: Option<SpaceId>,
    pub class: CommitClass,
    pub holder: Option<Holder>,
    pub annotations: Option<Vec<WriteAnnotation>>,
    pub consequence_of: Option<Vec<EventId>>,
    pub derived_through: Option<Seq>,
    pub delegated: Option<Delegated>,
}

impl CommitArgs {
    pub fn read(args: &Json) -> Result<CommitArgs, Failure> {
        let annotations = args.get("annotations").and_then(Json::as_array).map(|list| {
            list.iter()
                .map(|annotation| {
                    let op = annotation["op"].as_u64().unwrap() as usize;
                    let scope_key = text(annotation, "scopeKey")
                        .map(|key| parse_annotation_key(op, &key))
                        .transpose()?;
                    Ok(WriteAnnotation {
                        op,
                        scope_key,
                        acting_user: text(annotation, "actingUser").map(Did::from),
                        acting_session: text(annotation, "actingSession").map(SessionId::from),
                    })
                })
                .collect::<Result<Vec<_>, EngineError>>()
        });
        Ok(CommitArgs {
            session_id: text(args, "sessionId").unwrap().into(),
            principal: text(args, "principal").map(Did::from),
            space: text(args, "space").map(SpaceId::from),
            class: text(args, "commitClass").map_or(CommitClass::Authored, |name| {
                CommitClass::from_name(&name).unwrap()
            }),
            holder: text(args, "holder").map(|holder| Holder::from(holder.as_str())),
            annotations: annotations.transpose()?,
            consequence_of: args
                .get("consequenceOf")
                .and_then(Json::as_array)
                .map(|list| list.iter().map(|event| event.as_str().unwrap().into()).collect()),
            derived_through: seq(args, "derivedThrough"),
            delegated: args.get("delegated").map(|delegated| Delegated {
                acting_principal: text(delegated, "actingPrincipal").map(Did::from),
                acting_session: text(delegated, "actingSession").map(SessionId::from),
                capability_ref: text(delegated, "capabilityRef").unwrap_or_default(),
                sessionless_space_scope: delegated.get("sessionlessSpaceScope").and_then(Json::as_bool)
                    == Some(true),
            }),
        })
    }

    pub fn apply(&self, engine: &mut Engine, commit: &ClientCommit) -> Result<Applied, EngineError> {
        engine.apply_commit(ApplyCommit {
            space: self.space.as_ref(),
            class: self.class,
            holder: self.holder.as_ref(),
            annotations: self.annotations.as_deref(),
            consequence_of: self.consequence_of.as_deref(),
            derived_through: self.derived_through,
            delegated: self.delegated.as_ref(),
            ..ApplyCommit::authored(&self.session_id, self.principal.as_ref(), commit, NOW_MS)
        })
    }
}

pub fn wave(args: &Json, commit: ClientCommit) -> Result<WaveCommit, Failure> {
    let parsed = CommitArgs::read(args)?;
    assert_eq!(parsed.class, CommitClass::Derived);
    let holder = parsed.holder.unwrap();
    let lease = LeaseHolder::new(parsed.space.unwrap(), holder, LEASE_TTL_MS);
    let mut wave = WaveCommit::new(&lease, commit, seq(&args["waveBasis"], "basisSeq").unwrap());
    wave.rebased_heads = list(&args["waveBasis"]["rebasedHeads"])
        .iter()
        .map(|head| {
            let doc = head["doc"].as_str().unwrap();
            let (id, key) = doc.rsplit_once(' ').unwrap();
            (
                InstanceId::new(id, ScopeKey::parse(key).unwrap()),
                seq(head, "head").unwrap(),
            )
        })
        .collect();
    wave.annotations = parsed.annotations.unwrap_or_default();
    wave.consequence_of = parsed.consequence_of.unwrap_or_default();
    wave.derived_through = parsed.derived_through;
    for instance in list(&args["basisInstances"]) {
        let action_scope_key = basis::parse_action_key(instance["actionScopeKey"].as_str().unwrap())?;
        let rows = list(&instance["rows"]).iter().map(|row| {
            Ok(BasisRead {
                entity_space: text(row, "entitySpace").unwrap().into(),
                entity: text(row, "entity").unwrap().into(),
                entity_scope_key: basis::parse_entity_key(row["entityScopeKey"].as_str().unwrap())?,
                seq: seq(row, "seq"),
            })
        });
        wave.basis_instances.push(BasisInstance {
            instance: ActionInstance {
                action: text(instance, "action").unwrap().into(),
                action_scope_key,
            },
            rows: rows.collect::<Result<_, EngineError>>()?,
        });
    }
    wave.outbox = list(&args["outboxAppends"])
        .iter()
        .map(|append| {
            let plain = |key: &str| {
                append
                    .get(key)
                    .map(|json| PlainJson::parse("vector", &json.to_string()).unwrap())
            };
            OutboxAppend {
                target_space: text(append, "targetSpace").unwrap().into(),
                target_stream: text(append, "targetStream").unwrap().into(),
                target_stream_link: plain("targetStreamLink"),
                event_id: text(append, "eventId").unwrap().into(),
                payload: plain("payload").unwrap_or_else(PlainJson::null),
                acting_principal: text(append, "actingPrincipal").map(Did::from),
                acting_session: text(append, "actingSession").map(SessionId::from),
                sessionless_space_scope: append.get("sessionlessSpaceScope").and_then(Json::as_bool)
                    == Some(true),
                capability_ref: text(append, "capabilityRef").unwrap(),
                source_event: plain("sourceEvent"),
            }
        })
        .collect();
    Ok(wave)
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Runs one step of a scenario or one probe of a store. `commit` is the parsed client commit of steps that have one.
pub fn step(
    engine: &mut Engine,
    verb: &str,
    args: &Json,
    commit: Option<Value>,
    spelling: Spelling,
) -> Result<Json, Failure> {
    let b = branch(args);
    let instance = |args: &Json| {
        InstanceId::new(
            text(args, "id").unwrap().as_str(),
            ScopeKey::parse(&text(args, "scopeKey").unwrap_or_else(|| "space".into())).unwrap(),
        )
    };
    let own = SpaceId::from(text(args, "space").unwrap_or_default());
    let lease_args = |args: &Json| {
        let ttl = args.get("ttlMs").and_then(Json::as_i64).unwrap_or(LEASE_TTL_MS);
        (
            Holder::from(text(args, "holder").unwrap().as_str()),
            args.get("now").and_then(Json::as_i64).unwrap_or(NOW_MS),
            ttl,
        )
    };
    Ok(match verb {
        "applyCommit" => {
            let parsed = CommitArgs::read(args)?;
            let commit = ClientCommit::from_value(&commit.unwrap())?;
            applied_json(&parsed.apply(engine, &commit)?, spelling)
        }
        "applyWaveCommit" => {
            let commit = ClientCommit::from_value(&commit.unwrap())?;
            let wave = wave(args, commit)?;
            applied_json(&engine.apply_wave(&wave, NOW_MS, None)?, spelling)
        }
        "readState" | "read" => {
            let id = EntityId::from(text(args, "id").unwrap());
            let identity = ScopeIdentity {
                principal: text(args, "principal").map(Did::from),
                session_id: text(args, "sessionId").map(SessionId::from),
            };
            let key = text(args, "scopeKey").map(|key| ScopeKey::parse(&key).unwrap());
            let scope = text(args, "scope").map_or(Scope::Space, |name| Scope::from_name(&name).unwrap());
            let instance = match &key {
                Some(key) => ReadInstance::Named(key),
                None => ReadInstance::Own(scope, &identity),
            };
            if let Some(at) = args.get("seq").and_then(Json::as_i64) {
                engine.check_seq_in_range(&b, at)?;
            }
            if verb == "read" {
                engine
                    .read(&id, instance, &b, seq(args, "seq"))?
                    .map_or(Json::Null, |d| spelling.of(&d))
            } else {
                engine
                    .read_state(&id, instance, &b, seq(args, "seq"))?
                    .map_or(Json::Null, |s| state_json(&s, spelling))
            }
        }
        "headSeq" => engine.head_seq(&b)?.0.into(),
        "serverSeq" => engine.server_seq()?.0.into(),
        "listEntityIds" => strings(engine.list_entity_ids()?),
        "listEntityIdPage" => {
            let after = text(args, "after").map(EntityId::from);
            strings(engine.entity_id_page(after.as_ref(), args.get("limit").and_then(Json::as_u64))?)
        }
        "entityIdExists" => engine.entity_id_exists(&text(args, "id").unwrap().into())?.into(),
        "acquireLease" => {
            let (holder, now, ttl) = lease_args(args);
            engine.acquire(&own, &holder, now, ttl)?.into()
        }
        "renewLease" => {
            let (holder, now, ttl) = lease_args(args);
            engine.renew(&own, &holder, now, ttl)?.into()
        }
        "releaseLease" => {
            engine.release(&own, &lease_args(args).0)?;
            Json::Null
        }
        "liveHolder" => {
            let now = args["now"].as_i64().unwrap();
            engine
                .reader()
                .live_holder(&own, now)?
                .map_or(Json::Null, |holder| holder.as_str().into())
        }
        "selectCommitsSince" | "commitsSince" => {
            let records = engine.commits_since(seq(args, "fromSeq").unwrap(), &b, None)?;
            records.iter().map(feed_json).collect()
        }
        "commitClassOfSeq" => engine
            .commit_class_of_seq(seq(args, "seq").unwrap())?
            .map_or(Json::Null, |class| class.as_str().into()),
        "pendingOutbox" => engine.pending_outbox(&b)?.iter().map(outbox_json).collect(),
        "deleteOutboxRow" => {
            engine.delete_outbox_row(args["rowId"].as_i64().unwrap())?;
            Json::Null
        }
        "basisRows" => {
            let instance = ActionInstance {
                action: text(args, "action").unwrap().into(),
                action_scope_key: ScopeKey::parse(&text(args, "actionScopeKey").unwrap()).unwrap(),
            };
            engine
                .basis_rows(&b, &instance)?
                .iter()
                .map(|row| Json::Object(basis_row_json(row)))
                .collect()
        }
        "staleBasis" | "selectStaleBasisInstances" => json!({
            "stale": engine.stale_basis_instances(&b, &own)?.iter().map(action_json).collect::<Vec<_>>(),
            "foreignReadInstances":
                engine.foreign_read_instances(&b, &own)?.iter().map(action_json).collect::<Vec<_>>(),
        }),
        "foreignBasis" => engine
            .foreign_basis_rows(&b, &own)?
            .iter()
            .map(|(action, row)| {
                let mut object = basis_row_json(row);
                object.insert("action".into(), action.action.as_str().into());
                object.insert("actionScopeKey".into(), action.action_scope_key.as_str().into());
                Json::Object(object)
            })
            .collect(),
        "selectWritePathsSince" | "writePathsSince" => {
            let paths = engine.write_paths_since(&instance(args), &b, seq(args, "sinceSeq").unwrap())?;
            paths
                .iter()
                .map(|path| {
                    path.iter()
                        .map(|segment| Json::from(segment.as_str()))
                        .collect::<Json>()
                })
                .collect()
        }
        "selectDocHead" | "docHead" => engine.doc_head(&instance(args), &b)?.0.into(),
        "selectPendingStreamEventDocs" | "pendingStreamEvents" => engine
            .select_pending_stream_events(&b)?
            .iter()
            .map(|pending| {
                json!({
                    "id": pending.id.as_str(),
                    "scopeKey": pending.scope_key.as_str(),
                    "entries": pending.entries.iter().map(json).collect::<Vec<_>>(),
                    "eventWatermark": pending.event_watermark.0,
                })
            })
            .collect(),
        "selectRetirableEffectsInstances" | "selectRetirableEffects" | "retirableEffects" => engine
            .select_retirable_effects(&b)?
            .iter()
            .map(|retirable| {
                json!({
                    "scopeKey": retirable.scope_key.as_str(),
                    "remainingEntries": retirable.remaining_entries.iter().map(json).collect::<Vec<_>>(),
                    "remainingAcks": json(&retirable.remaining_acks.clone().into()),
                    "retiredNonces": retirable.retired_nonces.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
                })
            })
            .collect(),
        "createBranch" => {
            let options = &args["options"];
            let parent = text(options, "parentBranch").unwrap_or_default().into();
            branch_json(&engine.create_branch(
                &text(args, "name").unwrap().into(),
                &parent,
                seq(options, "forkSeq"),
            )?)
        }
        "deleteBranch" => {
            engine.delete_branch(&text(args, "name").unwrap().into())?;
            Json::Null
        }
        "listBranches" => engine.list_branches()?.iter().map(branch_json).collect(),
        other => panic!("unknown step {other}"),
    })
}

fn strings(ids: Vec<EntityId>) -> Json {
    ids.iter().map(|id| Json::from(id.as_str())).collect()
}

pub fn applied_json(applied: &Applied, spelling: Spelling) -> Json {
    let revisions = applied.revisions.iter().map(|revision| {
        let Value::Object(object) = revision.to_value() else {
            panic!("a revision is an object")
        };
        let mut map = Map::new();
        for (key, member) in object.iter() {
            // Probes of stores leave out what follows from the rest.
            if spelling == Spelling::Text && (*key == "commitSeq" || *key == "scope") {
                continue;
            }
            let json = if *key == "document" || *key == "patches" {
                spelling.of(member)
            } else {
                json(member)
            };
            map.insert(key.to_string(), json);
        }
        Json::Object(map)
    });
    let mut object = Map::new();
    object.insert("seq".into(), applied.seq.0.into());
    object.insert("branch".into(), applied.branch.as_str().into());
    object.insert("revisions".into(), revisions.collect());
    if let Some(elided) = &applied.elided_op_indexes {
        object.insert("elidedOpIndexes".into(), elided.clone().into());
    }
    if applied.replayed {
        object.insert("replayed".into(), true.into());
    }
    object.into()
}

pub fn state_json(state: &EntityState, spelling: Spelling) -> Json {
    json!({
        "id": state.id.as_str(),
        "scope": state.scope.as_str(),
        "scopeKey": state.scope_key.as_str(),
        "branch": state.branch.as_str(),
        "seq": state.seq.0,
        "opIndex": state.op_index,
        "op": state.op.as_str(),
        "document": state.document.as_ref().map_or(Json::Null, |document| spelling.of(document)),
    })
}

pub fn branch_json(branch: &memory_engine::BranchState) -> Json {
    json!({
        "name": branch.name.as_str(),
        "parentBranch": branch.parent.as_ref().map(|parent| parent.as_str()),
        "forkSeq": branch.fork_seq.map(|seq| seq.0),
        "createdSeq": branch.created_seq.0,
        "headSeq": branch.head_seq.0,
        "status": branch.status.as_str(),
    })
}

fn feed_json(record: &FeedRecord) -> Json {
    json!({
        "seq": record.seq.0,
        "branch": record.branch.as_str(),
        "class": record.class.as_str(),
        "holder": record.holder.as_ref().map(Holder::as_str),
        "sessionId": record.session_key,
        "writes": record.writes.iter()
            .map(|write| json!({ "id": write.id.as_str(), "scopeKey": write.scope_key.as_str() }))
            .collect::<Vec<_>>(),
    })
}

fn action_json(instance: &ActionInstance) -> Json {
    json!({ "action": instance.action.as_str(), "actionScopeKey": instance.action_scope_key.as_str() })
}

fn basis_row_json(row: &BasisRow) -> Map<String, Json> {
    let Json::Object(map) = json!({
        "entitySpace": row.entity_space.as_str(),
        "entity": row.entity.as_str(),
        "entityScopeKey": row.entity_scope_key.as_str(),
        "seq": row.seq.0,
    }) else {
        panic!("an object literal is an object")
    };
    map
}

fn outbox_json(row: &OutboxRow) -> Json {
    let append = &row.append;
    let plain = |json: &PlainJson| serde_json::from_str::<Json>(json.as_str()).unwrap();
    let mut object = Map::new();
    object.insert("rowId".into(), row.row_id.into());
    object.insert("targetSpace".into(), append.target_space.as_str().into());
    object.insert("targetStream".into(), append.target_stream.as_str().into());
    object.insert("eventId".into(), append.event_id.as_str().into());
    object.insert("payload".into(), plain(&append.payload));
    object.insert("capabilityRef".into(), append.capability_ref.as_str().into());
    object.insert("createdSeq".into(), row.created_seq.0.into());
    if let Some(link) = &append.target_stream_link {
        object.insert("targetStreamLink".into(), plain(link));
    }
    if let Some(principal) = &append.acting_principal {
        object.insert("actingPrincipal".into(), principal.as_str().into());
    }
    if let Some(session) = &append.acting_session {
        object.insert("actingSession".into(), session.as_str().into());
    }
    if append.sessionless_space_scope {
        object.insert("sessionlessSpaceScope".into(), true.into());
    }
    if let Some(source) = &append.source_event {
        object.insert("sourceEvent".into(), plain(source));
    }
    object.into()
}

/// The stored rows of every non-empty table, times left out, as vectors state them.
pub fn dump(path: &Path) -> Json {
    let conn = rusqlite::Connection::open(path).unwrap();
    let mut tables = Map::new();
    let mut statement = conn
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        .unwrap();
    let names: Vec<String> = statement
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for name in names.iter().filter(|name| !name.starts_with("sqlite_")) {
        let rows = rows_of(&conn, name);
        if !rows.is_empty() {
            tables.insert(name.clone(), rows.into());
        }
    }
    tables.into()
}

/// All rows of one table, by primary key, times left out.
pub fn rows_of(conn: &rusqlite::Connection, table: &str) -> Vec<Json> {
    let order = match table {
        "commit" => "seq",
        "revision" => "seq, op_index",
        "head" => "branch, id, scope_key",
        "snapshot" => "branch, id, scope_key, seq",
        "branch" => "name",
        _ => "1, 2, 3",
    };
    let order = if table == "unknown_extra" { "1" } else { order };
    let mut statement = conn
        .prepare(&format!("SELECT * FROM \"{table}\" ORDER BY {order}"))
        .unwrap();
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query([]).unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let mut object = Map::new();
        for (index, column) in columns.iter().enumerate() {
            if column == "created_at" || column == "deleted_at" {
                continue;
            }
            let json = match row.get_ref(index).unwrap() {
                rusqlite::types::ValueRef::Null => Json::Null,
                rusqlite::types::ValueRef::Integer(n) => n.into(),
                rusqlite::types::ValueRef::Real(n) => n.into(),
                rusqlite::types::ValueRef::Text(text) => std::str::from_utf8(text).unwrap().into(),
                rusqlite::types::ValueRef::Blob(bytes) => bytes
                    .iter()
                    .map(|byte| format!("{byte:02X}"))
                    .collect::<String>()
                    .into(),
            };
            object.insert(column.clone(), json);
        }
        found.push(object.into());
    }
    found
}
