//! Step 12 of admission (ENG-502…531): every declaration and every entry of a commit is judged against its stream as it
//! was before the commit.

use memory_wire::commit_meta::CommitClass;
use memory_wire::ids::EntityId;
use memory_wire::message::{EventAppendDecl, Operation};
use memory_wire::patch::PatchAction;
use memory_wire::pointer::{DocPath, encode_pointer};
use memory_wire::scope_key::Scope;
use memory_wire::stream_entry::{PROCESSING_FIELDS, SERVER_SESSION, StreamLink};
use memory_wire::value::{Array, Object, Value};
use memory_wire::well_known::is_stream_sidecar;

use super::stamp::{Stamp, Stamps};
use super::{above, event_id, stored_entries, stored_watermark};
use crate::admission::Admission;
use crate::error::EngineError;
use crate::refusal::Refusal;

/// Where entries live in a sidecar.
const ENTRIES_PATH: [&str; 2] = ["value", "entries"];

/// Step 12: judges every declaration and every entry of a commit (ENG-502…529).
pub(crate) fn admit_appends(admission: &Admission<'_, '_>) -> Result<Stamps, EngineError> {
    let commit = admission.apply.commit;
    let authored = admission.apply.class == CommitClass::Authored;
    if !admission.engine.options().serving {
        if !commit.event_appends.is_empty() {
            return Err(Refusal::AppendsWhileOff.into());
        }
        let sidecar = |operation: &Operation| {
            operation
                .target()
                .map(|(id, _)| id)
                .filter(|id| is_stream_sidecar(id))
                .cloned()
        };
        return match commit.operations.iter().find_map(sidecar) {
            Some(id) if authored => Err(Refusal::SidecarWhileOff { id }.into()),
            Some(_) | None => Ok(Stamps::default()),
        };
    }
    if authored {
        for operation in &commit.operations {
            refuse_non_array_entries(operation)?;
        }
    }
    let mut declarations = Declarations::new(&commit.event_appends)?;
    let mut stamps = Stamps::default();
    for (index, operation) in commit.operations.iter().enumerate() {
        let Some((id, scope)) = operation.target().filter(|(id, _)| is_stream_sidecar(id)) else {
            continue;
        };
        let Some(instance) = admission.target(index, operation)? else {
            continue;
        };
        let stored = admission.engine.current(&instance, admission.branch())?;
        let stream = Stream {
            id,
            scope,
            stored: stored.as_ref(),
        };
        let located = if authored {
            stream.authored_entries(operation)?
        } else {
            stream.served_entries(operation)
        };
        for Located { patch, entry, value } in located {
            if let Verdict::Append { fired_at } = stream.judge(admission, value, &mut declarations)? {
                stamps.add(
                    index,
                    Stamp {
                        patch,
                        entry,
                        fired_at,
                    },
                );
            }
        }
    }
    declarations.finish()?;
    Ok(stamps)
}

/// ENG-503: a log that is no array would wedge the pending scan for ever.
fn refuse_non_array_entries(operation: &Operation) -> Result<(), EngineError> {
    let Some((id, _)) = operation.target().filter(|(id, _)| is_stream_sidecar(id)) else {
        return Ok(());
    };
    let malformed = match operation {
        Operation::Set { value, .. } => value
            .member("value")
            .and_then(|v| v.member("entries"))
            .is_some_and(|entries| entries.as_array().is_none()),
        Operation::Patch { patches, .. } => patches.iter().any(|patch| match patch.action() {
            PatchAction::Add { path, value } | PatchAction::Replace { path, value } => {
                is_entries(path) && value.as_array().is_none()
            }
            // An append whose `values` is no array was refused when the commit was parsed.
            PatchAction::Append { .. }
            | PatchAction::AddUnique { .. }
            | PatchAction::Remove { .. }
            | PatchAction::Move { .. }
            | PatchAction::Splice { .. }
            | PatchAction::RemoveByValue { .. }
            | PatchAction::Increment { .. } => false,
        }),
        Operation::Delete { .. } | Operation::Sqlite { .. } => false,
    };
    if malformed {
        Err(Refusal::EntriesNotArray { id: id.clone() }.into())
    } else {
        Ok(())
    }
}

fn is_entries(path: &DocPath) -> bool {
    path.iter().map(|segment| segment.as_str()).eq(ENTRIES_PATH)
}

