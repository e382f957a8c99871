//! The patterns of `LIKE` and `GLOB`, as SQLite matches them: with each piece of work counted. Used by
//! [`metered`](super::metered).

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// `%` and `_`, letters of ASCII in any case, an escape character.
    Like,
    /// `*`, `?` and sets in brackets.
    Glob,
}

/// Pieces of work between two looks at what is left.
const LOOK: usize = 4_096;
/// Pieces of work that count as a step.
const PIECES_A_STEP: usize = 4;

#[derive(Debug)]
enum Token {
    /// Any characters, or none.
    Run,
    One,
    Exactly(char),
    /// Ranges, or everything but them.
    Set {
        ranges: Vec<(char, char)>,
        inverted: bool,
    },
    /// What is not well-formed matches nothing.
    Never,
}

/// A pattern taken apart.
#[derive(Debug)]
pub(super) struct Pattern {
    kind: Kind,
    tokens: Vec<Token>,
}

/// Texts end at a NUL, as for SQLite.
fn up_to_nul(text: &str) -> &str {
    text.split('\0').next().unwrap_or_default()
}

impl Pattern {
    pub(super) fn read(kind: Kind, text: &str, escape: Option<char>) -> Pattern {
        let mut rest = up_to_nul(text).chars().peekable();
        let mut tokens = Vec::new();
        while let Some(character) = rest.next() {
            let token = match (kind, character) {
                (Kind::Like, character) if Some(character) == escape => {
                    rest.next().map_or(Token::Never, Token::Exactly)
                }
                (Kind::Like, '%') | (Kind::Glob, '*') => {
                    if matches!(tokens.last(), Some(Token::Run)) {
                        continue;
                    }
                    Token::Run
                }
                (Kind::Like, '_') | (Kind::Glob, '?') => Token::One,
                (Kind::Glob, '[') => set(&mut rest),
                (_, character) => Token::Exactly(character),
            };
            tokens.push(token);
        }
        Pattern { kind, tokens }
    }

    /// Whether the text matches; `take` is told of the steps on the way, and may end it.
    pub(super) fn matches<E>(&self, text: &str, take: impl Fn(usize) -> Result<(), E>) -> Result<bool, E> {
        let mut work = 0;
        let (mut rest, mut at) = (up_to_nul(text), 0);
        // The last run that was passed, and where what follows it was tried.
        let mut last: Option<(usize, &str)> = None;
        loop {
            work += 1;
            if let Some(Token::Set { ranges, .. }) = self.tokens.get(at) {
                work += ranges.len();
            }
            if work >= LOOK {
                take(work / PIECES_A_STEP)?;
                work = 0;
            }
            match (self.tokens.get(at), rest.chars().next()) {
                (Some(Token::Run), _) => {
                    at += 1;
                    last = Some((at, rest));
                    continue;
                }
                (Some(token), Some(character)) if self.accepts(token, character) => {
                    at += 1;
                    rest = &rest[character.len_utf8()..];
                    continue;
                }
                (None, None) => return take(work / PIECES_A_STEP).map(|()| true),
                _ => {}
            }
            // The run takes one character more.
            let Some((after, tried)) = last else {
                return take(work / PIECES_A_STEP).map(|()| false);
            };
            let Some(character) = tried.chars().next() else {
                return take(work / PIECES_A_STEP).map(|()| false);
            };
            rest = &tried[character.len_utf8()..];
            (last, at) = (Some((after, rest)), after);
        }
    }

    fn accepts(&self, token: &Token, character: char) -> bool {
        match token {
            Token::Run | Token::Never => false,
            Token::One => true,
            Token::Exactly(expected) => match self.kind {
                Kind::Like => expected.eq_ignore_ascii_case(&character),
                Kind::Glob => *expected == character,
            },
            Token::Set { ranges, inverted } => {
                let is_in = ranges.iter().any(|(from, to)| (*from..=*to).contains(&character));
                is_in != *inverted
            }
        }
    }
}

/// A set after its opening bracket. One that does not end matches nothing.
fn set(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Token {
    let mut ranges = Vec::new();
    let inverted = rest.next_if_eq(&'^').is_some();
    if rest.next_if_eq(&']').is_some() {
        ranges.push((']', ']'));
    }
    let mut before: Option<char> = None;
    while let Some(character) = rest.next() {
        match (character, before, rest.peek()) {
            (']', ..) => return Token::Set { ranges, inverted },
            ('-', Some(from), Some(next)) if *next != ']' => {
                if let Some(to) = rest.next() {
                    ranges.push((from, to));
                }
                before = None;
            }
            (character, ..) => {
                ranges.push((character, character));
                before = Some(character);
            }
        }
    }
    Token::Never
}
