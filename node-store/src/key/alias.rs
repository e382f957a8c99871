//! Names of contexts, member keys and programs. The kind says whether a scope belongs to it. Rule: NODE-13.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::{KeyPart, keys};
use crate::error::{Malformed, StoreError};
use crate::id::ContextId;
use crate::value::{self, Borsh};

/// What a name stands for, and where it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AliasSubject {
    /// A context, by name on the whole node (kind 1).
    Context,
    /// A member's public key, by name within one context (kind 2).
    PublicKey(ContextId),
    /// A program, by name on the whole node (kind 3).
    Application,
}

impl AliasSubject {
    const fn kind(&self) -> u8 {
        match self {
            AliasSubject::Context => 1,
            AliasSubject::PublicKey(_) => 2,
            AliasSubject::Application => 3,
        }
    }

    const fn scope(&self) -> ContextId {
        match self {
            AliasSubject::PublicKey(context) => *context,
            AliasSubject::Context | AliasSubject::Application => ContextId::ZERO,
        }
    }

    /// Builds the subject from the two fields of the layout; a key needs a scope and the others take none.
    pub fn from_parts(kind: u8, scope: Option<ContextId>) -> Result<Self, StoreError> {
        match (kind, scope) {
            (1, None) => Ok(AliasSubject::Context),
            (2, Some(context)) => Ok(AliasSubject::PublicKey(context)),
            (3, None) => Ok(AliasSubject::Application),
            (1, Some(_)) => Err(StoreError::AliasScope {
                kind: "context",
                expected: "takes no",
            }),
            (3, Some(_)) => Err(StoreError::AliasScope {
                kind: "application",
                expected: "takes no",
            }),
            (2, None) => Err(StoreError::AliasScope {
                kind: "public key",
                expected: "needs",
            }),
            _ => Err(StoreError::Malformed {
                what: "alias kind",
                cause: Malformed::new(format!(
                    "{kind}; expected 1 (context), 2 (public key) or 3 (application)"
                )),
            }),
        }
    }
}

impl Serialize for AliasSubject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("AliasSubject", 2)?;
        fields.serialize_field("kind", &self.kind())?;
        fields.serialize_field("scope", &self.scope())?;
        fields.end()
    }
}

impl KeyPart for AliasSubject {
    const LEN: usize = 33;
    fn write(&self, out: &mut [u8]) {
        out[0] = self.kind();
        out[1..].copy_from_slice(self.scope().as_bytes());
    }
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, scope) = (bytes[0], ContextId::read(&bytes[1..])?);
        let scope = if kind != 2 && scope.is_zero() {
            None
        } else {
            Some(scope)
        };
        AliasSubject::from_parts(kind, scope).map_err(|error| Malformed::new(error.to_string()))
    }
}

/// A name of 1 to 50 ASCII letters, digits, `.`, `_` or `-`. The alphabet has no zero byte, so padding loses nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AliasName([u8; AliasName::MAX]);

impl AliasName {
    /// Longest name, bytes.
    pub const MAX: usize = 50;

    /// Checks a name; the three ways to be wrong are three errors.
    pub fn new(name: &str) -> Result<Self, StoreError> {
        if name.is_empty() {
            return Err(StoreError::AliasEmpty);
        }
        if name.len() > AliasName::MAX {
            return Err(StoreError::AliasTooLong { length: name.len() });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if let Some((at, character)) = name.char_indices().find(|(_, c)| !allowed(*c)) {
            return Err(StoreError::AliasCharacter { character, at });
        }
        let mut bytes = [0; AliasName::MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(AliasName(bytes))
    }

    /// The name without padding.
    pub fn as_str(&self) -> &str {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(AliasName::MAX);
        std::str::from_utf8(&self.0[..end]).expect("the constructor admits ASCII only")
    }
}

impl FromStr for AliasName {
    type Err = StoreError;
    fn from_str(name: &str) -> Result<Self, StoreError> {
        AliasName::new(name)
    }
}

impl fmt::Display for AliasName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for AliasName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl Serialize for AliasName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl KeyPart for AliasName {
    const LEN: usize = AliasName::MAX;
    fn write(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        if bytes[end..].iter().any(|byte| *byte != 0) {
            return Err(Malformed::new("alias name: bytes follow the padding"));
        }
        let name = std::str::from_utf8(&bytes[..end]).map_err(|_| Malformed::new("alias name: not ASCII"))?;
        AliasName::new(name).map_err(|error| Malformed::new(error.to_string()))
    }
}

keys! {
    /// A name. Reading one kind never answers with a row of another.
    Alias in Alias, Replicated, Borsh<value::Alias> {
        /// What is named, and where.
        subject: AliasSubject,
        /// The name.
        name: AliasName,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    #[test]
    fn node_13_the_three_name_errors_are_distinct() {
        assert!(matches!(AliasName::new(""), Err(StoreError::AliasEmpty)));
        assert!(matches!(
            AliasName::new(&"a".repeat(51)),
            Err(StoreError::AliasTooLong { length: 51 })
        ));
        let refused = AliasName::new("ab\0c");
        assert!(matches!(
            refused,
            Err(StoreError::AliasCharacter {
                character: '\0',
                at: 2
            })
        ));
        assert!(matches!(
            AliasName::new("naïve"),
            Err(StoreError::AliasCharacter {
                character: 'ï',
                at: 2
            })
        ));
        assert_eq!(AliasName::new(&"a".repeat(50)).unwrap().as_str().len(), 50);
        assert_eq!(AliasName::new("A.b_c-9").unwrap().as_str(), "A.b_c-9");
    }

    #[test]
    fn node_13_a_scope_belongs_to_key_aliases_alone() {
        let context = ContextId::new([7; 32]);
        assert!(AliasSubject::from_parts(2, None).is_err());
        assert!(AliasSubject::from_parts(1, Some(context)).is_err());
        assert!(AliasSubject::from_parts(3, Some(context)).is_err());
        assert!(AliasSubject::from_parts(4, None).is_err());
        let key = Alias {
            subject: AliasSubject::PublicKey(context),
            name: "alice".parse().unwrap(),
        };
        let bytes = key.to_bytes();
        assert_eq!(bytes.len(), 83);
        assert_eq!(Alias::parse(&bytes).unwrap(), key);

        let mut wrong_kind = bytes.to_vec();
        wrong_kind[0] = 1;
        assert!(Alias::parse(&wrong_kind).is_err(), "a context alias has no scope");
        let mut after_padding = bytes.to_vec();
        after_padding[82] = b'x';
        assert!(Alias::parse(&after_padding).is_err());
    }
}
