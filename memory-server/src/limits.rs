//! Every bound and timing of the server in one place, each with unit, default and reason (SRV §14).
//! Read by all rooms; set through [`crate::ServerConfig`] by the host (file, environment or flags).

use std::time::Duration;

use memory_engine::sqlite_builtin::StatementBounds;

/// Bounds and timings. `Limits::default()` is what the protocol's clients expect; tests shrink single fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Window in which commits of a space are gathered before its subscribers are evaluated (SRV-435).
    pub refresh_delay: Duration,
    /// Least upper bound of waiting for inbound frames before a flush; the bound is
    /// `max(this, 2 × last refresh)` (SRV-436).
    pub drain_wait_floor: Duration,
    /// Requests slower than this enter the slow-query ring (SRV-1102).
    pub slow_query_threshold: Duration,
    /// Entries kept in the slow-query ring.
    pub slow_query_ring: usize,

    /// Life of a `session.open` challenge (SRV-301).
    pub challenge_ttl: Duration,
    /// How long a detached session keeps its state (SRV-312).
    pub session_ttl: Duration,
    /// Detached sessions of one space that keep their state; beyond it those that have waited longest are forgotten, as if
    /// their time had come. Opening and closing costs a client little, and each session's state lives on for a while.
    pub detached_sessions: usize,

    /// Sessions one principal may have in one space, those without a connection included; a further open is refused until
    /// one is gone. Each keeps its watches and what it was told. A person has a few, a program of many users one for each.
    pub sessions_per_principal: usize,

    /// Largest inbound message in bytes; above it the connection closes 1009 (SRV-106).
    pub max_inbound_message: usize,
    /// Bytes of text buffered while the first frame is still being handled (SRV-103).
    pub negotiation_buffer: usize,
    /// Silence after which a ping is sent, and again after which the socket is closed (SRV-105).
    pub keep_alive: Duration,
    /// Time for a request's head to arrive; a peer that takes longer is cut off.
    pub request_head: Duration,
    /// Time for an accepted hello on a socket; then it closes 1002. Clients say hello at once.
    pub hello_deadline: Duration,
    /// TCP connections at once; further ones are closed unanswered.
    pub max_connections: usize,
    /// Sockets without a session. Beyond it the one that has waited longest is closed 1013, so that whoever opens a
    /// session promptly always finds a place.
    pub unopened_sockets: usize,
    /// Bytes a socket may send before a session is opened on it; beyond it closes 1009. An open is a few hundred.
    pub unopened_bytes: usize,
    /// Frames of one connection that may wait for dispatch before its socket is no longer read (SRV-707).
    pub inbound_pending_frames: usize,
    /// Bytes of one connection that may wait for dispatch before its socket is no longer read (SRV-707).
    pub inbound_pending_bytes: usize,

    /// Bytes of a socket's read buffer. Each connection has one for life, and each read clears it: small, because nearly
    /// every inbound frame is.
    pub read_buffer: usize,

    /// Outbound bytes above which a connection's sessions are skipped by fan-out (SRV-704).
    pub outbound_high_water: usize,
    /// Outbound bytes above which the connection is closed (SRV-706).
    pub outbound_cap: usize,
    /// Time without drain progress after which the connection is closed (SRV-706).
    pub outbound_stall: Duration,
    /// Least rate granted to one large frame, or to an upload, bytes per second: the stall bound of a frame is
    /// `outbound_stall + len / this`, because progress inside a frame cannot be observed.
    pub outbound_min_rate: usize,
    /// Dirty instances kept for a skipped session before it falls back to a full evaluation (SRV-705).
    pub deferred_keys: usize,
    /// Delivery records kept per connection until the peer confirms receipt (SRV-314).
    pub unconfirmed_deliveries: usize,
    /// Instances those records may name together.
    pub unconfirmed_instances: usize,

    /// Watches of one session; a request for more is refused.
    pub max_watches: usize,
    /// Documents one session's watches may reach when they are set; a request for more is refused. What others' commits
    /// make them reach later is delivered and only shown in the statistics (SRV-1205).
    pub max_tracked_documents: usize,

    /// Documents a watch request may read in the space's turn; a list that reads more is evaluated beside it (SRV-1203).
    pub documents_in_turn: usize,
    /// Commits of one space admitted in one publication turn (SRV-409).
    pub commits_per_turn: usize,
    /// Full evaluations (resumes, watch replacements) that run at once in the process (SRV-1204).
    pub concurrent_full_evaluations: usize,
    /// Encoded documents kept per space, in bytes of text (SRV-1202).
    pub encoded_document_bytes: usize,

    /// Ids on one page of `entity-id.list`, and most ids of an unpaginated answer (SRV-515).
    pub entity_id_page: usize,
    /// `sqlite.query` requests that run at once in the process; others wait.
    pub concurrent_sqlite_reads: usize,
    /// Steps of SQLite's machine one `sqlite.query` may take; some fifty million are a second. A SELECT can run for ever.
    pub sqlite_read_steps: usize,
    /// Time one `sqlite.query` may take.
    pub sqlite_read_time: Duration,
    /// Steps all SQLite operations of one commit may take together: they hold up the space.
    pub sqlite_write_steps: usize,
    /// Time all SQLite operations of one commit may take together.
    pub sqlite_write_time: Duration,
    /// Bytes of values one `sqlite.query` may answer with.
    pub sqlite_answer_bytes: usize,
    /// Bytes of one text or blob that a SQLite statement may work out.
    pub sqlite_value_bytes: usize,
    /// Largest blob upload in bytes (SRV-121).
    pub max_blob: usize,
    /// Bytes of all uploads under way together; beyond it they wait for each other.
    pub upload_bytes: usize,
    /// Age of an authored commit that derived state does not cover, in a space somebody watches, above which the server
    /// reports itself unready (field fault F36).
    pub serving_lag_alarm: Duration,
    /// How often commits of other processes on the same data directory are looked for (SRV-442).
    pub foreign_commit_poll: Duration,
    /// How often expired sessions are swept (SRV-312).
    pub sweep_interval: Duration,
    /// Longest drain at shutdown (SRV-1401).
    pub shutdown_grace: Duration,
}

