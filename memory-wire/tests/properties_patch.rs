//! Patch application against a naive model, and conflict footprints against their brute-force definition
//! (WIRE-602…608, decisions 27 and 28).

mod long;
#[path = "patch/model.rs"]
mod model;

use long::{for_each_seed, same_cases};
use memory_wire::JsString;
use memory_wire::codec::{MAX_DOCUMENT_DEPTH, MAX_HOLES, decode, encode};
use memory_wire::patch::{PatchError, PatchOp, apply_patches, parse_patches, patches_to_value};
use memory_wire::pointer::{DocPath, encode_pointer, parse_pointer, paths_overlap};
use memory_wire::value;
use memory_wire::value::{Array, Extent, Object, Slot, Value};
use model::{Node, model_apply, to_node, to_value};
use proptest::prelude::*;

const NAMES: [&str; 10] = ["a", "b", "value", "", "a/b", "~1", "0", "1", "01", "7"];

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(&NAMES[..]).prop_map(str::to_owned),
        1 => Just("-".to_owned()),
        1 => (0..12usize).prop_map(|n| n.to_string()),
    ]
}

fn path() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(segment(), 0..5)
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Undefined),
        Just(Value::Null),
        Just(Value::Bool(true)),
        (-3..4i32).prop_map(Value::from),
        Just(Value::Number(f64::NAN)),
        Just(Value::Number(-0.0)),
        "[a-c]{0,2}".prop_map(Value::from),
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec((prop::sample::select(&NAMES[..]), inner.clone()), 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            prop::collection::vec(
                prop_oneof![4 => inner.prop_map(Slot::Value), 1 => (1..4u32).prop_map(Slot::Holes)],
                0..6
            )
            .prop_map(|slots| Value::Array(memory_wire::value::Array::from_slots(slots).unwrap())),
        ]
    })
}

fn document() -> impl Strategy<Value = Value> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), tree()), 0..5)
        .prop_map(|entries| Value::Object(entries.into_iter().collect()))
}

fn operation() -> impl Strategy<Value = Value> {
    let pointer = || path().prop_map(|path| encode_pointer(&path));
    let values = || prop::collection::vec(tree(), 0..4);
    let flag = || any::<bool>();
    prop_oneof![
        (pointer(), tree()).prop_map(|(path, v)| value!({ "op": "replace", "path": path, "value": v })),
        (pointer(), tree()).prop_map(|(path, v)| value!({ "op": "add", "path": path, "value": v })),
        pointer().prop_map(|path| value!({ "op": "remove", "path": path })),
        (pointer(), pointer()).prop_map(|(from, path)| value!({ "op": "move", "from": from, "path": path })),
        (pointer(), -1.0..6.0f64, -1.0..6.0f64, values()).prop_map(
            |(path, index, remove, add)| value!({ "op": "splice", "path": path, "index": index, "remove": remove, "add": add })
        ),
        (pointer(), values(), flag())
            .prop_map(|(path, v, c)| value!({ "op": "append", "path": path, "values": v, "createsKey": c })),
        (pointer(), values(), flag())
            .prop_map(|(path, v, c)| value!({ "op": "add-unique", "path": path, "values": v, "createsKey": c })),
        (pointer(), tree()).prop_map(|(path, v)| value!({ "op": "remove-by-value", "path": path, "value": v })),
        (pointer(), -2..3i32, flag())
            .prop_map(|(path, by, c)| value!({ "op": "increment", "path": path, "by": by, "createsKey": c })),
    ]
}

/// A path that often leads somewhere: most steps follow what is there.
fn aimed(document: &Value, steps: &[(prop::sample::Index, String)]) -> Vec<String> {
    let mut path = Vec::new();
    let mut node = Some(document);
    for (choice, stray) in steps {
        let next = match node {
            Some(Value::Object(object)) if !object.is_empty() => {
                Some(choice.get(object.entries()).0.to_string())
            }
            Some(Value::Array(array)) if !array.is_empty() => Some(choice.index(array.len()).to_string()),
            _ => None,
        };
        let segment = next
            .filter(|_| choice.index(8) > 0)
            .unwrap_or_else(|| stray.clone());
        node = node.and_then(|node| node.at_path(&[segment.as_str()]));
        path.push(segment);
    }
    path
}

