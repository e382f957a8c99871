//! The pattern under test: one shared count, what it doubles to, one sentence per user; a handler that can tell a
//! second one, pass on to another space, or do what the store refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memory_wire::{EntityId, Scope, Value, value, well_known};
use runner::error::RunnerError;
use runner::link::Link;
use runner::pattern::{ArgView, GraphBuilder, Pattern, PatternGraph, PatternIdentity, RunCx, fields};

/// Called by the counter's handler in every run, before it writes.
pub(crate) type Hook = Arc<dyn Fn() -> Result<(), RunnerError> + Send + Sync>;

/// One shared count, what it doubles to, and one sentence per user.
#[derive(Clone)]
pub(crate) struct Counter {
    pub(crate) hook: Hook,
    /// Runs of the handler.
    pub(crate) runs: Arc<AtomicUsize>,
}

impl Default for Counter {
    fn default() -> Self {
        Counter {
            hook: Arc::new(|| Ok(())),
            runs: Arc::default(),
        }
    }
}

impl Counter {
    pub(crate) fn with(hook: impl Fn() -> Result<(), RunnerError> + Send + Sync + 'static) -> Counter {
        Counter {
            hook: Arc::new(hook),
            ..Counter::default()
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Pattern for Counter {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("serving-tests", "counter", "1")
    }

    fn graph(&self) -> PatternGraph {
        let argument = value!({ "type": "object", "properties": { "peer": { "asCell": ["stream"] } } });
        let mut g = GraphBuilder::new(&self.identity(), argument);
        let count = g.state("count", value!({ "type": "number", "default": 0 }));
        let mine = g.scoped_state("mine", Scope::User, value!({ "type": "number" }));
        let doubled = g.derive(
            "doubled",
            fields([("count", (&count).into())]),
            value!({ "type": "number" }),
            |_, input| Ok(Value::from(number(input, "count")? * 2.0)),
        );
        let share = g.derive(
            "share",
            fields([("count", (&count).into()), ("mine", (&mine).into())]),
            value!({ "type": "string" }),
            |_, input| {
                Ok(Value::from(format!(
                    "{} of {}",
                    number(input, "mine")?,
                    number(input, "count")?
                )))
            },
        );
        let told = g.state("told", value!({ "type": "number", "default": 0 }));
        let tell = g.handler(
            "tell",
            fields([("told", (&told).into())]),
            value!({ "type": "object", "properties": { "by": { "type": "number" } } }),
            |_, state, event| {
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(1.0);
                state.cell("told")?.set(Value::from(number(state, "told")? + by))
            },
        );
        let (hook, runs) = (self.hook.clone(), self.runs.clone());
        let peer = g.argument().key("peer");
        let add = g.handler(
            "add",
            fields([
                ("count", (&count).into()),
                ("mine", (&mine).into()),
                ("tell", (&tell).into()),
                ("peer", (&peer).into()),
            ]),
            value!({
                "type": "object",
                "properties": {
                    "by": { "type": "number" },
                    "tell": { "type": "boolean" },
                    "pass": { "type": "boolean" },
                    "poison": { "type": "boolean" }
                }
            }),
            move |cx: &RunCx, state: &ArgView, event: &Value| {
                runs.fetch_add(1, Ordering::SeqCst);
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(1.0);
                let before = (number(state, "count")?, number(state, "mine")?);
                hook()?;
                state.cell("count")?.set(Value::from(before.0 + by))?;
                state.cell("mine")?.set(Value::from(before.1 + by))?;
                for (flag, stream) in [("tell", "tell"), ("pass", "peer")] {
                    if event.member(flag).and_then(Value::as_bool) == Some(true) {
                        cx.send(&state.cell(stream)?, value!({ "by": by }))?;
                    }
                }
                if event.member("poison").and_then(Value::as_bool) == Some(true) {
                    // Streams are appended to by sending; the store refuses whoever writes a log by hand.
                    let id = well_known::stream_sidecar_id(&EntityId::from("of:other"), &["x"], Scope::Space);
                    let log = Link::to_document(state.cell("count")?.link().space.clone(), id, Scope::Space);
                    cx.cell_at(log)
                        .set_raw(Some(value!({ "entries": [{ "eventId": "forged" }] })), false)?;
                }
                Ok(())
            },
        );
        g.result(
            value!({ "type": "object" }),
            fields([
                ("count", (&count).into()),
                ("mine", (&mine).into()),
                ("doubled", (&doubled).into()),
                ("share", (&share).into()),
                ("add", (&add).into()),
            ]),
        )
    }
}

fn number(view: &ArgView, name: &str) -> Result<f64, RunnerError> {
    Ok(view.value(name)?.as_f64().unwrap_or(0.0))
}
