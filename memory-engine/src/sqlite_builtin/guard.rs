//! Which statements are admitted at all (ENG-1410): one SELECT for reads, one INSERT, UPDATE, DELETE or REPLACE for
//! writes, on unqualified names, and never a name of the store's own tables. Lexical, so it refuses more than it must:
//! a column named `head` is refused too. What it cannot see by the text alone, `confinement` does.

use super::sql_text::{Token, tokens};
use crate::error::EngineError;

/// What kind of statement a text begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatementKind {
    /// SELECT, or WITH without a writing word.
    Select,
    /// INSERT, UPDATE, DELETE, REPLACE, or WITH containing one of them.
    Write,
    /// Anything else.
    Other,
}

/// What the guard sees in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Classified {
    /// How it begins.
    pub kind: StatementKind,
    /// There is more than one statement.
    pub multiple: bool,
    /// A table is named with its schema.
    pub qualified: bool,
    /// PRAGMA, ATTACH or DETACH occurs.
    pub forbidden: bool,
    /// A reserved name occurs.
    pub core_reference: bool,
}

const WRITE_WORDS: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "REPLACE"];
const FORBIDDEN_WORDS: [&str; 3] = ["PRAGMA", "ATTACH", "DETACH"];
const RESERVED: [&str; 12] = [
    "commit",
    "revision",
    "head",
    "snapshot",
    "branch",
    "blob_store",
    "authorization",
    "invocation",
    "scheduler_basis",
    "execution_lease",
    "execution_outbox",
    "_cf_commit_watermark",
];
const RESERVED_PREFIXES: [&str; 2] = ["sqlite_", "pragma_"];

/// A name as the guard compares it: lower case, unusual characters as `_`.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' || c == '$' {
                c.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .collect()
}

/// Whether a table of this name is the store's or SQLite's own.
pub(super) fn is_reserved(name: &str) -> bool {
    let name = plain(name);
    RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Looks at a statement.
pub fn classify(sql: &str) -> Classified {
    let tokens = tokens(sql);
    let any_of = |token: &Token, words: &[&str]| words.iter().any(|word| token.is(word));
    let writes = |token: &Token| any_of(token, &WRITE_WORDS);
    let kind = match tokens.first() {
        Some(first) if first.is("SELECT") => StatementKind::Select,
        Some(first) if writes(first) => StatementKind::Write,
        Some(first) if first.is("WITH") => match tokens.iter().any(writes) {
            true => StatementKind::Write,
            false => StatementKind::Select,
        },
        _ => StatementKind::Other,
    };
    let end = tokens
        .iter()
        .rposition(|token| !token.is_char(';'))
        .map_or(0, |last| last + 1);
    Classified {
        kind,
        multiple: tokens[..end].iter().any(|token| token.is_char(';')),
        qualified: qualified(&tokens),
        forbidden: tokens.iter().any(|token| any_of(token, &FORBIDDEN_WORDS)),
        core_reference: tokens.iter().filter_map(Token::name).any(is_reserved),
    }
}

fn qualified(tokens: &[Token]) -> bool {
    let dotted = |at: usize| {
        let name = tokens.get(at).and_then(Token::name);
        name.filter(|_| tokens.get(at + 1).is_some_and(|dot| dot.is_char('.')))
    };
    (0..tokens.len()).any(|at| {
        let after_keyword = match &tokens[at] {
            token if ["FROM", "JOIN", "INTO"].iter().any(|word| token.is(word)) => dotted(at + 1).is_some(),
            token if token.is("UPDATE") => {
                let name = if tokens.get(at + 1).is_some_and(|or| or.is("OR")) {
                    at + 3
                } else {
                    at + 1
                };
                dotted(name).is_some()
            }
            _ => false,
        };
        let schema = dotted(at).is_some_and(|name| {
            let name = plain(name);
            name == "main"
                || name == "temp"
                || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        });
        after_keyword || schema
    })
}

fn check(sql: &str, wanted: StatementKind, refusal: &str) -> Result<(), EngineError> {
    let seen = classify(sql);
    let reason = match seen {
        Classified { kind, .. } if kind != wanted => refusal,
        Classified { multiple: true, .. } => "multiple statements are not allowed",
        Classified { forbidden: true, .. } => "PRAGMA/ATTACH/DETACH are not allowed",
        Classified { qualified: true, .. } => "schema-qualified table references are not allowed",
        Classified {
            core_reference: true, ..
        } => return Err(core_reference(sql)),
        _ => return Ok(()),
    };
    Err(refused(reason, sql))
}

fn refused(reason: &str, sql: &str) -> EngineError {
    EngineError::Guard {
        reason: reason.to_owned(),
        sql: sql.to_owned(),
    }
}

/// The refusal of a statement about a table that is not its database's.
pub(super) fn core_reference(sql: &str) -> EngineError {
    refused("references a reserved core table name", sql)
}

/// Admits one reading statement.
///
/// # Errors
/// [`EngineError::Guard`] with the reason and the statement.
pub fn check_read_only(sql: &str) -> Result<(), EngineError> {
    check(
        sql,
        StatementKind::Select,
        "only a single read-only SELECT is allowed",
    )
}

/// Admits one writing statement.
///
/// # Errors
/// [`EngineError::Guard`] with the reason and the statement.
pub fn check_write(sql: &str) -> Result<(), EngineError> {
    check(
        sql,
        StatementKind::Write,
        "only a single INSERT/UPDATE/DELETE is allowed (DDL is owned by the database)",
    )
}
