//! Demand and the structure it needs (SS §12): who wants which instance, and which pieces have to run for it. A pass
//! takes the server's rows, tells the runtime what changed, and asks for the pieces of demanded roots.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use memory_server::DemandReason;
use memory_wire::well_known::{EFFECTS_DOCUMENT, WATERMARK_DOCUMENT};
use memory_wire::{EntityId, InstanceId, Scope, ScopeIdentity, SpaceId};
use runner::address::Address;
use runner::error::RunnerError;
use runner::link::Link;
use runner::piece::{PieceOf, find_piece};
use runner::promise::Promise;
use runner::runtime::{Runtime, StructureLoad};
use runner::seal::RunSupply;
use runner::serving_runtime::ServingRuntime;

use crate::demand::{Demand, DemandRegistry, EntityName};
use crate::host::HostShared;
use crate::wakeup::{Latch, Wakeup};

/// Standing demand may be this old before a pass looks again unasked: a session that expired tells nobody.
const ROWS_FRESH_MS: i64 = 5_000;

/// Standing demand and which piece each demanded root belongs to; shared with the runtime's supply.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    registry: RefCell<DemandRegistry>,
    /// Demanded root → the root of its piece.
    pieces: RefCell<BTreeMap<EntityId, EntityId>>,
}

/// Answers the scheduler who demands a node (SS-1110).
pub(crate) struct DemandSupply(pub(crate) Rc<Demands>);

impl RunSupply for DemandSupply {
    fn demanders(&self, demand_roots: &[EntityId]) -> Vec<ScopeIdentity> {
        let registry = self.0.registry.borrow();
        let pieces = self.0.pieces.borrow();
        let mut demanders = Vec::new();
        for root in demand_roots {
            demanders.extend(registry.pairs_of(root));
            for (demanded, _) in pieces
                .iter()
                .filter(|(demanded, piece)| *piece == root && *demanded != root)
            {
                demanders.extend(registry.pairs_of(demanded));
            }
        }
        demanders
    }
}

/// Where the load of a demanded root stands: `Pending` → `Loading` → `Running`, `Terminal` or `Deferred`; a terminal
/// root whose documents were written goes through `AwaitingSettle` back to `Pending` (SS-1108).
#[derive(Debug)]
enum Load {
    Pending {
        deferrals: u32,
    },
    Loading {
        answer: Promise<Result<StructureLoad, RunnerError>>,
        deferrals: u32,
    },
    Running,
    Terminal {
        observed: Vec<EntityId>,
    },
    AwaitingSettle,
    /// Asked again in the next input cycle.
    Deferred {
        deferrals: u32,
    },
}

/// The demand side of one space's loop.
pub(crate) struct Structure {
    shared: Arc<HostShared>,
    home: SpaceId,
    runtime: Runtime,
    demands: Rc<Demands>,
    wakeup: Rc<Wakeup>,
    loads: BTreeMap<EntityId, Load>,
    /// Notifies so far, and how many the last finished refresh had seen (SS-1103).
    notified: u64,
    refreshed: Option<u64>,
    refreshed_at: i64,
    /// Demand wakes coalesce until then (SS-1104), monotonic.
    grace_until: i64,
    /// A wake waits for the end of the grace.
    wake_owed: bool,
}

impl Structure {
    pub(crate) fn new(
        shared: Arc<HostShared>,
        home: SpaceId,
        runtime: Runtime,
        demands: Rc<Demands>,
        wakeup: Rc<Wakeup>,
    ) -> Structure {
        Structure {
            shared,
            home,
            runtime,
            demands,
            wakeup,
            loads: BTreeMap::new(),
            notified: 0,
            refreshed: None,
            refreshed_at: 0,
            grace_until: i64::MIN,
            wake_owed: false,
        }
    }

    // --- what is heard ---------------------------------------------------------------------------------------

    /// The server says that demand changed.
    pub(crate) fn demand_changed(&mut self, reason: DemandReason) {
        self.shared.statistics.update(|s| match reason {
            DemandReason::Watch => s.demand.watch_wakes += 1,
            DemandReason::PushGrowth => s.demand.push_growth_wakes += 1,
        });
        self.notify();
    }

    /// A landed foreign batch wants these instances computed although nobody watches (SS-1101).
    pub(crate) fn warm(&mut self, instances: &[InstanceId]) {
        self.shared.statistics.update(|s| s.demand.warm_wakes += 1);
        for instance in instances {
            self.demands.registry.borrow_mut().warm(instance.clone());
        }
        self.notify();
    }

    fn notify(&mut self) {
        self.notified += 1;
        let now = self.shared.time.monotonic_ms();
        if now < self.grace_until {
            self.wake_owed = true;
            return;
        }
        let grace = i64::try_from(self.shared.settings.demand_grace.as_millis()).unwrap_or(i64::MAX);
        self.grace_until = now.saturating_add(grace);
        self.wakeup.latch(Latch::Demand);
    }

    /// When the loop has to be woken for demand that came within the grace, in monotonic milliseconds.
    pub(crate) fn wake_at(&self) -> Option<i64> {
        (self.wake_owed && self.is_owed()).then_some(self.grace_until)
    }

