//! Lost connections: a session resumes where it was, nothing is lost, nothing is applied twice, and a session that
//! was taken over is told.

use memory_wire::Seq;
use memory_wire::error::ErrorName;
use memory_wire::message::{RevokedReason, ServerMessage};
use tests::Client;

use crate::poll::{Demo, fire};

#[tokio::test]
async fn a_resumed_session_gets_what_it_missed_in_one_sync() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    let (b, mut sb) = demo.person("bob").await;
    let seen = b.mirror(&sb).position();
    b.drop_connection();
    fire(&mut a, &mut sa, demo.poll.add_option("Laksa")).await;
    fire(&mut a, &mut sa, demo.poll.vote(Some("Laksa"))).await;

    let mut back = Client::connect(&demo.server.socket_url()).await.unwrap();
    sb = back
        .resume(&sb, seen)
        .await
        .unwrap()
        .expect("the session is still known");
    assert!(sb.opened.resumed);
    back.until(&sb, "what was missed", |m| demo.votes(m, "Laksa") == Some(1.0))
        .await
        .unwrap();
    // Its watches stand: what comes next is pushed without asking again.
    fire(&mut a, &mut sa, demo.poll.vote(None)).await;
    back.until(&sb, "what comes next", |m| demo.votes(m, "Laksa") == Some(0.0))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_commit_whose_verdict_was_lost_is_resent_and_lands_once() {
    let demo = Demo::start();
    let (mut a, mut sa) = demo.person("alice").await;
    fire(&mut a, &mut sa, demo.poll.add_option("Risotto")).await;
    let vote = demo.poll.vote(Some("Risotto"));
    let (event, commit) = (vote.id.clone(), vote.commit.clone());
    let (_, local) = a.submit(&mut sa, vote.commit).await.unwrap();
    // The verdict is not read: the line goes dead with the commit on its way.
    a.drop_connection();

    let mut back = Client::connect(&demo.server.socket_url()).await.unwrap();
    let mut session = back
        .resume(&sa, Seq(0))
        .await
        .unwrap()
        .expect("the session is still known");
    session.next_local = local.0;
    let applied = back
        .transact(&mut session, commit)
        .await
        .unwrap()
        .expect("landed now or before");
    back.settled(&session, applied.seq).await.unwrap();
    assert_eq!(demo.votes(back.mirror(&session), "Risotto"), Some(1.0));
    assert_eq!(demo.store().consequences_of(event.as_str()).len(), 1);
}

#[tokio::test]
async fn a_takeover_tells_the_old_connection_and_rotates_the_token() {
    let demo = Demo::start();
    let (mut first, session) = demo.person("alice").await;
    let mut second = Client::connect(&demo.server.socket_url()).await.unwrap();
    let taken = second
        .resume(&session, Seq(0))
        .await
        .unwrap()
        .expect("a valid token takes over");
    assert_ne!(taken.token.as_str(), session.token.as_str());
    let reason = loop {
        if let ServerMessage::Revoked(revoked) = first.next().await.unwrap() {
            break revoked.reason;
        }
    };
    assert_eq!(reason, RevokedReason::TakenOver);
    let mut third = Client::connect(&demo.server.socket_url()).await.unwrap();
    let error = third
        .resume(&session, Seq(0))
        .await
        .unwrap()
        .expect_err("the old token");
    assert_eq!(error.name, ErrorName::SessionRevoked);
}
