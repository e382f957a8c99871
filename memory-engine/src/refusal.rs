//! The deterministic refusals (`ProtocolError`) with their exact texts (ENG §3.3–3.9, §4, §5, appendix D). Each is
//! one variant, so that callers and tests match on the reason and never on the sentence.

use memory_wire::Scope;
use memory_wire::ids::{EntityId, LocalSeq, SessionId};

/// Why a commit was refused for good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    // --- replay (ENG-311, 312) ---
    /// The (session, localSeq) is taken by a commit with other content.
    #[error("commit replay mismatch for session {session} localSeq {local_seq}")]
    ReplayMismatch {
        /// The raw session id.
        session: SessionId,
        /// The localSeq.
        local_seq: LocalSeq,
    },
    /// Same content, but it was admitted under another class or holder.
    #[error(
        "commit replay mismatch for session {session} localSeq {local_seq}: stored class/holder differ from the resubmission"
    )]
    ReplayClassMismatch {
        /// The raw session id.
        session: SessionId,
        /// The localSeq.
        local_seq: LocalSeq,
    },

    // --- reads (ENG-333, 335); their ill-formed spellings are refused where a commit is parsed ---
    /// A `basisSeq` above the store's highest seq.
    #[error("pending read on {id} claims a basisSeq ahead of the log: {basis}")]
    BasisAheadOfLog {
        /// The entity read.
        id: EntityId,
        /// The basis claimed.
        basis: u64,
    },
    /// A pending read that names no layer.
    #[error("pending read on {id} names no localSeq")]
    PendingReadWithoutLayer {
        /// The entity read.
        id: EntityId,
    },

    // --- content-addressed documents (ENG-360…368) ---
    /// Anything but a `set` on a content-addressed document.
    #[error("memory v2 commit cannot {op} content-addressed document {id}")]
    ContentAddressedOp {
        /// `patch` or `delete`.
        op: &'static str,
        /// The document.
        id: EntityId,
    },
    /// A content-addressed document outside the space scope.
    #[error("memory v2 commit cannot write content-addressed document {id} at {} scope", scope.as_str())]
    ContentAddressedScope {
        /// The document.
        id: EntityId,
        /// The scope asked for.
        scope: Scope,
    },
    /// A different content under the same id.
    #[error("memory v2 commit cannot change content-addressed document {id}")]
    ContentAddressedChange {
        /// The document.
        id: EntityId,
    },
    /// Two different contents in one commit.
    #[error("memory v2 commit carries conflicting sets of content-addressed document {id}")]
    ContentAddressedConflict {
        /// The document.
        id: EntityId,
    },
    /// A schema reference nobody stored.
    #[error(
        "memory v2 commit references schema document {id} that is neither included in the commit nor stored in the space"
    )]
    SchemaMissing {
        /// The schema document.
        id: EntityId,
    },
    /// A schema reference whose content does not hash to its id.
    #[error("memory v2 commit references schema document {id} whose {origin} content does not verify")]
    SchemaUnverified {
        /// The schema document.
        id: EntityId,
        /// `included` or `stored`.
        origin: &'static str,
    },
    /// A wire-only compression token at a stored link's schema.
    #[error("memory v2 documents may not persist reserved wire schema reference: {0}")]
    ReservedReference(String),

    // --- derived admission (ENG-410…420) ---
    /// Derived class with the serving flag off.
    #[error(
        "derived-class commits are unclaimable while EXPERIMENTAL_SERVER_EXECUTION is off (protocol.md §1)"
    )]
    DerivedWhileOff,
    /// No live lease for this holder.
    #[error(
        "derived-class commit rejected: producer does not hold the live execution_lease for the space (serving-loop.md §2)"
    )]
    NoLiveLease,
    /// The commit was not filed under the holder's own session.
    #[error(
        "derived-class commit rejected: producing session is not the lease holder's own service session (protocol.md §2, RULED 2026-08-05)"
    )]
    ForeignEnvelope,
    /// Delegated carriage on a derived commit.
    #[error(
        "delegated-identity carriage is server-produced AUTHORED admission only (protocol.md §2's delegated row); a derived commit's identity rides its per-write annotations"
    )]
    DelegatedDerived,
    /// A derived commit on the access list (INV-12).
    #[error("derived-class commit rejected: a derived commit cannot write the space's ACL document (INV-12)")]
    DerivedAclWrite,
    /// Derived carriage on another class.
    #[error(
        "write annotations, consequenceOf, and derivedThrough are derived-commit carriage only (protocol.md §1, §7)"
    )]
    DerivedCarriage,
    /// An address on a write that has no instances.
    #[error(
        "derived-class commit rejected: scope_key annotation \"{key}\" targets a space-scoped write (op {op}); addressing is one per SCOPED write (protocol.md §1, §7)"
    )]
    AnnotationOnSpaceWrite {
        /// The key given.
        key: String,
        /// Operation index.
        op: usize,
    },
    /// A scoped write without an address.
    #[error("derived-class commit rejected: scoped write (op {op}, scope \"{}\") carries no explicit scope_key annotation (protocol.md §1)", scope.as_str())]
    AnnotationMissing {
        /// Operation index.
        op: usize,
        /// The write's scope.
        scope: Scope,
    },
    /// An address that is no scope key.
    #[error(
        "derived-class commit rejected: annotated scope_key \"{key}\" (op {op}) is not a canonical scope_key (key-vocabulary.md §3)"
    )]
    AnnotationNotCanonical {
        /// The text given.
        key: String,
        /// Operation index.
        op: usize,
    },
    /// An address of another scope than the write's.
    #[error("derived-class commit rejected: annotated scope_key \"{key}\" does not match the write's declared scope \"{}\" (op {op})", scope.as_str())]
    AnnotationScopeMismatch {
        /// The key given.
        key: String,
        /// The write's scope.
        scope: Scope,
        /// Operation index.
        op: usize,
    },

    // --- delegated admission (ENG-430…434) ---
    /// Delegated carriage on a system commit.
    #[error("delegated-identity carriage is authored-class admission only (protocol.md §2's delegated row)")]
    DelegatedClass,
    /// No capability.
    #[error(
        "delegated admission requires the capability grant (protocol.md §2's server-produced authored row) — partial carriage is refused, never defaulted"
    )]
    DelegatedWithoutCapability,
    /// No acting principal and no declaration.
    #[error(
        "delegated admission requires the acting principal (protocol.md §2's server-produced authored row) — a userless batch admits only under the declared sessionless-space-scope carve-out (SHAPE RULED 2026-08-05)"
    )]
    DelegatedWithoutPrincipal,
    /// The declaration of a chain without actor beside an actor.
    #[error(
        "delegated admission rejected: a sessionless-space-scope declaration alongside an acting {0} is a contradiction — the declaration names a chain with NO actor (events.md §2, protocol.md §2)"
    )]
    DelegatedContradiction(&'static str),
    /// A session-scoped write by a sessionless actor; `0` is `write` or `SQLite write`.
    #[error(
        "delegated admission rejected: a sessionless delegated batch (no actingSession) carries a session-scoped {0} — a sessionless actor has no session instance (scopes.md §5, protocol.md §2's delegated row)"
    )]
    DelegatedSessionWrite(&'static str),
    /// A user-scoped write by a userless actor; `0` is `write` or `SQLite write`.
    #[error(
        "delegated admission rejected: a userless delegated batch carries a user-scoped {0} — a sessionless-space-scope chain has no user instance (events.md §2, scopes.md §5)"
    )]
    DelegatedUserWrite(&'static str),

    // --- event appends (§5, appendix D) ---
    /// Declarations with the serving flag off.
    #[error(
        "event appends require EXPERIMENTAL_SERVER_EXECUTION (events.md §1; the OFF arm has no event-append admission)"
    )]
    AppendsWhileOff,
    /// An authored sidecar write with the serving flag off.
    #[error(
        "authored write into stream doc \"{id}\" refused: stream sidecar docs require EXPERIMENTAL_SERVER_EXECUTION — the OFF arm has no event-append admission, and OFF-written state (unvalidated shapes, unstamped firedAt actors) would poison the first ON activation (events.md §1, §4)"
    )]
    SidecarWhileOff {
        /// The sidecar.
        id: EntityId,
    },
    /// An `entries` that is no array.
    #[error(
        "authored write into stream doc \"{id}\" carries a non-array \"/value/entries\" value — the entries log is an ARRAY of entries; a non-array log would wedge the pending scan (events.md §1, §4)"
    )]
    EntriesNotArray {
        /// The sidecar.
        id: EntityId,
    },
    /// A declaration on an ordinary document.
    #[error(
        "event-append declaration targets a non-stream doc \"{id}\" (events.md §1: an event is an append to a stream document — the \"of:stream-events:\" sidecar)"
    )]
    DeclarationOnOrdinaryDoc {
        /// The document.
        id: EntityId,
    },
    /// The same declaration twice.
    #[error("duplicate event-append declaration for eventId {event} in one commit (events.md §4)")]
    DuplicateDeclaration {
        /// The event.
        event: String,
    },
    /// An authored delete of a stream.
    #[error(
        "authored deletion of stream doc \"{id}\" refused (events.md §4: compaction is the serving side's, below the watermark only)"
    )]
    SidecarDelete {
        /// The sidecar.
        id: EntityId,
    },
    /// An authored whole-document set of a stream that exists.
    #[error(
        "authored whole-doc set of existing stream doc \"{id}\" refused — append entries with a declared tail append (events.md §1)"
    )]
    SidecarSet {
        /// The sidecar.
        id: EntityId,
    },
    /// Server-written fields in an authored creation.
    #[error(
        "authored stream-doc creation carries non-entry fields ({fields}) — the watermark and processing state are server-written (events.md §4, §5)"
    )]
    SidecarFields {
        /// The fields, comma-joined.
        fields: String,
    },
    /// A whole-array write over a log that has entries.
    #[error(
        "authored whole-array write of stream doc \"{id}\" entries refused — the log already holds entries; append via tail appends (events.md §1)"
    )]
    SidecarWholeArray {
        /// The sidecar.
        id: EntityId,
    },
    /// Any other authored write into a stream.
    #[error(
        "authored write into stream doc \"{id}\" at \"{path}\" refused — entries, the watermark, and processing fields are server-written; events append via declared tail appends only (events.md §1, §4, §5)"
    )]
    SidecarWrite {
        /// The sidecar.
        id: EntityId,
        /// The pointer written.
        path: String,
    },
    /// An entry that is no object.
    #[error("stream doc \"{id}\" appended a non-entry value (events.md §1)")]
    NonEntry {
        /// The sidecar.
        id: EntityId,
    },
    /// An entry without an id.
    #[error("stream doc \"{id}\" appended an entry without an eventId (events.md §1)")]
    EntryWithoutEventId {
        /// The sidecar.
        id: EntityId,
    },
    /// A rewrite of an entry that is not stored under that seq.
    #[error(
        "derived rewrite of stream entry {event} names a seq ({seq}) no stored entry holds — entry seqs are engine-stamped, never producer-minted (events.md §4)"
    )]
    RewriteUnknown {
        /// The event.
        event: String,
        /// The seq named, as text.
        seq: String,
    },
    /// An append without declaration.
    #[error(
        "undeclared event append (eventId {event}) into stream doc \"{id}\" — every appended entry needs its declaration for admission to stamp (events.md §1; protocol.md §2)"
    )]
    Undeclared {
        /// The event.
        event: String,
        /// The sidecar.
        id: EntityId,
    },
    /// An entry that brings its own seq.
    #[error("event append {event} pre-supplies the stream seq — engine-stamped at apply (events.md §4)")]
    EntrySeq {
        /// The event.
        event: String,
    },
    /// An entry that brings its own outcome.
    #[error(
        "event append {event} pre-supplies processing fields — the SpaceServer writes consequences (events.md §5)"
    )]
    EntryOutcome {
        /// The event.
        event: String,
    },
    /// An entry that does not say which stream it is for.
    #[error("event append {event} carries no stream link — entries are self-describing (events.md §1)")]
    EntryWithoutLink {
        /// The event.
        event: String,
    },
    /// An entry for another stream.
    #[error(
        "event append {event} carries a stream link that does not derive the sidecar doc being written (\"{id}\") — the self-describing link and the sidecar id are one derivation (events.md §1)"
    )]
    EntryForeignLink {
        /// The event.
        event: String,
        /// The sidecar written.
        id: EntityId,
    },
    /// A malformed optional field.
    #[error(
        "event append {event} carries malformed runtimeInjectedEventKeys — a present value must be an array of strings (events.md §1's entry shape)"
    )]
    EntryInjectedKeys {
        /// The event.
        event: String,
    },
    /// A malformed optional field.
    #[error(
        "event append {event} carries malformed rendererTrusted — a present value must be true (events.md §1's entry shape)"
    )]
    EntryRendererTrusted {
        /// The event.
        event: String,
    },
    /// Nobody to stamp.
    #[error("event append {event} requires an authenticated principal to stamp firedAt from (events.md §1)")]
    AppendWithoutPrincipal {
        /// The event.
        event: String,
    },
    /// A claimed actor other than the connection's.
    #[error(
        "event append {event} supplies a firedAt that disagrees with the authenticated envelope — REJECTED, never corrected (events.md §1, protocol.md §2)"
    )]
    FiredAtEnvelope {
        /// The event.
        event: String,
    },
    /// A client counter on a server-made append.
    #[error("delegated event append {event} carries a clientSeq — client-minted only (events.md §2, LT7)")]
    DelegatedClientSeq {
        /// The event.
        event: String,
    },
    /// A claimed actor other than the carried one.
    #[error(
        "event append {event} supplies a firedAt that disagrees with the validated carried actor — REJECTED, never corrected (events.md §1, protocol.md §2)"
    )]
    FiredAtCarried {
        /// The event.
        event: String,
    },
    /// A derived append without the actor it inherits.
    #[error("derived-carried event append {event} carries no inherited firedAt (events.md §2, LT1)")]
    DerivedWithoutFiredAt {
        /// The event.
        event: String,
    },
    /// A client counter on a server-originated append.
    #[error(
        "server-originated event append {event} carries a clientSeq — client-minted only (events.md §2, LT7)"
    )]
    DerivedClientSeq {
        /// The event.
        event: String,
    },
    /// Declarations nothing was appended for.
    #[error("event-append declaration(s) without a matching appended entry: {events} (events.md §1)")]
    UnmatchedDeclarations {
        /// The events, comma-joined.
        events: String,
    },

    // --- waves (ENG-610) ---
    /// A basis row's action instance.
    #[error(
        "wave commit rejected: basis action instance key \"{0}\" is not a canonical scope_key (key-vocabulary.md §3)"
    )]
    BasisActionKey(String),
    /// A basis row's entity instance.
    #[error(
        "wave commit rejected: basis row entity instance key \"{0}\" is not a canonical scope_key (key-vocabulary.md §3)"
    )]
    BasisEntityKey(String),

    // --- SQLite builtin (ENG-1400) ---
    /// A SQLite operation that may not even be prepared; the full text.
    #[error("{0}")]
    SqlitePreparation(String),
}
