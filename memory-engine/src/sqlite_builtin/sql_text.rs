//! SQL text cut into tokens: just enough to tell words, names, literals and parameters apart. Nothing is understood
//! here; what is not plainly one thing is [`Token::Other`]. Used by the guard and by target parsing.

/// One token; comments and white space are none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A bare word: keyword or identifier, as written.
    Word(String),
    /// An identifier in `"…"`, `` `…` `` or `[…]`, without its quotes.
    Quoted(String),
    /// A string or blob literal.
    Literal,
    /// A number.
    Number,
    /// A bare `?`.
    Positional,
    /// `?1`, `:name`, `@name`, `$name`.
    NamedParameter,
    /// Any other character.
    Other(char),
}

impl Token {
    /// True for a bare word that is `keyword`, whatever its case.
    pub(super) fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    pub(super) fn is_char(&self, c: char) -> bool {
        *self == Token::Other(c)
    }

    /// The name, if the token can be one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Token::Word(name) | Token::Quoted(name) => Some(name),
            Token::Literal | Token::Number | Token::Positional | Token::NamedParameter | Token::Other(_) => {
                None
            }
        }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_word(c: char) -> bool {
    is_word_start(c) || c.is_ascii_digit() || c == '$'
}

/// The tokens of `sql`. An unterminated literal, name or comment runs to the end.
pub(super) fn tokens(sql: &str) -> Vec<Token> {
    let chars: Vec<char> = sql.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        match c {
            _ if c.is_whitespace() => at += 1,
            '-' if next == Some('-') => {
                at = chars[at..]
                    .iter()
                    .position(|c| *c == '\n')
                    .map_or(chars.len(), |n| at + n + 1);
            }
            '/' if next == Some('*') => {
                let close = chars[at + 2..].windows(2).position(|pair| pair == ['*', '/']);
                at = close.map_or(chars.len(), |n| at + 2 + n + 2);
            }
            '\'' => {
                tokens.push(Token::Literal);
                at = closed(&chars, at, '\'').1;
            }
            '"' | '`' => {
                let (name, end) = closed(&chars, at, c);
                tokens.push(Token::Quoted(name));
                at = end;
            }
            '[' => {
                let end = chars[at..]
                    .iter()
                    .position(|c| *c == ']')
                    .map_or(chars.len(), |n| at + n);
                tokens.push(Token::Quoted(chars[at + 1..end].iter().collect()));
                at = end + 1;
            }
            '?' => {
                let digits = chars[at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
                tokens.push(if digits == 0 {
                    Token::Positional
                } else {
                    Token::NamedParameter
                });
                at += 1 + digits;
            }
            ':' | '@' | '$' if next.is_some_and(is_word) => {
                tokens.push(Token::NamedParameter);
                at += 1 + chars[at + 1..].iter().take_while(|c| is_word(**c)).count();
            }
            _ if is_word_start(c) => {
                let length = chars[at..].iter().take_while(|c| is_word(**c)).count();
                tokens.push(Token::Word(chars[at..at + length].iter().collect()));
                at += length;
            }
            _ if c.is_ascii_digit() => {
                tokens.push(Token::Number);
                at += chars[at..]
                    .iter()
                    .take_while(|c| is_word(**c) || **c == '.')
                    .count();
            }
            _ => {
                tokens.push(Token::Other(c));
                at += 1;
            }
        }
    }
    tokens
}

/// The text between quotes at `at` and the position after them; a doubled quote stands for itself.
fn closed(chars: &[char], at: usize, quote: char) -> (String, usize) {
    let mut text = String::new();
    let mut i = at + 1;
    while let Some(&c) = chars.get(i) {
        match c {
            _ if c != quote => text.push(c),
            _ if chars.get(i + 1) == Some(&quote) => {
                text.push(c);
                i += 1;
            }
            _ => return (text, i + 1),
        }
        i += 1;
    }
    (text, chars.len())
}