    /// True when demand changed since the last pass.
    pub(crate) fn is_owed(&self) -> bool {
        self.refreshed != Some(self.notified)
    }

    /// A commit wrote these instances: terminal roots that depend on them may be pieces now (SS-1108).
    pub(crate) fn written(&mut self, writes: &[InstanceId]) {
        for load in self.loads.values_mut() {
            if let Load::Terminal { observed } = load
                && writes.iter().any(|write| observed.contains(&write.id))
            {
                *load = Load::AwaitingSettle;
                self.shared.statistics.update(|s| s.structure_load_rearmed += 1);
            }
        }
    }

    /// A settle ended in time: what those commits brought is in the replica (SS-1108).
    pub(crate) fn settled(&mut self) {
        let mut retry = false;
        for load in self.loads.values_mut() {
            if matches!(load, Load::AwaitingSettle) {
                *load = Load::Pending { deferrals: 0 };
                retry = true;
            }
        }
        if retry {
            self.wakeup.latch(Latch::StructureRetry);
        }
    }

    // --- the pass --------------------------------------------------------------------------------------------

    /// One pass (SS-1102). Safe to abandon at any await: what it began goes on in the next one.
    pub(crate) async fn pass(&mut self, input: bool) {
        let started = self.shared.time.monotonic_ms();
        let stale = started.saturating_sub(self.refreshed_at) >= ROWS_FRESH_MS;
        let refresh = self.is_owed() || stale;
        if refresh {
            self.refresh();
        }
        if input {
            for load in self.loads.values_mut() {
                if let Load::Deferred { deferrals } = load {
                    *load = Load::Pending {
                        deferrals: *deferrals,
                    };
                }
            }
        }
        self.load_roots().await;
        if refresh {
            let spent = self.shared.time.monotonic_ms().saturating_sub(started);
            self.shared.statistics.update(|s| {
                s.demand.demand_passes += 1;
                s.demand.demand_pass_ms += u64::try_from(spent).unwrap_or(0);
            });
        }
    }

    /// Takes the server's rows and tells the runtime what changed.
    fn refresh(&mut self) {
        let seen = self.notified;
        let rows = self.rows();
        let change = self.demands.registry.borrow_mut().replace(&rows);
        self.wake_owed = false;
        self.refreshed = Some(seen);
        self.refreshed_at = self.shared.time.monotonic_ms();
        for EntityName { id, scope } in &change.left {
            self.runtime.leave_demanded_entity(&self.home, id, *scope);
        }
        for EntityName { id, scope } in &change.entered {
            self.runtime.enter_demanded_entity(&self.home, id, *scope);
        }
        self.follow_roots();
        let mut rearmed = 0;
        let mut arrivals: BTreeSet<EntityId> = BTreeSet::new();
        let mut arrived = 0;
        for (instance, pair, root) in &change.new_pairs {
            rearmed += self
                .runtime
                .rearm_not_current_for_demander(&self.address(instance), pair) as u64;
            if *root {
                arrived += 1;
                arrivals.insert(instance.id.clone());
                arrivals.extend(self.demands.pieces.borrow().get(&instance.id).cloned());
            }
        }
        if !arrivals.is_empty() {
            let arrivals: Vec<EntityId> = arrivals.into_iter().collect();
            self.runtime.invalidate_for_demand_roots(&arrivals);
        }
        let registry = self.demands.registry.borrow();
        self.shared.statistics.update(|s| {
            s.demand_arrivals += arrived;
            let demand = &mut s.demand;
            demand.not_current_rearms += rearmed;
            demand.demanded_rows = rows.len() as u64;
            demand.demanded_instances = registry.instances() as u64;
            demand.demanded_instances_max = demand.demanded_instances_max.max(demand.demanded_instances);
            demand.demanded_pairs = registry.pairs() as u64;
        });
    }

    fn rows(&self) -> Vec<Demand> {
        let rows = self
            .shared
            .plane
            .demanded_instances(&self.home, Some(&self.shared.service));
        rows.into_iter()
            .map(|row| Demand {
                instance: InstanceId {
                    id: row.id,
                    scope_key: row.scope_key,
                },
                scope: row.scope,
                pair: row.identity.principal.is_some().then_some(row.identity),
                root: row.root,
            })
            .collect()
    }

    fn address(&self, instance: &InstanceId) -> Address {
        let scope = instance.scope_key.scope();
        let scope_key = (scope > Scope::Space).then(|| instance.scope_key.clone());
        Address {
            scope_key,
            ..Address::document(self.home.clone(), instance.id.clone(), scope)
        }
    }

    /// Keeps a load per demanded root that could be a piece. A root of a scoped instance is looked up as the space's
    /// document, which names the pattern (SS-1106).
    fn follow_roots(&mut self) {
        let roots: BTreeSet<EntityId> = self
            .demands
            .registry
            .borrow()
            .roots()
            .map(|root| root.id.clone())
            .filter(may_be_piece)
            .collect();
        self.loads.retain(|id, _| roots.contains(id));
        self.demands
            .pieces
            .borrow_mut()
            .retain(|id, _| roots.contains(id));
        for root in roots {
            self.loads.entry(root).or_insert(Load::Pending { deferrals: 0 });
        }
    }

