//! What hostile input costs in memory (WIRE-312, WIRE-314, WIRE-1003): nothing is refused after it was built, and what
//! is accepted costs a fixed multiple of its text. Peaks are counted by the allocator, so they are the same everywhere;
//! `--nocapture` prints them.

use allocation_counter::measure;
use memory_wire::codec::{DecodeReason, MAX_DOCUMENT_DEPTH, MAX_HOLES, decode, encode};
use memory_wire::message::parse_client_message;
use memory_wire::patch::{apply_patches, parse_patches};
use memory_wire::value;
use memory_wire::value::Value;

/// The largest message a server reads (SRV-106).
const LARGEST: usize = 64 << 20;
const KIB: u64 = 1 << 10;

/// The most memory held at once by `work`, beside its input.
fn peak<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let info = measure(|| result = Some(work()));
    (result.expect("it ran"), info.bytes_max)
}

/// `piece` as often as it fits into a message, between `head` and `tail`.
fn filled(head: &str, piece: &str, tail: &str) -> String {
    let times = (LARGEST - head.len() - tail.len()) / piece.len();
    format!("{head}{}{tail}", piece.repeat(times))
}

fn report(what: &str, text: &str, peak: u64) {
    let ratio = peak as f64 / text.len() as f64;
    println!(
        "{what}: {} bytes of text, peak {peak} bytes, {ratio:.3} times the text",
        text.len()
    );
}

#[test]
fn wire_312_nesting_bombs_are_refused_before_they_cost_anything() {
    for (what, text) in [
        ("arrays", filled("fvj1:", "[", "")),
        ("objects", filled("fvj1:", "{\"a\":", "")),
        ("escaped objects", filled("fvj1:", "{\"/object\":{\"/a\":", "")),
        ("literal arrays", filled("fvj1:{\"/quote\":", "[", "")),
        ("unknown tags", filled("fvj1:", "{\"/Zork@1\":", "")),
        ("errors", filled("fvj1:", "{\"/Error@1\":{\"cause\":", "")),
    ] {
        let (outcome, peak) = peak(|| decode(&text));
        report(what, &text, peak);
        assert_eq!(outcome.unwrap_err().reason, DecodeReason::TooDeep, "{what}");
        assert!(peak <= 512 * KIB, "{what}: {peak}");
        assert!(parse_client_message(&text).is_err(), "{what}");
    }
}

#[test]
fn wire_314_hole_bombs_are_refused_before_they_cost_anything() {
    let beyond = format!("fvj1:[{{\"/hole\":{}}}]", MAX_HOLES + 1);
    for (what, text, reason, bound) in [
        (
            "one run of four billion",
            "fvj1:[{\"/hole\":4294967295}]".to_owned(),
            DecodeReason::TooManyHoles,
            8 * KIB,
        ),
        (
            "one slot above the budget",
            beyond,
            DecodeReason::TooManyHoles,
            8 * KIB,
        ),
        // Every run is kept until the budget is spent: 16 bytes each, in a list that doubles.
        (
            "many single holes",
            filled("fvj1:[1", ",{\"/hole\":1}", "]"),
            DecodeReason::TooManyHoles,
            48 * MAX_HOLES,
        ),
        (
            "many arrays of holes",
            filled("fvj1:[1", ",[{\"/hole\":1000}]", "]"),
            DecodeReason::TooManyHoles,
            512 * KIB,
        ),
    ] {
        let (outcome, peak) = peak(|| decode(&text));
        report(what, &text, peak);
        assert_eq!(outcome.unwrap_err().reason, reason, "{what}");
        assert!(peak <= bound, "{what}: {peak}");
    }
    // The largest claim that is accepted costs one run, and as much to write.
    let text = format!("fvj1:[{{\"/hole\":{MAX_HOLES}}}]");
    let (again, peak) = peak(|| encode(&decode(&text).unwrap()).unwrap());
    report("the whole budget in one run", &text, peak);
    assert_eq!(again, text);
    assert!(peak <= 8 * KIB, "{peak}");
}

#[test]
fn wire_1003_the_longest_strings_cost_a_few_times_their_text() {
    for (what, text, bound) in [
        ("a plain string", filled("fvj1:\"", "x", "\""), 2),
        ("a key", filled("fvj1:{\"", "x", "\":1}"), 2),
        // The pieces between escapes are gathered in a list that doubles, and then copied once.
        ("a string with escapes", filled("fvj1:\"", "xxxxxxx\\n", "\""), 4),
        ("lone surrogates", filled("fvj1:\"", "\\ud800", "\""), 4),
        ("bytes", filled("fvj1:{\"/Bytes@1\":\"", "AAAA", "\"}"), 4),
        (
            "a regular expression",
            filled("fvj1:{\"/RegExp@1\":{\"source\":\"", "x", "\"}}"),
            4,
        ),
        ("a tag that is none", filled("fvj1:{\"/", "x", "\":1}"), 4),
        ("no end", filled("fvj1:\"", "x", ""), 1),
        ("a number", filled("fvj1:", "1", ""), 1),
    ] {
        let (outcome, peak) = peak(|| decode(&text));
        report(what, &text, peak);
        assert!(peak <= bound * text.len() as u64, "{what}: {peak}");
        let refused = ["a tag that is none", "no end"].contains(&what);
        assert_eq!(outcome.is_err(), refused, "{what}");
    }
}

