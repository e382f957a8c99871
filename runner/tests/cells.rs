//! Cells over a scripted wire: reads through links and schemas, writes with redirects, scopes and mergeable ops.

mod wire_double;

use std::cell::Cell as Counter;
use std::rc::Rc;

use memory_wire::equality::value_equal;
use memory_wire::message::{ClientMessage, Operation, Watch};
use memory_wire::{EntityId, EventId, Scope, SpaceId, Value, value};
use runner::address::{Address, path};
use runner::cell::{Cell, CellHost, SinkFn, Subscription};
use runner::error::RunnerError;
use runner::link::Link;
use runner::promise::Promise;
use runner::schema_read::{View, ViewKind};
use runner::storage_manager::StorageManager;
use runner::transaction::RunTx;
use runner::value_write::WriteFrame;
use smol_str::SmolStr;
use wire_double::{Bench, SPACE, bench, bench_with, server_flags, upsert};

/// A runtime with storage alone.
struct Host(StorageManager);

impl CellHost for Host {
    fn storage(&self) -> &StorageManager {
        &self.0
    }
    fn read_tx(&self) -> RunTx {
        RunTx::open_read_only(&self.0)
    }
    fn edit(&self) -> RunTx {
        RunTx::open(&self.0)
    }
    fn sink(&self, _: &Cell, _: SinkFn) -> Subscription {
        Subscription::new(|| {})
    }
    fn pull(&self, _: &Cell) -> Promise<Result<View, RunnerError>> {
        Promise::ready(Err(RunnerError::Closed("host without scheduler")))
    }
    fn send(&self, _: &Cell, _: Option<&RunTx>, _: Value) -> Result<EventId, RunnerError> {
        Err(RunnerError::Closed("host without scheduler"))
    }
}

fn cell(bench: &Bench, id: &str, schema: Option<Value>) -> Cell {
    let host = Rc::new(Host(bench.storage.clone()));
    Cell::new(
        host,
        Link::to_document(SPACE.into(), id.into(), Scope::Space).with_schema(schema),
    )
}

fn link_to(id: &str, segments: &[&str]) -> Link {
    Link {
        path: path(segments),
        ..Link::to_document(SPACE.into(), id.into(), Scope::Space)
    }
}

fn stored(id: &str, extra: Value) -> Value {
    let mut payload = extra.as_object().cloned().unwrap_or_default();
    payload.insert("id", id);
    if payload.get("path").is_none() {
        payload.insert("path", value!([]));
    }
    value!({ "/": { "link@1": payload } })
}

#[track_caller]
fn assert_value(got: &Value, expected: &Value) {
    assert!(value_equal(got, expected), "got {got:?}, expected {expected:?}");
}

/// Writes with `f` and answers the one native operation list.
fn operations(bench: &Bench, f: impl FnOnce(&RunTx)) -> Vec<Operation> {
    let tx = RunTx::open(&bench.storage);
    f(&tx);
    tx.native_commit(&bench.space()).operations
}

fn patches(operation: &Operation) -> Vec<Value> {
    match operation {
        Operation::Patch { patches, .. } => patches.iter().map(|p| p.source().clone()).collect(),
        other => panic!("expected a patch, got {other:?}"),
    }
}

#[test]
fn run_230_set_writes_only_what_differs() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "name": "x", "n": 1, "gone": true })));
    let ops = operations(&bench, |tx| {
        let cell = cell(&bench, "of:a", None).with_tx(tx);
        cell.set(value!({ "name": "x", "n": 2 })).expect("writable");
        assert_value(&cell.value().expect("readable"), &value!({ "name": "x", "n": 2 }));
    });
    let found = patches(&ops[0]);
    let expected = value!([{ "op": "remove", "path": "/value/gone" }, { "op": "replace", "path": "/value/n", "value": 2 }]);
    assert_value(&Value::from(found), &expected);
    assert!(
        operations(&bench, |tx| cell(&bench, "of:a", None)
            .key("n")
            .with_tx(tx)
            .set(1.into())
            .unwrap())
        .is_empty()
    );
}

