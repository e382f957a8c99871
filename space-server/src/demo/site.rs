//! The demo's space: its key, its access list and its piece, each made once and found again at the next start.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use memory_server::Server;
use memory_wire::acl::{ANYONE, AclDocument, Capability};
use memory_wire::identity::Signer;
use memory_wire::{Did, EntityId, Object, Scope, SpaceId, Value, value, well_known};
use runner::ambient::{RandomMint, SystemClock};
use runner::error::{CommitError, RunnerError};
use runner::link::Link;
use runner::pattern::Pattern;
use runner::piece::derived_links;
use runner::runtime::{ExecutorTimer, Posture, Runtime, RuntimeOptions, WakeSignal};
use runner::storage_manager::{StorageManager, StorageOptions};
use serde_json::json;
use thiserror::Error;
use tokio::runtime::Handle;

use super::lunch_poll::{LunchPoll, names};
use crate::loopback::LoopbackConnector;
use crate::node_key::{self, NodeKeyError};

/// File of the space's own key, in the data directory. It signs the access list once; nothing else needs it.
const SPACE_KEY_FILE: &str = "demo-space.pem";

/// Why the demo could not be set up.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The space's key.
    #[error(transparent)]
    Key(#[from] NodeKeyError),
    /// A read or a commit of the setup was refused; what the runner said (its errors are bound to its thread).
    #[error("setting up the poll: {0}")]
    Refused(String),
    /// The thread that sets it up ended without an answer.
    #[error("setting up the poll: the setup thread ended early")]
    Abandoned,
    /// The thread could not be started.
    #[error("setting up the poll: {0}")]
    Thread(#[from] std::io::Error),
}

/// Where everything of the demo is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoSite {
    /// The space.
    pub space: SpaceId,
    /// The piece's root document.
    pub piece: EntityId,
    /// Audience of session opens.
    pub audience: Did,
    /// Internal documents by name.
    documents: Vec<(String, EntityId, Scope)>,
}

impl From<RunnerError> for DemoError {
    fn from(error: RunnerError) -> DemoError {
        DemoError::Refused(error.to_string())
    }
}

impl From<CommitError> for DemoError {
    fn from(error: CommitError) -> DemoError {
        DemoError::Refused(error.to_string())
    }
}

impl DemoSite {
    /// The site of the poll in `space`: every id follows from the space and the pattern.
    fn of(space: SpaceId, audience: Did) -> DemoSite {
        let root = root_link(&space);
        let links = derived_links(&LunchPoll.graph(), &root);
        let documents = links
            .internals
            .iter()
            .filter_map(|(cause, link)| Some((cause.as_str()?.to_owned(), link.id.clone(), link.scope)))
            .collect();
        DemoSite {
            space,
            piece: root.id,
            audience,
            documents,
        }
    }

    /// Id and scope of a document or stream of the poll.
    pub fn document(&self, name: &str) -> Option<(&EntityId, Scope)> {
        self.documents
            .iter()
            .find(|(known, ..)| known == name)
            .map(|(_, id, scope)| (id, *scope))
    }

    /// The body of `/demo.json`.
    pub fn to_json(&self) -> String {
        let id = |name: &str| self.document(name).map(|(id, _)| id.as_str()).unwrap_or_default();
        let stream = |name: &str| {
            let scope = self.document(name).map(|(_, scope)| scope).unwrap_or_default();
            json!({ "id": id(name), "path": [], "scope": scope.as_str() })
        };
        json!({
            "space": self.space.as_str(),
            "piece": self.piece.as_str(),
            "audience": self.audience.as_str(),
            "docs": {
                names::OPTIONS: id(names::OPTIONS),
                names::TALLY: id(names::TALLY),
                names::MY_VOTE: id(names::MY_VOTE),
                names::DRAFT: id(names::DRAFT),
                names::STANDING: id(names::STANDING),
            },
            "streams": {
                names::ADD_OPTION: stream(names::ADD_OPTION),
                names::VOTE: stream(names::VOTE),
                names::TYPE: stream(names::TYPE),
            },
        })
        .to_string()
    }
}

