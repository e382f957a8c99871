//! What a write is about, as far as its text plainly says (ENG-1415): the table, the columns its positional parameters
//! are bound to, the columns an UPDATE sets. `None` is "unknown", and whoever needs to know refuses then.

use super::sql_text::{Token, tokens};

/// The parts of a write that can be attributed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WriteTarget {
    /// The table; unknown when it is qualified or cannot be found.
    pub table: Option<String>,
    /// Column of each `?` in order; `None` inside for one that is compared, not stored.
    pub parameter_columns: Option<Vec<Option<String>>>,
    /// The columns of `UPDATE … SET ident = ?, …`, when that is all it sets.
    pub set_columns: Option<Vec<String>>,
    /// The statement removes rows and writes none.
    pub deletes: bool,
    /// The statement has a RETURNING clause.
    pub returning: bool,
    /// The statement is an INSERT, REPLACE, UPDATE or DELETE whose verb is its first word.
    pub plain: bool,
}

/// Reads a write.
pub fn write_target(sql: &str) -> WriteTarget {
    let mut tokens = tokens(sql);
    while tokens.last().is_some_and(|token| token.is_char(';')) {
        tokens.pop();
    }
    let mut target = WriteTarget {
        returning: tokens.iter().any(|token| token.is("RETURNING")),
        ..WriteTarget::default()
    };
    let Some(verb) = verb_position(&tokens) else {
        return target;
    };
    target.plain = verb == 0;
    let rest = Cursor {
        tokens: &tokens,
        at: verb + 1,
    };
    let verb = &tokens[verb];
    if verb.is("INSERT") || verb.is("REPLACE") {
        insert(&mut target, rest, verb.is("INSERT"));
    } else if verb.is("UPDATE") {
        update(&mut target, rest);
    } else {
        delete(&mut target, rest);
    }
    target
}

/// The writing word outside parentheses: the first word, or the one after the WITH clause.
fn verb_position(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0i64;
    tokens.iter().position(|token| {
        depth += i64::from(token.is_char('(')) - i64::from(token.is_char(')'));
        depth == 0
            && ["INSERT", "REPLACE", "UPDATE", "DELETE"]
                .iter()
                .any(|verb| token.is(verb))
    })
}

#[derive(Clone, Copy)]
struct Cursor<'t> {
    tokens: &'t [Token],
    at: usize,
}

impl<'t> Cursor<'t> {
    fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<&'t Token> {
        let token = self.peek();
        self.at += usize::from(token.is_some());
        token
    }

    fn take(&mut self, keyword: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is(keyword));
        self.at += usize::from(found);
        found
    }

    fn take_char(&mut self, c: char) -> bool {
        let found = self.peek().is_some_and(|token| token.is_char(c));
        self.at += usize::from(found);
        found
    }

    fn at_end(&self) -> bool {
        self.peek().is_none_or(|token| token.is("RETURNING"))
    }

    /// A table name; `None` when it is qualified.
    fn table(&mut self) -> Option<String> {
        let name = self.next()?.name()?.to_owned();
        if !self.take_char('.') {
            return Some(name);
        }
        self.next();
        None
    }
}

fn insert(target: &mut WriteTarget, mut rest: Cursor<'_>, is_insert: bool) {
    let conflict_clause = rest.take("OR");
    if conflict_clause {
        rest.next();
    }
    if !rest.take("INTO") {
        return;
    }
    target.table = rest.table();
    if is_insert && !conflict_clause && target.plain {
        target.parameter_columns = inserted_columns(rest);
    }
}

/// `(a, b) VALUES (?, ?), …` and nothing after it.
fn inserted_columns(mut rest: Cursor<'_>) -> Option<Vec<Option<String>>> {
    let columns = list(&mut rest, |token| token.name().map(str::to_owned))?;
    if !rest.take("VALUES") {
        return None;
    }
    let mut bound = Vec::new();
    loop {
        let row = list(&mut rest, |token| (*token == Token::Positional).then_some(()))?;
        if row.len() != columns.len() {
            return None;
        }
        bound.extend(columns.iter().cloned().map(Some));
        if !rest.take_char(',') {
            break;
        }
    }
    // Parameters of a RETURNING clause would be bound to no column.
    let trailing = &rest.tokens[rest.at..];
    let clean = rest.at_end()
        && !trailing
            .iter()
            .any(|t| matches!(t, Token::Positional | Token::NamedParameter));
    clean.then_some(bound)
}

/// `( item , item … )`.
fn list<T>(rest: &mut Cursor<'_>, mut item: impl FnMut(&Token) -> Option<T>) -> Option<Vec<T>> {
    if !rest.take_char('(') {
        return None;
    }
    let mut items = Vec::new();
    loop {
        items.push(item(rest.next()?)?);
        if rest.take_char(')') {
            return Some(items);
        }
        if !rest.take_char(',') {
            return None;
        }
    }
}

fn update(target: &mut WriteTarget, mut rest: Cursor<'_>) {
    if rest.take("OR") {
        rest.next();
    }
    target.table = rest.table();
    if !rest.take("SET") || !target.plain {
        return;
    }
    let (mut bound, mut set) = (Some(Vec::new()), Some(Vec::new()));
    loop {
        let column = rest.next().and_then(Token::name).map(str::to_owned);
        let assigned = column.filter(|_| rest.take_char('='));
        let Some(column) = assigned else { return };
        let expression = expression(&mut rest);
        match expression {
            [Token::Positional] => {
                bound
                    .as_mut()
                    .into_iter()
                    .for_each(|bound: &mut Vec<Option<String>>| bound.push(Some(column.clone())));
                set.as_mut()
                    .into_iter()
                    .for_each(|set: &mut Vec<String>| set.push(column.clone()));
            }
            other => {
                set = None;
                if other
                    .iter()
                    .any(|token| matches!(token, Token::Positional | Token::NamedParameter))
                {
                    bound = None;
                }
            }
        }
        if !rest.take_char(',') {
            break;
        }
    }
    target.set_columns = set;
    target.parameter_columns = bound.and_then(|bound| compared(bound, rest));
}

/// The tokens up to the next comma, WHERE, FROM or RETURNING outside parentheses.
fn expression<'t>(rest: &mut Cursor<'t>) -> &'t [Token] {
    let start = rest.at;
    let mut depth = 0i64;
    while let Some(token) = rest.peek() {
        depth += i64::from(token.is_char('(')) - i64::from(token.is_char(')'));
        let ends = token.is_char(',') || ["WHERE", "FROM", "RETURNING"].iter().any(|word| token.is(word));
        if depth == 0 && ends {
            break;
        }
        rest.at += 1;
    }
    &rest.tokens[start..rest.at]
}

fn delete(target: &mut WriteTarget, mut rest: Cursor<'_>) {
    target.deletes = true;
    if !rest.take("FROM") {
        return;
    }
    target.table = rest.table();
    if target.plain {
        target.parameter_columns = compared(Vec::new(), rest);
    }
}

/// Parameters in what follows are compared, not stored.
fn compared(mut bound: Vec<Option<String>>, rest: Cursor<'_>) -> Option<Vec<Option<String>>> {
    for token in &rest.tokens[rest.at..] {
        match token {
            Token::Positional => bound.push(None),
            Token::NamedParameter => return None,
            _ => {}
        }
    }
    Some(bound)
}