fn steps() -> impl Strategy<Value = Vec<(prop::sample::Index, String)>> {
    prop::collection::vec((any::<prop::sample::Index>(), segment()), 0..5)
}

fn check_against_model(document: &Value, operations: &[Value]) -> Result<(), TestCaseError> {
    let before = encode(document).unwrap();
    let list = Value::from(operations.to_vec());
    let patches = parse_patches(&list).unwrap();
    prop_assert_eq!(
        encode(&patches_to_value(&patches)).unwrap(),
        encode(&list).unwrap()
    );

    let mut model = to_node(document);
    let expected = operations.iter().try_for_each(|op| model_apply(&mut model, op));
    let expected = expected.and_then(|()| match &model {
        Node::Object(_) => Ok(to_value(&model)),
        _ => Err(()),
    });
    match (apply_patches(document, &patches), expected) {
        (Ok(actual), Ok(expected)) => prop_assert_eq!(encode(&actual).unwrap(), encode(&expected).unwrap()),
        (Err(_), Err(())) => {}
        (actual, expected) => prop_assert!(
            false,
            "applied {:?}, the model says {:?}",
            actual,
            expected.map(|v| encode(&v))
        ),
    }
    prop_assert_eq!(encode(document).unwrap(), before, "the base is untouched");
    Ok(())
}

#[test]
fn wire_604_application_equals_the_naive_model() {
    let input = (
        document(),
        prop::collection::vec((operation(), steps(), steps()), 1..9),
    );
    for_each_seed("patch-model", 600, &input, |(document, operations)| {
        // One at a time, each aimed at what the earlier ones left, so that most of them apply; then all at once.
        let mut current = document.clone();
        let mut applied = Vec::new();
        for (op, path, from) in operations {
            let mut op = op.as_object().unwrap().clone();
            op.insert("path", encode_pointer(&aimed(&current, &path)));
            if op.contains_key("from") {
                op.insert("from", encode_pointer(&aimed(&current, &from)));
            }
            let op = Value::Object(op);
            check_against_model(&current, std::slice::from_ref(&op))?;
            if let Ok(next) = apply(&current, op.clone()) {
                current = next;
                applied.push(op);
            }
        }
        check_against_model(&document, &applied)?;
        let patches = parse_patches(&Value::from(applied)).unwrap();
        prop_assert_eq!(
            encode(&apply_patches(&document, &patches).unwrap()),
            encode(&current)
        );
        Ok(())
    });
}

proptest! {
    #![proptest_config(same_cases(600))]

    #[test]
    fn wire_604_application_equals_the_naive_model_on_stray_paths(
        document in document(),
        operations in prop::collection::vec(operation(), 1..4),
    ) {
        check_against_model(&document, &operations)?;
    }

    #[test]
    fn wire_608_footprint_equals_its_definition(op in operation(), read in path()) {
        let op = PatchOp::from_value(&op).unwrap();
        let read: DocPath = read.into_iter().map(Into::into).collect();
        let starts = |long: &[_], short: &[_]| (0..=long.len()).any(|cut| long[..cut] == *short);
        let touched: Vec<DocPath> = op.touched_paths().cloned().collect();
        let recursive = touched.iter().any(|t| starts(t, &read) || starts(&read, t));
        prop_assert_eq!(op.conflicts_with_read(&read, false), recursive);
        prop_assert_eq!(touched.iter().any(|t| paths_overlap(t, &read)), recursive);

        let mut extended = touched.clone();
        if op.changes_parent_key_set() {
            extended.extend(touched.iter().map(|t| t[..t.len().saturating_sub(1)].to_vec()));
        }
        prop_assert_eq!(op.conflicts_with_read(&read, true), extended.iter().any(|t| starts(&read, t)));
    }

    #[test]
    fn wire_601_pointers_read_back(path in path()) {
        let path: DocPath = path.into_iter().map(Into::into).collect();
        prop_assert_eq!(parse_pointer(&encode_pointer(&path)).unwrap(), path);
    }
}

