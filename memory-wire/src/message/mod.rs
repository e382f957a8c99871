//! The messages on the socket (WIRE-701…763): typed requests, typed answers, sync frames, and the client commit.
//! One frame is one encoded value; nothing here speaks of class, holder, annotations, basis or outbox, because
//! the wire has no words for them (WIRE-903).
//!
//! | a client sends | as | and is answered with |
//! | --- | --- | --- |
//! | `hello` | [`Hello`] | [`HelloOk`] |
//! | `session.open` | [`SessionOpen`] | [`SessionOpenOk`] |
//! | `transact` | [`Transact`] of a [`ClientCommit`] | [`AppliedCommit`] |
//! | `graph.query` | [`GraphQueryRequest`] of a [`GraphQuery`] | [`GraphQueryOk`] |
//! | `session.watch.set`, `session.watch.add` | [`WatchRequest`] of [`Watch`]es | [`WatchOk`] |
//! | `session.ack` | [`Ack`] | [`AckOk`] |
//! | `entity-id.list`, `entity-id.exists` | [`EntityIdList`], [`EntityIdExists`] | [`EntityIdListOk`], [`EntityIdExistsOk`] |
//! | `sqlite.query`, `sqlite.register-disk-source` | [`SqliteQuery`], [`SqliteRegisterDiskSource`] | [`SqliteQueryOk`], `{ registered: true }` |
//!
//! Every answer but the hello's is a [`Response`] under the request's id: its `ok` is read by the `from_value` of the type in
//! the table, its error is a [`crate::WireError`]. Unasked come [`Effect`] (a [`SessionSync`]) and [`Revoked`].
//! [`parse_client_message`] and [`parse_server_message`] read a frame, `encode` of either enum writes one. What is no message
//! is [`Unparseable`] (WIRE-704); contents that only their handler understands (a commit, a watch, a root) are read by that
//! type and refused by name (WIRE-705).
//!
//! A client, from the first frame on:
//!
//! ```
//! use memory_wire::identity::Signer;
//! use memory_wire::message::{
//!     ClientCommit, ClientMessage, CommitParts, Hello, OpenChallenge, Operation, RequestHeader, SessionDescriptor,
//!     SessionOpen, Transact,
//! };
//! use memory_wire::patch::PatchOp;
//! use memory_wire::{LocalSeq, Scope, SessionId, SpaceId, flags::Flags};
//!
//! # let challenge = OpenChallenge { audience: "did:key:zServer".into(), value: "5a".repeat(32), expires_at: 1_800_000_300 };
//! # let now = 1_800_000_000;
//! let hello = ClientMessage::Hello(Hello::new(Flags::default())).encode()?;
//!
//! // `hello.ok` brought a challenge.
//! let (alice, space) = (Signer::from_passphrase("alice"), SpaceId::from("did:key:zSpace"));
//! let session = SessionDescriptor { session_id: Some(SessionId::from("tab-1")), ..SessionDescriptor::default() };
//! let open = SessionOpen::signed("0", &alice, &space, session, &challenge, now);
//! let open = ClientMessage::SessionOpen(open).encode()?;
//!
//! // The answer, a `SessionOpenOk`, named the session.
//! let increment = PatchOp::increment(vec!["value".into(), "count".into()], 1.0, false);
//! let operation = Operation::Patch { id: "of:counter".into(), scope: Scope::User, patches: vec![increment] };
//! let commit = ClientCommit::build(LocalSeq(1), CommitParts { operations: vec![operation], ..CommitParts::default() });
//! let header = RequestHeader::new("1", &space, &SessionId::from("tab-1"));
//! let transact = ClientMessage::Transact(Transact::new(header, &commit)).encode()?;
//! # assert!(hello.len() < open.len() && transact.contains("increment"));
//! # Ok::<(), memory_wire::codec::EncodeError>(())
//! ```

mod commit;
mod field;
mod frame;
mod operation;
mod precondition;
mod query;
mod reads;
mod request;
mod response;
mod server;
mod sync;
mod view;

pub use commit::{ClientCommit, CommitParts};
pub use frame::{
    EffectAddress, EffectFrame, EncodedDocument, EncodedSchema, SharedSync, SyncContent, SyncFrame,
    UpsertFrame, UpsertFrameContent,
};
pub use operation::{Operation, SqliteDb};
pub use precondition::{EventAppendDecl, Precondition};
pub use query::{GraphQuery, Root, Selector, Watch, WatchKind};
pub use reads::{ConfirmedRead, PendingRead, Reads};
pub use request::{
    Ack, ClientMessage, EntityIdExists, EntityIdList, GraphQueryRequest, Hello, RequestHeader,
    SessionDescriptor, SessionOpen, SqliteQuery, SqliteRegisterDiskSource, Transact, WatchRequest,
    parse_client_message,
};
pub use response::{
    AckOk, AppliedCommit, AppliedRevision, EntityIdExistsOk, EntityIdListOk, EntitySnapshot, GraphQueryOk,
    OpenChallenge, RevisionContent, SessionOpenOk, SqliteQueryOk, WatchOk,
};
pub use server::{
    Effect, HANDSHAKE_REQUEST_ID, HelloOk, INVALID_REQUEST_ID, Response, Revoked, RevokedReason,
    ServerMessage, parse_server_message,
};
pub use sync::{Remove, SessionSync, Upsert, UpsertContent};
pub use view::{
    OnExceed, PlanAddress, PlanError, PlanFingerprint, PlanFingerprints, PlanInput, PlanPiece, PlanProducer,
    ReadCeiling, ViewInterest, ViewMode, ViewPlan, ViewQuery,
};

/// A frame that is no message of this protocol (WIRE-704), naming the first field that is wrong. A server answers
/// it with [`crate::WireError::invalid_message`]; the detail is for logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unparseable message: {field}: expected {expected}")]
pub struct Unparseable {
    /// The field, as a path from the message's root; `frame` for the text itself.
    pub field: &'static str,
    /// What was expected there.
    pub expected: &'static str,
}
