//! What the migration and recovery markers of a context say. Rules: NODE-32, NODE-35, NODE-36.
//!
//! Markers are presence facts. [`Markers::read`] is the only place that reads them and [`upgrade_state`] the only one that
//! decides from them.

use crate::error::StoreError;
use crate::id::{ApplicationId, BlobId, ContextId, GroupId};
use crate::key;
use crate::layer::{LayerExt, ReadLayer};
use crate::value::{ContextMeta, ContextMigrationFailed};

/// All facts about the code of one context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Markers {
    /// Code that the application row names; none if the program is not installed.
    pub installed: Option<BlobId>,
    /// Code that the context's group wants; none if it has no group or the group says nothing (a zero key).
    pub wanted: Option<BlobId>,
    /// Old code that is pinned; absent: run what the row names.
    pub executing: Option<BlobId>,
    /// Code last activated: by a committed migration or a code-only swap.
    pub activated: Option<BlobId>,
    /// State version of that code, where known.
    pub activated_state_version: Option<u32>,
    /// Code that an in-place installation replaced; absent: never replaced.
    pub previous: Option<BlobId>,
    /// Why the last migration did not complete; absent: no failure on record.
    pub failed: Option<ContextMigrationFailed>,
    /// Whether an operator asked for a full replacement of the state.
    pub resync_requested: bool,
}

impl Markers {
    /// Reads the facts of a context.
    pub fn read<L: ReadLayer>(layer: &L, context_id: ContextId) -> Result<Self, StoreError> {
        let meta = layer.view().get(&key::ContextMeta { context_id })?;
        let meta = meta.ok_or(StoreError::UnknownContext(context_id))?;
        Markers::of(layer, context_id, &meta)
    }

    pub(crate) fn of<L: ReadLayer>(
        layer: &L,
        context_id: ContextId,
        meta: &ContextMeta,
    ) -> Result<Self, StoreError> {
        let handle = layer.view();
        let application_id = meta.application;
        Ok(Markers {
            installed: handle
                .get(&key::ApplicationMeta { application_id })?
                .map(|row| row.bytecode),
            wanted: wanted(layer, context_id)?,
            executing: handle
                .get(&key::ContextExecutingBlob { context_id })?
                .map(|marker| marker.blob),
            activated: handle
                .get(&key::ContextActivatedBlob { context_id })?
                .map(|marker| marker.blob),
            activated_state_version: handle
                .get(&key::ContextActivatedStateVersion { context_id })?
                .map(|marker| marker.state_version),
            previous: handle
                .get(&key::ApplicationPreviousBlob { application_id })?
                .map(|marker| marker.bytecode),
            failed: handle.get(&key::ContextMigrationFailed { context_id })?,
            resync_requested: handle.has(&key::ContextResyncRequested { context_id })?,
        })
    }

    /// The code to run: the pinned one, else what the application row names.
    pub fn serving(&self) -> Option<BlobId> {
        self.executing.or(self.installed)
    }

    /// The code to come to: what the group wants, or without its word what is installed.
    pub fn target(&self) -> Option<BlobId> {
        self.wanted.or(self.installed)
    }

    /// *The* up-to-date test: what was last activated is what the group wants.
    pub fn is_up_to_date(&self) -> bool {
        self.activated.is_some() && self.activated == self.target()
    }
}

/// The group of a context, if it has one.
pub fn group_of<L: ReadLayer>(layer: &L, context_id: ContextId) -> Result<Option<GroupId>, StoreError> {
    layer.view().get(&key::ContextGroupRef { context_id })
}

fn wanted<L: ReadLayer>(layer: &L, context_id: ContextId) -> Result<Option<BlobId>, StoreError> {
    let Some(group_id) = group_of(layer, context_id)? else {
        return Ok(None);
    };
    let meta = layer.view().get(&key::GroupMeta { group_id })?;
    Ok(meta.map(|meta| meta.app_key).filter(|app_key| !app_key.is_zero()))
}

/// Where a context stands between two versions of its code. `serving` is what runs meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeState {
    /// No code to run.
    NotInstalled {
        /// Code that is wanted, where a group wants one.
        target: Option<BlobId>,
    },
    /// Nothing to do.
    UpToDate {
        /// Code that runs.
        serving: BlobId,
    },
    /// The wanted code is installed and not activated: an upgrade was not begun, or was cut off. Driving it resolves it.
    Pending {
        /// Code that runs.
        serving: BlobId,
        /// Code to activate.
        target: BlobId,
        /// Whether state must be migrated, or the code alone is swapped.
        migrates: bool,
    },
    /// The last attempt did not complete; the old code runs.
    Failed {
        /// Code that runs.
        serving: BlobId,
        /// Code to activate.
        target: BlobId,
        /// What went wrong.
        reason: ContextMigrationFailed,
    },
    /// The group wants code that this node does not have; the installed code runs.
    AwaitingCode {
        /// Code that runs.
        serving: BlobId,
        /// Code that is wanted.
        target: BlobId,
    },
    /// An operator asked for a full replacement of the state; it comes before any upgrade.
    AwaitingResync {
        /// Code that runs, where there is one.
        serving: Option<BlobId>,
        /// What went wrong before, where something did.
        reason: Option<ContextMigrationFailed>,
    },
}

