//! The tables a database declares (ENG-1411): from a table schema to the statement that creates it. Creation only; an
//! existing table is never altered.

use memory_wire::value::{Object, Value};

use crate::error::EngineError;

/// Columns a table may have.
const MAX_COLUMNS: usize = 256;

/// A name in SQL, quoted.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The declared columns with their schemas. The order is that of the declaration's `required` list where it names
/// them all, else canonical.
pub fn columns(schema: &Value) -> Vec<(String, Value)> {
    let empty = Object::new();
    let properties = schema
        .member("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let listed: Vec<&str> = match schema.member("required") {
        Some(Value::Array(names)) => names.elements().filter_map(|(_, name)| name.as_str()).collect(),
        _ => Vec::new(),
    };
    let rank = |name: &str| {
        listed
            .iter()
            .position(|listed| *listed == name)
            .unwrap_or(usize::MAX)
    };
    let mut columns: Vec<(String, Value)> = properties
        .iter()
        .map(|(name, v)| (name.to_string(), v.clone()))
        .collect();
    columns.sort_by_key(|(name, _)| rank(name));
    columns
}

fn is_column_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
}

fn is_column_type(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || "_ (),'-".contains(c))
}

/// `CREATE TABLE IF NOT EXISTS`, in the database attached under `alias` if there is one.
///
/// # Errors
/// [`EngineError::TableDeclaration`] for no or too many columns, a column name or type outside the admitted alphabet.
pub fn create_statement(name: &str, schema: &Value, alias: Option<&str>) -> Result<String, EngineError> {
    let refused = |message: String| Err(EngineError::TableDeclaration { message });
    let columns = columns(schema);
    if columns.is_empty() {
        return refused(format!("table \"{name}\" must declare at least one column"));
    }
    if columns.len() > MAX_COLUMNS {
        return refused(format!(
            "table \"{name}\" declares {} columns, more than {MAX_COLUMNS}",
            columns.len()
        ));
    }
    let mut lines = Vec::with_capacity(columns.len());
    for (column, schema) in &columns {
        if !is_column_name(column) {
            return refused(format!("invalid column name \"{column}\""));
        }
        let declared = schema.member("sqlType").map_or(Some("text"), Value::as_str);
        match declared {
            Some(ty) if is_column_type(ty) => lines.push(format!("  {} {ty}", quoted(column))),
            Some(ty) => return refused(format!("invalid sqlType for column \"{column}\": {ty}")),
            None => return refused(format!("invalid sqlType for column \"{column}\"")),
        }
    }
    let table = match alias {
        Some(alias) => format!("{}.{}", quoted(alias), quoted(name)),
        None => quoted(name),
    };
    Ok(format!(
        "CREATE TABLE IF NOT EXISTS {table} (\n{}\n)",
        lines.join(",\n")
    ))
}
