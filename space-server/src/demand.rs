//! Who demands what in one space (SS-1100…SS-1103): the registry that a pass replaces with the server's rows, and
//! the difference that the runtime is told about. There is no second walk: rows are what the server delivers.

use std::collections::{BTreeMap, BTreeSet};

use memory_wire::{EntityId, InstanceId, Scope, ScopeIdentity};

/// One row of the server's demand: an instance in a session's tracked closure, or a watch root (SS-1100).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The instance.
    pub instance: InstanceId,
    /// Its scope kind.
    pub scope: Scope,
    /// The demanding pair; `None` for an anonymous session.
    pub pair: Option<ScopeIdentity>,
    /// Some watch names it.
    pub root: bool,
}

/// An entity as writers declare it: by scope, whichever instances there are. Liveness is counted by it, nothing is
/// stored or read by it (SS-1102).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntityName {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
}

impl From<&InstanceId> for EntityName {
    fn from(instance: &InstanceId) -> Self {
        EntityName {
            id: instance.id.clone(),
            scope: instance.scope_key.scope(),
        }
    }
}

/// What a pass changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemandChange {
    /// Instances nobody demands any more.
    pub departed: Vec<InstanceId>,
    /// Instances demanded for the first time.
    pub arrived: Vec<InstanceId>,
    /// Pairs new on an instance, with whether the instance is a root.
    pub new_pairs: Vec<(InstanceId, ScopeIdentity, bool)>,
    /// Entity names whose first instance arrived: their writers become demand roots.
    pub entered: Vec<EntityName>,
    /// Entity names whose last instance departed.
    pub left: Vec<EntityName>,
}

impl DemandChange {
    /// True when nothing changed.
    pub fn is_empty(&self) -> bool {
        self.departed.is_empty() && self.arrived.is_empty() && self.new_pairs.is_empty()
    }
}

/// Pairs on one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    pairs: BTreeSet<Pair>,
    root: bool,
}

/// [`ScopeIdentity`] with an order, so that passes are reproducible.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair(Option<memory_wire::Did>, Option<memory_wire::SessionId>);

impl From<&ScopeIdentity> for Pair {
    fn from(identity: &ScopeIdentity) -> Self {
        Pair(identity.principal.clone(), identity.session_id.clone())
    }
}

impl From<&Pair> for ScopeIdentity {
    fn from(pair: &Pair) -> Self {
        ScopeIdentity {
            principal: pair.0.clone(),
            session_id: pair.1.clone(),
        }
    }
}

/// The standing demand of one space.
#[derive(Clone, Debug, Default)]
pub struct DemandRegistry {
    rows: BTreeMap<InstanceId, Entry>,
    /// Instances warmed by a landed foreign batch or a verb: identity-less roots for the rest of the tenure.
    warm: BTreeSet<InstanceId>,
    /// Instances per name: whose last instance departs has left (SS-1102).
    names: BTreeMap<EntityName, usize>,
    /// Pairs on any instance of an entity: asked before every run of a node.
    pairs: BTreeMap<EntityId, BTreeSet<Pair>>,
}

impl DemandRegistry {
    /// Adds a warm root; it stays for the tenure (SS-1101).
    pub fn warm(&mut self, instance: InstanceId) {
        self.warm.insert(instance);
    }

