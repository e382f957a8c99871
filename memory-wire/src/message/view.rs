//! Optional capabilities of a session: views and their plans (WIRE-775, SRV-1001…1006) and the read ceiling
//! (WIRE-776, SRV-321). A malformed view or ceiling makes its whole message unparseable, because dropping a bound
//! that is not understood would widen what is read.

use smol_str::SmolStr;

use super::Unparseable;
use super::field::{Parsed, each, integer, object, optional_each, optional_scope, scope, text, unparseable};
use super::query::{Root, Selector};
use crate::ids::EntityId;
use crate::pointer::{DocPath, path_from_value, path_to_value};
use crate::scope_key::Scope;
use crate::value::{Object, SlotRef, Value};

/// What happens when a read passes the ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExceed {
    /// The read fails.
    Fail,
    /// The document is left out.
    Skip,
}

/// A bound on the confidentiality a session may read (WIRE-776). Checked whole when parsed; kept as sent, since it
/// is signed and compared structurally.
#[derive(Clone, Debug)]
pub struct ReadCeiling {
    value: Value,
    on_exceed: Option<OnExceed>,
}

impl ReadCeiling {
    /// Reads and checks a ceiling.
    pub fn from_value(value: &Value) -> Result<ReadCeiling, Unparseable> {
        const FIELD: &str = "session.readCeiling";
        let Value::Object(ceiling) = value else {
            return unparseable(FIELD, "an object");
        };
        if !ceiling
            .iter()
            .all(|(key, _)| *key == "maxConfidentiality" || *key == "onExceed")
        {
            return unparseable(FIELD, "only maxConfidentiality and onExceed");
        }
        let Some(Value::Array(clauses)) = value.member("maxConfidentiality") else {
            return unparseable(FIELD, "an array maxConfidentiality");
        };
        let clauses = clauses.as_dense().unwrap_or(&[]);
        if clauses.is_empty() || !clauses.iter().all(is_clause) {
            return unparseable(FIELD, "a non-empty list of clauses");
        }
        let on_exceed = match value.member("onExceed") {
            None => None,
            Some(mode) => match mode.as_str() {
                Some("fail") => Some(OnExceed::Fail),
                Some("skip") => Some(OnExceed::Skip),
                Some(_) | None => return unparseable(FIELD, "onExceed \"fail\" or \"skip\""),
            },
        };
        Ok(ReadCeiling {
            value: value.clone(),
            on_exceed,
        })
    }

    /// The clauses: each an atom, or `{ anyOf: [atom, …] }`.
    pub fn max_confidentiality(&self) -> &[Value] {
        match self.value.member("maxConfidentiality") {
            Some(Value::Array(clauses)) => clauses.as_dense().unwrap_or(&[]),
            Some(_) | None => &[],
        }
    }

    /// What happens when a read passes the ceiling, if stated.
    pub fn on_exceed(&self) -> Option<OnExceed> {
        self.on_exceed
    }

    /// The ceiling as sent.
    pub fn to_value(&self) -> &Value {
        &self.value
    }
}

/// A clause is an atom or exactly `{ anyOf: [atom, …] }`.
fn is_clause(clause: &Value) -> bool {
    match clause.member("anyOf") {
        Some(Value::Array(atoms)) => {
            let one_key = clause.as_object().is_some_and(|object| object.len() == 1);
            one_key
                && atoms
                    .as_dense()
                    .is_some_and(|atoms| !atoms.is_empty() && atoms.iter().all(is_atom))
        }
        Some(_) => false,
        None => is_atom(clause),
    }
}

/// An atom is a non-empty string or a plain record that is not itself an or-clause.
fn is_atom(atom: &Value) -> bool {
    match atom {
        Value::String(text) => !text.is_empty(),
        Value::Object(record) => !record.contains_key("anyOf"),
        _ => false,
    }
}

/// What a view is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViewMode {
    /// Its roots are watched and count as demand.
    Render,
    /// Its plan is wanted, nothing is demanded.
    Speculate,
}

/// The query of a view: ordinary roots on the default branch.
#[derive(Clone, Debug)]
pub struct ViewQuery {
    /// Never with an `entity_scope_key`.
    pub roots: Vec<Root>,
}

/// A session's interest in a view (SRV-1001).
#[derive(Clone, Debug)]
pub struct ViewInterest {
    /// Unique within the session; non-empty.
    pub id: SmolStr,
    /// Grows with every change of the interest.
    pub revision: u64,
    /// What the view is for.
    pub mode: ViewMode,
    /// Version of the components that will render it.
    pub component_contract_version: String,
    /// What it reads.
    pub query: ViewQuery,
    source: Value,
}