/// The declarations of a commit, each to be consumed by one entry (ENG-510, 513).
struct Declarations<'c>(Vec<(&'c EventAppendDecl, bool)>);

impl<'c> Declarations<'c> {
    fn new(declared: &'c [EventAppendDecl]) -> Result<Self, EngineError> {
        let mut seen = rustc_hash::FxHashSet::default();
        for declaration in declared {
            if !is_stream_sidecar(&declaration.id) {
                return Err(Refusal::DeclarationOnOrdinaryDoc {
                    id: declaration.id.clone(),
                }
                .into());
            }
            if !seen.insert(declaration) {
                return Err(Refusal::DuplicateDeclaration {
                    event: declaration.event_id.to_string(),
                }
                .into());
            }
        }
        Ok(Declarations(
            declared.iter().map(|declaration| (declaration, false)).collect(),
        ))
    }

    fn consume(&mut self, id: &EntityId, scope: Scope, event: &str) -> bool {
        let matching = self.0.iter_mut().find(|(declaration, consumed)| {
            !*consumed && declaration.id == *id && declaration.scope == scope && declaration.event_id == event
        });
        matching.map(|(_, consumed)| *consumed = true).is_some()
    }

    fn finish(self) -> Result<(), EngineError> {
        let left: Vec<&str> = self
            .0
            .iter()
            .filter(|(_, consumed)| !consumed)
            .map(|(declaration, _)| declaration.event_id.as_str())
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(Refusal::UnmatchedDeclarations {
                events: left.join(", "),
            }
            .into())
        }
    }
}

/// One sidecar instance as an operation finds it: as it was before the commit.
struct Stream<'s> {
    id: &'s EntityId,
    scope: Scope,
    stored: Option<&'s Value>,
}

/// An appended entry and where its operation holds it.
struct Located<'o> {
    patch: Option<usize>,
    entry: usize,
    value: &'o Value,
}

/// What became of an entry.
enum Verdict {
    /// It is new; stamp it, with this actor if any.
    Append { fired_at: Option<Value> },
    /// A derived write repeats a stored entry; leave it as it is (ENG-512.2).
    Rewrite,
}

