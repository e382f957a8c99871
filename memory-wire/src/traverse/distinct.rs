//! Values each once, in order of arrival: what unions of options, of required names and of confidentiality atoms come
//! to (TRV-701, 704, 803). Told apart by hash, so that long lists cost their length.

use rustc_hash::FxHashMap;

use crate::equality::value_equal;
use crate::hash::{Digest, hash_value};
use crate::value::Value;

/// A list without repetitions (WIRE-313).
#[derive(Default)]
pub(super) struct Distinct {
    values: Vec<Value>,
    /// Where values of a hash are. More than one has it only if they are strings with unpaired surrogates.
    by_hash: FxHashMap<Digest, Vec<usize>>,
}

impl Distinct {
    pub(super) fn new() -> Distinct {
        Distinct::default()
    }

    /// Adds a value unless it is there.
    pub(super) fn add(&mut self, value: &Value) {
        let alike = self.by_hash.entry(hash_value(value)).or_default();
        if !alike.iter().any(|at| value_equal(&self.values[*at], value)) {
            alike.push(self.values.len());
            self.values.push(value.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn into_values(self) -> Vec<Value> {
        self.values
    }
}