    /// Replaces the standing demand and says what changed.
    pub fn replace(&mut self, rows: &[Demand]) -> DemandChange {
        let mut next: BTreeMap<InstanceId, Entry> = BTreeMap::new();
        for row in rows {
            let entry = next.entry(row.instance.clone()).or_default();
            entry.root |= row.root;
            entry.pairs.extend(row.pair.as_ref().map(Pair::from));
        }
        for instance in &self.warm {
            next.entry(instance.clone()).or_default().root = true;
        }
        let mut change = DemandChange::default();
        for (instance, entry) in &next {
            let before = self.rows.get(instance);
            if before.is_none() {
                change.arrived.push(instance.clone());
            }
            let known = before.map(|b| &b.pairs);
            for pair in entry
                .pairs
                .iter()
                .filter(|p| !known.is_some_and(|k| k.contains(p)))
            {
                change.new_pairs.push((instance.clone(), pair.into(), entry.root));
            }
        }
        change.departed = self
            .rows
            .keys()
            .filter(|i| !next.contains_key(*i))
            .cloned()
            .collect();
        for instance in &change.arrived {
            let name = EntityName::from(instance);
            let count = self.names.entry(name.clone()).or_insert(0);
            *count += 1;
            if *count == 1 {
                change.entered.push(name);
            }
        }
        for instance in &change.departed {
            let name = EntityName::from(instance);
            if let Some(count) = self.names.get_mut(&name) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(&name);
                    change.left.push(name);
                }
            }
        }
        // An entity whose last instance departs in the pass that brings another never left.
        change
            .entered
            .retain(|name| !change.left.contains(name) || self.names.contains_key(name));
        self.pairs.clear();
        for (instance, entry) in &next {
            self.pairs
                .entry(instance.id.clone())
                .or_default()
                .extend(entry.pairs.iter().cloned());
        }
        self.rows = next;
        change
    }

    /// Demanding pairs of an entity, whatever instance each demands.
    pub fn pairs_of(&self, id: &EntityId) -> Vec<ScopeIdentity> {
        self.pairs
            .get(id)
            .into_iter()
            .flatten()
            .map(ScopeIdentity::from)
            .collect()
    }

    /// Demanded roots, in order.
    pub fn roots(&self) -> impl Iterator<Item = &InstanceId> + '_ {
        self.rows
            .iter()
            .filter(|(_, entry)| entry.root)
            .map(|(instance, _)| instance)
    }

    /// Distinct demanded instances.
    pub fn instances(&self) -> usize {
        self.rows.len()
    }

    /// Instance × pair entries.
    pub fn pairs(&self) -> usize {
        self.rows.values().map(|entry| entry.pairs.len()).sum()
    }

    /// True when `instance` is demanded.
    pub fn contains(&self, instance: &InstanceId) -> bool {
        self.rows.contains_key(instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::ScopeKey;

    fn row(id: &str, pair: Option<(&str, &str)>, scope: Scope, root: bool) -> Demand {
        let identity = pair.map(|(p, s)| ScopeIdentity::session(p, s));
        let key = ScopeKey::resolve(scope, &identity.clone().unwrap_or_default()).unwrap();
        Demand {
            instance: InstanceId::new(id, key),
            scope,
            pair: identity,
            root,
        }
    }

    #[test]
    fn ss_1102_a_pass_reports_each_difference_once() {
        let mut registry = DemandRegistry::default();
        let a = row("of:a", Some(("did:key:u1", "s1")), Scope::Space, true);
        let b = row("of:a", Some(("did:key:u2", "s2")), Scope::Space, true);
        let first = registry.replace(std::slice::from_ref(&a));
        assert_eq!(
            (first.arrived.len(), first.new_pairs.len(), first.entered.len()),
            (1, 1, 1)
        );
        assert!(registry.replace(std::slice::from_ref(&a)).is_empty());
        let second = registry.replace(&[a.clone(), b]);
        assert_eq!((second.arrived.len(), second.new_pairs.len()), (0, 1));
        assert_eq!(registry.pairs_of(&"of:a".into()).len(), 2);
        let gone = registry.replace(&[]);
        assert_eq!((gone.departed.len(), gone.left.len()), (1, 1));
    }

    #[test]
    fn instances_of_one_user_scoped_document_share_a_name() {
        let mut registry = DemandRegistry::default();
        let u1 = row("of:mine", Some(("did:key:u1", "s1")), Scope::User, false);
        let u2 = row("of:mine", Some(("did:key:u2", "s2")), Scope::User, false);
        let change = registry.replace(&[u1, u2.clone()]);
        assert_eq!((change.arrived.len(), change.entered.len()), (2, 1));
        assert!(registry.replace(&[u2]).left.is_empty());
    }

    #[test]
    fn ss_1101_warm_roots_outlive_their_pass() {
        let mut registry = DemandRegistry::default();
        registry.warm(InstanceId::space("of:w"));
        assert_eq!(registry.replace(&[]).arrived.len(), 1);
        assert!(registry.replace(&[]).is_empty());
        assert_eq!(registry.roots().count(), 1);
        assert!(registry.pairs_of(&"of:w".into()).is_empty());
    }
}
