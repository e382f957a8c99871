//! A pattern, a runtime and a piece in one process: `cargo run -p runner --example shared_counter`.
//!
//! The store here is the smallest thing that answers the protocol; a real one is a `memory-server`, reached through
//! [`runner::transport::WebSocketConnector`].

#[path = "../tests/store_double/mod.rs"]
mod store_double;

use std::rc::Rc;

use memory_wire::{Scope, Value, value};
use runner::ambient::ManualClock;
use runner::entity_derivation::entity_for;
use runner::link::Link;
use runner::pattern::{GraphBuilder, Pattern, PatternGraph, PatternIdentity, fields};
use runner::runtime::{ExecutorTimer, Posture, Runtime, RuntimeOptions, WakeSignal};
use runner::scheduler::SendOptions;

/// A counter for everybody, and what each user added to it.
struct SharedCounter;

impl Pattern for SharedCounter {
    fn identity(&self) -> PatternIdentity {
        PatternIdentity::native("runner-examples", "shared-counter", "1")
    }

    fn graph(&self) -> PatternGraph {
        let mut g = GraphBuilder::new(&self.identity(), value!({ "type": "object" }));
        let number = || value!({ "type": "number", "default": 0 });
        let total = g.state("total", number());
        let mine = g.scoped_state("mine", Scope::User, number());
        // Reads a user's document, so there is one sentence per user who looks.
        let sentence = g.derive(
            "sentence",
            fields([("total", (&total).into()), ("mine", (&mine).into())]),
            value!({ "type": "string" }),
            |_, arg| {
                let number = |name: &str| arg.value(name).map(|v| v.as_f64().unwrap_or(0.0));
                Ok(Value::from(format!(
                    "{} of {} are yours",
                    number("mine")?,
                    number("total")?
                )))
            },
        );
        let add = g.handler(
            "add",
            fields([("total", (&total).into()), ("mine", (&mine).into())]),
            value!({ "type": "object", "properties": { "by": { "type": "number" } }, "required": ["by"] }),
            |_, state, event| {
                let by = event.member("by").and_then(Value::as_f64).unwrap_or(0.0);
                state.cell("total")?.increment(by)?;
                state.cell("mine")?.increment(by)
            },
        );
        g.result(
            value!({ "type": "object" }),
            fields([
                ("total", (&total).into()),
                ("sentence", (&sentence).into()),
                ("add", (&add).into()),
            ]),
        )
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = store_double::StoreDouble::default();
    let clock = ManualClock::at(1_700_000_000_000);
    let signal = WakeSignal::new();
    let wake = signal.wake();
    let storage = store.storage("ada", &clock, move |options| options.wake = wake);
    let runtime = Runtime::new(RuntimeOptions {
        posture: Posture::Standalone,
        storage,
        signal,
        timer: Rc::new(ExecutorTimer::new(Rc::new(clock))),
    });
    let local = tokio::task::LocalSet::new();
    let space = store.space();
    local.spawn_local(async move {
        loop {
            store.serve();
            tokio::task::yield_now().await;
        }
    });
    local
        .run_until(async move {
            let counter = Link::to_document(space, entity_for(Value::from("counter")), Scope::Space);
            let tx = runtime.edit();
            runtime.run(&tx, &SharedCounter, value!({}), &counter)?;
            runtime.wait_on(tx.commit()).await?;

            let cell = runtime.cell(counter.clone());
            let watching = cell.key("sentence").sink(|view| {
                // Nothing to say until the first run of the derivation.
                if let Some(sentence) = view
                    .as_ref()
                    .ok()
                    .and_then(|view| view.to_value().as_str().map(str::to_owned))
                {
                    println!("{sentence}");
                }
                None
            });
            for by in [1.0, 2.0] {
                let add = Link {
                    path: vec!["add".into()],
                    ..counter.clone()
                };
                runtime.send(&add, value!({ "by": by }), SendOptions::default())?;
                runtime.settled().await;
            }
            drop(watching);
            runtime.dispose();
            Ok(())
        })
        .await
}