impl ViewInterest {
    /// Reads and checks one view.
    pub fn from_value(value: &Value) -> Result<ViewInterest, Unparseable> {
        let id = text(value, "id")?;
        if id.is_empty() {
            return unparseable("views.id", "a non-empty string");
        }
        let query = Value::Object(object(value, "query")?.clone());
        if query.member("atSeq").is_some() || query.member("excludeSent").is_some() {
            return unparseable("views.query", "neither atSeq nor excludeSent");
        }
        if query
            .member("branch")
            .is_some_and(|branch| branch.as_str() != Some(""))
        {
            return unparseable("views.query.branch", "the default branch");
        }
        Ok(ViewInterest {
            id,
            revision: integer(value, "revision")?,
            mode: match text(value, "mode")?.as_str() {
                "render" => ViewMode::Render,
                "speculate" => ViewMode::Speculate,
                _ => return unparseable("views.mode", "\"render\" or \"speculate\""),
            },
            component_contract_version: text(value, "componentContractVersion")?.to_string(),
            query: ViewQuery {
                roots: each(&query, "roots", view_root)?,
            },
            source: value.clone(),
        })
    }

    /// A list of views whose ids are distinct.
    pub(super) fn distinct(views: Vec<ViewInterest>) -> Parsed<Vec<ViewInterest>> {
        let ids: std::collections::BTreeSet<&str> = views.iter().map(|view| view.id.as_str()).collect();
        if ids.len() < views.len() {
            return unparseable("views.id", "a unique id for each view");
        }
        Ok(views)
    }

    /// The interest as sent; two interests are the same when these are equal.
    pub fn to_value(&self) -> &Value {
        &self.source
    }
}

fn view_root(value: &Value) -> Parsed<Root> {
    if value.member("entityScopeKey").is_some() {
        return unparseable("views.query.roots", "no entityScopeKey");
    }
    let selector = Value::Object(object(value, "selector")?.clone());
    let Some(path) = selector.member("path").and_then(path_from_value) else {
        return unparseable("views.query.roots.selector.path", "an array of strings");
    };
    let schema = selector.member("schema").cloned();
    if !matches!(schema, None | Some(Value::Bool(_) | Value::Object(_))) {
        return unparseable("views.query.roots.selector.schema", "a boolean or an object");
    }
    Ok(Root::new(
        text(value, "id")?,
        optional_scope(value)?.unwrap_or_default(),
        Selector { path, schema },
    ))
}

/// Where a plan reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanAddress {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// Where in it.
    pub path: DocPath,
}

/// A document a plan reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanInput {
    /// The document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
}

/// A piece a plan involves.
#[derive(Clone, Debug)]
pub struct PlanPiece {
    /// The piece's document.
    pub id: EntityId,
    /// Its scope.
    pub scope: Scope,
    /// Which program it runs, if known.
    pub pattern_identity: Option<Value>,
}

/// What was found at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFingerprint {
    /// Where.
    pub address: PlanAddress,
    /// What, as an opaque text.
    pub fingerprint: String,
}

/// What a producer's last run stood on and made; the wire calls it `basis`, and it is no basis row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanFingerprints {
    /// What it read.
    pub reads: Vec<PlanFingerprint>,
    /// What it wrote.
    pub outputs: Vec<PlanFingerprint>,
}

/// An action that produces what a view shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanProducer {
    /// The action.
    pub id: SmolStr,
    /// Where it writes.
    pub writes: Vec<PlanAddress>,
    /// What its last run stood on, if known.
    pub fingerprints: Option<PlanFingerprints>,
}

/// Why a node of a plan failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The node.
    pub node_id: SmolStr,
    /// The piece it belongs to.
    pub piece_id: SmolStr,
    /// What happened.
    pub message: String,
    /// Where, if known.
    pub stack: Option<String>,
    /// The pattern, if known.
    pub pattern_id: Option<SmolStr>,
    /// The spell, if known.
    pub spell_id: Option<SmolStr>,
}

/// The plan of one view, carried by sync frames and applied after their documents (SRV-1006).
#[derive(Clone, Debug)]
pub struct ViewPlan {
    /// The view.
    pub id: SmolStr,
    /// The interest's revision it answers.
    pub revision: u64,
    /// Grows with every selection.
    pub generation: u64,
    /// Actions the client may run ahead.
    pub eligible_actions: Vec<SmolStr>,
    /// Pieces involved.
    pub pieces: Vec<PlanPiece>,
    /// What failed.
    pub errors: Vec<PlanError>,
    /// Documents read.
    pub inputs: Vec<PlanInput>,
    /// Actions that produce.
    pub producers: Vec<PlanProducer>,
}

fn address(value: &Value) -> Parsed<PlanAddress> {
    match value.member("path").and_then(path_from_value) {
        Some(path) => Ok(PlanAddress {
            id: text(value, "id")?.into(),
            scope: scope(value)?,
            path,
        }),
        None => unparseable("viewPlans.path", "an array of strings"),
    }
}

fn address_object(address: &PlanAddress) -> Object {
    let mut object = Object::new();
    object.insert("id", &address.id);
    object.insert("scope", address.scope.as_str());
    object.insert("path", path_to_value(&address.path));
    object
}

