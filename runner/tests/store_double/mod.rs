//! A server that stores: enough of one, in memory, for whole runtimes to work against. It answers every request by
//! itself, keeps one document per instance, refuses stale reads, stamps stream entries, and pushes what others wrote.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use memory_wire::commit_meta::CommitClass;
use memory_wire::error::WireError;
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::message::{
    ClientCommit, ClientMessage, Effect, HelloOk, OpenChallenge, Operation, Response, ServerMessage,
    SessionOpen, SessionOpenOk, SessionSync, Upsert, UpsertContent, Watch, WatchOk, WatchRequest,
    parse_client_message,
};
use memory_wire::patch::apply_patches;
use memory_wire::{
    BranchName, Did, EntityId, RequestId, Scope, ScopeIdentity, ScopeKey, Seq, SessionId, SpaceId, Value,
    value,
};
use runner::ambient::{CountingMint, ManualClock};
use runner::storage_manager::{StorageManager, StorageOptions};
use runner::transport::{ChannelConnector, ChannelPeer};

/// The space every test works in.
pub const SPACE: &str = "did:key:z6MkSpace";

type InstanceKey = (String, EntityId);

#[derive(Clone)]
struct Stored {
    seq: Seq,
    document: Option<Value>,
    class: CommitClass,
}

struct Session {
    peer: ChannelPeer,
    identity: ScopeIdentity,
    /// Instances it watches, and whether it named the instance.
    watched: BTreeMap<InstanceKey, bool>,
}

#[derive(Default)]
struct State {
    seq: u64,
    documents: BTreeMap<InstanceKey, Stored>,
    sessions: Vec<Session>,
    /// Commits refused from now on, by message.
    refuse: Vec<WireError>,
}

/// The store. Clones share it.
#[derive(Clone, Default)]
pub struct StoreDouble(Rc<RefCell<State>>);

/// One operation on one instance.
pub struct Write {
    pub key: ScopeKey,
    pub operation: Operation,
}

impl StoreDouble {
    pub fn space(&self) -> SpaceId {
        SpaceId::from(SPACE)
    }

    /// A storage manager of `name`, in a session of its own, joined to this store.
    pub fn storage(
        &self,
        name: &str,
        clock: &ManualClock,
        adjust: impl FnOnce(&mut StorageOptions),
    ) -> StorageManager {
        let signer = Rc::new(Signer::from_passphrase(name));
        let (store, principal) = (self.clone(), signer.did().clone());
        let connector = ChannelConnector::new(move |_, peer| {
            let identity = ScopeIdentity {
                principal: Some(principal.clone()),
                session_id: None,
            };
            let session = Session {
                peer,
                identity,
                watched: BTreeMap::new(),
            };
            store.0.borrow_mut().sessions.push(session);
        });
        let mut options = StorageOptions::new(
            signer,
            Rc::new(connector),
            Rc::new(clock.clone()),
            Rc::new(CountingMint::default()),
            Arc::new(|| {}),
        );
        options.session_id = Some(SessionId::from(format!("{name}-session")));
        adjust(&mut options);
        StorageManager::new(options)
    }

    /// Handles everything that clients sent; answers whether anything came.
    pub fn serve(&self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while at < self.0.borrow().sessions.len() {
            let frame = self.0.borrow().sessions[at].peer.try_recv();
            match frame {
                Some(frame) => {
                    worked = true;
                    self.handle(
                        at,
                        parse_client_message(&frame).expect("clients send parseable messages"),
                    );
                }
                None => at += 1,
            }
        }
        worked
    }

    fn handle(&self, at: usize, message: ClientMessage) {
        match message {
            ClientMessage::Hello(_) => {
                let flags = Flags {
                    sync_schema_table_v2: true,
                    commit_preconditions: true,
                    pending_read_stacks: true,
                    ..Flags::default()
                };
                self.send(
                    at,
                    &ServerMessage::HelloOk(HelloOk {
                        flags,
                        session_open: challenge(),
                    }),
                );
            }
            ClientMessage::SessionOpen(open) => self.open(at, &open),
            ClientMessage::Ack(ack) => {
                let seq = self.0.borrow().seq;
                self.answer(at, &ack.header.request_id, Ok(value!({ "serverSeq": (seq) })));
            }
            ClientMessage::WatchAdd(request) | ClientMessage::WatchSet(request) => self.watch(at, &request),
            ClientMessage::Transact(transact) => {
                let commit =
                    ClientCommit::from_value(&transact.commit).expect("clients send well-formed commits");
                let outcome = self.admit(at, &commit);
                self.answer(at, &transact.header.request_id, outcome);
            }
            other => panic!("the double does not serve {other:?}"),
        }
    }