#[test]
fn wire_704_messages_made_of_one_huge_string_are_refused_for_the_price_of_reading_it() {
    let request = |kind: &str, fields: &str| {
        format!(
            "fvj1:{{{fields}\"requestId\":\"r\",\"sessionId\":\"s\",\"space\":\"did:key:z\",\"type\":\"{kind}\"}}"
        )
    };
    let long = |head: &str, tail: &str| filled(head, "x", tail);
    let (sql, id, token) = ("\"sql\":\"", "\"id\":\"", "\"token\"");
    let parted = |whole: String| {
        whole
            .split_once("@@")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap()
    };
    let in_request = |kind: &str, fields: &str| {
        let (head, tail) = parted(request(kind, fields));
        long(&head, &tail)
    };
    for (what, text) in [
        ("nothing but a string", long("fvj1:\"", "\"")),
        ("no end", long("fvj1:{\"type\":\"", "")),
        ("a type", long("fvj1:{\"type\":\"", "\"}")),
        ("a key", long("fvj1:{\"", "\":1}")),
        (
            "a statement",
            in_request("sqlite.query", &format!("\"db\":{{\"id\":\"d\"}},{sql}@@\",")),
        ),
        (
            "a name",
            in_request("sqlite.query", &format!("\"db\":{{{id}@@\"}},{sql}s\",")),
        ),
        ("a commit", in_request("transact", "\"commit\":\"@@\",")),
        (
            "a list of watches",
            in_request("session.watch.set", "\"watches\":\"@@\","),
        ),
        (
            "a flag",
            long(
                "fvj1:{\"flags\":{\"modernCellRep\":\"",
                "\"},\"protocol\":\"memory\",\"type\":\"hello\"}",
            ),
        ),
        (
            "a protocol",
            long(
                &format!("fvj1:{{\"flags\":1,{token}:\""),
                "\",\"type\":\"hello\"}",
            ),
        ),
    ] {
        let (outcome, peak) = peak(|| parse_client_message(&text).map(drop));
        report(what, &text, peak);
        assert!(outcome.is_err(), "{what}");
        assert!(peak <= text.len() as u64 + 64 * KIB, "{what}: {peak}");
    }
}

#[test]
fn wire_1003_the_densest_values_cost_a_fixed_multiple_of_their_text() {
    // A quarter of a megabyte shows the factor; the largest message costs 256 times as much.
    let text = |piece: &str| format!("fvj1:[0{}]", piece.repeat((256 << 10) / piece.len()));
    for piece in [
        ",0",
        ",[]",
        ",{}",
        ",\"\"",
        ",[0]",
        ",{\"\":0}",
        ",[[]]",
        ",{\"/Symbol@1\":\"\"}",
        ",{\"/Bytes@1\":\"\"}",
        ",{\"/BigInt@1\":\"AQ\"}",
        ",{\"/EpochDay@1\":\"AQ\"}",
        ",{\"/Zork@1\":0}",
        ",{\"/Error@1\":{}}",
        ",{\"/quote\":{}}",
    ] {
        let text = text(piece);
        let (outcome, peak) = peak(|| decode(&text));
        report(piece, &text, peak);
        assert!(outcome.is_ok());
        assert!(peak <= 64 * text.len() as u64, "{piece}: {peak}");
    }
}

#[test]
fn wire_312_patches_cannot_nest_a_document_out_of_reach() {
    let document = value!({ "value": { "a": 1 } });
    // The pointer alone names the nesting: two bytes a level.
    let deep = "/a".repeat(1 << 20);
    for op in ["add", "increment", "append", "add-unique"] {
        let list = value!([{ "op": op, "path": (deep.as_str()), "value": 1, "by": 1, "values": [1] }]);
        let patches = parse_patches(&list).unwrap();
        let (outcome, peak) = peak(|| apply_patches(&document, &patches));
        println!("{op} at a pointer of {} segments: peak {peak} bytes", 1 << 20);
        let message = outcome.unwrap_err().to_string();
        assert!(
            message.starts_with("document would nest deeper than 2040 levels by the patch at /a/a"),
            "{message}"
        );
        assert!(message.len() < 200 && peak <= 16 * KIB, "{op}: {peak}");
    }
}

#[test]
fn wire_312_moves_cannot_pile_a_document_up() {
    // Each move puts the whole of what was piled up under a fresh chain of names.
    let chain = |name: &str| format!("/{name}{}", "/b".repeat(500));
    let mut operations: Vec<Value> = Vec::new();
    for n in 0..100 {
        let (from, to) = (format!("/v{n}"), format!("{}/x", chain(&format!("v{}", n + 1))));
        operations.push(value!({ "op": "move", "from": from, "path": to }));
    }
    let patches = parse_patches(&Value::from(operations)).unwrap();
    let outcome = apply_patches(&value!({ "v0": {} }), &patches);
    let message = outcome.unwrap_err().to_string();
    assert!(
        message.starts_with("document would nest deeper than 2040 levels by the patch at /v5/b"),
        "{message}"
    );
}

#[test]
fn wire_312_a_move_to_where_escapes_weigh_more_is_measured() {
    let deep = |levels: usize| (0..levels).fold(Value::from(""), |inner, _| value!({ "n": inner }));
    let document =
        |levels: usize| value!({ "p": { "q": { "r": (deep(levels)) } }, "b": { "/1": 1, "c": { "/2": 1 } } });
    let patches = parse_patches(&value!([{ "op": "move", "from": "/p/q/r", "path": "/b/c/x" }])).unwrap();
    // Two of the three objects on the new way count twice.
    assert!(apply_patches(&document(MAX_DOCUMENT_DEPTH - 5), &patches).is_ok());
    assert!(apply_patches(&document(MAX_DOCUMENT_DEPTH - 4), &patches).is_err());
}
