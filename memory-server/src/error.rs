//! How the server fails towards the host and the serving plane. Towards clients there is only
//! [`memory_wire::WireError`]; [`ServerError::to_wire`] is the one way there.

use memory_engine::EngineError;
use memory_wire::error::ErrorName;
use memory_wire::{Seq, WireError};

/// A failure of a server operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A refusal with a name of the wire's list. Deterministic when the name is `ProtocolError` or
    /// `AuthorizationError`: repeating the call cannot help (SRV-907).
    #[error(transparent)]
    Refused(#[from] WireError),
    /// The space's store failed or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The server was built outside a tokio runtime, which its sockets and timers need.
    #[error("the server needs a running tokio runtime")]
    NoRuntime,
    /// A task of the server ended abnormally.
    #[error("a task of the server ended abnormally: {0}")]
    TaskLost(String),
}

impl ServerError {
    /// The error as an answer carries it; `head` is the space's seq, for conflicts.
    pub fn to_wire(&self, head: Seq) -> WireError {
        match self {
            ServerError::Refused(error) => error.clone(),
            ServerError::Engine(EngineError::InvalidSpaceId(space)) => {
                WireError::protocol(EngineError::InvalidSpaceId(space.clone()).to_string())
            }
            ServerError::Engine(error) => error.to_wire(head),
            ServerError::NoRuntime | ServerError::TaskLost(_) => WireError::transaction(self.to_string()),
        }
    }

    /// The error as a read request answers it: whatever the evaluation could not do is a `QueryError` (SRV-514).
    pub fn to_query(&self) -> WireError {
        let wire = self.to_wire(Seq(0));
        match wire.name {
            ErrorName::Transaction | ErrorName::Protocol => WireError::query(wire.message),
            _ => wire,
        }
    }

    /// True when trying again cannot help.
    pub fn is_deterministic(&self) -> bool {
        matches!(
            self.to_wire(Seq(0)).name,
            ErrorName::Protocol | ErrorName::Authorization | ErrorName::EventAppendDuplicate
        )
    }
}

impl From<tokio::task::JoinError> for ServerError {
    fn from(error: tokio::task::JoinError) -> ServerError {
        ServerError::TaskLost(error.to_string())
    }
}