fn apply(document: &Value, op: Value) -> Result<Value, PatchError> {
    apply_patches(document, &[PatchOp::from_value(&op).unwrap()])
}

#[test]
fn decision_27_a_huge_gap_is_refused_before_anything_is_allocated() {
    let document = value!({ "value": [] });
    let at = |index: u64| {
        apply(
            &document,
            value!({ "op": "append", "path": (format!("/value/{index}")), "values": [1] }),
        )
    };
    let filled = at(MAX_HOLES).unwrap();
    assert_eq!(
        filled
            .at_path(&["value"])
            .and_then(Value::as_array)
            .unwrap()
            .len() as u64,
        MAX_HOLES + 1
    );
    for index in [MAX_HOLES + 1, 4_294_967_294] {
        let at_limit = PatchError::HoleBudget {
            limit: MAX_HOLES,
            at: format!("/value/{index}"),
        };
        assert_eq!(at(index).unwrap_err(), at_limit);
    }
    assert_eq!(
        at(4_294_967_295).unwrap_err(),
        PatchError::IndexOutOfBounds("4294967295".into())
    );
}

#[test]
fn decision_27_holes_of_one_array_are_counted_together() {
    let document = value!({ "value": [] });
    let half = MAX_HOLES / 2 + 1;
    let once = apply(
        &document,
        value!({ "op": "append", "path": (format!("/value/{half}")), "values": [] }),
    )
    .unwrap();
    let twice = apply(
        &once,
        value!({ "op": "append", "path": (format!("/value/{}", 2 * half + 1)), "values": [] }),
    );
    assert!(matches!(twice, Err(PatchError::HoleBudget { .. })), "{twice:?}");
}

#[test]
fn wire_314_holes_of_all_arrays_of_a_document_are_counted_together() {
    let half = MAX_HOLES / 2 + 1;
    let gap = |name: &str| value!({ "op": "append", "path": (format!("/{name}/{half}")), "values": [1] });
    let document = value!({ "a": [], "b": [], "c": 1 });
    let once = apply(&document, gap("a")).unwrap();
    let refused = PatchError::HoleBudget {
        limit: MAX_HOLES,
        at: format!("/b/{half}"),
    };
    assert_eq!(apply(&once, gap("b")).unwrap_err(), refused);
    // Values bring holes too, and what brings none is not judged by what is there already.
    let run = Value::Array(Array::from_slots(vec![Slot::Holes(half as u32)]).unwrap());
    assert!(apply(&once, value!({ "op": "replace", "path": "/b", "value": run })).is_err());
    assert!(apply(&once, value!({ "op": "replace", "path": "/c", "value": [2] })).is_ok());
}

#[test]
fn wire_313_many_values_are_told_apart_as_few_are() {
    // Above a handful of values they are looked up by hash; these have equal hashes and are different values at the top.
    let lone = Value::String(JsString::from_utf16(&[0xD800]));
    let replaced = value!("\u{FFFD}");
    let link = |tag: &str| decode(&format!("fvj1:{{\"/{tag}\":{{\"id\":\"of:x\"}}}}")).unwrap();
    let mut values: Vec<Value> = (0..20).map(|n| Value::from(n % 7)).collect();
    values.extend([
        lone.clone(),
        replaced.clone(),
        lone,
        replaced,
        link("Link@1"),
        Value::Number(-0.0),
        f64::NAN.into(),
    ]);
    let unique = |values: Vec<Value>| {
        let added = apply(
            &value!({ "a": [3] }),
            value!({ "op": "add-unique", "path": "/a", "values": values }),
        );
        encode(&added.unwrap()).unwrap()
    };
    let one_by_one = values.iter().fold(value!({ "a": [3] }), |document, value| {
        apply(
            &document,
            value!({ "op": "add-unique", "path": "/a", "values": [(value.clone())] }),
        )
        .unwrap()
    });
    assert_eq!(unique(values.clone()), encode(&one_by_one).unwrap());
    values.reverse();
    assert_ne!(
        unique(values),
        encode(&one_by_one).unwrap(),
        "the order is that of arrival"
    );
}

