//! Which values a schema's `type` admits (TRV-105, 106) and which union options are worth walking for a known
//! value (TRV-502). Used by the walk and, through `traverse`, by whoever validates a value against a schema.

use std::cell::RefCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::deep::{self, Deep};
use super::refs;
use super::schema::{ByAddress, Schema, SchemaPool, laid_over, with_key};
use super::slot;
use crate::value::{Array, Object, Special, Value};

/// The type of a value in the schema language (TRV-105).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "each variant is the type name it spells")]
pub enum TypeName {
    Null,
    Undefined,
    String,
    Boolean,
    Integer,
    Number,
    Array,
    Object,
    FabricBytes,
    FabricEpochDay,
    FabricEpochNsec,
    FabricHash,
    FabricKeyPair,
    FabricRegExp,
    /// A big integer: no schema type but its own name admits it.
    BigInt,
    /// A symbol: no schema type but its own name admits it.
    Symbol,
    /// An error, a modern link, an unknown or a problematic value: containers without a schema type.
    Opaque,
}

impl TypeName {
    /// The type of `value`. An envelope is an `object` here; the walk recognises links first.
    pub fn of(value: &Value) -> TypeName {
        match value {
            Value::Undefined => TypeName::Undefined,
            Value::Null => TypeName::Null,
            Value::Bool(_) => TypeName::Boolean,
            Value::Number(n) if n.is_finite() && n.fract() == 0.0 => TypeName::Integer,
            Value::Number(_) => TypeName::Number,
            Value::String(_) => TypeName::String,
            Value::BigInt(_) => TypeName::BigInt,
            Value::Symbol(_) => TypeName::Symbol,
            Value::Array(_) => TypeName::Array,
            Value::Object(_) => TypeName::Object,
            Value::Bytes(_) => TypeName::FabricBytes,
            Value::Special(special) => match special.as_ref() {
                Special::EpochNsec(_) => TypeName::FabricEpochNsec,
                Special::EpochDay(_) => TypeName::FabricEpochDay,
                Special::Hash { .. } => TypeName::FabricHash,
                Special::RegExp { .. } => TypeName::FabricRegExp,
                Special::KeyPair { .. } => TypeName::FabricKeyPair,
                Special::Error(_)
                | Special::Link(_)
                | Special::Unknown { .. }
                | Special::Problematic { .. } => TypeName::Opaque,
            },
        }
    }

    /// The name as schemas spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            TypeName::Null => "null",
            TypeName::Undefined => "undefined",
            TypeName::String => "string",
            TypeName::Boolean => "boolean",
            TypeName::Integer => "integer",
            TypeName::Number => "number",
            TypeName::Array => "array",
            TypeName::Object => "object",
            TypeName::FabricBytes => "FabricBytes",
            TypeName::FabricEpochDay => "FabricEpochDay",
            TypeName::FabricEpochNsec => "FabricEpochNsec",
            TypeName::FabricHash => "FabricHash",
            TypeName::FabricKeyPair => "FabricKeyPair",
            TypeName::FabricRegExp => "FabricRegExp",
            TypeName::BigInt => "bigint",
            TypeName::Symbol => "symbol",
            TypeName::Opaque => "opaque special value",
        }
    }

    /// True for primitive special values, which count as objects of their own type.
    pub fn is_fabric(self) -> bool {
        self.as_str().starts_with("Fabric")
    }

    /// TRV-105: schema type `name` matches this value type.
    pub fn matches(self, name: &str) -> bool {
        self != TypeName::Opaque
            && (name == self.as_str()
                || (name == "number" && self == TypeName::Integer)
                || (name == "object" && self.is_fabric()))
    }
}

/// The outcome of a type check (TRV-106).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Admitted.
    Yes,
    /// The schema declines to say (`type: "unknown"`): admitted, but not looked into.
    Unknown,
    /// Excluded.
    No,
}

/// Nested unions and references followed in one check or narrowing before the rest counts as excluded. Only a
/// schema that refers to itself without end gets here.
pub(super) const MAX_NESTED_OPTIONS: usize = 4_096;

