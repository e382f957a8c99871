//! Durable ids of code: what a piece stores of its pattern, and what a run is called (RUN-604, RUN-821,
//! decision 7).

use memory_wire::{Value, hash, value};
use smol_str::SmolStr;

use crate::entity_derivation::place_payload;
use crate::link::Link;

/// Characters of the instance key (RUN-604).
const INSTANCE_KEY_LEN: usize = 12;

/// What identifies a pattern across processes and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PatternIdentity {
    /// Stored `identity`: `prog1:` and the hash of the program manifest.
    pub identity: SmolStr,
    /// Stored `symbol`: which export of the program.
    pub symbol: SmolStr,
    /// `native:<crate>/<name>@<version>`; prefixes the ids of the pattern's actions.
    pub implementation: SmolStr,
}

impl PatternIdentity {
    /// Identity of a pattern compiled into this program: `crate_name`, `name` and `version` are its manifest.
    pub fn native(crate_name: &str, name: &str, version: &str) -> PatternIdentity {
        let manifest = value!({ "crate": crate_name, "language": "rust", "name": name, "version": version });
        PatternIdentity {
            identity: SmolStr::from(format!("prog1:{}", hash::hash_string(&manifest))),
            symbol: SmolStr::new_static("default"),
            implementation: SmolStr::from(format!("native:{crate_name}/{name}@{version}")),
        }
    }

    /// The stored form `{identity, symbol}` (RUN-810).
    pub fn to_value(&self) -> Value {
        value!({ "identity": (self.identity.as_str()), "symbol": (self.symbol.as_str()) })
    }

    /// True when `stored` is this identity's stored form.
    pub fn matches(&self, stored: &Value) -> bool {
        stored.member("identity").and_then(Value::as_str) == Some(self.identity.as_str())
            && stored.member("symbol").and_then(Value::as_str) == Some(self.symbol.as_str())
    }
}

/// RUN-604: `<implementation>:<symbol>:<instance key>` of native code.
pub fn native_action_id(
    implementation: &str,
    symbol: &str,
    process: Option<&Link>,
    reads: &[Link],
    writes: &[Link],
) -> SmolStr {
    SmolStr::from(format!(
        "{implementation}:{symbol}:{}",
        instance_key(process, reads, writes)
    ))
}

/// RUN-604: `raw:<name>:<instance key>` of a built-in.
pub fn builtin_action_id(name: &str, process: Option<&Link>, reads: &[Link], writes: &[Link]) -> SmolStr {
    SmolStr::from(format!("raw:{name}:{}", instance_key(process, reads, writes)))
}

/// The part of an action's id that tells instances of the same code apart.
fn instance_key(process: Option<&Link>, reads: &[Link], writes: &[Link]) -> String {
    let places = |links: &[Link]| Value::from(links.iter().map(place_payload).collect::<Vec<_>>());
    let described = value!({
        "process": (process.map_or(Value::Null, place_payload)),
        "reads": (places(reads)),
        "writes": (places(writes)),
    });
    hash::hash_string(&described)
        .chars()
        .take(INSTANCE_KEY_LEN)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::{EntityId, Scope, SpaceId};

    #[test]
    fn run_604_ids_do_not_follow_schemas() {
        let link = Link::to_document(SpaceId::from("did:key:s"), EntityId::from("of:a"), Scope::Space);
        let typed = link.with_schema(Some(Value::Bool(true)));
        let id = |l: &Link| native_action_id("native:c/n@1", "tally", None, std::slice::from_ref(l), &[]);
        assert_eq!(id(&link), id(&typed));
        assert!(id(&link).starts_with("native:c/n@1:tally:"));
        let other = Link {
            scope: Scope::User,
            ..link.clone()
        };
        assert_ne!(id(&link), id(&other));
    }
}
