//! Session frames (RUN-50…53, RUN-58): all of a frame, its marker included, or nothing.

use memory_wire::link::Regime;
use memory_wire::message::{SessionSync, Upsert, UpsertContent};
use memory_wire::schema_table;
use memory_wire::{LocalSeq, Scope, ScopeKey, Seq};

use super::record::Confirmed;
use super::{Core, DocKey, InFlight, Instance, NotificationKind, Replica, Stage, Touched};
use crate::promise::Promise;
use memory_wire::commit_meta::CommitClass;

impl Replica {
    /// Applies a frame and tells `kind`. A frame whose schema table does not satisfy it is refused whole and the
    /// line is renewed, since what it carried is not coming again on this one.
    pub(super) fn frame(&self, sync: SessionSync, kind: NotificationKind) {
        let sync = match schema_table::expand(sync, Regime::Legacy) {
            Ok(sync) => sync,
            Err(error) => {
                tracing::error!(space = %self.0.space, %error, "frame refused");
                self.renew_line();
                return;
            }
        };
        let to_seq = sync.to_seq;
        let (changes, finished, gates, arrived, flipped) = {
            let mut core = self.0.core.borrow_mut();
            let parked = sync
                .caught_up_local_seq
                .map(|n| core.parked_through(n))
                .unwrap_or_default();
            let mut touched: Vec<Touched> = Vec::new();
            let upserts = sync
                .upserts
                .iter()
                .map(|u| self.touched_by_entry(&u.id, u.scope, &u.scope_key));
            let removes = sync
                .removes
                .iter()
                .map(|r| self.touched_by_entry(&r.id, r.scope, &r.scope_key));
            let promoted = core.touched_by(parked.iter().map(|(n, _)| n));
            for t in upserts.chain(removes).chain(promoted) {
                if !touched.iter().any(|seen| seen.key == t.key) {
                    touched.push(t);
                }
            }
            let arrived: Vec<DocKey> = touched.iter().map(|t| t.key.clone()).collect();
            let before = self.snapshot(&core, touched);
            for upsert in sync.upserts {
                let key = self.entry_key(&upsert.id, upsert.scope, &upsert.scope_key);
                core.upsert(key, upsert);
            }
            for remove in sync.removes {
                core.retract(self.entry_key(&remove.id, remove.scope, &remove.scope_key));
            }
            let (finished, flipped) = core.promote_all(&parked);
            let gates = sync
                .caught_up_local_seq
                .map(|n| core.reached(n))
                .unwrap_or_default();
            (
                self.changes_since(&core, &before),
                finished,
                gates,
                arrived,
                flipped,
            )
        };
        self.notify(kind, changes, None, None);
        self.marker_passed(finished, gates);
        self.shadow_cleared(flipped);
        if !arrived.is_empty() {
            let observers = self.0.observers.borrow().arrival.clone();
            observers.iter().for_each(|f| f(&arrived));
        }
        self.0.connection.borrow_mut().ack(to_seq);
    }

    /// A marker that came without a frame (session open).
    pub(super) fn marker(&self, marker: LocalSeq) {
        let parked = self.0.core.borrow().parked_through(marker);
        self.confirm(&parked, CommitClass::Authored);
        let gates = self.0.core.borrow_mut().reached(marker);
        self.marker_passed(Vec::new(), gates);
    }

    fn marker_passed(&self, finished: Vec<InFlight>, gates: Vec<Promise<()>>) {
        finished.into_iter().for_each(|entry| entry.finish(Ok(())));
        for gate in gates {
            gate.settle(());
        }
    }

    fn entry_key(&self, id: &memory_wire::EntityId, scope: Scope, scope_key: &Option<ScopeKey>) -> DocKey {
        match scope_key {
            Some(key) => DocKey {
                instance: Instance::Key(key.clone()),
                id: id.clone(),
            },
            None => self.doc_key(id, scope, None),
        }
    }

    /// RUN-52: changes carry the instance iff the entry did.
    fn touched_by_entry(
        &self,
        id: &memory_wire::EntityId,
        scope: Scope,
        scope_key: &Option<ScopeKey>,
    ) -> Touched {
        Touched {
            key: self.entry_key(id, scope, scope_key),
            scope_key: scope_key.clone(),
        }
    }
}

impl Core {
    /// RUN-51, RUN-53.
    fn upsert(&mut self, key: DocKey, upsert: Upsert) {
        let Core { records, acked, .. } = self;
        let record = records.entry(key).or_default();
        record.known = true;
        let previous = record.confirmed().seq;
        if upsert.seq < previous {
            // A watch refresh was overtaken.
            return;
        }
        let cover_class = upsert.cover_class.or_else(|| {
            (upsert.seq == previous)
                .then(|| record.confirmed().cover_class)
                .flatten()
        });
        let document = match upsert.content {
            UpsertContent::Doc(document) => Some(document),
            UpsertContent::Deleted => None,
        };
        let own = record
            .layers()
            .iter()
            .any(|l| acked.get(&l.local_seq) == Some(&upsert.seq));
        record.set_confirmed(Confirmed {
            seq: upsert.seq,
            document,
            cover_class,
        });
        record.note_arrival(upsert.seq, previous, own);
    }

    /// The server stopped tracking it for us: the confirmed state goes back to "never seen".
    fn retract(&mut self, key: DocKey) {
        let Some(record) = self.records.get_mut(&key) else {
            return;
        };
        record.set_confirmed(Confirmed {
            seq: Seq(0),
            document: None,
            cover_class: None,
        });
        record.known = false;
        record.note_removal();
        if record.layers().is_empty() {
            self.records.remove(&key);
        }
    }

    /// Parked accepts that a marker covers, in order.
    fn parked_through(&self, marker: LocalSeq) -> Vec<(LocalSeq, Seq)> {
        self.in_flight
            .range(..=marker)
            .filter_map(|(n, entry)| match entry.stage {
                Stage::Parked(seq) => Some((*n, seq)),
                Stage::Waiting | Stage::Dead => None,
            })
            .collect()
    }

    fn promote_all(&mut self, parked: &[(LocalSeq, Seq)]) -> (Vec<InFlight>, bool) {
        let mut flipped = false;
        let mut finished = Vec::new();
        for (local_seq, seq) in parked {
            flipped |= self.promote(*local_seq, *seq, CommitClass::Authored);
            finished.extend(self.in_flight.remove(local_seq));
        }
        (finished, flipped)
    }

    /// Raises the marker; answers the rejection gates it opens.
    fn reached(&mut self, marker: LocalSeq) -> Vec<Promise<()>> {
        self.caught_up = self.caught_up.max(marker);
        let later = self.gates.split_off(&LocalSeq(marker.0 + 1));
        std::mem::replace(&mut self.gates, later).into_values().collect()
    }
}
