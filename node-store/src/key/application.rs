//! Families of programs and binaries. Facts: §2.

use super::keys;
use crate::id::{ApplicationId, BlobId};
use crate::value::{self, Borsh};

keys! {
    /// An installed program.
    ApplicationMeta in Application, Replicated, Borsh<value::ApplicationMeta> {
        application_id: ApplicationId,
    }
    /// Metadata of a blob or of a chunk of one.
    BlobMeta in Blobs, Replicated, Borsh<value::BlobMeta> { blob_id: BlobId }
    /// The code that an in-place installation replaced.
    ApplicationPreviousBlob in ApplicationPreviousBlob, NodeLocal, Borsh<value::ApplicationPreviousBlob> {
        application_id: ApplicationId,
    }
}