    fn open(&self, at: usize, open: &SessionOpen) {
        let session_id = open
            .session
            .session_id
            .clone()
            .expect("clients name their session");
        self.0.borrow_mut().sessions[at].identity.session_id = Some(session_id.clone());
        let ok = SessionOpenOk {
            session_id,
            session_token: format!("token-{at}").as_str().into(),
            server_seq: Seq(self.0.borrow().seq),
            caught_up_local_seq: None,
            resumed: false,
            sync: None,
            session_open: challenge(),
        };
        self.answer(at, &open.request_id, Ok(ok.to_value()));
    }

    fn watch(&self, at: usize, request: &WatchRequest) {
        let watches = Watch::list_from_values(&request.watches).expect("clients send well-formed watches");
        let mut upserts = Vec::new();
        {
            let mut state = self.0.borrow_mut();
            let identity = state.sessions[at].identity.clone();
            for root in watches.into_iter().flat_map(|watch| watch.query.roots) {
                let key = root
                    .entity_scope_key
                    .clone()
                    .or_else(|| ScopeKey::resolve(root.scope, &identity).ok());
                let Some(key) = key else { continue };
                let instance = (key.as_str().to_owned(), root.id.clone());
                let named = root.entity_scope_key.is_some();
                state.sessions[at].watched.insert(instance.clone(), named);
                if let Some(stored) = state.documents.get(&instance) {
                    upserts.push(upsert(&instance, stored, named));
                }
            }
        }
        let sync = self.sync(upserts);
        let ok = WatchOk {
            server_seq: Seq(self.0.borrow().seq),
            sync,
        };
        self.answer(at, &request.header.request_id, Ok(ok.to_value()));
    }

    fn sync(&self, upserts: Vec<Upsert>) -> SessionSync {
        SessionSync {
            from_seq: Seq(0),
            to_seq: Seq(self.0.borrow().seq),
            caught_up_local_seq: None,
            upserts,
            removes: Vec::new(),
            schema_table: None,
            view_plans: None,
        }
    }

    /// The next commit is refused with this.
    pub fn refuse_next(&self, error: WireError) {
        self.0.borrow_mut().refuse.push(error);
    }

    fn admit(&self, at: usize, commit: &ClientCommit) -> Result<Value, WireError> {
        if let Some(error) = self.0.borrow_mut().refuse.pop() {
            return Err(error);
        }
        let identity = self.0.borrow().sessions[at].identity.clone();
        for read in &commit.reads.confirmed {
            let key = ScopeKey::resolve(read.scope, &identity).expect("clients read their own instances");
            let head = self.head(&key, &read.id);
            if head > read.seq {
                let text = format!(
                    "stale confirmed read: {} at seq {} conflicted with seq {}",
                    read.id, read.seq, head
                );
                return Err(WireError::new(memory_wire::error::ErrorName::Conflict, text));
            }
        }
        let writes = commit
            .operations
            .iter()
            .map(|operation| {
                let (_, scope) = operation.target().expect("no SQLite here");
                let key = ScopeKey::resolve(scope, &identity).expect("clients write their own instances");
                Write {
                    key,
                    operation: operation.clone(),
                }
            })
            .collect();
        let seq = self.apply(writes, CommitClass::Authored, Some(at), Some(&identity));
        Ok(value!({ "seq": (seq.0), "branch": "", "revisions": [] }))
    }

    /// Applies a derived commit, as the host of a serving runtime does; pushed to everybody.
    pub fn apply_derived(&self, writes: Vec<Write>) -> Seq {
        self.apply(writes, CommitClass::Derived, None, None)
    }

    fn apply(
        &self,
        writes: Vec<Write>,
        class: CommitClass,
        writer: Option<usize>,
        fired_by: Option<&ScopeIdentity>,
    ) -> Seq {
        let mut state = self.0.borrow_mut();
        state.seq += 1;
        let seq = Seq(state.seq);
        let mut touched: BTreeSet<InstanceKey> = BTreeSet::new();
        for Write { key, operation } in writes {
            let (id, _) = operation.target().expect("no SQLite here");
            let instance = (key.as_str().to_owned(), id.clone());
            let before = state
                .documents
                .get(&instance)
                .and_then(|stored| stored.document.clone());
            let document = match &operation {
                Operation::Set { value, .. } => Some(value.clone()),
                Operation::Patch { patches, .. } => {
                    let base = before.unwrap_or_else(|| value!({}));
                    Some(apply_patches(&base, patches).expect("patches apply"))
                }
                Operation::Delete { .. } => None,
                Operation::Sqlite { .. } => unreachable!("has no target"),
            };
            let document = document.map(|d| stamp_entries(d, seq, fired_by));
            state
                .documents
                .insert(instance.clone(), Stored { seq, document, class });
            touched.insert(instance);
        }
        let mut pushes = Vec::new();
        for (at, session) in state.sessions.iter().enumerate() {
            let upserts: Vec<Upsert> = touched
                .iter()
                .filter_map(|instance| {
                    // The writer has what it wrote, except that stamped entries are news to it as well.
                    let own = writer == Some(at) && !instance.1.as_str().starts_with("of:stream-events:");
                    let named = *session.watched.get(instance)?;
                    (!own).then(|| upsert(instance, &state.documents[instance], named))
                })
                .collect();
            if !upserts.is_empty() {
                pushes.push((at, session.identity.session_id.clone(), upserts));
            }
        }
        drop(state);
        for (at, session_id, upserts) in pushes {
            let sync = self.sync(upserts);
            let session_id = session_id.expect("a watching session is open");
            self.send(
                at,
                &ServerMessage::Effect(Effect {
                    space: self.space(),
                    session_id,
                    sync,
                }),
            );
        }
        seq
    }

