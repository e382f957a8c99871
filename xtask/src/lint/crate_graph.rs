//! The only arrows allowed between our crates (architecture §2), read from `cargo metadata`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;

/// For each crate of ours, the crates of ours that it may depend on, whatever the dependency's kind.
const ALLOWED: &[(&str, &[&str])] = &[
    ("memory-wire", &[]),
    ("memory-engine", &["memory-wire"]),
    ("engine-faults", &["memory-wire", "memory-engine", "node-store"]),
    ("memory-server", &["memory-wire", "memory-engine"]),
    ("runner", &["memory-wire"]),
    ("node-store", &[]),
    (
        "space-server",
        &[
            "memory-wire",
            "memory-engine",
            "memory-server",
            "runner",
            "node-store",
        ],
    ),
    ("state-inspector", &["memory-wire", "memory-engine", "node-store"]),
    (
        "tests",
        &[
            "memory-wire",
            "memory-engine",
            "memory-server",
            "runner",
            "space-server",
            "node-store",
            "state-inspector",
        ],
    ),
    ("xtask", &[]),
];

/// Our crates and which of our crates each depends on.
pub(super) type Edges = BTreeMap<String, Vec<String>>;

/// Reads the edges of the workspace at `root`.
pub(super) fn workspace_edges(root: &Path) -> Result<Edges> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    let ours: Vec<String> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    Ok(metadata
        .packages
        .iter()
        .map(|p| {
            let edges = p
                .dependencies
                .iter()
                .map(|d| d.name.clone())
                .filter(|name| ours.contains(name))
                .collect();
            (p.name.to_string(), edges)
        })
        .collect())
}

/// One finding for each arrow that is not in [`ALLOWED`], and for each crate that the list does not know.
pub(super) fn check(edges: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (from, targets) in edges {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| name == from) else {
            findings.push(finding(
                from,
                format!("crate `{from}` is not part of the architecture"),
            ));
            continue;
        };
        for to in targets.iter().filter(|to| !allowed.contains(&to.as_str())) {
            findings.push(finding(
                from,
                format!(
                    "`{from}` may not depend on `{to}` (allowed: {})",
                    allowed.join(", ")
                ),
            ));
        }
    }
    findings
}

fn finding(crate_name: &str, message: String) -> Finding {
    Finding {
        law: "crate-graph".into(),
        place: format!("{crate_name}/Cargo.toml"),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(text: &str) -> Edges {
        text.lines()
            .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
            .map(|line| {
                let (from, to) = line.split_once("->").unwrap_or((line, ""));
                (
                    from.trim().to_owned(),
                    to.split(',')
                        .map(str::trim)
                        .filter(|t| !t.is_empty())
                        .map(String::from)
                        .collect(),
                )
            })
            .collect()
    }

    #[test]
    fn fixture_breaks_the_law() {
        let found = check(&edges(include_str!("../../fixtures/crate-graph.txt")));
        let places: Vec<&str> = found.iter().map(|f| f.place.as_str()).collect();
        assert_eq!(
            places,
            [
                "common-helpers/Cargo.toml",
                "memory-engine/Cargo.toml",
                "runner/Cargo.toml"
            ]
        );
    }

    #[test]
    fn the_workspace_keeps_it() {
        let edges = workspace_edges(&crate::workspace_root()).unwrap();
        assert!(edges.len() >= 9, "{edges:?}");
        assert_eq!(check(&edges), []);
    }
}
