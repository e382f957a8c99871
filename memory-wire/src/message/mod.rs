//! The messages on the socket (WIRE-701…763): typed requests, typed answers, sync frames, and the client commit.
//! One frame is one encoded value; nothing here speaks of class, holder, annotations, basis or outbox, because
//! the wire has no words for them (WIRE-903).

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
pub use frame::{EncodedDocument, EncodedSchema, SyncFrame, UpsertFrame, UpsertFrameContent};
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
