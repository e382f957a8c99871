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

/// How many reads had something to say.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Judged {
    pub(crate) confirmed: u64,
    pub(crate) pending: u64,
}

/// Judges the reads of a commit that was accepted as `landed`: what it saw on its branch is what is written there. What is
/// inherited from the parent is not protected (ENG-331) and not looked at.
pub(crate) fn check(model: &Model, submission: &Submission, landed: u64) -> Judged {
    let Submission { who, commit, .. } = submission;
    let mut judged = Judged::default();
    for read in &commit.reads.confirmed {
        let branch = read.branch.as_ref().unwrap_or(&commit.branch).as_str();
        let Some(owner) = who.owner(read.scope) else {
            continue;
        };
        let instance: Instance = (read.id.to_string(), owner);
        let path = strings(&read.path);
        // A read ahead of the log claims nothing.
        if read.seq.0 >= landed || through_a_list(&path) {
            continue;
        }
        let at = |seq| {
            let until: Vec<&Revision> = model.on(branch, &instance).filter(|r| r.seq <= seq).collect();
            let document = fold(&until).expect("an accepted history can be replayed");
            observe(document.as_ref(), &path, read.non_recursive)
        };
        assert_eq!(
            at(read.seq.0),
            at(landed - 1),
            "{read:?} of the commit at {landed}"
        );
        judged.confirmed += 1;
    }
    for read in &commit.reads.pending {
        // Without `basisSeq` a pending read claims less (ENG-336).
        let (Some(basis), Some(owner)) = (read.basis_seq, who.owner(read.scope)) else {
            continue;
        };
        let instance: Instance = (read.id.to_string(), owner);
        let path = strings(&read.path);
        let layers: Vec<u64> = read
            .local_seqs
            .iter()
            .filter_map(|layer| model.seq_of(who, layer.0))
            .collect();
        let there: Vec<&Revision> = model
            .on(commit.branch.as_str(), &instance)
            .filter(|r| r.seq < landed)
            .collect();
        let seen = |revision: &&Revision| revision.seq <= basis.0 || layers.contains(&revision.seq);
        let view: Vec<&Revision> = there.iter().copied().filter(seen).collect();
        // A `move` carries what was at its source, which the read does not name.
        if through_a_list(&path) || view.iter().any(|r| r.seq > basis.0 && moves(&r.change)) {
            continue;
        }
        // A patch whose base is not among what was seen has nothing to say about it.
        let Ok(view) = fold(&view) else { continue };
        let there = fold(&there).expect("an accepted history can be replayed");
        assert_eq!(
            observe(view.as_ref(), &path, read.non_recursive),
            observe(there.as_ref(), &path, read.non_recursive),
            "{read:?} of the commit at {landed}"
        );
        judged.pending += 1;
    }
    judged
}

fn moves(change: &Change) -> bool {
    match change {
        Change::Patch(patches) => patches
            .iter()
            .any(|patch| matches!(patch.edit, Edit::MoveFrom(_))),
        Change::Set(_) | Change::Delete => false,
    }
}
