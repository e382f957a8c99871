//! `hello` (SRV §2): protocol and regime are checked, the peer's flags noted, the first challenge issued.

use std::sync::Arc;

use memory_wire::codec;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::ids::MEMORY_PROTOCOL;
use memory_wire::message::{Hello, HelloOk, ServerMessage};
use memory_wire::{Object, Value, WireError};

use serde_json::json;

use crate::config::ServerConfig;
use crate::connection::{Connection, Negotiation};
use crate::rates::Rate;
use crate::server::Server;

/// Member of a client's hello flags that asks for `limits` in `hello.ok`. Whoever does not know it ignores it, so the
/// answer to a client that does not ask stays byte for byte what it always was.
const LIMITS_FLAG: &str = "limits";

impl ServerConfig {
    /// The bounds a client may want to stay within, as `hello.ok` and `/api/meta` state them; rates are `null` where there
    /// is none.
    pub(crate) fn advertised_limits(&self) -> serde_json::Value {
        let (limits, rates) = (&self.limits, &self.rates);
        let rate = |rate: Rate| {
            rate.per_second
                .map(|per_second| json!({ "perSecond": per_second.get(), "burst": rate.burst.get() }))
        };
        json!({
            "maxMessageBytes": limits.max_inbound_message,
            "maxBlobBytes": limits.max_blob,
            "maxWatches": limits.max_watches,
            "maxTrackedDocuments": limits.max_tracked_documents,
            "maxSessionsPerPrincipal": limits.sessions_per_principal,
            "outboundHighWaterBytes": limits.outbound_high_water,
            "outboundCapBytes": limits.outbound_cap,
            "entityIdPage": limits.entity_id_page,
            "sessionTtlMs": u64::try_from(limits.session_ttl.as_millis()).unwrap_or(u64::MAX),
            "rates": {
                "commits": rate(rates.commits),
                "opens": rate(rates.opens),
                "queries": rate(rates.queries),
                "uploads": rate(rates.uploads),
            },
        })
    }

    /// The flags of what this server has built (SRV-202).
    pub fn built_flags() -> Flags {
        Flags {
            commit_preconditions: true,
            sync_schema_table_v2: true,
            pending_read_stacks: true,
            sqlite_commit_row_label_eval: true,
            verdict_catch_up_markers: true,
            entity_id_listing: true,
            entity_id_pagination: true,
            entity_id_lookup: true,
            session_read_ceiling: true,
            view_scoped_replication_v1: true,
            ..Flags::default()
        }
    }

    /// The flags as `hello.ok` states them: views are about what the serving loop runs, so there are none without it.
    pub fn advertised_flags(&self) -> Flags {
        Flags {
            view_scoped_replication_v1: self.flags.view_scoped_replication_v1 && self.server_execution,
            ..self.flags
        }
    }
}

/// Answers a hello (SRV-112, SRV-201). A refused one leaves the connection as it was.
pub(crate) fn hello(
    server: &Arc<Server>,
    connection: &Connection,
    hello: &Hello,
) -> Result<Value, WireError> {
    if let Negotiation::Ready(_) = connection.negotiation() {
        return Err(WireError::protocol("hello may only be sent once"));
    }
    if hello.protocol != MEMORY_PROTOCOL {
        return Err(WireError::new(
            ErrorName::UnsupportedProtocol,
            format!("Unsupported protocol: {}", hello.protocol),
        ));
    }
    let flags = server.config().advertised_flags();
    if hello.flags.modern_cell_rep != flags.modern_cell_rep {
        return Err(WireError::protocol(format!(
            "memory flag mismatch: client={} server={}",
            plain_text(&hello.sent_flags),
            plain_text(&flags.to_object())
        )));
    }
    connection.accept_hello(hello.flags);
    let answer = ServerMessage::HelloOk(HelloOk {
        flags,
        session_open: server.issue_challenge(connection),
    });
    let mut answer = answer.to_value();
    let asks = hello.sent_flags.get(LIMITS_FLAG).and_then(Value::as_bool) == Some(true);
    if let (true, Value::Object(members)) = (asks, &mut answer) {
        // Plain JSON of whole numbers is boundary text as it is.
        let text = format!("{}{}", codec::PREFIX, server.config().advertised_limits());
        match codec::decode(&text) {
            Ok(limits) => drop(members.insert("limits", limits)),
            Err(error) => tracing::error!(%error, "limits cannot be advertised"),
        }
    }
    Ok(answer)
}

fn plain_text(flags: &Object) -> String {
    match codec::encode(&Value::Object(flags.clone())) {
        Ok(text) => text.strip_prefix(codec::PREFIX).unwrap_or(&text).to_owned(),
        Err(error) => format!("<{error}>"),
    }
}