/// TRV-106: does `schema` admit a value of type `ty`?
pub fn type_check(pool: &mut SchemaPool, schema: &Schema, ty: TypeName) -> Verdict {
    if schema.is_true_like() {
        return Verdict::Yes;
    }
    if let Value::Object(object) = schema.value() {
        let simple = ["$ref", "anyOf", "oneOf", "allOf", "not"]
            .iter()
            .all(|key| !object.contains_key(key));
        if simple {
            return match by_type(object.get("type"), ty) {
                Some(verdict) => verdict,
                None => Verdict::Yes,
            };
        }
    }
    let schema = pool.adopt(schema);
    let key = (ByAddress(schema.clone()), ty);
    if let Some(known) = pool.checked.get(&key) {
        return *known;
    }
    let misses = pool.misses;
    let checking = Checking {
        ty,
        state: RefCell::new(State {
            pool,
            open: FxHashSet::default(),
            known: FxHashMap::default(),
            cycles: 0,
            tried: 0,
        }),
    };
    let checked = deep::run(MAX_NESTED_OPTIONS, |deep| checking.check(deep, schema));
    let State { pool, tried, .. } = checking.state.into_inner();
    pool.effort.looked += tried;
    let verdict = checked.unwrap_or(Verdict::No);
    pool.remember(misses, |pool| &mut pool.checked, key, &verdict);
    verdict
}

/// Members of unions looked at in one check, or against one value, before the rest counts as excluded. Only a hostile
/// schema gets here: definitions that offer one another twice have 2^n ways down.
pub(super) const MAX_OPTIONS_TRIED: u64 = 1 << 16;

/// One check of a schema with unions in it.
struct Checking<'p> {
    ty: TypeName,
    state: RefCell<State<'p>>,
}

struct State<'p> {
    pool: &'p mut SchemaPool,
    /// The schemas under check above the current one: meeting one of them again excludes it.
    open: FxHashSet<ByAddress>,
    /// Verdicts that hold whatever is open.
    known: FxHashMap<ByAddress, Verdict>,
    /// How often an open schema was met again; a verdict found across such a meeting is not kept.
    cycles: u64,
    tried: u64,
}

impl Checking<'_> {
    async fn check<'f>(&'f self, deep: Deep<'f>, schema: Schema) -> Verdict {
        let resolved = refs::resolve_ref(self.state.borrow_mut().pool, &schema);
        let Some(schema) = resolved else {
            return Verdict::No;
        };
        if schema.is_true_like() {
            return Verdict::Yes;
        }
        if schema.is_false_like() {
            return Verdict::No;
        }
        let Value::Object(object) = schema.value().clone() else {
            return Verdict::Yes;
        };
        let by_type = by_type(object.get("type"), self.ty);
        if by_type == Some(Verdict::No) {
            return Verdict::No;
        }
        let before = {
            let mut state = self.state.borrow_mut();
            let schema = ByAddress(state.pool.adopt(&schema));
            if let Some(known) = state.known.get(&schema) {
                return *known;
            }
            state.tried += 1;
            if state.tried > MAX_OPTIONS_TRIED {
                return Verdict::No;
            }
            if !state.open.insert(schema) {
                state.cycles += 1;
                return Verdict::No;
            }
            state.cycles
        };
        let verdict = self.unions(&deep, &object, by_type).await;
        let mut state = self.state.borrow_mut();
        let schema = ByAddress(state.pool.adopt(&schema));
        state.open.remove(&schema);
        if state.cycles == before && state.tried <= MAX_OPTIONS_TRIED {
            state.known.insert(schema, verdict);
        }
        verdict
    }

    async fn unions<'f>(&'f self, deep: &Deep<'f>, object: &Object, by_type: Option<Verdict>) -> Verdict {
        let mut verdicts: Vec<Verdict> = Vec::with_capacity(4);
        if by_type == Some(Verdict::Unknown) {
            verdicts.push(Verdict::Unknown);
        }
        if let Some(members) = object.get("allOf").and_then(Value::as_array) {
            let mut any_yes = members.is_empty();
            for member in members_of(object, members) {
                match deep.call(self.check(deep.clone(), member)).await {
                    Verdict::No => return Verdict::No,
                    Verdict::Yes => any_yes = true,
                    Verdict::Unknown => {}
                }
            }
            verdicts.push(if any_yes { Verdict::Yes } else { Verdict::Unknown });
        }
        for union in ["anyOf", "oneOf"] {
            let Some(members) = object.get(union).and_then(Value::as_array) else {
                continue;
            };
            let mut running = None;
            for member in members_of(object, members) {
                if member.is_true_like() {
                    running = Some(Verdict::Yes);
                    break;
                }
                match deep.call(self.check(deep.clone(), member)).await {
                    Verdict::No => {}
                    verdict if running != Some(Verdict::Unknown) => running = Some(verdict),
                    Verdict::Yes | Verdict::Unknown => {}
                }
            }
            match running {
                None => return Verdict::No,
                Some(verdict) => verdicts.push(verdict),
            }
        }
        if verdicts.is_empty() || verdicts.contains(&Verdict::Yes) {
            Verdict::Yes
        } else {
            Verdict::Unknown
        }
    }
}

