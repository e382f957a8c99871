//! What a walk remembers (TRV-310…312): the outcome of each visit by place and schema. A query's memo may serve all
//! roots of one evaluation; a read's lives for one traversal.

use rustc_hash::FxHashMap;

use super::place::{PlaceIx, Places};
use super::schema::{ByAddress, Schema};
use super::source::TraverseError;
use crate::scope_key::ScopeIdentity;

/// A place seen under a schema, or under none.
pub(super) type PlaceUnder = (PlaceIx, Option<ByAddress>);

/// Why a place is not selected (TRV-1701). Diagnostic only: no rule depends on which one it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "each variant is the failing check it names")]
pub enum Failure {
    PathMismatch,
    UndefinedLink,
    SchemaRef,
    NoAnyOf,
    NoOneOf,
    ManyOneOf,
    FalseAllOf,
    FalseSchema,
    Type,
    Array,
    Object,
    Value,
}

impl Failure {
    /// The reference implementation's code.
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::PathMismatch => "PATH_MISMATCH",
            Failure::UndefinedLink => "UNDEFINED_LINK",
            Failure::SchemaRef => "SCHEMA_REF_RESOLUTION",
            Failure::NoAnyOf => "NO_MATCHING_ANY_OF",
            Failure::NoOneOf => "NO_MATCHING_ONE_OF",
            Failure::ManyOneOf => "MULTIPLE_MATCHING_ONE_OF",
            Failure::FalseAllOf => "FALSE_ALL_OF",
            Failure::FalseSchema => "FALSE_SCHEMA",
            Failure::Type => "INVALID_TYPE",
            Failure::Array => "INVALID_ARRAY",
            Failure::Object => "INVALID_OBJECT",
            Failure::Value => "INVALID_VALUE",
        }
    }
}

/// The outcome of a visit. A failure never takes back what the visit tracked or noted (TRV-2).
pub type Outcome<T> = Result<T, Failure>;

/// What a visit is remembered by: the place, the schema it was walked with (`None` for the everything walk), and
/// in read mode the position that results are named by.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct VisitKey {
    pub(super) place: PlaceIx,
    /// False for a dead end that stands at the place without being what is stored there.
    pub(super) found: bool,
    pub(super) schema: Option<ByAddress>,
    pub(super) position: Option<PlaceUnder>,
}

/// Outcomes of visits, and the places they are keyed by.
#[derive(Clone)]
pub struct Memo<T> {
    identity: Option<ScopeIdentity>,
    pub(super) places: Places,
    visits: FxHashMap<VisitKey, Outcome<T>>,
}

/// Visits a memo remembers before it is cleared whole (TRV-1503).
const VISIT_LIMIT: usize = 200_000;

/// Places a memo may carry from one walk to the next.
const PLACE_LIMIT: usize = 1_000_000;

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo {
            identity: None,
            places: Places::default(),
            visits: FxHashMap::default(),
        }
    }
}

impl<T: Clone> Memo<T> {
    /// An empty memo, bound to nobody yet.
    pub fn new() -> Memo<T> {
        Memo::default()
    }

    /// TRV-312: binds the memo to its first identity and refuses any other. An absent part of an identity differs
    /// from an empty one.
    ///
    /// # Errors
    /// [`TraverseError::Identity`] under another identity.
    pub fn bind(&mut self, identity: &ScopeIdentity) -> Result<(), TraverseError> {
        match &self.identity {
            None => self.identity = Some(identity.clone()),
            Some(bound)
                if bound.principal == identity.principal && bound.session_id == identity.session_id => {}
            Some(_) => return Err(TraverseError::Identity),
        }
        if self.places.len() > PLACE_LIMIT {
            self.places = Places::default();
            self.visits.clear();
        }
        Ok(())
    }

    pub(super) fn visit(&self, key: &VisitKey) -> Option<Outcome<T>> {
        self.visits.get(key).cloned()
    }

    pub(super) fn remember(&mut self, key: VisitKey, outcome: &Outcome<T>) {
        if self.visits.len() >= VISIT_LIMIT {
            self.visits.clear();
        }
        self.visits.insert(key, outcome.clone());
    }
}

impl<T> std::fmt::Debug for Memo<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memo")
            .field("identity", &self.identity)
            .field("visits", &self.visits.len())
            .finish()
    }
}

pub(super) fn visit_key(
    place: PlaceIx,
    found: bool,
    schema: Option<&Schema>,
    position: Option<(PlaceIx, Option<&Schema>)>,
) -> VisitKey {
    VisitKey {
        place,
        found,
        schema: schema.map(|schema| ByAddress(schema.clone())),
        position: position.map(|(place, schema)| (place, schema.map(|schema| ByAddress(schema.clone())))),
    }
}
