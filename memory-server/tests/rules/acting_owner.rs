//! Sessions that read as the owner of a space (SRV-317…320, SRV-808).

use memory_server::{AclConfig, AclMode, ServerConfig};
use memory_wire::Did;
use serde_json::{Value as Json, json};

use crate::support::{Client, Injected, Running, SPACE, frame, hello, json, open_on, set, transact};

const PROCESS: &str = "did:key:process";

fn config() -> ServerConfig {
    let mut config = Injected::new("did:key:z6Mk-audience", 1_760_000_000_000).config;
    config.server_execution = true;
    config.acl.mode = AclMode::Enforce;
    config.acl.delegating_principals = AclConfig::delegating(&Did::from(PROCESS), true);
    config
}

/// Opens a session of `issuer` that asks to act as somebody.
async fn open_acting(client: &mut Client, session: &str, issuer: &str, acting_as: &str) -> Json {
    let greeted = client.request(&hello()).await;
    let open = json!({
        "type": "session.open", "requestId": "o", "space": SPACE,
        "session": { "sessionId": session, "actingAs": acting_as },
        "invocation": {
            "aud": "did:key:z6Mk-audience", "iss": issuer,
            "challenge": greeted["sessionOpen"]["challenge"]["value"],
        },
        "authorization": {},
    });
    client.request(&frame(&open)).await
}

/// A space and the session of its own key, which may change its list.
struct Space {
    running: Running,
    key: Client,
    changes: u64,
}

impl Space {
    async fn founded(config: ServerConfig, list: Json) -> Space {
        let running = Running::production(config).await;
        let mut key = running.client().await;
        open_on(&mut key, SPACE, "key", SPACE, None).await;
        let mut space = Space {
            running,
            key,
            changes: 0,
        };
        space.change(list).await;
        space
    }

    async fn change(&mut self, list: Json) {
        self.changes += 1;
        let operations = json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": list } }]);
        let verdict = self
            .key
            .request(&transact("key", self.changes, &operations))
            .await;
        assert!(verdict["ok"].is_object(), "{verdict}");
    }

    /// A session of the process, reading as the owner.
    async fn delegate(&self, session: &str) -> Client {
        let mut client = self.running.client().await;
        let opened = open_acting(&mut client, session, PROCESS, "space-owner").await;
        assert!(opened["ok"].is_object(), "{opened}");
        client
    }
}

