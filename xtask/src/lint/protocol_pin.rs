//! The protocol modules and their page change together: `memory-wire/PROTOCOL.md` lists the modules and pins
//! the hash of their bytes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::Finding;

const PAGE: &str = "memory-wire/PROTOCOL.md";
const PIN: &str = "protocol-modules-sha256: ";
const LIST: &str = "protocol-modules: ";

/// Compares the pinned hash with the modules' bytes.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("reading {PAGE}"))?;
    let actual = modules_hash(&root.join("memory-wire/src"), &modules(&page)?)?;
    Ok(compare(&page, &actual))
}

fn compare(page: &str, actual: &str) -> Vec<Finding> {
    let pinned = page
        .lines()
        .find_map(|line| line.trim().strip_prefix(PIN))
        .map(str::trim);
    if pinned == Some(actual) {
        return Vec::new();
    }
    vec![Finding {
        law: "protocol-pin".into(),
        place: PAGE.into(),
        message: format!(
            "the protocol modules hash to {actual}, the page pins {}: read what changed, bring the page up to date, then pin the new hash",
            pinned.unwrap_or("nothing"),
        ),
    }]
}

/// Paths (relative to `memory-wire/src`) that the page lists; a directory stands for every `.rs` file below it.
fn modules(page: &str) -> Result<Vec<String>> {
    let Some(list) = page.lines().find_map(|line| line.trim().strip_prefix(LIST)) else {
        bail!("{PAGE} has no line `{LIST}…`");
    };
    Ok(list.split_whitespace().map(String::from).collect())
}

/// SHA-256 over each file's path, a zero byte, its bytes and a zero byte, in path order.
fn modules_hash(src: &Path, modules: &[String]) -> Result<String> {
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    for module in modules {
        expand(src, &src.join(module), &mut files)?;
    }
    files.sort();
    let mut hasher = Sha256::new();
    for (name, path) in files {
        hasher.update(name.as_bytes());
        hasher.update([0]);
        hasher.update(std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        hasher.update([0]);
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn expand(src: &Path, path: &Path, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            expand(src, &entry?.path(), files)?;
        }
    } else if path.extension().is_some_and(|e| e == "rs") {
        let name = path
            .strip_prefix(src)
            .unwrap_or(path)
            .to_string_lossy()
            .replace('\\', "/");
        files.push((name, path.to_owned()));
    } else {
        bail!(
            "{PAGE} lists {}, which is neither a module nor a directory",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixture_breaks_the_law() {
        let page = include_str!("../../fixtures/protocol-pin.md");
        assert_eq!(modules(page).unwrap(), ["scope_key.rs", "codec"]);
        assert_eq!(compare(page, "1111").len(), 1);
        assert_eq!(compare(page, "00ff").len(), 0);
    }

    #[test]
    fn any_byte_of_a_module_counts() {
        let dir = std::env::temp_dir().join(format!("protocol-pin-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("codec")).unwrap();
        std::fs::write(dir.join("codec/mod.rs"), "a").unwrap();
        let list = ["codec".to_owned()];
        let before = modules_hash(&dir, &list).unwrap();
        std::fs::write(dir.join("codec/mod.rs"), "b").unwrap();
        assert_ne!(before, modules_hash(&dir, &list).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