impl<'s> Stream<'s> {
    /// The entries of an authored operation; anything that is not a plain append is refused (ENG-511).
    fn authored_entries<'o>(&self, operation: &'o Operation) -> Result<Vec<Located<'o>>, EngineError> {
        let id = || self.id.clone();
        match operation {
            Operation::Delete { .. } => Err(Refusal::SidecarDelete { id: id() }.into()),
            Operation::Set { value, .. } => {
                if self.stored.is_some() {
                    return Err(Refusal::SidecarSet { id: id() }.into());
                }
                let value_field = value.member("value").and_then(Value::as_object);
                let others: Vec<String> = value_field
                    .into_iter()
                    .flat_map(Object::iter)
                    .filter(|(key, _)| **key != "entries")
                    .map(|(key, _)| key.to_string())
                    .collect();
                if !others.is_empty() {
                    return Err(Refusal::SidecarFields {
                        fields: others.join(", "),
                    }
                    .into());
                }
                Ok(entries_of_set(value))
            }
            Operation::Patch { patches, .. } => {
                let mut located = Vec::new();
                for (index, patch) in patches.iter().enumerate() {
                    match patch.action() {
                        PatchAction::Append { path, values, .. }
                        | PatchAction::AddUnique { path, values, .. }
                            if is_entries(path) =>
                        {
                            located.extend(entries_of_patch(index, values));
                        }
                        PatchAction::Add {
                            path,
                            value: Value::Array(entries),
                        }
                        | PatchAction::Replace {
                            path,
                            value: Value::Array(entries),
                        } if is_entries(path) => {
                            if self.entries().next().is_some() {
                                return Err(Refusal::SidecarWholeArray { id: id() }.into());
                            }
                            located.extend(entries_of_array(Some(index), entries));
                        }
                        PatchAction::Append { .. }
                        | PatchAction::AddUnique { .. }
                        | PatchAction::Add { .. }
                        | PatchAction::Replace { .. }
                        | PatchAction::Remove { .. }
                        | PatchAction::Move { .. }
                        | PatchAction::Splice { .. }
                        | PatchAction::RemoveByValue { .. }
                        | PatchAction::Increment { .. } => {
                            let path = encode_pointer(patch.path());
                            return Err(Refusal::SidecarWrite { id: id(), path }.into());
                        }
                    }
                }
                Ok(located)
            }
            Operation::Sqlite { .. } => Ok(Vec::new()),
        }
    }

    /// The entries of a derived or system operation: the same shapes; everything else passes.
    fn served_entries<'o>(&self, operation: &'o Operation) -> Vec<Located<'o>> {
        match operation {
            Operation::Set { value, .. } => entries_of_set(value),
            Operation::Patch { patches, .. } => {
                let mut located = Vec::new();
                for (index, patch) in patches.iter().enumerate() {
                    match patch.action() {
                        PatchAction::Append { path, values, .. }
                        | PatchAction::AddUnique { path, values, .. }
                            if is_entries(path) =>
                        {
                            located.extend(entries_of_patch(index, values));
                        }
                        PatchAction::Add {
                            path,
                            value: Value::Array(entries),
                        }
                        | PatchAction::Replace {
                            path,
                            value: Value::Array(entries),
                        } if is_entries(path) => {
                            located.extend(entries_of_array(Some(index), entries));
                        }
                        _ => {}
                    }
                }
                located
            }
            Operation::Delete { .. } | Operation::Sqlite { .. } => Vec::new(),
        }
    }

    fn value(&self) -> Option<&'s Value> {
        self.stored.and_then(|document| document.member("value"))
    }

    fn entries(&self) -> impl Iterator<Item = &'s Value> + use<'s> {
        stored_entries(self.value())
    }

    /// ENG-512, in its order.
    fn judge(
        &self,
        admission: &Admission<'_, '_>,
        value: &Value,
        declarations: &mut Declarations<'_>,
    ) -> Result<Verdict, EngineError> {
        let Some(entry) = value.as_object() else {
            return Err(Refusal::NonEntry { id: self.id.clone() }.into());
        };
        let Some(event) = value
            .member("eventId")
            .and_then(Value::as_str)
            .filter(|event| !event.is_empty())
        else {
            return Err(Refusal::EntryWithoutEventId { id: self.id.clone() }.into());
        };
        let event = event.to_owned();
        let derived = admission.apply.class == CommitClass::Derived;
        if derived && let Some(seq) = value.member("seq") {
            let same = |stored: &Value| {
                event_id(stored) == Some(event.as_str())
                    && stored.member("seq").and_then(Value::as_f64) == seq.as_f64()
                    && seq.as_f64().is_some()
            };
            if self.entries().any(same) {
                return Ok(Verdict::Rewrite);
            }
            return Err(Refusal::RewriteUnknown {
                event,
                seq: spelled(seq),
            }
            .into());
        }
        if !declarations.consume(self.id, self.scope, &event) {
            return Err(Refusal::Undeclared {
                event,
                id: self.id.clone(),
            }
            .into());
        }
        if value.member("seq").is_some() {
            return Err(Refusal::EntrySeq { event }.into());
        }
        if !derived
            && PROCESSING_FIELDS
                .iter()
                .any(|field| value.member(field).is_some())
        {
            return Err(Refusal::EntryOutcome { event }.into());
        }
        self.check_link(&event, entry)?;
        if let Some(keys) = value.member("runtimeInjectedEventKeys") {
            let strings = keys.as_array().is_some_and(|keys| {
                keys.elements().count() == keys.len()
                    && keys.elements().all(|(_, key)| matches!(key, Value::String(_)))
            });
            if !strings {
                return Err(Refusal::EntryInjectedKeys { event }.into());
            }
        }
        if value
            .member("rendererTrusted")
            .is_some_and(|trusted| trusted.as_bool() != Some(true))
        {
            return Err(Refusal::EntryRendererTrusted { event }.into());
        }
        let fired_at = fired_at(admission, &event, value.member("firedAt"))?;
        if self.holds(&event) {
            return Err(EngineError::EventAppendDuplicate { event_id: event });
        }
        Ok(Verdict::Append { fired_at })
    }

    /// ENG-512.6: an entry into a fresh sidecar must not name another stream and so evade its dedupe.
    fn check_link(&self, event: &str, entry: &Object) -> Result<(), EngineError> {
        let link = entry.get("stream").filter(|link| {
            link.member("id").and_then(Value::as_str).is_some()
                && link.member("path").is_some_and(|p| p.as_array().is_some())
        });
        let Some(link) = link else {
            return Err(Refusal::EntryWithoutLink {
                event: event.to_owned(),
            }
            .into());
        };
        if StreamLink::from_value(link).is_some_and(|link| link.sidecar_id() == *self.id) {
            return Ok(());
        }
        Err(Refusal::EntryForeignLink {
            event: event.to_owned(),
            id: self.id.clone(),
        }
        .into())
    }

    /// ENG-529: whether the event is stored above the dedupe horizon.
    fn holds(&self, event: &str) -> bool {
        let watermark = stored_watermark(self.value());
        self.entries()
            .filter(|stored| event_id(stored) == Some(event))
            .any(|stored| above(stored, watermark))
    }
}

