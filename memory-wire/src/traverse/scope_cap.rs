//! How far a schema lets links narrow the scope (TRV §10). Caps decide whether a hop happens; they never change a
//! scope (TRV-1002).

use super::refs;
use super::schema::{Schema, SchemaPool, entries_of_as_cell};
use crate::scope_key::Scope;
use crate::value::Value;

/// A cap that a schema names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScopeCap {
    /// Links up to this scope are followed.
    At(Scope),
    /// Explicitly no cap.
    Any,
}

impl ScopeCap {
    fn named(value: Option<&Value>) -> Option<ScopeCap> {
        match value.and_then(Value::as_str)? {
            "any" => Some(ScopeCap::Any),
            name => Scope::from_name(name).map(ScopeCap::At),
        }
    }

    /// The name as schemas spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            ScopeCap::At(scope) => scope.as_str(),
            ScopeCap::Any => "any",
        }
    }

    /// True when a link of `scope` may be followed.
    pub fn admits(self, scope: Scope) -> bool {
        match self {
            ScopeCap::At(cap) => scope <= cap,
            ScopeCap::Any => true,
        }
    }

    /// The stricter of two caps.
    pub fn narrower(self, other: ScopeCap) -> ScopeCap {
        match (self, other) {
            (ScopeCap::At(a), ScopeCap::At(b)) => ScopeCap::At(a.min(b)),
            (ScopeCap::At(a), ScopeCap::Any) | (ScopeCap::Any, ScopeCap::At(a)) => ScopeCap::At(a),
            (ScopeCap::Any, ScopeCap::Any) => ScopeCap::Any,
        }
    }
}

/// TRV-1001: the cap that `schema` puts on a hop. Only a root reference to a schema *document* is resolved first.
pub fn hop_cap(pool: &mut SchemaPool, schema: &Schema) -> Option<ScopeCap> {
    let external =
        matches!(schema.keyword("$ref"), Some(Value::String(text)) if !text.as_bytes().starts_with(b"#"));
    if external {
        return refs::resolve_ref(pool, schema).and_then(|resolved| own_cap(resolved.value()));
    }
    own_cap(schema.value())
}

fn own_cap(schema: &Value) -> Option<ScopeCap> {
    entry_cap(schema).or_else(|| ScopeCap::named(schema.member("scope")))
}

/// The scope that the first `asCell` entry names.
fn entry_cap(schema: &Value) -> Option<ScopeCap> {
    ScopeCap::named(entries_of_as_cell(schema)?.get(0)?.member("scope"))
}

/// TRV-1003: the cap on making a handle over a link: the first `asCell` entry's scope, else the narrowest among
/// the options, recursively. The recursion follows the nesting of the schema text, which WIRE-312 bounds.
pub fn handle_cap(schema: &Schema) -> Option<ScopeCap> {
    fn cap(schema: &Value) -> Option<ScopeCap> {
        entry_cap(schema).or_else(|| {
            let unions = ["anyOf", "oneOf"]
                .into_iter()
                .filter_map(|name| schema.member(name)?.as_array());
            unions
                .flat_map(|union| union.elements())
                .filter_map(|(_, option)| cap(option))
                .reduce(ScopeCap::narrower)
        })
    }
    cap(schema.value())
}
