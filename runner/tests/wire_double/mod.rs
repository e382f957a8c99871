//! A server's end of the wire, in memory and by hand: it greets and opens sessions by itself, and answers everything
//! else only when a test says so.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod acts;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use memory_wire::commit_meta::CommitClass;
use memory_wire::error::{ErrorName, WireError};
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::message::{
    ClientCommit, ClientMessage, Effect, HelloOk, OpenChallenge, Remove, RequestHeader, Response,
    ServerMessage, SessionOpen, SessionOpenOk, SessionSync, Upsert, UpsertContent, WatchOk,
    parse_client_message,
};
use memory_wire::{
    BranchName, Did, EntityId, LocalSeq, RequestId, Scope, ScopeKey, Seq, SpaceId, Value, value,
};
use runner::ambient::{CountingMint, ManualClock};
use runner::storage_manager::{StorageManager, StorageOptions};
use runner::transport::{ChannelConnector, ChannelPeer};

/// The space every test works in.
pub(crate) const SPACE: &str = "did:key:z6MkSpace";

/// A request waiting for the test's answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) message: ClientMessage,
    pub(crate) header: RequestHeader,
}

struct State {
    flags: Flags,
    /// How the next session open is answered.
    resume: Cell<bool>,
    opens: RefCell<Vec<SessionOpen>>,
    requests: RefCell<VecDeque<Request>>,
    peer: RefCell<Option<ChannelPeer>>,
    header: RefCell<Option<RequestHeader>>,
    seq: Cell<u64>,
    connections: Cell<usize>,
    refuse_open: RefCell<Option<WireError>>,
}

/// The scripted server.
#[derive(Clone)]
pub(crate) struct WireDouble(Rc<State>);

/// A manager joined to a scripted server.
pub(crate) struct Bench {
    pub(crate) storage: StorageManager,
    pub(crate) server: WireDouble,
    pub(crate) clock: ManualClock,
}

pub(crate) fn server_flags() -> Flags {
    Flags {
        sync_schema_table_v2: true,
        commit_preconditions: true,
        pending_read_stacks: true,
        verdict_catch_up_markers: true,
        ..Flags::default()
    }
}

pub(crate) fn bench() -> Bench {
    bench_with(server_flags(), |_| {})
}

pub(crate) fn bench_with(flags: Flags, adjust: impl FnOnce(&mut StorageOptions)) -> Bench {
    let server = WireDouble(Rc::new(State {
        flags,
        resume: Cell::new(true),
        opens: RefCell::default(),
        requests: RefCell::default(),
        peer: RefCell::default(),
        header: RefCell::default(),
        seq: Cell::new(0),
        connections: Cell::new(0),
        refuse_open: RefCell::default(),
    }));
    let connector = server.connector();
    let clock = ManualClock::at(1_700_000_000_000);
    let mut options = StorageOptions::new(
        Rc::new(Signer::from_passphrase("alice")),
        connector,
        Rc::new(clock.clone()),
        Rc::new(CountingMint::default()),
        Arc::new(|| {}),
    );
    adjust(&mut options);
    Bench {
        storage: StorageManager::new(options),
        server,
        clock,
    }
}

impl Bench {
    /// Lets both sides work until nothing moves.
    pub(crate) fn settle(&self) {
        while self.storage.pump() | self.server.serve() {}
    }

    pub(crate) fn space(&self) -> SpaceId {
        SpaceId::from(SPACE)
    }

    /// Loads a document by answering its watch with `content` at `seq`.
    pub(crate) fn load(&self, id: &str, seq: u64, content: Option<Value>) {
        let address = runner::address::Address::document(self.space(), id.into(), Scope::Space);
        let loaded = self
            .storage
            .load(&address, runner::replica::Selector::rejecting(), None);
        self.settle();
        let request = self.server.take("session.watch");
        self.server.answer_watch(&request, vec![upsert(id, seq, content)]);
        self.settle();
        assert!(matches!(loaded.peek(), Some(Ok(()))), "{loaded:?}");
    }
}

