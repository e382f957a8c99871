//! What tests do with a client on the wire double, and what they see of it.

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::{EntityId, Scope, Value};
use runner::address::{Address, path};
use runner::error::{CommitError, CommitErrorName};
use runner::promise::Promise;
use runner::replica::{DocKey, Notification, NotificationKind, NotificationSink, Replica};
use runner::storage_manager::NotificationSubscription;
use runner::transaction::RunTx;

use super::{Bench, SPACE};

pub(crate) type Outcome = Promise<Result<(), CommitError>>;

pub(crate) fn at(id: &str, segments: &[&str]) -> Address {
    let mut full = vec!["value"];
    full.extend(segments);
    Address::document(SPACE.into(), id.into(), Scope::Space).at(path(full))
}

/// Commits one write.
pub(crate) fn write(bench: &Bench, id: &str, segments: &[&str], value: impl Into<Value>) -> Outcome {
    let tx = RunTx::open(&bench.storage);
    tx.write(&at(id, segments), Some(value.into()))
        .expect("the write is taken");
    tx.commit()
}

/// Commits a write that depends on what it read.
pub(crate) fn bump(bench: &Bench, id: &str) -> Outcome {
    let tx = RunTx::open(&bench.storage);
    let n = tx
        .read_value(&at(id, &[]))
        .expect("readable")
        .as_f64()
        .unwrap_or(0.0);
    tx.write(&at(id, &[]), Some(Value::Number(n + 1.0)))
        .expect("the write is taken");
    tx.commit()
}

pub(crate) fn replica(bench: &Bench) -> Replica {
    bench.storage.replica(&bench.space())
}

pub(crate) fn shown(bench: &Bench, id: &str) -> Option<Value> {
    let document = replica(bench).get_document(&EntityId::from(id), Scope::Space, None)?;
    document.member("value").cloned()
}

#[track_caller]
pub(crate) fn assert_shown(bench: &Bench, id: &str, expected: Value) {
    let got = shown(bench, id).unwrap_or(Value::Undefined);
    assert!(
        value_equal(&got, &expected),
        "{id}: got {got:?}, expected {expected:?}"
    );
}

pub(crate) fn key(id: &str) -> DocKey {
    DocKey {
        instance: runner::replica::Instance::Key(memory_wire::ScopeKey::space()),
        id: id.into(),
    }
}

#[track_caller]
pub(crate) fn assert_settled(outcome: &Outcome, expected: Result<(), CommitErrorName>) {
    let got = outcome.peek().map(|r| r.map_err(|e| e.name));
    assert_eq!(got, Some(expected));
}

/// Remembers what it was told.
#[derive(Default)]
pub(crate) struct Log(pub(crate) RefCell<Vec<Notification>>);

impl NotificationSink for Log {
    fn notify(&self, notification: &Notification) {
        self.0.borrow_mut().push(notification.clone());
    }
}

pub(crate) fn listen(bench: &Bench) -> (Rc<Log>, NotificationSubscription) {
    let log = Rc::new(Log::default());
    let subscription = bench
        .storage
        .subscribe(Rc::clone(&log) as Rc<dyn NotificationSink>);
    (log, subscription)
}

impl Log {
    pub(crate) fn kinds(&self) -> Vec<NotificationKind> {
        self.0
            .borrow()
            .iter()
            .filter(|n| !n.changes.is_empty())
            .map(|n| n.kind)
            .collect()
    }
}
