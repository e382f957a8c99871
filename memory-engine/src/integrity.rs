//! Whether a store is what it should be: SQLite's own checks, and what the engine relies on between its tables (ENG-125,
//! 131, 141). Reads one committed state and changes nothing; the time it takes grows with the store.

use crate::column;
use crate::error::EngineError;
use crate::reader::Reader;

/// One thing that is wrong with a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// SQLite's integrity check; its words.
    #[error("SQLite: {0}")]
    Sqlite(String),
    /// A row that refers to one that is not there.
    #[error("{0} rows of table {1} refer to a row that is missing from table {2}")]
    DanglingReference(u64, String, String),
    /// A row between the engine's tables that breaks a rule.
    #[error("{rows} rows: {rule}")]
    Rule {
        /// The rule, as a sentence about the rows that break it.
        rule: &'static str,
        /// How many do.
        rows: u64,
    },
}

/// What must not be found. Each query counts the rows that break its rule.
const RULES: [(&str, &str); 7] = [
    (
        "a head without its revision (ENG-131)",
        "SELECT COUNT(*) FROM head h WHERE NOT EXISTS (SELECT 1 FROM revision r WHERE r.branch = h.branch AND r.id = h.id \
         AND r.scope_key = h.scope_key AND r.seq = h.seq AND r.op_index = h.op_index AND r.op = h.op)",
    ),
    (
        "an instance whose head is not its newest revision (ENG-351)",
        "SELECT COUNT(*) FROM head h WHERE EXISTS (SELECT 1 FROM revision r WHERE r.branch = h.branch AND r.id = h.id \
         AND r.scope_key = h.scope_key AND (r.seq, r.op_index) > (h.seq, h.op_index))",
    ),
    (
        // An instance being retired loses its head first (ENG-1601).
        "a revision of an instance without a head (ENG-141)",
        "SELECT COUNT(*) FROM revision r WHERE substr(r.scope_key, 1, 8) <> 'session:' AND NOT EXISTS (SELECT 1 FROM head h WHERE h.branch = r.branch AND h.id = r.id \
         AND h.scope_key = r.scope_key)",
    ),
    (
        "a revision whose commit_seq is not its seq (ENG-125)",
        "SELECT COUNT(*) FROM revision WHERE commit_seq <> seq",
    ),
    (
        "a branch that stands before its newest commit (ENG-300)",
        "SELECT COUNT(*) FROM branch b WHERE b.head_seq < (SELECT COALESCE(MAX(c.seq), 0) FROM \"commit\" c \
         WHERE c.branch = b.name)",
    ),
    (
        "a commit or revision on a branch that is not there",
        "SELECT (SELECT COUNT(*) FROM \"commit\" WHERE branch NOT IN (SELECT name FROM branch)) \
         + (SELECT COUNT(*) FROM revision WHERE branch NOT IN (SELECT name FROM branch))",
    ),
    (
        "a stored value that is not canonical text (ENG-120)",
        "SELECT (SELECT COUNT(*) FROM revision WHERE (data IS NULL) <> (op = 'delete') \
         OR (data IS NOT NULL AND substr(data, 1, 5) <> 'fvj1:')) \
         + (SELECT COUNT(*) FROM \"commit\" WHERE substr(original, 1, 5) <> 'fvj1:') \
         + (SELECT COUNT(*) FROM snapshot WHERE substr(value, 1, 5) <> 'fvj1:')",
    ),
];

/// Everything that is wrong with the store; nothing for a sound one.
///
/// # Errors
/// SQLite's, when the store cannot even be read through.
pub fn check(reader: &Reader) -> Result<Vec<Finding>, EngineError> {
    reader.snapshot(|reader| {
        let mut findings = sqlite_findings(reader)?;
        // What SQLite cannot read must not be reasoned about.
        if findings.is_empty() {
            findings.extend(dangling(reader)?);
            for (rule, query) in RULES {
                let rows: u64 = reader
                    .conn
                    .query_row(query, [], |row| Ok(column::count(row, 0)))??;
                if rows > 0 {
                    findings.push(Finding::Rule { rule, rows });
                }
            }
        }
        Ok(findings)
    })?
}

fn sqlite_findings(reader: &Reader) -> Result<Vec<Finding>, EngineError> {
    let mut statement = reader.conn.prepare_cached("PRAGMA integrity_check")?;
    let mut rows = statement.query([])?;
    let mut findings = Vec::new();
    while let Some(row) = rows.next()? {
        let text = column::text(row, 0)?;
        if text != "ok" {
            findings.push(Finding::Sqlite(text.to_owned()));
        }
    }
    Ok(findings)
}

fn dangling(reader: &Reader) -> Result<Vec<Finding>, EngineError> {
    let mut statement = reader.conn.prepare_cached(
        "SELECT COUNT(*), \"table\", \"parent\" FROM pragma_foreign_key_check GROUP BY \"table\", \"parent\"",
    )?;
    let mut rows = statement.query([])?;
    let mut findings = Vec::new();
    while let Some(row) = rows.next()? {
        let (table, parent) = (column::text(row, 1)?.to_owned(), column::text(row, 2)?.to_owned());
        findings.push(Finding::DanglingReference(column::count(row, 0)?, table, parent));
    }
    Ok(findings)
}
