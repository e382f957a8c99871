//! What a replica asks the server to keep it informed about (RUN-54…57).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use memory_wire::hash::hash_string;
use memory_wire::message::{GraphQuery, Root, Selector as WireSelector, Watch, WatchKind, WatchOk};
use memory_wire::pointer::path_to_value;
use memory_wire::traverse::{Schema, SchemaPool};
use memory_wire::{EntityId, Object, Scope, ScopeKey, Value, WireError};
use rustc_hash::FxHashMap;
use smol_str::SmolStr;

use super::{DocKey, Instance, NotificationKind, Replica};
use crate::address::{Path, VALUE, is_prefix};
use crate::error::RunnerError;
use crate::link::Link;
use crate::promise::Promise;
use crate::schema_read::narrow_step;

type PullOutcome = Result<(), RunnerError>;

/// "At this document-rooted path, this schema applies." Compared by path and schema hash.
#[derive(Debug)]
pub struct Selector {
    /// Document-rooted path; empty only for the rejecting selector.
    pub path: Path,
    /// `None` = no schema given.
    pub schema: Option<Value>,
    /// Hash text of the schema, empty without one.
    schema_hash: String,
}

impl Selector {
    /// A selector.
    pub fn new(path: Path, schema: Option<Value>) -> Rc<Selector> {
        let schema_hash = schema.as_ref().map(hash_string).unwrap_or_default();
        Rc::new(Selector {
            path,
            schema,
            schema_hash,
        })
    }

    /// "The document itself, follow nothing."
    pub fn rejecting() -> Rc<Selector> {
        Selector::new(Path::new(), Some(Value::Bool(false)))
    }

    /// RUN-54: what reading `link` needs. A lens that selects nothing asks for the document alone.
    pub fn of_link(link: &Link) -> Rc<Selector> {
        match &link.schema {
            None | Some(Value::Bool(false)) => Selector::rejecting(),
            Some(schema) => Selector::new(link.address().path, Some(schema.clone())),
        }
    }

    /// The `selector` of a wire root, whose path is value-relative.
    fn to_wire(&self) -> WireSelector {
        let path = match self.path.split_first() {
            Some((first, rest)) if *first == VALUE => rest.to_vec(),
            Some(_) | None => self.path.clone(),
        };
        WireSelector {
            path,
            schema: self.schema.clone(),
        }
    }

    /// RUN-55: whoever asked for `self` gets everything `other` asks for.
    fn covers(&self, other: &Selector, schemas: &mut SchemaPool) -> bool {
        if matches!(other.schema, Some(Value::Bool(false))) {
            return true;
        }
        if !is_prefix(&self.path, &other.path) {
            return false;
        }
        if self.path == other.path && self.schema_hash == other.schema_hash {
            return true;
        }
        let Some(mine) = &self.schema else { return false };
        let narrowed = narrow(schemas, mine, &other.path[self.path.len()..]);
        if Schema::of(&narrowed).is_true_like() {
            return true;
        }
        let Some(theirs) = &other.schema else { return false };
        let wanted = hash_string(&standardised(theirs));
        if hash_string(&standardised(&narrowed)) == wanted {
            return true;
        }
        let options = narrowed
            .member("anyOf")
            .and_then(Value::as_array)
            .and_then(|a| a.as_dense());
        options.is_some_and(|options| options.iter().any(|o| hash_string(&standardised(o)) == wanted))
    }
}

fn narrow(schemas: &mut SchemaPool, schema: &Value, path: &[SmolStr]) -> Value {
    path.iter().fold(schema.clone(), |schema, segment| {
        narrow_step(schemas, &schema, segment)
    })
}

/// A schema without the keywords that only shape the reader's handles.
fn standardised(schema: &Value) -> Value {
    let Value::Object(object) = schema else {
        return schema.clone();
    };
    let mut plain = object.clone();
    plain.remove("asCell");
    plain.remove("asStream");
    Value::Object(plain)
}

/// RUN-57: the id under which an entry is watched.
pub fn watch_id(id: &EntityId, scope: Scope, scope_key: Option<&ScopeKey>, selector: &Selector) -> String {
    let mut inner = Object::new();
    inner.insert("path", path_to_value(&selector.path));
    inner.insert("schemaHash", selector.schema_hash.as_str());
    let mut object = Object::new();
    object.insert("branch", "");
    object.insert("id", id.as_str());
    object.insert("scope", scope.as_str());
    object.insert("type", "application/json");
    object.insert("selector", hash_string(&Value::Object(inner)).as_str());
    if let Some(key) = scope_key {
        object.insert("scopeKey", key.as_str());
    }
    format!("replica:{}", hash_string(&Value::Object(object)))
}

