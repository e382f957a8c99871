//! SQLite's functions whose work is the product of what they are given: `instr`, `replace`, `trim` and its kin, `LIKE`,
//! `GLOB` and `json_patch`. One call of SQLite's own on texts of some megabytes runs for an hour, and nothing interrupts it. These answer
//! the same and work in proportion to the sum, or count what they do as steps of the statement (ENG-1410, SRV-1203).

use memchr::memmem;
use rusqlite::functions::{Context, FunctionFlags, SqlFnOutput, SubType};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use rustc_hash::FxHashSet;

use super::bounds::Meter;
use super::text_pattern::{Kind, Pattern};

/// Bytes that are gone through in what counts as a step: a step is some twenty nanoseconds.
const BYTES_A_STEP: usize = 16;

/// Steps that writing a number as SQLite does counts as.
const STEPS_OF_A_NUMBER: usize = 2_500;

fn take(meter: &Meter, steps: usize) -> Result<()> {
    match meter.take(steps as u64) {
        true => Ok(()),
        false => Err(failure("the statement takes too many steps")),
    }
}

fn take_bytes(meter: &Meter, bytes: usize) -> Result<()> {
    take(meter, bytes / BYTES_A_STEP)
}

fn failure(text: &str) -> Error {
    Error::UserFunctionError(text.into())
}

/// Puts the functions in the place of SQLite's own, for as long as the connection lives. What they do counts while `meter`
/// counts.
pub(super) fn install(conn: &Connection, meter: &Meter) -> Result<()> {
    put(conn, meter, "instr", 2, instr)?;
    put(conn, meter, "replace", 3, replace)?;
    for (name, ends) in [
        ("trim", Ends::BOTH),
        ("ltrim", Ends::LEFT),
        ("rtrim", Ends::RIGHT),
    ] {
        for arguments in [1, 2] {
            put(conn, meter, name, arguments, move |context, meter| {
                trim(context, meter, ends)
            })?;
        }
    }
    for arguments in [2, 3] {
        put(conn, meter, "like", arguments, |context, meter| {
            matches(context, meter, Kind::Like)
        })?;
    }
    put(conn, meter, "glob", 2, |context, meter| {
        matches(context, meter, Kind::Glob)
    })?;
    for name in ["json_patch", "jsonb_patch"] {
        // SQLite's own, on a connection that has it still.
        let own = Connection::open_in_memory()?;
        let sql = format!("SELECT {name}(?1, ?2)");
        put(conn, meter, name, 2, move |context, meter| {
            patch(context, meter, &own, &sql)
        })?;
    }
    Ok(())
}

fn put<T: SqlFnOutput>(
    conn: &Connection,
    meter: &Meter,
    name: &str,
    arguments: i32,
    function: impl Fn(&Context<'_>, &Meter) -> Result<T> + Send + 'static,
) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS
        | FunctionFlags::SQLITE_RESULT_SUBTYPE;
    let meter = meter.clone();
    conn.create_scalar_function(name, arguments, flags, move |context| function(context, &meter))
}

/// An argument as text, as SQLite makes it text; `None` for NULL.
fn text(context: &Context<'_>, meter: &Meter, index: usize) -> Result<Option<Vec<u8>>> {
    Ok(match context.get_raw(index) {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string().into_bytes()),
        ValueRef::Real(number) => {
            take(meter, STEPS_OF_A_NUMBER)?;
            Some(written(number)?)
        }
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            take_bytes(meter, bytes.len())?;
            Some(bytes.to_vec())
        }
    })
}

/// A number as SQLite writes it. Nobody searches numbers, so that it may cost what it does.
fn written(number: f64) -> Result<Vec<u8>> {
    let conn = Connection::open_in_memory()?;
    let text: String = conn.query_row("SELECT CAST(?1 AS TEXT)", [number], |row| row.get(0))?;
    Ok(text.into_bytes())
}

