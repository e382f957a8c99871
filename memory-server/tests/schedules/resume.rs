//! A connection ends while frames are queued, being read, or unconfirmed, and while its own commit is on its way; the
//! session is resumed over another one, perhaps before the server has seen the first one end. Nothing is lost, nothing is
//! applied twice.

use std::sync::Arc;

use memory_server::Server;
use serde_json::{Value as Json, json};

use crate::support::peer::{Peer, Told, commit, watching};
use crate::{choose, directory, holds_what_is_stored, opened, server, server_in, settled, wire};

const WATCHED: &[&str] = &["of:a", "of:b", "of:own"];
/// Watched too, by a request whose answer may be lost.
const LATE: &[&str] = &["of:late"];

/// With the store in memory: a resume is evaluated in the turn.
pub(crate) fn run() {
    play(&server(|_| ()));
}

/// With the store in a file: a resume is evaluated beside the turn and brought up to date within it.
pub(crate) fn run_beside() {
    let directory = directory();
    play(&server_in(&directory, |_| ()));
}

fn play(server: &Arc<Server>) {
    shuttle::future::block_on(async {
        let mut writer = opened(server, wire(), "w", "did:key:w").await;
        let documents = [("of:b", json!("doomed")), ("of:late", json!("early"))];
        writer.request(commit("w", 1, &documents)).await;
        let mut reader = opened(server, wire(), "r", "did:key:r").await;
        reader
            .request(watching("session.watch.set", "r", "all", WATCHED))
            .await;
        let writing = shuttle::future::spawn(async move {
            writer.request(commit("w", 2, &[("of:a", json!(1))])).await;
            writer
                .request(commit("w", 3, &[("of:a", json!(2)), ("of:b", Json::Null)]))
                .await;
            writer
        });
        // Handed over, and neither answer waited for.
        let own = commit("r", 1, &[("of:own", json!("mine"))]);
        let more = watching("session.watch.add", "r", "late", LATE);
        let texts = [own.clone(), more.clone()].map(|request| reader.prepare(request).1);
        let sender = reader.sender();
        let sending = shuttle::future::spawn(async move {
            for text in texts {
                // The connection may end first.
                let _ = sender.send(text).await;
            }
        });
        for _ in 0..choose(4) {
            reader.hear().await;
        }
        let mut told = Told::new("r");
        told.lossy = true;
        let log = reader.hang_up();
        told.read(&log.asked, &log.heard);
        told.next_connection();
        let mut again = Peer::connect(server, wire()).await;
        let token = told.token.clone().expect("opened");
        let answer = again
            .open("r", "did:key:r", Some(&token), told.position)
            .await
            .expect("connected");
        assert_eq!(answer["ok"]["resumed"], true, "{answer}");
        // Sent again because the answers are not known.
        again.request(own).await;
        again.request(more).await;
        sending.await.expect("sends");
        let writer = writing.await.expect("writes");
        settled(server, &mut again, "r").await;
        told.read(&again.asked, &again.heard);
        assert_eq!(told.accepted.len(), 1, "the commit is answered");
        assert_eq!(told.marker, 1, "the commit is covered by a marker");
        holds_what_is_stored(server, &told, WATCHED).await;
        holds_what_is_stored(server, &told, LATE).await;
        drop(writer);
    });
}
