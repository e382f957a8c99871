//! Boot discovery (SS-109): which stores of the data directory hold work that waits for nobody. Each is opened
//! read-only, a few at a time, off the director's thread.

use std::sync::Arc;

use memory_engine::store_path::StoreFile;
use memory_engine::{EngineError, Reader};
use memory_wire::BranchName;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use super::HostShared;
use super::director::Directive;

/// Looks at every store and tells the director of those that are owed something. Must be called in the director's
/// executor; returns at once.
pub(super) fn discover(shared: &Arc<HostShared>, director: &UnboundedSender<Directive>) {
    let Some(stores) = shared.stores.clone() else {
        return;
    };
    let files = match stores.list() {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(%error, "the data directory does not list; parked spaces wait for their first trigger");
            return;
        }
    };
    let permits = Arc::new(Semaphore::new(shared.settings.boot_concurrency.max(1)));
    // Databases of cells lie in the same directory; a space is named by a DID.
    for file in files
        .into_iter()
        .filter(|file| file.space.as_str().starts_with("did:"))
    {
        let (permits, director) = (Arc::clone(&permits), director.clone());
        tokio::spawn(async move {
            // Never closed, so a permit always comes.
            let _permit = permits.acquire_owned().await;
            let space = file.space.clone();
            match tokio::task::spawn_blocking(move || probe(&file)).await {
                Ok(Ok(owed)) => {
                    let _ = director.send(Directive::Examined { space, owed });
                }
                Ok(Err(error)) => {
                    tracing::warn!(%space, %error, "store does not open for the start-up probe");
                }
                Err(lost) => tracing::warn!(%space, %lost, "start-up probe ended abnormally"),
            }
        });
    }
}

fn probe(file: &StoreFile) -> Result<bool, EngineError> {
    is_owed_anything(&Reader::open(&file.path)?, &BranchName::default())
}

/// True when the store has pending stream entries or appends to deliver.
pub(super) fn is_owed_anything(reader: &Reader, branch: &BranchName) -> Result<bool, EngineError> {
    Ok(
        !reader.select_pending_stream_events(branch)?.is_empty()
            || !reader.pending_outbox(branch)?.is_empty(),
    )
}