pub(crate) fn upsert(id: &str, seq: u64, content: Option<Value>) -> Upsert {
    Upsert {
        branch: BranchName::default(),
        id: EntityId::from(id),
        scope: Scope::Space,
        scope_key: None,
        seq: Seq(seq),
        content: content.map_or(UpsertContent::Deleted, |v| {
            UpsertContent::Doc(value!({ "value": v }))
        }),
        cover_class: None,
    }
}

pub(crate) fn keyed(mut upsert: Upsert, key: &str) -> Upsert {
    let key = ScopeKey::parse(key).expect("a scope key");
    upsert.scope = key.scope();
    upsert.scope_key = Some(key);
    upsert
}

pub(crate) fn derived(mut upsert: Upsert) -> Upsert {
    upsert.cover_class = Some(CommitClass::Derived);
    upsert
}

impl WireDouble {
    /// Reads what the client sent; answers whether anything came.
    pub(crate) fn serve(&self) -> bool {
        let mut worked = false;
        loop {
            let frame = self.0.peer.borrow().as_ref().and_then(ChannelPeer::try_recv);
            let Some(frame) = frame else { return worked };
            worked = true;
            match parse_client_message(&frame).expect("clients send parseable messages") {
                ClientMessage::Hello(_) => self.send(&ServerMessage::HelloOk(HelloOk {
                    flags: self.0.flags,
                    session_open: challenge(),
                })),
                ClientMessage::SessionOpen(open) => self.open(open),
                ClientMessage::Ack(ack) => {
                    self.answer(&ack.header.request_id, Ok(value!({ "serverSeq": 0 })))
                }
                message => {
                    let header = message.header().expect("requests have a header").clone();
                    *self.0.header.borrow_mut() = Some(header.clone());
                    self.0
                        .requests
                        .borrow_mut()
                        .push_back(Request { message, header });
                }
            }
        }
    }

    fn open(&self, open: SessionOpen) {
        if let Some(error) = self.0.refuse_open.borrow_mut().take() {
            self.answer(&open.request_id, Err(error));
            return;
        }
        let first = self.0.opens.borrow().is_empty();
        let session_id = open
            .session
            .session_id
            .clone()
            .expect("clients name their session");
        *self.0.header.borrow_mut() = Some(RequestHeader {
            request_id: "-".into(),
            space: open.space.clone(),
            session_id: session_id.clone(),
        });
        let ok = SessionOpenOk {
            session_id,
            session_token: format!("token-{}", self.0.opens.borrow().len()).as_str().into(),
            server_seq: Seq(self.0.seq.get()),
            caught_up_local_seq: None,
            resumed: !first && self.0.resume.get(),
            sync: None,
            session_open: challenge(),
        };
        let request_id = open.request_id.clone();
        self.0.opens.borrow_mut().push(open);
        self.answer(&request_id, Ok(ok.to_value()));
    }

    pub(crate) fn opens(&self) -> Vec<SessionOpen> {
        self.0.opens.borrow().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.0.connections.get()
    }

    /// The next session open is refused with this.
    pub(crate) fn refuse_next_open(&self, name: ErrorName, message: &str) {
        *self.0.refuse_open.borrow_mut() = Some(WireError::new(name, message));
    }

    /// Whether later opens of a known session resume it.
    pub(crate) fn set_resume(&self, resume: bool) {
        self.0.resume.set(resume);
    }

    /// A way to this server.
    pub(crate) fn connector(&self) -> Rc<ChannelConnector> {
        let accept = self.clone();
        Rc::new(ChannelConnector::new(move |_, peer| {
            accept.0.connections.set(accept.0.connections.get() + 1);
            *accept.0.peer.borrow_mut() = Some(peer);
        }))
    }

