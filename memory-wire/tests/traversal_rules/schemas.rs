//! What schemas are (TRV §1).

use memory_wire::traverse::{SchemaPool, Selector, TypeName, Verdict, type_check};
use memory_wire::value;
use memory_wire::value::{Special, Value};

use super::graph::{Graph, link, path, schema, selector_text};

fn check(of: Value, ty: TypeName) -> Verdict {
    type_check(&mut SchemaPool::new(), &schema(of), ty)
}

#[test]
fn trv_101_an_absent_schema_delivers_the_document_and_descends_nowhere() {
    let graph = Graph::of([("a", value!({ "x": (link("b")) })), ("b", value!(1))]);
    let absent = graph.query_roots(&[("a", Selector::new(path(&["value"]), None))]);
    assert_eq!(absent.reached(), ["a"]);
    // For a link it means no constraint.
    assert_eq!(graph.query(&[], value!(true)).reached(), ["a", "b"]);
    // A value that is no schema is `false`; an array is an untyped schema.
    assert!(schema(value!("text")).is_literal_false() && schema(value!(null)).is_literal_false());
    assert!(!schema(value!([])).is_false_like() && !schema(value!([])).is_true_like());
}

#[test]
fn trv_102_selectors_of_roots_are_document_rooted() {
    assert_eq!(
        selector_text(&Selector::from_root(&path(&["x"]), None)),
        "/value/x false"
    );
    assert_eq!(selector_text(&Selector::rejecting()), " false");
    assert_eq!(selector_text(&Selector::everything()), "/value true");
    let selector = |of: Value| Selector::from_root(&[], Some(schema(of)));
    assert_eq!(
        selector(value!({ "a": 1, "b": 2 })),
        selector(value!({ "b": 2, "a": 1 }))
    );
    assert_ne!(selector(value!({})), selector(value!(true)));
    assert_ne!(selector(value!({ "not": true })), selector(value!(false)));
}

#[test]
fn trv_104_keywords_without_meaning_constrain_nothing() {
    let graph = Graph::of([("a", value!({ "x": (link("b")), "n": 1 })), ("b", value!(1))]);
    for extra in [
        value!({ "const": 2 }),
        value!({ "enum": [2] }),
        value!({ "minimum": 9, "pattern": "z" }),
        value!({ "patternProperties": { "x": false }, "if": true, "then": false }),
        value!({ "definitions": {}, "$id": "i", "asStream": true }),
    ] {
        let mut object = extra.as_object().unwrap().clone();
        object.insert("type", "object");
        let queried = graph.query(&[], object.into());
        assert!(queried.selects());
        assert_eq!(queried.reached(), ["a", "b"], "{extra:?}");
    }
}

#[test]
fn trv_105_type_names_of_values() {
    for (name, of) in [
        ("null", Value::Null),
        ("undefined", Value::Undefined),
        ("string", value!("s")),
        ("boolean", value!(true)),
        ("integer", value!(3.0)),
        ("integer", value!(-0.0)),
        ("number", value!(0.5)),
        ("number", f64::NAN.into()),
        ("number", f64::INFINITY.into()),
        ("array", value!([])),
        ("object", value!({})),
        ("FabricBytes", Value::Bytes(vec![1].into())),
        (
            "FabricEpochDay",
            Value::Special(std::sync::Arc::new(Special::EpochDay(1.into()))),
        ),
    ] {
        assert_eq!(TypeName::of(&of).as_str(), name);
    }
    assert!(TypeName::Integer.matches("number") && !TypeName::Number.matches("integer"));
    assert!(TypeName::FabricHash.matches("object") && !TypeName::Object.matches("FabricHash"));
    assert!(!TypeName::String.matches("unknown") && !TypeName::String.matches("text"));
}

#[test]
fn trv_106_the_type_check_combines_up_to_four_verdicts() {
    use Verdict::{No, Unknown, Yes};
    for (of, ty, verdict) in [
        (value!(true), TypeName::Null, Yes),
        (value!(false), TypeName::Null, No),
        (value!({ "$ref": "#/$defs/none" }), TypeName::Null, No),
        (value!({ "type": "unknown" }), TypeName::Null, Unknown),
        (value!({ "type": ["string", "unknown"] }), TypeName::String, Yes),
        (value!({ "type": ["string", "unknown"] }), TypeName::Null, Unknown),
        (value!({ "type": [] }), TypeName::Null, No),
        (value!({ "allOf": [] }), TypeName::Null, Yes),
        (
            value!({ "allOf": [{ "type": "null" }, { "type": "string" }] }),
            TypeName::Null,
            No,
        ),
        (
            value!({ "allOf": [{ "type": "unknown" }] }),
            TypeName::Null,
            Unknown,
        ),
        (value!({ "anyOf": [{ "type": "string" }] }), TypeName::Null, No),
        (
            value!({ "anyOf": [{ "type": "unknown" }, { "type": "null" }] }),
            TypeName::Null,
            Unknown,
        ),
        (
            value!({ "anyOf": [{ "type": "null" }, { "type": "unknown" }] }),
            TypeName::Null,
            Unknown,
        ),
        (
            value!({ "oneOf": [{ "type": "unknown" }, true] }),
            TypeName::Null,
            Yes,
        ),
        (value!({ "anyOf": [] }), TypeName::Null, No),
        // The parent's definitions are laid over a member's.
        (
            value!({ "anyOf": [{ "$ref": "#/$defs/A", "$defs": { "A": false } }], "$defs": { "A": { "type": "null" } } }),
            TypeName::Null,
            Yes,
        ),
    ] {
        assert_eq!(check(of.clone(), ty), verdict, "{of:?}");
    }
}

#[test]
fn trv_107_handles_are_positions_of_non_empty_as_cell() {
    for of in [
        value!({ "asCell": ["cell"] }),
        value!({ "asCell": [{ "kind": "stream", "scope": "user" }], "type": "object" }),
        value!({ "anyOf": [] }),
        value!({ "oneOf": [{ "asCell": ["cell"] }, { "anyOf": [{ "asCell": ["opaque"] }] }] }),
    ] {
        assert!(schema(of.clone()).is_handle(), "{of:?}");
    }
    for of in [
        value!({ "asCell": [] }),
        value!({ "asCell": true }),
        value!({ "anyOf": [{ "asCell": ["cell"] }, { "type": "null" }] }),
        value!({ "allOf": [{ "asCell": ["cell"] }] }),
        value!({ "anyOf": [{ "$ref": "#/$defs/A" }], "$defs": { "A": { "asCell": ["cell"] } } }),
    ] {
        assert!(!schema(of.clone()).is_handle(), "{of:?}");
    }
}
