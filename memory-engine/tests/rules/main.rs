//! Where each rule of the engine's page is shown (`rules.tsv`), and the few that are shown nowhere else. A rule names a
//! vector, a test or the crate whose part it is; what it names has to be there.

#[path = "../support/admission/mod.rs"]
mod admission;
mod history;
mod oracle;
mod stored_data;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn lines(vectors: &str) -> Vec<Json> {
    let text = std::fs::read_to_string(workspace().join("tests/vectors").join(vectors)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// All source text below a directory.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path).unwrap();
        }
    }
    text
}

/// The source text of another crate of the workspace.
fn shown_elsewhere(of: &str) -> String {
    let there = workspace().join(of);
    sources(&there.join("src")) + &sources(&there.join("tests"))
}

/// Sections of the page and how many rules each has.
const SECTIONS: [(u32, usize); 17] = [
    (0, 3),
    (1, 36),
    (2, 9),
    (3, 41),
    (4, 19),
    (5, 23),
    (6, 15),
    (7, 6),
    (8, 4),
    (9, 8),
    (10, 39),
    (11, 1),
    (12, 4),
    (13, 2),
    (14, 12),
    (15, 2),
    (16, 2),
];

#[test]
fn every_rule_is_shown_by_something_that_is_there() {
    let named = |file: &str, key: &str| -> Vec<String> {
        let name = |line: &Json| line.get(key).and_then(Json::as_str).map(str::to_owned);
        lines(file).iter().filter_map(name).collect()
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = sources(&here.join("src")) + &sources(&here.join("tests")) + &sources(&here.join("faults"));
    let vectors: BTreeMap<&str, Vec<String>> = [
        ("scenario", named("engine-scenarios.jsonl", "name")),
        ("schema", named("engine-schema.jsonl", "name")),
        ("misc", named("engine-misc.jsonl", "kind")),
        ("query", named("engine-query.jsonl", "kind")),
        ("patch", named("engine-patch.jsonl", "kind")),
        ("stores", named("stores/stores.jsonl", "kind")),
    ]
    .into();
    let (mut wrong, mut open) = (Vec::new(), Vec::new());
    let mut sections: BTreeMap<u32, usize> = BTreeMap::new();
    let mut last = 0;
    for line in include_str!("rules.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (rule, shown) = line.split_once('\t').expect("a rule and where it is shown");
        let number: u32 = rule.parse().expect("a rule's number");
        assert!(number > last, "rules are in order, each once: {number}");
        last = number;
        *sections.entry(number / 100).or_default() += 1;
        let (kind, what) = shown.split_once(' ').expect("a kind and a name");
        let there = match kind {
            "test" => tests.contains(&format!("fn {what}(")),
            "open" => {
                open.push(number);
                true
            }
            "elsewhere" => {
                let (of, test) = what.split_once(' ').expect("a crate and a test of it");
                shown_elsewhere(of).contains(&format!("fn {test}("))
            }
            kind => vectors
                .get(kind)
                .unwrap_or_else(|| panic!("{line}"))
                .iter()
                .any(|name| name.starts_with(what)),
        };
        if !there {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(open, [625]);
    let counted: Vec<(u32, usize)> = sections.into_iter().collect();
    assert_eq!(counted, SECTIONS);
}
