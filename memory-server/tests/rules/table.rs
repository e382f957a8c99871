//! A rule names a transcript, a test or the crate whose part it is; what it names has to be there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::support::vectors;

/// Rules of the server's page.
const RULES: usize = 193;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of all functions in the sources below a directory.
fn functions(directory: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            functions(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            into.extend(text.lines().filter_map(|line| {
                let (_, name) = line.split_once("fn ")?;
                Some(name.split_once('(')?.0.to_owned())
            }));
        }
    }
}

#[test]
fn every_rule_is_shown_by_something_that_is_there() {
    let mut tests = BTreeSet::new();
    for sources in [
        "memory-server",
        "memory-engine",
        "memory-wire/src",
        "memory-wire/tests",
        "runner",
        "space-server",
        "tests/scenarios",
    ] {
        functions(&workspace().join(sources), &mut tests);
    }
    let transcripts: BTreeSet<String> = vectors("server-transcripts.jsonl")
        .iter()
        .filter_map(|line| line.get("name").and_then(Json::as_str).map(str::to_owned))
        .collect();
    let (mut wrong, mut last, mut rules) = (Vec::new(), 0, 0);
    for line in include_str!("rules.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (rule, shown) = line.split_once('\t').expect("a rule and where it is shown");
        let number: u32 = rule.parse().expect("a rule's number");
        assert!(number > last, "rules are in order, each once: {number}");
        (last, rules) = (number, rules + 1);
        for shown in shown.split('\t') {
            let (kind, what) = shown.split_once(' ').expect("a kind and a name");
            let there = match kind {
                "test" => tests.contains(what),
                "transcript" => transcripts.contains(what),
                "vectors" => workspace().join("tests/vectors").join(what).exists(),
                "elsewhere" => workspace().join(what).exists(),
                kind => panic!("{kind} is no way to show a rule: {line}"),
            };
            if !there {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rules, RULES);
}