impl UpgradeState {
    /// The code that runs in this state.
    pub fn serving(&self) -> Option<BlobId> {
        match *self {
            UpgradeState::NotInstalled { .. } => None,
            UpgradeState::UpToDate { serving }
            | UpgradeState::Pending { serving, .. }
            | UpgradeState::Failed { serving, .. }
            | UpgradeState::AwaitingCode { serving, .. } => Some(serving),
            UpgradeState::AwaitingResync { serving, .. } => serving,
        }
    }
}

/// Decides from the markers alone, for every combination of them.
pub fn upgrade_state(markers: &Markers) -> UpgradeState {
    let serving = markers.serving();
    if markers.resync_requested {
        return UpgradeState::AwaitingResync {
            serving,
            reason: markers.failed,
        };
    }
    let (Some(serving), Some(target)) = (serving, markers.target()) else {
        return match serving {
            // Pinned code without an application row and without a group's word: it runs, and nothing else is known.
            Some(serving) => UpgradeState::UpToDate { serving },
            None => UpgradeState::NotInstalled {
                target: markers.target(),
            },
        };
    };
    if markers.is_up_to_date() {
        return UpgradeState::UpToDate { serving };
    }
    if let Some(reason) = markers.failed {
        return UpgradeState::Failed {
            serving,
            target,
            reason,
        };
    }
    if markers.installed != Some(target) {
        return UpgradeState::AwaitingCode { serving, target };
    }
    UpgradeState::Pending {
        serving,
        target,
        migrates: serving != target,
    }
}

/// The program of a context, or an error if the context is unknown.
pub(crate) fn application_of<L: ReadLayer>(
    layer: &L,
    context_id: ContextId,
) -> Result<ApplicationId, StoreError> {
    let meta = layer.view().get(&key::ContextMeta { context_id })?;
    meta.map(|meta| meta.application)
        .ok_or(StoreError::UnknownContext(context_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: BlobId = BlobId::new([1; 32]);
    const NEW: BlobId = BlobId::new([2; 32]);
    const OTHER: BlobId = BlobId::new([3; 32]);

    /// Every combination of presence and of same or different blobs: 4 codes or none in each of five places, four failure
    /// states, resync or not.
    fn all() -> Vec<Markers> {
        let codes = [None, Some(OLD), Some(NEW), Some(OTHER)];
        let failures = [
            None,
            Some(ContextMigrationFailed::CheckAborted),
            Some(ContextMigrationFailed::ApplyFailed),
            Some(ContextMigrationFailed::NoMigrationPath),
        ];
        let mut all = Vec::new();
        for installed in codes {
            for wanted in codes {
                for executing in codes {
                    for activated in codes {
                        for previous in codes {
                            for failed in failures {
                                for resync_requested in [false, true] {
                                    for activated_state_version in [None, Some(1)] {
                                        all.push(Markers {
                                            installed,
                                            wanted,
                                            executing,
                                            activated,
                                            activated_state_version,
                                            previous,
                                            failed,
                                            resync_requested,
                                        });
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn node_32_every_combination_of_markers_has_the_state_its_rules_give() {
        let all = all();
        assert_eq!(all.len(), 16_384);
        for m in &all {
            let state = upgrade_state(m);
            // NODE-35: the pin decides what runs, and without it the row does.
            match (m.executing, m.installed) {
                (Some(pinned), _) => assert_eq!(state.serving(), Some(pinned), "{m:?}"),
                (None, Some(row)) => assert_eq!(state.serving(), Some(row), "{m:?}"),
                (None, None) => assert_eq!(state.serving(), None, "{m:?}"),
            }
            let wanted = m.wanted.or(m.installed);
            let up_to_date = m.activated.is_some() && m.activated == wanted;
            let can_serve = m.executing.is_some() || m.installed.is_some();
            match state {
                UpgradeState::AwaitingResync { reason, .. } => {
                    assert!(m.resync_requested, "{m:?}");
                    assert_eq!(reason, m.failed);
                }
                UpgradeState::NotInstalled { target } => {
                    assert!(!m.resync_requested && !can_serve, "{m:?}");
                    assert_eq!(target, m.wanted);
                }
                UpgradeState::UpToDate { .. } => {
                    let nothing_known = m.installed.is_none() && m.wanted.is_none();
                    assert!(
                        !m.resync_requested && can_serve && (up_to_date || nothing_known),
                        "{m:?}"
                    );
                }
                UpgradeState::Failed { target, reason, .. } => {
                    assert!(!m.resync_requested && can_serve && !up_to_date, "{m:?}");
                    assert_eq!((Some(reason), Some(target)), (m.failed, wanted));
                }
                UpgradeState::AwaitingCode { target, .. } => {
                    assert!(
                        !m.resync_requested && can_serve && !up_to_date && m.failed.is_none(),
                        "{m:?}"
                    );
                    assert!(m.installed != Some(target) && m.wanted == Some(target), "{m:?}");
                }
                UpgradeState::Pending {
                    serving,
                    target,
                    migrates,
                } => {
                    assert!(
                        !m.resync_requested && can_serve && !up_to_date && m.failed.is_none(),
                        "{m:?}"
                    );
                    assert_eq!((Some(target), Some(target)), (m.installed, wanted));
                    assert_eq!(migrates, serving != target);
                }
            }
        }
    }

    #[test]
    fn node_35_the_previous_code_and_the_state_version_decide_nothing_here() {
        for m in all() {
            let bare = Markers {
                previous: None,
                activated_state_version: None,
                ..m
            };
            assert_eq!(upgrade_state(&m), upgrade_state(&bare));
        }
    }
}