/// One thing asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: EntityId,
    pub(crate) scope: Scope,
    /// Named on the wire only when it is not the own instance (RUN-62).
    pub(crate) instance: Option<ScopeKey>,
    pub(crate) selector: Rc<Selector>,
}

impl Request {
    fn to_watch(&self) -> Value {
        let root = Root {
            id: self.id.clone(),
            scope: self.scope,
            entity_scope_key: self.instance.clone(),
            selector: self.selector.to_wire(),
        };
        Watch {
            id: watch_id(&self.id, self.scope, self.instance.as_ref(), &self.selector).into(),
            kind: WatchKind::Graph,
            query: GraphQuery::of(vec![root]),
        }
        .to_value()
    }
}

type Pending = (Request, Promise<PullOutcome>);

#[derive(Debug)]
struct Tracked {
    request: Request,
    loaded: Promise<PullOutcome>,
}

#[derive(Debug)]
struct Batch {
    entries: Vec<Pending>,
    /// It replaced the whole set.
    whole: bool,
}

/// The watch set: what is established, under way and queued.
#[derive(Debug, Default)]
pub(super) struct Watches {
    tracked: FxHashMap<DocKey, Vec<Tracked>>,
    queue: Vec<Pending>,
    /// Entries of a refused batch, tried one by one so that one bad entry fails alone.
    alone: VecDeque<Pending>,
    batches: BTreeMap<u64, Batch>,
    next_batch: u64,
    /// The whole set has to be sent before anything is added.
    must_set: bool,
    /// A batch was answered in this session: frames are being consumed.
    consuming: bool,
}

impl Watches {
    pub(super) fn is_consuming(&self) -> bool {
        self.consuming || !self.batches.is_empty()
    }

    pub(super) fn has_loaded(&self, key: &DocKey) -> bool {
        let loaded = |t: &Tracked| matches!(t.loaded.peek(), Some(Ok(())));
        self.tracked
            .get(key)
            .is_some_and(|tracked| tracked.iter().any(loaded))
    }

    pub(super) fn session_opened(&mut self, resumed: bool) {
        if !resumed {
            self.consuming = false;
        }
        // Without a resume the server knows none of them; after one it may have missed what was under way.
        self.must_set |= !resumed && !self.tracked.is_empty();
    }

    /// The line broke while a batch was under way.
    pub(super) fn batch_lost(&mut self, batch: u64) {
        if let Some(batch) = self.batches.remove(&batch) {
            self.must_set |= batch.whole;
            self.queue.splice(0..0, batch.entries);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Watches {
            next_batch: self.next_batch,
            ..Watches::default()
        };
    }

    /// Everything asked for that has no answer yet.
    pub(super) fn fail_queued(&mut self) -> Vec<Promise<PullOutcome>> {
        let waiting = self.take_requests();
        for (request, promise) in &waiting {
            self.forget(request, promise);
        }
        waiting.into_iter().map(|(_, promise)| promise).collect()
    }

    pub(super) fn take_requests(&mut self) -> Vec<Pending> {
        let under_way = std::mem::take(&mut self.batches)
            .into_values()
            .flat_map(|b| b.entries);
        let mut all: Vec<Pending> = under_way.collect();
        all.append(&mut self.queue);
        all.extend(self.alone.drain(..));
        all
    }

    /// RUN-56: a failed refresh removes exactly the selectors it added.
    fn forget(&mut self, request: &Request, loaded: &Promise<PullOutcome>) {
        self.tracked.retain(|key, tracked| {
            if key.id == request.id {
                tracked.retain(|t| !t.loaded.same(loaded));
            }
            !tracked.is_empty()
        });
    }

    fn established(&self) -> Vec<Value> {
        let mut watches: Vec<(String, Value)> = Vec::new();
        let waiting = |t: &Tracked| self.alone.iter().any(|(_, promise)| promise.same(&t.loaded));
        for tracked in self.tracked.values().flatten().filter(|t| !waiting(t)) {
            let r = &tracked.request;
            let id = watch_id(&r.id, r.scope, r.instance.as_ref(), &r.selector);
            watches.push((id, r.to_watch()));
        }
        // Map order must not leak into frames.
        watches.sort_by(|a, b| a.0.cmp(&b.0));
        watches.dedup_by(|a, b| a.0 == b.0);
        watches.into_iter().map(|(_, watch)| watch).collect()
    }
}

impl Replica {
    /// RUN-56: loads a document through a selector and keeps it watched. Covered requests are not sent again but
    /// wait for the covering one.
    pub(crate) fn pull(
        &self,
        id: &EntityId,
        scope: Scope,
        instance: Option<ScopeKey>,
        selector: Rc<Selector>,
    ) -> Promise<PullOutcome> {
        let key = match &instance {
            Some(key) => DocKey {
                instance: Instance::Key(key.clone()),
                id: id.clone(),
            },
            None => self.doc_key(id, scope, None),
        };
        let Some(storage) = self.storage() else {
            return Promise::ready(Err(RunnerError::Closed("storage manager")));
        };
        let loaded = {
            let mut core = self.0.core.borrow_mut();
            let tracked = core.watches.tracked.entry(key).or_default();
            let covering = storage.with_schemas(|schemas| {
                tracked
                    .iter()
                    .find(|t| t.request.selector.covers(&selector, schemas))
            });
            if let Some(covering) = covering {
                return covering.loaded.clone();
            }
            let request = Request {
                id: id.clone(),
                scope,
                instance,
                selector,
            };
            let loaded = Promise::new();
            tracked.push(Tracked {
                request: request.clone(),
                loaded: loaded.clone(),
            });
            core.watches.queue.push((request, loaded.clone()));
            loaded
        };
        self.want_open();
        loaded
    }

