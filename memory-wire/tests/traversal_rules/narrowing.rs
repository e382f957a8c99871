//! Narrowing and combining (TRV §§7, 8).

use memory_wire::traverse::{
    SchemaPool, combine, combine_optional, is_marker, narrow, narrow_marked, schema_at_path,
};
use memory_wire::{Value, value};

use super::graph::{path, schema, text};

fn at(of: Value, segments: &[&str]) -> String {
    text(narrow(&mut SchemaPool::new(), &schema(of), &path(segments)).value())
}

/// The form of link hops.
fn hop(parent: Value, link: Value) -> String {
    let combined = combine_optional(&mut SchemaPool::new(), Some(&schema(parent)), Some(&schema(link)));
    text(combined.unwrap().value())
}

fn plain(parent: Value, link: Value) -> String {
    let combined = combine(&mut SchemaPool::new(), Some(&schema(parent)), Some(&schema(link)));
    text(combined.unwrap().value())
}

#[test]
fn trv_701_the_table_of_narrowing() {
    let s = "{\"type\":\"string\"}";
    let string = || value!({ "type": "string" });
    assert_eq!(
        at(value!({ "default": 1 }), &["a", "b"]),
        "{\"default\":1}",
        "true-like: itself"
    );
    assert_eq!(at(value!(false), &["a"]), "false");
    let object = value!({ "type": "object", "properties": { "a": (string()) }, "additionalProperties": { "type": "null" } });
    assert_eq!(at(object.clone(), &["a"]), s);
    assert_eq!(at(object, &["b"]), "{\"type\":\"null\"}");
    let array = value!({ "type": "array", "prefixItems": [(string())], "items": false });
    assert_eq!(at(array.clone(), &["0"]), s);
    assert_eq!(at(array.clone(), &["1"]), "false");
    assert_eq!(at(array, &["length"]), "false");
    assert_eq!(at(value!({ "type": "array" }), &["7"]), "true");
    assert_eq!(
        at(
            value!({ "type": "unknown", "ifc": { "x": 1 }, "title": "t" }),
            &["a"]
        ),
        "{\"ifc\":{\"x\":1},\"type\":\"unknown\"}"
    );
    for nothing in [
        value!({ "title": "t" }),
        value!({ "type": "string" }),
        value!({ "allOf": [{ "type": "object" }] }),
    ] {
        assert_eq!(at(nothing, &["a"]), "false");
    }
    // Unions: `false` drops out, one stays alone, true-like ends it, several stay in order.
    let of = |a: Value| value!({ "type": "object", "properties": { "a": a } });
    assert_eq!(
        at(
            value!({ "anyOf": [(of(string())), { "type": "number" }] }),
            &["a"]
        ),
        s
    );
    assert_eq!(
        at(
            value!({ "anyOf": [(of(string()))], "oneOf": [(of(value!({ "type": "null" }))), (of(string()))] }),
            &["a"]
        ),
        format!("{{\"anyOf\":[{s},{{\"type\":\"null\"}}]}}")
    );
    assert_eq!(
        at(value!({ "oneOf": [(of(string())), (of(value!({})))] }), &["a"]),
        "true"
    );
    assert_eq!(
        at(
            value!({ "type": ["object", "string"], "properties": { "a": (string()) } }),
            &["a"]
        ),
        s
    );
}

#[test]
fn trv_702_open_names_are_true_and_nothing_else_travels() {
    let around = value!({ "type": "object", "properties": { "a": {} }, "asCell": ["cell"], "default": 1, "scope": "user", "required": ["b"] });
    assert_eq!(at(around.clone(), &["a"]), "{}");
    assert_eq!(at(around, &["b"]), "true");
    assert_eq!(at(value!({ "type": "object", "properties": {} }), &["b"]), "true");
}