fn continues(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn instr(context: &Context<'_>, meter: &Meter) -> Result<Option<i64>> {
    let is_text = !matches!(
        (context.get_raw(0), context.get_raw(1)),
        (ValueRef::Blob(_), ValueRef::Blob(_))
    );
    let (Some(within), Some(wanted)) = (text(context, meter, 0)?, text(context, meter, 1)?) else {
        return Ok(None);
    };
    if wanted.is_empty() {
        return Ok(Some(1));
    }
    // A text is looked at where its characters begin.
    let begins = |at: usize| !is_text || at == 0 || !continues(within[at]);
    let finder = memmem::Finder::new(&wanted);
    let mut from = 0;
    let found = loop {
        match finder.find(&within[from..]).map(|at| from + at) {
            Some(at) if !begins(at) => from = at + 1,
            found => break found,
        }
    };
    Ok(Some(match found {
        None => 0,
        Some(at) if is_text => {
            let begun = within[..=at].iter().skip(1).filter(|byte| !continues(**byte));
            1 + i64::try_from(begun.count()).unwrap_or(i64::MAX)
        }
        Some(at) => i64::try_from(at + 1).unwrap_or(i64::MAX),
    }))
}

/// Bytes as a text that SQLite is given.
fn as_text(bytes: Vec<u8>) -> Value {
    match String::from_utf8(bytes) {
        Ok(text) => Value::Text(text),
        Err(error) => Value::Text(String::from_utf8_lossy(error.as_bytes()).into_owned()),
    }
}

fn replace(context: &Context<'_>, meter: &Meter) -> Result<Value> {
    let (Some(within), Some(wanted)) = (text(context, meter, 0)?, text(context, meter, 1)?) else {
        return Ok(Value::Null);
    };
    if wanted.first().is_none_or(|first| *first == 0) {
        return Ok(as_text(within));
    }
    let Some(instead) = text(context, meter, 2)? else {
        return Ok(Value::Null);
    };
    let mut replaced = Vec::new();
    let mut from = 0;
    for at in memmem::find_iter(&within, &wanted) {
        // Before it is there: the answer may be far longer than what it is made of.
        take_bytes(meter, at - from + instead.len() + BYTES_A_STEP)?;
        replaced.extend_from_slice(&within[from..at]);
        replaced.extend_from_slice(&instead);
        from = at + wanted.len();
        if replaced.len() > LONGEST {
            return Err(failure("string or blob too big"));
        }
    }
    replaced.extend_from_slice(&within[from..]);
    Ok(as_text(replaced))
}

/// Bytes of a pattern, as for SQLite.
const LONGEST_PATTERN: usize = 50_000;

/// Longest text that is put together here: the bound of the connection is met when SQLite takes it.
const LONGEST: usize = 1 << 28;

/// Where a trim trims.
#[derive(Clone, Copy)]
struct Ends {
    left: bool,
    right: bool,
}

impl Ends {
    const BOTH: Ends = Ends {
        left: true,
        right: true,
    };
    const LEFT: Ends = Ends {
        left: true,
        right: false,
    };
    const RIGHT: Ends = Ends {
        left: false,
        right: true,
    };
}

/// The characters of a text, as slices of it.
fn characters(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let more = match first {
            0xc0.. => rest[1..].iter().take_while(|byte| continues(**byte)).count(),
            _ => 0,
        };
        let (character, after) = rest.split_at(1 + more);
        rest = after;
        Some(character)
    })
}