/// The poll's root document: named by what it is, so that every start finds the same one.
fn root_link(space: &SpaceId) -> Link {
    let id = runner::entity_derivation::entity_for(value!({ "demo": "lunch-poll" }));
    Link::to_document(space.clone(), id, Scope::Space)
}

/// Makes the demo's space and piece if they are not there, and says where they are. Resolves when both are durable.
pub async fn provision(server: &Arc<Server>, owner: &Did, data: &Path) -> Result<DemoSite, DemoError> {
    let key = node_key::own(&data.join(SPACE_KEY_FILE))?;
    let space = SpaceId::from(key.did().as_str());
    let site = DemoSite::of(space.clone(), server.config().audience.clone());
    let (server, owner, executor) = (Arc::clone(server), owner.clone(), Handle::current());
    let (answer, answered) = tokio::sync::oneshot::channel();
    // A runtime is bound to its thread; this one lives for one setup.
    std::thread::Builder::new()
        .name("demo-setup".into())
        .spawn(move || {
            let local = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let outcome = match local {
                Ok(local) => local.block_on(set_up(server, executor, key, &space, &owner)),
                Err(error) => Err(error.into()),
            };
            // Nobody waits any more only if the program is ending.
            let _ = answer.send(outcome);
        })?;
    answered.await.map_err(|_| DemoError::Abandoned)??;
    Ok(site)
}

/// Signs in as the space itself: a space's own key may make its access list (SRV §8.4) and, being its owner, the piece.
async fn set_up(
    server: Arc<Server>,
    executor: Handle,
    key: Signer,
    space: &SpaceId,
    owner: &Did,
) -> Result<(), DemoError> {
    let signal = WakeSignal::new();
    let clock = Rc::new(SystemClock);
    let server_execution = server.config().server_execution;
    let storage = StorageManager::new(StorageOptions {
        server_execution,
        ..StorageOptions::new(
            Rc::new(key),
            Rc::new(LoopbackConnector::new(server, executor)),
            clock.clone(),
            Rc::new(RandomMint),
            signal.wake(),
        )
    });
    let posture = if server_execution {
        Posture::Client
    } else {
        Posture::Standalone
    };
    let runtime = Runtime::new(RuntimeOptions {
        posture,
        storage,
        signal,
        timer: Rc::new(ExecutorTimer::new(clock)),
    });
    let outcome = create(&runtime, space, owner).await;
    runtime.dispose();
    runtime.storage().close();
    outcome
}

async fn create(runtime: &Runtime, space: &SpaceId, owner: &Did) -> Result<(), DemoError> {
    let list = runtime.cell(Link::to_document(
        space.clone(),
        well_known::acl_document_id(space),
        Scope::Space,
    ));
    runtime.wait_on(list.sync()).await;
    if list.get_raw()?.is_undefined() {
        let grants = [
            (owner.as_str(), Capability::Owner),
            (space.as_str(), Capability::Owner),
            (ANYONE, Capability::Write),
        ];
        let tx = runtime.edit();
        let grants =
            AclDocument::from_entries(grants).map_err(|error| DemoError::Refused(error.to_string()))?;
        list.with_tx(&tx).set(grants.to_value())?;
        runtime.wait_on(tx.commit()).await?;
    }
    let root = root_link(space);
    runtime.wait_on(runtime.cell(root.clone()).sync()).await;
    if runtime
        .cell(root.clone())
        .get_meta_raw(runner::piece::field::PATTERN_SETUP_IDENTITY)?
        .is_undefined()
    {
        let tx = runtime.edit();
        runtime.run(&tx, &LunchPoll, Value::Object(Object::new()), &root)?;
        runtime.wait_on(tx.commit()).await?;
    }
    Ok(())
}
