//! The source of a pattern read into a tree (ENG-1420). `regress` has judged the source before, so this room finds where
//! things end and refuses only what the matcher beside it does not know. Sets of characters stay in the hands of
//! `regress`: each is its own text under the pattern's flags, asked about one character at a time.

use std::cell::{Cell, OnceCell};
use std::ops::Range;

use regress::{Flags, Regex};
use rustc_hash::FxHashMap;

/// How often something repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) greedy: bool,
}

/// A part of a pattern.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// One character of the set with this index.
    One(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    /// A capturing group; the first is 0.
    Group(usize, Box<Node>),
    Repeat {
        body: Box<Node>,
        times: Times,
        /// The groups inside, which each turn forgets.
        groups: Range<usize>,
    },
    Look {
        body: Box<Node>,
        behind: bool,
        negated: bool,
    },
    /// `^` and `$`.
    Edge {
        end: bool,
        multiline: bool,
    },
    /// `\b` and `\B`; the set is that of the characters of words.
    Boundary {
        word: usize,
        negated: bool,
    },
    /// What these groups hold, whichever of them took part. With flags, up to case under them.
    Back(Vec<usize>, Option<Flags>),
}

/// A set of characters: whatever matches one character of the text.
#[derive(Clone, Debug)]
pub(super) enum Chars {
    Exactly(char),
    Set {
        text: String,
        flags: Flags,
        /// Built when first asked: folding the case of a property takes milliseconds.
        regex: OnceCell<Box<Regex>>,
        /// What is known of ASCII: which characters were asked about, and which of them belong.
        ascii: Cell<(u128, u128)>,
    },
}

impl Chars {
    pub(super) fn contain(&self, c: char) -> bool {
        match self {
            Chars::Exactly(only) => *only == c,
            Chars::Set {
                text,
                flags,
                regex,
                ascii,
            } => {
                let (asked, belong) = ascii.get();
                let bit = if c.is_ascii() { 1_u128 << u32::from(c) } else { 0 };
                if asked & bit != 0 {
                    return belong & bit != 0;
                }
                // At most one character can match a text of one, so this takes no longer than a look-up.
                let built = || {
                    let built = Regex::with_flags(text, *flags);
                    Box::new(built.expect("a set that is one without folding case is one with it"))
                };
                let found = regex
                    .get_or_init(built)
                    .find(c.encode_utf8(&mut [0; 4]))
                    .is_some_and(|one| !one.range.is_empty());
                ascii.set((asked | bit, belong | if found { bit } else { 0 }));
                found
            }
        }
    }
}

/// A pattern, read.
#[derive(Clone, Debug)]
pub(super) struct Syntax {
    pub(super) root: Node,
    pub(super) sets: Vec<Chars>,
    /// How many groups capture.
    pub(super) groups: usize,
}

/// Reads a source that `regress` accepts under `flags`.
///
/// # Errors
/// What of it is not supported.
pub(super) fn parse(source: &str, flags: Flags) -> Result<Syntax, String> {
    let chars: Vec<char> = source.chars().collect();
    let names = group_names(&chars, flags.unicode_sets)?;
    let mut parser = Parser {
        chars,
        at: 0,
        flags,
        names,
        groups: 0,
        sets: Vec::new(),
        known: FxHashMap::default(),
    };
    let root = parser.alternatives()?;
    if parser.at < parser.chars.len() || parser.groups != parser.names.len() {
        return Err(parser.unsupported("a group"));
    }
    Ok(Syntax {
        root,
        sets: parser.sets,
        groups: parser.groups,
    })
}

/// Where the class that opens at `at` ends, past its bracket; classes nest in sets alone.
fn class_end(chars: &[char], mut at: usize, sets: bool) -> usize {
    let mut depth = 0;
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 1,
            '[' if sets || depth == 0 => depth += 1,
            ']' if depth == 1 => return at + 1,
            ']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    chars.len()
}

/// The name of each capturing group. They are needed ahead: a reference may stand before its group.
fn group_names(chars: &[char], sets: bool) -> Result<Vec<Option<String>>, String> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '[' => at = class_end(chars, at, sets),
            '(' if chars.get(at + 1) != Some(&'?') => {
                names.push(None);
                at += 1;
            }
            '(' if chars.get(at + 2) == Some(&'<') && !matches!(chars.get(at + 3), Some('=' | '!')) => {
                names.push(Some(name(&chars[at + 3..])?));
                at += 3;
            }
            _ => at += 1,
        }
    }
    Ok(names)
}

/// A group's name, up to its bracket.
fn name(chars: &[char]) -> Result<String, String> {
    let name: String = chars.iter().take_while(|c| **c != '>').collect();
    if name.contains('\\') {
        return Err(format!(
            "regex not supported: an escape in the group name \"{name}\""
        ));
    }
    Ok(name)
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    /// Those in force here: groups may modify them.
    flags: Flags,
    names: Vec<Option<String>>,
    groups: usize,
    sets: Vec<Chars>,
    /// The sets by their text and their flags.
    known: FxHashMap<String, usize>,
}

