//! The model's event appends (ENG §5): which entries a commit appends, whether it may, what they are stamped with, and
//! how far a stream's watermark reaches.

use std::collections::BTreeMap;

use memory_wire::Scope;
use memory_wire::message::{ClientCommit, Operation};

use super::model::{Instance, Submitter, Verdict};
use super::schedule::STREAMS;
use super::tree::{Edit, Patch, Tree};

const PROCESSING: [&str; 6] = [
    "consequenced",
    "error",
    "status",
    "reason",
    "deliveryFailures",
    "deliveryFailuresDropped",
];

pub(crate) fn is_sidecar(id: &str) -> bool {
    id.starts_with("of:stream-events:")
}

/// The new entries of a commit: where each stands, and the actor it is stamped with if it brought none.
#[derive(Default)]
pub(crate) struct Appends(Vec<(Place, Option<Tree>)>);

/// Operation, patch within it, entry within that.
#[derive(Clone, Copy, PartialEq)]
struct Place {
    operation: usize,
    patch: Option<usize>,
    entry: usize,
}

impl Appends {
    fn stamp(&self, operation: usize, patch: Option<usize>, entries: &mut [Tree], seq: u64) {
        for (place, fired_at) in &self.0 {
            if place.operation != operation || place.patch != patch {
                continue;
            }
            if let Tree::Map(entry) = &mut entries[place.entry] {
                entry.insert("seq".into(), Tree::Number(seq as f64));
                if let Some(fired_at) = fired_at {
                    entry.insert("firedAt".into(), fired_at.clone());
                }
            }
        }
    }

    pub(crate) fn stamped_document(&self, operation: usize, mut document: Tree, seq: u64) -> Tree {
        if let Tree::Map(root) = &mut document
            && let Some(Tree::Map(value)) = root.get_mut("value")
            && let Some(Tree::List(entries)) = value.get_mut("entries")
        {
            self.stamp(operation, None, entries, seq);
        }
        document
    }

    pub(crate) fn stamped_patches(&self, operation: usize, mut patches: Vec<Patch>, seq: u64) -> Vec<Patch> {
        for (index, patch) in patches.iter_mut().enumerate() {
            match &mut patch.edit {
                Edit::Append { values, .. } | Edit::AddUnique { values, .. } => {
                    self.stamp(operation, Some(index), values, seq);
                }
                Edit::Add(Tree::List(entries)) | Edit::Replace(Tree::List(entries)) => {
                    self.stamp(operation, Some(index), entries, seq);
                }
                _ => {}
            }
        }
        patches
    }
}

/// Judges the declarations and entries of a commit, each stream as it was before (ENG-503…529).
pub(crate) fn admit(
    who: &Submitter,
    commit: &ClientCommit,
    stored: &dyn Fn(usize) -> Result<(Instance, Option<Tree>), Verdict>,
) -> Result<Appends, Verdict> {
    let sidecar = |operation: &Operation| operation.target().is_some_and(|(id, _)| is_sidecar(id.as_str()));
    if !who.derived
        && commit
            .operations
            .iter()
            .any(|operation| sidecar(operation) && breaks_the_log(operation))
    {
        return Err(Verdict::Refused("EntriesNotArray"));
    }
    let mut declared: Vec<(String, Scope, String)> = Vec::new();
    for declaration in &commit.event_appends {
        if !is_sidecar(declaration.id.as_str()) {
            return Err(Verdict::Refused("DeclarationOnOrdinaryDoc"));
        }
        let one = (
            declaration.id.to_string(),
            declaration.scope,
            declaration.event_id.to_string(),
        );
        if declared.contains(&one) {
            return Err(Verdict::Refused("DuplicateDeclaration"));
        }
        declared.push(one);
    }
    let mut appends = Appends::default();
    for (index, operation) in commit.operations.iter().enumerate() {
        if !sidecar(operation) {
            continue;
        }
        let ((id, _), document) = stored(index)?;
        let (_, scope) = operation.target().expect("a sidecar is a target");
        let log = Log::of(document.as_ref());
        for (patch, entry, tree) in located(who, operation, document.as_ref(), &log)? {
            if let Some(fired_at) = judge(who, &id, scope, &tree, &log, &mut declared)? {
                appends.0.push((
                    Place {
                        operation: index,
                        patch,
                        entry,
                    },
                    fired_at,
                ));
            }
        }
    }
    if declared.is_empty() {
        Ok(appends)
    } else {
        Err(Verdict::Refused("UnmatchedDeclarations"))
    }
}