#[test]
fn run_88_cells_record_mergeable_operations() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "items": [1], "n": 5, "tags": ["a", "b", "a"] })),
    );
    let ops = operations(&bench, |tx| {
        let cell = cell(&bench, "of:a", None).with_tx(tx);
        cell.key("items").push(vec![2.into()]).expect("an array");
        cell.key("items").push(vec![3.into()]).expect("an array");
        cell.key("n").increment(2.0).expect("a number");
        cell.key("tags")
            .remove_by_value(vec!["a".into()])
            .expect("an array");
        cell.key("seen")
            .add_unique(vec!["x".into(), "x".into()])
            .expect("absent is an empty array");
    });
    let expected = value!([
        { "op": "append", "path": "/value/items", "values": [2, 3] },
        { "op": "increment", "path": "/value/n", "by": 2 },
        { "op": "remove-by-value", "path": "/value/tags", "value": "a" },
        { "op": "add-unique", "path": "/value/seen", "values": ["x"], "createsKey": true }
    ]);
    assert_value(&Value::from(patches(&ops[0])), &expected);
}

#[test]
fn run_210_reads_follow_links_and_ask_for_what_is_absent() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "next": (stored("of:b", value!({}))) })));
    let cell = cell(
        &bench,
        "of:a",
        Some(value!({ "type": "object", "properties": { "next": {
        "type": "object", "properties": { "name": { "type": "string" } } } } })),
    );
    assert!(
        cell.get()
            .expect("readable")
            .get("next")
            .is_none_or(|v| v.is_undefined())
    );
    bench.settle();
    let request = bench.server.take("session.watch.add");
    let ClientMessage::WatchAdd(add) = &request.message else {
        panic!("{request:?}")
    };
    let watches = Watch::list_from_values(&add.watches).expect("well-formed");
    assert_eq!(watches[0].query.roots[0].id.as_str(), "of:b");
    assert!(
        watches[0].query.roots[0].selector.schema.is_some(),
        "through the schema on the way"
    );
    bench.server.answer_watch(
        &request,
        vec![upsert("of:b", 2, Some(value!({ "name": "bee", "x": 1 })))],
    );
    bench.settle();
    assert_value(
        &cell.value().expect("readable"),
        &value!({ "next": { "name": "bee" } }),
    );
    let resolved = cell.key("next").resolve_as_cell().expect("resolvable");
    assert_eq!(resolved.link().id.as_str(), "of:b");
}

#[test]
fn run_211_a_loop_at_the_address_is_an_error() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "x": (stored("of:b", value!({ "path": ["y"] }))) })),
    );
    bench.load(
        "of:b",
        1,
        Some(value!({ "y": (stored("of:a", value!({ "path": ["x"] }))) })),
    );
    let number = Some(value!({ "type": "number" }));
    let error = cell(&bench, "of:a", None)
        .key("x")
        .as_schema(number)
        .get()
        .expect_err("a loop");
    assert!(matches!(error, RunnerError::LinkCycle { .. }), "{error}");
}

#[test]
fn run_213_a_scope_cap_blocks_and_reads_undefined() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "mine": (stored("of:b", value!({ "scope": "session" }))) })),
    );
    let schema =
        value!({ "type": "object", "properties": { "mine": { "type": "string", "scope": "user" } } });
    let view = cell(&bench, "of:a", Some(schema))
        .key("mine")
        .get()
        .expect("readable");
    assert_eq!(view.kind(), ViewKind::Undefined);
}

#[test]
fn run_225_a_handle_is_given_out_unread() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "count": (stored("of:c", value!({ "path": ["n"] }))) })),
    );
    let schema =
        value!({ "type": "object", "properties": { "count": { "type": "number", "asCell": ["cell"] } } });
    let view = cell(&bench, "of:a", Some(schema)).get().expect("readable");
    let handle = view.get("count").and_then(|v| v.as_handle()).expect("a handle");
    assert_eq!((handle.kind.as_str(), handle.link.id.as_str()), ("cell", "of:c"));
    assert_eq!(handle.link.path, path(["n"]));
}

