//! Editing again after a stale basis (RUN-96).

use std::rc::Rc;

use memory_wire::{EntityId, Scope, SpaceId};

use super::RunTx;
use crate::address::Address;
use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::promise::Promise;
use crate::replica::Selector;
use crate::storage_manager::StorageManager;

/// Attempts after the first one.
const RETRIES: u32 = 5;

type Outcome = Result<(), CommitError>;
type Body = Box<dyn Fn(&RunTx) -> Result<(), RunnerError>>;

/// Opens, fills and commits a transaction until it stands, for errors that another attempt can cure. A body that
/// fails or panics aborts without a retry.
pub fn edit_with_retry(
    storage: &StorageManager,
    open: impl Fn() -> RunTx + 'static,
    body: impl Fn(&RunTx) -> Result<(), RunnerError> + 'static,
) -> Promise<Outcome> {
    let settled = Promise::new();
    let edit = Rc::new(Edit {
        storage: storage.clone(),
        open: Box::new(open),
        body: Box::new(body),
        settled,
    });
    let outcome = edit.settled.clone();
    attempt(edit, RETRIES);
    outcome
}

struct Edit {
    storage: StorageManager,
    open: Box<dyn Fn() -> RunTx>,
    body: Body,
    settled: Promise<Outcome>,
}

fn attempt(edit: Rc<Edit>, left: u32) {
    let tx = (edit.open)();
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (edit.body)(&tx)));
    let failed = match ran {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the edit panicked".to_owned()),
    };
    if let Some(reason) = failed {
        tx.abort(reason.clone());
        edit.settled.settle(Err(CommitError::aborted(reason)));
        return;
    }
    let space = tx.written_spaces().into_iter().next();
    tx.commit().then(move |outcome| match outcome {
        Err(error) if left > 0 && is_curable(error) => {
            let error = error.clone();
            ready_to_retry(&edit, space.as_ref(), &error).then(move |()| {
                let again = Rc::clone(&edit);
                // In a turn of its own: what the gate waited for is applied by then.
                edit.storage.defer(move || attempt(again, left - 1));
            });
        }
        outcome => {
            edit.settled.settle(outcome.clone());
        }
    });
}

fn is_curable(error: &CommitError) -> bool {
    match error.name {
        CommitErrorName::Conflict
        | CommitErrorName::Inconsistent
        | CommitErrorName::Connection
        | CommitErrorName::InvalidMessage
        | CommitErrorName::Aborted => true,
        CommitErrorName::Authorization => error.retriable,
        CommitErrorName::PreconditionFailed
        | CommitErrorName::RowLabel
        | CommitErrorName::Protocol
        | CommitErrorName::Session
        | CommitErrorName::EventAppendDuplicate
        | CommitErrorName::SpeculativeBasis
        | CommitErrorName::Convergence
        | CommitErrorName::Transaction => false,
    }
}

/// The error's gate, then the named document: a retry has to see what it collided with.
fn ready_to_retry(edit: &Rc<Edit>, space: Option<&SpaceId>, error: &CommitError) -> Promise<()> {
    let gate = error.gate.clone().unwrap_or_else(|| Promise::ready(()));
    let Some((space, id)) = space.cloned().zip(error.entity.clone()) else {
        return gate;
    };
    let ready = Promise::new();
    let (done, edit) = (ready.clone(), Rc::clone(edit));
    gate.then(move |()| {
        pull(&edit.storage, space, id).then(move |()| {
            done.settle(());
        });
    });
    ready
}

fn pull(storage: &StorageManager, space: SpaceId, id: EntityId) -> Promise<()> {
    let address = Address::document(space, id, Scope::Space);
    storage.load(&address, Selector::rejecting(), None).map(|_| ())
}
