//! Which instances of a node run, and which of them are current (RUN-542…546).
//!
//! A node that reads scoped documents has one value per demanded user or session. This file holds the pure
//! bookkeeping of that: the *ratchet* (how narrow the node was found to be), the instances the present
//! demanders need, and which are clean. Only the scheduler calls it; nothing here runs anything.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::{Did, Scope, ScopeIdentity, ScopeKey};

use crate::scheduler::trigger::ReadLog;

/// One instance that the present demand asks for: its key and the identity its run resolves scopes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemandedInstance {
    /// The instance key at the node's present ratchet.
    pub key: ScopeKey,
    /// The demander the run resolves as. For the probe this is scaffolding only: nothing is attributed from it.
    pub identity: ScopeIdentity,
}

/// What the scheduler remembers of one instance: whom it ran as, and what that run read.
#[derive(Clone, Debug)]
pub struct InstanceRecord {
    /// Identity of its last run.
    pub identity: ScopeIdentity,
    /// Reads of its last run; the node subscribes to the union over its instances.
    pub log: ReadLog,
}

/// Which instances a change concerns (RUN-545).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dirt {
    /// An unkeyed or `space` change: every instance.
    All,
    /// A change of exactly one user or session instance of some document.
    Keyed(ScopeKey),
}

impl Dirt {
    /// The dirt of a change whose address names `scope_key`, if it names one.
    pub fn of_change(scope_key: Option<&ScopeKey>) -> Dirt {
        match scope_key {
            Some(key) if key.scope() != Scope::Space => Dirt::Keyed(key.clone()),
            Some(_) | None => Dirt::All,
        }
    }
}

/// The fan-out record of one node.
///
/// `narrowed` and `session_principals` only ever grow: they say what the node's *code* was seen to reach for,
/// which does not become untrue when somebody leaves.
#[derive(Clone, Debug, Default)]
pub struct FanOut {
    narrowed: bool,
    session_principals: BTreeSet<Did>,
    instances: BTreeMap<ScopeKey, InstanceRecord>,
    clean: BTreeSet<ScopeKey>,
    running: Option<Running>,
}

/// The instance run in progress.
#[derive(Clone, Debug)]
struct Running {
    key: ScopeKey,
    identity: ScopeIdentity,
    /// A cause arrived during the run, so its result is already old (RUN-544).
    disturbed: bool,
}

impl FanOut {
    /// True once some run of the node read a user- or session-scoped document.
    pub fn narrowed(&self) -> bool {
        self.narrowed
    }

    /// Principals whose instances were found to be session-deep, in order.
    pub fn session_principals(&self) -> impl Iterator<Item = &Did> {
        self.session_principals.iter()
    }

    /// Instances with a finished run, in key order.
    pub fn instances(&self) -> impl Iterator<Item = (&ScopeKey, &InstanceRecord)> {
        self.instances.iter()
    }

    /// Instances that are current, in key order.
    pub fn clean(&self) -> impl Iterator<Item = &ScopeKey> {
        self.clean.iter()
    }

    /// True when that instance is current.
    pub fn is_clean(&self, key: &ScopeKey) -> bool {
        self.clean.contains(key)
    }

    /// The instances `demanders` ask for at the present ratchet (RUN-543), in (principal, session) order.
    ///
    /// Nobody with a principal yields nothing: the caller then makes the single fallback run. A node not yet
    /// narrowed yields one *probe* at `space` under the smallest pair.
    pub fn demanded(&self, demanders: &[ScopeIdentity]) -> Vec<DemandedInstance> {
        let mut pairs: Vec<&ScopeIdentity> = demanders.iter().filter(|d| d.principal.is_some()).collect();
        pairs.sort_by(|a, b| (&a.principal, &a.session_id).cmp(&(&b.principal, &b.session_id)));
        let Some(smallest) = pairs.first() else {
            return Vec::new();
        };
        if !self.narrowed {
            return vec![DemandedInstance {
                key: ScopeKey::space(),
                identity: (*smallest).clone(),
            }];
        }
        let mut wanted: Vec<DemandedInstance> = Vec::new();
        let mut listed: BTreeSet<ScopeKey> = BTreeSet::new();
        for pair in pairs {
            // A session-deep pair without a session resolves nothing and runs nothing; a later pair of the
            // same principal (or a repetition of the same pair) resolves to a key already listed.
            let Some(key) = self.key_at_ratchet(pair) else {
                continue;
            };
            if listed.insert(key.clone()) {
                wanted.push(DemandedInstance {
                    key,
                    identity: pair.clone(),
                });
            }
        }
        wanted
    }