    /// Stops tracking a document for the client.
    pub(crate) fn retract(&self, id: &str) {
        let header = self.0.header.borrow().clone().expect("a session is open");
        let mut sync = self.sync(Vec::new(), None);
        sync.removes.push(Remove {
            branch: BranchName::default(),
            id: id.into(),
            scope: Scope::Space,
            scope_key: None,
        });
        self.send(&ServerMessage::Effect(Effect {
            space: header.space,
            session_id: header.session_id,
            sync,
        }));
    }

    /// Breaks the line.
    pub(crate) fn hang_up(&self) {
        *self.0.peer.borrow_mut() = None;
    }

    /// Drops what arrived on a line that is gone.
    pub(crate) fn forget_requests(&self) {
        self.0.requests.borrow_mut().clear();
    }

    /// Takes the oldest request, which must be of this type.
    pub(crate) fn take(&self, type_prefix: &str) -> Request {
        let request = self
            .0
            .requests
            .borrow_mut()
            .pop_front()
            .unwrap_or_else(|| panic!("no {type_prefix} arrived"));
        assert!(
            request.message.type_name().starts_with(type_prefix),
            "{:?}",
            request.message
        );
        request
    }

    /// Takes the oldest request, which must be a commit.
    pub(crate) fn take_commit(&self) -> (Request, ClientCommit) {
        let request = self.take("transact");
        let ClientMessage::Transact(transact) = &request.message else {
            unreachable!("checked by take")
        };
        let commit = ClientCommit::from_value(&transact.commit).expect("clients send well-formed commits");
        (request, commit)
    }

    pub(crate) fn pending_requests(&self) -> usize {
        self.0.requests.borrow().len()
    }

    pub(crate) fn accept(&self, request: &Request, seq: u64) {
        self.0.seq.set(self.0.seq.get().max(seq));
        let body = value!({ "seq": (seq), "branch": "", "revisions": [] });
        self.answer(&request.header.request_id, Ok(body));
    }

    pub(crate) fn reject(&self, request: &Request, name: ErrorName, message: &str) {
        self.answer(&request.header.request_id, Err(WireError::new(name, message)));
    }

    pub(crate) fn answer_watch(&self, request: &Request, upserts: Vec<Upsert>) {
        let sync = self.sync(upserts, None);
        let ok = WatchOk {
            server_seq: Seq(self.0.seq.get()),
            sync,
        };
        self.answer(&request.header.request_id, Ok(ok.to_value()));
    }

    fn sync(&self, upserts: Vec<Upsert>, marker: Option<u64>) -> SessionSync {
        let newest = upserts.iter().map(|u| u.seq.0).max().unwrap_or(0);
        self.0.seq.set(self.0.seq.get().max(newest));
        SessionSync {
            from_seq: Seq(0),
            to_seq: Seq(self.0.seq.get()),
            caught_up_local_seq: marker.map(LocalSeq),
            upserts,
            removes: Vec::new(),
            schema_table: None,
            view_plans: None,
        }
    }

    /// Pushes a frame.
    pub(crate) fn push(&self, upserts: Vec<Upsert>, marker: Option<u64>) {
        let header = self.0.header.borrow().clone().expect("a session is open");
        let sync = self.sync(upserts, marker);
        self.send(&ServerMessage::Effect(Effect {
            space: header.space,
            session_id: header.session_id,
            sync,
        }));
    }

    fn answer(&self, request_id: &RequestId, result: Result<Value, WireError>) {
        self.send(&ServerMessage::Response(Response {
            request_id: request_id.clone(),
            result,
        }));
    }

    fn send(&self, message: &ServerMessage) {
        if let Some(peer) = self.0.peer.borrow().as_ref() {
            peer.send(message.encode().expect("server messages encode"));
        }
    }
}

fn challenge() -> OpenChallenge {
    OpenChallenge {
        audience: Did::from("did:key:z6MkServer"),
        value: "ab".repeat(32),
        expires_at: 1_800_000_000,
    }
}
