//! What becomes of a replica when its line changes: opened, broken, refused, revoked, reset, closed, rerouted
//! (RUN-33, RUN-65, RUN-66).

use std::collections::BTreeMap;

use memory_wire::error::ErrorName;
use memory_wire::message::{RevokedReason, SessionSync};
use memory_wire::{LocalSeq, Value, WireError};

use super::{CommitOutcome, InFlight, NotificationKind, Replica, Route, Sending, Stage, settle};
use crate::connection::{ConnectionEvent, Purpose};
use crate::error::{CommitError, CommitErrorName, RunnerError};
use crate::promise::Promise;

impl Replica {
    pub(super) fn handle(&self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Opened {
                resumed,
                sync,
                caught_up,
            } => self.opened(resumed, sync, caught_up),
            ConnectionEvent::Answer { purpose, result } => self.answered(purpose, result),
            ConnectionEvent::Frame(sync) => self.frame(sync, NotificationKind::Integrate),
            ConnectionEvent::Revoked(reason) => {
                let message = format!("session was revoked: {}", reason.as_str());
                let error = CommitError::new(CommitErrorName::Session, message.clone());
                self.session_lost(&error, true);
                self.fail_pulls("SessionRevokedError", &message);
                if let (RevokedReason::Unauthorized, Some(storage)) = (reason, self.storage()) {
                    storage.set_authorization_error(&self.0.space, message);
                }
            }
            ConnectionEvent::Broken { unanswered } => {
                let mut core = self.0.core.borrow_mut();
                for purpose in unanswered {
                    match purpose {
                        Purpose::Transact(local_seq) => {
                            if let Some(InFlight {
                                route: Route::Pushed { sending, .. },
                                ..
                            }) = core.in_flight.get_mut(&local_seq)
                            {
                                *sending = Sending::Unanswered;
                            }
                        }
                        Purpose::Watch(batch) => core.watches.batch_lost(batch),
                        Purpose::Ack => {}
                    }
                }
            }
            ConnectionEvent::Refused(error) => {
                let name = error.name.as_str();
                let refused = settle::wire_error(&error);
                if refused.name == CommitErrorName::Authorization
                    && let Some(storage) = self.storage()
                {
                    storage.set_authorization_error(&self.0.space, error.message.clone());
                }
                self.session_lost(&refused, true);
                self.fail_pulls(name, &error.message);
            }
        }
    }

    /// An answer that says the session is gone renews the line, where nothing else would; what was asked goes again
    /// there, except a commit, whose fate this was.
    fn answered(&self, purpose: Purpose, result: Result<Value, WireError>) {
        let gone = matches!(
            &result,
            Err(error) if matches!(error.name, ErrorName::Session | ErrorName::SessionRevoked)
        );
        match purpose {
            Purpose::Transact(local_seq) => self.verdict(local_seq, result),
            Purpose::Watch(batch) if gone => self.0.core.borrow_mut().watches.batch_lost(batch),
            Purpose::Watch(batch) => self.watch_answered(batch, result),
            Purpose::Ack => {}
        }
        if gone {
            self.renew_line();
        }
    }

    /// A session stands: resumed sessions get unanswered commits again, in local order; a replaced one does not
    /// know them, so their fate is unknown (RUN-65).
    fn opened(&self, resumed: bool, sync: Option<SessionSync>, caught_up: Option<LocalSeq>) {
        let flags = self.0.connection.borrow().server_flags();
        {
            let mut core = self.0.core.borrow_mut();
            core.markers = flags.verdict_catch_up_markers;
            core.stacks = flags.pending_read_stacks;
        }
        if !resumed {
            let lost = CommitError::new(
                CommitErrorName::Session,
                "session was replaced before the verdict arrived; the outcome is unknown",
            );
            self.session_lost(&lost, false);
        }
        if let Some(sync) = sync {
            self.frame(sync, NotificationKind::Integrate);
        }
        if let Some(marker) = caught_up {
            self.marker(marker);
        }
        self.0.core.borrow_mut().watches.session_opened(resumed);
        self.kick_appends();
    }

    // --- end -----------------------------------------------------------------------------------------------------

    /// RUN-65: forgets everything; commits in flight reject locally, parked accepts resolve: they are durable.
    pub fn reset(&self) {
        let entries = {
            let mut core = self.0.core.borrow_mut();
            core.records.clear();
            core.speculative.clear();
            core.watches.clear();
            std::mem::take(&mut core.in_flight)
        };
        self.settle_all(entries, &CommitError::local_conflict("replica was reset"));
        self.notify(NotificationKind::Reset, Vec::new(), None, None);
    }

    pub(crate) fn close(&self) {
        self.0.current.set(false);
        self.0.connection.borrow_mut().close();
        let entries = std::mem::take(&mut self.0.core.borrow_mut().in_flight);
        self.settle_all(
            entries,
            &CommitError::new(CommitErrorName::Connection, "storage was closed"),
        );
        self.fail_pulls("ConnectionError", "storage was closed");
        self.close_appends();
    }

    fn settle_all(&self, entries: BTreeMap<LocalSeq, InFlight>, error: &CommitError) {
        let gates: Vec<Promise<()>> = {
            let mut core = self.0.core.borrow_mut();
            let dead = std::mem::take(&mut core.dead);
            let gates = std::mem::take(&mut core.gates);
            dead.into_values().chain(gates.into_values()).collect()
        };
        for (_, entry) in entries {
            let outcome = match entry.stage {
                Stage::Parked(_) => Ok(()),
                Stage::Waiting | Stage::Dead => Err(error.clone()),
            };
            entry.finish(outcome);
        }
        for gate in gates {
            gate.settle(());
        }
    }

    /// RUN-66: reads in progress go over to the replacement.
    pub(crate) fn hand_over(&self, to: &Replica) {
        self.0.current.set(false);
        self.0.connection.borrow_mut().close();
        let requests = self.0.core.borrow_mut().watches.take_requests();
        for (request, promise) in requests {
            let outcome = to.pull(&request.id, request.scope, request.instance, request.selector);
            outcome.then(move |result| {
                promise.settle(result.clone());
            });
        }
    }
}

impl InFlight {
    /// Tells everyone who waits; the entry is out of the map.
    pub(super) fn finish(self, outcome: CommitOutcome) {
        if let Some(source) = &self.source {
            source.fate_sealed(&outcome);
        }
        self.settled.settle(outcome.clone());
        self.applied.settle(());
        if let (Some(source), Route::Sealed) = (&self.source, &self.route) {
            source.sealed_layer_settled(outcome);
        }
    }
}

impl Replica {
    fn fail_pulls(&self, name: &str, message: &str) {
        let failed = self.0.core.borrow_mut().watches.fail_queued();
        for promise in failed {
            promise.settle(Err(RunnerError::Load {
                space: self.0.space.clone(),
                name: name.to_owned(),
                message: message.to_owned(),
            }));
        }
    }
}