#[test]
fn run_216_an_unresolved_input_is_refused_only_in_lazy_reads() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "in": (stored("of:later", value!({}))) })),
    );
    let tx = RunTx::open(&bench.storage);
    let cell = cell(
        &bench,
        "of:a",
        Some(value!({ "type": "object", "properties": { "in": { "type": "number" } } })),
    );
    let slot = cell.key("in").with_tx(&tx);
    assert!(slot.get().is_ok());
    tx.set_lazy_reads(true);
    assert!(matches!(slot.get(), Err(RunnerError::UnresolvedInput { .. })));
    // A missing user row is knowledge, not transit.
    bench.load(
        "of:u",
        2,
        Some(value!({ "in": (stored("of:later", value!({ "scope": "user" }))) })),
    );
    assert!(
        cell.at(link_to("of:u", &["in"]).with_schema(Some(value!({ "type": "number" }))))
            .with_tx(&tx)
            .get()
            .is_ok()
    );
}

#[test]
fn run_227_lazy_views_register_what_they_touch_and_end_with_their_transaction() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "x": { "y": 1 }, "z": 2 })));
    let schema = value!({ "type": "object", "properties": {
        "x": { "type": "object", "properties": { "y": { "type": "number" } } }, "z": { "type": "number" } } });
    let tx = RunTx::open(&bench.storage);
    let view = cell(&bench, "of:a", Some(schema))
        .with_tx(&tx)
        .lazy()
        .expect("readable");
    let touched = |tx: &RunTx, segment: &str| {
        let log = tx.reactivity_log();
        let all = log.reads.iter().chain(&log.shallow_reads);
        all.into_iter()
            .any(|a| a.path.get(1).is_some_and(|s| s == segment))
    };
    let y = view
        .get("x")
        .expect("readable")
        .expect("there")
        .get("y")
        .expect("readable")
        .expect("there");
    assert_value(&y.to_value().expect("readable"), &value!(1));
    assert!(touched(&tx, "x") && !touched(&tx, "z"));
    tx.abort("done");
    assert!(view.get("z").is_err(), "RUN-220");
}

#[test]
fn run_221_inline_documents_are_read_here_and_never_written() {
    let bench = bench();
    let id = EntityId::inline(&value!({ "a": [1, 2] })).expect("encodable");
    let cell = cell(&bench, id.as_str(), None);
    assert_value(&cell.key("a").key("1").value().expect("readable"), &value!(2));
    bench.settle();
    assert_eq!(bench.server.connections(), 0, "never touches storage");
    let tx = RunTx::open(&bench.storage);
    let refused = cell
        .with_tx(&tx)
        .set_raw(Some(1.into()), false)
        .expect_err("read only");
    assert!(
        refused.to_string().starts_with("ReadOnlyAddressError"),
        "{refused}"
    );
}

#[test]
fn run_230_writes_land_behind_redirects_and_links_replace_them() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "r": (stored("of:b", value!({ "overwrite": "redirect", "path": ["v"] }))) })),
    );
    bench.load("of:b", 1, Some(value!({ "v": 1 })));
    let ops = operations(&bench, |tx| {
        let a = cell(&bench, "of:a", None).with_tx(tx);
        a.set(value!({ "r": 7 })).expect("writable");
    });
    assert_eq!(ops.len(), 1);
    assert_eq!(ops[0].target().map(|(id, _)| id.as_str()), Some("of:b"));
    assert_value(
        &Value::from(patches(&ops[0])),
        &value!([{ "op": "replace", "path": "/value/v", "value": 7 }]),
    );
    // A link to the slot itself changes nothing.
    let same = operations(&bench, |tx| {
        let a = cell(&bench, "of:a", None).with_tx(tx);
        let target = link_to("of:c", &[]);
        a.key("x")
            .set(link_to("of:a", &["x"]).to_value(None))
            .expect("a no-op");
        a.key("y")
            .set(target.to_value(None))
            .expect("stored relative to its document");
    });
    let expected = value!([{ "op": "add", "path": "/value/y", "value": { "/": { "link@1": { "id": "of:c", "path": [] } } } }]);
    assert_value(&Value::from(patches(&same[0])), &expected);
}

