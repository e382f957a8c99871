//! `hello` (SRV §2): protocol and regime are checked, the peer's flags noted, the first challenge issued.

use std::sync::Arc;

use memory_wire::codec;
use memory_wire::error::ErrorName;
use memory_wire::flags::Flags;
use memory_wire::ids::MEMORY_PROTOCOL;
use memory_wire::message::{Hello, HelloOk, ServerMessage};
use memory_wire::{Object, Value, WireError};

use crate::config::ServerConfig;
use crate::connection::{Connection, Negotiation};
use crate::server::Server;

impl ServerConfig {
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
) -> Result<ServerMessage, WireError> {
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
    Ok(ServerMessage::HelloOk(HelloOk {
        flags,
        session_open: server.issue_challenge(connection),
    }))
}

fn plain_text(flags: &Object) -> String {
    match codec::encode(&Value::Object(flags.clone())) {
        Ok(text) => text.strip_prefix(codec::PREFIX).unwrap_or(&text).to_owned(),
        Err(error) => format!("<{error}>"),
    }
}
