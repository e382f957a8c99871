//! View-scoped replication over real sockets (SRV §10): interests, selections, plans.

mod support;

use memory_server::{ServerConfig, ServingPlane, ViewHandle, ViewInterestRow, ViewSelection};
use memory_wire::message::{Root, Selector, ViewQuery};
use memory_wire::{Scope, SpaceId, Value};
use serde_json::{Value as Json, json};
use support::{Client, Injected, Running, SPACE, frame, json, open_with, set};

fn config() -> ServerConfig {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.server_execution = true;
    config
}

/// A client that speaks views, with a session.
async fn open(running: &Running, session: &str, token: Option<&str>, views: bool) -> (Client, Json) {
    let mut client = running.client().await;
    let hello =
        json!({ "type": "hello", "protocol": "memory", "flags": { "viewScopedReplicationV1": views } });
    let hello = client.request(&frame(&hello)).await;
    let challenge = hello["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("a challenge")
        .to_owned();
    let opened = open_with(&mut client, &challenge, SPACE, session, "did:key:alice", token).await;
    assert_eq!(opened["ok"]["sessionId"], session, "{opened}");
    (client, opened)
}

fn view(id: &str, revision: u64, root: &str) -> Json {
    json!({
        "id": id, "revision": revision, "mode": "render", "componentContractVersion": "1",
        "query": { "roots": [{ "id": root, "selector": { "path": [], "schema": false } }] },
    })
}

fn watch_set(session: &str, roots: &[&str], views: Option<&Json>) -> String {
    let roots: Vec<Json> = roots
        .iter()
        .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect();
    let watches = if roots.is_empty() {
        json!([])
    } else {
        json!([{ "id": "w", "kind": "graph", "query": { "roots": roots } }])
    };
    let mut request = json!({
        "type": "session.watch.set", "requestId": "watch", "space": SPACE, "sessionId": session, "watches": watches,
    });
    if let Some(views) = views {
        request["views"] = views.clone();
    }
    frame(&request)
}

fn ids(sync: &Json) -> Vec<&str> {
    sync["upserts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|upsert| upsert["id"].as_str())
        .collect()
}

fn interests(running: &Running) -> Vec<ViewInterestRow> {
    running.server.view_interests(&SpaceId::from(SPACE))
}

async fn select(
    running: &Running,
    handle: &ViewHandle,
    generation: u64,
    delivery: &[&str],
    action: &str,
) -> Result<bool, String> {
    let selection = ViewSelection {
        generation,
        delivery: vec![ViewQuery {
            roots: delivery
                .iter()
                .map(|id| {
                    Root::new(
                        *id,
                        Scope::Space,
                        Selector {
                            path: Default::default(),
                            schema: Some(Value::Bool(true)),
                        },
                    )
                })
                .collect(),
        }],
        eligible_actions: vec![action.into()],
        ..ViewSelection::default()
    };
    running
        .server
        .set_view_selection(&SpaceId::from(SPACE), handle.clone(), selection)
        .await
        .map_err(|error| error.to_string())
}

async fn flush(running: &Running) {
    running.server.flush(None).await.expect("flushes");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1001_views_are_offered_only_with_server_execution() {
    let mut off = config();
    off.server_execution = false;
    let running = Running::standalone(off).await;
    let mut client = running.client().await;
    let hello =
        json!({ "type": "hello", "protocol": "memory", "flags": { "viewScopedReplicationV1": true } });
    assert_eq!(
        client.request(&frame(&hello)).await["flags"]["viewScopedReplicationV1"],
        false
    );
    let (mut client, _) = open(&running, "s", None, true).await;
    let refused = client
        .request(&watch_set("s", &[], Some(&json!([view("v", 1, "of:x")]))))
        .await;
    assert_eq!(refused["error"]["name"], "ProtocolError", "{refused}");
    client
        .send(&watch_set(
            "s",
            &[],
            Some(&json!([view("v", 1, "of:x"), view("v", 1, "of:y")])),
        ))
        .await;
    assert_eq!(
        json(&client.recv().await)["requestId"],
        "invalid",
        "ids are unique in a list"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1002_a_rendered_view_is_a_watch_of_its_own() {
    let running = Running::standalone(config()).await;
    let (mut client, _) = open(&running, "s", None, true).await;
    let first = client
        .request(&watch_set("s", &["of:w"], Some(&json!([view("v", 1, "of:v")]))))
        .await;
    assert_eq!(ids(&first["ok"]["sync"]), ["of:v", "of:w"], "{first}");
    // Without `views` the views stay; without watches the watches go.
    let second = client.request(&watch_set("s", &[], None)).await;
    assert_eq!(ids(&second["ok"]["sync"]), ["of:v"], "{second}");
    assert_eq!(second["ok"]["sync"]["removes"][0]["id"], "of:w");
    let rows = running.server.demanded_instances(&SpaceId::from(SPACE), None);
    assert_eq!(
        rows.iter()
            .map(|row| (row.id.as_str(), row.root))
            .collect::<Vec<_>>(),
        [("of:v", true)]
    );
    let unchanged = client
        .request(&watch_set("s", &[], Some(&json!([view("v", 1, "of:v")]))))
        .await;
    assert!(
        unchanged["ok"].is_object(),
        "an identical repeat needs no revision"
    );
    let changed = client
        .request(&watch_set("s", &[], Some(&json!([view("v", 1, "of:other")]))))
        .await;
    assert_eq!(changed["error"]["name"], "ProtocolError", "{changed}");
    let greater = client
        .request(&watch_set("s", &[], Some(&json!([view("v", 2, "of:other")]))))
        .await;
    assert_eq!(ids(&greater["ok"]["sync"]), ["of:other"], "{greater}");
    let none = client.request(&watch_set("s", &[], Some(&json!([])))).await;
    assert_eq!(none["ok"]["sync"]["removes"][0]["id"], "of:other");
    assert!(interests(&running).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1004_to_1006_a_selection_is_delivered_with_its_plan_and_never_demanded() {
    let running = Running::standalone(config()).await;
    let (mut writer, _) = open(&running, "w", None, false).await;
    assert_eq!(
        writer.request(&set("w", 1, "of:input", &json!("in"))).await["ok"]["seq"],
        1
    );
    let (mut client, _) = open(&running, "s", None, true).await;
    assert!(
        client
            .request(&watch_set("s", &[], Some(&json!([view("v", 1, "of:v")]))))
            .await["ok"]
            .is_object()
    );
    let rows = interests(&running);
    let [row] = rows.as_slice() else {
        panic!("one view: {rows:?}")
    };
    assert!(row.attached && row.selection_generation.is_none());
    let handle = &row.handle;

    assert_eq!(select(&running, handle, 1, &["of:input"], "a").await, Ok(true));
    flush(&running).await;
    let effect = json(&client.recv().await);
    assert_eq!(ids(&effect["effect"]), ["of:input"], "{effect}");
    let plan = &effect["effect"]["viewPlans"][0];
    assert_eq!(
        (&plan["id"], &plan["generation"], &plan["eligibleActions"]),
        (&json!("v"), &json!(1), &json!(["a"]))
    );
    let demanded = running.server.demanded_instances(&SpaceId::from(SPACE), None);
    assert!(
        demanded.iter().all(|row| row.id.as_str() != "of:input"),
        "{demanded:?}"
    );
    assert_eq!(interests(&running)[0].selection_generation, Some(1));

    // What is delivered is followed; the plan is not told again.
    writer.recv().await;
    writer.request(&set("w", 2, "of:input", &json!("changed"))).await;
    flush(&running).await;
    let effect = json(&client.recv().await);
    assert_eq!(effect["effect"]["upserts"][0]["doc"]["value"], "changed");
    assert!(effect["effect"].get("viewPlans").is_none(), "{effect}");

    assert_eq!(
        select(&running, handle, 1, &["of:input"], "a").await,
        Ok(true),
        "an identical repeat"
    );
    assert_eq!(
        select(&running, handle, 1, &["of:input"], "b").await,
        Ok(false),
        "other content, same generation"
    );
    assert_eq!(
        select(&running, handle, 0, &["of:input"], "a").await,
        Ok(false),
        "an older generation"
    );
    assert_eq!(
        select(&running, handle, 1 << 53, &[], "a").await,
        Err("ProtocolError: Invalid view selection".into())
    );
    let stale = ViewHandle {
        revision: 9,
        ..handle.clone()
    };
    assert_eq!(select(&running, &stale, 2, &[], "a").await, Ok(false));

    // A plan alone is worth a frame; what is selected no longer is taken back.
    assert_eq!(select(&running, handle, 2, &["of:other"], "c").await, Ok(true));
    flush(&running).await;
    let effect = json(&client.recv().await);
    assert_eq!(effect["effect"]["viewPlans"][0]["generation"], 2, "{effect}");
    assert_eq!(effect["effect"]["removes"][0]["id"], "of:input", "{effect}");
    client.send("probe").await;
    assert_eq!(json(&client.recv().await)["requestId"], "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_1006_srv_1007_plans_survive_a_resume_of_a_client_that_speaks_views() {
    let running = Running::standalone(config()).await;
    let (mut client, opened) = open(&running, "s", None, true).await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token").to_owned();
    assert!(
        client
            .request(&watch_set("s", &[], Some(&json!([view("v", 1, "of:v")]))))
            .await["ok"]
            .is_object()
    );
    let handle = interests(&running)[0].handle.clone();
    assert_eq!(select(&running, &handle, 1, &["of:input"], "a").await, Ok(true));
    flush(&running).await;
    assert_eq!(
        json(&client.recv().await)["effect"]["viewPlans"][0]["generation"],
        1
    );
    drop(client);
    running.until_connections(0).await;
    assert!(!interests(&running)[0].attached);
    let (client, resumed) = open(&running, "s", Some(&token), true).await;
    assert_eq!(
        resumed["ok"]["sync"]["viewPlans"][0]["generation"], 1,
        "{resumed}"
    );
    assert_eq!(
        select(&running, &handle, 2, &[], "b").await,
        Ok(false),
        "the handle is of the former opening"
    );
    let token = resumed["ok"]["sessionToken"]
        .as_str()
        .expect("a token")
        .to_owned();
    drop(client);
    running.until_connections(0).await;
    let (_client, plain) = open(&running, "s", Some(&token), false).await;
    assert_eq!(plain["ok"]["resumed"], true);
    assert!(
        interests(&running).is_empty(),
        "a client that does not speak views has none"
    );
}

/// What a session makes the server keep is bounded, whatever it calls it.
#[tokio::test(flavor = "multi_thread")]
async fn views_count_among_the_watches_a_session_may_have() {
    let mut config = config();
    config.limits.max_watches = 3;
    let running = Running::standalone(config).await;
    let (mut client, _) = open(&running, "s", None, true).await;
    let mut speculative = view("b", 1, "of:b");
    speculative["mode"] = "speculate".into();
    let two = json!([view("a", 1, "of:a"), speculative]);
    let answer = client.request(&watch_set("s", &["of:x"], Some(&two))).await;
    assert!(answer["ok"].is_object(), "{answer}");
    let three = json!([view("a", 1, "of:a"), view("b", 2, "of:b"), view("c", 1, "of:c")]);
    let answer = client.request(&watch_set("s", &["of:x"], Some(&three))).await;
    assert_eq!(answer["error"]["name"], "ProtocolError", "{answer}");
    assert_eq!(
        answer["error"]["message"],
        "session.watch.set would give the session 4 watches, at most 3 are allowed"
    );
    assert_eq!(interests(&running).len(), 2, "nothing of it is there");
    let answer = client.request(&watch_set("s", &[], Some(&three))).await;
    assert!(answer["ok"].is_object(), "{answer}");
}
