//! Vocabulary of the memory protocol: everything both ends of a connection share, and nothing that does I/O.
//!
//! | you need | look in |
//! | --- | --- |
//! | names of things: spaces, sessions, entities, sequence numbers | [`ids`], [`well_known`] |
//! | which stored instance of a document is meant | [`scope_key`] |
//! | values, their text, their hash, their equality | [`mod@value`], [`js_string`], [`codec`], [`hash`], [`equality`] |
//! | links between documents, patches of documents | [`link`], [`mod@pointer`], [`patch`] |
//! | which documents a schema reaches | [`traverse`] |
//! | the messages on the socket | [`message`], [`flags`], [`schema_table`], [`error`] |
//! | keys, DIDs and the signed session open | [`identity`], [`did`], [`auth`] |
//! | who may do what in a space | [`acl`] |
//! | what the server records beside a commit and for a session | [`commit_meta`], [`stream_entry`], [`effect_intent`] |
//!
//! No function here reads a clock, randomness or global state; callers pass time, challenge bytes and flags
//! (WIRE-1001).
//!
//! A client opens a space by signing the server's challenge, and then sends commits. Everything it says is one
//! encoded value a frame:
//!
//! ```
//! use memory_wire::auth::{SessionOpenProof, Challenge, ChallengeState, sign_session_open, verify_session_open};
//! use memory_wire::message::{ClientCommit, CommitParts, Operation};
//! use memory_wire::{Did, LocalSeq, Scope, SpaceId, codec, identity::Signer, value};
//!
//! let alice = Signer::from_passphrase("alice");
//! let space = SpaceId::from(Signer::of_named_space("demo").did().clone());
//! let server = Signer::from_passphrase("a server").did().clone();
//! let challenge = Challenge { value: "5a".repeat(32), expires_at: 1_800_000_300 };
//!
//! // The client signs …
//! let session = value!({ "sessionId": "tab-1" });
//! let (invocation, authorization) =
//!     sign_session_open(&alice, &space, &server, &challenge.value, &session, 1_800_000_000);
//!
//! // … and the server learns who it speaks to.
//! let proof = SessionOpenProof {
//!     space: space.as_str(),
//!     session: &session,
//!     invocation: &invocation,
//!     authorization: &authorization,
//! };
//! let principal: Did =
//!     verify_session_open(proof, &server, &ChallengeState::Outstanding(challenge), 1_800_000_001)?;
//! assert_eq!(&principal, alice.did());
//!
//! // A commit sets one document of the space.
//! let hello = value!({ "value": { "text": "hello", "links": [{ "/": { "link@1": { "id": "of:fid1:x" } } }] } });
//! let operations = vec![Operation::Set { id: "of:fid1:greeting".into(), scope: Scope::Space, value: hello }];
//! let commit = ClientCommit::build(LocalSeq(1), CommitParts { operations, ..CommitParts::default() });
//! let frame = codec::encode(&commit.value)?;
//! assert!(frame.starts_with("fvj1:{\"localSeq\":1,\"operations\":["));
//! assert_eq!(codec::encode(&codec::decode(&frame)?)?, frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod acl;
pub mod auth;
pub mod codec;
pub mod commit_meta;
pub mod did;
pub mod effect_intent;
pub mod equality;
pub mod error;
pub mod flags;
pub mod hash;
pub mod identity;
pub mod ids;
pub mod js_string;
pub mod link;
pub mod message;
pub mod patch;
mod piece_buffer;
pub mod pointer;
pub mod schema_table;
pub mod scope_key;
pub mod stream_entry;
pub mod traverse;
pub mod value;
pub mod well_known;

pub use error::WireError;
pub use ids::{BranchName, Did, EntityId, EventId, LocalSeq, RequestId, Seq, SessionId, SpaceId};
pub use js_string::JsString;
pub use scope_key::{InstanceId, Scope, ScopeIdentity, ScopeKey};
pub use value::{Array, Object, Value};
