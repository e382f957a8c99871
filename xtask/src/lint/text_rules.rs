//! Laws that a pattern can see. The table is `xtask/lint.toml`; each exception there carries its reason, and
//! `xtask/fixtures/<rule>.rs` breaks the rule.

use std::path::Path;

use anyhow::{Context, Result};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::{Finding, SourceFile, Sources};

/// One rule of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    /// Name; also the fixture's file name.
    name: String,
    /// Why the law exists.
    why: String,
    /// Regular expression, case-insensitive unless `case_sensitive`.
    pattern: String,
    #[serde(default)]
    case_sensitive: bool,
    /// Path prefixes (relative to the workspace) that the rule covers.
    scope: Vec<String>,
    /// Path prefixes inside the scope that it does not cover; each is a definition site, not an exception.
    #[serde(default)]
    outside: Vec<String>,
    /// Recorded exceptions.
    #[serde(default)]
    allow: Vec<Allow>,
}

/// A recorded exception: lines of `path` that contain `text`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    path: String,
    text: String,
    reason: String,
}

#[derive(Deserialize)]
struct Table {
    rule: Vec<Rule>,
}

/// Reads the table.
pub(super) fn load(path: &Path) -> Result<Vec<Rule>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("parsing {}", path.display()))?;
    Ok(table.rule)
}

/// Applies every rule to the product code it covers; an exception that no longer matches anything is a finding too.
pub(super) fn check(rules: &[Rule], sources: &Sources) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for rule in rules {
        let pattern = rule.compile()?;
        let mut used = vec![false; rule.allow.len()];
        for file in sources.files.iter().filter(|f| rule.covers(&f.path)) {
            findings.extend(rule.check_file(&pattern, file, &mut used));
        }
        for (allow, _) in rule.allow.iter().zip(used).filter(|(_, used)| !used) {
            findings.push(Finding {
                law: rule.name.clone(),
                place: "xtask/lint.toml".into(),
                message: format!(
                    "the exception for {} (`{}`: {}) matches nothing; remove it",
                    allow.path, allow.text, allow.reason
                ),
            });
        }
    }
    Ok(findings)
}

impl Rule {
    fn compile(&self) -> Result<Regex> {
        RegexBuilder::new(&self.pattern)
            .case_insensitive(!self.case_sensitive)
            .build()
            .with_context(|| format!("pattern of rule {}", self.name))
    }

    fn covers(&self, path: &str) -> bool {
        let tests_only = path.contains("/tests/")
            || path.contains("/benches/")
            || path.contains("/examples/")
            || path.starts_with("tests/");
        !tests_only
            && self.scope.iter().any(|prefix| path.starts_with(prefix.as_str()))
            && !self
                .outside
                .iter()
                .any(|prefix| path.starts_with(prefix.as_str()))
    }

    fn check_file(&self, pattern: &Regex, file: &SourceFile, used: &mut [bool]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, line) in file.product_text().lines().enumerate() {
            let code = line.trim_start();
            // Prose may name what code may not use.
            if code.starts_with("//") || !pattern.is_match(line) {
                continue;
            }
            let exception = self
                .allow
                .iter()
                .position(|a| file.path == a.path && line.contains(&a.text));
            match exception {
                Some(at) => used[at] = true,
                None => findings.push(Finding {
                    law: self.name.clone(),
                    place: format!("{}:{}", file.path, index + 1),
                    message: format!("`{}`: {}", code.trim_end(), self.why),
                }),
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_fixture_that_breaks_it() {
        let root = crate::workspace_root();
        for rule in load(&root.join("xtask/lint.toml")).unwrap() {
            let path = root.join(format!("xtask/fixtures/{}.rs", rule.name));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let broken = text.lines().filter(|l| l.contains("// breaks")).count();
            let file = SourceFile {
                path: format!("{}fixture.rs", rule.scope[0]),
                text,
            };
            let found = rule.check_file(
                &rule.compile().unwrap(),
                &file,
                &mut vec![false; rule.allow.len()],
            );
            assert!(broken > 0, "{} marks no line with `// breaks`", path.display());
            assert_eq!(found.len(), broken, "rule {}: {found:#?}", rule.name);
        }
    }

    #[test]
    fn every_exception_states_a_reason() {
        for rule in load(&crate::workspace_root().join("xtask/lint.toml")).unwrap() {
            assert!(
                rule.allow.iter().all(|a| a.reason.len() > 10),
                "rule {}",
                rule.name
            );
        }
    }

    #[test]
    fn unused_exception_is_a_finding() {
        let rule: Rule = toml::from_str(
            "name='x'\nwhy='y'\npattern='zzz'\nscope=['a/']\nallow=[{path='a/b.rs',text='zzz',reason='no longer there'}]",
        )
        .unwrap();
        assert_eq!(check(&[rule], &Sources { files: Vec::new() }).unwrap().len(), 1);
    }
}