fn fingerprint(value: &Value) -> Parsed<PlanFingerprint> {
    Ok(PlanFingerprint {
        address: address(value)?,
        fingerprint: text(value, "fingerprint")?.to_string(),
    })
}

fn fingerprint_value(fingerprint: &PlanFingerprint) -> Value {
    let mut object = address_object(&fingerprint.address);
    object.insert("fingerprint", fingerprint.fingerprint.as_str());
    object.into()
}

fn values<T>(items: &[T], to_value: impl Fn(&T) -> Value) -> Vec<Value> {
    items.iter().map(to_value).collect()
}

impl PlanProducer {
    fn from_value(value: &Value) -> Parsed<PlanProducer> {
        let fingerprints = match value.member("basis") {
            None => None,
            Some(basis) => Some(PlanFingerprints {
                reads: each(basis, "reads", fingerprint)?,
                outputs: each(basis, "outputs", fingerprint)?,
            }),
        };
        Ok(PlanProducer {
            id: text(value, "id")?,
            writes: each(value, "writes", address)?,
            fingerprints,
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", self.id.as_str());
        object.insert(
            "writes",
            values(&self.writes, |write| address_object(write).into()),
        );
        if let Some(basis) = &self.fingerprints {
            let mut parts = Object::new();
            parts.insert("reads", values(&basis.reads, fingerprint_value));
            parts.insert("outputs", values(&basis.outputs, fingerprint_value));
            object.insert("basis", parts);
        }
        object.into()
    }
}

impl PlanError {
    fn from_value(value: &Value) -> Parsed<PlanError> {
        let optional = |key| value.member(key).and_then(Value::as_str);
        Ok(PlanError {
            node_id: text(value, "nodeId")?,
            piece_id: text(value, "pieceId")?,
            message: text(value, "message")?.to_string(),
            stack: optional("stack").map(str::to_owned),
            pattern_id: optional("patternId").map(SmolStr::new),
            spell_id: optional("spellId").map(SmolStr::new),
        })
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("nodeId", self.node_id.as_str());
        object.insert("pieceId", self.piece_id.as_str());
        object.insert("message", self.message.as_str());
        for (key, member) in [
            ("stack", self.stack.as_deref()),
            ("patternId", self.pattern_id.as_deref()),
            ("spellId", self.spell_id.as_deref()),
        ] {
            if let Some(member) = member {
                object.insert(key, member);
            }
        }
        object.into()
    }
}

impl ViewPlan {
    /// Reads one plan.
    pub fn from_value(value: &Value) -> Result<ViewPlan, Unparseable> {
        let Some(Value::Array(actions)) = value.member("eligibleActions") else {
            return unparseable("viewPlans.eligibleActions", "an array of strings");
        };
        let mut eligible_actions = Vec::new();
        for slot in actions.slots() {
            match slot {
                SlotRef::Value(Value::String(name)) if name.is_well_formed() => {
                    eligible_actions.push(SmolStr::from(name.to_string_lossy()));
                }
                _ => return unparseable("viewPlans.eligibleActions", "an array of strings"),
            }
        }
        Ok(ViewPlan {
            id: text(value, "id")?,
            revision: integer(value, "revision")?,
            generation: integer(value, "generation")?,
            eligible_actions,
            pieces: each(value, "pieces", |piece| {
                Ok(PlanPiece {
                    id: text(piece, "id")?.into(),
                    scope: scope(piece)?,
                    pattern_identity: piece.member("patternIdentity").cloned(),
                })
            })?,
            errors: optional_each(value, "errors", PlanError::from_value)?.unwrap_or_default(),
            inputs: optional_each(value, "inputs", |input| {
                Ok(PlanInput {
                    id: text(input, "id")?.into(),
                    scope: scope(input)?,
                })
            })?
            .unwrap_or_default(),
            producers: optional_each(value, "producers", PlanProducer::from_value)?.unwrap_or_default(),
        })
    }

    /// The wire form, empty optional lists left out.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("id", self.id.as_str());
        object.insert("revision", self.revision);
        object.insert("generation", self.generation);
        object.insert(
            "eligibleActions",
            values(&self.eligible_actions, |action| Value::from(action.as_str())),
        );
        object.insert(
            "pieces",
            values(&self.pieces, |piece| {
                let mut object = Object::new();
                object.insert("id", &piece.id);
                object.insert("scope", piece.scope.as_str());
                if let Some(identity) = &piece.pattern_identity {
                    object.insert("patternIdentity", identity.clone());
                }
                object.into()
            }),
        );
        if !self.errors.is_empty() {
            object.insert("errors", values(&self.errors, PlanError::to_value));
        }
        if !self.inputs.is_empty() {
            object.insert(
                "inputs",
                values(&self.inputs, |input| {
                    let mut object = Object::new();
                    object.insert("id", &input.id);
                    object.insert("scope", input.scope.as_str());
                    object.into()
                }),
            );
        }
        if !self.producers.is_empty() {
            object.insert("producers", values(&self.producers, PlanProducer::to_value));
        }
        object.into()
    }
}
