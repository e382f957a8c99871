//! Every module begins by saying what lives in it (architecture §9).

use super::{Finding, SourceFile, Sources};

/// One finding for each file whose first line is not a module comment, and for each room named after nothing.
pub(super) fn check(sources: &Sources) -> Vec<Finding> {
    sources.files.iter().flat_map(check_file).collect()
}

/// File names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "misc", "types"];

fn check_file(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let first = file
        .text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("#!"));
    if !first.is_some_and(|line| line.starts_with("//!") && line.len() > 12) {
        findings.push(Finding {
            law: "module-docs".into(),
            place: format!("{}:1", file.path),
            message: "a module begins with `//!` lines: what lives here, who may call it, which rules".into(),
        });
    }
    let named_for_nothing = file
        .path
        .split('/')
        .any(|part| EMPTY_NAMES.contains(&part.trim_end_matches(".rs")));
    if named_for_nothing {
        findings.push(Finding {
            law: "module-names".into(),
            place: file.path.clone(),
            message: "a file is named for the thing it holds (architecture §9)".into(),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixture_breaks_the_law() {
        let text = include_str!("../../fixtures/module-docs.rs").to_owned();
        let found = check_file(&SourceFile {
            path: "runner/src/utils.rs".into(),
            text,
        });
        let laws: Vec<&str> = found.iter().map(|f| f.law.as_str()).collect();
        assert_eq!(laws, ["module-docs", "module-names"]);
    }
}
