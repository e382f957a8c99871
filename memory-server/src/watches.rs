//! A session's watch list as a value: identity of a watch, additions, roots by branch (SRV-501…504, §5.1). Evaluation
//! is in `evaluate`; the requests are in `watch_requests`.

use std::collections::BTreeMap;
use std::sync::Arc;

use memory_wire::hash::hash_string;
use memory_wire::message::{GraphQuery, Root, Watch, WatchKind};
use memory_wire::{BranchName, InstanceId, Scope, ScopeIdentity, ScopeKey, Seq, Value, WireError};
use rustc_hash::FxHashMap;

use crate::session::GraphKey;
use crate::views::Views;

/// The watches of one session, in the order given.
#[derive(Debug, Default, Clone)]
pub(crate) struct WatchSet {
    watches: Vec<Watch>,
}

/// What makes two watches the same (SRV-502). The schema counts by its hash.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    kind: WatchKind,
    branch: BranchName,
    at_seq: Option<Seq>,
    exclude_sent: Option<bool>,
    roots: Vec<RootIdentity>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RootIdentity {
    id: String,
    scope: Scope,
    path: Vec<String>,
    schema: String,
    entity_scope_key: Option<ScopeKey>,
}

impl Identity {
    fn of(watch: &Watch) -> Identity {
        let mut roots: Vec<RootIdentity> = watch.query.roots.iter().map(RootIdentity::of).collect();
        roots.sort();
        Identity {
            kind: watch.kind,
            branch: watch.query.branch.clone(),
            at_seq: watch.query.at_seq,
            exclude_sent: watch.query.exclude_sent,
            roots,
        }
    }
}

impl RootIdentity {
    fn of(root: &Root) -> RootIdentity {
        RootIdentity {
            id: root.id.as_str().to_owned(),
            scope: root.scope,
            path: root
                .selector
                .path
                .iter()
                .map(|segment| segment.to_string())
                .collect(),
            // An absent schema behaves as `false` (SRV-503), so the two are one identity.
            schema: hash_string(root.selector.schema.as_ref().unwrap_or(&Value::Bool(false))),
            entity_scope_key: root.entity_scope_key.clone(),
        }
    }
}

impl WatchSet {
    /// Takes a replacement list. Duplicate ids are tolerated (SRV-501).
    pub(crate) fn replacing(watches: Vec<Watch>) -> WatchSet {
        WatchSet { watches }
    }

    /// The watches of `added` that are new to this list; a known id with another identity is refused (SRV-502). Costs what
    /// the two lists are long: the second is as long as a message may be.
    pub(crate) fn novelty(&self, added: Vec<Watch>) -> Result<Vec<Watch>, WireError> {
        let mut known: FxHashMap<&str, &Watch> = FxHashMap::default();
        for watch in &self.watches {
            known.entry(&watch.id).or_insert(watch);
        }
        let mut is_new = Vec::with_capacity(added.len());
        for watch in &added {
            let standing = known.get(watch.id.as_str()).copied();
            is_new.push(standing.is_none());
            match standing {
                None => drop(known.insert(&watch.id, watch)),
                Some(standing) if Identity::of(standing) == Identity::of(watch) => {}
                Some(_) => {
                    return Err(WireError::protocol(
                        "session.watch.add may not replace an existing watch id; use session.watch.set",
                    ));
                }
            }
        }
        let new = added.into_iter().zip(is_new);
        Ok(new
            .filter_map(|(watch, is_new)| is_new.then_some(watch))
            .collect())
    }

    /// This list with `new` at its end.
    pub(crate) fn with(&self, new: Vec<Watch>) -> WatchSet {
        let mut watches = self.watches.clone();
        watches.extend(new);
        WatchSet { watches }
    }

