//! What can go wrong while a space is served. Errors of single runs are not here: they end in their own transaction.

use memory_engine::EngineError;
use memory_server::ServerError;
use memory_wire::SpaceId;
use runner::error::RunnerError;

/// A failure of the host or of one space's loop.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The flag is off: there must be no host (SS-10, SS-11).
    #[error("server execution is off (EXPERIMENTAL_SERVER_EXECUTION); a host must not serve")]
    ServerExecutionOff,
    /// A thread could not be started.
    #[error("no thread for the executor host: {0}")]
    Thread(#[from] std::io::Error),
    /// The host is closed.
    #[error("the executor host is closed")]
    Closed,
    /// The space's store failed.
    #[error("store of {space}: {source}")]
    Store {
        /// The space.
        space: SpaceId,
        /// What the store said.
        source: EngineError,
    },
    /// The memory server refused something the loop needs.
    #[error("memory server: {0}")]
    Server(#[from] ServerError),
    /// The runtime refused something that is not a run's own failure.
    #[error("runtime: {0}")]
    Runtime(String),
    /// A loop's task ended abnormally.
    #[error("the loop of {space} ended abnormally: {detail}")]
    TaskLost {
        /// The space.
        space: SpaceId,
        /// What was found.
        detail: String,
    },
}

/// As text: the runner's errors hold promises of their own thread.
impl From<RunnerError> for ServingError {
    fn from(error: RunnerError) -> Self {
        ServingError::Runtime(error.to_string())
    }
}