    /// How deep the ratchet is for this identity.
    pub fn depth_for(&self, identity: &ScopeIdentity) -> Scope {
        match &identity.principal {
            _ if !self.narrowed => Scope::Space,
            Some(principal) if self.session_principals.contains(principal) => Scope::Session,
            Some(_) | None => Scope::User,
        }
    }

    /// The key of this identity's instance at the present ratchet; `None` when the identity lacks what the
    /// scope needs.
    pub fn key_at_ratchet(&self, identity: &ScopeIdentity) -> Option<ScopeKey> {
        ScopeKey::resolve(self.depth_for(identity), identity).ok()
    }

    /// Records that a run under `identity` reached for `discovered` (RUN-544). Returns whether the ratchet
    /// moved. `narrowed` holds for everybody at once, because the space slot's redirect is shared.
    pub fn discover(&mut self, identity: &ScopeIdentity, discovered: Scope) -> bool {
        if discovered == Scope::Space {
            return false;
        }
        let mut moved = !std::mem::replace(&mut self.narrowed, true);
        if let (Scope::Session, Some(principal)) = (discovered, &identity.principal) {
            moved |= self.session_principals.insert(principal.clone());
        }
        moved
    }

    /// Notes the start of a run of `key` as `identity`, so that a change arriving during it is not lost. Runs
    /// are synchronous: a node has at most one in progress.
    pub fn run_started(&mut self, key: &ScopeKey, identity: &ScopeIdentity) {
        self.running = Some(Running {
            key: key.clone(),
            identity: identity.clone(),
            disturbed: false,
        });
    }

    /// Records the finished run: the ratchet learns `discovered`, the record moves to the key at the new
    /// ratchet, and it becomes clean unless a cause arrived while it ran. Returns whether the ratchet moved.
    /// Without a run in progress nothing is recorded.
    pub fn run_finished(&mut self, discovered: Scope, log: ReadLog) -> bool {
        let Some(run) = self.running.take() else {
            return false;
        };
        let moved = self.discover(&run.identity, discovered);
        let key = self
            .key_at_ratchet(&run.identity)
            .unwrap_or_else(|| run.key.clone());
        if key != run.key {
            self.instances.remove(&run.key);
            self.clean.remove(&run.key);
        }
        if run.disturbed {
            self.clean.remove(&key);
        } else {
            self.clean.insert(key.clone());
        }
        self.instances.insert(
            key,
            InstanceRecord {
                identity: run.identity,
                log,
            },
        );
        moved
    }

    /// A change arrived: the instances it concerns stop being clean (RUN-545).
    pub fn dirty(&mut self, dirt: &Dirt) {
        let hit = |key: &ScopeKey, identity: &ScopeIdentity| match dirt {
            Dirt::All => true,
            Dirt::Keyed(changed) => concerns(changed, key, identity),
        };
        self.clean.retain(|key| match self.instances.get(key) {
            Some(record) => !hit(key, &record.identity),
            None => false,
        });
        if let Some(run) = &mut self.running {
            run.disturbed |= hit(&run.key, &run.identity);
        }
    }

    /// Makes exactly this instance run again (a refused seal, RUN-544).
    pub fn rearm(&mut self, key: &ScopeKey) {
        self.clean.remove(key);
        if let Some(run) = &mut self.running {
            run.disturbed |= run.key == *key;
        }
    }

    /// Forgets instances nobody demands any more, and with them their reads (I-15).
    pub fn prune(&mut self, demanded: &[DemandedInstance]) {
        let wanted: BTreeSet<&ScopeKey> = demanded.iter().map(|d| &d.key).collect();
        self.instances.retain(|key, _| wanted.contains(key));
        self.clean.retain(|key| wanted.contains(key));
    }

    /// The demanded instances that are not current, in demand order.
    pub fn to_run(&self, demanders: &[ScopeIdentity]) -> Vec<DemandedInstance> {
        self.demanded(demanders)
            .into_iter()
            .filter(|d| !self.clean.contains(&d.key))
            .collect()
    }

    /// Union of the reads of all instances: what the node subscribes to.
    pub fn union_log(&self) -> ReadLog {
        ReadLog::union(self.instances.values().map(|record| &record.log))
    }
}

/// RUN-545: does a change of the instance `changed` concern the node instance `key`, run as `identity`?
///
/// It does when that run's own scope chain contains the changed key. The chain is taken from the identity cut to
/// the instance's depth and from the whole identity alike: a `user` instance was run by one representative
/// session, and may have read that session's documents on the way to discovering its depth.
fn concerns(changed: &ScopeKey, key: &ScopeKey, identity: &ScopeIdentity) -> bool {
    changed == key
        || [Scope::User, Scope::Session]
            .into_iter()
            .any(|scope| ScopeKey::resolve(scope, identity).is_ok_and(|resolved| resolved == *changed))
}
