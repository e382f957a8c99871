//! The lunch poll in a real browser: two Chromium processes, two people, one server. They vote, reload, lose the
//! connection and come back. Pictures go to `SCREENSHOTS`, when that names a directory.

mod chromium;
mod line;

use chromium::Page;
use line::Line;
use tests::process::Launch;

#[tokio::test]
async fn two_people_vote_reload_drop_and_come_back() {
    let data = tempfile::tempdir().unwrap();
    let server = Launch::demo(data.path()).start().unwrap();
    let line = Line::to(server.address()).await;
    let url = format!("http://{}/", line.address());
    let (ann, ben) = (Page::open("ann", &url).await, Page::open("ben", &url).await);
    ann.is_live().await;
    ben.is_live().await;
    let (ann_did, ben_did) = (
        ann.attribute("identity", "data-did").await,
        ben.attribute("identity", "data-did").await,
    );
    assert!(
        ann_did.starts_with("did:key:z6Mk") && ann_did != ben_did,
        "{ann_did} and {ben_did}"
    );

    // A half-typed option is on its own tab alone; once added it is everybody's.
    ann.type_into("draft", "Noodles at the corner").await;
    ann.settled().await;
    assert_eq!(ben.value("draft").await, "");
    ann.click("add").await;
    ann.has_option("Noodles at the corner").await;
    ben.has_option("Noodles at the corner").await;
    ann.draft_is("").await;

    // Both vote; each sees the common tally and its own mark.
    ann.vote("Noodles at the corner").await;
    ben.tally_is("Noodles at the corner", "1").await;
    ben.vote("Noodles at the corner").await;
    ann.tally_is("Noodles at the corner", "2").await;
    ann.my_vote_is("Noodles at the corner").await;
    ann.settled().await;
    ben.settled().await;
    assert!(ann.number("panel-watermark").await > 0);
    ann.picture("lunch-poll.png").await;

    // Reload: the same person, the same vote.
    ann.reload().await;
    ann.is_live().await;
    assert_eq!(ann.attribute("identity", "data-did").await, ann_did);
    ann.my_vote_is("Noodles at the corner").await;
    ann.tally_is("Noodles at the corner", "2").await;

    // The line goes dead under both. A click made meanwhile is kept and lands once, when it is back.
    line.cut().await;
    ann.phase_is("waiting").await;
    ben.phase_is("waiting").await;
    ben.vote("Noodles at the corner").await;
    ben.picture("lunch-poll-disconnected.png").await;
    line.restore();
    ann.is_live().await;
    ben.is_live().await;
    // Ben's click on his own vote takes it back.
    ann.tally_is("Noodles at the corner", "1").await;
    ben.settled().await;
    ben.picture("lunch-poll-other-person.png").await;

    // The panel shows rows of this person and of nobody else, by scope kind; no problem was ever shown.
    for page in [&ann, &ben] {
        let scopes = page.attributes("panel-row", "data-scope").await;
        assert!(
            scopes.iter().any(|s| s == "user") && scopes.iter().any(|s| s == "session"),
            "{scopes:?}"
        );
        assert_eq!(
            page.attributes("problem", "data-name").await,
            Vec::<String>::new()
        );
    }
    let html = ben.html().await;
    assert!(!html.contains(&ann_did), "one person's page names the other");
    ann.close().await;
    ben.close().await;
    server.stop("TERM").unwrap();
}