/// The options with the parent's definitions laid over theirs.
fn members_of(parent: &Object, members: &Array) -> Vec<Schema> {
    let definitions = parent.get("$defs").and_then(Value::as_object);
    members
        .elements()
        .map(|(_, member)| match (definitions, member) {
            (Some(definitions), Value::Object(object)) => {
                let merged = match object.get("$defs").and_then(Value::as_object) {
                    Some(own) => laid_over(own, definitions),
                    None => definitions.clone(),
                };
                Schema::of(&Value::Object(with_key(object, "$defs", merged.into())))
            }
            _ => Schema::of(member),
        })
        .collect()
}

/// What the `type` keyword alone says: `None` when it does not constrain.
fn by_type(keyword: Option<&Value>, ty: TypeName) -> Option<Verdict> {
    let keyword = keyword.filter(|t| !t.is_undefined())?;
    if names(keyword, ty) {
        return Some(Verdict::Yes);
    }
    Some(if admits_unknown(keyword) {
        Verdict::Unknown
    } else {
        Verdict::No
    })
}

fn admits_unknown(keyword: &Value) -> bool {
    match keyword {
        Value::String(name) => name == "unknown",
        Value::Array(names) => names.elements().any(|(_, name)| name.as_str() == Some("unknown")),
        _ => false,
    }
}

fn names(keyword: &Value, ty: TypeName) -> bool {
    match keyword {
        Value::String(name) => name.as_str().is_some_and(|name| ty.matches(name)),
        Value::Array(names) => names
            .elements()
            .any(|(_, name)| name.as_str().is_some_and(|name| ty.matches(name))),
        _ => false,
    }
}

/// TRV-502: may `option` (merged over the rest of its union) match `value`? False only when walking it can be
/// skipped without effect on the reach of a *known* value.
pub fn branch_may_match(pool: &mut SchemaPool, option: &Schema, value: &Value) -> bool {
    if option.is_literal_false() {
        return false;
    }
    if slot::link_payload(value).is_some() || option.is_handle() {
        return true;
    }
    let Some(resolved) = refs::resolve_ref(pool, option) else {
        return true;
    };
    let object = match resolved.value() {
        Value::Bool(everything) => return *everything,
        Value::Object(object) => object,
        _ => return true,
    };
    let ty = TypeName::of(value);
    let keyword = object.get("type").filter(|t| !t.is_undefined());
    if keyword.is_some_and(|keyword| !names(keyword, ty)) {
        return false;
    }
    let admits_object = keyword.is_none_or(|keyword| names(keyword, TypeName::Object));
    let required = object.get("required").and_then(Value::as_array);
    match required {
        Some(required) if admits_object => required.elements().all(|(_, name)| match name {
            Value::String(name) => match value {
                Value::Object(object) => object.get_key(name).is_some(),
                Value::Array(array) => has_own_key(array, name.as_bytes()),
                _ => !ty.is_fabric() || is_accessor(ty, name.as_bytes()),
            },
            _ => true,
        }),
        _ => true,
    }
}

/// Own keys of an array: `length` and the present indexes.
pub(super) fn has_own_key(array: &Array, key: &[u8]) -> bool {
    key == b"length" || crate::value::index_rank(key).is_some_and(|index| array.get(index as usize).is_some())
}

/// TRV-510: the members that a primitive special value offers to `required`; the brand name of old schemas counts.
pub(super) fn is_accessor(ty: TypeName, name: &[u8]) -> bool {
    let accessors: &[&str] = match ty {
        TypeName::FabricBytes => &["length", "bytes"],
        TypeName::FabricEpochDay | TypeName::FabricEpochNsec => &["value"],
        TypeName::FabricHash => &["tag", "bytes", "hashString", "taggedHashString"],
        TypeName::FabricKeyPair => &["algorithm", "publicKey", "privateKey"],
        TypeName::FabricRegExp => &["source", "flags", "flavor", "value"],
        _ => &[],
    };
    name == ty.as_str().as_bytes() || accessors.iter().any(|accessor| accessor.as_bytes() == name)
}