    /// Settles when no pull is outstanding.
    pub fn pulls_settled(&self) -> Promise<()> {
        let core = self.0.core.borrow();
        let w = &core.watches;
        let under_way = w.batches.values().flat_map(|b| &b.entries);
        Promise::all(under_way.chain(&w.queue).chain(&w.alone).map(|(_, p)| p.clone()))
    }

    /// Sends the next batch; one is under way at a time.
    pub(super) fn flush_watches(&self) -> bool {
        let mut connection = self.0.connection.borrow_mut();
        if !connection.is_open() {
            return false;
        }
        let mut core = self.0.core.borrow_mut();
        let w = &mut core.watches;
        if !w.batches.is_empty() {
            return false;
        }
        let whole = w.must_set;
        let entries: Vec<Pending> = if whole || !w.queue.is_empty() {
            std::mem::take(&mut w.queue)
        } else {
            w.alone.pop_front().into_iter().collect()
        };
        if entries.is_empty() && !whole {
            return false;
        }
        w.must_set = false;
        w.next_batch += 1;
        let number = w.next_batch;
        if whole {
            connection.watch_set(number, w.established());
        } else {
            let mut watches: Vec<Value> = Vec::new();
            let mut ids: Vec<String> = Vec::new();
            for (request, _) in &entries {
                let id = watch_id(
                    &request.id,
                    request.scope,
                    request.instance.as_ref(),
                    &request.selector,
                );
                if !ids.contains(&id) {
                    ids.push(id);
                    watches.push(request.to_watch());
                }
            }
            connection.watch_add(number, watches);
        }
        w.batches.insert(number, Batch { entries, whole });
        true
    }

    pub(super) fn watch_answered(&self, number: u64, result: Result<Value, WireError>) {
        let Some(batch) = self.0.core.borrow_mut().watches.batches.remove(&number) else {
            return;
        };
        let answer = result.and_then(|body| {
            WatchOk::from_value(&body).map_err(|e| WireError::query(format!("unreadable watch answer: {e}")))
        });
        match answer {
            Ok(ok) => {
                self.0.core.borrow_mut().watches.consuming = true;
                self.frame(ok.sync, NotificationKind::Pull);
                for (_, loaded) in batch.entries {
                    loaded.settle(Ok(()));
                }
            }
            Err(error) => self.watch_refused(batch, &error),
        }
    }

    /// A refused batch of several is tried again one by one; a refused set keeps what was established before.
    fn watch_refused(&self, batch: Batch, error: &WireError) {
        let failed = {
            let mut core = self.0.core.borrow_mut();
            let w = &mut core.watches;
            if batch.whole && batch.entries.is_empty() {
                tracing::error!(space = %self.0.space, %error, "established watches refused");
                drop(core);
                self.renew_line();
                return;
            }
            w.must_set |= batch.whole;
            if batch.entries.len() == 1 && !batch.whole {
                for (request, loaded) in &batch.entries {
                    w.forget(request, loaded);
                }
                batch.entries
            } else {
                // They stay tracked, so that later requests wait for them, but out of the set until they stand.
                w.alone.extend(batch.entries);
                Vec::new()
            }
        };
        for (_, loaded) in failed {
            loaded.settle(Err(RunnerError::Load {
                space: self.0.space.clone(),
                name: error.name.as_str().to_owned(),
                message: error.message.clone(),
            }));
        }
    }

    /// Drops the line; what is unanswered goes again after the back-off.
    pub(super) fn renew_line(&self) {
        let now = self.now_ms();
        let event = self.0.connection.borrow_mut().renew(now);
        self.handle(event);
    }
}
