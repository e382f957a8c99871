//! The documents of one evaluation (ENG-1003): one branch at one seq, each instance read once. A foreign space's
//! documents are absent (ENG-1028).

use memory_wire::ids::{BranchName, Seq, SpaceId};
use memory_wire::scope_key::InstanceId;
use memory_wire::traverse::{DocKey, DocSource, SourceError, TraverseError};
use memory_wire::value::Value;
use rustc_hash::FxHashMap;

use super::snapshot::Loaded;
use crate::error::EngineError;
use crate::read::ReadInstance;
use crate::reader::Reader;

/// A source over one store.
pub(super) struct QuerySource<'r> {
    reader: &'r Reader,
    space: &'r SpaceId,
    branch: &'r BranchName,
    at: Option<Seq>,
    loaded: FxHashMap<InstanceId, Loaded>,
}

impl<'r> QuerySource<'r> {
    pub(super) fn new(
        reader: &'r Reader,
        space: &'r SpaceId,
        branch: &'r BranchName,
        at: Option<Seq>,
    ) -> Self {
        QuerySource {
            reader,
            space,
            branch,
            at,
            loaded: FxHashMap::default(),
        }
    }

    /// The instance, read at most once.
    pub(super) fn instance(&mut self, instance: &InstanceId) -> Result<&Loaded, EngineError> {
        if !self.loaded.contains_key(instance) {
            let state = self.reader.read_state(
                &instance.id,
                ReadInstance::Named(&instance.scope_key),
                self.branch,
                self.at,
            )?;
            let loaded = state
                .map(|state| Loaded {
                    seq: state.seq,
                    document: state.document,
                })
                .unwrap_or_default();
            self.loaded.insert(instance.clone(), loaded);
        }
        Ok(&self.loaded[instance])
    }

    /// Everything that was read, absent instances included.
    pub(super) fn into_loaded(self) -> FxHashMap<InstanceId, Loaded> {
        self.loaded
    }
}

impl DocSource for QuerySource<'_> {
    fn load(&mut self, key: &DocKey) -> Result<Option<Value>, SourceError> {
        if key.space != *self.space {
            return Ok(None);
        }
        Ok(self.instance(&key.instance).map_err(Box::new)?.document.clone())
    }
}

/// A failed walk as the engine's own error.
pub(super) fn engine_error(error: TraverseError) -> EngineError {
    match error {
        TraverseError::Scope(error) => EngineError::Scope(error),
        TraverseError::Source(error) => match error.downcast::<EngineError>() {
            Ok(own) => *own,
            Err(foreign) => EngineError::Traverse(TraverseError::Source(foreign)),
        },
        other => EngineError::Traverse(other),
    }
}