/// Writes `content` under a schema whose slot is declared narrower; answers (id, scope, document) per operation.
fn narrowed(server_execution: bool, declared: &str) -> Vec<(Scope, Value)> {
    let bench = bench_with(server_flags(), |o| o.server_execution = server_execution);
    let schema =
        value!({ "type": "object", "properties": { "draft": { "type": "string", "scope": (declared) } } });
    bench.load("of:a", 1, Some(value!({})));
    let tx = RunTx::open(&bench.storage);
    cell(&bench, "of:a", Some(schema))
        .key("draft")
        .with_tx(&tx)
        .set("mine".into())
        .expect("writable");
    let mut seen: Vec<(Scope, Value)> = [Scope::Space, Scope::User, Scope::Session]
        .into_iter()
        .filter_map(|scope| {
            let at = Address::document(SPACE.into(), "of:a".into(), scope).at(path(["value", "draft"]));
            let value = tx.read_value(&at).expect("readable");
            (!value.is_undefined()).then_some((scope, value))
        })
        .collect();
    seen.sort_by_key(|(scope, _)| *scope);
    seen
}

#[test]
fn run_232_233_declared_scope_puts_content_narrow_and_a_redirect_broad() {
    let redirect = |scope: &str| value!({ "/": { "link@1": { "path": ["draft"], "scope": (scope), "overwrite": "redirect" } } });
    let off = narrowed(false, "session");
    assert_eq!(
        off.iter().map(|(s, _)| *s).collect::<Vec<_>>(),
        [Scope::Space, Scope::Session]
    );
    assert_value(&off[0].1, &redirect("session"));
    let on = narrowed(true, "session");
    assert_eq!(
        on.iter().map(|(s, _)| *s).collect::<Vec<_>>(),
        [Scope::Space, Scope::User, Scope::Session]
    );
    assert_value(&on[0].1, &redirect("user"));
    assert_value(&on[1].1, &redirect("session"));
    assert_value(&on[2].1, &value!("mine"));
    let user = narrowed(true, "user");
    assert_value(&user[0].1, &redirect("user"));
}

#[test]
fn run_234_a_narrower_link_is_sticky_for_content() {
    let bench = bench();
    bench.load(
        "of:a",
        1,
        Some(value!({ "d": { "/": { "link@1": { "path": ["d"], "scope": "user" } } } })),
    );
    let tx = RunTx::open(&bench.storage);
    cell(&bench, "of:a", None)
        .key("d")
        .with_tx(&tx)
        .set(5.into())
        .expect("writable");
    let native = tx.native_commit(&bench.space());
    assert_eq!(native.operations.len(), 1);
    assert_eq!(
        native.operations[0].target().map(|(_, scope)| scope),
        Some(Scope::User)
    );
}

#[test]
fn run_235_a_left_out_narrower_property_gets_its_redirect_only() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "keep": 1 })));
    let schema =
        value!({ "type": "object", "properties": { "mine": { "type": "string", "scope": "user" } } });
    let ops = operations(&bench, |tx| {
        cell(&bench, "of:a", Some(schema))
            .with_tx(tx)
            .set(value!({ "keep": 1 }))
            .expect("writable");
    });
    assert_eq!(ops.len(), 1, "the instance's content is left alone");
    let expected = value!([{ "op": "add", "path": "/value/mine", "value":
        { "/": { "link@1": { "path": ["mine"], "scope": "user", "overwrite": "redirect" } } } }]);
    assert_value(&Value::from(patches(&ops[0])), &expected);
}

/// Names elements by count.
struct Frame(Counter<u32>);

impl WriteFrame for Frame {
    fn anchor(&self, _: &SpaceId, id: &EntityId, at: &[SmolStr]) -> EntityId {
        self.0.set(self.0.get() + 1);
        format!("{id}#{}:{}", at.join("."), self.0.get()).into()
    }
}

