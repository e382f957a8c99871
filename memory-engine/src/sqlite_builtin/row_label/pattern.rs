//! The regular expressions of row labels: ECMAScript semantics, bounded in length, shape and steps. `regress` judges their
//! syntax; [`super::matcher`] matches.

use std::cell::RefCell;
use std::rc::Rc;

use memory_wire::value::Value;
use regress::{Flags, Regex};
use rustc_hash::FxHashMap;

use super::matcher::{Fuel, OutOfFuel, Program};

/// Characters a source may have.
const MAX_SOURCE: usize = 512;
/// Properties of characters a source may name: each is a set of hundreds of ranges.
const MAX_PROPERTIES: u64 = 8;
/// What folding the case of one counts as, in steps of the matcher.
const PROPERTY_STEPS: u64 = 50_000;
/// The flags of the language; `d` changes nothing here.
const FLAGS: &str = "dgimsuvy";

/// What the rows of a commit share: each pattern compiled once, and the steps they may take together.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    compiled: RefCell<FxHashMap<(String, String), Rc<Program>>>,
    fuel: Fuel,
}

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
            Ok(program) if self.group > program.groups => Some(format!("regex has no group {}", self.group)),
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    fn compile(&self) -> Result<Program, String> {
        if self.properties() > MAX_PROPERTIES {
            return Err(format!(
                "regex not supported: more than {MAX_PROPERTIES} properties of characters"
            ));
        }
        // It only judges: case is no matter of syntax, and there is nothing to make fast.
        let judging = Flags {
            icase: false,
            no_opt: true,
            ..Flags::from(self.flags)
        };
        Regex::with_flags(self.source, judging).map_err(|error| format!("invalid regex: {error}"))?;
        Program::new(self.source, Flags::from(self.flags))
    }

    fn properties(&self) -> u64 {
        // Without these flags, the escape is of a letter.
        if !self.flags.contains(['u', 'v']) {
            return 0;
        }
        let escapes = self.source.matches("\\p{").count() + self.source.matches("\\P{").count();
        escapes as u64
    }

    fn program(&self, programs: &Programs) -> Result<Rc<Program>, String> {
        let key = (self.source.to_owned(), self.flags.to_owned());
        if let Some(known) = programs.compiled.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let program = Rc::new(self.compile()?);
        let taken = programs.fuel.take(self.properties() * PROPERTY_STEPS);
        taken.map_err(|spent| self.out_of_fuel(spent))?;
        programs.compiled.borrow_mut().insert(key, Rc::clone(&program));
        Ok(program)
    }

    fn out_of_fuel(&self, OutOfFuel: OutOfFuel) -> String {
        format!(
            "field \"{}\": the pattern takes too many steps on this text",
            self.field
        )
    }

    /// What the chosen group matched, in order: all matches with the flag `g`, else the first. With `y`, each match
    /// begins where the last one ended.
    pub(super) fn matches(&self, text: &str, programs: &Programs) -> Result<Vec<String>, String> {
        let program = self.program(programs)?;
        let (global, sticky) = (self.flags.contains('g'), self.flags.contains('y'));
        let mut found = Vec::new();
        let mut expected = 0;
        for one in program.find_iter(text, &programs.fuel) {
            let one = one.map_err(|spent| self.out_of_fuel(spent))?;
            let group = |n: usize| one.get(n).cloned().flatten();
            let whole = group(0).unwrap_or_default();
            if sticky && whole.start != expected {
                break;
            }
            expected = whole.end;
            let range =
                group(self.group).ok_or_else(|| format!("regex group {} did not take part", self.group))?;
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
