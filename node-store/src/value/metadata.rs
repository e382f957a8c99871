//! Names and details of groups, members and contexts, within limits. Facts: §4.3.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::Record;
use crate::error::Malformed;
use crate::id::PublicKey;

/// Name and details.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct MetadataRecord {
    /// 1 to 64 bytes.
    pub name: Option<String>,
    /// At most 64 entries; keys of 1 to 64 bytes, values of at most 4096.
    pub data: BTreeMap<String, String>,
    /// Unix milliseconds.
    pub updated_at: u64,
    /// Who changed it last.
    pub updated_by: PublicKey,
}

impl Record for MetadataRecord {
    fn check(&self) -> Result<(), Malformed> {
        let named = |field: &str, text: &str| match text.len() {
            1..=64 => Ok(()),
            length => Err(Malformed::new(format!(
                "{field}: {length} bytes; expected 1 to 64"
            ))),
        };
        if let Some(name) = &self.name {
            named("name", name)?;
        }
        if self.data.len() > 64 {
            return Err(Malformed::new(format!(
                "data: {} entries; at most 64",
                self.data.len()
            )));
        }
        for (key, value) in &self.data {
            named("data key", key)?;
            if value.len() > 4096 {
                return Err(Malformed::new(format!(
                    "data[{key:?}]: {} bytes; at most 4096",
                    value.len()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_the_last_that_is_taken() {
        let record = |name: usize, entries: usize, key: usize, value: usize| MetadataRecord {
            name: Some("n".repeat(name)),
            data: (0..entries)
                .map(|entry| (format!("{entry:0key$}"), "v".repeat(value)))
                .collect(),
            updated_at: 0,
            updated_by: PublicKey::ZERO,
        };
        assert!(record(1, 64, 2, 0).check().is_ok());
        assert!(record(64, 1, 64, 4096).check().is_ok());
        for beyond in [
            record(0, 0, 1, 0),
            record(65, 0, 1, 0),
            record(1, 65, 2, 0),
            record(1, 1, 65, 0),
            record(1, 1, 1, 4097),
        ] {
            assert!(beyond.check().is_err(), "{beyond:?}");
        }
        let mut nameless = record(1, 0, 1, 0);
        nameless.name = None;
        assert!(nameless.check().is_ok());
        nameless.data.insert(String::new(), String::new());
        assert!(nameless.check().is_err(), "an empty key");
    }
}