impl Parser {
    fn unsupported(&self, what: &str) -> String {
        format!("regex not supported: {what} near character {}", self.at)
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn take(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(n, c)| self.peek(n) == Some(c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    /// Recursion follows the nesting of groups, which `regress` bounds.
    fn alternatives(&mut self) -> Result<Node, String> {
        let mut found = vec![self.sequence()?];
        while self.take("|") {
            found.push(self.sequence()?);
        }
        Ok(match found.len() {
            1 => found.remove(0),
            _ => Node::Alternatives(found),
        })
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut terms = Vec::new();
        while self.peek(0).is_some_and(|c| c != '|' && c != ')') {
            let before = self.groups;
            let term = self.term()?;
            terms.push(match self.quantifier() {
                None => term,
                Some(times) => Node::Repeat {
                    body: Box::new(term),
                    times,
                    groups: before..self.groups,
                },
            });
        }
        Ok(Node::Sequence(terms))
    }

    fn quantifier(&mut self) -> Option<Times> {
        let start = self.at;
        let (min, max) = match self.peek(0)? {
            '{' => match self.counts() {
                Some(counts) => counts,
                None => {
                    self.at = start;
                    return None;
                }
            },
            '*' => (0, usize::MAX),
            '+' => (1, usize::MAX),
            '?' => (0, 1),
            _ => return None,
        };
        self.at = self.at.max(start + 1);
        let greedy = !self.take("?");
        Some(Times { min, max, greedy })
    }

    fn counts(&mut self) -> Option<(usize, usize)> {
        self.at += 1;
        let min = self.number()?;
        let max = if self.take(",") {
            self.number().unwrap_or(usize::MAX)
        } else {
            min
        };
        self.take("}").then_some((min, max))
    }

    fn number(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(digit) = self.peek(0).and_then(|c| c.to_digit(10)) {
            let tens = number.unwrap_or(0_usize).saturating_mul(10);
            number = Some(tens.saturating_add(digit as usize));
            self.at += 1;
        }
        number
    }

    fn term(&mut self) -> Result<Node, String> {
        if self.take("^") || self.take("$") {
            return Ok(Node::Edge {
                end: self.chars[self.at - 1] == '$',
                multiline: self.flags.multiline,
            });
        }
        match self.peek(0) {
            Some('(') => self.group(),
            Some('[') => {
                let end = class_end(&self.chars, self.at, self.flags.unicode_sets);
                self.one(end)
            }
            Some('\\') => self.escape(),
            _ => self.one(self.at + 1),
        }
    }

    fn group(&mut self) -> Result<Node, String> {
        let flags = self.flags;
        for (text, behind, negated) in [
            ("(?=", false, false),
            ("(?!", false, true),
            ("(?<=", true, false),
            ("(?<!", true, true),
        ] {
            if self.take(text) {
                let body = Box::new(self.closed()?);
                return Ok(Node::Look {
                    body,
                    behind,
                    negated,
                });
            }
        }
        if self.take("(?<") {
            self.at += name(&self.chars[self.at..])?.chars().count() + 1;
        } else if self.take("(?") {
            self.modify()?;
            let body = self.closed();
            self.flags = flags;
            return body;
        } else {
            self.at += 1;
        }
        let index = self.groups;
        self.groups += 1;
        Ok(Node::Group(index, Box::new(self.closed()?)))
    }

    fn closed(&mut self) -> Result<Node, String> {
        let body = self.alternatives()?;
        if self.take(")") {
            Ok(body)
        } else {
            Err(self.unsupported("a group without an end"))
        }
    }

    /// The flags a group modifies, up to its colon: `i-m:`.
    fn modify(&mut self) -> Result<(), String> {
        let mut on = true;
        while !self.take(":") {
            match self.peek(0) {
                Some('i') => self.flags.icase = on,
                Some('m') => self.flags.multiline = on,
                Some('s') => self.flags.dot_all = on,
                Some('-') => on = false,
                _ => return Err(self.unsupported("a modifier")),
            }
            self.at += 1;
        }
        Ok(())
    }

    fn escape(&mut self) -> Result<Node, String> {
        let unicode = self.flags.unicode;
        let named = self.names.iter().any(Option::is_some);
        let folded = self.flags.icase.then_some(self.flags);
        match self.peek(1) {
            Some(c @ ('b' | 'B')) => {
                self.at += 2;
                // Case widens the characters of words under `u` alone.
                let flags = self.flags;
                self.flags.icase &= unicode;
                let word = self.set("\\w", false)?;
                self.flags = flags;
                Ok(Node::Boundary {
                    word,
                    negated: c == 'B',
                })
            }
            Some('1'..='9') => {
                let start = self.at;
                self.at += 1;
                match self.number() {
                    Some(group) if group <= self.names.len() => Ok(Node::Back(vec![group - 1], folded)),
                    _ => {
                        self.at = start;
                        self.one(start + 1 + self.octal())
                    }
                }
            }
            Some('k') if unicode || named => {
                let name = name(self.chars.get(self.at + 3..).unwrap_or_default())?;
                self.at += 3 + name.chars().count() + 1;
                let groups = (0..self.names.len()).filter(|n| self.names[*n].as_ref() == Some(&name));
                Ok(Node::Back(groups.collect(), folded))
            }
            Some('0') => self.one(self.at + 1 + self.octal()),
            Some('c') if !self.peek(2).is_some_and(|c| c.is_ascii_alphabetic()) => {
                // The backslash stands for itself; what follows is read as if it did not stand there.
                self.at += 1;
                self.set("\\\\", false).map(Node::One)
            }
            Some('c') => self.one(self.at + 3),
            Some('p' | 'P') if unicode || self.flags.unicode_sets => {
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|c| *c == '}').unwrap_or(rest.len());
                self.one(self.at + length + 1)
            }
            Some('x') if self.hex(2, 2) => self.one(self.at + 4),
            Some('u') => self.unicode_escape(),
            _ => self.one(self.at + 2),
        }
    }

    /// How many digits the escape here has as an octal number; a digit that is none stands for itself.
    fn octal(&self) -> usize {
        let most = match self.peek(1) {
            Some('0'..='3') => 3,
            Some('4'..='7') => 2,
            _ => 1,
        };
        let digits = (1..=most).take_while(|n| self.peek(*n).is_some_and(|c| c.is_digit(8)));
        digits.count().max(1)
    }

    fn hex(&self, from: usize, digits: usize) -> bool {
        (from..from + digits).all(|n| self.peek(n).is_some_and(|c| c.is_ascii_hexdigit()))
    }

    fn unicode_escape(&mut self) -> Result<Node, String> {
        if self.peek(2) == Some('{') {
            let rest = &self.chars[self.at + 3..];
            let digits: String = rest.iter().take_while(|c| **c != '}').collect();
            return match u32::from_str_radix(&digits, 16) {
                _ if digits.starts_with('+') => Err(self.unsupported("a signed escape")),
                Ok(code) if code <= u32::from(char::MAX) => self.one(self.at + 4 + digits.len()),
                _ => self.one(self.at + 2),
            };
        }
        if self.peek(2) == Some('+') {
            return Err(self.unsupported("a signed escape"));
        }
        if !self.hex(2, 4) {
            return self.one(self.at + 2);
        }
        let unit = |at: usize| {
            let digits: String = self.chars[at + 2..at + 6].iter().collect();
            u32::from_str_radix(&digits, 16).unwrap_or_default()
        };
        let pair = self.peek(6) == Some('\\') && self.peek(7) == Some('u');
        if !(0xD800..=0xDBFF).contains(&unit(self.at)) || !pair {
            return self.one(self.at + 6);
        }
        if self.hex(8, 4) && (0xDC00..=0xDFFF).contains(&unit(self.at + 6)) {
            return self.one(self.at + 12);
        }
        Err(self.unsupported("half of a surrogate pair before another escape"))
    }

    /// The set whose text ends before `end`.
    fn one(&mut self, end: usize) -> Result<Node, String> {
        let start = self.at;
        let text: String = self.chars.get(start..end).unwrap_or_default().iter().collect();
        let set = self.set(&text, text.starts_with('['))?;
        self.at = end;
        Ok(Node::One(set))
    }

    fn set(&mut self, text: &str, class: bool) -> Result<usize, String> {
        let key = format!("{}/{text}", self.flags);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        // Strings within a set match more than one character.
        if self.flags.unicode_sets && (text.contains("\\q") || strings(text)) {
            return Err(self.unsupported("a set of strings"));
        }
        let mut chars = text.chars();
        let set = match (chars.next(), chars.next()) {
            (Some(c), None) if c != '.' && !self.flags.icase && !class => Chars::Exactly(c),
            _ => {
                let exact = Flags {
                    icase: false,
                    no_opt: true,
                    ..self.flags
                };
                Regex::with_flags(text, exact).map_err(|_| self.unsupported(text))?;
                Chars::Set {
                    text: text.to_owned(),
                    flags: self.flags,
                    regex: OnceCell::new(),
                    ascii: Cell::default(),
                }
            }
        };
        self.sets.push(set);
        self.known.insert(key, self.sets.len() - 1);
        Ok(self.sets.len() - 1)
    }
}

/// Whether a property in the text is one of strings: those are no properties of characters.
fn strings(text: &str) -> bool {
    let names = text
        .split("\\p{")
        .skip(1)
        .filter_map(|rest| rest.split('}').next());
    names
        .into_iter()
        .any(|name| Regex::with_flags(&format!("\\p{{{name}}}"), "u").is_err())
}
