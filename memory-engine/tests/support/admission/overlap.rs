//! When a patch conflicts with a read, in the words of ENG-342…344 and INV-2.

use super::model::{Revision, fold};
use super::tree::{Edit, Patch};

fn touched(patch: &Patch) -> Vec<Vec<String>> {
    let mut touched = vec![patch.path.clone()];
    if let Edit::MoveFrom(from) = &patch.edit {
        touched.push(from.clone());
    }
    touched
}

/// ENG-342…344 in their own words.
pub(super) fn overlaps(patch: &Patch, path: &[String], shape: bool) -> bool {
    let touched = touched(patch);
    if !shape {
        return touched
            .iter()
            .any(|touched| touched.starts_with(path) || path.starts_with(touched));
    }
    let changes_keys = match &patch.edit {
        Edit::Add(_) | Edit::Remove | Edit::MoveFrom(_) => true,
        Edit::Append { creates_key, .. }
        | Edit::AddUnique { creates_key, .. }
        | Edit::Increment { creates_key, .. } => *creates_key,
        Edit::Replace(_) | Edit::Splice { .. } | Edit::RemoveByValue(_) => false,
    };
    touched.iter().any(|touched| {
        let parent = &touched[..touched.len().saturating_sub(1)];
        path.starts_with(touched) || (changes_keys && path.starts_with(parent))
    })
}

/// Whether a patch makes a new member of what a shape read looked at, however far below that it writes (INV-2): the
/// member on the way to its target was not there before the revision.
pub(super) fn creates_below(before: &[&Revision], patch: &Patch, path: &[String]) -> bool {
    let creates = match patch.edit {
        Edit::Add(_)
        | Edit::Replace(_)
        | Edit::MoveFrom(_)
        | Edit::Append { .. }
        | Edit::AddUnique { .. }
        | Edit::Increment { .. } => true,
        Edit::Remove | Edit::Splice { .. } | Edit::RemoveByValue(_) => false,
    };
    if !creates || patch.path.len() <= path.len() || !patch.path.starts_with(path) {
        return false;
    }
    let member = &patch.path[..=path.len()];
    let state = fold(before).unwrap_or_default();
    state.as_ref().and_then(|state| state.at(member)).is_none()
}
