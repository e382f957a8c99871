//! `cargo xtask lint`: the project's own laws, each with a fixture that breaks it (see `xtask/fixtures`).
//!
//! Laws about text live in `xtask/lint.toml` (pattern, scope, exceptions with reasons); laws about structure
//! are the modules here. A finding names the law, the place and why the law exists.

mod crate_graph;
mod invariants;
mod module_docs;
mod protocol_pin;
mod text_rules;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A broken law.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the law.
    pub(crate) law: String,
    /// File, and line where there is one.
    pub(crate) place: String,
    /// What was found and why it is refused.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] {}", self.place, self.law, self.message)
    }
}

/// Lines above which a file appears in the size report. A report, not a law: a long file may still be one room.
const LONG_FILE: usize = 600;

/// Runs every law over the workspace at `root`; true when nothing was found.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let sources = Sources::read(root)?;
    let rules = text_rules::load(&root.join("xtask/lint.toml"))?;
    let mut findings = crate_graph::check(&crate_graph::workspace_edges(root)?);
    findings.extend(text_rules::check(&rules, &sources)?);
    findings.extend(module_docs::check(&sources));
    findings.extend(protocol_pin::check(root)?);
    findings.extend(invariants::check(root)?);

    println!("files over {LONG_FILE} lines (report only):");
    let mut long: Vec<(usize, &str)> = sources
        .files
        .iter()
        .map(|f| (f.text.lines().count(), f.path.as_str()))
        .filter(|(n, _)| *n > LONG_FILE)
        .collect();
    long.sort_unstable_by(|a, b| b.cmp(a));
    for (lines, path) in &long {
        println!("  {lines:5}  {path}");
    }
    if long.is_empty() {
        println!("  none");
    }
    for finding in &findings {
        println!("{finding}");
    }
    println!(
        "lint: {} text rules, {} source files, {} findings",
        rules.len(),
        sources.files.len(),
        findings.len()
    );
    Ok(findings.is_empty())
}

/// The Rust sources of the workspace, paths relative to its root with `/` separators.
pub(crate) struct Sources {
    pub(crate) files: Vec<SourceFile>,
}

/// One Rust file.
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// The text before the unit tests: laws about product code do not bind the tests beside it.
    pub(crate) fn product_text(&self) -> &str {
        match self.text.find("#[cfg(test)]\nmod ") {
            Some(at) => &self.text[..at],
            None => &self.text,
        }
    }
}

impl Sources {
    fn read(root: &Path) -> Result<Sources> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(root).with_context(|| format!("reading {}", root.display()))? {
            let crate_dir = entry?.path();
            if crate_dir.join("Cargo.toml").is_file() {
                collect(root, &crate_dir, &mut files)?;
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Sources { files })
    }
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !matches!(
                name,
                "fixtures" | "target" | "node_modules" | "corpus" | "artifacts"
            ) && !name.starts_with('.')
            {
                collect(root, &path, files)?;
            }
        } else if name.ends_with(".rs") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let relative = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .to_string_lossy()
                .replace('\\', "/");
            files.push(SourceFile { path: relative, text });
        }
    }
    Ok(())
}