#[test]
fn run_231_object_elements_become_documents_when_a_frame_names_them() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "list": [] })));
    let frame = Rc::new(Frame(Counter::new(0)));
    let ops = operations(&bench, |tx| {
        let list = cell(&bench, "of:a", None)
            .key("list")
            .with_tx(tx)
            .with_frame(Rc::clone(&frame) as Rc<dyn WriteFrame>);
        list.push(vec![value!({ "n": 1 }), 2.into()]).expect("an array");
    });
    let ids: Vec<&str> = ops
        .iter()
        .filter_map(|op| op.target())
        .map(|(id, _)| id.as_str())
        .collect();
    assert_eq!(ids, ["of:a", "of:a#list:1"]);
    let expected = value!([{ "op": "append", "path": "/value/list", "values": [
        { "/": { "link@1": { "id": "of:a#list:1", "path": [] } } }, 2] }]);
    assert_value(&Value::from(patches(&ops[0])), &expected);
    let inline = operations(&bench, |tx| {
        cell(&bench, "of:a", None)
            .key("list")
            .with_tx(tx)
            .push(vec![value!({ "n": 1 })])
            .expect("an array");
    });
    assert_eq!(inline.len(), 1, "without a frame they stay inline");
}

#[test]
fn run_237_a_default_is_seeded_into_an_absent_document_only() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({})));
    bench.load("of:there", 1, Some(value!(1)));
    let lens = Some(value!({ "type": "number", "default": 9 }));
    let ops = operations(&bench, |tx| {
        let a = cell(&bench, "of:a", None).with_tx(tx);
        a.key("x")
            .set(link_to("of:new", &[]).with_schema(lens.clone()).to_value(None))
            .expect("writable");
        a.key("y")
            .set(link_to("of:there", &[]).with_schema(lens.clone()).to_value(None))
            .expect("writable");
    });
    let mut ids: Vec<&str> = ops
        .iter()
        .filter_map(|op| op.target())
        .map(|(id, _)| id.as_str())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["of:a", "of:new"]);
}

#[test]
fn run_91_authoritative_writes_are_whole_and_never_elided() {
    let bench = bench();
    bench.load("of:a", 1, Some(value!({ "n": 1 })));
    let ops = operations(&bench, |tx| {
        tx.mark_authoritative_writes();
        cell(&bench, "of:a", None)
            .key("n")
            .with_tx(tx)
            .set(1.into())
            .expect("writable");
    });
    assert!(matches!(&ops[..], [Operation::Set { .. }]), "{ops:?}");
}

#[test]
fn run_94_every_read_narrows_the_ratchet() {
    let bench = bench();
    let tx = RunTx::open(&bench.storage);
    let a = cell(&bench, "of:a", None).with_tx(&tx);
    a.get().expect("readable");
    assert_eq!(tx.narrowest_read_scope(), Scope::Space);
    a.in_scope(Scope::Session).get().expect("readable");
    a.in_scope(Scope::User).get().expect("readable");
    assert_eq!(tx.narrowest_read_scope(), Scope::Session);
    tx.reset_narrowest_read_scope();
    assert_eq!(tx.narrowest_read_scope(), Scope::Space);
}

#[test]
fn run_574_an_identity_without_a_row_fails_in_the_resolver() {
    let bench = bench();
    let tx = RunTx::open(&bench.storage);
    tx.set_scope_identity(memory_wire::ScopeIdentity::default())
        .expect("nothing was read yet");
    let a = cell(&bench, "of:a", None).in_scope(Scope::User).with_tx(&tx);
    let error = a.get().expect_err("nobody").to_string();
    assert_eq!(error, "user scoped memory operations require a principal");
    assert_eq!(a.set(1.into()).expect_err("nobody").to_string(), error);
}

#[test]
fn run_92_a_blind_write_stands_on_its_parents_shape_alone() {
    let bench = bench();
    bench.load("of:a", 4, Some(value!({ "title": "old", "n": 1 })));
    let tx = RunTx::open(&bench.storage);
    cell(&bench, "of:a", None)
        .key("title")
        .with_tx(&tx)
        .set_blind("new".into())
        .expect("a scalar");
    let reads = tx.native_commit(&bench.space()).reads;
    assert_eq!(reads.len(), 1, "{reads:?}");
    assert_eq!(reads[0].path, path(["value"]));
    assert!(reads[0].non_recursive && reads[0].non_speculative);
    assert!(
        cell(&bench, "of:a", None)
            .with_tx(&tx)
            .set_blind(value!({}))
            .is_err()
    );
}