#[test]
fn trv_703_markers_say_not_descended() {
    let marked = |of: Value| narrow_marked(&mut SchemaPool::new(), &schema(of), &path(&["b"]));
    assert!(is_marker(&marked(
        value!({ "type": "object", "properties": { "a": true } })
    )));
    assert!(is_marker(&marked(value!({ "type": "object", "properties": {} }))));
    assert!(
        is_marker(&marked(
            value!({ "type": ["object", "null"], "properties": { "a": true } })
        )),
        "alone it stays one"
    );
    let beside = marked(value!({ "type": ["unknown", "object"], "properties": { "a": true } }));
    assert!(!is_marker(&beside));
    assert!(
        !is_marker(&marked(value!({ "type": "object" }))),
        "nothing declared: everything"
    );
}

#[test]
fn trv_704_confidentiality_accumulates() {
    let label = |atoms: Value| value!({ "confidentiality": atoms });
    let of = |leaf: Value| {
        value!({
            "type": "object", "ifc": (label(value!(["x", "y"]))),
            "properties": { "list": { "type": "array", "ifc": (label(value!(["array"]))), "items": leaf } }
        })
    };
    let leaf = value!({ "type": "string", "ifc": { "confidentiality": ["y", "z"], "integrity": ["i"] } });
    assert_eq!(
        at(of(leaf), &["list", "0"]),
        "{\"ifc\":{\"confidentiality\":[\"x\",\"y\",\"z\"],\"integrity\":[\"i\"]},\"type\":\"string\"}"
    );
    assert_eq!(
        at(of(value!(true)), &["list", "0"]),
        "{\"ifc\":{\"confidentiality\":[\"x\",\"y\"]}}"
    );
    assert_eq!(at(of(value!(false)), &["list", "0"]), "false");
}

#[test]
fn trv_705_schema_at_path_says_nothing_for_false() {
    let mut pool = SchemaPool::new();
    let of = schema(value!({ "type": "object", "properties": { "a": false, "b": true } }));
    assert!(schema_at_path(&mut pool, &of, &path(&["a"])).is_none());
    assert_eq!(
        text(schema_at_path(&mut pool, &of, &path(&["b"])).unwrap().value()),
        "{}"
    );
}

#[test]
fn trv_706_only_definitions_that_are_used_travel() {
    let of = value!({
        "type": "object",
        "properties": { "a": { "$ref": "#/$defs/A" }, "b": { "type": "string" } },
        "$defs": { "A": { "items": { "$ref": "#/$defs/B" } }, "B": true, "C": true }
    });
    assert_eq!(
        at(of.clone(), &["a"]),
        "{\"$defs\":{\"A\":{\"items\":{\"$ref\":\"#/$defs/B\"}},\"B\":true},\"$ref\":\"#/$defs/A\"}"
    );
    assert_eq!(at(of.clone(), &["b"]), "{\"type\":\"string\"}");
    assert_eq!(
        at(value!({ "type": "string", "$defs": { "C": true } }), &[]),
        "{\"type\":\"string\"}"
    );
}

#[test]
fn trv_801_two_records_unite_their_properties() {
    let record = |name: &str, more: Value| {
        let properties: memory_wire::Object = [(name, value!({ "type": "string" }))].into_iter().collect();
        let mut object = more.as_object().unwrap().clone();
        object.insert("type", "object");
        object.insert("properties", properties);
        Value::from(object)
    };
    let s = "{\"type\":\"string\"}";
    assert_eq!(
        hop(record("a", value!({})), record("b", value!({}))),
        format!("{{\"properties\":{{\"a\":{s},\"b\":{s}}},\"type\":\"object\"}}"),
        "two closed records unite"
    );
    assert_eq!(
        hop(
            record("a", value!({ "additionalProperties": false })),
            record("b", value!({}))
        ),
        format!(
            "{{\"additionalProperties\":false,\"properties\":{{\"a\":{s},\"b\":false}},\"type\":\"object\"}}"
        )
    );
    assert_eq!(
        hop(
            record("a", value!({})),
            record("b", value!({ "additionalProperties": { "type": "null" } }))
        ),
        format!(
            "{{\"additionalProperties\":{{\"type\":\"null\"}},\"properties\":{{\"a\":false,\"b\":{s}}},\"type\":\"object\"}}"
        )
    );
}

