//! Reading vector files.

use serde_json::Value;

pub(crate) fn lines(file: &str) -> Vec<Value> {
    let path = format!("{}/../tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

pub(crate) fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("expected text, found {value}"))
}

pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    data_encoding::HEXLOWER
        .decode(text(value).as_bytes())
        .unwrap_or_else(|error| panic!("{value}: {error}"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
