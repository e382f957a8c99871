//! Runs every line of `traversal.jsonl` (TRV appendix A). A line that differs is named; all lines are run before
//! the test fails. `ours` replaces `expect` where present.

#[path = "traversal/line.rs"]
mod line;
#[path = "traversal/pure.rs"]
mod pure;
#[path = "traversal/query.rs"]
mod query;
#[path = "traversal/read.rs"]
mod read;

use serde_json::Value as Json;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/traversal.jsonl");

#[test]
fn every_line_of_the_traversal_vectors() {
    let text = std::fs::read_to_string(VECTORS).expect("the vector file is part of the checkout");
    let (mut run, mut failed) = (0usize, Vec::new());
    for (number, text) in text.lines().enumerate().map(|(i, text)| (i + 1, text)) {
        let line: Json = serde_json::from_str(text).unwrap_or_else(|e| panic!("line {number}: {e}"));
        let kind = line["kind"]
            .as_str()
            .unwrap_or_else(|| panic!("line {number} has no kind"));
        let outcome = match kind {
            "query" => query::query(&line),
            "walk" => query::walk(&line),
            "read" => read::read(&line),
            "schemaAtPath" => pure::schema_at_path(&line),
            "combine" => pure::combine(&line),
            "typeCheck" => pure::type_check(&line),
            "branchMatch" => pure::branch_match(&line),
            "scopeCap" => pure::scope_cap(&line),
            "covers" => pure::covers(&line),
            "memoIdentity" => pure::memo_identity(&line),
            "mergeMatches" => pure::merge_matches(&line),
            "resolveRef" => pure::resolve_ref(&line),
            "embedded" => pure::embedded(&line),
            other => Err(format!("no runner for kind {other}")),
        };
        run += 1;
        if let Err(difference) = outcome {
            failed.push(format!("line {number} {kind} {}: {difference}", line["name"]));
        }
    }
    println!("{} of {run} lines agree", run - failed.len());
    assert!(
        failed.is_empty(),
        "{} of {run} lines differ:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert_eq!(run, 676);
}