    async fn load_roots(&mut self) {
        for (root, load) in &mut self.loads {
            if let Load::Pending { deferrals } = load {
                let link = Link::to_document(self.home.clone(), root.clone(), Scope::Space);
                let answer = self.runtime.ensure_piece_running(&link);
                *load = Load::Loading {
                    answer,
                    deferrals: *deferrals,
                };
            }
        }
        let loading: Vec<_> = self
            .loads
            .values()
            .filter_map(|load| match load {
                Load::Loading { answer, .. } => Some(answer.clone()),
                Load::Pending { .. }
                | Load::Running
                | Load::Terminal { .. }
                | Load::AwaitingSettle
                | Load::Deferred { .. } => None,
            })
            .collect();
        if !loading.is_empty() {
            self.runtime.wait_on(Promise::all(loading)).await;
        }
        let answered: Vec<(EntityId, Result<StructureLoad, RunnerError>, u32)> = self
            .loads
            .iter()
            .filter_map(|(root, load)| match load {
                Load::Loading { answer, deferrals } => {
                    answer.peek().map(|answer| (root.clone(), answer, *deferrals))
                }
                Load::Pending { .. }
                | Load::Running
                | Load::Terminal { .. }
                | Load::AwaitingSettle
                | Load::Deferred { .. } => None,
            })
            .collect();
        for (root, answer, deferrals) in answered {
            let load = self.answered(&root, answer, deferrals);
            self.loads.insert(root, load);
        }
    }

    /// SS-1105.
    fn answered(&self, root: &EntityId, answer: Result<StructureLoad, RunnerError>, deferrals: u32) -> Load {
        match answer {
            Ok(StructureLoad::Started) => {
                self.note_piece(root);
                Load::Running
            }
            Ok(StructureLoad::NoPattern { observed }) => {
                self.shared.statistics.update(|s| s.structure_load_terminal += 1);
                Load::Terminal { observed }
            }
            Ok(StructureLoad::Deferred(why)) => {
                self.shared.statistics.update(|s| s.structure_load_deferred += 1);
                self.put_off(root, &why, deferrals)
            }
            Err(error) => {
                self.shared.statistics.update(|s| s.structure_load_failures += 1);
                self.put_off(root, &error.to_string(), deferrals)
            }
        }
    }

    fn put_off(&self, root: &EntityId, why: &str, deferrals: u32) -> Load {
        let deferrals = deferrals.saturating_add(1);
        let stuck = self.shared.settings.structure_stuck;
        if deferrals == stuck {
            self.shared.statistics.update(|s| s.structure_load_stuck += 1);
        }
        if deferrals >= stuck && (deferrals / stuck).is_power_of_two() && deferrals.is_multiple_of(stuck) {
            tracing::warn!(space = %self.home, %root, deferrals, why, "structure load is stuck");
        }
        Load::Deferred { deferrals }
    }

    fn note_piece(&self, root: &EntityId) {
        let link = Link::to_document(self.home.clone(), root.clone(), Scope::Space);
        let tx = self.runtime.read_tx();
        let found = find_piece(&tx, &link);
        tx.abort("looked");
        if let Ok(PieceOf::Found { root: piece, .. }) = found {
            self.demands.pieces.borrow_mut().insert(root.clone(), piece.id);
        }
    }
}

/// Ids that never name a piece (SS-1105).
fn may_be_piece(id: &EntityId) -> bool {
    let text = id.as_str();
    text != WATERMARK_DOCUMENT
        && text != EFFECTS_DOCUMENT
        && !text.starts_with("computed:")
        && !text.starts_with("cid:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ss_1105_some_ids_never_name_a_piece() {
        let ids = [
            WATERMARK_DOCUMENT,
            EFFECTS_DOCUMENT,
            "computed:x",
            "cid:x",
            "of:x",
        ];
        let pieces: Vec<&str> = ids
            .into_iter()
            .filter(|id| may_be_piece(&EntityId::from(*id)))
            .collect();
        assert_eq!(pieces, ["of:x"]);
    }

    #[test]
    fn ss_1110_pairs_on_a_document_count_for_its_piece() {
        let demands = Rc::new(Demands::default());
        let row = |id: &str, user: &str| Demand {
            instance: InstanceId::space(id),
            scope: Scope::Space,
            pair: Some(ScopeIdentity::session(user, "s")),
            root: true,
        };
        demands
            .registry
            .borrow_mut()
            .replace(&[row("of:piece", "did:key:u1"), row("of:part", "did:key:u2")]);
        demands
            .pieces
            .borrow_mut()
            .insert("of:part".into(), "of:piece".into());
        let supply = DemandSupply(Rc::clone(&demands));
        assert_eq!(supply.demanders(&["of:piece".into()]).len(), 2);
        assert_eq!(supply.demanders(&["of:part".into()]).len(), 1);
    }
}