fn trim(context: &Context<'_>, meter: &Meter, ends: Ends) -> Result<Value> {
    let Some(within) = text(context, meter, 0)? else {
        return Ok(Value::Null);
    };
    let set = match context.len() {
        1 => b" ".to_vec(),
        _ => match text(context, meter, 1)? {
            Some(set) => set,
            None => return Ok(Value::Null),
        },
    };
    // Looking a character up takes longer than passing it.
    take_bytes(meter, 8 * (within.len() + set.len()))?;
    // SQLite's set ends at a NUL.
    let set = set.split(|byte| *byte == 0).next().unwrap_or_default();
    let set: FxHashSet<&[u8]> = characters(set).collect();
    let mut lengths: Vec<usize> = set.iter().map(|character| character.len()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    let mut rest = within.as_slice();
    let begins = |rest: &[u8]| {
        lengths
            .iter()
            .copied()
            .find(|n| rest.get(..*n).is_some_and(|c| set.contains(c)))
    };
    let stops = |rest: &[u8]| {
        let tail = |n: usize| rest.len().checked_sub(n).map(|from| &rest[from..]);
        lengths
            .iter()
            .copied()
            .find(|n| tail(*n).is_some_and(|c| set.contains(c)))
    };
    while ends.left
        && let Some(n) = begins(rest)
    {
        rest = &rest[n..];
    }
    while ends.right
        && let Some(n) = stops(rest)
    {
        rest = &rest[..rest.len() - n];
    }
    Ok(as_text(rest.to_vec()))
}

/// Bytes moved, and keys compared, in what counts as a step.
const MOVED_A_STEP: usize = 200;
const COMPARED_A_STEP: usize = 3;

/// What tells SQLite's functions that a text is JSON.
const JSON: u32 = b'J' as u32;

/// SQLite looks for each key of the patch among all of the target, and moves what stands behind it.
fn patch(context: &Context<'_>, meter: &Meter, own: &Connection, sql: &str) -> Result<(Value, SubType)> {
    // The most keys there may be, and the bytes.
    let weight = |index: usize| match context.get_raw(index) {
        ValueRef::Text(text) => (text.iter().filter(|byte| **byte == b':').count(), text.len()),
        ValueRef::Blob(binary) => (binary.len() / 2, binary.len()),
        _ => (0, 0),
    };
    let ((target_keys, target), (keys, patch)) = (weight(0), weight(1));
    take_bytes(meter, target + patch)?;
    let compared = keys.saturating_mul(target_keys.saturating_add(keys)) / COMPARED_A_STEP;
    let moved = keys.saturating_mul(target.saturating_add(patch)) / MOVED_A_STEP;
    take(meter, compared.saturating_add(moved))?;
    let arguments: [Value; 2] = [context.get(0)?, context.get(1)?];
    let patched = own
        .prepare_cached(sql)?
        .query_row(arguments, |row| row.get(0))
        .map_err(|error| match error {
            Error::SqliteFailure(_, Some(text)) => failure(&text),
            error => error,
        })?;
    let subtype = matches!(patched, Value::Text(_)).then_some(JSON);
    Ok((patched, subtype))
}

/// `text LIKE pattern` and `text GLOB pattern`: the pattern is the first argument.
fn matches(context: &Context<'_>, meter: &Meter, kind: Kind) -> Result<Option<bool>> {
    let escape = match context.len() {
        3 => match text(context, meter, 2)? {
            None => return Ok(None),
            Some(escape) => {
                let escape = String::from_utf8_lossy(&escape).into_owned();
                let mut characters = escape.split('\0').next().unwrap_or_default().chars();
                match (characters.next(), characters.next()) {
                    (Some(escape), None) => Some(escape),
                    _ => return Err(failure("ESCAPE expression must be a single character")),
                }
            }
        },
        _ => None,
    };
    let (Some(pattern), Some(text)) = (text(context, meter, 0)?, text(context, meter, 1)?) else {
        return Ok(None);
    };
    if pattern.len() > LONGEST_PATTERN {
        return Err(failure("LIKE or GLOB pattern too complex"));
    }
    let pattern = Pattern::read(kind, &String::from_utf8_lossy(&pattern), escape);
    pattern
        .matches(&String::from_utf8_lossy(&text), |steps| take(meter, steps))
        .map(Some)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::EngineError;

    fn both() -> (Connection, Connection) {
        let (own, metered) = (
            Connection::open_in_memory().unwrap(),
            Connection::open_in_memory().unwrap(),
        );
        install(&metered, &Meter::default()).unwrap();
        (own, metered)
    }

    fn answer(conn: &Connection, sql: &str, arguments: &[Value]) -> Option<(Value, String)> {
        let arguments = rusqlite::params_from_iter(arguments);
        let mut statement = conn.prepare_cached(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        statement.query_row(arguments, row).ok()
    }

    /// A generator of the same numbers everywhere.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % bound
        }

        fn text(&mut self, characters: &[&str]) -> String {
            let length = self.below(7);
            (0..length)
                .map(|_| characters[self.below(characters.len())])
                .collect()
        }

        fn value(&mut self) -> Value {
            let characters = [
                "a", "A", "b", "%", "_", "*", "?", "[", "]", "^", "-", "\\", "é", "É", "😀", " ", "1", ".",
            ];
            match self.below(12) {
                0 => Value::Null,
                1 => Value::Integer(self.below(40) as i64 - 20),
                2 => Value::Real((self.below(4_000) as f64 - 2_000.0) / 16.0),
                3 => Value::Real([1e300, -0.0, 0.1, 1e15, 1e16][self.below(5)]),
                4 | 5 => Value::Blob(self.text(&characters).into_bytes()),
                6 => Value::Text(self.text(&["a", "\0", "%", "*"])),
                _ => Value::Text(self.text(&characters)),
            }
        }
    }

    /// ENG-1410: what stands in the place of SQLite's functions answers what they do.
    #[test]
    fn eng_1410_counted_functions_answer_as_sqlites_own() {
        let (own, metered) = both();
        let calls = [
            ("instr(?1, ?2)", 2),
            ("replace(?1, ?2, ?3)", 3),
            ("trim(?1)", 1),
            ("ltrim(?1)", 1),
            ("rtrim(?1)", 1),
            ("trim(?1, ?2)", 2),
            ("ltrim(?1, ?2)", 2),
            ("rtrim(?1, ?2)", 2),
            ("?1 LIKE ?2", 2),
            ("?1 NOT LIKE ?2 ESCAPE ?3", 3),
            ("?1 LIKE ?2 ESCAPE '\\'", 2),
            ("?1 GLOB ?2", 2),
            ("json_patch(?1, ?2)", 2),
        ];
        let mut numbers = Numbers(20_261);
        for round in 0..4_000 {
            for (call, arguments) in calls {
                let arguments: Vec<Value> = (0..arguments).map(|_| numbers.value()).collect();
                let sql = format!("SELECT {call}, typeof({call})");
                assert_eq!(
                    answer(&metered, &sql, &arguments),
                    answer(&own, &sql, &arguments),
                    "{round}: {call} of {arguments:?}"
                );
            }
        }
        for (target, patch) in [
            (
                r#"{"a":1,"b":{"c":[1,2]},"d":1.50}"#,
                r#"{"b":{"c":null,"e":"é"},"a":null}"#,
            ),
            (r#"{"a":1}"#, "[1, {a: 0x1F}]"),
            ("[1]", r#"{"a":null,"b":1}"#),
            ("{", "{}"),
            ("{}", "{"),
        ] {
            let arguments = [target, patch].map(|text| Value::Text(text.to_owned()));
            for call in [
                "json_patch(?1, ?2)",
                "json_array(json_patch(?1, ?2), ?1)",
                "jsonb_patch(?1, ?2)",
                "json(jsonb_patch(jsonb(?1), jsonb(?2)))",
                "json_patch(NULL, ?1)",
            ] {
                let sql = format!("SELECT {call}, typeof({call})");
                assert_eq!(
                    answer(&metered, &sql, &arguments),
                    answer(&own, &sql, &arguments),
                    "{call} of {target} and {patch}"
                );
            }
        }
        for pattern in [
            "[]a]*", "[^]a]*", "[a-]*", "[-a]*", "[b-a]*", "[a", "[^", "*[a-b]", "**?", "[]-a]*",
        ] {
            for text in ["", "a", "]", "-", "ab", "ba", "^"] {
                let arguments = [text, pattern].map(|text| Value::Text(text.to_owned()));
                let sql = "SELECT ?1 GLOB ?2, typeof(?1 GLOB ?2)";
                assert_eq!(
                    answer(&metered, sql, &arguments),
                    answer(&own, sql, &arguments),
                    "{text} GLOB {pattern}"
                );
            }
        }
    }

    /// What takes SQLite hours ends here within few steps, or at the bound of steps.
    #[test]
    fn eng_1410_products_of_long_texts_are_counted() {
        const LONG: usize = 1 << 20;
        let metered = Connection::open_in_memory().unwrap();
        let meter = Meter::install(&metered).unwrap();
        let (hay, needle) = ("a".repeat(LONG), format!("{}b", "a".repeat(LONG / 2)));
        let run = |sql: &str, arguments: &[Value]| {
            meter.grant(6_000_000, Duration::MAX);
            let nothing = || EngineError::Sqlite(Error::QueryReturnedNoRows);
            let answered = || answer(&metered, sql, arguments).ok_or_else(nothing);
            meter.run(&metered, 1 << 24, answered)
        };
        for call in [
            "instr(?1, ?2)",
            "length(replace(?1, ?2, 'x'))",
            "length(trim(?1, ?2))",
        ] {
            let arguments = [Value::Text(hay.clone()), Value::Text(needle.clone())];
            let answered = run(&format!("SELECT {call}, typeof({call})"), &arguments);
            assert!(answered.is_ok(), "{call}: {answered:?}");
        }
        for (operator, any) in [("LIKE", "%"), ("GLOB", "*")] {
            let pattern = format!("{any}{}b", "a".repeat(LONGEST_PATTERN - 10));
            let arguments = [Value::Text(hay.clone()), Value::Text(pattern)];
            let answered = run(&format!("SELECT ?1 {operator} ?2, ''"), &arguments);
            assert!(
                matches!(answered, Err(EngineError::SqliteExceeded { .. })),
                "{operator}: {answered:?}"
            );
        }
        let keys = |letter: char| {
            let keys: Vec<String> = (0..20_000).map(|n| format!("\"{letter}{n}\":1")).collect();
            Value::Text(format!("{{{}}}", keys.join(",")))
        };
        let answered = run("SELECT json_patch(?1, ?2), ''", &[keys('a'), keys('b')]);
        assert!(matches!(answered, Err(EngineError::SqliteExceeded { .. })));
        // Nobody counts between statements.
        let arguments = [Value::Text(hay), Value::Text("a".to_owned())];
        assert!(answer(&metered, "SELECT instr(?1, ?2), ''", &arguments).is_some());
    }
}