    // --- looking in --------------------------------------------------------------------------------------------

    pub fn head(&self, key: &ScopeKey, id: &EntityId) -> Seq {
        self.0
            .borrow()
            .documents
            .get(&(key.as_str().to_owned(), id.clone()))
            .map_or(Seq(0), |stored| stored.seq)
    }

    pub fn server_seq(&self) -> Seq {
        Seq(self.0.borrow().seq)
    }

    /// The `value` of an instance; `Undefined` when there is none.
    pub fn value(&self, key: &ScopeKey, id: &EntityId) -> Value {
        let state = self.0.borrow();
        let stored = state.documents.get(&(key.as_str().to_owned(), id.clone()));
        stored
            .and_then(|stored| stored.document.as_ref())
            .and_then(|document| document.member("value").cloned())
            .unwrap_or(Value::Undefined)
    }

    /// Every instance with a document, `scope key` and id.
    pub fn instances(&self) -> Vec<(String, EntityId)> {
        self.0.borrow().documents.keys().cloned().collect()
    }

    /// Sidecars in which some entry is not consequenced.
    pub fn pending_entries(&self) -> Vec<(EntityId, usize, Value)> {
        let state = self.0.borrow();
        let mut pending = Vec::new();
        for ((_, id), stored) in &state.documents {
            if !id.as_str().starts_with("of:stream-events:") {
                continue;
            }
            let entries = stored
                .document
                .as_ref()
                .and_then(|d| d.at_path(&["value", "entries"]));
            let Some(Value::Array(entries)) = entries else {
                continue;
            };
            for (index, entry) in entries.elements() {
                if entry.member("consequenced").is_none() {
                    pending.push((id.clone(), index, entry.clone()));
                }
            }
        }
        // In the order they were admitted.
        pending.sort_by_key(|(_, _, entry)| entry.member("seq").and_then(Value::as_u64));
        pending
    }

    fn answer(&self, at: usize, request_id: &RequestId, result: Result<Value, WireError>) {
        self.send(
            at,
            &ServerMessage::Response(Response {
                request_id: request_id.clone(),
                result,
            }),
        );
    }

    fn send(&self, at: usize, message: &ServerMessage) {
        self.0.borrow().sessions[at]
            .peer
            .send(message.encode().expect("server messages encode"));
    }
}

/// Admission gives new entries their seq and, when a session fired them, its name.
fn stamp_entries(mut document: Value, seq: Seq, fired_by: Option<&ScopeIdentity>) -> Value {
    let entries = match &mut document {
        Value::Object(root) => match root.get_mut("value") {
            Some(Value::Object(value)) => value.get_mut("entries"),
            _ => None,
        },
        _ => None,
    };
    if let Some(Value::Array(entries)) = entries {
        for entry in entries.as_dense_mut().into_iter().flatten() {
            let Value::Object(entry) = entry else { continue };
            if entry.contains_key("seq") || !entry.contains_key("eventId") {
                continue;
            }
            entry.insert("seq", Value::from(seq.0));
            if let Some(who) = fired_by {
                let mut fired_at = memory_wire::Object::new();
                if let Some(user) = &who.principal {
                    fired_at.insert("user", user.as_str());
                }
                fired_at.insert(
                    "session",
                    who.session_id.as_ref().map_or("server", SessionId::as_str),
                );
                entry.insert("firedAt", Value::Object(fired_at));
            }
        }
    }
    document
}

fn upsert(instance: &InstanceKey, stored: &Stored, named: bool) -> Upsert {
    let key = ScopeKey::parse(&instance.0).expect("stored under canonical keys");
    Upsert {
        branch: BranchName::default(),
        id: instance.1.clone(),
        scope: key.scope(),
        scope_key: (named && key.scope() != Scope::Space).then_some(key),
        seq: stored.seq,
        content: stored
            .document
            .clone()
            .map_or(UpsertContent::Deleted, UpsertContent::Doc),
        cover_class: Some(stored.class),
    }
}

fn challenge() -> OpenChallenge {
    OpenChallenge {
        audience: Did::from("did:key:z6MkServer"),
        value: "ab".repeat(32),
        expires_at: 1_800_000_000,
    }
}
