//! Values between the store's model and SQLite's five storage classes.

use std::sync::Arc;

use memory_wire::value::Value;
use num_bigint::BigInt;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Statement, types};

use crate::error::EngineError;
use crate::refusal::Refusal;

/// The largest integer that a number of the model holds exactly.
const MAX_SAFE: i64 = 9_007_199_254_740_991;

/// A value as a parameter.
struct Bound(types::Value);

impl ToSql for Bound {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

fn unbindable(kind: &str) -> EngineError {
    Refusal::SqlitePreparation(format!(
        "sqlite parameter must be null, a boolean, a number, a string or bytes, got {kind}"
    ))
    .into()
}

fn bound(value: &Value) -> Result<Bound, EngineError> {
    Ok(Bound(match value {
        Value::Null | Value::Undefined => types::Value::Null,
        Value::Bool(flag) => types::Value::Integer(i64::from(*flag)),
        Value::Number(n) if n.fract() == 0.0 && n.abs() <= MAX_SAFE as f64 => {
            types::Value::Integer(*n as i64)
        }
        Value::Number(n) => types::Value::Real(*n),
        Value::String(text) => types::Value::Text(text.to_string_lossy().into_owned()),
        Value::Bytes(bytes) => types::Value::Blob(bytes.to_vec()),
        Value::BigInt(n) => types::Value::Integer(
            i64::try_from(n.as_ref()).map_err(|_| unbindable("a big integer beyond 64 bits"))?,
        ),
        Value::Symbol(_) => return Err(unbindable("a symbol")),
        Value::Array(_) => return Err(unbindable("an array")),
        Value::Object(_) => return Err(unbindable("an object")),
        Value::Special(_) => return Err(unbindable("a special value")),
    }))
}

/// Binds an array by position or an object by name (with or without the sigil).
pub(super) fn bind(statement: &mut Statement<'_>, params: Option<&Value>) -> Result<(), EngineError> {
    match params {
        Some(Value::Array(list)) => {
            for index in 0..list.len() {
                let value = list.get(index).unwrap_or(&Value::Null);
                statement.raw_bind_parameter(index + 1, bound(value)?)?;
            }
        }
        Some(Value::Object(named)) => {
            for index in 1..=statement.parameter_count() {
                let name = statement.parameter_name(index).map(str::to_owned);
                let plain = name
                    .as_deref()
                    .map(|name| name.trim_start_matches([':', '@', '$', '?']).to_owned());
                let value = name
                    .and_then(|name| named.get(&name))
                    .or_else(|| named.get(&plain?));
                statement.raw_bind_parameter(index, bound(value.unwrap_or(&Value::Null))?)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A stored value. Integers beyond 2⁵³−1 become big integers; text that is not UTF-8 is read with replacements.
pub(super) fn read(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) if n.unsigned_abs() <= MAX_SAFE.unsigned_abs() => Value::Number(n as f64),
        ValueRef::Integer(n) => Value::BigInt(Arc::new(BigInt::from(n))),
        ValueRef::Real(n) => Value::Number(n),
        ValueRef::Text(text) => Value::string(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Value::Bytes(bytes.into()),
    }
}

#[cfg(test)]
mod tests {
    use memory_wire::equality::value_equal;

    use super::*;

    #[test]
    fn f33_every_integer_of_64_bits_is_read_as_itself() {
        for n in [0, 1, -1, MAX_SAFE, -MAX_SAFE] {
            assert!(
                value_equal(&read(ValueRef::Integer(n)), &Value::Number(n as f64)),
                "{n}"
            );
        }
        for n in [MAX_SAFE + 1, -MAX_SAFE - 1, i64::MAX, i64::MIN] {
            let big = Value::BigInt(Arc::new(BigInt::from(n)));
            assert!(value_equal(&read(ValueRef::Integer(n)), &big), "{n}");
        }
    }
}