#[test]
fn trv_802_types_narrow_only_by_a_proper_subtype() {
    let types = |a: Value, b: Value| hop(value!({ "type": a, "title": "t" }), value!({ "type": b }));
    assert_eq!(
        types(value!("number"), value!("integer")),
        "{\"title\":\"t\",\"type\":\"integer\"}"
    );
    assert_eq!(
        types(value!(["number", "string"]), value!(["string", "integer"])),
        "{\"title\":\"t\",\"type\":[\"integer\",\"string\"]}"
    );
    assert_eq!(
        types(value!(["string", "null"]), value!("string")),
        "{\"title\":\"t\",\"type\":[\"string\",\"null\"]}"
    );
    assert_eq!(
        types(value!("object"), value!("FabricBytes")),
        "{\"title\":\"t\",\"type\":\"FabricBytes\"}"
    );
    assert_eq!(types(value!("string"), value!("number")), "false");
}

#[test]
fn trv_803_required_and_definitions_unite() {
    let of = |required: Value, definition: Value| value!({ "type": "object", "properties": {}, "required": required, "$defs": { "A": definition } });
    let combined = hop(
        of(value!(["x", "y"]), value!(true)),
        of(value!(["z", "x"]), value!(false)),
    );
    assert!(
        combined.contains("\"required\":[\"x\",\"y\",\"z\"]"),
        "{combined}"
    );
    assert!(
        combined.contains("\"$defs\":{\"A\":true}"),
        "the parent wins a name: {combined}"
    );
    let bare = hop(
        value!({ "type": "object", "properties": {}, "$defs": {} }),
        value!({ "type": "object", "properties": {} }),
    );
    assert!(!bare.contains("$defs") && !bare.contains("required"), "{bare}");
}

#[test]
fn trv_804_the_table_of_combining() {
    let mut pool = SchemaPool::new();
    let number = || value!({ "type": "number" });
    assert!(combine(&mut pool, None, None).is_none());
    assert_eq!(
        combine(&mut pool, None, Some(&schema(number()))),
        Some(schema(number()))
    );
    assert_eq!(
        combine(&mut pool, Some(&schema(number())), None),
        Some(schema(number()))
    );
    assert_eq!(hop(value!({ "not": true }), number()), "{\"not\":true}");
    assert_eq!(hop(number(), value!(false)), "false");
    // Only `asCell` of a true-like side counts, and that of a link in the plain form alone.
    assert_eq!(
        hop(value!({ "asCell": ["cell"], "default": 1 }), number()),
        "{\"asCell\":[\"cell\"],\"type\":\"number\"}"
    );
    assert_eq!(
        hop(number(), value!({ "asCell": ["cell"] })),
        "{\"type\":\"number\"}"
    );
    assert_eq!(
        plain(number(), value!({ "asCell": ["cell"] })),
        "{\"asCell\":[\"cell\"],\"type\":\"number\"}"
    );
    // Open objects become explicitly open, and a closed parent stays closed.
    let open = || value!({ "type": "object" });
    assert_eq!(
        plain(open(), open()),
        "{\"additionalProperties\":true,\"type\":\"object\"}"
    );
    let closed = || value!({ "type": "object", "properties": { "a": true } });
    assert_eq!(
        hop(closed(), value!({ "type": "object", "asCell": ["cell"] })),
        "{\"properties\":{\"a\":true},\"type\":\"object\"}"
    );
    // A list of types, and a union, are neither the object nor the array case.
    assert_eq!(
        hop(value!({ "type": ["object"] }), closed()),
        "{\"type\":[\"object\"]}"
    );
    assert_eq!(hop(value!({ "anyOf": [true] }), closed()), "{\"anyOf\":[true]}");
    assert_eq!(
        hop(
            value!({ "type": "array", "prefixItems": [true], "items": { "type": "number" } }),
            value!({ "type": "array", "prefixItems": [true, { "type": "integer" }] })
        ),
        "{\"items\":{\"type\":\"number\"},\"prefixItems\":[true,{\"type\":\"integer\"}],\"type\":\"array\"}"
    );
}