    pub(crate) fn len(&self) -> usize {
        self.watches.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Every root, over all watches.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (&BranchName, &Root)> + Clone {
        self.watches.iter().flat_map(|watch| {
            watch
                .query
                .roots
                .iter()
                .map(move |root| (&watch.query.branch, root))
        })
    }

    /// This list with the views that act as watches; the list itself when there are none.
    pub(crate) fn joined_by(self: &Arc<WatchSet>, views: &Views) -> Arc<WatchSet> {
        match views.as_watches() {
            none if none.is_empty() => Arc::clone(self),
            rendered => Arc::new(self.with(rendered)),
        }
    }

    /// One query per branch, for evaluation: `atSeq` and `excludeSent` belong to the identity only.
    pub(crate) fn queries(&self) -> Vec<(GraphKey, GraphQuery)> {
        queries_by_branch(&self.watches)
    }

    /// The instances the roots name for `identity`; roots that cannot be resolved are skipped.
    pub(crate) fn instances(&self, identity: &ScopeIdentity) -> Vec<InstanceId> {
        self.roots()
            .filter_map(|(_, root)| {
                let key = match &root.entity_scope_key {
                    Some(key) => key.clone(),
                    None => ScopeKey::resolve(root.scope, identity).ok()?,
                };
                Some(InstanceId::new(root.id.clone(), key))
            })
            .collect()
    }
}

/// Groups the roots of `watches` into one query per branch, in branch order.
pub(crate) fn queries_by_branch(watches: &[Watch]) -> Vec<(GraphKey, GraphQuery)> {
    let mut by_branch: BTreeMap<&BranchName, Vec<Root>> = BTreeMap::new();
    for watch in watches {
        by_branch
            .entry(&watch.query.branch)
            .or_default()
            .extend(watch.query.roots.iter().cloned());
    }
    by_branch
        .into_iter()
        .map(|(branch, roots)| {
            let query = GraphQuery {
                branch: branch.clone(),
                ..GraphQuery::of(roots)
            };
            (GraphKey::Branch(branch.clone()), query)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::message::Selector;

    fn watch(id: &str, root: Root) -> Watch {
        Watch {
            id: id.into(),
            kind: WatchKind::Graph,
            query: GraphQuery::of(vec![root]),
        }
    }

    fn root(id: &str, schema: Option<Value>) -> Root {
        Root::new(
            id,
            Scope::Space,
            Selector {
                path: Default::default(),
                schema,
            },
        )
    }

    #[test]
    fn srv_502_an_equal_watch_is_no_news() {
        let set = WatchSet::replacing(vec![watch("w", root("of:x", None))]);
        let again = vec![watch("w", root("of:x", Some(Value::Bool(false))))];
        assert!(set.novelty(again).expect("same identity").is_empty());
    }

    #[test]
    fn srv_502_a_known_id_with_another_identity_is_refused() {
        let set = WatchSet::replacing(vec![watch("w", root("of:x", None))]);
        let mut keyed = root("of:x", None);
        keyed.entity_scope_key = Some(ScopeKey::space());
        for other in [root("of:y", None), root("of:x", Some(Value::Bool(true))), keyed] {
            assert!(set.novelty(vec![watch("w", other)]).is_err());
        }
        // What does not change the evaluation is part of the identity all the same.
        let (mut dated, mut sparing) = (watch("w", root("of:x", None)), watch("w", root("of:x", None)));
        dated.query.at_seq = Some(Seq(1));
        sparing.query.exclude_sent = Some(true);
        for other in [dated, sparing] {
            assert!(set.novelty(vec![other]).is_err());
        }
    }

    #[test]
    fn srv_502_two_additions_of_one_id_are_judged_against_each_other() {
        let set = WatchSet::default();
        assert_eq!(
            set.novelty(vec![
                watch("w", root("of:x", None)),
                watch("w", root("of:x", None))
            ])
            .unwrap()
            .len(),
            1
        );
        assert!(
            set.novelty(vec![
                watch("w", root("of:x", None)),
                watch("w", root("of:y", None))
            ])
            .is_err()
        );
    }

    /// Each watch compared with each other would take hours over what one message may hold.
    #[test]
    fn srv_502_long_lists_are_told_apart_by_look_up() {
        let many = |prefix: &str| -> Vec<Watch> {
            let named = |n| watch(&format!("{prefix}{n}"), root("of:x", None));
            (0..100_000).map(named).collect()
        };
        let set = WatchSet::replacing(many("a"));
        assert_eq!(set.novelty(many("b")).expect("new").len(), 100_000);
        assert!(set.novelty(many("a")).expect("known").is_empty());
    }
}
