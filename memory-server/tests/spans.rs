//! A trace of one commit (SRV-1104): which spans there are, what they say, and that a push pass belongs to no commit. One
//! test in a process of its own, because a subscriber for all threads is the process's.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use memory_server::ServingPlane;
use serde_json::json;
use support::{Injected, Running, open, set, watch};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[derive(Default, Clone)]
struct Seen(Arc<Mutex<BTreeMap<u64, Span>>>);

#[derive(Debug, Clone)]
struct Span {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<String, String>,
}

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let parent = context
            .span(id)
            .and_then(|span| span.parent())
            .map(|parent| parent.id().into_u64());
        let name = attributes.metadata().name();
        let span = Span { name, parent, fields };
        self.0
            .lock()
            .expect("not poisoned")
            .insert(id.into_u64() ^ unique(name), span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let key = id.into_u64() ^ unique(span.name());
        if let Some(span) = self.0.lock().expect("not poisoned").get_mut(&key) {
            values.record(&mut Fields(&mut span.fields));
        }
    }
}

/// Ids are used again when a span closes; with the name they tell one kind of span from the next holder of the id.
fn unique(name: &str) -> u64 {
    name.bytes()
        .fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        << 32
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1104_the_spans_of_a_commit_and_of_its_push() {
    let seen = Seen::default();
    let filter = tracing_subscriber::filter::LevelFilter::DEBUG;
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(filter).with(seen.clone()))
        .expect("the only one of this process");
    let running = Running::production(Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config).await;
    let mut writer = open(&running, "w", "did:key:a").await;
    let mut reader = open(&running, "r", "did:key:b").await;
    assert!(reader.request(&watch("r", &["of:x"])).await["ok"].is_object());
    assert!(writer.request(&set("w", 1, "of:x", &json!(1))).await["ok"].is_object());
    running.server.flush(None).await.expect("flushes");
    assert_eq!(support::json(&reader.recv().await)["type"], "session/effect");

    let spans: Vec<Span> = seen.0.lock().expect("not poisoned").values().cloned().collect();
    let named = |name: &str| -> Vec<&Span> { spans.iter().filter(|span| span.name == name).collect() };
    let names: BTreeSet<&str> = spans
        .iter()
        .map(|span| span.name)
        .filter(|name| name.starts_with("memory."))
        .collect();
    assert_eq!(
        names,
        BTreeSet::from([
            "memory.commit.persist",
            "memory.fanout",
            "memory.socket.setup",
            "memory.subscribe",
            "memory.subscriber.sync",
            "memory.transact",
            "memory.watch.refresh",
        ])
    );
    let transact = named("memory.transact")[0];
    for (field, value) in [
        ("space.did", support::SPACE),
        ("user.did", "did:key:a"),
        ("session.id", "w"),
        ("request.id", "t1"),
        ("commit.local_seq", "1"),
        ("commit.kind", "semantic"),
        ("entity.count", "1"),
    ] {
        assert_eq!(
            transact.fields.get(field).map(String::as_str),
            Some(value),
            "{field}"
        );
    }
    let persist = named("memory.commit.persist")[0];
    assert_eq!(persist.fields.get("commit.seq").map(String::as_str), Some("1"));
    assert!(persist.parent.is_some(), "part of its commit");
    let fanout = named("memory.fanout");
    assert!(
        fanout.iter().all(|span| span.parent.is_none()),
        "a root: {fanout:?}"
    );
    assert!(fanout.iter().any(|span| span.fields["dirty.count"] == "1"));
    let refresh = named("memory.watch.refresh");
    assert!(
        refresh
            .iter()
            .any(|span| span.fields["session.id"] == "r" && span.fields["watch.count"] == "1")
    );
    // No span holds what a document says.
    assert!(
        spans
            .iter()
            .all(|span| span.fields.values().all(|value| !value.contains("\"value\"")))
    );
}
