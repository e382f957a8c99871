//! What a patch touches, and which reads that disturbs (WIRE-608, ENG-342…346). Used by admission to judge a
//! read set against the patches stored after it.

use smol_str::SmolStr;

use super::{PatchAction, PatchOp};
use crate::pointer::{DocPath, is_path_prefix, parent_path, paths_overlap};

impl PatchOp {
    /// The touched leaf paths: `path`, and for `move` also `from` (first).
    pub fn touched_paths(&self) -> impl Iterator<Item = &DocPath> {
        let from = match &self.action {
            PatchAction::Move { from, .. } => Some(from),
            _ => None,
        };
        from.into_iter().chain(std::iter::once(self.path()))
    }

    /// True for operations that add or remove a key or shift an array: add, remove, move.
    pub fn is_structural(&self) -> bool {
        match self.action {
            PatchAction::Add { .. } | PatchAction::Remove { .. } | PatchAction::Move { .. } => true,
            PatchAction::Replace { .. }
            | PatchAction::Splice { .. }
            | PatchAction::Append { .. }
            | PatchAction::AddUnique { .. }
            | PatchAction::RemoveByValue { .. }
            | PatchAction::Increment { .. } => false,
        }
    }

    /// True when readers of the parent's shape have to be told: structural, or declared by `createsKey`.
    pub fn changes_parent_key_set(&self) -> bool {
        match self.action {
            PatchAction::Append { creates_key, .. }
            | PatchAction::AddUnique { creates_key, .. }
            | PatchAction::Increment { creates_key, .. } => creates_key,
            PatchAction::Add { .. }
            | PatchAction::Remove { .. }
            | PatchAction::Move { .. }
            | PatchAction::Replace { .. }
            | PatchAction::Splice { .. }
            | PatchAction::RemoveByValue { .. } => self.is_structural(),
        }
    }

    /// True for operations that may bring into being what was not there, their target or a container on the way to it.
    pub fn creates_keys(&self) -> bool {
        match self.action {
            PatchAction::Add { .. }
            | PatchAction::Replace { .. }
            | PatchAction::Move { .. }
            | PatchAction::Append { .. }
            | PatchAction::AddUnique { .. }
            | PatchAction::Increment { .. } => true,
            PatchAction::Remove { .. } | PatchAction::Splice { .. } | PatchAction::RemoveByValue { .. } => {
                false
            }
        }
    }

    /// True when a read of `path` cannot stand beside this operation. A recursive read overlaps a touched path
    /// either way round; a shape-only (`non_recursive`) read is disturbed by a touched path at or above it, where
    /// the parents of key-set changes count as touched.
    pub fn conflicts_with_read(&self, path: &[SmolStr], non_recursive: bool) -> bool {
        if !non_recursive {
            return self.touched_paths().any(|touched| paths_overlap(touched, path));
        }
        let with_parents = self.changes_parent_key_set();
        self.touched_paths().any(|touched| {
            // A parent is a prefix of its child, so where it counts it is the weaker, sufficient condition.
            is_path_prefix(
                if with_parents {
                    parent_path(touched)
                } else {
                    touched
                },
                path,
            )
        })
    }
}

/// The touched leaf paths of a whole list, in order.
pub fn touched_paths(patches: &[PatchOp]) -> Vec<DocPath> {
    patches.iter().flat_map(PatchOp::touched_paths).cloned().collect()
}

/// True when any operation of the list conflicts with the read.
pub fn patches_conflict_with_read(patches: &[PatchOp], path: &[SmolStr], non_recursive: bool) -> bool {
    patches
        .iter()
        .any(|patch| patch.conflicts_with_read(path, non_recursive))
}
