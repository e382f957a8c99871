//! Where each rule of the crate's page is shown (`rules.tsv`). What a line names has to be there.

use std::path::Path;

/// The rules of the page.
const RULES: [u32; 28] = [
    1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35, 36,
];

/// All source text below a directory; none if the crate is taken alone and the directory is not there.
fn sources(directory: &Path) -> Option<String> {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).ok()? {
        let path = entry.ok()?.path();
        if path.is_dir() {
            text += &sources(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path).ok()?;
        }
    }
    Some(text)
}

#[test]
fn every_rule_is_shown_by_something_that_is_there() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = sources(&here.join("src")).unwrap() + &sources(&here.join("tests")).unwrap();
    let faults = sources(&here.join("../memory-engine/faults/tests"));
    let (mut shown, mut wrong, mut last) = (Vec::new(), Vec::new(), 0);
    for line in include_str!("rules.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (rule, what) = line.split_once('\t').expect("a rule and where it is shown");
        let rule: u32 = rule.parse().expect("a rule's number");
        assert!(rule >= last, "rules are in order: {line}");
        last = rule;
        let function = |name: &str| format!("#[test]\nfn {name}(");
        let there = match what.split_once(' ') {
            Some(("doctest", file)) => {
                std::fs::read_to_string(here.join(file)).is_ok_and(|text| text.contains("```compile_fail,E"))
            }
            Some(("faults", name)) => faults
                .as_ref()
                .is_none_or(|faults| faults.contains(&function(name))),
            Some(other) => panic!("{other:?}"),
            // A test of a property stands within its macro, one of a module is indented.
            None => tests.contains(&format!("fn {what}(")),
        };
        if there {
            shown.push(rule);
        } else {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    shown.dedup();
    assert_eq!(shown, RULES);
}
