//! The regular expressions of row labels: ECMAScript semantics, bounded in length and shape.

use memory_wire::value::Value;
use regress::{Flags, Regex};

/// Characters a source may have.
const MAX_SOURCE: usize = 512;
/// The flags of the language; `d` changes nothing here.
const FLAGS: &str = "dgimsuvy";

/// A `match` operand, read.
pub(super) struct Pattern<'v> {
    pub(super) field: &'v str,
    source: &'v str,
    flags: &'v str,
    group: usize,
    pub(super) min: usize,
}

impl<'v> Pattern<'v> {
    pub(super) fn read(operand: &'v Value) -> Result<Pattern<'v>, String> {
        let text = |name: &str| operand.member(name).and_then(Value::as_str);
        let count = |name: &str| match operand.member(name) {
            None => Ok(0),
            Some(value) => {
                let n = value.as_u64().and_then(|n| usize::try_from(n).ok());
                n.ok_or_else(|| format!("match.{name} must be a non-negative integer"))
            }
        };
        Ok(Pattern {
            field: text("field").ok_or("match.field must be a column name")?,
            source: text("source").ok_or("match.source must be a string")?,
            flags: text("flags").ok_or("match.flags must be a string")?,
            group: count("group")?,
            min: count("min")?,
        })
    }

    /// Why the pattern may not be declared.
    pub(super) fn invalid(&self) -> Option<String> {
        if self.source.chars().count() > MAX_SOURCE {
            return Some(format!("regex source is longer than {MAX_SOURCE} characters"));
        }
        let repeated = self
            .flags
            .char_indices()
            .any(|(before, c)| self.flags[..before].contains(c));
        if repeated || !self.flags.chars().all(|c| FLAGS.contains(c)) {
            return Some(format!("invalid regex flags \"{}\"", self.flags));
        }
        if nested_quantifier(self.source) {
            return Some("regex fails the safety lint (nested quantifier — ReDoS risk)".to_owned());
        }
        match self.compile() {
            Ok(_) if self.group > self.groups() => Some(format!("regex has no group {}", self.group)),
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    fn compile(&self) -> Result<Regex, String> {
        Regex::with_flags(self.source, Flags::from(self.flags))
            .map_err(|error| format!("invalid regex: {error}"))
    }

    /// How many groups the source has: with an empty alternative it matches anything, and a match lists every group.
    fn groups(&self) -> usize {
        let lenient = Regex::with_flags(&format!("(?:{})|", self.source), Flags::from(self.flags));
        lenient
            .ok()
            .and_then(|regex| regex.find(""))
            .map_or(0, |one| one.captures.len())
    }

    /// What the chosen group matched, in order: all matches with the flag `g`, else the first. With `y`, each match
    /// begins where the last one ended.
    pub(super) fn matches(&self, text: &str) -> Result<Vec<String>, String> {
        let regex = self.compile()?;
        let (global, sticky) = (self.flags.contains('g'), self.flags.contains('y'));
        let mut found = Vec::new();
        let mut expected = 0;
        for one in regex.find_iter(text) {
            if sticky && one.start() != expected {
                break;
            }
            expected = one.end();
            let range = one
                .group(self.group)
                .ok_or_else(|| format!("regex group {} did not take part", self.group))?;
            found.push(text[range].to_owned());
            if !global {
                break;
            }
        }
        Ok(found)
    }
}

/// A quantified group that holds a quantifier: `(a+)+`.
fn nested_quantifier(source: &str) -> bool {
    let chars: Vec<char> = source.chars().collect();
    let quantifier = |at: usize| match chars.get(at) {
        Some('*' | '+') => true,
        Some('{') => chars.get(at + 1).is_some_and(char::is_ascii_digit),
        _ => false,
    };
    // For each open group, whether a quantifier occurred in it.
    let mut open: Vec<bool> = Vec::new();
    let mut at = 0;
    let mut in_class = false;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 1,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => open.push(false),
            ')' if !in_class => {
                let quantified_inside = open.pop().unwrap_or(false);
                if quantified_inside && quantifier(at + 1) {
                    return true;
                }
                if let Some(around) = open.last_mut() {
                    *around |= quantified_inside || quantifier(at + 1);
                }
            }
            _ if !in_class && quantifier(at) => {
                if let Some(around) = open.last_mut() {
                    *around = true;
                }
            }
            _ => {}
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eng_1420_nested_quantifiers_are_found() {
        for source in ["(a+)+", "(a*)*", "(?:x(a+)y)*", "(a{2,})+", "((a+)b)+"] {
            assert!(nested_quantifier(source), "{source}");
        }
        for source in [
            "a+b+",
            "(a+)",
            "(a)+",
            "[(a+)]+",
            r"\(a+\)+",
            "(a?)b",
            "[^\\s<>,]+@[^\\s<>,]+",
        ] {
            assert!(!nested_quantifier(source), "{source}");
        }
    }
}