/// The actor to stamp (ENG-520…522).
fn fired_at(
    admission: &Admission<'_, '_>,
    event: &str,
    supplied: Option<&Value>,
) -> Result<Option<Value>, EngineError> {
    let event = || event.to_owned();
    let client_seq = supplied.and_then(|fired_at| fired_at.member("clientSeq"));
    if admission.apply.class == CommitClass::Derived {
        let session = supplied
            .and_then(|fired_at| fired_at.member("session"))
            .and_then(Value::as_str);
        return match (session.filter(|session| !session.is_empty()), client_seq) {
            (None, _) => Err(Refusal::DerivedWithoutFiredAt { event: event() }.into()),
            (Some(_), Some(_)) => Err(Refusal::DerivedClientSeq { event: event() }.into()),
            (Some(_), None) => Ok(None),
        };
    }
    let (user, session, client_seq, disagrees) = match admission.apply.delegated {
        Some(delegated) => {
            if client_seq.is_some() {
                return Err(Refusal::DelegatedClientSeq { event: event() }.into());
            }
            let user = delegated
                .acting_principal
                .as_ref()
                .filter(|user| !user.is_empty());
            let session = delegated
                .acting_session
                .as_ref()
                .map(|s| s.as_str())
                .filter(|s| !s.is_empty());
            let refusal = Refusal::FiredAtCarried { event: event() };
            (user, session.unwrap_or(SERVER_SESSION), None, refusal)
        }
        None => {
            let user = admission.envelope.principal.as_ref();
            if user.is_none() {
                return Err(Refusal::AppendWithoutPrincipal { event: event() }.into());
            }
            let refusal = Refusal::FiredAtEnvelope { event: event() };
            (user, admission.apply.session_id.as_str(), client_seq, refusal)
        }
    };
    if let Some(supplied) = supplied {
        let agrees = |field: &str, expected: Option<&str>| match supplied.member(field) {
            None => true,
            Some(claimed) => claimed.as_str().is_some() && claimed.as_str() == expected,
        };
        let user = user.map(|user| user.as_str());
        if supplied.as_object().is_none() || !agrees("user", user) || !agrees("session", Some(session)) {
            return Err(disagrees.into());
        }
    }
    let mut stamp = Object::new();
    if let Some(user) = user {
        stamp.insert("user", user);
    }
    stamp.insert("session", session);
    if let Some(client_seq) = client_seq {
        stamp.insert("clientSeq", client_seq.clone());
    }
    Ok(Some(stamp.into()))
}

fn entries_of_set(document: &Value) -> Vec<Located<'_>> {
    let entries = document
        .member("value")
        .and_then(|value| value.member("entries"))
        .and_then(Value::as_array);
    entries
        .map(|entries| entries_of_array(None, entries).collect())
        .unwrap_or_default()
}

/// A hole is no entry; it is judged as `undefined`, which is none either.
fn entries_of_array(patch: Option<usize>, entries: &Array) -> impl Iterator<Item = Located<'_>> {
    const HOLE: &Value = &Value::Undefined;
    (0..entries.len()).map(move |entry| Located {
        patch,
        entry,
        value: entries.get(entry).unwrap_or(HOLE),
    })
}

fn entries_of_patch(patch: usize, values: &[Value]) -> impl Iterator<Item = Located<'_>> {
    values.iter().enumerate().map(move |(entry, value)| Located {
        patch: Some(patch),
        entry,
        value,
    })
}

/// A value as it is read in a sentence.
fn spelled(value: &Value) -> String {
    match value {
        Value::String(text) => text.to_string(),
        other => memory_wire::codec::encode(other)
            .ok()
            .and_then(|text| text.strip_prefix(memory_wire::codec::PREFIX).map(str::to_owned))
            .unwrap_or_default(),
    }
}
