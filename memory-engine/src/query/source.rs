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
    /// Documents that may be read.
    most: usize,
}

impl<'r> QuerySource<'r> {
    pub(super) fn new(
        reader: &'r Reader,
        space: &'r SpaceId,
        branch: &'r BranchName,
        at: Option<Seq>,
        most: usize,
    ) -> Self {
        QuerySource {
            reader,
            space,
            branch,
            at,
            loaded: FxHashMap::default(),
            most,
        }
    }

    /// The instance, read at most once.
    pub(super) fn instance(&mut self, instance: &InstanceId) -> Result<&Loaded, EngineError> {
        if !self.loaded.contains_key(instance) {
            if self.loaded.len() >= self.most {
                return Err(EngineError::ReadsTooMuch(self.most));
            }
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
        Ok(self.instance(&key.instance)?.document.clone())
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

#[cfg(test)]
mod tests {
    use memory_wire::value;

    use super::*;
    use crate::{Engine, EngineOptions, StoreLocation};

    /// What the store refuses in the middle of a walk keeps its name on the way out.
    #[test]
    fn a_failure_of_the_store_is_itself_after_the_walk() {
        let engine = Engine::open(StoreLocation::Memory, EngineOptions::default()).unwrap();
        let (space, branch) = (SpaceId::from("did:key:zS"), BranchName::default());
        let mut source = QuerySource::new(engine.reader(), &space, &branch, None, 1);
        let key = |id: &str| DocKey {
            space: space.clone(),
            instance: InstanceId::space(id),
        };
        assert!(source.load(&key("of:a")).unwrap().is_none());
        let refused = source
            .load(&key("of:b"))
            .map(|document| document.unwrap_or(value!(0)));
        let error = engine_error(TraverseError::Source(refused.unwrap_err()));
        assert!(matches!(error, EngineError::ReadsTooMuch(1)), "{error:?}");
        assert!(source.load(&key("of:a")).unwrap().is_none(), "it has been read");
    }
}