/// What a stream holds.
struct Log {
    entries: Vec<Tree>,
    watermark: f64,
}

impl Log {
    fn of(document: Option<&Tree>) -> Log {
        let value = document.and_then(|document| document.key("value"));
        Log {
            entries: value
                .and_then(|value| value.key("entries")?.list())
                .unwrap_or_default()
                .iter()
                .filter(|entry| **entry != Tree::Hole)
                .cloned()
                .collect(),
            watermark: value
                .and_then(|value| value.key("eventWatermark")?.number())
                .unwrap_or(0.0),
        }
    }

    /// ENG-529.
    fn holds_above_the_horizon(&self, event: &str) -> bool {
        self.entries
            .iter()
            .filter(|entry| event_of(entry) == Some(event))
            .any(|entry| match entry.key("seq").and_then(Tree::number) {
                Some(seq) => seq > self.watermark,
                None => !done(entry),
            })
    }
}

fn event_of(entry: &Tree) -> Option<&str> {
    entry.key("eventId")?.text()
}

fn done(entry: &Tree) -> bool {
    entry.key("consequenced").is_some_and(Tree::is_true)
}

fn at_entries(path: &[String]) -> bool {
    path == ["value", "entries"]
}

fn breaks_the_log(operation: &Operation) -> bool {
    match operation {
        Operation::Set { value, .. } => {
            let document = Tree::of(value);
            document
                .key("value")
                .and_then(|v| v.key("entries"))
                .is_some_and(|entries| entries.list().is_none())
        }
        Operation::Patch { patches, .. } => patches.iter().map(Patch::of).any(|patch| match &patch.edit {
            Edit::Add(value) | Edit::Replace(value) => at_entries(&patch.path) && value.list().is_none(),
            _ => false,
        }),
        Operation::Delete { .. } | Operation::Sqlite { .. } => false,
    }
}

/// The entries an operation appends (ENG-511): patch, place, entry.
type Located = Vec<(Option<usize>, usize, Tree)>;

fn located(
    who: &Submitter,
    operation: &Operation,
    document: Option<&Tree>,
    log: &Log,
) -> Result<Located, Verdict> {
    let number = |patch, entries: &[Tree]| {
        entries
            .iter()
            .enumerate()
            .map(|(at, entry)| (patch, at, entry.clone()))
            .collect::<Located>()
    };
    match operation {
        Operation::Delete { .. } if !who.derived => Err(Verdict::Refused("SidecarDelete")),
        Operation::Delete { .. } | Operation::Sqlite { .. } => Ok(Vec::new()),
        Operation::Set { value, .. } => {
            let new = Tree::of(value);
            if !who.derived && document.is_some() {
                return Err(Verdict::Refused("SidecarSet"));
            }
            if let (false, Some(Tree::Map(fields))) = (who.derived, new.key("value"))
                && fields.keys().any(|field| field != "entries")
            {
                return Err(Verdict::Refused("SidecarFields"));
            }
            let entries = new.key("value").and_then(|value| value.key("entries")?.list());
            Ok(number(None, entries.unwrap_or_default()))
        }
        Operation::Patch { patches, .. } => {
            let mut found = Vec::new();
            for (index, patch) in patches.iter().map(Patch::of).enumerate() {
                match &patch.edit {
                    Edit::Append { values, .. } | Edit::AddUnique { values, .. }
                        if at_entries(&patch.path) =>
                    {
                        found.extend(number(Some(index), values));
                    }
                    Edit::Add(Tree::List(entries)) | Edit::Replace(Tree::List(entries))
                        if at_entries(&patch.path) =>
                    {
                        if !who.derived && !log.entries.is_empty() {
                            return Err(Verdict::Refused("SidecarWholeArray"));
                        }
                        found.extend(number(Some(index), entries));
                    }
                    _ if who.derived => {}
                    _ => return Err(Verdict::Refused("SidecarWrite")),
                }
            }
            Ok(found)
        }
    }
}

