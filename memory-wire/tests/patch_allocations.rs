//! What a patch costs (WIRE-602, WIRE-608): a one-leaf patch of a large document allocates for the containers on its
//! path and for nothing else.

use allocation_counter::measure;
use memory_wire::codec::encode;
use memory_wire::patch::{PatchOp, apply_patches};
use memory_wire::pointer::DocPath;
use memory_wire::value::{Object, Value};

/// A document of `rows` rows, each an object that holds nested content; one row is about 1 kB of text.
fn document(rows: usize) -> Value {
    let row = |n: usize| {
        let cells: Vec<Value> = (0..20)
            .map(|c| Value::from(format!("row {n} cell {c}: a text too long to be inline")))
            .collect();
        let mut row = Object::new();
        row.insert("cells", cells);
        row.insert("done", false);
        row.insert("count", 1);
        Value::Object(row)
    };
    let mut value = Object::new();
    value.insert("rows", (0..rows).map(row).collect::<Vec<_>>());
    let mut root = Object::new();
    root.insert("value", value);
    root.into()
}

fn path(segments: &[&str]) -> DocPath {
    segments.iter().map(|segment| (*segment).into()).collect()
}

/// Allocations of applying one operation.
fn allocations(document: &Value, patch: &PatchOp) -> u64 {
    let mut result = None;
    let info = measure(|| result = Some(apply_patches(document, std::slice::from_ref(patch))));
    assert!(result.expect("it ran").is_ok());
    info.count_total
}

#[test]
fn a_one_leaf_patch_allocates_for_its_path_alone() {
    let (small, large) = (document(10), document(1100));
    assert!(encode(&large).unwrap().len() > 1_000_000);
    let at = ["value", "rows", "7", "count"];
    let depth = at.len() as u64;
    for patch in [
        PatchOp::replace(path(&at), 2.into()),
        PatchOp::increment(path(&at), 1.0, false),
        PatchOp::add(path(&at), 2.into()),
        PatchOp::remove(path(&at)),
        PatchOp::append(path(&["value", "rows", "7", "cells"]), vec![Value::Null], false),
    ] {
        let (few, many) = (allocations(&small, &patch), allocations(&large, &patch));
        // Un-sharing a container costs its list and its reference count; an append also copies its values and
        // grows the list.
        let bound = 2 * (depth + 1) + 2;
        assert!(
            many <= bound,
            "{}: {many} allocations for a path of {depth}, at most {bound}",
            patch.kind()
        );
        assert_eq!(few, many, "{}: the document's size does not show", patch.kind());
    }
}

#[test]
fn a_second_patch_of_the_same_leaf_un_shares_nothing() {
    let large = document(1100);
    let at = path(&["value", "rows", "7", "count"]);
    let one = [PatchOp::increment(at.clone(), 1.0, false)];
    let many: Vec<PatchOp> = (0..100)
        .map(|_| PatchOp::increment(at.clone(), 1.0, false))
        .collect();
    let cost = |patches: &[PatchOp]| measure(|| drop(apply_patches(&large, patches))).count_total;
    assert_eq!(cost(&one), cost(&many));
}

#[test]
fn a_patch_that_changes_nothing_un_shares_nothing() {
    let large = document(1100);
    let patch = PatchOp::remove_by_value(path(&["value", "rows", "7", "cells"]), "not there".into());
    assert_eq!(allocations(&large, &patch), 0);
}