/// What the session hears first after asking something: `None` when its question was answered, else why it was ended.
async fn ended(client: &mut Client, session: &str) -> Option<String> {
    client
        .send(&frame(&json!({
            "type": "entity-id.exists", "requestId": "r", "space": SPACE, "sessionId": session, "id": "of:x",
        })))
        .await;
    let first = json(&client.recv().await);
    if first["type"] == "response" {
        assert!(first["ok"].is_object(), "{first}");
        return None;
    }
    assert_eq!(first["type"], "session/revoked", "{first}");
    Some(first["reason"].as_str().expect("a reason").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn srv_317_nobody_acts_as_anybody_but_the_process_as_the_owner() {
    let space = Space::founded(config(), json!({ "did:key:a": "OWNER", "*": "WRITE" })).await;
    let mut client = space.running.client().await;
    let refused = open_acting(&mut client, "m", "did:key:a", "space-owner").await;
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    assert_eq!(
        refused["error"]["message"],
        format!(
            "Principal did:key:a may not open a session acting as the owner of {SPACE}: not a delegating principal \
             (memory ACL delegatingDids; OW31)"
        )
    );
    assert!(refused["error"]["retriable"].is_null());
    let mut client = space.running.client().await;
    let refused = open_acting(&mut client, "m", PROCESS, "did:key:a").await;
    assert_eq!(refused["error"]["name"], "ProtocolError", "{refused}");
    assert_eq!(
        refused["error"]["message"],
        "unknown session.open actingAs value \"did:key:a\""
    );
}

/// Whom a session acts for shows in what ends it: the binding goes when the space's owner becomes another (SRV-808), not
/// when others come and go.
#[tokio::test(flavor = "multi_thread")]
async fn srv_318_srv_808_a_binding_ends_when_the_owner_it_stands_for_is_another() {
    let mut space = Space::founded(
        config(),
        json!({ "*": "OWNER", "did:key:b": "OWNER", "did:key:c": "OWNER" }),
    )
    .await;
    let mut acting = space.delegate("p").await;
    // Neither somebody behind it nor the entry for everybody, though it sorts first, was who it stood for.
    space.change(json!({ "did:key:b": "OWNER" })).await;
    assert_eq!(ended(&mut acting, "p").await, None);
    space
        .change(json!({ "did:key:b": "OWNER", "did:key:a": "WRITE" }))
        .await;
    assert_eq!(ended(&mut acting, "p").await, None, "who may write is no owner");
    // The one it stood for is still an owner, but no longer the first.
    space
        .change(json!({ "did:key:b": "OWNER", "did:key:a": "OWNER" }))
        .await;
    assert_eq!(ended(&mut acting, "p").await.as_deref(), Some("unauthorized"));
    // The space's own key comes before everybody.
    let mut acting = space.delegate("q").await;
    space
        .change(json!({ "did:key:a": "OWNER", SPACE: "OWNER" }))
        .await;
    assert_eq!(ended(&mut acting, "q").await.as_deref(), Some("unauthorized"));
    let mut acting = space.delegate("r").await;
    space
        .change(json!({ SPACE: "OWNER", "did:key:0": "OWNER" }))
        .await;
    assert_eq!(ended(&mut acting, "r").await, None);
}

/// SRV-309: a resume that does not ask for the binding reads as itself again, and stays when the owner becomes another.
#[tokio::test(flavor = "multi_thread")]
async fn srv_309_a_binding_is_not_inherited_by_a_resume() {
    let mut space = Space::founded(config(), json!({ PROCESS: "READ", "did:key:b": "OWNER" })).await;
    let mut client = space.running.client().await;
    let opened = open_acting(&mut client, "p", PROCESS, "space-owner").await;
    let token = opened["ok"]["sessionToken"].as_str().expect("a token");
    let mut again = space.running.client().await;
    let resumed = open_on(&mut again, SPACE, "p", PROCESS, Some(token)).await;
    assert_eq!(resumed["ok"]["resumed"], true, "{resumed}");
    space
        .change(json!({ PROCESS: "READ", "did:key:a": "OWNER" }))
        .await;
    assert_eq!(ended(&mut again, "p").await, None);
    space.change(json!({ "did:key:a": "OWNER" })).await;
    assert_eq!(
        ended(&mut again, "p").await.as_deref(),
        Some("unauthorized"),
        "it reads as itself"
    );
}

/// A process that may read everything anyway is bound to nobody, and a change of owners does not end its session.
#[tokio::test(flavor = "multi_thread")]
async fn srv_318_a_service_principal_is_bound_to_nobody() {
    let mut config = config();
    config.acl.service_principals = [Did::from(PROCESS)].into_iter().collect();
    let mut space = Space::founded(config, json!({ "did:key:b": "OWNER" })).await;
    let mut acting = space.delegate("p").await;
    space.change(json!({ "did:key:a": "OWNER" })).await;
    assert_eq!(ended(&mut acting, "p").await, None);
}

/// A loopback session that acts as the owner reads as the owner and writes as itself.
#[tokio::test(flavor = "multi_thread")]
async fn srv_1303_srv_319_a_delegated_binding_reads_and_opens_no_write_path() {
    let process = Did::from(PROCESS);
    let running = Running::production(config()).await;
    let mut founder = running.client().await;
    open_on(&mut founder, SPACE, "f", SPACE, None).await;
    let list =
        json!([{ "op": "set", "id": format!("of:{SPACE}"), "value": { "value": { "did:key:o": "OWNER" } } }]);
    assert!(founder.request(&transact("f", 1, &list)).await["ok"].is_object());
    let mut client = running.client().await;
    let greeted = client.request(&hello()).await;
    let challenge = greeted["sessionOpen"]["challenge"]["value"]
        .as_str()
        .expect("hex")
        .to_owned();
    let open = json!({
        "type": "session.open", "requestId": "o", "space": SPACE,
        "session": { "sessionId": "p", "actingAs": "space-owner" },
        "invocation": { "aud": "did:key:z6Mk-audience", "challenge": challenge, "iss": process.as_str() },
        "authorization": {},
    });
    let opened = client.request(&frame(&open)).await;
    assert!(opened["ok"].is_object(), "reads as the owner: {opened}");
    let refused = client.request(&set("p", 1, "of:x", &json!(1))).await;
    assert_eq!(refused["error"]["name"], "AuthorizationError", "{refused}");
    assert!(
        refused["error"]["message"]
            .as_str()
            .expect("text")
            .contains("did:key:process lacks WRITE"),
        "{refused}"
    );
}