/// ENG-512 in its order. `None`: a rewrite of what is stored; `Some`: an append, with its actor to stamp.
fn judge(
    who: &Submitter,
    sidecar: &str,
    scope: Scope,
    entry: &Tree,
    log: &Log,
    declared: &mut Vec<(String, Scope, String)>,
) -> Result<Option<Option<Tree>>, Verdict> {
    let refused = |reason| Err(Verdict::Refused(reason));
    if !matches!(entry, Tree::Map(_)) {
        return refused("NonEntry");
    }
    let Some(event) = event_of(entry).filter(|event| !event.is_empty()) else {
        return refused("EntryWithoutEventId");
    };
    if let (true, Some(seq)) = (who.derived, entry.key("seq")) {
        let same = |stored: &Tree| event_of(stored) == Some(event) && stored.key("seq") == Some(seq);
        let known = seq.number().is_some() && log.entries.iter().any(same);
        return if known {
            Ok(None)
        } else {
            refused("RewriteUnknown")
        };
    }
    let declaration = (sidecar.to_owned(), scope, event.to_owned());
    let Some(at) = declared.iter().position(|one| *one == declaration) else {
        return refused("Undeclared");
    };
    declared.remove(at);
    if entry.key("seq").is_some() {
        return refused("EntrySeq");
    }
    if !who.derived && PROCESSING.iter().any(|field| entry.key(field).is_some()) {
        return refused("EntryOutcome");
    }
    let link = entry.key("stream");
    let (Some(id), Some(path)) = (
        link.and_then(|link| link.key("id")?.text()),
        link.and_then(|link| link.key("path")?.list()),
    ) else {
        return refused("EntryWithoutLink");
    };
    let named = STREAMS.iter().find(|stream| {
        stream.id == id
            && path == stream.path.map(|segment| Tree::Text(segment.into()))
            && sidecar == stream.sidecar()
    });
    if named.is_none() {
        return refused("EntryForeignLink");
    }
    let fired_at = fired_at(who, entry.key("firedAt"))?;
    if log.holds_above_the_horizon(event) {
        return Err(Verdict::DuplicateEvent(event.to_owned()));
    }
    Ok(Some(fired_at))
}

/// ENG-520, 522.
fn fired_at(who: &Submitter, supplied: Option<&Tree>) -> Result<Option<Tree>, Verdict> {
    let client_seq = supplied.and_then(|fired_at| fired_at.key("clientSeq"));
    if who.derived {
        let session = supplied
            .and_then(|fired_at| fired_at.key("session")?.text())
            .filter(|s| !s.is_empty());
        return match (session, client_seq) {
            (None, _) => Err(Verdict::Refused("DerivedWithoutFiredAt")),
            (Some(_), Some(_)) => Err(Verdict::Refused("DerivedClientSeq")),
            (Some(_), None) => Ok(None),
        };
    }
    let Some(principal) = &who.principal else {
        return Err(Verdict::Refused("AppendWithoutPrincipal"));
    };
    let mut stamp = BTreeMap::from([
        ("user".to_owned(), Tree::Text(principal.clone())),
        ("session".to_owned(), Tree::Text(who.session.clone())),
    ]);
    if let Some(supplied) = supplied {
        let agrees = |field: &str| supplied.key(field).is_none_or(|claimed| *claimed == stamp[field]);
        if !matches!(supplied, Tree::Map(_)) || !agrees("user") || !agrees("session") {
            return Err(Verdict::Refused("FiredAtEnvelope"));
        }
    }
    if let Some(client_seq) = client_seq {
        stamp.insert("clientSeq".into(), client_seq.clone());
    }
    Ok(Some(Tree::Map(stamp)))
}

/// ENG-540: what the stored watermark has to become, if anything.
pub(crate) fn watermark_to_store(document: &Tree) -> Option<f64> {
    let value = document
        .key("value")
        .filter(|value| matches!(value, Tree::Map(_)))?;
    let log = Log::of(Some(document));
    let mut seqs: Vec<f64> = log
        .entries
        .iter()
        .filter_map(|entry| entry.key("seq")?.number())
        .collect();
    seqs.sort_by(f64::total_cmp);
    let mut reached = log.watermark;
    for seq in seqs.into_iter().filter(|seq| *seq > log.watermark) {
        let all_done = log
            .entries
            .iter()
            .filter(|e| e.key("seq").and_then(Tree::number) == Some(seq))
            .all(done);
        if !all_done {
            break;
        }
        reached = seq;
    }
    (value.key("eventWatermark").and_then(Tree::number) != Some(reached)).then_some(reached)
}
