//! The WebSocket carrier against a real socket: hello, open, load, commit, and coming back after the server went away.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use memory_wire::flags::Flags;
use memory_wire::identity::Signer;
use memory_wire::message::{
    ClientCommit, ClientMessage, Effect, HelloOk, OpenChallenge, Response, ServerMessage, SessionOpenOk,
    SessionSync, Upsert, UpsertContent, WatchOk, parse_client_message,
};
use memory_wire::{BranchName, Did, LocalSeq, RequestId, Scope, Seq, Value, value};
use runner::address::{Address, path};
use runner::ambient::{RandomMint, SystemClock};
use runner::replica::Selector;
use runner::storage_manager::{StorageManager, StorageOptions};
use runner::transaction::RunTx;
use runner::transport::WebSocketConnector;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response as Upgrade};

const SPACE: &str = "did:key:z6MkSpace";

/// What the server saw: request paths and committed local sequence numbers.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Upgraded(String),
    Commit(LocalSeq),
}

fn challenge() -> OpenChallenge {
    OpenChallenge {
        audience: Did::from("did:key:z6MkServer"),
        value: "cd".repeat(32),
        expires_at: u64::MAX >> 12,
    }
}

fn sync(upserts: Vec<Upsert>, to: u64, marker: Option<LocalSeq>) -> SessionSync {
    SessionSync {
        from_seq: Seq(0),
        to_seq: Seq(to),
        caught_up_local_seq: marker,
        upserts,
        removes: Vec::new(),
        schema_table: None,
        view_plans: None,
    }
}

fn ok(request_id: &RequestId, body: Value) -> ServerMessage {
    ServerMessage::Response(Response {
        request_id: request_id.clone(),
        result: Ok(body),
    })
}

/// Answers one frame; `None` hangs up instead.
fn answers(message: ClientMessage, seen: &Sender<Seen>, drop_commits: bool) -> Option<Vec<ServerMessage>> {
    Some(match message {
        ClientMessage::Hello(_) => vec![ServerMessage::HelloOk(HelloOk {
            flags: Flags {
                verdict_catch_up_markers: true,
                pending_read_stacks: true,
                ..Flags::default()
            },
            session_open: challenge(),
        })],
        ClientMessage::SessionOpen(open) => {
            let resumed = open.session.session_token.is_some();
            let body = SessionOpenOk {
                session_id: open.session.session_id.expect("named"),
                session_token: "token".into(),
                server_seq: Seq(1),
                caught_up_local_seq: None,
                resumed,
                sync: None,
                session_open: challenge(),
            };
            vec![ok(&open.request_id, body.to_value())]
        }
        ClientMessage::WatchAdd(add) | ClientMessage::WatchSet(add) => {
            let upsert = Upsert {
                branch: BranchName::default(),
                id: "of:a".into(),
                scope: Scope::Space,
                scope_key: None,
                seq: Seq(1),
                content: UpsertContent::Doc(value!({ "value": 1 })),
                cover_class: None,
            };
            let body = WatchOk {
                server_seq: Seq(1),
                sync: sync(vec![upsert], 1, None),
            };
            vec![ok(&add.header.request_id, body.to_value())]
        }
        ClientMessage::Transact(transact) => {
            let commit = ClientCommit::from_value(&transact.commit).expect("well-formed");
            seen.send(Seen::Commit(commit.local_seq))
                .expect("the test listens");
            if drop_commits {
                return None;
            }
            let frame = Effect {
                space: transact.header.space.clone(),
                session_id: transact.header.session_id.clone(),
                sync: sync(Vec::new(), 2, Some(commit.local_seq)),
            };
            vec![
                ok(
                    &transact.header.request_id,
                    value!({ "seq": 2, "branch": "", "revisions": [] }),
                ),
                ServerMessage::Effect(frame),
            ]
        }
        ClientMessage::Ack(ack) => vec![ok(&ack.header.request_id, value!({ "serverSeq": 2 }))],
        other => panic!("unexpected {other:?}"),
    })
}

