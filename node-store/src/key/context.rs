//! Families whose rows belong to one context, and the op store's. Facts: §2.

use super::keys;
use crate::id::{ContextId, DeltaId, OpId, PublicKey, ScopeId, StateKey};
use crate::value::{self, Borsh, Identity};

keys! {
    /// A context's metadata.
    ContextMeta in Meta, Replicated, Borsh<value::ContextMeta> { context_id: ContextId }
    /// A context's revision counters.
    ContextConfig in Config, Replicated, Borsh<value::ContextConfig> { context_id: ContextId }
    /// A member key of a context.
    ContextIdentity in Identity, PublicHalf, Borsh<value::ContextIdentity> {
        context_id: ContextId, public_key: PublicKey,
    }
    /// A row of shared state.
    ContextState in State, Replicated, Identity {
        context_id: ContextId,
        /// The row, by hash (see [`StateRow`](super::StateRow)).
        state_key: StateKey,
    }
    /// A row of this node's private state.
    ContextPrivateState in PrivateState, NodeLocal, Identity {
        context_id: ContextId,
        /// The row, by hash.
        state_key: StateKey,
    }
    /// A causal delta.
    ContextDagDelta in Delta, Replicated, value::DagDeltaCodec { context_id: ContextId, delta_id: DeltaId }
    /// How many authored entries of a context still await conversion.
    ContextAuthoredRemaining in ContextLocal, NodeLocal, Borsh<value::ContextAuthoredRemaining> {
        context_id: ContextId,
    }
    /// A member of this node that left a context.
    ContextLeftMarker in ContextLocal, NodeLocal, Borsh<value::ContextLeftMarker> {
        context_id: ContextId, public_key: PublicKey,
    }
    /// The last migration attempt did not complete.
    ContextMigrationFailed in ContextMigrationFailed, NodeLocal, Borsh<value::ContextMigrationFailed> {
        context_id: ContextId,
    }
    /// This old code is executed although the application row names newer code.
    ContextExecutingBlob in ContextExecutingBlob, NodeLocal, Borsh<value::ContextExecutingBlob> {
        context_id: ContextId,
    }
    /// The code last activated.
    ContextActivatedBlob in ContextActivatedBlob, NodeLocal, Borsh<value::ContextActivatedBlob> {
        context_id: ContextId,
    }
    /// The state version of the code last activated.
    ContextActivatedStateVersion in ContextActivatedStateVersion, NodeLocal,
        Borsh<value::ContextActivatedStateVersion>
    {
        context_id: ContextId,
    }
    /// An operator asked for a full replacement of the context's state.
    ContextResyncRequested in ContextResyncRequested, NodeLocal, Borsh<()> { context_id: ContextId }
    /// A signed operation; the value is the Borsh op, verbatim.
    ScopeUnifiedOp in UnifiedOp, Replicated, Identity { scope: ScopeId, op_id: OpId }
}