#[test]
fn decision_28_unsafe_tokens_are_refused_wherever_they_stand() {
    let document = value!({ "value": { "a": 1 } });
    for op in [
        value!({ "op": "add", "path": "/value/__proto__", "value": 1 }),
        value!({ "op": "replace", "path": "/value/constructor", "value": 1 }),
        value!({ "op": "add", "path": "/value/constructor/x", "value": 1 }),
        value!({ "op": "move", "from": "/value/a", "path": "/value/__proto__" }),
        value!({ "op": "move", "from": "/value/constructor", "path": "/value/a" }),
        value!({ "op": "increment", "path": "/value/__proto__", "by": 1 }),
    ] {
        assert!(
            matches!(apply(&document, op.clone()), Err(PatchError::UnsafeKey { .. })),
            "{op:?}"
        );
    }
    let ordinary = apply(
        &document,
        value!({ "op": "add", "path": "/value/prototype", "value": 1 }),
    )
    .unwrap();
    assert!(ordinary.at_path(&["value", "prototype"]).is_some());
}

#[test]
fn wire_603_a_failed_list_leaves_the_base_and_reports_the_first_failure() {
    let document = value!({ "value": { "a": [1, 2] } });
    let before = encode(&document).unwrap();
    let list = value!([
        { "op": "append", "path": "/value/a", "values": [3] },
        { "op": "remove", "path": "/value/nope" },
        { "op": "remove", "path": "/also/nope" }
    ]);
    let error = apply_patches(&document, &parse_patches(&list).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "missing object key at /value/nope");
    assert_eq!(encode(&document).unwrap(), before);
}

#[test]
fn wire_607_unknown_fields_are_kept_and_bad_ones_named() {
    let op = value!({ "op": "replace", "path": "/value", "value": 1, "note": { "later": true } });
    let kept = PatchOp::from_value(&op).unwrap();
    assert_eq!(encode(kept.source()).unwrap(), encode(&op).unwrap());

    let text = |op: Value| PatchOp::from_value(&op).unwrap_err().to_string();
    assert_eq!(
        text(value!({ "op": "zap", "path": "" })),
        "unknown patch operation: zap"
    );
    assert_eq!(text(value!(null)), "unknown patch operation: undefined");
    assert_eq!(
        text(value!({ "op": "append", "path": "", "values": 1 })),
        "patch append: field values must be an array"
    );
    assert_eq!(
        text(value!({ "op": "splice", "path": "", "remove": 1, "add": [] })),
        "patch splice: field index must be a number"
    );
    assert_eq!(
        text(value!({ "op": "move", "path": "" })),
        "patch move: field from must be a JSON pointer"
    );
    let built: Object = PatchOp::append(vec!["value".into()], vec![1.into()], true)
        .source()
        .as_object()
        .unwrap()
        .clone();
    assert!(
        PatchOp::from_value(&built.into())
            .unwrap()
            .changes_parent_key_set()
    );
}

#[test]
fn wire_312_keys_that_make_escapes_necessary_are_measured() {
    // Within the bound as it is; each `/`-key makes one more of the objects on the way count twice.
    let mut document = value!({ "leaf": 1 });
    for _ in 0..MAX_DOCUMENT_DEPTH - 20 {
        document = value!({ "a": document });
    }
    let slash =
        |depth: usize| value!({ "op": "add", "path": (format!("{}/~1s", "/a".repeat(depth))), "value": 1 });
    let mut refused = None;
    for depth in 0..40 {
        match apply(&document, slash(depth)) {
            Ok(next) => document = next,
            Err(error) => {
                refused = Some((depth, error));
                break;
            }
        }
        assert!(Extent::of(&document).depth <= MAX_DOCUMENT_DEPTH);
        encode(&document).unwrap();
    }
    assert!(
        matches!(refused, Some((19, PatchError::TooDeep { .. }))),
        "{refused:?}"
    );
}
