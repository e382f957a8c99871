//! `ARCHITECTURE.md` states for each crate an invariant about what must be absent from it.

use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

/// Crates whose section must carry an `Invariant:` paragraph.
const CRATES: &[&str] = &[
    "memory-wire",
    "memory-engine",
    "memory-server",
    "runner",
    "space-server",
    "node-store",
    "state-inspector",
];

/// One finding for each crate without one.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("reading ARCHITECTURE.md")?;
    Ok(check_page(&page))
}

fn check_page(page: &str) -> Vec<Finding> {
    CRATES
        .iter()
        .filter(|name| {
            let heading = format!("## `{name}`");
            let section = page
                .split_once(heading.as_str())
                .map(|(_, rest)| rest.split("\n## ").next().unwrap_or(rest));
            !section.is_some_and(|text| text.lines().any(|line| line.starts_with("Invariant: ")))
        })
        .map(|name| Finding {
            law: "crate-invariant".into(),
            place: "ARCHITECTURE.md".into(),
            message: format!(
                "the section of `{name}` has no `Invariant: ` paragraph saying what must be absent from it"
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixture_breaks_the_law() {
        let found = check_page(include_str!("../../fixtures/crate-invariant.md"));
        assert_eq!(found.len(), CRATES.len() - 1);
        assert!(found.iter().all(|f| !f.message.contains("`runner`")));
    }
}
