//! A watch list is set and extended while commits land (F14): a snapshot at s and every change after s, no gap, nothing
//! twice, and no frame before the verdict it covers.

use std::sync::Arc;

use memory_server::Server;
use serde_json::{Value as Json, json};

use crate::support::peer::{Told, commit, watching};
use crate::{directory, holds_what_is_stored, opened, server, server_in, settled, wire};

/// With the store in memory: watches are evaluated in the turn.
pub(crate) fn run() {
    play(&server(|_| ()));
}

/// With the store in a file: watches are evaluated beside the turn and brought up to date within it.
pub(crate) fn run_beside() {
    let directory = directory();
    play(&server_in(&directory, |_| ()));
}

fn play(server: &Arc<Server>) {
    shuttle::future::block_on(async {
        let mut writer = opened(server, wire(), "w", "did:key:w").await;
        let mut reader = opened(server, wire(), "r", "did:key:r").await;
        let writing = shuttle::future::spawn(async move {
            // The writer watches what it writes: its own frames may not overtake its verdicts.
            writer
                .request(watching("session.watch.set", "w", "own", &["of:a"]))
                .await;
            for n in 1..=3u64 {
                let documents = [("of:a", json!(n)), ("of:b", json!(n * 10))];
                let documents = &documents[..if n == 2 { 1 } else { 2 }];
                writer.request(commit("w", n, documents)).await;
            }
            writer
        });
        let reading = shuttle::future::spawn(async move {
            reader
                .request(watching("session.watch.set", "r", "first", &["of:a"]))
                .await;
            reader
                .request(watching("session.watch.add", "r", "second", &["of:b", "of:a"]))
                .await;
            reader
        });
        let mut writer = writing.await.expect("writes");
        let mut reader = reading.await.expect("reads");
        // Nobody asks for a flush: a wake-up that is lost would leave these two waiting for ever.
        let last = |told: &Told, id: &str, content: Json| {
            let name = ("space".to_owned(), id.to_owned(), String::new());
            told.holds(&name).is_some_and(|(_, held)| *held == Some(content))
        };
        let mut told = Told::new("r");
        told.hear_until(&mut reader, |told| {
            last(told, "of:a", json!(3)) && last(told, "of:b", json!(30))
        })
        .await;
        let mut own = Told::new("w");
        own.hear_until(&mut writer, |told| told.marker == 3).await;
        settled(server, &mut reader, "r").await;
        settled(server, &mut writer, "w").await;
        let mut told = Told::new("r");
        told.read(&reader.asked, &reader.heard);
        holds_what_is_stored(server, &told, &["of:a", "of:b"]).await;
        let mut own = Told::new("w");
        own.read(&writer.asked, &writer.heard);
        assert_eq!(own.marker, 3, "every accepted commit is covered by a marker");
        holds_what_is_stored(server, &own, &["of:a"]).await;
    });
}
