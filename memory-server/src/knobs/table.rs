//! The table: one row a knob. Add a row here and the knob is in the file, the environment, the command line, `--help`,
//! the printed configuration and `docs/knobs.md`.

use super::kinds::{
    ACL_MODE, ADDRESS, BUFFER, BURST, BYTES, CAP, COUNT, DIDS, DURABILITY, DURATION, EGRESS, LOOP_DURATION,
    OPTIONAL_PATH, OPTIONAL_TEXT, PATH, PER_SECOND, PERIOD, PORT, ROOM, SECONDS, SOME, SWITCH, TEXT,
    WORD_SWITCH,
};
use super::{Garbage, Knob};

macro_rules! knob {
    ($key:literal, $kind:ident, [$($environment:literal),*], $($field:ident).+, $meaning:literal) => {
        Knob {
            key: $key,
            unit: $kind.unit,
            environment: &[$($environment),*],
            meaning: $meaning,
            expected: $kind.expected,
            garbage: Garbage::Refuse,
            secret: false,
            set: |knobs, text| {
                knobs.$($field).+ = ($kind.read)(text)?;
                Some(())
            },
            show: |knobs| ($kind.show)(&knobs.$($field).+),
        }
    };
}

/// Every knob, in the order of `docs/knobs.md`.
pub const KNOBS: &[Knob] = &[
    knob!(
        "data",
        PATH,
        ["DB_PATH", "MEMORY_DIR"],
        data,
        "Data directory: the stores of the spaces and the node's own key."
    ),
    knob!("host", ADDRESS, ["HOST"], host, "Address to listen on."),
    knob!(
        "port",
        PORT,
        ["PORT"],
        port,
        "Port to listen on; 0 takes a free one. A taken port ends the program with exit code 3."
    ),
    Knob {
        key: "listen",
        unit: "address:port",
        environment: &[],
        meaning: "Address and port in one.",
        expected: "an address and a port, as 127.0.0.1:8000",
        garbage: Garbage::Refuse,
        secret: false,
        set: |knobs, text| {
            let address: std::net::SocketAddr = text.parse().ok()?;
            (knobs.host, knobs.port) = (address.ip(), address.port());
            Some(())
        },
        show: |knobs| std::net::SocketAddr::new(knobs.host, knobs.port).to_string(),
    },
    knob!(
        "environment",
        TEXT,
        ["ENV"],
        environment,
        "`production`, or one of `development`, `test` and `staging`, which allow dumps and a default passphrase."
    ),
    knob!(
        "identity",
        OPTIONAL_PATH,
        ["IDENTITY"],
        identity,
        "PKCS#8 key file of the server's identity, the audience of session opens. Unset: the node's own key in the data directory, made at first start."
    ),
    Knob {
        secret: true,
        ..knob!(
            "identity_passphrase",
            OPTIONAL_TEXT,
            ["IDENTITY_PASSPHRASE"],
            identity_passphrase,
            "Deprecated: the identity is derived from this when there is no key file. Whoever knows it is this server."
        )
    },
    knob!(
        "acl_mode",
        ACL_MODE,
        ["MEMORY_ACL_MODE"],
        acl_mode,
        "How access decisions are applied: `off`, `observe` (counted and allowed) or `enforce`."
    ),
    knob!(
        "service_principals",
        DIDS,
        ["MEMORY_SERVICE_DIDS"],
        service_principals,
        "Principals with OWNER in every space."
    ),
    knob!(
        "durability",
        DURABILITY,
        ["MEMORY_DURABILITY"],
        durability,
        "What an acknowledged commit survives: `full` a power cut, `normal` the end of the process."
    ),
    knob!(
        "dumps",
        SWITCH,
        ["MEMORY_DUMP_ENABLED"],
        dumps,
        "Whether the dump routes exist, for peers on the loopback interface; never in production."
    ),
    knob!(
        "git_sha",
        OPTIONAL_TEXT,
        ["TOOLSHED_GIT_SHA", "BUILD_GIT_SHA", "COMMIT_SHA"],
        git_sha,
        "Revision of the running program, as health and meta show it. `BUILD_GIT_SHA` is what that was when the program was built."
    ),
    Knob {
        garbage: Garbage::Ignore,
        ..knob!(
            "execution.enabled",
            WORD_SWITCH,
            ["EXPERIMENTAL_SERVER_EXECUTION"],
            execution.enabled,
            "Whether handlers and derivations run in this process. `demo` turns it on by itself."
        )
    },
    Knob {
        garbage: Garbage::Ignore,
        ..knob!(
            "execution.flush_deadline",
            LOOP_DURATION,
            ["SERVER_EXECUTION_FLUSH_DEADLINE_MS"],
            execution.flush_deadline,
            "Settling longer than this cuts the wave."
        )
    },
    Knob {
        garbage: Garbage::Ignore,
        ..knob!(
            "execution.lease_ttl",
            LOOP_DURATION,
            ["SERVER_EXECUTION_LEASE_TTL_MS"],
            execution.lease_ttl,
            "Life of a space's lease after its last renewal: how long a space waits for a successor after its process was killed. Renewed every third of it."
        )
    },
    Knob {
        garbage: Garbage::Ignore,
        ..knob!(
            "execution.max_outstanding_effects",
            CAP,
            ["SERVER_EXECUTION_MAX_OUTSTANDING_EFFECTS"],
            execution.max_outstanding_effects,
            "Network effects in flight at once; 0 or `off` is no cap."
        )
    },
    Knob {
        garbage: Garbage::Ignore,
        ..knob!(
            "execution.egress_per_second",
            EGRESS,
            ["SERVER_EXECUTION_EGRESS_RATE_PER_S"],
            execution.egress_per_second,
            "Network effects started per second."
        )
    },
    knob!(
        "rates.commits_per_second",
        PER_SECOND,
        ["MEMORY_RATE_COMMITS"],
        rates.commits.per_second,
        "Commits of one principal per second, over all its connections and spaces; 0 or `off` is no limit."
    ),
    knob!(
        "rates.commits_burst",
        BURST,
        ["MEMORY_RATE_COMMITS_BURST"],
        rates.commits.burst,
        "Commits one principal may make at once after a rest."
    ),
    knob!(
        "rates.opens_per_second",
        PER_SECOND,
        ["MEMORY_RATE_OPENS"],
        rates.opens.per_second,
        "Session opens with a valid signature of one principal per second, over all its connections and spaces; 0 or `off` is no limit."
    ),
    knob!(
        "rates.opens_burst",
        BURST,
        ["MEMORY_RATE_OPENS_BURST"],
        rates.opens.burst,
        "Session opens with a valid signature one principal may make at once after a rest."
    ),
    knob!(
        "rates.queries_per_second",
        PER_SECOND,
        ["MEMORY_RATE_QUERIES"],
        rates.queries.per_second,
        "Reads (`graph.query`, `entity-id.*`, `sqlite.*`, `session.watch.*`) of one principal per second, over all its connections and spaces; 0 or `off` is no limit."
    ),
    knob!(
        "rates.queries_burst",
        BURST,
        ["MEMORY_RATE_QUERIES_BURST"],
        rates.queries.burst,
        "Reads (`graph.query`, `entity-id.*`, `sqlite.*`, `session.watch.*`) one principal may make at once after a rest."
    ),
    knob!(
        "rates.uploads_per_second",
        PER_SECOND,
        ["MEMORY_RATE_UPLOADS"],
        rates.uploads.per_second,
        "Blob uploads from one address (of version 6: from one network of 64 bits) per second, because nobody signs them; 0 or `off` is no limit. Behind a proxy all come from its address."
    ),
    knob!(
        "rates.uploads_burst",
        BURST,
        ["MEMORY_RATE_UPLOADS_BURST"],
        rates.uploads.burst,
        "Blob uploads one address may make at once after a rest."
    ),
    knob!(
        "rates.patience",
        DURATION,
        ["MEMORY_RATE_PATIENCE"],
        rates.patience,
        "Longest time a request above its rate is held back before it is refused with `RateLimitedError` (an open: retriable `AuthorizationError`; an upload: 429)."
    ),
    knob!(
        "limits.refresh_delay",
        DURATION,
        ["MEMORY_REFRESH_DELAY"],
        limits.refresh_delay,
        "Window in which commits of a space are gathered before its watchers are evaluated."
    ),
    knob!(
        "limits.drain_wait_floor",
        DURATION,
        ["MEMORY_DRAIN_WAIT_FLOOR"],
        limits.drain_wait_floor,
        "Longest wait for inbound frames before a flush, unless twice the last flush took longer."
    ),
    knob!(
        "limits.slow_query_threshold",
        DURATION,
        ["MEMORY_SLOW_QUERY_THRESHOLD"],
        limits.slow_query_threshold,
        "Reads slower than this enter the slow-query ring of the statistics."
    ),
    knob!(
        "limits.slow_query_ring",
        COUNT,
        ["MEMORY_SLOW_QUERY_RING"],
        limits.slow_query_ring,
        "Entries of the slow-query ring."
    ),
    knob!(
        "limits.challenge_ttl",
        SECONDS,
        ["MEMORY_CHALLENGE_TTL"],
        limits.challenge_ttl,
        "Life of a session-open challenge."
    ),
    knob!(
        "limits.session_ttl",
        DURATION,
        ["MEMORY_SESSION_TTL"],
        limits.session_ttl,
        "How long a session whose connection is gone keeps its state for a resume."
    ),
    knob!(
        "limits.detached_sessions",
        COUNT,
        ["MEMORY_DETACHED_SESSIONS"],
        limits.detached_sessions,
        "Sessions of one space that keep their state without a connection; beyond it those that have waited longest are forgotten."
    ),
    knob!(
        "limits.sessions_per_principal",
        SOME,
        ["MEMORY_SESSIONS_PER_PRINCIPAL"],
        limits.sessions_per_principal,
        "Sessions of one principal in one space, those without a connection included; a further open is refused with a retriable `AuthorizationError`. The server's own are not counted."
    ),
    knob!(
        "limits.max_inbound_message",
        ROOM,
        ["MEMORY_MAX_INBOUND_MESSAGE"],
        limits.max_inbound_message,
        "Largest inbound message; a larger one closes the connection with 1009."
    ),
    knob!(
        "limits.negotiation_buffer",
        BUFFER,
        ["MEMORY_NEGOTIATION_BUFFER"],
        limits.negotiation_buffer,
        "Text buffered while a connection's first frame is handled; more closes it with 1009."
    ),
    knob!(
        "limits.keep_alive",
        PERIOD,
        ["MEMORY_KEEP_ALIVE"],
        limits.keep_alive,
        "Silence after which a ping is sent, and again after which the socket is closed with 1001."
    ),
    knob!(
        "limits.request_head",
        PERIOD,
        ["MEMORY_REQUEST_HEAD"],
        limits.request_head,
        "Time for a request's head to arrive; a peer that takes longer is cut off."
    ),
    knob!(
        "limits.hello_deadline",
        PERIOD,
        ["MEMORY_HELLO_DEADLINE"],
        limits.hello_deadline,
        "Time for an accepted hello on a socket; then it closes 1002."
    ),
    knob!(
        "limits.max_connections",
        SOME,
        ["MEMORY_MAX_CONNECTIONS"],
        limits.max_connections,
        "TCP connections at once; further ones are closed unanswered."
    ),
    knob!(
        "limits.unopened_bytes",
        ROOM,
        ["MEMORY_UNOPENED_BYTES"],
        limits.unopened_bytes,
        "Bytes a socket may send before a session is opened on it; beyond it closes 1009."
    ),
    knob!(
        "limits.unopened_sockets",
        SOME,
        ["MEMORY_UNOPENED_SOCKETS"],
        limits.unopened_sockets,
        "Sockets without a session; beyond it the one that has waited longest is closed 1013."
    ),
    knob!(
        "limits.inbound_pending_frames",
        SOME,
        ["MEMORY_INBOUND_PENDING_FRAMES"],
        limits.inbound_pending_frames,
        "Frames of one connection that may wait before its socket is no longer read."
    ),
    knob!(
        "limits.inbound_pending_bytes",
        ROOM,
        ["MEMORY_INBOUND_PENDING_BYTES"],
        limits.inbound_pending_bytes,
        "Bytes of one connection that may wait before its socket is no longer read."
    ),
    knob!(
        "limits.read_buffer",
        BUFFER,
        ["MEMORY_READ_BUFFER"],
        limits.read_buffer,
        "Bytes of a socket's read buffer; each connection has one for life."
    ),
    knob!(
        "limits.outbound_high_water",
        ROOM,
        ["MEMORY_OUTBOUND_HIGH_WATER"],
        limits.outbound_high_water,
        "Queued bytes above which a connection's sessions are skipped by fan-out and later get one frame computed from state."
    ),
    knob!(
        "limits.outbound_cap",
        ROOM,
        ["MEMORY_OUTBOUND_CAP"],
        limits.outbound_cap,
        "Queued bytes above which a connection is closed with 1013."
    ),
    knob!(
        "limits.outbound_stall",
        PERIOD,
        ["MEMORY_OUTBOUND_STALL"],
        limits.outbound_stall,
        "Time without progress of a write after which a connection is closed, a socket with 1013."
    ),
    knob!(
        "limits.outbound_min_rate",
        ROOM,
        ["MEMORY_OUTBOUND_MIN_RATE"],
        limits.outbound_min_rate,
        "Bytes per second granted to one large frame, and to an upload, on top of the stall time."
    ),
    knob!(
        "limits.deferred_keys",
        COUNT,
        ["MEMORY_DEFERRED_KEYS"],
        limits.deferred_keys,
        "Changed documents remembered for a skipped session before it is evaluated whole."
    ),
    knob!(
        "limits.unconfirmed_deliveries",
        COUNT,
        ["MEMORY_UNCONFIRMED_DELIVERIES"],
        limits.unconfirmed_deliveries,
        "Delivery records kept per connection until the peer confirms receipt."
    ),
    knob!(
        "limits.unconfirmed_instances",
        COUNT,
        ["MEMORY_UNCONFIRMED_INSTANCES"],
        limits.unconfirmed_instances,
        "Documents those records may name together."
    ),
    knob!(
        "limits.max_watches",
        COUNT,
        ["MEMORY_MAX_WATCHES"],
        limits.max_watches,
        "Watches of one session; a request for more is refused."
    ),
    knob!(
        "limits.max_tracked_documents",
        COUNT,
        ["MEMORY_MAX_TRACKED_DOCUMENTS"],
        limits.max_tracked_documents,
        "Documents the watches of one session may reach when they are set; a request for more is refused."
    ),
    knob!(
        "limits.documents_in_turn",
        COUNT,
        ["MEMORY_DOCUMENTS_IN_TURN"],
        limits.documents_in_turn,
        "Documents a watch request may read while the commits of its space wait; a list that reads more is evaluated beside them."
    ),
    knob!(
        "limits.commits_per_turn",
        SOME,
        ["MEMORY_COMMITS_PER_TURN"],
        limits.commits_per_turn,
        "Commits of one space admitted in one transaction."
    ),
    knob!(
        "limits.concurrent_full_evaluations",
        SOME,
        ["MEMORY_CONCURRENT_FULL_EVALUATIONS"],
        limits.concurrent_full_evaluations,
        "Whole watch lists (resumes, replacements) evaluated at once in the process; others wait."
    ),
    knob!(
        "limits.encoded_document_bytes",
        BYTES,
        ["MEMORY_ENCODED_DOCUMENT_BYTES"],
        limits.encoded_document_bytes,
        "Encoded documents kept per space for sharing between recipients."
    ),
    knob!(
        "limits.entity_id_page",
        SOME,
        ["MEMORY_ENTITY_ID_PAGE"],
        limits.entity_id_page,
        "Ids on one page of `entity-id.list`, and most ids of an unpaginated answer."
    ),
    knob!(
        "limits.concurrent_sqlite_reads",
        SOME,
        ["MEMORY_CONCURRENT_SQLITE_READS"],
        limits.concurrent_sqlite_reads,
        "`sqlite.query` requests that run at once in the process; others wait."
    ),
    knob!(
        "limits.sqlite_read_steps",
        COUNT,
        ["MEMORY_SQLITE_READ_STEPS"],
        limits.sqlite_read_steps,
        "Steps of SQLite's machine one `sqlite.query` may take; some fifty million are a second."
    ),
    knob!(
        "limits.sqlite_read_time",
        DURATION,
        ["MEMORY_SQLITE_READ_TIME"],
        limits.sqlite_read_time,
        "Time one `sqlite.query` may take, where each step goes through a long value."
    ),
    knob!(
        "limits.sqlite_write_steps",
        COUNT,
        ["MEMORY_SQLITE_WRITE_STEPS"],
        limits.sqlite_write_steps,
        "Steps of SQLite's machine all SQLite operations of one commit may take together; they hold up the space."
    ),
    knob!(
        "limits.sqlite_write_time",
        DURATION,
        ["MEMORY_SQLITE_WRITE_TIME"],
        limits.sqlite_write_time,
        "Time all SQLite operations of one commit may take together."
    ),
    knob!(
        "limits.sqlite_answer_bytes",
        BYTES,
        ["MEMORY_SQLITE_ANSWER_BYTES"],
        limits.sqlite_answer_bytes,
        "Bytes of values one `sqlite.query` may answer with."
    ),
    knob!(
        "limits.sqlite_value_bytes",
        BYTES,
        ["MEMORY_SQLITE_VALUE_BYTES"],
        limits.sqlite_value_bytes,
        "Bytes of one text or blob that a SQLite statement may work out."
    ),
    knob!(
        "limits.max_blob",
        BYTES,
        ["MEMORY_MAX_BLOB"],
        limits.max_blob,
        "Largest blob upload."
    ),
    knob!(
        "limits.upload_bytes",
        ROOM,
        ["MEMORY_UPLOAD_BYTES"],
        limits.upload_bytes,
        "Bytes of all uploads under way together; beyond it they wait for each other."
    ),
    knob!(
        "limits.foreign_commit_poll",
        PERIOD,
        ["MEMORY_FOREIGN_COMMIT_POLL"],
        limits.foreign_commit_poll,
        "How often commits of other processes on the same data directory are looked for."
    ),
    knob!(
        "limits.serving_lag_alarm",
        DURATION,
        ["MEMORY_SERVING_LAG_ALARM"],
        limits.serving_lag_alarm,
        "Age of a commit that derived state does not cover, in a space somebody watches, above which the server reports itself unready."
    ),
    knob!(
        "limits.sweep_interval",
        PERIOD,
        ["MEMORY_SWEEP_INTERVAL"],
        limits.sweep_interval,
        "How often expired sessions and rate buckets are swept."
    ),
    knob!(
        "limits.shutdown_grace",
        DURATION,
        ["MEMORY_SHUTDOWN_GRACE"],
        limits.shutdown_grace,
        "Longest drain at shutdown."
    ),
];