impl Limits {
    /// How long `bytes` may take on their way to or from a peer.
    pub(crate) fn patience_with(&self, bytes: usize) -> Duration {
        self.outbound_stall + Duration::from_secs_f64(bytes as f64 / self.outbound_min_rate.max(1) as f64)
    }

    /// What the statements of one request may use up.
    pub(crate) fn statements(&self) -> StatementBounds {
        StatementBounds {
            read_steps: self.sqlite_read_steps as u64,
            read_time: self.sqlite_read_time,
            write_steps: self.sqlite_write_steps as u64,
            write_time: self.sqlite_write_time,
            answer_bytes: self.sqlite_answer_bytes,
            value_bytes: u32::try_from(self.sqlite_value_bytes).unwrap_or(u32::MAX),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        const MIB: usize = 1024 * 1024;
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Limits {
            refresh_delay: Duration::from_millis(5),
            drain_wait_floor: Duration::from_millis(500),
            slow_query_threshold: Duration::from_millis(100),
            slow_query_ring: 100,
            challenge_ttl: Duration::from_secs(300),
            session_ttl: Duration::from_secs(30),
            detached_sessions: 16_384,
            sessions_per_principal: 1024,
            max_inbound_message: 64 * MIB,
            negotiation_buffer: MIB,
            keep_alive: Duration::from_secs(15),
            request_head: Duration::from_secs(10),
            hello_deadline: Duration::from_secs(30),
            max_connections: 65_536,
            unopened_sockets: 16_384,
            unopened_bytes: 4 * MIB,
            inbound_pending_frames: 64,
            inbound_pending_bytes: 8 * MIB,
            read_buffer: 8 * 1024,
            outbound_high_water: 4 * MIB,
            outbound_cap: 64 * MIB,
            outbound_stall: Duration::from_secs(30),
            outbound_min_rate: 128 * 1024,
            deferred_keys: 4096,
            unconfirmed_deliveries: 1024,
            unconfirmed_instances: 65_536,
            max_watches: 16_384,
            max_tracked_documents: 1_000_000,
            documents_in_turn: 512,
            commits_per_turn: 64,
            concurrent_full_evaluations: threads.max(2),
            encoded_document_bytes: 16 * MIB,
            entity_id_page: 1000,
            concurrent_sqlite_reads: threads.max(2),
            sqlite_read_steps: 500_000_000,
            sqlite_read_time: Duration::from_secs(30),
            sqlite_write_steps: 100_000_000,
            sqlite_write_time: Duration::from_secs(10),
            sqlite_answer_bytes: 64 * MIB,
            sqlite_value_bytes: 16 * MIB,
            max_blob: 10 * MIB,
            upload_bytes: 256 * MIB,
            serving_lag_alarm: Duration::from_secs(30),
            foreign_commit_poll: Duration::from_millis(50),
            sweep_interval: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}