async fn serve_socket(stream: TcpStream, seen: Sender<Seen>, drop_commits: bool) {
    let upgraded = seen.clone();
    #[allow(
        clippy::result_large_err,
        reason = "the callback's error type is the library's"
    )]
    let note = move |request: &Request, response: Upgrade| {
        upgraded
            .send(Seen::Upgraded(request.uri().to_string()))
            .expect("the test listens");
        Ok(response)
    };
    #[allow(
        clippy::result_large_err,
        reason = "the callback's error type is the library's"
    )]
    let socket = tokio_tungstenite::accept_hdr_async(stream, note)
        .await
        .expect("a WebSocket client");
    let (mut sink, mut source) = socket.split();
    while let Some(Ok(message)) = source.next().await {
        let Message::Text(text) = message else { continue };
        let message = parse_client_message(text.as_str()).expect("parseable");
        let Some(replies) = answers(message, &seen, drop_commits) else {
            return;
        };
        for reply in replies {
            let frame = reply.encode().expect("encodable");
            if sink.send(Message::text(frame)).await.is_err() {
                return;
            }
        }
    }
}

/// A server on a thread of its own; its first connection hangs up when a commit arrives.
fn server() -> (SocketAddr, Receiver<Seen>) {
    let (to_test, seen) = channel();
    let (address_known, address) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            address_known
                .send(listener.local_addr().expect("bound"))
                .expect("the test waits");
            for n in 0..2 {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                serve_socket(stream, to_test.clone(), n == 0).await;
            }
        });
    });
    (address.recv().expect("the server starts"), seen)
}

/// Pumps until `done`, sleeping between wakes.
fn drive(storage: &StorageManager, woken: &Receiver<()>, done: impl Fn() -> bool) {
    loop {
        storage.pump();
        if done() {
            return;
        }
        // The wait only bounds idle sleep: wakes and deadlines move the test on.
        match woken.recv_timeout(Duration::from_millis(10)) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("nobody can wake us"),
        }
    }
}

#[test]
fn wire_701_loads_commits_and_resumes_over_a_socket() {
    let (address, seen) = server();
    let (wake, woken) = channel();
    let connector = WebSocketConnector::spawned(&format!("http://{address}")).expect("an I/O thread");
    let storage = StorageManager::new(StorageOptions::new(
        Rc::new(Signer::from_passphrase("alice")),
        Rc::new(connector),
        Rc::new(SystemClock),
        Rc::new(RandomMint),
        Arc::new(move || {
            let _ = wake.send(());
        }),
    ));
    let document = Address::document(SPACE.into(), "of:a".into(), Scope::Space);
    let load = storage.load(&document, Selector::rejecting(), None);
    drive(&storage, &woken, || load.is_settled());
    assert!(matches!(load.peek(), Some(Ok(()))));
    let upgraded = Seen::Upgraded("/api/storage/memory?space=did%3Akey%3Az6MkSpace".into());
    assert_eq!(seen.recv(), Ok(upgraded));

    let tx = RunTx::open(&storage);
    tx.write(&document.at(path(["value"])), Some(2.into()))
        .expect("the write is taken");
    let outcome = tx.commit();
    drive(&storage, &woken, || outcome.is_settled());
    assert!(matches!(outcome.peek(), Some(Ok(()))));
    assert_eq!(
        seen.recv(),
        Ok(Seen::Commit(LocalSeq(1))),
        "the first attempt, cut off"
    );
    assert!(matches!(seen.recv(), Ok(Seen::Upgraded(_))));
    assert_eq!(
        seen.recv(),
        Ok(Seen::Commit(LocalSeq(1))),
        "sent again after the resume"
    );
    storage.close();
}

#[test]
fn wire_781_an_unreachable_server_shows_as_a_broken_line() {
    use runner::transport::{Connector, TransportEvent};
    let (wake, woken) = channel();
    let connector = WebSocketConnector::spawned("ws://127.0.0.1:9").expect("an I/O thread");
    let mut transport = connector.connect(
        &SPACE.into(),
        Arc::new(move || {
            let _ = wake.send(());
        }),
    );
    transport.send("waits inside".into());
    let event = loop {
        if let Some(event) = transport.poll() {
            break event;
        }
        woken.recv().expect("the transport wakes its owner");
    };
    assert!(matches!(event, TransportEvent::Closed(reason) if reason.starts_with("connect failed")));
    assert_eq!(transport.poll(), None);
}
