//! INV-1 on the model's history: for every accepted read, what was there when the commit landed is what the reader saw.

use super::model::{Change, Instance, Model, Revision, Submission, fold};
use super::tree::{Edit, Tree, strings};

/// What a shape read sees: the kind of thing, and a container's keys or length.
fn shape(tree: &Tree) -> Tree {
    match tree {
        Tree::Map(map) => Tree::List(map.keys().map(|key| Tree::Text(key.clone())).collect()),
        Tree::List(list) => Tree::Number(list.len() as f64),
        other => other.clone(),
    }
}

fn observe(document: Option<&Tree>, path: &[String], shape_only: bool) -> Option<Tree> {
    let found = document?.at(path)?;
    Some(if shape_only { shape(found) } else { found.clone() })
}

/// Elements of lists move when others come and go, which does not disturb who reads them by index (ENG-345).
fn through_a_list(path: &[String]) -> bool {
    path.iter()
        .any(|segment| segment == "-" || segment.chars().all(|c| c.is_ascii_digit()))
}

pub(crate) fn check(model: &Model, submission: &Submission, landed: u64) {
    let Submission { who, commit, .. } = submission;
    for read in &commit.reads.confirmed {
        let branch = read.branch.as_ref().unwrap_or(&commit.branch).as_str();
        let Some(owner) = who.owner(read.scope) else {
            continue;
        };
        let instance: Instance = (read.id.to_string(), owner);
        let path = strings(&read.path);
        // What is inherited is not protected (ENG-331), and a read ahead of the log claims nothing.
        let written_here = model
            .on(branch, &instance)
            .any(|revision| revision.seq <= read.seq.0);
        if read.seq.0 >= landed || !written_here || through_a_list(&path) {
            continue;
        }
        let at = |seq| {
            observe(
                model.state(branch, &instance, seq).flatten().as_ref(),
                &path,
                read.non_recursive,
            )
        };
        assert_eq!(
            at(read.seq.0),
            at(landed - 1),
            "{read:?} of the commit at {landed}"
        );
    }
    for read in &commit.reads.pending {
        // Without `basisSeq` a pending read claims less (ENG-336), and a child branch inherits unprotected documents.
        let (Some(basis), true, Some(owner)) =
            (read.basis_seq, commit.branch.is_empty(), who.owner(read.scope))
        else {
            continue;
        };
        let instance: Instance = (read.id.to_string(), owner);
        let path = strings(&read.path);
        let layers: Vec<u64> = read
            .local_seqs
            .iter()
            .filter_map(|layer| model.seq_of(who, layer.0))
            .collect();
        let seen = |revision: &&Revision| revision.seq <= basis.0 || layers.contains(&revision.seq);
        let view: Vec<&Revision> = model
            .on("", &instance)
            .filter(|r| r.seq < landed)
            .filter(seen)
            .collect();
        // A `move` carries what was at its source, which the read does not name.
        if through_a_list(&path) || view.iter().any(|r| r.seq > basis.0 && moves(&r.change)) {
            continue;
        }
        let Ok(view) = fold(&view) else { continue };
        let landed_on = model.state("", &instance, landed - 1).flatten();
        assert_eq!(
            observe(view.as_ref(), &path, read.non_recursive),
            observe(landed_on.as_ref(), &path, read.non_recursive),
            "{read:?} of the commit at {landed}"
        );
    }
}

fn moves(change: &Change) -> bool {
    match change {
        Change::Patch(patches) => patches
            .iter()
            .any(|patch| matches!(patch.edit, Edit::MoveFrom(_))),
        Change::Set(_) | Change::Delete => false,
    }
}
