//! Records of programs and binaries. Facts: §4.2.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use super::Bytes;
use crate::id::{BlobId, Hash};

/// An installed program. A record of an older, shorter layout is an error; nothing is filled in.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ApplicationMeta {
    /// The code.
    pub bytecode: BlobId,
    /// Size of the bundle, bytes.
    pub size: u64,
    /// Where it came from.
    pub source: String,
    /// The installer's own note.
    pub metadata: Bytes,
    /// The code, compiled for this machine; zero if it is not.
    pub compiled: BlobId,
    /// Package name.
    pub package: String,
    /// Package version.
    pub version: String,
    /// Who signed the bundle.
    pub signer_id: String,
    /// Services, where the program has several.
    pub services: Vec<Service>,
    /// Version of the state layout that the code works on.
    pub state_version: u32,
}

/// One of several services of a program.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its code.
    pub bytecode: BlobId,
    /// Its code, compiled for this machine; zero if it is not.
    pub compiled: BlobId,
}

/// The code of a program or service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// As delivered.
    pub bytecode: BlobId,
    /// Compiled for this machine; zero if it is not.
    pub compiled: BlobId,
}

impl ApplicationMeta {
    /// The code of a service. Without a name: the program's own if it has no services, the only service if it has one,
    /// and nothing if it has several.
    pub fn service(&self, name: Option<&str>) -> Option<Code> {
        let code = |service: &Service| Code {
            bytecode: service.bytecode,
            compiled: service.compiled,
        };
        match (name, self.services.as_slice()) {
            (None, []) => Some(Code {
                bytecode: self.bytecode,
                compiled: self.compiled,
            }),
            (None, [only]) => Some(code(only)),
            (None, _) => None,
            (Some(name), services) => services.iter().find(|service| service.name == name).map(code),
        }
    }
}

/// The code that an in-place installation replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ApplicationPreviousBlob {
    /// The code.
    pub bytecode: BlobId,
}

/// A blob, or one chunk of it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct BlobMeta {
    /// Bytes of content.
    pub size: u64,
    /// SHA-256 of the whole content.
    pub hash: Hash,
    /// Parts in order; none for a chunk.
    pub links: Vec<BlobId>,
    /// How many owners count on it.
    pub refs: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_lookup_is_exact_and_never_guesses() {
        let service = |name: &str, byte: u8| Service {
            name: name.into(),
            bytecode: [byte; 32].into(),
            compiled: [byte + 1; 32].into(),
        };
        let mut program = ApplicationMeta {
            bytecode: [1; 32].into(),
            size: 0,
            source: String::new(),
            metadata: Bytes::default(),
            compiled: [2; 32].into(),
            package: String::new(),
            version: String::new(),
            signer_id: String::new(),
            services: vec![],
            state_version: 0,
        };
        assert_eq!(program.service(None).unwrap().bytecode, [1; 32].into());
        assert_eq!(program.service(Some("alpha")), None);
        program.services.push(service("alpha", 3));
        assert_eq!(program.service(None).unwrap().bytecode, [3; 32].into());
        program.services.push(service("beta", 5));
        assert_eq!(program.service(None), None);
        assert_eq!(program.service(Some("beta")).unwrap().compiled, [6; 32].into());
        assert_eq!(program.service(Some("Beta")), None);
    }
}
