//! Records of a context: metadata, revisions, members and markers. Facts: §4.1.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::Serialize;

use crate::id::{ApplicationId, BlobId, DeltaId, Hash};
use crate::secret::Secret;

/// Metadata of a context.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextMeta {
    /// The program it runs.
    pub application: ApplicationId,
    /// Root of the Merkle tree over its state.
    pub root_hash: Hash,
    /// Deltas that no other delta has as a parent.
    pub dag_heads: Vec<DeltaId>,
    /// Which service of the program, where it has several.
    pub service_name: Option<String>,
}

/// Revision counters of a context.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextConfig {
    /// Changes of the program.
    pub application_revision: u64,
    /// Changes of the membership.
    pub members_revision: u64,
}

/// A member key of a context.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextIdentity {
    /// The private half, where this node owns the key and no namespace keeps it. Never exported.
    pub private_key: Option<Secret>,
}

/// Authored entries that await conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextAuthoredRemaining {
    /// How many.
    pub count: u32,
}

/// When a member left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextLeftMarker {
    /// Unix milliseconds.
    pub left_at_ms: u64,
}

/// Why the last migration attempt did not complete. One byte on disk; any other byte is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
pub enum ContextMigrationFailed {
    /// The check before the migration aborted.
    CheckAborted = 1,
    /// Applying the migration failed.
    ApplyFailed = 2,
    /// No migration leads from the code in force to the code wanted.
    NoMigrationPath = 3,
}

impl Serialize for ContextMigrationFailed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("ContextMigrationFailed", 2)?;
        fields.serialize_field("kind", &(*self as u8))?;
        fields.serialize_field("kind_name", &format!("{self:?}"))?;
        fields.end()
    }
}

/// The old code that a context still executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextExecutingBlob {
    /// The code.
    pub blob: BlobId,
}

/// The code that a context last activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextActivatedBlob {
    /// The code.
    pub blob: BlobId,
}

/// The state version of the code last activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextActivatedStateVersion {
    /// The version.
    pub state_version: u32,
}

/// Which service of its program a context runs.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct ContextServiceName {
    /// The service.
    pub service_name: String,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize)]
pub struct Alias {
    /// The context, public key or program.
    pub target: Hash,
}
